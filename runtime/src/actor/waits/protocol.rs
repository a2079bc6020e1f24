//! The question of a process whose ask is late: for whom does the one that it asked wait?

use serde::{Deserialize, Serialize};

use super::Waits;
use crate::base::id::ActorId;
use crate::net::service::Service;
use crate::net::wire::ServiceId;

/// The part of the process that hosts an actor, and of those that know where it is.
pub(crate) struct TellingWaits;

/// A question for the waits that an actor's lead to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct WaitsQuestion {
    pub(crate) actor: ActorId,
    /// How often it may be passed on to where the actor is.
    pub(crate) hops: u8,
}

impl Service for TellingWaits {
    const ID: ServiceId = ServiceId(23);
    const NAME: &'static str = "waits of actors";
    type Request = WaitsQuestion;
    type Answer = Waits;
}
