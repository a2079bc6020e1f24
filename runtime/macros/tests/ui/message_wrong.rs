//! Items that cannot be messages or have no shape on the wire.

#[derive(odeon::serde::Serialize, odeon::serde::Deserialize)]
#[serde(crate = "odeon::serde")]
struct Point {
    x: f32,
}

#[odeon::message]
struct Move {
    to: Point,
}

#[odeon::message]
struct Borrow<'a> {
    text: &'a str,
}

#[odeon::message(answer = u64)]
struct Typo;

#[odeon::message]
fn not_a_type() {}

#[derive(odeon::Shape)]
union Bits {
    int: u32,
    float: f32,
}

fn main() {}
