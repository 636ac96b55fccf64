//! Any bytes as a portable PDB: documents, sequence points, state machines.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    _ = strata_dotnet::exercise::pdb(data);
});
