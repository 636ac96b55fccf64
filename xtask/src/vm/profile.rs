//! Folded stacks (`root;…;leaf COUNT`), read to check chains of callers.

use anyhow::{Context, Result};

pub struct Stack {
    frames: Vec<String>,
    pub count: u64,
}

pub fn parse(text: &str) -> Result<Vec<Stack>> {
    let lines = text.lines().filter(|line| !line.trim().is_empty());
    lines
        .map(|line| {
            let (frames, count) =
                line.rsplit_once(' ').with_context(|| format!("no folded stack: {line}"))?;
            let count = count.parse().with_context(|| format!("no count: {line}"))?;
            Ok(Stack { frames: frames.split(';').map(str::to_owned).collect(), count })
        })
        .collect()
}

impl Stack {
    pub fn has(&self, name: &str) -> bool {
        self.frames.iter().any(|frame| is(frame, name))
    }

    /// Whether these frames are on the stack in this order, others between them allowed.
    pub fn has_chain(&self, chain: &[&str]) -> bool {
        let mut frames = self.frames.iter();
        chain.iter().all(|name| frames.any(|frame| is(frame, name)))
    }

    pub fn number_of(&self, name: &str) -> usize {
        self.frames.iter().filter(|frame| is(frame, name)).count()
    }

    pub fn text(&self) -> String {
        format!("{} {}", self.frames.join(";"), self.count)
    }
}

/// A frame is its function's name, perhaps with a mark or place behind it.
fn is(frame: &str, name: &str) -> bool {
    frame.strip_prefix(name).is_some_and(|rest| {
        rest.is_empty() || rest == "_[k]" || rest.starts_with([' ', '(', '[', '@', '+', '.'])
    })
}

#[cfg(test)]
mod tests {
    use super::parse;

    #[test]
    fn a_chain_may_have_frames_between_but_not_another_order() {
        let stacks = parse("known;_start;main;descend;descend;leaf_half (known.c:32) 7\n").unwrap();
        assert_eq!(stacks[0].count, 7);
        assert!(stacks[0].has_chain(&["_start", "main", "leaf_half"]));
        assert!(!stacks[0].has_chain(&["main", "_start"]));
        assert_eq!(stacks[0].number_of("descend"), 2);
        assert!(!stacks[0].has("leaf") && stacks[0].has("leaf_half"));
    }
}
