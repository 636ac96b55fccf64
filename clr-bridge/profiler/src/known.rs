//! What was already reported: modules, types, classes as type arguments, and starts of code.
//!
//! One lock guards it all. **Invariant:** nothing here calls the runtime, so the lock is never held
//! while the runtime waits for something. Names are looked up first, without the lock, and entered
//! afterwards; two threads that do so at once write the same record twice, which is harmless.

use crate::com::metadata::Importer;
use crate::image::ReadyToRun;
use crate::metadata::Metadata;
use strata_bridge_protocol::table::{NoMemory, Table};

/// A module as methods need it.
#[derive(Clone, Copy)]
pub struct Module {
    pub id: usize,
    /// Never used again in this session, unlike the id.
    pub serial: u32,
    pub app_domain: usize,
    pub base: usize,
    pub size: u32,
    pub ready_to_run: Option<ReadyToRun>,
    /// The lowest address of code in the image that is known to have been prepared to run; 0: none.
    pub prepared: usize,
    /// `None` for a module without any.
    pub metadata: Option<Metadata>,
    /// Its record is in the log.
    pub reported: bool,
}

impl Module {
    pub fn contains(&self, address: usize) -> bool {
        self.base != 0
            && address.checked_sub(self.base).is_some_and(|offset| offset < self.size as usize)
    }
}

/// Code that was written to the log.
#[derive(Clone, Copy, Default)]
struct Code {
    function: usize,
    module_serial: u32,
}

/// The position of a class's text in the arena; empty for a reference type.
#[derive(Clone, Copy, Default)]
struct ClassText {
    offset: u32,
    length: u32,
}

/// The type definition of a class that has methods.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Owner {
    pub token: u32,
    /// The class has type arguments.
    pub generic: bool,
}

pub struct Known {
    modules: Vec<Module>,
    module_slots: Table<u32>,
    next_serial: u32,
    types: Table<()>,
    classes: Table<ClassText>,
    owners: Table<Owner>,
    arena: String,
    code: Table<Code>,
    dynamic: Table<usize>,
}

/// Bytes of text of classes, and classes, that are kept.
const MOST_TEXT: usize = 2 << 20;
const MOST_CLASSES: usize = 65_536;

fn type_key(serial: u32, token: u32) -> u64 {
    u64::from(serial) << 32 | u64::from(token)
}

impl Known {
    pub const fn new() -> Self {
        Known {
            modules: Vec::new(),
            module_slots: Table::new(),
            next_serial: 1,
            types: Table::new(),
            classes: Table::new(),
            owners: Table::new(),
            arena: String::new(),
            code: Table::new(),
            dynamic: Table::new(),
        }
    }

    pub fn module(&self, id: usize) -> Option<Module> {
        let slot = self.module_slots.get(id as u64)?;
        self.modules.get(slot as usize).copied()
    }

    /// Enters a module with a serial of its own, unless it is present. Returns the entry, and
    /// whether it is the caller's.
    pub fn enter_module(&mut self, mut module: Module) -> Result<(Module, bool), NoMemory> {
        if let Some(there) = self.module(module.id) {
            return Ok((there, false));
        }
        self.modules.try_reserve(1).map_err(|_| NoMemory)?;
        module.serial = self.next_serial;
        let slot = u32::try_from(self.modules.len()).map_err(|_| NoMemory)?;
        self.module_slots.insert(module.id as u64, slot)?;
        self.modules.push(module);
        self.next_serial += 1;
        Ok((module, true))
    }

    /// Notes that the record of a module is in the log.
    pub fn set_reported(&mut self, serial: u32) {
        // They are in the order of their serials.
        let position = self.modules.binary_search_by_key(&serial, |module| module.serial);
        if let Some(module) = position.ok().and_then(|position| self.modules.get_mut(position)) {
            module.reported = true;
        }
    }

    /// The module in whose image an address lies.
    pub fn module_at(&self, address: usize) -> Option<&Module> {
        self.modules.iter().find(|module| module.contains(address))
    }

    /// Some modules have their code in an image that belongs to none of them.
    pub fn has_components(&self) -> bool {
        self.modules.iter().any(|module| module.ready_to_run.is_some_and(|code| code.is_component))
    }

    /// Sets the importer through which a module's metadata is read from now on, unless there is one
    /// already. Returns the one in use, and whether it is this one.
    pub fn set_importer(&mut self, id: usize, importer: Importer) -> (Option<Module>, bool) {
        let slot = self.module_slots.get(id as u64);
        let module = slot.and_then(|slot| self.modules.get_mut(slot as usize));
        let Some(module) = module else { return (None, false) };
        let is_new = matches!(module.metadata, Some(Metadata::Mapped(_)));
        if is_new {
            module.metadata = Some(Metadata::Importer(importer));
        }
        (Some(*module), is_new)
    }

    /// Removes a module and everything of it. Its code is passed to `each`, as function and start.
    /// Classes of other modules may have its types as arguments, so all classes are removed.
    pub fn forget_module(
        &mut self,
        id: usize,
        mut each: impl FnMut(usize, usize),
    ) -> Option<Module> {
        let gone = self.module(id)?;
        self.modules.retain(|module| module.id != id);
        self.module_slots.clear();
        for (slot, module) in self.modules.iter().enumerate() {
            // Slots lost for lack of memory are entered again when they are needed.
            let _ = self.module_slots.insert(module.id as u64, slot as u32);
        }
        self.types.retain(|key, _| key >> 32 != u64::from(gone.serial));
        self.forget_classes();
        self.code.retain(|start, code| {
            let stays = code.module_serial != gone.serial;
            if !stays {
                each(code.function, start as usize);
            }
            stays
        });
        Some(gone)
    }

    pub fn forget_classes(&mut self) {
        self.classes.clear();
        self.owners.clear();
        self.arena.clear();
    }

    pub fn has_type(&self, serial: u32, token: u32) -> bool {
        self.types.get(type_key(serial, token)).is_some()
    }

    pub fn enter_type(&mut self, serial: u32, token: u32) -> Result<(), NoMemory> {
        self.types.insert(type_key(serial, token), ()).map(drop)
    }

    /// The text of a class as a type argument: empty for reference types.
    pub fn class(&self, class: usize) -> Option<&str> {
        let ClassText { offset, length } = self.classes.get(class as u64)?;
        self.arena.get(offset as usize..(offset + length) as usize)
    }

    /// Enters a class. The number of texts is unbounded, so at the limit all are dropped, and
    /// looked up again when they are needed.
    pub fn enter_class(&mut self, class: usize, text: &str) -> Result<(), NoMemory> {
        if self.arena.len() + text.len() > MOST_TEXT || self.classes.len() >= MOST_CLASSES {
            self.classes = Table::new();
            self.arena = String::new();
        }
        self.arena.try_reserve(text.len()).map_err(|_| NoMemory)?;
        let offset = u32::try_from(self.arena.len()).map_err(|_| NoMemory)?;
        let length = u32::try_from(text.len()).map_err(|_| NoMemory)?;
        self.arena.push_str(text);
        self.classes.insert(class as u64, ClassText { offset, length }).map(drop)
    }

    pub fn owner(&self, class: usize) -> Option<Owner> {
        self.owners.get(class as u64)
    }

    pub fn enter_owner(&mut self, class: usize, owner: Owner) -> Result<(), NoMemory> {
        self.owners.insert(class as u64, owner).map(drop)
    }

    pub fn has_code(&self, start: usize, function: usize) -> bool {
        self.code.get(start as u64).is_some_and(|code| code.function == function)
    }

    /// Enters code, and returns whether it is new. Without memory it counts as new: reported twice
    /// is better than not at all.
    pub fn enter_code(&mut self, start: usize, function: usize, module: &Module) -> bool {
        if module.contains(start)
            && let Some(slot) = self.module_slots.get(module.id as u64)
            && let Some(module) = self.modules.get_mut(slot as usize)
            && (module.prepared == 0 || start < module.prepared)
        {
            module.prepared = start;
        }
        let is_new = !self.has_code(start, function);
        let code = Code { function, module_serial: module.serial };
        self.code.insert(start as u64, code).map_or(true, |_| is_new)
    }

    /// Keeps the start of a dynamic method's code, which is needed again when it ends.
    pub fn enter_dynamic(&mut self, function: usize, start: usize) -> Result<(), NoMemory> {
        self.dynamic.insert(function as u64, start).map(drop)
    }

    pub fn forget_dynamic(&mut self, function: usize) -> Option<usize> {
        self.dynamic.remove(function as u64)
    }

    /// The objects to release at the end.
    pub fn metadata(&self) -> impl Iterator<Item = &Metadata> {
        self.modules.iter().filter_map(|module| module.metadata.as_ref())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn module(id: usize) -> Module {
        Module {
            id,
            serial: 0,
            app_domain: 1,
            base: 0,
            size: 0,
            ready_to_run: None,
            prepared: 0,
            metadata: None,
            reported: true,
        }
    }

    #[test]
    fn a_module_that_comes_again_at_the_same_address_is_another() {
        let mut known = Known::new();
        let (first, new) = known.enter_module(module(0x1000)).unwrap();
        assert!(new);
        assert!(!known.enter_module(module(0x1000)).unwrap().1);
        known.enter_type(first.serial, 0x0200_0002).unwrap();
        assert!(known.enter_code(0x4000, 7, &first));
        assert!(!known.enter_code(0x4000, 7, &first));

        let mut gone = Vec::new();
        known.forget_module(0x1000, |function, start| gone.push((function, start)));
        assert_eq!(gone, [(7, 0x4000)]);
        assert!(known.module(0x1000).is_none());

        let (second, new) = known.enter_module(module(0x1000)).unwrap();
        assert!(new);
        assert_ne!(first.serial, second.serial);
        assert!(!known.has_type(second.serial, 0x0200_0002));
        assert!(known.enter_code(0x4000, 7, &second));
    }

    #[test]
    fn a_module_is_reported_once_its_record_was_written() {
        let mut known = Known::new();
        for id in [0x1000, 0x2000, 0x3000] {
            known.enter_module(Module { reported: false, ..module(id) }).unwrap();
        }
        known.forget_module(0x1000, |_, _| ());
        let serial = known.module(0x3000).map_or(0, |module| module.serial);
        known.set_reported(serial);
        let is_reported = |id| known.module(id).map(|module| module.reported);
        assert_eq!([0x2000, 0x3000].map(is_reported), [Some(false), Some(true)]);
    }

    #[test]
    fn texts_of_classes_are_bounded() {
        let mut known = Known::new();
        let text = "x".repeat(1_000);
        for class in 1..10_000 {
            known.enter_class(class, &text).unwrap();
            assert_eq!(known.class(class), Some(text.as_str()));
        }
        assert!(known.arena.len() <= MOST_TEXT);
        assert_eq!(known.class(1), None);
    }

    #[test]
    fn the_lowest_code_in_an_image_is_kept() {
        let mut known = Known::new();
        let image = Module { base: 0x10_0000, size: 0x1000, ..module(0x1000) };
        let (entered, _) = known.enter_module(image).unwrap();
        for start in [0x50_0000, 0x10_0800, 0x10_0400, 0x10_0600] {
            known.enter_code(start, 7, &entered);
        }
        assert_eq!(known.module_at(0x10_0fff).map(|module| module.prepared), Some(0x10_0400));
        assert!(known.module_at(0x10_1000).is_none());
    }

    #[test]
    fn other_modules_stay_when_one_goes() {
        let mut known = Known::new();
        for id in [0x1000, 0x2000, 0x3000] {
            known.enter_module(module(id)).unwrap();
        }
        known.forget_module(0x2000, |_, _| ());
        assert!(known.module(0x1000).is_some() && known.module(0x2000).is_none());
        assert_eq!(known.module(0x3000).map(|module| module.id), Some(0x3000));
    }

    #[test]
    fn classes_keep_their_text_and_reference_types_are_empty() {
        let mut known = Known::new();
        known.enter_class(1, "System.Int32").unwrap();
        known.enter_class(2, "").unwrap();
        assert_eq!(known.class(1), Some("System.Int32"));
        assert_eq!(known.class(2), Some(""));
        assert_eq!(known.class(3), None);
    }
}
