//! Asks whose time is over. The circles of actors that wait for each other are named to them, also those
//! that lead through other processes, which are asked for their part.

use std::collections::BTreeSet;
use std::time::Duration;

use super::Engine;
use super::members::PlaceOf;
use crate::actor::pending::{Caller, InCrowd, WaitFor, Waiting};
use crate::actor::waits::protocol::{TellingWaits, WaitsQuestion};
use crate::actor::waits::{Wait, Waits};
use crate::base::clock::Clock;
use crate::base::id::{ActorId, ProcessId};

/// The longest time by which a late ask ends later, since other processes are asked for their waits.
const LOOK: Duration = Duration::from_millis(100);
/// Late asks of one sweep for which others are asked.
const LOOKS_MAX: usize = 16;
/// Actors of other processes that are asked about for one late ask.
const ASKED_MAX: usize = 16;
/// Actors of which a process tells.
const TOLD_MAX: usize = 64;
/// From a home that has moved its actor to another process, and from there.
const HOPS: u8 = 3;

impl Engine {
    /// Ends the asks whose time is over.
    pub(super) fn expire(&self) {
        let due = self.pending.sweep(Clock::now());
        if due.is_empty() {
            return;
        }
        let waits = self.waits(&due);
        let mut looks = LOOKS_MAX;
        for (key, waiting) in due {
            self.withdraw(key, &waiting);
            let circle = waits.circle(waiting.actor);
            if looks == 0 || !circle.is_empty() || !self.leads_out(&waits, &waiting) {
                waiting.expire(circle);
                continue;
            }
            looks -= 1;
            let (engine, mut waits) = (self.this(), waits.clone());
            // Others may look at the same time for the same circle: this ask is a part of it until it ends.
            let seen = self.crowd.enter(InCrowd {
                caller: waiting.caller,
                actor: waiting.actor,
                message: waiting.message,
                since: waiting.since,
                wait: WaitFor::Answer,
            });
            self.begin_task(async move {
                let _seen = seen;
                engine.learn_waits(&mut waits, waiting.actor).await;
                waiting.expire(waits.circle(waiting.actor));
            });
        }
    }

    /// The waits of handlers here that have not ended, those of asks that are due among them.
    fn waits(&self, due: &[(u64, Waiting)]) -> Waits {
        let mut waits = Waits::default();
        let mut see = |caller: &Caller, on, message: &'static str| {
            let Some(who) = caller.inside() else { return };
            let Some(cell) = self.cells.get(&who) else {
                return;
            };
            let asked_by = caller.span.span_id;
            let running = cell.stats.running();
            if running.is_some_and(|it| it.span == asked_by && asked_by != 0) {
                let message = message.into();
                waits.add(who, cell.actor.name, Wait { on, message });
            }
        };
        for (_, it) in due {
            see(&it.caller, it.actor, it.message);
        }
        self.pending
            .each(|it| see(&it.caller, it.actor, it.message));
        self.crowd.each(|it| see(&it.caller, it.actor, it.message));
        waits
    }

    /// Returns true if a handler waits, and for somebody whose waits another process knows.
    fn leads_out(&self, waits: &Waits, waiting: &Waiting) -> bool {
        let inside = waiting.caller.inside();
        let waits_for = |who| waits.has(who, waiting.actor);
        inside.is_some_and(waits_for)
            && waits
                .ends(waiting.actor)
                .iter()
                .any(|end| self.is_away(*end))
    }

    fn is_away(&self, actor: ActorId) -> bool {
        !self.cells.contains_key(&actor)
    }

    /// Asks other processes for the waits that one for an actor leads to, until a circle is known or all
    /// have told theirs.
    async fn learn_waits(&self, waits: &mut Waits, on: ActorId) {
        let (begun, mut asked) = (Clock::now(), BTreeSet::new());
        while waits.circle(on).is_empty() && asked.len() < ASKED_MAX {
            let mut ends = waits.ends(on).into_iter();
            let Some(actor) = ends.find(|end| self.is_away(*end) && asked.insert(*end)) else {
                return;
            };
            let question = WaitsQuestion { actor, hops: HOPS };
            let left = LOOK.saturating_sub(Clock::now().since(begun));
            waits.learn(self.ask_waits(question, left).await);
        }
    }

    /// The waits that an actor's lead to, as far as its process knows them.
    pub(crate) async fn waits_from(&self, question: WaitsQuestion) -> Waits {
        let WaitsQuestion { actor, hops } = question;
        if !self.is_away(actor) {
            return self.waits(&[]).from(actor, TOLD_MAX);
        }
        match hops.checked_sub(1) {
            Some(hops) => self.ask_waits(WaitsQuestion { actor, hops }, LOOK).await,
            None => Waits::default(),
        }
    }

    /// Asks the process that hosts an actor, or knows where it is. One that does not answer knows none.
    async fn ask_waits(&self, question: WaitsQuestion, patience: Duration) -> Waits {
        let Some(process) = self.towards(question.actor) else {
            return Waits::default();
        };
        let asking = self.request::<TellingWaits>(process, &question, Some(patience));
        asking.await.unwrap_or_default()
    }

    /// The process of an actor's life where this is its home, else its home.
    fn towards(&self, actor: ActorId) -> Option<ProcessId> {
        let process = match self.members.place_of(actor, self.process) {
            PlaceOf::At(process) => process,
            PlaceOf::Elsewhere => actor.home,
            PlaceOf::Gone | PlaceOf::Nowhere => return None,
        };
        (process != self.process).then_some(process)
    }
}
