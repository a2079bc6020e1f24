//! Judges replies of any task: those that hold programs by running them, all others by the task's own
//! checker. Reward actor, evaluation and command share it, so that nobody runs a program elsewhere.

use std::fmt;
use std::num::NonZeroUsize;
use std::sync::Arc;

use futures::stream::{self, StreamExt, TryStreamExt};
use odeon::Failure;
use odeon::serde::{Deserialize, Serialize};
use odeon_algorithms::task::code::{Code, Language};
use odeon_algorithms::task::{Problem, Task, TaskError, TaskSpec, Verdict};
use tokio::runtime::{Handle, RuntimeFlavor};
use tokio::sync::Mutex;

use super::judge::{CodeJudge, JudgeError};
use crate::sandbox::{End, Isolation, Sandbox, SandboxError, SandboxSpec, Work};

/// Settings for running programs in replies. They say nothing to tasks whose replies hold none.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(crate = "odeon::serde")]
pub struct ProgramSpec {
    /// Limits of each program.
    pub sandbox: SandboxSpec,
    /// Isolation of programs from the machine.
    pub isolation: Isolation,
    /// Number of programs that run at a time.
    pub at_once: NonZeroUsize,
}

impl Default for ProgramSpec {
    /// Four at a time, isolated, within the limits of [`SandboxSpec::default`].
    fn default() -> Self {
        Self {
            sandbox: SandboxSpec::default(),
            isolation: Isolation::Required,
            at_once: NonZeroUsize::MIN.saturating_add(3),
        }
    }
}

/// Why nobody can judge here. Nothing was run, and nothing is left behind.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RefereeError {
    /// The task could not be made.
    #[error(transparent)]
    Task(#[from] TaskError),
    /// There is no sandbox. Programs are never run without one.
    #[error("replies of the task `code` are run in a sandbox, and there is none: {0}")]
    Sandbox(#[from] SandboxError),
    /// The interpreter of a language is not there.
    #[error(
        "the task `code` has problems for {language:?}, which `{program}` runs, and in the sandbox \
         that cannot be started: {why}. Install the package `{package}` under /usr"
    )]
    NoInterpreter {
        /// The language.
        language: Language,
        /// The interpreter.
        program: &'static str,
        /// The obstacle, in words.
        why: String,
        /// The package that holds it, by its name in Debian and most others.
        package: &'static str,
    },
    /// It is there, and does not fit into the limits.
    #[error("`{program}` does not start within the limits of the sandbox: it {end}; give it more")]
    Limits {
        /// The program that was started.
        program: &'static str,
        /// The end of the program.
        end: End,
    },
    /// There are no threads beside this one, as in a simulation.
    #[error(
        "programs are run for real, which needs a runtime of several threads: a simulation runs none"
    )]
    Simulated,
}

/// The judge of the replies to one task. Clones are the same.
#[derive(Clone)]
pub struct Referee {
    task: Arc<dyn Task>,
    programs: Option<Arc<Programs>>,
}

struct Programs {
    spec: ProgramSpec,
    /// The one that is used now, and how many there were before.
    judge: Mutex<(u64, CodeJudge)>,
}

impl fmt::Debug for Referee {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Referee")
            .field("task", &self.task.name())
            .field("programs", &self.programs.is_some())
            .finish()
    }
}

impl Referee {
    /// Makes the task; where its replies hold programs, opens a sandbox and sees that it runs them.
    ///
    /// # Errors
    /// [`RefereeError`].
    #[odeon::boxed]
    pub async fn open(task: &TaskSpec, spec: &ProgramSpec) -> Result<Self, RefereeError> {
        let task: Arc<dyn Task> = Arc::from(task.build()?);
        let programs = match task.as_code() {
            None => None,
            Some(code) => Some(Arc::new(Programs::open(code, spec).await?)),
        };
        Ok(Self { task, programs })
    }

    /// The task.
    #[must_use]
    pub fn task(&self) -> &dyn Task {
        self.task.as_ref()
    }

    /// Judges a reply. A sandbox that was lost is opened anew, and the reply judged again.
    ///
    /// # Errors
    /// [`JudgeError`], which is never the reply's fault.
    #[odeon::boxed]
    pub async fn judge(&self, problem: &Problem, reply: &str) -> Result<Verdict, JudgeError> {
        let (Some(programs), Some(code)) = (&self.programs, self.task.as_code()) else {
            return Ok(self.task.reward(problem, reply));
        };
        let mut losses = 0;
        loop {
            let (number, judge) = programs.judge.lock().await.clone();
            match judge.judge(code, problem, reply).await {
                Err(JudgeError::Sandbox(error)) if losses < LOSSES_MAX => {
                    losses += 1;
                    tracing::warn!(%error, "a sandbox was lost; a reply is judged again");
                    programs.renew(number).await?;
                }
                judged => return judged,
            }
        }
    }

    /// Judges many, several at a time; verdicts come in the order of the replies.
    ///
    /// # Errors
    /// As [`Referee::judge`]. The others are not judged then.
    pub async fn judge_all<R: AsRef<str>>(
        &self,
        replies: &[(Problem, R)],
    ) -> Result<Vec<Verdict>, JudgeError> {
        let at_once = self.programs.as_ref().map_or(1, |it| it.spec.at_once.get());
        let judged: Vec<_> = replies
            .iter()
            .map(|(problem, reply)| self.judge(problem, reply.as_ref()))
            .collect();
        stream::iter(judged).buffered(at_once).try_collect().await
    }
}

impl Programs {
    async fn open(code: &Code, spec: &ProgramSpec) -> Result<Self, RefereeError> {
        if Handle::current().runtime_flavor() != RuntimeFlavor::MultiThread {
            return Err(RefereeError::Simulated);
        }
        let sandbox = Sandbox::open(spec.sandbox.clone(), spec.isolation).await?;
        for language in code.languages() {
            starts(&sandbox, language).await?;
        }
        Ok(Self {
            spec: spec.clone(),
            judge: Mutex::new((0, CodeJudge::new(sandbox, spec.at_once))),
        })
    }

    /// Opens another sandbox in the place of this one, unless somebody has.
    async fn renew(&self, lost: u64) -> Result<(), SandboxError> {
        let mut judge = self.judge.lock().await;
        if judge.0 == lost {
            let sandbox = Sandbox::open(self.spec.sandbox.clone(), self.spec.isolation).await?;
            *judge = (lost + 1, CodeJudge::new(sandbox, self.spec.at_once));
        }
        Ok(())
    }
}

/// Sees whether programs of a language are run.
async fn starts(sandbox: &Sandbox, language: Language) -> Result<(), RefereeError> {
    let [program, ..] = *language.interpreter() else {
        return Ok(());
    };
    let words = language.interpreter().iter().chain(&["-c", ""]);
    let work = Work {
        program: words.map(ToString::to_string).collect(),
        ..Work::default()
    };
    match sandbox.run(work).await?.end {
        End::Exited(0) => Ok(()),
        End::NotStarted(why) => Err(RefereeError::NoInterpreter {
            language,
            program,
            why,
            package: if language == Language::Python {
                "python3"
            } else {
                "dash"
            },
        }),
        end => Err(RefereeError::Limits { program, end }),
    }
}

/// Waits for a referee on a thread that may block: an engine's.
pub(crate) fn wait<T>(work: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
    match Handle::try_current() {
        Ok(handle) if handle.runtime_flavor() == RuntimeFlavor::MultiThread => {
            odeon::block_in_place(|| handle.block_on(work))
        }
        // Nothing of tokio is needed where no programs are run, and else this is refused.
        _ => futures::executor::block_on(work),
    }
}

/// Sandboxes that may be lost over one reply.
const LOSSES_MAX: u32 = 2;

#[cfg(test)]
mod tests;
