//! Files that lie: a reader and a writer meet any bytes where a store's files should be, and
//! neither panics nor takes memory that the files do not justify.

mod support;

use std::alloc::{GlobalAlloc, Layout, System};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

use proptest::prelude::*;
use strata_store::{Detail, Reader, Selection, Store};
use support::{SECOND, START, head, options, profile, store};

/// The largest single allocation so far.
struct Watched;

static LARGEST: AtomicUsize = AtomicUsize::new(0);

// SAFETY: everything is the system allocator's; only sizes are noted.
unsafe impl GlobalAlloc for Watched {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        LARGEST.fetch_max(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller's promise is passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, place: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { System.dealloc(place, layout) }
    }

    unsafe fn realloc(&self, place: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        LARGEST.fetch_max(size, Ordering::Relaxed);
        // SAFETY: as above.
        unsafe { System.realloc(place, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Watched = Watched;

/// LZ4 makes at most 255 bytes of one, and what is decoded is a few times larger than its bytes.
const STRETCH: usize = 255 * 16;

/// The files of a small store: sealed, merged, rolled up, open.
fn files() -> &'static [(String, Vec<u8>)] {
    static FILES: std::sync::OnceLock<Vec<(String, Vec<u8>)>> = std::sync::OnceLock::new();
    FILES.get_or_init(|| {
        let directory = tempfile::tempdir().unwrap();
        let mut store = store(directory.path());
        for period in 0..160_i64 {
            let start = START + period * 30 * SECOND;
            store
                .append(&head("shop", start), &profile(&[("main;work", 2), ("main", 1)]), start)
                .unwrap();
            store.tend(start).unwrap();
        }
        let start = START + 160 * 30 * SECOND;
        let (late, symbol) = support::late(7, start);
        store.append(&head("shop", start), &late, start).unwrap();
        store.name_late(&[symbol]).unwrap();
        let mut files: Vec<_> = std::fs::read_dir(directory.path())
            .unwrap()
            .flatten()
            .map(|file| {
                let name = file.file_name().into_string().unwrap();
                (name, std::fs::read(file.path()).unwrap())
            })
            .filter(|(name, _)| name != "lock")
            .collect();
        files.sort();
        for ending in ["seg", "merged", "rollup", "open", "names"] {
            assert!(files.iter().any(|(name, _)| name.ends_with(ending)), "no .{ending}");
        }
        files
    })
}

fn placed(directory: &Path, name: &str) -> PathBuf {
    directory.join(name)
}

/// Everything that can be asked of a directory; nothing may panic.
fn ask_everything(directory: &Path) {
    let size: u64 = std::fs::read_dir(directory)
        .unwrap()
        .flatten()
        .map(|file| file.metadata().map_or(0, |facts| facts.len()))
        .sum();
    LARGEST.store(0, Ordering::Relaxed);
    let reader = Reader::new(directory);
    let _ = reader.holdings(&Selection::default());
    let _ = reader.query(&Selection::default());
    let _ = reader.query(&Selection::default().between(START + 7 * SECOND, START + 9_999 * SECOND));
    let all = Selection { detail: Detail::All, timeline: true, ..Selection::default() };
    let _ = reader.query(&all);
    if let Ok(mut store) = Store::open(directory, options()) {
        let now = START + 40_000 * SECOND;
        let _ = store.append(&head("shop", now), &profile(&[("later", 1)]), now);
        let _ = store.seal();
        let _ = store.tend(now);
        let answer = reader.query(&Selection::default().between(now, now + SECOND));
        assert!(answer.is_ok_and(|answer| answer.profiles >= 1), "the new profile is not there");
    }
    let largest = LARGEST.load(Ordering::Relaxed);
    let most = (size as usize).saturating_mul(STRETCH).max(4 << 20);
    assert!(largest <= most, "{largest} bytes at once for files of {size}");
}

/// Makes every header and payload of a file look right, so that what is behind is reached.
fn reseal(bytes: &mut [u8]) {
    let sum = |bytes: &[u8]| (xxhash_rust::xxh3::xxh3_64(bytes) as u32).to_le_bytes();
    let mut at = 16;
    while let Some(stored) = bytes.get(at + 32..at + 36) {
        let stored = u32::from_le_bytes(stored.try_into().unwrap()) as usize;
        let Some(end) = (at + 48).checked_add(stored).filter(|&end| end <= bytes.len()) else {
            return;
        };
        let payload = sum(&bytes[at + 48..end]);
        bytes[at + 40..at + 44].copy_from_slice(&payload);
        let header = sum(&bytes[at..at + 44]);
        bytes[at + 44..at + 48].copy_from_slice(&header);
        at = end;
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn bytes_changed_anywhere_are_survived(
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<prop::sample::Index>(), any::<u8>()), 1..12),
        cut in prop::option::of((any::<prop::sample::Index>(), any::<prop::sample::Index>())),
        believed in any::<bool>(),
    ) {
        let directory = tempfile::tempdir().unwrap();
        let mut changed = files().to_vec();
        for (file, place, byte) in changes {
            let (_, bytes) = &mut changed[file.index(files().len())];
            let place = place.index(bytes.len());
            bytes[place] = byte;
        }
        if let Some((file, place)) = cut {
            let (_, bytes) = &mut changed[file.index(files().len())];
            bytes.truncate(place.index(bytes.len()));
        }
        for (name, mut bytes) in changed {
            if believed {
                reseal(&mut bytes);
            }
            std::fs::write(placed(directory.path(), &name), bytes).unwrap();
        }
        ask_everything(directory.path());
    }

    #[test]
    fn any_bytes_at_all_are_survived(
        garbage in prop::collection::vec(any::<u8>(), 0..2_000),
        name in prop::sample::select(vec!["open", "seg", "merged", "rollup", "new"]),
        begins_right in any::<bool>(),
    ) {
        let directory = tempfile::tempdir().unwrap();
        let mut bytes = if begins_right { b"strata-store\x02\0\0\0".to_vec() } else { Vec::new() };
        bytes.extend_from_slice(&garbage);
        std::fs::write(directory.path().join(format!("{:016x}.{name}", 3)), bytes).unwrap();
        ask_everything(directory.path());
    }
}
