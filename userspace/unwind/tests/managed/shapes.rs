//! Prologues, handlers, replacements and stubs, byte by byte; and bytes that are no code.

use strata_abi::rule::{FLAG_FP_SAVED, Kind, Packed, Rule};
use strata_unwind::managed::{
    MethodCode, STUB_REACH, method_rules, replaceable_frame, stub_at, wants_all_code,
};

const PUSH_RBP: &[u8] = &[0x55];
const PUSH_RBX: &[u8] = &[0x53];
const PUSH_R14: &[u8] = &[0x41, 0x56];
const PUSH_RAX: &[u8] = &[0x50];
const POP_RBP: &[u8] = &[0x5d];
const RET: &[u8] = &[0xc3];
const CALL: &[u8] = &[0xe8, 0, 0, 0, 0];
const BREAKPOINT: &[u8] = &[0xcc];
/// mov rbp, [rdi]
const LOAD_PARENT: &[u8] = &[0x48, 0x8b, 0x2f];

fn sub_rsp(size: u8) -> [u8; 4] {
    [0x48, 0x83, 0xec, size]
}

fn add_rsp(size: u8) -> [u8; 4] {
    [0x48, 0x83, 0xc4, size]
}

fn lea_rbp(above: u8) -> [u8; 5] {
    [0x48, 0x8d, 0x6c, 0x24, above]
}

fn code(parts: &[&[u8]]) -> Vec<u8> {
    parts.concat()
}

fn rules(bytes: &[u8]) -> Vec<(u32, Rule)> {
    method_rules(&MethodCode { size: bytes.len() as u32, bytes, ..MethodCode::default() })
}

fn frame(kind: Kind, cfa: u32, fp_below: u32) -> Rule {
    Rule::simple(Packed::frame(kind, cfa, fp_below, 0).unwrap().with_epilogue_check())
}

fn sp(cfa: u32, fp_below: u32) -> Rule {
    frame(Kind::Sp, cfa, fp_below)
}

fn frame_pointer() -> Rule {
    frame(Kind::Fp, 16, 16)
}

#[test]
fn a_method_without_a_frame_has_its_return_address_at_the_stack_pointer() {
    assert_eq!(rules(&code(&[&[0x8d, 0x47, 0x01], RET])), [(0, sp(8, 0))]);
}

#[test]
fn a_frame_pointer_takes_over_when_it_is_set() {
    let body = code(&[PUSH_RBP, PUSH_RBX, &sub_rsp(24), &lea_rbp(32), CALL]);
    let expected =
        [(0, sp(8, 0)), (1, sp(16, 16)), (2, sp(24, 16)), (6, sp(48, 16)), (11, frame_pointer())];
    assert_eq!(rules(&body), expected);
    // mov rbp, rsp
    let body = code(&[PUSH_RBP, &[0x48, 0x8b, 0xec], CALL]);
    assert_eq!(rules(&body), [(0, sp(8, 0)), (1, sp(16, 16)), (4, frame_pointer())]);
}

#[test]
fn a_frameless_method_keeps_its_caller() {
    let body = code(&[PUSH_R14, PUSH_RBX, PUSH_RAX, CALL]);
    assert_eq!(rules(&body), [(0, sp(8, 0)), (2, sp(16, 0)), (3, sp(24, 0)), (4, sp(32, 0))]);
}

#[test]
fn rbp_that_is_a_register_like_others_is_no_frame_pointer() {
    // push r14; push rbp; push rbx; sub rsp, 16; lea rbp, [rsp + 8]: the address of a local
    let body = code(&[PUSH_R14, PUSH_RBP, PUSH_RBX, &sub_rsp(16), &lea_rbp(8), CALL]);
    let expected =
        [(0, sp(8, 0)), (2, sp(16, 0)), (3, sp(24, 24)), (4, sp(32, 24)), (8, sp(48, 24))];
    assert_eq!(rules(&body), expected);
    // pushed first, and yet used for an address within the frame
    let body = code(&[PUSH_RBP, PUSH_RBX, &sub_rsp(24), &lea_rbp(8), CALL]);
    assert_eq!(rules(&body).last(), Some(&(6, sp(48, 16))));
}

#[test]
fn a_frame_of_pages_is_probed_by_a_call_before_it_is_there() {
    let size = 0x13a0_u32;
    let below = (-(size as i32)).to_le_bytes();
    let body = code(&[
        PUSH_RBP,
        &[0x4c, 0x8d, 0x9c, 0x24],
        &below,
        CALL,
        // mov rsp, r11; lea rbp, [rsp + size]
        &[0x49, 0x8b, 0xe3],
        &[0x48, 0x8d, 0xac, 0x24],
        &size.to_le_bytes(),
        CALL,
    ]);
    let expected = [(0, sp(8, 0)), (1, sp(16, 16)), (17, sp(size + 16, 16)), (25, frame_pointer())];
    assert_eq!(rules(&body), expected);
}

#[test]
fn a_loop_that_probes_counts_from_the_register_that_does_not_move() {
    let size = 0xc360_u32;
    let body = code(&[
        PUSH_RBX,
        // lea rax, [rsp - size]
        &[0x48, 0x8d, 0x84, 0x24],
        &(-(size as i32)).to_le_bytes(),
        // lea rsp, [rsp - 0x1000]; test [rsp], rax; cmp rsp, rax; jge
        &[0x48, 0x8d, 0xa4, 0x24, 0, 0xf0, 0xff, 0xff],
        &[0x48, 0x85, 0x04, 0x24, 0x48, 0x3b, 0xe0, 0x7d, 0xef],
        // lea rsp, [rax + size]; sub rsp, size
        &[0x48, 0x8d, 0xa0],
        &size.to_le_bytes(),
        &[0x48, 0x81, 0xec],
        &size.to_le_bytes(),
        CALL,
    ]);
    let found = rules(&body);
    let offsets: Vec<u32> = found.iter().map(|(offset, _)| *offset).collect();
    assert_eq!(offsets, [0, 1, 9, 33, 40]);
    let probing = found[2].1;
    assert_eq!((probing.base, probing.cfa_offset, probing.flags), (0, size as i32 + 16, 0));
    assert_eq!((found[3].1, found[4].1), (sp(16, 0), sp(size + 16, 0)));
}

#[test]
fn a_frame_too_large_for_one_word_is_an_extended_rule_that_checks_epilogues() {
    let body = code(&[PUSH_RBP, &[0x48, 0x81, 0xec], &0x40_0000_u32.to_le_bytes(), CALL]);
    let (offset, rule) = rules(&body)[2];
    assert_eq!(offset, 8);
    assert!(rule.is_extended() && rule.packed.checks_epilogue());
    assert_eq!((rule.base, rule.cfa_offset), (7, 0x40_0010));
    assert_eq!((rule.flags, rule.fp_offset), (FLAG_FP_SAVED, -16));
}

/// push rbp; sub rsp, 16; lea rbp, [rsp + 16]; call; add rsp, 16; pop rbp; ret: 20 bytes.
fn body_with_frame() -> Vec<u8> {
    code(&[PUSH_RBP, &sub_rsp(16), &lea_rbp(16), CALL, &add_rsp(16), POP_RBP, RET])
}

#[test]
fn handlers_up_to_9_save_the_frame_pointer_and_count_from_the_stack_pointer() {
    let handler = code(&[PUSH_RBP, &sub_rsp(16), LOAD_PARENT, CALL, &add_rsp(16), POP_RBP, RET]);
    let body = code(&[&body_with_frame(), &handler, PUSH_RBP, PUSH_RBX, PUSH_RAX, LOAD_PARENT]);
    let start = body_with_frame().len() as u32;
    let next = start + handler.len() as u32;
    let expected = [
        (start, sp(8, 0)),
        (start + 1, sp(16, 16)),
        (start + 5, sp(32, 16)),
        (next, sp(8, 0)),
        (next + 1, sp(16, 16)),
        (next + 2, sp(24, 16)),
        (next + 3, sp(32, 16)),
    ];
    assert_eq!(rules(&body)[4..], expected);
}

#[test]
fn handlers_since_10_find_the_frame_pointer_set() {
    let body = body_with_frame();
    let start = body.len() as u32;
    let handlers = code(&[&body, PUSH_RAX, CALL, BREAKPOINT, &sub_rsp(24), CALL, BREAKPOINT]);
    let expected =
        [(start, sp(8, 0)), (start + 1, sp(16, 0)), (start + 7, sp(8, 0)), (start + 11, sp(32, 0))];
    assert_eq!(rules(&handlers)[4..], expected);
}

#[test]
fn memory_taken_from_the_stack_behind_a_jump_is_no_handler() {
    // jmp +0; sub rsp, 32
    let body = code(&[&body_with_frame(), &[0xeb, 0], &sub_rsp(32), CALL]);
    assert_eq!(rules(&body).len(), 4);
}

#[test]
fn bytes_inside_an_instruction_are_no_handler() {
    // mov eax, 0x55c30000; ret
    let body = code(&[&body_with_frame(), &[0xb8, 0, 0, 0xc3, 0x55], RET]);
    assert_eq!(rules(&body).len(), 4);
}

/// mov rax, [rbp]; push rax; sub rsp, 48; mov [rsp + 0x98], r15; lea rbp, [rsp + 48]
const REPLACEMENT: [u8; 22] = [
    0x48, 0x8b, 0x45, 0x00, 0x50, 0x48, 0x83, 0xec, 0x30, 0x4c, 0x89, 0xbc, 0x24, 0x98, 0, 0, 0,
    0x48, 0x8d, 0x6c, 0x24, 0x30,
];

fn replacement_rules(bytes: &[u8], replaced: &[u8]) -> Vec<(u32, Rule)> {
    let size = bytes.len() as u32;
    let replaced_frame = replaceable_frame(replaced);
    method_rules(&MethodCode { size, bytes, is_replacement: true, replaced_frame })
}

#[test]
fn the_epilogue_of_a_replacement_tells_the_size_of_both_frames() {
    // add rsp, 0x98; pop r15; pop rbp; ret
    let epilogue = [0x48, 0x81, 0xc4, 0x98, 0, 0, 0, 0x41, 0x5f, 0x5d, 0xc3];
    let body = code(&[&REPLACEMENT, CALL, &epilogue]);
    let expected = [(0, sp(120, 16)), (5, sp(128, 16)), (9, sp(176, 16))];
    assert_eq!(replacement_rules(&body, &[]), expected);
}

#[test]
fn a_replacement_that_never_returns_takes_the_size_from_what_it_replaces() {
    let replaced = code(&[PUSH_RBP, &sub_rsp(96), &lea_rbp(96), CALL]);
    let body = code(&[&REPLACEMENT, CALL, BREAKPOINT]);
    let expected = [(0, sp(120, 16)), (5, sp(128, 16)), (9, sp(176, 16))];
    assert_eq!(replacement_rules(&body, &replaced), expected);
    // Else the registers it saves lie just below RBP.
    assert_eq!(replacement_rules(&body, &[]), expected);
    let silent = code(&[&REPLACEMENT[..9], CALL, BREAKPOINT]);
    assert_eq!(replacement_rules(&silent, &[]), [(0, Rule::simple(Packed::UNSUPPORTED))]);
}

#[test]
fn only_cut_methods_that_may_have_handlers_want_all_their_code() {
    let cut = |bytes: &[u8], size: u32| {
        wants_all_code(&MethodCode { size, bytes, ..MethodCode::default() })
    };
    let frameless = code(&[PUSH_RBX, CALL]);
    assert!(cut(&body_with_frame(), 1000));
    assert!(!cut(&body_with_frame(), body_with_frame().len() as u32));
    assert!(!cut(&frameless, 1000));
    assert!(wants_all_code(&MethodCode { is_replacement: true, size: 9000, ..Default::default() }));
}

#[test]
fn the_stub_of_an_interface_call_has_a_frame_between_its_push_and_its_pop() {
    let mut stub = vec![0x48, 0x8b, 0x07, 0x52, 0x49, 0xba];
    stub.extend([0; 8]);
    // mov rdx, rax; cmp rdx, [rax]; jne +3; pop rdx; jmp rax
    stub.extend([0x48, 0x8b, 0xd0, 0x48, 0x3b, 0x10, 0x75, 0x03, 0x5a, 0xff, 0xe0]);
    // or r11, 1; push rdx; push rax; jmp rax
    stub.extend([0x49, 0x83, 0xcb, 0x01, 0x52, 0x50, 0xff, 0xe0]);
    stub.resize(STUB_REACH, 0xcc);
    let mut code = vec![0; STUB_REACH];
    code.extend_from_slice(&stub);
    code.resize(3 * STUB_REACH, 0);
    for at in [0, 4, 23, 30, 111] {
        let found = stub_at(&code, STUB_REACH + at).unwrap();
        assert_eq!((found.start, found.size as usize), (STUB_REACH, STUB_REACH));
        let depths: Vec<_> =
            found.rules.iter().map(|(at, rule)| (*at, rule.packed.cfa_offset())).collect();
        let expected = [(0, 8), (4, 16), (23, 8), (30, 16), (31, 24), (33, 8)];
        assert_eq!(depths, expected);
    }
    assert_eq!(stub_at(&code, STUB_REACH - 1), None);
    assert_eq!(stub_at(&code, 2 * STUB_REACH), None);
    assert_eq!(stub_at(&code, 9 * STUB_REACH), None);
    assert_eq!(stub_at(&[], 0), None);
}

#[test]
fn bytes_that_are_no_code_have_rules_all_the_same() {
    let mut state = 0x5eed_u64;
    let mut random = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (state >> 33) as u8
    };
    // What prologues are made of, so that random bytes look like some.
    const PIECES: [&[u8]; 8] = [
        PUSH_RBP,
        PUSH_RAX,
        RET,
        &[0x48, 0x83, 0xec, 0x28],
        &[0x48, 0x81, 0xec],
        &[0x48, 0x8d, 0x6c, 0x24],
        &[0x4c, 0x8d, 0x9c, 0x24],
        &[0x48, 0x8d, 0xa4, 0x24, 0, 0xf0, 0xff, 0xff],
    ];
    for round in 0..20_000_u32 {
        let mut bytes = Vec::new();
        while bytes.len() < 60 {
            match random() {
                piece if piece < 128 => bytes.extend_from_slice(PIECES[usize::from(piece) % 8]),
                byte => bytes.push(byte.wrapping_add(random())),
            }
        }
        let code = MethodCode {
            size: if round % 3 == 0 { u32::MAX } else { random().into() },
            bytes: &bytes,
            is_replacement: round % 2 == 0,
            replaced_frame: if round % 4 == 0 { replaceable_frame(&bytes) } else { None },
        };
        let rules = method_rules(&code);
        assert_eq!(rules[0].0, 0);
        assert!(rules.is_sorted_by(|a, b| a.0 < b.0));
        _ = wants_all_code(&code);
        _ = stub_at(&bytes, usize::from(random()));
    }
}
