//! A part of time as a file: for trace viewers, as the JSON of Chrome's trace events, or as a page that
//! shows it without a server.

use std::collections::BTreeMap;

use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use axum::http::header;
use axum::response::{IntoResponse, Response};
use odeon_observe::Date;
use odeon_observe::spans::Span;
use serde::Deserialize;
use serde_json::{Value, json};

use super::shown::{Shown, kind_word, span_id};
use super::{Inspect, Refused};

/// What is asked for.
#[derive(Debug, Deserialize, utoipa::IntoParams)]
pub(super) struct Asked {
    from: f64,
    to: f64,
    #[serde(default = "usual_format")]
    format: String,
}

fn usual_format() -> String {
    "chrome".to_owned()
}

/// A part of time as a file.
#[utoipa::path(get, operation_id = "inspect_export", path = "/api/v1/inspect/export", params(Asked),
    responses((status = 200, content_type = "application/octet-stream")))]
pub(super) async fn export(
    State(inspect): State<Inspect>,
    asked: Result<Query<Asked>, QueryRejection>,
) -> Result<Response, Refused> {
    let Query(asked) = asked?;
    if !(asked.from.is_finite() && asked.to.is_finite() && asked.from < asked.to) {
        return Err(Refused::Invalid(
            "`from` must lie before `to`, in milliseconds".to_owned(),
        ));
    }
    let (from, to) = (Date::from_ms(asked.from), Date::from_ms(asked.to));
    let (content, name, kind) = match asked.format.as_str() {
        "chrome" => {
            let trace = inspect.shown(|shown| chrome(&shown, from, to));
            (trace.to_string(), "trace.json", "application/json")
        }
        "html" => {
            let page = super::exported(&inspect, from, to).await;
            let page = page.map_err(|error| Refused::Invalid(format!("{error:#}")))?;
            (page, "html", "text/html; charset=utf-8")
        }
        other => {
            return Err(Refused::Invalid(format!(
                "there is no format `{other}`: formats are chrome, html"
            )));
        }
    };
    let name = format!(
        "attachment; filename=\"odeon-{}.{name}\"",
        asked.from as u64
    );
    let headers = [
        (header::CONTENT_TYPE, kind.to_owned()),
        (header::CONTENT_DISPOSITION, name),
    ];
    Ok((headers, content).into_response())
}

/// Processes and lanes with their names, and a complete event for each span. Times are microseconds.
fn chrome(shown: &Shown<'_>, from: Date, to: Date) -> Value {
    let mut events = vec![];
    let mut processes: BTreeMap<String, usize> = BTreeMap::new();
    let mut lanes: BTreeMap<(usize, String), usize> = BTreeMap::new();
    for span in shown.seen.spans().between(from, to) {
        let process = shown.seen.process_title(span.process);
        let next = processes.len() + 1;
        let pid = *processes.entry(process.clone()).or_insert_with(|| {
            events.push(named("process_name", next, 0, &process));
            next
        });
        let lane = match span.by.is_root() {
            true => "outside of actors".to_owned(),
            false => shown.seen.title_of(span.by),
        };
        let next = lanes.len() + 1;
        let tid = *lanes.entry((pid, lane.clone())).or_insert_with(|| {
            events.push(named("thread_name", pid, next, &lane));
            next
        });
        events.push(event(span, pid, tid, shown.now));
    }
    json!({ "displayTimeUnit": "ms", "traceEvents": events })
}

fn named(what: &str, pid: usize, tid: usize, name: &str) -> Value {
    json!({ "ph": "M", "name": what, "pid": pid, "tid": tid, "args": { "name": name } })
}

fn event(span: &Span, pid: usize, tid: usize, now: Date) -> Value {
    let lasted = span.end_or(now).since(span.start);
    let mut about: BTreeMap<String, String> = BTreeMap::new();
    about.insert(
        "trace".to_owned(),
        format!("{:032x}", span.context.trace_id),
    );
    about.insert("span".to_owned(), span_id(span.id()));
    if span.parent != 0 {
        about.insert("parent".to_owned(), span_id(span.parent));
    }
    if !span.ok {
        about.insert("outcome".to_owned(), "failed".to_owned());
    }
    about.extend(
        span.labels
            .iter()
            .map(|(name, it)| (name.to_string(), it.to_string())),
    );
    json!({
        "ph": "X",
        "name": &*span.name,
        "cat": kind_word(span.kind),
        "ts": span.start.as_ms() * 1e3,
        "dur": lasted.as_secs_f64() * 1e6,
        "pid": pid,
        "tid": tid,
        "args": about,
    })
}
