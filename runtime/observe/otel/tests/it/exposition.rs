//! The text that is scraped, of a system that is made by hand, to the byte.

use odeon::inspect::{ActorView, MachineView, NodeSight, ProcessKind, ProcessSight, Sight, Usage};
use odeon::telemetry::Point;
use odeon::trace::SpanCounts;
use odeon::{ActorId, Phase, ProcessId, Timestamp};
use odeon_observe::{ClusterView, Date};
use odeon_otel::Exposition;

use crate::sights;

const NODE: ProcessId = ProcessId(0x0a);
const WORKER: ProcessId = ProcessId(0x0b);

fn actor(serial: u64, process: ProcessId, handled: u64) -> ActorView {
    ActorView {
        id: ActorId { home: NODE, serial },
        parent: ActorId::root(NODE),
        actor: "demo.Rollout".to_owned(),
        process,
        incarnation: 2,
        phase: Phase::Running,
        queued: 3,
        room: 10,
        queued_bytes: 0,
        handled,
        failed: 1,
        busy: 1_500_000_000,
        waited: 250_000_000,
        changed: Timestamp(1),
        running: None,
        devices: vec![],
    }
}

fn sight(process: ProcessId, job: &str, actors: Vec<ActorView>, points: Vec<Point>) -> Sight {
    Sight {
        hosted: actors.len() as u32,
        actors,
        spans_lost: 4,
        span_counts: SpanCounts {
            traces: 100,
            traces_kept: 10,
            recorded: 30,
            overwritten: 4,
        },
        news_lost: 2,
        points,
        dead_letters: 5,
        blob_bytes: 1 << 20,
        flow_log: None,
        ..sights::sight(process, job)
    }
}

fn process(sight: Sight, kind: ProcessKind) -> ProcessSight {
    ProcessSight {
        usage: (kind == ProcessKind::Worker).then_some(Usage {
            resident: 4096,
            cpu: Some(1.0),
        }),
        ..sights::process(sight, kind)
    }
}

/// A node with a worker, as it is after so many messages.
fn node(handled: u64, gone: bool) -> NodeSight {
    let point = Point {
        at: Timestamp(1),
        actor: ActorId {
            home: NODE,
            serial: 1,
        },
        name: "rl.reward".into(),
        value: 0.5,
        labels: vec![
            ("step".into(), 7.into()),
            ("task".into(), "say \"hi\"\n".into()),
        ],
    };
    let mut worker = sight(WORKER, "j1", vec![actor(1, WORKER, handled)], vec![point]);
    if gone {
        worker.actors = vec![];
        worker.gone = vec![ActorId {
            home: NODE,
            serial: 1,
        }];
    }
    NodeSight {
        machine: MachineView {
            cores: 4,
            cpu: Some(0.25),
            memory: 1 << 30,
            memory_used: 1 << 29,
            metrics: vec![],
        },
        ..sights::node(
            "first",
            vec![
                process(sight(NODE, "odeon", vec![], vec![]), ProcessKind::Node),
                process(worker, ProcessKind::Worker),
            ],
        )
    }
}

fn seen(handled: u64) -> ClusterView {
    let mut seen = ClusterView::default();
    let own = (Timestamp(1), Date(1_000_000_000_000));
    seen.look(node(handled, false), own, None);
    seen.tick(own.1);
    seen
}

/// `ODEON_WRITE_GOLDEN=1` writes it anew.
#[test]
fn the_text_is_the_published_one() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/exposition.txt");
    let now = Date(1_000_000_000_000);
    let text = Exposition::default().text(&seen(12), None, None, now);
    if std::env::var_os("ODEON_WRITE_GOLDEN").is_some() {
        std::fs::write(path, &text).unwrap();
    }
    let published = std::fs::read_to_string(path).unwrap_or_default();
    assert_eq!(
        published, text,
        "run it with ODEON_WRITE_GOLDEN=1 and look at what changed"
    );
    // What is not measured is not there.
    let of_node = text
        .lines()
        .filter(|line| line.contains("process=\"000000000000000a\""));
    assert!(of_node.clone().count() > 0);
    assert!(
        !of_node
            .into_iter()
            .any(|line| line.starts_with("process_memory"))
    );
}

/// SEMANTICS 74.
#[test]
fn counters_do_not_go_down_when_actors_do() {
    let handled = |text: &str| {
        let name = "odeon_actor_messages_handled_total{";
        let line = text.lines().find(|line| line.starts_with(name)).unwrap();
        line.rsplit(' ').next().unwrap().parse::<u64>().unwrap()
    };
    let exposition = Exposition::default();
    let mut seen = seen(12);
    let at = |seconds: u64| Date((1_000 + seconds) * 1_000_000_000);
    let tell = |seen: &ClusterView, seconds| exposition.text(seen, None, None, at(seconds));
    assert_eq!(handled(&tell(&seen, 0)), 12);
    seen.look(node(20, false), (Timestamp(1), at(1)), None);
    assert_eq!(handled(&tell(&seen, 1)), 20);
    seen.look(node(20, true), (Timestamp(1), at(2)), None);
    // Long after its end it is forgotten.
    for seconds in [2, 5_000] {
        seen.tick(at(seconds));
    }
    assert_eq!(seen.actors().len(), 0);
    assert_eq!(handled(&tell(&seen, 5_000)), 20);
    let other = exposition.text(&seen, Some("second"), None, at(5_000));
    assert_eq!(other, "", "what is of another node is left out");
}
