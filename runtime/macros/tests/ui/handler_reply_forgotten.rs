//! A handler that returns nothing, though its message is answered.

#[odeon::message(reply = u64)]
pub struct Put {
    x: u64,
}

struct Plot;

#[odeon::actor(name = "test.Plot")]
impl Plot {
    fn start() -> Self {
        Self
    }

    #[handler(message = Put)]
    async fn put(&mut self, put: Put) {}
}

fn main() {}
