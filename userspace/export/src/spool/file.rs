//! One batch as a file: a header with its length and contents, then the batch.
//!
//! Invariant: a file is accepted only if its length and both checksums fit, and memory is taken
//! only for what the file really holds, and never more than [`MOST_PAYLOAD`].

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use crate::Batch;
use bytes::Bytes;
use xxhash_rust::xxh3::xxh3_64;

/// Larger than any server takes.
pub(crate) const MOST_PAYLOAD: usize = 64 << 20;

pub(crate) const HEADER: usize = 48;

/// What the file is, and the version of its format.
const MAGIC: [u8; 8] = *b"STRSPL\x01\0";

/// The header of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    /// Nanoseconds since 1970.
    pub(crate) oldest: i64,
    pub(crate) payload: u64,
    pub(crate) profiles: u32,
    check: u64,
}

impl Header {
    fn of(batch: &Batch, payload: &[u8]) -> Self {
        Self {
            oldest: batch.oldest,
            payload: payload.len() as u64,
            profiles: batch.profiles,
            check: xxh3_64(payload),
        }
    }

    fn encode(&self) -> [u8; HEADER] {
        let mut bytes = [0; HEADER];
        let fields = [
            MAGIC.as_slice(),
            &self.oldest.to_le_bytes(),
            &self.payload.to_le_bytes(),
            &self.check.to_le_bytes(),
            &self.profiles.to_le_bytes(),
            &[0; 4],
        ]
        .concat();
        let check = xxh3_64(&fields).to_le_bytes();
        for (place, byte) in bytes.iter_mut().zip(fields.iter().chain(&check)) {
            *place = *byte;
        }
        bytes
    }

    fn decode(bytes: &[u8; HEADER]) -> Option<Self> {
        let (fields, check) = bytes.split_at(HEADER - 8);
        let is_whole = xxh3_64(fields).to_le_bytes() == *check && fields.starts_with(&MAGIC);
        is_whole.then(|| Self {
            oldest: i64::from_le_bytes(word(fields, 8)),
            payload: u64::from_le_bytes(word(fields, 16)),
            check: u64::from_le_bytes(word(fields, 24)),
            profiles: u32::from_le_bytes(word(fields, 32)),
        })
    }
}

fn word<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    bytes.get(at..).and_then(|rest| rest.first_chunk()).copied().unwrap_or([0; N])
}

/// Writes a new file, whole or not at all unless the process is killed.
pub(crate) fn write(path: &Path, batch: &Batch, payload: &[u8]) -> io::Result<()> {
    let header = Header::of(batch, payload).encode();
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    let written = file.write_all(&header).and_then(|()| file.write_all(payload));
    if written.is_err() {
        // Should this fail too, the rest is found as torn at the next start.
        let _ = std::fs::remove_file(path);
    }
    written
}

/// The header, if the file has the length in it.
pub(crate) fn header(path: &Path) -> io::Result<Option<Header>> {
    let mut file = File::open(path)?;
    Ok(header_of(&mut file)?.filter(|header| header.payload <= MOST_PAYLOAD as u64))
}

fn header_of(file: &mut File) -> io::Result<Option<Header>> {
    let facts = file.metadata()?;
    if !facts.is_file() || facts.len() < HEADER as u64 {
        return Ok(None);
    }
    let mut bytes = [0; HEADER];
    match file.read_exact(&mut bytes) {
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
        other => other?,
    }
    let fits = |header: &Header| header.payload.checked_add(HEADER as u64) == Some(facts.len());
    Ok(Header::decode(&bytes).filter(fits))
}

/// The batch; `None` if the file is not what was written.
pub(crate) fn read(path: &Path) -> io::Result<Option<Batch>> {
    let mut file = File::open(path)?;
    let Some(header) = header_of(&mut file)? else { return Ok(None) };
    let Some(length) = usize::try_from(header.payload).ok().filter(|&most| most <= MOST_PAYLOAD)
    else {
        return Ok(None);
    };
    let mut payload = Vec::with_capacity(length);
    file.take(header.payload).read_to_end(&mut payload)?;
    if payload.len() != length || xxh3_64(&payload) != header.check {
        return Ok(None);
    }
    let batch = Batch::from_bytes(Bytes::from(payload)).ok();
    Ok(batch.filter(|batch| batch.oldest == header.oldest))
}
