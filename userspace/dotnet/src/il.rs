//! Method bodies: the tokens that their instructions refer to.
//!
//! References: ECMA-335 II.25.4 (the form of a body) and III.1.2.1 (the instructions).
//!
//! Invariant: a walk ends with the bytes, and where an instruction is unknown.

use strata_bytes::{Cursor, index, u16_at, u32_at};

/// Longer bodies are not read.
const MAX_BODY: u32 = 1 << 20;
const FAT_HEADER: usize = 12;

/// How an instruction uses the method that it names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Use {
    /// `call`, `callvirt`, `newobj`, `jmp`.
    Call,
    /// `calli`, which names a signature.
    CallIndirect,
    /// `ldftn`, `ldvirtftn`.
    Load,
}

/// An instruction that names a method.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Reference {
    /// Where the instruction is, from the start of the body.
    pub offset: u32,
    pub what: Use,
    pub token: u32,
}

/// Where the instructions of a body are, from its header: how far behind its start, and how many
/// bytes.
pub(crate) fn extent(header: &[u8]) -> Option<(u32, u32)> {
    let first = *header.first()?;
    let (skipped, size) = match first & 3 {
        2 => (1, u32::from(first >> 2)),
        3 => (u32::from(u16_at(header, 0)? >> 12).checked_mul(4)?, u32_at(header, 4)?),
        _ => return None,
    };
    (size <= MAX_BODY).then_some((skipped, size))
}

/// Of the longest header.
pub(crate) const HEADER_BYTES: usize = FAT_HEADER;

/// The instructions of a body that name a method.
pub(crate) fn references(code: &[u8]) -> Vec<Reference> {
    let mut cursor = Cursor::new(code);
    let mut found = Vec::new();
    while !cursor.is_empty() {
        let offset = code.len().saturating_sub(cursor.rest().len());
        let Some(next) = instruction(&mut cursor) else { break };
        if let (Some((what, token)), Ok(offset)) = (next, u32::try_from(offset)) {
            found.push(Reference { offset, what, token });
        }
    }
    found
}

/// Reads one instruction, and the method if it names one.
fn instruction(cursor: &mut Cursor<'_>) -> Option<Option<(Use, u32)>> {
    let operand = match cursor.u8()? {
        0x27 | 0x28 | 0x6f | 0x73 => return Some(Some((Use::Call, cursor.u32()?))),
        0x29 => return Some(Some((Use::CallIndirect, cursor.u32()?))),
        0xfe => match cursor.u8()? {
            0x06 | 0x07 => return Some(Some((Use::Load, cursor.u32()?))),
            0x09..=0x0e => 2,
            0x12 | 0x19 => 1,
            0x15 | 0x16 | 0x1c => 4,
            0x00..=0x1e => 0,
            _ => return None,
        },
        // `switch`: a count, and as many places to go to.
        0x45 => index(cursor.u32()?).checked_mul(4)?,
        0x0e..=0x13 | 0x1f | 0x2b..=0x37 | 0xde => 1,
        0x20
        | 0x22
        | 0x38..=0x44
        | 0x70..=0x72
        | 0x74
        | 0x75
        | 0x79
        | 0x7b..=0x81
        | 0x8c
        | 0x8d
        | 0x8f
        | 0xa3..=0xa5
        | 0xc2
        | 0xc6
        | 0xd0
        | 0xdd => 4,
        0x21 | 0x23 => 8,
        0x00..=0xe0 => 0,
        _ => return None,
    };
    cursor.take(operand)?;
    Some(None)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instructions_that_name_methods_are_found_behind_operands() {
        let code = [
            0x1f, 0x28, // ldc.i4.s 0x28
            0x45, 1, 0, 0, 0, 0x28, 0, 0, 0, // switch
            0x21, 0x28, 0, 0, 0, 0, 0, 0, 0, // ldc.i8
            0x28, 7, 0, 0, 6, // call
            0xfe, 0x09, 0x28, 0, // ldarg
            0xfe, 0x06, 8, 0, 0, 6, // ldftn
            0x29, 1, 0, 0, 0x11, // calli
            0x2a,
        ];
        let found = |offset, what, token| Reference { offset, what, token };
        assert_eq!(
            references(&code),
            [
                found(20, Use::Call, 0x0600_0007),
                found(29, Use::Load, 0x0600_0008),
                found(35, Use::CallIndirect, 0x1100_0001),
            ]
        );
        // A truncated or invalid instruction ends the walk.
        assert_eq!(references(&code[..23]), []);
        assert_eq!(references(&[0xfe, 0x30, 0x28, 7, 0, 0, 6]), []);
    }

    #[test]
    fn both_forms_of_a_header_are_read() {
        assert_eq!(extent(&[0x2a << 2 | 2]), Some((1, 0x2a)));
        let fat = [0x13, 0x30, 2, 0, 0x34, 0x12, 0, 0, 0, 0, 0, 0];
        assert_eq!(extent(&fat), Some((12, 0x1234)));
        assert_eq!(extent(&[0x13, 0x30, 2, 0, 0, 0, 0, 1]), None, "too long");
        assert_eq!(extent(&[0x13, 0x30]), None);
        assert_eq!(extent(&[0]), None);
    }
}
