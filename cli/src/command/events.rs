//! `odeon events`: what happened in a run or in the cluster, oldest first, and what happens now.

use std::collections::HashSet;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};
use odeon::Clock;
use odeon_client::inspect::{Envelope, Event, Subject};
use odeon_client::types::News;
use odeon_client::{Asked, ClientError, Inspector, Page, Update, View};
use odeon_cluster::tables::{CHECKED, LET_BACK, REFUSED};
use odeon_cluster::unix::Unix;
use serde::Serialize;

use super::cluster::look;
use super::pages;
use super::watched::Watched;
use crate::args::EventsArgs;
use crate::figures;
use crate::inspect::{EVENT_LOG, event_log, takes_event};
use crate::print;
use crate::top::signs;
use crate::waiter::Waiter;

/// Events of one answer.
const EVENTS_MAX: usize = 2_000;
/// The interval at which a cluster is asked for what it has written down.
const NEWS_PAUSE: Duration = Duration::from_secs(1);
/// The pause after somebody did not answer: the first one, and the longest.
const AGAIN: Duration = Duration::from_millis(500);
const AGAIN_MAX: Duration = Duration::from_secs(8);

/// An event as it is written for programs.
#[derive(Serialize)]
struct Written<'a> {
    at_ms: u64,
    about: &'a str,
    what: &'a str,
    kind: &'a str,
    severity: &'a str,
    subject: Option<&'a Subject>,
    chain: &'a [String],
}

pub(crate) fn run(args: &EventsArgs) -> Result<()> {
    let watched = Watched::of(&args.look)?;
    let inspector = match (watched.inspector(), watched.run()) {
        (Err(over), Some(run)) => return past(run, over, args),
        (inspector, _) => inspector?,
    };
    let runtime = Waiter::alone()?;
    runtime.block_on(async {
        let mut teller = Teller::new(&watched, args);
        teller.before(&inspector).await?;
        match args.follow {
            true => teller.follow(inspector).await,
            false => Ok(()),
        }
    })
}

/// Tells what has happened in a run that is over, or says why nobody knows.
fn past(run: &Path, over: anyhow::Error, args: &EventsArgs) -> Result<()> {
    let told =
        event_log(run).with_context(|| format!("reading {}", run.join(EVENT_LOG[0]).display()))?;
    let Some(mut events) = told else {
        return Err(over);
    };
    let oldest = oldest(args, Unix::now().0 as f64);
    events.retain(|event| event.at >= oldest);
    tell(&events, args)?;
    if args.follow {
        print::say("the run has ended");
    }
    Ok(())
}

/// From when on events are asked for.
fn oldest(args: &EventsArgs, now: f64) -> f64 {
    let ago = args.since.map(|since| since.as_secs_f64() * 1e3);
    ago.map_or(f64::MIN, |ago| now - ago)
}

/// Tells those of these that are asked for.
fn tell(events: &[Event], args: &EventsArgs) -> Result<()> {
    for event in events {
        let is_asked = args.kind.is_empty() || args.kind.contains(&event.kind);
        if !is_asked || !takes_event(event, &args.filter) {
            continue;
        }
        match args.json {
            true => print::line(serde_json::to_string(&written(event))?)?,
            false => lines(event).into_iter().try_for_each(print::line)?,
        }
    }
    Ok(())
}

/// Tells of events, each once.
struct Teller<'a> {
    watched: &'a Watched,
    args: &'a EventsArgs,
    /// Whose numbers the next one is of, and the last event that was told.
    epoch: String,
    seq: u64,
    /// Events that the cluster has written down, as far as it was told.
    news: HashSet<(u64, String, String)>,
}

impl<'a> Teller<'a> {
    fn new(watched: &'a Watched, args: &'a EventsArgs) -> Self {
        Self {
            watched,
            args,
            epoch: String::new(),
            seq: 0,
            news: HashSet::new(),
        }
    }

    const fn is_cluster(&self) -> bool {
        matches!(self.watched, Watched::Cluster(_))
    }

    /// Tells of what has happened up to now.
    async fn before(&mut self, inspector: &Inspector) -> Result<()> {
        let mut events = vec![];
        if self.is_cluster() {
            let client = inspector.client();
            let news = look(client, || client.news()).await?;
            events.extend(self.fresh_news(news));
        }
        let asked = Asked {
            limit: Some(EVENTS_MAX),
            ..Asked::all(View::Events)
        };
        let page = inspector.page(&asked).await;
        let page = page.map_err(|error| self.watched.why_not(error))?;
        let (now, shown, total) = (page.captured_at, page.shown, page.total);
        events.extend(self.fresh(page));
        // Both are in order, each by itself.
        events.sort_by(|a, b| a.at.total_cmp(&b.at));
        let oldest = oldest(self.args, now);
        events.retain(|event| event.at >= oldest);
        tell(&events, self.args)?;
        if shown < total {
            print::say(format!(
                "{} earlier ones are kept and not shown here: see the pages (odeon ui)",
                figures::count(total - shown)
            ));
        }
        Ok(())
    }

    /// Goes on with what happens, until what is looked at has ended.
    async fn follow(&mut self, mut inspector: Inspector) -> Result<()> {
        let mut pause = AGAIN;
        loop {
            let heard = match self.listen(&inspector, &mut pause).await {
                Err(Lost::Told(error)) => return Err(error),
                Err(Lost::Heard(error)) => Err(error),
                Ok(()) => Ok(()),
            };
            let run = self.watched.run();
            if run.is_some_and(|run| !matches!(pages::find(run), Ok(Some(_)))) {
                print::say("the run has ended");
                return Ok(());
            }
            match heard {
                Err(error) if !error.is_away() => return Err(self.watched.why_not(error)),
                Err(error) => print::say(format!(
                    "{}; asking again in {}",
                    self.watched.why_not(error),
                    figures::span(pause.as_secs_f64() * 1e3)
                )),
                Ok(()) => {}
            }
            Clock::sleep(pause).await;
            pause = (2 * pause).min(AGAIN_MAX);
            // It may have begun again, elsewhere.
            inspector = match self.watched.inspector() {
                Err(_) if run.is_some() => {
                    print::say("the run has ended");
                    return Ok(());
                }
                inspector => inspector?,
            };
        }
    }

    /// Tells what a stream says, up to its end.
    async fn listen(&mut self, inspector: &Inspector, pause: &mut Duration) -> Result<(), Lost> {
        let asked = Asked {
            limit: Some(EVENTS_MAX),
            ..Asked::all(View::Events)
        };
        let mut live = inspector.live(&asked).await?;
        let mut looking = tokio::time::interval(NEWS_PAUSE);
        loop {
            tokio::select! {
                heard = live.next() => {
                    let events = match heard? {
                        None => return Ok(()),
                        Some(Update::Whole(page)) => self.fresh(*page),
                        Some(Update::Events(more)) => self.fresh(more.map(Page::Events)),
                        Some(Update::Actors(_)) => vec![],
                    };
                    *pause = AGAIN;
                    tell(&events, self.args)?;
                }
                _ = looking.tick(), if self.is_cluster() => {
                    let news = inspector.client().news().await?;
                    let news = self.fresh_news(news);
                    tell(&news, self.args)?;
                }
            }
        }
    }

    /// The events of a page that were not told yet.
    fn fresh(&mut self, page: Envelope<Page>) -> Vec<Event> {
        let Page::Events(mut page_of) = page.data else {
            return vec![];
        };
        if self.epoch != page.epoch {
            self.epoch = page.epoch;
            // Another observer goes on where the last one was, unless it has forgotten.
            let last = page_of.events.last().map_or(0, |event| event.seq);
            self.seq = self.seq.min(last);
        }
        page_of.events.retain(|event| event.seq > self.seq);
        if let Some(last) = page_of.events.last() {
            self.seq = last.seq;
        }
        if self.is_cluster() {
            // What the cluster writes down of its jobs comes with what else it does.
            let kinds = &self.args.kind;
            let has_news = kinds.is_empty() || kinds.iter().any(|kind| kind == "cluster");
            let is_told = |event: &Event| event.kind == "job" || has_news && is_of_refusal(event);
            page_of.events.retain(|event| !is_told(event));
        }
        page_of.events
    }

    /// Events that the cluster has written down since it was last asked.
    fn fresh_news(&mut self, news: Vec<News>) -> Vec<Event> {
        let known = std::mem::take(&mut self.news);
        let key = |it: &News| (it.at_ms, it.about.clone(), it.what.clone());
        self.news = news.iter().map(key).collect();
        let fresh = news.into_iter().filter(|it| !known.contains(&key(it)));
        fresh.map(of_news).collect()
    }
}

/// Why a stream is not heard any more.
enum Lost {
    /// Whoever tells does not answer.
    Heard(ClientError),
    /// Its words cannot be shown.
    Told(anyhow::Error),
}

impl From<ClientError> for Lost {
    fn from(error: ClientError) -> Self {
        Self::Heard(error)
    }
}

impl From<anyhow::Error> for Lost {
    fn from(error: anyhow::Error) -> Self {
        Self::Told(error)
    }
}

/// Returns true where a node is refused, checked or let back, which the cluster writes down, too.
fn is_of_refusal(event: &Event) -> bool {
    let node = event.subject.as_ref().filter(|_| event.kind == "node");
    let what = node.and_then(|node| {
        event
            .sentence
            .strip_prefix(&format!("node {}: ", node.name))
    });
    what.is_some_and(|what| {
        [REFUSED, CHECKED, LET_BACK]
            .iter()
            .any(|it| what.starts_with(it))
    })
}

/// An entry that the cluster has written down, as an event.
fn of_news(news: News) -> Event {
    let digits = news.about.strip_prefix('j').unwrap_or_default();
    let is_job = !digits.is_empty() && digits.chars().all(|c| c.is_ascii_digit());
    let kind = if is_job { "job" } else { "cluster" };
    let bad = ["failed", "lost", "refused"];
    let is_bad = bad.iter().any(|word| news.what.starts_with(word));
    Event {
        seq: 0,
        at: news.at_ms as f64,
        kind: kind.to_owned(),
        severity: if is_bad { "error" } else { "info" }.to_owned(),
        subject: Some(Subject {
            kind: kind.to_owned(),
            id: news.about.clone(),
            name: news.about,
        }),
        sentence: news.what,
        chain: vec![],
    }
}

fn written(event: &Event) -> Written<'_> {
    let subject = event.subject.as_ref();
    Written {
        at_ms: event.at as u64,
        about: subject.map_or("", |subject| &subject.name),
        what: &event.sentence,
        kind: &event.kind,
        severity: &event.severity,
        subject,
        chain: &event.chain,
    }
}

/// An event for people: what happened, and below it why.
fn lines(event: &Event) -> Vec<String> {
    let sign = signs::of_severity(&event.severity);
    let about = event.subject.as_ref().map_or("", |subject| &subject.name);
    let told = match event.kind.as_str() {
        "job" | "cluster" => format!("{about:<8} {}", event.sentence),
        kind => format!("{kind:<8} {}", event.sentence),
    };
    let first = format!("{}  {sign} {told}", Unix(event.at as u64));
    let because = event.chain.iter();
    let because = because.map(|cause| format!("{:>19}      because {cause}", ""));
    let lines = std::iter::once(first).chain(because);
    lines.map(|line| figures::plain(&line)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_cluster_writes_down_is_told_as_of_its_job() {
        let news = |about: &str| {
            of_news(News {
                at_ms: 1_000,
                about: about.to_owned(),
                what: "it happened".to_owned(),
            })
        };
        let kinds = ["j17", "j", "jack", "node-2"].map(|about| news(about).kind);
        assert_eq!(kinds, ["job", "cluster", "cluster", "cluster"]);
        assert_eq!(
            lines(&news("j17")),
            ["1970-01-01 00:00:01    j17      it happened"]
        );
    }

    #[test]
    fn a_failure_has_its_causes_below_it() {
        let event = Event {
            seq: 1,
            at: 0.0,
            kind: "failure".to_owned(),
            severity: "error".to_owned(),
            subject: None,
            sentence: "worker: out of memory".to_owned(),
            chain: vec!["asked 12 GiB".to_owned(), "3 GiB\u{1b}[2J free".to_owned()],
        };
        let lines = lines(&event);
        assert!(
            lines[0].ends_with("\u{2717} failure  worker: out of memory"),
            "{lines:?}"
        );
        assert!(lines[1].ends_with("because asked 12 GiB"), "{lines:?}");
        assert!(!lines[2].contains('\u{1b}'), "{lines:?}");
    }
}
