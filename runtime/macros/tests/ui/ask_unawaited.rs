//! An ask that nobody waits for.

#![deny(unused_must_use)]

struct Counter(u64);

#[odeon::actor(name = "test.Counter")]
impl Counter {
    fn start(first: u64) -> Self {
        Self(first)
    }

    #[handler]
    fn get(&self) -> u64 {
        self.0
    }
}

async fn get(counter: odeon::Ref<Counter>) {
    counter.ask(Get);
}

fn main() {}
