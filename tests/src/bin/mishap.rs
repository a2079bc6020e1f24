//! A program in which something goes wrong, alone or as a job: its first argument says what, its second for
//! how many nodes it waits.

use std::process::ExitCode;

use odeon::{AskError, Context, Effect, Failure, Incarnation, Job, Restart, System, SystemError};
use odeon_tests::cases::{self, Gate, Pupil, Ticker};
use rustix::process::{Pid, Signal};

/// Breaks when it is asked to, or when it is made of a flawed piece.
struct Vase;

#[odeon::actor(name = "mishap.Vase")]
impl Vase {
    fn start(flawed: bool) -> Self {
        assert!(!flawed, "it has a crack");
        Self
    }

    #[handler]
    fn drop_it(&mut self) {
        panic!("shattered");
    }

    /// The number of its process, and its life.
    #[handler]
    fn look(&mut self, cx: &mut Context<Self>) -> (u32, Incarnation) {
        (std::process::id(), cx.incarnation())
    }

    #[handler]
    fn fail(&mut self, cx: &mut Context<Self>) {
        cx.fail(Failure::error("chipped"));
    }
}

/// Has nothing to do with vases.
struct Clock;

#[odeon::actor(name = "mishap.Clock")]
impl Clock {
    fn start(_: ()) -> Self {
        Self
    }

    #[handler]
    fn tick(&mut self) {}
}

fn job() -> Job {
    odeon::job![Vase, Clock, Pupil, Gate, Ticker]
}

fn main() -> ExitCode {
    let what = std::env::args().nth(1).unwrap_or_default();
    let done = job().run(async |system| {
        let done = go_wrong(&system, &what).await;
        done.map_err(SystemError::Refused)
    });
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("Error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn words(error: impl std::fmt::Display) -> String {
    error.to_string()
}

async fn go_wrong(system: &System, what: &str) -> Result<(), String> {
    match what {
        // One fails more often than its supervisor bears.
        "budget" => {
            let clock = system.spawn::<Clock>(()).await.map_err(words)?;
            let vase = system.spawn::<Vase>(false).restart(Restart::Permanent);
            let vase = vase.await.map_err(words)?;
            while !matches!(vase.ask(DropIt).await, Err(AskError::Dead(_))) {}
            while clock.ask(Tick).await.is_ok() {}
        }
        // One never starts.
        "stillborn" => {
            let vase = system.spawn::<Vase>(true).start().map_err(words)?;
            let asked = vase.ask(DropIt).await;
            asked.expect_err("nobody is there");
        }
        // One fails in a process of its own, without a panic.
        "away" => {
            let vase = system.spawn::<Vase>(false).isolated();
            let vase = vase.await.map_err(words)?;
            vase.ask(Fail).await.map_err(words)?;
            while vase.ask(Look).await.map_or(0, |seen| seen.1) < 2 {}
        }
        "killed" => killed(system).await?,
        "listed" => listed(system).await?,
        // Many fail, of which none comes back.
        "storm" => {
            for _ in 0..200 {
                let vase = system.spawn::<Vase>(false).restart(Restart::Temporary);
                let vase = vase.await.map_err(words)?;
                // Dead when its supervisor has said so.
                while !matches!(vase.ask(DropIt).await, Err(AskError::Dead(_))) {}
            }
        }
        other => {
            let nodes = std::env::args().nth(2);
            let nodes = nodes.and_then(|nodes| nodes.parse().ok()).unwrap_or(1);
            if !cases::play(std::slice::from_ref(system), other, nodes).await {
                return Err(format!("`{other}` is nothing that goes wrong here"));
            }
        }
    }
    println!("main goes on to its end");
    Ok(())
}

/// The process of one is killed again and again, and each ask meanwhile ends with an answer or with `Died`.
async fn killed(system: &System) -> Result<(), String> {
    let vase = system.spawn::<Vase>(false).isolated();
    let vase = vase.await.map_err(words)?;
    let mut pid = vase.ask(Look).await.map_err(words)?.0;
    for _ in 0..4 {
        let process = Pid::from_raw(pid as i32).ok_or("no process")?;
        rustix::process::kill_process(process, Signal::KILL).map_err(words)?;
        loop {
            match vase.ask(Look).await {
                Ok((new, _)) if new != pid => {
                    pid = new;
                    break;
                }
                // It was answered before the signal came.
                Ok(_) => {}
                Err(error @ AskError::Died(_)) if error.effect() == Effect::Unknown => {}
                Err(error) => return Err(format!("an ask ended otherwise: {error:?}")),
            }
        }
    }
    Ok(())
}

/// The workers are listed, and one of them is killed.
async fn listed(system: &System) -> Result<(), String> {
    let vase = system.spawn::<Vase>(false).isolated();
    let vase = vase.await.map_err(words)?;
    let pid = vase.ask(Look).await.map_err(words)?.0;
    let workers = system.admin().workers();
    let [(process, listed)] = workers[..] else {
        return Err(format!(
            "one worker runs, and these are listed: {workers:?}"
        ));
    };
    let host = system.admin().process_of(vase);
    if (listed, Some(process)) != (pid, host) {
        return Err(format!(
            "{process} with {listed} is not the worker, but {host:?} with {pid}"
        ));
    }
    if !system.admin().kill_worker(process) {
        return Err("there is no worker to kill".to_owned());
    }
    let next = loop {
        if let Ok((next, 2)) = vase.ask(Look).await {
            break next;
        }
    };
    if system.admin().kill_worker(process) {
        return Err("a worker that is gone was killed".to_owned());
    }
    let workers = system.admin().workers();
    match workers[..] {
        [(_, listed)] if listed == next => Ok(()),
        _ => Err(format!(
            "{next} is the worker now, and these are listed: {workers:?}"
        )),
    }
}
