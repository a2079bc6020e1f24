//! A handler of a struct that is no message.

pub struct Put {
    x: u32,
}

struct Plot;

#[odeon::actor(name = "test.Plot")]
impl Plot {
    fn start() -> Self {
        Self
    }

    #[handler(message = Put)]
    fn put(&mut self, put: Put) -> u32 {
        put.x
    }
}

fn main() -> odeon::Result<()> {
    odeon::job![Plot].run(async |system: odeon::System| {
        system.spawn::<Plot>(()).await?;
        Ok(())
    })
}
