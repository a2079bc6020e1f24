//! Routes about jobs and their files.

#![allow(
    unused_qualifications,
    reason = "the descriptions of the routes expand to them"
)]

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::{Extension, Json};
use odeon::trace::{SpanContext, TRACEPARENT};
use odeon::{Clock, StackFrames};
use odeon_artifacts::{Bundle, Digest};
use odeon_client::types::{ActOnArray, Job, Lines, NewJob, Offered, Stacks, StopJob};
use odeon_cluster::environment::EnvironmentSpec;
use odeon_cluster::fact::Fact;
use odeon_cluster::job::array::{After, ArrayError};
use odeon_cluster::job::{self, DEFAULT_NAMESPACE, Event, JobId, JobSpec, State as JobState};
use odeon_cluster::logs::Cursor;
use odeon_cluster::logs::archive::Reading;
use odeon_cluster::resources::JobResources;
use serde::Deserialize;
use utoipa::IntoParams;

use super::access::{Submitter, Viewer};
use super::audit::Made;
use super::cluster::{Answer, Done, Making};
use super::extract::{Path, Query, Raw, Sent};
use super::problem::No;
use super::{Api, dto};

/// Longest wait of one request.
const WAIT_MAX: Duration = Duration::from_secs(30);
/// The interval at which other voters are asked for lines that this one is not sent.
const LOOK_PAUSE: Duration = Duration::from_secs(1);
/// Jobs in one answer.
const JOBS_MAX: usize = 10_001;

impl Api {
    pub(super) fn row(&self, id: JobId) -> Result<job::Job, No> {
        let found = self.read(|tables| tables.jobs.get(&id).cloned())?;
        found.ok_or_else(|| No::unknown(format!("there is no job {id}: see `odeon jobs`")))
    }
}

/// The obstacles of jobs that wait, or whose nodes are to begin or end them, in words of this moment.
async fn hindered(api: &Api) -> Result<BTreeMap<JobId, String>, No> {
    let is_ordered = |job: &job::Job| {
        matches!(
            job.state,
            JobState::Staging { .. } | JobState::Stopping { .. }
        )
    };
    let mut obstacles = match api.read(|tables| tables.living_jobs().any(is_ordered))? {
        true => api.daemon.catalog().hindered().await,
        false => BTreeMap::new(),
    };
    obstacles.extend(api.daemon.waits());
    Ok(obstacles)
}

/// The job of a number, or the newest of a name.
pub(super) fn id_of(api: &Api, text: &str) -> Result<JobId, No> {
    let unknown = match text.parse::<JobId>() {
        Ok(id) => return Ok(id),
        Err(unknown) => unknown,
    };
    let named = api.read(|tables| {
        let named = tables.jobs_named(text);
        let one = |job: &&job::Job| job.spec.name == text;
        let array = named.first().and_then(|job| job.array.clone());
        (named.iter().find(|job| one(job)).map(|job| job.id), array)
    })?;
    match named {
        (Some(id), _) => Ok(id),
        (None, Some(array)) => Err(No::invalid(format!(
            "`{text}` is an array of {} jobs, {} to {}: name one of them, such as {text}-{}",
            array.count,
            array.jobs().start(),
            array.jobs().end(),
            array.index
        ))),
        (None, None) => Err(No::unknown(format!("{unknown}, and none has this name"))),
    }
}

/// The job or array of a number or name, for one that comes after it.
fn after_of(api: &Api, text: &str) -> Result<After, No> {
    let named = api.read(|tables| {
        let named = tables.jobs_named(text);
        named.first().map(|job| match &job.array {
            Some(array) if array.name == text => After::array(array),
            _ => After::job(job.id),
        })
    })?;
    named.ok_or_else(|| {
        No::unknown(format!(
            "there is no job `{text}` to come after: see `odeon jobs --all`"
        ))
    })
}

pub(super) fn digest_of(text: &str) -> Result<Digest, No> {
    text.parse()
        .map_err(|_| No::invalid(format!("`{text}` is no digest")))
}

/// Names the files of a job, and hears which pieces are missing.
#[utoipa::path(post, path = "/api/v1/bundles", request_body(content_type = "application/octet-stream"),
    responses((status = 200, body = Offered)))]
pub(super) async fn offer(
    State(api): State<Arc<Api>>,
    Submitter(_): Submitter,
    Raw(body): Raw,
) -> Answer<Offered> {
    let bundle = Bundle::decode(&body).map_err(No::invalid)?;
    let digest = bundle.digest();
    let missing = api.daemon.offer(bundle).await?;
    Ok(Json(Offered {
        bundle: digest.to_string(),
        missing: missing
            .iter()
            .map(|piece| piece.digest.to_string())
            .collect(),
    }))
}

/// Puts a piece of a file.
#[utoipa::path(put, path = "/api/v1/pieces/{digest}", params(("digest" = String, Path, description = "Which piece.")), request_body(content_type = "application/octet-stream"),
    responses((status = 204)))]
pub(super) async fn put_piece(
    State(api): State<Arc<Api>>,
    Submitter(_): Submitter,
    Path(digest): Path<String>,
    Raw(body): Raw,
) -> Done {
    api.daemon.put(digest_of(&digest)?, body).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Submits a job whose files are here.
#[utoipa::path(post, path = "/api/v1/jobs", request_body = NewJob,
    responses((status = 200, body = Job)))]
pub(super) async fn submit(
    State(api): State<Arc<Api>>,
    Submitter(caller): Submitter,
    headers: HeaderMap,
    Sent(mut new): Sent<NewJob>,
) -> Making<Job> {
    // Whoever submits it in a trace has the job belong to that, unless it says otherwise itself.
    if let Some(given) = headers.get("traceparent").and_then(|it| it.to_str().ok())
        && let Some(given) = SpanContext::from_traceparent(given)
    {
        let name = TRACEPARENT.to_owned();
        new.env.entry(name).or_insert_with(|| given.traceparent());
    }
    let after = new.after.iter().map(|it| after_of(&api, it));
    let array = new.array.map(|it| it.parse()).transpose();
    let spec = JobSpec {
        after: after.collect::<Result<_, _>>()?,
        array: array.map_err(|error: ArrayError| No::invalid(error))?,
        links: new.links,
        grace_s: new.grace_s,
        idle_limit_s: new.idle_limit_s,
        environment: new.environment.map(|it| EnvironmentSpec {
            lock: it.lock,
            setup: it.setup,
            inputs: None,
        }),
        name: new.name,
        namespace: new
            .namespace
            .unwrap_or_else(|| DEFAULT_NAMESPACE.to_owned()),
        bundle: digest_of(&new.bundle)?,
        args: new.args,
        env: new.env,
        priority: new.priority,
        retries: new.retries,
        node: new.node,
        hosts: None,
        resources: new
            .resources
            .map_or_else(JobResources::default, dto::resources_of),
        time_limit_s: new.time_limit_s,
    };
    let submitted = api.daemon.submit(spec, caller.name, new.word.as_deref());
    let id = submitted.await?;
    let job = dto::job(&api.row(id)?, None);
    Ok((Extension(Made(job.id.clone())), Json(job)))
}

#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(super) struct JobsQuery {
    /// The most jobs in the answer.
    limit: Option<usize>,
    /// Also those that are over.
    all: Option<bool>,
    /// Those alone that this word stands for, whether they are over or not, the oldest first: the job of a
    /// number, or the newest job or array of a name.
    named: Option<String>,
}

/// Jobs, the newest first.
#[utoipa::path(get, path = "/api/v1/jobs", params(JobsQuery),
    responses((status = 200, body = Vec<Job>)))]
pub(super) async fn jobs(
    State(api): State<Arc<Api>>,
    _: Viewer,
    Query(query): Query<JobsQuery>,
) -> Answer<Vec<Job>> {
    let limit = query.limit.unwrap_or(JOBS_MAX).min(JOBS_MAX);
    let all = query.all.unwrap_or(true);
    let hindered = hindered(&api).await?;
    let jobs = api.read(|tables| {
        if let Some(word) = &query.named {
            let named = tables.jobs_named(word).into_iter();
            return named
                .map(|job| dto::job(job, hindered.get(&job.id)))
                .collect();
        }
        let newest = tables.jobs.values().rev();
        let wanted = newest.filter(|job| all || !job.is_over()).take(limit);
        wanted
            .map(|job| dto::job(job, hindered.get(&job.id)))
            .collect()
    })?;
    Ok(Json(jobs))
}

#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(super) struct JobQuery {
    /// Waits so many seconds for its end, 30 at most.
    wait_s: Option<u64>,
}

/// A job, at once or when it is over.
#[utoipa::path(get, path = "/api/v1/jobs/{job}", params(("job" = String, Path, description = "Which job: its number, or the name of the newest of that name."), JobQuery),
    responses((status = 200, body = Job)))]
pub(super) async fn job(
    State(api): State<Arc<Api>>,
    _: Viewer,
    Path(job): Path<String>,
    Query(query): Query<JobQuery>,
) -> Answer<Job> {
    let id = id_of(&api, &job)?;
    let mut row = api.row(id)?;
    let wait = Duration::from_secs(query.wait_s.unwrap_or(0)).min(WAIT_MAX);
    let deadline = Clock::now().after(wait);
    let mut changes = api.daemon.catalog().changes();
    while !row.is_over()
        && let Some(changes) = &mut changes
        && matches!(
            Clock::timeout(deadline.left(Clock::now()), changes.changed()).await,
            Some(Ok(()))
        )
    {
        row = api.row(id)?;
    }
    let hindered = match row.is_over() {
        true => BTreeMap::new(),
        false => hindered(&api).await?,
    };
    Ok(Json(dto::job(&row, hindered.get(&id))))
}

/// Ends a job.
#[utoipa::path(post, path = "/api/v1/jobs/{job}/stop", params(("job" = String, Path, description = "Which job: its number, or the name of the newest of that name.")), request_body = StopJob,
    responses((status = 200, body = Job)))]
pub(super) async fn stop(
    State(api): State<Arc<Api>>,
    Submitter(caller): Submitter,
    Path(job): Path<String>,
    Sent(StopJob { force }): Sent<StopJob>,
) -> Answer<Job> {
    let event = Event::Stop {
        by: caller.name,
        in_order: !force,
    };
    happened(&api, id_of(&api, &job)?, event).await
}

/// Runs a job again that is over.
#[utoipa::path(post, path = "/api/v1/jobs/{job}/retry", params(("job" = String, Path, description = "Which job: its number, or the name of the newest of that name.")), responses((status = 200, body = Job)))]
pub(super) async fn retry(
    State(api): State<Arc<Api>>,
    Submitter(caller): Submitter,
    Path(job): Path<String>,
) -> Answer<Job> {
    let by = caller.name;
    happened(&api, id_of(&api, &job)?, Event::Retry { by }).await
}

/// Ends the jobs of an array, or runs those again that have not succeeded.
#[utoipa::path(post, path = "/api/v1/jobs/{job}/array", params(("job" = String, Path, description = "Which array: the number of any of its jobs.")), request_body = ActOnArray,
    responses((status = 204)))]
pub(super) async fn act_on_array(
    State(api): State<Arc<Api>>,
    Submitter(caller): Submitter,
    Path(job): Path<String>,
    Sent(ActOnArray { act }): Sent<ActOnArray>,
) -> Done {
    let (first, by) = (id_of(&api, &job)?, caller.name);
    let act = dto::array_act(act);
    let fact = Fact::Array { first, act, by };
    api.daemon.catalog().write_for(fact).await?;
    Ok(StatusCode::NO_CONTENT)
}

async fn happened(api: &Api, job: JobId, event: Event) -> Answer<Job> {
    api.daemon
        .catalog()
        .write_for(Fact::Job { job, event })
        .await?;
    Ok(Json(dto::job(&api.row(job)?, None)))
}

#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(super) struct LogsQuery {
    /// Where to read on: `next` of an answer, from whichever node; `end` for what was printed up to
    /// now; from the beginning, without it.
    after: Option<String>,
    /// Waits so many seconds for a line, 30 at most.
    wait_s: Option<u64>,
}

/// The lines that a job has printed, as far as the voters that answer have them.
#[utoipa::path(get, path = "/api/v1/jobs/{job}/logs", params(("job" = String, Path, description = "Which job: its number, or the name of the newest of that name."), LogsQuery),
    responses((status = 200, body = Lines)))]
pub(super) async fn logs(
    State(api): State<Arc<Api>>,
    _: Viewer,
    Path(job): Path<String>,
    Query(query): Query<LogsQuery>,
) -> Answer<Lines> {
    let id = id_of(&api, &job)?;
    let archive = api.daemon.archive();
    let cursor = match query.after.as_deref() {
        None | Some("") => Cursor::default(),
        Some("end") => archive.end(id).await.map_err(No::internal)?,
        Some(next) => next.parse().map_err(No::invalid)?,
    };
    let wait = Duration::from_secs(query.wait_s.unwrap_or(0)).min(WAIT_MAX);
    let deadline = Clock::now().after(wait);
    loop {
        let here = archive.logs().end(id).map_err(No::internal)?;
        // What it printed is kept before its end is known.
        let over = api.row(id)?.is_over();
        let Reading { merged, silent } = archive.read(id, &cursor).await.map_err(No::internal)?;
        let left = deadline.left(Clock::now());
        if !merged.lines.is_empty() || over || left.is_zero() {
            return Ok(Json(Lines {
                over: over && merged.lines.is_empty(),
                next: merged.next.to_string(),
                lines: merged.lines.into_iter().map(dto::line).collect(),
                silent,
            }));
        }
        // Voters are not asked again for what other jobs print.
        let grown = grown(&api, id, &here);
        Clock::timeout(left.min(LOOK_PAUSE), grown)
            .await
            .transpose()?;
    }
}

#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(super) struct StacksQuery {
    /// With frames of libraries, for which each program stands for some tenths of a second.
    native: Option<bool>,
}

/// Where the programs of a job stand, all at about the same moment. Programs in Python need `py-spy` on their node.
#[utoipa::path(get, path = "/api/v1/jobs/{job}/stacks", params(("job" = String, Path, description = "Which job: its number, or the name of the newest of that name."), StacksQuery),
    responses((status = 200, body = Stacks)))]
pub(super) async fn stacks(
    State(api): State<Arc<Api>>,
    _: Viewer,
    Path(job): Path<String>,
    Query(query): Query<StacksQuery>,
) -> Answer<Stacks> {
    let row = api.row(id_of(&api, &job)?)?;
    let frames = match query.native {
        Some(true) => StackFrames::Native,
        _ => StackFrames::Python,
    };
    let at_ms = Clock::unix_time().as_millis() as u64;
    let stacks = api.daemon.stacks(&row, frames).await;
    Ok(Json(dto::stacks(stacks, at_ms)))
}

/// Resolves when this node has more of what a job has printed, or the job is over.
async fn grown(api: &Api, job: JobId, here: &Cursor) -> Result<(), No> {
    let logs = api.daemon.archive().logs();
    let mut changes = api.daemon.catalog().changes();
    loop {
        let added = logs.added();
        let mut added = std::pin::pin!(added);
        added.as_mut().enable();
        let end = logs.end(job).map_err(No::internal)?;
        if end != *here || api.row(job)?.is_over() {
            return Ok(());
        }
        let changed = async {
            match &mut changes {
                Some(changes) => drop(changes.changed().await),
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = added => {}
            () = changed => {}
        }
    }
}
