//! The cache on real directories.

use super::*;
use std::os::unix::fs::{PermissionsExt, symlink};

fn identity(inode: u64) -> FileIdentity {
    FileIdentity { device: 1, inode, size: 3, ctime_ns: 1_000_000_000 }
}

fn key(inode: u64) -> CacheKey {
    CacheKey::of_identity(identity(inode), None, b"limits")
}

fn table() -> (UnwindTable, Vec<u8>) {
    let own = std::fs::read("/proc/self/exe").unwrap();
    let limits = strata_unwind::Limits { max_rows: 1000, ..Default::default() };
    let table = strata_unwind::build(own.as_slice(), &limits).unwrap();
    let bytes = strata_unwind::bytes::to_bytes(&table);
    (table, bytes)
}

fn open(directory: &Path, max_bytes: u64) -> Cache {
    let config = CacheConfig { directory: directory.into(), max_bytes };
    Cache::open(&config, 64 << 20).unwrap()
}

#[test]
fn a_table_is_found_again_by_its_files_identity_only() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("cache");
    let (table, bytes) = table();
    let mut cache = open(&path, 1 << 30);
    assert_eq!(cache.load(&key(1)), None);
    cache.store(&key(1), &bytes);
    let mut again = open(&path, 1 << 30);
    assert_eq!(again.load(&key(1)), Some(table));
    assert_eq!(again.load(&key(2)), None);
    assert_eq!(again.load(&CacheKey::of_identity(identity(1), None, b"other limits")), None);
    for changed in [
        FileIdentity { device: 2, ..identity(1) },
        FileIdentity { size: 4, ..identity(1) },
        FileIdentity { ctime_ns: 1_000_000_001, ..identity(1) },
    ] {
        assert_eq!(again.load(&CacheKey::of_identity(changed, None, b"limits")), None);
    }
    let mode = std::fs::metadata(&path).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o700);
}

#[test]
fn each_part_of_a_file_has_a_table_of_its_own() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("cache");
    let (table, bytes) = table();
    let part = FilePart { offset: 5, length: 6, unpacked: None };
    let key = |part: Option<&FilePart>| CacheKey::of_identity(identity(1), part, b"limits");
    let mut cache = open(&path, 1 << 30);
    cache.store(&key(Some(&part)), &bytes);
    assert_eq!(cache.load(&key(Some(&part))), Some(table));
    assert_eq!(cache.load(&key(None)), None);
    for other in [
        FilePart { offset: 6, ..part },
        FilePart { length: 5, ..part },
        FilePart { unpacked: Some(6), ..part },
    ] {
        assert_eq!(cache.load(&key(Some(&other))), None);
    }
    let longest = FilePart { offset: u64::MAX, length: u64::MAX, unpacked: Some(u64::MAX) };
    let most = FileIdentity { device: u64::MAX, inode: u64::MAX, size: u64::MAX, ctime_ns: -1 };
    assert!(CacheKey::of_identity(most, Some(&longest), b"limits").name.len() < 250);
}

#[test]
fn a_damaged_entry_is_removed_and_missed() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("cache");
    let (_, bytes) = table();
    let mut cache = open(&path, 1 << 30);
    cache.store(&key(1), &bytes);
    let entry = path.join(&key(1).name);
    let mut damaged = bytes.clone();
    let middle = damaged.len() / 2;
    damaged[middle] ^= 1;
    std::fs::write(&entry, &damaged).unwrap();
    assert_eq!(cache.load(&key(1)), None);
    assert!(!entry.exists());
    std::fs::write(&entry, &bytes[..middle]).unwrap();
    assert_eq!(cache.load(&key(1)), None);
    assert_eq!(cache.statistics.damaged, 2);
}

#[test]
fn the_least_recently_used_make_room() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("cache");
    let (_, bytes) = table();
    let mut cache = open(&path, bytes.len() as u64 * 10);
    for inode in 0..10 {
        cache.store(&key(inode), &bytes);
        let age = SystemTime::now() - Duration::from_secs(100 * (20 - inode));
        std::fs::File::open(path.join(&key(inode).name)).unwrap().set_modified(age).unwrap();
    }
    assert_eq!(cache.statistics.evicted, 0);
    cache.store(&key(10), &bytes);
    assert!(cache.statistics.evicted > 0);
    assert!(cache.load(&key(0)).is_none());
    assert!(cache.load(&key(9)).is_some());
    assert!(cache.load(&key(10)).is_some());
    let total: u64 = std::fs::read_dir(&path)
        .unwrap()
        .map(|entry| entry.unwrap().metadata().unwrap().len())
        .sum();
    assert!(total <= bytes.len() as u64 * 10);
}

#[test]
fn a_file_changed_just_now_is_not_kept() {
    let folder = tempfile::tempdir().unwrap();
    let mut cache = open(&folder.path().join("cache"), 1 << 30);
    let fresh = FileIdentity { ctime_ns: now().as_nanos() as i64, ..identity(1) };
    let key = CacheKey::of_identity(fresh, None, b"limits");
    cache.store(&key, &table().1);
    assert!(cache.load(&key).is_none());
    assert_eq!(cache.statistics.too_fresh, 1);
}

#[test]
fn a_directory_others_could_write_to_is_not_used() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("cache");
    std::fs::create_dir(&path).unwrap();
    std::fs::set_permissions(&path, PermissionsExt::from_mode(0o777)).unwrap();
    let config = CacheConfig { directory: path.clone(), max_bytes: 1 };
    assert!(matches!(Cache::open(&config, 1), Err(CacheError::Open { .. })));
    std::fs::set_permissions(&path, PermissionsExt::from_mode(0o700)).unwrap();
    if rustix::process::geteuid().is_root() {
        std::os::unix::fs::chown(&path, Some(1234), None).unwrap();
        assert!(matches!(Cache::open(&config, 1), Err(CacheError::Owner { owner: 1234, .. })));
        std::os::unix::fs::chown(&path, Some(0), None).unwrap();
    }
    let link = folder.path().join("link");
    symlink(&path, &link).unwrap();
    let config = CacheConfig { directory: link, max_bytes: 1 };
    assert!(matches!(Cache::open(&config, 1), Err(CacheError::Io { .. })));
}

#[test]
fn an_entry_that_is_a_link_is_not_followed() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("cache");
    let mut cache = open(&path, 1 << 30);
    let (_, bytes) = table();
    std::fs::write(folder.path().join("elsewhere"), &bytes).unwrap();
    symlink(folder.path().join("elsewhere"), path.join(&key(1).name)).unwrap();
    assert!(cache.load(&key(1)).is_none());
}

#[test]
fn a_disk_that_cannot_be_written_is_counted() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("cache");
    let mut cache = open(&path, 1 << 30);
    std::fs::remove_dir(&path).unwrap();
    cache.store(&key(1), &table().1);
    assert_eq!(cache.statistics.failed_writes, 1);
    assert_eq!(cache.statistics.stored, 0);
}
