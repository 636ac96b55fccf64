//! Line tables of programs that the machine's Go toolchain builds here, compared with what Go's and
//! binutils' own tools say about them.

use object::{Object, ObjectSection, ObjectSymbol};
use std::collections::BTreeMap;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use strata_golang::{ModuleData, PclnTab, exercise, find_header, table::FLAG_SP_WRITE};

/// Builds a program of `tests/programs`; `None` (with the reason printed) without a Go toolchain.
fn build(program: &str, output: &str, toolchain: &str, arguments: &[&str]) -> Option<PathBuf> {
    let output = Path::new(env!("CARGO_TARGET_TMPDIR")).join(output);
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs").join(program);
    let built = Command::new("go")
        .env("GOTOOLCHAIN", toolchain)
        .env("GOFLAGS", "")
        .arg("build")
        .args(arguments)
        .arg("-o")
        .args([&output, &source])
        .output();
    match built {
        Ok(built) if built.status.success() => Some(output),
        Ok(built) => {
            strata_skip::skipped!(
                "go ({toolchain}) cannot build {program}: {}",
                String::from_utf8_lossy(&built.stderr)
            );
            None
        }
        Err(error) => {
            strata_skip::skipped!("no Go toolchain here ({error})");
            None
        }
    }
}

fn section<'a>(file: &object::File<'a>, name: &str) -> Option<(u64, &'a [u8])> {
    let section = file.section_by_name(name)?;
    Some((section.address(), section.data().ok()?))
}

fn module_data(file: &object::File<'_>, table_address: u64, table: &[u8]) -> Option<ModuleData> {
    let header = strata_golang::Header::parse(table).unwrap();
    [".go.module", ".noptrdata", ".data"]
        .into_iter()
        .filter_map(|name| section(file, name))
        .find_map(|(address, data)| ModuleData::find(data, address, table_address, &header))
}

/// A table with everything that the file contains about it.
fn open<'a>(file: &object::File<'a>) -> PclnTab<'a> {
    let (address, bytes) = section(file, ".gopclntab").expect("a section .gopclntab");
    let module = module_data(file, address, bytes).expect("module data");
    let function_data = module.function_data.expect("function data");
    let held = file
        .sections()
        .find_map(|section| {
            let offset = function_data.checked_sub(section.address())?;
            section.data().ok()?.get(usize::try_from(offset).ok()?..)
        })
        .expect("function data lies in a section");
    PclnTab::parse(bytes, Some(module.text)).unwrap().with_function_data(held)
}

fn asked(tool: &str, arguments: &[&str], file: &Path, questions: &[u64]) -> Option<String> {
    let mut child = Command::new(tool)
        .args(arguments)
        .arg(file)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .ok()?;
    let mut input = child.stdin.take()?;
    let text: String = questions.iter().map(|pc| format!("{pc:#x}\n")).collect();
    let writer = std::thread::spawn(move || {
        let _ = input.write_all(text.as_bytes());
    });
    let output = child.wait_with_output().ok()?;
    writer.join().ok()?;
    Some(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Every 7th address or so of the program's text: all functions are met.
fn sample_addresses(table: &PclnTab<'_>) -> Vec<u64> {
    let mut addresses = Vec::new();
    for function in table.functions() {
        addresses.push(function.entry);
        addresses.extend((function.entry..function.end).step_by(97).skip(1));
    }
    addresses
}

#[test]
fn functions_agree_with_the_symbol_table() {
    let Some(path) = build("plain.go", "functions", "local", &[]) else {
        return;
    };
    let bytes = std::fs::read(path).unwrap();
    let file = object::File::parse(&*bytes).unwrap();
    let table = open(&file);
    let mut named: BTreeMap<u64, Vec<String>> = BTreeMap::new();
    for symbol in file.symbols() {
        if symbol.kind() == object::SymbolKind::Text && symbol.size() > 0 {
            named.entry(symbol.address()).or_default().push(symbol.name().unwrap().to_owned());
        }
    }
    assert!(named.len() > 1000);
    for (address, names) in &named {
        let function = table.lookup(*address).expect("every function is found");
        assert_eq!(function.entry, *address);
        let name = table.name(&function).unwrap();
        // Symbols of assembly functions carry their ABI, the line table does not; a middle dot in a
        // name is a dot in the symbol.
        let name = name.replace('·', ".");
        assert!(
            names.iter().any(|symbol| symbol.trim_end_matches(".abi0") == name),
            "{names:?} is {name}"
        );
    }
    assert_eq!(table.functions().count(), named.len());
}

#[test]
fn lines_agree_with_go_tool_addr2line() {
    for arguments in [&[][..], &["-buildmode=pie"], &["-ldflags=-s -w"]] {
        let Some(path) = build("plain.go", "lines", "local", arguments) else {
            return;
        };
        let bytes = std::fs::read(&path).unwrap();
        let file = object::File::parse(&*bytes).unwrap();
        let table = open(&file);
        let addresses = sample_addresses(&table);
        // Go's own tool needs symbols to find the text: ask about the unstripped twin.
        let twin = match build(
            "plain.go",
            "lines-twin",
            "local",
            arguments.get(..1).filter(|a| a[0] == "-buildmode=pie").unwrap_or_default(),
        ) {
            Some(twin) => twin,
            None => return,
        };
        let answer = asked("go", &["tool", "addr2line"], &twin, &addresses).unwrap();
        let mut lines = answer.lines();
        for address in &addresses {
            let name = lines.next().unwrap();
            let place = lines.next().unwrap();
            let function = table.lookup(*address).unwrap();
            assert_eq!(
                table.name(&function).unwrap(),
                name.trim_end_matches(".abi0"),
                "{address:#x}"
            );
            let source = table.file_line(*address);
            if place == ":-1" || place == "?:0" {
                assert_eq!(source, None, "{address:#x}");
                continue;
            }
            let ours =
                source.map_or("?:0".into(), |source| format!("{}:{}", source.file, source.line));
            assert_eq!(ours, place, "{address:#x} in {name}");
        }
        assert!(addresses.len() > 5000);
    }
}

#[test]
fn inlined_calls_agree_with_dwarf() {
    let Some(path) = build("plain.go", "inlines", "local", &[]) else {
        return;
    };
    let bytes = std::fs::read(&path).unwrap();
    let file = object::File::parse(&*bytes).unwrap();
    let table = open(&file);
    // binutils' addr2line of Debian 12 does not read the DWARF 5 that Go writes.
    let tools = ["/usr/lib/llvm-22/bin/llvm-symbolizer", "/usr/bin/llvm-symbolizer"];
    let Some(tool) = tools.into_iter().find(|tool| Path::new(tool).exists()) else {
        strata_skip::skipped!("no llvm-symbolizer here");
        return;
    };
    let mut checked = 0;
    let mut deep = 0;
    for function in table.functions() {
        let name = table.name(&function).unwrap();
        if !name.starts_with("main.") && !name.starts_with("strings.") {
            continue;
        }
        let addresses: Vec<u64> = (function.entry..function.end).collect();
        let arguments = ["--output-style=GNU", "--addresses", "--inlines", "-f", "-e"];
        let Some(answer) = asked(tool, &arguments, &path, &addresses) else {
            strata_skip::skipped!("{tool} does not run here");
            return;
        };
        let mut expected: BTreeMap<u64, Vec<(String, String)>> = BTreeMap::new();
        let mut lines = answer.lines();
        let mut current = 0;
        while let Some(line) = lines.next() {
            if let Some(address) = line.strip_prefix("0x") {
                current = u64::from_str_radix(address, 16).unwrap();
            } else {
                let place = lines.next().unwrap().split(" (").next().unwrap().to_owned();
                expected.entry(current).or_default().push((line.to_owned(), place));
            }
        }
        for address in addresses {
            let frames = table.frames(address);
            let wanted = &expected[&address];
            if wanted.iter().any(|(name, place)| name == "??" || place.contains('?')) {
                continue;
            }
            checked += 1;
            deep += usize::from(frames.len() > 2);
            let ours: Vec<_> =
                frames.iter().map(|frame| frame.name.as_deref().unwrap_or("?")).collect();
            let theirs: Vec<_> = wanted.iter().map(|(name, _)| name.as_str()).collect();
            assert_eq!(ours, theirs, "{address:#x}");
        }
    }
    assert!(checked > 500, "only {checked} addresses were compared");
    assert!(deep > 10, "only {deep} addresses with two inlined calls");
}

#[test]
fn a_stripped_position_independent_program_linked_with_c_is_read_whole() {
    for (output, arguments) in [
        ("c-plain", &["-ldflags=-linkmode=external"][..]),
        ("c-stripped", &["-ldflags=-s -w -linkmode=external"]),
        ("c-pie", &["-buildmode=pie", "-ldflags=-s -w -linkmode=external"]),
    ] {
        let Some(path) = build("with_c.go", output, "local", arguments) else {
            return;
        };
        let bytes = std::fs::read(&path).unwrap();
        let file = object::File::parse(&*bytes).unwrap();
        let table = open(&file);
        let (text, _) = section(&file, ".text").unwrap();
        assert!(table.text_start() > text, "C's start-up code comes first");
        if let Some(symbol) = file.symbols().find(|symbol| symbol.name() == Ok("runtime.text")) {
            assert_eq!(table.text_start(), symbol.address());
        }
        let main = table
            .functions()
            .find(|function| table.name(function).as_deref() == Some("main.main"))
            .expect("main.main");
        let source = table.file_line(main.entry).unwrap();
        assert!(source.file.ends_with("with_c.go"));
        assert_eq!(source.line, 10);
    }
}

#[test]
fn stack_deltas_cover_every_function_and_begin_with_none() {
    let Some(path) = build("plain.go", "deltas", "local", &[]) else {
        return;
    };
    let bytes = std::fs::read(&path).unwrap();
    let file = object::File::parse(&*bytes).unwrap();
    let table = open(&file);
    let mut with_deltas = 0;
    for function in table.functions() {
        let name = table.name(&function).unwrap();
        let ranges: Vec<_> = table.sp_deltas(&function).collect();
        let Some(first) = ranges.first() else {
            continue;
        };
        with_deltas += 1;
        assert_eq!((first.start, first.value), (function.entry, 0), "{name}");
        for pair in ranges.windows(2) {
            assert_eq!(pair[0].end, pair[1].start, "{name}");
        }
        // A function that pops its return address goes below zero (`rawVforkSyscall`).
        if function.flags & FLAG_SP_WRITE == 0 && name != "syscall.rawVforkSyscall" {
            let sane = |value: i32| value >= 0 && value % 8 == 0;
            assert!(ranges.iter().all(|range| sane(range.value)), "{name}");
        }
        if name == "main.square.area" {
            let deepest = ranges.iter().map(|range| range.value).max().unwrap();
            assert!((400..600).contains(&deepest), "its array is on the stack: {deepest}");
        }
    }
    assert!(with_deltas > 1000);
    let goexit = table
        .functions()
        .find(|function| table.name(function).as_deref() == Some("runtime.goexit"))
        .unwrap();
    assert!(table.is_top_frame(&goexit));
}

#[test]
fn stack_deltas_agree_with_the_debug_frames_of_go() {
    let Some(path) = build("plain.go", "frames", "local", &[]) else {
        return;
    };
    let Ok(output) =
        Command::new("readelf").args(["--debug-dump=frames-interp"]).arg(&path).output()
    else {
        strata_skip::skipped!("no readelf here");
        return;
    };
    let bytes = std::fs::read(&path).unwrap();
    let file = object::File::parse(&*bytes).unwrap();
    let table = open(&file);
    let mut compared = 0;
    for line in String::from_utf8_lossy(&output.stdout).lines() {
        let mut words = line.split_whitespace();
        let (Some(pc), Some(rule)) = (words.next(), words.next()) else {
            continue;
        };
        let Some(offset) = rule.strip_prefix("rsp+").and_then(|offset| offset.parse::<i32>().ok())
        else {
            continue;
        };
        let Some(pc) = u64::from_str_radix(pc, 16).ok() else {
            continue;
        };
        let Some(function) = table.lookup(pc) else {
            continue;
        };
        let Some(range) =
            table.sp_deltas(&function).find(|range| (range.start..range.end).contains(&pc))
        else {
            continue;
        };
        assert_eq!(range.value + 8, offset, "{pc:#x}");
        compared += 1;
    }
    println!("{compared} rows compared");
    assert!(compared > 1000 || !String::from_utf8_lossy(&output.stdout).contains("rsp+"));
}

#[test]
fn older_toolchains_are_read_too() {
    // Toolchains that are not on this machine are a download; the test takes what is there.
    for toolchain in ["go1.21.13", "go1.24.0"] {
        let module = format!("golang.org/toolchain@v0.0.1-{toolchain}.linux-amd64");
        let cache =
            std::env::var("HOME").map(|home| Path::new(&home).join("go/pkg/mod").join(module));
        if !cache.is_ok_and(|path| path.exists()) {
            strata_skip::skipped!("{toolchain} is not on this machine");
            continue;
        }
        let Some(path) = build("plain.go", toolchain, toolchain, &["-ldflags=-s -w"]) else {
            continue;
        };
        let bytes = std::fs::read(&path).unwrap();
        let file = object::File::parse(&*bytes).unwrap();
        let table = open(&file);
        let (_, section) = section(&file, ".gopclntab").unwrap();
        assert_eq!(PclnTab::parse(section, None).unwrap().text_start(), table.text_start());
        let outer = table
            .functions()
            .find(|function| table.name(function).as_deref() == Some("main.outer"))
            .unwrap();
        let deepest =
            (outer.entry..outer.end).map(|pc| table.frames(pc)).max_by_key(Vec::len).unwrap();
        let names: Vec<_> = deepest.iter().filter_map(|frame| frame.name.as_deref()).collect();
        assert_eq!(names, ["main.leaf", "main.middle", "main.outer"]);
        assert!(
            deepest.iter().all(|frame| frame.source.as_ref().unwrap().file.ends_with("plain.go"))
        );
    }
}

#[test]
fn the_table_is_found_without_a_section_of_its_own() {
    let Some(path) = build("plain.go", "search", "local", &[]) else {
        return;
    };
    let bytes = std::fs::read(&path).unwrap();
    let file = object::File::parse(&*bytes).unwrap();
    let (_, table) = section(&file, ".gopclntab").unwrap();
    let offset = find_header(&bytes).expect("found in the whole file");
    assert_eq!(&bytes[offset..offset + 64], &table[..64]);
}

/// A small generator of numbers: the same sequence in every run.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 % u64::try_from(limit).unwrap()).unwrap()
    }
}

#[test]
fn a_damaged_table_never_panics() {
    let Some(path) = build("plain.go", "damaged", "local", &[]) else {
        return;
    };
    let bytes = std::fs::read(&path).unwrap();
    let file = object::File::parse(&*bytes).unwrap();
    let (_, table) = section(&file, ".gopclntab").unwrap();
    assert!(exercise::line_table(table).0 > 1000);
    let header = strata_golang::Header::parse(table).unwrap();
    let mut numbers = Numbers(0x9e37_79b9_7f4a_7c15);
    for round in 0..24 {
        let mut damaged = table.to_vec();
        // A third in the header, a third in the records, a third anywhere.
        let (from, span) = match round % 3 {
            0 => (0, 72),
            1 => (header.functions, table.len() - header.functions),
            _ => (0, table.len()),
        };
        for _ in 0..=numbers.below(if round % 3 == 0 { 3 } else { 4000 }) {
            damaged[from + numbers.below(span)] = [0, 1, 0x7f, 0x80, 0xff, 0x41][numbers.below(6)];
        }
        damaged.truncate(table.len() - numbers.below(table.len() / 2) * (round & 1));
        let _ = exercise::line_table(&damaged);
    }
}
