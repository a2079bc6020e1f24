//! Actions that may be taken from the pages: stop an actor, or have it begin anew. Off unless the
//! program or the daemon was started with `--allow-actions`.

use std::time::Duration;

use axum::Json;
use axum::extract::rejection::JsonRejection;
use axum::extract::{Path, State};
use odeon::{ActorId, AskError, Failure};
use odeon_client::inspect as told;
use serde::Deserialize;

use super::dto;
use super::inspection::{Inspect, Origin};
use super::refused::Refused;

/// The time that an end may take before the answer says that it goes on.
const PATIENCE: Duration = Duration::from_secs(10);

/// Which actor.
#[derive(Debug, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Order {
    actor: String,
}

/// Stops an actor, or has it begin anew (`stop`, `restart`), where that is allowed.
#[utoipa::path(post, operation_id = "inspect_act", path = "/api/v1/inspect/actions/{what}", params(("what" = String, Path, description = "`stop` or `restart`.")), request_body = Order, responses((status = 200, body = told::Done)))]
pub(super) async fn act(
    State(inspect): State<Inspect>,
    Path(what): Path<String>,
    order: Result<Json<Order>, JsonRejection>,
) -> Result<Json<told::Done>, Refused> {
    if !inspect.allow_actions {
        return Err(Refused::Forbidden(
            "nothing may be done from here: start it with --allow-actions".to_owned(),
        ));
    }
    let Origin::Living(system) = &inspect.origin else {
        return Err(Refused::Forbidden(
            "what has been recorded cannot be changed".to_owned(),
        ));
    };
    let Json(order) = order.map_err(|error| Refused::Invalid(error.body_text()))?;
    let (actor, title) = target(&inspect, &order.actor)?;
    let (outcome, done) = match what.as_str() {
        "stop" => {
            let outcome = system.admin().stop_actor(actor, PATIENCE).await;
            (outcome, format!("{title} was stopped"))
        }
        "restart" => {
            let asked = Failure::error("somebody who looked on had it begin anew");
            let outcome = system.admin().fail_actor(actor, asked, PATIENCE).await;
            (
                outcome,
                format!(
                    "{title} has ended this life; its supervisor begins the next one, or does what else it is told"
                ),
            )
        }
        other => {
            return Err(Refused::Unknown(format!(
                "there is no action `{other}`: actions are stop and restart"
            )));
        }
    };
    match outcome {
        Ok(()) => Ok(Json(told::Done { sentence: done })),
        Err(AskError::Timeout { .. }) => Err(Refused::Undone(format!(
            "{title} has not ended within {} s: it goes on ending",
            PATIENCE.as_secs()
        ))),
        Err(error) => Err(Refused::Undone(format!(
            "{title} cannot be reached: {error}"
        ))),
    }
}

/// The actor of this number, if it lives and is a program's own.
fn target(inspect: &Inspect, id: &str) -> Result<(ActorId, String), Refused> {
    inspect.shown(|it| {
        let mut actors = it.seen.actors().iter();
        let actor = actors.find(|actor| actor.view.id.to_string() == id);
        let actor = actor.ok_or_else(|| Refused::Unknown(format!("no actor {id} is seen")))?;
        let title = actor.title();
        if dto::is_system(actor) {
            return Err(Refused::Forbidden(format!(
                "{title} belongs to the system itself"
            )));
        }
        if actor.ended.is_some() {
            return Err(Refused::Invalid(format!("{title} has ended already")));
        }
        Ok((actor.id(), title))
    })
}
