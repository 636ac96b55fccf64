//! The rules of one file, each once, and the quota on them.
//!
//! Rule 0 is "none" and rule 1 "unsupported" in every file, so that running out of rules needs
//! no further rule. Invariant: an extended rule's word holds its own number.

use std::collections::HashMap;

use strata_abi::rule::{Packed, Rule};

pub(crate) const NONE: u16 = 0;
pub(crate) const UNSUPPORTED: u16 = 1;

/// Slots of the table from packed word to number; a power of two, at least twice the numbers
/// that a row can hold would be wasteful: beyond it the map below answers.
const SLOTS: usize = 4096;
const SLOT_BITS: u32 = SLOTS.trailing_zeros();

pub(crate) struct Rules {
    rules: Vec<Rule>,
    /// Open addressing over packed words: (word, number); number 0 is a free slot.
    slots: Box<[(u32, u16)]>,
    extended: HashMap<Rule, u16>,
    limit: usize,
    /// Requests the quota turned down.
    pub refused: u64,
}

impl Rules {
    pub fn new(max_rules: u32) -> Self {
        let limit = (max_rules as usize).clamp(2, SLOTS / 2);
        Self {
            rules: vec![Rule::simple(Packed::NONE), Rule::simple(Packed::UNSUPPORTED)],
            slots: vec![(0, 0); SLOTS].into_boxed_slice(),
            extended: HashMap::new(),
            limit,
            refused: 0,
        }
    }

    /// The number of a rule that fits one word.
    pub fn packed(&mut self, word: Packed) -> u16 {
        if word == Packed::NONE {
            return NONE;
        }
        if word == Packed::UNSUPPORTED {
            return UNSUPPORTED;
        }
        let mut slot = (word.0.wrapping_mul(0x9e37_79b1) >> (32 - SLOT_BITS)) as usize;
        // The table is at most half full, so a free slot ends every search.
        for _ in 0..SLOTS {
            match self.slots.get_mut(slot) {
                Some((_, number @ 0)) => {
                    if self.rules.len() >= self.limit {
                        self.refused += 1;
                        return UNSUPPORTED;
                    }
                    *number = self.rules.len() as u16;
                    let number = *number;
                    if let Some(entry) = self.slots.get_mut(slot) {
                        entry.0 = word.0;
                    }
                    self.rules.push(Rule::simple(word));
                    return number;
                }
                Some((known, number)) if *known == word.0 => return *number,
                _ => slot = (slot + 1) & (SLOTS - 1),
            }
        }
        UNSUPPORTED
    }

    /// The number of a rule of either form.
    pub fn number(&mut self, rule: Rule) -> u16 {
        if rule.is_extended() { self.extended(rule) } else { self.packed(rule.packed) }
    }

    /// The number of a rule that needs more than a word. The word is filled in here; what counts
    /// of it is whether epilogues are checked.
    pub fn extended(&mut self, mut rule: Rule) -> u16 {
        let checks_epilogue = rule.packed.checks_epilogue();
        let word = |number| match Packed::extended(number) {
            word if checks_epilogue => word.with_epilogue_check(),
            word => word,
        };
        rule.packed = word(0);
        if let Some(number) = self.extended.get(&rule) {
            return *number;
        }
        if self.rules.len() >= self.limit {
            self.refused += 1;
            return UNSUPPORTED;
        }
        let number = self.rules.len() as u16;
        self.extended.insert(rule, number);
        rule.packed = word(number);
        self.rules.push(rule);
        number
    }

    pub fn get(&self, number: u16) -> Option<&Rule> {
        self.rules.get(usize::from(number))
    }

    pub fn into_rules(self) -> Vec<Rule> {
        self.rules
    }
}
