//! Taking a job in: its files first, then the job.
//!
//! ```text
//!  offer(bundle) ─> what is missing     put(piece) ...     submit(spec) ─> job
//! ```
//!
//! Files that were offered stay for [`UPLOAD_TIME`], whoever brings the rest. A job is accepted when
//! all of its files are here, on the other voters too, and its row is in the catalog.

use std::collections::BTreeSet;
use std::time::Duration;

use futures::StreamExt;
use futures::stream::FuturesUnordered;
use odeon::Clock;
use odeon_artifacts::{Bundle, Digest, DiskError, GetError, Piece, PutError, Store};
use thiserror::Error;

use crate::agent;
use crate::catalog::WriteError;
use crate::daemon::Daemon;
use crate::environment::EnvironmentSpec;
use crate::fact::{Fact, Written};
use crate::job::version::Program;
use crate::job::{Event, JobId, JobSpec, JobSpecError};
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
    /// A file of it cannot be read.
    #[error("a file of it cannot be read: {0}")]
    File(String),
    /// Its thread was lost.
    #[error("the thread that looked after the files was lost")]
    Thread,
}

/// A wish for another version of a job: whose it is, and when it is to come.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NewVersion {
    /// The name of whoever wants it.
    pub by: String,
    /// Why, in words; may be empty.
    pub why: String,
    /// The time for which it may wait for a restart, in seconds; none where it is made at once.
    pub wait_s: Option<u64>,
    /// A word of the client's own, under which it counts once.
    pub word: Option<String>,
}

/// The longest time that an update waits for nodes to bring its files: they bring the rest when it begins.
const BRING_PATIENCE: Duration = Duration::from_secs(20);

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
                match own_program::put_own(&store, &bundle, &missing, moment()) {
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
        let environment = spec.environment.take();
        spec.environment = self.taken_in(spec.bundle, environment).await?;
        let digest = spec.bundle;
        self.spread(digest).await?;
        let command = word.map_or_else(rand::random, |word| command_of(&by, word));
        let submitted = Fact::JobSubmitted { spec, by };
        match self.catalog().write_once(command, submitted).await? {
            Written::Job(id) => Ok(id),
            Written::Done => Err(SubmitError::Word),
        }
    }

    /// Checks that the files of a bundle are here, which stay until the catalog knows the job, and reads what the key of
    /// its environment is made of.
    async fn taken_in(
        &self,
        digest: Digest,
        mut environment: Option<EnvironmentSpec>,
    ) -> Result<Option<EnvironmentSpec>, SubmitError> {
        let store = self.artifacts().clone();
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
        Ok(environment)
    }

    /// Has a job go over to another program, whose files were offered and put, on the places that it has. Voters have its
    /// files before, and so have the nodes of its present try, as far as they answer in time. What is sent again by the same
    /// person under the same word counts once.
    ///
    /// # Errors
    /// Why not; then nothing has changed, unless the catalog is not known to have refused it.
    #[odeon::boxed]
    pub async fn update(
        &self,
        job: JobId,
        mut program: Program,
        wanted: NewVersion,
    ) -> Result<(), SubmitError> {
        self.fetch(program.bundle).await;
        let environment = program.environment.take();
        program.environment = self.taken_in(program.bundle, environment).await?;
        self.spread(program.bundle).await?;
        self.bring_to_places(job, program.bundle).await;
        let NewVersion {
            by,
            why,
            wait_s,
            word,
        } = wanted;
        let command = word.map_or_else(rand::random, |word| command_of(&by, &word));
        let event = Event::Update {
            program,
            by,
            why,
            wait_s,
        };
        let written = self
            .catalog()
            .write_once(command, Fact::Job { job, event })
            .await?;
        match written {
            Written::Done => Ok(()),
            Written::Job(_) => Err(SubmitError::Word),
        }
    }

    /// Has the nodes of a job's present try bring a bundle, so that less time goes by between two versions. One that does
    /// not brings it when the version begins.
    async fn bring_to_places(&self, job: JobId, bundle: Digest) {
        let Ok(Some(row)) = self.catalog().job(job).await else {
            return;
        };
        let attempt = row.attempt();
        let reserved = attempt.into_iter().flat_map(|it| &it.reserved);
        let mut nodes: BTreeSet<&str> = reserved.map(|it| it.node.as_str()).collect();
        nodes.extend(attempt.map(|it| it.node.as_str()));
        nodes.remove(self.name());
        let bringing = nodes.into_iter().map(|node| async move {
            if let Err(why) = agent::keep(self.system(), node, bundle, self.name()).await {
                tracing::debug!(
                    node,
                    why,
                    "a node does not bring the files of a version yet"
                );
            }
        });
        let bringing: FuturesUnordered<_> = bringing.collect();
        let all = bringing.collect::<Vec<()>>();
        drop(Clock::timeout(BRING_PATIENCE, all).await);
    }

    /// Has a bundle here that the cluster keeps, where a voter gives it. One that votes has it as a rule.
    async fn fetch(&self, bundle: Digest) {
        let store = self.artifacts().clone();
        let is_here = blocking(move || Ok(store.bundle(&bundle).is_ok())).await;
        if is_here.unwrap_or(false) {
            return;
        }
        let voters = self.catalog().voters().into_iter();
        let others: Vec<String> = voters.filter(|it| it != self.name()).collect();
        let kept = self.keep(bundle, &others).await;
        if let Err(error) = kept {
            tracing::debug!(%bundle, %error, "nobody gives a bundle");
        }
    }

    /// The content of a file of a bundle that the cluster keeps, or nothing where it has no such file. What is not here is
    /// brought from the voters.
    ///
    /// # Errors
    /// Nobody gives it.
    #[odeon::boxed]
    pub async fn file_of(
        &self,
        bundle: Digest,
        path: &str,
    ) -> Result<Option<Vec<u8>>, SubmitError> {
        self.fetch(bundle).await;
        let (store, path) = (self.artifacts().clone(), path.to_owned());
        blocking(move || {
            let bundle = match store.bundle(&bundle) {
                Ok(bundle) => bundle,
                Err(GetError::Disk(error)) => return Err(error.into()),
                Err(_) => return Err(SubmitError::Unlisted(bundle)),
            };
            let Some(file) = bundle.file(&path) else {
                return Ok(None);
            };
            let bytes = file.listing.bytes();
            if bytes > FILE_BYTES_MAX {
                let why = format!("`{path}` has {bytes} bytes, at most {FILE_BYTES_MAX} are read");
                return Err(SubmitError::File(why));
            }
            let content = read(&store, &bundle, &path).map_err(SubmitError::File)?;
            Ok(Some(content))
        })
        .await
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

/// The bytes of a recipe at most, as it is read to compare versions.
const FILE_BYTES_MAX: u64 = 4 << 20;

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
