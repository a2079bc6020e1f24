//! Bringing a job's files to a node: pieces from whoever has them, checked and put together, and a
//! folder for the job to work in. Where much is missing, they are mounted and read while they come.

use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use odeon::{Blob, Clock, System};
use odeon_artifacts::{
    AssembleError, Bundle, Digest, DiskError, Executable, Footprint, GetError, Heat, Manifest,
    ManifestError, Piece, Platform, PutError, Shares, Store, VerifyError,
};
use parking_lot::Mutex;
use thiserror::Error;

mod arriving;
pub(crate) mod demand;
pub(crate) mod environments;
pub(crate) mod givers;
mod mount;
mod mounted;
mod mounts;
pub(crate) mod stale;
mod tree;

use demand::{Holding, OnDemand};
use environments::Environments;
use givers::Givers;
use mounted::NotMounted;
use mounts::{Mounts, Try};

use crate::catalog::Catalog;
use crate::job::JobId;
use crate::own_program;
use crate::tables::NodeState;
use crate::unix::Unix;

/// Brings files of jobs to one node and keeps them. Clones share the store.
#[derive(Clone, Debug)]
pub(crate) struct Staging {
    system: System,
    catalog: Catalog,
    node: String,
    givers: Arc<dyn Givers>,
    store: Arc<Store>,
    jobs: PathBuf,
    on_demand: OnDemand,
    mounts: Arc<Mounts>,
    environments: Arc<Environments>,
    /// The node that gave a piece last.
    giver: Arc<Mutex<Option<String>>>,
    /// Bundles that are being brought: one at a time each.
    turns: Arc<Mutex<BTreeMap<Digest, Arc<tokio::sync::Mutex<()>>>>>,
}

/// A bundle that is here.
#[derive(Clone, Debug)]
pub(crate) struct Staged {
    pub(crate) program: PathBuf,
    folder: PathBuf,
    files: Vec<String>,
    /// Set where they are read while they come.
    pub(crate) is_mounted: bool,
}

/// Why a job's files cannot be used here.
#[derive(Debug, Error)]
pub(crate) enum StagingError {
    /// Nobody has them.
    #[error(
        "{missing} of {all} pieces of its files are nowhere whole on a node that is up (asked were {asked}): submit it again, and they travel again"
    )]
    Nowhere {
        missing: usize,
        all: usize,
        asked: String,
    },
    #[error("what its files are is known to no node that is up")]
    Unlisted,
    /// A piece that is read before the program runs.
    #[error("{0}")]
    Lacks(String),
    #[error("its files are not what they were submitted as: {0}")]
    Wrong(String),
    #[error("{0}")]
    Unfit(String),
    #[error("{0}")]
    Environment(String),
    /// The command that makes its environment has failed, for whoever waits for it.
    #[error("{0}")]
    Setup(String),
    #[error("the disk of its node: {0}")]
    Disk(String),
}

impl StagingError {
    /// Returns true where another try cannot help.
    pub(crate) const fn is_final(&self) -> bool {
        matches!(self, Self::Wrong(_) | Self::Unfit(_))
    }
}

impl From<DiskError> for StagingError {
    fn from(error: DiskError) -> Self {
        Self::Disk(error.to_string())
    }
}

/// The time for which the files of an upload stay that nobody has made a job of.
pub const UPLOAD_TIME: Duration = Duration::from_secs(3600);

/// Pieces that are asked for at once.
const BATCH: usize = 16;
/// Batches under way at once.
const BATCHES: usize = 4;
/// The most looks at nodes that bring the same in which nothing new comes, before it is fetched from whoever has it.
const SHARE_ROUNDS_IDLE: usize = 40;
/// The pause after such a look.
const SHARE_PAUSE: Duration = Duration::from_millis(50);

/// The places in a daemon's folder for the files of jobs.
#[derive(Debug)]
pub(crate) struct Places {
    /// The pieces.
    pub(crate) store: Store,
    /// Where jobs work.
    pub(crate) jobs: PathBuf,
    /// Where their files are mounted.
    pub(crate) mounts: PathBuf,
    /// Where their environments are.
    pub(crate) environments: PathBuf,
    /// Set for the next program of a daemon's process: tries of before go on.
    pub(crate) goes_on: bool,
}

impl Staging {
    /// Makes it, and takes away what a daemon before this one has left mounted.
    pub(crate) fn new(
        system: System,
        node: &str,
        catalog: Catalog,
        givers: Arc<dyn Givers>,
        places: Places,
        on_demand: OnDemand,
    ) -> std::io::Result<Self> {
        Ok(Self {
            system,
            catalog,
            node: node.to_owned(),
            givers,
            store: Arc::new(places.store),
            jobs: places.jobs,
            on_demand,
            mounts: Arc::new(Mounts::open(places.mounts)?),
            environments: Arc::new(Environments::open(places.environments, places.goes_on)?),
            giver: Arc::default(),
            turns: Arc::default(),
        })
    }

    pub(crate) const fn store(&self) -> &Arc<Store> {
        &self.store
    }

    /// Where jobs work: on the disk of the daemon's folder.
    pub(crate) fn jobs(&self) -> &Path {
        &self.jobs
    }

    /// The environments of jobs here.
    pub(crate) const fn environments(&self) -> &Arc<Environments> {
        &self.environments
    }

    /// The other nodes that are up; voters first, which have the files of all jobs.
    pub(crate) fn peers(&self) -> Vec<String> {
        let nodes = self.catalog.nodes().into_iter();
        let up = nodes.filter(|row| row.state == NodeState::Up);
        let names = up.map(|row| row.spec.name);
        let mut peers: Vec<String> = names.filter(|name| *name != self.node).collect();
        let voters = self.catalog.voters();
        peers.sort_by_key(|peer| !voters.contains(peer));
        peers
    }

    /// The same, first the one that gave a piece last.
    fn sources(&self) -> Vec<String> {
        let mut peers = self.peers();
        let giver = self.giver.lock().clone();
        peers.sort_by_key(|peer| Some(peer) != giver.as_ref());
        peers
    }

    fn prefer(&self, peer: String) {
        *self.giver.lock() = Some(peer);
    }

    /// Has a bundle ready to run here for a try: checked and put together, or mounted, so that each
    /// piece is checked before it is read (SEMANTICS 55).
    pub(crate) async fn bring(
        &self,
        digest: Digest,
        of: Try,
        shares: &Shares,
    ) -> Result<Staged, StagingError> {
        let turn = Arc::clone(self.turns.lock().entry(digest).or_default());
        let held = turn.lock().await;
        let outcome = self.bring_alone(digest, of, shares).await;
        drop(held);
        self.turns
            .lock()
            .retain(|_, turn| Arc::strong_count(turn) > 1);
        outcome
    }

    async fn bring_alone(
        &self,
        digest: Digest,
        of: Try,
        shares: &Shares,
    ) -> Result<Staged, StagingError> {
        let peers = self.peers();
        let bundle = self.bundle(digest, &peers).await?;
        // A try goes on with what it began with, and a new one with what is whole.
        let may_be_new = !self.store.has_assembled(&digest);
        if let Some(place) = self.mounts.join(&digest, of, may_be_new) {
            return self.mounted(&bundle, place, of).await;
        }
        let heat = self.heat(&bundle, &peers).await?;
        let missing = self.missing_beside_own(&bundle).await?;
        let holding = Holding {
            bytes: bundle.bytes(),
            missing: missing.iter().map(|it| u64::from(it.bytes)).sum(),
            is_assembled: self.store.has_assembled(&digest),
            is_known: heat.is_some(),
        };
        let heat = heat.unwrap_or_default();
        if self.on_demand.is_worth(holding) {
            if let Some(place) = self.mounts.join(&digest, of, true) {
                return self.mounted(&bundle, place, of).await;
            }
            match self.show(&bundle, &missing, &heat, (of, shares)).await {
                Ok(staged) => return Ok(staged),
                Err(NotMounted::Staging(error)) => return Err(error),
                Err(NotMounted::Mount(error)) => tracing::info!(
                    job = %of.0, bytes = holding.missing, %error,
                    "nothing can be mounted here, so all files of a job are brought before it starts"
                ),
            }
        }
        self.bring_whole(&bundle, &heat, &peers, shares).await
    }

    /// Has all of a bundle here, checked and put together.
    async fn bring_whole(
        &self,
        bundle: &Bundle,
        heat: &Heat,
        peers: &[String],
        shares: &Shares,
    ) -> Result<Staged, StagingError> {
        for _ in 0..TRIES {
            let (store, known) = (Arc::clone(&self.store), bundle.clone());
            let assembled = blocking(move || {
                let now = moment();
                match store.assemble(&known, now) {
                    // What was put together before is read again before it runs.
                    Ok(assembled) => match store.verify(&known) {
                        Ok(()) => Ok(Some(assembled)),
                        Err(VerifyError::Disk(error)) => Err(error.into()),
                        Err(error) => {
                            tracing::warn!(%error, "a job's files are put together anew");
                            scrub(&store, &known)
                        }
                    },
                    Err(AssembleError::Lacks(_)) => scrub(&store, &known),
                    Err(AssembleError::Full(full)) => Err(StagingError::Disk(full.to_string())),
                    Err(AssembleError::Disk(error)) => Err(error.into()),
                    Err(error) => Err(StagingError::Wrong(error.to_string())),
                }
            });
            if let Some(assembled) = assembled.await? {
                let entry = assembled.entry.clone();
                blocking(move || can_run(&entry, None)).await?;
                return Ok(Staged {
                    program: assembled.entry,
                    folder: assembled.folder,
                    files: bundle.files().map(|(path, _)| path.to_owned()).collect(),
                    is_mounted: false,
                });
            }
            self.fetch_shared(bundle, heat, peers, shares).await?;
            self.fetch_missing(bundle, heat, peers).await?;
        }
        let why = format!("they were damaged {TRIES} times in a row");
        Err(StagingError::Disk(why))
    }

    /// Has the pieces of a bundle here for a while, without putting them together. When the disk does
    /// not take them, none stay.
    pub(crate) async fn keep(
        &self,
        digest: Digest,
        peers: &[String],
        shares: &Shares,
    ) -> Result<(), StagingError> {
        let bundle = self.bundle(digest, peers).await?;
        let (store, pinned) = (Arc::clone(&self.store), bundle.clone());
        let until = moment() + UPLOAD_TIME;
        blocking(move || Ok(store.pin(&pinned, until)?)).await?;
        let heat = Heat::default();
        let mut kept = self.fetch_shared(&bundle, &heat, peers, shares).await;
        if kept.is_ok() {
            kept = self.fetch_missing(&bundle, &heat, peers).await;
        }
        if matches!(kept, Err(StagingError::Disk(_))) {
            self.collect(Footprint::default()).await;
            kept = self.fetch_missing(&bundle, &heat, peers).await;
        }
        if matches!(kept, Err(StagingError::Disk(_))) {
            let store = Arc::clone(&self.store);
            blocking(move || Ok(store.unpin(&digest)?)).await?;
            self.collect(Footprint::default()).await;
        }
        kept
    }

    /// Removes files that no job needs, until no more than this is left or all are.
    pub(crate) async fn collect(&self, down_to: Footprint) {
        let Some(live) = self.catalog.live_bundles().await else {
            return;
        };
        let store = Arc::clone(&self.store);
        let collected = tokio::task::spawn_blocking(move || {
            let kept = store.bundles()?;
            let live: Vec<_> = live.into_iter().filter(|it| kept.contains(it)).collect();
            store.collect(&live, down_to, moment())
        });
        match collected.await {
            Ok(Ok(freed)) => tracing::debug!(?freed, "files that no job needs were removed"),
            Ok(Err(error)) => tracing::warn!(%error, "files of jobs cannot be removed"),
            Err(error) => tracing::warn!(%error, "files of jobs cannot be removed"),
        }
    }

    async fn bundle(&self, digest: Digest, peers: &[String]) -> Result<Bundle, StagingError> {
        let store = Arc::clone(&self.store);
        let here = blocking(move || match store.bundle(&digest) {
            Ok(bundle) => Ok(Some(bundle)),
            Err(GetError::Disk(error)) => Err(error.into()),
            Err(_) => Ok(None),
        });
        if let Some(bundle) = here.await? {
            return Ok(bundle);
        }
        for peer in peers {
            let Ok(Some(blob)) = self.givers.bundle(peer, digest).await else {
                continue;
            };
            let Ok(view) = blob.open().await else {
                continue;
            };
            if Digest::of(&view) != digest {
                tracing::warn!(node = peer, %digest, "a node gave another listing than was asked for");
                continue;
            }
            let bundle = Bundle::decode(&view).map_err(|e| StagingError::Wrong(e.to_string()))?;
            let (store, known) = (Arc::clone(&self.store), bundle.clone());
            blocking(move || store.keep(&known).map_err(StagingError::from)).await?;
            return Ok(bundle);
        }
        Err(StagingError::Unlisted)
    }

    /// Fetches what nodes that bring the same bundle at the same time have shared out among themselves: the share of
    /// this one from whoever had the bundle before, then the others' shares from them, as these come to have them. What
    /// does not come so is left.
    async fn fetch_shared(
        &self,
        bundle: &Bundle,
        heat: &Heat,
        peers: &[String],
        shares: &Shares,
    ) -> Result<(), StagingError> {
        let mut missing = self.missing_in_order(bundle, heat).await?;
        if shares.is_alone() || missing.is_empty() {
            return Ok(());
        }
        for peer in peers {
            let (own, _) = shares.split(&missing);
            if own.is_empty() {
                break;
            }
            self.fetch_all(vec![(peer.clone(), own)]).await?;
            missing = self.missing_in_order(bundle, heat).await?;
        }
        let mut idle = 0;
        while idle < SHARE_ROUNDS_IDLE {
            let before = missing.len();
            let (_, others) = shares.split(&missing);
            let mut others: Vec<_> = others
                .into_iter()
                .map(|(node, share)| (node.to_owned(), share))
                .collect();
            // Not all nodes begin with the same one.
            others.sort_by_key(|(node, _)| Digest::of(format!("{} {node}", self.node).as_bytes()));
            self.fetch_all(others).await?;
            missing = self.missing_in_order(bundle, heat).await?;
            if shares.split(&missing).1.is_empty() {
                break;
            }
            if missing.len() == before {
                idle += 1;
                Clock::sleep(SHARE_PAUSE).await;
            }
        }
        Ok(())
    }

    /// Fetches pieces, each from its node, several batches at a time.
    async fn fetch_all(&self, shares: Vec<(String, Vec<Piece>)>) -> Result<(), StagingError> {
        let batches = shares.into_iter().flat_map(|(node, share)| {
            let batches = share.chunks(BATCH).map(<[Piece]>::to_vec);
            let batches: Vec<_> = batches.map(|batch| (node.clone(), batch)).collect();
            batches
        });
        let fetching = futures::stream::iter(batches)
            .map(|(node, batch)| async move { self.fetch(&node, &batch).await })
            .buffer_unordered(BATCHES);
        let outcomes: Vec<_> = fetching.collect().await;
        outcomes.into_iter().collect()
    }

    /// What is missing of a bundle, in the order in which starts read it.
    async fn missing_in_order(
        &self,
        bundle: &Bundle,
        heat: &Heat,
    ) -> Result<Vec<Piece>, StagingError> {
        let (hot, cold) = heat.split(bundle);
        let order = hot.iter().chain(&cold).map(|it| it.digest);
        let rank: HashMap<Digest, usize> = order.zip(0..).collect();
        let mut missing = self.missing(bundle).await?;
        missing.sort_by_key(|it| rank.get(&it.digest).copied());
        Ok(missing)
    }

    /// Fetches what is missing of a bundle, from one node after the other.
    async fn fetch_missing(
        &self,
        bundle: &Bundle,
        heat: &Heat,
        peers: &[String],
    ) -> Result<(), StagingError> {
        let mut missing = self.missing_in_order(bundle, heat).await?;
        for peer in peers {
            if missing.is_empty() {
                return Ok(());
            }
            self.fetch_all(vec![(peer.clone(), missing)]).await?;
            missing = self.missing(bundle).await?;
        }
        if missing.is_empty() {
            return Ok(());
        }
        Err(StagingError::Nowhere {
            missing: missing.len(),
            all: bundle.pieces().count(),
            asked: match peers {
                [] => "none, since there is no other".to_owned(),
                peers => peers.join(", "),
            },
        })
    }

    pub(crate) async fn missing(&self, bundle: &Bundle) -> Result<Vec<Piece>, StagingError> {
        let (store, bundle) = (Arc::clone(&self.store), bundle.clone());
        blocking(move || Ok(store.missing(bundle.pieces())?)).await
    }

    /// What is missing once the program of this process has given what is its own, too.
    async fn missing_beside_own(&self, bundle: &Bundle) -> Result<Vec<Piece>, StagingError> {
        let (store, bundle) = (Arc::clone(&self.store), bundle.clone());
        blocking(move || {
            let missing = store.missing(bundle.pieces())?;
            match own_program::put_own(&store, &bundle, &missing, moment()) {
                0 => Ok(missing),
                _ => Ok(store.missing(bundle.pieces())?),
            }
        })
        .await
    }

    async fn has(&self, piece: &Piece) -> Result<bool, StagingError> {
        let (store, piece) = (Arc::clone(&self.store), *piece);
        blocking(move || Ok(store.missing([&piece])?.is_empty())).await
    }

    /// Fetches pieces from one node: those that it has, and that arrive whole.
    async fn fetch(&self, peer: &str, pieces: &[Piece]) -> Result<(), StagingError> {
        let digests: Vec<Digest> = pieces.iter().map(|piece| piece.digest).collect();
        let given = match self.givers.pieces(peer, &digests).await {
            Ok(given) => given,
            Err(why) => {
                tracing::debug!(node = peer, why, "a node gave no pieces");
                return Ok(());
            }
        };
        for (digest, blob) in digests.into_iter().zip(given) {
            let Some(blob) = blob else { continue };
            let Ok(view) = blob.open().await else {
                continue;
            };
            let store = Arc::clone(&self.store);
            let kept = blocking(move || match store.put(&digest, &view, moment()) {
                Ok(_) => Ok(None),
                Err(PutError::Full(full)) => Err(StagingError::Disk(full.to_string())),
                Err(PutError::Disk(error)) => Err(error.into()),
                Err(error) => Ok(Some(error)),
            });
            if let Some(error) = kept.await? {
                tracing::warn!(node = peer, %error, "a node gave a damaged piece");
            }
        }
        Ok(())
    }

    /// The bytes of pieces that are here, for another node.
    pub(crate) async fn give(&self, digests: &[Digest]) -> Vec<Option<Blob>> {
        let mut blobs = Vec::with_capacity(digests.len());
        for digest in digests {
            let (store, digest) = (Arc::clone(&self.store), *digest);
            let bytes = blocking(move || Ok(store.get(&digest).ok())).await;
            let bytes = bytes.ok().flatten();
            blobs.push(bytes.and_then(|bytes| self.system.blobs().copy_in(&bytes).ok()));
        }
        blobs
    }

    /// The pieces of a bundle, for another node.
    pub(crate) async fn give_bundle(&self, digest: Digest) -> Option<Blob> {
        let store = Arc::clone(&self.store);
        let bundle = blocking(move || Ok(store.bundle(&digest).ok())).await;
        let bytes = bundle.ok().flatten()?.encode();
        self.system.blobs().copy_in(&bytes).ok()
    }

    /// The folder that a try works in on this node: its own, with links to its files, and those of its own.
    pub(crate) fn folder_for(
        &self,
        job: JobId,
        attempt: u32,
        staged: &Staged,
        links: &BTreeMap<String, String>,
    ) -> Result<PathBuf, StagingError> {
        let folder = self.folder_of(job, attempt);
        let made = || -> std::io::Result<()> {
            std::fs::create_dir_all(&folder)?;
            let link = |name: &str, target: &Path| {
                let link = folder.join(name);
                if let Some(parent) = link.parent() {
                    std::fs::create_dir_all(parent)?;
                }
                match std::os::unix::fs::symlink(target, &link) {
                    Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => Ok(()),
                    made => made,
                }
            };
            for file in &staged.files {
                link(file, &staged.folder.join(file))?;
            }
            for (name, target) in links {
                link(name, Path::new(target))?;
            }
            Ok(())
        };
        let failed = |error| StagingError::Disk(format!("{}: {error}", folder.display()));
        made().map_err(failed)?;
        Ok(folder)
    }

    /// The tries that have something here: a folder, files that are mounted, or an environment.
    pub(crate) async fn kept(&self) -> Vec<Try> {
        let folder = self.jobs.clone();
        let listed = blocking(move || {
            let entries = std::fs::read_dir(&folder).into_iter().flatten().flatten();
            let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
            let tries = names.filter_map(|name| {
                let (job, attempt) = name.split_once('.')?;
                Some((job.parse().ok()?, attempt.parse().ok()?))
            });
            Ok(tries.collect::<Vec<Try>>())
        });
        let mut kept = listed.await.unwrap_or_default();
        kept.extend(self.tries());
        kept.extend(self.environments.tries());
        kept.sort_unstable();
        kept.dedup();
        kept
    }

    /// Where a try works.
    pub(crate) fn folder_of(&self, job: JobId, attempt: u32) -> PathBuf {
        self.jobs.join(format!("{job}.{attempt}"))
    }

    /// Removes the folder of a try, and what is mounted for it alone.
    pub(crate) async fn clear(&self, job: JobId, attempt: u32) {
        self.take_away(self.mounts.leave((job, attempt))).await;
        let folder = self.folder_of(job, attempt);
        let environments = Arc::clone(&self.environments);
        let removed = blocking(move || {
            environments.release((job, attempt));
            Ok(remove_folder(&folder))
        });
        let removed = removed.await;
        if let Ok(Err(error)) = removed {
            tracing::warn!(%job, %error, "the folder of a job cannot be removed");
        }
    }
}

/// Checks that this node can run a program. What it says of itself is looked for in so many bytes
/// at its front, or in all of it: of one that has it further back, its processes are refused when
/// they say which version they speak.
fn can_run(program: &Path, front: Option<u64>) -> Result<(), StagingError> {
    let cannot = |why: String| StagingError::Unfit(why);
    let executable = Executable::inspect(program).map_err(|error| cannot(error.to_string()))?;
    let fits = Platform::here().can_run(&executable);
    fits.map_err(|error| cannot(error.to_string()))?;
    let found = match front {
        None => Manifest::read(program),
        Some(bytes) => File::open(program)
            .map_err(ManifestError::from)
            .and_then(|file| Manifest::find(file.take(bytes))),
    };
    match found {
        Ok(manifest) if manifest.wire != odeon::WIRE_VERSION => Err(cannot(format!(
            "it was built with odeon {}, whose processes speak version {} to each other; this node \
             is of odeon {} and speaks {}: build it with the cluster's release",
            manifest.odeon,
            manifest.wire,
            env!("CARGO_PKG_VERSION"),
            odeon::WIRE_VERSION
        ))),
        // A program that is none of Odeon runs too; it has a driver and no actors.
        Ok(_) | Err(ManifestError::NotOdeon) => Ok(()),
        Err(error) => Err(cannot(error.to_string())),
    }
}

/// Removes damaged pieces: where there is one, there may be more.
fn scrub<T>(store: &Store, bundle: &Bundle) -> Result<Option<T>, StagingError> {
    let damaged = store.scrub(bundle)?;
    if damaged > 0 {
        tracing::warn!(damaged, "damaged pieces of a job's files are brought again");
    }
    Ok(None)
}

/// The most times that damaged pieces are fetched again.
const TRIES: usize = 3;
fn remove_folder(folder: &Path) -> std::io::Result<()> {
    match std::fs::remove_dir_all(folder) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Now, as files know it.
pub(crate) fn moment() -> std::time::SystemTime {
    std::time::UNIX_EPOCH + Duration::from_millis(Unix::now().0)
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, StagingError> + Send + 'static,
) -> Result<T, StagingError> {
    let done = tokio::task::spawn_blocking(work).await;
    done.unwrap_or_else(|error| Err(StagingError::Disk(error.to_string())))
}
