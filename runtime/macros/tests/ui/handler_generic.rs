//! A message of any type.

struct Printer;

#[odeon::actor(name = "test.Printer")]
impl Printer {
    fn start() -> Self {
        Self
    }

    #[handler]
    fn print<T: ToString>(&mut self, value: T) -> String {
        value.to_string()
    }
}

async fn print(printer: odeon::Ref<Printer>) -> String {
    printer.ask(Print { value: 1u32 }).await.unwrap()
}

fn main() {}
