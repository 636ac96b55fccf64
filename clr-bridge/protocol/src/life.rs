//! What a record of the log says about the life of things: read in the bridge, from its own log.
//!
//! Only the fields that identify are read. What does not hold together is [`Life::Passing`].

use std::sync::atomic::Ordering;

use crate::layout::RecordHeader;
use crate::memory::{Memory, Word};
use crate::record::{MethodKind, kind};

/// What a record begins, changes or ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Life {
    Domain(u64),
    DomainEnd(u64),
    Module(u64),
    ModuleEnd(u64),
    Type {
        module: u64,
        token: u32,
    },
    Method {
        function: u64,
        /// Of the first piece of its code.
        start: u64,
        size: u32,
        /// It answers a request: the record of the compilation says more.
        is_answer: bool,
    },
    MethodEnd(u64),
    /// By the start of the code.
    IlMap(u64),
    Thread(u64),
    ThreadEnd(u64),
    Diagnostic,
    Enumerated,
    /// It is of no use once it was read.
    Passing,
}

/// Reads what a committed record of this kind and length is about.
pub(crate) fn of(memory: &impl Memory, at: usize, of_kind: u16, length: usize) -> Life {
    let start = at + size_of::<RecordHeader>();
    let mut fields = Fields { memory, at: start, end: at + length };
    read(&mut fields, of_kind).unwrap_or(Life::Passing)
}

fn read<M: Memory>(fields: &mut Fields<'_, M>, of_kind: u16) -> Option<Life> {
    Some(match of_kind {
        kind::APP_DOMAIN => Life::Domain(fields.number()?),
        kind::APP_DOMAIN_END => Life::DomainEnd(fields.number()?),
        kind::MODULE => Life::Module(fields.number()?),
        kind::MODULE_UNLOAD => Life::ModuleEnd(fields.number()?),
        kind::TYPE => Life::Type { module: fields.number()?, token: fields.take(4)? as u32 },
        kind::METHOD => method(fields)?,
        kind::METHOD_UNLOAD => {
            fields.skip(8)?;
            Life::MethodEnd(fields.number()?)
        }
        kind::IL_MAP => {
            fields.skip(16)?;
            Life::IlMap(fields.number()?)
        }
        kind::THREAD => Life::Thread(fields.number()?),
        kind::THREAD_END => Life::ThreadEnd(fields.number()?),
        kind::DIAGNOSTIC => Life::Diagnostic,
        kind::ENUMERATED => Life::Enumerated,
        _ => Life::Passing,
    })
}

fn method<M: Memory>(fields: &mut Fields<'_, M>) -> Option<Life> {
    let function = fields.number()?;
    // ReJIT, module, tokens of type and method.
    fields.skip(8 + 8 + 4 + 4)?;
    let is_answer = fields.take(1)? as u8 == MethodKind::Resolved as u8;
    // Tier, AppDomain, name.
    fields.skip(1 + 8)?;
    fields.skip_bytes()?;
    // Generic parameters, signature, arguments of class and method.
    fields.skip_list()?;
    fields.skip_bytes()?;
    fields.skip_list()?;
    fields.skip_list()?;
    // The address of the request.
    fields.skip(8)?;
    let ranges = fields.take(2)?;
    if ranges == 0 {
        return None;
    }
    let (start, size) = (fields.number()?, fields.take(4)? as u32);
    Some(Life::Method { function, start, size, is_answer })
}

/// The rest of a record's fields.
struct Fields<'a, M> {
    memory: &'a M,
    at: usize,
    end: usize,
}

impl<M: Memory> Fields<'_, M> {
    fn skip(&mut self, length: usize) -> Option<()> {
        self.at = self.at.checked_add(length).filter(|at| *at <= self.end)?;
        Some(())
    }

    /// An integer of up to eight bytes.
    fn take(&mut self, length: usize) -> Option<u64> {
        let at = self.at;
        self.skip(length)?;
        let word = |offset| Some(self.memory.word(offset)?.load(Ordering::Relaxed));
        let (low, shift) = (at & !7, 8 * (at & 7) as u32);
        let mut value = word(low)? >> shift;
        if shift > 0 && (at & 7) + length > 8 {
            value |= word(low + 8)? << (64 - shift);
        }
        Some(if length < 8 { value & ((1 << (8 * length)) - 1) } else { value })
    }

    fn number(&mut self) -> Option<u64> {
        self.take(8)
    }

    /// A text or a byte string.
    fn skip_bytes(&mut self) -> Option<()> {
        let length = self.take(2)? as usize;
        self.skip(length)
    }

    fn skip_list(&mut self) -> Option<()> {
        for _ in 0..self.take(2)? {
            self.skip_bytes()?;
        }
        Some(())
    }
}
