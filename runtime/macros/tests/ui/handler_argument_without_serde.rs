//! A message with a type that has a shape, and is not encoded.

#[derive(odeon::Shape)]
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

async fn put(plot: odeon::Ref<Plot>) -> u32 {
    plot.ask(Put { point: Point { x: 1 } }).await.unwrap()
}

fn main() {}
