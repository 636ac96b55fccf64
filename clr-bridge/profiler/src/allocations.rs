//! The runtime's events of allocations: their bytes, and what the bridge reports of them.
//!
//! `AllocationTick` (.NET 5 to 9) and `AllocationSampled` (.NET 10) have the object's address and size
//! behind the name of its class (src/coreclr/vm/ClrEtwAll.man). An address that is none would make the
//! runtime's collector read any memory, so nothing is taken from an event that does not hold together.
//!
//! **Invariant:** any bytes are an event or are refused; the address of one that is accepted lies
//! behind a name that has ended.

use strata_bridge_protocol::clr_event::{ClrEvent, kind};
use strata_bridge_protocol::shared_file::monotonic_time;

use crate::class_names::{Name, name_of};
use crate::events;
use crate::objects::{self, Allocated};
use crate::pipe::{half_word, word};
use crate::session::Session;
use crate::text::Text;

/// Objects from this size on are among the large ones, unless the program sets more
/// (src/coreclr/gc/gc.h, `LARGE_OBJECT_SIZE`).
const LARGE: u64 = 85_000;
/// Addresses of a process are below (x86-64, four levels of tables; the runtime asks for no others).
const ADDRESSES: u64 = 1 << 47;
/// No object is smaller than its header and its class.
const SMALLEST: u64 = 16;

/// An object was allocated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Allocation<'a> {
    class: u64,
    /// The class's, in UTF-16.
    name: &'a [u8],
    size: u64,
    /// The bytes that it stands for; 0: that follows from its size.
    amount: u64,
    address: u64,
    /// Where: among the small objects (0), or others.
    kind: u32,
}

impl<'a> Allocation<'a> {
    /// Of `AllocationTick`, version 4 or newer: amount (32 bits), kind, instance, amount, class, name,
    /// heap, address, size.
    pub fn of_tick(data: &'a [u8]) -> Option<Self> {
        let (kind, amount, class) = (half_word(data, 4)?, word(data, 10)?, word(data, 18)?);
        let (name, rest) = text(data.get(26..)?)?;
        let (address, size) = (word(rest, 4)?, word(rest, 12)?);
        Self { class, name, size, amount, address, kind }.checked()
    }

    /// Of `AllocationSampled`: kind, instance, class, name, address, size, offset.
    pub fn of_sample(data: &'a [u8]) -> Option<Self> {
        let (kind, class) = (half_word(data, 0)?, word(data, 6)?);
        let (name, rest) = text(data.get(14..)?)?;
        let (address, size) = (word(rest, 0)?, word(rest, 8)?);
        word(rest, 16)?;
        Self { class, name, size, amount: 0, address, kind }.checked()
    }

    fn checked(self) -> Option<Self> {
        let is_pointer = |word: u64| {
            word != 0 && word < ADDRESSES && word.is_multiple_of(size_of::<u64>() as u64)
        };
        let is_size = (SMALLEST..ADDRESSES).contains(&self.size);
        let holds = is_pointer(self.address) && is_pointer(self.class) && is_size;
        (holds && self.amount < ADDRESSES).then_some(self)
    }
}

/// A text in UTF-16 that ends with a NUL, and what follows it. `None`: it does not end.
fn text(data: &[u8]) -> Option<(&[u8], &[u8])> {
    let end = data.as_chunks::<2>().0.iter().position(|unit| *unit == [0; 2])? * 2;
    Some((data.get(..end)?, data.get(end + 2..)?))
}

/// Watches the object, and reports the allocation, as far as these are wanted. On the thread that has
/// just allocated it, which is in cooperative mode.
pub fn report(session: &Session, allocation: &Allocation<'_>) {
    let Allocation { class, name, size, amount, address, kind } = *allocation;
    let events = session.events();
    let duty = events.duty_cycle.weight(monotonic_time(), || session.shared().writer().ring());
    if duty == 0 {
        return;
    }
    let weight =
        |is_wanted: bool, choose: &dyn Fn() -> u32| if is_wanted { choose() * duty } else { 0 };
    let weight_of_object = weight(events.wants(kind::OBJECT), &|| events.choose_object(class));
    // First: what follows may let the object move.
    let object = (weight_of_object != 0).then(|| {
        let is_large = kind != 0 || size >= LARGE;
        objects::watch(session, Allocated { address, is_large })
    });
    let object = object.flatten();
    let weight = weight(events.wants(kind::ALLOCATION), &|| events.choose(class));
    if weight == 0 && object.is_none() {
        return;
    }
    let mut type_name = Name::new();
    // The event's own name leaves out what a nested class is nested in.
    if name_of(session, class as usize, &mut type_name).is_none() {
        type_name.push_utf16(name);
    }
    let event = ClrEvent { size, type_name: type_name.as_str(), ..ClrEvent::default() };
    if weight != 0 {
        let value = amount.saturating_mul(u64::from(weight));
        events::report(session, &ClrEvent { kind: kind::ALLOCATION, weight, value, ..event });
    }
    if let Some(id) = object {
        let mut message = Text::<24>::new();
        message.push_number(u32::from(id.slot));
        message.push(":");
        message.push_number(id.serial);
        let value = amount.saturating_mul(u64::from(weight_of_object));
        events::report(
            session,
            &ClrEvent {
                kind: kind::OBJECT,
                weight: weight_of_object,
                value,
                message: message.as_str(),
                ..event
            },
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CLASS: u64 = 0x7f00_1234_5678;
    const ADDRESS: u64 = 0x7f00_8765_4320;

    fn units(name: &str) -> Vec<u8> {
        name.encode_utf16().chain([0]).flat_map(u16::to_le_bytes).collect()
    }

    fn tick(name: &[u8], address: u64, size: u64) -> Vec<u8> {
        let mut data = 102_400u32.to_le_bytes().to_vec();
        data.extend(1u32.to_le_bytes());
        data.extend(7u16.to_le_bytes());
        data.extend(102_400u64.to_le_bytes());
        data.extend(CLASS.to_le_bytes());
        data.extend(name);
        data.extend(0u32.to_le_bytes());
        data.extend(address.to_le_bytes());
        data.extend(size.to_le_bytes());
        data
    }

    fn sample(name: &[u8], address: u64, size: u64) -> Vec<u8> {
        let mut data = 0u32.to_le_bytes().to_vec();
        data.extend(7u16.to_le_bytes());
        data.extend(CLASS.to_le_bytes());
        data.extend(name);
        data.extend(address.to_le_bytes());
        data.extend(size.to_le_bytes());
        data.extend(99u64.to_le_bytes());
        data
    }

    type Write = fn(&[u8], u64, u64) -> Vec<u8>;
    type Read = for<'a> fn(&'a [u8]) -> Option<Allocation<'a>>;
    /// How each event is written and read, and where its name starts.
    const BOTH: [(Write, Read, usize); 2] = [
        (tick, |data| Allocation::of_tick(data), 26),
        (sample, |data| Allocation::of_sample(data), 14),
    ];

    #[test]
    fn an_allocation_is_read_behind_a_name_of_any_length() {
        for (write, read, _) in BOTH {
            for length in [0, 1, 1_023, 1_024, 1_500, 20_000] {
                let name = units(&"N".repeat(length));
                let data = write(&name, ADDRESS, 40);
                let allocation = read(&data).expect("an allocation");
                assert_eq!((allocation.address, allocation.size), (ADDRESS, 40), "{length}");
                assert_eq!(allocation.class, CLASS);
                assert_eq!(allocation.name.len(), 2 * length);
            }
        }
        let amount = Allocation::of_tick(&tick(&units("N"), ADDRESS, 40)).map(|found| found.amount);
        assert_eq!(amount, Some(102_400));
    }

    #[test]
    fn a_name_without_an_end_is_no_event() {
        for (write, read, start) in BOTH {
            let mut data = write(&[], ADDRESS, 40);
            // Text to the end of the data, then half a unit more.
            data.truncate(start);
            data.extend(b"N\0".repeat(1_500));
            assert_eq!(read(&data), None);
            data.push(0);
            assert_eq!(read(&data), None);
        }
    }

    #[test]
    fn an_event_that_ends_early_is_no_event() {
        for (write, read, _) in BOTH {
            let data = write(&units("Shop.Order"), ADDRESS, 40);
            for length in 0..data.len() {
                assert_eq!(read(&data[..length]), None, "{length}");
            }
            assert!(read(&data).is_some());
        }
    }

    #[test]
    fn what_is_no_address_or_no_size_is_no_event() {
        for (write, read, _) in BOTH {
            let name = units("N");
            let text = u64::from_le_bytes(*b"S\0y\0s\0t\0");
            for address in [0, 1, ADDRESS + 4, 1 << 47, u64::MAX, text, text & !7] {
                assert_eq!(read(&write(&name, address, 40)), None, "{address:#x}");
            }
            for size in [0, 15, 1 << 47, u64::MAX, text] {
                assert_eq!(read(&write(&name, ADDRESS, size)), None, "{size:#x}");
            }
            assert!(read(&write(&name, ADDRESS, 22)).is_some());
        }
    }
}
