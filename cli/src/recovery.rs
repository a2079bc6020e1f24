//! The desks of runs, at which people see the recovery of ranks and order something: found by their names, and asked.

use std::time::Duration;

use odeon::{AskError, NameError, Ref, System};
use odeon_actors::ranks::desk::{
    self, DESK_ROLES, OrderRefused, RecoveryDesk, RecoveryShown, ShowRecovery, desk_name,
};
use odeon_client::recovery::{
    ForbiddenAction, OrderRecovery, Recovery, RecoveryAct, RecoveryRank, RecoveryVerb,
};
use odeon_cluster::reason::reason;
use thiserror::Error;

/// The longest time for an answer: what supervises the ranks answers at once, or is gone.
const PATIENCE: Duration = Duration::from_secs(10);

/// An order or a question that is not answered. Nothing was changed, but where it says so.
#[derive(Debug, Error)]
pub(crate) enum Unanswered {
    /// The run has no ranks that it supervises.
    #[error(
        "{0} supervises no ranks at the moment: it has none, or has not begun (`odeon why` tells what it waits for)"
    )]
    NoRanks(String),
    /// Its role has none.
    #[error("{run} has no ranks of `{role}`: {known}")]
    NoRole {
        run: String,
        role: String,
        known: String,
    },
    /// Several roles have ranks.
    #[error("several roles of {run} have ranks: name one with --role, of {known}")]
    Several { run: String, known: String },
    /// It was built from other messages.
    #[error("{0}")]
    Strange(NameError),
    /// Nobody answers.
    #[error(
        "what supervises the ranks of {run} does not answer: {why}; look again whether it goes on"
    )]
    Silent { run: String, why: String },
    /// It cannot be meant.
    #[error("{0}")]
    Invalid(String),
    /// It does not fit what the run does.
    #[error("{0}")]
    Conflict(String),
}

/// A run whose ranks are asked about: one of the engines' jobs, or this program's own.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AskedRun<'a> {
    pub(crate) system: &'a System,
    /// The job as the engines know it; `None` for this program's.
    pub(crate) job: Option<&'a str>,
    /// Its name for people.
    pub(crate) name: &'a str,
}

/// The desk of one role's ranks.
#[derive(Clone, Copy, Debug)]
struct FoundDesk {
    role: &'static str,
    desk: Ref<RecoveryDesk>,
}

impl AskedRun<'_> {
    async fn named(&self, role: &str) -> Result<Ref<RecoveryDesk>, NameError> {
        let name = desk_name(role);
        match self.job {
            Some(job) => self.system.admin().lookup_in(job, &name).await,
            None => self.system.lookup(&name).await,
        }
    }

    async fn find(&self, role: Option<&str>) -> Result<FoundDesk, Unanswered> {
        let mut found = vec![];
        for own in DESK_ROLES {
            match self.named(own).await {
                Ok(desk) => found.push(FoundDesk { role: own, desk }),
                Err(NameError::NotFound(_)) => {}
                Err(NameError::Unreachable(why)) => return Err(self.silent(why)),
                Err(error) => return Err(Unanswered::Strange(error)),
            }
        }
        let run = self.name.to_owned();
        let names: Vec<&str> = found.iter().map(|it| it.role).collect();
        let known = names.join(", ");
        match (found.as_slice(), role) {
            ([], _) => Err(Unanswered::NoRanks(run)),
            (_, Some(role)) => {
                let one = found.into_iter().find(|it| it.role == role);
                let role = role.to_owned();
                let known = match known.is_empty() {
                    true => "leave the role out, all its ranks are of one".to_owned(),
                    false => format!("roles with ranks are {known}"),
                };
                one.ok_or(Unanswered::NoRole { run, role, known })
            }
            ([one], None) => Ok(*one),
            (_, None) => Err(Unanswered::Several { run, known }),
        }
    }

    fn silent(&self, why: String) -> Unanswered {
        let run = self.name.to_owned();
        Unanswered::Silent { run, why }
    }

    fn unanswered(&self, error: &AskError) -> Unanswered {
        self.silent(error.to_string())
    }

    /// The recovery of its ranks.
    pub(crate) async fn recovery(&self, role: Option<&str>) -> Result<Recovery, Unanswered> {
        let FoundDesk { role, desk } = self.find(role).await?;
        let shown = desk.ask(ShowRecovery).timeout(PATIENCE).await;
        let shown = shown.map_err(|error| self.unanswered(&error))?;
        Ok(told(role, shown))
    }

    /// Has something ordered by a person of this name.
    pub(crate) async fn order(
        &self,
        order: OrderRecovery,
        by: String,
    ) -> Result<desk::RecoveryOrdered, Unanswered> {
        let (wanted, role, why) = (wanted(&order)?, order.role, order.why);
        let FoundDesk { desk, .. } = self.find(role.as_deref()).await?;
        let order = desk::OrderRecovery {
            order: wanted,
            by,
            why: reason(&why),
        };
        let ordered = desk.ask(order).timeout(PATIENCE).await;
        let ordered = ordered.map_err(|error| self.unanswered(&error))?;
        ordered.map_err(|refused| match refused {
            OrderRefused::Invalid(why) => Unanswered::Invalid(why),
            OrderRefused::Conflict(why) => Unanswered::Conflict(why),
        })
    }
}

/// An order with all that its kind needs, and nothing else.
fn wanted(order: &OrderRecovery) -> Result<desk::RecoveryOrder, Unanswered> {
    let OrderRecovery {
        order,
        action,
        rank,
        node,
        ..
    } = order;
    let (action, node) = (action.clone(), node.clone());
    Ok(match (order, action, rank, node) {
        (RecoveryVerb::Forbid, Some(action), None, None) => desk::RecoveryOrder::Forbid(action),
        (RecoveryVerb::Allow, Some(action), None, None) => desk::RecoveryOrder::Allow(action),
        (RecoveryVerb::Force, Some(action), rank, None) => desk::RecoveryOrder::Force {
            action,
            rank: *rank,
        },
        (RecoveryVerb::Undo, None, None, node) => desk::RecoveryOrder::Undo { node },
        _ => {
            let why = "forbid and allow are of an action, force of an action and perhaps a rank, undo of nothing or a node";
            return Err(Unanswered::Invalid(why.to_owned()));
        }
    })
}

fn told(role: &str, shown: RecoveryShown) -> Recovery {
    let ranks = shown.ranks.into_iter();
    let forbidden = shown.forbidden.into_iter();
    let done = shown.done.into_iter();
    Recovery {
        role: role.to_owned(),
        at_work: shown.at_work,
        moves: shown.moves,
        ranks: ranks
            .map(|(rank, node)| RecoveryRank { rank, node })
            .collect(),
        forbidden: forbidden
            .map(|(action, by, why)| ForbiddenAction { action, by, why })
            .collect(),
        avoided: shown.avoided,
        restarts: shown.restarts,
        restarts_max: shown.restarts_max,
        evictions: shown.evictions,
        over_evictions: shown.over_evictions,
        done: done
            .map(|it| RecoveryAct {
                at_ms: it.at_ms,
                action: it.action,
                ranks: it.ranks,
                by: it.by,
                why: it.why,
            })
            .collect(),
    }
}
