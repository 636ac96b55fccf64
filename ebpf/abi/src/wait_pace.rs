//! Which of a thread's switches the off-CPU sampler chooses, and what it may spend on them.
//!
//! Invariant: whether a switch is chosen depends on chance and on the block that it lies in, and the
//! weight of a block is fixed before its first switch: sums of weights are unbiased.

/// Blocks are no longer than `2^MAX_BLOCK_SHIFT`.
pub const MAX_BLOCK_SHIFT: u32 = 4;
/// A wait stands for at most `2^MAX_SHIFT` others.
pub const MAX_SHIFT: u32 = 20;
/// Nanoseconds of a wait that is not chosen: a thread is switched out, woken and switched in. Measured
/// were 40 to 60, by how cold the caches are.
pub const SWITCH_NANOS: u32 = 60;
/// Nanoseconds that a CPU may spend on waits in a window, however many CPUs and switches there are:
/// a stack.
pub const LEAST_BUDGET: u32 = 20_000;

/// The next `length` switches of a thread, of which at most one is chosen.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Block {
    /// The chosen one stands for `2^shift` waits.
    pub shift: u8,
    pub length: u8,
    /// Which is chosen; `length` if none is.
    pub choice: u8,
    /// The switches so far.
    pub passed: u8,
}

impl Block {
    /// Whether this switch is the chosen one of its block. A block has one, so that the number of
    /// samples is as even as can be; where fewer are chosen than one of the longest block, some
    /// blocks have none. `random` is called once for each block.
    ///
    /// A block goes on to its end, however often the thread is to be walked by then: that depends on
    /// whether its chosen switch has come, and sums would not be unbiased.
    #[inline(always)]
    pub fn is_chosen(&mut self, shift: u32, random: impl FnOnce() -> u32) -> bool {
        if self.passed >= self.length {
            *self = Self::new(shift, if shift == 0 { 0 } else { random() });
        }
        let position = self.passed;
        self.passed = position + 1;
        position == self.choice
    }

    /// A new window of time. A block whose chosen switch stands for many ends with the window in which
    /// it began: a thread that is switched now and then would keep it for minutes. When that is does
    /// not depend on whether the chosen switch has come.
    #[inline(always)]
    pub fn turn(&mut self) {
        if self.shift as u32 > MAX_BLOCK_SHIFT {
            self.passed = self.length;
        }
    }

    #[inline(always)]
    fn new(shift: u32, random: u32) -> Self {
        let length = 1 << if shift > MAX_BLOCK_SHIFT { MAX_BLOCK_SHIFT } else { shift };
        let chance = random & ((1 << (shift & 31)) - 1);
        let choice = if chance < length { chance } else { length };
        Self { shift: shift as u8, length: length as u8, choice: choice as u8, passed: 0 }
    }
}

/// What is left of a CPU's budget for walks, after its part of what all switches of the host cost in
/// a window. `all`: its budget for both. A quarter is kept for walks: else one program that switches
/// all the time would take those of all others.
#[inline(always)]
#[must_use]
pub fn budget(all: u32, switches: u32, cpus: u32) -> u32 {
    let spent = switches as u64 * SWITCH_NANOS as u64 / if cpus == 0 { 1 } else { cpus as u64 };
    let kept = if all / 4 > LEAST_BUDGET { all / 4 } else { LEAST_BUDGET };
    if spent + kept as u64 >= all as u64 { kept } else { all - spent as u32 }
}

#[cfg(test)]
mod tests {
    extern crate std;

    use super::*;

    /// A generator of the same sequence each time (xorshift).
    fn random(state: &mut u64) -> u32 {
        *state ^= *state << 13;
        *state ^= *state >> 7;
        *state ^= *state << 17;
        (*state >> 32) as u32
    }

    #[test]
    fn chosen_switches_stand_for_all_and_few_random_numbers_are_drawn() {
        const SWITCHES: u32 = 1 << 20;
        let mut state = 0x9e37_79b9_7f4a_7c15;
        for shift in 0..=10 {
            let (mut block, mut drawn, mut sum) = (Block::default(), 0, 0u64);
            for _ in 0..SWITCHES {
                let is_chosen = block.is_chosen(shift, || {
                    drawn += 1;
                    random(&mut state)
                });
                sum += u64::from(is_chosen) << block.shift;
            }
            let ratio = sum as f64 / f64::from(SWITCHES);
            std::println!("1 of 2^{shift}: {ratio:.4} of all, {drawn} random numbers");
            // Four standard errors of as many as are chosen.
            let error = 4.0 * (f64::from(1u32 << shift) / f64::from(SWITCHES)).sqrt();
            assert!((ratio - 1.0).abs() <= if shift > MAX_BLOCK_SHIFT { error } else { 1e-9 });
            let blocks = SWITCHES >> shift.min(MAX_BLOCK_SHIFT);
            assert_eq!(drawn, if shift == 0 { 0 } else { blocks });
        }
    }

    #[test]
    fn threads_that_are_switched_rarely_are_chosen_anew_in_each_window() {
        const WINDOWS: u32 = 1 << 20;
        let mut state = 0x9e37_79b9_7f4a_7c15;
        for (shift, in_a_window) in [(3, 1), (6, 1), (6, 3), (9, 40)] {
            let (mut block, mut sum, mut drawn) = (Block::default(), 0u64, 0);
            for _ in 0..WINDOWS {
                block.turn();
                for _ in 0..in_a_window {
                    let is_chosen = block.is_chosen(shift, || {
                        drawn += 1;
                        random(&mut state)
                    });
                    sum += u64::from(is_chosen) << block.shift;
                }
            }
            let switches = f64::from(WINDOWS * in_a_window);
            let ratio = sum as f64 / switches;
            std::println!("1 of 2^{shift}, {in_a_window} in a window: {ratio:.4}, {drawn} drawn");
            let error = 5.0 * (f64::from(1u32 << shift) / switches).sqrt();
            assert!((ratio - 1.0).abs() <= error, "{ratio}");
            assert!(shift <= MAX_BLOCK_SHIFT || drawn >= WINDOWS);
        }
        // A burst's block is not kept.
        let mut block = Block::default();
        block.is_chosen(12, || 1 << 11);
        block.turn();
        assert!(block.is_chosen(0, || 0) && block.shift == 0);
    }

    #[test]
    fn each_switch_of_a_block_is_chosen_as_often() {
        let mut state = 0x2545_f491_4f6c_dd1d;
        for shift in [1, 4, 7] {
            let mut chosen = std::vec![0u32; 1 << shift.min(MAX_BLOCK_SHIFT)];
            let mut block = Block::default();
            for switch in 0..chosen.len() << 16 {
                if block.is_chosen(shift, || random(&mut state)) {
                    chosen[switch % (1 << shift.min(MAX_BLOCK_SHIFT))] += 1;
                }
            }
            let expected = f64::from(1u32 << (16 - shift));
            std::println!("1 of 2^{shift}: {chosen:?}, {expected} each");
            let error = 5.0 * expected.sqrt();
            assert!(chosen.iter().all(|count| (f64::from(*count) - expected).abs() <= error));
        }
    }

    #[test]
    fn walks_have_what_the_switches_of_the_host_leave() {
        // 1 % of a core of two, in windows of 128 ms.
        let (all, cpus) = (640_000, 2);
        assert_eq!(budget(all, 0, cpus), all);
        let spent = |switches: u32| {
            u64::from(cpus) * u64::from(budget(all, switches, cpus))
                + u64::from(switches) * u64::from(SWITCH_NANOS)
        };
        for per_second in [1_000, 10_000, 60_000, 100_000] {
            let switches = per_second / 1000 * 128;
            std::println!("{per_second} switches a second: {}", budget(all, switches, cpus));
            assert!(spent(switches) <= u64::from(all * cpus));
            assert!(budget(all, switches, cpus) > LEAST_BUDGET);
        }
        // Beyond what can be paid walks keep a quarter, or a stack now and then.
        assert_eq!(budget(all, u32::MAX, cpus), all / 4);
        assert_eq!(budget(LEAST_BUDGET, u32::MAX, cpus), LEAST_BUDGET);
        assert_eq!(budget(all, 1, 0), all - SWITCH_NANOS);
    }
}
