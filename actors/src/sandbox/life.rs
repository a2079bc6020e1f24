//! One run, from its folder to the moment when nothing of it is left.

use std::os::unix::process::ExitStatusExt;
use std::process::{ExitStatus, Stdio};
use std::sync::Arc;
use std::time::Duration;

use odeon::Clock;
use rustix::process::{Pid, Signal};
use tokio::io::AsyncWriteExt;
use tokio::process::{Child, ChildStdin, Command};
use tokio::sync::{Notify, oneshot};

use super::capture::{Capture, Captured};
use super::folder::RunFolder;
use super::usage::{Usage, children};
use super::{Clockwork, End, Inner, Ran, SandboxError, SandboxSpec, Work};

/// Runs a program in a task of its own, so that whoever waits may go away.
pub(super) async fn run<T: Send + 'static>(
    inner: Arc<Inner>,
    work: Work,
    hold: T,
) -> Result<Ran, SandboxError> {
    if work.program.is_empty() {
        return Err(SandboxError::Setting(
            "there is no program to run".to_owned(),
        ));
    }
    let (answer, ran) = oneshot::channel();
    tokio::spawn(async move {
        see_through(inner, work, answer).await;
        drop(hold);
    });
    // The task answers unless the runtime ends, and then nobody waits.
    ran.await.unwrap_or(Err(SandboxError::RuntimeEnded))
}

async fn see_through(
    inner: Arc<Inner>,
    work: Work,
    mut answer: oneshot::Sender<Result<Ran, SandboxError>>,
) {
    let begun = Clock::now();
    let set_up = {
        let inner = Arc::clone(&inner);
        tokio::task::spawn_blocking(move || {
            let folder = inner.folder.run(&inner.plan, &work)?;
            Ok((folder, work))
        })
    };
    let (folder, work) = match set_up.await {
        Ok(Ok(set_up)) => set_up,
        Ok(Err(error)) => {
            let _ = answer.send(Err(error));
            return;
        }
        // The runtime ends.
        Err(_) => return,
    };
    let life = match Life::start(Arc::clone(&inner), &folder, &work) {
        Ok(life) => life,
        Err(error) => {
            drop_folder(folder).await;
            let ran = not_started(format!("{}: {error}", work.program[0]));
            let _ = answer.send(Ok(ran));
            return;
        }
    };
    let ran = life.see_through(work.stdin, &mut answer).await;
    drop_folder(folder).await;
    let _ = answer.send(ran.map(|mut ran| {
        ran.wall = Clock::now().since(begun);
        ran
    }));
}

/// Files are removed before the answer comes.
async fn drop_folder(folder: RunFolder) {
    let _ = tokio::task::spawn_blocking(move || drop(folder)).await;
}

fn not_started(why: String) -> Ran {
    Ran {
        end: End::NotStarted(why),
        stdout: Captured::default(),
        stderr: Captured::default(),
        wall: Duration::ZERO,
        cpu: Duration::ZERO,
    }
}

/// A program that was started. Dropped, it is killed.
struct Life {
    inner: Arc<Inner>,
    child: Child,
    group: Group,
}

/// Why it is over.
enum Over {
    Ended(std::io::Result<ExitStatus>),
    Exceeded(End),
    /// Nobody wants to know any more.
    Cancelled,
}

/// A session of processes. The first of them leads it when it has executed its first tool.
struct Group(Pid);

impl Life {
    fn start(inner: Arc<Inner>, folder: &RunFolder, work: &Work) -> std::io::Result<Self> {
        let (base, run) = (inner.folder.path(), folder.path());
        let line = inner.plan.command(base, run, work);
        let mut command = Command::new(&line[0]);
        command
            .args(&line[1..])
            .env_clear()
            .envs(inner.plan.env(run))
            .current_dir(run)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true);
        let child = command.spawn()?;
        let pid = child.id().and_then(|pid| Pid::from_raw(pid as i32));
        let pid = pid.ok_or_else(|| std::io::Error::other("it ended at once"))?;
        Ok(Self {
            inner,
            child,
            group: Group(pid),
        })
    }

    async fn see_through(
        mut self,
        stdin: Vec<u8>,
        answer: &mut oneshot::Sender<Result<Ran, SandboxError>>,
    ) -> Result<Ran, SandboxError> {
        let spec = self.inner.plan.spec().clone();
        if let Err(error) = self.inner.guard.watch(self.group.number()).await {
            self.end().await;
            return Err(error);
        }
        let full = Arc::new(Notify::new());
        let (out, err) = (Capture::default(), Capture::default());
        let mut carried = tokio::task::JoinSet::new();
        if let Some(pipe) = self.child.stdin.take() {
            carried.spawn(feed(pipe, stdin));
        }
        if let Some(source) = self.child.stdout.take() {
            carried.spawn(
                out.clone()
                    .read(source, spec.output_bytes, Arc::clone(&full)),
            );
        }
        if let Some(source) = self.child.stderr.take() {
            let room = spec.output_bytes.saturating_add(SET_UP_BYTES);
            carried.spawn(err.clone().read(source, room, Arc::clone(&full)));
        }
        let mut last = Usage::default();
        let processes_max = self.inner.plan.processes_seen_max();
        let over = tokio::select! {
            biased;
            ended = self.child.wait() => Over::Ended(ended),
            () = full.notified() => Over::Exceeded(End::OutputTooLong),
            end = watch(self.group.number(), &spec, processes_max, &mut last) => {
                Over::Exceeded(end)
            }
            () = Clock::sleep(spec.wall) => Over::Exceeded(End::TimedOut(Clockwork::Wall)),
            () = answer.closed() => Over::Cancelled,
        };
        self.end().await;
        self.inner.guard.forget(self.group.number()).await;
        // All writers are gone, but for what has left a session that only limits hold.
        let all = async { while carried.join_next().await.is_some() {} };
        let _ = Clock::timeout(PRINT_PATIENCE, all).await;
        carried.abort_all();
        Ok(told(over, out.take(), err.take(), &spec, last))
    }

    /// Ends what is left, and waits until nothing is.
    async fn end(&mut self) {
        // The processes below first, and the one that waits for them last: so they are reaped by
        // it, and not left to whoever is process 1, which in a container may reap nobody.
        for _ in 0..END_TRIES {
            if self.child.id().is_none() {
                break;
            }
            for child in children(self.group.number()) {
                kill(child);
            }
            let _ = Clock::timeout(END_PAUSE, self.child.wait()).await;
        }
        if self.child.id().is_some() {
            self.group.kill();
            // It may not be the leader yet.
            let _ = self.child.kill().await;
        }
        let until = Clock::now().after(END_PATIENCE);
        while self.group.lives() {
            if until.left(Clock::now()).is_zero() {
                tracing::warn!(group = ?self.group.0, "processes of a program do not end");
                return;
            }
            self.group.kill();
            Clock::sleep(END_PAUSE).await;
        }
    }
}

impl Group {
    fn number(&self) -> i32 {
        self.0.as_raw_nonzero().get()
    }

    /// Only while it lives: after that its number may be another's.
    fn kill(&self) {
        let _ = rustix::process::kill_process_group(self.0, Signal::KILL);
    }

    /// Returns true when a process of it runs. One that has ended and that nobody has reaped does
    /// not.
    fn lives(&self) -> bool {
        if rustix::process::test_kill_process_group(self.0).is_err() {
            return false;
        }
        let Ok(processes) = std::fs::read_dir("/proc") else {
            return true;
        };
        let group = self.number().to_string();
        processes.flatten().any(|entry| {
            let stat = std::fs::read_to_string(entry.path().join("stat")).unwrap_or_default();
            // Behind the name, which may hold anything: state, parent, group.
            let fields = stat.rsplit_once(") ").map_or("", |(_, fields)| fields);
            let mut fields = fields.split(' ');
            let state = fields.next().unwrap_or_default();
            fields.nth(1) == Some(&group) && !["Z", "X"].contains(&state)
        })
    }
}

impl Drop for Life {
    fn drop(&mut self) {
        // Only when the runtime ends under way: it has not been reaped, so the number is its own.
        if self.child.id().is_some() {
            self.group.kill();
        }
    }
}

fn kill(pid: i32) {
    if let Some(pid) = Pid::from_raw(pid) {
        // It may end by itself in this moment.
        let _ = rustix::process::kill_process(pid, Signal::KILL);
    }
}

/// Opens the gate, and writes what the program reads. One that does not read is none the worse.
async fn feed(mut pipe: ChildStdin, stdin: Vec<u8>) {
    if pipe.write_all(b"go\n").await.is_ok() {
        let _ = pipe.write_all(&stdin).await;
    }
}

/// Looks at what the processes take until it is too much.
async fn watch(pid: i32, spec: &SandboxSpec, processes_max: usize, last: &mut Usage) -> End {
    let mut pause = LOOK_PAUSE;
    loop {
        Clock::sleep(pause).await;
        pause = LOOK_PAUSE_MAX.min(pause * 2);
        *last = Usage::of(pid);
        if last.memory_bytes > spec.memory_bytes {
            return End::OutOfMemory;
        }
        if last.cpu > spec.cpu {
            return End::TimedOut(Clockwork::Cpu);
        }
        if last.processes > processes_max {
            return End::TooManyProcesses;
        }
    }
}

/// The report on a program that is over.
fn told(over: Over, out: Captured, err: Captured, spec: &SandboxSpec, last: Usage) -> Ran {
    let (before, said) = err.split_at_begin(spec.output_bytes);
    let begun = said.is_some();
    let said = said.unwrap_or_default();
    let end = match over {
        Over::Cancelled => End::NotStarted("nobody waits for it".to_owned()),
        Over::Ended(Err(error)) => End::NotStarted(format!("its end was not seen: {error}")),
        Over::Ended(Ok(status)) if !begun => {
            End::NotStarted(format!("{} ({status})", before.trim()))
        }
        Over::Exceeded(end) if !begun => {
            End::NotStarted(format!("{} before it began: {end}", before.trim()))
        }
        Over::Exceeded(end) => end,
        Over::Ended(Ok(_)) if out.cut || said.cut => End::OutputTooLong,
        Over::Ended(Ok(status)) => ended(status, &said, spec, last),
    };
    Ran {
        end,
        stdout: out,
        stderr: said,
        wall: Duration::ZERO,
        cpu: last.cpu,
    }
}

fn ended(status: ExitStatus, said: &Captured, spec: &SandboxSpec, last: Usage) -> End {
    // Shells tell of a signal by a code above 128.
    let by_shell = |code: i32| (129..=192).contains(&code).then(|| code - 128);
    let code = status.code().unwrap_or_default();
    let signal = status.signal().or_else(|| by_shell(code));
    match signal {
        Some(SIGXCPU) => End::TimedOut(Clockwork::Cpu),
        Some(SIGKILL) if last.cpu >= spec.cpu => End::TimedOut(Clockwork::Cpu),
        _ if code != 0 && said.ends_for_want_of_memory() => End::OutOfMemory,
        Some(signal) => End::Signalled(signal),
        None => End::Exited(code),
    }
}

const SIGKILL: i32 = Signal::KILL.as_raw();
const SIGXCPU: i32 = Signal::XCPU.as_raw();
/// Room for what tools say before the program begins.
const SET_UP_BYTES: usize = 8 << 10;
/// Pause between two looks at what a program takes: at first, and at last.
const LOOK_PAUSE: Duration = Duration::from_millis(20);
const LOOK_PAUSE_MAX: Duration = Duration::from_millis(100);
/// The most times that the processes below are killed before all are.
const END_TRIES: u32 = 20;
const END_PAUSE: Duration = Duration::from_millis(5);
/// Time that killed processes may take to end.
const END_PATIENCE: Duration = Duration::from_secs(5);
/// Time to wait for the last of what was printed.
const PRINT_PATIENCE: Duration = Duration::from_millis(500);
