//! Places that a flush left without a symbol because their files answered too late.
//!
//! Their profiles are gone, but the local store keeps a [`LateKey`] for each such frame. Here is
//! which places these are, until their symbols are known: they are asked for again at each flush,
//! also when they are not sampled any more, and [`Late::take_named`] has those that have a symbol.
//!
//! A key stands for a place as the symbols of a flush do: a file by its inode, and an offset. It is
//! a hash with a secret of this process.
//!
//! Invariant: the number of places is bounded, and processes share it. Of the symbols that the store
//! has room for, a process has at most an eighth, and a file a sixteenth. A place whose file never
//! answers is given up some flushes after it was sampled last. What stays without a symbol is counted.
//! Nothing is kept when no file is late.

mod shares;

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState as Secret};
use std::sync::Arc;

use foldhash::fast::RandomState;
use strata_agent::code_address::CodeAddress;
use strata_agent::frame::NamedFrame;
use strata_agent::image_id::ImageId;
use strata_agent::processes::mapped::FileId;
use strata_profile::LateKey;

use crate::ModuleInfo;
use crate::known_symbols::KnownSymbols;
use shares::Shares;

/// Places that are waited for.
const MOST_PLACES: usize = 32_768;
/// Bytes of symbols that are taken at once.
const MOST_AT_ONCE: usize = 1 << 20;
/// What is made free at once: all places are looked at for it, so that this is some thirty for each that is
/// taken in.
const MADE_FREE: usize = MOST_PLACES / 32;
/// Flushes after which a place that is not sampled any more is given up.
const GIVEN_UP_AFTER: u32 = 40;

/// Draws the keys of places.
#[derive(Default)]
pub struct Keys(Secret);

impl Keys {
    pub fn of(&self, place: CodeAddress) -> LateKey {
        LateKey(self.0.hash_one(place))
    }
}

/// A late symbol, as the store keeps it.
#[derive(Clone, Debug)]
pub struct LateSymbol {
    pub key: LateKey,
    /// When the last profile without it ended, in nanoseconds since 1970.
    pub last_nanos: i64,
    pub module: Option<Arc<ModuleInfo>>,
    pub frames: Vec<NamedFrame>,
}

struct Pending {
    /// The first one whose profile lacked it.
    image: ImageId,
    last_nanos: i64,
    /// The last flush that left it without a symbol.
    used: u32,
}

/// See the module.
#[derive(Default)]
pub struct Late {
    pending: HashMap<CodeAddress, Pending, RandomState>,
    /// How many are of each process.
    by_image: HashMap<ImageId, usize, RandomState>,
    /// Of the symbols that were taken.
    shares: Shares,
    flush: u32,
    /// The flush whose places fill it: processes share it from then on.
    full_at: u32,
    /// How many places of this flush each process may have; unknown since some were taken in.
    share: Option<usize>,
    /// Places that stay without a symbol: their file has none or did not answer, or there were too
    /// many.
    pub unnamed: u64,
}

impl Late {
    pub fn begin_flush(&mut self) {
        self.flush = self.flush.saturating_add(1);
        self.share = None;
        self.shares.begin_flush(self.flush);
    }

    /// How many places are waited for.
    pub fn count(&self) -> usize {
        self.pending.len()
    }

    /// A process's profile that ended then has these places without their symbols.
    pub fn note(&mut self, image: ImageId, places: &[CodeAddress], end_nanos: i64) {
        let used = self.flush;
        for place in places {
            if let Some(pending) = self.pending.get_mut(place) {
                pending.used = used;
                pending.last_nanos = pending.last_nanos.max(end_nanos);
                continue;
            }
            if self.pending.len() >= MOST_PLACES {
                self.make_room(image);
            }
            if self.pending.len() >= MOST_PLACES {
                self.unnamed += 1;
            } else {
                *self.by_image.entry(image).or_default() += 1;
                self.pending.insert(*place, Pending { image, last_nanos: end_nanos, used });
            }
        }
    }

    /// Evicts the places not left out for longest; where all are of this flush, those that other processes
    /// have above their shares, if this one is below its own.
    fn make_room(&mut self, image: ImageId) {
        if self.full_at != self.flush {
            let oldest = self.pending.values().map(|pending| pending.used).min();
            if let Some(oldest) = oldest.filter(|oldest| *oldest < self.flush) {
                return self.drop_where(|_, pending| pending.used == oldest);
            }
            self.full_at = self.flush;
        }
        let by_image = &self.by_image;
        let share =
            *self.share.get_or_insert_with(|| self::share(by_image.values().copied().collect()));
        if self.by_image.get(&image).copied().unwrap_or_default() >= share {
            return;
        }
        let mut above = self.by_image.clone();
        above.insert(image, usize::MAX);
        let share = self::share(above.values().copied().collect());
        above.remove(&image);
        above.retain(|_, count| {
            *count = count.saturating_sub(share);
            *count > 0
        });
        self.drop_where(|_, pending| match above.get_mut(&pending.image) {
            Some(left) if *left > 0 => {
                *left -= 1;
                true
            }
            _ => false,
        });
        self.share = None;
    }

    fn drop_where(&mut self, mut is_dropped: impl FnMut(&CodeAddress, &Pending) -> bool) {
        let (by_image, unnamed) = (&mut self.by_image, &mut self.unnamed);
        self.pending.retain(|place, pending| {
            let is_dropped = is_dropped(place, pending);
            if is_dropped {
                *unnamed += 1;
                forget_one(by_image, pending.image);
            }
            !is_dropped
        });
    }

    /// Drops places of files that are not there any more, unless they have their symbols.
    pub fn retain_files(&mut self, symbols: &KnownSymbols, is_there: impl Fn(FileId) -> bool) {
        self.drop_where(|place, _| {
            file_of(*place).is_none_or(|file| !is_there(file)) && symbols.is_unnamed(*place)
        });
    }

    /// The places to ask for again, by file.
    pub fn by_file(&self) -> HashMap<FileId, Vec<CodeAddress>> {
        let mut places: HashMap<FileId, Vec<CodeAddress>> = HashMap::new();
        for place in self.pending.keys() {
            if let Some(file) = file_of(*place) {
                places.entry(file).or_default().push(*place);
            }
        }
        places
    }

    /// Takes places out that have a symbol by now, and drops those that get none.
    pub fn take_named(&mut self, symbols: &KnownSymbols) -> Vec<LateSymbol> {
        if self.pending.is_empty() {
            return Vec::new();
        }
        let flush = self.flush;
        let (mut named, mut all) = (Vec::new(), 0);
        let Self { pending, by_image, shares, unnamed, .. } = self;
        pending.retain(|place, pending| {
            let known = symbols.get(*place).filter(|known| !known.is_unnamed());
            let Some(known) = known else {
                let given_up = flush.saturating_sub(pending.used) > GIVEN_UP_AFTER;
                let is_over = given_up || symbols.has_none(*place);
                if is_over {
                    *unnamed += 1;
                    forget_one(by_image, pending.image);
                }
                return !is_over;
            };
            if all >= MOST_AT_ONCE {
                return true;
            }
            forget_one(by_image, pending.image);
            let texts =
                |frame: &NamedFrame| frame.name.len() + frame.system_name.len() + frame.file.len();
            let texts = known.frames.iter().map(texts).sum::<usize>();
            let bytes = texts + size_of::<LateSymbol>() + size_of_val(&*known.frames);
            if let Some(file) = file_of(*place)
                && !shares.take(pending.image, file, bytes)
            {
                *unnamed += 1;
                return false;
            }
            all += bytes;
            named.push(LateSymbol {
                key: symbols.key_of(*place),
                last_nanos: pending.last_nanos,
                module: known.module.clone(),
                frames: known.frames.clone(),
            });
            false
        });
        if self.pending.is_empty() {
            self.pending = HashMap::default();
        }
        named
    }
}

/// How many each process may have so that the places of those that have so many fit, and more are free: what
/// those with few leave is shared by the others.
fn share(mut counts: Vec<usize>) -> usize {
    counts.sort_unstable();
    let mut room = MOST_PLACES - MADE_FREE;
    for (index, count) in counts.iter().enumerate() {
        let each = room / (counts.len() - index);
        if *count > each {
            return each;
        }
        room -= count;
    }
    room
}

/// One place of a process less.
fn forget_one(by_image: &mut HashMap<ImageId, usize, RandomState>, image: ImageId) {
    if let Some(count) = by_image.get_mut(&image) {
        *count = count.saturating_sub(1);
        if *count == 0 {
            by_image.remove(&image);
        }
    }
}

fn file_of(place: CodeAddress) -> Option<FileId> {
    match place {
        CodeAddress::File { file, .. } => Some(file),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use strata_profile::FrameKind;

    use super::*;
    use crate::task::{Lasting, Symbol};

    fn place(file: u32, offset: u64) -> CodeAddress {
        CodeAddress::File { file: FileId(file), offset }
    }

    fn symbol(place: CodeAddress, name: &str) -> Symbol {
        let frames = match name {
            "" => Vec::new(),
            name => vec![NamedFrame::plain(FrameKind::Native, name)],
        };
        Symbol { place, address: 7, module: None, frames, lasting: Lasting::UntilNext }
    }

    /// A flush that leaves places without symbols.
    fn flush(late: &mut Late, symbols: &mut KnownSymbols, places: &[CodeAddress]) {
        symbols.begin_flush();
        late.begin_flush();
        for place in places {
            symbols.set_provisional(symbol(*place, ""));
            assert!(symbols.late_key(*place).is_some());
        }
        late.note(ImageId(1), places, i64::from(late.flush));
    }

    fn names(named: &[LateSymbol]) -> Vec<&str> {
        named.iter().map(|one| &*one.frames[0].name).collect()
    }

    #[test]
    fn a_late_place_is_taken_once_when_its_symbol_is_known() {
        let (mut late, mut symbols) = (Late::default(), KnownSymbols::new(1000));
        let place = place(1, 0x10);
        for _ in 0..3 {
            flush(&mut late, &mut symbols, &[place]);
            assert!(late.take_named(&symbols).is_empty());
        }
        let key = symbols.late_key(place).expect("it is late");
        symbols.set(symbol(place, "found"));
        assert_eq!(symbols.late_key(place), None, "it has its symbol");
        let named = late.take_named(&symbols);
        assert_eq!(names(&named), ["found"]);
        assert_eq!((named[0].key, named[0].last_nanos), (key, 3));
        assert!(late.take_named(&symbols).is_empty());
        assert_eq!((late.count(), late.unnamed), (0, 0));
    }

    #[test]
    fn keys_are_those_of_one_place_in_one_daemon() {
        let (one, other) = (Keys::default(), Keys::default());
        assert_eq!(one.of(place(1, 1)), one.of(place(1, 1)));
        assert_ne!(one.of(place(1, 1)), one.of(place(2, 1)), "another file of the same path");
        assert_ne!(one.of(place(1, 1)), one.of(place(1, 2)));
        assert_ne!(one.of(place(1, 1)), other.of(place(1, 1)));
    }

    #[test]
    fn a_file_without_a_symbol_and_one_that_cannot_be_read_are_not_late() {
        let (mut late, mut symbols) = (Late::default(), KnownSymbols::new(1000));
        flush(&mut late, &mut symbols, &[place(1, 1), place(2, 1)]);
        symbols.note_answer(&[place(1, 1)]);
        symbols.set_readable(place(2, 1), false);
        for place in [place(1, 1), place(2, 1)] {
            assert_eq!(symbols.late_key(place), None);
        }
        assert!(late.take_named(&symbols).is_empty());
        assert_eq!((late.count(), late.unnamed), (0, 2));
        // Descriptors are there again, and it is slow.
        symbols.set_readable(place(2, 1), true);
        assert!(symbols.late_key(place(2, 1)).is_some());
        symbols.set_readable(place(1, 1), true);
        assert_eq!(symbols.late_key(place(1, 1)), None, "it has answered");
    }

    #[test]
    fn nothing_is_late_in_a_recording() {
        let mut symbols = KnownSymbols::new(usize::MAX);
        symbols.set_provisional(symbol(place(1, 1), ""));
        assert_eq!(symbols.late_key(place(1, 1)), None);
    }

    #[test]
    fn a_file_that_never_answers_is_given_up_and_nothing_is_left() {
        let (mut late, mut symbols) = (Late::default(), KnownSymbols::new(1000));
        let places: Vec<_> = (0..100).map(|offset| place(1, offset)).collect();
        for _ in 0..500 {
            flush(&mut late, &mut symbols, &places);
            assert!(late.take_named(&symbols).is_empty());
        }
        assert_eq!((late.count(), late.unnamed), (100, 0), "still sampled");
        for _ in 0..=GIVEN_UP_AFTER {
            flush(&mut late, &mut symbols, &[]);
            assert!(late.take_named(&symbols).is_empty());
        }
        assert_eq!((late.count(), late.unnamed), (0, 100));
        assert_eq!(late.pending.capacity(), 0);
    }

    #[test]
    fn places_and_the_symbols_of_a_file_are_bounded_and_counted() {
        let (mut late, mut symbols) = (Late::default(), KnownSymbols::new(1 << 20));
        let old: Vec<_> = (0..1000).map(|offset| place(1, offset)).collect();
        flush(&mut late, &mut symbols, &old);
        let most = MOST_PLACES as u64;
        // Looking for room once more for each would take minutes.
        let new: Vec<_> = (0..most + 500_000).map(|offset| place(2, offset)).collect();
        flush(&mut late, &mut symbols, &new);
        assert_eq!((late.count(), late.unnamed), (MOST_PLACES, 501_000));
        let long = "n".repeat(1000);
        new.iter().for_each(|place| symbols.set(symbol(*place, &long)));
        let mut named = 0;
        while late.count() > 0 {
            named += late.take_named(&symbols).len();
        }
        assert!(named <= (1 << 20) / 1000 && named > 700, "{named}");
        assert_eq!(late.unnamed, 501_000 + most - named as u64);
        assert!(late.by_image.is_empty());
    }

    #[test]
    fn a_process_with_places_without_end_leaves_others_theirs() {
        let (mut late, mut symbols) = (Late::default(), KnownSymbols::new(1 << 20));
        let many: Vec<_> = (0..MOST_PLACES as u64).map(|offset| place(1, offset)).collect();
        flush(&mut late, &mut symbols, &many);
        for image in 2..10 {
            let own: Vec<_> = (0..500).map(|offset| place(image, offset)).collect();
            late.note(ImageId(image), &own, 1);
            assert_eq!(late.by_image.get(&ImageId(image)), Some(&500));
        }
        // It has no more of them than all others together would leave it.
        for image in [1, 11] {
            let others: Vec<_> = (0..500_000).map(|offset| place(10 + image, offset)).collect();
            late.note(ImageId(image), &others, 1);
        }
        let counts = [1, 11].map(|image| late.by_image[&ImageId(image)]);
        assert!(counts[0].abs_diff(counts[1]) < 2 * MADE_FREE, "{counts:?}");
        assert!((2..10).all(|image| late.by_image.get(&ImageId(image)) == Some(&500)));
        assert_eq!(late.by_image.values().sum::<usize>(), late.count());
        assert_eq!(late.count(), MOST_PLACES);
        assert_eq!(late.count() as u64 + late.unnamed, MOST_PLACES as u64 + 8 * 500 + 2 * 500_000);
    }

    #[test]
    fn processes_without_end_that_take_turns_leave_a_late_one_its_share() {
        let (mut late, mut symbols) = (Late::default(), KnownSymbols::new(1 << 20));
        let of = |image: u32| (0..400).map(move |offset| place(image, offset)).collect::<Vec<_>>();
        flush(&mut late, &mut symbols, &of(1));
        // Many more than there is room for, each with more than its share.
        for image in 2..300 {
            late.note(ImageId(image), &of(image), 1);
        }
        let own: Vec<_> = (0..20).map(|offset| place(300, offset)).collect();
        late.note(ImageId(300), &own, 1);
        assert_eq!(late.by_image.get(&ImageId(300)), Some(&20));
        let (least, most) = (2..300)
            .map(|image| late.by_image[&ImageId(image)])
            .fold((usize::MAX, 0), |(least, most), count| (least.min(count), most.max(count)));
        assert!(least >= 20 && most <= 400, "{least} to {most}");
        assert_eq!(late.by_image.values().sum::<usize>(), late.count());
    }

    #[test]
    fn a_symbol_that_came_is_taken_though_its_file_is_gone() {
        let (mut late, mut symbols) = (Late::default(), KnownSymbols::new(1000));
        flush(&mut late, &mut symbols, &[place(1, 1), place(1, 2)]);
        symbols.set(symbol(place(1, 1), "found"));
        late.retain_files(&symbols, |_| false);
        assert_eq!(late.unnamed, 1);
        assert_eq!(names(&late.take_named(&symbols)), ["found"]);
    }
}
