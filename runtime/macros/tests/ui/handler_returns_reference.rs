//! A reply that borrows.

struct Greeter {
    name: String,
}

#[odeon::actor(name = "test.Greeter")]
impl Greeter {
    fn start(name: String) -> Self {
        Self { name }
    }

    #[handler]
    fn name(&self) -> &str {
        &self.name
    }
}

async fn name(greeter: odeon::Ref<Greeter>) -> String {
    greeter.ask(Name).await.unwrap().to_owned()
}

fn main() {}
