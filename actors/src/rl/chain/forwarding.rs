//! One link, at the end that sends: what goes over it next. Pure.

use std::ops::Range;

use odeon::serde::{Deserialize, Serialize};

use super::chunk_set::ChunkSet;
use super::{Inbox, Manifest, Term, delta};
use crate::trajectory::Version;

/// Names a link and one attempt to use it. What comes with another key than the last one of the
/// receiver is of a link of before.
#[derive(
    Clone,
    Copy,
    Debug,
    Default,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Serialize,
    Deserialize,
    odeon::Shape,
)]
#[serde(crate = "odeon::serde")]
pub struct LinkKey {
    /// The term of the link's [`super::Edge`].
    pub term: Term,
    /// Counts the wants of the receiver.
    pub attempt: u32,
}

/// Versions and chunks that a receiver has and lacks. The first thing over a link, and again when
/// nothing comes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, odeon::Shape)]
#[serde(crate = "odeon::serde")]
pub struct Want {
    /// With which key to answer.
    pub key: LinkKey,
    /// Its newest complete version.
    pub complete: Option<Version>,
    /// The version that comes in. It takes this one or newer ones.
    pub incoming: Option<Version>,
    /// The chunks that it lacks of that, in order.
    pub missing: Vec<Range<u32>>,
}

/// The form in which the bytes of a chunk travel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, odeon::Shape)]
#[serde(crate = "odeon::serde")]
pub enum Form {
    /// As they are.
    Full,
    /// As what has changed since the chunk of the same number of this version, where that is
    /// shorter: see [`super::delta`].
    Since(Version),
}

/// Which forms a sender uses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(crate = "odeon::serde")]
pub enum Forms {
    /// Chunks are sent as they are. No version is kept but the newest and the one being sent.
    #[default]
    Full,
    /// Chunks are sent as what has changed, in words of this size, where the receiver has a version
    /// that is here as well. That one is kept for it: one more copy of the weights in memory.
    Changes(delta::Word),
}

/// A message of a receiver to the member before it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, odeon::Shape)]
#[serde(crate = "odeon::serde")]
#[non_exhaustive]
pub enum Request {
    /// Begin anew with this link.
    Want(Want),
    /// A chunk was damaged or could not be put together: once more, in full.
    Again {
        /// Of the parcel.
        key: LinkKey,
        /// Of which version.
        version: Version,
        /// Which.
        chunk: u32,
    },
    /// A version is complete, or is not needed any more.
    Got {
        /// Of the parcel.
        key: LinkKey,
        /// The newest complete version.
        version: Version,
    },
}

/// A message of a sender to the member behind it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, odeon::Shape)]
#[serde(crate = "odeon::serde")]
#[non_exhaustive]
pub enum Parcel {
    /// Chunks of this will come.
    Begin(Manifest),
    /// A chunk; its bytes travel beside it.
    Chunk {
        /// Of which version.
        version: Version,
        /// Which.
        chunk: u32,
        /// The form of its bytes.
        form: Form,
    },
}

/// The sending end of a link. It sends the missing chunks of one version, the lowest that is there
/// first, until the receiver has it, and then the newest version.
#[derive(Clone, Debug)]
pub struct Forwarding {
    key: LinkKey,
    /// The newest complete version of the receiver.
    done: Option<Version>,
    /// The version that came in at the receiver when it sent its want, and the chunks that it
    /// lacked.
    resume: Option<(Version, Vec<Range<u32>>)>,
    lot: Option<Lot>,
}

/// The version that is being sent.
#[derive(Clone, Debug)]
struct Lot {
    version: Version,
    /// Chunks that the receiver has or that are on the way.
    sent: ChunkSet,
    form: Form,
}

impl Forwarding {
    /// Answers a want.
    #[must_use]
    pub fn new(want: Want) -> Self {
        Self {
            key: want.key,
            done: want.complete,
            resume: want.incoming.map(|version| (version, want.missing)),
            lot: None,
        }
    }

    /// The next parcel to send, from what is in `inbox`; `None` when there is nothing yet.
    pub fn next_parcel(&mut self, inbox: &Inbox, forms: Forms) -> Option<Parcel> {
        // A version that was incomplete here may have been given up for a newer one.
        self.lot
            .take_if(|lot| inbox.manifest(lot.version).is_none());
        let Some(lot) = &mut self.lot else {
            let manifest = inbox.manifest(self.choose(inbox)?)?;
            self.lot = Some(self.begin(inbox, manifest, forms));
            return Some(Parcel::Begin(manifest.clone()));
        };
        let there = match inbox.is_complete(lot.version) {
            true => None,
            false => Some(inbox.coming(lot.version)?),
        };
        let chunk = lot.sent.first_missing(there)?;
        lot.sent.insert(chunk);
        Some(Parcel::Chunk {
            version: lot.version,
            chunk,
            form: lot.form,
        })
    }

    /// The newest complete version, and when the receiver has it the one that comes in. Of what is
    /// older than what comes in at the receiver nothing is of use.
    fn choose(&self, inbox: &Inbox) -> Option<Version> {
        let useful = |version: &Version| {
            let newer = self.done.is_none_or(|done| *version > done);
            let resume = self.resume.as_ref().map(|(version, _)| version);
            newer && resume.is_none_or(|resume| version >= resume)
        };
        let latest = inbox.latest().filter(useful);
        latest.or_else(|| inbox.incoming().filter(useful))
    }

    fn begin(&self, inbox: &Inbox, manifest: &Manifest, forms: Forms) -> Lot {
        let version = manifest.version();
        let sent = match &self.resume {
            Some((resume, missing)) if *resume == version => {
                ChunkSet::without(manifest.chunks(), missing)
            }
            _ => ChunkSet::new(manifest.chunks()),
        };
        let base = self.done.filter(|done| {
            let known = inbox.manifest(*done).filter(|_| inbox.is_complete(*done));
            matches!(forms, Forms::Changes(_))
                && known.is_some_and(|known| known.is_laid_out_as(manifest))
        });
        Lot {
            version,
            sent,
            form: base.map_or(Form::Full, Form::Since),
        }
    }

    /// A chunk is to be sent again. With a key of before, or when another version is being sent, it
    /// says nothing.
    pub fn again(&mut self, key: LinkKey, version: Version, chunk: u32) {
        if let Some(lot) = &mut self.lot
            && key == self.key
            && lot.version == version
        {
            lot.sent.remove(chunk);
            // What the receiver was to build upon is not what it is thought to be.
            lot.form = Form::Full;
        }
    }

    /// The receiver has this version, so the next can begin.
    pub fn got(&mut self, key: LinkKey, version: Version) {
        if key == self.key {
            self.done = self.done.max(Some(version));
            self.lot.take_if(|lot| lot.version <= version);
        }
    }

    /// The version has other bytes now: whatever was sent of it counts for nothing.
    pub(super) fn forget(&mut self, version: Version) {
        self.lot.take_if(|lot| lot.version == version);
        self.resume.take_if(|(resume, _)| *resume == version);
    }

    /// The key of the want that this answers.
    #[must_use]
    pub const fn key(&self) -> LinkKey {
        self.key
    }

    /// The versions that must be kept for it: the one being sent and the one by which it is told,
    /// or the one by which the next will be.
    pub fn in_use(&self, forms: Forms) -> impl Iterator<Item = Version> {
        let sending = self.lot.as_ref().map(|lot| lot.version);
        let base = match (&self.lot, forms) {
            (Some(lot), _) => match lot.form {
                Form::Since(base) => Some(base),
                Form::Full => None,
            },
            (None, Forms::Changes(_)) => self.done,
            (None, Forms::Full) => None,
        };
        sending.into_iter().chain(base)
    }
}
