//! `#[actor]` on the type in place of its methods.

use odeon::prelude::*;

#[odeon::actor(name = "test.Counter")]
struct Counter(u64);

impl Counter {
    fn start(first: u64) -> Self {
        Self(first)
    }
}

fn main() {}
