//! Entry points for fuzzers: every decoder of bytes that come from a process which may have been
//! taken over.

use crate::facts::FileFacts;
use crate::managed::{ManagedFacts, ManagedLines, ManagedNames, decode_bundle, encode_bundle};
use crate::protocol::{OpenReply, WorkerReply};
use crate::related::{decode_answers, encode_answers};
use crate::symbols::Symbols;

/// Decodes `data` as each message that a child may send.
pub fn replies(data: &[u8]) {
    let _ = OpenReply::decode(data);
    let _ = WorkerReply::decode(data);
    let _ = strata_unwind::bytes::from_bytes(data);
    if let Ok(facts) = FileFacts::decode(data) {
        assert_eq!(FileFacts::decode(&facts.encode()).as_ref(), Ok(&facts), "facts do not survive");
    }
    if let Ok(facts) = ManagedFacts::decode(data) {
        assert_eq!(
            ManagedFacts::decode(&facts.encode()).as_ref(),
            Ok(&facts),
            "managed facts do not survive"
        );
    }
    if let Ok(bundle) = decode_bundle(data) {
        assert_eq!(
            decode_bundle(&encode_bundle(&bundle)).as_ref(),
            Ok(&bundle),
            "bundles do not survive"
        );
    }
    for asked in [0, 1, 3] {
        if let Ok(names) = ManagedNames::decode(data, asked) {
            assert_eq!(
                ManagedNames::decode(&names.encode(), asked).as_ref(),
                Ok(&names),
                "methods do not survive"
            );
        }
        if let Ok(lines) = ManagedLines::decode(data, asked) {
            assert_eq!(
                ManagedLines::decode(&lines.encode(), asked).as_ref(),
                Ok(&lines),
                "lines do not survive"
            );
        }
        if let Ok(answers) = decode_answers(data, asked) {
            assert_eq!(
                decode_answers(&encode_answers(&answers), asked).as_ref(),
                Ok(&answers),
                "answers do not survive"
            );
        }
        if let Ok(symbols) = Symbols::decode(data, asked) {
            assert_eq!(
                Symbols::decode(&symbols.encode(), asked).as_ref(),
                Ok(&symbols),
                "symbols do not survive"
            );
        }
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn noise_is_refused_or_survives() {
        let mut state = 0x9e37_79b9_7f4a_7c15_u64;
        for round in 0..20_000 {
            let length = round % 97;
            let noise: Vec<u8> = (0..length)
                .map(|_| {
                    state ^= state << 13;
                    state ^= state >> 7;
                    state ^= state << 17;
                    // Small numbers reach deeper code.
                    if state & 0x300 == 0 { state as u8 } else { (state & 3) as u8 }
                })
                .collect();
            super::replies(&noise);
        }
    }
}
