//! A relay or the trainer in the chain: what comes from before, and what goes to who is behind.
//! Pure: orders, requests and parcels in, requests and parcels out.

use super::{
    Accepted, Arrived, Begun, Forms, Forwarding, Inbox, LinkKey, Manifest, OfferRefused, Parcel,
    Peer, Place, Refusal, Request,
};
use crate::trajectory::Version;

/// One member of a chain. See the module.
///
/// Whoever drives it:
/// - sends what the methods return: requests upstream, parcels downstream;
/// - asks for the [`Self::next_parcel`] when the link behind is free and something has changed;
/// - says that it is [`Self::stalled`] when for some time nothing was taken in, which makes up for
///   whatever was lost on the way. That costs what is on the way at the time, so the time is that
///   of several chunks.
#[derive(Clone, Debug, Default)]
pub struct Member {
    forms: Forms,
    place: Place,
    inbox: Inbox,
    attempts: u32,
    /// The key of the last want.
    key: Option<LinkKey>,
    /// The version that was begun with this key.
    begun: Option<Version>,
    forwarding: Option<Forwarding>,
}

/// An order is not newer than the last. It was ignored: another has taken its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("an order of term {told} comes after that of term {known}")]
pub struct OldOrder {
    /// Of the order.
    pub told: u64,
    /// Of the last one.
    pub known: u64,
}

/// The result of an offer.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Offered {
    /// Its chunks may come, and their bytes need a place.
    Begun(Begun),
    /// The version is here, or a newer one. Send this upstream.
    Refused(OfferRefused, Request),
    /// It is of a link of before, or older than what comes in.
    Ignored,
}

/// The result of a chunk.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Received {
    /// It is in; others are missing.
    More,
    /// It was the last: the version is the newest complete one from now on.
    Complete {
        /// Which.
        version: Version,
        /// Send this upstream, and see what can be let go: [`Member::prune`].
        got: Request,
    },
    /// It was damaged.
    Again(Request),
    /// It is of no use: of a link or version of before, or in already.
    Ignored(Refusal),
}

impl Member {
    /// A member without a place and without weights.
    #[must_use]
    pub fn new(forms: Forms) -> Self {
        Self {
            forms,
            ..Self::default()
        }
    }

    /// It has another place. Returns what to send to a new neighbour upstream.
    ///
    /// # Errors
    /// When the order is of before. Nothing has changed.
    pub fn ordered(&mut self, place: Place) -> Result<Option<Request>, OldOrder> {
        if place.term <= self.place.term {
            return Err(OldOrder {
                told: place.term,
                known: self.place.term,
            });
        }
        let before = std::mem::replace(&mut self.place, place);
        if place.downstream != before.downstream {
            self.forwarding = None;
        }
        if place.upstream == before.upstream {
            return Ok(None);
        }
        self.key = None;
        Ok(self.ask())
    }

    /// Nothing has come for too long: what to send upstream.
    pub fn stalled(&mut self) -> Option<Request> {
        self.ask()
    }

    fn ask(&mut self) -> Option<Request> {
        let upstream = self.place.upstream?;
        self.attempts += 1;
        let key = LinkKey {
            term: upstream.term,
            attempt: self.attempts,
        };
        self.key = Some(key);
        self.begun = None;
        Some(Request::Want(self.inbox.want(key)))
    }

    /// A request has come from downstream. One of a neighbour or a link of before is ignored.
    pub fn asked(&mut self, from: Peer, request: Request) {
        let key = match &request {
            Request::Want(want) => want.key,
            Request::Again { key, .. } | Request::Got { key, .. } => *key,
        };
        let behind = self.place.downstream;
        if behind.is_none_or(|behind| (behind.peer, behind.term) != (from, key.term)) {
            return;
        }
        match (request, &mut self.forwarding) {
            (Request::Want(want), Some(known)) if want.key <= known.key() => {}
            (Request::Want(want), forwarding) => *forwarding = Some(Forwarding::new(want)),
            (Request::Again { version, chunk, .. }, Some(known)) => {
                known.again(key, version, chunk);
            }
            (Request::Got { version, .. }, Some(known)) => known.got(key, version),
            _ => {}
        }
    }

    /// A version is offered from upstream.
    pub fn offered(&mut self, key: LinkKey, manifest: Manifest) -> Offered {
        if self.key != Some(key) {
            return Offered::Ignored;
        }
        let version = manifest.version();
        let refused = match self.inbox.begin(manifest) {
            Ok(begun) => {
                self.begun = Some(version);
                if begun == Begun::Replaced
                    && let Some(forwarding) = &mut self.forwarding
                {
                    forwarding.forget(version);
                }
                return Offered::Begun(begun);
            }
            Err(refused) => refused,
        };
        // Whoever offers what is here already goes on to what is newer.
        match self.inbox.latest().filter(|latest| *latest >= version) {
            Some(version) => Offered::Refused(refused, Request::Got { key, version }),
            None => Offered::Ignored,
        }
    }

    /// A chunk has come from upstream. When this takes it, put its bytes where they belong before
    /// anything else is asked of this member.
    pub fn received(
        &mut self,
        key: LinkKey,
        version: Version,
        chunk: u32,
        arrived: Arrived,
    ) -> Received {
        if self.key != Some(key) || self.begun != Some(version) {
            return Received::Ignored(Refusal::NotIncoming(version));
        }
        match self.inbox.accept(version, chunk, arrived) {
            Ok(Accepted::More) => Received::More,
            Ok(Accepted::Complete(version)) => Received::Complete {
                version,
                got: Request::Got { key, version },
            },
            Err(Refusal::Damaged(chunk)) => Received::Again(Request::Again {
                key,
                version,
                chunk,
            }),
            Err(refusal) => Received::Ignored(refusal),
        }
    }

    /// A chunk has come as what has changed, and cannot be put together. Returns what to send
    /// upstream, if it is of use at all.
    #[must_use]
    pub fn unreadable(&self, key: LinkKey, version: Version, chunk: u32) -> Option<Request> {
        let lacks = self.key == Some(key)
            && self.begun == Some(version)
            && self.inbox.coming(version).is_some()
            && !self.inbox.has(version, chunk);
        lacks.then_some(Request::Again {
            key,
            version,
            chunk,
        })
    }

    /// The whole of a version is here, as at the trainer.
    ///
    /// # Errors
    /// When it is not newer than what is here.
    pub fn put(&mut self, manifest: Manifest) -> Result<(), OfferRefused> {
        self.inbox.put(manifest)
    }

    /// The next thing to send downstream, and with which key; `None` when there is nothing now.
    pub fn next_parcel(&mut self) -> Option<(Peer, LinkKey, Parcel)> {
        let behind = self.place.downstream?;
        let forwarding = self.forwarding.as_mut()?;
        let parcel = forwarding.next_parcel(&self.inbox, self.forms)?;
        Some((behind.peer, forwarding.key(), parcel))
    }

    /// Lets go of complete versions that are not needed any more, and returns them. Besides the
    /// newest, one that is being sent is needed, and where changes are sent what the receiver has.
    pub fn prune(&mut self) -> Vec<Version> {
        let forwarding = self.forwarding.iter();
        let in_use: Vec<_> = forwarding
            .flat_map(|link| link.in_use(self.forms))
            .collect();
        self.inbox.prune(&in_use)
    }

    /// Versions and chunks that are here.
    #[must_use]
    pub const fn inbox(&self) -> &Inbox {
        &self.inbox
    }

    /// The forms in which it sends chunks.
    #[must_use]
    pub const fn forms(&self) -> Forms {
        self.forms
    }

    /// Where it stands.
    #[must_use]
    pub const fn place(&self) -> Place {
        self.place
    }
}
