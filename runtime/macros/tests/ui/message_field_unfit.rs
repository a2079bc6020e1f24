//! A message with a field that does not travel, and one with such a reply.

pub struct Point {
    x: f32,
}

#[odeon::message]
pub struct Move {
    to: Point,
}

pub struct Place {
    name: String,
}

#[odeon::message(reply = Option<Place>)]
pub struct Find {
    name: String,
}

#[odeon::wire]
pub enum Shape {
    Circle(Point, f32),
    Empty,
}

fn main() {}
