//! Names of a daemon's actors. When a node starts again, the others may not know yet that its last
//! life is over, and tell it that its names are taken.

use std::time::Duration;

use odeon::{Clock, NameError, Ref, Registered, System};

/// How long the names of the last life may stay: longer than its links do.
const PATIENCE: Duration = Duration::from_secs(15);
/// How often they are tried.
const PAUSE: Duration = Duration::from_millis(20);

/// Gives an actor of this node its name.
///
/// # Errors
/// Another actor has it, or the node leaves.
pub async fn register<A: Registered>(
    system: &System,
    name: &str,
    actor: Ref<A>,
) -> Result<(), NameError> {
    let deadline = Clock::now().after(PATIENCE);
    loop {
        match system.register(name, actor).await {
            Err(NameError::Taken { .. }) if !deadline.left(Clock::now()).is_zero() => {
                Clock::sleep(PAUSE).await;
            }
            registered => return registered,
        }
    }
}
