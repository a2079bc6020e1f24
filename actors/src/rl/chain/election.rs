//! Election of a master when there is none.

use std::cmp::Reverse;

use odeon::serde::{Deserialize, Serialize};

use super::RelayId;
use crate::trajectory::Version;

/// Versions that a relay says it has, for an election.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, odeon::Shape)]
#[serde(crate = "odeon::serde")]
pub struct Holding {
    /// The relay.
    pub relay: RelayId,
    /// Its newest complete version.
    pub complete: Option<Version>,
    /// The version that it receives, and how many chunks of it are in.
    pub incoming: Option<(Version, u32)>,
}

/// Why nobody was elected. The chain is as it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ElectionError {
    /// There is a master. Splice it out first when it is lost.
    #[error("relay {0} is the master")]
    HasMaster(RelayId),
    /// Of the chain's relays none has answered. Ask again.
    #[error("no relay of the chain has said what it has")]
    NobodyAnswered,
}

/// The rule is in [`super::Chain::elect`].
pub(super) fn best(holdings: &[Holding], is_member: impl Fn(RelayId) -> bool) -> Option<RelayId> {
    let members = || holdings.iter().filter(|held| is_member(held.relay));
    let complete = members().map(|held| held.complete).max()?;
    let tied = || members().filter(|held| held.complete == complete);
    let newest = tied()
        .filter_map(|held| held.incoming)
        .map(|(version, _)| version)
        .max();
    let chunks = |held: &Holding| match held.incoming {
        Some((version, chunks)) if Some(version) == newest => chunks,
        _ => 0,
    };
    tied()
        .max_by_key(|held| (chunks(held), Reverse(held.relay)))
        .map(|held| held.relay)
}
