//! Blocks that cannot be actors.

use odeon::{Failure, Reason, Supervision};

struct Nameless;

#[odeon::actor]
impl Nameless {
    fn start() -> Self {
        Self
    }
}

struct EmptyName;

#[odeon::actor(name = "")]
impl EmptyName {
    fn start() -> Self {
        Self
    }
}

#[odeon::actor(name = "test.OnAStruct")]
struct OnAStruct;

struct NoStart;

#[odeon::actor(name = "test.NoStart")]
impl NoStart {}

struct Generic<T>(T);

#[odeon::actor(name = "test.Generic")]
impl<T> Generic<T> {
    fn start() -> Self {
        unreachable!()
    }
}

struct StartOfSelf;

#[odeon::actor(name = "test.StartOfSelf")]
impl StartOfSelf {
    fn start(self) -> Self {
        self
    }
}

struct ManyArgs;

#[odeon::actor(name = "test.ManyArgs")]
impl ManyArgs {
    fn start(_: u64, _: u64) -> Self {
        Self
    }
}

struct BorrowedArgs;

#[odeon::actor(name = "test.BorrowedArgs")]
impl BorrowedArgs {
    fn start(_: &str) -> Self {
        Self
    }
}

struct NoResult;

#[odeon::actor(name = "test.NoResult")]
impl NoResult {
    fn start() -> Option<Self> {
        None
    }
}

struct WrongStop;

#[odeon::actor(name = "test.WrongStop")]
impl WrongStop {
    async fn start() -> Result<Self, Failure> {
        Ok(Self)
    }

    async fn stop(&mut self, _: &Reason) {}
}

struct WrongSupervision;

#[odeon::actor(name = "test.WrongSupervision")]
impl WrongSupervision {
    fn start() -> Self {
        Self
    }

    fn supervision(&self) -> Supervision {
        Supervision::default()
    }
}

fn main() {}
