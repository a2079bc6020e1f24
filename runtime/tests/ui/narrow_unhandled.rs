//! A reference narrowed to a message that the actor does not handle.

use odeon::{Recipient, Ref};

struct Counter;

#[odeon::actor(name = "test.Counter")]
impl Counter {
    fn start() -> Self {
        Self
    }

    #[handler]
    fn add(&mut self, n: u64) -> u64 {
        n
    }

    #[handler]
    fn get(&self) -> u64 {
        0
    }
}

#[odeon::message]
struct Reset;

fn narrow(counter: Ref<Counter>) -> Recipient<Reset> {
    counter.narrow()
}

fn main() {}
