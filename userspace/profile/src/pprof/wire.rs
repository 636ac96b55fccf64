//! Protobuf wire format: walks the fields of a message without copying.

use crate::error::ReadError;

pub(super) const VARINT: u64 = 0;
const FIXED64: u64 = 1;
pub(super) const LENGTH_DELIMITED: u64 = 2;
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
