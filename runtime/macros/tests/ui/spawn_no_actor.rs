//! A type that is no actor.

use odeon::System;

struct Counter;

impl Counter {
    fn start() -> Self {
        Self
    }
}

async fn run(system: System) {
    let _counter = system.spawn::<Counter>(()).await;
}

fn main() {}
