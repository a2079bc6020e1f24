//! Tests of what looking on does with keys and news, and how it looks: whole pictures, and any
//! size.

use std::fs;
use std::path::Path;

use odeon_client::inspect::{ActorRow, Envelope, Events};
use odeon_client::{Asked, Page, Update, View};
use proptest::prelude::*;
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use serde_json::{Value, json};

use super::draw;
use super::model::{Effect, Event, Key, Loss, Model, Order, Phase};
use super::signs::Colours;

/// When everything here happens.
const NOW: f64 = 1_800_000_000_000.0;

fn envelope(data: Page) -> Envelope<Page> {
    let rows = match &data {
        Page::Actors(page) => page.rows.len(),
        Page::Events(page) => page.events.len(),
        _ => 1,
    };
    Envelope {
        epoch: "1".to_owned(),
        seq: 7,
        captured_at: NOW,
        shown: rows as u64,
        total: rows as u64 + 1,
        dropped: 1_200,
        forgotten: 0,
        kept_from: None,
        sampled: 8.0,
        clock_error_us: Some(40.0),
        missing: vec![],
        head: serde_json::from_value(json!({
            "name": "rl-sums", "nodes": {"up": 2, "all": 3}, "devices": 8,
            "actors": {"all": 1_204, "failed": 3}, "problems": {"error": 1, "warning": 1},
            "spans_per_s": 321.0, "replay": null,
        }))
        .unwrap(),
        data,
    }
}

fn actor(id: &str, name: Option<&str>, state: &str) -> Value {
    json!({
        "id": id, "name": name, "type": "rl.Rollout", "job": "j1", "node": "node-2",
        "process": "3", "devices": ["node-2/0"], "parent": null, "system": false,
        "state": state, "since": NOW - 12_000.0,
        "mailbox": {"len": 12, "max": 1024, "bytes": 0}, "received": 100, "handled": 88,
        "failed": 1, "restarts": 2, "incarnation": 3, "rate": 41.5, "busy": 0.5,
        "waiting": 0.25, "current": null, "waits_on": null, "ended": null,
    })
}

fn actors() -> Vec<ActorRow> {
    let mut busy = actor("1.10", Some("rollout-0"), "busy");
    busy["current"] = json!({"message": "Generate", "since": NOW - 41_000.0});
    busy["rate"] = json!(2.0);
    let mut waiting = actor("1.11", Some("trainer"), "waiting");
    waiting["current"] = json!({"message": "Step", "since": NOW - 9_000.0});
    waiting["waits_on"] = json!({
        "id": "1.10", "name": "rollout-0", "how": "ask", "message": "Collect", "since": NOW - 8_000.0,
    });
    waiting["rate"] = json!(12_345.0);
    let mut failed = actor("1.12", None, "failed");
    failed["ended"] = json!({"at": NOW - 60_000.0, "sentence": "out of device memory"});
    let idle = actor("1.9", Some("a \u{1b}[31mname\u{7}"), "idle");
    [busy, waiting, failed, idle]
        .into_iter()
        .map(|row| serde_json::from_value(row).unwrap())
        .collect()
}

fn event(seq: u64, severity: &str, sentence: &str, chain: &[&str]) -> Value {
    json!({
        "seq": seq, "at": NOW - 1_000.0 * (100 - seq) as f64, "kind": "failure",
        "severity": severity, "subject": {"kind": "actor", "id": "1.12", "name": "rl.Rollout 12"},
        "sentence": sentence, "chain": chain,
    })
}

fn node(name: &str, state: &str) -> Value {
    json!({
        "name": name, "state": state, "since": NOW - 3_700_000.0, "address": "127.0.0.1:7433",
        "leads": name == "head", "votes": true, "version": "0.1.0", "cores": 16, "cpu": 0.31,
        "memory": {"used": 4e9, "total": 16_000_000_000_u64},
        "devices": [{
            "id": format!("{name}/0"), "node": name, "index": 0, "name": "H200", "kind": "gpu",
            "state": "ok", "utilisation": {"missing": "this is not measured"},
            "memory": {"used": {"missing": "this is not measured"}, "total": 150_000_000_000_u64},
            "temperature": {"missing": "this is not measured"},
            "power_w": {"missing": "this is not measured"},
            "leases": [{"holder": {"kind": "actor", "id": "1.11", "name": "trainer"}, "share": 0.5}],
            "owners": [], "actors": 1,
        }],
        "actors": 12,
        "processes": [{
            "id": "3", "node": name, "pid": 4242, "kind": "worker", "job": "j1",
            "state": "running", "started": NOW - 3_600_000.0, "rss": 8_388_608.0, "cpu": 0.5,
            "actors": 3,
        }],
        "clock": {"offset_us": 3.0, "error_us": 40.0}, "rtt_us": 210.0, "labels": {},
    })
}

/// Each page with something on it.
fn page(view: View) -> Page {
    fn of<T: serde::de::DeserializeOwned>(value: Value) -> T {
        serde_json::from_value(value).unwrap()
    }
    let events = json!([
        event(1, "info", "node node-2 is seen", &[]),
        event(
            2,
            "error",
            "rl.Rollout 12: out of device memory",
            &["asked 12 GiB", "free 3 GiB"]
        ),
    ]);
    let board = json!({
        "id": "b1", "name": "weights", "versions": [1, 2],
        "rows": [{"name": "rollout-0", "subject": {"kind": "actor", "id": "1.10", "name": "rollout-0"},
                  "cells": [{"state": "used", "share": 1.0}, {"state": "receiving", "share": 0.5}]}],
        "edges": [], "source": {"kind": "actor", "id": "1.11", "name": "trainer"},
    });
    match view {
        View::Now => Page::Now(of(json!({
            "problems": [
                {"rule": "actor_failed", "severity": "error", "count": 1, "since": NOW - 12_000.0,
                 "sentence": "rl.Rollout 12 failed: out of device memory",
                 "subjects": [{"kind": "actor", "id": "1.12", "name": "rl.Rollout 12"}]},
                {"rule": "mailbox_full", "severity": "warning", "count": 1, "since": NOW - 2_000.0,
                 "sentence": "the mailbox of trainer is full to 91 %", "subjects": []},
            ],
            "waiting": [{
                "subject": {"kind": "actor", "id": "1.5", "name": "trainer"},
                "chain": [
                    {"subject": {"kind": "actor", "id": "1.6", "name": "store"}, "how": "ask",
                     "message": "store.Take", "since": NOW - 41_000.0},
                ],
                "circle": false, "since": NOW - 41_000.0,
            }],
            "nodes": [node("head", "up"), node("node-2", "down")],
            "series": [{"name": "messages", "title": "messages", "unit": "/s",
                        "points": [[1.0, 0.0], [2.0, 5.0], [3.0, 10.0]]}],
            "events": events,
        }))),
        View::Cluster => Page::Cluster(of(json!({
            "nodes": [node("head", "up"), node("node-2", "down")],
            "links": [{"from": "head", "to": "node-2", "kind": "network", "rtt_us": 210.0,
                       "bytes_per_s": {"missing": "not counted"}, "queued_bytes": 10,
                       "unacknowledged_bytes": 0, "resumed": 1, "last_break": "timed out",
                       "silent_ms": 3.0}],
        }))),
        View::Actors => Page::Actors(odeon_client::inspect::Actors {
            rows: actors(),
            groups: None,
        }),
        View::Jobs => Page::Jobs(of(json!({"jobs": [{
            "id": "j1", "name": "rl", "namespace": "lab", "state": "queued",
            "since": NOW - 5_000.0, "submitted": NOW - 9_000.0, "by": "owner", "priority": 0,
            "program": "my_job", "arguments": ["--steps", "1 0"], "attempt": 1, "attempts": 3,
            "node": null, "actors": 0, "needs": "4 gpus", "phases": [
                {"name": "queued", "at": NOW - 5_000.0, "ms": null}],
            "refusal": {"sentence": "no node has 4 free devices", "rows": [
                {"node": "head", "asked": "4", "free": "1", "why": "too few devices", "fits": false}]},
            "exit": null,
        }]}))),
        View::Transfers => Page::Transfers(of(json!({
            "boards": [board],
            "copies": [{"id": "c1", "start": NOW - 4_000.0, "end": NOW - 3_000.0,
                "from": {"kind": "process", "id": "1", "name": "trainer's"},
                "to": {"kind": "process", "id": "3", "name": "rollout-0's"}, "what": "blob 7",
                "bytes": 268_435_456, "done": 268_435_456, "route": "network", "gb_per_s": 0.268,
                "expected_gb_per_s": {"missing": "no floor"}, "ok": true, "error": null,
                "span": null}],
        }))),
        View::Events => Page::Events(of(json!({"events": events}))),
        View::Problems => Page::Problems(of(json!({
            "now": [{
                "problem": {"rule": "stuck_handler", "severity": "warning", "count": 1, "since": NOW - 12_000.0,
                    "sentence": "trainer has handled one message for 12 s (limit 10 s)",
                    "subjects": [{"kind": "actor", "id": "1.5", "name": "trainer"}],
                    "done": "nothing: people are told", "advice": "`odeon stack 1.5` says at what it is"},
                "evidence": [["seconds", 12.0]],
                "pictures": [{"name": "process_cpu", "title": "processors", "unit": "",
                    "points": [[NOW - 20_000.0, 1.0], [NOW, 0.0]]}],
            }],
            "past": [{"rule": "slow_link", "sentence": "node-2 is far: 120 ms there and back",
                "subject": {"kind": "node", "id": "node-2", "name": "node-2"},
                "since": NOW - 90_000.0, "ended": NOW - 60_000.0}],
        }))),
        View::Runs => Page::Runs(of(json!({"runs": [{
            "id": "r1", "name": "rl-sums", "kind": "rl", "recipe": "", "folder": "",
            "state": "running", "started": NOW - 65_000.0, "ended": null,
            "progress": {"done": 12.0, "of": 240.0, "unit": "steps"},
            "facts": [{"name": "staleness", "value": 0.5, "unit": ""}],
            "curves": [{"name": "rl.reward", "title": "reward", "unit": "", "x": "step",
                        "points": [[1.0, 0.1], [2.0, 0.2], [3.0, 0.6]]}],
            "histograms": [], "rollouts": [{"subject": {"kind": "actor", "id": "1.10",
                "name": "rollout-0"}, "name": "rollout-0", "version": 2,
                "done": 3, "going": 1, "dropped": 0, "tokens": 16,
                "trajectories": [[1.0, null, 2, 4, "running", null]]}],
            "store": {"rows": 10, "most": 100, "waiting": 4, "in_use": 6}, "board": null,
            "heat": null, "sources": [],
        }]}))),
    }
}

fn detail() -> Envelope<odeon_client::inspect::ActorDetail> {
    let times = json!({"p50": 120.0, "p99": 4_000.0});
    let detail = json!({
        "row": actors()[1],
        "lineage": [{"kind": "actor", "id": "1.1", "name": "run"},
                    {"kind": "actor", "id": "1.11", "name": "trainer"}],
        "children": {"count": 2, "by_state": {"idle": 2}, "some": []},
        "chain": [{"subject": {"kind": "actor", "id": "1.10", "name": "rollout-0"}, "how": "ask",
                   "message": "Collect", "since": NOW - 8_000.0}],
        "circle": false,
        "messages": [{"name": "Step", "count": 88, "failed": 1, "handling_us": times,
                      "waiting_us": times}],
        "all_messages": {"handling_us": times, "waiting_us": times}, "placement": null,
        "lives": [{"number": 1, "from": NOW - 90_000.0, "to": NOW - 60_000.0,
                   "cause": "out of memory", "chain": ["asked 12 GiB"]},
                  {"number": 2, "from": NOW - 60_000.0, "to": null, "cause": null, "chain": []}],
        "spans": [{"id": "01", "trace": "0f", "parent": null, "kind": "handle", "name": "Step",
                   "actor": {"kind": "actor", "id": "1.11", "name": "trainer"},
                   "start": NOW - 9_000.0, "end": null, "queued_ms": 0.0, "ok": true}],
    });
    let detail = serde_json::from_value(detail).unwrap();
    envelope(page(View::Jobs)).map(|_| detail)
}

/// Somebody who looks at a page as it is.
fn seen(view: View) -> Model {
    let mut model = Model::new(view, "", NOW);
    assert_eq!(model.follow(), Effect::Follow(1, model.asked()));
    model.apply(Event::Told(
        1,
        Update::Whole(Box::new(envelope(page(view)))),
    ));
    model
}

fn press(model: &mut Model, keys: &str) -> Vec<Effect> {
    let mut effects = vec![];
    for c in keys.chars() {
        let key = match c {
            '\n' => Key::Enter,
            '\u{1b}' => Key::Escape,
            '\u{8}' => Key::Backspace,
            '\t' => Key::Tab,
            c => Key::Char(c),
        };
        effects = model.apply(Event::Key(key));
    }
    effects
}

/// The picture on a terminal of this size.
fn picture(model: &mut Model, width: u16, height: u16) -> String {
    model.apply(Event::Size(width, height));
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    terminal
        .draw(|frame| draw::draw(model, Colours::Some, frame.area(), frame.buffer_mut()))
        .unwrap();
    draw::lines_of(terminal.backend().buffer())
}

/// Compares with a picture that is kept; `ODEON_BLESS=1` keeps this one.
fn looks_like(name: &str, shown: &str) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/top/pictures");
    let path = folder.join(name).with_extension("txt");
    if std::env::var_os("ODEON_BLESS").is_some() {
        fs::create_dir_all(&folder).unwrap();
        fs::write(&path, format!("{shown}\n")).unwrap();
    }
    let kept = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{name}: {error}"));
    assert_eq!(
        format!("{shown}\n"),
        kept,
        "{name} looks otherwise:\n{shown}"
    );
}

#[test]
fn each_page_looks_as_it_should() {
    for view in View::ALL {
        looks_like(view.word(), &picture(&mut seen(view), 110, 30));
        looks_like(&format!("{view}-small"), &picture(&mut seen(view), 40, 10));
    }
    let mut panel = seen(View::Actors);
    press(&mut panel, "jj\n");
    panel.apply(Event::Detail("1.11".to_owned(), Ok(Box::new(detail()))));
    looks_like("actor", &picture(&mut panel, 110, 36));
    looks_like("actor-small", &picture(&mut panel, 40, 10));
    press(&mut panel, "?");
    looks_like("help", &picture(&mut panel, 80, 20));
    // Before anything is heard, without anything to show, when nothing is heard any more, and when it
    // is refused.
    let mut fresh = Model::new(View::Now, "", NOW);
    looks_like("connecting", &picture(&mut fresh, 80, 6));
    let mut empty = Model::new(View::Actors, "state:failed", NOW);
    empty.follow();
    let none = Page::Actors(odeon_client::inspect::Actors {
        rows: vec![],
        groups: None,
    });
    empty.apply(Event::Told(1, Update::Whole(Box::new(envelope(none)))));
    looks_like("empty", &picture(&mut empty, 80, 8));
    let loss = |is_final| Loss {
        why: "the run at http://127.0.0.1:1 does not answer: connection refused".to_owned(),
        is_final,
    };
    let mut stale = seen(View::Events);
    stale.apply(Event::Tick(NOW + 4_000.0));
    stale.apply(Event::Lost(1, loss(false)));
    looks_like("stale", &picture(&mut stale, 80, 8));
    let mut refused = Model::new(View::Now, "", NOW);
    refused.follow();
    refused.apply(Event::Lost(1, loss(true)));
    looks_like("refused", &picture(&mut refused, 40, 8));
    let mut missing = envelope(page(View::Jobs));
    missing.missing = vec![odeon_client::inspect::MissingNode {
        node: "node-3".to_owned(),
        since: NOW - 5_000.0,
        why: "it does not answer".to_owned(),
    }];
    let mut partial = seen(View::Jobs);
    partial.apply(Event::Told(1, Update::Whole(Box::new(missing))));
    looks_like("partial", &picture(&mut partial, 80, 8));
}

#[test]
fn every_page_is_asked_for_by_its_number() {
    let mut model = Model::new(View::Now, "", NOW);
    for (at, view) in View::ALL.iter().enumerate().rev() {
        let effects = press(&mut model, &(at + 1).to_string());
        let asked = match effects.as_slice() {
            [Effect::Follow(_, asked)] => asked.view,
            // It is there already.
            [] => model.view,
            other => panic!("{other:?}"),
        };
        assert_eq!(asked, *view);
    }
}

#[test]
fn what_is_said_of_a_page_that_was_left_is_not_shown() {
    let mut model = seen(View::Now);
    press(&mut model, "3");
    let late = Update::Whole(Box::new(envelope(page(View::Now))));
    model.apply(Event::Told(1, late));
    assert_eq!(model.shown, None);
    assert_eq!(model.phase, Phase::Connecting);
    let loss = Loss {
        why: "late".to_owned(),
        is_final: false,
    };
    model.apply(Event::Lost(1, loss));
    assert_eq!(model.phase, Phase::Connecting);
}

#[test]
fn a_filter_is_written_taken_and_cleared() {
    let mut model = seen(View::Actors);
    press(&mut model, "/state:fai\u{8}led");
    assert!(picture(&mut model, 80, 12).contains("/state:faled\u{2588}"));
    press(&mut model, "\u{1b}");
    assert_eq!(model.filter(), "", "Esc takes nothing");
    let effects = press(&mut model, "/q p1\n");
    let expect = Asked {
        filter: "q p1".to_owned(),
        ..model.asked()
    };
    assert_eq!(
        effects,
        [Effect::Follow(2, expect)],
        "letters are no keys there"
    );
    let refused = Loss {
        why: "`speed>3` in the filter: keys are ...".to_owned(),
        is_final: true,
    };
    model.apply(Event::Lost(2, refused));
    assert!(picture(&mut model, 80, 12).contains("keys are"));
    let effects = press(&mut model, "\u{1b}");
    assert!(matches!(&effects[..], [Effect::Follow(3, asked)] if asked.filter.is_empty()));
    model.apply(Event::Paste("ignored".to_owned()));
    press(&mut model, "/");
    model.apply(Event::Paste("node:n2\n".to_owned()));
    assert_eq!(model.input.as_deref(), Some("node:n2"));
}

#[test]
fn the_chosen_row_stays_chosen_when_it_moves() {
    let mut model = seen(View::Actors);
    press(&mut model, "jj");
    let sections = model.sections();
    let chosen = |model: &Model| {
        let sections = model.sections();
        let at = model.chosen(&sections).unwrap();
        (at, sections[0].rows[at].key.clone())
    };
    assert_eq!(sections[0].rows[0].key, "actor 1.12", "the worst first");
    assert_eq!(chosen(&model), (1, "actor 1.11".to_owned()));
    press(&mut model, "s");
    assert_eq!(model.order, Order::Rate);
    assert_eq!(chosen(&model), (0, "actor 1.11".to_owned()));
    press(&mut model, "S");
    assert_eq!(chosen(&model).0, 1);
    // It is gone: nothing is chosen.
    let delta = odeon_client::inspect::ActorsDelta {
        upsert: vec![],
        remove: vec!["1.11".to_owned()],
    };
    let update = envelope(page(View::Jobs)).map(|_| delta);
    let number = match press(&mut model, "r").as_slice() {
        [Effect::Follow(number, _)] => *number,
        other => panic!("{other:?}"),
    };
    model.apply(Event::Told(number, Update::Actors(Box::new(update))));
    assert_eq!(model.chosen(&model.sections()), None);
}

#[test]
fn who_is_not_heard_is_asked_again_later_and_later() {
    let mut model = seen(View::Now);
    let (mut number, mut now) = (1, NOW);
    for wait in [500.0, 1_000.0, 2_000.0, 4_000.0, 8_000.0, 8_000.0] {
        let loss = Loss {
            why: "Connection refused".to_owned(),
            is_final: false,
        };
        model.apply(Event::Lost(number, loss));
        let shown = picture(&mut model, 100, 20);
        let is_said = shown.contains("stale for") && shown.contains("Connection refused");
        assert!(is_said, "{shown}");
        assert!(shown.contains("rl-sums"), "what was seen stays: {shown}");
        assert_eq!(model.apply(Event::Tick(now + wait - 1.0)), []);
        now += wait;
        let effects = model.apply(Event::Tick(now));
        let [Effect::Follow(next, _)] = effects.as_slice() else {
            panic!("{wait}: {effects:?}");
        };
        number = *next;
        assert_eq!(model.apply(Event::Tick(now)), [], "it is asked once");
    }
    assert!(picture(&mut model, 100, 20).contains("stale for 23 s"));
    model.apply(Event::Told(
        number,
        Update::Whole(Box::new(envelope(page(View::Now)))),
    ));
    assert_eq!(model.phase, Phase::Live);
}

#[test]
fn a_paused_page_stands_and_its_age_too() {
    let mut model = seen(View::Events);
    assert_eq!(press(&mut model, "p"), [Effect::Leave]);
    let before = picture(&mut model, 100, 12);
    model.apply(Event::Tick(NOW + 60_000.0));
    assert_eq!(picture(&mut model, 100, 12), before);
    // Another page is shown as it is at that moment.
    let effects = press(&mut model, "1");
    let [Effect::Follow(number, _)] = effects.as_slice() else {
        panic!("{effects:?}");
    };
    let page = Update::Whole(Box::new(envelope(page(View::Now))));
    assert_eq!(model.apply(Event::Told(*number, page)), [Effect::Leave]);
    assert!(matches!(
        press(&mut model, "p").as_slice(),
        [Effect::Follow(..)]
    ));
}

#[test]
fn an_actor_is_opened_told_of_and_asked_for_again() {
    let mut model = seen(View::Actors);
    let effects = press(&mut model, "jj\n");
    assert_eq!(effects, [Effect::Look("1.11".to_owned())]);
    model.apply(Event::Detail("1.11".to_owned(), Ok(Box::new(detail()))));
    for (width, height) in [(120, 40), (60, 40)] {
        let shown = picture(&mut model, width, height);
        for words in [
            "trainer",
            "rollout-0 to Collect, 8 s",
            "under run",
            "Step 88, 1 failed",
            "handled in p50 120 \u{b5}s, p99 4.00 ms",
            "\u{2717} 1 after 30 s: out of memory",
            "because asked 12 GiB",
            "2 actors below it",
        ] {
            assert!(shown.contains(words), "{words}: {shown}");
        }
    }
    model.apply(Event::Tick(NOW + 1_500.0));
    let again = Update::Whole(Box::new(envelope(page(View::Actors))));
    let effects = model.apply(Event::Told(1, again));
    assert_eq!(effects, [Effect::Look("1.11".to_owned())]);
    model.apply(Event::Key(Key::Right));
    assert_eq!(
        model.apply(Event::Detail("1.11".to_owned(), Err("late".to_owned()))),
        []
    );
    assert!(
        !picture(&mut model, 120, 40).contains("late"),
        "it is of another"
    );
    press(&mut model, "\u{1b}");
    assert_eq!(model.panel, None);
}

#[test]
fn rows_lead_to_more_of_them_or_to_another_page() {
    let mut model = seen(View::Events);
    press(&mut model, "j\n");
    let shown = picture(&mut model, 120, 20);
    assert!(shown.contains("because free 3 GiB"), "{shown}");
    let mut model = seen(View::Cluster);
    let effects = press(&mut model, "j\n");
    assert!(matches!(&effects[..], [Effect::Follow(_, asked)]
        if asked.view == View::Actors && asked.filter == "node:head"));
    let mut model = seen(View::Jobs);
    press(&mut model, "\n");
    let shown = picture(&mut model, 120, 20);
    assert!(shown.contains("my_job --steps '1 0'"), "{shown}");
    assert!(
        shown.contains("head: too few devices; asked 4, free 1"),
        "{shown}"
    );
    let mut model = seen(View::Now);
    assert_eq!(press(&mut model, "\n"), [Effect::Look("1.12".to_owned())]);
}

#[test]
fn events_that_come_stand_at_the_top() {
    let mut model = seen(View::Events);
    let fresh = serde_json::from_value(event(3, "warning", "begun again", &[])).unwrap();
    let more = envelope(page(View::Jobs)).map(|_| Events {
        events: vec![fresh],
    });
    model.apply(Event::Told(1, Update::Events(Box::new(more))));
    let shown = picture(&mut model, 100, 12);
    let rows: Vec<_> = shown.lines().skip(3).take(3).collect();
    assert!(rows[0].contains("begun again"), "{shown}");
    assert!(rows[1].contains("out of device memory"), "{shown}");
}

#[test]
fn a_state_is_told_without_colours_too() {
    let mut model = seen(View::Actors);
    let shown = picture(&mut model, 120, 12);
    for words in [
        "\u{2717} failed",
        "\u{25b6} busy",
        "\u{25d0} waiting",
        "\u{25cb} idle",
    ] {
        assert!(shown.contains(words), "{words}: {shown}");
    }
    let area = ratatui::layout::Rect::new(0, 0, 120, 12);
    let mut buffer = ratatui::buffer::Buffer::empty(area);
    draw::draw(&model, Colours::None, area, &mut buffer);
    let is_plain =
        |cell: &ratatui::buffer::Cell| [cell.fg, cell.bg] == [ratatui::style::Color::Reset; 2];
    assert!(buffer.content().iter().all(is_plain));
    assert_eq!(draw::lines_of(&buffer), shown);
}

#[test]
fn names_do_not_steer_the_terminal() {
    let shown = picture(&mut seen(View::Actors), 160, 12);
    assert!(shown.contains("a \u{fffd}[31mname\u{fffd}"), "{shown}");
    assert!(!shown.contains('\u{1b}'));
}

#[test]
fn help_lists_the_keys_and_the_next_key_closes_it() {
    let mut model = seen(View::Now);
    press(&mut model, "?");
    assert!(picture(&mut model, 80, 24).contains("filter: state:failed"));
    let small = picture(&mut model, 40, 12);
    for told in ["another page", "filter: state:failed", "quit"] {
        assert!(small.contains(told), "{small}");
    }
    assert!(!small.contains('\u{2026}'), "nothing is cut: {small}");
    assert_eq!(press(&mut model, "3"), []);
    assert_eq!(model.view, View::Now);
    assert_eq!(press(&mut model, "?q"), [Effect::Quit]);
    assert_eq!(model.apply(Event::Key(Key::Control('c'))), [Effect::Quit]);
}

#[test]
fn a_page_that_is_printed_has_all_its_rows() {
    let mut model = seen(View::Actors);
    model.apply(Event::Size(80, 5));
    let text = draw::text(&model, 160);
    for row in actors() {
        assert!(text.contains(&row.id), "{}: {text}", row.id);
    }
}

fn keys() -> impl Strategy<Value = Key> {
    let letters = proptest::sample::select("1234567/?sSapr hjklgGx".chars().collect::<Vec<_>>());
    prop_oneof![
        8 => letters.prop_map(Key::Char),
        1 => any::<char>().prop_map(Key::Char),
        6 => proptest::sample::select(vec![
            Key::Enter, Key::Escape, Key::Backspace, Key::Tab, Key::BackTab, Key::Up, Key::Down,
            Key::Left, Key::Right, Key::PageUp, Key::PageDown, Key::Home, Key::End,
            Key::Control('u'),
        ]),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(64) })]

    /// Whatever is pressed, heard or lost, and however large the terminal is.
    #[test]
    fn no_key_and_no_size_ends_it(
        steps in proptest::collection::vec((keys(), 0_u16..180, 0_u16..50, 0_u8..8), 1..40),
    ) {
        let mut model = Model::new(View::Now, "", NOW);
        let mut number = 0;
        let mut effects = vec![model.follow()];
        for (at, (key, width, height, chance)) in steps.into_iter().enumerate() {
            let now = NOW + 400.0 * at as f64;
            effects.extend(model.apply(Event::Tick(now)));
            effects.extend(model.apply(Event::Key(key)));
            for effect in std::mem::take(&mut effects) {
                let told = match effect {
                    Effect::Follow(next, asked) => {
                        number = next;
                        Event::Told(next, Update::Whole(Box::new(envelope(page(asked.view)))))
                    }
                    Effect::Look(id) => Event::Detail(id, Ok(Box::new(detail()))),
                    Effect::Leave => continue,
                    Effect::Quit => return Ok(()),
                };
                if chance > 0 {
                    effects.extend(model.apply(told));
                }
            }
            if chance == 1 {
                let loss = Loss { why: "gone".to_owned(), is_final: at % 2 == 0 };
                effects.extend(model.apply(Event::Lost(number, loss)));
            }
            let shown = picture(&mut model, width, height);
            for line in shown.lines() {
                prop_assert!(super::rows::width(line) <= usize::from(width), "{}", line);
            }
        }
    }
}
