//! The `--json` summary of a recording.

use anyhow::{Context, Result};
use serde_json::Value;

/// The summary as it was printed.
#[derive(Debug, Clone)]
pub struct Summary(pub Value);

impl Summary {
    /// Finds the summary in what was printed: the JSON object that ends the output, on one line or
    /// on several.
    pub fn find(printed: &str) -> Result<Self> {
        let starts = printed.match_indices('{').map(|(at, _)| at);
        let at_line_start =
            starts.filter(|&at| at == 0 || printed.as_bytes().get(at - 1) == Some(&b'\n'));
        let mut objects =
            at_line_start.filter_map(|at| serde_json::from_str(printed.get(at..)?.trim()).ok());
        objects.next().map(Self).with_context(|| format!("no JSON summary in:\n{printed}"))
    }

    /// The number at a path such as `bpf.run_time_ns`.
    pub fn number(&self, path: &str) -> Result<f64> {
        let pointer = format!("/{}", path.replace('.', "/"));
        let value = self
            .0
            .pointer(&pointer)
            .with_context(|| format!("the summary lacks `{path}`: {}", self.0))?;
        value.as_f64().with_context(|| format!("`{path}` is no number: {value}"))
    }

    /// Losses by cause, those above zero.
    pub fn losses(&self) -> Vec<(String, u64)> {
        let mut found = Vec::new();
        if let Some(losses) = self.0.get("losses") {
            collect_numbers("", losses, &mut found);
        }
        found
    }

    /// The sum of the losses whose cause contains one of these words.
    pub fn losses_named(&self, words: &[&str]) -> u64 {
        let of_words =
            self.losses().into_iter().filter(|(cause, _)| words.iter().any(|w| cause.contains(w)));
        of_words.map(|(_, count)| count).sum()
    }
}

fn collect_numbers(path: &str, value: &Value, found: &mut Vec<(String, u64)>) {
    match value {
        Value::Object(fields) => {
            for (name, value) in fields {
                let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
                collect_numbers(&path, value, found);
            }
        }
        Value::Array(items) => {
            // [{"cause": "…", "count": 3}, …]
            for item in items {
                let cause = ["cause", "name", "reason"].iter().find_map(|k| item.get(k)?.as_str());
                let count =
                    item.get("count").or_else(|| item.get("samples")).and_then(Value::as_u64);
                if let (Some(cause), Some(count)) = (cause, count)
                    && count > 0
                {
                    found.push((cause.to_string(), count));
                }
            }
        }
        other => {
            if let Some(count) = other.as_u64()
                && count > 0
            {
                found.push((path.to_string(), count));
            }
        }
    }
}
