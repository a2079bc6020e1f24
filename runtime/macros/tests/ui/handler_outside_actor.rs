//! A handler in a block that is no actor's.

use odeon::prelude::*;

struct Counter(u64);

impl Counter {
    #[handler]
    fn add(&mut self, n: u64) -> u64 {
        self.0 += n;
        self.0
    }
}

fn main() {}
