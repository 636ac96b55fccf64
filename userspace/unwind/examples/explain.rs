//! Prints the rules of addresses of a file: `explain FILE ADDRESS [ADDRESS]` (hexadecimal; two
//! addresses: every change of rule between them).

use strata_unwind::FileAt;
use strata_unwind::{Limits, build};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [path, addresses @ ..] = arguments.as_slice() else {
        return Err("usage: explain FILE ADDRESS [ADDRESS]".into());
    };
    let source = FileAt::new(std::fs::File::open(path)?)?;
    let table = build(&source, &Limits::default())?;
    let parse = |text: &String| u64::from_str_radix(text.trim_start_matches("0x"), 16);
    let addresses = addresses.iter().map(parse).collect::<Result<Vec<_>, _>>()?;
    let (Some(first), last) = (addresses.first(), addresses.last()) else { return Ok(()) };
    let mut before = None;
    for address in *first..=*last.unwrap_or(first) {
        let rule = table.lookup(address);
        if before != Some(rule) {
            let word = rule.packed;
            println!(
                "{address:#x}: kind {} cfa +{} rbp -{} rbx -{} {}",
                word.kind(),
                word.cfa_offset(),
                word.fp_below(),
                word.extra_below(),
                if rule.is_extended() { format!("{rule:?}") } else { String::new() },
            );
        }
        before = Some(rule);
    }
    Ok(())
}
