//! A message with a type of another crate that does not travel.

use std::time::*;

struct Log(Vec<Instant>);

#[odeon::actor(name = "test.Log")]
impl Log {
    fn start() -> Self {
        Self(vec![])
    }

    #[handler]
    fn add(&mut self, times: Vec<Instant>) {
        self.0.extend(times);
    }
}

async fn add(log: odeon::Ref<Log>) {
    log.ask(Add { times: vec![Instant::now()] }).await.unwrap();
}

fn main() {}
