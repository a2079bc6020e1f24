//! Taking a job in: its files first, then the job.
//!
//! ```text
//!  offer(bundle) ─> what is missing     put(piece) ...     submit(spec) ─> job
//! ```
//!
//! Files that were offered stay for [`UPLOAD_TIME`], whoever brings the rest. A job is accepted when
//! all of its files are here, on the other voters too, and its row is in the catalog.

use futures::StreamExt;
use futures::stream::FuturesUnordered;
use odeon_artifacts::{Bundle, Digest, DiskError, GetError, Piece, PutError, Store};
use thiserror::Error;

use crate::agent;
use crate::catalog::WriteError;
use crate::daemon::Daemon;
use crate::fact::{Fact, Written};
use crate::job::{JobId, JobSpec, JobSpecError};
use crate::own_program;
use crate::staging::moment;

pub use crate::staging::UPLOAD_TIME;

/// Why a job is not taken in.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum SubmitError {
    /// It cannot be meant.
    #[error(transparent)]
    Spec(#[from] JobSpecError),
    /// Its files are not all here.
    #[error("{missing} of {all} pieces of its files are missing: upload them first")]
    Missing {
        /// Number of missing pieces.
        missing: usize,
        /// Of how many.
        all: usize,
    },
    /// Nobody has said what its files are.
    #[error("bundle {0} is not known: upload it first")]
    Unlisted(Digest),
    /// It is larger than a job may be.
    #[error("its files have {bytes} bytes, at most {most} are taken")]
    TooLarge {
        /// Its bytes.
        bytes: u64,
        /// The most.
        most: u64,
    },
    /// A piece that is not taken.
    #[error(transparent)]
    Piece(#[from] PutError),
    /// Too few voters have its files, so it could be lost with this node.
    #[error("its files are on {have} of {voters} voters; a majority must have them: {why}")]
    Unsafe {
        /// Number of voters that have them.
        have: usize,
        /// Of how many.
        voters: usize,
        /// Why not more.
        why: String,
    },
    /// The word stands for something that is no job.
    #[error("this word was used for something else: take another")]
    Word,
    /// The catalog does not take it.
    #[error(transparent)]
    Catalog(#[from] WriteError),
    /// The disk.
    #[error(transparent)]
    Disk(#[from] DiskError),
    /// Its thread was lost.
    #[error("the thread that looked after the files was lost")]
    Thread,
}

impl Daemon {
    /// The missing pieces of a bundle. What is here, or comes, stays for [`UPLOAD_TIME`].
    ///
    /// # Errors
    /// It is too large, or the disk fails.
    #[odeon::boxed]
    pub async fn offer(&self, bundle: Bundle) -> Result<Vec<Piece>, SubmitError> {
        let (bytes, most) = (bundle.bytes(), self.bundle_bytes_max());
        if bytes > most {
            return Err(SubmitError::TooLarge { bytes, most });
        }
        let offer = || {
            let (store, bundle) = (self.artifacts().clone(), bundle.clone());
            blocking(move || {
                store.pin(&bundle, moment() + UPLOAD_TIME)?;
                let missing = store.missing(bundle.pieces())?;
                match own_program::put_own(&store, &bundle, &missing) {
                    0 => Ok(missing),
                    _ => Ok(store.missing(bundle.pieces())?),
                }
            })
        };
        match offer().await {
            Err(SubmitError::Disk(DiskError::DiskFull(_))) => {
                self.make_room().await;
                offer().await
            }
            offered => offered,
        }
    }

    /// Takes a piece of a bundle that was offered. Where there is no room, files that no job needs make
    /// some; an upload that has none all the same is given up, and its pieces are freed.
    ///
    /// # Errors
    /// It is not what its name says, or there is no room.
    #[odeon::boxed]
    pub async fn put(&self, digest: Digest, bytes: bytes::Bytes) -> Result<(), SubmitError> {
        let put = || {
            let (store, bytes) = (self.artifacts().clone(), bytes.clone());
            blocking(move || Ok(store.put(&digest, &bytes, moment()).map(drop)?))
        };
        let is_full = |put: &Result<(), SubmitError>| matches!(put, Err(SubmitError::Piece(error)) if error.is_full());
        let first = put().await;
        if !is_full(&first) {
            return first;
        }
        self.make_room().await;
        let again = put().await;
        if is_full(&again) {
            let store = self.artifacts().clone();
            blocking(move || Ok(store.abandon(&digest)?)).await?;
            self.make_room().await;
        }
        again
    }

    /// Takes a job in, whose files were offered and put. What is submitted again by the same person
    /// under the same word is the same job, so that whoever has not heard the answer may ask again.
    ///
    /// # Errors
    /// Why not; then there is no such job, unless the catalog is not known to have refused it.
    #[odeon::boxed]
    pub async fn submit(
        &self,
        mut spec: JobSpec,
        by: String,
        word: Option<&str>,
    ) -> Result<JobId, SubmitError> {
        spec.check()?;
        let (store, digest) = (self.artifacts().clone(), spec.bundle);
        let mut environment = spec.environment.take();
        let (missing, all, environment) = blocking(move || {
            let bundle = match store.bundle(&digest) {
                Ok(bundle) => bundle,
                Err(GetError::Disk(error)) => return Err(error.into()),
                Err(_) => return Err(SubmitError::Unlisted(digest)),
            };
            // It stays until the catalog knows the job.
            store.pin(&bundle, moment() + UPLOAD_TIME)?;
            let missing = store.missing(bundle.pieces())?.len();
            if let Some(environment) = environment.as_mut().filter(|_| missing == 0) {
                let read = |path: &str| read(&store, &bundle, path);
                let known = environment.read_inputs(&bundle, read);
                known.map_err(JobSpecError::from)?;
            }
            Ok((missing, bundle.pieces().count(), environment))
        })
        .await?;
        if missing > 0 {
            return Err(SubmitError::Missing { missing, all });
        }
        spec.environment = environment;
        self.spread(digest).await?;
        let command = word.map_or_else(rand::random, |word| command_of(&by, word));
        let submitted = Fact::JobSubmitted { spec, by };
        match self.catalog().write_once(command, submitted).await? {
            Written::Job(id) => Ok(id),
            Written::Done => Err(SubmitError::Word),
        }
    }

    /// Has a majority of the voters keep a bundle.
    async fn spread(&self, bundle: Digest) -> Result<(), SubmitError> {
        let voters = self.catalog().voters();
        let others = voters.iter().filter(|voter| *voter != self.name());
        let keeping = others.map(|voter| async move {
            let kept = agent::keep(self.system(), voter, bundle, self.name()).await;
            kept.map_err(|why| format!("`{voter}`: {why}"))
        });
        let mut keeping: FuturesUnordered<_> = keeping.collect();
        let mut have = voters.iter().filter(|voter| *voter == self.name()).count();
        let mut why = vec![];
        // A majority is enough; those that are slow go on without anybody who waits.
        while have * 2 <= voters.len()
            && let Some(kept) = keeping.next().await
        {
            match kept {
                Ok(()) => have += 1,
                Err(error) => why.push(error),
            }
        }
        if have * 2 > voters.len() {
            return Ok(());
        }
        Err(SubmitError::Unsafe {
            have,
            voters: voters.len(),
            why: why.join(", "),
        })
    }
}

/// The content of a file whose pieces are here.
fn read(store: &Store, bundle: &Bundle, path: &str) -> Result<Vec<u8>, String> {
    let file = bundle.file(path).ok_or("it is no file of the job")?;
    let mut content = vec![];
    for piece in file.listing.pieces() {
        let bytes = store.get(&piece.digest);
        content.extend(bytes.map_err(|error| error.to_string())?);
    }
    Ok(content)
}

/// The number of the command that somebody calls by a word.
fn command_of(by: &str, word: &str) -> u64 {
    let digest = Digest::of(format!("{by}\n{word}").as_bytes());
    let (first, _) = digest
        .as_bytes()
        .split_first_chunk()
        .expect("a digest is longer");
    u64::from_le_bytes(*first)
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, SubmitError> + Send + 'static,
) -> Result<T, SubmitError> {
    let done = tokio::task::spawn_blocking(work).await;
    done.unwrap_or(Err(SubmitError::Thread))
}
