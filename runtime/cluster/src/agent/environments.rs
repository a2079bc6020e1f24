//! The environment of a job on this node: taken from the snapshot that another node has made, or installed, by one node
//! for all of them.

mod last_words;
mod places;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::sync::Arc;
use std::time::Duration;

use odeon::Clock;
use odeon_artifacts::{Digest, GetError, Shares, Snapshot, SnapshotError};
use rustix::process::{Pid, Signal};
use tokio::process::{Child, Command};

use self::last_words::last_words;
use self::places::no_file_of_it_names;
use super::Agent;
use super::driving::variables;
use crate::catalog::WriteError;
use crate::fact::Fact;
use crate::job::{JobId, JobSpec};
use crate::orphan_processes;
use crate::staging::environments::Making;
use crate::staging::{StagingError, UPLOAD_TIME, moment};
use crate::stale_drivers::StaleDrivers;
use crate::tables::{EnvironmentRow, EnvironmentState, NodeState};

/// The variable of processes in an environment that names its folder.
const FOLDER_VARIABLE: &str = "ODEON_ENVIRONMENT";
/// The longest time for which a node waits until another one has installed an environment.
const WAIT: Duration = Duration::from_secs(1800);
/// The pause between two looks whether it has.
const PAUSE: Duration = Duration::from_millis(250);
/// The longest time for which an interpreter may take to say which one it is.
const INTERPRETER_PATIENCE: Duration = Duration::from_secs(60);
/// The most times that a snapshot is taken again after a piece of it was damaged.
const TRIES: usize = 3;

/// An environment that is here.
#[derive(Debug)]
pub(super) struct Environment {
    pub(super) folder: PathBuf,
    /// What is worth telling of how it came.
    pub(super) note: Option<String>,
}

/// What a node does next for an environment that it lacks.
#[derive(Debug, PartialEq, Eq)]
enum Next {
    /// Takes this snapshot.
    Take {
        bundle: Digest,
        /// The node that has made it.
        from: String,
    },
    /// Waits for the node that installs it under this number.
    Wait { claim: u64 },
    /// Fails, as the setup for which it has waited has.
    Fail {
        /// The node where it has.
        node: String,
        why: String,
    },
    /// Installs it for all.
    Claim,
}

/// Decides by what the catalog says of an environment, where `lost` is a snapshot that nobody could give, and `waited` the
/// number of a claim for which this node has waited.
fn next(
    row: Option<&EnvironmentRow>,
    own: &str,
    lives: impl Fn(&str, u64) -> bool,
    lost: Option<Digest>,
    waited: Option<u64>,
) -> Next {
    match row.map(|row| &row.state) {
        Some(EnvironmentState::Ready { bundle, node }) if Some(*bundle) != lost => Next::Take {
            bundle: *bundle,
            from: node.clone(),
        },
        Some(EnvironmentState::Installing { node, boot, claim })
            if node != own && lives(node, *boot) =>
        {
            Next::Wait { claim: *claim }
        }
        Some(EnvironmentState::Failed { node, claim, why }) if waited == Some(*claim) => {
            Next::Fail {
                node: node.clone(),
                why: why.clone(),
            }
        }
        _ => Next::Claim,
    }
}

/// A claim on an environment, which is given up when this is dropped before it is settled.
struct Claim {
    agent: Agent,
    key: Digest,
    number: u64,
    is_settled: bool,
}

impl Claim {
    /// There is a snapshot of it, or the reason why its setup has failed.
    async fn settle(mut self, made: Result<Digest, String>) -> Result<(), WriteError> {
        let agent = &self.agent;
        agent
            .settle_environment(self.key, self.number, Some(made))
            .await?;
        self.is_settled = true;
        Ok(())
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        if self.is_settled {
            return;
        }
        let (agent, key, number) = (self.agent.clone(), self.key, self.number);
        tokio::spawn(async move {
            if let Err(error) = agent.settle_environment(key, number, None).await {
                tracing::debug!(%key, %error, "an environment is not given up");
            }
        });
    }
}

/// A setup that runs. When this is dropped it is killed, with all that it has started.
struct Setup {
    child: Child,
    stale_drivers: StaleDrivers,
}

impl Setup {
    /// Starts one. One that a killed daemon leaves ends when the next one begins.
    fn start(
        mut command: Command,
        stale_drivers: StaleDrivers,
        mark: &str,
    ) -> std::io::Result<Self> {
        let child = command.spawn()?;
        if let Some(pid) = child.id() {
            stale_drivers.note(pid, mark);
        }
        Ok(Self {
            child,
            stale_drivers,
        })
    }

    async fn ended(&mut self) -> std::io::Result<ExitStatus> {
        // Its number is not known any more once it has ended.
        let pid = self.child.id();
        let ended = self.child.wait().await;
        if let Some(pid) = pid {
            self.stale_drivers.forget(pid);
            kill_group(pid);
        }
        ended
    }
}

impl Drop for Setup {
    fn drop(&mut self) {
        if let Some(pid) = self.child.id() {
            kill_group(pid);
            self.stale_drivers.forget(pid);
        }
    }
}

fn kill_group(pid: u32) {
    if let Some(group) = i32::try_from(pid).ok().and_then(Pid::from_raw) {
        // It may have ended by itself.
        let _ = rustix::process::kill_process_group(group, Signal::KILL);
    }
}

impl Agent {
    /// Has the environment of a try here, if it wants one. `work` is the folder of the try.
    pub(super) async fn environment(
        &self,
        of: (JobId, u32),
        spec: &JobSpec,
        work: &Path,
        shares: &Shares,
    ) -> Result<Option<Environment>, StagingError> {
        let Some(wanted) = &spec.environment else {
            return Ok(None);
        };
        let interpreter = self.interpreter(spec).await?;
        let store = self.inner.staging.store().clone();
        let digest = spec.bundle;
        let files = blocking(move || store.bundle(&digest).map_err(words)).await?;
        let key = wanted.key(&files, &interpreter);
        let key = key.map_err(|error| StagingError::Unfit(error.to_string()))?;
        let all = self.inner.staging.environments();
        let turn = all.turn(key).await;
        let known = Arc::clone(all);
        if let Some(folder) = blocking(move || known.enter(&key, of).map_err(words)).await? {
            return Ok(Some(Environment { folder, note: None }));
        }
        if let Some(why) = turn.failure() {
            return Err(StagingError::Setup(why.to_owned()));
        }
        let brought = self.bring_environment(key, of, spec, (work, shares)).await;
        if let Err(StagingError::Setup(why)) = &brought {
            turn.fail(why);
        }
        brought.map(Some)
    }

    /// Takes an environment, or installs it where nobody else does.
    async fn bring_environment(
        &self,
        key: Digest,
        of: (JobId, u32),
        spec: &JobSpec,
        (work, shares): (&Path, &Shares),
    ) -> Result<Environment, StagingError> {
        let (mut lost, mut waited, mut why) = (None, None, String::new());
        let deadline = Clock::now().after(WAIT);
        while !deadline.left(Clock::now()).is_zero() {
            let row = match self.inner.catalog.environment(key).await {
                Ok(row) => row,
                Err(error) => {
                    why = error.to_string();
                    break;
                }
            };
            let nodes = self.inner.catalog.nodes();
            let lives = |node: &str, boot| {
                let row = nodes.iter().find(|row| row.spec.name == node);
                row.is_some_and(|row| row.state == NodeState::Up && row.spec.boot == boot)
            };
            match next(row.as_ref(), &self.inner.node, lives, lost, waited) {
                Next::Take { bundle, from } => {
                    match self.take_snapshot(key, of, (bundle, &from), shares).await {
                        Ok(folder) => return Ok(Environment { folder, note: None }),
                        Err(error) => {
                            tracing::warn!(job = %of.0, %error, "a snapshot of an environment is not taken");
                            why = format!("the snapshot of it could not be taken: {error}");
                            lost = Some(bundle);
                        }
                    }
                }
                Next::Wait { claim } => {
                    waited = Some(claim);
                    Clock::sleep(PAUSE).await;
                }
                Next::Fail { node, why } => {
                    return Err(StagingError::Setup(format!("on node `{node}`: {why}")));
                }
                Next::Claim => match self.claim_environment(key, lost).await {
                    Ok(claim) => return self.install_for_all(claim, of, spec, work).await,
                    // Another one was first, or the catalog knows of a node's end before this one.
                    Err(WriteError::Refused(_)) => Clock::sleep(PAUSE).await,
                    Err(error) => {
                        why = error.to_string();
                        break;
                    }
                },
            }
        }
        if why.is_empty() {
            why = format!("no other node had installed it after {} s", WAIT.as_secs());
        }
        let making = self.install(key, of, spec, work).await?;
        let folder = finish(making, of).await?;
        let told = format!("its environment was installed here for itself: {why}");
        tracing::warn!(job = %of.0, "{told}");
        let note = Some(told);
        Ok(Environment { folder, note })
    }

    /// Installs an environment that this node has claimed, and gives its snapshot to all.
    async fn install_for_all(
        &self,
        claim: Claim,
        of: (JobId, u32),
        spec: &JobSpec,
        work: &Path,
    ) -> Result<Environment, StagingError> {
        let making = match self.install(claim.key, of, spec, work).await {
            Err(StagingError::Setup(why)) => {
                if let Err(error) = claim.settle(Err(why.clone())).await {
                    tracing::warn!(%error, "others are not told that a setup has failed");
                }
                return Err(StagingError::Setup(why));
            }
            installed => installed?,
        };
        let (made, store) = (Arc::clone(&making), self.inner.staging.store().clone());
        let taken = blocking(move || {
            let now = moment();
            let taken = Snapshot::take(&made.place(), &store, now, now + UPLOAD_TIME);
            Ok(taken.map_err(|error| error.to_string()))
        });
        let taken = taken.await?;
        let folder = finish(making, of).await?;
        let settled = match taken {
            Ok(taken) => {
                let told = format!(
                    "its environment was installed here, {} files of {} bytes, and others take it",
                    taken.files, taken.bytes
                );
                let settled = claim.settle(Ok(taken.bundle.digest())).await;
                settled.map(|()| told).map_err(|error| error.to_string())
            }
            Err(why) => Err(why),
        };
        let note = settled.unwrap_or_else(|why| {
            format!("its environment was installed here for itself: others cannot take it: {why}")
        });
        let note = Some(note);
        Ok(Environment { folder, note })
    }

    async fn claim_environment(
        &self,
        key: Digest,
        lost: Option<Digest>,
    ) -> Result<Claim, WriteError> {
        let number = rand::random();
        let claimed = Fact::EnvironmentClaimed {
            key,
            node: self.inner.node.clone(),
            boot: self.inner.system.process().0,
            claim: number,
            lost,
        };
        // Also one that is written without an answer is given up.
        let claim = Claim {
            agent: self.clone(),
            key,
            number,
            is_settled: false,
        };
        match self.inner.catalog.write_own(claimed).await {
            Ok(_) => Ok(claim),
            Err(error) => {
                let mut claim = claim;
                claim.is_settled = matches!(error, WriteError::Refused(_));
                Err(error)
            }
        }
    }

    async fn settle_environment(
        &self,
        key: Digest,
        claim: u64,
        made: Option<Result<Digest, String>>,
    ) -> Result<(), WriteError> {
        let (bundle, why) = match made.transpose() {
            Ok(bundle) => (bundle, None),
            Err(why) => (None, Some(why)),
        };
        let settled = Fact::EnvironmentSettled {
            key,
            node: self.inner.node.clone(),
            claim,
            bundle,
            why,
        };
        self.inner.catalog.write_own(settled).await.map(drop)
    }

    /// Has a snapshot's pieces here, from whoever has them, and gives its folder. A piece that is damaged on the
    /// way or on the disk is refused, and brought again.
    async fn take_snapshot(
        &self,
        key: Digest,
        of: (JobId, u32),
        (digest, from): (Digest, &str),
        shares: &Shares,
    ) -> Result<PathBuf, StagingError> {
        let staging = &self.inner.staging;
        let mut peers = staging.peers();
        peers.sort_by_key(|peer| peer != from);
        let shares = &shares.without(from);
        for tries_left in (0..TRIES).rev() {
            staging.keep(digest, &peers, shares).await?;
            let (all, store) = (staging.environments().clone(), staging.store().clone());
            let restored = blocking(move || {
                let making = all.begin(key);
                let bundle = store.bundle(&digest).map_err(words)?;
                match Snapshot::restore(&bundle, &store, &making.place()) {
                    Ok(()) => making.finish(of).map(Some).map_err(words),
                    Err(SnapshotError::Get(GetError::Missing(_) | GetError::Corrupt(_)))
                        if tries_left > 0 =>
                    {
                        Ok(None)
                    }
                    Err(error) => Err(words(error)),
                }
            });
            if let Some(folder) = restored.await? {
                return Ok(folder);
            }
            tracing::warn!(%digest, "a damaged piece of an environment is brought again");
        }
        unreachable!("the last try ends with its error")
    }

    /// Runs the command that makes an environment, in its place.
    async fn install(
        &self,
        key: Digest,
        of: (JobId, u32),
        spec: &JobSpec,
        work: &Path,
    ) -> Result<Arc<Making>, StagingError> {
        let Some(wanted) = &spec.environment else {
            let why = "the job asks for no environment".to_owned();
            return Err(StagingError::Environment(why));
        };
        let all = Arc::clone(self.inner.staging.environments());
        let begun = Arc::clone(&all);
        let making = blocking(move || Ok(Arc::new(begun.begin(key)))).await?;
        let place = making.place();
        let mark = self.mark(&format!("{}/{}.{}", spec.namespace, of.0, of.1));
        let mut command = Command::new("/bin/sh");
        command.arg("-c").arg(wanted.command()).current_dir(work);
        command.env_clear().envs(with_environment(spec, &place));
        command.env(orphan_processes::VARIABLE, &mark);
        command.stdin(Stdio::null()).process_group(0);
        let (log, stale_drivers) = (making.log(), self.inner.stale_drivers.clone());
        let admits = Arc::clone(&all);
        let started = blocking(move || {
            let printed = File::create(&log).map_err(words)?;
            command.stdout(printed.try_clone().map_err(words)?);
            command.stderr(printed);
            // The end of a try either finds the process of it or keeps it from starting.
            let start = || Setup::start(command, stale_drivers, &mark);
            admits
                .while_admitted(of, start)
                .map_err(words)?
                .map_err(words)
        });
        let mut setup = started.await?;
        let status = setup.ended().await.map_err(words)?;
        drop(setup);
        let (made, log, work) = (Arc::clone(&making), making.log(), work.to_owned());
        let made = blocking(move || {
            // Killed with its try it has not failed.
            all.while_admitted(of, || ()).map_err(words)?;
            Ok(match status.success() {
                true => check_made(&made.place(), &work),
                false => Err(format!(
                    "its environment could not be installed: {status}{}",
                    last_words(&log)
                )),
            })
        });
        made.await?.map_err(StagingError::Setup)?;
        Ok(making)
    }

    /// What this node says of the interpreter that environments are made with: its version, and where it is, since
    /// environments name that.
    async fn interpreter(&self, spec: &JobSpec) -> Result<String, StagingError> {
        let asked = "import sys; print(sys.version, sys.base_prefix)";
        let mut command = Command::new("python3");
        command
            .args(["-c", asked])
            .env_clear()
            .envs(variables(spec));
        command.stdin(Stdio::null()).kill_on_drop(true);
        let needed = spec
            .environment
            .as_ref()
            .is_some_and(|it| it.setup.is_none());
        let Some(told) = Clock::timeout(INTERPRETER_PATIENCE, command.output()).await else {
            return Err(StagingError::Environment(format!(
                "its environment is made with python3, which has not said its version here within {} s",
                INTERPRETER_PATIENCE.as_secs()
            )));
        };
        match told {
            Ok(told) if told.status.success() => {
                Ok(String::from_utf8_lossy(&told.stdout).trim().to_owned())
            }
            // Who has a command of their own may do without.
            Ok(_) | Err(_) if !needed => Ok("none".to_owned()),
            Ok(told) => Err(StagingError::Environment(format!(
                "its environment is made by python3, which fails here: {}",
                String::from_utf8_lossy(&told.stderr).trim()
            ))),
            Err(error) => Err(StagingError::Environment(format!(
                "its environment is made by python3, which this node does not run: {error}"
            ))),
        }
    }
}

/// The variables of a job's processes in an environment: those of the job, with the programs of the environment before
/// all others.
pub(super) fn with_environment(spec: &JobSpec, folder: &Path) -> BTreeMap<String, OsString> {
    let mut all = variables(spec);
    let mut path = folder.join("bin").into_os_string();
    if let Some(others) = all.get("PATH").filter(|it| !it.is_empty()) {
        path.push(":");
        path.push(others);
    }
    all.insert("PATH".to_owned(), path);
    for name in ["VIRTUAL_ENV", FOLDER_VARIABLE] {
        all.insert(name.to_owned(), folder.into());
    }
    all
}

/// Checks what a setup has made that has ended well, in the folder of a job.
fn check_made(place: &Path, work: &Path) -> Result<(), String> {
    let wrong = |what: &str| {
        Err(format!(
            "its environment was not made: the command has ended well, and ${FOLDER_VARIABLE} {what}"
        ))
    };
    match fs::symlink_metadata(place) {
        Ok(made) if made.is_dir() => no_file_of_it_names(place, work),
        Ok(made) if made.is_symlink() => {
            wrong("is a link, which other nodes cannot take: make a folder there")
        }
        Ok(_) => wrong("is a file: make a folder there"),
        Err(_) => wrong("is not there: make a folder there"),
    }
}

/// Notes that an environment is whole, and that a try uses it. Gives its folder.
async fn finish(making: Arc<Making>, of: (JobId, u32)) -> Result<PathBuf, StagingError> {
    blocking(move || making.finish(of).map_err(words)).await
}

fn words(error: impl std::fmt::Display) -> StagingError {
    StagingError::Environment(format!("its environment: {error}"))
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, StagingError> + Send + 'static,
) -> Result<T, StagingError> {
    let done = tokio::task::spawn_blocking(work).await;
    done.unwrap_or_else(|error| Err(words(error)))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;
    use crate::unix::Unix;

    /// SEMANTICS 190.
    #[test]
    fn a_setup_makes_a_folder_and_no_link_to_one() {
        let dir = tempfile::tempdir().unwrap();
        let place = dir.path().join("place");
        let said = || check_made(&place, dir.path()).unwrap_err();
        assert!(said().contains("is not there"), "{}", said());
        symlink(dir.path(), &place).unwrap();
        assert!(said().contains("is a link"), "{}", said());
        fs::remove_file(&place).unwrap();
        fs::write(&place, "").unwrap();
        assert!(said().contains("is a file"), "{}", said());
        fs::remove_file(&place).unwrap();
        fs::create_dir(&place).unwrap();
        assert_eq!(check_made(&place, dir.path()), Ok(()));
    }

    /// SEMANTICS 191.
    #[test]
    fn a_node_takes_waits_or_installs_by_what_the_catalog_says() {
        let (one, other) = (Digest::of(b"1"), Digest::of(b"2"));
        let row = |state| EnvironmentRow {
            state,
            since: Unix(1),
        };
        let ready = row(EnvironmentState::Ready {
            bundle: one,
            node: "a".to_owned(),
        });
        let installing = row(EnvironmentState::Installing {
            node: "a".to_owned(),
            boot: 1,
            claim: 7,
        });
        let take = || Next::Take {
            bundle: one,
            from: "a".to_owned(),
        };
        let all = |_: &str, _: u64| true;
        let next = |row: Option<&EnvironmentRow>, own, lost| next(row, own, all, lost, Some(7));
        assert_eq!(next(None, "b", None), Next::Claim);
        assert_eq!(next(Some(&ready), "b", None), take());
        assert_eq!(next(Some(&ready), "b", Some(other)), take());
        assert_eq!(next(Some(&ready), "b", Some(one)), Next::Claim);
        let waits = Next::Wait { claim: 7 };
        assert_eq!(next(Some(&installing), "b", None), waits);
        // Its own of before, and one of a node that is gone.
        assert_eq!(next(Some(&installing), "a", None), Next::Claim);
        let is_anew = |_: &str, boot: u64| boot == 2;
        let gone = super::next(Some(&installing), "b", is_anew, None, None);
        assert_eq!(gone, Next::Claim);
        // What has failed is the failure of who waited for that, and nobody else's.
        let failed = |claim| {
            row(EnvironmentState::Failed {
                node: "a".to_owned(),
                claim,
                why: "4".to_owned(),
            })
        };
        let fails = Next::Fail {
            node: "a".to_owned(),
            why: "4".to_owned(),
        };
        assert_eq!(next(Some(&failed(7)), "b", None), fails);
        assert_eq!(next(Some(&failed(8)), "b", None), Next::Claim);
    }
}
