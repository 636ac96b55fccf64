//! Facts about methods that only an assembly's instructions contain: request, answer and
//! computation.
//!
//! The requests come from the daemon and are trusted; the answers come from a worker and are not.

use std::sync::Arc;

use strata_dotnet::{ManagedImage, Statement};

use crate::jobs::{JobError, parse_error};
use crate::managed::{FilePart, decode_part, encode_part};
use crate::managed_jobs::with_part;
use crate::target_file::TargetFile;
use crate::texts::{TextTable, Texts, count_of};
use crate::wire::{Decoder, Encoder, WireError};

/// A question about one method. Every answer is a method's name.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Related {
    /// In which method a lambda is written, by its MethodDef
    /// ([`ManagedImage::method_around`]).
    Around(u32),
    /// Which native function a stub calls ([`ManagedImage::import_of`]).
    Import { signature: Vec<u8>, called_by: Statement },
}

pub(crate) fn encode_questions(part: Option<&FilePart>, questions: &[Related]) -> Vec<u8> {
    let mut encoder = Encoder::new();
    encode_part(&mut encoder, part);
    encoder.u32(count_of(questions.len()));
    for question in questions {
        match question {
            Related::Around(token) => encoder.u8(0).u32(*token),
            Related::Import { signature, called_by: Statement { method, start, end } } => {
                encoder.u8(1).bytes(signature).u32(*method).u32(*start).u32(*end)
            }
        };
    }
    encoder.finish()
}

fn decode_question(decoder: &mut Decoder<'_>) -> Result<Related, WireError> {
    if !decoder.bool()? {
        return Ok(Related::Around(decoder.u32()?));
    }
    let signature = decoder.bytes()?.to_vec();
    let (method, start, end) = (decoder.u32()?, decoder.u32()?, decoder.u32()?);
    Ok(Related::Import { signature, called_by: Statement { method, start, end } })
}

/// A worker's job.
pub(crate) fn answer(body: &[u8], file: &TargetFile) -> Result<Vec<u8>, JobError> {
    let mut decoder = Decoder::new(body);
    let part = decode_part(&mut decoder)?;
    let count = decoder.count(5)?;
    let questions =
        (0..count).map(|_| decode_question(&mut decoder)).collect::<Result<Vec<_>, _>>();
    let questions = questions?;
    decoder.finish()?;
    with_part(file, part, |file| {
        let image = ManagedImage::open(file).map_err(|error| parse_error(&error))?;
        let answers: Vec<Option<String>> = questions
            .iter()
            .map(|question| match question {
                Related::Around(token) => image.method_around(*token),
                Related::Import { signature, called_by } => image.import_of(signature, *called_by),
            })
            .collect();
        Ok(encode_answers(&answers))
    })
}

pub(crate) fn encode_answers<T: AsRef<str>>(answers: &[Option<T>]) -> Vec<u8> {
    let mut texts = Texts::default();
    let numbers: Vec<u32> =
        answers.iter().map(|name| texts.optional(name.as_ref().map(AsRef::as_ref))).collect();
    let mut encoder = Encoder::new();
    texts.encode(&mut encoder);
    encoder.u32(count_of(numbers.len()));
    for number in numbers {
        encoder.u32(number);
    }
    encoder.finish()
}

/// `asked` is the number of questions.
pub(crate) fn decode_answers(
    bytes: &[u8],
    asked: usize,
) -> Result<Vec<Option<Arc<str>>>, WireError> {
    let mut decoder = Decoder::new(bytes);
    let texts = TextTable::decode(&mut decoder)?;
    let count = decoder.count(4)?;
    if count != asked {
        return Err(WireError::Invalid("the number of answers"));
    }
    let answers =
        (0..count).map(|_| texts.optional(decoder.u32()?)).collect::<Result<Vec<_>, _>>()?;
    decoder.finish()?;
    Ok(answers)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn questions_and_answers_survive_the_wire() {
        let statement = Statement { method: 7, start: 1, end: 9 };
        let questions = [
            Related::Around(5),
            Related::Import { signature: vec![0, 1, 2], called_by: statement },
            Related::Import { signature: vec![], called_by: statement },
        ];
        let bytes = encode_questions(None, &questions);
        let mut decoder = Decoder::new(&bytes);
        assert_eq!(decode_part(&mut decoder), Ok(None));
        assert_eq!(decoder.u32(), Ok(3));
        for question in questions {
            assert_eq!(decode_question(&mut decoder), Ok(question));
        }
        assert_eq!(decoder.finish(), Ok(()));
        let answers = [Some("Run"), None, Some("qsort"), Some("Run")];
        let bytes = encode_answers(&answers);
        let decoded = decode_answers(&bytes, 4).unwrap();
        assert!(decoded.iter().map(Option::as_deref).eq(answers));
        let refused = WireError::Invalid("the number of answers");
        assert_eq!(decode_answers(&bytes, 3), Err(refused));
        for length in 0..bytes.len() {
            assert!(decode_answers(&bytes[..length], 4).is_err());
        }
    }
}
