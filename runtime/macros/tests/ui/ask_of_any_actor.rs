//! A function for actors of any type, which says nothing of the message.

use odeon::*;

struct Counter;

#[odeon::actor(name = "test.Counter")]
impl Counter {
    fn start() -> Self {
        Self
    }

    #[handler]
    fn get(&self) -> u32 {
        1
    }
}

async fn get<A: Actor>(actor: Ref<A>) -> u32 {
    actor.ask(Get).await.unwrap()
}

async fn get_of<A: Handler<Get>>(actor: Ref<A>) -> u32 {
    actor.ask(Get).await.unwrap()
}

fn main() {}
