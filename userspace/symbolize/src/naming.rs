//! Places get their names, each once: what is named is kept from one profile to the next.
//!
//! Invariant: at most so many names are kept as the owner said; what was not used longest goes
//! first, and what nobody wanted for many rounds goes in any case. What has no name yet, or may get
//! another, is asked for again after some rounds.

mod places;

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::Arc;
use std::time::{Duration, Instant};

use foldhash::fast::RandomState;

use self::places::Meanwhile;
use super::related::{self, Lacking};
use crate::kernel::KernelTable;
use crate::managed::GeneratedCode;
use crate::{ModuleInfo, NamedFrame, Shortfalls};
use strata_abi::record::End;
use strata_agent::aggregate::Aggregate;
use strata_agent::engine::Engine;
use strata_agent::place::{Marker, Place, describe_end};
use strata_agent::processes::mapped::FileId;
use strata_agent::processes::table::ImageId;
use strata_profile::FrameKind;

/// A place with its names.
#[derive(Clone, Debug, Default)]
pub struct Named {
    pub address: u64,
    pub module: Option<Arc<ModuleInfo>>,
    /// The innermost inlined function first; none when it has no name.
    pub frames: Vec<NamedFrame>,
}

impl Named {
    fn is_unnamed(&self) -> bool {
        self.frames.first().is_none_or(|frame| &*frame.name == UNNAMED_CODE)
    }
}

/// Code that a runtime made and nobody can name.
const UNNAMED_CODE: &str = "[jit]";

struct Known {
    named: Arc<Named>,
    /// The last round that it was wanted in.
    used: u32,
    /// The round from which it is asked for again.
    until: u32,
}

/// Names of places, and what they were made of.
pub struct Naming {
    known: HashMap<Place, Known, RandomState>,
    /// Kept by who names for months, while it is asked.
    kernel: Option<KernelTable>,
    /// The last round that it was asked in.
    kernel_used: u32,
    lacking: Lacking,
    /// Frames that have their names by their caller; `None` when nobody knows one.
    by_caller: HashMap<(Place, Place), Option<NamedFrame>, RandomState>,
    /// Names of .NET methods have the types of their parameters.
    signatures: bool,
    round: u32,
    most: usize,
}

/// How many rounds a name is good for that may change, and the lack of one.
const ROUNDS: u32 = 4;
const FOR_GOOD: u32 = u32::MAX;
/// What nobody wanted for so many rounds, which are ten minutes with a store or a sink of the usual
/// period, is forgotten: a burst of programs leaves nothing behind.
const FORGOTTEN_AFTER: u32 = 40;

/// Places that are still to be named, by whom is asked.
#[derive(Default)]
struct Wanted {
    kernel: Vec<u64>,
    vdso: Vec<u64>,
    files: HashMap<FileId, Vec<u64>>,
    images: HashMap<ImageId, Vec<GeneratedCode>>,
}

impl Naming {
    /// Keeps at most so many names.
    pub fn new(most: usize, signatures: bool) -> Self {
        Self {
            known: HashMap::default(),
            kernel: None,
            kernel_used: 0,
            lacking: Lacking::default(),
            by_caller: HashMap::default(),
            signatures,
            round: 0,
            most,
        }
    }

    /// Whether there is a bound on what is kept, as there is for who runs for months.
    fn is_bounded(&self) -> bool {
        self.most != usize::MAX
    }

    pub fn count(&self) -> usize {
        self.known.len()
    }

    pub fn set_most(&mut self, most: usize) {
        self.most = most;
    }

    pub fn get(&self, place: Place) -> Option<&Named> {
        self.known.get(&place).map(|known| &*known.named)
    }

    /// The name that a place has when this one calls it.
    pub fn called_by(&self, place: Place, caller: Place) -> Option<&NamedFrame> {
        self.by_caller.get(&(place, caller))?.as_ref()
    }

    /// Names every place of an aggregate, or as many as there is time for. `progress` is told how
    /// far it is (done, of all) and may let the engine go on.
    pub fn name_all(
        &mut self,
        engine: &mut Engine,
        aggregate: &Aggregate,
        shortfalls: &mut Shortfalls,
        patience: Option<Duration>,
        mut progress: impl FnMut(&mut Engine, usize, usize),
    ) {
        let end = patience.map(|patience| Instant::now() + patience);
        let is_over = || end.is_some_and(|end| Instant::now() > end);
        self.round = self.round.saturating_add(1);
        let wanted = self.wanted(aggregate);
        let all = wanted.files.len() + wanted.images.len() + 2;
        self.name_kernel(&wanted.kernel, shortfalls);
        self.name_vdso(&wanted.vdso);
        let mut done = 2;
        for (image, addresses) in wanted.images {
            if is_over() {
                break;
            }
            self.name_generated(engine, image, &addresses, shortfalls);
            progress(engine, done, all);
            done += 1;
        }
        for (file, offsets) in wanted.files {
            if is_over() {
                break;
            }
            progress(engine, done, all);
            done += 1;
            let mut go_on = |engine: &mut Engine| progress(engine, done, all);
            let mut asking = Meanwhile { engine: &mut *engine, go_on: &mut go_on };
            self.name_file(&mut asking, file, offsets, shortfalls);
        }
        if !is_over() {
            self.find_related(engine, aggregate);
        }
        let is_unnamed = |place: &Place| self.get(*place).is_none_or(Named::is_unnamed);
        shortfalls.unnamed += aggregate.places().filter(is_unnamed).count() as u64;
        self.forget_unwanted();
        self.make_room();
    }

    /// Only for who names for months: at the end of a recording everything is wanted.
    fn forget_unwanted(&mut self) {
        if !self.is_bounded() {
            return;
        }
        let round = self.round;
        let is_old = |used: u32| round.saturating_sub(used) > FORGOTTEN_AFTER;
        self.known.retain(|_, known| !is_old(known.used));
        if is_old(self.kernel_used) {
            self.kernel = None;
        }
    }

    fn wanted(&mut self, aggregate: &Aggregate) -> Wanted {
        let mut wanted = Wanted::default();
        let round = self.round;
        for place in aggregate.places() {
            if let Some(known) = self.known.get_mut(&place) {
                known.used = round;
                if known.until > round {
                    continue;
                }
            }
            match place {
                Place::Kernel(address) => wanted.kernel.push(address),
                Place::File { file, offset } => {
                    wanted.files.entry(file).or_default().push(offset);
                }
                Place::Vdso(offset) => wanted.vdso.push(offset),
                Place::Generated { image, address, era, of_runtime } => {
                    let code = GeneratedCode { address, era, of_runtime };
                    wanted.images.entry(image).or_default().push(code);
                }
                Place::Unknown { address, .. } => {
                    let address = if self.is_bounded() { 0 } else { address };
                    self.set(place, address, None, vec![unknown()], FOR_GOOD);
                }
                Place::Marker(marker) => {
                    self.set(place, 0, None, vec![marker_frame(marker)], FOR_GOOD);
                }
            }
        }
        wanted
    }

    /// A name that is good for some rounds. What has no name is asked for again.
    fn set(
        &mut self,
        place: Place,
        address: u64,
        module: Option<&Arc<ModuleInfo>>,
        frames: Vec<NamedFrame>,
        rounds: u32,
    ) {
        let rounds = if frames.is_empty() { ROUNDS } else { rounds };
        let frames = if self.is_bounded() { bounded(frames) } else { frames };
        let named = Arc::new(Named { address, module: module.cloned(), frames });
        let until = self.round.saturating_add(rounds);
        self.known.insert(place, Known { named, used: self.round, until });
    }

    fn find_related(&mut self, engine: &mut Engine, aggregate: &Aggregate) {
        let known = &self.by_caller;
        let is_known = |about: &related::About| match about.1 {
            Some(caller) => known.contains_key(&(about.0, caller)),
            None => false,
        };
        for ((place, caller), better) in self.lacking.find_out(engine, aggregate, &is_known) {
            let Some(known) = self.known.get_mut(&place) else { continue };
            let renamed = known.named.frames.first().zip(better.as_ref());
            let better = renamed.map(|(frame, better)| related::rename(frame, better));
            match caller {
                None => {
                    if let (Some(better), Some(frame)) =
                        (better, Arc::make_mut(&mut known.named).frames.first_mut())
                    {
                        *frame = better;
                    }
                    self.lacking.settled(place);
                }
                Some(caller) => {
                    self.by_caller.insert((place, caller), better);
                }
            }
        }
    }

    /// Drops what was not wanted longest, until there is room.
    fn make_room(&mut self) {
        if self.by_caller.len() > self.most / 8 {
            self.by_caller.clear();
        }
        if self.known.len() > self.most {
            let mut ages: Vec<u32> = self.known.values().map(|known| known.used).collect();
            let keep = self.most / 4 * 3;
            let cut = ages.len().saturating_sub(keep).min(ages.len().saturating_sub(1));
            let (_, oldest, _) = ages.select_nth_unstable(cut);
            let oldest = *oldest;
            // What was wanted just now is needed for the profiles that are made next.
            self.known.retain(|_, known| known.used >= oldest || known.used == self.round);
        }
        let known = &self.known;
        self.by_caller
            .retain(|(place, caller), _| known.contains_key(place) && known.contains_key(caller));
        self.lacking.retain(|place| known.contains_key(place));
        give_back(&mut self.known);
        give_back(&mut self.by_caller);
    }

    /// What is gone is never asked for again.
    pub fn forget(&mut self, is_gone: impl Fn(ImageId) -> bool) {
        self.known.retain(|place, _| match place {
            Place::Generated { image, .. } | Place::Unknown { image, .. } => !is_gone(*image),
            _ => true,
        });
    }

    /// Everything but the names of the last profile.
    pub fn shed(&mut self) {
        let round = self.round;
        self.known.retain(|_, known| known.used == round);
        self.make_room();
    }
}

/// A table that is mostly empty gives its memory back.
fn give_back<K: Eq + Hash, V>(table: &mut HashMap<K, V, RandomState>) {
    if table.capacity() > 1024 && table.len() < table.capacity() / 4 {
        table.shrink_to_fit();
    }
}

/// Frames as they are kept when memory is bounded: no more than anybody reads.
fn bounded(mut frames: Vec<NamedFrame>) -> Vec<NamedFrame> {
    const MOST_FRAMES: usize = 64;
    const LONGEST: usize = 1024;
    // The outermost function is the one that was compiled.
    if frames.len() > MOST_FRAMES {
        frames.drain(..frames.len() - MOST_FRAMES);
    }
    for frame in &mut frames {
        for text in [&mut frame.name, &mut frame.system_name, &mut frame.file] {
            if text.len() > LONGEST {
                *text = strata_profile::text::shortened(text, LONGEST).into();
            }
        }
    }
    frames
}

fn unknown() -> NamedFrame {
    NamedFrame::plain(FrameKind::Marker, "[unknown]")
}

fn marker_frame(marker: Marker) -> NamedFrame {
    match marker {
        Marker::Truncated => NamedFrame::plain(FrameKind::Marker, "[truncated]"),
        Marker::Incomplete(end) => {
            let why = End::from_byte(end).map_or("", describe_end);
            let mut frame = NamedFrame::plain(FrameKind::Marker, "[incomplete]");
            frame.system_name = format!("[incomplete: {why}]").into();
            frame
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(places: u64, most: usize) -> Naming {
        let mut naming = Naming::new(most, false);
        naming.round = 1;
        for address in 0..places {
            let frame = NamedFrame::plain(FrameKind::Kernel, "function");
            naming.set(Place::Kernel(address), address, None, vec![frame], FOR_GOOD);
        }
        naming
    }

    /// A round in which one place is wanted.
    fn round(naming: &mut Naming) {
        naming.round += 1;
        if let Some(known) = naming.known.get_mut(&Place::Kernel(0)) {
            known.used = naming.round;
        }
        naming.forget_unwanted();
        naming.make_room();
    }

    #[test]
    fn what_nobody_wants_for_many_rounds_is_forgotten_and_its_memory_given_back() {
        let mut naming = named(50_000, 100_000);
        let before = naming.known.capacity();
        for _ in 0..FORGOTTEN_AFTER {
            round(&mut naming);
        }
        assert_eq!(naming.count(), 50_000, "a program may come back");
        round(&mut naming);
        assert_eq!(naming.count(), 1);
        assert!(naming.get(Place::Kernel(0)).is_some());
        assert!(naming.known.capacity() < before / 100, "{}", naming.known.capacity());
    }

    #[test]
    fn a_recording_forgets_nothing() {
        let mut naming = named(100, usize::MAX);
        for _ in 0..2 * FORGOTTEN_AFTER {
            round(&mut naming);
        }
        assert_eq!(naming.count(), 100);
    }
}
