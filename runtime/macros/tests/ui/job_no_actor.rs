//! A job that lists a type which is no actor.

struct Counter;

fn main() -> odeon::Result<()> {
    odeon::job![Counter].run(async |_: odeon::System| Ok(()))
}
