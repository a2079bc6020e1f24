//! `odeon recover`: what is done about the ranks of a job or a run by itself, and a person's hand in that.

use std::path::Path;

use anyhow::Result;
use odeon::Clock;
use odeon_client::recovery::{OrderRecovery, Recovery, RecoveryVerb};
use odeon_client::{Client, ClientError};

use super::job::cluster;
use super::watched::Watched;
use crate::args::{LookArgs, RecoverArgs, RecoverCommand};
use crate::figures;
use crate::print;
use crate::waiter::Waiter;

/// The run that is asked, and how.
enum Target {
    Job(Client, String),
    Run(Client, Watched),
}

impl Target {
    /// A folder or an address is a run by itself, all else a job.
    fn of(args: &RecoverArgs) -> Result<(Self, Waiter)> {
        let word = &args.job;
        if !word.contains("://") && !Path::new(word).is_dir() {
            let (client, waiter) = cluster(args.cluster.dir.as_ref())?;
            return Ok((Self::Job(client, word.clone()), waiter));
        }
        let watched = Watched::of(&LookArgs {
            run: Some(word.clone()),
            dir: None,
        })?;
        let client = Client::new(watched.connection()?)?;
        Ok((Self::Run(client, watched), Waiter::alone()?))
    }

    async fn recovery(&self, role: Option<&str>) -> Result<Recovery> {
        match self {
            Self::Job(client, job) => Ok(client.recovery(job, role).await?),
            Self::Run(client, watched) => {
                let shown = client.own_recovery(role).await;
                shown.map_err(|error| of_run(watched, error))
            }
        }
    }

    async fn order(&self, order: &OrderRecovery) -> Result<String> {
        let ordered = match self {
            Self::Job(client, job) => client.order_recovery(job, order).await?,
            Self::Run(client, watched) => {
                let ordered = client.order_own_recovery(order).await;
                ordered.map_err(|error| of_run(watched, error))?
            }
        };
        Ok(ordered.sentence)
    }
}

/// A refusal in its own words; all else in those of the run.
fn of_run(watched: &Watched, error: ClientError) -> anyhow::Error {
    match error {
        ClientError::Refused { status, .. } if status != 401 => error.into(),
        error => watched.why_not(error),
    }
}

pub(crate) fn run(args: &RecoverArgs) -> Result<()> {
    let (target, waiter) = Target::of(args)?;
    let Some(command) = &args.command else {
        let recovery = waiter.block_on(target.recovery(args.role.as_deref()))?;
        if args.json {
            print::line(serde_json::to_string(&recovery)?)?;
            return Ok(());
        }
        let now_ms = Clock::unix_time().as_millis() as u64;
        return lines(&recovery, now_ms)
            .into_iter()
            .try_for_each(|line| Ok(print::line(figures::plain(&line))?));
    };
    let order = ordered(command, args.role.as_deref());
    let sentence = waiter.block_on(target.order(&order))?;
    print::say(figures::plain(&sentence));
    Ok(())
}

fn ordered(command: &RecoverCommand, role: Option<&str>) -> OrderRecovery {
    let of = |order, action: Option<&String>, why: &str| OrderRecovery {
        order,
        action: action.cloned(),
        rank: None,
        node: None,
        role: role.map(str::to_owned),
        why: why.to_owned(),
    };
    match command {
        RecoverCommand::Forbid { action, why } => of(RecoveryVerb::Forbid, Some(action), why),
        RecoverCommand::Allow { action, why } => of(RecoveryVerb::Allow, Some(action), why),
        RecoverCommand::Force { action, rank, why } => OrderRecovery {
            rank: *rank,
            ..of(RecoveryVerb::Force, Some(action), why)
        },
        RecoverCommand::Undo { node, why } => OrderRecovery {
            node: node.clone(),
            ..of(RecoveryVerb::Undo, None, why)
        },
    }
}

/// Actions that are shown; --json has more.
const SHOWN: usize = 10;

fn lines(it: &Recovery, now_ms: u64) -> Vec<String> {
    let mut lines = vec![];
    for order in &it.forbidden {
        let why = match order.why.is_empty() {
            true => String::new(),
            false => format!(": {}", order.why),
        };
        lines.push(format!(
            "{} is forbidden by {}{why}",
            order.action, order.by
        ));
    }
    if it.forbidden.is_empty() {
        lines.push("nothing is forbidden".to_owned());
    }
    lines.push(match it.avoided.as_slice() {
        [] => "no node is avoided".to_owned(),
        nodes => format!("avoided: {}", nodes.join(", ")),
    });
    lines.push(format!(
        "{} of {} restarts are left; nodes left {}, for nothing {}",
        it.restarts_max.saturating_sub(it.restarts),
        it.restarts_max,
        it.evictions,
        it.over_evictions
    ));
    if !it.at_work {
        lines.push("the ranks begin, or wait for room: nothing can be forced now".to_owned());
    }
    let skip = it.done.len().saturating_sub(SHOWN);
    for done in it.done.iter().skip(skip) {
        let ago = print::ago(now_ms.saturating_sub(done.at_ms));
        lines.push(format!("{ago} ago, {}: {}", done.action, done.why));
    }
    lines
}

#[cfg(test)]
mod tests {
    use odeon_client::recovery::{ForbiddenAction, RecoveryAct};

    use super::*;

    /// SEMANTICS 201.
    #[test]
    fn what_is_forbidden_avoided_and_done_is_told_in_words() {
        let mut recovery = Recovery {
            role: String::new(),
            at_work: true,
            moves: true,
            ranks: vec![],
            forbidden: vec![],
            avoided: vec![],
            restarts: 3,
            restarts_max: 10,
            evictions: 1,
            over_evictions: 0,
            done: vec![],
        };
        let told = [
            "nothing is forbidden",
            "no node is avoided",
            "7 of 10 restarts are left; nodes left 1, for nothing 0",
        ];
        assert_eq!(lines(&recovery, 0), told);
        recovery.at_work = false;
        recovery.avoided = vec!["b".to_owned()];
        recovery.forbidden.push(ForbiddenAction {
            action: "end_process".to_owned(),
            by: "ann".to_owned(),
            why: "a debugger is there".to_owned(),
        });
        recovery.done.push(RecoveryAct {
            at_ms: 1_000,
            action: "evict_node".to_owned(),
            ranks: vec![1],
            by: None,
            why: "rank 1 on node b: so".to_owned(),
        });
        let told = [
            "end_process is forbidden by ann: a debugger is there",
            "avoided: b",
            "7 of 10 restarts are left; nodes left 1, for nothing 0",
            "the ranks begin, or wait for room: nothing can be forced now",
            "5 s ago, evict_node: rank 1 on node b: so",
        ];
        assert_eq!(lines(&recovery, 6_000), told);
    }
}
