//! Names of kernel addresses, with modules and BPF programs, from `/proc/kallsyms`.

use std::fs::File;
use std::io::Read;

use strata_profile::FrameKind;
use strata_symbols::KernelSymbols;
use strata_symbols::kallsyms::Builder;

use super::NamedFrame;

/// Reads the kernel's table; the error says what to do.
pub fn load() -> Result<KernelSymbols, String> {
    let failed = |error| format!("/proc/kallsyms cannot be read: {error}");
    let mut file = File::open("/proc/kallsyms").map_err(failed)?;
    let mut builder = Builder::default();
    let mut piece = vec![0u8; 64 << 10];
    loop {
        match file.read(&mut piece).map_err(failed)? {
            0 => break,
            count => builder.feed(piece.get(..count).unwrap_or_default()),
        }
    }
    builder.finish().map_err(|error| error.to_string())
}

pub fn name(symbols: &KernelSymbols, address: u64) -> Option<NamedFrame> {
    let symbol = symbols.lookup(address)?;
    let mut frame = NamedFrame::plain(FrameKind::Kernel, &symbol.frame_name());
    if symbol.raw_name != &*frame.name {
        frame.system_name = symbol.raw_name.into();
    }
    Some(frame)
}
