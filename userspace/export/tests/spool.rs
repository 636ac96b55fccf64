//! The queue on disk: what comes back, in which order, and what damage does.

mod queue_support;

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use proptest::prelude::{Strategy, any, prop_oneof, proptest};
use proptest::test_runner::TestCaseError;
use proptest::{prop_assert, prop_assert_eq};
use queue_support::batch;
use strata_export::Batch;
use strata_export::spool::{Key, Spool, SpoolError};

fn put(spool: &mut Spool, number: u64, batch: &Batch) -> Vec<u64> {
    let mut dropped = Vec::new();
    spool.put(number, batch, &mut dropped).unwrap();
    dropped.into_iter().map(|(key, _)| key.number).collect()
}

fn numbers(spool: &Spool) -> Vec<u64> {
    spool.entries().map(|(key, _)| key.number).collect()
}

fn files(folder: &Path) -> Vec<PathBuf> {
    let files = fs::read_dir(folder).unwrap().map(|file| file.unwrap().path());
    let mut files: Vec<_> = files.filter(|path| !path.ends_with("lock")).collect();
    files.sort();
    files
}

#[test]
fn batches_come_back_as_they_were_in_the_order_of_their_time() {
    let folder = tempfile::tempdir().unwrap();
    let batches: Vec<Batch> = [30, 10, 20, 10].into_iter().map(|time| batch(time, 5000)).collect();
    let mut spool = Spool::open(folder.path(), 1 << 20).unwrap();
    for (number, batch) in batches.iter().enumerate() {
        assert!(put(&mut spool, number as u64, batch).is_empty());
    }
    spool.sync().unwrap();
    drop(spool);
    let mut spool = Spool::open(folder.path(), 1 << 20).unwrap();
    assert_eq!(numbers(&spool), [1, 3, 2, 0]);
    assert_eq!(spool.bytes(), 4 * 8192);
    for (key, facts) in spool.entries().collect::<Vec<_>>() {
        assert_eq!(facts.profiles, 2);
        assert_eq!(spool.read(key).unwrap(), batches[key.number as usize]);
        spool.remove(key).unwrap();
    }
    assert!(spool.is_empty() && spool.bytes() == 0 && files(folder.path()).is_empty());
}

#[test]
fn the_oldest_makes_room_but_not_what_is_being_sent_and_nothing_newer() {
    let folder = tempfile::tempdir().unwrap();
    let mut spool = Spool::open(folder.path(), 3 * 4096).unwrap();
    for number in 1..=3 {
        put(&mut spool, number, &batch(number as i64, 100));
    }
    spool.pin(Key { oldest: 1, number: 1 }, true);
    assert_eq!(put(&mut spool, 4, &batch(4, 100)), [2]);
    let mut dropped = Vec::new();
    let late = spool.put(5, &batch(0, 100), &mut dropped);
    assert!(matches!(late, Err(SpoolError::Full)) && dropped.is_empty());
    let huge = spool.put(6, &batch(9, 5 * 4096), &mut dropped);
    assert!(matches!(huge, Err(SpoolError::TooLarge(_))) && dropped.is_empty());
    assert_eq!(numbers(&spool), [1, 3, 4]);
    spool.set_most(4096, &mut dropped).unwrap();
    assert_eq!(dropped.len(), 2);
    assert_eq!(numbers(&spool), [1]);
}

#[test]
fn a_directory_has_one_owner_and_no_other_can_read_it() {
    let folder = tempfile::tempdir().unwrap();
    let inner = folder.path().join("a/b");
    let mut spool = Spool::open(&inner, 1 << 20).unwrap();
    put(&mut spool, 1, &batch(1, 100));
    assert!(matches!(Spool::open(&inner, 1 << 20), Err(SpoolError::Locked(_))));
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&inner), 0o700);
    for file in files(&inner).iter().chain([&inner.join("lock")]) {
        assert_eq!(mode(file), 0o600, "{file:?}");
    }
    drop(spool);
    assert_eq!(Spool::open(&inner, 1 << 20).unwrap().len(), 1);
}

#[test]
fn what_a_dying_writer_left_is_counted_and_removed_and_strangers_stay() {
    let folder = tempfile::tempdir().unwrap();
    let mut spool = Spool::open(folder.path(), 1 << 20).unwrap();
    put(&mut spool, 7, &batch(1, 100));
    drop(spool);
    fs::write(folder.path().join("0000000000000008.new"), b"STRSPL").unwrap();
    let strangers = ["notes.txt", "8.batch", "000000000000000A.batch", "00000000000000zz.batch"];
    for stranger in strangers {
        fs::write(folder.path().join(stranger), b"hello").unwrap();
    }
    fs::write(folder.path().join("0000000000000009.batch"), b"").unwrap();
    let spool = Spool::open(folder.path(), 1 << 20).unwrap();
    assert_eq!((spool.found().torn, spool.found().corrupt), (1, 1));
    assert_eq!(numbers(&spool), [7]);
    assert_eq!(files(folder.path()).len(), 1 + strangers.len());
}

#[test]
fn every_flipped_bit_and_every_cut_is_noticed() {
    let folder = tempfile::tempdir().unwrap();
    let given = batch(1, 60);
    let mut spool = Spool::open(folder.path(), 1 << 20).unwrap();
    put(&mut spool, 7, &given);
    drop(spool);
    let path = files(folder.path()).remove(0);
    let whole = fs::read(&path).unwrap();
    let flipped = (0..whole.len() * 8).map(|bit| {
        let mut bytes = whole.clone();
        bytes[bit / 8] ^= 1 << (bit % 8);
        bytes
    });
    let cut = (0..whole.len()).map(|length| whole[..length].to_vec());
    let longer = [[whole.as_slice(), b"x"].concat()];
    for bytes in flipped.chain(cut).chain(longer) {
        fs::write(&path, bytes).unwrap();
        let mut spool = Spool::open(folder.path(), 1 << 20).unwrap();
        let found = spool.entries().next();
        match found {
            None => assert_eq!(spool.found().corrupt, 1),
            Some((key, _)) => assert!(matches!(spool.read(key), Err(SpoolError::Corrupt))),
        }
        assert!(spool.is_empty() && !path.exists());
    }
}

#[derive(Clone, Debug)]
enum Step {
    Put {
        time: i64,
        length: usize,
    },
    Take,
    Reopen,
    /// Truncates a file, at so many thousandths of its length.
    Cut {
        file: usize,
        at: usize,
    },
    Flip {
        file: usize,
        bit: usize,
    },
    /// A writer died while it wrote.
    Tear {
        bytes: Vec<u8>,
    },
    Shrink {
        most: u64,
    },
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (0..50_i64, 0..20_000_usize).prop_map(|(time, length)| Step::Put { time, length }),
        3 => proptest::strategy::Just(Step::Take),
        2 => proptest::strategy::Just(Step::Reopen),
        1 => (any::<usize>(), 0..1000_usize).prop_map(|(file, at)| Step::Cut { file, at }),
        1 => any::<(usize, usize)>().prop_map(|(file, bit)| Step::Flip { file, bit }),
        1 => proptest::collection::vec(any::<u8>(), 0..200).prop_map(|bytes| Step::Tear { bytes }),
        1 => (4096..100_000_u64).prop_map(|most| Step::Shrink { most }),
    ]
}

/// The expected contents of the spool, and the operations on it.
struct Model {
    folder: tempfile::TempDir,
    spool: Option<Spool>,
    most: u64,
    held: BTreeMap<Key, Batch>,
    damaged: Vec<Key>,
    torn: u64,
    next: u64,
}

impl Model {
    fn spool(&mut self) -> &mut Spool {
        self.spool.as_mut().unwrap()
    }

    fn damage(&mut self, file: usize, change: impl FnOnce(&mut Vec<u8>)) {
        let Some((&key, _)) = self.held.iter().nth(file % self.held.len().max(1)) else { return };
        let path = self.folder.path().join(format!("{:016x}.batch", key.number));
        let mut bytes = fs::read(&path).unwrap();
        let before = bytes.clone();
        change(&mut bytes);
        if bytes != before && !self.damaged.contains(&key) {
            fs::write(&path, bytes).unwrap();
            self.damaged.push(key);
        }
    }

    fn take(&mut self) -> Result<(), TestCaseError> {
        let Some((key, _)) = self.spool().entries().next() else {
            prop_assert!(self.held.is_empty());
            return Ok(());
        };
        prop_assert_eq!(Some(&key), self.held.keys().next());
        let held = self.held.remove(&key).unwrap();
        match self.spool().read(key) {
            Ok(batch) => {
                prop_assert_eq!(batch, held);
                prop_assert!(!self.damaged.contains(&key));
                self.spool().remove(key).unwrap();
            }
            Err(error) => {
                prop_assert!(matches!(error, SpoolError::Corrupt));
                prop_assert!(self.damaged.contains(&key));
            }
        }
        Ok(())
    }

    fn reopen(&mut self) -> Result<(), TestCaseError> {
        self.spool = None;
        let spool = Spool::open(self.folder.path(), self.most).unwrap();
        prop_assert_eq!(spool.found().torn, std::mem::take(&mut self.torn));
        // Damage to the header or the length is seen now, other damage when it is read.
        let seen: Vec<Key> = spool.entries().map(|(key, _)| key).collect();
        let missing = self.held.keys().filter(|key| !seen.contains(key)).count() as u64;
        prop_assert_eq!(spool.found().corrupt, missing);
        let damaged = &self.damaged;
        self.held.retain(|key, _| seen.contains(key) || !damaged.contains(key));
        prop_assert_eq!(self.held.keys().copied().collect::<Vec<_>>(), seen);
        self.spool = Some(spool);
        Ok(())
    }

    fn step(&mut self, step: Step) -> Result<(), TestCaseError> {
        match step {
            Step::Put { time, length } => {
                self.next += 1;
                let (batch, number) = (batch(time, length), self.next);
                let mut dropped = Vec::new();
                let put = self.spool().put(number, &batch, &mut dropped);
                for (key, _) in dropped {
                    prop_assert_eq!(Some(&key), self.held.keys().next());
                    self.held.remove(&key);
                }
                match put {
                    Ok(key) => {
                        self.held.insert(key, batch);
                    }
                    Err(SpoolError::Full) => {
                        let oldest = self.held.keys().next().unwrap();
                        prop_assert!(oldest.oldest > time, "something older could have gone");
                    }
                    // With its header (48 bytes) it fills whole blocks.
                    Err(SpoolError::TooLarge(bytes)) => {
                        prop_assert!((bytes + 48).next_multiple_of(4096) > self.most);
                    }
                    Err(error) => return Err(TestCaseError::fail(error.to_string())),
                }
            }
            Step::Take => self.take()?,
            Step::Reopen => self.reopen()?,
            Step::Cut { file, at } => {
                self.damage(file, |bytes| bytes.truncate(bytes.len() * at / 1000));
            }
            Step::Flip { file, bit } => self.damage(file, |bytes| {
                let bit = bit % (bytes.len() * 8).max(1);
                if let Some(byte) = bytes.get_mut(bit / 8) {
                    *byte ^= 1 << (bit % 8);
                }
            }),
            Step::Tear { bytes } => {
                self.next += 1;
                self.torn += 1;
                let name = format!("{:016x}.new", self.next);
                fs::write(self.folder.path().join(name), bytes).unwrap();
            }
            Step::Shrink { most } => {
                self.most = most;
                let mut dropped = Vec::new();
                self.spool().set_most(most, &mut dropped).unwrap();
                for (key, _) in dropped {
                    prop_assert_eq!(Some(&key), self.held.keys().next());
                    self.held.remove(&key);
                }
            }
        }
        Ok(())
    }
}

proptest! {
    #![proptest_config(proptest::test_runner::Config::with_cases(128))]

    #[test]
    fn whatever_happens_each_batch_comes_back_whole_or_is_counted(
        steps in proptest::collection::vec(step(), 1..60),
    ) {
        let folder = tempfile::tempdir().unwrap();
        let most = 64 << 10;
        let spool = Some(Spool::open(folder.path(), most).unwrap());
        let mut model = Model {
            folder, spool, most, held: BTreeMap::new(), damaged: Vec::new(), torn: 0, next: 0,
        };
        for step in steps {
            model.step(step)?;
            let most = model.most;
            prop_assert!(model.spool().bytes() <= most);
        }
        while !model.held.is_empty() {
            model.take()?;
        }
        prop_assert!(model.spool().is_empty());
    }
}
