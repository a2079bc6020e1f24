//! The recovery of the ranks of a run by itself. That of a cluster's jobs is beside the other routes about jobs, for those
//! who may stop them.

#![allow(
    unused_qualifications,
    reason = "the descriptions of the routes expand to them"
)]

use axum::Json;
use axum::extract::rejection::{JsonRejection, QueryRejection};
use axum::extract::{Query, State};
use axum::http::{HeaderMap, header};
use odeon::System;
use odeon_client::recovery::{OrderRecovery, Recovery, RecoveryOrdered};
use serde::Deserialize;
use utoipa::IntoParams;

use super::inspection::{Inspect, Origin};
use super::refused::Refused;
use crate::recovery::{AskedRun, Unanswered};

/// The person who has the key of a run.
const OWNER: &str = "whoever runs it";

impl From<Unanswered> for Refused {
    fn from(error: Unanswered) -> Self {
        let why = error.to_string();
        match error {
            Unanswered::Silent { .. } => Self::Undone(why),
            _ => Self::Invalid(why),
        }
    }
}

#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(super) struct RoleQuery {
    /// The role whose ranks are meant, where several have ranks.
    role: Option<String>,
}

/// The run, where it is one by itself that goes on.
fn own(inspect: &Inspect) -> Result<&System, Refused> {
    let why = match &inspect.origin {
        Origin::Living(_) if inspect.facts.has_jobs() => {
            "the ranks of a cluster's jobs are below /api/v1/jobs/JOB/recovery"
        }
        Origin::Living(system) => return Ok(system),
        Origin::Recorded(_) => "what has been recorded cannot be changed",
    };
    Err(Refused::Forbidden(why.to_owned()))
}

/// The recovery of the ranks of this run: what is forbidden, which nodes are avoided, what was done and why.
#[utoipa::path(get, operation_id = "inspect_recovery", path = "/api/v1/inspect/recovery", params(RoleQuery), responses((status = 200, body = Recovery)))]
pub(super) async fn recovery(
    State(inspect): State<Inspect>,
    query: Result<Query<RoleQuery>, QueryRejection>,
) -> Result<Json<Recovery>, Refused> {
    let Query(query) = query?;
    let run = AskedRun {
        system: own(&inspect)?,
        job: None,
        name: inspect.observer.name(),
    };
    Ok(Json(run.recovery(query.role.as_deref()).await?))
}

/// Has an action about the ranks of this run forbidden, allowed, taken now, or undone: by its key, which no page has.
#[utoipa::path(post, operation_id = "inspect_order_recovery", path = "/api/v1/inspect/recovery", request_body = OrderRecovery, responses((status = 200, body = RecoveryOrdered)))]
pub(super) async fn order_recovery(
    State(inspect): State<Inspect>,
    headers: HeaderMap,
    order: Result<Json<OrderRecovery>, JsonRejection>,
) -> Result<Json<RecoveryOrdered>, Refused> {
    let run = AskedRun {
        system: own(&inspect)?,
        job: None,
        name: inspect.observer.name(),
    };
    if !headers.contains_key(header::AUTHORIZATION) {
        let why = "this needs the key of the run itself: use `odeon recover RUN`";
        return Err(Refused::Forbidden(why.to_owned()));
    }
    let Json(order) = order.map_err(|error| Refused::Invalid(error.body_text()))?;
    let ordered = run.order(order, OWNER.to_owned()).await?;
    Ok(Json(RecoveryOrdered {
        sentence: ordered.why,
    }))
}
