//! A handler that returns something else than its message is answered with.

#[odeon::message(reply = u64)]
pub struct Put {
    x: u32,
}

struct Plot;

#[odeon::actor(name = "test.Plot")]
impl Plot {
    fn start() -> Self {
        Self
    }

    #[handler(message = Put)]
    fn put(&mut self, put: Put) -> u32 {
        put.x
    }
}

async fn put(plot: odeon::Ref<Plot>) -> u64 {
    plot.ask(Put { x: 1 }).await.unwrap()
}

fn main() {}
