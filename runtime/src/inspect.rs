//! Read-only views. Looking never enters a mailbox and disturbs nobody.

use serde::{Deserialize, Serialize};

use crate::cell::Phase;
use crate::engine::Engine;
use crate::id::{ActorId, Incarnation, ProcessId};

/// One hosted actor, as counters show it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ActorView {
    /// Who.
    pub id: ActorId,
    /// Its supervisor.
    pub parent: ActorId,
    /// Its type's stable name.
    pub actor: String,
    /// Which process hosts it.
    pub process: ProcessId,
    /// Which life it is in.
    pub incarnation: Incarnation,
    /// What it does at the moment.
    pub phase: Phase,
    /// Messages in its mailbox.
    pub queued: u32,
    /// Messages it has taken out of its mailbox so far.
    pub handled: u64,
}

/// The actors that an engine hosts, by id.
pub(crate) fn actors(engine: &Engine) -> Vec<ActorView> {
    let mut views: Vec<_> = engine
        .cells
        .iter()
        .map(|cell| ActorView {
            id: cell.id,
            parent: cell.parent,
            actor: cell.actor.name.to_owned(),
            process: engine.process,
            incarnation: cell.incarnation(),
            phase: cell.phase(),
            queued: cell.queued(),
            handled: cell.handled(),
        })
        .collect();
    views.sort_unstable_by_key(|view| view.id);
    views
}
