//! Numbers as Prometheus scrapes them.

use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use axum::http::header;
use axum::response::IntoResponse;
use odeon_observe::today;
use odeon_otel::{Counting, Exposition, prometheus};
use serde::Deserialize;

use super::facts::Facts;
use super::inspection::Inspect;
use super::refused::Refused;

/// Where it is looked for.
pub(crate) const METRICS: &str = "/metrics";

/// The state that is kept from one scrape to the next.
#[derive(Debug)]
pub(super) struct Scraped {
    exposition: Exposition,
    counting: Option<Counting>,
}

impl Scraped {
    pub(super) fn new(counting: Option<Counting>) -> Self {
        Self {
            exposition: Exposition::default(),
            counting,
        }
    }
}

/// The query of a scrape.
#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(super) struct Asked {
    /// `node`, this one alone, as whoever scrapes all nodes expects; or `cluster`.
    #[serde(default)]
    scope: Scope,
}

#[derive(Clone, Copy, Debug, Default, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "lowercase")]
enum Scope {
    #[default]
    Node,
    Cluster,
}

/// All numbers as Prometheus takes them.
#[utoipa::path(get, operation_id = "inspect_metrics", path = "/metrics", params(Asked),
    responses((status = 200, content_type = "text/plain", body = String)))]
pub(super) async fn metrics(
    State(inspect): State<Inspect>,
    asked: Result<Query<Asked>, QueryRejection>,
) -> Result<impl IntoResponse, Refused> {
    let Query(asked) = asked?;
    inspect.observer.glance().await;
    let node = match (&inspect.facts, asked.scope) {
        (Facts::Cluster(daemon), Scope::Node) => Some(daemon.name()),
        _ => None,
    };
    let scraped = &inspect.scraped;
    let counts = scraped.counting.as_ref().map(Counting::counts);
    let text = inspect.observer.read(|seen| {
        let exposition = &scraped.exposition;
        exposition.text(seen, node, counts.as_ref(), today())
    });
    Ok(([(header::CONTENT_TYPE, prometheus::CONTENT_TYPE)], text))
}
