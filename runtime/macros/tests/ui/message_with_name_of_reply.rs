//! A reply that is written as the name of a type in quotes.

#[odeon::message(reply = "u64")]
pub struct Get;

fn main() {}
