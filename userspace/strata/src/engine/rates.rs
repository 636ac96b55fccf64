//! Processes that are sampled less often than the host.
//!
//! The kernel samples all at one rate, the highest; of the samples of the others only some are
//! kept, evenly. What a kept one stands for grows accordingly.

use std::collections::HashMap;

use crate::processes::table::ImageId;

#[derive(Debug, Default)]
pub struct Rates {
    /// Of the kernel, a second and CPU.
    full: u32,
    slower: HashMap<ImageId, Rate>,
}

#[derive(Debug)]
struct Rate {
    wanted: u32,
    credit: u32,
}

impl Rates {
    pub fn new(full: u32) -> Self {
        Self { full: full.max(1), slower: HashMap::new() }
    }

    /// All processes are sampled as often as the kernel does, until something else is said.
    pub fn reset(&mut self, full: u32) {
        *self = Self::new(full);
    }

    pub fn set(&mut self, image: ImageId, wanted: u32) {
        if wanted < self.full {
            if self.slower.get(&image).is_some_and(|rate| rate.wanted == wanted) {
                return;
            }
            // Where in its turn it begins must not be the same for all: of processes with few
            // samples none or each would be kept.
            let credit = image.0.wrapping_mul(0x9e37_79b9) % self.full;
            self.slower.insert(image, Rate { wanted, credit });
        } else {
            self.slower.remove(&image);
        }
    }

    /// Samples a second and CPU that are kept of a process.
    pub fn of(&self, image: ImageId) -> u32 {
        self.slower.get(&image).map_or(self.full, |rate| rate.wanted)
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
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_a_slower_process_every_so_many_samples_are_kept_and_of_others_all() {
        let mut rates = Rates::new(99);
        rates.set(ImageId(1), 19);
        let kept = (0..990).filter(|_| rates.takes(ImageId(1))).count();
        assert!((190..=192).contains(&kept), "{kept}");
        assert!((0..100).all(|_| rates.takes(ImageId(2))));
        assert_eq!([rates.of(ImageId(1)), rates.of(ImageId(2))], [19, 99]);
        rates.set(ImageId(1), 200);
        assert_eq!(rates.of(ImageId(1)), 99);
    }
}
