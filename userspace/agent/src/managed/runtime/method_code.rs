//! How the code of methods is unwound: by what the bridge publishes of it, and for a few by all of it,
//! which is read from the process.
//!
//! Invariant: what could not be read changes nothing: the rules from what was published stay.

use strata_bridge_protocol::record::{MethodKind, MethodView, Tier};
use strata_unwind::managed::{MethodCode, method_rules, method_unwinding};

use super::{MAX_METHODS, Runtime};
use crate::managed::code::Found;
use crate::managed::methods::Method;

/// A method's code is read in whole up to this size.
const MAX_CODE: u32 = 64 << 10;

impl Runtime {
    /// Adds a method, and its code with the rules for it.
    pub(super) fn take_method(&mut self, record: &MethodView<'_>) {
        self.addresses.is_answered(record.asked_ip);
        let module = self.modules.enter(record.module);
        self.modules.add_method(module);
        let method = Method::new(record, module);
        if self.is_known(record, &method) {
            self.modules.remove_method(module);
            return;
        }
        if self.methods.len() >= MAX_METHODS {
            self.modules.remove_method(module);
            self.refused += 1;
            return;
        }
        let is_replacement = method.tier() == Tier::Osr;
        let index = self.methods.add(method);
        let mut ranges = record.ranges.iter();
        let mut frame = None;
        if let Some(range) = ranges.next() {
            let code = MethodCode {
                size: range.size,
                bytes: range.code,
                is_replacement,
                replaced_frame: self.frames.get(&record.function).copied(),
            };
            let unwinding = method_unwinding(&code);
            if unwinding.wants_all_code
                && range.size <= MAX_CODE
                && let Some(method) = self.methods.get_mut(index)
            {
                method.published_code_bytes =
                    u16::try_from(range.code.len()).unwrap_or(u16::MAX).max(1);
            }
            frame = Some(unwinding.replaceable_frame);
            self.code.insert(range.start, range.size, &unwinding.rules, index);
            // Cold code of a method runs in the frame that its start has made.
            if let Some((_, body)) = unwinding.rules.last() {
                for range in ranges {
                    self.code.insert(range.start, range.size, &[(0, *body)], index);
                }
            }
        }
        self.methods_told += 1;
        if !self.code.has_code_of(index) {
            self.forget_method(index);
            return;
        }
        // The code of other kinds is never replaced while it runs.
        let may_be_replaced =
            !matches!(record.kind(), Some(MethodKind::Dynamic | MethodKind::Stub))
                && matches!(record.tier(), Tier::Minimal | Tier::Unknown);
        if may_be_replaced && let Some(frame) = frame {
            match frame {
                Some(frame) => self.frames.insert(record.function, frame),
                None => self.frames.remove(&record.function),
            };
        }
    }

    /// Whether the method and its code are those of a record before.
    fn is_known(&self, record: &MethodView<'_>, method: &Method) -> bool {
        let Some(first) = record.ranges.iter().next() else { return false };
        let Some(index) = self.code.method_in(first.start, first.size) else { return false };
        let known = self.methods.get(index);
        let is_there = |start, size| self.code.method_in(start, size) == Some(index);
        known.is_some_and(|known| known.is_described_by(method))
            && record.ranges.iter().all(|range| is_there(range.start, range.size))
    }

    /// How much of a method's code should be read, because its first bytes do not tell all of
    /// its rules (they may belong to handlers); once for each method.
    pub fn wants_code(&self, found: Found) -> Option<u32> {
        let method = self.methods.get(found.method)?;
        (method.published_code_bytes > 0 && method.start == found.start)
            .then(|| self.code.size_of(found.start, found.method))?
    }

    /// All of the code that starts here, or what could be read of it.
    pub fn take_code(&mut self, (start, wanted): (u64, u32), bytes: &[u8]) {
        let Some(index) = self.code.method_from(start) else { return };
        let Some(size) = self.code.size_of(start, index) else { return };
        let Some(method) = self.methods.get_mut(index) else { return };
        if size != wanted {
            // Other code is there by now.
            return;
        }
        let known = std::mem::take(&mut method.published_code_bytes);
        // Of a process that has ended, nothing can be read: its bridge's records hold.
        if known == 0 || bytes.len() <= usize::from(known) {
            return;
        }
        let rules = method_rules(&MethodCode {
            size,
            bytes,
            is_replacement: method.tier() == Tier::Osr,
            replaced_frame: self.frames.get(&method.function).copied(),
        });
        self.code.refine(start, &rules);
    }
}

#[cfg(test)]
mod tests {
    use strata_bridge_protocol::field::CodeRangeRecord;
    use strata_bridge_protocol::record::MethodRecord;

    use super::super::MAX_BYTES;
    use super::super::tests::{CODE, found, method};
    use super::*;

    #[test]
    fn code_that_cannot_be_read_leaves_what_was_published() {
        let mut runtime = Runtime::default();
        let range = CodeRangeRecord { start: 0x1000, size: 0x100, code: CODE.into() };
        let method = MethodRecord { ranges: vec![range], ..MethodRecord::default() };
        runtime.take_record(method, MAX_BYTES);
        let at = found(&runtime, 0x1000);
        assert_eq!(runtime.wants_code(at), Some(0x100));
        assert_eq!(runtime.code.keeps_frame_pointer(0x1050), Some(true));
        runtime.take_code((0x1000, 0x80), &[0x90; 0x80]);
        assert_eq!(runtime.wants_code(at), Some(0x100), "that was other code");
        runtime.take_code((0x1000, 0x100), &[]);
        assert_eq!(runtime.code.keeps_frame_pointer(0x1050), Some(true), "of no bytes");
        assert_eq!(runtime.wants_code(at), None, "it is asked for once");
    }

    #[test]
    fn a_record_that_is_written_again_changes_nothing() {
        let mut runtime = Runtime::default();
        runtime.take_record(method(1, 0x1000), MAX_BYTES);
        let (era, bytes) = (runtime.code.eras.now(), runtime.bytes());
        let resolved = MethodRecord { kind: MethodKind::Resolved as u8, ..method(1, 0x1000) };
        for again in [method(1, 0x1000), resolved] {
            runtime.take_record(again, MAX_BYTES);
            assert_eq!((runtime.code.eras.now(), runtime.bytes()), (era, bytes));
        }
        assert_eq!(runtime.methods(), 1);
        // Another function is there now.
        runtime.take_record(method(2, 0x1000), MAX_BYTES);
        assert_ne!(runtime.code.eras.now(), era);
        assert_eq!(runtime.methods(), 2);
    }
}
