//! Any bytes as an ELF file to resolve addresses in: symbols, stubs, DWARF, Go, notes, links.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    _ = strata_symbols::exercise::elf(data);
});
