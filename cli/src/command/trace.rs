//! `odeon trace`: all that one message caused, as a tree with its times.

use std::collections::{HashMap, HashSet};

use anyhow::{Context, Result, bail};
use odeon_client::inspect::{Envelope, SpanBrief, Trace, TraceBrief};
use odeon_client::{Asked, ClientError, Inspector, View};

use super::watched::Watched;
use crate::args::TraceArgs;
use crate::figures;
use crate::print;
use crate::waiter::Waiter;

/// Of which part of time the slowest are listed, in milliseconds.
const RECENT_MS: f64 = 60_000.0;
/// Traces that are listed.
const LISTED: usize = 20;
/// A tree is not indented further, so that its names stay in sight.
const DEPTH_MAX: usize = 24;
/// Digits of the id of a span; that of a trace has twice as many.
const SPAN_DIGITS: usize = 16;

pub(crate) fn run(args: &TraceArgs) -> Result<()> {
    let mut look = crate::args::LookArgs {
        run: args.look.run.clone(),
        dir: args.look.dir.clone(),
    };
    if args.slowest && look.run.is_none() {
        // There is no id, so the first word is the run.
        look.run.clone_from(&args.id);
    }
    let watched = Watched::of(&look)?;
    let inspector = watched.inspector()?;
    let runtime = Waiter::alone()?;
    if args.slowest {
        let spans = runtime.block_on(slowest(&inspector));
        let spans = spans.map_err(|error| watched.why_not(error))?;
        return list(&spans, args.json);
    }
    let id = args.id.as_deref().context("name a trace or a span")?;
    let id = id.trim_start_matches("0x");
    if id.is_empty() || id.len() > 2 * SPAN_DIGITS || !id.chars().all(|c| c.is_ascii_hexdigit()) {
        bail!(
            "`{id}` is no id of a trace or a span: those are hexadecimal, of 32 and 16 digits; \
             `odeon trace --slowest` lists some"
        );
    }
    let trace = runtime.block_on(async {
        let trace = match id.len() > SPAN_DIGITS {
            true => id.to_owned(),
            false => inspector.span(id).await?.data.span.brief.trace,
        };
        inspector.trace(&trace).await
    });
    let trace = trace.map_err(|error| watched.why_not(error))?;
    if args.json {
        print::line(serde_json::to_string(&trace.data)?)?;
        return Ok(());
    }
    lines(&trace).into_iter().try_for_each(print::line)?;
    Ok(())
}

/// The traces of the last minute that took longest.
async fn slowest(inspector: &Inspector) -> Result<Envelope<Vec<TraceBrief>>, ClientError> {
    // By the clock of whoever looks.
    let now = inspector.page(&Asked::all(View::Jobs)).await?.captured_at;
    let traces = inspector.traces(now - RECENT_MS, now, LISTED).await?;
    Ok(traces.map(|traces| traces.traces))
}

fn list(traces: &Envelope<Vec<TraceBrief>>, json: bool) -> Result<()> {
    if json {
        for trace in &traces.data {
            print::line(serde_json::to_string(trace)?)?;
        }
        return Ok(());
    }
    if traces.data.is_empty() {
        print::say(format!("no trace of the last {} was kept", reach(traces)));
        return Ok(());
    }
    let head = [
        "trace",
        "ago",
        "took",
        "spans",
        "failed",
        "began with",
        "by",
    ];
    let mut table = print::Table::new(head);
    for TraceBrief {
        trace,
        first,
        end,
        spans,
        failed,
    } in &traces.data
    {
        table.row([
            trace.clone(),
            figures::age(traces.captured_at - first.start),
            figures::span(end - first.start),
            spans.to_string(),
            failed.to_string(),
            figures::plain(&format!("{} {}", first.kind, first.name)),
            figures::plain(&first.actor.name),
        ]);
    }
    table.print()?;
    print::say(format!(
        "the slowest of {} in the last {}",
        figures::plural(traces.total, "trace"),
        reach(traces)
    ));
    Ok(())
}

/// The part of time that they go back: not the whole that was asked for, if there were more spans
/// in it than are kept.
fn reach<T>(of: &Envelope<T>) -> String {
    let kept = of.kept_from.map(|from| of.captured_at - from);
    match kept.filter(|kept| *kept < RECENT_MS) {
        Some(kept) => format!(
            "{}; {} that ended before {} forgotten",
            figures::span(kept),
            figures::plural(of.forgotten, "span"),
            if of.forgotten == 1 { "is" } else { "are" }
        ),
        None => "minute".to_owned(),
    }
}

fn took(span: &SpanBrief, now: f64) -> f64 {
    span.end.unwrap_or(now) - span.start
}

const fn fate(span: &SpanBrief) -> &'static str {
    match (span.ok, span.end) {
        (false, _) => "\u{2717} failed",
        (true, None) => "goes on",
        (true, Some(_)) => "",
    }
}

/// The spans as a tree: each with its depth, and whether what caused it is missing.
fn tree(trace: &Trace) -> Vec<(&SpanBrief, usize, bool)> {
    let known: HashSet<&str> = trace.spans.iter().map(|span| span.id.as_str()).collect();
    let mut below: HashMap<&str, Vec<&SpanBrief>> = HashMap::new();
    let mut todo = vec![];
    for span in &trace.spans {
        match span.parent.as_deref() {
            Some(parent) if known.contains(parent) => below.entry(parent).or_default().push(span),
            parent => todo.push((span, 0, parent.is_some())),
        }
    }
    let later = |a: &SpanBrief, b: &SpanBrief| b.start.total_cmp(&a.start);
    todo.sort_by(|(a, ..), (b, ..)| later(a, b));
    let mut rows = vec![];
    while let Some((span, depth, lost)) = todo.pop() {
        rows.push((span, depth, lost));
        let mut effects = below.remove(span.id.as_str()).unwrap_or_default();
        effects.sort_by(|a, b| later(a, b));
        todo.extend(effects.into_iter().map(|span| (span, depth + 1, false)));
    }
    rows
}

fn lines(page: &Envelope<Trace>) -> Vec<String> {
    let (trace, now) = (&page.data, page.captured_at);
    let begin = trace.spans.iter().map(|span| span.start);
    let begin = begin.fold(f64::MAX, f64::min);
    let end = trace.spans.iter().map(|span| span.end.unwrap_or(now));
    let end = end.fold(f64::MIN, f64::max);
    let failed = trace.spans.iter().filter(|span| !span.ok).count();
    let going = trace.spans.iter().any(|span| span.end.is_none());
    let critical: HashSet<&str> = trace.critical.iter().map(String::as_str).collect();
    let mut lines = vec![format!(
        "trace {}: {}{}, {}{}{}",
        trace.trace,
        match page.shown < page.total {
            true => format!("the first {} of ", page.shown),
            false => String::new(),
        },
        figures::plural(page.total, "span"),
        figures::span(end - begin),
        if going { " up to now" } else { "" },
        match failed {
            0 => String::new(),
            n => format!(", {n} failed"),
        }
    )];
    lines.push(format!("{:>10}  {:>10}  {:>10}", "start", "took", "queued"));
    for (span, depth, lost) in tree(trace) {
        let indent = "  ".repeat(depth.min(DEPTH_MAX));
        if lost {
            lines.push(format!(
                "{:>34}  {indent}? what caused the next one is not kept",
                ""
            ));
        }
        let sign = if critical.contains(span.id.as_str()) {
            '*'
        } else {
            ' '
        };
        let line = format!(
            "{:>10}  {:>10}  {:>10} {sign} {indent}{} {}  {}  {}",
            format!("+{}", figures::span(span.start - begin)),
            figures::span(took(span, now)),
            figures::span(span.queued_ms),
            span.kind,
            span.name,
            span.actor.name,
            fate(span),
        );
        lines.push(figures::plain(line.trim_end()));
    }
    lines.push("* decides when it is over".to_owned());
    if trace.lost > 0 {
        let (lost, are) = match trace.lost {
            1 => ("1 span".to_owned(), "is"),
            n => (figures::plural(n, "span"), "are"),
        };
        lines.push(format!(
            "what caused {lost} {are} not kept: its parent was dropped, or is too old by now"
        ));
    }
    lines
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn span(id: &str, parent: Option<&str>, start: f64, end: Option<f64>, ok: bool) -> SpanBrief {
        serde_json::from_value(json!({
            "id": id, "trace": "0f", "parent": parent, "kind": "ask", "name": format!("Do{id}"),
            "actor": {"kind": "actor", "id": "1.1", "name": "worker"}, "start": start, "end": end,
            "queued_ms": 0.5, "ok": ok,
        }))
        .unwrap()
    }

    fn page(spans: Vec<SpanBrief>, critical: &[&str], lost: u64) -> Envelope<Trace> {
        let count = spans.len();
        let trace = Trace {
            trace: "0f".to_owned(),
            spans,
            critical: critical.iter().map(ToString::to_string).collect(),
            lost,
        };
        serde_json::from_value(json!({
            "epoch": "1", "seq": 1, "captured_at": 1_010.0, "shown": count, "total": count, "dropped": 0,
            "sampled": 1.0, "clock_error_us": null, "missing": [], "data": trace,
            "head": {
                "name": "r", "nodes": {"up": 1, "all": 1}, "devices": 0,
                "actors": {"all": 1, "failed": 0}, "problems": {"error": 0, "warning": 0},
                "spans_per_s": 0.0, "replay": null,
            },
        }))
        .unwrap()
    }

    #[test]
    fn effects_stand_below_their_cause_in_the_order_of_time() {
        let spans = vec![
            span("1", None, 1_000.0, Some(1_009.0), true),
            span("2", Some("1"), 1_005.0, Some(1_008.0), false),
            span("3", Some("1"), 1_001.0, Some(1_004.0), true),
            span("4", Some("3"), 1_002.0, None, true),
            span("5", Some("gone"), 1_003.0, Some(1_004.0), true),
        ];
        let text = lines(&page(spans, &["1", "2"], 1));
        assert_eq!(text[0], "trace 0f: 5 spans, 10.0 ms up to now, 1 failed");
        let names = |line: &String| line.split("ask ").nth(1).map(str::to_owned);
        let order: Vec<_> = text.iter().filter_map(names).collect();
        let expect = [
            "Do1  worker",
            "Do3  worker",
            "Do4  worker  goes on",
            "Do2  worker  \u{2717} failed",
            "Do5  worker",
        ];
        assert_eq!(order, expect);
        assert!(
            text[2].contains("* ask Do1") && text[3].contains("    ask Do3"),
            "{text:#?}"
        );
        assert!(
            text[4].contains("+2.00 ms") && text[4].contains("500.0 \u{b5}s")
                || text[4].contains("500 \u{b5}s")
        );
        assert!(
            text.iter()
                .any(|line| line.contains("what caused the next one is not kept"))
        );
        assert!(
            text.last()
                .unwrap()
                .contains("what caused 1 span is not kept")
        );
    }

    #[test]
    fn a_chain_of_thousands_is_a_tree_too() {
        let spans = (0..20_000).map(|n| {
            let parent = (n > 0).then(|| (n - 1).to_string());
            span(
                &n.to_string(),
                parent.as_deref(),
                f64::from(n),
                Some(1e6),
                true,
            )
        });
        let trace = page(spans.collect(), &[], 0).data;
        assert_eq!(
            tree(&trace).last().map(|(_, depth, _)| *depth),
            Some(19_999)
        );
    }
}
