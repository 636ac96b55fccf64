// Rust, release build: closures, trait objects, collections, a caught panic, a thread.
use std::collections::BTreeMap;

trait Shape {
    fn area(&self) -> u64;
}

struct Square(u64);

impl Shape for Square {
    #[inline(never)]
    fn area(&self) -> u64 {
        std::hint::black_box(self.0 * self.0)
    }
}

#[inline(never)]
fn recurse(depth: u64) -> u64 {
    let memory = std::hint::black_box([depth; 40]);
    if depth == 0 { memory[3] } else { recurse(depth - 1) + memory[5] }
}

fn main() {
    let shapes: Vec<Box<dyn Shape>> = (0..5).map(|n| Box::new(Square(n)) as Box<_>).collect();
    let mut names = BTreeMap::new();
    for shape in &shapes {
        *names.entry(format!("{}", shape.area())).or_insert(0) += shape.area();
    }
    std::hint::black_box(recurse(10));
    std::panic::set_hook(Box::new(|_| {}));
    let caught = std::panic::catch_unwind(|| {
        if recurse(2) > 0 {
            panic!("caught");
        }
    });
    std::hint::black_box(caught.is_err());
    std::thread::spawn(|| recurse(3)).join().ok();
}
