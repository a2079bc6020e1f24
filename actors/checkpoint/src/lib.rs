//! Checkpoints that load in any layout.
//!
//! ```text
//!  Local: boxes and flat ranges ─┐                        ┌─> rank-00000-000.safetensors, ...
//!  Source: heap, device ─────────┼─ Checkpointer::save ───┼─> rank-00000-000.blob
//!  Ranks: whoever carries bytes ─┘   returns here ^       └─> manifest.json, last
//!
//!  Local of any other layout ────── Checkpointer::load ────── Target
//! ```
//!
//! A checkpoint (ByteCheckpoint, arXiv 2407.20143) says of each byte which box of which tensor it
//! is, and nothing of who wrote it: tensor, pipeline, data parallelism and ZeRO at the load are
//! whatever they are then. A rank says what it has ([`Local`]), and [`Checkpointer::save`] keeps it
//! waiting for a copy of its share of that into a [`pool`]. All else goes on by itself, and the
//! checkpoint is there when its [`manifest`] is. [`Checkpointer::load`] has each byte read by one
//! rank, checked, and given to all that want it.
//!
//! Not here: actors, collectives, devices. Boxes are those of [`odeon_algorithms::parallel`].
//!
//! # Files
//!
//! | file | holds |
//! | --- | --- |
//! | `checkpointer` | a rank's end |
//! | `save`, `save/writing` | taking a snapshot; what goes on by itself then: files, checksums, the manifest |
//! | `load`, `load/orders`, `load/shares` | loading; finding a checkpoint, and who reads what of it; reading and giving a rank's share |
//! | `local`, [`pool`], `stage` | what a rank has, and where its bytes are copied from and to; memory of snapshots; how long stages take |
//! | [`plan`], `plan/*` | who writes (`save`) and reads (`load`) what, from what all have (`census`); who talks to whom (`tree`). Pure |
//! | [`ranks`], `ranks/within` | what crosses ranks, over whatever the caller has, and what all agree on by it; ranks of one process |
//! | [`manifest`], `file` | the metadata file; which box lies where in a rank's files. Pure |
//! | [`storage`], `storage/error`, [`commit`] | folders and buckets, with tries; errors told apart by the remedy; which checkpoints a place holds, which is in force, which go |
//! | `assemble`, `opened` | boxes put together from blocks; a checkpoint that is read by names |
//! | [`verify`](mod@verify), [`export`](mod@export), [`reshard`](mod@reshard) | whole checkpoints: read, given to others, cut anew |
//! | [`loader_state`] | readers of data loaders that become more or fewer. Pure |
//! | [`peers`] | checkpoints in the memory of neighbours |
//! | [`recovery`] | what failures cost. Pure |
//!
//! # Example
//!
//! Two ranks save halves of a tensor, and one rank loads all of it:
//!
//! ```
//! use std::sync::Arc;
//!
//! use odeon_checkpoint::{
//!     Buffers, Checkpointer, Dtype, Held, Load, Local, LocalTensor, MODEL, Options, Save, Storage,
//!     within,
//! };
//!
//! # let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
//! # runtime.block_on(async {
//! let part = |range| {
//!     let mut local = Local::default();
//!     let tensor = LocalTensor {
//!         name: "w".into(),
//!         dtype: Dtype::U8,
//!         shape: vec![3, 2],
//!         held: Held::Flat(range),
//!     };
//!     local.add("actor", MODEL, vec![tensor]).map(|()| local)
//! };
//! let storage = Storage::memory();
//! let ranks = within(2).into_iter().enumerate().map(|(rank, ranks)| {
//!     let mut rank_end = Checkpointer::new(storage.clone(), Arc::new(ranks), Options::default());
//!     let local = part(rank * 3..rank * 3 + 3);
//!     tokio::spawn(async move {
//!         let save = Save { step: 7, local: local?, ..Save::default() };
//!         let saving = rank_end.save(save, &vec![vec![rank as u8; 3]]).await?;
//!         Ok::<_, Box<dyn std::error::Error + Send + Sync>>(saving.wait().await?)
//!     })
//! });
//! for saved in futures::future::join_all(ranks).await {
//!     saved??;
//! }
//!
//! let alone = within(1).remove(0);
//! let mut rank = Checkpointer::new(storage, Arc::new(alone), Options::default());
//! let local = part(0..6)?;
//! let buffers = Arc::new(Buffers::zeroed(&local));
//! rank.load(Load { local, ..Load::default() }, &buffers).await?;
//! let filled = Arc::try_unwrap(buffers).map_err(|_| "still in use")?.into_inner();
//! assert_eq!(filled, [[0, 0, 0, 1, 1, 1]]);
//! # Ok::<_, Box<dyn std::error::Error + Send + Sync>>(())
//! # })
//! # .map_err(|error| error.to_string())?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#![forbid(unsafe_code)]

mod assemble;
mod checkpointer;
pub mod commit;
pub mod export;
mod file;
mod load;
pub mod loader_state;
mod local;
pub mod manifest;
mod opened;
pub mod peers;
pub mod plan;
pub mod pool;
pub mod ranks;
pub mod recovery;
pub mod reshard;
mod save;
pub mod stage;
pub mod storage;
pub mod verify;

pub use self::assemble::AssembleError;
pub use self::checkpointer::{Checkpointer, Options};
pub use self::commit::{Entry, Retention, Which};
pub use self::load::{Load, LoadError, Loaded, WantedReader};
pub use self::local::{
    Buffers, Held, Local, LocalError, LocalTensor, MODEL, Source, Target, TensorName,
};
pub use self::manifest::Manifest;
pub use self::opened::Opened;
pub use self::peers::Peers;
pub use self::ranks::{Ranks, RanksError, within};
pub use self::save::{Keep, Save, SaveError, Saved, SavedReader, Saving};
pub use self::storage::{Storage, StorageError};
pub use safetensors::Dtype;
