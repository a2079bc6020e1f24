//! A message without a type.

struct Greeter {
    name: String,
}

#[odeon::actor(name = "test.Greeter")]
impl Greeter {
    fn start(name: String) -> Self {
        Self { name }
    }

    #[handler]
    fn rename(&mut self, name: impl Into<String>) {
        self.name = name.into();
    }
}

async fn rename(greeter: odeon::Ref<Greeter>) {
    greeter.ask(Rename { name: "you" }).await.unwrap();
}

fn main() {}
