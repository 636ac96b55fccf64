//! Gives capabilities up, in helper processes: root executes each with all of root's.

use rustix::thread::{CapabilitySet, CapabilitySets};

/// Leaves the calling thread with those of its capabilities that `choose` returns of them, now and in
/// what it executes without being root. Nothing is gained: what is chosen and not held is not there.
pub fn keep_only(choose: impl FnOnce(CapabilitySet) -> CapabilitySet) -> rustix::io::Result<()> {
    let permitted = rustix::thread::capabilities(None)?.permitted;
    let kept = permitted & choose(permitted);
    // Fails only where the kernel knows no ambient set, before Linux 4.3.
    let _ = rustix::thread::clear_ambient_capability_set();
    let inheritable = CapabilitySet::empty();
    let sets = CapabilitySets { effective: kept, permitted: kept, inheritable };
    rustix::thread::set_capabilities(None, sets)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Inheritable, permitted, effective and ambient ones of this thread.
    fn sets() -> [u64; 4] {
        let status = std::fs::read_to_string("/proc/thread-self/status").expect("it is there");
        ["CapInh:", "CapPrm:", "CapEff:", "CapAmb:"].map(|name| {
            let line = status.lines().find_map(|line| line.strip_prefix(name)).expect("a line");
            u64::from_str_radix(line.trim(), 16).expect("a number")
        })
    }

    /// Needs root, as strata does.
    #[test]
    fn a_thread_keeps_what_it_chooses_and_gains_nothing() {
        let outside = sets();
        let (ptrace, bpf) = (CapabilitySet::SYS_PTRACE, CapabilitySet::BPF);
        let inside = std::thread::spawn(move || {
            let held = rustix::thread::capabilities(None).expect("they are there");
            assert!(held.permitted.contains(ptrace | bpf));
            // Inheritable and ambient, it would be in programs that are executed later.
            let sets_before = CapabilitySets { inheritable: held.permitted, ..held };
            rustix::thread::set_capabilities(None, sets_before).expect("they are held");
            rustix::thread::configure_capability_in_ambient_set(bpf, true).expect("it is held");
            keep_only(|held| {
                assert!(held.contains(bpf));
                ptrace | bpf
            })
            .expect("the kernel lets it");
            let both = sets();
            keep_only(|_| ptrace).expect("the kernel lets it");
            let one = sets();
            keep_only(|held| {
                assert_eq!(held, ptrace);
                CapabilitySet::all()
            })
            .expect("the kernel lets it");
            [both, one, sets()]
        });
        let both = (ptrace | bpf).bits();
        let only = ptrace.bits();
        let expected = [[0, both, both, 0], [0, only, only, 0], [0, only, only, 0]];
        assert_eq!(inside.join().expect("it ends"), expected);
        assert_eq!(sets(), outside, "of that thread only");
    }
}
