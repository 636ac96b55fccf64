//! Writes protobuf by hand: a profile has so many small messages that building each as a value
//! first, to know its length, costs more than everything else.
//!
//! A message is written after one byte for its length; a message longer than that byte can express
//! is moved.

use std::io::{self, Write};

use super::wire::{LENGTH_DELIMITED, VARINT};

/// The size of a piece.
const PIECE: usize = 64 << 10;

/// Fields of the top level, handed on in pieces.
pub(super) struct Writer<W> {
    out: W,
    piece: Body,
}

impl<W: Write> Writer<W> {
    pub(super) fn new(out: W) -> Self {
        Self { out, piece: Body::default() }
    }

    /// Writes fields with `fill`: a few, since only afterwards is anything handed on.
    pub(super) fn write(&mut self, fill: impl FnOnce(&mut Body)) -> io::Result<()> {
        fill(&mut self.piece);
        if self.piece.bytes.len() < PIECE {
            return Ok(());
        }
        self.out.write_all(&self.piece.bytes)?;
        self.piece.bytes.clear();
        Ok(())
    }

    pub(super) fn finish(mut self) -> io::Result<W> {
        self.out.write_all(&self.piece.bytes)?;
        Ok(self.out)
    }
}

/// Fields one after the other. A number that is 0 and bytes that are none are not written, since
/// that is what a missing field means.
#[derive(Default)]
pub(super) struct Body {
    bytes: Vec<u8>,
}

impl Body {
    pub(super) fn as_bytes(&self) -> &[u8] {
        &self.bytes
    }

    pub(super) fn number(&mut self, number: u32, value: u64) {
        if value != 0 {
            self.varint(u64::from(number) << 3 | VARINT);
            self.varint(value);
        }
    }

    pub(super) fn bytes(&mut self, number: u32, bytes: &[u8]) {
        if !bytes.is_empty() {
            self.element(number, bytes);
        }
    }

    /// Bytes of a list, in which an empty one counts.
    pub(super) fn element(&mut self, number: u32, bytes: &[u8]) {
        self.varint(u64::from(number) << 3 | LENGTH_DELIMITED);
        self.varint(bytes.len() as u64);
        self.bytes.extend_from_slice(bytes);
    }

    pub(super) fn message(&mut self, number: u32, fill: impl FnOnce(&mut Self)) {
        self.varint(u64::from(number) << 3 | LENGTH_DELIMITED);
        let place = self.bytes.len();
        self.bytes.push(0);
        let start = self.bytes.len();
        fill(self);
        let end = self.bytes.len();
        let mut length = [0; LONGEST_VARINT];
        let taken = varint_in(&mut length, end.saturating_sub(start) as u64);
        if taken > 1 {
            let moved = start.saturating_add(taken).saturating_sub(1);
            self.bytes.resize(end.saturating_add(taken).saturating_sub(1), 0);
            self.bytes.copy_within(start..end, moved);
        }
        for (byte, &value) in self.bytes.iter_mut().skip(place).zip(length.iter().take(taken)) {
            *byte = value;
        }
    }

    /// Numbers of one field, without a key for each.
    pub(super) fn packed(&mut self, number: u32, values: impl ExactSizeIterator<Item = u64>) {
        if values.len() > 0 {
            self.message(number, |list| values.for_each(|value| list.varint(value)));
        }
    }

    /// Fields that were written before.
    pub(super) fn fields(&mut self, fields: &[u8]) {
        self.bytes.extend_from_slice(fields);
    }

    fn varint(&mut self, value: u64) {
        // Nearly all are short.
        if let Ok(byte @ ..0x80) = u8::try_from(value) {
            self.bytes.push(byte);
            return;
        }
        let mut bytes = [0; LONGEST_VARINT];
        let length = varint_in(&mut bytes, value);
        self.bytes.extend_from_slice(bytes.get(..length).unwrap_or_default());
    }
}

pub(super) const LONGEST_VARINT: usize = 10;

/// The length of what was written.
pub(super) fn varint_in(bytes: &mut [u8; LONGEST_VARINT], mut value: u64) -> usize {
    let mut length = 0_usize;
    for byte in bytes {
        length = length.saturating_add(1);
        *byte = (value & 0x7f) as u8;
        value >>= 7;
        if value == 0 {
            break;
        }
        *byte |= 0x80;
    }
    length
}

#[cfg(test)]
mod tests {
    use super::Body;

    #[test]
    fn a_message_has_its_length_before_it_however_long_it_is() {
        for length in [0, 1, 127, 128, 16_383, 16_384, 3_000_000] {
            let mut body = Body::default();
            body.message(1, |inner| inner.fields(&vec![7; length]));
            let mut expected = vec![1 << 3 | 2];
            prost::encoding::encode_varint(length as u64, &mut expected);
            expected.extend(vec![7; length]);
            assert_eq!(body.as_bytes(), expected);
        }
    }
}
