//! Routes about time: lanes, spans, traces, sums, numbers over time.

use std::collections::{HashMap, HashSet};

use axum::Json;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Path, Query, State};
use odeon_client::inspect as told;
use odeon_observe::Date;
use odeon_observe::spans::Span;
use odeon_observe::timeline::{self, LaneKind, Marks, Window};
use odeon_observe::trace;
use serde::Deserialize;

use super::dto::{KINDS, Shown, is_system, kind_word, rounded, span_id};
use super::inspection::Inspect;
use super::refused::{Refused, Told};

/// A part of time that somebody asks for.
#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
pub(super) struct Part {
    from: f64,
    to: f64,
    #[serde(default = "usual_width")]
    px: usize,
    /// The lanes that are open, with commas between.
    #[serde(default)]
    open: Option<String>,
    /// Lanes to look at alone, with commas between.
    #[serde(default)]
    lanes: Option<String>,
    #[serde(default)]
    lane: Option<String>,
    #[serde(default)]
    filter: String,
    #[serde(default)]
    limit: Option<usize>,
    #[serde(default)]
    name: String,
}

const fn usual_width() -> usize {
    1_000
}

/// The widest screen.
const WIDTH_MAX: usize = 8_000;
/// Spans of one answer.
const SPANS_MAX: usize = 5_000;

type Asked = Result<Query<Part>, QueryRejection>;

impl Part {
    fn dates(&self) -> Result<(Date, Date), Refused> {
        let real = self.from.is_finite() && self.to.is_finite();
        if !real || self.from >= self.to {
            return Err(Refused::Invalid(
                "`from` must lie before `to`, in milliseconds".to_owned(),
            ));
        }
        Ok((Date::from_ms(self.from), Date::from_ms(self.to)))
    }

    fn lanes(&self) -> HashSet<&str> {
        let lanes = self.lanes.as_deref().or(self.lane.as_deref()).unwrap_or("");
        lanes.split(',').filter(|lane| !lane.is_empty()).collect()
    }
}

/// Returns true if a span lies on one of these lanes; on any, without them.
fn on_lanes(shown: &Shown<'_>, span: &Span, lanes: &HashSet<&str>) -> bool {
    if lanes.is_empty() {
        return true;
    }
    let node = shown
        .seen
        .process(span.process)
        .map_or("?", |it| it.node.as_str());
    let own = [
        format!("a:{}", span.by),
        format!("p:{}", span.process),
        format!("n:{node}"),
    ];
    own.iter().any(|lane| lanes.contains(lane.as_str()))
}

fn takes(span: &Span, shown: &Shown<'_>, filter: &str) -> bool {
    filter.split_whitespace().all(|word| {
        let word = word.to_lowercase();
        let name = span.name.to_lowercase().contains(&word);
        name || shown.seen.title_of(span.by).to_lowercase().contains(&word)
    })
}

/// Lanes of a part of time, no finer than can be drawn.
#[utoipa::path(get, operation_id = "inspect_timeline", path = "/api/v1/inspect/timeline", params(Part),
    responses((status = 200, body = told::Envelope<told::Timeline>)))]
pub(super) async fn timeline(State(inspect): State<Inspect>, part: Asked) -> Told<told::Timeline> {
    let Query(part) = part?;
    let (from, to) = part.dates()?;
    let open = part.open.as_ref().map(|open| {
        let lanes = open.split(',').filter(|lane| !lane.is_empty());
        lanes.map(str::to_owned).collect()
    });
    let window = Window {
        from,
        to,
        width: part.px.clamp(50, WIDTH_MAX),
        open,
    };
    let (page, spans) = inspect.shown(|shown| laid_out(&shown, &window));
    let all = inspect.shown(|it| it.seen.spans().between(from, to).count());
    Ok(Json(inspect.envelope((page, spans, all))))
}

fn laid_out(shown: &Shown<'_>, window: &Window) -> (told::Timeline, usize) {
    let line = timeline::timeline(shown.seen, window, shown.now);
    let mut names: Vec<String> = vec![];
    let mut numbers: HashMap<String, u32> = HashMap::new();
    let mut drawn = 0;
    let from = window.from.as_ms();
    let mut depths: HashMap<String, u32> = HashMap::new();
    let mut lanes = vec![];
    for lane in &line.lanes {
        let depth = lane
            .parent
            .as_ref()
            .map_or(0, |parent| depths.get(parent).map_or(0, |it| it + 1));
        depths.insert(lane.id.clone(), depth);
        let (mut spans, mut buckets) = (None, None);
        match &lane.marks {
            Marks::Spans(marks) => {
                drawn += marks.len();
                let mark = |(span, row): &(&Span, u16)| {
                    let next = numbers.len() as u32;
                    let name = *numbers.entry(span.name.to_string()).or_insert_with(|| {
                        names.push(span.name.to_string());
                        next
                    });
                    let kind = KINDS
                        .iter()
                        .position(|kind| *kind == span.kind)
                        .unwrap_or(3);
                    let end = span.end.map(|end| end.as_ms() - from);
                    let start = span.start.as_ms() - from;
                    (
                        span_id(span.id()),
                        start,
                        end,
                        kind as u8,
                        name,
                        u8::from(span.ok),
                        *row,
                    )
                };
                spans = Some(marks.iter().map(mark).collect());
            }
            Marks::Buckets(found) => {
                let bucket = |it: &timeline::Bucket| (it.index as u64, rounded(it.busy), it.failed);
                buckets = Some(found.iter().map(bucket).collect());
            }
        }
        let gap = |gap: &odeon_observe::spans::Gap| {
            (gap.from.as_ms() - from, gap.to.as_ms() - from, gap.lost)
        };
        lanes.push(told::Lane {
            id: lane.id.clone(),
            parent: lane.parent.clone(),
            depth,
            kind: match lane.kind {
                LaneKind::Node => "node",
                LaneKind::Process => "process",
                LaneKind::Actor => "actor",
            }
            .to_owned(),
            name: lane.name.clone(),
            subject: lane.subject.as_ref().map(|it| shown.subject(it)),
            system: lane
                .subject
                .as_ref()
                .is_some_and(|it| shown.is_of_system(it)),
            open: lane.open,
            children: lane.children as u64,
            spans,
            buckets,
            gaps: lane.gaps.iter().map(gap).collect(),
        });
    }
    let page = told::Timeline {
        from,
        to: window.to.as_ms(),
        bucket_ms: line.bucket as f64 / 1e6,
        names,
        kinds: KINDS
            .iter()
            .map(|kind| kind_word(*kind).to_owned())
            .collect(),
        lanes,
        lanes_left_out: line.left_out as u64,
    };
    (page, drawn)
}

/// Spans of a part of time as a list.
#[utoipa::path(get, operation_id = "inspect_spans", path = "/api/v1/inspect/spans", params(Part),
    responses((status = 200, body = told::Envelope<told::Spans>)))]
pub(super) async fn spans(State(inspect): State<Inspect>, part: Asked) -> Told<told::Spans> {
    let Query(part) = part?;
    let (from, to) = part.dates()?;
    let limit = part.limit.unwrap_or(500).min(SPANS_MAX);
    let (spans, all) = inspect.shown(|shown| {
        let lanes = part.lanes();
        let chosen = shown.seen.spans().between(from, to);
        let chosen = chosen.filter(|span| on_lanes(&shown, span, &lanes));
        let mut chosen: Vec<_> = chosen
            .filter(|it| takes(it, &shown, &part.filter))
            .collect();
        chosen.sort_by_key(|span| span.start);
        let all = chosen.len();
        let told = chosen.into_iter().take(limit).map(|span| shown.brief(span));
        (told.collect::<Vec<_>>(), all)
    });
    let shown = spans.len();
    Ok(Json(inspect.envelope((told::Spans { spans }, shown, all))))
}

/// The traces of a part of time, the slowest first; those that the system begins itself are left out.
#[utoipa::path(get, operation_id = "inspect_traces", path = "/api/v1/inspect/traces", params(Part),
    responses((status = 200, body = told::Envelope<told::Traces>)))]
pub(super) async fn traces(State(inspect): State<Inspect>, part: Asked) -> Told<told::Traces> {
    let Query(part) = part?;
    let (from, to) = part.dates()?;
    let limit = part.limit.unwrap_or(20).min(SPANS_MAX);
    let (traces, all) = inspect.shown(|shown| {
        let actors = shown.seen.actors();
        let slowest = trace::slowest(shown.seen.spans().between(from, to), shown.now);
        let is_own =
            |it: &&trace::Extent<'_>| actors.get(it.first.actor).is_none_or(|it| !is_system(it));
        let own: Vec<_> = slowest.iter().filter(is_own).collect();
        let told = own.iter().take(limit).map(|it| told::TraceBrief {
            trace: format!("{:032x}", it.trace),
            first: shown.brief(it.first),
            end: it.end.as_ms(),
            spans: it.spans as u64,
            failed: it.failed as u64,
        });
        (told.collect::<Vec<_>>(), own.len())
    });
    let shown = traces.len();
    Ok(Json(inspect.envelope((
        told::Traces { traces },
        shown,
        all,
    ))))
}

/// All about a span.
#[utoipa::path(get, operation_id = "inspect_span", path = "/api/v1/inspect/spans/{id}", params(("id" = String, Path, description = "Which, by its id.")),
    responses((status = 200, body = told::Envelope<told::SpanDetail>)))]
pub(super) async fn span(
    State(inspect): State<Inspect>,
    Path(id): Path<String>,
) -> Told<told::SpanDetail> {
    let detail = inspect.shown(|shown| {
        let spans = shown.seen.spans();
        let span = spans.get(u64::from_str_radix(&id, 16).ok()?)?;
        let all = spans.ended().chain(spans.going_on());
        let effects = all.filter(|it| it.parent == span.id());
        Some(told::SpanDetail {
            cause: spans.get(span.parent).map(|it| shown.brief(it)),
            effects: effects.take(200).map(|it| shown.brief(it)).collect(),
            span: shown.span(span),
        })
    });
    let unknown = || {
        Refused::Unknown(format!(
            "span {id} is not kept: it was not sampled, or is too old by now"
        ))
    };
    Ok(Json(inspect.envelope((detail.ok_or_else(unknown)?, 1, 1))))
}

/// All that one message caused.
#[utoipa::path(get, operation_id = "inspect_trace", path = "/api/v1/inspect/traces/{id}", params(("id" = String, Path, description = "Which, by its id.")),
    responses((status = 200, body = told::Envelope<told::Trace>)))]
pub(super) async fn trace(
    State(inspect): State<Inspect>,
    Path(id): Path<String>,
) -> Told<told::Trace> {
    let unknown = || {
        Refused::Unknown(format!(
            "trace {id} is not kept: it was not sampled, or is too old by now"
        ))
    };
    let number = u128::from_str_radix(&id, 16).map_err(|_| unknown())?;
    let (page, all) = inspect.shown(|shown| {
        let trace = trace::trace(shown.seen.spans(), number, shown.now);
        let page = told::Trace {
            trace: id.clone(),
            spans: trace.spans.iter().map(|span| shown.brief(span)).collect(),
            critical: trace.critical.iter().map(|id| span_id(*id)).collect(),
            lost: trace.lost as u64,
        };
        (page, trace.all)
    });
    if page.spans.is_empty() {
        return Err(unknown());
    }
    let rows = page.spans.len();
    Ok(Json(inspect.envelope((page, rows, all))))
}

/// Spans of a part of time, added up by name.
#[utoipa::path(get, operation_id = "inspect_aggregate", path = "/api/v1/inspect/aggregate", params(Part),
    responses((status = 200, body = told::Envelope<told::Aggregate>)))]
pub(super) async fn aggregate(
    State(inspect): State<Inspect>,
    part: Asked,
) -> Told<told::Aggregate> {
    let Query(part) = part?;
    let (from, to) = part.dates()?;
    let rows: Vec<_> = inspect.shown(|shown| {
        let lanes = part.lanes();
        let chosen = shown.seen.spans().between(from, to);
        let chosen = chosen.filter(|span| on_lanes(&shown, span, &lanes));
        let ms = |nanos: u64| nanos as f64 / 1e6;
        let totals = trace::totals(chosen, shown.now).into_iter();
        totals
            .map(|total| told::Total {
                name: total.name,
                kind: kind_word(total.kind).to_owned(),
                count: total.count as u64,
                total_ms: ms(total.total),
                self_ms: ms(total.own),
                p50_ms: ms(total.p50),
                p99_ms: ms(total.p99),
                failed: total.failed as u64,
            })
            .collect()
    });
    let count = rows.len();
    Ok(Json(inspect.envelope((
        told::Aggregate { rows },
        count,
        count,
    ))))
}

/// A number of the whole over time.
#[utoipa::path(get, operation_id = "inspect_series", path = "/api/v1/inspect/series", params(Part),
    responses((status = 200, body = told::Envelope<told::Spread>)))]
pub(super) async fn series(State(inspect): State<Inspect>, part: Asked) -> Told<told::Spread> {
    let Query(part) = part?;
    let (from, to) = part.dates()?;
    let found = inspect.shown(|shown| {
        let totals = shown.seen.totals();
        let total = totals.into_iter().find(|total| total.name == part.name)?;
        let points = total.series.between(from, to, part.px.clamp(2, WIDTH_MAX));
        let points = points
            .into_iter()
            .map(|it| (it.at.as_ms(), it.min, it.max, it.mean));
        Some(told::Spread {
            name: part.name.clone(),
            unit: total.unit.to_owned(),
            points: points.collect(),
        })
    });
    let unknown = || {
        Refused::Unknown(format!(
            "there is no series `{}`: they are messages, bytes, ask_p99, mailbox",
            part.name
        ))
    };
    let found = found.ok_or_else(unknown)?;
    let points = found.points.len();
    Ok(Json(inspect.envelope((found, points, points))))
}
