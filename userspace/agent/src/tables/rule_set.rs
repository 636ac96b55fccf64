//! The global 16-bit rule numbers.
//!
//! Rules are few and alike across files, so all files share one array. Numbers are a resource that
//! a crafted file could use up: each file has a quota of numbers for rules that no other file uses,
//! and returns them when it is unloaded.

use std::collections::VecDeque;
use std::time::Instant;

use strata_abi::rule::{MAX_RULES, Packed, Rule};

use super::GRACE;
use crate::hash::HashMap;

/// New rule numbers a single file, or all generated code of a process, may take.
pub const NEW_RULES_PER_OWNER: usize = 2048;

/// Rules that are always there, by their numbers.
const FIXED: [Packed; 2] = [Packed::NONE, Packed::UNSUPPORTED];
/// Number of the rule "unsupported".
pub const UNSUPPORTED: u16 = 1;

pub struct RuleSet {
    numbers: HashMap<Rule, u16>,
    rules: Vec<Rule>,
    users: Vec<u32>,
    free: Vec<u16>,
    waiting: VecDeque<(Instant, u16)>,
    /// Whether the rules that are always there have been written.
    has_written_fixed: bool,
}

impl Default for RuleSet {
    fn default() -> Self {
        let mut set = Self {
            numbers: HashMap::default(),
            rules: Vec::new(),
            users: Vec::new(),
            free: Vec::new(),
            waiting: VecDeque::new(),
            has_written_fixed: false,
        };
        for packed in FIXED {
            set.take(Rule::simple(packed));
        }
        set
    }
}

/// A rule as it is compared: an extended word carries its own number, which is not compared.
fn nameless(rule: Rule) -> Rule {
    renamed(rule, 0)
}

fn renamed(mut rule: Rule, number: u16) -> Rule {
    if rule.is_extended() {
        let word = Packed::extended(number);
        rule.packed = if rule.packed.checks_epilogue() { word.with_epilogue_check() } else { word };
    }
    rule
}

impl RuleSet {
    /// Numbers for a file's rules, in their order. At most `quota` of them may be new, and
    /// `written` is called for each that is, and first of all for those that are always there.
    pub fn load(
        &mut self,
        rules: &[Rule],
        quota: &mut usize,
        mut written: impl FnMut(u16, Rule),
    ) -> Vec<u16> {
        if !std::mem::replace(&mut self.has_written_fixed, true) {
            for number in 0..FIXED.len() as u16 {
                written(number, self.whole(number));
            }
        }
        rules
            .iter()
            .map(|rule| {
                let rule = nameless(*rule);
                if let Some(&number) = self.numbers.get(&rule) {
                    self.add_user(number);
                    return number;
                }
                if *quota == 0 {
                    self.add_user(UNSUPPORTED);
                    return UNSUPPORTED;
                }
                match self.take(rule) {
                    Some(number) => {
                        *quota -= 1;
                        written(number, self.whole(number));
                        number
                    }
                    None => {
                        self.add_user(UNSUPPORTED);
                        UNSUPPORTED
                    }
                }
            })
            .collect()
    }

    /// Releases a file's numbers; returns how many were used by no other.
    pub fn unload(&mut self, numbers: &[u16], now: Instant) -> usize {
        let mut freed = 0;
        for &number in numbers {
            let Some(users) = self.users.get_mut(usize::from(number)) else { continue };
            *users = users.saturating_sub(1);
            if *users == 0 {
                if let Some(rule) = self.rules.get(usize::from(number)) {
                    self.numbers.remove(rule);
                }
                self.waiting.push_back((now, number));
                freed += 1;
            }
        }
        freed
    }

    pub fn reclaim(&mut self, now: Instant) {
        while let Some(&(freed, number)) = self.waiting.front() {
            if now.saturating_duration_since(freed) < GRACE {
                break;
            }
            self.waiting.pop_front();
            self.free.push(number);
        }
    }

    /// The rule behind a number, as the kernel's array holds it.
    pub fn whole(&self, number: u16) -> Rule {
        let none = Rule::simple(Packed::NONE);
        renamed(self.rules.get(usize::from(number)).copied().unwrap_or(none), number)
    }

    /// Numbers in use.
    pub fn count(&self) -> usize {
        self.numbers.len()
    }

    fn add_user(&mut self, number: u16) {
        if let Some(users) = self.users.get_mut(usize::from(number)) {
            *users = users.saturating_add(1);
        }
    }

    fn take(&mut self, rule: Rule) -> Option<u16> {
        let number = match self.free.pop() {
            Some(number) => {
                *self.rules.get_mut(usize::from(number))? = rule;
                *self.users.get_mut(usize::from(number))? = 1;
                number
            }
            None => {
                let number = u16::try_from(self.rules.len()).ok()?;
                if u32::from(number) >= MAX_RULES {
                    return None;
                }
                self.rules.push(rule);
                self.users.push(1);
                number
            }
        };
        self.numbers.insert(rule, number);
        Some(number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(offset: i32) -> Rule {
        Rule { cfa_offset: offset, ..Rule::simple(Packed::extended(0)) }
    }

    #[test]
    fn the_kernel_has_a_rule_behind_every_number() {
        let mut set = RuleSet::default();
        let mut written = Vec::new();
        let file = [Rule::simple(Packed::UNSUPPORTED), rule(8)];
        let numbers = set.load(&file, &mut NEW_RULES_PER_OWNER.clone(), |number, rule| {
            written.push((number, rule));
        });
        set.load(&file, &mut NEW_RULES_PER_OWNER.clone(), |_, _| panic!("written twice"));
        assert_eq!(numbers, [UNSUPPORTED, 2]);
        assert!(written.contains(&(UNSUPPORTED, Rule::simple(Packed::UNSUPPORTED))));
        assert!(written.iter().all(|&(number, rule)| set.whole(number) == rule));
    }

    #[test]
    fn one_file_cannot_take_all_numbers() {
        let mut set = RuleSet::default();
        let hostile: Vec<Rule> = (0..60_000).map(rule).collect();
        let numbers = set.load(&hostile, &mut NEW_RULES_PER_OWNER.clone(), |_, _| {});
        assert_eq!(numbers.iter().filter(|&&n| n != UNSUPPORTED).count(), NEW_RULES_PER_OWNER);
        let honest = set.load(&[Rule::simple(Packed::END)], &mut 1, |_, _| {});
        assert_ne!(honest, [UNSUPPORTED]);
    }

    #[test]
    fn numbers_come_back_when_a_file_is_unloaded() {
        let mut set = RuleSet::default();
        let before = set.count();
        let now = Instant::now();
        for round in 0..100 {
            let rules: Vec<Rule> = (0..2000).map(|n| rule(round * 2000 + n)).collect();
            let numbers = set.load(&rules, &mut 2000, |_, _| {});
            assert!(numbers.iter().all(|&n| n != UNSUPPORTED), "round {round}");
            // Only those of the last user come back.
            let shared = set.load(&rules[..500], &mut 0, |_, _| {});
            assert_eq!(set.unload(&numbers, now), 1500);
            assert_eq!(set.unload(&shared, now), 500);
            set.reclaim(now + GRACE);
        }
        assert_eq!(set.count(), before);
    }

    #[test]
    fn an_extended_rule_carries_its_own_number() {
        let mut set = RuleSet::default();
        let numbers = set.load(&[rule(8), rule(16), rule(8)], &mut 9, |_, _| {});
        assert_eq!(numbers[0], numbers[2]);
        assert_eq!(set.whole(numbers[1]).packed, Packed::extended(numbers[1]));
    }
}
