//! Methods compiled at run time, and what the runtime itself knows of their frames.
//!
//! In front of a method's code lies a pointer to its header (src/coreclr/vm/codeman.h,
//! `_hpRealCodeHdr`): four pointers, since .NET 5 or with GDB support another, then the number of
//! function entries and the entries, which are relative to a common base.

use strata_abi::rule::{Kind, Rule};
use strata_unwind::managed::{MethodCode, method_rules};

use crate::runtime::{Compiled, Program};
use crate::truth;

/// A method's body or one of its handlers.
pub struct Part {
    pub start: u32,
    pub end: u32,
    pub information: Vec<u8>,
}

pub struct Method {
    pub name: String,
    pub code: Vec<u8>,
    pub parts: Vec<Part>,
    pub is_replacement: bool,
}

/// Reads a method with its unwind information; `None` when it is none or was taken away.
pub fn read(program: &Program, compiled: &Compiled) -> Option<Method> {
    const POINTERS: [usize; 4] = [4, 5, 3, 6];
    let code = program.read(compiled.start, compiled.size as usize)?;
    let header = program.read(compiled.start - 8, 8)?;
    let header = u64::from_le_bytes(header.try_into().ok()?);
    let parts = POINTERS
        .iter()
        .find_map(|pointers| parts(program, compiled, header.checked_add(8 * *pointers as u64)?))?;
    let is_replacement = compiled.is_replacement();
    Some(Method { name: compiled.name.clone(), code, parts, is_replacement })
}

fn parts(program: &Program, compiled: &Compiled, at: u64) -> Option<Vec<Part>> {
    let word = |bytes: &[u8], n: usize| {
        bytes.get(4 * n..4 * n + 4).map(|word| u32::from_le_bytes(word.try_into().unwrap()))
    };
    let count = word(&program.read(at, 4)?, 0)?;
    if !(1..=200).contains(&count) {
        return None;
    }
    let entries = program.read(at + 4, 12 * count as usize)?;
    let first = word(&entries, 0)?;
    let base = compiled.start.checked_sub(u64::from(first))?;
    let mut parts = Vec::new();
    let mut end = first;
    for entry in entries.chunks_exact(12) {
        let (start, stop, information) = (word(entry, 0)?, word(entry, 1)?, word(entry, 2)?);
        if start != end || stop <= start || stop - first > compiled.size {
            return None;
        }
        end = stop;
        let address = base + u64::from(information);
        let size = truth::size(&program.read(address, 4)?);
        let information = program.read(address, size)?;
        parts.push(Part { start: start - first, end: stop - first, information });
    }
    Some(parts)
}

impl Method {
    pub fn code(&self) -> MethodCode<'_> {
        MethodCode {
            size: self.code.len() as u32,
            bytes: &self.code,
            is_replacement: self.is_replacement,
            replaced_frame: None,
        }
    }

    /// Compares the rules with the runtime's information wherever one of them changes, which covers
    /// every byte; returns what is wrong.
    pub fn check(&self, rules: &[(u32, Rule)]) -> Result<(), String> {
        for part in &self.parts {
            let end = part.end.min(self.code.len() as u32);
            let changes = truth::changes(&part.information);
            let offsets = changes.map(|offset| part.start + offset);
            let offsets = offsets.chain(rules.iter().map(|(offset, _)| *offset));
            for offset in offsets.filter(|offset| (part.start..end).contains(offset)) {
                let after = rules.partition_point(|(from, _)| *from <= offset);
                let Some((from, rule)) = after.checked_sub(1).and_then(|at| rules.get(at)) else {
                    return Err("no rule at its start".to_owned());
                };
                let truth = truth::at(&part.information, offset - part.start);
                self.compare(part, *from, rule, truth)
                    .map_err(|what| format!("+{offset:#x}: {what}: {rule:?}, truth {truth:?}"))?;
            }
        }
        Ok(())
    }

    fn compare(
        &self,
        part: &Part,
        from: u32,
        rule: &Rule,
        truth: truth::Truth,
    ) -> Result<(), &'static str> {
        let word = rule.packed;
        if !word.checks_epilogue() {
            return Err("epilogues are not checked");
        }
        let (base, cfa, fp_below) = if word.kind() == Kind::Extended as u32 {
            (rule.base, rule.cfa_offset as u32, -rule.fp_offset as u32)
        } else {
            let base = if word.kind() == Kind::Sp as u32 { 7 } else { 6 };
            (base, word.cfa_offset() as u32, word.fp_below() as u32)
        };
        let right = match base {
            7 => truth.from_fp.is_none() && cfa == truth.depth,
            6 => match truth.from_fp {
                Some(distance) => cfa == distance,
                // The runtime counts from RSP, which stays where it is: RBP was set to what it
                // should be by the instruction before, and in the body only.
                None => cfa == 16 && part.start == 0 && self.sets_frame_pointer(from),
            },
            // The loop that probes large frames, which unwind information does not describe.
            _ => {
                let head = truth::at(&part.information, from - part.start);
                return if head.depth < 4096 { Ok(()) } else { Err("a probe behind a prologue") };
            }
        };
        match (right, fp_below == truth.fp_below) {
            (false, _) => Err("another CFA"),
            (_, false) => Err("RBP saved elsewhere"),
            _ => Ok(()),
        }
    }

    /// The instruction that ends at an offset sets RBP to where it was saved.
    fn sets_frame_pointer(&self, end: u32) -> bool {
        let end = end as usize;
        let depth = |at: usize| truth::at(&self.parts[0].information, at as u32).depth;
        let sets_to = |at: usize, above: u32| depth(at) - above == 16;
        let before = |size: usize| end.checked_sub(size).and_then(|at| self.code.get(at..end));
        if let Some([0x48, 0x8b, 0xec] | [0x48, 0x89, 0xe5]) = before(3) {
            return sets_to(end - 3, 0);
        }
        if let Some([0x48, 0x8d, 0x2c, 0x24]) = before(4) {
            return sets_to(end - 4, 0);
        }
        if let Some([0x48, 0x8d, 0x6c, 0x24, above]) = before(5) {
            return sets_to(end - 5, u32::from(*above));
        }
        if let Some([0x48, 0x8d, 0xac, 0x24, a, b, c, d]) = before(8) {
            return sets_to(end - 8, u32::from_le_bytes([*a, *b, *c, *d]));
        }
        false
    }
}

/// What was compared.
#[derive(Default, Debug)]
pub struct Report {
    pub methods: usize,
    pub handlers: usize,
    pub replacements: usize,
    pub without_frame_pointer: usize,
    pub probes: usize,
    pub wrong: Vec<String>,
}

/// Compares all methods of a program.
pub fn check_all(program: &Program) -> Report {
    let mut report = Report::default();
    for compiled in program.compiled().iter().filter(|compiled| !compiled.is_stub()) {
        let Some(method) = read(program, compiled) else { continue };
        let rules = method_rules(&method.code());
        report.methods += 1;
        report.handlers += method.parts.len() - 1;
        report.replacements += usize::from(method.is_replacement);
        let has = |kind: Kind| rules.iter().any(|(_, rule)| rule.packed.kind() == kind as u32);
        report.without_frame_pointer += usize::from(!has(Kind::Fp));
        report.probes +=
            usize::from(rules.iter().any(|(_, rule)| rule.is_extended() && rule.base == 0));
        if let Err(what) = method.check(&rules) {
            report.wrong.push(format!("{}: {what}", method.name));
        }
        check_prefix(&method, &rules, &mut report.wrong);
    }
    report
}

/// What the first bytes tell is what all of them tell, as far as they tell it.
fn check_prefix(method: &Method, rules: &[(u32, Rule)], wrong: &mut Vec<String>) {
    const PREFIX: usize = 96;
    let cut = MethodCode { bytes: &method.code[..method.code.len().min(PREFIX)], ..method.code() };
    let wants_all = strata_unwind::managed::wants_all_code(&cut);
    if wants_all {
        return;
    }
    if method_rules(&cut) != rules {
        wrong.push(format!("{}: other rules from its first bytes", method.name));
    }
}
