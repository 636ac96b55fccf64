//! The unwind tables of a process's code: one for each of its mappings.

use std::sync::Arc;

use strata_sandbox::OpenFile;

use super::{Loading, Missing, State, TableKey, TableState, Unknown};
use crate::managed::units::Units;
use crate::processes::mapped::FileId;
use crate::processes::table::{Backing, MappedProgram, Mapping, Space};
use crate::tables::extents::{Code, Stretch, Table};

impl Loading {
    /// How a process's code is unwound, and whether all its tables are loaded: those still missing
    /// are requested, and treated meanwhile as `missing` specifies.
    pub fn code_of(
        &mut self,
        space: &Space,
        program: Option<&MappedProgram<'_>>,
        generated: Option<&Units>,
        missing: Missing,
    ) -> (Vec<Stretch>, bool) {
        let mappings = space.mappings();
        let mut code: Vec<Stretch> = Vec::with_capacity(mappings.len());
        let mut complete = true;
        for mapping in mappings {
            let (start, end) = (mapping.start, mapping.end);
            let known = match mapping.backing {
                Backing::Anonymous | Backing::Runtime => {
                    match generated {
                        Some(units) => {
                            complete &=
                                self.code_of_memory(program, (start, end), units, &mut code);
                        }
                        None => code.push(Stretch { start, end, code: Code::FramePointer }),
                    }
                    continue;
                }
                Backing::Vdso => Ok(self.vdso.clone().and_then(|table| in_table(table, mapping))),
                Backing::File(file) => self.code_of_file(file, mapping),
            };
            let known = match known {
                Ok(known) => known,
                Err(Unknown) => {
                    complete = false;
                    if missing == Missing::LeaveOut {
                        continue;
                    }
                    None
                }
            };
            let code_here = known.unwrap_or(Code::FramePointer);
            // A module that lies in a file of another kind, such as a bundle.
            if let (Code::FramePointer, Some(units)) = (&code_here, generated)
                && units.has_module(start)
            {
                units.stretches(start, end, &mut code);
                continue;
            }
            code.push(Stretch { start, end, code: code_here });
        }
        (code, complete)
    }

    /// The unwind tables of a file's mapping.
    fn code_of_file(&mut self, file: FileId, mapping: &Mapping) -> Result<Option<Code>, Unknown> {
        let Some(table) = self.table_of(file)? else { return Ok(None) };
        match in_table(table, mapping) {
            Some(code) => Ok(Some(code)),
            None => self.code_of_part(file, mapping),
        }
    }

    pub(super) fn table_of(&mut self, file: FileId) -> Result<Option<Arc<Table>>, Unknown> {
        let opened = match &self.entry(file).state {
            State::Unknown | State::Opening => return Err(Unknown),
            State::Failed(_) | State::NoAnswer { .. } | State::Later { .. } => return Ok(None),
            State::Opened(opened) => opened.clone(),
        };
        self.known_table(TableKey::of(file, &opened, None), &opened)
    }

    pub(super) fn known_table(
        &mut self,
        key: TableKey,
        opened: &Arc<OpenFile>,
    ) -> Result<Option<Arc<Table>>, Unknown> {
        match self.tables.get(&key) {
            Some(TableState::Loaded(table)) => Ok(Some(table.clone())),
            Some(
                TableState::None(_)
                | TableState::NoAnswer { .. }
                | TableState::NoRoom(_)
                | TableState::Later(_),
            ) => Ok(None),
            Some(TableState::Building) => Err(Unknown),
            None => {
                self.want_table(key, opened);
                Err(Unknown)
            }
        }
    }
}

/// The code of a mapping, if it lies in a segment that the table is of.
fn in_table(table: Arc<Table>, mapping: &Mapping) -> Option<Code> {
    let address = strata_unwind::table::address_of_offset(&table.loads, mapping.offset)?;
    Some(Code::Table { bias: mapping.start.wrapping_sub(address), table })
}
