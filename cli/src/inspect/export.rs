//! A part of time as a file: for trace viewers, as the JSON of Chrome's trace events, or as a page that
//! shows it without a server.

use std::collections::BTreeMap;

use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use axum::http::header;
use axum::response::{IntoResponse, Response};
use odeon::ProcessId;
use odeon_observe::Date;
use odeon_observe::spans::Span;
use serde::Deserialize;
use serde_json::{Value, json};

use super::dto::{Shown, kind_word, span_id};
use super::inspection::Inspect;
use super::page::exported;
use super::refused::Refused;

/// The query of an export.
#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
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
            let page = exported(&inspect, from, to).await;
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

/// Processes and lanes with their names, a complete event for each span, and arrows from one lane to
/// another for what was caused there. Times are microseconds.
fn chrome(shown: &Shown<'_>, from: Date, to: Date) -> Value {
    let mut events = vec![];
    let mut processes: BTreeMap<ProcessId, usize> = BTreeMap::new();
    let mut lanes: BTreeMap<(usize, String), Vec<(usize, Stack)>> = BTreeMap::new();
    let mut tids = 1..;
    let mut places: BTreeMap<u64, (usize, usize, &Span)> = BTreeMap::new();
    let mut spans: Vec<&Span> = shown.seen.spans().between(from, to).collect();
    spans.sort_by_key(|span| (span.start, std::cmp::Reverse(span.end_or(shown.now))));
    for span in spans {
        let next = processes.len() + 1;
        let pid = *processes.entry(span.process).or_insert_with(|| {
            let title = shown.seen.process_title(span.process);
            events.push(named("process_name", next, 0, &title));
            next
        });
        let lane = match span.by.is_root() {
            true => "outside of actors".to_owned(),
            false => shown.seen.title_of(span.by),
        };
        let stacks = lanes.entry((pid, lane.clone())).or_default();
        let (start, end) = (span.start, span.end_or(shown.now));
        let room = stacks
            .iter_mut()
            .position(|(_, stack)| stack.put(start, end));
        let at = room.unwrap_or_else(|| {
            let tid = tids.next().expect("numbers do not end");
            let title = match stacks.len() {
                0 => lane.clone(),
                before => format!("{lane}, beside it {before}"),
            };
            events.push(named("thread_name", pid, tid, &title));
            stacks.push((tid, Stack(vec![end])));
            stacks.len() - 1
        });
        let tid = stacks[at].0;
        events.push(event(span, pid, tid, shown.now));
        // What was cut and seen again lies where it came last.
        places.insert(span.id(), (pid, tid, span));
    }
    let caused = places.values().filter_map(|(pid, tid, span)| {
        let (cause_pid, cause_tid, cause) = places.get(&span.parent)?;
        let elsewhere = (cause_pid, cause_tid) != (pid, tid);
        elsewhere.then(|| {
            let from = span.start.clamp(cause.start, cause.end_or(shown.now));
            [
                flow("s", span, (*cause_pid, *cause_tid), from),
                flow("f", span, (*pid, *tid), span.start),
            ]
        })
    });
    events.extend(caused.flatten());
    json!({ "displayTimeUnit": "ms", "traceEvents": events })
}

/// The ends of the spans that go on where the last one began. A trace viewer takes what a lane has for
/// calls of calls: each must end before what it began in.
struct Stack(Vec<Date>);

impl Stack {
    /// Puts a span on it that begins no earlier than the last. Returns true if it has a place here.
    fn put(&mut self, start: Date, end: Date) -> bool {
        while self.0.pop_if(|top| *top <= start).is_some() {}
        let fits = self.0.last().is_none_or(|top| end <= *top);
        if fits {
            self.0.push(end);
        }
        fits
    }
}

fn named(what: &str, pid: usize, tid: usize, name: &str) -> Value {
    json!({ "ph": "M", "name": what, "pid": pid, "tid": tid, "args": { "name": name } })
}

/// An end of the arrow from what has caused a span to the span.
fn flow(end: &str, span: &Span, (pid, tid): (usize, usize), at: Date) -> Value {
    json!({
        "ph": end, "bp": "e", "name": "causes", "cat": "cause", "id": span_id(span.id()),
        "pid": pid, "tid": tid, "ts": at.as_ms() * 1e3,
    })
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_lies_on_one_stack_is_nested_or_apart() {
        let mut number = 1u64;
        let mut below = |most: u64| {
            number = number
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            (number >> 33) % most
        };
        let mut spans: Vec<(Date, Date)> = (0..500)
            .map(|_| {
                let start = below(300);
                (Date(start), Date(start + below(80)))
            })
            .collect();
        spans.sort_by_key(|(start, end)| (*start, std::cmp::Reverse(*end)));
        let mut stack = Stack(vec![]);
        let placed: Vec<_> = spans
            .iter()
            .filter(|(start, end)| stack.put(*start, *end))
            .collect();
        assert!(placed.len() > 50, "{}", placed.len());
        for (at, (start, end)) in placed.iter().enumerate() {
            for (later, its_end) in &placed[at + 1..] {
                assert!(
                    later >= end || its_end <= end,
                    "{start:?} {end:?} {later:?} {its_end:?}"
                );
            }
        }
    }
}
