//! An `impl Handler` for a struct that is no message.

use odeon::*;

pub struct Put {
    x: u32,
}

struct Plot;

#[odeon::actor(name = "test.Plot")]
impl Plot {
    fn start() -> Self {
        Self
    }
}

impl Handler<Put> for Plot {
    async fn handle(&mut self, put: Put, _: &mut Context<Self>) -> u32 {
        put.x
    }
}

fn main() {}
