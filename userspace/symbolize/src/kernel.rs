//! Names of kernel addresses, with modules and BPF programs: the kernel is asked for each
//! ([`KernelNames`]). Where that is not possible, they come from `/proc/kallsyms`.
//!
//! That table has some 200,000 lines and a recording wants a few hundred of them: lines are skipped
//! by their addresses alone, and only the nearest below each wanted address are parsed. A component
//! with repeated queries keeps the whole table ([`KernelTable`], some 5 MB), because making it
//! takes the kernel tens of milliseconds each time.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::time::{Duration, Instant};

use strata_agent::kernel::names::KernelNames;
use strata_profile::FrameKind;
use strata_symbols::KernelSymbols;
use strata_symbols::kallsyms::{Builder, KernelSymbol};

use super::NamedFrame;
use super::task::Lasting;

/// The symbols around the wanted addresses; the error contains the remedy.
pub fn load(wanted: impl Iterator<Item = u64>) -> Result<KernelSymbols, String> {
    let failed = |error| format!("/proc/kallsyms cannot be read: {error}");
    let file = File::open("/proc/kallsyms").map_err(failed)?;
    nearest(BufReader::with_capacity(256 << 10, file), wanted)
        .map_err(failed)?
        .finish()
        .map_err(|error| error.to_string())
}

/// All symbols, and when they were read.
pub struct KernelTable {
    symbols: KernelSymbols,
    read: Instant,
}

/// Modules and BPF programs come and go; a table is read for them this often at most.
const RENEW: Duration = Duration::from_secs(60);

impl KernelTable {
    /// The error contains the remedy.
    pub fn read() -> Result<Self, String> {
        let failed = |error| format!("/proc/kallsyms cannot be read: {error}");
        let mut file = File::open("/proc/kallsyms").map_err(failed)?;
        let mut builder = Builder::default();
        let mut piece = vec![0; 256 << 10];
        loop {
            let length = file.read(&mut piece).map_err(failed)?;
            if length == 0 {
                break;
            }
            builder.feed(piece.get(..length).unwrap_or_default());
        }
        let symbols = builder.finish().map_err(|error| error.to_string())?;
        Ok(Self { symbols, read: Instant::now() })
    }

    pub fn name(&self, address: u64) -> Option<NamedFrame> {
        name(&self.symbols, address)
    }

    /// Whether there may be something newer at an address than the table knows. The kernel itself
    /// stays where it is.
    pub fn is_outdated_for(&self, address: u64) -> bool {
        let is_core = self.symbols.lookup(address).is_some_and(|symbol| symbol.module.is_none());
        !is_core && self.read.elapsed() > RENEW
    }
}

/// Lines of one address below a wanted one.
#[derive(Default)]
struct Nearest {
    address: u64,
    lines: Vec<u8>,
}

fn nearest(mut table: impl BufRead, wanted: impl Iterator<Item = u64>) -> io::Result<Builder> {
    let mut wanted: Vec<u64> = wanted.collect();
    wanted.sort_unstable();
    wanted.dedup();
    let mut found: Vec<Nearest> = wanted.iter().map(|_| Nearest::default()).collect();
    let mut line = Vec::new();
    let mut any = Vec::new();
    loop {
        line.clear();
        if table.read_until(b'\n', &mut line)? == 0 {
            break;
        }
        let Some(address) = address_of(&line) else { continue };
        if any.is_empty() {
            any.clone_from(&line);
        }
        // The first wanted address from here on; later ones are resolved at the end.
        let next = wanted.partition_point(|wanted| *wanted < address);
        let Some(best) = found.get_mut(next) else { continue };
        if address > best.address {
            best.address = address;
            best.lines.clear();
        }
        if address == best.address {
            best.lines.extend_from_slice(&line);
        }
    }
    let mut builder = Builder::default();
    // Without wanted lines the table's first line still shows whether addresses are hidden.
    builder.feed(&any);
    for nearest in &found {
        builder.feed(&nearest.lines);
    }
    Ok(builder)
}

/// The address of a line that names code.
fn address_of(line: &[u8]) -> Option<u64> {
    let (digits, rest) = line.split_at_checked(16)?;
    if !matches!(rest, [b' ', b't' | b'T' | b'w' | b'W', b' ', ..]) {
        return None;
    }
    digits.iter().try_fold(0u64, |value, digit| {
        let digit = match digit {
            b'0'..=b'9' => digit - b'0',
            b'a'..=b'f' => digit - b'a' + 10,
            _ => return None,
        };
        Some(value << 4 | u64::from(digit))
    })
}

pub fn name(symbols: &KernelSymbols, address: u64) -> Option<NamedFrame> {
    symbols.lookup(address).map(frame)
}

/// The kernel's own answer. Modules and BPF programs may have others in their place soon.
///
/// # Errors
/// When it cannot be asked.
pub fn ask(names: &KernelNames, address: u64) -> io::Result<(Option<NamedFrame>, Lasting)> {
    let Some(name) = names.of(address)? else { return Ok((None, Lasting::ForSomeFlushes)) };
    let module = name.module.as_deref();
    let lasting = if module.is_some() { Lasting::ForSomeFlushes } else { Lasting::ForGood };
    Ok((Some(frame(KernelSymbol { raw_name: &name.function, module })), lasting))
}

fn frame(symbol: KernelSymbol<'_>) -> NamedFrame {
    let mut frame = NamedFrame::plain(FrameKind::Kernel, &symbol.frame_name());
    if symbol.raw_name != &*frame.name {
        frame.system_name = symbol.raw_name.into();
    }
    frame
}

#[cfg(test)]
mod tests {
    use std::collections::{HashMap, HashSet};

    use strata_agent::kernel::loader::{Programs, Settings, ThreadsOf};

    use super::*;

    const TABLE: &str = "ffffffff81000000 T _stext\n\
        ffffffff81000100 t helper\n\
        ffffffff81000100 T do_work\n\
        ffffffff81000180 d some_data\n\
        ffffffff81000200 T later\n\
        ffffffffc0000000 t in_module\t[mod]\n\
        ffffffff81000150 t out_of_order\n";

    #[test]
    fn the_nearest_symbol_below_an_address_is_found_in_any_order() {
        let wanted = [0xffff_ffff_8100_0160, 0xffff_ffff_8100_01ff, 0xffff_ffff_c000_0010];
        let symbols = nearest(TABLE.as_bytes(), wanted.into_iter()).expect("readable");
        let symbols = symbols.finish().expect("addresses are shown");
        let name_at = |address| name(&symbols, address).map(|frame| frame.name.to_string());
        assert_eq!(name_at(wanted[0]).as_deref(), Some("out_of_order"));
        assert_eq!(name_at(wanted[1]).as_deref(), Some("out_of_order"));
        assert_eq!(name_at(wanted[2]).as_deref(), Some("in_module [mod]"));
    }

    #[test]
    fn the_kernels_own_table_gives_the_same_names_as_when_it_is_read_whole() {
        let text = std::fs::read("/proc/kallsyms").expect("every Linux has it");
        let Ok(whole) = KernelSymbols::parse(&text) else {
            strata_skip::skipped!("addresses are hidden from this user (kernel.kptr_restrict)");
            return;
        };
        let addresses: Vec<u64> = text
            .split(|byte| *byte == b'\n')
            .filter_map(address_of)
            .step_by(97)
            .map(|address| address + 3)
            .collect();
        let some = nearest(text.as_slice(), addresses.iter().copied()).expect("readable");
        let some = some.finish().expect("addresses are shown");
        let table = KernelTable::read().expect("readable");
        for address in addresses {
            assert_eq!(name(&some, address), name(&whole, address), "{address:x}");
            assert_eq!(table.name(address), name(&whole, address), "{address:x}");
            assert!(!table.is_outdated_for(address), "it was read just now");
        }
    }

    /// Needs root: a BPF program is loaded.
    #[test]
    fn the_kernel_gives_the_names_of_its_table_when_it_is_asked() {
        let settings = Settings {
            max_frames: 64,
            ring_bytes: 1 << 16,
            frequency: 19,
            threads_of: ThreadsOf::None,
            off_cpu: None,
            wall: false,
            clr_events: false,
        };
        let programs = Programs::load(settings).expect("needs root");
        let names = programs.kernel_names().expect("Linux 5.13 has the helper");
        let text = std::fs::read_to_string("/proc/kallsyms").expect("every Linux has it");
        let mut of_address: HashMap<u64, HashSet<String>> = HashMap::new();
        for line in text.lines().filter(|line| !line.starts_with("0000000000000000")) {
            let Some(address) = address_of(line.as_bytes()) else { continue };
            let words = line.split_ascii_whitespace().skip(2);
            of_address.entry(address).or_default().insert(words.collect::<Vec<_>>().join(" "));
        }
        let (mut asked, mut preferred) = (0, 0);
        let table = KernelTable::read().expect("addresses are shown");
        for (address, all) in of_address.iter().filter(|(address, _)| *address % 7 == 0) {
            // Programs of others end meanwhile.
            if all.iter().any(|name| name.contains("[bpf]")) {
                continue;
            }
            let (frame, lasting) = ask(&names, *address).expect("it can be asked");
            let frame = frame.expect("a function");
            assert_eq!(lasting == Lasting::ForGood, !frame.name.ends_with(']'));
            let name = if frame.system_name.is_empty() { &frame.name } else { &frame.system_name };
            let is_there = all.iter().any(|line| line.split(' ').next() == Some(&**name));
            assert!(is_there, "{address:x}: {frame:?}, of {all:?}");
            asked += 1;
            preferred += usize::from(Some(frame) == table.name(*address));
        }
        assert!(asked > 1000, "{asked}");
        // Of several names of one address another may be chosen.
        assert!(preferred * 100 > asked * 98, "{preferred} of {asked}");
        let own = text.lines().rfind(|line| line.ends_with("name_kernel_address\t[bpf]"));
        let own = own.and_then(|line| address_of(line.as_bytes())).expect("it is loaded");
        let (own, lasting) = ask(&names, own).expect("it can be asked");
        let own = own.expect("a function");
        assert_eq!(lasting, Lasting::ForSomeFlushes, "{own:?}");
        assert!(own.name.ends_with("name_kernel_address [bpf]"), "{own:?}");
        assert_eq!(ask(&names, 0xffff_ffff_ffff_0000).expect("it can be asked").0, None);
    }
}
