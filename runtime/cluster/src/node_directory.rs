//! Names of a daemon's actors, and how another node comes to them. When a node starts again, the
//! others may not know yet that its last life is over, and tell it that its names are taken.

use std::time::Duration;

use odeon::{AskError, Clock, NameError, Ref, Registered, System};
use thiserror::Error;

/// The longest time that the names of the last life may stay: longer than its links do.
const PATIENCE: Duration = Duration::from_secs(25);
/// The pause between two tries.
const PAUSE: Duration = Duration::from_millis(20);

/// Why a node did not do what another has asked it for, in words for people.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum Unreached {
    /// It is down, or the network to it is.
    #[error("node `{node}` cannot be reached")]
    Away {
        /// Which.
        node: String,
    },
    /// It is slow, or on its way out. It may have done it.
    #[error("node `{node}` has not answered within {} s", .waited.as_secs())]
    Silent {
        /// Which.
        node: String,
        /// The time that it had.
        waited: Duration,
    },
    /// It cannot do that.
    #[error("node `{node}`: {why}")]
    Unable {
        /// Which.
        node: String,
        /// Why.
        why: String,
    },
}

impl Unreached {
    /// The reason why an ask of the node failed.
    #[must_use]
    pub fn asked(node: &str, error: &AskError) -> Self {
        let node = node.to_owned();
        match error {
            AskError::Dead(_)
            | AskError::Died(_)
            | AskError::Unreachable(_)
            | AskError::LinkLost { .. } => Self::Away { node },
            AskError::Timeout { waited, .. } | AskError::Full { waited, .. } => {
                let waited = *waited;
                Self::Silent { node, waited }
            }
            error => {
                let why = error.to_string();
                Self::Unable { node, why }
            }
        }
    }
}

/// Finds the actor of a node that has this name there.
///
/// # Errors
/// The node is away.
pub async fn reach<A: Registered>(
    system: &System,
    node: &str,
    name: &str,
) -> Result<Ref<A>, Unreached> {
    let found = system.lookup::<A>(name).await;
    found.map_err(|error| {
        let node = node.to_owned();
        match error {
            NameError::WrongType { .. } => Unreached::Unable {
                node,
                why: error.to_string(),
            },
            // Nobody has the name while the node is gone, or on its way up or down.
            _ => Unreached::Away { node },
        }
    })
}

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_people_read_names_the_node() {
        let waited = Duration::from_secs(4);
        let node = || "b".to_owned();
        for (why, expect) in [
            (
                Unreached::Away { node: node() },
                "node `b` cannot be reached",
            ),
            (
                Unreached::Silent {
                    node: node(),
                    waited,
                },
                "node `b` has not answered within 4 s",
            ),
        ] {
            assert_eq!(why.to_string(), expect);
        }
    }
}
