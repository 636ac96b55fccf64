//! Any bytes as a .NET assembly or a single-file bundle: headers, metadata, precompiled code, an
//! embedded PDB.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    _ = strata_dotnet::exercise::image(data);
});
