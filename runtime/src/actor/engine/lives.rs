//! The questions about lives of actors, which begin, end and are watched in one process at the word of
//! another.

mod service;

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::actor::placing::GrantedDevice;
use crate::base::failure::{Down, Failure, Reason};
use crate::base::id::{ActorId, Incarnation};
use crate::base::supervise::Orphans;
use crate::net::service::Service;
use crate::net::wire::ServiceId;

/// The beginning and the end of lives.
pub(crate) struct Lives;

/// A question to [`Lives`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) enum LifeRequest {
    /// Host this actor.
    Host(HostOrder),
    /// End the present life of an actor; with `keep_mail` another will follow.
    Halt {
        id: ActorId,
        reason: Reason,
        keep_mail: bool,
    },
    /// Begin the next life of an actor that waits in place.
    Start {
        id: ActorId,
        incarnation: Incarnation,
    },
    /// An actor that you keep the row of has ended a life. Not answered.
    Ended {
        id: ActorId,
        incarnation: Incarnation,
        reason: Reason,
    },
    /// Stop an actor that you keep the row of.
    Stop(ActorId),
    /// End the present life of an actor that you keep the row of, as this failure would.
    Fail { id: ActorId, failure: Failure },
}

/// The order to host an actor, with all that a process needs for it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct HostOrder {
    pub(crate) id: ActorId,
    pub(crate) parent: ActorId,
    pub(crate) incarnation: Incarnation,
    pub(crate) actor: String,
    #[serde(with = "serde_bytes")]
    pub(crate) args: Vec<u8>,
    pub(crate) orphans: Orphans,
    pub(crate) on: HostName,
    /// The devices that it was granted.
    pub(crate) devices: Vec<GrantedDevice>,
    /// The longest time that a handler may run.
    pub(crate) hang_after: Option<Duration>,
}

/// A [`Host`](crate::Host) in orders that travel. Processes pass them on that are built without it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum HostName {
    Kameo,
    Actix,
}

impl Service for Lives {
    const ID: ServiceId = ServiceId(0);
    const NAME: &'static str = "an actor that begins or ends a life";
    type Request = LifeRequest;
    type Answer = Result<(), Failure>;

    fn failed(failure: Failure) -> Option<Self::Answer> {
        Some(Err(failure))
    }
}

/// The end of an actor's present life, told when it comes.
pub(crate) struct Watching;

impl Service for Watching {
    const ID: ServiceId = ServiceId(1);
    const NAME: &'static str = "an actor that is watched";
    type Request = ActorId;
    type Answer = Down;
}

/// To whoever waits for the start of a life that is ended before.
pub(super) fn halted() -> Failure {
    Failure::error(Reason::Sibling)
}
