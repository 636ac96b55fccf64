//! The top level of a pprof file: fields one after the other, walked without copying.

use std::io::{self, Write};

use prost::Message;

use crate::error::ReadError;

const VARINT: u64 = 0;
const FIXED64: u64 = 1;
const LENGTH_DELIMITED: u64 = 2;
const FIXED32: u64 = 5;

/// A field's content.
#[derive(Clone, Copy, Debug)]
pub(super) enum Content<'b> {
    Number(u64),
    Bytes(&'b [u8]),
}

/// The fields of a message, in the order they come. Ends after the first error.
pub(super) struct Fields<'b> {
    rest: &'b [u8],
}

impl<'b> Fields<'b> {
    pub(super) fn new(message: &'b [u8]) -> Self {
        Self { rest: message }
    }

    fn field(&mut self) -> Result<(u32, Content<'b>), ReadError> {
        let key = self.varint()?;
        let number = u32::try_from(key >> 3).unwrap_or(0);
        if number == 0 {
            return Err(ReadError::Malformed("a field has an impossible number"));
        }
        let content = match key & 7 {
            VARINT => Content::Number(self.varint()?),
            FIXED64 => Content::Bytes(self.take(8)?),
            FIXED32 => Content::Bytes(self.take(4)?),
            LENGTH_DELIMITED => {
                let length = self.varint()?;
                Content::Bytes(self.take(usize::try_from(length).unwrap_or(usize::MAX))?)
            }
            _ => return Err(ReadError::Malformed("a field has an unknown wire type")),
        };
        Ok((number, content))
    }

    fn take(&mut self, length: usize) -> Result<&'b [u8], ReadError> {
        let cut = self.rest.split_at_checked(length);
        let (taken, rest) = cut.ok_or(ReadError::Malformed("a field is longer than the file"))?;
        self.rest = rest;
        Ok(taken)
    }

    fn varint(&mut self) -> Result<u64, ReadError> {
        let mut value = 0_u64;
        for shift in (0..64).step_by(7) {
            let cut = self.rest.split_first();
            let (&byte, rest) = cut.ok_or(ReadError::Malformed("the file is cut short"))?;
            self.rest = rest;
            value |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Ok(value);
            }
        }
        Err(ReadError::Malformed("a number is longer than 64 bits"))
    }
}

impl<'b> Iterator for Fields<'b> {
    type Item = Result<(u32, Content<'b>), ReadError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.is_empty() {
            return None;
        }
        let field = self.field();
        if field.is_err() {
            self.rest = &[];
        }
        Some(field)
    }
}

/// Writes fields; keeps one buffer for all messages.
pub(super) struct FieldWriter<W> {
    out: W,
    message: Vec<u8>,
}

impl<W: Write> FieldWriter<W> {
    pub(super) fn new(out: W) -> Self {
        Self { out, message: Vec::new() }
    }

    pub(super) fn message(&mut self, number: u32, message: &impl Message) -> io::Result<()> {
        let mut buffer = std::mem::take(&mut self.message);
        buffer.clear();
        // A Vec has room for every message.
        let encoded = message.encode(&mut buffer).map_err(io::Error::other);
        let written = encoded.and_then(|()| self.bytes(number, &buffer));
        self.message = buffer;
        written
    }

    pub(super) fn bytes(&mut self, number: u32, bytes: &[u8]) -> io::Result<()> {
        self.varint(u64::from(number) << 3 | LENGTH_DELIMITED)?;
        self.varint(bytes.len() as u64)?;
        self.out.write_all(bytes)
    }

    /// A number; 0 is not written, since it is what a missing field means.
    pub(super) fn number(&mut self, number: u32, value: i64) -> io::Result<()> {
        if value == 0 {
            return Ok(());
        }
        self.varint(u64::from(number) << 3 | VARINT)?;
        self.varint(value.cast_unsigned())
    }

    pub(super) fn into_inner(self) -> W {
        self.out
    }

    fn varint(&mut self, value: u64) -> io::Result<()> {
        let mut bytes = [0; LONGEST_VARINT];
        let length = varint_in(&mut bytes, value);
        self.out.write_all(bytes.get(..length).unwrap_or_default())
    }
}

const LONGEST_VARINT: usize = 10;

/// The length of what was written.
fn varint_in(bytes: &mut [u8; LONGEST_VARINT], mut value: u64) -> usize {
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

/// A message that is put together by hand, because there are so many of it.
#[derive(Default)]
pub(super) struct Body {
    bytes: Vec<u8>,
    packed: Vec<u8>,
}

impl Body {
    pub(super) fn clear(&mut self) {
        self.bytes.clear();
    }

    pub(super) fn as_bytes(&self) -> &[u8] {
        &self.bytes
    }

    pub(super) fn packed(&mut self, number: u32, values: impl Iterator<Item = u64>) {
        let mut packed = std::mem::take(&mut self.packed);
        packed.clear();
        for value in values {
            push_varint(&mut packed, value);
        }
        if !packed.is_empty() {
            self.field(number, &packed);
        }
        self.packed = packed;
    }

    pub(super) fn message(&mut self, number: u32, message: &impl Message) {
        self.packed.clear();
        // A Vec has room for every message.
        if message.encode(&mut self.packed).is_ok() {
            let packed = std::mem::take(&mut self.packed);
            self.field(number, &packed);
            self.packed = packed;
        }
    }

    fn field(&mut self, number: u32, bytes: &[u8]) {
        push_varint(&mut self.bytes, u64::from(number) << 3 | LENGTH_DELIMITED);
        push_varint(&mut self.bytes, bytes.len() as u64);
        self.bytes.extend_from_slice(bytes);
    }
}

fn push_varint(out: &mut Vec<u8>, value: u64) {
    // Nearly all are short.
    if let Ok(byte @ ..0x80) = u8::try_from(value) {
        out.push(byte);
        return;
    }
    let mut bytes = [0; LONGEST_VARINT];
    let length = varint_in(&mut bytes, value);
    out.extend_from_slice(bytes.get(..length).unwrap_or_default());
}
