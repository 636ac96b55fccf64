//! What still lives, after records were missed: ends may be among them, so everything that lives is
//! reported again, and what is not has ended.
//!
//! Invariant: nothing is forgotten before all has been reported again, or where records of it were refused.

use strata_bridge_protocol::record::Record;

use super::Runtime;
use crate::hash::HashSet;
use crate::managed::code::MethodIndex;

/// What is known to live, after records were missed.
#[derive(Default)]
pub(super) struct Confirmed {
    methods: HashSet<MethodIndex>,
    modules: HashSet<u64>,
    threads: HashSet<u64>,
    /// Records were refused, so what is not here may live.
    is_incomplete: bool,
}

impl Confirmed {
    /// A method lives.
    pub(super) fn note_method(&mut self, index: MethodIndex) {
        self.methods.insert(index);
    }

    /// A record was refused.
    pub(super) fn note_refusal(&mut self) {
        self.is_incomplete = true;
    }

    /// What a record says of modules and threads.
    pub(super) fn note(&mut self, record: &Record) {
        match record {
            Record::Module(module) => {
                self.modules.insert(module.module);
            }
            Record::ModuleUnload(gone) => {
                self.modules.remove(&gone.module);
            }
            // One without a name is not kept.
            Record::Thread(thread) if thread.name.is_empty() => {
                self.threads.remove(&thread.managed_id);
            }
            Record::Thread(thread) => {
                self.threads.insert(thread.managed_id);
            }
            Record::ThreadEnd(gone) => {
                self.threads.remove(&gone.managed_id);
            }
            _ => {}
        }
    }
}

impl Runtime {
    /// Records were missed. What lives is reported again from now on.
    pub fn confirm_all(&mut self) {
        self.confirmed = Some(Confirmed::default());
        // The answers may have been among them.
        self.addresses.forget_waiting();
        self.il_maps.forget_unanswered();
    }

    /// What was not reported again has ended: its end was missed.
    pub fn forget_unconfirmed(&mut self) {
        let Some(confirmed) = self.confirmed.take() else { return };
        if confirmed.is_incomplete {
            return;
        }
        let methods = self.code.methods();
        let gone: Vec<_> =
            methods.filter(|(_, method)| !confirmed.methods.contains(method)).collect();
        for (start, index) in gone {
            if let Some(method) = self.methods.get(index) {
                self.frames.remove(&method.function);
            }
            self.code.remove_ended(start);
        }
        let gone: Vec<u64> =
            self.modules.ids().filter(|id| !confirmed.modules.contains(id)).collect();
        gone.into_iter().for_each(|id| self.modules.unloaded(id));
        self.threads.retain(|id| confirmed.threads.contains(&id));
        self.drop_unused();
    }
}

#[cfg(test)]
mod tests {
    use strata_bridge_protocol::record::{MethodRecord, ModuleRecord, ThreadRecord};

    use super::super::MAX_BYTES;
    use super::super::tests::method;
    use super::*;

    #[test]
    fn what_ended_while_records_were_missed_is_forgotten_and_what_lives_stays() {
        let mut runtime = Runtime::default();
        let module =
            |id: u64| ModuleRecord { module: id, assembly: format!("a{id}"), ..Default::default() };
        let thread = |id: u64| ThreadRecord {
            managed_id: id,
            os_tid: id as u32,
            name: format!("thread{id}"),
        };
        let of = |id: u64, function, start| MethodRecord { module: id, ..method(function, start) };
        for id in [8, 9] {
            runtime.take_record(module(id), MAX_BYTES);
            runtime.take_record(thread(id), MAX_BYTES);
        }
        runtime.take_record(of(8, 1, 0x1000), MAX_BYTES);
        runtime.take_record(of(9, 2, 0x2000), MAX_BYTES);
        runtime.take_record(of(8, 3, 0x3000), MAX_BYTES);
        assert!(runtime.ask(0x5000, false));
        let era = runtime.code.eras.now();
        runtime.find_sampled(0x2008, era);

        runtime.confirm_all();
        assert!(runtime.ask(0x5000, false), "its answer may have been missed");
        // In the order in which they come to be behind one another in the log.
        runtime.take_record(of(8, 1, 0x1000), MAX_BYTES);
        runtime.take_record(of(8, 4, 0x3000), MAX_BYTES);
        runtime.take_record(module(8), MAX_BYTES);
        runtime.take_record(thread(8), MAX_BYTES);
        assert!(runtime.find(0x2008, era).is_some(), "not before all was reported");
        runtime.forget_unconfirmed();

        let now = runtime.code.eras.now();
        let function = |runtime: &Runtime, address, era| {
            let found = runtime.find(address, era)?;
            runtime.method_of(found.method).map(|method| method.function)
        };
        assert_eq!(function(&runtime, 0x1008, now), Some(1));
        assert!(!runtime.code.knows(0x2008));
        assert_eq!(function(&runtime, 0x3008, now), Some(4));
        assert_eq!(function(&runtime, 0x2008, era), Some(2), "its samples are described");
        assert_eq!(runtime.modules().map(|module| module.module).collect::<Vec<_>>(), [8]);
        runtime.forget_ended_threads();
        assert_eq!((runtime.thread_name(8), runtime.thread_name(9)), (Some("thread8"), None));
        runtime.forget_described(now);
        assert_eq!(runtime.methods.len(), 2);
    }

    #[test]
    fn nothing_is_forgotten_when_what_lives_was_refused() {
        let mut runtime = Runtime::default();
        runtime.take_record(method(1, 0x1000), MAX_BYTES);
        runtime.confirm_all();
        runtime.take_record(method(1, 0x1000), 0);
        assert_eq!(runtime.refused, 1);
        runtime.forget_unconfirmed();
        assert!(runtime.find(0x1008, runtime.code.eras.now()).is_some());
    }
}
