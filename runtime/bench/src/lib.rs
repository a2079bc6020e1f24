//! Benchmarks of the runtime, each in the same run as its floor: the bare part that does the same
//! work without the runtime (kameo for local messages, a framed echo over the same socket for
//! remote ones, `memcpy` for bytes).
//!
//! Floor and runtime take turns, round by round, so that a noisy machine disturbs both; a row shows
//! their medians and the median of the rounds' ratios.
//!
//! A program that calls [`run`] must call [`serve_if_child`] first in `main`: workers, other nodes
//! and the floor's echo servers are further processes of its executable.
//!
//! # Files
//!
//! | file | holds |
//! | --- | --- |
//! | `subject`, `far`, `nodes` | the actor that is measured; processes at the far end; two nodes that are linked over QUIC |
//! | `floor`, `mux`, `bare_quinn`, `alone` | the framed echo that is the floor of remote asks; many exchanges over one stream; a quinn connection without the runtime; a runtime of one thread beside that of the runs |
//! | `pace` | how long an exchange takes, and how many end in a second |
//! | `local`, `unix`, `quic` | asks and tells: in a process, over a unix socket, over QUIC |
//! | `spawn`, `bulk`, `together`, `trace`, `timers` | spawning; blobs; all-reduce; the cost of being looked at; timers of actors |
//! | `turns`, `row` | rounds, in which subjects take turns; one line of the report, and how rounds make it |

mod alone;
mod bare_quinn;
mod bulk;
mod far;
mod floor;
mod local;
mod mux;
mod nodes;
mod pace;
mod quic;
mod row;
mod spawn;
mod subject;
mod timers;
mod together;
mod trace;
mod turns;
mod unix;

pub use row::{Filter, Row, Target, json_lines, table};
pub use subject::job;

/// Runs every measurement whose name the filter lets through.
///
/// # Errors
/// A process or a runtime could not be started, or an ask failed.
pub fn run(filter: &Filter) -> anyhow::Result<Vec<Row>> {
    let mut rows = vec![];
    for (group, measure) in GROUPS {
        if filter.wants(group) {
            let runtime = tokio::runtime::Builder::new_multi_thread()
                .enable_all()
                .build()?;
            rows.extend(runtime.block_on(measure(filter.rounds))?);
            runtime.shutdown_background();
        }
    }
    Ok(rows)
}

type Measure = fn(usize) -> futures::future::BoxFuture<'static, anyhow::Result<Vec<Row>>>;

const GROUPS: &[(&str, Measure)] = &[
    ("local", |rounds| Box::pin(local::measure(rounds))),
    ("unix", |rounds| Box::pin(unix::measure(rounds))),
    ("quic", |rounds| Box::pin(quic::measure(rounds))),
    ("blob", |rounds| Box::pin(bulk::measure(rounds))),
    ("collective", |rounds| Box::pin(together::measure(rounds))),
    ("spawn", |rounds| Box::pin(spawn::measure(rounds))),
    ("trace", |rounds| Box::pin(trace::measure(rounds))),
    ("timer", |rounds| Box::pin(timers::measure(rounds))),
];

/// The names of the groups that a [`Filter`] chooses from.
pub fn groups() -> impl Iterator<Item = &'static str> {
    GROUPS.iter().map(|(name, _)| *name)
}

/// In a process that a measurement started: does its work and exits. Elsewhere: returns at once.
pub fn serve_if_child() {
    match std::env::var(far::ROLE).as_deref() {
        Ok("worker") => job().serve_if_worker(),
        Ok(bare_quinn::ECHO) => far::serve(far::two_threads, bare_quinn::begin_echo),
        Ok(bare_quinn::LONE_ECHO) => far::serve(far::one_thread, bare_quinn::begin_echo),
        Ok(nodes::NODE) => {
            // It starts workers, so it has to have their entry.
            job().serve_if_worker();
            far::serve(far::two_threads, nodes::begin_node);
        }
        Ok(role) => {
            if let Some(echoing) = floor::Echoing::of_role(role) {
                floor::serve(echoing);
            }
        }
        Err(_) => {}
    }
}
