//! A relay: keeps the weights for the rollouts of its node, and hands them on to the next relay.
//!
//! It has the newest complete version, and of a newer one what has come of it. Both are memory of
//! its own, so they outlive whoever handed them over. See [`super::chain`] for the order in which
//! relays stand, and [`super::relays`] for who watches over that.

use std::time::Duration;

use odeon::serde::{Deserialize, Serialize};
use odeon::telemetry;
use odeon::{Blob, Context, Failure, Incarnation, Recipient, Ref, Shape, actor, message};

use super::chain::{Forms, Holding, Peer, RelayId};
use super::handing::{Asked, Beats, Handing, Look, Sent, Stand};
use super::relays::{Enter, Relays, Seat};
use crate::trajectory::Version;

/// Names the bytes of one version of the weights in a run. A later one is greater, also when the
/// trainer has gone back to its checkpoint and counts its versions from there again.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, Shape,
)]
#[serde(crate = "odeon::serde")]
pub struct Edition(u64);

impl Edition {
    /// The version that a life of the trainer made; lives count from 1.
    #[must_use]
    pub const fn new(life: Incarnation, version: Version) -> Self {
        Self((life as u64) << VERSION_BITS | version & VERSION_MASK)
    }

    /// The trainer's number for it.
    #[must_use]
    pub const fn version(self) -> Version {
        self.0 & VERSION_MASK
    }

    /// The life of the trainer that made it.
    #[must_use]
    pub const fn life(self) -> Incarnation {
        (self.0 >> VERSION_BITS) as Incarnation
    }

    /// The number by which the chain knows it.
    #[must_use]
    pub const fn in_chain(self) -> Version {
        self.0
    }

    /// The edition that the chain knows by this number.
    #[must_use]
    pub const fn of_chain(number: Version) -> Self {
        Self(number)
    }
}

/// A step a microsecond for twelve days, and sixteen million lives.
const VERSION_BITS: u32 = 40;
const VERSION_MASK: u64 = (1 << VERSION_BITS) - 1;

/// One version of the weights, whole.
#[derive(Clone, Debug, Serialize, Deserialize, Shape)]
#[serde(crate = "odeon::serde")]
pub struct Weights {
    /// Which.
    pub edition: Edition,
    /// The bytes, as the rollout engines load them. Each chunk of them was compared with the
    /// checksum that the trainer made.
    pub blob: Blob,
}

/// The newest complete version; `None` before the first.
#[message(reply = Option<Weights>, name = "relay.Latest")]
#[derive(Debug)]
pub struct Latest;

/// Tell me of every new version, beginning with the one you have.
#[message(name = "relay.Subscribe")]
#[derive(Debug)]
pub struct Subscribe(pub Recipient<Fresh>);

/// A new version is complete at the relay.
#[message(name = "relay.Fresh")]
#[derive(Clone, Debug)]
pub struct Fresh(pub Edition);

/// Tell which versions of the weights you have, for an election.
#[message(reply = Holding, name = "relay.Hold")]
#[derive(Debug)]
pub struct Hold;

/// Settings that a [`Relay`] is made from.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(crate = "odeon::serde")]
pub struct RelayArgs {
    /// Which one it is.
    pub id: RelayId,
    /// The actor that watches over the relays.
    pub relays: Ref<Relays>,
    /// The rollouts that draw from it.
    pub seats: Vec<Seat>,
    /// Time between two words to it that this relay is there.
    pub beat: Duration,
    /// The forms in which chunks travel.
    pub forms: Forms,
}

/// The actor that has the newest weights on a node, for its rollouts and the next relay.
#[derive(Debug)]
pub struct Relay {
    args: RelayArgs,
    incarnation: Incarnation,
    beats: Beats,
    handing: Handing,
    subscribers: Vec<Recipient<Fresh>>,
}

#[actor(name = "rl.Relay")]
impl Relay {
    async fn start(args: RelayArgs, cx: &mut Context<Self>) -> Result<Self, Failure> {
        let relay = Self {
            incarnation: cx.incarnation(),
            beats: Beats::default(),
            handing: Handing::new(Peer::Relay(args.id), cx.blobs(), args.forms),
            subscribers: vec![],
            args,
        };
        relay.enter(cx.me()).await;
        cx.every(relay.args.beat, Look);
        Ok(relay)
    }

    #[handler(message = Look)]
    async fn look(&mut self, _look: Look, cx: &mut Context<Self>) {
        if self.beats.stalled(&self.handing) {
            self.handing.ask_again().await;
        }
        self.enter(cx.me()).await;
    }

    #[handler(message = Stand)]
    async fn stand(&mut self, stand: Stand) {
        self.handing.stand(stand).await;
    }

    #[handler(message = Asked)]
    async fn asked(&mut self, asked: Asked) {
        self.handing.asked(asked).await;
    }

    #[handler(message = Sent)]
    async fn sent(&mut self, sent: Sent) {
        let Some(complete) = self.handing.sent(sent).await else {
            return;
        };
        let edition = Edition::of_chain(complete);
        telemetry::gauge("weights.published", edition.version() as f64).record();
        let mut alive = vec![];
        for subscriber in self.subscribers.drain(..) {
            if subscriber.tell(Fresh(edition)).await.is_ok() {
                alive.push(subscriber);
            }
        }
        self.subscribers = alive;
    }

    #[handler(message = Latest)]
    fn latest(&mut self, _latest: Latest) -> Option<Weights> {
        let (number, blob) = self.handing.latest()?;
        Some(Weights {
            edition: Edition::of_chain(number),
            blob,
        })
    }

    #[handler(message = Hold)]
    fn hold(&mut self, _hold: Hold) -> Holding {
        self.handing.holding(self.args.id)
    }

    #[handler(message = Subscribe)]
    async fn subscribe(&mut self, subscribe: Subscribe) {
        let Subscribe(subscriber) = subscribe;
        self.subscribers
            .retain(|known| known.id() != subscriber.id());
        if let Some((number, _)) = self.handing.latest()
            && subscriber
                .tell(Fresh(Edition::of_chain(number)))
                .await
                .is_err()
        {
            return;
        }
        self.subscribers.push(subscriber);
    }
}

impl Relay {
    async fn enter(&self, me: Ref<Self>) {
        let enter = Enter {
            relay: me,
            id: self.args.id,
            incarnation: self.incarnation,
            term: self.handing.term(),
            seats: self.args.seats.clone(),
        };
        // One that is gone hears of it with the next.
        let _ = self.args.relays.tell(enter).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_later_life_makes_is_later_whatever_its_number() {
        let before = Edition::new(1, 70);
        let after = Edition::new(2, 64);
        assert!(after > before);
        assert_eq!((before.version(), after.version()), (70, 64));
        assert_eq!((before.life(), after.life()), (1, 2));
        assert_eq!(Edition::of_chain(after.in_chain()), after);
    }
}
