//! Entry points for fuzzers and for the test below: every parser of bytes controlled by a target.

use crate::diagnostics::ProcessInfo;
use crate::mappings::Mappings;
use crate::place::writable_mounts;
use crate::switches::Switches;
use crate::target::Status;
use crate::version::RuntimeVersion;

/// Parses `data` as each kind of input from a target.
pub fn target(data: &[u8]) {
    for second in [false, true] {
        let _ = ProcessInfo::parse(data, second);
    }
    let _ = Status::parse(data);
    let switches = Switches::parse(data);
    let _ = (switches.socket_switched_off(), switches.profilers_switched_off());
    for profiler in switches.profilers() {
        assert!(!profiler.to_string().chars().any(char::is_control));
    }
    assert!(writable_mounts(data).iter().all(|point| point.len() <= data.len()));
    let mut mappings = Mappings::default();
    data.split(|&byte| byte == b'\n').for_each(|line| mappings.take(line));
    let _ = mappings.runtime.as_deref().and_then(RuntimeVersion::of_path);
    assert!(!crate::root::shown(data).chars().any(char::is_control));
}

#[cfg(test)]
mod tests {
    /// Numbers that are the same in every run.
    fn numbers() -> impl Iterator<Item = u64> {
        let mut state = 0x2545_f491_4f6c_dd1d_u64;
        std::iter::repeat_with(move || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state
        })
    }

    #[test]
    fn real_texts_with_random_changes_are_read_or_refused() {
        let texts: Vec<Vec<u8>> = ["maps", "status", "mountinfo", "environ"]
            .iter()
            .map(|name| std::fs::read(format!("/proc/self/{name}")).unwrap())
            .chain([
                b"CORECLR_ENABLE_PROFILING=1\0CORECLR_PROFILER={1}\0TMPDIR=/x\0DOTNET_EnableDiagnostics=0x".to_vec(),
                [&[7; 24][..], &[3, 0, 0, 0, 65, 0, 66, 0, 0, 0].repeat(5)].concat(),
                Vec::new(),
            ])
            .collect();
        let mut random = numbers();
        let mut next = move |bound: usize| (random.next().unwrap() as usize) % bound.max(1);
        for text in &texts {
            for _ in 0..300 {
                let mut changed = text.clone();
                for _ in 0..=next(8) {
                    let at = next(changed.len());
                    match (next(4), changed.get_mut(at)) {
                        (0, Some(byte)) => *byte = next(256) as u8,
                        (1, Some(byte)) => *byte = [0, b'\n', b' ', b'/', b'\\', 0xff][next(6)],
                        (2, Some(_)) => changed.truncate(at),
                        (_, Some(_)) => drop(changed.splice(at..at, [next(256) as u8; 3])),
                        (_, None) => changed.push(next(256) as u8),
                    }
                }
                super::target(&changed);
            }
        }
    }
}
