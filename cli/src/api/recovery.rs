//! Routes about the recovery of a job's ranks: what is forbidden and was done, and what people order.

#![allow(
    unused_qualifications,
    reason = "the descriptions of the routes expand to them"
)]

use std::sync::Arc;

use axum::extract::State;
use axum::{Extension, Json};
use futures::future::join_all;
use odeon_client::recovery::{OrderRecovery, Recovery, RecoveryOrdered, RecoveryVerb};
use odeon_cluster::job::Job;
use serde::Deserialize;
use utoipa::IntoParams;

use super::Api;
use super::access::{Submitter, Viewer};
use super::audit::Made;
use super::cluster::{Answer, Making};
use super::extract::{Path, Query, Sent};
use super::jobs::id_of;
use super::problem::No;
use crate::recovery::{AskedRun, Unanswered};

impl From<Unanswered> for No {
    fn from(error: Unanswered) -> Self {
        match error {
            Unanswered::Invalid(_) | Unanswered::NoRole { .. } | Unanswered::Several { .. } => {
                Self::invalid(error)
            }
            Unanswered::NoRanks(_) | Unanswered::Strange(_) | Unanswered::Conflict(_) => {
                Self::conflict(error)
            }
            Unanswered::Silent { .. } => Self::unavailable(error),
        }
    }
}

/// The name by which the engines know the present try of a job.
fn tag_of(job: &Job) -> Result<String, No> {
    if job.is_over() {
        let why = format!(
            "{} is over: `odeon retry {0}` runs it again, with what was forbidden and avoided in it",
            job.id
        );
        return Err(No::conflict(why));
    }
    let tag = job.attempt().map(|it| job.tag(it.number));
    tag.ok_or_else(|| {
        let why = format!(
            "{} waits, and has no ranks yet: `odeon why {0}` tells for what",
            job.id
        );
        No::conflict(why)
    })
}

#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(super) struct RecoveryQuery {
    /// The role whose ranks are meant, where several have ranks.
    role: Option<String>,
}

/// The recovery of a job's ranks: what is forbidden, which nodes are avoided, what was done and why.
#[utoipa::path(get, path = "/api/v1/jobs/{job}/recovery", params(("job" = String, Path, description = "Which job: its number, or the name of the newest of that name."), RecoveryQuery),
    responses((status = 200, body = Recovery)))]
pub(super) async fn recovery(
    State(api): State<Arc<Api>>,
    _: Viewer,
    Path(job): Path<String>,
    Query(query): Query<RecoveryQuery>,
) -> Answer<Recovery> {
    let row = api.row(id_of(&api, &job)?)?;
    let (tag, name) = (tag_of(&row)?, row.id.to_string());
    let run = AskedRun {
        system: api.daemon.system(),
        job: Some(&tag),
        name: &name,
    };
    Ok(Json(run.recovery(query.role.as_deref()).await?))
}

/// Has an action about a job's ranks forbidden, allowed, taken now, or undone.
#[utoipa::path(post, path = "/api/v1/jobs/{job}/recovery", params(("job" = String, Path, description = "Which job: its number, or the name of the newest of that name.")), request_body = OrderRecovery,
    responses((status = 200, body = RecoveryOrdered)))]
pub(super) async fn order_recovery(
    State(api): State<Arc<Api>>,
    Submitter(caller): Submitter,
    Path(job): Path<String>,
    Sent(order): Sent<OrderRecovery>,
) -> Making<RecoveryOrdered> {
    let row = api.row(id_of(&api, &job)?)?;
    let (tag, name) = (tag_of(&row)?, row.id.to_string());
    let run = AskedRun {
        system: api.daemon.system(),
        job: Some(&tag),
        name: &name,
    };
    let ordered = run.order(order, caller.name).await?;
    let mut sentence = ordered.why;
    for node in ordered.returned {
        let refused = api.read(|tables| {
            tables
                .nodes
                .get(&node)
                .is_some_and(|it| it.refused.is_some())
        });
        if refused? {
            sentence += &format!(
                "; nothing is placed on {node} as long as it is refused: odeon node allow {node}"
            );
        }
    }
    let made = Made(sentence.clone());
    Ok((Extension(made), Json(RecoveryOrdered { sentence })))
}

/// Has runs use a node again that avoid it, since a person has let it back. Answers how many did. The others stay as they
/// are.
pub(super) async fn let_back(api: &Api, node: &str, by: &str, why: &str) -> Result<usize, No> {
    let living: Vec<Job> = api.read(|tables| tables.living_jobs().cloned().collect())?;
    let runs = living.iter().filter_map(|job| {
        let attempt = job.attempt()?;
        Some((job.id.to_string(), job.tag(attempt.number)))
    });
    let asked = runs.map(async |(name, tag)| {
        let run = AskedRun {
            system: api.daemon.system(),
            job: Some(&tag),
            name: &name,
        };
        let order = OrderRecovery {
            order: RecoveryVerb::Undo,
            action: None,
            rank: None,
            node: Some(node.to_owned()),
            // Ranks of other roles leave no node.
            role: Some(String::new()),
            why: why.to_owned(),
        };
        match run.order(order, by.to_owned()).await {
            Ok(_) => true,
            Err(Unanswered::Conflict(_) | Unanswered::NoRanks(_) | Unanswered::NoRole { .. }) => {
                false
            }
            Err(error) => {
                tracing::warn!(%error, job = name, node, "it may avoid the node still");
                false
            }
        }
    });
    let used = join_all(asked).await;
    Ok(used.into_iter().filter(|it| *it).count())
}
