//! Looks up code addresses: whether the runtime can be asked, and its answers.

use crate::compilations::Compilations;
use crate::image::Image;
use crate::known::{Known, Module};
use crate::methods::{self, Named, Reason};
use crate::session::Session;

/// The outcome of a lookup.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Asked {
    /// The answer is in the log, or was lost while appending.
    Reported { written: bool },
    /// The runtime knows no method there.
    NotFound,
    /// The runtime may not be asked about this address.
    Refused,
}

/// Reports the code at an address. Everything from the address to the record happens in one
/// section: the code may have been there when a thread was sampled in it, and not any more.
pub fn report_code_at(session: &Session, ip: u64, running: bool) -> Asked {
    let is_dead = session.lifetimes().is_dead_code(ip as usize);
    if is_dead || !may_ask(&session.known(), ip as usize, running) {
        return Asked::Refused;
    }
    match report_found(session, ip) {
        Some(written) => Asked::Reported { written },
        None => Asked::NotFound,
    }
}

fn report_found(session: &Session, ip: u64) -> Option<bool> {
    let (function, rejit) = session.info().function_at(ip)?;
    let reason = Reason::Asked { ip };
    if session.info().is_dynamic(function) {
        return report_dynamic_found(session, function, ip);
    }
    let named = Named::of(session, function)?;
    let compilations = Compilations::of(session, function, rejit);
    for start in compilations.starts() {
        let code = compilations.code(session, *start);
        if code.contains(ip) {
            session.known().enter_code(*start, function, named.module());
            return Some(named.report(session, rejit, &code, reason));
        }
    }
    None
}

/// The runtime does not check where code ends: what is found may be a method below the address. When one
/// has ended, its name is freed before its code is out of the runtime's lists.
fn report_dynamic_found(session: &Session, function: usize, ip: u64) -> Option<bool> {
    let compilations = Compilations::of(session, function, 0);
    let start = *compilations.starts().first()?;
    if session.lifetimes().is_dead_code(start) || !compilations.code(session, start).contains(ip) {
        return None;
    }
    methods::report_dynamic(session, function, Reason::Asked { ip })
}

/// Whether the runtime can be asked which function is at an address.
///
/// In code that was compiled ahead it goes from the address down to the next method that has been
/// prepared to run, and does not check where that method ends (src/coreclr/vm/codeman.cpp,
/// `ReadyToRunJitManager::JitCodeToMethodInfo`): when there is none below, it leaves its table, and
/// 3.1 and 9 crash. So it is asked about such an address only when a method at or below it is known
/// to have been prepared; when a thread is `running` there; or when the bytes before it (or one
/// byte further, for requests about the call itself) are a call: then it is a return address, and
/// the code that pushed it has run. The runtime's answer counts only if the method contains the
/// address.
pub fn may_ask(known: &Known, ip: usize, running: bool) -> bool {
    if running {
        return true;
    }
    let Some(module) = known.module_at(ip) else { return !known.has_components() };
    let Some(code) = module.ready_to_run else { return true };
    let above = !code.splits_methods && module.prepared != 0 && ip >= module.prepared;
    let is_return = |address| {
        // SAFETY: the runtime has loaded the module's image there, and runs its code.
        let before = unsafe { Image::code_before(module.base, address) };
        before.is_some_and(|before| follows_call(before, address, module))
    };
    above || is_return(ip) || ip.checked_add(1).is_some_and(is_return)
}

/// Whether the code before an address is a call. A direct call, or one through a cell at a known
/// address, stays within the image: compiled code calls everything else through the image's own
/// cells.
fn follows_call(code: &[u8; 8], address: usize, module: &Module) -> bool {
    let target = |bytes: [u8; 4]| {
        let offset = i32::from_le_bytes(bytes) as isize;
        module.contains(address.wrapping_add_signed(offset))
    };
    match *code {
        [.., 0xe8, a, b, c, d] => target([a, b, c, d]),
        [.., 0xff, 0x15, a, b, c, d] => target([a, b, c, d]),
        _ => ends_with_call(code),
    }
}

/// Whether code ends with a call through a register or through memory (Intel SDM, volume 2, CALL).
fn ends_with_call(code: &[u8; 8]) -> bool {
    // Operation /2 in the second byte: which operand, and how many bytes follow.
    let through = |modrm: u8, length: usize| {
        let (mode, operation, register) = (modrm >> 6, modrm >> 3 & 7, modrm & 7);
        let index = usize::from(mode != 3 && register == 4);
        let offset = match (mode, register) {
            (0, 5) => 4,
            (0 | 3, _) => 0,
            (1, _) => 1,
            _ => 4,
        };
        operation == 2 && length == 2 + index + offset
    };
    (2..=7).any(|length| match code.get(8 - length..) {
        Some([0xff, modrm, ..]) => through(*modrm, length),
        _ => false,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_are_known_by_their_bytes() {
        let calls: [&[u8]; 7] = [
            &[0xff, 0xd0],
            &[0x41, 0xff, 0xd3],
            &[0xff, 0x10],
            &[0xff, 0x50, 0x18],
            &[0xff, 0x54, 0x24, 0x08],
            &[0xff, 0x90, 1, 2, 3, 4],
            &[0xff, 0x94, 0x24, 1, 2, 3, 4],
        ];
        for call in calls {
            let mut code = [0x90; 8];
            code[8 - call.len()..].copy_from_slice(call);
            assert!(ends_with_call(&code), "{call:02x?}");
        }
    }

    #[test]
    fn a_call_to_a_place_stays_within_the_image() {
        let module = Module {
            id: 1,
            serial: 1,
            app_domain: 1,
            base: 0x10_0000,
            size: 0x1_0000,
            ready_to_run: None,
            prepared: 0,
            metadata: None,
            reported: true,
        };
        let call = |first: &[u8], offset: i32| {
            let mut code = [0x90; 8];
            code[4 - first.len()..4].copy_from_slice(first);
            code[4..].copy_from_slice(&offset.to_le_bytes());
            follows_call(&code, 0x10_8000, &module)
        };
        for first in [&[0xe8][..], &[0xff, 0x15]] {
            assert!(call(first, 0x7fff) && call(first, -0x8000));
            assert!(!call(first, 0x8000) && !call(first, -0x8001));
        }
    }

    #[test]
    fn other_code_is_no_call() {
        let others: [&[u8]; 4] = [&[0x90], &[0xff, 0x25, 1, 2, 3, 4], &[0xff, 0xe0], &[0xff, 0xc0]];
        for other in others {
            let mut code = [0x90; 8];
            code[8 - other.len()..].copy_from_slice(other);
            assert!(!ends_with_call(&code), "{other:02x?}");
        }
    }
}
