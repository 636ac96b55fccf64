//! The bridge's records of one process: its modules, types and methods.
//!
//! Everything here is a claim of the process. It is stored unchanged, within a budget, and display
//! names are made only at the end, for sampled methods.
//!
//! What the runtime has unloaded is kept while a sample of it may still be described: of sampled code
//! until the flush is ([`Runtime::forget_described`]), of other code for some seconds
//! ([`Runtime::forget_unsampled`]).
//!
//! - `method_code`: how the code of methods is unwound.
//! - `il_maps`: which IL it comes from.
//! - `unknown_code`: addresses that are in no method.
//! - `confirming`: what still lives, after records were missed.
//!
//! Invariant: at most as many bytes of texts as the owner allows, and [`MAX_METHODS`] methods at a
//! time; further ones are refused and counted.

mod confirming;
mod il_maps;
mod method_code;
mod unknown_code;

use strata_bridge_protocol::decode_error::DecodeError;
use strata_bridge_protocol::record::{
    AppDomainRecord, MethodKind, MethodView, ModuleRecord, RawRecord, Record, kind,
};

use self::confirming::Confirmed;
pub use self::il_maps::IlMap;
use self::il_maps::IlMaps;
use super::asked::Addresses;
use super::code::{CodeMap, Found, MAX_SPANS, MethodIndex};
use super::methods::{Method, Methods};
use super::modules::{Module, ModuleIndex, Modules};
use super::names::{Described, SampledMethod};
use super::threads::ThreadNames;
use super::{MOST_DOMAINS, text_bytes};
use crate::hash::HashMap;

const MAX_METHODS: usize = MAX_SPANS;
/// The default limit of texts.
pub const MAX_BYTES: usize = 256 << 20;
/// The AppDomains of a process of which a record is kept. Of more than [`MOST_DOMAINS`] none is used.
const MAX_DOMAINS: usize = 2 * MOST_DOMAINS;
/// What the frame of a function costs.
const FRAME: usize = 2 * size_of::<(u64, u32)>();

/// What an AppDomain's record takes.
fn domain_bytes(domain: &AppDomainRecord) -> usize {
    let texts = [&domain.name, &domain.service, &domain.environment, &domain.version];
    size_of::<AppDomainRecord>() + texts.into_iter().map(|text| text_bytes(text)).sum::<usize>()
}

#[derive(Default)]
pub struct Runtime {
    pub code: CodeMap,
    methods: Methods,
    modules: Modules,
    pub domains: std::collections::HashMap<u64, AppDomainRecord>,
    threads: ThreadNames,
    /// By function: the frame of its unoptimised code, which code that replaces it while it runs
    /// is unwound by.
    frames: HashMap<u64, u32>,
    il_maps: IlMaps,
    addresses: Addresses,
    /// The era of the code when stubs were last found to be many.
    stubs_from: Option<u32>,
    /// Addresses in no method, by the runtime's answer, whose code was not read yet.
    unknown_stubs: Vec<u64>,
    /// For a process that has ended: the symbols that its samples need, by address and era.
    kept: HashMap<(u64, u32), Described>,
    methods_told: u64,
    /// After records were missed: what was reported again since.
    confirmed: Option<Confirmed>,
    /// Everything that existed when strata attached has been reported.
    pub enumerated: bool,
    /// The last status of the bridge.
    pub remarks: Vec<String>,
    /// Of AppDomains.
    bytes: usize,
    /// Records refused because of the budget.
    pub refused: u64,
    /// The monotonic time when reading its records began last.
    pub read_at: u64,
}

impl Runtime {
    /// The name that the last thread with this number has, if it has one.
    pub fn thread_name(&self, tid: u32) -> Option<&str> {
        self.threads.get(tid)
    }

    /// Names of threads that have ended since the last call are not needed any more.
    pub fn forget_ended_threads(&mut self) {
        self.threads.forget_ended();
    }

    /// The memory kept for the process's records: its texts, methods and code.
    pub fn bytes(&self) -> usize {
        self.bytes
            + self.code.bytes()
            + self.methods.bytes()
            + self.modules.bytes()
            + self.threads.bytes()
            + self.addresses.bytes()
            + self.il_maps.bytes()
            + self.frames.len() * FRAME
    }

    /// Releases the memory counted for an entry that was replaced.
    fn uncount(&mut self, bytes: Option<usize>) {
        self.bytes = self.bytes.saturating_sub(bytes.unwrap_or(0));
    }

    /// Adds one record, if the memory stays within `most` bytes.
    pub fn take(&mut self, record: RawRecord<'_>, most: usize) -> Result<(), DecodeError> {
        self.code.eras.set_time(record.time, self.read_at);
        if record.kind == kind::METHOD {
            let method = MethodView::of(record.fields)?;
            if !self.is_refused(most) {
                self.add_method(&method);
            }
        } else {
            self.apply(record.decode()?, most);
        }
        Ok(())
    }

    /// Whether there is no room for a record, which is counted.
    fn is_refused(&mut self, most: usize) -> bool {
        let is_refused = self.bytes() > most;
        if is_refused {
            self.refused += 1;
            if let Some(confirmed) = &mut self.confirmed {
                confirmed.note_refusal();
            }
        }
        is_refused
    }

    fn add_method(&mut self, method: &MethodView<'_>) {
        self.take_method(method);
        let start = method.ranges.iter().next().map(|range| range.start);
        if let Some(confirmed) = &mut self.confirmed
            && let Some(index) = start.and_then(|start| self.code.method_from(start))
        {
            confirmed.note_method(index);
        }
        self.drop_unused();
    }

    fn apply(&mut self, record: Record, most: usize) {
        let is_small = matches!(
            record,
            Record::MethodUnload(_)
                | Record::ModuleUnload(_)
                | Record::ThreadEnd(_)
                | Record::NotFound(_)
                | Record::Enumerated(_)
        );
        if !is_small && self.is_refused(most) {
            return;
        }
        if let Some(confirmed) = &mut self.confirmed {
            confirmed.note(&record);
        }
        match record {
            // These are read where they lie.
            Record::Method(_) => {}
            Record::MethodUnload(gone) => {
                self.code.remove(gone.start);
                self.frames.remove(&gone.function);
            }
            Record::Type(record) => self.modules.add_type(record),
            Record::Module(module) => self.modules.loaded(module),
            Record::ModuleUnload(gone) => self.modules.unloaded(gone.module),
            Record::AppDomain(domain) => {
                let is_known = self.domains.contains_key(&domain.id);
                if !is_known && self.domains.len() >= MAX_DOMAINS {
                    self.refused += 1;
                    return;
                }
                self.bytes += domain_bytes(&domain);
                let before = self.domains.insert(domain.id, domain);
                self.uncount(before.map(|before| domain_bytes(&before)));
            }
            Record::IlMap(map) => self.take_il_map(map),
            Record::NotFound(unknown) => self.is_in_no_method(unknown.ip),
            Record::Enumerated(_) => self.enumerated = true,
            Record::Diagnostic(remark) => {
                tracing::debug!(level = remark.level, "bridge: {}", remark.text);
                const MOST: usize = 20;
                if self.remarks.len() < MOST {
                    self.remarks.push(remark.text);
                }
            }
            Record::Thread(thread) => self.threads.add(thread),
            Record::ThreadEnd(gone) => self.threads.remove(gone.managed_id),
            // The description of a domain that has ended is still needed for its samples.
            Record::AppDomainEnd(_) => {}
        }
        self.drop_unused();
    }

    /// Forgets methods of which no code is kept.
    fn drop_unused(&mut self) {
        for index in self.code.take_unused() {
            self.forget_method(index);
        }
    }

    fn forget_method(&mut self, index: MethodIndex) {
        let Some(method) = self.methods.remove(index) else { return };
        self.modules.remove_method(method.module);
        self.il_maps.forget_method(index);
    }

    /// The samples until a flush were described: what was gone when this era began is forgotten.
    pub fn forget_described(&mut self, era: u32) {
        self.code.forget_retired(era, |_| false);
        if self.addresses.age()
            && let Some(before) = self.stubs_from.replace(self.code.eras.now())
        {
            self.code.forget_stubs(before);
        }
        self.drop_unused();
    }

    /// No sample of code that was gone when this era began can arrive any more: what was not
    /// sampled is forgotten.
    pub fn forget_unsampled(&mut self, era: u32) {
        let methods = &self.methods;
        let is_sampled =
            |index| methods.get(index).is_some_and(|method: &Method| method.is_sampled);
        self.code.forget_retired(era, is_sampled);
        self.drop_unused();
    }

    pub fn find(&self, address: u64, era: u32) -> Option<Found> {
        self.code.method_at(address, era).or_else(|| {
            // An answer comes after the sample that it was asked for. Other code came later.
            let next = self.code.method_now(address)?;
            let kind = self.methods.get(next.method)?.kind();
            (kind == Some(MethodKind::Resolved)).then_some(next)
        })
    }

    /// Finds the method at a sampled address, which is kept until its samples are described.
    pub fn find_sampled(&mut self, address: u64, era: u32) -> Option<Found> {
        let found = self.find(address, era)?;
        if let Some(method) = self.methods.get_mut(found.method) {
            method.is_sampled = true;
        }
        Some(found)
    }

    pub fn method_of(&self, index: MethodIndex) -> Option<&Method> {
        self.methods.get(index)
    }

    /// Methods that the bridge has reported.
    pub fn methods(&self) -> u64 {
        self.methods_told
    }

    /// The state kept of a process that has ended.
    pub fn kept(&self, address: u64, era: u32) -> Option<&Described> {
        self.kept.get(&(address, era))
    }

    /// No more records or samples will arrive: only what the samples so far need is kept.
    pub fn keep_only(&mut self, sampled: Vec<SampledMethod>) {
        let stubs = sampled.iter().map(|((address, _), _)| *address);
        let stubs: Vec<_> =
            stubs.filter_map(|address| Some((address, self.stub_at(address)?))).collect();
        let kept = sampled.into_iter().filter_map(|(place, method)| Some((place, method?)));
        let mut domains = std::mem::take(&mut self.domains);
        if domains.len() > MOST_DOMAINS {
            // No sample names one of them.
            domains.clear();
        }
        *self = Self {
            kept: kept.collect(),
            addresses: Addresses::of_stubs(stubs.into_iter()),
            bytes: domains.values().map(domain_bytes).sum(),
            domains,
            enumerated: self.enumerated,
            remarks: std::mem::take(&mut self.remarks),
            methods_told: self.methods_told,
            refused: self.refused + self.code.refused,
            ..Self::default()
        };
    }

    pub fn module_of(&self, module: ModuleIndex) -> Option<&Module> {
        self.modules.get(module)
    }

    /// The modules that are loaded.
    pub fn modules(&self) -> impl Iterator<Item = &ModuleRecord> {
        self.modules.records()
    }

    /// Grows with every module that is loaded.
    pub fn module_changes(&self) -> usize {
        self.modules.changes()
    }
}

#[cfg(test)]
mod tests {
    use strata_bridge_protocol::field::{CodeRangeRecord, IlMapEntry};
    use strata_bridge_protocol::record::{
        IlMapRecord, MethodRecord, MethodUnload, ModuleUnload, TypeRecord,
    };

    use super::super::names;
    use super::*;

    impl Runtime {
        /// Adds one record as it lies in a log.
        pub fn take_record(&mut self, record: impl Into<Record>, most: usize) {
            let (record, mut fields) = (record.into(), Vec::new());
            record.encode(&mut fields);
            let raw = RawRecord { time: 0, cut: false, kind: record.kind(), fields: &fields };
            self.take(raw, most).expect("a whole record");
        }
    }

    /// `push rbp; mov rbp, rsp`, and then what a handler may follow in.
    pub(super) const CODE: [u8; 8] = [0x55, 0x48, 0x89, 0xe5, 0x90, 0x90, 0x90, 0x90];

    pub(super) fn found(runtime: &Runtime, address: u64) -> Found {
        runtime.find(address, runtime.code.eras.now()).expect("a method is there")
    }

    pub(super) fn method(function: u64, start: u64) -> MethodRecord {
        let range = CodeRangeRecord { start, size: 0x40, code: CODE.into() };
        MethodRecord {
            function,
            module: 8,
            name: format!("Method{function}"),
            ranges: vec![range],
            ..MethodRecord::default()
        }
    }

    pub(super) fn unload(runtime: &mut Runtime, function: u64, start: u64) {
        runtime.take_record(MethodUnload { function, start }, MAX_BYTES);
    }

    #[test]
    fn what_takes_the_place_of_something_is_counted_in_its_place() {
        let mut runtime = Runtime::default();
        let domain =
            |name: &str| AppDomainRecord { id: 7, name: name.into(), ..Default::default() };
        runtime.take_record(domain("a name"), MAX_BYTES);
        let once = runtime.bytes();
        for _ in 0..1000 {
            runtime.take_record(domain("a name"), MAX_BYTES);
        }
        assert_eq!(runtime.bytes(), once);
    }

    #[test]
    fn methods_with_crafted_code_are_refused_over_the_budget() {
        let mut runtime = Runtime::default();
        let most = 1 << 20;
        // `push rax; pop rax` without end: the stack pointer moves with every instruction.
        let code: Vec<u8> = [0x50, 0x58].into_iter().cycle().take(4096).collect();
        for n in 0..10_000u64 {
            let range = CodeRangeRecord {
                start: 0x10_0000 + n * 0x2000,
                size: 4096 - (n % 1000) as u32,
                code: code.clone(),
            };
            let method = MethodRecord { function: n, ranges: vec![range], ..Default::default() };
            runtime.take_record(method, most);
        }
        assert!(runtime.bytes() < 2 * most, "{}", runtime.bytes());
        assert!(runtime.refused > 0);
    }

    #[test]
    fn a_process_that_makes_and_drops_methods_without_end_keeps_their_names() {
        let mut runtime = Runtime::default();
        // A flush every 5,000 methods; a sample in one of a hundred.
        let most = 8 << 20;
        let mut largest = 0;
        for n in 0..100_000u64 {
            let start = 0x10_0000 + n % 1000 * 0x40;
            runtime.take_record(method(n, start), most);
            let era = runtime.code.eras.now();
            if n % 100 == 0 {
                let at = runtime.find_sampled(start + 8, era).expect("it is known");
                assert!(runtime.ask_il_map(at), "of each method, once");
                let map = IlMapRecord {
                    function: n,
                    start,
                    entries: vec![IlMapEntry::default(); 8],
                    ..IlMapRecord::default()
                };
                runtime.take_record(map, most);
                assert!(runtime.il_map_of(at).is_some());
            }
            unload(&mut runtime, n, start);
            let described =
                names::tests::describe(&runtime, start + 8, era, false).expect("a name");
            assert!(described.frame.name.contains(&format!("Method{n}")));
            if n % 5000 == 4999 {
                largest = largest.max(runtime.bytes());
                runtime.forget_described(runtime.code.eras.now());
            }
        }
        assert_eq!((runtime.refused, runtime.code.refused), (0, 0));
        assert_eq!((runtime.methods.len(), runtime.frames.len(), runtime.il_maps.len()), (0, 0, 0));
        assert!(largest < 3 << 20, "{largest}");
        assert!(runtime.bytes() < 1 << 20, "{}", runtime.bytes());
    }

    #[test]
    fn between_flushes_only_what_was_sampled_is_kept() {
        let mut runtime = Runtime::default();
        for n in 0..1000u64 {
            let start = 0x10_0000 + n % 10 * 0x40;
            runtime.take_record(method(n, start), MAX_BYTES);
            let era = runtime.code.eras.now();
            if n == 500 {
                runtime.find_sampled(start, era);
            }
            unload(&mut runtime, n, start);
        }
        assert_eq!(runtime.methods.len(), 1000);
        runtime.forget_unsampled(runtime.code.eras.now());
        assert_eq!(runtime.methods.len(), 1);
        runtime.forget_described(runtime.code.eras.now());
        assert_eq!(runtime.methods.len(), 0);
    }

    #[test]
    fn an_answer_names_a_sample_from_before_it_and_code_that_came_later_does_not() {
        let mut runtime = Runtime::default();
        runtime.take_record(method(1, 0x1000), MAX_BYTES);
        let before = runtime.code.eras.now();
        unload(&mut runtime, 1, 0x1000);
        let answer = MethodRecord {
            asked_ip: 0x2008,
            kind: MethodKind::Resolved as u8,
            ..method(2, 0x2000)
        };
        runtime.take_record(answer, MAX_BYTES);
        runtime.take_record(method(3, 0x3000), MAX_BYTES);
        let function = |address| {
            let found = runtime.find(address, before)?;
            runtime.method_of(found.method).map(|method| method.function)
        };
        assert_eq!([0x2008, 0x3008].map(function), [Some(2), None]);
    }

    #[test]
    fn the_types_of_an_unloaded_module_name_its_samples_and_then_go() {
        let mut runtime = Runtime::default();
        let of_turn = |turn: u64, runtime: &mut Runtime| {
            let name = format!("Type{turn}");
            let of_type = TypeRecord { module: 8, token: 5, name, ..Default::default() };
            let module =
                ModuleRecord { module: 8, assembly: format!("a{turn}"), ..Default::default() };
            runtime.take_record(module, MAX_BYTES);
            runtime.take_record(of_type, MAX_BYTES);
            runtime.take_record(MethodRecord { type_token: 5, ..method(1, 0x1000) }, MAX_BYTES);
            let era = runtime.code.eras.now();
            unload(runtime, 1, 0x1000);
            runtime.take_record(ModuleUnload { module: 8 }, MAX_BYTES);
            era
        };
        // The next module has the same id, and its method the same address.
        let eras = [of_turn(0, &mut runtime), of_turn(1, &mut runtime)];
        for (turn, era) in eras.into_iter().enumerate() {
            let described = names::tests::describe(&runtime, 0x1008, era, false).expect("a name");
            assert_eq!(&*described.module, format!("a{turn}.dll"));
            assert!(described.frame.name.contains(&format!("Type{turn}")));
        }
        runtime.forget_described(runtime.code.eras.now());
        let once = runtime.bytes();
        for turn in 2..1000 {
            of_turn(turn, &mut runtime);
            runtime.forget_described(runtime.code.eras.now());
        }
        assert!(runtime.bytes() <= once, "{} {once}", runtime.bytes());
    }

    #[test]
    fn ten_ordinary_services_fit_the_daemons_share() {
        let mut runtime = Runtime::default();
        let module = ModuleRecord { module: 8, assembly: "Shop.Web".into(), ..Default::default() };
        runtime.take_record(module, MAX_BYTES);
        for n in 0..20_000u64 {
            if n % 4 == 0 {
                let of_type = TypeRecord {
                    module: 8,
                    token: n as u32,
                    name: format!("Shop.Web.Controllers.Orders{n}Controller"),
                    ..TypeRecord::default()
                };
                runtime.take_record(of_type, MAX_BYTES);
            }
            let range = CodeRangeRecord {
                start: 0x10_0000 + n * 0x200,
                size: 0x200,
                code: CODE.repeat(24),
            };
            let method = MethodRecord {
                function: 0x7f00_0000_0000 + n * 8,
                module: 8,
                type_token: (n - n % 4) as u32,
                name: format!("GetOrders{n}Async"),
                signature: vec![0x20, 2, 0x12, 0x81, 0x40, 8, 8],
                ranges: vec![range],
                ..MethodRecord::default()
            };
            runtime.take_record(method, MAX_BYTES);
        }
        assert_eq!((runtime.refused, runtime.methods()), (0, 20_000));
        // A sixth of the default limit.
        assert!(runtime.bytes() * 10 < 42 << 20, "{}", runtime.bytes());
    }
}
