//! The meaning of the runtime's result codes for attaching.

use std::fmt;

/// A result code of the runtime (src/inc/corerror.xml; the diagnostics server's own codes are in
/// src/native/eventpipe/ds-rt-types.h).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct HResult(pub u32);

impl HResult {
    pub const BAD_ENCODING: Self = Self(0x8013_1384);
    pub const UNKNOWN_COMMAND: Self = Self(0x8013_1385);
    pub const UNKNOWN_MAGIC: Self = Self(0x8013_1386);
    pub const FILE_NOT_FOUND: Self = Self(0x8007_0002);
    /// The library is not there, is no ELF file for this process, or lies on a noexec mount.
    pub const MODULE_NOT_FOUND: Self = Self(0x8007_007e);
    pub const PROCEDURE_NOT_FOUND: Self = Self(0x8007_007f);
    pub const BAD_FORMAT: Self = Self(0x8007_000b);
    pub const ACCESS_DENIED: Self = Self(0x8007_0005);
    pub const OUT_OF_MEMORY: Self = Self(0x8007_000e);
    pub const NOT_YET_AVAILABLE: Self = Self(0x8013_135b);
    pub const DETACHING: Self = Self(0x8013_1367);
    pub const NOT_ATTACHABLE: Self = Self(0x8013_1368);
    pub const ALREADY_ACTIVE: Self = Self(0x8013_136a);
    /// Of the system: `ERROR_NOT_ENOUGH_MEMORY`.
    pub const NO_MEMORY: Self = Self(0x8007_0008);
    pub const UNINITIALIZED: Self = Self(0x8013_1371);
    pub const CANCELLED: Self = Self(0x8013_1375);
    pub const CONCURRENT_GC: Self = Self(0x8013_1379);

    pub fn is_failure(self) -> bool {
        self.0 & 0x8000_0000 != 0
    }

    /// Whether the same request may succeed in a moment.
    pub fn passes(self) -> bool {
        matches!(
            self,
            Self::NOT_YET_AVAILABLE | Self::DETACHING | Self::UNINITIALIZED | Self::CONCURRENT_GC
        )
    }

    fn meaning(self) -> &'static str {
        match self {
            Self::BAD_ENCODING => "it did not understand the request",
            Self::UNKNOWN_COMMAND => "this version of the runtime does not know the command",
            Self::UNKNOWN_MAGIC => "this version of the runtime speaks another protocol",
            Self::FILE_NOT_FOUND | Self::MODULE_NOT_FOUND => {
                "the library could not be loaded there: not found, or on a mount without exec"
            }
            Self::PROCEDURE_NOT_FOUND => "the library it found is no profiler",
            Self::BAD_FORMAT => "the library is for another architecture",
            Self::ACCESS_DENIED => "it may not read the library",
            Self::OUT_OF_MEMORY | Self::NO_MEMORY => "it has no memory left",
            Self::NOT_YET_AVAILABLE | Self::UNINITIALIZED => {
                "the runtime is still starting; try again"
            }
            Self::DETACHING => "a profiler is still detaching; try again",
            Self::NOT_ATTACHABLE => "the library does not support being attached",
            Self::ALREADY_ACTIVE => {
                "another profiler is loaded (this runtime takes only one), or strata is attached already"
            }
            Self::CANCELLED => "the library declined to be loaded; its log says why",
            Self::CONCURRENT_GC => "a garbage collection went on for too long; try again",
            _ => "an error that strata has no words for",
        }
    }
}

impl fmt::Display for HResult {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({:#010x})", self.meaning(), self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_code_says_what_it_means_and_what_it_is() {
        assert_eq!(
            HResult::NOT_YET_AVAILABLE.to_string(),
            "the runtime is still starting; try again (0x8013135b)"
        );
        assert!(HResult::NOT_YET_AVAILABLE.passes() && !HResult::ALREADY_ACTIVE.passes());
        assert!(!HResult(0).is_failure() && HResult(0x8000_4005).is_failure());
    }
}
