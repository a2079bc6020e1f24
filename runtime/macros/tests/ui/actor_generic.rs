//! An actor with a type parameter.

struct Store<T> {
    last: Option<T>,
}

#[odeon::actor(name = "test.Store")]
impl<T: Clone> Store<T> {
    fn start(first: Option<T>) -> Self {
        Self { last: first }
    }

    #[handler]
    fn put(&mut self, value: T) {
        self.last = Some(value);
    }

    #[handler]
    fn is_empty(&self) -> bool {
        self.last.is_none()
    }
}

fn main() -> odeon::Result<()> {
    odeon::job![Store<u32>].run(async |system: odeon::System| {
        let store = system.spawn::<Store<u32>>(None).await?;
        store.ask(Put { value: 1 }).await?;
        assert!(!store.ask(IsEmpty).await?);
        Ok(())
    })
}
