//! Processes that are sampled less often than the host.
//!
//! The kernel samples all at one rate, the highest; of the samples of the others only some are
//! kept, evenly. What a kept one stands for grows accordingly.
//!
//! Invariant: all samples of a process between two cuts are kept at one rate, by which they are
//! weighed. Another rate comes into force at a cut.

use std::collections::HashMap;

use crate::processes::table::ImageId;

#[derive(Debug, Default)]
pub struct Rates {
    /// Of the kernel, a second and CPU.
    full: u32,
    slower: HashMap<ImageId, Rate>,
    /// What changes at the next cut.
    next: HashMap<ImageId, u32>,
    /// What changed at the last one, as it was before.
    before: HashMap<ImageId, u32>,
}

#[derive(Debug)]
struct Rate {
    wanted: u32,
    credit: u32,
}

impl Rates {
    pub fn new(full: u32) -> Self {
        Self { full: full.max(1), ..Self::default() }
    }

    /// All processes are sampled as often as the kernel does, until something else is said.
    pub fn reset(&mut self, full: u32) {
        *self = Self::new(full);
    }

    /// From a coming cut on.
    pub fn set(&mut self, image: ImageId, wanted: u32) {
        let wanted = wanted.min(self.full);
        if wanted == self.current(image) {
            self.next.remove(&image);
        } else {
            self.next.insert(image, wanted);
        }
    }

    /// All samples so far are cut off, except those of processes of which some still wait: their
    /// rate stays until none does.
    pub fn end_period(&mut self, waits: impl Fn(ImageId) -> bool) {
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

    /// Samples a second and CPU that were kept of a process until the last cut.
    pub fn of(&self, image: ImageId) -> u32 {
        self.before.get(&image).copied().unwrap_or_else(|| self.current(image))
    }

    /// Whether the next sample of a process is kept.
    pub fn takes(&mut self, image: ImageId) -> bool {
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

    pub fn retain(&mut self, is_kept: impl Fn(ImageId) -> bool) {
        self.slower.retain(|image, _| is_kept(*image));
        self.next.retain(|image, _| is_kept(*image));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_a_slower_process_every_so_many_samples_are_kept_and_of_others_all() {
        let mut rates = Rates::new(99);
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
        let mut rates = Rates::new(99);
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
}
