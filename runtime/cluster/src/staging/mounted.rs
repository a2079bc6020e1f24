//! Bundles that are mounted rather than put together: when a try begins, while it runs, and when it
//! is over.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;

use futures::future::join_all;
use odeon::Blob;
use odeon_artifacts::{Arrivals, Bundle, Digest, Heat, Piece, Shares};
use parking_lot::Mutex;

use super::arriving::{Arriving, Learning, Trouble};
use super::mount::{Mount, MountError};
use super::mounts::{Live, Try};
use super::{Staged, Staging, StagingError, blocking, can_run};

/// Why the files of a bundle are not read while they come.
#[derive(Debug)]
pub(super) enum NotMounted {
    /// Nothing can be mounted here.
    Mount(MountError),
    /// Something that stands in the way of the try.
    Staging(StagingError),
}

impl From<StagingError> for NotMounted {
    fn from(error: StagingError) -> Self {
        Self::Staging(error)
    }
}

impl Staging {
    /// Mounts a bundle, and has what is missing of it brought.
    pub(super) async fn show(
        &self,
        bundle: &Bundle,
        missing: &[Piece],
        heat: &Heat,
        (of, shares): (Try, &Shares),
    ) -> Result<Staged, NotMounted> {
        let (hot, cold) = heat.split(bundle);
        let lacks: BTreeSet<Digest> = missing.iter().map(|it| it.digest).collect();
        let to_come = |pieces: Vec<Piece>| {
            let pieces = pieces.into_iter();
            pieces.filter(|it| lacks.contains(&it.digest))
        };
        let arrivals = Arrivals::expecting(to_come(hot.clone()), to_come(cold), CALM_MAX);
        let arrivals = Arc::new(arrivals);
        let digest = bundle.digest();
        let trouble = Trouble::default();
        let mounting = {
            let (staging, bundle, heat) = (self.clone(), bundle.clone(), heat.clone());
            let (arrivals, trouble) = (Arc::clone(&arrivals), Arc::clone(&trouble));
            move || {
                let (store, window) = (Arc::clone(&staging.store), staging.on_demand.window);
                let place = staging.mounts.place();
                let mount = Mount::new(place.clone(), &bundle, store, arrivals, window)?;
                let learning = Learning {
                    before: heat,
                    recorder: mount.recorder(),
                };
                let live = Live {
                    mount,
                    learning: learning.clone(),
                    trouble,
                    users: BTreeSet::from([of]),
                };
                staging.mounts.enter(bundle.digest(), live);
                Ok((place, learning))
            }
        };
        let mounted = tokio::task::spawn_blocking(mounting).await;
        let mounted = mounted.map_err(|error| StagingError::Disk(error.to_string()))?;
        let (place, learning) = mounted.map_err(NotMounted::Mount)?;
        tracing::info!(
            job = %of.0, bundle = %digest, hot = hot.len(), missing = missing.len(),
            "the files of a job are read while they come"
        );
        let arriving = Arriving {
            staging: self.clone(),
            bundle: bundle.clone(),
            arrivals,
            learning,
            trouble,
            lacking: Mutex::default(),
            shares: shares.clone(),
        };
        tokio::spawn(arriving.run());
        Ok(self.mounted(bundle, place, of).await?)
    }

    /// A bundle that is mounted, if its program can run.
    pub(super) async fn mounted(
        &self,
        bundle: &Bundle,
        place: PathBuf,
        of: Try,
    ) -> Result<Staged, StagingError> {
        let program = place.join(bundle.entry());
        let (staging, entry, path) = (self.clone(), program.clone(), bundle.entry().to_owned());
        let digest = bundle.digest();
        let checked = blocking(move || {
            staging.mounts.hold_head(&digest, &path)?;
            can_run(&entry, Some(FRONT_BYTES))
        });
        checked.await.map_err(|error| match self.trouble(of) {
            Some(said) => StagingError::Lacks(said),
            None => error,
        })?;
        Ok(Staged {
            program,
            folder: place,
            files: bundle.files().map(|(path, _)| path.to_owned()).collect(),
            is_mounted: true,
        })
    }

    /// Which pieces of a large bundle are read first: as this node knows it, else as another does that
    /// has seen the most starts.
    pub(super) async fn heat(
        &self,
        bundle: &Bundle,
        peers: &[String],
    ) -> Result<Option<Heat>, StagingError> {
        if bundle.bytes() <= self.on_demand.above_bytes {
            return Ok(None);
        }
        let (store, digest) = (Arc::clone(&self.store), bundle.digest());
        if let Some(known) = blocking(move || Ok(store.heat(&digest)?)).await? {
            return Ok(Some(known));
        }
        let asked = peers.iter().map(|peer| async move {
            let given = self.givers.heat(peer, digest).await.ok()??;
            let view = given.open().await.ok()?;
            Heat::decode(&view)
        });
        let told = join_all(asked).await.into_iter().flatten();
        let best = told.max_by_key(Heat::starts);
        if let Some(heat) = best.clone() {
            let store = Arc::clone(&self.store);
            blocking(move || Ok(store.set_heat(&digest, &heat)?)).await?;
        }
        Ok(best)
    }

    /// Remembers what was read in a start, with what was known before it.
    pub(super) async fn learn(&self, bundle: Digest, learning: Learning) {
        let store = Arc::clone(&self.store);
        let learnt = blocking(move || {
            learning.write(&store, &bundle)?;
            Ok(())
        });
        if let Err(error) = learnt.await {
            tracing::warn!(%bundle, %error, "what was read first of a job's files is not remembered");
        }
    }

    /// The trouble of a try: what it has waited for in vain.
    pub(crate) fn trouble(&self, of: Try) -> Option<String> {
        self.mounts.trouble(of)
    }

    /// The tries that have files mounted.
    pub(crate) fn tries(&self) -> Vec<Try> {
        self.mounts.tries()
    }

    /// Takes away all mounts, since no process is left that could use them.
    pub(crate) async fn close(&self) {
        self.take_away(self.mounts.close()).await;
    }

    pub(super) async fn take_away(&self, mounts: Vec<(Digest, Live)>) {
        for (bundle, live) in mounts {
            self.learn(bundle, live.learning.clone()).await;
            // It is unmounted when it drops.
            let gone = blocking(move || {
                drop(live);
                Ok(())
            });
            if let Err(error) = gone.await {
                tracing::warn!(%bundle, %error, "a mount may stay");
            }
        }
    }

    /// The heat that is known here of a bundle, for another node.
    pub(crate) async fn give_heat(&self, digest: Digest) -> Option<Blob> {
        let store = Arc::clone(&self.store);
        let heat = blocking(move || Ok(store.heat(&digest)?)).await;
        let bytes = heat.ok().flatten()?.encode();
        self.system.blobs().copy_in(&bytes).ok()
    }
}

/// Pieces that are fetched at once while nobody waits for them: few, so that what somebody waits for
/// has the link for itself a moment later.
const CALM_MAX: usize = 4;
/// Where a program that is not all here is looked at for what it says of itself. Linkers put that
/// before the code.
const FRONT_BYTES: u64 = 8 << 20;
