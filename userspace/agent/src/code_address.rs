//! Code addresses: independent of the process, by file and offset, kernel address or generated
//! code.
//!
//! Invariant: the address of a frame that is a return address is moved into the call before it
//! becomes a code address, so that every code address is looked up unchanged.

use strata_abi::record::{End, FRAME_ADDRESS, FRAME_EXACT};

use crate::image_id::ImageId;
use crate::processes::mapped::FileId;
use crate::processes::table::{Backing, Space};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum CodeAddress {
    Kernel(u64),
    /// By file offset: load addresses differ from process to process.
    File {
        file: FileId,
        offset: u64,
    },
    /// Offset in the vDSO.
    Vdso(u64),
    /// Code generated at run time: valid only in its own process.
    Generated {
        image: ImageId,
        address: u64,
        /// The version of the code at this address (see `managed::code`).
        era: u32,
        /// In memory that only .NET maps in this way.
        of_runtime: bool,
    },
    /// In no known mapping.
    Unknown {
        image: ImageId,
        address: u64,
    },
    /// Not an address: a marker for where and why a stack ends early.
    Marker(Marker),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Marker {
    /// Truncated: more frames than the limit.
    Truncated,
    /// Incomplete: the stack could not be unwound to its end.
    Incomplete(u8),
}

impl CodeAddress {
    pub fn of_kernel(address: u64, leaf: bool) -> Self {
        Self::Kernel(if leaf { address } else { address.wrapping_sub(1) })
    }

    /// The code addresses of the user frames in a record.
    pub fn of_user<'a>(
        words: &'a [u64],
        space: &'a Space,
        image: ImageId,
        era: u32,
    ) -> impl Iterator<Item = Self> + 'a {
        let callers = words.iter().skip(1).copied().chain([0]);
        words.iter().zip(callers).map(move |(word, caller)| {
            // What a signal returns to was not called: the kernel has put its first instruction's address
            // there.
            Self::of_frame(word | caller & FRAME_EXACT, space, image, era)
        })
    }

    fn of_frame(word: u64, space: &Space, image: ImageId, era: u32) -> Self {
        let pc = word & FRAME_ADDRESS;
        let address = if word & FRAME_EXACT != 0 { pc } else { pc.saturating_sub(1) };
        let Some(mapping) = space.mapping_of(address) else {
            return Self::Unknown { image, address };
        };
        let inside = address - mapping.start;
        match mapping.backing {
            Backing::File(file) => Self::File { file, offset: mapping.offset.wrapping_add(inside) },
            Backing::Anonymous => Self::Generated { image, address, era, of_runtime: false },
            Backing::Runtime => Self::Generated { image, address, era, of_runtime: true },
            Backing::Vdso => Self::Vdso(inside),
        }
    }

    /// The marker below the last frame of a stack that ended for this reason.
    pub fn of_end(end: End) -> Option<Self> {
        match end {
            End::Complete | End::KernelOnly => None,
            End::FrameLimit => Some(Self::Marker(Marker::Truncated)),
            other => Some(Self::Marker(Marker::Incomplete(other as u8))),
        }
    }
}

/// The text for a reason why stacks end early, for summaries and `doctor`.
pub fn describe_end(end: End) -> &'static str {
    match end {
        End::Complete => "complete",
        End::FrameLimit => "more frames than the limit",
        End::NoMapping => "an address in no known mapping",
        End::BrokenChain => "a broken frame-pointer chain in code without unwind tables",
        End::UnreadableStack => "stack memory that could not be read",
        End::UnsupportedRule => "call frame information that cannot be expressed",
        End::StackNotGrowing => "a stack pointer that moved the wrong way",
        End::NoProcess => "a process whose tables came too late",
        End::Compat => "a 32-bit process",
        End::KernelOnly => "no user stack: a kernel thread, or a program that starts or ends",
        End::CaptureLimit => "a stack larger than the part that is copied",
        End::NoReturnAddress => "a return address of 0 where no thread or program starts",
        End::NotWalked => "a thread that started and ended between two passes over threads",
    }
}
