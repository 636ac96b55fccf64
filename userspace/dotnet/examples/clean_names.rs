//! Cleans the names on its input: "type TAB method [TAB type parameters [TAB method parameters]]".
//!
//! Shows what the crate makes of a whole assembly's names, as reflection lists them.

use std::io::{self, BufRead, BufWriter, Write};

use strata_dotnet::names::{RawMethod, frame_name};

fn main() -> io::Result<()> {
    let mut output = BufWriter::new(io::stdout().lock());
    for line in io::stdin().lock().lines() {
        let line = line?;
        let mut columns = line.split('\t');
        let (type_name, method) =
            (columns.next().unwrap_or_default(), columns.next().unwrap_or_default());
        let mut list = || -> Vec<&str> {
            let column = columns.next().unwrap_or_default();
            column.split(',').filter(|name| !name.is_empty()).collect()
        };
        let (type_parameters, method_parameters) = (list(), list());
        let cleaned = frame_name(&RawMethod {
            type_name,
            method,
            type_parameters: &type_parameters,
            method_parameters: &method_parameters,
            ..RawMethod::default()
        });
        let mark = if cleaned.plumbing { "\tplumbing" } else { "" };
        writeln!(output, "{}\t{type_name}.{method}{mark}", cleaned.name)?;
    }
    output.flush()
}
