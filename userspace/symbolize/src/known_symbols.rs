//! The cache of symbols, kept from one flush to the next.
//!
//! Invariant: the number of symbols is bounded by the owner's limit; the least recently used are
//! evicted first, and those unused for many flushes in any case. The names of one process's
//! generated code, which it chooses, take no more than a share of memory. An address without a
//! symbol, or with one that may improve, is requested again after some flushes.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use std::hash::Hash;
use std::sync::Arc;

use foldhash::fast::RandomState;
use strata_agent::code_address::CodeAddress;
use strata_agent::frame::NamedFrame;
use strata_agent::image_id::ImageId;
use strata_agent::processes::mapped::FileId;
use strata_profile::{LateKey, is_unnamed};

use crate::late::Keys;
use crate::related::{self, About};
use crate::task::{Lasting, Symbol};
use crate::{LONGEST_NAME, ModuleInfo, UNNAMED_CODE};

/// What a code address is known as.
#[derive(Clone, Debug, Default)]
pub struct Symbolized {
    pub address: u64,
    pub module: Option<Arc<ModuleInfo>>,
    /// The innermost inlined function first; none when it has no name.
    pub frames: Vec<NamedFrame>,
}

impl Symbolized {
    pub fn is_unnamed(&self) -> bool {
        are_unnamed(&self.frames)
    }
}

fn are_unnamed(frames: &[NamedFrame]) -> bool {
    let first = frames.first();
    first.is_none_or(|frame| &*frame.name == UNNAMED_CODE || is_unnamed(&frame.name))
}

/// A name is better than where the function begins, and that than nothing.
fn rank(frames: &[NamedFrame]) -> u8 {
    u8::from(!frames.is_empty()) + u8::from(!are_unnamed(frames))
}

struct Known {
    symbolized: Symbolized,
    /// The last flush that it was wanted in.
    used: u32,
    /// The flush from which it is asked for again.
    until: u32,
    /// Its file's lines were not worth reading yet.
    lacks_lines: bool,
    /// What its file has answered, while it has no symbol.
    answer: Answer,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Answer {
    Awaited,
    /// The file could not be opened.
    Unreadable,
    /// It has no symbol for this place.
    Nothing,
}

/// See the module.
pub struct KnownSymbols {
    known: HashMap<CodeAddress, Known, RandomState>,
    /// Frames that have their names by their caller; `None` when there is none to be found.
    by_caller: HashMap<(CodeAddress, CodeAddress), Option<NamedFrame>, RandomState>,
    /// Symbols that are better than those of the code address alone.
    better: HashMap<CodeAddress, NamedFrame, RandomState>,
    flush: u32,
    most: usize,
    keys: Keys,
}

/// How many flushes a symbol is good for that may change, and the lack of one.
const SOME_FLUSHES: u32 = 4;
/// Symbols unused for so many flushes (ten minutes at the default period) are evicted, so that a
/// burst of programs leaves nothing behind.
const FORGOTTEN_AFTER: u32 = 40;

/// Bytes of names of generated code: of one process, and of all in equal shares, but no less than
/// the last for each.
const MOST_GENERATED: usize = 8 << 20;
const MOST_GENERATED_IN_ALL: usize = 64 << 20;
const LEAST_GENERATED: usize = 256 << 10;
/// Those of all mapped files; above it, of those with more than the last an equal share.
const MOST_OF_FILES: usize = 64 << 20;
const LEAST_OF_A_FILE: usize = 1 << 20;

impl KnownSymbols {
    /// Keeps at most so many symbols.
    pub fn new(most: usize) -> Self {
        Self {
            known: HashMap::default(),
            by_caller: HashMap::default(),
            better: HashMap::default(),
            flush: 0,
            most,
            keys: Keys::default(),
        }
    }

    /// Whether the number of symbols is bounded, as in a daemon.
    pub fn is_bounded(&self) -> bool {
        self.most != usize::MAX
    }

    pub fn count(&self) -> usize {
        self.known.len()
    }

    pub fn set_most(&mut self, most: usize) {
        self.most = most;
    }

    pub fn get(&self, place: CodeAddress) -> Option<&Symbolized> {
        self.known.get(&place).map(|known| &known.symbolized)
    }

    /// The name that a place has when this one calls it.
    pub fn called_by(&self, place: CodeAddress, caller: CodeAddress) -> Option<&NamedFrame> {
        self.by_caller.get(&(place, caller))?.as_ref()
    }

    pub fn is_unnamed(&self, place: CodeAddress) -> bool {
        self.get(place).is_none_or(Symbolized::is_unnamed)
    }

    /// The key of a place in a mapped file that may get a symbol after this flush.
    pub fn late_key(&self, place: CodeAddress) -> Option<LateKey> {
        let is_late = self.is_bounded()
            && matches!(place, CodeAddress::File { .. })
            && self.known.get(&place).is_some_and(|known| {
                known.answer == Answer::Awaited && known.symbolized.frames.is_empty()
            });
        is_late.then(|| self.key_of(place))
    }

    pub fn key_of(&self, place: CodeAddress) -> LateKey {
        self.keys.of(place)
    }

    /// Whether it is known that a place has no symbol.
    pub fn has_none(&self, place: CodeAddress) -> bool {
        self.known.get(&place).is_some_and(|known| known.answer != Answer::Awaited)
    }

    /// Whether the file of a place could be opened.
    pub fn set_readable(&mut self, place: CodeAddress, is_readable: bool) {
        if let Some(known) = self.known.get_mut(&place) {
            known.answer = match (known.answer, is_readable) {
                (Answer::Awaited, false) => Answer::Unreadable,
                (Answer::Unreadable, true) => Answer::Awaited,
                (answer, _) => answer,
            };
        }
    }

    pub fn knows_by_caller(&self, about: &About) -> bool {
        about.1.is_some_and(|caller| self.by_caller.contains_key(&(about.0, caller)))
    }

    pub fn begin_flush(&mut self) {
        self.flush = self.flush.saturating_add(1);
    }

    /// Whether a place is to be symbolized in this flush, which uses it.
    pub fn wants(&mut self, place: CodeAddress) -> bool {
        let flush = self.flush;
        self.known.get_mut(&place).is_none_or(|known| {
            known.used = flush;
            known.until <= flush
        })
    }

    /// Whether a place has its function, and lines and inlined functions only when they are worth
    /// reading.
    pub fn lacks_lines(&self, place: CodeAddress) -> bool {
        self.known.get(&place).is_some_and(|known| known.lacks_lines)
    }

    /// The frames known without reading files, until more is known.
    pub fn set_provisional(&mut self, symbol: Symbol) {
        if !self.known.contains_key(&symbol.place) {
            self.set(Symbol { lasting: Lasting::UntilNext, ..symbol });
        }
    }

    pub fn set(&mut self, symbol: Symbol) {
        let Symbol { place, address, module, frames, lasting } = symbol;
        let lacks_lines = lasting == Lasting::UntilLines;
        let until = match lasting {
            Lasting::UntilNext => self.flush.saturating_add(1),
            Lasting::ForGood | Lasting::UntilLines if !are_unnamed(&frames) => u32::MAX,
            _ => self.flush.saturating_add(SOME_FLUSHES),
        };
        let mut frames = if self.is_bounded() { bounded(frames) } else { frames };
        if let (Some(frame), Some(better)) = (frames.first_mut(), self.better.get(&place)) {
            *frame = related::rename(frame, better);
        }
        match self.known.get_mut(&place) {
            // What is known stays until something better is.
            Some(known) if rank(&frames) < rank(&known.symbolized.frames) => {
                known.until = until;
            }
            Some(known) => {
                known.symbolized = Symbolized { address, module, frames };
                known.until = until;
                known.lacks_lines = lacks_lines;
            }
            None => {
                let symbolized = Symbolized { address, module, frames };
                let used = self.flush;
                let answer = Answer::Awaited;
                self.known.insert(place, Known { symbolized, used, until, lacks_lines, answer });
            }
        }
    }

    /// Everything that can be known now is known: an address without a symbol is not requested at
    /// every flush.
    pub fn settle(&mut self, places: &[CodeAddress]) {
        for place in places {
            if let Some(known) = self.known.get_mut(place)
                && known.symbolized.is_unnamed()
            {
                known.until = known.until.max(self.flush.saturating_add(SOME_FLUSHES));
            }
        }
    }

    /// The file of these places was read: those without a symbol have none.
    pub fn note_answer(&mut self, places: &[CodeAddress]) {
        for place in places {
            if let Some(known) = self.known.get_mut(place) {
                known.answer = Answer::Nothing;
            }
        }
    }

    /// A better name for a place, or for a place as another one calls it. True when nothing more can
    /// be found out about the place.
    pub fn set_related(&mut self, (place, caller): About, better: Option<NamedFrame>) -> bool {
        let Some(known) = self.known.get_mut(&place) else { return false };
        let frame = known.symbolized.frames.first_mut();
        match (caller, frame, better) {
            (None, Some(frame), Some(better)) => {
                *frame = related::rename(frame, &better);
                self.better.insert(place, better);
            }
            (Some(caller), frame, better) => {
                let renamed = frame.zip(better);
                let better = renamed.map(|(frame, better)| related::rename(frame, &better));
                self.by_caller.insert((place, caller), better);
            }
            _ => {}
        }
        caller.is_none()
    }

    /// Only in a daemon: at the end of a recording everything is wanted.
    pub fn forget_unwanted(&mut self) {
        if self.is_bounded() {
            let flush = self.flush;
            let is_old = |used: u32| flush.saturating_sub(used) > FORGOTTEN_AFTER;
            self.known.retain(|_, known| !is_old(known.used));
        }
    }

    /// Evicts the least recently used, until there is room.
    pub fn make_room(&mut self) {
        if self.by_caller.len() > self.most / 8 {
            self.by_caller.clear();
        }
        if self.known.len() > self.most {
            let mut ages: Vec<u32> = self.known.values().map(|known| known.used).collect();
            let keep = self.most / 4 * 3;
            let excess = ages.len().saturating_sub(keep).min(ages.len().saturating_sub(1));
            let (_, oldest, _) = ages.select_nth_unstable(excess);
            let oldest = *oldest;
            // Symbols just used are needed for the next profiles.
            self.known.retain(|_, known| known.used >= oldest || known.used == self.flush);
        }
        if self.is_bounded() {
            self.bound_names();
        }
        self.drop_what_lost_its_place();
    }

    fn drop_what_lost_its_place(&mut self) {
        let known = &self.known;
        self.by_caller
            .retain(|(place, caller), _| known.contains_key(place) && known.contains_key(caller));
        self.better.retain(|place, _| known.contains_key(place));
        give_back(&mut self.known);
        give_back(&mut self.by_caller);
    }

    /// Evicts names from processes and files with more than their share: those that were not used in
    /// this flush, and if that is not enough, all.
    fn bound_names(&mut self) {
        let over = self.over_their_share();
        if over.is_empty() {
            return;
        }
        self.evict_unused(&over);
        let over = self.over_their_share();
        self.known.retain(|place, _| !owner_of(place).is_some_and(|owner| over.contains(&owner)));
    }

    fn evict_unused(&mut self, over: &HashSet<NamesOwner>) {
        let flush = self.flush;
        self.known.retain(|place, known| {
            known.used == flush || !owner_of(place).is_some_and(|owner| over.contains(&owner))
        });
    }

    fn over_their_share(&self) -> HashSet<NamesOwner> {
        let bytes = self.bytes_of_names();
        let is_process = |owner: &&NamesOwner| matches!(owner, NamesOwner::Process(_));
        let share = MOST_GENERATED_IN_ALL / bytes.keys().filter(is_process).count().max(1);
        let share = share.clamp(LEAST_GENERATED, MOST_GENERATED);
        let most = |owner: &NamesOwner| match owner {
            NamesOwner::Process(_) => share,
            NamesOwner::File(_) => 0,
        };
        bytes
            .into_iter()
            .filter(|(owner, bytes)| *bytes > most(owner))
            .map(|(owner, _)| owner)
            .collect()
    }

    /// What the names of generated code take, shared ones counted once; and those of files that have
    /// more than their share.
    fn bytes_of_names(&self) -> HashMap<NamesOwner, usize> {
        let mut bytes: HashMap<NamesOwner, usize> = self.files_over_their_share();
        let mut counted: HashSet<*const str, RandomState> = HashSet::default();
        for (place, known) in &self.known {
            let CodeAddress::Generated { image, .. } = place else { continue };
            let own = bytes.entry(NamesOwner::Process(*image)).or_default();
            for text in known.symbolized.frames.iter().flat_map(texts_of) {
                if counted.insert(Arc::as_ptr(text)) {
                    *own += text.len();
                }
            }
            let module = known.symbolized.module.as_ref();
            if let Some(module) = module.filter(|module| counted.insert(&raw const *module.path)) {
                *own += module.path.len();
            }
        }
        bytes
    }

    /// Each name counts for each of its places: looking for shared ones at each flush costs more.
    fn files_over_their_share(&self) -> HashMap<NamesOwner, usize> {
        let mut bytes: HashMap<NamesOwner, usize> = HashMap::new();
        for (place, known) in &self.known {
            let CodeAddress::File { file, .. } = place else { continue };
            let frames = &known.symbolized.frames;
            let texts = frames.iter().flat_map(texts_of).map(|text| text.len());
            *bytes.entry(NamesOwner::File(*file)).or_default() +=
                size_of_val(frames.as_slice()) + texts.sum::<usize>();
        }
        if bytes.values().sum::<usize>() <= MOST_OF_FILES {
            return HashMap::new();
        }
        let large = bytes.values().filter(|bytes| **bytes > LEAST_OF_A_FILE).count();
        let share = (MOST_OF_FILES / large.max(1)).max(LEAST_OF_A_FILE);
        bytes.retain(|_, bytes| *bytes > share);
        bytes
    }

    pub fn contains(&self, place: &CodeAddress) -> bool {
        self.known.contains_key(place)
    }

    /// Images of ended processes are never requested again.
    pub fn forget(&mut self, is_gone: impl Fn(ImageId) -> bool) {
        self.known.retain(|place, _| match place {
            CodeAddress::Generated { image, .. } | CodeAddress::Unknown { image, .. } => {
                !is_gone(*image)
            }
            _ => true,
        });
    }

    /// Everything but the symbols of the last flush, whose profiles may not be built yet.
    pub fn shed(&mut self) {
        let flush = self.flush;
        self.known.retain(|_, known| known.used == flush);
        self.drop_what_lost_its_place();
    }
}

/// The process or the file that the names of a place come from.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum NamesOwner {
    Process(ImageId),
    File(FileId),
}

fn texts_of(frame: &NamedFrame) -> [&Arc<str>; 3] {
    [&frame.name, &frame.system_name, &frame.file]
}

fn owner_of(place: &CodeAddress) -> Option<NamesOwner> {
    match place {
        CodeAddress::Generated { image, .. } => Some(NamesOwner::Process(*image)),
        CodeAddress::File { file, .. } => Some(NamesOwner::File(*file)),
        _ => None,
    }
}

/// A table that is mostly empty gives its memory back.
fn give_back<K: Eq + Hash, V>(table: &mut HashMap<K, V, RandomState>) {
    if table.capacity() > 1024 && table.len() < table.capacity() / 4 {
        table.shrink_to_fit();
    }
}

/// Frames as they are kept when memory is bounded: as many as are read.
fn bounded(mut frames: Vec<NamedFrame>) -> Vec<NamedFrame> {
    const MOST_FRAMES: usize = 64;
    // The outermost function is the one that was compiled.
    if frames.len() > MOST_FRAMES {
        frames.drain(..frames.len() - MOST_FRAMES);
        frames.shrink_to_fit();
    }
    for frame in &mut frames {
        for text in [&mut frame.name, &mut frame.system_name, &mut frame.file] {
            // In characters: what was shortened once stays, and is shared.
            if let Cow::Owned(shorter) = strata_profile::text::shortened(text, LONGEST_NAME) {
                *text = shorter.into();
            }
        }
    }
    frames
}

#[cfg(test)]
mod tests {
    use strata_profile::FrameKind;

    use super::*;

    fn function(place: CodeAddress, lasting: Lasting) -> Symbol {
        let frames = vec![NamedFrame::plain(FrameKind::Kernel, "function")];
        Symbol { place, address: 7, module: None, frames, lasting }
    }

    fn known(places: u64, most: usize) -> KnownSymbols {
        let mut symbols = KnownSymbols::new(most);
        symbols.begin_flush();
        for address in 0..places {
            symbols.set(function(CodeAddress::Kernel(address), Lasting::ForGood));
        }
        symbols
    }

    /// A flush in which one place is wanted.
    fn flush(symbols: &mut KnownSymbols) {
        symbols.begin_flush();
        symbols.wants(CodeAddress::Kernel(0));
        symbols.forget_unwanted();
        symbols.make_room();
    }

    #[test]
    fn what_is_not_wanted_for_many_flushes_is_forgotten_and_its_memory_given_back() {
        let mut symbols = known(50_000, 100_000);
        let before = symbols.known.capacity();
        for _ in 0..FORGOTTEN_AFTER {
            flush(&mut symbols);
        }
        assert_eq!(symbols.count(), 50_000, "a program may come back");
        flush(&mut symbols);
        assert_eq!(symbols.count(), 1);
        assert!(symbols.get(CodeAddress::Kernel(0)).is_some());
        assert!(symbols.known.capacity() < before / 100, "{}", symbols.known.capacity());
    }

    fn generated(image: u32, address: u64, name: &str) -> Symbol {
        let image = ImageId(image);
        let place = CodeAddress::Generated { image, address, era: 0, of_runtime: true };
        let frames = vec![NamedFrame::plain(FrameKind::Jit, name)];
        Symbol { place, address, module: None, frames, lasting: Lasting::ForGood }
    }

    #[test]
    fn the_long_names_of_one_process_do_not_take_everything() {
        let mut symbols = KnownSymbols::new(1 << 20);
        let long = "n".repeat(LONGEST_NAME);
        symbols.begin_flush();
        (0..5000).for_each(|address| symbols.set(generated(1, address, &long)));
        symbols.set(generated(2, 7, "other"));
        symbols.make_room();
        assert_eq!(symbols.count(), 5001, "it is within its share");
        symbols.begin_flush();
        (5000..10_000).for_each(|address| symbols.set(generated(1, address, &long)));
        symbols.make_room();
        assert_eq!(symbols.count(), 5001, "only what was used lately is kept");
        symbols.begin_flush();
        (0..10_000).for_each(|address| {
            let symbol = generated(1, address, &long);
            symbols.wants(symbol.place);
            symbols.set(symbol);
        });
        symbols.make_room();
        assert!(symbols.count() == 1 && symbols.contains(&generated(2, 7, "").place));
    }

    #[test]
    fn a_name_that_many_addresses_share_is_counted_once() {
        let mut symbols = KnownSymbols::new(1 << 20);
        symbols.begin_flush();
        let shared = generated(1, 0, &"n".repeat(LONGEST_NAME));
        for address in 0..20_000 {
            let place = generated(1, address, "").place;
            symbols.set(Symbol { place, ..shared.clone() });
        }
        symbols.make_room();
        assert_eq!(symbols.count(), 20_000);
    }

    #[test]
    fn a_recording_forgets_nothing() {
        let mut symbols = known(100, usize::MAX);
        for _ in 0..2 * FORGOTTEN_AFTER {
            flush(&mut symbols);
        }
        assert_eq!(symbols.count(), 100);
    }

    #[test]
    fn what_was_late_is_asked_for_at_the_next_flush_and_keeps_what_is_known() {
        let mut symbols = KnownSymbols::new(100);
        symbols.begin_flush();
        let place = CodeAddress::Kernel(1);
        let late = Symbol { frames: Vec::new(), ..function(place, Lasting::UntilNext) };
        symbols.set_provisional(late.clone());
        assert_eq!(symbols.get(place).map(|known| known.address), Some(7), "it has its address");
        symbols.begin_flush();
        assert!(symbols.wants(place));
        let frame = NamedFrame::plain(strata_profile::FrameKind::Native, "app!0x10");
        let start = Symbol { frames: vec![frame], ..function(place, Lasting::ForGood) };
        symbols.set(start);
        symbols.set(late.clone());
        let shown = symbols.get(place).and_then(|known| known.frames.first());
        assert!(symbols.is_unnamed(place) && shown.is_some(), "where its function begins is kept");
        symbols.set(function(place, Lasting::ForSomeFlushes));
        assert!(!symbols.wants(place));
        symbols.set(late);
        assert!(!symbols.is_unnamed(place), "a name is not lost because a later try was late");
    }
}
