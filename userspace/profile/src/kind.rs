//! The kind of code of a frame, and how it is derived from a file that does not record it.
//!
//! pprof has no field for it. The kind is therefore a function of the mapping's path and the
//! frame's name, and the pprof writer renames a mapping that would give another kind.

use serde::Serialize;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum FrameKind {
    Kernel,
    #[default]
    Native,
    /// Code a runtime made, known from a perf map or jitdump.
    Jit,
    /// .NET code, known from its runtime.
    Managed,
    /// Not code: `[truncated]`, `[unknown]`.
    Marker,
}

impl FrameKind {
    pub const ALL: [Self; 5] = [Self::Kernel, Self::Native, Self::Jit, Self::Managed, Self::Marker];

    /// The kind of a frame called `name` in a mapping of `path`.
    #[must_use]
    pub fn derive(path: &str, name: &str) -> Self {
        if is_marker(name) { Self::Marker } else { Self::of_mapping(path) }
    }

    /// The kind of code a mapping of this path holds.
    #[must_use]
    pub fn of_mapping(path: &str) -> Self {
        let file = base_name(path);
        if path.starts_with("[kernel")
            || path.starts_with("[guest.kernel")
            || path.starts_with("[vmlinux")
            || path.starts_with("[bpf")
            || file == "vmlinux"
            || file.starts_with("vmlinux-")
            || is_kernel_module(file)
        {
            Self::Kernel
        } else if path.starts_with("[managed")
            || ends_with_ignoring_case(file, ".dll")
            || ends_with_ignoring_case(file, ".exe")
        {
            Self::Managed
        } else if path.starts_with("[jit")
            || path.starts_with("[JIT]")
            || path.starts_with("[anon")
            || path.starts_with("//anon")
            || path.starts_with("anon_inode:")
            || path.starts_with("/memfd:")
            || path.starts_with("/dev/zero")
            || file.starts_with("jitted-")
            || (file.starts_with("perf-") && file.ends_with(".map"))
        {
            Self::Jit
        } else {
            Self::Native
        }
    }

    /// A mapping path that [`Self::of_mapping`] takes for this kind.
    pub(crate) fn mapping_path(self) -> &'static str {
        match self {
            Self::Kernel => "[kernel.kallsyms]",
            Self::Jit => "[jit]",
            Self::Managed => "[managed]",
            Self::Native | Self::Marker => "[native]",
        }
    }

    /// What a legend calls it.
    #[must_use]
    pub fn label(self) -> &'static str {
        match self {
            Self::Kernel => "Kernel",
            Self::Native => "Native",
            Self::Jit => "JIT",
            Self::Managed => "Managed",
            Self::Marker => "Unknown",
        }
    }
}

/// Whether a name stands for no code: `[unknown]`.
pub(crate) fn is_marker(name: &str) -> bool {
    // `[libc.so.6]` and the like are stubs of other tools for code without symbols.
    name.starts_with('[') && name.ends_with(']')
}

/// Whether a name stands in for an unknown symbol: `libc.so.6!0x1f3c0`, `[unknown]`.
pub(crate) fn is_stub_name(name: &str) -> bool {
    is_marker(name)
        || name.rsplit_once("!0x").is_some_and(|(_, offset)| {
            !offset.is_empty() && offset.bytes().all(|byte| byte.is_ascii_hexdigit())
        })
}

fn is_kernel_module(file: &str) -> bool {
    let stem = [".xz", ".zst", ".gz"].iter().find_map(|end| file.strip_suffix(end));
    stem.unwrap_or(file).ends_with(".ko")
}

pub(crate) fn base_name(path: &str) -> &str {
    path.rsplit_once('/').map_or(path, |(_, file)| file)
}

fn ends_with_ignoring_case(text: &str, end: &str) -> bool {
    text.len()
        .checked_sub(end.len())
        .and_then(|at| text.get(at..))
        .is_some_and(|tail| tail.eq_ignore_ascii_case(end))
}

#[cfg(test)]
mod tests {
    use super::FrameKind;

    #[test]
    fn the_path_of_a_mapping_tells_the_kind_of_its_code() {
        for (path, kind) in [
            ("[kernel.kallsyms]", FrameKind::Kernel),
            ("/lib/modules/6.1.0/kernel/fs/ext4/ext4.ko.xz", FrameKind::Kernel),
            ("/usr/lib/debug/boot/vmlinux-6.1.0", FrameKind::Kernel),
            ("/usr/lib/x86_64-linux-gnu/libc.so.6", FrameKind::Native),
            ("[vdso]", FrameKind::Native),
            ("/tmp/perf-123.map", FrameKind::Jit),
            ("//anon", FrameKind::Jit),
            ("/app/Shop.DLL", FrameKind::Managed),
            ("", FrameKind::Native),
        ] {
            assert_eq!(FrameKind::of_mapping(path), kind, "{path}");
        }
    }

    #[test]
    fn every_kind_has_a_path_that_says_it() {
        for kind in [FrameKind::Kernel, FrameKind::Native, FrameKind::Jit, FrameKind::Managed] {
            assert_eq!(FrameKind::of_mapping(kind.mapping_path()), kind);
        }
    }
}
