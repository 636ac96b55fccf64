//! x86-64, System V ABI.

pub mod epilogue;
mod step;

pub use step::step;

/// Registers by their DWARF numbers (System V ABI, AMD64 supplement, "DWARF Register Number
/// Mapping").
pub mod register {
    pub const RBX: u8 = 3;
    pub const RBP: u8 = 6;
    pub const RSP: u8 = 7;
    /// General registers, numbered from 0 on.
    pub const COUNT: u8 = 16;

    pub const SP: u8 = RSP;
    pub const FP: u8 = RBP;
    /// The one other register that a CFA counts from in frames that are no leaf: in
    /// `_dl_runtime_resolve`.
    pub const EXTRA: u8 = RBX;
}

/// Addresses of programs are below this (four levels of page tables; what lies beyond with five
/// is mapped on request only).
pub const USER_ADDRESSES: u64 = 1 << 47;

/// Where `struct task_struct` holds the thread pointer of the thread's program: the base of FS.
pub const THREAD_POINTER: Option<&str> = Some("thread.fsbase");
