//! A handler that forgot its actor.

struct Counter;

#[odeon::actor(name = "test.Counter")]
impl Counter {
    fn start() -> Self {
        Self
    }

    #[handler]
    fn double(n: u64) -> u64 {
        2 * n
    }
}

async fn double(counter: odeon::Ref<Counter>) -> u64 {
    counter.ask(Double { n: 21 }).await.unwrap()
}

fn main() {}
