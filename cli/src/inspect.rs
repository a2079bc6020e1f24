//! The inspection face: what is seen of a running system, as pages in a browser and as JSON.
//!
//! `/api/v1/inspect/...` answers from an [`Observer`], so a request costs those who are looked at
//! nothing. The pages are files in the binary; they speak the same API as `odeon top` does.

mod actions;
mod assets;
mod dto;
mod event_log;
mod export;
mod facts;
mod gate;
mod inspection;
mod jobs;
mod journal;
mod lines;
mod machines;
mod mesh;
mod output_log;
mod page;
mod pipeline;
mod problems;
mod record;
mod recorded_catalog;
mod recovery;
mod refused;
mod replay;
mod scrape;
mod standalone;
mod stragglers;
mod stream;
mod time;
mod view;
mod workload;

use axum::Router;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Path, Query, State};
use axum::response::IntoResponse;
use axum::routing::{get, post};
use odeon_client::inspect as told;
use odeon_observe::bounds;
use serde::Serialize;
use serde_json::Value;
use utoipa::OpenApi;

use dto::Shown;
pub(crate) use event_log::{FILES as EVENT_LOG, event_log};
pub(crate) use facts::Facts;
pub(crate) use gate::{ACTIONS, Exchange, INSPECT, SESSION, cookie_of, with_cookie};
pub(crate) use inspection::{Inspect, Origin};
use jobs::job_number;
use lines::{Before, LinesOf};
pub(crate) use output_log::{FILES as OUTPUT_LOG, OutputLog};
pub(crate) use page::exported;
pub(crate) use record::SECONDS_MAX;
use refused::{Refused, Told};
pub(crate) use replay::Replay;
pub(crate) use scrape::METRICS;
pub(crate) use standalone::{Looks, Standalone};
pub(crate) use view::takes_event;
use view::{Asked, Counted};

/// The routes of inspection, described.
#[derive(OpenApi)]
#[openapi(
    paths(
        about,
        page,
        live,
        actor,
        node,
        device,
        process,
        job,
        transfer,
        logs,
        time::timeline,
        time::spans,
        time::traces,
        time::span,
        time::trace,
        time::aggregate,
        time::series,
        export::export,
        record::recording,
        replay::steer,
        actions::act,
        recovery::recovery,
        recovery::order_recovery,
        scrape::metrics,
    ),
    components(schemas(
        told::Envelope<told::Now>,
        told::Envelope<told::Problems>,
        told::Envelope<told::Cluster>,
        told::Envelope<told::Actors>,
        told::Envelope<told::Jobs>,
        told::Envelope<told::Transfers>,
        told::Envelope<told::Events>,
        told::Envelope<told::Runs>,
    ))
)]
pub(crate) struct Description;

impl Inspect {
    /// A page by its name.
    fn page(&self, asked: &Asked) -> Result<Value, Refused> {
        fn json<T: Serialize>(envelope: &told::Envelope<T>) -> Result<Value, Refused> {
            serde_json::to_value(envelope).map_err(|error| Refused::Invalid(error.to_string()))
        }
        fn all<T>(data: T, rows: usize) -> Counted<T> {
            (data, rows, rows)
        }
        match asked.view.as_str() {
            "now" => {
                let page = self.shown(|it| it.now_page());
                let rows = page.problems.len();
                json(&self.envelope(all(page, rows)))
            }
            "problems" => {
                let page = self.shown(|it| it.problems_page());
                let rows = page.now.len();
                json(&self.envelope(all(page, rows)))
            }
            "cluster" => {
                let page = self.shown(|it| it.cluster_page());
                let rows = page.nodes.len();
                json(&self.envelope(all(page, rows)))
            }
            "actors" => {
                let page = self.shown(|it| it.actors_page(asked))?;
                json(&self.envelope(page))
            }
            "jobs" => {
                let jobs = self.jobs();
                let rows = jobs.len();
                json(&self.envelope(all(told::Jobs { jobs }, rows)))
            }
            "transfers" => json(&self.envelope(self.shown(|it| it.transfers_page()))),
            "events" => json(&self.envelope(self.shown(|it| it.events_page(asked)))),
            "runs" => {
                let mut page = self.shown(|it| it.runs_page());
                let jobs = self.facts.has_jobs().then(|| self.facts.jobs());
                for run in &mut page.runs {
                    match &jobs {
                        Some(jobs) => jobs::name_run(run, jobs),
                        // There is one, and it is what is looked at.
                        None => self.observer.name().clone_into(&mut run.name),
                    }
                }
                let rows = page.runs.len();
                json(&self.envelope(all(page, rows)))
            }
            other => Err(Refused::Invalid(format!(
                "there is no view `{other}`: views are now, problems, cluster, actors, jobs, transfers, events, runs"
            ))),
        }
    }

    /// The routes of inspection, without those who may use them.
    pub(crate) fn router<S: Clone + Send + Sync + 'static>(self) -> Router<S> {
        Router::new()
            .route("/about", get(about))
            .route("/view", get(page))
            .route("/stream", get(live))
            .route("/actors/{id}", get(actor))
            .route("/nodes/{name}", get(node))
            .route("/devices/{node}/{index}", get(device))
            .route("/processes/{id}", get(process))
            .route("/jobs/{id}", get(job))
            .route("/transfers/{id}", get(transfer))
            .route("/timeline", get(time::timeline))
            .route("/spans", get(time::spans))
            .route("/traces", get(time::traces))
            .route("/spans/{id}", get(time::span))
            .route("/traces/{id}", get(time::trace))
            .route("/aggregate", get(time::aggregate))
            .route("/series", get(time::series))
            .route("/export", get(export::export))
            .route("/logs", get(logs))
            .route("/actions/{what}", post(actions::act))
            .route(
                "/recovery",
                get(recovery::recovery).post(recovery::order_recovery),
            )
            .route("/recording", get(record::recording))
            .route("/replay", post(replay::steer))
            .with_state(self)
    }

    /// The route that Prometheus expects.
    pub(crate) fn scrape<S: Clone + Send + Sync + 'static>(self) -> Router<S> {
        Router::new()
            .route(METRICS, get(scrape::metrics))
            .with_state(self)
    }

    /// The pages.
    pub(crate) fn pages<S: Clone + Send + Sync + 'static>() -> Router<S> {
        assets::router()
    }
}

/// The system that can be looked at, and the bounds on what is kept of it.
#[utoipa::path(get, operation_id = "inspect_about", path = "/api/v1/inspect/about",
    responses((status = 200, body = told::About)))]
async fn about(State(inspect): State<Inspect>) -> axum::Json<told::About> {
    let limits = bounds::told()
        .into_iter()
        .map(|(name, value, unit, why)| told::Bound {
            name: name.to_owned(),
            value,
            unit: unit.to_owned(),
            why: why.to_owned(),
        });
    axum::Json(told::About {
        name: inspect.observer.name().to_owned(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        epoch: format!("{:x}", inspect.observer.epoch()),
        started: inspect.observer.started().as_ms(),
        allow_actions: inspect.allow_actions,
        faces: told::Faces {
            jobs: inspect.facts.has_jobs(),
            runs: true,
        },
        limits: limits.collect(),
    })
}

/// A page: an envelope with the data of the view that was asked for.
#[utoipa::path(get, operation_id = "inspect_page", path = "/api/v1/inspect/view", params(Asked),
    responses((status = 200, body = serde_json::Value)))]
async fn page(
    State(inspect): State<Inspect>,
    asked: Result<Query<Asked>, QueryRejection>,
) -> Result<axum::Json<Value>, Refused> {
    let Query(asked) = asked?;
    inspect.observer.glance().await;
    inspect.page(&asked).map(axum::Json)
}

/// A page as it changes: the event `snapshot` with the whole, then `delta` with what has changed.
#[utoipa::path(get, operation_id = "inspect_live", path = "/api/v1/inspect/stream", params(Asked),
    responses((status = 200, content_type = "text/event-stream", body = String)))]
async fn live(
    State(inspect): State<Inspect>,
    asked: Result<Query<Asked>, QueryRejection>,
) -> Result<impl IntoResponse, Refused> {
    let Query(asked) = asked?;
    stream::open(inspect, asked)
}

/// Rows of actors that a drawer shows.
const SOME: usize = 50;
/// Events that a drawer shows.
const SOME_EVENTS: usize = 100;

impl Shown<'_> {
    fn some_actors(
        &self,
        takes: impl Fn(&odeon_observe::actor::Actor) -> bool,
    ) -> Vec<told::ActorRow> {
        let actors = self.seen.actors().iter().filter(|actor| takes(actor));
        let mut actors: Vec<_> = actors.collect();
        dto::by_badness(&mut actors);
        actors
            .into_iter()
            .take(SOME)
            .map(|actor| self.actor(actor))
            .collect()
    }

    fn some_events(&self, kind: &str, id: &str) -> Vec<told::Event> {
        let events = self
            .seen
            .events()
            .iter()
            .rev()
            .map(|event| self.event(event));
        let about = |event: &told::Event| {
            let subject = event.subject.as_ref();
            subject.is_some_and(|it| it.kind == kind && it.id == id)
        };
        let mut events: Vec<_> = events.filter(about).take(SOME_EVENTS).collect();
        events.reverse();
        events
    }
}

/// All about an actor.
#[utoipa::path(get, operation_id = "inspect_actor", path = "/api/v1/inspect/actors/{id}", params(("id" = String, Path, description = "Which, by its id.")),
    responses((status = 200, body = told::Envelope<told::ActorDetail>)))]
async fn actor(State(inspect): State<Inspect>, Path(id): Path<String>) -> Told<told::ActorDetail> {
    let unknown = || unknown_actor(&id);
    let place = inspect.shown(|it| {
        let mut actors = it.seen.actors().iter();
        let actor = actors.find(|actor| actor.view.id.to_string() == id)?;
        let living = actor.ended.is_none();
        let own = it.seen.process(actor.view.process);
        let here = own.is_some_and(|process| {
            let nodes = it.seen.nodes().find(|node| node.name == process.node);
            nodes.is_some_and(|node| node.clock.is_none())
        });
        Some((actor.id(), actor.view.process, living && here))
    });
    let (actor, process, reachable) = place.ok_or_else(unknown)?;
    let methods = match &inspect.origin {
        Origin::Recorded(replay) => replay.methods(actor),
        Origin::Living(system) if reachable => {
            let methods = system.admin().methods_of(actor, process).await;
            methods.unwrap_or_default()
        }
        Origin::Living(_) => vec![],
    };
    let detail = inspect.shown(|it| {
        let row = it.seen.actors().get(actor)?;
        let children = || it.seen.actors().children(actor);
        let (chain, circle) = it.chain(actor);
        let sum = |of: fn(&odeon::inspect::MethodView) -> &odeon::inspect::Times| {
            let times = methods.iter().map(of);
            times.fold(odeon::inspect::Times::default(), |all, it| all.merge(it))
        };
        let lives = row.lives.iter().map(|life| told::Life {
            number: life.number,
            from: life.from.as_ms(),
            to: life.to.map(odeon_observe::Date::as_ms),
            cause: life.cause.clone(),
            chain: life.chain.clone(),
        });
        let spans = it.seen.spans();
        let own = spans.going_on().chain(spans.ended().rev());
        let own = own.filter(|span| span.by == actor).take(SOME);
        Some(told::ActorDetail {
            row: it.actor(row),
            lineage: it
                .seen
                .lineage(actor)
                .iter()
                .map(|id| it.actor_subject(*id))
                .collect(),
            children: told::Children {
                count: children().count() as u64,
                by_state: dto::states(children()),
                some: it.some_actors(|row| row.view.parent == actor),
            },
            deadlock: circle && it.is_deadlocked(actor),
            chain,
            circle,
            messages: methods
                .iter()
                .map(|method| told::MessageStats {
                    name: method.name.clone(),
                    count: method.handled,
                    failed: method.failed,
                    handling_us: dto::quantiles(&method.handling),
                    waiting_us: dto::quantiles(&method.waiting),
                })
                .collect(),
            all_messages: told::MessageTimes {
                handling_us: dto::quantiles(&sum(|it| &it.handling)),
                waiting_us: dto::quantiles(&sum(|it| &it.waiting)),
            },
            placement: Some(it.placement(row)),
            lives: lives.collect(),
            spans: own.map(|span| it.brief(span)).collect(),
        })
    });
    let detail = detail.ok_or_else(unknown)?;
    Ok(axum::Json(inspect.envelope((detail, 1, 1))))
}

/// All about a node.
#[utoipa::path(get, operation_id = "inspect_node", path = "/api/v1/inspect/nodes/{name}", params(("name" = String, Path, description = "Which, by its name.")),
    responses((status = 200, body = told::Envelope<told::NodeDetail>)))]
async fn node(State(inspect): State<Inspect>, Path(name): Path<String>) -> Told<told::NodeDetail> {
    let detail = inspect.shown(|it| {
        let node = it.seen.node(&name)?;
        Some(told::NodeDetail {
            series: it.history_of(node),
            links: node.links.iter().map(|link| it.link(node, link)).collect(),
            actors: it.some_actors(|row| row.node == name),
            events: it.some_events("node", &name),
            node: it.node(node),
        })
    });
    let detail = detail.ok_or_else(|| Refused::Unknown(format!("no node `{name}` is seen")))?;
    Ok(axum::Json(inspect.envelope((detail, 1, 1))))
}

/// All about a device.
#[utoipa::path(get, operation_id = "inspect_device", path = "/api/v1/inspect/devices/{node}/{index}", params(("node" = String, Path, description = "Which node."), ("index" = u32, Path, description = "Its number there.")),
    responses((status = 200, body = told::Envelope<told::DeviceDetail>)))]
async fn device(
    State(inspect): State<Inspect>,
    Path((node, index)): Path<(String, u32)>,
) -> Told<told::DeviceDetail> {
    let detail = inspect.shown(|it| {
        let row = it.seen.node(&node)?;
        let devices = it.devices(row);
        let device = devices.into_iter().find(|device| device.index == index)?;
        let has = |row: &odeon_observe::actor::Actor| {
            row.node == node && row.view.devices.contains(&index)
        };
        Some(told::DeviceDetail {
            series: it.history_of_device(row, index),
            actors: it.some_actors(has),
            device,
        })
    });
    let unknown = || Refused::Unknown(format!("no device {index} of a node `{node}` is seen"));
    Ok(axum::Json(inspect.envelope((
        detail.ok_or_else(unknown)?,
        1,
        1,
    ))))
}

/// All about a process.
#[utoipa::path(get, operation_id = "inspect_process", path = "/api/v1/inspect/processes/{id}", params(("id" = String, Path, description = "Which, by its id.")),
    responses((status = 200, body = told::Envelope<told::ProcessDetail>)))]
async fn process(
    State(inspect): State<Inspect>,
    Path(id): Path<String>,
) -> Told<told::ProcessDetail> {
    let detail = inspect.shown(|it| {
        let process = it
            .seen
            .processes()
            .find(|process| process.id.to_string() == id)?;
        Some(told::ProcessDetail {
            series: it.history_of_process(process),
            actors: it.some_actors(|row| row.view.process == process.id),
            events: it.some_events("process", &id),
            process: it.process(process),
        })
    });
    Ok(axum::Json(inspect.envelope((
        detail.ok_or_else(|| unknown_process(&id))?,
        1,
        1,
    ))))
}

/// All about a job, as it is seen.
#[utoipa::path(get, operation_id = "inspect_job", path = "/api/v1/inspect/jobs/{id}", params(("id" = String, Path, description = "Which, by its id.")),
    responses((status = 200, body = told::Envelope<told::JobDetail>)))]
async fn job(State(inspect): State<Inspect>, Path(id): Path<String>) -> Told<told::JobDetail> {
    let job = inspect.jobs().into_iter().find(|job| job.id == id);
    let job = job.ok_or_else(|| Refused::Unknown(format!("there is no job {id}")))?;
    let startup = inspect.startup(&id);
    let detail = inspect.shown(|it| told::JobDetail {
        actors: it.some_actors(|row| job_number(&row.job) == id),
        events: it.some_events("job", &id),
        startup,
        job,
    });
    Ok(axum::Json(inspect.envelope((detail, 1, 1))))
}

/// Whose lines are asked for: those of a job, of an actor's process, of a process, or, of a program that
/// runs alone, all of them.
#[derive(Debug, Default, serde::Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
struct LogsAsked {
    #[serde(default)]
    job: Option<String>,
    #[serde(default)]
    actor: Option<String>,
    #[serde(default)]
    process: Option<String>,
    /// Lines before this place: `earlier` of an answer, or milliseconds since 1970.
    #[serde(default)]
    before: Option<String>,
    #[serde(default)]
    limit: Option<usize>,
}

/// Lines of one answer.
const LINES_MAX: usize = 2_000;

/// Whose lines they are.
#[derive(Debug, Default)]
struct Printer {
    job: String,
    /// The number and the node of a process.
    process: Option<(String, String)>,
}

impl Inspect {
    /// Whose lines are asked for.
    fn printer(&self, asked: &LogsAsked) -> Result<Printer, Refused> {
        match (&asked.job, &asked.actor, &asked.process) {
            (Some(job), None, None) => {
                let known = self.facts.jobs().iter().any(|it| it.id == *job);
                let unknown = || Refused::Unknown(format!("there is no job {job}"));
                let job = known.then(|| job.clone()).ok_or_else(unknown)?;
                Ok(Printer { job, process: None })
            }
            (None, Some(actor), None) => self.shown(|it| {
                let mut actors = it.seen.actors().iter();
                let row = actors.find(|row| row.id().to_string() == *actor);
                let row = row.ok_or_else(|| unknown_actor(actor))?;
                let process = it.seen.process(row.view.process);
                Ok(Printer {
                    job: job_number(&row.job).to_owned(),
                    process: Some(match process {
                        Some(process) => named(process),
                        None => (row.view.process.to_string(), row.node.clone()),
                    }),
                })
            }),
            (None, None, Some(id)) => self.shown(|it| {
                let mut processes = it.seen.processes();
                let process = processes.find(|it| it.id.to_string() == *id);
                let process = process.ok_or_else(|| unknown_process(id))?;
                Ok(Printer {
                    job: job_number(&process.job).to_owned(),
                    process: Some(named(process)),
                })
            }),
            (None, None, None) if !self.facts.has_jobs() => Ok(Printer::default()),
            _ => Err(Refused::Invalid(
                "say whose lines: one of job=, actor= and process=".to_owned(),
            )),
        }
    }
}

/// A process as its lines name it.
fn named(process: &odeon_observe::node::Process) -> (String, String) {
    let number = match process.kind {
        odeon::inspect::ProcessKind::Driver => "driver".to_owned(),
        _ => process.id.to_string(),
    };
    (number, process.node.clone())
}

fn unknown_actor(id: &str) -> Refused {
    Refused::Unknown(format!(
        "no actor {id} is seen or remembered: it may have ended long ago"
    ))
}

fn unknown_process(id: &str) -> Refused {
    Refused::Unknown(format!("no process {id} is seen or remembered"))
}

/// The lines that were printed last.
#[utoipa::path(get, operation_id = "inspect_logs", path = "/api/v1/inspect/logs", params(LogsAsked),
    responses((status = 200, body = told::Envelope<told::Logs>)))]
async fn logs(
    State(inspect): State<Inspect>,
    asked: Result<Query<LogsAsked>, QueryRejection>,
) -> Told<told::Logs> {
    let Query(asked) = asked?;
    let printer = inspect.printer(&asked)?;
    let process = printer.process.as_ref();
    let before = asked.before.as_deref().map(str::parse::<Before>);
    let of = LinesOf {
        job: if inspect.facts.has_jobs() {
            &printer.job
        } else {
            ""
        },
        process: process.map(|(number, node)| (number.as_str(), node.as_str())),
        before: before
            .transpose()
            .map_err(Refused::Invalid)?
            .unwrap_or(Before::END),
        limit: asked.limit.unwrap_or(200).clamp(1, LINES_MAX),
    };
    let logs = inspect.facts.logs(&of).await;
    let mut logs = logs.unwrap_or_else(|| told::Logs {
        lines: vec![],
        more: false,
        earlier: None,
        none_kept: Some(match printer.job.as_str() {
            "" | odeon_observe::SYSTEM_JOB => {
                "what daemons say is in the journal of their machine, or in daemon.log of their folder"
                    .to_owned()
            }
            job => format!("the lines of {job} are kept no more, or not here"),
        }),
    });
    inspect.shown(|it| it.place(&mut logs.lines));
    let lines = logs.lines.len();
    Ok(axum::Json(inspect.envelope((logs, lines, lines))))
}

/// All about a copy, or a board of versions.
#[utoipa::path(get, operation_id = "inspect_transfer", path = "/api/v1/inspect/transfers/{id}", params(("id" = String, Path, description = "Which, by its id.")),
    responses((status = 200, body = told::Envelope<told::TransferDetail>)))]
async fn transfer(
    State(inspect): State<Inspect>,
    Path(id): Path<String>,
) -> Told<told::TransferDetail> {
    let detail = inspect.shown(|it| {
        let number = u64::from_str_radix(&id, 16).ok();
        let copy = number.and_then(|number| it.seen.spans().get(number));
        let board = it.boards().into_iter().find(|board| board.id == id);
        told::TransferDetail {
            copy: copy.map(|span| it.copy(span)),
            board,
        }
    });
    if detail.copy.is_none() && detail.board.is_none() {
        return Err(Refused::Unknown(format!("no transfer {id} is remembered")));
    }
    Ok(axum::Json(inspect.envelope((detail, 1, 1))))
}
