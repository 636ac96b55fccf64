//! The modules of one process, and the types in them.
//!
//! The runtime's ids of modules are addresses, so a module that is loaded after the end of another
//! may have its id. Methods refer to an entry here, which stays until the last method of an unloaded
//! module is gone: until the samples of it were described.

use std::sync::Arc;

use strata_bridge_protocol::record::{ModuleRecord, TypeRecord};

use super::text_bytes;
use crate::hash::HashMap;

/// A type as records refer to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Type {
    pub name: Box<str>,
    pub signature: Box<[u8]>,
    pub generic_parameters: Box<[Box<str>]>,
}

impl Type {
    fn new(record: TypeRecord) -> Self {
        let parameters = record.generic_parameters.into_iter().map(String::into_boxed_str);
        Self {
            name: record.name.into(),
            signature: record.signature.into(),
            generic_parameters: parameters.collect(),
        }
    }

    pub fn bytes(&self) -> usize {
        /// Of the table that it lies in, and its share of the blocks.
        const ENTRY: usize = 2 * size_of::<u32>() + 16 + size_of::<Type>() + 16;
        let texts: usize = self.generic_parameters.iter().map(|text| text_bytes(text)).sum();
        ENTRY + self.name.len() + self.signature.len() + texts
    }
}

/// Position of a module.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ModuleIndex(u32);

impl ModuleIndex {
    #[cfg(test)]
    pub const NONE: Self = Self(u32::MAX);
}

#[derive(Default)]
pub struct Module {
    id: u64,
    /// `None`: only its types or methods were reported.
    pub record: Option<Arc<ModuleRecord>>,
    types: HashMap<u32, Arc<Type>>,
    /// Methods that are kept.
    methods: usize,
    is_unloaded: bool,
}

impl Module {
    pub fn type_of(&self, token: u32) -> Option<&Arc<Type>> {
        self.types.get(&token)
    }

    fn bytes(&self) -> usize {
        let record = self.record.as_ref();
        let record = record.map_or(0, |record| record_bytes(record));
        ENTRY + record + self.types.values().map(|of_type| of_type.bytes()).sum::<usize>()
    }
}

/// A module without its record and types.
const ENTRY: usize = size_of::<Module>() + 2 * size_of::<(u64, u32)>();

fn record_bytes(record: &ModuleRecord) -> usize {
    size_of::<ModuleRecord>() + text_bytes(&record.path) + text_bytes(&record.assembly)
}

#[derive(Default)]
pub struct Modules {
    places: Vec<Option<Module>>,
    free: Vec<u32>,
    /// By the runtime's id: those that are loaded.
    loaded: HashMap<u64, ModuleIndex>,
    bytes: usize,
    /// Counts the records of loaded modules.
    changes: usize,
}

impl Modules {
    /// The module that has this id now.
    pub fn enter(&mut self, id: u64) -> ModuleIndex {
        if let Some(known) = self.loaded.get(&id) {
            return *known;
        }
        let module = Module { id, ..Module::default() };
        self.bytes += ENTRY;
        let index = match self.free.pop() {
            Some(index) => {
                if let Some(place) = self.places.get_mut(index as usize) {
                    *place = Some(module);
                }
                index
            }
            None => {
                self.places.push(Some(module));
                (self.places.len() - 1) as u32
            }
        };
        self.loaded.insert(id, ModuleIndex(index));
        ModuleIndex(index)
    }

    fn place(&mut self, index: ModuleIndex) -> Option<&mut Module> {
        self.places.get_mut(index.0 as usize)?.as_mut()
    }

    pub fn get(&self, index: ModuleIndex) -> Option<&Module> {
        self.places.get(index.0 as usize)?.as_ref()
    }

    pub fn loaded(&mut self, record: ModuleRecord) {
        let index = self.enter(record.module);
        let added = record_bytes(&record);
        let Some(module) = self.place(index) else { return };
        if module.record.as_deref() == Some(&record) {
            return;
        }
        let before = module.record.replace(Arc::new(record));
        let before = before.map_or(0, |before| record_bytes(&before));
        self.bytes = self.bytes + added - before;
        self.changes += 1;
    }

    pub fn add_type(&mut self, record: TypeRecord) {
        let (index, token) = (self.enter(record.module), record.token);
        let of_type = Type::new(record);
        let added = of_type.bytes();
        let Some(module) = self.place(index) else { return };
        let before = module.types.insert(token, Arc::new(of_type));
        let before = before.map_or(0, |before| before.bytes());
        self.bytes = self.bytes + added - before;
    }

    /// A module is gone. It is kept while methods of it are.
    pub fn unloaded(&mut self, id: u64) {
        let Some(index) = self.loaded.remove(&id) else { return };
        if let Some(module) = self.place(index) {
            module.is_unloaded = true;
        }
        self.drop_unused(index);
    }

    /// A method of a module is kept.
    pub fn add_method(&mut self, index: ModuleIndex) {
        if let Some(module) = self.place(index) {
            module.methods += 1;
        }
    }

    /// A method of a module is kept no longer.
    pub fn remove_method(&mut self, index: ModuleIndex) {
        if let Some(module) = self.place(index) {
            module.methods -= 1;
        }
        self.drop_unused(index);
    }

    /// Drops a module that is unloaded, or of which nothing is known but its id.
    fn drop_unused(&mut self, index: ModuleIndex) {
        let Some(place) = self.places.get_mut(index.0 as usize) else { return };
        let is_unused = |module: &mut Module| {
            let is_empty = module.record.is_none() && module.types.is_empty();
            module.methods == 0 && (module.is_unloaded || is_empty)
        };
        if let Some(module) = place.take_if(is_unused) {
            self.bytes -= module.bytes();
            if !module.is_unloaded {
                self.loaded.remove(&module.id);
            }
            self.free.push(index.0);
        }
    }

    /// The records of those that are loaded.
    pub fn records(&self) -> impl Iterator<Item = &ModuleRecord> {
        let loaded = self.loaded.values().filter_map(|index| self.get(*index));
        loaded.filter_map(|module| module.record.as_deref())
    }

    /// The ids of those that were reported and are loaded.
    pub fn ids(&self) -> impl Iterator<Item = u64> {
        self.records().map(|record| record.module)
    }

    /// Grows with every module that is loaded.
    pub fn changes(&self) -> usize {
        self.changes
    }

    pub fn bytes(&self) -> usize {
        self.bytes + self.free.len() * size_of::<Option<Module>>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(id: u64, assembly: &str) -> ModuleRecord {
        ModuleRecord { module: id, assembly: assembly.into(), ..ModuleRecord::default() }
    }

    fn a_type(id: u64, name: &str) -> TypeRecord {
        TypeRecord { module: id, token: 1, name: name.into(), ..TypeRecord::default() }
    }

    #[test]
    fn a_module_with_the_id_of_an_unloaded_one_is_another() {
        let mut modules = Modules::default();
        modules.add_type(a_type(8, "First"));
        modules.loaded(record(8, "first"));
        let first = modules.enter(8);
        modules.add_method(first);
        modules.unloaded(8);
        modules.add_type(a_type(8, "Second"));
        modules.loaded(record(8, "second"));
        let second = modules.enter(8);
        let name = |modules: &Modules, index| {
            let module: &Module = modules.get(index)?;
            Some((module.record.as_ref()?.assembly.clone(), module.type_of(1)?.name.to_string()))
        };
        assert_eq!(name(&modules, first), Some(("first".into(), "First".into())));
        assert_eq!(name(&modules, second), Some(("second".into(), "Second".into())));
        assert_eq!(modules.records().count(), 1);
        modules.remove_method(first);
        assert!(modules.get(first).is_none());
    }

    #[test]
    fn modules_that_come_and_go_leave_nothing_behind() {
        let mut modules = Modules::default();
        let mut once = 0;
        for turn in 0..1000 {
            for id in 0..8 {
                modules.loaded(record(id, "an assembly"));
                modules.add_type(a_type(id, "A.Type"));
                let index = modules.enter(id);
                modules.add_method(index);
                modules.unloaded(id);
                modules.remove_method(index);
            }
            if turn == 0 {
                once = modules.bytes();
            }
            assert_eq!(modules.bytes(), once);
        }
        // Of one that was never reported, only methods were.
        let index = modules.enter(99);
        modules.add_method(index);
        modules.remove_method(index);
        assert_eq!(modules.bytes(), once);
        assert!(modules.loaded.is_empty());
    }
}
