//! `odeon stack`: what an actor does and whom it waits for, to the end of the chain, across processes; or where all ranks
//! of a job stand.

mod ranks;

use anyhow::{Result, bail};
use odeon_client::inspect::{ActorDetail, ActorRow, ChainLink, Current, Ended, WaitsOn};
use odeon_client::{Asked, ClientError, Inspector, Page, View};
use serde::Serialize;

use super::ps;
use super::watched::Watched;
use crate::args::StackArgs;
use crate::figures;
use crate::print;
use crate::top::signs;
use crate::waiter::Waiter;

/// The chain, from the actor that was asked for.
#[derive(Debug, PartialEq, Serialize)]
struct Stack {
    /// When it was looked at.
    captured_at: f64,
    frames: Vec<Frame>,
    /// The last one waits for one of them, and how.
    back: Option<Back>,
    /// None of them can go on: they wait for nobody outside of the circle.
    deadlock: bool,
    /// Actors behind the last frame that were not looked at.
    left_out: usize,
}

/// The wait that closes a circle.
#[derive(Debug, PartialEq, Serialize)]
struct Back {
    /// The frame that is waited for; those before it lead to the circle and are no part of it.
    frame: usize,
    waited_for: WaitedFor,
}

/// One link of the chain, and its state.
#[derive(Debug, PartialEq, Serialize)]
struct Frame {
    id: String,
    name: String,
    /// Why the one above it waits for this one.
    waited_for: Option<WaitedFor>,
    /// Its state as it was seen; nothing when it has gone, or is no actor.
    actor: Option<Seen>,
}

#[derive(Debug, PartialEq, Serialize)]
struct WaitedFor {
    how: String,
    message: String,
    since: f64,
}

#[derive(Debug, PartialEq, Serialize)]
struct Seen {
    r#type: String,
    node: String,
    process: String,
    state: String,
    since: f64,
    current: Option<Current>,
    /// The user's own spans that are open, the outermost first.
    spans: Vec<OpenSpan>,
    waits_on: Option<WaitsOn>,
    ended: Option<Ended>,
}

#[derive(Debug, PartialEq, Serialize)]
struct OpenSpan {
    name: String,
    since: f64,
    id: String,
    trace: String,
}

/// Frames of one stack.
const FRAMES_MAX: usize = 64;
/// Actors that are named where a name takes several.
const NAMED: usize = 10;

pub(crate) fn run(args: &StackArgs) -> Result<()> {
    if args.ranks {
        return ranks::run(args);
    }
    let watched = Watched::of(&args.look)?;
    let inspector = watched.inspector()?;
    let runtime = Waiter::alone()?;
    let stack = runtime.block_on(async {
        let id = chosen(&inspector, &watched, &args.actor).await?;
        let looked = look(&inspector, &id).await;
        looked.map_err(|error| watched.why_not(error))
    })?;
    if args.json {
        print::line(serde_json::to_string(&stack)?)?;
        return Ok(());
    }
    lines(&stack).into_iter().try_for_each(print::line)?;
    Ok(())
}

/// The id of the one actor that a word means.
async fn chosen(inspector: &Inspector, watched: &Watched, word: &str) -> Result<String> {
    let rows = async |filter: String| {
        let asked = Asked {
            filter,
            ..Asked::all(View::Actors)
        };
        let page = inspector.page(&asked).await;
        page.map(|page| match page.data {
            Page::Actors(actors) => actors.rows,
            _ => vec![],
        })
    };
    // A word is a part of a name or an id; what cannot be read as a filter is said.
    let found = rows(format!("{word} system:any")).await;
    let mut found = found.map_err(|error| watched.why_not(error))?;
    if let Some(run) = watched.run() {
        let role = ps::roles(run).into_iter().find(|(_, role)| role == word);
        if let Some((id, _)) = role {
            return Ok(id);
        }
    }
    let whole = |row: &ActorRow| row.id == word || row.name.as_deref() == Some(word);
    if found.iter().any(whole) {
        found.retain(whole);
    }
    match found.as_slice() {
        [] => bail!("no actor is `{word}`: `odeon ps --all` lists them with their names and ids"),
        [row] => Ok(row.id.clone()),
        several => {
            let names = several.iter().take(NAMED);
            let names: Vec<_> = names
                .map(|row| format!("{} ({})", row.id, signs::title(row)))
                .collect();
            let more = several.len().saturating_sub(NAMED);
            bail!(
                "`{word}` is {} actors, so take the id of one: {}{}",
                several.len(),
                names.join(", "),
                match more {
                    0 => String::new(),
                    n => format!(" and {n} more"),
                }
            )
        }
    }
}

/// Follows the chain.
async fn look(inspector: &Inspector, id: &str) -> Result<Stack, ClientError> {
    let first = inspector.actor(id).await?;
    let now = inspector.page(&Asked::all(View::Now)).await?;
    let deadlocked = match &now.data {
        Page::Now(now) => now.problems.iter().any(|problem| {
            let has = |id: &str| problem.subjects.iter().any(|subject| subject.id == id);
            let chain = first.data.chain.iter();
            problem.rule == "deadlock" && chain.map(|link| &link.subject.id).any(|id| has(id))
        }),
        _ => false,
    };
    let mut others = vec![];
    for link in ahead(&first.data).iter().take(FRAMES_MAX) {
        let detail = match link.subject.kind.as_str() {
            "actor" => match inspector.actor(&link.subject.id).await {
                Ok(detail) => Some(detail.data),
                // It has ended meanwhile.
                Err(ClientError::Refused { status: 404, .. }) => None,
                Err(error) => return Err(error),
            },
            _ => None,
        };
        others.push(detail);
    }
    Ok(stack(first.data, others, deadlocked, first.captured_at))
}

/// Those whom it waits for, each once.
fn ahead(detail: &ActorDetail) -> &[ChainLink] {
    let chain = detail.chain.as_slice();
    match detail.circle {
        true => &chain[..chain.len().saturating_sub(1)],
        false => chain,
    }
}

fn stack(first: ActorDetail, others: Vec<Option<ActorDetail>>, deadlock: bool, at: f64) -> Stack {
    let links = ahead(&first).to_vec();
    let last = first.chain.last().filter(|_| first.circle).cloned();
    let left_out = links.len() - others.len();
    let mut frames = vec![Frame {
        id: first.row.id.clone(),
        name: signs::title(&first.row),
        waited_for: None,
        actor: Some(seen(first)),
    }];
    for (link, detail) in links.into_iter().zip(others) {
        frames.push(Frame {
            waited_for: Some(waited_for(&link)),
            id: link.subject.id,
            name: link.subject.name,
            actor: detail.map(seen),
        });
    }
    let back = last.and_then(|link| {
        let frame = frames.iter().position(|it| it.id == link.subject.id)?;
        let waited_for = waited_for(&link);
        Some(Back { frame, waited_for })
    });
    Stack {
        captured_at: at,
        deadlock: back.is_some() && deadlock,
        frames,
        back,
        left_out,
    }
}

fn waited_for(link: &ChainLink) -> WaitedFor {
    WaitedFor {
        how: link.how.clone(),
        message: link.message.clone(),
        since: link.since,
    }
}

fn seen(detail: ActorDetail) -> Seen {
    let open = detail.spans.iter();
    let mut open: Vec<_> = open
        .filter(|span| span.end.is_none() && span.kind == "user")
        .collect();
    open.sort_by(|a, b| a.start.total_cmp(&b.start));
    let spans = open.into_iter().map(|span| OpenSpan {
        name: span.name.clone(),
        since: span.start,
        id: span.id.clone(),
        trace: span.trace.clone(),
    });
    Seen {
        spans: spans.collect(),
        r#type: detail.row.r#type,
        node: detail.row.node,
        process: detail.row.process,
        state: detail.row.state,
        since: detail.row.since,
        current: detail.row.current,
        waits_on: detail.row.waits_on,
        ended: detail.row.ended,
    }
}

/// The stack as text, the one that was asked for first.
fn lines(stack: &Stack) -> Vec<String> {
    let ago = |since: f64| figures::span((stack.captured_at - since).max(0.0));
    let mut lines = vec![];
    for (depth, frame) in stack.frames.iter().enumerate() {
        if let Some(waited) = &frame.waited_for {
            lines.push(edge(waited, stack.captured_at));
        }
        let Some(actor) = &frame.actor else {
            lines.push(format!(
                "{depth}  {}  {}: not seen, it may have ended",
                frame.name, frame.id
            ));
            continue;
        };
        lines.push(format!(
            "{depth}  {}  {}  {}  on {}, process {}",
            frame.name,
            frame.id,
            signs::worded(&actor.state),
            actor.node,
            actor.process
        ));
        if frame.name != actor.r#type {
            lines.push(format!("     a {}", actor.r#type));
        }
        if let Some(current) = &actor.current {
            let message = &current.message;
            lines.push(format!("     handles {message} for {}", ago(current.since)));
        }
        for span in &actor.spans {
            let (name, trace) = (&span.name, &span.trace);
            lines.push(format!(
                "     in \"{name}\" for {} (trace {trace})",
                ago(span.since)
            ));
        }
        if let Some(ended) = &actor.ended {
            lines.push(format!(
                "     ended {} ago: {}",
                ago(ended.at),
                ended.sentence
            ));
        }
        if let Some(place) = actor.waits_on.as_ref().filter(|it| it.how == "place") {
            lines.push(format!(
                "  waits {} for a place: {}",
                ago(place.since),
                place.name
            ));
        }
    }
    if stack.left_out > 0 {
        let left = stack.left_out as u64;
        lines.push(format!(
            "   and {} behind it",
            figures::plural(left, "more actor")
        ));
    }
    if let Some(back) = &stack.back {
        let edge = edge(&back.waited_for, stack.captured_at);
        let name = &stack.frames[back.frame].name;
        lines.push(format!("{edge} {name} again ({})", back.frame));
    }
    lines.push(end(stack));
    lines.iter().map(|line| figures::plain(line)).collect()
}

/// The wait of the one above for the one below, in words.
fn edge(waited: &WaitedFor, now: f64) -> String {
    let for_long = figures::span((now - waited.since).max(0.0));
    let message = match waited.message.as_str() {
        "" => String::new(),
        message => format!(" to {message}"),
    };
    match waited.how.as_str() {
        "room" => format!("  waits {for_long} for room for its message{message}, at"),
        _ => format!("  waits {for_long} for an answer{message}, by"),
    }
}

/// The end of the chain, in words.
fn end(stack: &Stack) -> String {
    let last = stack.frames.last();
    if let Some(back) = &stack.back {
        let (before, circle) = stack.frames.split_at(back.frame);
        let names = |frames: &[Frame]| {
            let names: Vec<_> = frames.iter().map(|it| it.name.clone()).collect();
            names.join(", ")
        };
        let what = match stack.deadlock {
            true => format!(
                "deadlock: {} wait for each other, and none can go on",
                names(circle)
            ),
            false => format!("a circle: {} wait for each other", names(circle)),
        };
        return match before.len() {
            0 => what,
            1 => format!("{what}; {} waits for them", names(before)),
            _ => format!("{what}; {} wait for them", names(before)),
        };
    }
    let actor = last.and_then(|frame| frame.actor.as_ref());
    match actor {
        None => "it waits for whom nothing is known of".to_owned(),
        Some(actor) if actor.ended.is_some() => "it has ended".to_owned(),
        Some(actor) if actor.waits_on.is_some() => "it waits for a place".to_owned(),
        Some(actor) if actor.current.is_some() => "it waits for no actor: it works".to_owned(),
        Some(_) => "it waits for no actor: it does nothing at the moment".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn detail(id: &str, state: &str, current: &Value, chain: &[&str], circle: bool) -> ActorDetail {
        let quantiles = json!({"p50": null, "p99": null});
        let times = json!({"handling_us": quantiles, "waiting_us": quantiles});
        let link = |on: &&str| {
            json!({
                "subject": {"kind": "actor", "id": on, "name": format!("name-{on}")},
                "how": "ask", "message": "Take", "since": 4_000.0,
            })
        };
        let chain: Vec<_> = chain.iter().map(link).collect();
        serde_json::from_value(json!({
            "row": {
                "id": id, "name": format!("name-{id}"), "type": "T", "job": null, "node": "n",
                "process": "1", "devices": [], "parent": null, "system": false, "state": state,
                "since": 0.0, "mailbox": {"len": 0, "max": 1, "bytes": 0}, "received": 1,
                "handled": 1, "failed": 0, "restarts": 0, "incarnation": 1, "rate": 0.0,
                "busy": 0.0, "waiting": 0.0, "current": current, "waits_on": null, "ended": null,
            },
            "lineage": [], "children": {"count": 0, "by_state": {}, "some": []}, "chain": chain,
            "circle": circle, "messages": [], "all_messages": times, "placement": null,
            "lives": [], "spans": [
                {"id": "01", "trace": "0f", "parent": null, "kind": "user", "name": "train step",
                 "actor": {"kind": "actor", "id": id, "name": id}, "start": 2_000.0, "end": null,
                 "queued_ms": 0.0, "ok": true},
                {"id": "02", "trace": "0f", "parent": null, "kind": "user", "name": "over",
                 "actor": {"kind": "actor", "id": id, "name": id}, "start": 1_000.0,
                 "end": 1_500.0, "queued_ms": 0.0, "ok": true},
            ],
        }))
        .unwrap()
    }

    fn step(since: f64) -> Value {
        json!({"message": "Step", "since": since})
    }

    #[test]
    fn a_chain_is_told_to_its_end_with_what_each_is_at() {
        let first = detail("a", "waiting", &step(1_000.0), &["b", "c"], false);
        let second = detail("b", "waiting", &step(3_000.0), &[], false);
        let third = detail("c", "busy", &step(4_500.0), &[], false);
        let told = stack(first, vec![Some(second), Some(third)], false, 5_000.0);
        let text = lines(&told).join("\n");
        for words in [
            "0  name-a  a  \u{25d0} waiting  on n, process 1",
            "handles Step for 4.0 s",
            "in \"train step\" for 3.0 s (trace 0f)",
            "waits 1.0 s for an answer to Take, by\n1  name-b",
            "2  name-c",
            "it waits for no actor: it works",
        ] {
            assert!(text.contains(words), "{words}: {text}");
        }
        assert!(
            !text.contains("over"),
            "what has ended is no part of it: {text}"
        );
    }

    #[test]
    fn a_circle_shows_each_once_and_is_a_deadlock_when_it_is_known_as_one() {
        let first = || detail("a", "waiting", &step(0.0), &["b", "a"], true);
        let second = || vec![Some(detail("b", "waiting", &step(0.0), &["a"], false))];
        let told = stack(first(), second(), true, 5_000.0);
        assert_eq!(told.frames.len(), 2);
        let last = lines(&told).pop().unwrap();
        assert_eq!(
            last,
            "deadlock: name-a, name-b wait for each other, and none can go on"
        );
        let told = stack(first(), second(), false, 5_000.0);
        let text = lines(&told);
        assert!(text.last().unwrap().starts_with("a circle: "));
        assert!(
            text[text.len() - 2].ends_with("an answer to Take, by name-a again (0)"),
            "{text:?}"
        );
    }

    #[test]
    fn who_waits_for_a_circle_is_no_part_of_it() {
        let first = detail("a", "waiting", &step(0.0), &["b", "c", "b"], true);
        let others = ["b", "c"].map(|id| Some(detail(id, "waiting", &step(0.0), &[], true)));
        let told = stack(first, others.into(), true, 5_000.0);
        assert_eq!(
            lines(&told).pop().unwrap(),
            "deadlock: name-b, name-c wait for each other, and none can go on; name-a waits for them"
        );
    }

    #[test]
    fn one_that_is_gone_is_told_as_gone() {
        let first = detail("a", "waiting", &step(0.0), &["b"], false);
        let text = lines(&stack(first, vec![None], false, 5_000.0)).join("\n");
        assert!(text.contains("name-b  b: not seen"), "{text}");
    }
}
