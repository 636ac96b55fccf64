//! The 50/30/20 shares below generics, a trait object, a sort and a caught panic.
//! usage: shares_rust [seconds]

use std::cell::Cell;
use std::time::Instant;

const UNIT: u64 = 4000;

#[inline(always)]
fn burn_units(units: u64) -> u64 {
    let mut x = units | 1;
    for _ in 0..units * UNIT {
        x = std::hint::black_box(
            x.wrapping_mul(6364136223846793005)
                .wrapping_add(1442695040888963407),
        );
    }
    x
}

trait Share {
    const SALT: u64;
}
struct Fifty;
struct Thirty;
struct Twenty;
impl Share for Fifty {
    const SALT: u64 = 0;
}
impl Share for Thirty {
    const SALT: u64 = 1;
}
impl Share for Twenty {
    const SALT: u64 = 2;
}

struct Leaf<S>(std::marker::PhantomData<S>);

trait Burner {
    fn run(&self, units: u64) -> u64;
}

impl<S: Share> Leaf<S> {
    #[inline(never)]
    fn burn(&self, units: u64) -> u64 {
        burn_units(units) ^ S::SALT
    }
}

impl<S: Share> Burner for Leaf<S> {
    #[inline(never)]
    fn run(&self, units: u64) -> u64 {
        std::hint::black_box(self.burn(units)) + 1
    }
}

struct Work {
    burners: [Box<dyn Burner>; 3],
    turn: Cell<usize>,
    random: Cell<u64>,
    sink: Cell<u64>,
}

impl Work {
    #[inline(never)]
    fn compare_and_burn(&self, left: u32, right: u32) -> std::cmp::Ordering {
        // In an order that never comes back: a fixed one may be in step with a sampler.
        const ORDER: [usize; 10] = [0, 0, 0, 0, 0, 1, 1, 1, 2, 2];
        let mut random = self.random.get();
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        self.random.set(random);
        self.turn.set(self.turn.get() + 1);
        let value = self.burners[ORDER[(random % 10) as usize]].run(2);
        self.sink.set(self.sink.get().wrapping_add(value));
        left.cmp(&right)
    }

    #[inline(never)]
    fn descend(&self, depth: u32) -> u64 {
        if depth == 0 {
            let mut numbers: Vec<u32> = (0..64).map(|i| (i * 37) % 64).collect();
            numbers.sort_by(|a, b| self.compare_and_burn(*a, *b));
            if self.turn.get() % 16 == 0 {
                std::panic::resume_unwind(Box::new("the bottom"));
            }
            return u64::from(numbers[0]);
        }
        std::hint::black_box(self.descend(depth - 1)) + 1
    }
}

/// CPU seconds of this process, from the clock that counts them.
fn cpu_seconds() -> f64 {
    let text = std::fs::read_to_string("/proc/self/schedstat").unwrap_or_default();
    let nanoseconds = text.split(' ').next().and_then(|n| n.parse().ok());
    nanoseconds.unwrap_or(0.0) / 1e9
}

fn main() {
    let seconds = std::env::args().nth(1).and_then(|s| s.parse().ok());
    let seconds = seconds.unwrap_or(60.0);
    let by_cpu_time = std::env::var_os("STRATA_TARGET_CLOCK").is_some();
    let start = Instant::now();
    let used = || if by_cpu_time { cpu_seconds() } else { start.elapsed().as_secs_f64() };
    let work = Work {
        burners: [
            Box::new(Leaf::<Fifty>(Default::default())),
            Box::new(Leaf::<Thirty>(Default::default())),
            Box::new(Leaf::<Twenty>(Default::default())),
        ],
        turn: Cell::new(0),
        random: Cell::new(42),
        sink: Cell::new(0),
    };
    while used() < seconds {
        let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| work.descend(7)));
        std::hint::black_box(caught.is_ok());
    }
    println!(
        "cpu name=shares_rust pid={} seconds={:.6}",
        std::process::id(),
        cpu_seconds()
    );
}
