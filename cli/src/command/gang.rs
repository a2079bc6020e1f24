//! `odeon gang`: one program on many ranks, as under `torchrun`.

use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result};
use odeon::{
    Clock, Failure, FailureKind, Job, Needs, Reason, Ref, SpawnError, Supervision, System,
};
use odeon_actors::exec::{Disband, ExecSpec, Gang, GangSpec};

use super::job::check_line_ends;
use super::signals::Signals;
use crate::args::{GangArgs, RankArgs};
use crate::print;

pub(crate) fn run(job: Job, args: &GangArgs) -> Result<ExitCode> {
    args.each
        .check(Some(args.ranks))
        .map_err(anyhow::Error::msg)?;
    if let Some(script) = args
        .program
        .first()
        .map(Path::new)
        .filter(|it| it.is_file())
    {
        check_line_ends(script)?;
    }
    // Restarts count over the whole run, however long it takes.
    let restarts = Supervision::one_for_one().budget(args.each.max_restarts, FOREVER);
    let mut code = None;
    let outcome = job.run_with(
        |builder| builder.supervision(restarts).own_signals(),
        async |system| {
            code = Some(follow(&system, args).await?);
            anyhow::Ok(())
        },
    );
    // A gang that failed is told of there, and has a code of its own.
    code.map_or_else(|| outcome.map(|()| ExitCode::SUCCESS), Ok)
}

/// Runs a gang to its end, or until somebody asks it to stop.
async fn follow(system: &System, args: &GangArgs) -> Result<ExitCode> {
    let mut signals = Signals::listen()?;
    let (program, words) = args
        .program
        .split_first()
        .context("a gang needs a program")?;
    let grace = args.each.rank_grace();
    let last_call = args.each.last_call.unwrap_or(LAST_CALL);
    let mut spec = GangSpec::new(ExecSpec::new(program).args(words), args.ranks.most)
        .at_least(args.ranks.least)
        .last_call(last_call)
        .needs(needs(system, &args.each).await)
        .run_id(system.process().to_string())
        .restarts_max(args.each.max_restarts)
        .stop_within(grace);
    if let Some(limit) = args.each.hang_after {
        spec = spec.hang_after(limit);
    }
    if let Some(limit) = args.each.name_after {
        spec = spec.name_after(limit);
    }
    // Whoever waits for the failure tells it: from the beginning, so that nobody else does.
    let mut failing = std::pin::pin!(system.failed());
    let gang = tokio::select! {
        biased;
        failure = &mut failing => return Ok(failed(&failure, &args.each)),
        gang = system.spawn::<Gang>(spec) => match gang {
            Ok(gang) => gang,
            Err(SpawnError::Failed(failure)) => return Ok(failed(&failure, &args.each)),
            Err(error) => return Err(error.into()),
        },
        code = signals.asked() => return Ok(stopped(code)),
    };
    let code = tokio::select! {
        biased;
        failure = &mut failing => return Ok(failed(&failure, &args.each)),
        () = succeeded(gang) => return Ok(ExitCode::SUCCESS),
        code = signals.asked() => code,
    };
    tokio::select! {
        // What does not end in time is killed when this process ends.
        _ = gang.ask(Disband).timeout(grace + DISBAND_SLACK) => {}
        _ = signals.asked() => {}
    }
    Ok(stopped(code))
}

/// Resolves when all ranks have ended with success.
async fn succeeded(gang: Ref<Gang>) {
    loop {
        match gang.down().await.reason {
            Reason::Stopped => return,
            // It begins again, or the whole system has failed, which is heard elsewhere.
            _ => Clock::sleep(LOOK).await,
        }
    }
}

/// The needs of each rank of its node.
async fn needs(system: &System, each: &RankArgs) -> Needs {
    let devices = match each.devices_per_rank {
        Some(devices) => devices,
        None => {
            let nodes = system.nodes().await;
            u32::from(nodes.iter().any(|view| !view.node.devices.is_empty()))
        }
    };
    let mut needs = Needs::new();
    if devices > 0 {
        needs = needs.gpus(devices);
    }
    if let Some(cores) = each.cpus {
        needs = needs.cpus(cores);
    }
    if let Some(bytes) = each.memory {
        needs = needs.memory(bytes);
    }
    if let Some(bytes) = each.device_memory.filter(|_| devices > 0) {
        needs = needs.device_memory(bytes);
    }
    needs
}

/// Tells which rank failed first and how; the exit code is that of its program.
fn failed(failure: &Failure, each: &RankArgs) -> ExitCode {
    let escalated = failure.kind == FailureKind::Escalated;
    let told = match &failure.cause {
        // That there was no restart is no news where none was asked for.
        Some(cause) if escalated => cause,
        _ => failure,
    };
    let tried = match each.max_restarts {
        restarts if restarts == 0 || !escalated => String::new(),
        1 => "1 restart did not help: ".to_owned(),
        restarts => format!("{restarts} restarts did not help: "),
    };
    print::say(format!("error: {tried}{told}"));
    print::hush();
    ExitCode::from(exit_code(failure))
}

fn exit_code(failure: &Failure) -> u8 {
    let mut next = Some(failure);
    while let Some(failure) = next {
        if let FailureKind::Program(end) = failure.kind {
            return end.exit_code();
        }
        next = failure.cause.as_deref();
    }
    1
}

fn stopped(code: u8) -> ExitCode {
    print::hush();
    ExitCode::from(code)
}

/// The last call of an elastic gang, as under `torchrun`.
const LAST_CALL: Duration = Duration::from_secs(30);
/// Longer than any run.
const FOREVER: Duration = Duration::from_secs(1 << 40);
/// The time beyond its grace that a gang may take to end.
const DISBAND_SLACK: Duration = Duration::from_secs(3);
/// The interval between looks at a gang that begins again.
const LOOK: Duration = Duration::from_millis(20);

#[cfg(test)]
mod tests {
    use odeon::ProgramEnd;

    use super::*;

    #[test]
    fn the_exit_code_is_that_of_the_program_that_failed_first() {
        let check = |kind, code| {
            let rank = Failure::new(kind, "rank 2").because(Failure::error("cause"));
            let all = Failure::new(FailureKind::Escalated, "no restart helped").because(rank);
            assert_eq!(exit_code(&all), code, "{kind:?}");
        };
        check(FailureKind::Program(ProgramEnd::Code(7)), 7);
        check(FailureKind::Program(ProgramEnd::Signal(9)), 137);
        check(FailureKind::ProcessLost, 1);
    }
}
