//! Any bytes as the kernel's symbol list.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    _ = strata_symbols::exercise::kallsyms(data);
});
