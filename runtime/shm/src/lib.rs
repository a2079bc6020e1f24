//! Bulk bytes in shared memory: written once in an [`Arena`], read in place by every process of the
//! machine.
//!
//! ```text
//!  owner process                                     reader process
//!  Arena ── writer(len) ──> BlobWriter (&mut [u8])
//!                               │ seal()
//!                           Region (&[u8], shared) ── name() ── message ──> Mapper ── map() ──> Mapped (&[u8])
//!                               │                                              one mmap per slab, kept
//!                           slab: sealed memfd  <────── /proc/<pid>/fd/<fd> ───────┘
//! ```
//!
//! - A [`Region`] lives in a *slab*, a memfd that is mapped once and pooled: a fresh memfd pays for
//!   page faults and zeroing at every use, a pooled one runs at memcpy speed.
//! - A [`RegionName`] is small and serialisable; handing a region over means sending its name. The
//!   bytes are never copied.
//! - [`Leases`] is the owner's book of who still reads what. It is pure: the engine tells it of
//!   grants, releases and deaths, and drops the [`Region`]s that it gives back.
//! - A [`Ledger`] is one quota that several processes share.
//! - A [`Gang`] is memory in which the ranks of a node do collectives: windows and queues, with
//!   waiting that notices when a process dies.
//! - A [`FlowLog`] records how far the collectives of a process have got, for others to read.
//! - [`keep_open`] and [`take_open`]: descriptors that pass to the program which this process becomes.
//!
//! What this crate does not know: messages, links, actors, tokio. Everything is synchronous, and
//! only the first use of memory (its page faults) takes longer than microseconds.
//!
//! # Trust
//!
//! A reader never faults on bytes that a peer took away: it maps a slab only when size and content
//! are sealed (`F_SEAL_SHRINK`, `F_SEAL_GROW`, `F_SEAL_FUTURE_WRITE`, `F_SEAL_SEAL`) and a name
//! lies inside. Readers can't write at all. What no seal can give is that the *owner* leaves a
//! region alone after sealing it; [`Arena`] guarantees this for its own process, and processes that
//! run other code under the same user are trusted in this one point.
//!
//! # Example
//!
//! ```
//! use odeon_shm::{Arena, ArenaOptions, Mapper};
//!
//! let arena = Arena::new(ArenaOptions::default());
//! let mut writer = arena.writer(5)?;
//! writer.copy_from_slice(b"hello");
//! let region = writer.seal();
//!
//! // In any process of this machine and user, while `region` is kept alive:
//! let mapped = Mapper::new().map(&region.name())?;
//! assert_eq!(&mapped[..], b"hello");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Files
//!
//! | file | holds |
//! | --- | --- |
//! | `arena`, `slab`, `space` | regions in pooled slabs within a quota; one sealed memfd; its free and used bytes (pure) |
//! | `name`, `mapper` | the name of a region; reading regions of other processes in place |
//! | `leases`, `ledger` | the owner's book of readers (pure); one quota for several processes |
//! | `gang` | memory in which ranks do collectives, and waiting in it |
//! | `flows` | records of how far collectives have got, which outlive the process that writes them |
//! | `mapping`, `descriptor` | a memfd mapped into this process; descriptors that the next program of this process takes over |

mod arena;
mod descriptor;
mod flows;
mod gang;
mod leases;
mod ledger;
mod mapper;
mod mapping;
mod name;
mod slab;
mod space;

pub use arena::{Align, Arena, ArenaError, ArenaOptions, ArenaStats, BlobWriter, Region};
pub use descriptor::{keep_open, take_open};
pub use flows::{FlowLog, FlowLogName, FlowReader, FlowWriter};
pub use gang::{Bell, Gang, GangName, GangOptions, JoinError, Member};
pub use leases::{Leases, NotHeld};
pub use ledger::{LEDGER_SLOTS, Ledger, LedgerName};
pub use mapper::{MapError, Mapped, Mapper, MapperStats};
pub use name::RegionName;
