//! Native programs by content: cut into pieces, brought where they are missing, verified, put
//! together, and collected.
//!
//! ```text
//!  client                                             node
//!  file ── Listing (pieces by content) ─┐
//!  files, entry ─────────────────────── Bundle ──────> Store::pin ── missing ──┐
//!  Listing::read <───────── only what is missing ──────────────────────────────┘
//!       └── piece ───────────────────────────────────> Store::put ── assemble ──> folder/entry
//!                                                       Store::collect           (ready to start)
//!  Executable::inspect ── what it needs ─────────────> Platform::can_run
//!  Manifest::read ────── what it says about itself
//! ```
//!
//! - A [`Digest`] names content. A [`Listing`] is a file as [`Piece`]s, cut where the content says
//!   so, and a [`Bundle`] the files of a program.
//! - A [`Store`] keeps pieces and programs in a folder within a budget, believes nothing that it did
//!   not compare with its name, and may be killed at any moment.
//! - An [`Executable`] is what a program needs and a [`Platform`] what a node has, so that what
//!   cannot run is refused with a reason before it is started. A [`Manifest`] is what a program of
//!   Odeon says about itself. All are read from files, and nothing is run.
//! - A [`Reader`] reads a file whose pieces are still coming, by [`Supply`]; a [`Recorder`] notes
//!   which are read first, and [`Heat`] is what many such recordings say about the next start.
//!
//! What this crate does not know: actors, the network, tokio, and what time it is. Calls that wait
//! for the disk block their thread.
//!
//! # Trust
//!
//! A digest says that bytes are those that somebody named. Who may name programs is for the caller
//! to decide: whoever can put a bundle onto a node can run code there.
//!
//! # Example
//!
//! ```
//! use std::time::{Duration, SystemTime};
//!
//! use odeon_artifacts::{Bundle, Footprint, Listing, Store};
//!
//! # let folder = tempfile::tempdir()?;
//! # let (program, data) = (folder.path().join("train"), folder.path().join("data"));
//! # std::fs::write(&program, b"a program")?;
//! # let now = SystemTime::UNIX_EPOCH;
//! // On the client: what the program is made of.
//! let bundle = Bundle::of_program(&program)?;
//!
//! // On a node: what it lacks of that.
//! let budget = Footprint { piece_bytes: 64 << 30, folder_bytes: 64 << 30 };
//! let store = Store::open(data, budget)?;
//! store.pin(&bundle, now + Duration::from_secs(600))?;
//! let missing = store.missing(bundle.pieces())?;
//!
//! // What is missing travels, and the program is put together.
//! let listing = &bundle.file(bundle.entry()).expect("the entry is a file").listing;
//! let file = std::fs::File::open(&program)?;
//! for (piece, range) in listing.pieces().iter().zip(listing.ranges()) {
//!     if missing.contains(piece) {
//!         let bytes = Listing::read(&file, range, piece)?;
//!         store.put(&piece.digest, &bytes, now)?;
//!     }
//! }
//! let assembled = store.assemble(&bundle, now)?;
//! store.unpin(&bundle.digest())?;
//! assert_eq!(std::fs::read(assembled.entry)?, b"a program");
//!
//! // Later, while no bundle is live:
//! let freed = store.collect(&[], Footprint::default(), now)?;
//! assert_eq!((freed.pieces, freed.folders), (1, 1));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Files
//!
//! | file | holds |
//! | --- | --- |
//! | `digest`, `listing`, `bundle` | names of content; a file as pieces; the files of a program |
//! | `store`, `store/*` | pieces and programs on a disk: putting together (`assemble`), the account (`budget`), what goes (`collect`, and `sweep`, pure), who may change it (`gate`), what is unfinished (`drafts`), what starts read first (`heat`) |
//! | `snapshot` | an installed folder as a bundle, and put elsewhere out of one |
//! | `disk` | the durable steps that all of this is made of, before each of which tests kill the process |
//! | `elf`, `executable`, `architecture`, `platform` | what a program needs, what a node has, and why one cannot run on the other |
//! | `manifest` | what a program of Odeon says about itself |
//! | `noise` | bytes for tests, from a seed |
//! | `shares` | who brings which piece when several nodes bring the same (pure) |
//! | `supply`, `reader`, `recording`, `heat` | the order of pieces that readers wait for, expect or do not need yet; reading a file meanwhile; which pieces are read first (pure) |

#![forbid(unsafe_code)]

mod architecture;
mod bundle;
mod digest;
mod disk;
mod elf;
mod executable;
mod heat;
mod listing;
mod manifest;
#[cfg(test)]
mod noise;
mod platform;
mod reader;
mod recording;
mod shares;
mod snapshot;
mod store;
mod supply;

pub use architecture::Architecture;
pub use bundle::{Bundle, BundleError, BundleFile, DecodeError, OfProgramError};
pub use digest::{Digest, DigestError};
pub use disk::DiskError;
pub use executable::{
    Dynamic, Executable, GlibcVersion, GlibcVersionError, InspectError, Libc, NotAProgram,
};
pub use heat::{Heat, HeatOptions, Hot};
pub use listing::{ListError, Listing, ListingError, Piece};
pub use manifest::{ActorEntry, Manifest, ManifestError, MessageEntry, NeedsEntry};
pub use platform::{CannotRun, Loader, Platform};
pub use reader::Reader;
pub use recording::{FirstRead, Recorder, Recording};
pub use shares::Shares;
pub use snapshot::{FolderLook, Snapshot, SnapshotError};
pub use store::{
    AssembleError, Assembled, CollectError, ContentKind, Footprint, Freed, Full, GetError, Put,
    PutError, Recovered, Store, VerifyError,
};
pub use supply::{Arrivals, Supply, SupplyError};
