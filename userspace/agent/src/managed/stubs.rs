//! What the runtime's own generated code is: stubs that its methods call each other through, and
//! helpers that it has copied.
//!
//! The runtime has no names for them, and the profiling interface knows none of them. They are made
//! from a few templates, which their bytes are compared with. Only addresses in no method, by the
//! runtime's answer, are looked at, and what fits no template has no name.

use strata_abi::rule::{Kind, Packed, Rule};

/// Bytes around an address that are looked at.
pub const BEFORE: u64 = 144;
pub const AFTER: u64 = 48;

const PAGE: u64 = 4096;

/// A template: its name, its first bytes, and how long it is at most. `?` stands for any byte, and
/// `8?` for eight of them.
struct Template {
    name: &'static str,
    code: &'static str,
    size: usize,
    /// From an offset on, how many words lie on the stack above the return address.
    pushed: &'static [(u32, u32)],
}

/// What lies around an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stub {
    pub name: &'static str,
    /// How far behind its start the address is.
    pub offset: u64,
    pub size: u32,
    pushed: &'static [(u32, u32)],
}

const fn template(name: &'static str, code: &'static str, size: usize) -> Template {
    Template { name, code, size, pushed: &[] }
}

const fn pushing(template: Template, pushed: &'static [(u32, u32)]) -> Template {
    Template { pushed, ..template }
}

/// Code of the runtime that fits no template.
pub const NAMELESS: &str = "(stub) runtime";
const WRITE_BARRIER: &str = "(stub) write barrier";
const PRECODE: &str = "(stub) precode";
const CALL_COUNTING: &str = "(stub) call counting";
const INTERFACE_DISPATCH: &str = "(stub) interface dispatch";
const INTERFACE_RESOLVE: &str = "(stub) interface resolve";
const INTERFACE_LOOKUP: &str = "(stub) interface lookup";
const VIRTUAL_CALL: &str = "(stub) virtual call";
const GENERIC_LOOKUP: &str = "(stub) generic lookup";
const REVERSE_CALL: &str = "(stub) reverse P/Invoke";
const SHUFFLE: &str = "(stub) delegate shuffle";
const HELPER: &str = "(stub) dynamic helper";
const JUMP: &str = "(stub) jump";

/// From src/coreclr/vm/amd64: jithelpers_fast.S (`JIT_WriteBarrier_*`, copied to where they can be
/// patched), thunktemplates.S (precode, call counting) and virtualcallstubcpu.hpp; of 3.1, the
/// structures of cgencpu.h; delegates to static methods by stublinkerx86.cpp
/// (`EmitShuffleThunk`); dynamic helpers and generic lookups by cgenamd64.cpp (`DynamicHelpers`).
/// The first that fits counts.
const TEMPLATES: &[Template] = &[
    template(WRITE_BARRIER, "48 89 37 49 89 f8 48 b8", 128),
    template(WRITE_BARRIER, "48 89 37 66 66 90 48 b8", 128),
    template(WRITE_BARRIER, "48 89 37 0f 1f 00 48 b8", 128),
    template(WRITE_BARRIER, "48 89 37 48 b8", 128),
    template(INTERFACE_DISPATCH, "48 b8 8? 48 39 07 90 48 b8 8? 0f 85 4? ff e0", 32),
    template(INTERFACE_DISPATCH, "48 b8 8? 48 39 07 90 48 b8 8? 75 ? ff e0 48 b8 8? ff e0", 40),
    template(INTERFACE_DISPATCH, "48 b8 8? 48 39 07 0f 85 4? 48 b8 8? ff e0", 31),
    pushing(
        template(INTERFACE_RESOLVE, "48 8b 07 52 49 ba 8? 48 8b d0 48 c1 e8 0c", 112),
        &[(4, 1), (67, 0), (89, 1), (100, 2)],
    ),
    pushing(
        template(INTERFACE_RESOLVE, "52 49 ba 8? 48 8b 07 48 8b d0 48 c1 e8 0c", 112),
        &[(1, 1), (67, 0), (89, 1), (100, 2)],
    ),
    pushing(template(INTERFACE_LOOKUP, "48 b8 8? 50 48 b8 8? ff e0", 23), &[(11, 1)]),
    template(VIRTUAL_CALL, "48 8b 07 48 8b 40 ? ff 60 ?", 10),
    template(VIRTUAL_CALL, "48 8b 07 48 8b 40 ? ff a0 4?", 13),
    template(VIRTUAL_CALL, "48 8b 07 48 8b 80 4? ff 60 ?", 13),
    template(VIRTUAL_CALL, "48 8b 07 48 8b 80 4? ff a0 4?", 16),
    template(CALL_COUNTING, "48 8b 05 4? 66 ff 08 74 06 ff 25 4? ff 25 4?", 24),
    template(PRECODE, "ff 25 4? 4c 8b 15 4? ff 25 4?", 19),
    template(PRECODE, "4c 8b 15 4? ff 25 4?", 13),
    template(PRECODE, "49 ba 8? 40 e9 4?", 16),
    // Both states of a fixup precode: only where a thread has arrived at it.
    template(PRECODE, "e9 4? 5f", 1),
    template(PRECODE, "e8 4? 5e", 1),
    template(
        GENERIC_LOOKUP,
        "48 8b 47 ? 48 8b 40 ? 48 8b 40 ? 48 85 c0 74 01 c3 48 be 8? e9 4?",
        33,
    ),
    template(GENERIC_LOOKUP, "48 8b 47 ? 48 8b 40 ? 48 8b 40 ? c3", 13),
    template(GENERIC_LOOKUP, "48 8b 47 ? 48 8b 40 ? 48 85 c0 74 01 c3 48 be 8? e9 4?", 29),
    template(GENERIC_LOOKUP, "48 8b 47 ? 48 8b 40 ? c3", 9),
    template(GENERIC_LOOKUP, "48 8b 47 ? 48 8b 40 ? 48 81 b8 4? 4? 7e ? 48 8b 40 ? 48 85 c0", 46),
    template(GENERIC_LOOKUP, "48 8b 47 ? 48 8b 40 ? 48 81 b8 4? 4? 7e ? 48 8b 80 4? 48 85 c0", 49),
    template(GENERIC_LOOKUP, "48 8b 47 ? 48 81 b8 4? 4? 7e ? 48 8b 40 ? 48 85 c0", 42),
    template(GENERIC_LOOKUP, "48 85 c0 74 01 c3 48 be 8? e9 4?", 21),
    template(SHUFFLE, "48 8b c4 49 89 fb", 96),
    template(HELPER, "48 8b f7 48 bf 8? e9 4?", 18),
    template(HELPER, "48 bf 8? 48 be 8? e9 4?", 25),
    template(HELPER, "48 bf 8? e9 4?", 15),
    template(HELPER, "48 be 8? e9 4?", 15),
    template(HELPER, "48 ba 8? 48 b9 8? e9 4?", 25),
    template(HELPER, "48 ba 8? e9 4?", 15),
    template(HELPER, "48 b8 8? c3", 11),
    template(HELPER, "48 a1 8? c3", 11),
    template(HELPER, "48 a1 8? 48 83 c0 ? c3", 15),
    template(REVERSE_CALL, "49 ba 8? 48 b8 8? ff e0", 22),
    template(JUMP, "48 b8 8? ff e0", 12),
];

/// Where to read from, and how much: not from the page before, which may not be there.
#[must_use]
pub fn around(address: u64) -> (u64, u32) {
    let start = address.saturating_sub(BEFORE).max(address & !(PAGE - 1));
    (start, (address + AFTER - start) as u32)
}

/// What the code is that a thread was at. `at` is the address's position in `code`.
#[must_use]
pub fn find(code: &[u8], at: usize) -> Option<Stub> {
    TEMPLATES.iter().find_map(|template| {
        let first = at.saturating_sub(template.size.checked_sub(1)?);
        let fits =
            |start: &usize| code.get(*start..).is_some_and(|code| begins(code, template.code));
        let start = (first..=at).rev().find(fits)?;
        Some(Stub {
            name: template.name,
            offset: (at - start) as u64,
            size: template.size as u32,
            pushed: template.pushed,
        })
    })
}

impl Stub {
    /// How it is unwound, by offset; `None` where the return address lies on top all the time.
    #[must_use]
    pub fn rules(&self) -> Option<Vec<(u32, Rule)>> {
        if self.pushed.is_empty() {
            return None;
        }
        let first = std::iter::once((0, 0)).chain(self.pushed.iter().copied());
        let rule = |words: u32| Packed::frame(Kind::Sp, 8 + 8 * words, 0, 0).map(Rule::simple);
        first.map(|(from, words)| Some((from, rule(words)?))).collect()
    }
}

fn begins(code: &[u8], template: &str) -> bool {
    let mut at = 0;
    template.split(' ').all(|word| {
        if let Some(any) = word.strip_suffix('?') {
            at += any.parse().unwrap_or(1);
            return at <= code.len();
        }
        let fits = u8::from_str_radix(word, 16).ok() == code.get(at).copied();
        at += 1;
        fits
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(text: &str) -> Vec<u8> {
        let digits: Vec<char> = text.chars().filter(char::is_ascii_hexdigit).collect();
        let byte = |pair: &[char]| {
            u8::from_str_radix(&pair.iter().collect::<String>(), 16).expect("two digits")
        };
        digits.chunks(2).map(byte).collect()
    }

    /// Code of living processes: what was before the sampled address, and from it on.
    #[test]
    fn stubs_of_real_runtimes_have_their_names() {
        let seen = [
            // .NET 9.0.7
            (
                "89262300488937c390662e0f1f8400000000006690488937",
                "4989f848b830885b81d97e000048c1ef16803c07007504f3c3669049b9000000",
                WRITE_BARRIER,
            ),
            (
                "84000000000066904889374989f848b830885b81d97e0000",
                "48c1ef16803c07007504f3c3669049b900000004da7e00004c39ce7301c349b9",
                WRITE_BARRIER,
            ),
            (
                "471f1a7f00000f8587fdffffffe048b80898721f1a7f0000",
                "4839079048b880df1e1f1a7f00000f85d7fdffffffe048b8e0fe721f1a7f0000",
                INTERFACE_DISPATCH,
            ),
            (
                "ff25fa3f00004c8b15fb3f0000ff25fd3f000090488b05f9",
                "ff25fa3f00004c8b15fb3f0000ff25fd3f000090488b05f9ff25fa3f00004c8b",
                PRECODE,
            ),
            (
                "7406ff25f63f0000ff25f83f0000488b05f93f000066ff08",
                "7406ff25f63f0000ff25f83f0000488b05f93f000066ff087406ff25f63f0000",
                CALL_COUNTING,
            ),
            (
                "4885c07401c348be784c1e1f1a7f0000e99381377ecccccc",
                "488bf748bf480e271f1a7f0000e976bd2800cccccccccccc48bf100c741f1a7f",
                HELPER,
            ),
            (
                "10b1231e1a7f0000c3cccccccccc48b818b1231e1a7f0000",
                "c3cccccccccc48b8a0040004da7e0000c3cccccccccc00000000000000000000",
                HELPER,
            ),
            (
                "000000000000000002000000200000240000000000000000",
                "488bc44989fb4889f74d8b53204983c32049ffe201800080ffff000000000000",
                SHUFFLE,
            ),
            (
                "0000240000000000000000488bc44989fb4889f74d8b5320",
                "4983c32049ffe201800080ffff00000000000000000000000000000000000000",
                SHUFFLE,
            ),
            // .NET Core 3.1.2
            (
                "987f9a80807f0000e8cb3c40795e0003e8c33c40795e0202",
                "e99b2400005f0401e9d32400005f07005869a680807f0000e8a33c40795e0003",
                PRECODE,
            ),
        ];
        for (before, after, name) in seen {
            let code = bytes(&format!("{before}{after}"));
            let found = find(&code, before.len() / 2).map(|stub| stub.name);
            assert_eq!(found, Some(name), "{before} | {after}");
        }
    }

    /// The whole of one, with the numbers left out.
    #[test]
    fn a_stub_that_pushes_is_unwound_by_how_much_it_has_pushed() {
        let code = bytes(
            "488b07 52 49ba1111111111111111 488bd0 48c1e80c 4803c2 483522222222 482533333333
             4a8b0410 49ba4444444444444444 483b5000 7529 4c3b5008 7523 488b4010 5a ffe0
             48b85555555555555555 8300ff 7db0 4983cb01 52 49ba6666666666666666 50
             48b87777777777777777 ffe0",
        );
        assert_eq!(code.len(), 112);
        let stub = find(&code, 50).expect("a stub");
        assert_eq!((stub.name, stub.offset, stub.size), (INTERFACE_RESOLVE, 50, 112));
        let rules = stub.rules().expect("it pushes");
        let pushed_at = |at: u32| {
            let rule = rules.iter().rev().find(|(from, _)| *from <= at).expect("a rule").1;
            rule.packed.cfa_offset() / 8 - 1
        };
        // Before and after each `push` and `pop`.
        let seen = [0, 3, 4, 66, 67, 88, 89, 99, 100, 111].map(pushed_at);
        assert_eq!(seen, [0, 0, 1, 1, 0, 0, 1, 1, 2, 2]);
        assert!(find(&bytes("48b81111111111111111c3"), 2).expect("a helper").rules().is_none());
    }

    #[test]
    fn other_code_has_no_name() {
        let code = bytes("554889e54883ec10488b7df8e80000000048 8b45f8c9c3909090909090909090");
        for at in 0..code.len() {
            assert_eq!(find(&code, at), None, "{at}");
        }
        assert_eq!(find(&[], 0), None);
        assert_eq!(find(&[0x48], 7), None);
    }

    #[test]
    fn no_page_before_the_address_is_read() {
        assert_eq!(around(0x7000_1000), (0x7000_1000, AFTER as u32));
        assert_eq!(around(0x7000_1800), (0x7000_1800 - BEFORE, (BEFORE + AFTER) as u32));
    }
}
