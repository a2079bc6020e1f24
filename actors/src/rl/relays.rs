//! The actor that watches over the relays: it keeps the book of their [`Chain`] and tells each
//! where it stands.
//!
//! It knows nothing that its members do not tell it: each says now and then that it is there, in
//! which life, and which order it has heard of last. So a new life of it has the book again after
//! one such round, and meanwhile the relays go on as they stand. Its terms begin above all of the
//! life before.
//!
//! A relay that is lost is spliced out at once, and its rollouts are shown to another until it is
//! back. When it was the master, those that are left say what they have, and the one with the most
//! is the next.

use std::collections::BTreeMap;
use std::time::Duration;

use futures::future::join_all;
use odeon::{Context, Down, Failure, Incarnation, Reason, Recipient, Ref, actor, message};

use super::chain::{Chain, ChainError, Edge, Peer, Place, RelayId, Rewiring, Term};
use super::handing::{Asked, Sent, Stand};
use super::relay::{Hold, Relay};
use super::source::Source;

/// A rollout, as relays know it.
pub type Seat = Recipient<Draw>;

/// A relay is there. It says so again and again.
#[message(name = "relays.Enter")]
#[derive(Clone, Debug)]
pub struct Enter {
    /// It.
    pub relay: Ref<Relay>,
    /// Which one it is.
    pub id: RelayId,
    /// In which life.
    pub incarnation: Incarnation,
    /// The last order that it has heard of.
    pub term: Term,
    /// The rollouts that draw from it.
    pub seats: Vec<Seat>,
}

/// The trainer's end of the chain is there. It says so again and again.
#[message(name = "relays.EnterSource")]
#[derive(Clone, Debug)]
pub struct EnterSource {
    /// It. Each life of the trainer has another one.
    pub source: Ref<Source>,
}

/// Which relay do I draw from? Answered by [`Draw`], as soon as there is one.
#[message(name = "relays.Seek")]
#[derive(Clone, Debug)]
pub struct Seek(pub Seat);

/// Draw from this relay.
#[message(name = "rollout.Draw")]
#[derive(Clone, Debug)]
pub struct Draw(pub Ref<Relay>);

/// The relays that are in the chain now, the master first.
#[message(reply = Vec<RelayId>, name = "relays.Order")]
#[derive(Debug)]
pub struct Order;

/// The longest time that relays may take to say which versions they have, before the others elect.
const PATIENCE: Duration = Duration::from_secs(1);

/// Number of terms that a life has: a change each millisecond for a month.
const TERMS_OF_A_LIFE: u64 = 1 << 32;

/// The actor that knows which relays live, and in what order they stand.
#[derive(Debug)]
pub struct Relays {
    chain: Chain,
    /// Those of the chain, and those that are away.
    members: BTreeMap<RelayId, Enter>,
    source: Option<Ref<Source>>,
}

#[actor(name = "rl.Relays")]
impl Relays {
    async fn start(_args: (), cx: &mut Context<Self>) -> Result<Self, Failure> {
        Ok(Self {
            chain: Chain::new(u64::from(cx.incarnation()) * TERMS_OF_A_LIFE),
            members: BTreeMap::new(),
            source: None,
        })
    }

    #[handler(message = Enter)]
    async fn enter(&mut self, enter: Enter, cx: &mut Context<Self>) {
        let (id, relay, term) = (enter.id, enter.relay, enter.term);
        let known = self.members.get(&id).map(|known| known.incarnation);
        if known.is_some_and(|known| known > enter.incarnation) {
            return;
        }
        let place = self.chain.place(Peer::Relay(id));
        match place {
            // Said of before: an order may have been lost.
            Some(place) if known == Some(enter.incarnation) => {
                if term < place.term {
                    self.tell_one(Peer::Relay(id), place).await;
                }
            }
            _ => {
                if place.is_some() {
                    self.lose(id).await;
                }
                cx.watch(relay);
                self.members.insert(id, enter);
                let joined = self.chain.join(id);
                self.changed(joined).await;
                self.show_seats(id, relay).await;
            }
        }
        self.elect_if_needed().await;
    }

    #[handler(message = EnterSource)]
    async fn enter_source(&mut self, enter: EnterSource) {
        if self.source != Some(enter.source) {
            self.source = Some(enter.source);
            let renewed = self.chain.renew_trainer();
            self.tell(renewed).await;
        } else if let Some(place) = self.chain.place(Peer::Trainer) {
            // It may have missed an order, and does not hear of those behind the master.
            self.tell_one(Peer::Trainer, place).await;
        }
    }

    #[handler(message = Seek)]
    async fn seek(&mut self, seek: Seek) {
        // One whose relay is not there yet is shown it when it comes.
        if let Some(relay) = self.relay_of(&seek.0) {
            show(&seek.0, relay).await;
        }
    }

    #[handler(message = Order)]
    fn order(&mut self, _order: Order) -> Vec<RelayId> {
        self.chain.relays().collect()
    }

    #[handler(message = Down)]
    async fn down(&mut self, down: Down) {
        if down.reason == Reason::Sibling {
            // The whole run ends, and nobody is left to tell.
            return;
        }
        let gone = |enter: &&Enter| {
            let life = down.incarnation == 0 || enter.incarnation <= down.incarnation;
            enter.relay.id() == down.id && life
        };
        let Some(id) = self.members.values().find(gone).map(|enter| enter.id) else {
            return;
        };
        if self.chain.place(Peer::Relay(id)).is_none() {
            return;
        }
        tracing::warn!(relay = id, reason = %down.reason, "a relay is gone; the others go on without it");
        self.lose(id).await;
        self.elect_if_needed().await;
        let other = self.chain.master();
        if let Some(other) = other.and_then(|other| self.members.get(&other)) {
            self.show_seats(id, other.relay).await;
        }
    }
}

impl Relays {
    async fn lose(&mut self, id: RelayId) {
        let spliced = self.chain.splice_out(id);
        self.changed(spliced).await;
    }

    async fn elect_if_needed(&mut self) {
        if self.chain.master().is_some() || self.chain.is_empty() {
            return;
        }
        let members = self.chain.relays().filter_map(|id| self.members.get(&id));
        let asked = members.map(|member| member.relay.ask(Hold).timeout(PATIENCE).into_future());
        let answers = join_all(asked).await;
        let holdings: Vec<_> = answers.into_iter().filter_map(Result::ok).collect();
        match self.chain.elect(&holdings) {
            Ok(rewiring) => {
                tracing::info!(master = self.chain.master(), "a relay is the master now");
                self.tell(rewiring).await;
            }
            // The next that says that it is there brings another try.
            Err(error) => tracing::warn!(%error, "no relay is the master"),
        }
    }

    async fn changed(&self, change: Result<Rewiring, ChainError>) {
        match change {
            Ok(rewiring) => self.tell(rewiring).await,
            // The book says otherwise, so there is nothing to change.
            Err(error) => tracing::error!(%error, "the order of the relays stays"),
        }
    }

    async fn tell(&self, rewiring: Rewiring) {
        for (peer, place) in rewiring.places {
            self.tell_one(peer, place).await;
        }
    }

    /// Tells a member where it stands. When that is lost, what it says next shows it.
    async fn tell_one(&self, peer: Peer, place: Place) {
        let asks: Option<Recipient<Asked>> = match place.upstream.map(of_edge) {
            Some(Peer::Trainer) => self.source.map(Ref::narrow),
            Some(Peer::Relay(id)) => self.members.get(&id).map(|member| member.relay.narrow()),
            None => None,
        };
        let takes: Option<Recipient<Sent>> = match place.downstream.map(of_edge) {
            Some(Peer::Relay(id)) => self.members.get(&id).map(|member| member.relay.narrow()),
            _ => None,
        };
        let stand = Stand {
            place,
            upstream: asks,
            downstream: takes,
            relays: self.chain.len() as u64,
        };
        let told = match peer {
            Peer::Trainer => match self.source {
                Some(source) => source.tell(stand).await.map_err(drop),
                None => Ok(()),
            },
            Peer::Relay(id) => match self.members.get(&id) {
                Some(member) => member.relay.tell(stand).await.map_err(drop),
                None => Ok(()),
            },
        };
        if told.is_err() {
            tracing::warn!(member = ?peer, "a member did not hear where it stands");
        }
    }

    /// The relay of a rollout, or another while that is away.
    fn relay_of(&self, seat: &Seat) -> Option<Ref<Relay>> {
        let sits = |member: &&Enter| member.seats.iter().any(|known| known.id() == seat.id());
        let own = self.members.values().find(sits)?;
        let there = self.chain.place(Peer::Relay(own.id)).is_some();
        let stands_in = || self.members.get(&self.chain.master()?);
        let shown = if there { Some(own) } else { stands_in() };
        Some(shown.unwrap_or(own).relay)
    }

    async fn show_seats(&self, id: RelayId, relay: Ref<Relay>) {
        let Some(member) = self.members.get(&id) else {
            return;
        };
        for seat in &member.seats {
            show(seat, relay).await;
        }
    }
}

async fn show(seat: &Seat, relay: Ref<Relay>) {
    // A rollout that is gone asks when it is back.
    let _ = seat.tell(Draw(relay)).await;
}

const fn of_edge(edge: Edge) -> Peer {
    edge.peer
}
