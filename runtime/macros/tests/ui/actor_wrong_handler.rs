//! Methods that cannot be handlers.

#![allow(unused_variables)]

use odeon::{Context, Failure};

struct Counter;

#[odeon::actor(name = "test.Counter")]
impl Counter {
    async fn start(_: u64) -> Result<Self, Failure> {
        Ok(Self)
    }

    #[handler]
    fn without_self(n: u64) -> u64 {
        n
    }

    #[handler]
    fn by_value(self) {}

    #[handler]
    fn generic<T: Default>(&mut self, value: T) {}

    #[handler]
    fn pattern(&mut self, (a, b): (u64, u64)) {}

    #[handler]
    fn unnamed(&mut self, _: u64) {}

    #[handler]
    fn borrows(&mut self, text: &str) {}

    #[handler]
    fn opaque(&mut self, text: impl Into<String>) {}

    #[handler]
    fn lends(&mut self) -> &u64 {
        &0
    }

    #[handler]
    fn two_contexts(&mut self, one: &mut Context<Self>, two: &mut Context<Self>) {}

    #[handler(message = u64)]
    fn no_message(&mut self) {}

    #[handler(message = u64)]
    fn two_messages(&mut self, one: u64, two: u64) {}

    #[handler(message = u64, name = "test.both")]
    fn named_twice(&mut self, one: u64) {}

    #[handler(reply = u64)]
    fn unknown_option(&mut self) {}

    #[handler]
    #[cfg(test)]
    fn conditional(&mut self) {}
}

fn main() {}
