//! A handler that keeps something of its thread across an await.

use std::rc::Rc;

use odeon::*;

struct Counter;

#[odeon::actor(name = "test.Counter")]
impl Counter {
    fn start() -> Self {
        Self
    }

    #[handler]
    async fn add(&mut self, n: u64) -> u64 {
        let n = Rc::new(n);
        std::future::ready(()).await;
        *n
    }
}

impl Handler<Down> for Counter {
    async fn handle(&mut self, _: Down, _: &mut Context<Self>) {}
}

fn main() {}
