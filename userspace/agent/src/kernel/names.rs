//! Names of the kernel's functions, of its modules' and of BPF programs, one at a time.
//!
//! A BPF program that is attached to nothing lets the kernel look an address up, in a microsecond.
//! Reading `/proc/kallsyms` instead takes the kernel tens of milliseconds, and keeping it megabytes;
//! modules and BPF programs come and go meanwhile.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::{Mutex, PoisonError};

use libbpf_rs::libbpf_sys;
use strata_abi::memory::KERNEL_NAME_BYTES;

/// One answer at a time: the program writes it to the same place.
pub struct KernelNames(Mutex<Asked>);

struct Asked {
    program: OwnedFd,
    /// The map that the program writes the name to.
    name: OwnedFd,
}

/// The kernel's name of an address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KernelName {
    pub function: String,
    pub module: Option<String>,
}

impl KernelNames {
    /// A program that writes the name of its first argument to the first entry of the map.
    pub(super) fn new(program: OwnedFd, name: OwnedFd) -> Self {
        Self(Mutex::new(Asked { program, name }))
    }

    /// `None`: no function is there.
    ///
    /// # Errors
    /// When the program cannot be run, as without CAP_BPF.
    pub fn of(&self, address: u64) -> io::Result<Option<KernelName>> {
        let asked = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        asked.run(address)?;
        let written = asked.read()?;
        let written = strata_bytes::until_nul(&written);
        if written.is_empty() {
            return Err(io::Error::other("bpf_snprintf has failed"));
        }
        Ok(parse(&String::from_utf8_lossy(written)))
    }
}

impl Asked {
    fn run(&self, address: u64) -> io::Result<()> {
        let arguments = [address];
        let mut options = libbpf_sys::bpf_test_run_opts {
            sz: size_of::<libbpf_sys::bpf_test_run_opts>() as libbpf_sys::size_t,
            ctx_in: arguments.as_ptr().cast(),
            ctx_size_in: size_of_val(&arguments) as u32,
            ..Default::default()
        };
        // SAFETY: the arguments outlive the call, and their size is theirs.
        let ran = unsafe {
            libbpf_sys::bpf_prog_test_run_opts(self.program.as_raw_fd(), &raw mut options)
        };
        result_of(ran)
    }

    fn read(&self) -> io::Result<[u8; KERNEL_NAME_BYTES]> {
        let (first, mut name) = (0u32, [0; KERNEL_NAME_BYTES]);
        // SAFETY: the map's keys are words, and its values as long as the name.
        let read = unsafe {
            libbpf_sys::bpf_map_lookup_elem(
                self.name.as_raw_fd(),
                (&raw const first).cast(),
                (&raw mut name).cast(),
            )
        };
        result_of(read).map(|()| name)
    }
}

fn result_of(returned: i32) -> io::Result<()> {
    match returned {
        0.. => Ok(()),
        error => Err(io::Error::from_raw_os_error(-error)),
    }
}

/// `function` or `function [module]`; the address in digits where there is none.
fn parse(written: &str) -> Option<KernelName> {
    if written.starts_with("0x") {
        return None;
    }
    let (function, module) = match written.split_once(" [") {
        Some((function, module)) => (function, Some(module.trim_end_matches(']').to_owned())),
        // As `/proc/kallsyms` has it.
        None if is_of_bpf(written) => (written, Some("bpf".to_owned())),
        None => (written, None),
    };
    Some(KernelName { function: function.to_owned(), module })
}

fn is_of_bpf(function: &str) -> bool {
    ["bpf_prog_", "bpf_trampoline_", "bpf_dispatcher_", "bpf_struct_ops_"].iter().any(|prefix| {
        let rest = function.strip_prefix(prefix);
        // The kernel's own functions go on with words.
        rest.is_some_and(|rest| {
            rest.starts_with(|first: char| first.is_ascii_digit()) || is_tag(rest)
        })
    })
}

/// A BPF program's tag and its name: sixteen digits.
fn is_tag(rest: &str) -> bool {
    rest.get(..16).is_some_and(|tag| tag.bytes().all(|byte| byte.is_ascii_hexdigit()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modules_and_bpf_programs_are_distinguished_from_the_kernels_own_functions() {
        let name = |written| parse(written).map(|name| (name.function, name.module));
        let own = |function: &str| Some((function.to_owned(), None));
        let of =
            |function: &str, module: &str| Some((function.to_owned(), Some(module.to_owned())));
        assert_eq!(name("vfs_read"), own("vfs_read"));
        assert_eq!(name("ext4_read [ext4]"), of("ext4_read", "ext4"));
        let program = "bpf_prog_6deef7357e7b4530_sample";
        assert_eq!(name(program), of(program, "bpf"));
        assert_eq!(name("bpf_trampoline_6442"), of("bpf_trampoline_6442", "bpf"));
        assert_eq!(name("bpf_prog_get"), own("bpf_prog_get"));
        assert_eq!(name("bpf_prog_add_one"), own("bpf_prog_add_one"));
        assert_eq!(name("0xffffffffdeadbeef"), None);
    }
}
