//! A program as processes: started behind a gate, in a group of its own that a guard ends with this
//! process, and seen to its end.

use std::net::{Ipv4Addr, TcpListener};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use odeon::trace::{SpanContext, TRACEPARENT};
use odeon::{Clock, Failure, ProgramEnd, Shape, Timestamp};
use rustix::process::{Pid, Signal};
use serde::{Deserialize, Serialize};
use tokio::io::AsyncWriteExt;
use tokio::process::{Child, Command};
use tokio::sync::watch;

use super::output::{self, Ears, Tail, Told};
use super::probe::{self, Probe};
use super::spec::{ExecSpec, Look};
use super::waiting::WaitSamples;

/// The program waits for a line and is this process from then on. When the line never comes, since
/// whoever should write it is gone, nothing is begun.
const GATE: &str = r#"read -r go || exit 125; exec "$0" "$@" </dev/null"#;
/// Waits for a line, too. When its input ends without one, it kills the group.
const GUARD: &str = r#"read -r over || kill -s KILL -- "-$0""#;
const SHELL: &str = "/bin/sh";

/// A program that was started. Dropped, it is killed with its group.
#[derive(Debug)]
pub(super) struct Running {
    group: Pid,
    port: Option<u16>,
    tail: Tail,
    stage: watch::Receiver<Stage>,
    ending: watch::Receiver<Option<Ending>>,
    /// Until when what the program leaves in its group may end by itself.
    leave: watch::Sender<Option<Timestamp>>,
    seen: watch::Receiver<bool>,
    told: Told,
    waits: WaitSamples,
}

/// The work of a program up to a moment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, Shape)]
pub struct Activity {
    /// Its number of the operating system.
    pub pid: u32,
    /// Processor time of its process group, in milliseconds.
    pub cpu_ms: u64,
    /// Lines that it has printed.
    pub lines: u64,
    /// The last step that it has named in a line.
    pub step: Option<u64>,
    /// Times that its main thread was looked at, and how many of these it waited for data or for another thread.
    pub samples: (u64, u64),
    /// The loss that it printed last, where that is no number: its name, its step, and when the first of them was
    /// printed, in microseconds since 1970.
    pub odd_number: Option<(String, Option<u64>, u64)>,
}

/// Progress of a program towards its end.
#[derive(Clone, Debug)]
enum Stage {
    /// Something of its group may live.
    Runs,
    /// Nothing is left, and this is how it ended.
    Gone(ProgramEnd),
    /// Its output is known to the end, too.
    Over(Over),
}

/// The end of a program.
#[derive(Clone, Debug)]
pub(super) struct Over {
    pub(super) end: ProgramEnd,
    pub(super) last_words: String,
}

/// The end of a program by itself and its moment, whatever it has left behind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, Shape)]
pub struct Ending {
    /// The manner.
    pub end: ProgramEnd,
    /// The moment from which on it was ending, in microseconds since 1970 by the clock of its machine: that in which it
    /// began to report its last error, or of its end where it reported none.
    pub at_us: u64,
}

/// Why a program did not become ready.
#[derive(Debug)]
pub(super) struct Unready {
    /// Set when it has ended by itself.
    pub(super) by_itself: bool,
    pub(super) text: String,
}

impl Running {
    /// Starts a program, which is told the span that it is started for.
    ///
    /// # Errors
    /// There is none, or the operating system refuses.
    pub(super) fn start(
        spec: &ExecSpec,
        env: &[(String, String)],
        span: SpanContext,
    ) -> Result<Self, Failure> {
        let port = match spec.port() {
            Some(0) => Some(free_port().map_err(not_started(spec, "a free port"))?),
            port => port,
        };
        let mut command = gated(spec, env, port)?;
        if !span.is_empty() && !spec.sets(TRACEPARENT) {
            command.env(TRACEPARENT, span.traceparent());
        }
        let mut child = command.spawn().map_err(not_started(spec, SHELL))?;
        let pid = child.id().and_then(|pid| Pid::from_raw(pid as i32));
        let group = pid.ok_or_else(|| Failure::error(format!("{spec} ended at once")))?;
        let guard = guard_of(group)
            .spawn()
            .map_err(not_started(spec, "its guard"))?;
        let tail = Tail::default();
        let (told, waits) = (Told::default(), WaitSamples::default());
        let (printed, seen) = carry(spec, &mut child, &tail, &told);
        let (tell, stage) = watch::channel(Stage::Runs);
        let (end, ending) = watch::channel(None);
        let (leave, until) = watch::channel(None);
        let life = Life {
            child,
            guard,
            group,
            until,
            tail: tail.clone(),
            waits: waits.clone(),
        };
        tokio::spawn(life.see_through(printed, end, tell));
        Ok(Self {
            group,
            port,
            tail,
            stage,
            ending,
            leave,
            seen,
            told,
            waits,
        })
    }

    /// Its work up to now; nothing once it has ended.
    pub(super) fn activity(&self) -> Option<Activity> {
        if self.end().is_some() {
            return None;
        }
        let told = self.told.so_far();
        let odd_number = told.odd_number.map(|it| (it.name, it.step, it.at_us));
        Some(Activity {
            pid: self.pid(),
            cpu_ms: cpu_ms(self.group),
            lines: told.lines,
            step: told.step,
            samples: self.waits.counts(),
            odd_number,
        })
    }

    /// The number of its process and its group.
    pub(super) fn pid(&self) -> u32 {
        self.group.as_raw_nonzero().get() as u32
    }

    pub(super) const fn port(&self) -> Option<u16> {
        self.port
    }

    /// The end of the program, if it has ended.
    pub(super) fn end(&self) -> Option<ProgramEnd> {
        match &*self.stage.borrow() {
            Stage::Runs => None,
            Stage::Gone(end) => Some(*end),
            Stage::Over(over) => Some(over.end),
        }
    }

    /// Resolves when the program itself has ended; with `None` when nobody sees it through any more.
    pub(super) fn ending(&self) -> impl Future<Output = Option<Ending>> + Send + use<> {
        let mut ending = self.ending.clone();
        async move { *ending.wait_for(Option::is_some).await.ok()? }
    }

    pub(super) fn last_words(&self) -> String {
        self.tail.words()
    }

    /// Waits until it is ready.
    pub(super) async fn become_ready(&mut self, spec: &ExecSpec) -> Result<(), Unready> {
        let (mut stage, mut seen) = (self.stage.clone(), self.seen.clone());
        let ended = async {
            // Its last lines belong to the reason.
            let over = stage
                .wait_for(|stage| matches!(stage, Stage::Over(_)))
                .await;
            match over.as_deref() {
                Ok(Stage::Over(over)) => format!("ended before it was ready: {}", over.end),
                _ => "ended before it was ready".to_owned(),
            }
        };
        let mut last = "nothing was tried".to_owned();
        let ready = async {
            match (spec.probe(), self.port) {
                (Probe::None, _) => {}
                (Probe::Line(text), _) => {
                    last = format!("no line has `{text}`");
                    if seen.wait_for(|seen| *seen).await.is_err() {
                        // It has closed its outputs: what is left is its end, or the deadline.
                        std::future::pending::<()>().await;
                    }
                }
                (probe, Some(port)) => {
                    let mut nth = 0;
                    while let Err(why) = asked(probe, port).await {
                        last = why;
                        Clock::sleep(probe::pause(nth)).await;
                        nth += 1;
                    }
                }
                (_, None) => {
                    last = "its port is asked for, and it says on none that it listens".to_owned();
                    std::future::pending::<()>().await;
                }
            }
        };
        let deadline = spec.deadline();
        let outcome = tokio::select! {
            biased;
            () = ready, if !matches!(spec.probe(), Probe::None) => return Ok(()),
            text = ended, if !matches!(spec.probe(), Probe::None) => Some(text),
            () = Clock::sleep(deadline), if !matches!(spec.probe(), Probe::None) => None,
            else => return Ok(()),
        };
        Err(match outcome {
            Some(text) => Unready {
                by_itself: true,
                text,
            },
            None => Unready {
                by_itself: false,
                text: format!("was not ready within {deadline:?}: {last}"),
            },
        })
    }

    /// Resolves when it has ended and what it has printed is known: with `None` when that is no news,
    /// since it was stopped.
    pub(super) fn ended(&self) -> impl Future<Output = Option<Over>> + Send + use<> {
        let (mut stage, mut told) = (self.stage.clone(), self.leave.subscribe());
        async move {
            let over = stage.wait_for(|stage| matches!(stage, Stage::Over(_)));
            // Otherwise nobody sees it through any more: this process ends, and its guard sees to
            // that.
            let Ok(Stage::Over(over)) = over.await.as_deref().cloned() else {
                return None;
            };
            let by_itself = told.borrow_and_update().is_none() && told.has_changed().is_ok();
            by_itself.then_some(over)
        }
    }

    /// Ends its group: SIGTERM, and SIGKILL to what is left after `grace`. Resolves when nothing is
    /// left, with how the program ended.
    pub(super) async fn stop(&mut self, grace: Duration) -> Option<ProgramEnd> {
        if self.end().is_none() {
            self.leave.send_replace(Some(Clock::now().after(grace)));
            // It may end by itself in this moment.
            let _ = rustix::process::kill_process_group(self.group, Signal::TERM);
        }
        let mut stage = self.stage.clone();
        let gone = stage.wait_for(|stage| !matches!(stage, Stage::Runs));
        if Clock::timeout(grace, gone).await.is_none() {
            self.kill();
        }
        let mut stage = self.stage.clone();
        let _ = stage
            .wait_for(|stage| matches!(stage, Stage::Over(_)))
            .await;
        self.end()
    }

    fn kill(&self) {
        if matches!(*self.stage.borrow(), Stage::Runs) {
            let _ = rustix::process::kill_process_group(self.group, Signal::KILL);
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.kill();
    }
}

/// The program behind its gate.
fn gated(spec: &ExecSpec, env: &[(String, String)], port: Option<u16>) -> Result<Command, Failure> {
    let here = std::env::current_dir().map_err(not_started(spec, "the folder"))?;
    let folder = match spec.work_folder() {
        Some(folder) => here.join(folder),
        None => here,
    };
    let env = spec.env_with(env, port, |name| std::env::var_os(name).is_some());
    let path = env.iter().rev().find(|(name, _)| name == "PATH");
    let path = path.map_or_else(
        || std::env::var("PATH").unwrap_or_default(),
        |(_, path)| path.clone(),
    );
    let program = spec.find(&folder, &path, look).map_err(|why| {
        // Another start would find the same.
        Failure::error(format!("{spec} was not started: {why}")).fatal()
    })?;
    let mut command = Command::new(SHELL);
    command
        .args(["-c", GATE])
        .arg(&program)
        .args(spec.args_with(port))
        .env_remove(WORKER_ENV)
        .envs(env)
        .current_dir(&folder)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .process_group(0)
        .kill_on_drop(true);
    Ok(command)
}

/// The command that ends a group when this process ends. It has a group of its own: that of this
/// process may be killed as a whole.
fn guard_of(group: Pid) -> Command {
    let mut command = Command::new(SHELL);
    command
        .args(["-c", GUARD])
        .arg(group.as_raw_nonzero().to_string())
        .env_clear()
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .process_group(0);
    command
}

/// Carries what the program prints to the log of this process, and tells when the line that it is
/// ready with has come.
fn carry(
    spec: &ExecSpec,
    child: &mut Child,
    tail: &Tail,
    told: &Told,
) -> (
    impl Future<Output = ()> + Send + use<>,
    watch::Receiver<bool>,
) {
    let (see, seen) = watch::channel(false);
    let awaited = match spec.probe() {
        Probe::Line(text) => Some((text.clone(), see)),
        _ => None,
    };
    let ears = [None, Some(tail.clone())].map(|tail| Ears {
        tail,
        awaited: awaited.clone(),
        told: told.clone(),
    });
    let (out, err) = (child.stdout.take(), child.stderr.take());
    let prefix = spec.line_prefix().to_owned();
    let carried = async move {
        let [out_ears, err_ears] = ears;
        let out = async {
            if let Some(out) = out {
                output::carry(out, std::io::stdout(), &prefix, out_ears).await;
            }
        };
        let err = async {
            if let Some(err) = err {
                output::carry(err, std::io::stderr(), &prefix, err_ears).await;
            }
        };
        tokio::join!(out, err);
    };
    (carried, seen)
}

fn not_started(spec: &ExecSpec, what: &str) -> impl FnOnce(std::io::Error) -> Failure {
    move |error| Failure::error(format!("{spec} was not started: {what}: {error}"))
}

/// A program that was started, on its way to its end.
struct Life {
    child: Child,
    guard: Child,
    group: Pid,
    until: watch::Receiver<Option<Timestamp>>,
    tail: Tail,
    waits: WaitSamples,
}

impl Life {
    /// Opens the gate, and follows the program until nothing of it is left.
    async fn see_through(
        mut self,
        printed: impl Future<Output = ()> + Send + 'static,
        ended: watch::Sender<Option<Ending>>,
        tell: watch::Sender<Stage>,
    ) {
        let mut printed = tokio::spawn(printed);
        if let Some(mut gate) = self.child.stdin.take() {
            // A gate that is closed has ended, which is seen next.
            let _ = gate.write_all(b"go\n").await;
        }
        let waited = tokio::select! {
            status = self.child.wait() => status,
            never = self.waits.clone().follow(self.group.as_raw_nonzero().get() as u32) => match never {},
        };
        let end = match waited {
            Ok(status) => match (status.code(), status.signal()) {
                (Some(code), _) => ProgramEnd::Code(code),
                (None, signal) => ProgramEnd::Signal(signal.unwrap_or(0)),
            },
            Err(error) => {
                tracing::warn!(group = ?self.group, %error, "the end of a program could not be seen");
                ProgramEnd::Code(-1)
            }
        };
        let at_us = Clock::unix_time().as_micros() as u64;
        // Its last lines are there already, unless somebody else holds its outputs open.
        let is_read = Clock::timeout(ERROR_PATIENCE, &mut printed).await.is_some();
        let at_us = match end {
            ProgramEnd::Code(0) => at_us,
            _ => match self.tail.error_at_us() {
                Some(error) if at_us.saturating_sub(error) <= ERROR_AGE_MAX_US => error.min(at_us),
                _ => at_us,
            },
        };
        ended.send_replace(Some(Ending { end, at_us }));
        self.end_group().await;
        tell.send_replace(Stage::Gone(end));
        if let Some(mut release) = self.guard.stdin.take() {
            let _ = release.write_all(b"over\n").await;
        }
        let _ = self.guard.wait().await;
        // Whoever has left the group may hold the output open for ever.
        if !is_read && Clock::timeout(PRINT_PATIENCE, &mut printed).await.is_none() {
            printed.abort();
        }
        let last_words = self.tail.words();
        tell.send_replace(Stage::Over(Over { end, last_words }));
    }

    /// Ends what the program has left in its group: at once, or after the grace of a stop.
    async fn end_group(&mut self) {
        let mut patience = None;
        let mut pause = GROUP_PAUSE;
        while lives(self.group) {
            let leave = *self.until.borrow();
            let now = Clock::now();
            if leave.is_none_or(|leave| leave.left(now).is_zero()) {
                let _ = rustix::process::kill_process_group(self.group, Signal::KILL);
                let until = *patience.get_or_insert_with(|| now.after(GROUP_PATIENCE));
                if until.left(now).is_zero() {
                    tracing::warn!(group = ?self.group, "processes that a program has left do not end");
                    return;
                }
            }
            Clock::sleep(pause).await;
            pause = GROUP_PAUSE_MAX.min(pause * 2);
        }
    }
}

/// Returns true when a process of the group runs. One that has ended and that nobody has reaped
/// does not.
fn lives(group: Pid) -> bool {
    if rustix::process::test_kill_process_group(group).is_err() {
        return false;
    }
    match stats_of(group) {
        Ok(stats) => stats.iter().any(|it| !["Z", "X"].contains(&it[0].as_str())),
        Err(_) => true,
    }
}

/// Processor time of a group, with that of processes which its own have waited for, in milliseconds.
fn cpu_ms(group: Pid) -> u64 {
    let ticks = |stat: &Vec<String>| -> u64 {
        let times = stat.iter().skip(11).take(4);
        times.filter_map(|it| it.parse::<u64>().ok()).sum()
    };
    let ticks: u64 = stats_of(group).iter().flatten().map(ticks).sum();
    ticks * 1000 / rustix::param::clock_ticks_per_second()
}

/// The processes of a group as the kernel tells of them, each by the fields behind its name, which may hold
/// anything: state, parent, group, and in the 12th place the first of four times.
fn stats_of(group: Pid) -> std::io::Result<Vec<Vec<String>>> {
    let group = group.as_raw_nonzero().to_string();
    let processes = std::fs::read_dir("/proc")?.flatten();
    let stats = processes.filter_map(|entry| {
        let stat = std::fs::read_to_string(entry.path().join("stat")).ok()?;
        let fields: Vec<String> = stat
            .rsplit_once(") ")?
            .1
            .split(' ')
            .map(str::to_owned)
            .collect();
        (*fields.get(2)? == group).then_some(fields)
    });
    Ok(stats.collect())
}

async fn asked(probe: &Probe, port: u16) -> Result<(), String> {
    match Clock::timeout(probe::ATTEMPT_MAX, probe::attempt(probe, port)).await {
        Some(outcome) => outcome,
        None => Err(format!("port {port} gives no answer")),
    }
}

fn free_port() -> std::io::Result<u16> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    Ok(listener.local_addr()?.port())
}

fn look(path: &Path) -> Look {
    match std::fs::metadata(path) {
        Ok(meta) if !meta.is_file() => Look::Nothing,
        Ok(meta) if meta.permissions().mode() & 0o111 != 0 => Look::Program,
        Ok(_) => Look::File,
        Err(_) => Look::Nothing,
    }
}

/// The variable by which the runtime speaks to its own processes; a program that is one of Odeon,
/// too, must not take it for itself.
const WORKER_ENV: &str = "ODEON_WORKER";
/// Pause between two looks at a group: at first, and at last.
const GROUP_PAUSE: Duration = Duration::from_millis(2);
const GROUP_PAUSE_MAX: Duration = Duration::from_millis(50);
/// Time that processes that were killed may take to end.
const GROUP_PATIENCE: Duration = Duration::from_secs(5);
/// The age of an error, in microseconds, up to which it is taken for what has ended the program.
const ERROR_AGE_MAX_US: u64 = 5_000_000;
/// Time that the last lines of a program that has ended may take until its end is told without them.
const ERROR_PATIENCE: Duration = Duration::from_millis(50);
/// Time to wait for the last lines of a program that has ended.
const PRINT_PATIENCE: Duration = Duration::from_secs(1);
