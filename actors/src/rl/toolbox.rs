//! Runs what replies call: the calculator right here, programs in a sandbox. The tool actor, evaluation
//! and commands share it, so that a model meets the same tool everywhere.

use std::sync::Arc;
use std::time::Duration;

use futures::stream::{self, StreamExt, TryStreamExt};
use odeon::{Clock, Failure};
use odeon_algorithms::environment::{EnvironmentConfig, Tool, UNANSWERED, calculate};
use odeon_algorithms::task::code::Language;
use tokio::runtime::{Handle, RuntimeFlavor};
use tokio::sync::{Mutex, Semaphore};

use super::referee::ProgramSpec;
use crate::sandbox::{End, Ran, Sandbox, SandboxError, Work};

/// Why there is no tool. Nothing was run, and nothing is left behind.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ToolboxError {
    /// There is no sandbox. Programs are never run without one.
    #[error("tool = \"python\" runs programs in a sandbox, and there is none: {0}")]
    Sandbox(#[from] SandboxError),
    /// The interpreter is not there, or does not start within its limits.
    #[error(
        "tool = \"python\" runs `{program}`, which does not start in the sandbox: it {end}. Install \
         the package `python3` under /usr, or give programs more in [sandbox]"
    )]
    NoInterpreter {
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

/// The tool that replies call. Clones share what they have.
#[derive(Clone, Debug)]
pub enum Toolbox {
    /// Calculates.
    Calculator,
    /// Runs programs.
    Python(Arc<Programs>),
}

/// Programs that run in a sandbox, so many at a time.
#[derive(Debug)]
pub struct Programs {
    spec: ProgramSpec,
    /// The sandbox that is used now, and how many there were before.
    sandbox: Mutex<(u64, Sandbox)>,
    places: Arc<Semaphore>,
}

impl Toolbox {
    /// Opens what a tool takes, and sees that it works.
    ///
    /// # Errors
    /// [`ToolboxError`].
    #[odeon::boxed]
    pub async fn open(
        environment: &EnvironmentConfig,
        programs: &ProgramSpec,
    ) -> Result<Self, ToolboxError> {
        match environment.tool {
            Tool::Calculator => Ok(Self::Calculator),
            Tool::Python => {
                let mut spec = programs.clone();
                spec.sandbox.wall = environment.call_max;
                Programs::open(spec)
                    .await
                    .map(|it| Self::Python(Arc::new(it)))
            }
        }
    }

    /// Runs a call of the tool and gives its answer. A program that fails has what it said last for
    /// an answer, and one that was ended has none.
    ///
    /// # Errors
    /// The tool is lost, which is never the call's fault.
    #[odeon::boxed]
    pub async fn run(&self, input: &str) -> Result<String, Failure> {
        match self {
            Self::Calculator => Ok(calculate(input)),
            Self::Python(programs) => programs.run(input).await,
        }
    }

    /// Runs many, several at a time; answers come in the order of the calls.
    ///
    /// # Errors
    /// As [`Toolbox::run`].
    #[odeon::boxed]
    pub async fn run_all(&self, inputs: &[String]) -> Result<Vec<String>, Failure> {
        let at_once = match self {
            Self::Calculator => 1,
            Self::Python(programs) => programs.spec.at_once.get(),
        };
        let all: Vec<_> = inputs.iter().map(|input| self.run(input)).collect();
        stream::iter(all).buffered(at_once).try_collect().await
    }
}

impl Programs {
    async fn open(spec: ProgramSpec) -> Result<Self, ToolboxError> {
        if Handle::current().runtime_flavor() != RuntimeFlavor::MultiThread {
            return Err(ToolboxError::Simulated);
        }
        let sandbox = Sandbox::open(spec.sandbox.clone(), spec.isolation).await?;
        let places = spec.at_once.get().min(Semaphore::MAX_PERMITS);
        match sandbox.run(work("")).await?.end {
            End::Exited(0) => Ok(Self {
                sandbox: Mutex::new((0, sandbox)),
                places: Arc::new(Semaphore::new(places)),
                spec,
            }),
            end => {
                let program = Language::Python.interpreter().first().copied();
                let program = program.unwrap_or_default();
                Err(ToolboxError::NoInterpreter { program, end })
            }
        }
    }

    async fn run(&self, program: &str) -> Result<String, Failure> {
        let mut losses = 0;
        loop {
            let (number, sandbox) = self.sandbox.lock().await.clone();
            let place = Arc::clone(&self.places).acquire_owned().await;
            let place = place.map_err(Failure::error)?;
            match sandbox.run_holding(work(program), place).await {
                Ok(Ran {
                    end: End::NotStarted(why),
                    ..
                }) if losses < LOSSES_MAX => {
                    losses += 1;
                    tracing::warn!(why, "a program is started again");
                    Clock::sleep(PAUSE * losses).await;
                }
                Ok(Ran {
                    end: End::NotStarted(why),
                    ..
                }) => return Err(Failure::error(format!("a program did not start: {why}"))),
                Ok(ran) => return Ok(said(&ran)),
                Err(error) if losses < LOSSES_MAX => {
                    losses += 1;
                    tracing::warn!(%error, "a sandbox was lost; a program is run again");
                    self.renew(number).await.map_err(Failure::error)?;
                }
                Err(error) => return Err(Failure::error(error)),
            }
        }
    }

    /// Opens another sandbox in the place of this one, unless somebody has.
    async fn renew(&self, lost: u64) -> Result<(), SandboxError> {
        let mut sandbox = self.sandbox.lock().await;
        if sandbox.0 == lost {
            let next = Sandbox::open(self.spec.sandbox.clone(), self.spec.isolation).await?;
            *sandbox = (lost + 1, next);
        }
        Ok(())
    }
}

fn work(program: &str) -> Work {
    let file = Language::Python.file_name();
    let words = Language::Python.interpreter().iter().chain([&file]);
    Work {
        program: words.map(ToString::to_string).collect(),
        files: vec![(file.to_owned(), program.as_bytes().to_vec())],
        stdin: vec![],
    }
}

/// The words of a program that has ended.
fn said(ran: &Ran) -> String {
    match ran.end {
        End::Exited(0) => String::from_utf8_lossy(&ran.stdout.bytes).into_owned(),
        End::Exited(_) => {
            let said = String::from_utf8_lossy(&ran.stderr.bytes).into_owned();
            let last = said.lines().rev().find(|line| !line.trim().is_empty());
            last.unwrap_or(UNANSWERED).to_owned()
        }
        _ => UNANSWERED.to_owned(),
    }
}

/// Times that a program is run again for what is not its fault.
const LOSSES_MAX: u32 = 2;

/// Before it is started again: the machine may have been short of something.
const PAUSE: Duration = Duration::from_millis(200);

#[cfg(test)]
mod tests {
    use odeon_algorithms::environment::EnvironmentConfig;
    use odeon_skip::{Need, skip};

    use super::*;

    #[tokio::test(flavor = "multi_thread")]
    async fn a_calculator_answers_in_the_order_of_the_calls() {
        let config = EnvironmentConfig::of(Tool::Calculator);
        let toolbox = Toolbox::open(&config, &ProgramSpec::default())
            .await
            .unwrap();
        let calls = ["1+2", "nothing", "3-5"].map(str::to_owned);
        assert_eq!(toolbox.run_all(&calls).await.unwrap(), ["3", "?", "-2"]);
    }

    #[tokio::test]
    async fn a_simulation_runs_no_programs() {
        let config = EnvironmentConfig::of(Tool::Python);
        let refused = Toolbox::open(&config, &ProgramSpec::default()).await;
        assert!(matches!(refused, Err(ToolboxError::Simulated)));
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_program_has_what_it_prints_for_an_answer_and_one_without_end_has_none() {
        let config = EnvironmentConfig {
            call_max: Duration::from_secs(2),
            ..EnvironmentConfig::of(Tool::Python)
        };
        let toolbox = match Toolbox::open(&config, &ProgramSpec::default()).await {
            Ok(toolbox) => toolbox,
            Err(ToolboxError::Sandbox(error @ SandboxError::NoIsolation { .. })) => {
                return skip(Need::Namespaces, error);
            }
            Err(error @ ToolboxError::NoInterpreter { .. }) => return skip(Need::Python, error),
            Err(error) => panic!("{error}"),
        };
        let calls = [
            "print(738 + 419)",
            "print(1 / 0)",
            "while True: pass",
            "import socket\nsocket.create_connection(('192.0.2.1', 80), 1)",
        ];
        let calls = calls.map(str::to_owned);
        let [sum, error, endless, outside] = &toolbox.run_all(&calls).await.unwrap()[..] else {
            panic!("an answer each");
        };
        assert_eq!(sum.trim(), "1157");
        assert_eq!(error, "ZeroDivisionError: division by zero");
        assert_eq!(endless, UNANSWERED);
        assert!(outside.contains("Error"), "{outside}");
    }
}
