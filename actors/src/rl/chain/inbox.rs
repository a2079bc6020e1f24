//! Weights of a member: complete versions, and one that comes in. Pure: the bytes themselves are
//! elsewhere.

use std::collections::BTreeMap;

use super::chunk_set::ChunkSet;
use super::{Holding, LinkKey, Manifest, RelayId, Want};
use crate::trajectory::Version;

/// Which chunks of which versions are in. See the module.
///
/// Until a version is complete the one before stays the newest, and a newer one takes the place of
/// one that is incomplete. The newest complete version is never let go.
#[derive(Clone, Debug, Default)]
pub struct Inbox {
    complete: BTreeMap<Version, Manifest>,
    incoming: Option<Incoming>,
}

#[derive(Clone, Debug)]
struct Incoming {
    manifest: Manifest,
    chunks: ChunkSet,
}

/// The bytes of a chunk as they were found. Made where the bytes are, since it reads all of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrived {
    bytes: u64,
    checksum: u32,
}

impl Arrived {
    /// Measures a chunk.
    #[must_use]
    pub fn of(bytes: &[u8]) -> Self {
        Self {
            bytes: bytes.len() as u64,
            checksum: crc32fast::hash(bytes),
        }
    }
}

/// The result of an offer that was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Begun {
    /// Its chunks may come.
    New,
    /// It was coming in already: what is in stays.
    Resumed,
    /// Its chunks may come; those of this older version, which was incomplete, are given up.
    Superseded(Version),
    /// It was coming in with other bytes. Who sends is nearer to the trainer, so those that are in
    /// are given up.
    Replaced,
}

/// Why a version is not taken. What there was is as it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum OfferRefused {
    /// There is a newer one, or this one.
    #[error("version {offered} is not newer than {newest}, which is there or comes in")]
    Old {
        /// That of the offer.
        offered: Version,
        /// That which is there or comes in.
        newest: Version,
    },
    /// The version is complete here with other bytes. They stay until a newer version comes.
    #[error("version {0} was offered with other bytes than before")]
    Conflict(Version),
}

/// The result of a chunk that was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Accepted {
    /// More are missing.
    More,
    /// It was the last one: this version is the newest complete one now.
    Complete(Version),
}

/// Why a chunk is not taken. Nothing has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Refusal {
    /// Its version does not come in, or not any more, or not over this link.
    #[error("version {0} does not come in here")]
    NotIncoming(Version),
    /// The version has fewer chunks.
    #[error("chunk {chunk} of {chunks}")]
    NoSuchChunk {
        /// Which.
        chunk: u32,
        /// Number of its chunks.
        chunks: u32,
    },
    /// It is in already.
    #[error("chunk {0} is in already")]
    Duplicate(u32),
    /// It was damaged or cut: ask for it again.
    #[error("chunk {0} is not what its manifest says")]
    Damaged(u32),
}

impl Inbox {
    /// Nothing is there.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// The whole of a version is there, as at who has made it.
    ///
    /// # Errors
    /// When it is not newer than what there is.
    pub fn put(&mut self, manifest: Manifest) -> Result<(), OfferRefused> {
        self.check(&manifest)?;
        self.give_up_below(manifest.version() + 1);
        self.complete.insert(manifest.version(), manifest);
        Ok(())
    }

    /// A version is offered.
    ///
    /// # Errors
    /// When it is not newer than what there is, or older than what comes in.
    pub fn begin(&mut self, manifest: Manifest) -> Result<Begun, OfferRefused> {
        self.check(&manifest)?;
        let offered = manifest.version();
        let coming = self.incoming.as_ref().map(|incoming| &incoming.manifest);
        match coming {
            Some(coming) if *coming == manifest => return Ok(Begun::Resumed),
            Some(coming) if coming.version() > offered => {
                return Err(OfferRefused::Old {
                    offered,
                    newest: coming.version(),
                });
            }
            _ => {}
        }
        let begun = match coming.map(Manifest::version) {
            None => Begun::New,
            Some(version) if version == offered => Begun::Replaced,
            Some(version) => Begun::Superseded(version),
        };
        let chunks = ChunkSet::new(manifest.chunks());
        self.incoming = Some(Incoming { manifest, chunks });
        Ok(begun)
    }

    /// A chunk has come. When this takes it, its bytes are thought to lie where they belong.
    ///
    /// # Errors
    /// When it is not one that is missing, or not what its manifest says.
    pub fn accept(
        &mut self,
        version: Version,
        chunk: u32,
        arrived: Arrived,
    ) -> Result<Accepted, Refusal> {
        let Some(Incoming { manifest, chunks }) = &mut self.incoming else {
            return Err(Refusal::NotIncoming(version));
        };
        if manifest.version() != version {
            return Err(Refusal::NotIncoming(version));
        }
        let (Some(range), Some(checksum)) = (manifest.range(chunk), manifest.checksum(chunk))
        else {
            return Err(Refusal::NoSuchChunk {
                chunk,
                chunks: manifest.chunks(),
            });
        };
        if chunks.contains(chunk) {
            return Err(Refusal::Duplicate(chunk));
        }
        if arrived.bytes != range.end - range.start || arrived.checksum != checksum {
            return Err(Refusal::Damaged(chunk));
        }
        chunks.insert(chunk);
        if !chunks.is_full() {
            return Ok(Accepted::More);
        }
        if let Some(Incoming { manifest, .. }) = self.incoming.take() {
            self.complete.insert(version, manifest);
        }
        Ok(Accepted::Complete(version))
    }

    /// Lets go of complete versions that are neither the newest nor `in_use`. Returns them: their
    /// bytes can be freed.
    pub fn prune(&mut self, in_use: &[Version]) -> Vec<Version> {
        let newest = self.latest();
        let keep = |version: &Version| Some(*version) == newest || in_use.contains(version);
        let gone: Vec<_> = self.complete.keys().copied().filter(|v| !keep(v)).collect();
        self.complete.retain(|version, _| keep(version));
        gone
    }

    /// The newest complete version.
    #[must_use]
    pub fn latest(&self) -> Option<Version> {
        self.complete.keys().next_back().copied()
    }

    /// The version that comes in.
    #[must_use]
    pub fn incoming(&self) -> Option<Version> {
        Some(self.incoming.as_ref()?.manifest.version())
    }

    /// The manifest of a version that is there or comes in.
    #[must_use]
    pub fn manifest(&self, version: Version) -> Option<&Manifest> {
        let coming = self.incoming.as_ref().map(|incoming| &incoming.manifest);
        let coming = coming.filter(|manifest| manifest.version() == version);
        self.complete.get(&version).or(coming)
    }

    /// Returns true when all of a version is there.
    #[must_use]
    pub fn is_complete(&self, version: Version) -> bool {
        self.complete.contains_key(&version)
    }

    /// Returns true when the bytes of a chunk are there.
    #[must_use]
    pub fn has(&self, version: Version, chunk: u32) -> bool {
        match self.complete.get(&version) {
            Some(manifest) => chunk < manifest.chunks(),
            None => self
                .coming(version)
                .is_some_and(|chunks| chunks.contains(chunk)),
        }
    }

    /// Versions that a relay reports before an election.
    #[must_use]
    pub fn holding(&self, relay: RelayId) -> Holding {
        let incoming = self.incoming.as_ref();
        Holding {
            relay,
            complete: self.latest(),
            incoming: incoming.map(|coming| (coming.manifest.version(), coming.chunks.count())),
        }
    }

    /// The request after a reconnect: the missing chunks of the version that comes in, and whatever
    /// is newer.
    #[must_use]
    pub fn want(&self, key: LinkKey) -> Want {
        let incoming = self.incoming.as_ref();
        Want {
            key,
            complete: self.latest(),
            incoming: incoming.map(|coming| coming.manifest.version()),
            missing: incoming.map_or_else(Vec::new, |coming| coming.chunks.missing()),
        }
    }

    /// The chunks of a version that comes in.
    pub(super) fn coming(&self, version: Version) -> Option<&ChunkSet> {
        let incoming = self.incoming.as_ref()?;
        (incoming.manifest.version() == version).then_some(&incoming.chunks)
    }

    /// Checks that a version is newer than the complete ones.
    fn check(&self, offered: &Manifest) -> Result<(), OfferRefused> {
        let version = offered.version();
        if self
            .complete
            .get(&version)
            .is_some_and(|known| known != offered)
        {
            return Err(OfferRefused::Conflict(version));
        }
        match self.latest() {
            Some(newest) if newest >= version => Err(OfferRefused::Old {
                offered: version,
                newest,
            }),
            _ => Ok(()),
        }
    }

    fn give_up_below(&mut self, version: Version) {
        if self.incoming().is_some_and(|coming| coming < version) {
            self.incoming = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BYTES: &[u8] = b"0123456789";

    fn manifest(version: Version) -> Manifest {
        Manifest::of(version, BYTES, 4).unwrap()
    }

    fn arrived(chunk: u32) -> Arrived {
        let range = manifest(0).range(chunk).unwrap();
        Arrived::of(&BYTES[range.start as usize..range.end as usize])
    }

    const KEY: LinkKey = LinkKey {
        term: 1,
        attempt: 1,
    };

    #[test]
    fn a_version_is_there_when_its_last_chunk_is_and_not_before() {
        let mut inbox = Inbox::new();
        assert_eq!(inbox.begin(manifest(1)), Ok(Begun::New));
        assert_eq!(inbox.accept(1, 2, arrived(2)), Ok(Accepted::More));
        assert_eq!(inbox.accept(1, 0, arrived(0)), Ok(Accepted::More));
        assert_eq!((inbox.latest(), inbox.incoming()), (None, Some(1)));
        let want = inbox.want(KEY);
        assert_eq!(want.incoming, Some(1));
        assert_eq!(
            want.missing
                .iter()
                .flat_map(Clone::clone)
                .collect::<Vec<_>>(),
            [1]
        );
        assert_eq!(inbox.accept(1, 1, arrived(1)), Ok(Accepted::Complete(1)));
        assert_eq!((inbox.latest(), inbox.incoming()), (Some(1), None));
        assert!(inbox.has(1, 2) && !inbox.has(1, 3) && !inbox.has(2, 0));
    }

    #[test]
    fn a_chunk_is_taken_once_and_as_its_manifest_says() {
        let mut inbox = Inbox::new();
        assert_eq!(inbox.accept(1, 0, arrived(0)), Err(Refusal::NotIncoming(1)));
        inbox.begin(manifest(1)).unwrap();
        assert_eq!(inbox.accept(2, 0, arrived(0)), Err(Refusal::NotIncoming(2)));
        assert_eq!(inbox.accept(1, 0, arrived(1)), Err(Refusal::Damaged(0)));
        assert_eq!(
            inbox.accept(1, 0, Arrived::of(b"012")),
            Err(Refusal::Damaged(0))
        );
        let none = Refusal::NoSuchChunk {
            chunk: 3,
            chunks: 3,
        };
        assert_eq!(inbox.accept(1, 3, arrived(0)), Err(none));
        assert_eq!(inbox.accept(1, 0, arrived(0)), Ok(Accepted::More));
        assert_eq!(inbox.accept(1, 0, arrived(0)), Err(Refusal::Duplicate(0)));
    }

    #[test]
    fn a_newer_version_takes_the_place_of_an_incomplete_one_and_the_complete_one_stays() {
        let mut inbox = Inbox::new();
        inbox.put(manifest(1)).unwrap();
        inbox.begin(manifest(2)).unwrap();
        inbox.accept(2, 0, arrived(0)).unwrap();
        assert_eq!(inbox.begin(manifest(2)), Ok(Begun::Resumed));
        assert!(inbox.has(2, 0));
        assert_eq!(inbox.begin(manifest(4)), Ok(Begun::Superseded(2)));
        assert_eq!((inbox.latest(), inbox.incoming()), (Some(1), Some(4)));
        assert!(!inbox.has(2, 0));
        let old = |offered, newest| Err(OfferRefused::Old { offered, newest });
        assert_eq!(inbox.begin(manifest(3)), old(3, 4));
        assert_eq!(inbox.begin(manifest(1)), old(1, 1));
        inbox.put(manifest(5)).unwrap();
        assert_eq!((inbox.latest(), inbox.incoming()), (Some(5), None));
        assert_eq!(
            inbox.put(manifest(4)),
            Err(OfferRefused::Old {
                offered: 4,
                newest: 5
            })
        );
    }

    #[test]
    fn other_bytes_under_a_known_number_are_not_mixed_with_the_first() {
        let other = || Manifest::of(1, b"other bytes", 4).unwrap();
        let mut inbox = Inbox::new();
        inbox.begin(manifest(1)).unwrap();
        inbox.accept(1, 0, arrived(0)).unwrap();
        assert_eq!(inbox.begin(other()), Ok(Begun::Replaced));
        assert!(!inbox.has(1, 0), "chunks of two would be mixed");
        inbox.put(manifest(1)).unwrap();
        assert_eq!(inbox.begin(other()), Err(OfferRefused::Conflict(1)));
    }

    #[test]
    fn the_newest_version_and_those_in_use_are_kept() {
        let mut inbox = Inbox::new();
        for version in 1..=4 {
            inbox.put(manifest(version)).unwrap();
        }
        assert_eq!(inbox.prune(&[2, 9]), [1, 3]);
        assert_eq!(inbox.prune(&[]), [2]);
        assert!(inbox.prune(&[]).is_empty());
        assert!(inbox.is_complete(4));
    }
}
