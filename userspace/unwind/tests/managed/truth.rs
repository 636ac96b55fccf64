//! The meaning of unwind information, by a second, independent reader: every code applied one by
//! one, for one offset at a time.

/// The frame at one offset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Truth {
    /// From RSP to the CFA, by all pushes and allocations so far.
    pub depth: u32,
    /// Below the CFA, where RBP is saved; 0 before.
    pub fp_below: u32,
    /// From RBP to the CFA, once RBP is the frame register.
    pub from_fp: Option<u32>,
}

/// Codes, in the order they were done: (offset, operation, information, number).
fn codes(information: &[u8]) -> Vec<(u32, u8, u8, u32)> {
    assert_eq!(information[0] & 7, 1, "version");
    assert_eq!(information[0] >> 3 & 4, 0, "chained");
    let mut codes = Vec::new();
    let slot = |n: usize| [information[4 + 2 * n], information[5 + 2 * n]];
    let word = |n: usize| u32::from(u16::from_le_bytes(slot(n)));
    let mut n = 0;
    while n < usize::from(information[2]) {
        let [offset, operation] = slot(n);
        let (operation, more) = (operation & 15, operation >> 4);
        let long = || word(n + 1) | word(n + 2) << 16;
        let (number, slots) = match operation {
            0 => (8, 1),
            1 if more == 0 => (word(n + 1) * 8, 2),
            1 => (long(), 3),
            2 => (u32::from(more) * 8 + 8, 1),
            3 => (u32::from(information[3] >> 4) * 16, 1),
            4 => (word(n + 1) * 8, 2),
            5 => (long(), 3),
            11 => (long() * 16, 3),
            other => panic!("unwind code {other}"),
        };
        codes.push((u32::from(offset), operation, more, number));
        n += slots;
    }
    codes.reverse();
    codes
}

/// The frame at an offset from the function's start.
pub fn at(information: &[u8], offset: u32) -> Truth {
    let mut truth = Truth { depth: 8, fp_below: 0, from_fp: None };
    for (done, operation, more, number) in codes(information) {
        if done > offset {
            break;
        }
        match operation {
            0 => {
                truth.depth += 8;
                if more == 5 {
                    truth.fp_below = truth.depth;
                }
            }
            1 | 2 => truth.depth += number,
            3 | 11 => {
                assert_eq!(information[3] & 15, 5, "a frame register that is not RBP");
                truth.from_fp = Some(truth.depth - number);
            }
            4 | 5 => assert_ne!(more, 5, "RBP saved by a store"),
            _ => {}
        }
    }
    truth
}

/// Bytes of unwind information, from its head.
pub fn size(head: &[u8]) -> usize {
    4 + 2 * usize::from(head[2])
}

/// Offsets from which on another frame holds; the first is 0.
pub fn changes(information: &[u8]) -> impl Iterator<Item = u32> {
    let codes = codes(information);
    std::iter::once(0).chain(codes.into_iter().map(|code| code.0))
}
