//! Real files with damage in them: nothing panics, and everything ends soon. Needs the .NET
//! runtimes.

mod support;

use std::time::{Duration, Instant};

use strata_dotnet::exercise;
use support::*;

/// A small generator of numbers: the same sequence in every run.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % limit.max(1) as u64) as usize
    }

    fn byte(&mut self) -> u8 {
        [0, 1, 2, 0x3e, 0x3f, 0x7f, 0x80, 0xff][self.below(8)]
    }
}

/// What one file may take, in a build without optimisation on a busy machine.
const LIMIT: Duration = Duration::from_secs(10);

/// Damages a file in many ways: in its headers, in one place, anywhere, and by truncation.
fn damage(bytes: &[u8], rounds: usize, exercise: impl Fn(&[u8]) -> usize) {
    // A longer run by hand: STRATA_DAMAGE_FACTOR=100 cargo test.
    let factor = std::env::var("STRATA_DAMAGE_FACTOR");
    let rounds = rounds * factor.map_or(1, |factor| factor.parse::<usize>().unwrap());
    let mut numbers = Numbers(0x5747_4131);
    let mut longest = Duration::ZERO;
    let mut found = 0;
    for round in 0..rounds {
        let mut damaged = bytes.to_vec();
        let places = [1 + numbers.below(3), 1 + numbers.below(64), 1 + numbers.below(2000)];
        let area = if round % 4 == 0 { 2048 } else { damaged.len() };
        let start = numbers.below(damaged.len() - area.min(damaged.len() - 1));
        for _ in 0..places[round % 3] {
            let at = if round % 4 == 0 { 0 } else { start } + numbers.below(area);
            let length = damaged.len();
            damaged[at % length] = numbers.byte();
        }
        if round % 5 == 4 {
            damaged.truncate(numbers.below(bytes.len()));
        }
        let before = Instant::now();
        found += exercise(&damaged);
        longest = longest.max(before.elapsed());
        assert!(longest < LIMIT, "round {round} took {longest:?}");
    }
    println!("{rounds} rounds, {found} found, the longest took {longest:?}");
    assert!(found > rounds / 10, "damage hit the first bytes only");
}

#[test]
fn damaged_assemblies_end_in_names_or_errors() {
    let folder = tempfile::tempdir().unwrap();
    let assembly = compile(folder.path(), "Lines.cs", &["-debug:embedded"]);
    damage(&std::fs::read(assembly).unwrap(), 2000, exercise::image);
}

#[test]
fn damaged_precompiled_assemblies_end_in_names_or_errors() {
    for (version, name, rounds) in [
        ("3.1", "System.Linq.dll", 200),
        ("9", "System.Linq.dll", 200),
        ("9", "System.Private.CoreLib.dll", 8),
    ] {
        let bytes = std::fs::read(framework(version, name)).unwrap();
        damage(&bytes, rounds, exercise::image);
    }
}

#[test]
fn damaged_bundles_end_in_names_or_errors() {
    // A host's last bytes, one assembly, and the manifest.
    let folder = tempfile::tempdir().unwrap();
    let assembly = std::fs::read(compile(folder.path(), "Lines.cs", &["-debug:embedded"])).unwrap();
    let mut bundle = b"host".to_vec();
    let manifest = bundle.len() as u64 + 8 + 32 + assembly.len() as u64;
    bundle.extend_from_slice(&manifest.to_le_bytes());
    bundle.extend_from_slice(&strata_dotnet::bundle::SIGNATURE);
    let offset = bundle.len() as u64;
    bundle.extend_from_slice(&assembly);
    for word in [6_u32, 0, 1] {
        bundle.extend_from_slice(&word.to_le_bytes());
    }
    bundle.extend_from_slice(b"\x02id");
    bundle.extend_from_slice(&[0; 40]);
    for word in [offset, assembly.len() as u64, 0] {
        bundle.extend_from_slice(&word.to_le_bytes());
    }
    bundle.extend_from_slice(b"\x01\x09Lines.dll");
    assert!(exercise::image(&bundle) > 5);
    damage(&bundle, 2000, exercise::image);
}

#[test]
fn damaged_pdbs_end_in_lines_or_errors() {
    let folder = tempfile::tempdir().unwrap();
    let assembly = compile(folder.path(), "Lines.cs", &["-debug:portable"]);
    damage(&std::fs::read(assembly.with_extension("pdb")).unwrap(), 5000, exercise::pdb);
}

#[test]
fn a_file_cut_anywhere_is_an_error_or_less() {
    let folder = tempfile::tempdir().unwrap();
    let assembly = compile(folder.path(), "Lines.cs", &["-debug:portable"]);
    let image = std::fs::read(&assembly).unwrap();
    let pdb = std::fs::read(assembly.with_extension("pdb")).unwrap();
    for length in (0..image.len()).step_by(7) {
        let _ = exercise::image(&image[..length]);
    }
    for length in 0..pdb.len() {
        assert_eq!(exercise::pdb(&pdb[..length]), 0, "{length} bytes");
    }
}
