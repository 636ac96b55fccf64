//! Which class a function belongs to when several classes share its code.
//!
//! `GetFunctionInfo2` gives no class then, although the shared code of `Dictionary<int, string>` is
//! not that of `Dictionary<string, string>`: what is shared is the class's canonical form, with the
//! exact value types in it. The runtime finds it from the function itself: a function id is the
//! address of a `MethodDesc`, whose third byte is its distance behind the header of its chunk, in
//! steps of 8 bytes, and the header, of 24 bytes, begins with the class (src/coreclr/vm/method.hpp,
//! `GetMethodDescChunk`).
//!
//! That is not part of any interface, so it is used only as far as it has been verified.
//! **Invariant:** nothing is read in a runtime newer than those this was tried on, and no class is
//! taken from there before the same reading has given the class that the interface reports for some
//! functions, or after it has once given another.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use crate::session::Session;

/// The newest runtime that this was tested on.
const NEWEST_MAJOR: u16 = 10;

/// Functions for which the reading must have been right: an address of 48 bits is not there by
/// chance.
const PROOFS: u32 = 3;
/// So many of them not at the start of their chunk, which proves its index.
const FAR_PROOFS: u32 = 1;

const CHUNK_INDEX: usize = 2;
const STEP: usize = 8;
const HEADER: usize = 24;

#[derive(Default)]
pub struct Canonical {
    allowed: bool,
    refuted: AtomicBool,
    proofs: AtomicU32,
    far_proofs: AtomicU32,
}

impl Canonical {
    /// `major` as reported by the runtime: 3.1 reports 4.
    pub fn new(major: u16) -> Self {
        let allowed = (1..=NEWEST_MAJOR).contains(&major);
        Canonical { allowed, ..Canonical::default() }
    }

    fn is_readable(&self) -> bool {
        self.allowed && !self.refuted.load(Ordering::Relaxed)
    }

    fn is_proven(&self) -> bool {
        self.proofs.load(Ordering::Relaxed) >= PROOFS
            && self.far_proofs.load(Ordering::Relaxed) >= FAR_PROOFS
    }

    /// Whether the reading may be right, and is not proven yet.
    pub fn needs_proofs(&self) -> bool {
        self.is_readable() && !self.is_proven()
    }

    /// Compares the reading with what the interface reports for a function: until it is proven of
    /// every one, then of those of a class that was not seen before.
    pub fn prove(&self, function: usize, class: usize, new_class: bool) {
        if !self.is_readable() || (!new_class && self.is_proven()) {
            return;
        }
        // SAFETY: the runtime has just returned the class of this function, so it is alive.
        let (found, index) = unsafe { read(function) };
        if found != class {
            self.refute();
        } else {
            self.proofs.fetch_add(1, Ordering::Relaxed);
            self.far_proofs.fetch_add(u32::from(index > 0), Ordering::Relaxed);
        }
    }

    pub fn refute(&self) {
        self.refuted.store(true, Ordering::Relaxed);
    }

    /// The class of a live function with shared code, or 0.
    pub fn class_of(&self, session: &Session, function: usize, module: usize, token: u32) -> usize {
        if !self.is_readable() || !self.is_proven() {
            return 0;
        }
        // SAFETY: the runtime has just returned the module of this function, so it is alive.
        let (class, _) = unsafe { read(function) };
        match session.info().class_info(class, &mut []) {
            Some(info) if info.module == module && info.token == token => class,
            _ => {
                self.refute();
                0
            }
        }
    }
}

/// The class in the header of a function's chunk, and the function's place in the chunk.
///
/// # Safety
/// `function` is the id of a living function.
unsafe fn read(function: usize) -> (usize, u8) {
    // SAFETY: a function id is the address of a `MethodDesc`, which is larger than this and lies
    // in a chunk, with 255 steps at most before it.
    unsafe {
        let index = *(function as *const u8).add(CHUNK_INDEX);
        let chunk = function.wrapping_sub(HEADER + STEP * usize::from(index));
        ((chunk as *const usize).read_unaligned(), index)
    }
}
