//! The kernel's symbols, from the text of `/proc/kallsyms`: core, modules and BPF programs.
//!
//! Only code is kept: 16 bytes and its name per symbol. The text is fed piece by piece, so that its
//! ten or more megabytes are never in memory at once.
//!
//! Invariant: a lookup never names an address far from the symbol before it: between the modules are
//! gaps, and symbols have no sizes here.

use crate::demangle::without_clone_marks;
use std::borrow::Cow;

/// Why there are no kernel symbols.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum KernelSymbolsError {
    #[error(
        "the kernel hides its addresses: /proc/kallsyms holds only zeros. Run as root (CAP_SYSLOG), \
         or set the sysctl kernel.kptr_restrict to 0 (sysctl -w kernel.kptr_restrict=0; also \
         kernel.perf_event_paranoid=1 without CAP_SYSLOG)"
    )]
    Hidden,
    #[error("/proc/kallsyms names no code at all")]
    Empty,
}

/// Functions of a kernel are far shorter.
const MAX_FUNCTION: u64 = 256 << 10;
const MAX_SYMBOLS: usize = 2 << 20;
const MAX_TEXT: usize = 128 << 20;
const MAX_NAME: usize = 1024;

#[derive(Clone, Copy)]
struct Symbol {
    address: u64,
    name: u32,
    /// Index + 1 into the modules; 0 is the kernel itself.
    module: u16,
    local: bool,
}

/// See the module's documentation.
#[derive(Default)]
pub struct KernelSymbols {
    symbols: Vec<Symbol>,
    /// NUL-terminated names.
    text: Vec<u8>,
    modules: Vec<Box<str>>,
}

/// The symbol of a kernel address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KernelSymbol<'a> {
    /// As the kernel writes it.
    pub raw_name: &'a str,
    pub module: Option<&'a str>,
}

impl KernelSymbol<'_> {
    /// The name to show: without clone marks, with `[module]` when not of the core kernel.
    #[must_use]
    pub fn frame_name(&self) -> Cow<'_, str> {
        let name = without_clone_marks(self.raw_name);
        match self.module {
            Some(module) => Cow::Owned(format!("{name} [{module}]")),
            None => Cow::Borrowed(name),
        }
    }
}

/// Takes the text of `/proc/kallsyms` in pieces.
#[derive(Default)]
pub struct Builder {
    table: KernelSymbols,
    partial: Vec<u8>,
    code_lines: u64,
    hidden_lines: u64,
}

impl Builder {
    /// Takes the next piece.
    pub fn feed(&mut self, mut piece: &[u8]) {
        while let Some(end) = piece.iter().position(|&byte| byte == b'\n') {
            let (line, rest) = piece.split_at(end);
            piece = rest.get(1..).unwrap_or_default();
            if self.partial.is_empty() {
                self.line(line);
            } else {
                self.partial.extend_from_slice(line);
                let whole = std::mem::take(&mut self.partial);
                self.line(&whole);
            }
        }
        // The kernel writes no longer lines; the rest of a longer one is dropped.
        let room = MAX_NAME.saturating_sub(self.partial.len());
        self.partial.extend_from_slice(piece.get(..room).unwrap_or(piece));
    }

    fn line(&mut self, line: &[u8]) {
        let Ok(line) = std::str::from_utf8(line) else {
            return;
        };
        let mut words = line.split_ascii_whitespace();
        let (Some(address), Some(kind), Some(name)) = (words.next(), words.next(), words.next())
        else {
            return;
        };
        let Ok(address) = u64::from_str_radix(address, 16) else {
            return;
        };
        if !matches!(kind, "t" | "T" | "w" | "W") || name.len() > MAX_NAME {
            return;
        }
        self.code_lines = self.code_lines.saturating_add(1);
        if address == 0 {
            self.hidden_lines = self.hidden_lines.saturating_add(1);
            return;
        }
        let module = words.next().and_then(|word| word.strip_prefix('[')?.strip_suffix(']'));
        self.table.add(address, name, module, kind == "t");
    }

    /// Sorts what was fed.
    ///
    /// # Errors
    /// When the kernel hides its addresses, or nothing was there.
    pub fn finish(mut self) -> Result<KernelSymbols, KernelSymbolsError> {
        let last = std::mem::take(&mut self.partial);
        self.line(&last);
        if self.table.symbols.is_empty() {
            return Err(if self.hidden_lines > 0 {
                KernelSymbolsError::Hidden
            } else {
                KernelSymbolsError::Empty
            });
        }
        self.table.sort();
        Ok(self.table)
    }
}

impl KernelSymbols {
    /// Reads the whole text at once.
    ///
    /// # Errors
    /// As [`Builder::finish`].
    pub fn parse(text: &[u8]) -> Result<Self, KernelSymbolsError> {
        let mut builder = Builder::default();
        builder.feed(text);
        builder.finish()
    }

    fn add(&mut self, address: u64, name: &str, module: Option<&str>, local: bool) {
        let full = self.symbols.len() >= MAX_SYMBOLS
            || self.text.len().saturating_add(name.len()) >= MAX_TEXT;
        let (Ok(offset), false) = (u32::try_from(self.text.len()), full) else {
            return;
        };
        let module = module.map_or(Some(0), |module| self.module(module));
        let Some(module) = module else {
            return;
        };
        self.text.extend_from_slice(name.as_bytes());
        self.text.push(0);
        self.symbols.push(Symbol { address, name: offset, module, local });
    }

    /// The number of a module. Symbols of one module follow each other, mostly.
    fn module(&mut self, name: &str) -> Option<u16> {
        let known = self.modules.iter().rposition(|known| **known == *name);
        let index = known.unwrap_or_else(|| {
            self.modules.push(name.into());
            self.modules.len().saturating_sub(1)
        });
        u16::try_from(index).ok()?.checked_add(1)
    }

    fn sort(&mut self) {
        let text = std::mem::take(&mut self.text);
        let order = |symbol: &Symbol| {
            let name = text_at(&text, symbol.name);
            let underscores = name.bytes().take_while(|&byte| byte == b'_').count();
            (symbol.address, symbol.module, underscores, symbol.local)
        };
        // Stable: of equals the first in the kernel's own order stays.
        self.symbols.sort_by_cached_key(order);
        self.symbols.dedup_by_key(|symbol| symbol.address);
        self.symbols.shrink_to_fit();
        self.text = text;
        self.text.shrink_to_fit();
    }

    /// The symbol that `address` belongs to.
    #[must_use]
    pub fn lookup(&self, address: u64) -> Option<KernelSymbol<'_>> {
        let end = self.symbols.partition_point(|symbol| symbol.address <= address);
        let symbol = self.symbols.get(end.checked_sub(1)?)?;
        (address.checked_sub(symbol.address)? < MAX_FUNCTION).then(|| KernelSymbol {
            raw_name: text_at(&self.text, symbol.name),
            module: usize::from(symbol.module)
                .checked_sub(1)
                .and_then(|index| self.modules.get(index))
                .map(|module| &**module),
        })
    }

    #[must_use]
    pub fn len(&self) -> usize {
        self.symbols.len()
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.symbols.is_empty()
    }

    /// The memory held, in bytes.
    #[must_use]
    pub fn memory(&self) -> usize {
        let modules: usize = self.modules.iter().map(|module| module.len()).sum();
        self.symbols
            .capacity()
            .saturating_mul(size_of::<Symbol>())
            .saturating_add(self.text.capacity())
            .saturating_add(modules)
    }
}

fn text_at(text: &[u8], offset: u32) -> &str {
    usize::try_from(offset)
        .ok()
        .and_then(|offset| text.get(offset..))
        .map(|rest| rest.get(..MAX_NAME.saturating_add(1)).unwrap_or(rest))
        .map(strata_bytes::until_nul)
        .and_then(|name| std::str::from_utf8(name).ok())
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &[u8] = b"0000000000000000 A fixed_percpu_data\n\
        ffffffff81000000 T _text\n\
        ffffffff81000000 T startup_64\n\
        ffffffff81001000 t helper.constprop.0\n\
        ffffffff81001800 D not_code\n\
        ffffffff81002000 T vfs_read\n\
        ffffffffc0201000 t ext4_read\t[ext4]\n\
        ffffffffc0301000 t bpf_prog_6deef7357e7b4530_sample\t[bpf]\n";

    #[test]
    fn core_modules_and_bpf_programs_are_named() {
        let symbols = KernelSymbols::parse(TEXT).unwrap();
        let name = |address| symbols.lookup(address).unwrap().frame_name().into_owned();
        assert_eq!(name(0xffff_ffff_8100_0010), "startup_64");
        assert_eq!(name(0xffff_ffff_8100_1900), "helper");
        assert_eq!(name(0xffff_ffff_8100_2000), "vfs_read");
        assert_eq!(name(0xffff_ffff_c020_1004), "ext4_read [ext4]");
        assert_eq!(name(0xffff_ffff_c030_1004), "bpf_prog_6deef7357e7b4530_sample [bpf]");
    }

    #[test]
    fn gaps_and_the_space_below_have_no_name() {
        let symbols = KernelSymbols::parse(TEXT).unwrap();
        assert_eq!(symbols.lookup(0xffff_ffff_b000_0000), None);
        assert_eq!(symbols.lookup(0x1000), None);
    }

    #[test]
    fn hidden_addresses_say_which_setting_hides_them() {
        let text = b"0000000000000000 T _text\n0000000000000000 T vfs_read\n";
        let error = KernelSymbols::parse(text).err().unwrap();
        assert_eq!(error, KernelSymbolsError::Hidden);
        assert!(error.to_string().contains("kernel.kptr_restrict"));
        assert_eq!(KernelSymbols::parse(b"").err(), Some(KernelSymbolsError::Empty));
    }

    #[test]
    fn pieces_of_any_size_give_the_same_table() {
        let whole = KernelSymbols::parse(TEXT).unwrap();
        for size in [1, 7, 64] {
            let mut builder = Builder::default();
            TEXT.chunks(size).for_each(|piece| builder.feed(piece));
            let pieces = builder.finish().unwrap();
            assert_eq!(pieces.len(), whole.len());
            assert_eq!(pieces.lookup(0xffff_ffff_c020_1004), whole.lookup(0xffff_ffff_c020_1004));
        }
    }

    #[test]
    fn this_kernel_is_read_and_small() {
        let text = std::fs::read("/proc/kallsyms").unwrap();
        match KernelSymbols::parse(&text) {
            Ok(symbols) => {
                println!(
                    "{} functions of {} KiB of text in {} KiB",
                    symbols.len(),
                    text.len() >> 10,
                    symbols.memory() >> 10
                );
                assert!(symbols.len() > 10_000);
                assert!(symbols.memory() < 16 << 20);
            }
            Err(error) => strata_skip::skipped!("{error}"),
        }
    }
}
