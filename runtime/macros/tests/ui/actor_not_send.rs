//! An actor that cannot move between threads.

use std::rc::Rc;

struct Counter {
    n: Rc<u64>,
}

#[odeon::actor(name = "test.Counter")]
impl Counter {
    fn start(n: u64) -> Self {
        Self { n: Rc::new(n) }
    }

    #[handler]
    fn get(&self) -> u64 {
        *self.n
    }

    #[handler]
    async fn get_later(&mut self) -> u64 {
        std::future::ready(()).await;
        *self.n
    }
}

fn main() -> odeon::Result<()> {
    odeon::job![Counter].run(async |system: odeon::System| {
        let counter = system.spawn::<Counter>(1).await?;
        counter.ask(Get).await?;
        Ok(())
    })
}
