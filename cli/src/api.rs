//! The HTTP API of a daemon: `/api/v1`. It looks at the catalog and writes into it for people; what
//! travels is [`odeon_client::types`].
//!
//! Every request but `version` and `openapi.json` needs a key. A request that names another host
//! than this one is refused, so that no page in a browser can speak to a daemon on its machine.

mod access;
mod audit;
mod cluster;
pub(crate) mod dto;
mod extract;
mod forwarding;
mod group_test;
pub(crate) mod host;
mod jobs;
pub(crate) mod key;
mod limits;
mod live_jobs;
mod majority;
mod problem;
mod recovery;
pub(crate) mod request_id;
mod serve;
mod versions;

use std::sync::Arc;

use axum::extract::DefaultBodyLimit;
use axum::routing::{get, post, put};
use axum::{Json, Router, middleware};
use odeon_cluster::Daemon;
use odeon_otel::Counting;
use tokio::sync::Mutex;
use utoipa::OpenApi;

use crate::inspect::{self, Facts, Inspect, Origin};

pub(crate) use audit::Audit;
use forwarding::BUNDLE_BYTES_MAX;
pub(crate) use forwarding::open as open_door;
pub(crate) use key::new_key;
pub(crate) use limits::Limiter;
use request_id::number;
pub(crate) use serve::{ApiConfig, Server};

/// State that all requests share.
#[derive(Debug)]
pub(crate) struct Api {
    pub(crate) daemon: Arc<Daemon>,
    audit: Audit,
    limiter: Limiter,
    /// For keys that are none, by address.
    strangers: Limiter,
    /// Names by which people may call this host, beside its addresses.
    hosts: Vec<String>,
    /// Set if actors may be stopped by those who look on.
    allow_actions: bool,
    leaderless: majority::Leaderless,
    /// Held while a group test is made: another beside it would be in its way.
    group_test: Arc<Mutex<()>>,
    /// Counts of what has become of the exports of this node.
    counting: Option<Counting>,
}

/// The API, described.
#[derive(OpenApi)]
#[openapi(
    info(title = "Odeon", description = "The API of an Odeon cluster's daemon"),
    paths(
        cluster::version,
        cluster::status,
        cluster::nodes,
        cluster::machines,
        cluster::drain,
        cluster::refuse,
        cluster::check,
        group_test::group_test,
        cluster::upgrade,
        cluster::forget,
        cluster::make_token,
        cluster::keys,
        cluster::make_key,
        cluster::revoke_key,
        cluster::set_voters,
        cluster::own_key,
        cluster::namespaces,
        cluster::set_namespace,
        cluster::news,
        jobs::offer,
        jobs::put_piece,
        jobs::submit,
        jobs::jobs,
        jobs::job,
        jobs::stop,
        jobs::retry,
        jobs::act_on_array,
        versions::update,
        versions::roll_back,
        jobs::logs,
        jobs::stacks,
        recovery::recovery,
        recovery::order_recovery,
    )
)]
pub(crate) struct Description;

/// All routes, those of inspection too.
fn description() -> utoipa::openapi::OpenApi {
    Description::openapi().merge_from(inspect::Description::openapi())
}

/// Bytes of a request that carries JSON.
const BODY_BYTES_MAX: usize = 1 << 20;
/// Bytes of a piece of a file, with room to spare.
const PIECE_BYTES_MAX: usize = 2 << 20;

impl Api {
    pub(crate) fn new(
        daemon: Arc<Daemon>,
        audit: Audit,
        limiter: Limiter,
        hosts: Vec<String>,
        allow_actions: bool,
        counting: Option<Counting>,
    ) -> Self {
        Self {
            daemon,
            audit,
            limiter,
            strangers: Limiter::of_strangers(),
            hosts,
            allow_actions,
            leaderless: majority::Leaderless::default(),
            group_test: Arc::default(),
            counting,
        }
    }

    fn inspection(&self) -> Inspect {
        let daemon = Arc::clone(&self.daemon);
        let (observer, system) = (daemon.observer().clone(), daemon.system().clone());
        let (origin, counting) = (Origin::Living(system), self.counting.clone());
        Inspect::new(observer, Facts::Cluster(daemon), origin, counting)
            .allow_actions(self.allow_actions)
    }

    /// All routes.
    pub(crate) fn router(self: Arc<Self>) -> Router {
        let large = |bytes| DefaultBodyLimit::max(bytes);
        let v1 = Router::new()
            .route("/version", get(cluster::version))
            .route("/openapi.json", get(async || Json(description())))
            .route("/status", get(cluster::status))
            .route("/nodes", get(cluster::nodes))
            .route("/machines", get(cluster::machines))
            .route("/nodes/{node}", axum::routing::delete(cluster::forget))
            .route("/nodes/{node}/drain", post(cluster::drain))
            .route("/nodes/{node}/refuse", post(cluster::refuse))
            .route("/nodes/{node}/check", post(cluster::check))
            .route("/nodes/{node}/upgrade", post(cluster::upgrade))
            .route("/group-test", post(group_test::group_test))
            .route("/tokens", post(cluster::make_token))
            .route("/keys", get(cluster::keys).post(cluster::make_key))
            .route("/keys/{name}", axum::routing::delete(cluster::revoke_key))
            .route("/voters", put(cluster::set_voters))
            .route("/key", get(cluster::own_key))
            .route("/namespaces", get(cluster::namespaces))
            .route("/namespaces/{name}", put(cluster::set_namespace))
            .route("/news", get(cluster::news))
            .route("/bundles", post(jobs::offer).layer(large(BUNDLE_BYTES_MAX)))
            .route(
                "/pieces/{digest}",
                put(jobs::put_piece).layer(large(PIECE_BYTES_MAX)),
            )
            .route("/jobs", get(jobs::jobs).post(jobs::submit))
            .route("/jobs/{job}", get(jobs::job))
            .route("/jobs/{job}/stop", post(jobs::stop))
            .route("/jobs/{job}/retry", post(jobs::retry))
            .route("/jobs/{job}/update", post(versions::update))
            .route("/jobs/{job}/rollback", post(versions::roll_back))
            .route("/jobs/{job}/array", post(jobs::act_on_array))
            .route("/jobs/{job}/logs", get(jobs::logs))
            .route("/jobs/{job}/stacks", get(jobs::stacks))
            .route(
                "/jobs/{job}/recovery",
                get(recovery::recovery).post(recovery::order_recovery),
            );
        let inspection = self.inspection();
        let scrape = inspection.clone().scrape();
        Router::new()
            .nest("/api/v1", v1)
            .nest("/api/v1/inspect", inspection.router())
            .merge(scrape)
            .route(inspect::SESSION, post(access::exchange))
            .merge(Inspect::pages())
            .fallback(problem::no_such_route)
            .method_not_allowed_fallback(problem::no_such_method)
            .layer(DefaultBodyLimit::max(BODY_BYTES_MAX))
            .layer(middleware::from_fn_with_state(
                Arc::clone(&self),
                majority::tell,
            ))
            .layer(middleware::from_fn_with_state(
                Arc::clone(&self),
                access::admit,
            ))
            .layer(middleware::from_fn(number))
            .with_state(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Programs that are made from the description call routes by these.
    #[test]
    fn no_two_routes_have_the_same_name() {
        let paths = description().paths.paths;
        let names = paths.values().flat_map(|item| {
            let ways = [&item.get, &item.put, &item.post, &item.delete];
            ways.into_iter().flatten()
        });
        let mut names: Vec<_> = names.map(|it| it.operation_id.clone().unwrap()).collect();
        let all = names.len();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), all);
    }

    #[test]
    fn each_name_in_a_path_is_described() {
        for (path, item) in description().paths.paths {
            let text = serde_json::to_string(&item).unwrap();
            for part in path.split('/').filter_map(|it| it.strip_prefix('{')) {
                let name = part.trim_end_matches('}');
                let told = format!("{{\"name\":\"{name}\",\"in\":\"path\"");
                assert!(text.contains(&told), "{path}: {text}");
            }
        }
    }

    #[test]
    fn each_route_is_described_by_what_it_does() {
        for (path, item) in description().paths.paths {
            let ways = [&item.get, &item.put, &item.post, &item.delete];
            for way in ways.into_iter().flatten() {
                let summary = way.summary.as_deref().unwrap_or_default();
                let is_sentence = summary.starts_with(char::is_uppercase) && summary.ends_with('.');
                assert!(is_sentence, "{path}: {summary}");
            }
        }
    }

    /// The description that clients are written by. `ODEON_WRITE_GOLDEN=1` writes it anew.
    #[test]
    fn the_description_is_the_published_one() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/openapi.json");
        let now = description().to_pretty_json().unwrap() + "\n";
        if std::env::var_os("ODEON_WRITE_GOLDEN").is_some() {
            std::fs::write(path, &now).unwrap();
        }
        let published = std::fs::read_to_string(path).unwrap_or_default();
        assert_eq!(
            published, now,
            "run it with ODEON_WRITE_GOLDEN=1 and look at what changed"
        );
    }
}
