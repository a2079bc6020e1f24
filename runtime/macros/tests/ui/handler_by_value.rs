//! A handler that takes its actor away.

struct Counter(u64);

#[odeon::actor(name = "test.Counter")]
impl Counter {
    fn start(first: u64) -> Self {
        Self(first)
    }

    #[handler]
    fn get(self) -> u64 {
        self.0
    }
}

async fn get(counter: odeon::Ref<Counter>) -> u64 {
    counter.ask(Get).await.unwrap()
}

fn main() {}
