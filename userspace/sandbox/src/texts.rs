//! Texts of an answer, each sent once and referred to by number.
//!
//! Invariant: what is decoded takes memory in proportion to the bytes it was decoded from, and no
//! text is longer than the parsers make them.

use std::collections::HashMap;
use std::sync::Arc;

use strata_bytes::bounded_str;
use strata_symbols::MAX_NAME_BYTES;

use crate::wire::{Decoder, Encoder, WireError};

/// Collects texts.
#[derive(Default)]
pub(crate) struct Texts<'a> {
    numbers: HashMap<&'a str, u32>,
    order: Vec<&'a str>,
}

/// A count as it is sent.
pub(crate) fn count_of(length: usize) -> u32 {
    u32::try_from(length).unwrap_or(u32::MAX)
}

impl<'a> Texts<'a> {
    pub fn number(&mut self, text: &'a str) -> u32 {
        let next = count_of(self.order.len());
        *self.numbers.entry(text).or_insert_with(|| {
            self.order.push(text);
            next
        })
    }

    /// 0 is "none".
    pub fn optional(&mut self, text: Option<&'a str>) -> u32 {
        text.map_or(0, |text| self.number(text).saturating_add(1))
    }

    pub fn encode(&self, encoder: &mut Encoder) {
        encoder.u32(count_of(self.order.len()));
        for text in &self.order {
            encoder.bytes(bounded_str(text).as_bytes());
        }
    }
}

/// The received texts.
pub(crate) struct TextTable(Vec<Arc<str>>);

impl TextTable {
    pub fn decode(decoder: &mut Decoder<'_>) -> Result<Self, WireError> {
        let count = decoder.count(4)?;
        let mut texts = Vec::with_capacity(count);
        for _ in 0..count {
            let text = decoder.bytes()?;
            if text.len() > MAX_NAME_BYTES {
                return Err(WireError::Invalid("the length of a name"));
            }
            texts.push(String::from_utf8_lossy(text).into());
        }
        Ok(Self(texts))
    }

    pub fn get(&self, number: u32) -> Result<Arc<str>, WireError> {
        self.0.get(number as usize).cloned().ok_or(WireError::Invalid("the number of a text"))
    }

    pub fn optional(&self, number: u32) -> Result<Option<Arc<str>>, WireError> {
        number.checked_sub(1).map(|number| self.get(number)).transpose()
    }
}
