//! Symbols and lines in a worker's answer.
//!
//! Texts are sent once and referred to by number. Invariant: what is decoded takes memory in
//! proportion to the bytes it was decoded from, and no text is longer than the resolver makes them.

use strata_symbols::{Options, Resolved, SymbolFrame};

use crate::texts::{TextTable, Texts, count_of};
use crate::wire::{Decoder, Encoder, WireError};

/// No function's beginning.
const NO_START: u64 = u64::MAX;
/// Deeper inlining is rejected.
const MAX_FRAMES: usize = 1024;

/// The answer to a request for names.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Symbols {
    /// One for each address, in the order asked.
    pub resolved: Vec<Resolved>,
    /// What could not be used of the file, for display.
    pub problems: Vec<String>,
    /// The file's debug information is larger than was allowed: there are no lines and no inlined
    /// functions.
    pub without_lines: bool,
}

pub(crate) fn encode_request(options: &Options, has_debug: bool, addresses: &[u64]) -> Vec<u8> {
    let mut encoder = Encoder::new();
    encoder.u8(has_debug.into());
    encoder.u8(options.lines.into()).u64(options.dwarf_limit).u64(options.mini_debug_limit);
    encoder.u32(u32::try_from(addresses.len()).unwrap_or(u32::MAX));
    for address in addresses {
        encoder.u64(*address);
    }
    encoder.finish()
}

/// The options, whether the second file is a debug file, and the addresses.
pub(crate) fn decode_request(bytes: &[u8]) -> Result<(Options, bool, Vec<u64>), WireError> {
    let mut decoder = Decoder::new(bytes);
    let has_debug = decoder.bool()?;
    let options = Options {
        lines: decoder.bool()?,
        dwarf_limit: decoder.u64()?,
        mini_debug_limit: decoder.u64()?,
    };
    let count = decoder.count(8)?;
    let addresses = (0..count).map(|_| decoder.u64()).collect::<Result<_, _>>()?;
    decoder.finish()?;
    Ok((options, has_debug, addresses))
}

impl Symbols {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut texts = Texts::default();
        let mut frames = Encoder::new();
        frames.u32(count_of(self.resolved.len()));
        for resolved in &self.resolved {
            frames.u32(count_of(resolved.frames.len().min(MAX_FRAMES)));
            for frame in resolved.frames.iter().take(MAX_FRAMES) {
                frames.u32(texts.number(&frame.name)).u32(texts.number(&frame.system_name));
                frames.u32(texts.optional(frame.file.as_deref())).u32(frame.line.unwrap_or(0));
            }
            if resolved.frames.is_empty() {
                frames.u64(resolved.unnamed.unwrap_or(NO_START));
            }
        }
        let mut encoder = Encoder::new();
        texts.encode(&mut encoder);
        encoder.u32(count_of(self.problems.len()));
        for problem in &self.problems {
            encoder.bytes(problem.as_bytes());
        }
        encoder.u8(self.without_lines.into());
        let mut bytes = encoder.finish();
        bytes.extend_from_slice(&frames.finish());
        bytes
    }

    /// `asked` is the number of addresses of the request.
    pub(crate) fn decode(bytes: &[u8], asked: usize) -> Result<Self, WireError> {
        let mut decoder = Decoder::new(bytes);
        let texts = TextTable::decode(&mut decoder)?;
        let count = decoder.count(4)?;
        let problems = (0..count).map(|_| decoder.text()).collect::<Result<_, _>>()?;
        let without_lines = decoder.bool()?;

        let count = decoder.count(4)?;
        if count != asked {
            return Err(WireError::Invalid("the number of addresses"));
        }
        let mut resolved = Vec::with_capacity(count);
        for _ in 0..count {
            let count = decoder.count(16)?;
            if count > MAX_FRAMES {
                return Err(WireError::Invalid("the number of frames"));
            }
            let mut frames = Vec::with_capacity(count);
            for _ in 0..count {
                let name = texts.get(decoder.u32()?)?;
                let system_name = texts.get(decoder.u32()?)?;
                let file = texts.optional(decoder.u32()?)?;
                let line = Some(decoder.u32()?).filter(|line| *line != 0);
                frames.push(SymbolFrame { name, system_name, file, line });
            }
            let unnamed = if count == 0 { Some(decoder.u64()?) } else { None };
            resolved.push(Resolved { frames, unnamed: unnamed.filter(|start| *start != NO_START) });
        }
        decoder.finish()?;
        Ok(Self { resolved, problems, without_lines })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use strata_symbols::MAX_NAME_BYTES;

    fn sample() -> Symbols {
        let frame = |name: &str, file: Option<&str>, line| SymbolFrame {
            name: name.into(),
            system_name: format!("_Z{name}").into(),
            file: file.map(Into::into),
            line,
        };
        let of = |frames| Resolved { frames, unnamed: None };
        Symbols {
            resolved: vec![
                of(vec![frame("a", Some("a.c"), Some(3)), frame("b", None, None)]),
                Resolved::default(),
                Resolved { unnamed: Some(0x1234), ..Resolved::default() },
                of(vec![frame("a", Some("a.c"), Some(4))]),
            ],
            problems: vec!["debug file: not an ELF file".into()],
            without_lines: true,
        }
    }

    #[test]
    fn symbols_survive_the_wire() {
        assert_eq!(Symbols::decode(&sample().encode(), 4), Ok(sample()));
    }

    #[test]
    fn a_request_survives_the_wire() {
        let options = Options::default();
        let bytes = encode_request(&options, true, &[1, u64::MAX]);
        assert_eq!(decode_request(&bytes), Ok((options, true, vec![1, u64::MAX])));
    }

    #[test]
    fn an_answer_to_another_number_of_addresses_is_refused() {
        assert_eq!(
            Symbols::decode(&sample().encode(), 2),
            Err(WireError::Invalid("the number of addresses"))
        );
    }

    #[test]
    fn hostile_bytes_are_refused_or_harmless() {
        let bytes = sample().encode();
        for length in 0..bytes.len() {
            assert!(Symbols::decode(&bytes[..length], 4).is_err());
        }
        for position in 0..bytes.len() {
            for value in [0, 1, 0x7f, 0xff] {
                let mut bytes = bytes.clone();
                bytes[position] = value;
                let _ = Symbols::decode(&bytes, 4);
            }
        }
        let long = Symbols {
            resolved: vec![Resolved {
                frames: vec![SymbolFrame {
                    name: "x".repeat(MAX_NAME_BYTES + 1).into(),
                    system_name: "x".into(),
                    file: None,
                    line: None,
                }],
                unnamed: None,
            }],
            problems: Vec::new(),
            without_lines: false,
        };
        let decoded = Symbols::decode(&long.encode(), 1).unwrap();
        let name = &decoded.resolved[0].frames[0].name;
        assert_eq!(name.len(), MAX_NAME_BYTES, "a worker sends no longer one");
        let mut forged = Encoder::new();
        forged.u32(1).bytes(&[b'x'; MAX_NAME_BYTES + 1]);
        assert_eq!(
            Symbols::decode(&forged.finish(), 0),
            Err(WireError::Invalid("the length of a name"))
        );
    }
}
