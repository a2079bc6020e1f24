//! An actor whose messages are not listed.

use odeon::{Actor, Context, Failure, System};

struct Counter;

impl Actor for Counter {
    const NAME: &'static str = "test.Counter";
    type Args = ();

    async fn start((): (), _: &mut Context<Self>) -> Result<Self, Failure> {
        Ok(Self)
    }
}

fn spawn(system: System) {
    let _spawn = system.spawn::<Counter>(());
}

fn main() {}
