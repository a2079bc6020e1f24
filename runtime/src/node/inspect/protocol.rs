//! The question about an actor's methods.

use crate::actor::stats::MethodView;
use crate::base::id::ActorId;
use crate::net::service::Service;
use crate::net::wire::ServiceId;

/// The work of an actor by kind of message; nothing where it is not.
pub(crate) struct MethodCounts;

impl Service for MethodCounts {
    const ID: ServiceId = ServiceId(20);
    const NAME: &'static str = "a look at an actor";
    type Request = ActorId;
    type Answer = Option<Vec<MethodView>>;
}
