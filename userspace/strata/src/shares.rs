//! Lists of what a kind counts, in the report of a recording and in an answer of the store: a share, an
//! amount and a name in each line.

use std::io::Write;

use strata_profile::by_label::{ByLabel, OfValue};
use strata_profile::own_function::{OwnFunction, OwnFunctions};
use strata_profile::text::{quantity, sanitize_for_terminal, shortened};

use crate::terminal::{cut, print_more};

/// The program's own functions, by the column of this name and unit.
pub fn functions(
    functions: &OwnFunctions,
    sample_type: &str,
    unit: &str,
    width: Option<usize>,
    out: &mut dyn Write,
) -> std::io::Result<()> {
    let rows = functions.functions.iter();
    let rows: Vec<_> =
        rows.map(|one| (one.percent, quantity(one.value, unit), named(one))).collect();
    list("function", sample_type, &rows, functions.more, width, out)
}

/// The values of a label, by the column of this name and unit.
pub fn values(
    values: &ByLabel,
    label: &str,
    sample_type: &str,
    unit: &str,
    width: Option<usize>,
    out: &mut dyn Write,
) -> std::io::Result<()> {
    let name = |one: &OfValue| sanitize_for_terminal(&one.value).into_owned();
    let rows = values.values.iter();
    let rows: Vec<_> =
        rows.map(|one| (one.percent, quantity(one.total, unit), name(one))).collect();
    list(label, sample_type, &rows, values.more, width, out)
}

fn named(one: &OwnFunction) -> String {
    let module = match one.module.as_str() {
        "" => String::new(),
        module => format!("  ({})", sanitize_for_terminal(module)),
    };
    let name = if one.name.is_empty() { "(unknown)" } else { &one.name };
    format!("{}{module}", shortened(&sanitize_for_terminal(name), 90))
}

fn list(
    heading: &str,
    sample_type: &str,
    rows: &[(f64, String, String)],
    more: usize,
    width: Option<usize>,
    out: &mut dyn Write,
) -> std::io::Result<()> {
    if rows.is_empty() {
        return Ok(());
    }
    let amounts = rows.iter().map(|(_, amount, _)| amount.chars().count()).max().unwrap_or(0);
    let wide = amounts.max(sample_type.len());
    writeln!(out, "\n share  {sample_type:>wide$}  {heading}")?;
    for (percent, amount, name) in rows {
        writeln!(out, "{}", cut(&format!("{percent:5.1}%  {amount:>wide$}  {name}"), width))?;
    }
    print_more(wide + 10, more, out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_has_its_share_its_amount_and_its_function() {
        let one = |name: &str, module: &str, value, percent| OwnFunction {
            name: name.to_owned(),
            module: module.to_owned(),
            value,
            percent,
        };
        let found = OwnFunctions {
            functions: vec![one("Shop.Pay", "Shop.dll", 3 << 20, 75.0), one("", "", 1 << 20, 25.0)],
            more: 1_200,
        };
        let mut text = Vec::new();
        functions(&found, "alloc_size", "bytes", None, &mut text).expect("memory takes it");
        assert_eq!(
            String::from_utf8_lossy(&text),
            "\n share  alloc_size  function\n \
             75.0%     3.0 MiB  Shop.Pay  (Shop.dll)\n \
             25.0%     1.0 MiB  (unknown)\n                    \
             … and 1,200 more\n"
        );
        let value = OfValue { value: "Shop.Sold\u{1b}".to_owned(), total: 7, percent: 100.0 };
        let found = ByLabel { values: vec![value], more: 0 };
        let mut text = Vec::new();
        values(&found, "exception type", "exceptions", "count", None, &mut text)
            .expect("memory takes it");
        let text = String::from_utf8_lossy(&text);
        assert!(text.starts_with("\n share  exceptions  exception type\n"), "{text}");
        assert!(
            text.contains("\n100.0%           7  Shop.Sold") && !text.contains('\u{1b}'),
            "{text}"
        );
    }
}
