//! Real files with damage in them: nothing panics, and everything ends.

mod support;

use std::fs;
use std::io::Write;
use std::process::Command;
use std::sync::Once;
use std::sync::atomic::{AtomicUsize, Ordering};
use strata_symbols::exercise;
use support::{compile, place, run};

/// A small generator of numbers: the same sequence in every run.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 % u64::try_from(limit.max(1)).unwrap()).unwrap()
    }

    fn byte(&mut self) -> u8 {
        [0, 1, 2, 0x7f, 0x80, 0xff, 0x41, 0x10][self.below(8)]
    }
}

/// Panics, also those that are caught: none is wanted.
static PANICS: AtomicUsize = AtomicUsize::new(0);

fn count_panics() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            PANICS.fetch_add(1, Ordering::Relaxed);
            before(panic);
        }));
    });
}

/// Damages `bytes` in many ways: in its headers, in its last parts, anywhere, and by truncation.
fn damage(bytes: &[u8], rounds: usize, seed: u64, exercise: impl Fn(&[u8]) -> usize) {
    count_panics();
    let before = PANICS.load(Ordering::Relaxed);
    // A longer run by hand: STRATA_DAMAGE_FACTOR=100 cargo test.
    let factor = std::env::var("STRATA_DAMAGE_FACTOR");
    let rounds =
        factor.map_or(rounds, |factor| rounds * factor.parse::<usize>().expect("a number"));
    let mut numbers = Numbers(seed);
    for round in 0..rounds {
        let mut damaged = bytes.to_vec();
        let places = match round % 4 {
            0 => 1 + numbers.below(4),
            1 => 1 + numbers.below(64),
            _ => 1 + numbers.below(bytes.len() / 20 + 1),
        };
        for _ in 0..places {
            let at = match round % 4 {
                0 => numbers.below(64),
                1 => bytes.len() - 1 - numbers.below((bytes.len() / 8).max(1)),
                _ => numbers.below(bytes.len()),
            };
            damaged[at] = numbers.byte();
        }
        if round % 5 == 4 {
            damaged.truncate(numbers.below(bytes.len()));
        }
        let _ = exercise(&damaged);
    }
    assert_eq!(PANICS.load(Ordering::Relaxed), before);
}

#[test]
fn damaged_elf_files_never_panic() {
    let compiled = [
        compile("gcc", "shop.c", "damaged-c", &["-g", "-O2"]),
        compile("g++", "shop.cc", "damaged-cc", &["-g", "-O2", "-gz"]),
        compile("g++", "scopes.cc", "damaged-scopes", &["-g", "-O2"]),
    ];
    for path in compiled.into_iter().flatten() {
        let bytes = fs::read(path).unwrap();
        assert!(exercise::elf(&bytes) > 100);
        damage(&bytes, 300, 0x1234_5678_9abc_def1, exercise::elf);
    }
}

#[test]
fn damaged_mini_debug_data_never_panics() {
    let Some(path) = compile("gcc", "shop.c", "damaged-mini", &["-O2"]) else {
        return;
    };
    let text = |name: &str| place(name).to_str().unwrap().to_owned();
    let (full, packed, out) =
        (path.to_str().unwrap(), text("damaged-mini.xz"), text("damaged-mini-out"));
    let Ok(xz) = Command::new("xz").args(["-k", "-c", full]).output() else {
        strata_skip::skipped!("no xz here");
        return;
    };
    fs::write(&packed, xz.stdout).unwrap();
    let done = run("strip", &["-s", "-o", &out, full])
        .and_then(|_| run("objcopy", &[&format!("--add-section=.gnu_debugdata={packed}"), &out]));
    if done.is_some() {
        damage(&fs::read(&out).unwrap(), 200, 7, exercise::elf);
    }
}

#[test]
fn a_small_file_that_unpacks_to_gigabytes_is_refused() {
    let Some(path) = compile("gcc", "shop.c", "bomb", &["-O2"]) else {
        return;
    };
    let Ok(mut xz) = Command::new("xz")
        .arg("-0")
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .spawn()
    else {
        strata_skip::skipped!("no xz here");
        return;
    };
    let mut input = xz.stdin.take().unwrap();
    let writer = std::thread::spawn(move || {
        let zeros = vec![0; 1 << 20];
        (0..300).try_for_each(|_| input.write_all(&zeros))
    });
    let output = xz.wait_with_output().unwrap();
    writer.join().unwrap().unwrap();
    let packed = place("bomb.xz").to_str().unwrap().to_owned();
    fs::write(&packed, output.stdout).unwrap();
    let out = place("bomb-out").to_str().unwrap().to_owned();
    let done = run("strip", &["-s", "-o", &out, path.to_str().unwrap()])
        .and_then(|_| run("objcopy", &[&format!("--add-section=.gnu_debugdata={packed}"), &out]));
    if done.is_none() {
        return;
    }
    let bytes = fs::read(&out).unwrap();
    let options = strata_symbols::Options::default();
    let mut resolver = strata_symbols::Resolver::new(&bytes, None, options).unwrap();
    let entry = resolver.elf().entry;
    let _ = resolver.resolve(&[entry]);
    let problems = resolver.report().problems;
    assert!(problems.iter().any(|problem| problem.contains("too large")), "{problems:?}");
}

#[test]
fn damaged_go_programs_never_panic() {
    let source =
        std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../golang/tests/programs/plain.go");
    let out = place("damaged-go");
    let arguments =
        ["build", "-ldflags=-s -w", "-o", out.to_str().unwrap(), source.to_str().unwrap()];
    if run("go", &arguments).is_none() {
        return;
    }
    let bytes = fs::read(&out).unwrap();
    assert!(exercise::elf(&bytes) > 50);
    damage(&bytes, 40, 99, exercise::elf);
}

#[test]
fn damaged_texts_and_dumps_never_panic() {
    let map: Vec<u8> = (0..500_u32)
        .flat_map(|index| {
            format!("{:x} {:x} LazyCompile:*f{index} a.js\n", 0x1000 + index * 48, 64).into_bytes()
        })
        .collect();
    assert!(exercise::perf_map(&map) > 400);
    damage(&map, 300, 3, exercise::perf_map);
    let symbols: Vec<u8> = (0..500_u64)
        .flat_map(|index| {
            format!(
                "{:016x} t function_{index}\t[module{}]\n",
                0xffff_ffff_8100_0000 + index * 64,
                index / 50
            )
            .into_bytes()
        })
        .collect();
    assert_eq!(exercise::kallsyms(&symbols), 500);
    damage(&symbols, 200, 4, exercise::kallsyms);
}
