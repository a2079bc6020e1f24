//! Programs that are none of Odeon, as actors: a trainer in Python, an inference server, a shell
//! script. An [`Exec`] hosts one program; a [`Gang`] runs one on many ranks, as `torchrun` does.
//!
//! ```text
//!  worker process (or any other that hosts the actor)
//!    Exec ── starts, waits ──> program, leader of a process group of its own
//!      └─ holds a pipe ──────> guard, which kills that group when the pipe ends
//! ```
//!
//! The program begins behind a gate that opens when the guard is there. So there is no moment in
//! which the actor's process can be killed and leave the program behind.
//!
//! What a program does that leaves its process group (`setsid`) is its own affair.

mod blame;
mod gang;
mod output;
mod probe;
mod process;
mod rank;
mod spec;
mod waiting;

use std::net::{Ipv4Addr, TcpListener};
use std::time::Duration;

use odeon::{
    Clock, Context, Failure, FailureKind, Later, ProgramEnd, Reason, Ref, Shape, StackError,
    StackFrames, program_stack, telemetry,
};
use odeon_diagnosis::gang::read_py_spy;
use serde::{Deserialize, Serialize};

use self::process::Running;
use crate::ranks::start::program_ready;

pub use self::gang::{Disband, Gang, GangSpec};
pub use self::probe::Probe;
pub use self::process::{Activity, Ending};
pub use self::rank::{DEFAULTS, Master, Place, Rendezvous};
pub use self::spec::ExecSpec;

/// Hosts one program. It has started when the program is [ready](Probe), and mail waits until
/// then. When the program ends with success, so does the actor; any other end is a [`Failure`] of
/// the kind [`FailureKind::Program`], and its supervisor starts it again or does not. When the
/// actor ends, nothing of the program's process group is left.
#[derive(Debug)]
pub struct Exec {
    spec: ExecSpec,
    /// `None` while it is held.
    running: Option<Running>,
    /// Kept for a program that is held.
    reserved: Option<TcpListener>,
}

/// Process, address and life of a program.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, Shape)]
pub struct ProgramStatus {
    /// The operating system's number, which is also that of its process group; `None` while it is
    /// held.
    pub pid: Option<u32>,
    /// Where it listens, as other nodes reach it: host and port.
    pub address: Option<(String, u16)>,
    /// Which life of the actor this is; the first is 1.
    pub life: u32,
}

/// The end of a program, for whoever waits for it.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Ended {
    /// With success, or it was stopped.
    InOrder,
    /// Not with success.
    Program(ProgramEnd, Failure),
    /// Its actor ended for another reason.
    Lost(Reason),
}

/// Why a program is not ready.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, Shape, thiserror::Error)]
#[non_exhaustive]
pub enum NotReady {
    /// Nobody has launched it yet.
    #[error("it is held and was not launched yet")]
    Held,
    /// It has ended.
    #[error("it has ended: {0}")]
    Ended(ProgramEnd),
}

#[odeon::actor(name = "exec.Exec")]
impl Exec {
    async fn start(spec: ExecSpec, cx: &mut Context<Self>) -> Result<Self, Failure> {
        let mut exec = Self {
            running: None,
            reserved: None,
            spec,
        };
        if !exec.spec.is_held() {
            exec.begin(&[], cx).await?;
        }
        Ok(exec)
    }

    async fn stop(mut self) {
        if let Some(running) = &mut self.running {
            running.stop(self.spec.grace().min(STOP_GRACE_MAX)).await;
        }
    }

    /// Succeeds when the program is ready. The answer to one that starts comes when it is.
    ///
    /// # Errors
    /// It is held, or has ended.
    #[handler]
    pub fn ready(&mut self) -> Result<(), NotReady> {
        let running = self.running.as_ref().ok_or(NotReady::Held)?;
        running
            .end()
            .map_or(Ok(()), |end| Err(NotReady::Ended(end)))
    }

    /// Process, address and life of the program.
    #[handler]
    pub fn status(&mut self, cx: &mut Context<Self>) -> ProgramStatus {
        let port = self.running.as_ref().and_then(Running::port);
        ProgramStatus {
            pid: self.running.as_ref().map(Running::pid),
            address: port.map(|port| (Place::here().address, port)),
            life: cx.incarnation(),
        }
    }

    /// Launches a program that is held, with more variables, and answers its number when it is
    /// ready.
    ///
    /// # Errors
    /// It is not held or was launched before, or it does not start.
    #[handler]
    pub async fn launch(
        &mut self,
        env: Vec<(String, String)>,
        cx: &mut Context<Self>,
    ) -> Result<u32, Failure> {
        if self.running.is_some() {
            return Err(Failure::error("the program runs already"));
        }
        self.reserved = None;
        self.begin(&env, cx).await
    }

    /// Where this process is, for the variables of ranks.
    #[handler]
    pub fn whereabouts(&mut self) -> Place {
        Place::here()
    }

    /// A free port of this machine, kept until the program is launched.
    ///
    /// # Errors
    /// What the operating system says.
    #[handler]
    pub fn reserve_port(&mut self) -> Result<u16, String> {
        let free = || -> std::io::Result<(TcpListener, u16)> {
            let listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED, 0))?;
            let port = listener.local_addr()?.port();
            Ok((listener, port))
        };
        let (listener, port) = free().map_err(|error| format!("no free port: {error}"))?;
        self.reserved = Some(listener);
        Ok(port)
    }

    /// Answers when the program has ended by itself, with how and when; `None` for one that is held.
    #[handler]
    pub fn await_ending(&mut self) -> Later<Option<Ending>> {
        let ending = self.running.as_ref().map(Running::ending);
        Later::new(async move { ending?.await })
    }

    /// The work of the program up to now; nothing while it is held, and once it has ended.
    #[handler]
    pub fn work(&mut self) -> Option<Activity> {
        self.running.as_ref()?.activity()
    }

    /// Where the main thread of its program stands, in one line; nothing of a program without Python.
    ///
    /// # Errors
    /// Why that is not known, in words.
    #[handler]
    pub fn stands_at(&mut self) -> Later<Result<Option<String>, String>> {
        let pid = self.running.as_ref().map(Running::pid);
        Later::new(async move {
            let pid = pid.ok_or_else(|| NotReady::Held.to_string())?;
            let taken = match program_stack(pid, StackFrames::Python).await {
                Err(StackError::NoPython(_)) => return Ok(None),
                taken => taken.map_err(|error| error.to_string())?,
            };
            let threads = read_py_spy(&taken).map_err(|error| format!("py-spy: {error}"))?;
            let main = threads.first().ok_or("it has no thread")?;
            Ok(Some(main.in_short()))
        })
    }

    /// Ends the program and this actor: SIGTERM to its process group, and SIGKILL to what is left of
    /// that after `grace`. Answers how it ended, when nothing is left. For more time than a stop of
    /// the actor leaves, which is four seconds at most.
    #[handler]
    pub async fn halt(&mut self, grace: Duration, cx: &mut Context<Self>) -> Option<ProgramEnd> {
        cx.stop();
        self.running.as_mut()?.stop(grace).await
    }

    /// The program has ended.
    #[handler]
    fn over(&mut self, pid: u32, end: ProgramEnd, why: String, cx: &mut Context<Self>) {
        if self.running.as_ref().is_none_or(|it| it.pid() != pid) {
            return;
        }
        match end {
            ProgramEnd::Code(0) => cx.stop(),
            end => cx.fail(Failure::new(FailureKind::Program(end), why)),
        }
    }
}

impl Exec {
    /// Waits for the end of the present life, and tells how the program ended.
    #[odeon::boxed]
    pub async fn wait(exec: Ref<Self>) -> Ended {
        match exec.down().await.reason {
            Reason::Stopped => Ended::InOrder,
            Reason::Failed(failure) => match failure.kind {
                FailureKind::Program(end) => Ended::Program(end, failure),
                _ => Ended::Lost(Reason::Failed(failure)),
            },
            reason => Ended::Lost(reason),
        }
    }

    /// Starts the program and waits until it is ready.
    async fn begin(
        &mut self,
        env: &[(String, String)],
        cx: &Context<Self>,
    ) -> Result<u32, Failure> {
        let span = telemetry::first_span("start program").with("program", self.spec.to_string());
        let began = Clock::now();
        let mut running = Running::start(&self.spec, env, span.context())?;
        if let Err(why) = running.become_ready(&self.spec).await {
            let end = running.stop(self.spec.grace().min(STOP_GRACE_MAX)).await;
            let kind = match (end, why.by_itself) {
                (Some(end), true) if end != ProgramEnd::Code(0) => FailureKind::Program(end),
                _ => FailureKind::Error,
            };
            span.fail();
            let what = format!("{} {}{}", self.spec, why.text, running.last_words());
            return Err(Failure::new(kind, what));
        }
        span.end();
        program_ready(Clock::now().since(began));
        let (pid, name) = (running.pid(), self.spec.to_string());
        let (ending, me) = (running.ended(), cx.me());
        self.running = Some(running);
        cx.spawn_task(async move {
            let Some(over) = ending.await else { return };
            let why = format!("{name} ended: {}{}", over.end, over.last_words);
            let end = over.end;
            // The mailbox may be full of what nobody handles any more; the end is news all the same.
            loop {
                let why = why.clone();
                match me.tell(Over { pid, end, why }).await {
                    Err(error) if matches!(error.error, odeon::AskError::Full { .. }) => {
                        Clock::sleep(TELL_PAUSE).await;
                    }
                    // An actor that is over needs no notice.
                    _ => return,
                }
            }
        });
        Ok(pid)
    }
}

/// The longest grace in a stop of the actor: [`Limits::stop_grace`](odeon::Limits) drops one that
/// takes longer, and what is killed has to be seen to end.
const STOP_GRACE_MAX: Duration = Duration::from_secs(4);
/// Pause before a full mailbox is told again.
const TELL_PAUSE: Duration = Duration::from_millis(100);
