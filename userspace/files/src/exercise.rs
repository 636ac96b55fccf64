//! Entry points for fuzzers: every decoder of bytes that come from a process which may have been
//! taken over.

use crate::facts::FileFacts;
use crate::protocol::{OpenReply, WorkerReply};
use crate::symbols::Symbols;

/// Decodes `data` as everything a child may send.
pub fn replies(data: &[u8]) {
    let _ = OpenReply::decode(data);
    let _ = WorkerReply::decode(data);
    let _ = strata_unwind::bytes::from_bytes(data);
    if let Ok(facts) = FileFacts::decode(data) {
        assert_eq!(FileFacts::decode(&facts.encode()).as_ref(), Ok(&facts), "facts do not survive");
    }
    for asked in [0, 1, 3] {
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
                    // Small numbers get further.
                    if state & 0x300 == 0 { state as u8 } else { (state & 3) as u8 }
                })
                .collect();
            super::replies(&noise);
        }
    }
}
