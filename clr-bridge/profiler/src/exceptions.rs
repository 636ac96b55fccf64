//! Events of thrown exceptions.
//!
//! `ExceptionThrown` is called on every runtime, also for an exception that is thrown again. One
//! that was thrown before has a stack trace already: a plain `throw` clears it first
//! (src/coreclr/vm, `ClearStackTraceForThrow`), `throw;` and `ExceptionDispatchInfo.Throw` keep it.
//!
//! **Invariant:** nothing here calls the runtime with an id that is not of the thrown object, which
//! is alive; nothing allocates, waits for a collection, or for a lock longer than two milliseconds, because
//! a collection waits for this thread.

use std::sync::atomic::Ordering;

use strata_bridge_protocol::clr_event::{ClrEvent, MAX_MESSAGE, flag, kind};

use crate::class_names::{Busy, Name, name_of};
use crate::com::info::FieldPlace;
use crate::events;
use crate::metadata::Metadata;
use crate::session::Session;
use crate::text::Text;
use crate::types;

/// Base classes followed.
const DEEPEST: usize = 64;
/// Units of a message that are read: no character takes fewer bytes than units.
const MOST_UNITS: usize = MAX_MESSAGE;
/// More fields than `System.Exception` has.
const MOST_FIELDS: usize = 64;

/// Where the fields of an exception lie, in one word: three offsets of 16 bits, and a mark.
#[derive(Clone, Copy)]
struct Fields {
    message: u16,
    stack_trace: u16,
    length: u16,
    units: u16,
}

/// Lookups that find nothing: the class of one exception may not tell its bases yet, and what is
/// thrown need not be an exception. Their number stands where the places will; those of a message
/// are multiples of eight.
const MOST_TRIES: u64 = 7;

impl Fields {
    fn pack(self) -> u64 {
        u64::from(self.message)
            | u64::from(self.stack_trace) << 16
            | u64::from(self.length) << 32
            | u64::from(self.units) << 48
    }

    fn unpack(word: u64) -> Self {
        let part = |from: u32| (word >> from) as u16;
        Self { message: part(0), stack_trace: part(16), length: part(32), units: part(48) }
    }
}

/// An exception was thrown.
///
/// # Safety
/// `object` is the thrown object, and cannot move during the call.
pub unsafe fn thrown(session: &Session, object: usize) {
    let Some(class) = session.info().class_of_object(object) else { return };
    let weight = session.events().choose(class as u64);
    if weight == 0 {
        return;
    }
    let mut type_name = Name::new();
    // Without one the event has no type.
    let _ = name_of(session, class, &mut type_name);
    let mut message = Text::<MAX_MESSAGE>::new();
    let mut flags = 0;
    if let Some(fields) = fields(session, class) {
        // SAFETY: the object has these fields, and cannot move.
        unsafe {
            if word_at(object, fields.stack_trace) != 0 {
                flags |= flag::RETHROWN;
            }
            if session.events().wants_messages() {
                read_string(word_at(object, fields.message), fields, &mut message);
            }
        }
    }
    events::report(
        session,
        &ClrEvent {
            kind: kind::EXCEPTION,
            flags,
            weight,
            value: 0,
            size: 0,
            type_name: type_name.as_str(),
            message: message.as_str(),
        },
    );
}

fn fields(session: &Session, class: usize) -> Option<Fields> {
    let place = &session.events().exception_fields;
    let mut word = place.load(Ordering::Relaxed);
    if word < MOST_TRIES {
        // While the metadata cannot be had, the next exception tries again.
        let found = look_for_fields(session, class).ok()?;
        word = found.map_or(word + 1, Fields::pack);
        place.store(word, Ordering::Relaxed);
    }
    (word > MOST_TRIES).then(|| Fields::unpack(word))
}

/// Finds the fields of `System.Exception`: the class whose base is `System.Object`, among the bases
/// of a thrown object's.
#[inline(never)]
fn look_for_fields(session: &Session, class: usize) -> Result<Option<Fields>, Busy> {
    let Some(class) = first_base(session, class) else { return Ok(None) };
    let Some(found) = session.info().class_info(class, &mut []) else { return Ok(None) };
    let Some(metadata) = session.class_names().metadata(found.module)? else { return Ok(None) };
    let mut name = Text::<32>::new();
    types::full_name(&metadata, found.token, &mut name);
    let is_it = name.as_str() == "System.Exception";
    Ok(if is_it { fields_in(session, class, &metadata) } else { None })
}

/// Of a class and its bases the one whose base is `System.Object`.
fn first_base(session: &Session, class: usize) -> Option<usize> {
    let info = session.info();
    let mut class = class;
    for _ in 0..DEEPEST {
        let base = info.base_class(class)?;
        if info.base_class(base).is_none() {
            break;
        }
        class = base;
    }
    Some(class)
}

fn fields_in(session: &Session, class: usize, metadata: &Metadata) -> Option<Fields> {
    let info = session.info();
    let mut all = [FieldPlace::default(); MOST_FIELDS];
    let count = info.class_fields(class, &mut all)?;
    let all = all.get(..count).unwrap_or_default();
    let (length, units) = info.string_places()?;
    Some(Fields {
        message: place_of(all, metadata, "_message")?,
        stack_trace: place_of(all, metadata, "_stackTrace")?,
        length: u16::try_from(length).ok()?,
        units: u16::try_from(units).ok()?,
    })
}

fn place_of(all: &[FieldPlace], metadata: &Metadata, name: &str) -> Option<u16> {
    let field = all.iter().find(|field| metadata.field_name(field.token) == Some(name))?;
    // Behind the object's class, where a pointer may lie.
    u16::try_from(field.offset).ok().filter(|offset| *offset >= 8 && offset.is_multiple_of(8))
}

/// # Safety
/// `object` is an object with a pointer at this offset.
unsafe fn word_at(object: usize, offset: u16) -> usize {
    // SAFETY: by the caller's promise.
    unsafe { std::ptr::read_volatile((object + usize::from(offset)) as *const usize) }
}

/// # Safety
/// `string` is 0 or a string object that cannot move.
unsafe fn read_string<const N: usize>(string: usize, fields: Fields, text: &mut Text<N>) {
    if string == 0 {
        return;
    }
    // SAFETY: a string has its length and as many units at these places.
    unsafe {
        let length = std::ptr::read_volatile((string + usize::from(fields.length)) as *const u32);
        let units = (string + usize::from(fields.units)) as *const u16;
        text.push_units(std::slice::from_raw_parts(units, (length as usize).min(MOST_UNITS)));
    }
}
