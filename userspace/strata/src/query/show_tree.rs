//! Trees of calls as a terminal shows them.
//!
//! Small nodes are left out and counted, so that the tree fits the screen.

use serde_json::{Value, json};
use strata_profile::Profile;
use strata_profile::text::{quantity, sanitize_for_terminal, shortened};
use strata_query::tree::Node;

use crate::terminal::{columns, cut};

/// A node with less than this part of the root is left out.
const SMALLEST: f64 = 0.01;
/// Levels that are shown: each takes columns.
const DEEPEST: usize = 40;
/// Characters of a function's name.
const LONGEST: usize = 1_000;
/// Lines for each line that `--top` allows in a table.
const LINES: usize = 5;

struct Shown<'p> {
    unit: &'p str,
    total: f64,
    smallest: f64,
    width: Option<usize>,
    lines: Vec<String>,
    most: usize,
    left_out: usize,
}

pub fn text(title: &str, tree: &Node, profile: &Profile, sample_type: usize, top: usize) -> String {
    let kind = profile.sample_types.get(sample_type).copied().unwrap_or_default();
    let mut shown = Shown {
        unit: profile.string(kind.unit),
        total: profile.total(sample_type).max(1) as f64,
        smallest: SMALLEST * tree.value as f64,
        width: columns(&std::io::stdout()),
        lines: Vec::new(),
        most: top.saturating_mul(LINES),
        left_out: 0,
    };
    shown.node(tree, "", "", 0);
    let mut text = format!("{}\n\n", sanitize_for_terminal(title));
    text += &(shown.lines.join("\n") + "\n");
    if shown.left_out > 0 {
        text += &format!(
            "({} below 1 % of the first line or beyond --top are not shown)\n",
            shown.left_out
        );
    }
    text
}

impl Shown<'_> {
    /// `edge` stands before the name, `rest` before the names below it.
    fn node(&mut self, node: &Node, edge: &str, rest: &str, depth: usize) {
        let share = 100.0 * node.value as f64 / self.total;
        let module = match node.module.as_str() {
            "" => String::new(),
            module => format!("  ({module})"),
        };
        let name = shortened(&node.name, LONGEST).into_owned() + &module;
        let amount = quantity(node.value, self.unit);
        let line = format!("{share:6.2} %  {amount:>10}  {edge}{}", sanitize_for_terminal(&name));
        self.lines.push(cut(&line, self.width));
        let is_large = |below: &&Node| below.value as f64 >= self.smallest;
        let large: Vec<&Node> = node.below.iter().filter(is_large).collect();
        self.left_out += node.below.len() - large.len();
        for (at, below) in large.iter().enumerate() {
            if self.lines.len() >= self.most || depth >= DEEPEST {
                self.left_out += large.len() - at;
                return;
            }
            // A single callee or caller needs no branch.
            let (branch, going) = match (large.len(), at + 1 == large.len()) {
                (1, _) => ("", ""),
                (_, true) => ("└ ", "  "),
                (_, false) => ("├ ", "│ "),
            };
            self.node(below, &format!("{rest}{branch}"), &format!("{rest}{going}"), depth + 1);
        }
    }
}

pub fn json(node: &Node) -> Value {
    json!({
        "name": node.name,
        "module": node.module,
        "value": node.value,
        "below": node.below.iter().map(self::json).collect::<Vec<_>>(),
    })
}
