//! Building the programs of `tests/programs` with the machine's compilers, and asking its tools.
#![allow(dead_code, reason = "each test file uses its part")]

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use strata_symbols::{Options, Resolved, Resolver};

/// Where this test file may write.
pub fn place(name: &str) -> PathBuf {
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR"));
    std::fs::create_dir_all(directory).unwrap();
    directory.join(name)
}

pub fn program(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs").join(name)
}

/// Runs a tool; `None`, with the reason printed, when it is missing or refuses.
pub fn run(tool: &str, arguments: &[&str]) -> Option<String> {
    match Command::new(tool).args(arguments).output() {
        Ok(output) if output.status.success() => {
            Some(String::from_utf8_lossy(&output.stdout).into_owned())
        }
        Ok(output) => {
            strata_skip::skipped!(
                "{tool} {arguments:?}: {}",
                String::from_utf8_lossy(&output.stderr)
            );
            None
        }
        Err(error) => {
            strata_skip::skipped!("no {tool} here ({error})");
            None
        }
    }
}

/// Compiles a program; `None`, with the reason printed, without the compiler.
pub fn compile(compiler: &str, source: &str, name: &str, arguments: &[&str]) -> Option<PathBuf> {
    let output = place(name);
    let source = program(source);
    let mut all = arguments.to_vec();
    all.extend(["-o", output.to_str()?, source.to_str()?]);
    run(compiler, &all)?;
    Some(output)
}

pub fn resolve(file: &[u8], addresses: &[u64]) -> Vec<Resolved> {
    Resolver::new(&file, None, Options::default()).unwrap().resolve(addresses)
}

/// A function symbol of `nm -S`.
#[derive(Debug, Clone)]
pub struct Symbol {
    pub address: u64,
    pub size: u64,
    pub kind: char,
    pub name: String,
}

/// The symbols in code, as binutils sees them.
pub fn symbols(path: &Path) -> Option<Vec<Symbol>> {
    let text = run("nm", &["-S", path.to_str()?])?;
    let parse = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let (address, size, kind, name) = match *words.as_slice() {
            [address, size, kind, name] => (address, size, kind, name),
            [address, kind, name] => (address, "0", kind, name),
            _ => return None,
        };
        Some(Symbol {
            address: u64::from_str_radix(address, 16).ok()?,
            size: u64::from_str_radix(size, 16).ok()?,
            kind: kind.chars().next()?,
            name: name.to_owned(),
        })
    };
    let symbols = text.lines().filter_map(parse);
    Some(symbols.filter(|symbol| matches!(symbol.kind, 't' | 'T' | 'w' | 'W' | 'i')).collect())
}

pub fn symbol(path: &Path, name: &str) -> Symbol {
    symbols(path)
        .unwrap()
        .into_iter()
        .find(|symbol| symbol.name == name)
        .unwrap_or_else(|| panic!("{} has {name}", path.display()))
}

/// `addr2line -a -i -f`: (function, "file:line") per frame and address.
pub fn addr2line(path: &Path, addresses: &[u64]) -> Option<Vec<Vec<(String, String)>>> {
    let mut child = Command::new("addr2line")
        .args(["-a", "-i", "-f", "-e"])
        .arg(path)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(|error| strata_skip::skipped!("no addr2line here ({error})"))
        .ok()?;
    let mut input = child.stdin.take()?;
    let questions: String = addresses.iter().map(|pc| format!("{pc:#x}\n")).collect();
    let writer = std::thread::spawn(move || input.write_all(questions.as_bytes()));
    let output = child.wait_with_output().ok()?;
    writer.join().ok()?.ok()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let mut answers: Vec<Vec<(String, String)>> = Vec::new();
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        if line.starts_with("0x") {
            answers.push(Vec::new());
        } else {
            let place = lines.next()?.split(" (").next()?.to_owned();
            answers.last_mut()?.push((line.to_owned(), place));
        }
    }
    (answers.len() == addresses.len()).then_some(answers)
}
