//! Qualified names of C++ functions that have no linkage name.
//!
//! g++ writes no `DW_AT_linkage_name` for what other object files cannot see: lambdas, members of
//! local classes, templates over either, static functions, anonymous namespaces. Their
//! `DW_AT_name` alone (`operator()`, `sort<…>`) is the same for different functions. The missing
//! part is the path of scopes around the declaration: namespaces, classes, the enclosing function.
//! Neither DWARF nor gimli link an entry to its parent, so each unit asked for is walked once, and
//! of its scopes those are kept that hold such a declaration.
//!
//! A lambda is written with its position, `main::{lambda:8:56}::operator()`: the linker's ordinals
//! (`{lambda(long)#1}`) also count lambdas that are not in the debug information.
//!
//! Invariant: a unit is walked at most once, what is kept is bounded ([`MAX_KEPT_SCOPES`]), and a
//! name takes at most [`MAX_STEPS`] entries, so references in circles end.

use crate::MAX_NAME_BYTES;
use crate::demangle::clean_name;
use gimli::{
    AttributeValue, DebugInfoOffset, DwLang, DwTag, EndianSlice, LittleEndian, UnitOffset,
};
use std::collections::HashMap;
use std::sync::Arc;
use strata_bytes::{bounded_str, bounded_text};

type Slice<'a> = EndianSlice<'a, LittleEndian>;
type Unit<'a> = gimli::Unit<Slice<'a>>;
type UnitRef<'unit, 'a> = gimli::UnitRef<'unit, Slice<'a>>;

/// Scopes around one another that are kept; deeper ones are left out of the name.
const MAX_DEPTH: usize = 32;
/// Entries read for one name: scopes, and the references between them.
const MAX_STEPS: u32 = 64;
/// Scopes kept for a whole file, 32 MiB; units met later have unqualified names.
const MAX_KEPT_SCOPES: usize = 1 << 21;
/// Units kept that are reached only by references from others, as after link-time optimization.
const MAX_OTHER_UNITS: usize = 256;
/// Names kept: an inlined call is sampled at many of its addresses.
const MAX_KEPT_NAMES: usize = 8192;

/// DWARF's code for C++23, which gimli has no name for.
const CPP_23: DwLang = DwLang(0x3a);

/// Whether names of this language are qualified.
#[must_use]
pub fn is_cpp(language: DwLang) -> bool {
    matches!(
        language,
        gimli::DW_LANG_C_plus_plus
            | gimli::DW_LANG_C_plus_plus_03
            | gimli::DW_LANG_C_plus_plus_11
            | gimli::DW_LANG_C_plus_plus_14
            | gimli::DW_LANG_C_plus_plus_17
            | gimli::DW_LANG_C_plus_plus_20
            | CPP_23
    )
}

/// The scopes of one file's units.
pub struct Scopes<'a> {
    dwarf: Arc<gimli::Dwarf<Slice<'a>>>,
    /// By the unit's offset.
    tables: HashMap<usize, ScopeTable>,
    kept: usize,
    /// Where all units begin, read when the first reference leaves its unit.
    unit_offsets: Option<Vec<usize>>,
    other_units: HashMap<usize, Arc<Unit<'a>>>,
    /// By the offsets of unit and entry.
    names: HashMap<(usize, usize), Option<String>>,
}

impl<'a> Scopes<'a> {
    #[must_use]
    pub fn new(dwarf: Arc<gimli::Dwarf<Slice<'a>>>) -> Self {
        Self {
            dwarf,
            tables: HashMap::new(),
            kept: 0,
            unit_offsets: None,
            other_units: HashMap::new(),
            names: HashMap::new(),
        }
    }

    /// The name of the function at `entry` with its scopes; `None` when it has none.
    pub fn qualified(&mut self, unit: UnitRef<'_, 'a>, entry: UnitOffset) -> Option<String> {
        let key = (unit.header.debug_info_offset()?.0, entry.0);
        if let Some(name) = self.names.get(&key) {
            return name.clone();
        }
        let name = self.path(unit, entry, "", MAX_STEPS);
        let name = name.map(|name| bounded_str(&name).to_owned()).filter(|name| !name.is_empty());
        if self.names.len() >= MAX_KEPT_NAMES {
            self.names.clear();
        }
        self.names.insert(key, name.clone());
        name
    }

    /// The scopes and the name of one entry. `child` is the name of the entry inside it that the
    /// path leads to.
    fn path(
        &mut self,
        unit: UnitRef<'_, 'a>,
        offset: UnitOffset,
        child: &str,
        steps: u32,
    ) -> Option<String> {
        let steps = steps.checked_sub(1)?;
        let entry = Entry::read(unit, offset)?;
        if let Some(linkage_name) = entry.linkage_name {
            return Some(clean_name(&bounded_text(&linkage_name)).into_owned());
        }
        let declared = match entry.declaration {
            Some(AttributeValue::UnitRef(declaration)) => {
                self.path(unit, declaration, child, steps)
            }
            Some(AttributeValue::DebugInfoRef(declaration)) => {
                self.path_in_other_unit(declaration, child, steps)
            }
            // In the file of dwz: the name without scopes is known.
            Some(AttributeValue::DebugInfoRefSup(_)) => return None,
            _ => None,
        };
        if declared.is_some() {
            return declared;
        }
        let name = entry.own_name(child);
        let around = self
            .scope_around(unit, offset)
            .and_then(|scope| self.path(unit, scope, &name, steps))
            .filter(|around| !around.is_empty());
        Some(match around {
            // Too long to be shown already: bounds the work of this and all further scopes.
            Some(around) if name.is_empty() || around.len() > MAX_NAME_BYTES => around,
            Some(around) => format!("{around}::{name}"),
            None => name,
        })
    }

    fn path_in_other_unit(
        &mut self,
        offset: DebugInfoOffset,
        child: &str,
        steps: u32,
    ) -> Option<String> {
        let dwarf = Arc::clone(&self.dwarf);
        let offsets = self.unit_offsets.get_or_insert_with(|| unit_offsets(&dwarf));
        let before = offsets.partition_point(|&start| start <= offset.0).checked_sub(1)?;
        let start = *offsets.get(before)?;
        let unit = match self.other_units.get(&start) {
            Some(unit) => Arc::clone(unit),
            None => {
                let header = dwarf.unit_header(DebugInfoOffset(start)).ok()?;
                let unit = Arc::new(dwarf.unit(header).ok()?);
                if self.other_units.len() >= MAX_OTHER_UNITS {
                    self.other_units.clear();
                }
                self.other_units.insert(start, Arc::clone(&unit));
                unit
            }
        };
        let offset = offset.to_unit_offset(&unit.header)?;
        self.path(gimli::UnitRef::new(&dwarf, &unit), offset, child, steps)
    }

    /// The innermost kept scope around an entry.
    fn scope_around(&mut self, unit: UnitRef<'_, 'a>, entry: UnitOffset) -> Option<UnitOffset> {
        let key = unit.header.debug_info_offset()?.0;
        let table = self.tables.entry(key).or_insert_with(|| {
            let table = ScopeTable::walk(unit, MAX_KEPT_SCOPES.saturating_sub(self.kept));
            self.kept = self.kept.saturating_add(table.0.len());
            table
        });
        table.around(entry)
    }
}

fn unit_offsets(dwarf: &gimli::Dwarf<Slice<'_>>) -> Vec<usize> {
    let mut offsets = Vec::new();
    let mut headers = dwarf.units();
    while let Ok(Some(header)) = headers.next() {
        offsets.extend(header.debug_info_offset().map(|offset| offset.0));
    }
    offsets
}

/// What an entry's own attributes say about its name.
struct Entry<'a> {
    tag: DwTag,
    name: Option<Slice<'a>>,
    linkage_name: Option<Slice<'a>>,
    /// The entry that this one completes, is inlined from or extends: its scopes are the ones that
    /// the source has.
    declaration: Option<AttributeValue<Slice<'a>>>,
    /// In a type unit, which has its name.
    elsewhere: bool,
    line: Option<u64>,
    column: Option<u64>,
}

impl<'a> Entry<'a> {
    fn read(unit: UnitRef<'_, 'a>, offset: UnitOffset) -> Option<Self> {
        let mut entries = unit.entries_raw(Some(offset)).ok()?;
        let abbreviation = entries.read_abbreviation().ok()??;
        let mut entry = Self {
            tag: abbreviation.tag(),
            name: None,
            linkage_name: None,
            declaration: None,
            elsewhere: false,
            line: None,
            column: None,
        };
        for specification in abbreviation.attributes() {
            let attribute = entries.read_attribute(*specification).ok()?;
            match attribute.name() {
                gimli::DW_AT_linkage_name | gimli::DW_AT_MIPS_linkage_name => {
                    entry.linkage_name = unit.attr_string(attribute.value()).ok();
                }
                gimli::DW_AT_name => entry.name = unit.attr_string(attribute.value()).ok(),
                gimli::DW_AT_abstract_origin
                | gimli::DW_AT_specification
                | gimli::DW_AT_extension => entry.declaration = Some(attribute.value()),
                gimli::DW_AT_signature => entry.elsewhere = true,
                gimli::DW_AT_decl_line => entry.line = attribute.udata_value(),
                gimli::DW_AT_decl_column => entry.column = attribute.udata_value(),
                _ => {}
            }
        }
        Some(entry)
    }

    /// The name without scopes; empty when there is nothing to show.
    fn own_name(&self, child: &str) -> String {
        let name = self.name.as_ref().map(|name| bounded_text(name)).unwrap_or_default();
        match self.tag {
            gimli::DW_TAG_namespace if name.is_empty() => "(anonymous namespace)".to_owned(),
            tag if !is_class(tag) => name.into_owned(),
            // Older g++ names the class, but all lambdas of one signature alike.
            _ if name.starts_with("<lambda") => self.with_position("lambda"),
            _ if !name.is_empty() || self.elsewhere => name.into_owned(),
            _ if is_member_of_lambda(child) => self.with_position("lambda"),
            _ => self.with_position("unnamed type"),
        }
    }

    fn with_position(&self, kind: &str) -> String {
        match (self.line, self.column) {
            (Some(line), Some(column)) => format!("{{{kind}:{line}:{column}}}"),
            (Some(line), None) => format!("{{{kind}:{line}}}"),
            _ => format!("{{{kind}}}"),
        }
    }
}

/// Call operator, conversion to a function pointer and the function behind that pointer.
fn is_member_of_lambda(name: &str) -> bool {
    name.starts_with("operator") || name.starts_with("_FUN") || name.starts_with("~<lambda")
}

fn is_class(tag: DwTag) -> bool {
    matches!(
        tag,
        gimli::DW_TAG_class_type | gimli::DW_TAG_structure_type | gimli::DW_TAG_union_type
    )
}

fn is_scope(tag: DwTag) -> bool {
    is_class(tag)
        || matches!(
            tag,
            gimli::DW_TAG_namespace | gimli::DW_TAG_subprogram | gimli::DW_TAG_inlined_subroutine
        )
}

/// Whether the scopes around an entry are ever asked for: it is a function's declaration without a
/// linkage name, or a class that is completed elsewhere.
fn is_sought(abbreviation: &gimli::Abbreviation) -> bool {
    let has = |name| abbreviation.attributes().iter().any(|attribute| attribute.name() == name);
    match abbreviation.tag() {
        gimli::DW_TAG_subprogram => {
            !has(gimli::DW_AT_linkage_name)
                && !has(gimli::DW_AT_MIPS_linkage_name)
                && !has(gimli::DW_AT_abstract_origin)
                && !has(gimli::DW_AT_specification)
        }
        tag => is_class(tag) && has(gimli::DW_AT_declaration),
    }
}

/// A scope: the offsets of its entry and of what follows its last child.
struct Scope {
    start: u32,
    end: u32,
    /// The scope around it, an index of the table.
    parent: Option<u32>,
}

/// A scope whose end the walk has not reached.
struct OpenScope {
    index: usize,
    depth: isize,
    sought: bool,
}

/// The scopes of one unit that hold an entry that is sought, in order of their starts.
#[derive(Default)]
struct ScopeTable(Vec<Scope>);

impl ScopeTable {
    /// Walks all entries of the unit; what cannot be read ends the walk, and all scopes that are open
    /// then: what comes later may be in others.
    fn walk(unit: UnitRef<'_, '_>, limit: usize) -> Self {
        let mut table = Self::default();
        let mut open = Vec::new();
        let mut reached = 0;
        let is_whole = table.walk_entries(unit, limit, &mut open, &mut reached).unwrap_or_default();
        table.close(&mut open, isize::MIN, if is_whole { u32::MAX } else { reached });
        table.0.shrink_to_fit();
        table
    }

    fn walk_entries(
        &mut self,
        unit: UnitRef<'_, '_>,
        limit: usize,
        open: &mut Vec<OpenScope>,
        reached: &mut u32,
    ) -> Option<bool> {
        let mut entries = unit.entries_raw(None).ok()?;
        while !entries.is_empty() && self.0.len() < limit {
            let depth = entries.next_depth();
            let start = u32::try_from(entries.next_offset().0).ok()?;
            *reached = start;
            let Some(abbreviation) = entries.read_abbreviation().ok()? else {
                continue;
            };
            entries.skip_attributes(abbreviation.attributes()).ok()?;
            if !is_scope(abbreviation.tag()) {
                continue;
            }
            self.close(open, depth, start);
            if let Some(around) = open.last_mut() {
                around.sought |= is_sought(abbreviation);
            }
            if abbreviation.has_children() && open.len() < MAX_DEPTH {
                let parent = open.last().and_then(|around| u32::try_from(around.index).ok());
                open.push(OpenScope { index: self.0.len(), depth, sought: false });
                self.0.push(Scope { start, end: u32::MAX, parent });
            }
        }
        Some(entries.is_empty())
    }

    /// Closes the scopes that do not reach to an entry of `depth` at `end`, and drops those of them
    /// that hold nothing sought: the last ones of the table, as all inside them were dropped before.
    fn close(&mut self, open: &mut Vec<OpenScope>, depth: isize, end: u32) {
        while let Some(scope) = open.pop_if(|scope| scope.depth >= depth) {
            if !scope.sought {
                self.0.truncate(scope.index);
                continue;
            }
            if let Some(closed) = self.0.get_mut(scope.index) {
                closed.end = end;
            }
            if let Some(around) = open.last_mut() {
                around.sought = true;
            }
        }
    }

    /// The innermost scope around an entry.
    fn around(&self, entry: UnitOffset) -> Option<UnitOffset> {
        let offset = u32::try_from(entry.0).ok()?;
        let mut index = self.0.partition_point(|scope| scope.start < offset).checked_sub(1)?;
        loop {
            let scope = self.0.get(index)?;
            if scope.end > offset {
                return usize::try_from(scope.start).ok().map(UnitOffset);
            }
            index = usize::try_from(scope.parent?).ok()?;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NAMESPACE: u8 = 2;
    const FUNCTION: u8 = 3;
    const COMPLETED_FUNCTION: u8 = 4;
    const LINKED_FUNCTION: u8 = 5;

    /// Code, tag, children, then attributes and forms.
    fn abbreviations() -> Vec<u8> {
        let unit = [1, 0x11, 1, 0, 0];
        let others = [
            [NAMESPACE, 0x39, 1, 0x03, 0x08, 0, 0],          // a name
            [FUNCTION, 0x2e, 0, 0x03, 0x08, 0, 0],           // a name
            [COMPLETED_FUNCTION, 0x2e, 0, 0x47, 0x13, 0, 0], // a specification
            [LINKED_FUNCTION, 0x2e, 0, 0x6e, 0x08, 0, 0],    // a linkage name
        ];
        [&unit[..], others.as_flattened(), &[0]].concat()
    }

    /// The unit's header and its first entry.
    const FIRST: usize = 12;

    /// A unit of these entries.
    fn unit_of(entries: &[u8]) -> Vec<u8> {
        let mut unit = vec![4, 0, 0, 0, 0, 0, 8, 1];
        unit.extend_from_slice(entries);
        let length = u32::try_from(unit.len()).unwrap();
        let mut section = length.to_le_bytes().to_vec();
        section.append(&mut unit);
        section
    }

    fn named(kind: u8, name: &str) -> Vec<u8> {
        [&[kind], name.as_bytes(), &[0]].concat()
    }

    /// The name of the entry at `offset`, and how many scopes are kept.
    fn name_at(section: &[u8], offset: usize) -> (Option<String>, usize) {
        let abbreviations = abbreviations();
        let dwarf = gimli::Dwarf::load(|id| {
            let bytes = match id {
                gimli::SectionId::DebugAbbrev => abbreviations.as_slice(),
                gimli::SectionId::DebugInfo => section,
                _ => &[],
            };
            Ok::<_, gimli::Error>(EndianSlice::new(bytes, LittleEndian))
        });
        let dwarf = Arc::new(dwarf.unwrap());
        let unit = dwarf.unit(dwarf.units().next().unwrap().unwrap()).unwrap();
        let mut scopes = Scopes::new(Arc::clone(&dwarf));
        let name = scopes.qualified(gimli::UnitRef::new(&dwarf, &unit), UnitOffset(offset));
        (name, scopes.kept)
    }

    #[test]
    fn a_function_has_the_scopes_of_its_declaration() {
        let mut entries = named(NAMESPACE, "shop");
        let declaration = u8::try_from(FIRST + entries.len()).unwrap();
        entries.extend(named(FUNCTION, "pay"));
        entries.push(0);
        let definition = FIRST + entries.len();
        entries.extend([COMPLETED_FUNCTION, declaration, 0, 0, 0, 0]);
        assert_eq!(name_at(&unit_of(&entries), definition), (Some("shop::pay".to_owned()), 1));
    }

    #[test]
    fn declarations_in_circles_end() {
        let (first, second) = (12, 17);
        let entries = [COMPLETED_FUNCTION, second, 0, 0, 0, COMPLETED_FUNCTION, first, 0, 0, 0, 0];
        assert_eq!(name_at(&unit_of(&entries), FIRST).0, None);
    }

    #[test]
    fn scopes_without_end_are_left_out() {
        let mut entries = named(NAMESPACE, "a").repeat(1000);
        let function = FIRST + entries.len();
        entries.extend(named(FUNCTION, "f"));
        let (name, kept) = name_at(&unit_of(&entries), function);
        assert_eq!(name, Some(format!("{}f", "a::".repeat(MAX_DEPTH))));
        assert_eq!(kept, MAX_DEPTH);
    }

    #[test]
    fn long_scopes_are_truncated() {
        let mut entries = named(NAMESPACE, &"a".repeat(MAX_NAME_BYTES / 2)).repeat(20);
        let function = FIRST + entries.len();
        entries.extend(named(FUNCTION, "f"));
        let (name, _) = name_at(&unit_of(&entries), function);
        assert_eq!(name.unwrap().len(), MAX_NAME_BYTES);
    }

    #[test]
    fn scopes_of_functions_with_a_linkage_name_are_not_kept() {
        let mut entries = named(NAMESPACE, "shop");
        entries.extend(named(LINKED_FUNCTION, "_ZN4shop3payEv"));
        entries.push(0);
        let function = FIRST + entries.len();
        entries.extend(named(FUNCTION, "main"));
        assert_eq!(name_at(&unit_of(&entries), function), (Some("main".to_owned()), 0));
    }
}
