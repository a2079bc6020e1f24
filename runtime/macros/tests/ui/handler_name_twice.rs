//! Two actors of one module with a handler of the same name.

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

struct Store;

#[odeon::actor(name = "test.Store")]
impl Store {
    fn start() -> Self {
        Self
    }

    #[handler]
    fn get(&self) -> String {
        String::new()
    }
}

fn main() {}
