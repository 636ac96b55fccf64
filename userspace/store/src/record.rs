//! A record: a fixed header and a payload, both checksummed; a file is a row of them.
//!
//! Invariant: a payload is decompressed only after its checksum fits, and memory is taken only
//! for what the file really holds (times the most that LZ4 can stretch it).

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use xxhash_rust::xxh3::xxh3_64;

use crate::error::Damage;

/// The bytes a file begins with: what it is and the version of the format.
pub(crate) const FILE_START: [u8; 16] = *b"strata-store\x02\x00\x00\x00";
pub(crate) const VERSION: u32 = 2;
pub(crate) const HEADER: usize = 48;
/// How many of them say what it is.
const NAME: usize = 12;
const MAGIC: [u8; 4] = *b"SREC";
/// The largest payload, decompressed.
pub(crate) const MOST_PAYLOAD: usize = 64 << 20;
/// LZ4 makes at most 255 bytes of one.
const MOST_STRETCH: usize = 255;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Series = 1,
    Profile = 2,
    Index = 3,
    Trailer = 4,
    Members = 5,
    Names = 6,
}

/// The header of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) kind: Kind,
    /// Whether the payload is LZ4.
    pub(crate) packed: bool,
    /// In a roll-up, the position of the segment among its members.
    pub(crate) member: u16,
    pub(crate) series: u32,
    /// Seconds that were merged; 0 for a profile as it came.
    pub(crate) step: u32,
    /// Nanoseconds since 1970. In a trailer, `start` is where the index begins.
    pub(crate) start: i64,
    pub(crate) end: i64,
    pub(crate) stored: u32,
    pub(crate) raw: u32,
    pub(crate) check: u32,
}

impl Header {
    pub(crate) fn of(kind: Kind) -> Self {
        Self {
            kind,
            packed: false,
            member: 0,
            series: 0,
            step: 0,
            start: 0,
            end: 0,
            stored: 0,
            raw: 0,
            check: 0,
        }
    }

    pub(crate) fn encode(&self) -> [u8; HEADER] {
        let mut bytes = [0; HEADER];
        let fields: [&[u8]; 10] = [
            &MAGIC,
            &[self.kind as u8, u8::from(self.packed)],
            &self.member.to_le_bytes(),
            &self.series.to_le_bytes(),
            &self.step.to_le_bytes(),
            &self.start.to_le_bytes(),
            &self.end.to_le_bytes(),
            &self.stored.to_le_bytes(),
            &self.raw.to_le_bytes(),
            &self.check.to_le_bytes(),
        ];
        let joined = fields.concat();
        for (place, byte) in bytes.iter_mut().zip(&joined) {
            *place = *byte;
        }
        let check = checksum(&joined).to_le_bytes();
        for (place, byte) in bytes.iter_mut().skip(joined.len()).zip(check) {
            *place = byte;
        }
        bytes
    }

    pub(crate) fn decode(bytes: &[u8; HEADER]) -> Result<Self, Damage> {
        let (fields, check) = bytes.split_at(HEADER - 4);
        if checksum(fields).to_le_bytes() != *check {
            return Err(Damage("a header's checksum does not fit"));
        }
        if word(fields, 0) != MAGIC {
            return Err(Damage("a record does not begin as one"));
        }
        let [kind, packed] = word(fields, 4);
        let kind = match kind {
            1 => Kind::Series,
            2 => Kind::Profile,
            3 => Kind::Index,
            4 => Kind::Trailer,
            5 => Kind::Members,
            6 => Kind::Names,
            _ => return Err(Damage("a record is of no known kind")),
        };
        Ok(Self {
            kind,
            packed: packed == 1,
            member: u16::from_le_bytes(word(fields, 6)),
            series: u32::from_le_bytes(word(fields, 8)),
            step: u32::from_le_bytes(word(fields, 12)),
            start: i64::from_le_bytes(word(fields, 16)),
            end: i64::from_le_bytes(word(fields, 24)),
            stored: u32::from_le_bytes(word(fields, 32)),
            raw: u32::from_le_bytes(word(fields, 36)),
            check: u32::from_le_bytes(word(fields, 40)),
        })
    }

    /// The header of a record that is all of `bytes`.
    fn of_record(bytes: &[u8]) -> Result<Self, Damage> {
        let start = bytes.first_chunk().ok_or(Damage("it ends early"))?;
        let header = Self::decode(start)?;
        match header.length() == bytes.len() as u64 {
            true => Ok(header),
            false => Err(Damage("a record is longer or shorter than it should be")),
        }
    }

    /// Header and payload, in bytes.
    pub(crate) fn length(&self) -> u64 {
        HEADER as u64 + u64::from(self.stored)
    }
}

/// The version of the format that a file's first bytes name, if they are those of a store's file.
pub(crate) fn version_of(start: &[u8; FILE_START.len()]) -> Option<u32> {
    let (name, version) = start.split_at(NAME);
    let (own, _) = FILE_START.split_at(NAME);
    (name == own).then(|| u32::from_le_bytes(word(version, 0)))
}

/// The same of a file of this length. `None` also if it ends before.
pub(crate) fn version_at_start(file: &File, length: u64) -> io::Result<Option<u32>> {
    let mut start = [0; FILE_START.len()];
    if length < start.len() as u64 {
        return Ok(None);
    }
    file.read_exact_at(&mut start, 0)?;
    Ok(version_of(&start))
}

fn word<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    bytes.get(at..).and_then(|rest| rest.first_chunk()).copied().unwrap_or([0; N])
}

fn checksum(bytes: &[u8]) -> u32 {
    xxh3_64(bytes) as u32
}

/// Header and payload, compressed if that makes it smaller. `None` if it is too large.
pub(crate) fn seal(mut header: Header, payload: &[u8]) -> Option<Vec<u8>> {
    if payload.len() > MOST_PAYLOAD {
        return None;
    }
    let packed = lz4_flex::block::compress(payload);
    let stored = if packed.len() < payload.len() { packed.as_slice() } else { payload };
    header.packed = packed.len() < payload.len();
    header.stored = u32::try_from(stored.len()).ok()?;
    header.raw = u32::try_from(payload.len()).ok()?;
    header.check = checksum(stored);
    let mut record = Vec::with_capacity(HEADER + stored.len());
    record.extend_from_slice(&header.encode());
    record.extend_from_slice(stored);
    Some(record)
}

/// Reads the header at `at`; `None` where the file ends or holds no whole record.
pub(crate) fn header_at(file: &File, at: u64, file_length: u64) -> io::Result<Option<Header>> {
    if at.saturating_add(HEADER as u64) > file_length {
        return Ok(None);
    }
    let mut bytes = [0; HEADER];
    match file.read_exact_at(&mut bytes, at) {
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
        other => other?,
    }
    let header = Header::decode(&bytes).ok();
    Ok(header.filter(|header| {
        at.checked_add(header.length()).is_some_and(|end| end <= file_length)
            && header.raw as usize <= MOST_PAYLOAD
            && header.stored as usize <= MOST_PAYLOAD
    }))
}

/// Reads a whole record that is known to be of `length` bytes, in one piece.
pub(crate) fn record_at(
    file: &File,
    at: u64,
    length: u32,
) -> io::Result<Result<(Header, Vec<u8>), Damage>> {
    let mut bytes = vec![0; length as usize];
    match file.read_exact_at(&mut bytes, at) {
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
            return Ok(Err(Damage("it ends early")));
        }
        other => other?,
    }
    Ok(Header::of_record(&bytes).map(|header| (header, bytes)))
}

/// Reads and checks the payload of the record at `at`. The header has its length, and [`header_at`]
/// checked that the file holds it.
pub(crate) fn payload_at(
    file: &File,
    at: u64,
    header: &Header,
) -> io::Result<Result<Vec<u8>, Damage>> {
    let mut stored = vec![0; header.stored as usize];
    match file.read_exact_at(&mut stored, at.saturating_add(HEADER as u64)) {
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
            return Ok(Err(Damage("it ends early")));
        }
        other => other?,
    }
    Ok(unpack(header, &stored))
}

/// The payload of a record that was read with its header.
pub(crate) fn payload_of(header: &Header, record: &[u8]) -> Result<Vec<u8>, Damage> {
    unpack(header, record.get(HEADER..).unwrap_or_default())
}

fn unpack(header: &Header, stored: &[u8]) -> Result<Vec<u8>, Damage> {
    if checksum(stored) != header.check {
        return Err(Damage("a payload's checksum does not fit"));
    }
    if !header.packed {
        return Ok(stored.to_vec());
    }
    let raw = header.raw as usize;
    if raw > stored.len().saturating_mul(MOST_STRETCH) || raw > MOST_PAYLOAD {
        return Err(Damage("a payload claims more than it can hold"));
    }
    let payload = lz4_flex::block::decompress(stored, raw);
    payload.map_err(|_| Damage("a payload cannot be decompressed"))
}

#[cfg(test)]
mod tests {
    use super::{HEADER, Header, Kind, seal, unpack};

    #[test]
    fn a_record_comes_back_as_it_was() {
        let header = Header {
            member: 9,
            series: 7,
            step: 300,
            start: -5,
            end: i64::MAX,
            ..Header::of(Kind::Profile)
        };
        let payload = b"again and again and again and again and again".as_slice();
        let record = seal(header, payload).unwrap();
        let read = Header::decode(record.first_chunk().unwrap()).unwrap();
        assert!(read.packed);
        assert_eq!(read.member, 9);
        assert_eq!((read.series, read.step, read.start, read.end), (7, 300, -5, i64::MAX));
        assert_eq!(unpack(&read, &record[HEADER..]).unwrap(), payload);
    }

    #[test]
    fn every_flipped_bit_is_noticed() {
        let record = seal(Header::of(Kind::Profile), b"again and again and again").unwrap();
        for bit in 0..record.len() * 8 {
            let mut damaged = record.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            let whole = Header::decode(damaged.first_chunk().unwrap())
                .and_then(|header| unpack(&header, &damaged[HEADER..]));
            assert!(whole.is_err(), "bit {bit}");
        }
    }
}
