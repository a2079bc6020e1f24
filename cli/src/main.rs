//! The odeon command.
fn main() {}
