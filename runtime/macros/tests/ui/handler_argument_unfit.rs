//! A message with a type of the program's own.

use odeon::System;

pub struct Point {
    x: u32,
}

struct Plot;

#[odeon::actor(name = "test.Plot")]
impl Plot {
    fn start() -> Self {
        Self
    }

    #[handler]
    fn put(&mut self, point: Point) -> u32 {
        point.x
    }
}

fn main() -> odeon::Result<()> {
    odeon::job![Plot].run(async |system: System| {
        let plot = system.spawn::<Plot>(()).await?;
        plot.ask(Put { point: Point { x: 1 } }).await?;
        Ok(())
    })
}
