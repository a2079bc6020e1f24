//! A handler with two contexts.

use odeon::{Context, Ref};

struct Counter;

#[odeon::actor(name = "test.Counter")]
impl Counter {
    fn start() -> Self {
        Self
    }

    #[handler]
    fn me(&self, cx: &mut Context<Self>, other: &mut Context<Self>) -> Ref<Self> {
        cx.me()
    }
}

async fn me(counter: Ref<Counter>) -> Ref<Counter> {
    counter.ask(Me).await.unwrap()
}

fn main() {}
