//! Processes that are sampled less often than the host, kind by kind.
//!
//! The kernel samples all at one rate of each kind, the highest; of the other processes' samples
//! only some are kept, evenly, with a higher weight each.
//!
//! Invariant: all samples of a process and kind between two flushes are kept at one rate, which is
//! their weight. A new rate takes effect at a flush.

use std::collections::HashMap;

use strata_kinds::{Frequencies, KIND_COUNT, Kind};

use crate::image_id::ImageId;

/// The rates and credits of all kinds.
#[derive(Debug)]
pub struct Rates([OfKind; KIND_COUNT]);

impl Rates {
    pub fn new(full: &Frequencies) -> Self {
        Self(Kind::ALL.map(|kind| OfKind::new(full.of(kind))))
    }

    /// All processes are sampled at the kernel's rate until another one is set.
    pub fn reset(&mut self, full: &Frequencies) {
        *self = Self::new(full);
    }

    /// From the next flush on.
    pub fn set(&mut self, kind: Kind, image: ImageId, wanted: u32) {
        if let Some(of_kind) = self.0.get_mut(kind as usize) {
            of_kind.set(image, wanted);
        }
    }

    /// See the invariant: samples that still wait keep their process's rates.
    pub fn end_period(&mut self, waits: impl Fn(ImageId) -> bool) {
        self.0.iter_mut().for_each(|of_kind| of_kind.end_period(&waits));
    }

    /// Samples a second that were kept of a process until the last flush.
    pub fn of(&self, kind: Kind, image: ImageId) -> u32 {
        self.0.get(kind as usize).map_or(1, |of_kind| of_kind.of(image))
    }

    /// What they are of all kinds.
    pub fn all_of(&self, image: ImageId) -> Frequencies {
        let all = Kind::ALL.into_iter();
        all.fold(Frequencies::of_daemon(), |sum, kind| sum.with(kind, self.of(kind, image)))
    }

    /// Whether the next sample of a process is kept.
    pub fn takes(&mut self, kind: Kind, image: ImageId) -> bool {
        self.0.get_mut(kind as usize).is_none_or(|of_kind| of_kind.takes(image))
    }

    pub fn retain(&mut self, is_kept: impl Fn(ImageId) -> bool) {
        self.0.iter_mut().for_each(|of_kind| of_kind.retain(&is_kept));
    }
}

/// Those of one kind.
#[derive(Debug, Default)]
struct OfKind {
    /// Of the kernel, a second and CPU.
    full: u32,
    slower: HashMap<ImageId, Rate>,
    /// Changes at the next flush.
    next: HashMap<ImageId, u32>,
    /// The rates changed at the last flush, as before it.
    before: HashMap<ImageId, u32>,
}

#[derive(Debug)]
struct Rate {
    wanted: u32,
    credit: u32,
}

impl OfKind {
    fn new(full: u32) -> Self {
        Self { full: full.max(1), ..Self::default() }
    }

    /// From the next flush on.
    fn set(&mut self, image: ImageId, wanted: u32) {
        let wanted = wanted.min(self.full);
        if wanted == self.current(image) {
            self.next.remove(&image);
        } else {
            self.next.insert(image, wanted);
        }
    }

    /// All samples so far are flushed, except those of processes with pending ones, whose rate
    /// stays until none is pending.
    fn end_period(&mut self, waits: impl Fn(ImageId) -> bool) {
        self.before.clear();
        let changes = std::mem::take(&mut self.next);
        for (image, wanted) in changes {
            if waits(image) {
                self.next.insert(image, wanted);
                continue;
            }
            self.before.insert(image, self.current(image));
            if wanted < self.full {
                // Where in its turn it begins must not be the same for all: of processes with few
                // samples none or each would be kept.
                let credit = image.0.wrapping_mul(0x9e37_79b9) % self.full;
                self.slower.insert(image, Rate { wanted, credit });
            } else {
                self.slower.remove(&image);
            }
        }
    }

    fn current(&self, image: ImageId) -> u32 {
        self.slower.get(&image).map_or(self.full, |rate| rate.wanted)
    }

    /// Samples a second and CPU that were kept of a process until the last flush.
    fn of(&self, image: ImageId) -> u32 {
        self.before.get(&image).copied().unwrap_or_else(|| self.current(image))
    }

    /// Whether the next sample of a process is kept.
    fn takes(&mut self, image: ImageId) -> bool {
        if self.slower.is_empty() {
            return true;
        }
        let Some(rate) = self.slower.get_mut(&image) else { return true };
        rate.credit = rate.credit.saturating_add(rate.wanted);
        let takes = rate.credit >= self.full;
        if takes {
            rate.credit -= self.full;
        }
        takes
    }

    fn retain(&mut self, is_kept: impl Fn(ImageId) -> bool) {
        self.slower.retain(|image, _| is_kept(*image));
        self.next.retain(|image, _| is_kept(*image));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_a_slower_process_every_so_many_samples_are_kept_and_of_others_all() {
        let mut rates = OfKind::new(99);
        rates.set(ImageId(1), 19);
        rates.end_period(|_| false);
        let kept = (0..990).filter(|_| rates.takes(ImageId(1))).count();
        assert!((190..=192).contains(&kept), "{kept}");
        assert!((0..100).all(|_| rates.takes(ImageId(2))));
        rates.end_period(|_| false);
        assert_eq!([rates.of(ImageId(1)), rates.of(ImageId(2))], [19, 99]);
        rates.set(ImageId(1), 200);
        rates.end_period(|_| false);
        assert!((0..100).all(|_| rates.takes(ImageId(1))));
        rates.end_period(|_| false);
        assert_eq!(rates.of(ImageId(1)), 99);
    }

    #[test]
    fn samples_are_weighed_by_the_rate_they_were_kept_at() {
        let image = ImageId(1);
        let mut rates = OfKind::new(99);
        rates.end_period(|_| false);
        rates.set(image, 19);
        assert!((0..100).all(|_| rates.takes(image)), "taken while the cut is worked on");
        assert_eq!(rates.of(image), 99, "the same image in another domain");
        rates.end_period(|waiting| waiting == image);
        assert!((0..100).all(|_| rates.takes(image)), "some still wait to be counted");
        assert_eq!(rates.of(image), 99);
        rates.end_period(|_| false);
        assert_eq!(rates.of(image), 99, "what is cut off was kept at the old rate");
        assert!((0..100).filter(|_| rates.takes(image)).count() < 25);
        rates.end_period(|_| false);
        assert_eq!(rates.of(image), 19);
    }

    #[test]
    fn each_kind_has_a_rate_and_a_credit_of_its_own() {
        let image = ImageId(1);
        let mut rates = Rates::new(&Frequencies::of_daemon().with(Kind::Wall, 10));
        rates.set(Kind::Wall, image, 1);
        rates.end_period(|_| false);
        assert!((0..100).all(|_| rates.takes(Kind::Cpu, image)));
        assert_eq!((0..100).filter(|_| rates.takes(Kind::Wall, image)).count(), 10);
        rates.end_period(|_| false);
        assert_eq!([Kind::Cpu, Kind::Wall].map(|kind| rates.of(kind, image)), [19, 1]);
        assert_eq!(rates.all_of(image).period(Kind::Wall), 1_000_000_000);
    }
}
