//! Names of methods by what they are made of: processes that run the same program have the same ones,
//! and share them.
//!
//! Invariant: a cached name is returned only if every input is equal, including the types that the
//! signature refers to. So a process affects only its own names; a hostile one may cost others the
//! saving.

use std::cell::{Cell, RefCell};
use std::hash::BuildHasher;
use std::sync::Arc;

use strata_bridge_protocol::record::MethodKind;

use super::methods::Method;
use super::modules::{Module, Type};
use super::names::Name;
use crate::hash::HashMap;

/// The memory of all entries. When it is full, the cache is emptied.
const MOST_BYTES: usize = 2 << 20;
/// Memory of one entry, its types included; a larger one is not cached.
const LONGEST: usize = 4 << 10;
/// What an entry takes besides texts.
const ENTRY: usize = 200;

/// What a name is made of.
#[derive(Clone, Copy)]
pub struct Inputs<'a> {
    pub method: &'a Method,
    pub module: Option<&'a Module>,
    pub of_type: Option<&'a Arc<Type>>,
    pub with_signature: bool,
}

/// The types that a signature refers to, by token.
pub type Types = Vec<(u32, Option<Arc<Type>>)>;

struct Entry {
    texts: Box<[u8]>,
    kind: Option<MethodKind>,
    token: u32,
    with_signature: bool,
    of_type: Option<Arc<Type>>,
    types: Types,
    name: Name,
}

impl Entry {
    fn is_of(&self, inputs: &Inputs<'_>) -> bool {
        let Inputs { method, module, of_type, with_signature } = inputs;
        let type_of = |token| module.and_then(|module| module.type_of(token));
        *self.texts == *method.encoded_texts()
            && self.kind == method.kind()
            && self.token == method.token
            && self.with_signature == *with_signature
            && self.of_type.as_ref() == *of_type
            && self.types.iter().all(|(token, known)| type_of(*token) == known.as_ref())
    }

    fn bytes(&self) -> usize {
        let types = self.types.iter().filter_map(|(_, of_type)| of_type.as_ref());
        let types: usize = types.chain(&self.of_type).map(|of_type| of_type.bytes()).sum();
        let tokens = self.types.len() * size_of::<(u32, Option<Arc<Type>>)>();
        ENTRY + self.texts.len() + tokens + types + self.name.bytes()
    }
}

#[derive(Default)]
pub struct NameCache {
    entries: RefCell<HashMap<u64, Entry>>,
    bytes: Cell<usize>,
}

impl NameCache {
    /// The name of a method, made if no equal one has it.
    pub fn get_or_make(&self, inputs: &Inputs<'_>, make: impl FnOnce() -> (Name, Types)) -> Name {
        let mut entries = self.entries.borrow_mut();
        let method = inputs.method;
        let type_name = inputs.of_type.map(|of_type| &*of_type.name);
        let hash = entries.hasher().hash_one((method.encoded_texts(), method.token, type_name));
        if let Some(entry) = entries.get(&hash).filter(|entry| entry.is_of(inputs)) {
            return entry.name.clone();
        }
        let (name, types) = make();
        let entry = Entry {
            texts: method.encoded_texts().into(),
            kind: method.kind(),
            token: method.token,
            with_signature: inputs.with_signature,
            of_type: inputs.of_type.cloned(),
            types,
            name: name.clone(),
        };
        let bytes = entry.bytes();
        if bytes > LONGEST {
            return name;
        }
        if self.bytes.get() + bytes > MOST_BYTES {
            // Keeps the table, with the seed that `hash` was made with.
            entries.clear();
            self.bytes.set(0);
        }
        let before = entries.insert(hash, entry);
        let gone = before.map_or(0, |before| before.bytes());
        self.bytes.set((self.bytes.get() + bytes).saturating_sub(gone));
        name
    }
}

#[cfg(test)]
mod tests {
    use strata_bridge_protocol::record::{MethodRecord, Record, TypeRecord};

    use super::super::names::tests::{described_with, sized_method};
    use super::super::runtime::Runtime;
    use super::*;

    const TYPE: u32 = 0x0200_0002;
    const ARGUMENT: u32 = 0x0200_0003;
    const START: u64 = 0x1000;

    /// A process with `type_name.method(argument)`.
    fn process(module: u64, type_name: &str, method: &str, argument: &str) -> Runtime {
        let mut runtime = Runtime::default();
        for (token, name) in [(TYPE, type_name), (ARGUMENT, argument)] {
            let name = name.to_owned();
            let record = TypeRecord { module, token, name, ..TypeRecord::default() };
            runtime.take_record(Record::Type(record), usize::MAX);
        }
        // One parameter, returns nothing, of a class: by its compressed token.
        let signature = vec![0, 1, 1, 0x12, (ARGUMENT as u8) << 2];
        let record = MethodRecord {
            module,
            type_token: TYPE,
            name: method.into(),
            signature,
            ..sized_method(START)
        };
        runtime.take_record(Record::Method(record), usize::MAX);
        runtime
    }

    #[test]
    fn processes_share_a_name_only_where_all_is_equal_that_it_is_made_of() {
        let cache = NameCache::default();
        let name = |runtime: &Runtime| {
            described_with(&cache, runtime, START).expect("it is there").frame.name
        };
        let first = name(&process(7, "A.B", "Run", "C.D"));
        assert_eq!(&*first, "A.B.Run(C.D)");
        let same = name(&process(8, "A.B", "Run", "C.D"));
        assert!(Arc::ptr_eq(&first, &same), "its module has another number");
        assert_eq!(&*name(&process(7, "A.X", "Run", "C.D")), "A.X.Run(C.D)");
        assert_eq!(&*name(&process(7, "A.B", "Go", "C.D")), "A.B.Go(C.D)");
        assert_eq!(&*name(&process(7, "A.B", "Run", "C.Lie")), "A.B.Run(C.Lie)");
        assert_eq!(&*name(&process(7, "A.B", "Run", "C.D")), "A.B.Run(C.D)");
    }

    #[test]
    fn every_input_of_a_name_is_compared() {
        type Change = dyn Fn(&mut MethodRecord, &mut TypeRecord);
        let record = |change: &Change| {
            let mut runtime = Runtime::default();
            let mut of_type = TypeRecord {
                module: 7,
                token: TYPE,
                name: "A.B`1".into(),
                generic_parameters: vec!["T".into()],
                ..TypeRecord::default()
            };
            let mut method = MethodRecord {
                module: 7,
                type_token: TYPE,
                token: 0x0600_0001,
                name: "Run".into(),
                // One parameter: the first generic parameter of the type.
                signature: vec![0, 1, 1, 0x13, 0],
                ..sized_method(START)
            };
            change(&mut method, &mut of_type);
            runtime.take_record(Record::Type(of_type), usize::MAX);
            runtime.take_record(Record::Method(method), usize::MAX);
            runtime
        };
        let changes: [&Change; 7] = [
            &|_, _| {},
            &|method, _| method.token = 0,
            &|method, _| method.kind = MethodKind::Dynamic as u8,
            &|method, _| method.generic_parameters = vec!["U".into()],
            &|method, _| method.class_arguments = vec!["System.Int32".into()],
            &|method, _| method.signature = vec![0, 0, 1],
            &|_, of_type| of_type.generic_parameters = vec!["X".into()],
        ];
        let cache = NameCache::default();
        let fresh = |runtime: &Runtime| {
            described_with(&NameCache::default(), runtime, START).expect("a name").frame
        };
        for change in changes {
            let runtime = record(change);
            let cached = described_with(&cache, &runtime, START).expect("a name").frame;
            assert_eq!(cached, fresh(&runtime));
        }
        assert_eq!(cache.entries.borrow().len(), changes.len() - 2, "by texts, token and type");
        let runtime = record(changes[0]);
        let plain = Inputs {
            method: runtime.method_of(runtime.find(START, 0).expect("it").method).expect("it"),
            module: None,
            of_type: None,
            with_signature: false,
        };
        let mut made = 0;
        for with_signature in [false, true, true] {
            let inputs = Inputs { with_signature, ..plain };
            cache.get_or_make(&inputs, || {
                made += 1;
                let frame = fresh(&runtime);
                (Name { frame, open: None }, vec![(ARGUMENT, None)])
            });
        }
        assert_eq!(made, 2);
    }

    #[test]
    fn the_names_of_a_process_that_makes_very_many_take_no_more_than_their_memory() {
        let cache = NameCache::default();
        for number in 0..3000 {
            let method = format!("Run{number}{}", "n".repeat(300));
            let runtime = process(7, "A.B", &method, "C.D");
            let name = || described_with(&cache, &runtime, START).expect("a name").frame.name;
            let first = name();
            assert!(first.contains(&method));
            assert!(Arc::ptr_eq(&first, &name()), "also that which found no room");
            assert!(cache.bytes.get() <= MOST_BYTES);
        }
        let counted: usize = cache.entries.borrow().values().map(Entry::bytes).sum();
        assert_eq!(cache.bytes.get(), counted);
    }
}
