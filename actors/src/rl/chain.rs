//! The way of weights from the trainer to every relay: along a chain, chunk by chunk. Pure.
//!
//! The trainer hands a version to one relay, the master. Each relay hands a chunk on while it
//! receives the next, so a broadcast takes hardly longer than one transfer however many relays
//! there are (Laminar, arXiv 2510.12633; see [`chunks`] for the numbers).
//!
//! ```text
//! trainer --> master --> relay --> relay --> ... --> relay        parcels: manifests and chunks
//!         <--        <--       <--       <--     <--              requests: want, again, got
//! ```
//!
//! - [`Chain`] is the book of whoever watches over the relays: who hands on to whom. A relay that
//!   is lost is spliced out, one that comes back is spliced in, and when the master is lost another
//!   is elected. Each change has a higher [`Term`], so that orders of before are known as such.
//! - [`Member`] is one end of the line, in each relay and in the trainer: its [`Place`], its
//!   [`Inbox`] and its [`Forwarding`]. It is told what has come and says what to send.
//! - A relay with a new neighbour upstream tells it what is missing, from the first such chunk on.
//!   So nothing that it has is sent to it again.
//! - A chunk is in when its checksum is that of the manifest. A version is there when all of its
//!   chunks are: not before, and then at once. Until then the newest complete version stays.
//! - Who has the whole of a version hands it over to its end before it begins with a newer one, and
//!   leaves out those between. So versions arrive even when the trainer is quicker than the links.
//! - A version names its bytes: a trainer that goes back to its checkpoint makes the same again.
//!   Versions at a relay only go up, and other bytes under the number of a complete one are
//!   refused.
//! - A chunk may travel as what has changed since a version that the receiver has: [`delta`].

pub mod chunks;
pub mod delta;

mod chunk_set;
mod election;
mod forwarding;
mod inbox;
mod manifest;
mod member;

use std::collections::HashMap;

use odeon::serde::{Deserialize, Serialize};

pub use self::election::{ElectionError, Holding};
pub use self::forwarding::{Form, Forms, Forwarding, LinkKey, Parcel, Request, Want};
pub use self::inbox::{Accepted, Arrived, Begun, Inbox, OfferRefused, Refusal};
pub use self::manifest::{CHUNKS_MAX, Manifest, ManifestError};
pub use self::member::{Member, Offered, OldOrder, Received};

/// Which relay.
pub type RelayId = u64;

/// Counts the changes of a chain, from 1.
pub type Term = u64;

/// A member at one end of a link.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, odeon::Shape,
)]
#[serde(crate = "odeon::serde")]
pub enum Peer {
    /// The source of the weights. It is before the master.
    Trainer,
    /// A relay.
    Relay(RelayId),
}

/// A neighbour, and since when it is one. The term names the link at both ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, odeon::Shape)]
#[serde(crate = "odeon::serde")]
pub struct Edge {
    /// The neighbour.
    pub peer: Peer,
    /// The change that made them neighbours.
    pub term: Term,
}

/// The place of a member in the chain, and its neighbours.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, odeon::Shape)]
#[serde(crate = "odeon::serde")]
pub struct Place {
    /// The change that made this its place. A member ignores what is not newer than what it has.
    pub term: Term,
    /// From whom it receives.
    pub upstream: Option<Edge>,
    /// To whom it hands on.
    pub downstream: Option<Edge>,
}

/// The result of a change: the new places, of those alone that have one. At most five, however long
/// the chain is.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use = "the members do not know of it until they are told"]
pub struct Rewiring {
    /// Which change.
    pub term: Term,
    /// Whom to tell what. Those that are gone are not among them.
    pub places: Vec<(Peer, Place)>,
}

/// Why a chain was not changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ChainError {
    /// It is in the chain already. Splice it out first when it has begun a new life.
    #[error("relay {0} is in the chain already")]
    Known(RelayId),
    /// It is not in the chain, or not any more.
    #[error("relay {0} is not in the chain")]
    Unknown(RelayId),
}

/// The order of the relays. See the module.
///
/// Joining and splicing take constant time, whatever the length.
#[derive(Clone, Debug)]
pub struct Chain {
    term: Term,
    /// The trainer is always among them.
    places: HashMap<Peer, Place>,
    head: Option<RelayId>,
    tail: Option<RelayId>,
}

impl Chain {
    /// A chain without relays. `after` is the last term of the chain before, when who kept it was
    /// lost, and 0 when there was none.
    #[must_use]
    pub fn new(after: Term) -> Self {
        Self {
            term: after,
            places: HashMap::from([(Peer::Trainer, Place::default())]),
            head: None,
            tail: None,
        }
    }

    /// Appends a relay, new or come back: only the last one hears of it, and whatever it lacks
    /// nobody waits for. The first relay of all is the master.
    ///
    /// # Errors
    /// When it is in the chain already.
    pub fn join(&mut self, relay: RelayId) -> Result<Rewiring, ChainError> {
        match self.tail {
            Some(tail) => self.join_after(relay, tail),
            None => {
                self.begin(relay)?;
                self.head = Some(relay);
                self.tail = Some(relay);
                let touched = self.connect(Peer::Trainer, relay);
                Ok(self.rewiring(&touched))
            }
        }
    }

    /// Splices a relay in behind another, as when it comes back to where its machine stands.
    ///
    /// # Errors
    /// When it is in the chain already, or the other is not.
    pub fn join_after(&mut self, relay: RelayId, after: RelayId) -> Result<Rewiring, ChainError> {
        let before = self.place_of(after)?.downstream;
        self.begin(relay)?;
        let mut touched = self.connect(Peer::Relay(after), relay).to_vec();
        match before {
            Some(Edge {
                peer: Peer::Relay(next),
                ..
            }) => touched.extend(self.connect(Peer::Relay(relay), next)),
            _ => self.tail = Some(relay),
        }
        Ok(self.rewiring(&touched))
    }

    /// Takes a relay out: its neighbours become each other's. The one behind says what it wants, so
    /// nothing it has received is sent again.
    ///
    /// When it was the master there is none until [`Self::elect`]. The others go on meanwhile with
    /// what they have.
    ///
    /// # Errors
    /// When it is not in the chain.
    pub fn splice_out(&mut self, relay: RelayId) -> Result<Rewiring, ChainError> {
        let place = self.place_of(relay)?;
        self.term += 1;
        let touched = self.unlink(relay, place);
        self.places.remove(&Peer::Relay(relay));
        Ok(self.rewiring(&touched))
    }

    /// Makes the best of those that have answered the master, when there is none: the one with the
    /// newest complete version; of several the one with the most chunks of the newest version that
    /// is incomplete among them; of several the one with the lowest id. It becomes the first, and
    /// the order of the others stays.
    ///
    /// So the trainer has the least to send again, and what the relays behind it have is in it.
    ///
    /// # Errors
    /// When there is a master, or nobody of the chain has answered.
    pub fn elect(&mut self, holdings: &[Holding]) -> Result<Rewiring, ElectionError> {
        if let Some(master) = self.master() {
            return Err(ElectionError::HasMaster(master));
        }
        let known = |relay: RelayId| self.places.contains_key(&Peer::Relay(relay));
        let best = election::best(holdings, known).ok_or(ElectionError::NobodyAnswered)?;
        self.term += 1;
        let mut touched = vec![];
        if self.head != Some(best) {
            let place = self.place(Peer::Relay(best)).unwrap_or_default();
            touched.extend(self.unlink(best, place));
            if let Some(head) = self.head.replace(best) {
                touched.extend(self.connect(Peer::Relay(best), head));
            }
        }
        touched.extend(self.connect(Peer::Trainer, best));
        Ok(self.rewiring(&touched))
    }

    /// The trainer has begun a new life: it and the master, if there is one, are neighbours anew.
    /// So the master says to the new life what it wants.
    pub fn renew_trainer(&mut self) -> Rewiring {
        self.term += 1;
        let touched = match self.master() {
            Some(master) => self.connect(Peer::Trainer, master).to_vec(),
            None => vec![Peer::Trainer],
        };
        self.rewiring(&touched)
    }

    /// The place of a member.
    #[must_use]
    pub fn place(&self, peer: Peer) -> Option<Place> {
        self.places.get(&peer).copied()
    }

    /// The relay that receives from the trainer.
    #[must_use]
    pub fn master(&self) -> Option<RelayId> {
        self.after(Peer::Trainer)
    }

    /// The newest term.
    #[must_use]
    pub const fn term(&self) -> Term {
        self.term
    }

    /// The relays in their order, the master first if there is one.
    pub fn relays(&self) -> impl Iterator<Item = RelayId> {
        std::iter::successors(self.head, |relay| self.after(Peer::Relay(*relay)))
    }

    /// Number of relays.
    #[must_use]
    pub fn len(&self) -> usize {
        self.places.len() - 1
    }

    /// Returns true when there is no relay.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.head.is_none()
    }

    fn after(&self, peer: Peer) -> Option<RelayId> {
        match self.places.get(&peer)?.downstream?.peer {
            Peer::Relay(relay) => Some(relay),
            Peer::Trainer => None,
        }
    }

    fn place_of(&self, relay: RelayId) -> Result<Place, ChainError> {
        self.place(Peer::Relay(relay))
            .ok_or(ChainError::Unknown(relay))
    }

    fn begin(&mut self, relay: RelayId) -> Result<(), ChainError> {
        let known = self.places.contains_key(&Peer::Relay(relay));
        if known {
            return Err(ChainError::Known(relay));
        }
        self.places.insert(Peer::Relay(relay), Place::default());
        self.term += 1;
        Ok(())
    }

    /// Makes two members neighbours as of this term.
    fn connect(&mut self, from: Peer, to: RelayId) -> [Peer; 2] {
        let (term, to) = (self.term, Peer::Relay(to));
        self.places.entry(from).or_default().downstream = Some(Edge { peer: to, term });
        self.places.entry(to).or_default().upstream = Some(Edge { peer: from, term });
        [from, to]
    }

    /// Joins the neighbours of a relay, which stays in the book without any.
    fn unlink(&mut self, relay: RelayId, place: Place) -> Vec<Peer> {
        let before = place.upstream.map(|edge| edge.peer);
        let behind = self.after(Peer::Relay(relay));
        self.places.insert(Peer::Relay(relay), Place::default());
        if self.head == Some(relay) {
            self.head = behind;
        }
        if self.tail == Some(relay) {
            self.tail = match before {
                Some(Peer::Relay(before)) => Some(before),
                _ => None,
            };
        }
        match (before, behind) {
            (Some(before @ Peer::Relay(_)), Some(behind)) => self.connect(before, behind).to_vec(),
            (before, behind) => {
                let behind = behind.map(Peer::Relay);
                if let Some(place) = before.and_then(|peer| self.places.get_mut(&peer)) {
                    place.downstream = None;
                }
                if let Some(place) = behind.and_then(|peer| self.places.get_mut(&peer)) {
                    place.upstream = None;
                }
                before.into_iter().chain(behind).collect()
            }
        }
    }

    /// The new places of members whose neighbours have changed in this term.
    fn rewiring(&mut self, touched: &[Peer]) -> Rewiring {
        let term = self.term;
        let mut places: Vec<(Peer, Place)> = vec![];
        for peer in touched {
            if let Some(place) = self.places.get_mut(peer)
                && !places.iter().any(|(told, _)| told == peer)
            {
                place.term = term;
                places.push((*peer, *place));
            }
        }
        Rewiring { term, places }
    }
}

#[cfg(test)]
mod tests;
