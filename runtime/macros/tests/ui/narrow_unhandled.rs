//! A reference narrowed to a message that the actor does not handle.

use odeon::*;

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

impl Handler<Down> for Counter {
    async fn handle(&mut self, _: Down, _: &mut Context<Self>) {}
}

#[odeon::message]
struct Reset;

fn narrow(counter: Ref<Counter>) -> Recipient<Reset> {
    counter.narrow()
}

fn main() {}
