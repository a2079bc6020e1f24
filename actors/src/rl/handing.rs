//! A member of the chain with its bytes: what [`Member`] decides, done. In each relay, and beside the
//! trainer.
//!
//! ```text
//! who is before --- Sent: a manifest, or a chunk in a blob ---> this one ---> who is behind
//!               <-- Asked: want, again, got; taken ------------          <---
//! ```
//!
//! A chunk travels as a blob of its own, whose bytes lie with whoever sends it. So it is mapped by a
//! neighbour on the same node, is fetched by one on another, and never visits a mailbox. So many
//! chunks are on the way to a neighbour at a time as fill the link, and no more, whatever it does.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::ops::Range;

use odeon::serde::{Deserialize, Serialize};
use odeon::{Blob, BlobError, BlobView, BlobWriter, Blobs, Failure, Recipient, Shape, message};

use super::chain::delta::{self, Delta};
use super::chain::{
    Arrived, Form, Forms, Holding, LinkKey, Manifest, Member, OfferRefused, Offered, Parcel, Peer,
    Place, Received, RelayId, Request, Term,
};
use crate::engine::in_place;
use crate::trajectory::Version;

/// You stand here now.
#[message(name = "chain.Stand")]
#[derive(Clone, Debug)]
pub struct Stand {
    /// Where.
    pub place: Place,
    /// The member before it.
    pub upstream: Option<Recipient<Asked>>,
    /// The member behind it.
    pub downstream: Option<Recipient<Sent>>,
    /// Relays in the chain.
    pub relays: u64,
}

/// From who is behind.
#[message(name = "chain.Asked")]
#[derive(Debug)]
pub struct Asked {
    /// The member that says it.
    pub from: Peer,
    /// The word that it says.
    pub word: Word,
}

/// See [`Asked`].
#[derive(Debug, Serialize, Deserialize, Shape)]
#[serde(crate = "odeon::serde")]
pub enum Word {
    /// A request for a version or a chunk.
    Request(Request),
    /// A parcel of this key was looked at, so there is room for another on the link.
    Taken(LinkKey),
}

/// From who is before.
#[message(name = "chain.Sent")]
#[derive(Debug)]
pub struct Sent {
    /// Which want it answers.
    pub key: LinkKey,
    /// The parcel.
    pub parcel: Parcel,
    /// The bytes of a chunk.
    pub bytes: Option<Blob>,
}

/// Look whether there is something to do. A member tells itself.
#[message(name = "chain.Look")]
#[derive(Clone, Debug)]
pub struct Look;

/// Parcels on the way to a neighbour: one that it reads, one that lies there, and one that is made.
const ON_THE_WAY_MAX: u32 = 3;

/// Looks without anything taken in after which a member asks again. With the second between looks
/// of a run it is the time of several chunks, of 64 MiB at most.
const STALLED_AFTER: u32 = 10;

/// A member of the chain together with the bytes that it takes in and hands on.
#[derive(Debug)]
pub(super) struct Handing {
    me: Peer,
    member: Member,
    blobs: Blobs,
    whole: BTreeMap<Version, Whole>,
    incoming: Option<(Version, BlobWriter)>,
    upstream: Option<Recipient<Asked>>,
    downstream: Option<Recipient<Sent>>,
    /// The newest want of who is behind, and how many parcels are on the way for it.
    on_the_way: (LinkKey, u32),
    /// Parcels that were taken in, in all.
    fed: u64,
    counts: HandingCounts,
}

/// Bytes that a member has handed on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, Shape)]
#[serde(crate = "odeon::serde")]
pub struct HandingCounts {
    /// Of the chunks.
    pub whole: u64,
    /// That travelled for them.
    pub travelled: u64,
}

/// Count the bytes that have been handed on so far.
#[message(reply = HandingCounts, name = "chain.Count")]
#[derive(Debug)]
pub struct CountHanded;

/// A complete version.
#[derive(Debug)]
struct Whole {
    blob: Blob,
    view: BlobView,
}

/// Number of looks in which nothing has been taken in.
#[derive(Debug, Default)]
pub(super) struct Beats {
    fed: u64,
    silent: u32,
}

impl Beats {
    /// Another look: whether nothing has come for too long.
    pub(super) const fn stalled(&mut self, handing: &Handing) -> bool {
        self.silent += 1;
        if self.fed != handing.fed {
            self.fed = handing.fed;
            self.silent = 0;
        }
        let stalled = self.silent >= STALLED_AFTER;
        if stalled {
            self.silent = 0;
        }
        stalled
    }
}

impl Handing {
    pub(super) fn new(me: Peer, blobs: Blobs, forms: Forms) -> Self {
        Self {
            me,
            member: Member::new(forms),
            blobs,
            whole: BTreeMap::new(),
            incoming: None,
            upstream: None,
            downstream: None,
            on_the_way: (LinkKey::default(), 0),
            fed: 0,
            counts: HandingCounts::default(),
        }
    }

    /// Bytes that it has handed on.
    pub(super) const fn counts(&self) -> HandingCounts {
        self.counts
    }

    /// The newest order that it knows of.
    pub(super) const fn term(&self) -> Term {
        self.member.place().term
    }

    /// Versions that are here, for an election.
    pub(super) fn holding(&self, relay: RelayId) -> Holding {
        self.member.inbox().holding(relay)
    }

    /// The newest complete version.
    pub(super) fn latest(&self) -> Option<(Version, Blob)> {
        let version = self.member.inbox().latest()?;
        Some((version, self.whole.get(&version)?.blob.clone()))
    }

    /// It has another place.
    pub(super) async fn stand(&mut self, stand: Stand) {
        // An order of before is none: another has taken its place.
        let Ok(request) = self.member.ordered(stand.place) else {
            return;
        };
        self.upstream = stand.upstream;
        self.downstream = stand.downstream;
        if let Some(request) = request {
            self.say(Word::Request(request)).await;
        }
        self.let_go();
        self.pump().await;
    }

    /// Nothing has come for long: says anew what is missing.
    pub(super) async fn ask_again(&mut self) {
        if let Some(request) = self.member.stalled() {
            self.say(Word::Request(request)).await;
        }
    }

    /// The whole of a version is here.
    ///
    /// # Errors
    /// It is not newer than what there is. Nothing has changed.
    pub(super) async fn put(
        &mut self,
        manifest: Manifest,
        blob: Blob,
        view: BlobView,
    ) -> Result<(), Failure> {
        let version = manifest.version();
        self.member.put(manifest).map_err(Failure::error)?;
        self.whole.insert(version, Whole { blob, view });
        self.let_go();
        self.pump().await;
        Ok(())
    }

    /// Takes in a word of the member behind.
    pub(super) async fn asked(&mut self, asked: Asked) {
        let Asked { from, word } = asked;
        match word {
            Word::Taken(key) if key == self.on_the_way.0 => {
                self.on_the_way.1 = self.on_the_way.1.saturating_sub(1);
            }
            Word::Taken(_) => {}
            Word::Request(request) => {
                if let Request::Want(want) = &request
                    && want.key > self.on_the_way.0
                {
                    self.on_the_way = (want.key, 0);
                }
                self.member.asked(from, request);
                self.let_go();
            }
        }
        self.pump().await;
    }

    /// Something has come from who is before. Returns the version that is complete with it.
    pub(super) async fn sent(&mut self, sent: Sent) -> Option<Version> {
        let Sent { key, parcel, bytes } = sent;
        let (answer, complete) = match (parcel, bytes) {
            (Parcel::Begin(manifest), _) => (self.begun(key, manifest), None),
            (
                Parcel::Chunk {
                    version,
                    chunk,
                    form,
                },
                Some(blob),
            ) => {
                let arrived = self.arrived(key, version, chunk, form, &blob).await;
                drop(blob);
                arrived
            }
            (Parcel::Chunk { version, chunk, .. }, None) => {
                (self.member.unreadable(key, version, chunk), None)
            }
        };
        if let Some(request) = answer {
            self.say(Word::Request(request)).await;
        }
        self.say(Word::Taken(key)).await;
        if complete.is_some() {
            self.let_go();
        }
        self.pump().await;
        complete
    }

    fn begun(&mut self, key: LinkKey, manifest: Manifest) -> Option<Request> {
        let version = manifest.version();
        match self.member.offered(key, manifest) {
            Offered::Begun(_) => {
                self.fed += 1;
                if self
                    .incoming
                    .as_ref()
                    .is_none_or(|(known, _)| *known != version)
                {
                    self.incoming = None;
                    self.make_room(version);
                }
                None
            }
            Offered::Refused(why, request) => {
                if let OfferRefused::Conflict(_) = why {
                    tracing::error!(member = ?self.me, %why, "kept the weights that are here");
                }
                Some(request)
            }
            Offered::Ignored => None,
        }
    }

    /// Memory for a version that comes in. Without any its chunks are not taken, and asked for again.
    fn make_room(&mut self, version: Version) -> Option<&mut BlobWriter> {
        if self.incoming.is_none() {
            let bytes = self.member.inbox().manifest(version)?.bytes();
            let len = usize::try_from(bytes).unwrap_or(usize::MAX);
            match in_place(|| self.blobs.writer(len)) {
                Ok(writer) => self.incoming = Some((version, writer)),
                Err(error) => {
                    tracing::error!(member = ?self.me, %error, "no room for newer weights; kept the old");
                }
            }
        }
        let (known, writer) = self.incoming.as_mut()?;
        (*known == version).then_some(writer)
    }

    /// A chunk has come. Returns what to say to who is before, and the version that is complete
    /// with it.
    async fn arrived(
        &mut self,
        key: LinkKey,
        version: Version,
        chunk: u32,
        form: Form,
        blob: &Blob,
    ) -> (Option<Request>, Option<Version>) {
        let manifest = self.member.inbox().manifest(version);
        let Some(range) = manifest.and_then(|manifest| bytes_at(manifest, chunk)) else {
            return (None, None);
        };
        let view = match blob.open().await {
            Ok(view) => view,
            Err(error) => {
                tracing::warn!(member = ?self.me, chunk, %error, "a chunk is gone again");
                return (self.member.unreadable(key, version, chunk), None);
            }
        };
        if self.member.inbox().has(version, chunk) || self.make_room(version).is_none() {
            return (None, None);
        }
        let Some(bytes) = in_place(|| self.built(form, range.clone(), &view)) else {
            tracing::warn!(member = ?self.me, chunk, "what it has changed from is not here");
            return (self.member.unreadable(key, version, chunk), None);
        };
        let arrived = in_place(|| Arrived::of(&bytes));
        let received = self.member.received(key, version, chunk, arrived);
        if let (Received::More | Received::Complete { .. }, Some((_, writer))) =
            (&received, &mut self.incoming)
        {
            self.fed += 1;
            in_place(|| writer[range].copy_from_slice(&bytes));
        }
        match received {
            Received::More | Received::Ignored(_) => (None, None),
            Received::Again(request) => {
                tracing::warn!(member = ?self.me, chunk, "a chunk was damaged on its way");
                (Some(request), None)
            }
            Received::Complete { version, got } => {
                self.seal(version).await;
                (Some(got), Some(version))
            }
        }
    }

    /// The bytes of a chunk from what has travelled; nothing when that cannot be what was meant.
    fn built<'a>(&self, form: Form, range: Range<usize>, came: &'a [u8]) -> Option<Cow<'a, [u8]>> {
        let Form::Since(base) = form else {
            return Some(Cow::Borrowed(came));
        };
        let base = self.whole.get(&base)?.view.get(range)?;
        Delta::from_bytes(came).apply(base).ok().map(Cow::Owned)
    }

    /// Seals the version that has come in, which is whole.
    async fn seal(&mut self, version: Version) {
        let Some((_, writer)) = self.incoming.take() else {
            return;
        };
        let blob = writer.seal();
        match blob.open().await {
            Ok(view) => {
                self.whole.insert(version, Whole { blob, view });
            }
            // Memory of this process, so it opens while there is an engine.
            Err(error) => tracing::error!(member = ?self.me, %error, "own memory does not open"),
        }
    }

    /// Sends what there is and what has room on the way.
    async fn pump(&mut self) {
        while self.on_the_way.1 < ON_THE_WAY_MAX
            && let Some((_, key, mut parcel)) = self.member.next_parcel()
        {
            let bytes = match &mut parcel {
                Parcel::Chunk {
                    version,
                    chunk,
                    form,
                } => match self.chunk(*version, *chunk, form) {
                    Ok(bytes) => bytes,
                    Err(error) => {
                        // Who is behind asks for it when nothing has come for long.
                        tracing::error!(member = ?self.me, %error, "no room to hand weights on");
                        return;
                    }
                },
                _ => None,
            };
            self.on_the_way.1 += 1;
            let Some(downstream) = &self.downstream else {
                return;
            };
            if let Err(error) = downstream.tell(Sent { key, parcel, bytes }).await {
                // It is lost, and who takes its place says what is missing.
                tracing::warn!(member = ?self.me, error = %error.error, "nobody is behind");
                return;
            }
        }
    }

    /// A chunk as a blob, in the form that is wanted, or as it is where that is shorter. One that is
    /// all of a version is there already.
    fn chunk(
        &mut self,
        version: Version,
        chunk: u32,
        form: &mut Form,
    ) -> Result<Option<Blob>, BlobError> {
        let manifest = self.member.inbox().manifest(version);
        let Some(range) = manifest.and_then(|manifest| bytes_at(manifest, chunk)) else {
            return Ok(None);
        };
        let whole = self.whole.get(&version);
        let bytes = match (whole, &self.incoming) {
            (Some(whole), _) => &whole.view[range.clone()],
            (None, Some((known, writer))) if *known == version => &writer[range.clone()],
            _ => return Ok(None),
        };
        let changed = in_place(|| self.changed(*form, range, bytes));
        self.counts.whole += bytes.len() as u64;
        if let Some(delta) = changed {
            self.counts.travelled += delta.bytes().len() as u64;
            return in_place(|| self.blobs.copy_in(delta.bytes())).map(Some);
        }
        *form = Form::Full;
        self.counts.travelled += bytes.len() as u64;
        match whole {
            Some(whole) if bytes.len() as u64 == whole.blob.len() => Ok(Some(whole.blob.clone())),
            _ => in_place(|| self.blobs.copy_in(bytes)).map(Some),
        }
    }

    /// The difference of a chunk from its base; `None` where that is not wanted, or not shorter.
    fn changed(&self, form: Form, range: Range<usize>, bytes: &[u8]) -> Option<Delta> {
        let (Form::Since(base), Forms::Changes(word)) = (form, self.member.forms()) else {
            return None;
        };
        delta::encode(self.whole.get(&base)?.view.get(range)?, bytes, word)
    }

    fn let_go(&mut self) {
        for version in self.member.prune() {
            self.whole.remove(&version);
        }
    }

    async fn say(&self, word: Word) {
        if let Some(upstream) = &self.upstream {
            // One that is lost is spliced out, and whoever takes its place is told anew.
            let _ = upstream
                .tell(Asked {
                    from: self.me,
                    word,
                })
                .await;
        }
    }
}

/// Where a chunk lies in memory.
fn bytes_at(manifest: &Manifest, chunk: u32) -> Option<Range<usize>> {
    let range = manifest.range(chunk)?;
    let at = |byte| usize::try_from(byte).ok();
    Some(at(range.start)?..at(range.end)?)
}
