// Generics, closures and inlined calls across crates.
mod shop {
    pub struct Order<T>(pub Vec<T>);
    impl<T: Copy + Into<u64>> Order<T> {
        #[inline(never)]
        pub fn total(&self) -> u64 {
            self.0.iter().map(|line| price((*line).into())).sum()
        }
    }
    #[inline(always)]
    fn price(line: u64) -> u64 {
        (0..line).fold(7, |sum, step| sum ^ (sum << 3).wrapping_add(step))
    }
}

fn main() {
    let order = shop::Order((0..std::env::args().count() as u32 * 50).collect());
    println!("{}", order.total());
}
