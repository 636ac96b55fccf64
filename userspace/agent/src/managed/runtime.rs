//! The bridge's records of one process: its modules, types and methods.
//!
//! Everything here is a claim of the process. It is stored unchanged, within a budget, and display
//! names are made only at the end, for sampled methods.
//!
//! Invariant: at most as many bytes of texts as the owner allows, and [`MAX_METHODS`] methods;
//! further ones are refused and counted.

use std::sync::Arc;

use strata_bridge_protocol::field::IlMapEntry;
use strata_bridge_protocol::record::{AppDomainRecord, MethodRecord, ModuleRecord, Record, Tier};
use strata_unwind::managed::{MethodCode, method_rules, wants_all_code};

use super::code::{CodeMap, Found, MAX_SPANS, MethodIndex};
use super::names::{self, Described};
use super::stubs::{self, Stub};
use crate::hash::{HashMap, HashSet};

const MAX_METHODS: usize = MAX_SPANS;
/// The default limit of texts.
pub const MAX_BYTES: usize = 256 << 20;
/// The most bytes kept of a method's unoptimised code.
const FIRST_CODE: usize = 96;
/// A method's code is read in whole up to this size.
const MAX_CODE: u32 = 64 << 10;
/// The memory of an entry without its texts.
const OVERHEAD: usize = 200;
/// What an entry without texts costs.
const SMALL: usize = 64;

/// What a text of a list costs besides its bytes.
const TEXT_OVERHEAD: usize = 40;

/// A type as records refer to it.
#[derive(Clone, Debug)]
pub struct Type {
    pub name: String,
    pub signature: Vec<u8>,
    pub generic_parameters: Vec<String>,
}

/// An IL map, and its method.
pub type IlMap = Arc<[IlMapEntry]>;

/// An address whose method has been requested.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Asked {
    /// Whether the code there has called something.
    Waiting {
        is_caller: bool,
    },
    Answered,
}

/// A method of whose code only the first bytes are known.
#[derive(Clone, Copy, Debug)]
struct Cut {
    size: u32,
    /// The number of its bytes that the bridge has published.
    known: usize,
    is_replacement: bool,
}

#[derive(Default)]
pub struct Runtime {
    pub code: CodeMap,
    methods: Vec<MethodRecord>,
    types: HashMap<(u64, u32), Arc<Type>>,
    modules: HashMap<u64, Arc<ModuleRecord>>,
    pub domains: std::collections::HashMap<u64, AppDomainRecord>,
    threads: HashMap<u32, String>,
    /// By function: how its unoptimised code begins, which code that replaces it while it runs
    /// is unwound by.
    first_code: HashMap<u64, Box<[u8]>>,
    il_maps: HashMap<u64, IlMap>,
    il_maps_asked: HashSet<u64>,
    /// By start: methods of whose code only the first bytes are known, and their function.
    cut: HashMap<u64, (Cut, u64)>,
    asked: HashMap<u64, Asked>,
    /// Addresses in no method, by the runtime's answer, whose code was not read yet.
    unknown_stubs: Vec<u64>,
    /// Those whose code was read, and its name.
    stubs: HashMap<u64, Option<&'static str>>,
    /// For a process that has ended: the symbols that its samples need, by address and era.
    kept: HashMap<(u64, u32), Described>,
    methods_told: u64,
    /// Everything that existed when strata attached has been reported.
    pub enumerated: bool,
    /// The last status of the bridge.
    pub remarks: Vec<String>,
    bytes: usize,
    /// Records refused because of the budget.
    pub refused: u64,
}

impl Runtime {
    /// The name that the last thread with this number has, if it has one.
    pub fn thread_name(&self, tid: u32) -> Option<&str> {
        self.threads.get(&tid).map(String::as_str).filter(|name| !name.is_empty())
    }

    /// The memory kept for the process's records: its texts, methods and code.
    pub fn bytes(&self) -> usize {
        self.bytes + self.code.bytes()
    }

    /// Releases the memory counted for an entry that was replaced.
    fn uncount(&mut self, bytes: Option<usize>) {
        self.bytes = self.bytes.saturating_sub(bytes.unwrap_or(0));
    }

    /// Adds one record, if the memory stays within `most` bytes.
    pub fn apply(&mut self, record: Record, most: usize) {
        let is_small =
            matches!(record, Record::MethodUnload(_) | Record::NotFound(_) | Record::Enumerated(_));
        if self.bytes() > most && !is_small {
            self.refused += 1;
            return;
        }
        match record {
            Record::Method(method) => self.method(method),
            Record::MethodUnload(gone) => self.code.remove(gone.start),
            Record::Type(record) => {
                let of_type = Type {
                    name: record.name,
                    signature: record.signature,
                    generic_parameters: record.generic_parameters,
                };
                self.bytes += size_of_type(&of_type);
                let before = self.types.insert((record.module, record.token), Arc::new(of_type));
                self.uncount(before.map(|before| size_of_type(&before)));
            }
            Record::Module(module) => {
                let size =
                    |module: &ModuleRecord| OVERHEAD + module.path.len() + module.assembly.len();
                self.bytes += size(&module);
                let before = self.modules.insert(module.module, Arc::new(module));
                self.uncount(before.map(|before| size(&before)));
            }
            Record::AppDomain(domain) => {
                let size = |domain: &AppDomainRecord| {
                    let texts =
                        [&domain.name, &domain.service, &domain.environment, &domain.version];
                    OVERHEAD + texts.into_iter().map(String::len).sum::<usize>()
                };
                self.bytes += size(&domain);
                let before = self.domains.insert(domain.id, domain);
                self.uncount(before.map(|before| size(&before)));
            }
            Record::Thread(thread) => {
                self.bytes += OVERHEAD + thread.name.len();
                let before = self.threads.insert(thread.os_tid, thread.name);
                self.uncount(before.map(|name| OVERHEAD + name.len()));
            }
            Record::IlMap(map) => {
                let size = |count: usize| OVERHEAD + count * size_of::<IlMapEntry>();
                self.bytes += size(map.entries.len());
                let before = self.il_maps.insert(map.start, map.entries.into());
                self.uncount(before.map(|entries| size(entries.len())));
            }
            Record::NotFound(unknown) => {
                if let Some(asked) = self.asked.get_mut(&unknown.ip) {
                    let asked = std::mem::replace(asked, Asked::Answered);
                    let is_caller = asked == Asked::Waiting { is_caller: true };
                    if !self.code.is_gone(unknown.ip) {
                        self.code.insert_stub(unknown.ip, is_caller);
                        self.unknown_stubs.push(unknown.ip);
                    }
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
            // Names of unloaded modules and domains are still needed for their samples.
            Record::ModuleUnload(_) | Record::AppDomainEnd(_) | Record::ThreadEnd(_) => {}
        }
    }

    fn method(&mut self, mut method: MethodRecord) {
        if let Some(asked) = self.asked.get_mut(&method.asked_ip) {
            *asked = Asked::Answered;
        }
        if self.methods.len() >= MAX_METHODS {
            self.refused += 1;
            return;
        }
        let index = MethodIndex(self.methods.len() as u32);
        let ranges = std::mem::take(&mut method.ranges);
        let mut body = None;
        for range in &ranges {
            // Cold code of a method runs in the frame that its start has made.
            let rules = match body {
                None => {
                    let code = MethodCode {
                        size: range.size,
                        bytes: &range.code,
                        is_replacement: method.tier() == Tier::Osr,
                        replaced: self.first_code.get(&method.function).map_or(&[], |code| code),
                    };
                    if wants_all_code(&code) && range.size <= MAX_CODE {
                        let (size, known) = (range.size, range.code.len());
                        let cut = Cut { size, known, is_replacement: code.is_replacement };
                        if self.cut.insert(range.start, (cut, method.function)).is_none() {
                            self.bytes += SMALL;
                        }
                    }
                    method_rules(&code)
                }
                Some(rule) => vec![(0, rule)],
            };
            body = body.or(rules.last().map(|(_, rule)| *rule));
            self.code.insert(range.start, range.size, &rules, index);
        }
        if let Some(range) = ranges.first()
            && matches!(method.tier(), Tier::Minimal | Tier::Unknown)
        {
            let first: Box<[u8]> = range.code.iter().take(FIRST_CODE).copied().collect();
            self.bytes += first.len() + SMALL;
            let before = self.first_code.insert(method.function, first);
            self.uncount(before.map(|before| before.len() + SMALL));
        }
        let texts = [&method.generic_parameters, &method.class_arguments, &method.method_arguments];
        let arguments = texts.into_iter().flatten().map(|text| text.len() + TEXT_OVERHEAD);
        self.bytes += OVERHEAD + method.name.len() + method.signature.len();
        self.bytes += arguments.sum::<usize>();
        self.methods_told += 1;
        self.methods.push(method);
    }

    pub fn find(&self, address: u64, era: u32) -> Option<Found> {
        self.code.method_at(address, era)
    }

    pub fn method_of(&self, index: MethodIndex) -> Option<&MethodRecord> {
        self.methods.get(index.0 as usize)
    }

    /// How much of the code at `start` should be read, because its first bytes do not tell all of
    /// its rules (they may belong to handlers); once for each method.
    pub fn wants_code(&self, start: u64) -> Option<u32> {
        self.cut.get(&start).map(|(cut, _)| cut.size)
    }

    /// All of the code that starts here, or what could be read of it.
    pub fn take_code(&mut self, start: u64, bytes: &[u8]) {
        let Some((cut, function)) = self.cut.remove(&start) else { return };
        self.uncount(Some(SMALL));
        // Of a process that has ended, nothing can be read: its bridge's records hold.
        if bytes.len() <= cut.known {
            return;
        }
        let rules = method_rules(&MethodCode {
            size: cut.size,
            bytes,
            is_replacement: cut.is_replacement,
            replaced: self.first_code.get(&function).map_or(&[], |code| code),
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
    pub fn keep_only(&mut self, sampled: &[(u64, u32)], signatures: bool) {
        let kept = sampled.iter().filter_map(|&(address, era)| {
            Some(((address, era), names::describe(self, address, era, signatures)?))
        });
        let stubs =
            sampled.iter().filter_map(|(address, _)| Some((*address, self.stub_at(*address)?)));
        *self = Self {
            kept: kept.collect(),
            stubs: stubs.collect(),
            domains: std::mem::take(&mut self.domains),
            enumerated: self.enumerated,
            remarks: std::mem::take(&mut self.remarks),
            methods_told: self.methods_told,
            refused: self.refused + self.code.refused,
            ..Self::default()
        };
    }

    pub fn type_of(&self, module: u64, token: u32) -> Option<&Arc<Type>> {
        self.types.get(&(module, token))
    }

    pub fn module_of(&self, module: u64) -> Option<&Arc<ModuleRecord>> {
        self.modules.get(&module)
    }

    pub fn modules(&self) -> impl ExactSizeIterator<Item = &ModuleRecord> {
        self.modules.values().map(|module| &**module)
    }

    /// Notes that an IL map is requested; false when it was requested before.
    pub fn ask_il_map(&mut self, start: u64) -> bool {
        self.il_maps_asked.insert(start)
    }

    pub fn il_map_of(&self, start: u64) -> Option<&IlMap> {
        self.il_maps.get(&start)
    }

    /// Notes that an address is requested; false when it was requested before.
    pub fn ask(&mut self, address: u64, is_caller: bool) -> bool {
        const MOST: usize = 100_000;
        if self.asked.len() >= MOST || self.asked.contains_key(&address) {
            return false;
        }
        self.asked.insert(address, Asked::Waiting { is_caller });
        self.bytes += SMALL;
        true
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
        if self.stubs.insert(address, name).is_none() {
            self.bytes += SMALL;
        }
        if let Some(stub) = stub
            && let Some(rules) = stub.rules()
        {
            self.code.insert_known_stub(address - stub.offset, stub.size, &rules);
        }
    }

    /// The name of the runtime's own code at an address; `Some(None)` if it has none.
    pub fn stub_at(&self, address: u64) -> Option<Option<&'static str>> {
        self.stubs.get(&address).copied()
    }

    /// Whether the answer about an address is pending.
    pub fn is_waiting_for(&self, address: u64) -> bool {
        matches!(self.asked.get(&address), Some(Asked::Waiting { .. }))
    }
}

fn size_of_type(of_type: &Type) -> usize {
    let parameters = of_type.generic_parameters.iter().map(|text| text.len() + TEXT_OVERHEAD);
    OVERHEAD + of_type.name.len() + of_type.signature.len() + parameters.sum::<usize>()
}

#[cfg(test)]
mod tests {
    use strata_bridge_protocol::field::CodeRangeRecord;
    use strata_bridge_protocol::record::ThreadRecord;

    use super::*;

    /// `push rbp; mov rbp, rsp`, and then what a handler may follow in.
    const CODE: [u8; 8] = [0x55, 0x48, 0x89, 0xe5, 0x90, 0x90, 0x90, 0x90];

    #[test]
    fn what_takes_the_place_of_something_is_counted_in_its_place() {
        let mut runtime = Runtime::default();
        let thread =
            |name: &str| ThreadRecord { os_tid: 7, name: name.into(), ..Default::default() };
        runtime.apply(thread("a name").into(), MAX_BYTES);
        let once = runtime.bytes();
        for _ in 0..1000 {
            runtime.apply(thread("a name").into(), MAX_BYTES);
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
            runtime.apply(method.into(), most);
        }
        assert!(runtime.bytes() < 2 * most, "{}", runtime.bytes());
        assert!(runtime.refused > 0);
    }

    #[test]
    fn code_that_cannot_be_read_leaves_what_was_told() {
        let mut runtime = Runtime::default();
        let range = CodeRangeRecord { start: 0x1000, size: 0x100, code: CODE.into() };
        let method = MethodRecord { ranges: vec![range], ..MethodRecord::default() };
        runtime.apply(method.into(), MAX_BYTES);
        assert_eq!(runtime.wants_code(0x1000), Some(0x100));
        assert_eq!(runtime.code.keeps_frame_pointer(0x1050), Some(true));
        runtime.take_code(0x1000, &[]);
        assert_eq!(runtime.code.keeps_frame_pointer(0x1050), Some(true), "of no bytes");
        assert_eq!(runtime.wants_code(0x1000), None, "it is asked for once");
    }
}
