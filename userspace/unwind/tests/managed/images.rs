//! Compiled images: every function of the exception directory, by a second reading of it.

use std::path::{Path, PathBuf};

use strata_abi::rule::{Kind, Packed, Rule};
use strata_unwind::FileAt;
use strata_unwind::{Limits, UnwindTable, build, build_part};

use crate::{runtime, truth};

/// Functions of a file: start, end, unwind information; read according to the format, with
/// `object`.
struct Image {
    bytes: Vec<u8>,
    sections: Vec<(u32, u32, u32)>,
    exceptions: (u32, u32),
}

impl Image {
    fn read(path: &Path) -> Option<Self> {
        let bytes = std::fs::read(path).ok()?;
        let word = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap());
        let half = |at: usize| usize::from(u16::from_le_bytes([bytes[at], bytes[at + 1]]));
        let header = word(0x3c) as usize;
        // Assemblies without code of their own are 32-bit ones.
        if half(header + 24) != 0x20b {
            return None;
        }
        let directory = header + 24 + 112 + 3 * 8;
        let exceptions = (word(directory), word(directory + 4));
        let first = header + 24 + half(header + 20);
        let sections = (0..half(header + 6))
            .map(|n| first + 40 * n)
            .map(|at| (word(at + 12), word(at + 16), word(at + 20)))
            .collect();
        Some(Self { bytes, sections, exceptions })
    }

    fn at(&self, address: u32) -> &[u8] {
        let (start, _, offset) = self
            .sections
            .iter()
            .find(|(start, size, _)| (*start..start + size).contains(&address))
            .expect("an address in a section");
        &self.bytes[(address - start + offset) as usize..]
    }

    fn functions(&self) -> Vec<(u32, u32, &[u8])> {
        let (address, size) = self.exceptions;
        if size == 0 {
            return Vec::new();
        }
        let entries = self.at(address)[..size as usize].chunks_exact(12);
        entries
            .map(|entry| {
                let word =
                    |n: usize| u32::from_le_bytes(entry[4 * n..4 * n + 4].try_into().unwrap());
                (word(0), word(1), self.at(word(2)))
            })
            .collect()
    }
}

/// A rule as the CLR defines it: counted from RSP, or from RBP once it is the frame register.
fn expected(truth: truth::Truth) -> Rule {
    let (kind, cfa) = match truth.from_fp {
        Some(distance) => (Kind::Fp, distance),
        None => (Kind::Sp, truth.depth),
    };
    let word = Packed::frame(kind, cfa, truth.fp_below, 0).expect("a rule in one word");
    Rule::simple(word.with_epilogue_check())
}

fn wrong(image: &Image, table: &UnwindTable) -> Vec<String> {
    let mut wrong = Vec::new();
    let mut end_before = 0;
    for (start, end, information) in image.functions() {
        let size = truth::size(information);
        let changes: Vec<u32> = truth::changes(&information[..size]).collect();
        let before = changes.iter().map(|offset| offset.saturating_sub(1));
        let offsets = before.chain(changes.iter().copied()).chain([end - start - 1]);
        for offset in offsets.filter(|offset| *offset < end - start) {
            let have = table.lookup(u64::from(start + offset));
            let want = expected(truth::at(information, offset));
            if have != want {
                wrong.push(format!("{:#x}: {have:?} instead of {want:?}", start + offset));
            }
        }
        assert!(start >= end_before, "functions overlap");
        end_before = end;
    }
    wrong
}

fn assemblies() -> Vec<PathBuf> {
    let Some(folder) = runtime::folder() else { return Vec::new() };
    let mut files = Vec::new();
    for version in ["3.1", "9"] {
        let frameworks = folder.join(version).join("shared/Microsoft.NETCore.App");
        for framework in std::fs::read_dir(frameworks).unwrap() {
            let folder = std::fs::read_dir(framework.unwrap().path()).unwrap();
            files.extend(
                folder
                    .map(|file| file.unwrap().path())
                    .filter(|file| file.extension().is_some_and(|extension| extension == "dll")),
            );
        }
    }
    files
}

#[test]
fn every_function_of_every_image_has_the_rules_it_says() {
    let (mut images, mut functions, mut rows, mut bytes) = (0, 0, 0, 0);
    for file in assemblies() {
        let Some(image) = Image::read(&file) else { continue };
        let source = FileAt::new(std::fs::File::open(&file).unwrap()).unwrap();
        let table = build(&source, &Limits::default()).unwrap();
        let wrong = wrong(&image, &table);
        assert!(wrong.is_empty(), "{}: {} wrong: {}", file.display(), wrong.len(), wrong[0]);
        assert_eq!(table.statistics.entries, image.functions().len() as u64);
        assert_eq!(table.statistics.unsupported_rows, 0);
        images += usize::from(!image.functions().is_empty());
        functions += image.functions().len();
        rows += table.row_count();
        bytes += table.kernel_bytes();
    }
    println!("{images} images, {functions} functions, {rows} rows, {bytes} bytes");
    assert!(images > 150 || assemblies().is_empty());
}

#[test]
fn the_stubs_of_an_image_have_rules() {
    let Some(file) = assemblies()
        .into_iter()
        .find(|file| file.ends_with("System.Linq.dll") && file.to_string_lossy().contains("/9/"))
    else {
        return;
    };
    let image = Image::read(&file).unwrap();
    let source = FileAt::new(std::fs::File::open(&file).unwrap()).unwrap();
    let table = build(&source, &Limits::default()).unwrap();
    // xor eax, eax; push N; push [rip + D]; jmp [rip + D]: one word deeper with every push.
    let stub =
        |code: &[u8]| matches!(code, [0x33, 0xc0, 0x6a, _, 0xff, 0x35, _, _, _, _, 0xff, 0x25, ..]);
    let functions = image.functions();
    let after = functions.last().unwrap().1;
    let code = image.at(after);
    let at = code.windows(12).position(stub).expect("a stub behind the functions") as u32;
    let depth = |offset: u32| table.lookup(u64::from(after + at + offset)).packed.cfa_offset();
    assert_eq!([0, 2, 4, 10, 15].map(depth), [8, 8, 16, 24, 24]);
    assert_eq!(depth(16), 8);
}

#[test]
fn an_assembly_inside_another_file_has_the_same_table_at_its_own_offsets() {
    let Some(file) = assemblies().into_iter().find(|file| file.ends_with("System.Linq.dll")) else {
        return;
    };
    let bytes = std::fs::read(&file).unwrap();
    let alone = build(&bytes, &Limits::default()).unwrap();
    let mut bundle = vec![0xcc; 0x5000];
    bundle.extend_from_slice(&bytes);
    bundle.extend_from_slice(&[0xcc; 77]);
    let range = 0x5000..0x5000 + bytes.len() as u64;
    let inside = build_part(&bundle, range, &Limits::default()).unwrap();
    assert_eq!(alone.pieces, inside.pieces);
    assert_eq!(alone.rules, inside.rules);
    for (load, moved) in alone.loads.iter().zip(&inside.loads) {
        assert_eq!((load.offset + 0x5000, load.address), (moved.offset, moved.address));
    }
    let code = alone.loads.iter().find(|load| load.executable).unwrap();
    assert_eq!(inside.address_of_offset(code.offset + 0x5000), Some(code.address));
}
