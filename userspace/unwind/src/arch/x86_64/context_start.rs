//! Where the functions of `makecontext` return to: glibc's `__start_context`, a function that nothing calls.
//! `makecontext` puts its address on the new stack, so that it is a return address without a call
//! before it: callers are looked up by the byte before, which belongs to something else.
//!
//! It has no symbol in a stripped file, but `makecontext` has, and names it.

use iced_x86::{Decoder, DecoderOptions, Instruction, Mnemonic, OpKind};
use memchr::memmem;
use object::LittleEndian as LE;
use object::elf::{self, Sym64};

use crate::elf::{Elf, read_exact};
use strata_bytes::ReadAt;

const NAME: &[u8] = b"makecontext\0";
/// C libraries' names are far below this.
const MAX_NAMES: u64 = 1 << 20;
const MAX_SYMBOLS: u64 = 4 << 20;
/// glibc's `makecontext` has some hundred bytes.
const MAX_CODE: u64 = 4096;
/// `endbr64`
const LANDING: [u8; 4] = [0xf3, 0x0f, 0x1e, 0xfa];
/// `mov %rbx,%rsp`: back to where `makecontext` has put the next context.
const FIRST: [u8; 3] = [0x48, 0x89, 0xdc];

/// The addresses of such functions, sorted.
pub(crate) fn context_starts<R: ReadAt + ?Sized>(elf: &Elf, source: &R) -> Vec<u64> {
    let mut starts: Vec<u64> = makers(elf, source)
        .into_iter()
        .flat_map(|(address, size)| named_code(elf, source, address, size))
        .filter(|address| begins_as_one(elf, source, *address))
        .collect();
    starts.sort_unstable();
    starts.dedup();
    starts
}

/// Address and size of `makecontext`: in shared libraries, and in programs with symbols.
fn makers<R: ReadAt + ?Sized>(elf: &Elf, source: &R) -> Vec<(u64, u64)> {
    let mut makers = Vec::new();
    for section in elf.sections.iter().filter(|section| {
        matches!(section.kind, elf::SHT_SYMTAB | elf::SHT_DYNSYM) && section.size <= MAX_SYMBOLS
    }) {
        let names = elf.names_of(source, section, MAX_NAMES);
        let places: Vec<usize> = memmem::find_iter(&names, NAME).collect();
        if places.is_empty() {
            continue;
        }
        let Ok(bytes) = read_exact(source, section.offset, section.size as usize) else { continue };
        let count = bytes.len() / size_of::<Sym64<LE>>();
        let Ok((symbols, _)) = object::pod::slice_from_bytes::<Sym64<LE>>(&bytes, count) else {
            continue;
        };
        makers.extend(
            symbols
                .iter()
                // They are sorted, and a crafted file has the name at each of its texts.
                .filter(|symbol| places.binary_search(&(symbol.st_name.get(LE) as usize)).is_ok())
                .filter(|symbol| symbol.st_shndx.get(LE) != elf::SHN_UNDEF)
                .map(|symbol| (symbol.st_value.get(LE), symbol.st_size.get(LE)))
                // A name that many symbols have is a crafted file's.
                .take(8),
        );
    }
    makers.sort_unstable();
    makers.dedup();
    makers
}

/// The addresses that a function takes.
fn named_code<R: ReadAt + ?Sized>(elf: &Elf, source: &R, address: u64, size: u64) -> Vec<u64> {
    let size = size.min(MAX_CODE) as usize;
    let code = elf.read_address(source, address, size).unwrap_or_default();
    let mut decoder = Decoder::with_ip(64, &code, address, DecoderOptions::NONE);
    let mut instruction = Instruction::default();
    let mut named = Vec::new();
    while decoder.can_decode() {
        decoder.decode_out(&mut instruction);
        match instruction.mnemonic() {
            Mnemonic::Lea if instruction.is_ip_rel_memory_operand() => {
                named.push(instruction.ip_rel_memory_address());
            }
            Mnemonic::Mov => match instruction.op1_kind() {
                OpKind::Immediate32 => named.push(u64::from(instruction.immediate32())),
                OpKind::Immediate32to64 => named.push(instruction.immediate(1)),
                _ => {}
            },
            _ => {}
        }
    }
    named
}

fn begins_as_one<R: ReadAt + ?Sized>(elf: &Elf, source: &R, address: u64) -> bool {
    if elf.code_at(address).is_none() {
        return false;
    }
    let code = elf.read_address(source, address, LANDING.len() + FIRST.len()).unwrap_or_default();
    code.strip_prefix(&LANDING).unwrap_or(&code).starts_with(&FIRST)
}
