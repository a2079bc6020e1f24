//! A message that borrows.

struct Greeter {
    name: String,
}

#[odeon::actor(name = "test.Greeter")]
impl Greeter {
    fn start(name: String) -> Self {
        Self { name }
    }

    #[handler]
    fn rename(&mut self, name: &str) {
        self.name = name.to_owned();
    }
}

async fn rename(greeter: odeon::Ref<Greeter>) {
    greeter.ask(Rename { name: "you" }).await.unwrap();
}

fn main() {}
