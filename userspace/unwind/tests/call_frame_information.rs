//! Rows against gimli's own reading of the same `.eh_frame`, on real files: an independent
//! implementation that keeps every register.

use std::path::{Path, PathBuf};

use gimli::{
    BaseAddresses, CfaRule, CieOrFde, EhFrame, LittleEndian, RegisterRule, UnwindContext,
    UnwindSection, X86_64,
};
use object::{Object, ObjectSection, ObjectSymbol};
use strata_abi::register;
use strata_abi::rule::{
    FLAG_DEREF, FLAG_DEREF_TWICE, FLAG_EXTRA_SAVED, FLAG_FP_SAVED, FLAG_RA_IN_REGISTER,
    FLAG_SAVES_AT_FP, Kind, Packed, Rule,
};
use strata_unwind::FileAt;
use strata_unwind::{Limits, UnwindTable, build};

fn table_of(path: &Path) -> UnwindTable {
    let source = FileAt::new(std::fs::File::open(path).unwrap()).unwrap();
    build(&source, &Limits::default()).unwrap()
}

/// Checks all rows of a file; returns how many there were.
fn compare(path: &Path) -> u64 {
    let table = table_of(path);
    let bytes = std::fs::read(path).unwrap();
    let file = object::File::parse(&*bytes).unwrap();
    let section = file.section_by_name(".eh_frame").unwrap();
    let frames = EhFrame::new(section.data().unwrap(), LittleEndian);
    let bases = BaseAddresses::default().set_eh_frame(section.address());
    let mut context = UnwindContext::new();
    let mut checked = 0;
    let makes_contexts = file.dynamic_symbols().any(|symbol| symbol.name() == Ok("makecontext"));
    let mut context_starts = 0;
    let mut entries = frames.entries(&bases);
    while let Some(entry) = entries.next().unwrap() {
        let CieOrFde::Fde(partial) = entry else { continue };
        let fde = partial.parse(EhFrame::cie_from_offset).unwrap();
        if fde.len() == 0 || fde.initial_address() == 0 {
            continue;
        }
        if makes_contexts && starts_a_context(&file, fde.initial_address()) {
            context_starts += 1;
            for address in [fde.initial_address() - 1, fde.initial_address()] {
                assert_eq!(table.lookup(address).packed, Packed::END, "{address:#x}");
            }
            continue;
        }
        let mut rows = fde.rows(&frames, &bases, &mut context).unwrap();
        while let Some(row) = rows.next_row().unwrap() {
            if row.start_address() >= row.end_address() {
                continue;
            }
            for address in [row.start_address(), row.end_address() - 1] {
                let rule = table.lookup(address);
                let signal = fde.cie().is_signal_trampoline();
                if let Err(wrong) = agrees(&rule, row, signal) {
                    panic!("{}: {address:#x}: {wrong}\n{rule:?}\n{row:?}", path.display());
                }
            }
            checked += 1;
        }
    }
    assert!(context_starts <= 1, "{}: {context_starts}", path.display());
    checked
}

/// Of glibc's `__start_context`, call frame information says that it was called.
fn starts_a_context(file: &object::File<'_>, address: u64) -> bool {
    const CODE: [u8; 10] = [0x48, 0x89, 0xdc, 0x48, 0x8b, 0x3c, 0x24, 0x48, 0x85, 0xff];
    let section = file.section_by_name(".text").unwrap();
    section.data_range(address, CODE.len() as u64).is_ok_and(|code| code == Some(&CODE[..]))
}

/// Whether a rule is equivalent to gimli's row. Expressions are left to other tests.
fn agrees(
    rule: &Rule,
    row: &gimli::UnwindTableRow<usize>,
    signal: bool,
) -> Result<(), &'static str> {
    let kind = rule.packed.kind();
    let must = |holds: bool, wrong| if holds { Ok(()) } else { Err(wrong) };
    let is_kernels = matches!(row.register(X86_64::RA), Some(RegisterRule::Expression(_)));
    if signal && is_kernels {
        return must(rule.packed == Packed::SIGNAL, "not a signal frame");
    }
    if kind == Kind::Unsupported as u32 {
        return Ok(());
    }
    match row.register(X86_64::RA).unwrap_or(RegisterRule::SameValue) {
        RegisterRule::Undefined => return must(rule.packed == Packed::END, "not the outermost"),
        RegisterRule::Offset(-8) => {}
        RegisterRule::Register(_) => {
            return must(rule.flags & FLAG_RA_IN_REGISTER != 0, "the return address's register");
        }
        other => panic!("an unexpected place of the return address: {other:?}"),
    }
    let CfaRule::RegisterAndOffset { register, offset } = row.cfa() else {
        return must(
            kind == Kind::Plt as u32 || kind == Kind::Extended as u32,
            "an expression became a plain rule",
        );
    };
    let extended = kind == Kind::Extended as u32;
    let (base, cfa) = if extended {
        (rule.base, i64::from(rule.cfa_offset))
    } else {
        let base = match kind {
            kind if kind == Kind::Sp as u32 => 7,
            kind if kind == Kind::Fp as u32 => 6,
            kind if kind == Kind::Extra as u32 => 3,
            _ => return Err("not a frame"),
        };
        (base, rule.packed.cfa_offset() as i64)
    };
    must(u16::from(base) == register.0 && cfa == *offset, "the CFA")?;
    let saves = |number, flag, offset, below: u64| {
        let at = if extended {
            (rule.flags & flag != 0).then_some(i64::from(offset))
        } else {
            (below != 0).then(|| -(below as i64))
        };
        match row.register(number).unwrap_or(RegisterRule::Undefined) {
            RegisterRule::Offset(offset) => at == Some(offset),
            // At the end of a realigned frame GCC still states that of a RBP that is restored
            // already.
            RegisterRule::Expression(_) if at.is_none() => {
                number == X86_64::RBX || matches!((base, cfa), (10, 0) | (7, 8))
            }
            RegisterRule::Expression(_) => {
                number == X86_64::RBX || rule.flags & FLAG_SAVES_AT_FP != 0
            }
            RegisterRule::Undefined | RegisterRule::SameValue => at.is_none(),
            // Rules do without RBX where it is in an odd place.
            _ => number == X86_64::RBX,
        }
    };
    must(saves(X86_64::RBP, FLAG_FP_SAVED, rule.fp_offset, rule.packed.fp_below()), "RBP")?;
    must(saves(X86_64::RBX, FLAG_EXTRA_SAVED, rule.extra_offset, rule.packed.extra_below()), "RBX")
}

fn compare_if_there(paths: &[&str]) {
    let mut checked = 0;
    for path in paths {
        if !Path::new(path).exists() {
            strata_skip::skipped!("{path} is not on this machine");
            continue;
        }
        let rows = compare(Path::new(path));
        println!("{path}: {rows} rows agree");
        checked += rows;
    }
    assert!(checked > 0, "none of {paths:?} is on this machine");
}

#[test]
fn system_libraries_have_the_rows_gimli_finds() {
    compare_if_there(&[
        "/lib/x86_64-linux-gnu/libc.so.6",
        "/lib64/ld-linux-x86-64.so.2",
        "/usr/lib/x86_64-linux-gnu/libstdc++.so.6",
        "/usr/lib/x86_64-linux-gnu/libcrypto.so.3",
        "/usr/lib/x86_64-linux-gnu/libgcc_s.so.1",
        "/usr/lib/x86_64-linux-gnu/libm.so.6",
        "/usr/bin/bash",
    ]);
}

#[test]
fn a_program_with_hand_written_assembly_has_the_rows_gimli_finds() {
    compare_if_there(&["/usr/bin/node", "/usr/bin/bash"]);
}

/// A library of more than one piece (MAX_PIECE_ROWS).
#[test]
fn the_largest_library_of_this_toolchain_has_the_rows_gimli_finds() {
    let rustc = std::process::Command::new("rustc").args(["--print", "sysroot"]).output();
    let sysroot = PathBuf::from(String::from_utf8(rustc.unwrap().stdout).unwrap().trim());
    let driver = std::fs::read_dir(sysroot.join("lib"))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .find(|path| path.to_string_lossy().contains("librustc_driver"));
    let driver = driver.expect("every toolchain has librustc_driver");
    println!("{} rows agree", compare(&driver));
    assert!(table_of(&driver).pieces.len() > 1);
}

/// As OCaml 5's `caml_call_gc` and corosensei's `stack_call_trampoline`.
#[test]
fn a_frame_that_is_marked_as_a_signals_and_is_none_has_its_own_rows() {
    const SOURCE: &str = "
        .text
        .globl marked
        .type marked, @function
        marked:
            .cfi_startproc
            .cfi_signal_frame
            sub $40, %rsp
            .cfi_adjust_cfa_offset 40
            call marked@PLT
            add $40, %rsp
            .cfi_adjust_cfa_offset -40
            ret
            .cfi_endproc
        .globl switches
        .type switches, @function
        switches:
            .cfi_startproc
            .cfi_signal_frame
            push %rbx
            .cfi_escape 0x0f, 5, 0x73, 16, 0x06, 0x23, 16
            sub $8, %rsp
            .cfi_def_cfa_offset 24
            call marked@PLT
            .cfi_endproc
        .globl fiber
        .type fiber, @function
        fiber:
            .cfi_startproc
            .cfi_escape 0x0f, 9, 0x77, 0xc0, 0, 0x06, 0x23, 8, 0x06, 0x23, 8
            call marked@PLT
            .cfi_endproc
        .section .note.GNU-stack
    ";
    let folder = tempfile::tempdir().unwrap();
    let [source, library] = ["marked.s", "marked.so"].map(|name| folder.path().join(name));
    std::fs::write(&source, SOURCE).unwrap();
    let mut compiler = std::process::Command::new("cc");
    compiler.args(["-shared", "-nostdlib", "-o"]).args([&library, &source]);
    assert!(compiler.status().unwrap().success());
    let bytes = std::fs::read(&library).unwrap();
    let file = object::File::parse(&*bytes).unwrap();
    let address = |name: &str| {
        let symbol = file.dynamic_symbols().find(|symbol| symbol.name() == Ok(name));
        symbol.unwrap().address()
    };
    let table = table_of(&library);
    let inside = table.lookup(address("marked") + 6).packed;
    assert_eq!((inside.kind(), inside.cfa_offset()), (Kind::Sp as u32, 48));
    // The expression stays in force: at RBX + 16 lies the other stack's pointer, 16 below the CFA.
    for offset in [1, 6] {
        let rule = table.lookup(address("switches") + offset);
        assert_eq!(rule.packed.kind(), Kind::Extended as u32, "{rule:?}");
        assert!(rule.packed != Packed::SIGNAL);
    }
    // As OCaml 5's `caml_runstack`: the stack pointer of the stack that the handler of this one names.
    let rule = table.lookup(address("fiber"));
    assert_eq!(rule.flags, FLAG_DEREF | FLAG_DEREF_TWICE);
    assert_eq!(
        (rule.base, rule.cfa_offset, rule.second, rule.deref_add),
        (register::RSP, 64, 8, 8)
    );
}

#[test]
fn the_dynamic_linkers_lazy_binding_and_vfork_have_rules() {
    let linker = table_of(Path::new("/lib64/ld-linux-x86-64.so.2"));
    assert!(linker.rules.iter().any(|rule| rule.packed.kind() == Kind::Extra as u32));
    let libc = table_of(Path::new("/lib/x86_64-linux-gnu/libc.so.6"));
    assert!(libc.rules.iter().any(|rule| rule.flags & FLAG_RA_IN_REGISTER != 0));
    assert!(libc.rules.iter().any(|rule| rule.packed == Packed::SIGNAL));
    assert!(libc.rules.iter().any(|rule| rule.packed == Packed::END));
    assert!(libc.rules.iter().any(|rule| rule.packed.kind() == Kind::Plt as u32));
}
