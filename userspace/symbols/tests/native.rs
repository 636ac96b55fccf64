//! C and C++ programs built here, compared with nm, addr2line and objdump.

mod support;

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::Path;
use strata_symbols::dwarf::State;
use strata_symbols::{ElfFile, FileAt, Options, Resolver, debug_files};
use support::{addr2line, compile, place, program, resolve, run, symbol, symbols};

/// All frames of the functions in `names`, against addr2line.
fn compare_with_addr2line(path: &Path, names: &[&str]) -> Option<usize> {
    let bytes = fs::read(path).unwrap();
    let mut deep = 0;
    for name in names {
        let function = symbol(path, name);
        let addresses: Vec<u64> = (function.address..function.address + function.size).collect();
        let expected = addr2line(path, &addresses)?;
        let found = resolve(&bytes, &addresses);
        for ((address, expected), found) in addresses.iter().zip(&expected).zip(&found) {
            let ours: Vec<(String, String)> = found
                .frames
                .iter()
                .map(|frame| {
                    let file = frame.file.as_deref().unwrap_or("??");
                    let line = frame.line.map_or("?".to_owned(), |line| line.to_string());
                    (frame.system_name.to_string(), format!("{file}:{line}"))
                })
                .collect();
            let names = |frames: &[(String, String)]| -> Vec<String> {
                frames.iter().map(|(name, _)| name.clone()).collect()
            };
            assert_eq!(
                names(&ours).len(),
                names(expected).len(),
                "{address:#x}: {ours:?} {expected:?}"
            );
            for (ours, theirs) in ours.iter().zip(expected) {
                // binutils gives inlined functions without a linkage name their caller's, or one
                // without scopes.
                if theirs.0 != *name || ours.0.starts_with("_Z") {
                    let same = ours.0 == theirs.0 || ours.0.ends_with(&format!("::{}", theirs.0));
                    assert!(same, "{address:#x}: {} {}", ours.0, theirs.0);
                }
                // Paths are put together differently (`a/../b`), lines are not.
                let line = |place: &str| place.rsplit(':').next().map(str::to_owned);
                let base = |place: &str| {
                    let place = place.rsplit('/').next()?;
                    place.split(':').next().map(str::to_owned)
                };
                assert_eq!(line(&ours.1), line(&theirs.1), "{address:#x}");
                assert_eq!(base(&ours.1), base(&theirs.1), "{address:#x}");
            }
            deep += usize::from(ours.len() > 1);
        }
    }
    Some(deep)
}

#[test]
fn a_function_without_a_size_ends_where_its_instructions_do() {
    let Some(path) = compile("cc", "sizeless.c", "sizeless", &["-O1"]) else { return };
    let start = symbols(&path).unwrap().iter().find(|symbol| symbol.name == "sizeless").map_or(
        // nm gives no size, and shows it without one.
        run("nm", &[path.to_str().unwrap()]).and_then(|text| {
            let line = text.lines().find(|line| line.ends_with(" sizeless"))?;
            u64::from_str_radix(line.split(' ').next()?, 16).ok()
        }),
        |symbol| Some(symbol.address),
    );
    let start = start.expect("its address");
    let found = resolve(&fs::read(&path).unwrap(), &[start, start + 12, start + 32]);
    let names: Vec<Option<&str>> =
        found.iter().map(|found| found.frames.first().map(|frame| &*frame.name)).collect();
    assert_eq!(names, [Some("sizeless"), Some("sizeless"), None]);
}

#[test]
fn a_name_that_begins_with_a_dollar_is_a_name() {
    let Some(compiled) = compile("cc", "dollar.c", "dollar-plain", &["-O1"]) else { return };
    let path = place("dollar");
    let [from, to] = [&compiled, &path].map(|path| path.to_str().unwrap());
    if run("objcopy", &["--redefine-sym", "paid=$s4shop3payyS2iF", from, to]).is_none() {
        return;
    }
    let function = symbol(&path, "$s4shop3payyS2iF");
    let found = resolve(&fs::read(&path).unwrap(), &[function.address + 1]);
    let names: Vec<&str> = found[0].frames.iter().map(|frame| &*frame.name).collect();
    assert_eq!(names, ["$s4shop3payyS2iF"]);
}

#[test]
fn lines_and_inlined_calls_agree_with_addr2line() {
    let Some(path) = compile("gcc", "shop.c", "shop-lines", &["-g", "-O2"]) else {
        return;
    };
    let Some(deep) = compare_with_addr2line(&path, &["order_total", "main", "by_value"]) else {
        return;
    };
    assert!(deep > 20, "only {deep} addresses in inlined calls");
}

#[test]
fn lines_of_cpp_agree_with_addr2line() {
    let Some(path) = compile("g++", "shop.cc", "shop-cc-lines", &["-g", "-O2"]) else {
        return;
    };
    let names = ["main", "_ZNK4shop5OrderIlE5totalEi"];
    let Some(deep) = compare_with_addr2line(&path, &names) else {
        return;
    };
    assert!(deep > 50, "only {deep} addresses in inlined calls");
}

#[test]
fn debug_information_in_a_file_of_dwz_reads_the_same() {
    let built = |name| compile("g++", "shop.cc", name, &["-g", "-O2"]);
    let (Some(path), Some(other)) = (built("shop-dwz"), built("shop-dwz-other")) else { return };
    let function = symbol(&path, "main");
    let addresses: Vec<u64> = (function.address..function.address + function.size).collect();
    let plain = resolve(&fs::read(&path).unwrap(), &addresses);
    let common = place("shop-dwz-common.debug");
    let [first, second] = [&path, &other].map(|path| path.to_str().unwrap());
    let arguments = ["-m", common.to_str().unwrap(), first, second];
    if run("dwz", &arguments).is_none() {
        return;
    }
    let bytes = fs::read(&path).unwrap();
    let file: &[u8] = &bytes;
    let link = ElfFile::open(&file).unwrap().alternate_link().expect("dwz has left a link");
    let alternate = FileAt::new(File::open(&common).unwrap()).unwrap();
    let places = debug_files::alternates(&path, &link);
    assert!(places.contains(&common), "{places:?}");
    assert!(debug_files::accept(&alternate, Some(&link.build_id), None));
    let mut resolver = Resolver::new(&file, None, Options::default()).unwrap();
    resolver.set_alternate(&alternate);
    let found = resolver.resolve(&addresses);
    assert!(resolver.report().problems.is_empty());
    let lines = |found: &[strata_symbols::Resolved]| -> Vec<Vec<_>> {
        let of = |frame: &strata_symbols::SymbolFrame| (frame.file.clone(), frame.line);
        found.iter().map(|found| found.frames.iter().map(of).collect()).collect()
    };
    assert!(plain.iter().filter(|found| found.frames.len() > 1).count() > 50);
    assert_eq!(lines(&found), lines(&plain));
    for (found, plain) in found.iter().zip(&plain) {
        for (found, plain) in found.frames.iter().zip(&plain.frames) {
            // Without a linkage name it has no scopes there.
            let is_same = found.name == plain.name || plain.name.ends_with(&*found.name);
            assert!(is_same, "{} and {}", found.name, plain.name);
        }
    }
    let without = resolve(&bytes, &addresses);
    assert!(lines(&without) != lines(&plain), "nothing was in the other file");
}

#[test]
fn compressed_debug_information_reads_the_same() {
    let Some(path) = compile("gcc", "shop.c", "shop-plain", &["-g", "-O2"]) else {
        return;
    };
    let function = symbol(&path, "order_total");
    let addresses: Vec<u64> = (function.address..function.address + function.size).collect();
    let plain = resolve(&fs::read(&path).unwrap(), &addresses);
    assert!(plain.iter().any(|found| found.frames.len() == 3));
    for kind in ["zlib", "zlib-gnu", "zstd"] {
        let packed = place(&format!("shop-{kind}"));
        let option = format!("--compress-debug-sections={kind}");
        let arguments = [&option, path.to_str().unwrap(), packed.to_str().unwrap()];
        if run("objcopy", &arguments).is_none() {
            continue;
        }
        assert_eq!(resolve(&fs::read(&packed).unwrap(), &addresses), plain, "{kind}");
    }
}

#[test]
fn every_function_symbol_is_found_by_one_of_its_names() {
    for (compiler, source, name) in [("gcc", "shop.c", "names-c"), ("g++", "shop.cc", "names-cc")] {
        let Some(path) = compile(compiler, source, name, &["-O2"]) else {
            return;
        };
        let bytes = fs::read(&path).unwrap();
        let mut names: BTreeMap<u64, Vec<String>> = BTreeMap::new();
        for symbol in symbols(&path).unwrap() {
            names.entry(symbol.address).or_default().push(symbol.name);
        }
        let sized = symbols(&path).unwrap();
        let sized: Vec<_> = sized.iter().filter(|symbol| symbol.size > 0).collect();
        assert!(sized.len() >= 5);
        for symbol in sized {
            let middle = symbol.address + symbol.size / 2;
            let last = symbol.address + symbol.size - 1;
            for found in resolve(&bytes, &[symbol.address, middle, last]) {
                let frame = found.frames.last().unwrap();
                let known = &names[&symbol.address];
                assert!(
                    known.iter().any(|name| **name == *frame.system_name),
                    "{known:?} {frame:?}"
                );
            }
        }
    }
}

#[test]
fn an_alias_with_underscores_yields_to_the_plain_name() {
    let Some(path) = compile("gcc", "shop.c", "alias", &["-O2"]) else {
        return;
    };
    let address = symbol(&path, "__order_hidden").address;
    let found = resolve(&fs::read(&path).unwrap(), &[address]);
    assert_eq!(&*found[0].frames[0].name, "order_total");
}

#[test]
fn symbols_without_a_size_reach_to_the_next_but_not_out_of_their_section() {
    let Some(path) = compile("gcc", "shop.c", "sizeless", &["-O2"]) else {
        return;
    };
    let bytes = fs::read(&path).unwrap();
    let first = symbol(&path, "sizeless_first").address;
    let second = symbol(&path, "sizeless_second").address;
    assert_eq!(second - first, 4);
    let found = resolve(&bytes, &[first, first + 3, second, second + 1]);
    let names: Vec<&str> = found.iter().map(|found| &*found.frames[0].name).collect();
    assert_eq!(names, ["sizeless_first", "sizeless_first", "sizeless_second", "sizeless_second"]);
    let last = symbol(&path, "sizeless_last").address;
    let elf_bytes: &[u8] = &bytes;
    let elf = ElfFile::open(&elf_bytes).unwrap();
    let (_, end) =
        *elf.code_ranges().iter().find(|(start, end)| (*start..*end).contains(&last)).unwrap();
    let found = resolve(&bytes, &[last, end, u64::MAX, 0]);
    assert_eq!(&*found[0].frames[0].name, "sizeless_last");
    assert!(found[2].frames.is_empty() && found[3].frames.is_empty());
}

#[test]
fn a_symbol_without_a_size_does_not_reach_far_or_into_another_function() {
    let Some(path) = compile("gcc", "shop.c", "reaching", &["-O2"]) else {
        return;
    };
    let bytes = fs::read(&path).unwrap();
    let label = symbol(&path, "sizeless_far").address;
    let found = resolve(&bytes, &[label, label + 4095, label + 4096]);
    let names: Vec<Option<&str>> =
        found.iter().map(|found| found.frames.first().map(|frame| &*frame.name)).collect();
    assert_eq!(names, [Some("sizeless_far"), Some("sizeless_far"), None]);
    let before = symbol(&path, "sizeless_before").address;
    let found = resolve(&bytes, &[before, before + 4]);
    assert_eq!(&*found[0].frames[0].name, "sizeless_before");
    assert!(found[1].frames.is_empty() && found[1].unnamed == Some(before + 4));
}

#[test]
fn a_stripped_program_is_named_from_its_debug_file() {
    let Some(path) = compile("gcc", "shop.c", "split", &["-g", "-O2", "-Wl,--build-id"]) else {
        return;
    };
    let text = |path: &Path| path.to_str().unwrap().to_owned();
    let (full, debug, stripped) =
        (text(&path), text(&place("split.debug")), text(&place("split-stripped")));
    let done = run("objcopy", &["--only-keep-debug", &full, &debug])
        .and_then(|_| run("strip", &["-s", "-o", &stripped, &full]))
        .and_then(|_| run("objcopy", &[&format!("--add-gnu-debuglink={debug}"), &stripped]));
    if done.is_none() {
        return;
    }
    let function = symbol(&path, "order_total");
    let addresses: Vec<u64> = (function.address..function.address + function.size).collect();
    let main = FileAt::new(File::open(&stripped).unwrap()).unwrap();
    let debug_file = FileAt::new(File::open(&debug).unwrap()).unwrap();
    let elf = ElfFile::open(&main).unwrap();
    let (build_id, link) = (elf.build_id().unwrap(), elf.debug_link().unwrap());
    assert_eq!(link.name, b"split.debug");
    let places = debug_files::candidates(Path::new(&stripped), Some(&build_id), Some(&link));
    assert!(places.iter().any(|place| place.to_str() == Some(&debug)), "{places:?}");
    assert!(debug_files::accept(&debug_file, Some(&build_id), Some(link.crc)));
    assert!(debug_files::accept(&debug_file, None, Some(link.crc)));
    assert!(!debug_files::accept(&debug_file, Some(&[1; 20]), Some(link.crc)));
    assert!(!debug_files::accept(&debug_file, None, Some(link.crc ^ 1)));
    assert!(!debug_files::accept(&debug_file, None, None));
    assert!(!debug_files::accept(&main, Some(&build_id), None), "nothing to learn from it");

    let alone = Resolver::new(&main, None, Options::default()).unwrap().resolve(&addresses);
    assert!(alone.iter().all(|found| found.frames.is_empty()));
    // Its unwind tables still say where the function is.
    assert!(alone.iter().all(|found| found.unnamed == Some(function.address)));
    let both =
        Resolver::new(&main, Some(&debug_file), Options::default()).unwrap().resolve(&addresses);
    assert_eq!(both, resolve(&fs::read(&path).unwrap(), &addresses));
    assert!(both.iter().any(|found| found.frames.len() == 3));
}

/// Debian's gcc links such without an index of their unwind tables.
#[test]
fn functions_of_a_stripped_static_program_are_known_by_where_they_begin() {
    let Some(path) =
        compile("gcc", "shop.c", "static", &["-O2", "-static", "-Wl,--no-eh-frame-hdr"])
    else {
        return;
    };
    let text = |path: &Path| path.to_str().unwrap().to_owned();
    let stripped = text(&place("static-stripped"));
    if run("strip", &["-s", "-o", &stripped, &text(&path)]).is_none() {
        return;
    }
    let bytes = fs::read(&stripped).unwrap();
    let elf_bytes: &[u8] = &bytes;
    let elf = ElfFile::open(&elf_bytes).unwrap();
    assert!(elf.section_with_data(".eh_frame_hdr").is_none());
    for name in ["order_total", "by_value", "qsort"] {
        let function = symbol(&path, name);
        let addresses: Vec<u64> = (function.address..function.address + function.size).collect();
        let found = resolve(&bytes, &addresses);
        assert!(found.iter().all(|found| found.unnamed == Some(function.address)), "{name}");
    }
}

#[test]
fn symbols_in_gnu_debugdata_are_found() {
    let Some(path) = compile("gcc", "shop.c", "mini", &["-O2"]) else {
        return;
    };
    let text = |path: &Path| path.to_str().unwrap().to_owned();
    let (full, mini, packed, out) = (
        text(&path),
        text(&place("mini.sym")),
        text(&place("mini.sym.xz")),
        text(&place("mini-stripped")),
    );
    let _ = fs::remove_file(&packed);
    let done = run(
        "objcopy",
        &[
            "--only-keep-debug",
            "-S",
            "--keep-symbol=order_total",
            "--keep-symbol=by_value",
            &full,
            &mini,
        ],
    )
    .and_then(|_| run("xz", &["-k", &mini]))
    .and_then(|_| run("strip", &["-s", "-o", &out, &full]))
    .and_then(|_| run("objcopy", &[&format!("--add-section=.gnu_debugdata={packed}"), &out]));
    if done.is_none() {
        return;
    }
    let address = symbol(&path, "by_value").address;
    let bytes = fs::read(&out).unwrap();
    let elf_bytes: &[u8] = &bytes;
    let features = ElfFile::open(&elf_bytes).unwrap().features();
    assert!(features.mini_debug && !features.symtab);
    let found = resolve(&bytes, &[address]);
    assert_eq!(&*found[0].frames[0].name, "by_value");
}

#[test]
fn stubs_are_named_as_objdump_names_them() {
    for (name, arguments) in [
        ("plt", &["-O2", "-no-pie"][..]),
        ("plt-pie", &["-O2", "-fpie", "-pie"]),
        ("plt-now", &["-O2", "-Wl,-z,now"]),
        ("plt-ibt", &["-O2", "-fcf-protection=full", "-Wl,-z,ibtplt"]),
    ] {
        let Some(path) = compile("gcc", "shop.c", name, arguments) else {
            return;
        };
        let Some(listing) = run("objdump", &["-d", path.to_str().unwrap()]) else {
            return;
        };
        let bytes = fs::read(&path).unwrap();
        let mut met = 0;
        for line in listing.lines().filter(|line| line.ends_with("@plt>:")) {
            let (address, stub) = line.split_once(' ').unwrap();
            let address = u64::from_str_radix(address, 16).unwrap();
            let stub = stub.trim_start_matches('<').trim_end_matches(">:");
            let found = resolve(&bytes, &[address, address + 4]);
            for found in found {
                assert_eq!(&*found.frames[0].name, stub, "{name} {address:#x}");
            }
            met += 1;
        }
        assert!(met >= 3, "{name}: only {met} stubs");
    }
}

#[test]
fn cpp_names_are_readable_and_keep_the_raw_name() {
    let Some(path) = compile("g++", "shop.cc", "cc-names", &["-O2"]) else {
        return;
    };
    let raw = "_ZNK4shop5OrderIlE5totalEi";
    let found = resolve(&fs::read(&path).unwrap(), &[symbol(&path, raw).address]);
    assert_eq!(&*found[0].frames[0].name, "shop::Order<long>::total");
    assert_eq!(&*found[0].frames[0].system_name, raw);
    let hidden = "_ZNK4shop12_GLOBAL__N_16Square4areaEi";
    let found = resolve(&fs::read(&path).unwrap(), &[symbol(&path, hidden).address]);
    assert_eq!(&*found[0].frames[0].name, "shop::(anonymous namespace)::Square::area");
}

#[test]
fn debug_information_beyond_the_limit_is_reported_and_names_stay() {
    let Some(path) = compile("gcc", "shop.c", "limit", &["-g", "-O2"]) else {
        return;
    };
    let address = symbol(&path, "order_total").address;
    let bytes = fs::read(&path).unwrap();
    let options = Options { dwarf_limit: 100, ..Options::default() };
    let mut resolver = Resolver::new(&bytes, None, options).unwrap();
    let found = resolver.resolve(&[address]);
    assert_eq!(&*found[0].frames[0].name, "order_total");
    assert_eq!(found[0].frames[0].line, None);
    assert!(matches!(resolver.report().dwarf, State::TooLarge { limit: 100, .. }));
}

#[test]
fn the_c_library_has_its_documented_names() {
    let maps = fs::read_to_string("/proc/self/maps").unwrap();
    let Some(library) = maps
        .lines()
        .filter_map(|line| line.split_whitespace().nth(5))
        .find(|path| path.contains("/libc.so"))
    else {
        strata_skip::skipped!("this test is not linked with a shared libc");
        return;
    };
    let file = FileAt::new(File::open(library).unwrap()).unwrap();
    let listing = run("nm", &["-D", "-S", "--defined-only", library]);
    let mut resolver = Resolver::new(&file, None, Options::default()).unwrap();
    for name in ["write", "read", "malloc", "qsort", "memcpy", "printf"] {
        let Some(line) = listing.as_ref().and_then(|text| {
            text.lines().find(|line| {
                line.split_whitespace()
                    .last()
                    .is_some_and(|symbol| symbol.split('@').next() == Some(name))
            })
        }) else {
            strata_skip::skipped!("nm does not list {name}");
            continue;
        };
        let address = u64::from_str_radix(line.split_whitespace().next().unwrap(), 16).unwrap();
        // Aliases of one length are equally good; what must not show are internal names.
        let found = resolver.resolve(&[address + 1]);
        let shown = found[0].frames.last().unwrap();
        assert!(!shown.name.starts_with('_') && !shown.name.contains('@'), "{name}: {shown:?}");
    }
}

#[test]
fn file_offsets_and_addresses_turn_into_each_other() {
    let Some(path) =
        compile("gcc", "shop.c", "offsets", &["-O2", "-Wl,-Ttext-segment=0x10000000", "-no-pie"])
    else {
        return;
    };
    let bytes = fs::read(&path).unwrap();
    let elf_bytes: &[u8] = &bytes;
    let elf = ElfFile::open(&elf_bytes).unwrap();
    let function = symbol(&path, "order_total");
    let offset = elf.offset_of(function.address).unwrap();
    assert_eq!(elf.address_of(offset), Some(function.address));
    let code = elf.read_address(function.address, 4, "code").unwrap();
    assert_eq!(code, &bytes[usize::try_from(offset).unwrap()..][..4]);
    assert_eq!(elf.offset_of(0), None);
}

#[test]
fn the_build_id_is_the_one_readelf_prints() {
    let Some(path) = compile("gcc", "shop.c", "build-id", &["-Wl,--build-id=sha1"]) else {
        return;
    };
    let Some(notes) = run("readelf", &["-n", path.to_str().unwrap()]) else {
        return;
    };
    let bytes = fs::read(&path).unwrap();
    let elf_bytes: &[u8] = &bytes;
    let build_id = ElfFile::open(&elf_bytes).unwrap().build_id().unwrap();
    let digits: String = build_id.iter().map(|byte| format!("{byte:02x}")).collect();
    assert!(notes.contains(&digits));
}

#[test]
fn the_vdso_is_an_image_like_any_other() {
    use std::os::unix::fs::FileExt;
    let maps = fs::read_to_string("/proc/self/maps").unwrap();
    let Some(line) = maps.lines().find(|line| line.ends_with("[vdso]")) else {
        strata_skip::skipped!("no vDSO here");
        return;
    };
    let (start, end) = line.split(' ').next().unwrap().split_once('-').unwrap();
    let start = u64::from_str_radix(start, 16).unwrap();
    let end = u64::from_str_radix(end, 16).unwrap();
    let mut image = vec![0; usize::try_from(end - start).unwrap()];
    File::open("/proc/self/mem").unwrap().read_exact_at(&mut image, start).unwrap();
    let elf_bytes: &[u8] = &image;
    let elf = ElfFile::open(&elf_bytes).unwrap();
    let mut names = Vec::new();
    for (start, end) in elf.code_ranges() {
        for found in resolve(&image, &(start..end).collect::<Vec<_>>()) {
            names.extend(found.frames.into_iter().map(|frame| frame.name.to_string()));
        }
    }
    assert!(names.iter().any(|name| name.ends_with("clock_gettime")), "{names:?}");
}

#[test]
fn what_is_not_an_elf_file_is_refused() {
    let text = fs::read(program("shop.c")).unwrap();
    assert!(Resolver::new(&text, None, Options::default()).is_err());
    assert!(Resolver::new(&Vec::new(), None, Options::default()).is_err());
    let mut small = b"\x7fELF\x01\x01".to_vec();
    small.resize(64, 0);
    let error = Resolver::new(&small, None, Options::default()).err().unwrap();
    assert!(error.to_string().contains("32 bits"));
}
