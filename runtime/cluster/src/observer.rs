//! The view that a daemon has of its cluster: its own node, and what the others show when they are
//! asked.
//!
//! A voter looks all the time, so that there is a history when somebody asks for it. Another node does
//! while somebody looks on there. Each node keeps what a subscriber has seen of it; an answer that got
//! lost has it begin anew.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;
use odeon::inspect::{NodeSight, Watch};
use odeon::{Clock, Failure, Later, Ref, System, Timestamp, codec};
use odeon_observe::cluster_view::{LowDisk, RefusedNode, WaitingJob};
use odeon_observe::detectors::left_nodes;
use odeon_observe::event::{Event, EventKind, Severity, Subject};
use odeon_observe::{Date, Observer, here};
use parking_lot::Mutex;

use crate::catalog::Catalog;
use crate::controller::{Rules, waits};
use crate::history::History;
use crate::job::{JobId, State};
use crate::left_nodes::to_refuse;
use crate::local_only::LocalOnly;
use crate::node_directory;
use crate::tables::{CHECKED, CatalogNews, LET_BACK, NodeRow, NodeState, REFUSED};
use crate::unix::Unix;

/// The longest time that processes of a node may take to show themselves.
const PROCESS_PATIENCE: Duration = Duration::from_millis(700);
/// The longest time that a node may take.
const NODE_PATIENCE: Duration = Duration::from_secs(2);
/// Subscribers that a node keeps apart.
const ONLOOKERS_MAX: usize = 8;
/// The time for which it remembers one that stays away.
const ABSENCE_MAX: Duration = Duration::from_secs(60);
/// Looks without a pause, when there is more to see.
const ROUNDS_MAX: usize = 16;
/// The pause before a node that does not vote asks again whether somebody looks on.
const REST: Duration = Duration::from_millis(250);
/// The pause between two looks at why jobs wait: in a long queue that takes a while to work out.
const QUEUE_PAUSE: Duration = Duration::from_secs(2);
/// Bytes of one answer; a message has room for a little more.
const SIGHT_BYTES_MAX: usize = 3 << 20;

fn name_of(node: &str) -> String {
    format!("view@{node}")
}

/// The actor of a node that shows it to others.
#[derive(Debug)]
pub(crate) struct View {
    system: System,
    subscribers: Arc<Mutex<BTreeMap<u64, Subscriber>>>,
}

/// Somebody at another node.
#[derive(Debug)]
struct Subscriber {
    watch: Arc<tokio::sync::Mutex<Watch>>,
    answers: u64,
    last: Timestamp,
}

#[odeon::actor(name = "odeon.cluster.View")]
impl View {
    async fn start(system: LocalOnly<System>) -> Result<Self, Failure> {
        let system = system.take()?;
        Ok(Self {
            system,
            subscribers: Arc::default(),
        })
    }

    /// The part of the view that is new to this subscriber, who has had so many answers.
    #[handler]
    fn look(&mut self, subscriber: u64, seen: u64) -> Later<Result<Vec<u8>, String>> {
        let watch = self.watch_of(subscriber, seen);
        Later::new(async move {
            let sight = watch.lock().await.look(PROCESS_PATIENCE).await;
            encoded(sight)
        })
    }
}

impl View {
    fn watch_of(&self, subscriber: u64, seen: u64) -> Arc<tokio::sync::Mutex<Watch>> {
        let now = Clock::now();
        let mut subscribers = self.subscribers.lock();
        subscribers.retain(|_, it| now.since(it.last) < ABSENCE_MAX);
        let known = subscribers
            .remove(&subscriber)
            .filter(|it| it.answers == seen);
        while subscribers.len() >= ONLOOKERS_MAX {
            let longest = subscribers.iter().min_by_key(|(_, it)| it.last);
            let Some(longest) = longest.map(|(number, _)| *number) else {
                break;
            };
            subscribers.remove(&longest);
        }
        let watch = match known {
            Some(known) => known.watch,
            None => Arc::new(self.system.admin().watch().into()),
        };
        let next = Subscriber {
            watch: Arc::clone(&watch),
            answers: seen + 1,
            last: now,
        };
        subscribers.insert(subscriber, next);
        watch
    }
}

/// A look as it travels. What does not fit into a message is left out, and counted as lost: spans first, and then the
/// numbers of the processes that show most of them.
fn encoded(mut sight: NodeSight) -> Result<Vec<u8>, String> {
    let encode = |sight: &NodeSight| codec::encode(sight).map_err(|error| error.to_string());
    let bytes = encode(&sight)?;
    if bytes.len() <= SIGHT_BYTES_MAX {
        return Ok(bytes);
    }
    for process in &mut sight.processes {
        let shown = &mut process.sight;
        shown.spans_lost += shown.spans.len() as u64;
        shown.spans.clear();
    }
    loop {
        let bytes = encode(&sight)?;
        let shown = sight.processes.iter_mut().map(|process| &mut process.sight);
        let most = shown.max_by_key(|shown| shown.points.len());
        match most {
            Some(shown) if bytes.len() > SIGHT_BYTES_MAX && !shown.points.is_empty() => {
                shown.points_lost += shown.points.len() as u64;
                shown.points_from += shown.points.len() as u64;
                shown.points.clear();
            }
            _ => return Ok(bytes),
        }
    }
}

/// Shows this node to others.
pub(crate) async fn serve(system: &System, node: &str) -> Result<(), Failure> {
    let failed = |error: &dyn std::fmt::Display| Failure::error(error);
    let view = system.spawn::<View>(LocalOnly::new(system.clone())).await;
    let view: Ref<View> = view.map_err(|error| failed(&error))?;
    let named = node_directory::register(system, &name_of(node), view).await;
    named.map_err(|error| failed(&error)).map(drop)
}

/// Looks at the cluster, until the future is dropped.
pub(crate) async fn follow(
    observer: Observer,
    system: System,
    catalog: Catalog,
    node: String,
    rules: Rules,
    mut history: Option<History>,
) {
    let mut own = system.admin().watch();
    let mut jobs = JobNews::new(&observer);
    let mut queue_seen = None;
    let mut others = Others {
        subscriber: rand::random(),
        seen: BTreeMap::new(),
    };
    loop {
        if !catalog.is_voter() && !observer.is_watched() {
            Clock::sleep(REST).await;
            continue;
        }
        for round in 1..=ROUNDS_MAX {
            let (here_seen, there_seen) = tokio::join!(
                own.look(PROCESS_PATIENCE),
                others.look(&system, &catalog, &node)
            );
            let mut more = here_seen.more(round);
            let dates = here();
            observer.look(here_seen, dates, None);
            let clocks = clocks(&system);
            for sight in there_seen {
                more |= sight.more(round);
                let clock = clocks.get(&sight.process).copied();
                observer.look(sight, dates, clock);
            }
            if !more {
                break;
            }
        }
        jobs.note(&observer, &catalog);
        let now = Clock::now();
        if queue_seen.is_none_or(|seen| now.since(seen) >= QUEUE_PAUSE) {
            queue_seen = Some(now);
            observer.jobs_waiting(&jobs_waiting(&catalog, &rules));
        }
        let known = catalog.nodes();
        observer.disks_low(&low_disks(&observer, &known));
        observer.nodes_refused(&refused_nodes(&known));
        let names: BTreeSet<_> = known.iter().map(|row| row.spec.name.as_str()).collect();
        let gone = known
            .iter()
            .filter(|row| !matches!(row.state, NodeState::Up));
        gone.for_each(|row| {
            let lost = matches!(row.state, NodeState::Lost { .. });
            observer.node_gone(&row.spec.name, lost);
        });
        let strange = observer.read(|seen| {
            let names_seen = seen.nodes().map(|it| it.name.clone());
            // The catalog may not have heard of this node yet.
            let strange = names_seen.filter(|it| *it != node && !names.contains(it.as_str()));
            strange.collect::<Vec<_>>()
        });
        strange.iter().for_each(|name| observer.forget_node(name));
        observer.tick();
        if catalog.leads() {
            for fact in to_refuse(&observer.read(left_nodes), &known) {
                // It is seen again at the next look.
                if let Err(error) = catalog.write_for(fact).await {
                    tracing::warn!(%error, "a node that a job has left is not refused");
                }
            }
        }
        if let Some(history) = &mut history {
            history.keep(&observer).await;
        }
        Clock::sleep(observer.pause()).await;
    }
}

/// Nodes whose disk is nearly full, each since it was seen first.
fn low_disks(observer: &Observer, nodes: &[NodeRow]) -> Vec<LowDisk> {
    let up = nodes.iter().filter(|row| row.state == NodeState::Up);
    let low = up.filter_map(|row| {
        let (node, why) = (row.spec.name.clone(), row.spec.low_disk.clone()?);
        let since = observer.read(|seen| {
            let mut known = seen.low_disks().iter();
            known
                .find(|it| it.node == node && it.why == why)
                .map(|it| it.since)
        });
        let since = since.unwrap_or_else(|| Date::from_ms(Unix::now().0 as f64));
        Some(LowDisk { node, since, why })
    });
    low.collect()
}

/// Nodes that are refused.
fn refused_nodes(nodes: &[NodeRow]) -> Vec<RefusedNode> {
    let refused = nodes.iter().filter_map(|row| {
        let ban = row.refused.as_ref()?;
        Some(RefusedNode {
            node: row.spec.name.clone(),
            since: Date::from_ms(ban.since.0 as f64),
            why: format!("{}: {}", ban.by, ban.reason()),
        })
    });
    refused.collect()
}

/// Jobs that wait for their place, and why; the first in line first. That no more jobs of an array run than
/// may at once is as it was wanted.
fn jobs_waiting(catalog: &Catalog, rules: &Rules) -> Vec<WaitingJob> {
    let waiting = catalog.read(|tables| {
        let why = waits(tables, rules, Unix::now());
        let mut queue: Vec<_> = tables.living_jobs().collect();
        queue.sort_by_key(|job| (Reverse(job.spec.priority), job.id));
        let jobs = queue.into_iter().filter_map(|job| {
            let State::Waiting { since, .. } = &job.state else {
                return None;
            };
            let why = why.get(&job.id)?.clone();
            let is_wanted = job.array.as_ref().is_some_and(|array| array.is_full(&why));
            (!is_wanted).then(|| WaitingJob {
                job: job.id.to_string(),
                since: Date::from_ms(since.unwrap_or(job.submitted).0 as f64),
                why,
            })
        });
        jobs.collect()
    });
    waiting.unwrap_or_default()
}

/// The events of jobs in the catalog, and of nodes that are refused and let back, as far as they were noted.
struct JobNews {
    /// The last of it.
    last: Option<(Date, String)>,
}

impl JobNews {
    /// Behind what an earlier observer has noted.
    fn new(observer: &Observer) -> Self {
        let last = observer.read(|seen| {
            let mut events = seen.events().iter().rev();
            let last = events.find(|event| is_from_catalog(event));
            last.map(key_of)
        });
        Self { last }
    }

    fn note(&mut self, observer: &Observer, catalog: &Catalog) {
        let told = catalog.read(|tables| {
            let of_jobs = tables.news.iter().filter(|news| is_told(news));
            // By what was noted and not by the date: the clocks of those who write may differ.
            let mut late: Vec<_> = of_jobs
                .rev()
                .map(event_of)
                .take_while(|event| Some(key_of(event)) != self.last)
                .collect();
            late.reverse();
            late
        });
        let told = told.unwrap_or_default();
        if let Some(last) = told.last() {
            self.last = Some(key_of(last));
            told.into_iter().for_each(|event| observer.happened(event));
        }
    }
}

fn key_of(event: &Event) -> (Date, String) {
    (event.at, event.sentence.clone())
}

fn is_of_job(news: &CatalogNews) -> bool {
    news.about.starts_with('j') && news.about.parse::<JobId>().is_ok()
}

/// Returns true of news that a node is refused or let back.
fn is_of_refusal(news: &CatalogNews) -> bool {
    !is_of_job(news)
        && [REFUSED, CHECKED, LET_BACK]
            .iter()
            .any(|it| news.what.starts_with(&format!("{it} by ")))
}

fn is_told(news: &CatalogNews) -> bool {
    is_of_job(news) || is_of_refusal(news)
}

/// Returns true of an event that was news of the catalog.
fn is_from_catalog(event: &Event) -> bool {
    let of_refusal = || {
        let Some(Subject::Node(node)) = &event.subject else {
            return false;
        };
        let says = |it: &&str| {
            event
                .sentence
                .starts_with(&format!("node {node}: {it} by "))
        };
        [REFUSED, CHECKED, LET_BACK].iter().any(says)
    };
    event.kind == EventKind::Job || event.kind == EventKind::Node && of_refusal()
}

fn event_of(news: &CatalogNews) -> Event {
    if is_of_refusal(news) {
        return Event {
            seq: 0,
            at: Date::from_ms(news.at.0 as f64),
            kind: EventKind::Node,
            severity: match news.what.starts_with(LET_BACK) {
                true => Severity::Info,
                false => Severity::Warning,
            },
            sentence: format!("node {}: {}", news.about, news.what),
            subject: Some(Subject::Node(news.about.clone())),
            name: None,
            rule: None,
            chain: vec![],
            since: None,
        };
    }
    let bad = ["failed", "lost", "refused"];
    // At its begin: what follows may be anybody's words, as the name of a job.
    let is_bad = bad.iter().any(|word| news.what.starts_with(word));
    Event {
        seq: 0,
        at: Date::from_ms(news.at.0 as f64),
        kind: EventKind::Job,
        severity: if is_bad {
            Severity::Error
        } else {
            Severity::Info
        },
        sentence: format!("job {}: {}", news.about, news.what),
        subject: Some(Subject::Job(news.about.clone())),
        name: None,
        rule: None,
        chain: vec![],
        since: None,
    }
}

/// By how much clocks of neighbours are ahead, and how sure that is.
fn clocks(system: &System) -> BTreeMap<odeon::ProcessId, (i64, Duration)> {
    let links = system.admin().links().into_iter();
    let known = links.filter_map(|link| {
        let error = link.offset_error?;
        Some((link.peer, (link.clock_offset?, error)))
    });
    known.collect()
}

/// The other nodes, as far as they were seen.
struct Others {
    subscriber: u64,
    /// Number of answers that have come from each.
    seen: BTreeMap<String, u64>,
}

impl Others {
    async fn look(&mut self, system: &System, catalog: &Catalog, own: &str) -> Vec<NodeSight> {
        let nodes = catalog.nodes().into_iter();
        let up = nodes.filter(|row| matches!(row.state, NodeState::Up));
        let names: Vec<_> = up.map(|row| row.spec.name).filter(|it| it != own).collect();
        self.seen.retain(|name, _| names.contains(name));
        let subscriber = self.subscriber;
        let looks = names.into_iter().map(|name| {
            let seen = self.seen.get(&name).copied().unwrap_or(0);
            async move {
                let sight = ask(system, &name, subscriber, seen).await;
                (name, sight)
            }
        });
        let mut sights = vec![];
        for (name, sight) in join_all(looks).await {
            match sight {
                Ok(sight) => {
                    *self.seen.entry(name).or_default() += 1;
                    sights.push(sight);
                }
                // People see that nothing comes from it.
                Err(why) => tracing::debug!(node = name, why, "a node did not show itself"),
            }
        }
        sights
    }
}

async fn ask(system: &System, node: &str, subscriber: u64, seen: u64) -> Result<NodeSight, String> {
    let view: Ref<View> = node_directory::reach(system, node, &name_of(node))
        .await
        .map_err(|unreached| unreached.to_string())?;
    let asked = view.ask(Look { subscriber, seen }).timeout(NODE_PATIENCE);
    let bytes = asked.await.map_err(|error| error.to_string())??;
    codec::decode(&bytes).map_err(|error| error.to_string())
}
