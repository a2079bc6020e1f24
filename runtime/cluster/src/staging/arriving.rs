//! Bringing what a mounted bundle lacks: what is read first, then the rest, until all is here and can
//! be put together.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use futures::stream::FuturesUnordered;
use odeon::{Clock, Timestamp};
use odeon_artifacts::{
    Arrivals, Bundle, BundleFile, Digest, DiskError, Heat, Piece, Recorder, Shares, Store,
};
use parking_lot::Mutex;
use tokio::sync::mpsc;

use super::{Staging, StagingError, blocking, moment};

/// A mounted bundle whose pieces are still being brought.
#[derive(Debug)]
pub(super) struct Arriving {
    pub(super) staging: Staging,
    pub(super) bundle: Bundle,
    pub(super) arrivals: Arc<Arrivals>,
    pub(super) learning: Learning,
    pub(super) trouble: Trouble,
    /// Since when somebody waits for a piece that no node gives.
    pub(super) lacking: Mutex<HashMap<Digest, Timestamp>>,
    /// The nodes that bring the same at the same time.
    pub(super) shares: Shares,
}

/// A piece that somebody waited for in vain, and why it did not come.
pub(super) type Trouble = Arc<Mutex<Option<(Digest, String)>>>;

/// The heat of a bundle before a start, and the recorder of that start.
#[derive(Clone, Debug)]
pub(super) struct Learning {
    /// The heat that was known before it.
    pub(super) before: Heat,
    pub(super) recorder: Arc<Mutex<Recorder>>,
}

impl Learning {
    /// Keeps it with the bundle. Blocks its thread.
    pub(super) fn write(&self, store: &Store, bundle: &Digest) -> Result<(), DiskError> {
        let recording = self.recorder.lock().recording().clone();
        if recording.reads.is_empty() {
            return Ok(());
        }
        let mut heat = self.before.clone();
        heat.learn([recording]);
        store.set_heat(bundle, &heat)
    }
}

/// The pause before nodes are asked again for a piece that none of them has.
const PAUSE: Duration = Duration::from_millis(500);

impl Arriving {
    /// Goes on until the arrivals are stopped.
    pub(super) async fn run(self) {
        let (give, mut next) = mpsc::unbounded_channel();
        let arrivals = Arc::clone(&self.arrivals);
        let take = move || {
            while let Some(piece) = arrivals.next() {
                // Who takes them goes when the daemon does.
                if give.send(piece).is_err() {
                    return;
                }
            }
        };
        let thread = std::thread::Builder::new().name("odeon-pieces".to_owned());
        if let Err(error) = thread.spawn(take) {
            self.give_up(None, format!("the node can start no thread: {error}"));
            return self.arrivals.stop();
        }
        let mut is_whole = false;
        let mut under_way = FuturesUnordered::new();
        let window = Clock::sleep(self.staging.on_demand.window);
        tokio::pin!(window);
        let mut is_learnt = false;
        loop {
            if !is_whole && self.arrivals.is_idle() {
                is_whole = self.put_together().await;
            }
            tokio::select! {
                piece = next.recv() => match piece {
                    Some(piece) => under_way.push(self.bring(piece)),
                    None => return,
                },
                Some(()) = under_way.next(), if !under_way.is_empty() => {}
                () = &mut window, if !is_learnt => {
                    is_learnt = true;
                    self.staging.learn(self.bundle.digest(), self.learning.clone()).await;
                }
            }
        }
    }

    /// Brings one piece, or says that it does not come.
    async fn bring(&self, piece: Piece) {
        match self.fetch(&piece).await {
            Ok(true) => {
                self.lacking.lock().remove(&piece.digest);
                self.trouble.lock().take_if(|it| it.0 == piece.digest);
                tracing::trace!(
                    node = self.staging.node, bundle = %self.bundle.digest(), piece = %piece.digest,
                    "a piece has come"
                );
                let arrivals = Arc::clone(&self.arrivals);
                // Who waits for it reads it from the disk now.
                let told = blocking(move || {
                    arrivals.arrived(&piece.digest);
                    Ok(())
                });
                if let Err(error) = told.await {
                    self.give_up(Some(&piece), error.to_string());
                }
            }
            Ok(false) if self.is_worth_waiting(&piece) => {
                Clock::sleep(PAUSE).await;
                self.arrivals.later(&piece);
            }
            Ok(false) => {
                let asked = match self.staging.peers() {
                    peers if peers.is_empty() => "none, since there is no other".to_owned(),
                    peers => peers.join(", "),
                };
                let why = format!("it is on no node that is up; asked were {asked}");
                self.give_up(Some(&piece), why);
            }
            Err(error) if self.arrivals.is_awaited(&piece.digest) => {
                self.give_up(Some(&piece), error.to_string());
            }
            Err(error) => {
                tracing::debug!(piece = %piece.digest, %error, "a piece is not kept yet");
                Clock::sleep(PAUSE).await;
                self.arrivals.later(&piece);
            }
        }
    }

    /// Returns true where a piece is here, after all nodes were asked for it that are up.
    async fn fetch(&self, piece: &Piece) -> Result<bool, StagingError> {
        if self.staging.has(piece).await? {
            return Ok(true);
        }
        let mut sources = self.staging.sources();
        if !self.arrivals.is_awaited(&piece.digest) {
            // Whose share it is has it first; what somebody waits for comes from whoever had it before.
            let owner = self.shares.owner(&piece.digest);
            sources.sort_by_key(|it| Some(it.as_str()) != owner);
        }
        for peer in sources {
            self.staging.fetch(&peer, &[*piece]).await?;
            if self.staging.has(piece).await? {
                self.staging.prefer(peer);
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Returns true where a piece that no node gives is to be asked for again: as long as nobody
    /// needs it, or until somebody has needed it for long.
    fn is_worth_waiting(&self, piece: &Piece) -> bool {
        let mut lacking = self.lacking.lock();
        if !self.arrivals.is_awaited(&piece.digest) {
            lacking.remove(&piece.digest);
            return true;
        }
        let now = Clock::now();
        let since = *lacking.entry(piece.digest).or_insert(now);
        now.since(since) < self.staging.on_demand.patience
    }

    /// Says that a piece does not come.
    fn give_up(&self, piece: Option<&Piece>, why: String) {
        let Some(piece) = piece else {
            let said = format!("its files could not be brought: {why}");
            *self.trouble.lock() = Some((self.bundle.digest(), said));
            return;
        };
        let digest = piece.digest;
        self.lacking.lock().remove(&digest);
        let holds = |(path, file): (&str, &BundleFile)| {
            let mut pieces = file.listing.pieces().iter();
            pieces
                .any(|it| it.digest == digest)
                .then(|| path.to_owned())
        };
        let path = self.bundle.files().find_map(holds).unwrap_or_default();
        let said = format!("piece {digest} of `{path}` could not be brought: {why}");
        tracing::warn!(bundle = %self.bundle.digest(), "{said}");
        // Before those who wait hear of it, since they may end by that.
        *self.trouble.lock() = Some((digest, said));
        self.arrivals.failed(&digest, why);
    }

    /// Begins to put the files together, from which later tries start, if all are here. Returns
    /// true if they are.
    async fn put_together(&self) -> bool {
        let missing = self.staging.missing(&self.bundle).await;
        if !missing.is_ok_and(|missing| missing.is_empty()) {
            return false;
        }
        let (store, bundle) = (Arc::clone(self.staging.store()), self.bundle.clone());
        tokio::task::spawn_blocking(move || {
            let digest = bundle.digest();
            match store.assemble(&bundle, moment()) {
                Ok(_) => tracing::info!(bundle = %digest, "all files of a job are here"),
                Err(error) => tracing::warn!(
                    bundle = %digest, %error,
                    "the files of a job are all here and are not put together"
                ),
            }
        });
        true
    }
}
