//! The bridge's records of one process: its modules, types and methods.
//!
//! Everything here is a claim of the process. It is stored unchanged, within a budget, and display
//! names are made only at the end, for sampled methods.
//!
//! What the runtime has unloaded is kept while a sample of it may still be described: of sampled code
//! until the flush is ([`Runtime::forget_described`]), of other code for some seconds
//! ([`Runtime::forget_unsampled`]).
//!
//! Invariant: at most as many bytes of texts as the owner allows, and [`MAX_METHODS`] methods at a
//! time; further ones are refused and counted.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use strata_bridge_protocol::decode_error::DecodeError;
use strata_bridge_protocol::field::IlMapEntry;
use strata_bridge_protocol::record::{
    AppDomainRecord, IlMapRecord, MethodKind, MethodView, ModuleRecord, RawRecord, Record, Tier,
    kind,
};
use strata_unwind::managed::{MethodCode, method_rules, method_unwinding};

use super::asked::Addresses;
use super::code::{CodeMap, Found, MAX_SPANS, MethodIndex};
use super::methods::{Method, Methods};
use super::modules::{Module, ModuleIndex, Modules};
use super::names::{Described, SampledMethod};
use super::stubs::{self, Stub};
use super::threads::ThreadNames;
use super::{MOST_DOMAINS, text_bytes};
use crate::hash::{HashMap, HashSet};

const MAX_METHODS: usize = MAX_SPANS;
/// The default limit of texts.
pub const MAX_BYTES: usize = 256 << 20;
/// A method's code is read in whole up to this size.
const MAX_CODE: u32 = 64 << 10;
/// What an IL map costs besides its entries.
const IL_MAP: usize = 100;
/// The AppDomains of a process of which a record is kept. Of more than [`MOST_DOMAINS`] none is used.
const MAX_DOMAINS: usize = 2 * MOST_DOMAINS;
/// What the frame of a function costs.
const FRAME: usize = 2 * size_of::<(u64, u32)>();

/// An IL map.
pub type IlMap = Arc<[IlMapEntry]>;

/// What is known to live, after records were missed.
#[derive(Default)]
struct Confirmed {
    methods: HashSet<MethodIndex>,
    modules: HashSet<u64>,
    threads: HashSet<u64>,
    /// Records were refused, so what is not here may live.
    is_incomplete: bool,
}

/// What an AppDomain's record takes.
fn domain_bytes(domain: &AppDomainRecord) -> usize {
    let texts = [&domain.name, &domain.service, &domain.environment, &domain.version];
    size_of::<AppDomainRecord>() + texts.into_iter().map(|text| text_bytes(text)).sum::<usize>()
}

/// A requested IL map. During a long collection, or where its log is full, a bridge gives no answer.
enum Requested {
    Pending { earlier: u8 },
    Unanswered { times: u8 },
    Map(IlMap),
}

/// A request without an answer is repeated so often.
const MOST_REQUESTS: u8 = 4;

impl Requested {
    fn bytes(&self) -> usize {
        let entries = match self {
            Self::Map(map) => map.len(),
            Self::Pending { .. } | Self::Unanswered { .. } => 0,
        };
        IL_MAP + entries * size_of::<IlMapEntry>()
    }
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
    /// IL maps that were requested, by method and start of the code.
    il_maps: BTreeMap<(u32, u64), Requested>,
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
    /// Of AppDomains and IL maps.
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
                confirmed.is_incomplete = true;
            }
        }
        is_refused
    }

    fn add_method(&mut self, method: &MethodView<'_>) {
        self.method(method);
        let start = method.ranges.iter().next().map(|range| range.start);
        if let Some(confirmed) = &mut self.confirmed
            && let Some(index) = start.and_then(|start| self.code.method_from(start))
        {
            confirmed.methods.insert(index);
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
            match &record {
                Record::Module(module) => {
                    confirmed.modules.insert(module.module);
                }
                Record::ModuleUnload(gone) => {
                    confirmed.modules.remove(&gone.module);
                }
                // One without a name is not kept.
                Record::Thread(thread) if thread.name.is_empty() => {
                    confirmed.threads.remove(&thread.managed_id);
                }
                Record::Thread(thread) => {
                    confirmed.threads.insert(thread.managed_id);
                }
                Record::ThreadEnd(gone) => {
                    confirmed.threads.remove(&gone.managed_id);
                }
                _ => {}
            }
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
            Record::IlMap(map) => self.il_map(map),
            Record::NotFound(unknown) => {
                if self.addresses.is_in_no_method(unknown.ip) {
                    self.unknown_stubs.push(unknown.ip);
                }
            }
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

    fn method(&mut self, record: &MethodView<'_>) {
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

    /// Records were missed. What lives is reported again from now on.
    pub fn confirm_all(&mut self) {
        self.confirmed = Some(Confirmed::default());
        // The answers may have been among them.
        self.addresses.forget_waiting();
        let before = self.il_maps.len();
        self.il_maps.retain(|_, map| matches!(map, Requested::Map(_)));
        self.uncount(Some((before - self.il_maps.len()) * IL_MAP));
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

    /// Whether the method and its code are those of a record before.
    fn is_known(&self, record: &MethodView<'_>, method: &Method) -> bool {
        let Some(first) = record.ranges.iter().next() else { return false };
        let Some(index) = self.code.method_in(first.start, first.size) else { return false };
        let known = self.methods.get(index);
        let is_there = |start, size| self.code.method_in(start, size) == Some(index);
        known.is_some_and(|known| known.is_described_by(method))
            && record.ranges.iter().all(|range| is_there(range.start, range.size))
    }

    fn il_map(&mut self, record: IlMapRecord) {
        let Some(index) = self.code.method_from(record.start) else { return };
        if self.methods.get(index).is_none_or(|method| method.function != record.function) {
            return;
        }
        let map = Requested::Map(record.entries.into());
        self.bytes += map.bytes();
        let before = self.il_maps.insert((index.0, record.start), map);
        self.uncount(before.map(|before| before.bytes()));
    }

    /// There is no answer to a request: a later sample repeats it.
    pub fn il_map_is_unanswered(&mut self, function: u64, start: u64) {
        let Some(index) = self.code.method_from(start) else { return };
        if self.methods.get(index).is_none_or(|method| method.function != function) {
            return;
        }
        if let Some(requested) = self.il_maps.get_mut(&(index.0, start))
            && let Requested::Pending { earlier } = *requested
        {
            *requested = Requested::Unanswered { times: earlier + 1 };
        }
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
        let of_method = (index.0, 0)..=(index.0, u64::MAX);
        while let Some((&place, _)) = self.il_maps.range(of_method.clone()).next() {
            let requested = self.il_maps.remove(&place);
            self.uncount(requested.map(|requested| requested.bytes()));
        }
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

    /// Notes that an IL map is requested; false when it was requested before.
    pub fn ask_il_map(&mut self, found: Found) -> bool {
        let place = (found.method.0, found.start);
        let earlier = match self.il_maps.get(&place) {
            None => {
                self.bytes += IL_MAP;
                0
            }
            Some(Requested::Unanswered { times }) if *times < MOST_REQUESTS => *times,
            Some(_) => return false,
        };
        self.il_maps.insert(place, Requested::Pending { earlier });
        true
    }

    pub fn il_map_of(&self, found: Found) -> Option<&IlMap> {
        match self.il_maps.get(&(found.method.0, found.start))? {
            Requested::Map(map) => Some(map),
            Requested::Pending { .. } | Requested::Unanswered { .. } => None,
        }
    }

    /// Notes that an address is requested; false when it was requested before.
    pub fn ask(&mut self, address: u64, is_caller: bool) -> bool {
        self.addresses.ask(address, is_caller, Instant::now())
    }

    /// There is no answer about an address. It may be asked about again; when that was refused some times, its
    /// code is read.
    pub fn is_unanswered(&mut self, address: u64, is_refused: bool) {
        if self.addresses.is_unanswered(address, is_refused, Instant::now()) {
            self.unknown_stubs.push(address);
        }
    }

    /// Takes the addresses in no method, by the runtime's answer, whose code is to be read.
    pub fn take_unknown_stubs(&mut self) -> Vec<u64> {
        std::mem::take(&mut self.unknown_stubs)
    }

    /// Keeps the stub that was found at an address.
    pub fn take_stub(&mut self, address: u64, stub: Option<Stub>) {
        // .NET Core 3.1 does not mark its memory: another compiler's code may lie in such, too.
        let nameless = || self.code.is_beside_known(address).then_some(stubs::NAMELESS);
        let name = stub.map(|stub| stub.name).or_else(nameless);
        let is_caller = self.addresses.add_stub(address, name);
        if !self.code.is_gone(address) {
            self.code.insert_stub(address, is_caller);
        }
        if let Some(stub) = stub
            && let Some(rules) = stub.rules()
        {
            self.code.insert_known_stub(address - stub.offset, stub.size, &rules);
        }
    }

    /// The name of the runtime's own code at an address; `Some(None)` if it has none.
    pub fn stub_at(&self, address: u64) -> Option<Option<&'static str>> {
        self.addresses.stub_at(address)
    }

    /// Whether the answer about an address is pending.
    pub fn is_waiting_for(&self, address: u64) -> bool {
        self.addresses.is_waiting_for(address)
    }
}

#[cfg(test)]
mod tests {
    use strata_bridge_protocol::field::CodeRangeRecord;
    use strata_bridge_protocol::record::{
        IlMapRecord, MethodRecord, MethodUnload, ModuleUnload, NotFound, ThreadRecord, TypeRecord,
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
    const CODE: [u8; 8] = [0x55, 0x48, 0x89, 0xe5, 0x90, 0x90, 0x90, 0x90];

    fn found(runtime: &Runtime, address: u64) -> Found {
        runtime.find(address, runtime.code.eras.now()).expect("a method is there")
    }

    fn method(function: u64, start: u64) -> MethodRecord {
        let range = CodeRangeRecord { start, size: 0x40, code: CODE.into() };
        MethodRecord {
            function,
            module: 8,
            name: format!("Method{function}"),
            ranges: vec![range],
            ..MethodRecord::default()
        }
    }

    fn unload(runtime: &mut Runtime, function: u64, start: u64) {
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
    fn a_request_without_an_answer_is_repeated_a_few_times() {
        let mut runtime = Runtime::default();
        runtime.take_record(method(7, 0x1000), 1 << 20);
        let at = found(&runtime, 0x1008);
        for _ in 0..MOST_REQUESTS {
            assert!(runtime.ask_il_map(at));
            assert!(!runtime.ask_il_map(at), "it is pending");
            runtime.il_map_is_unanswered(8, 0x1000);
            assert!(!runtime.ask_il_map(at), "that was another function's");
            runtime.il_map_is_unanswered(7, 0x1000);
        }
        assert!(!runtime.ask_il_map(at), "not for ever");
        let map = IlMapRecord { function: 7, start: 0x1000, ..IlMapRecord::default() };
        runtime.take_record(map, 1 << 20);
        assert!(runtime.il_map_of(at).is_some(), "an answer that comes late holds");
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

    #[test]
    fn stubs_that_are_met_and_gone_do_not_fill_the_map() {
        let mut runtime = Runtime::default();
        let most = 8 << 20;
        for n in 0..100_000u64 {
            let address = 0x10_0000 + n * 0x1000;
            assert!(runtime.ask(address, false));
            runtime.take_record(NotFound { ip: address }, most);
            for stub in runtime.take_unknown_stubs() {
                runtime.take_stub(stub, None);
            }
            assert!(runtime.code.knows(address));
            if n % 3000 == 0 {
                runtime.forget_described(runtime.code.eras.now());
            }
        }
        assert_eq!((runtime.refused, runtime.code.refused), (0, 0));
        assert!(runtime.bytes() < 5 << 20, "{}", runtime.bytes());
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
