//! Live pages: what is seen now, and then what has changed, as events of one response.
//!
//! A page is sent again at most four times a second, and only what has changed of it.

use std::collections::HashSet;
use std::convert::Infallible;
use std::time::Duration;

use axum::response::sse::{Event, KeepAlive, Sse};
use futures::Stream;
use futures::stream;
use odeon::{ActorId, Clock};
use odeon_client::inspect as told;
use odeon_observe::Viewer;
use odeon_observe::filter::Filter;
use serde::Serialize;
use tokio::sync::watch;

use super::inspection::Inspect;
use super::refused::Refused;
use super::view::Asked;

/// The shortest time between two changes of a page.
const PAUSE: Duration = Duration::from_millis(250);
/// A page that does not change is sent again after this, so that its age is seen to be small.
const REST: Duration = Duration::from_secs(2);
/// The interval at which somebody who hears nothing is told that the stream lives.
const HEARTBEAT: Duration = Duration::from_secs(5);

/// Somebody's live page.
struct Live {
    inspect: Inspect,
    asked: Asked,
    filter: Filter,
    changes: watch::Receiver<u64>,
    /// Dropped when they go.
    _viewer: Viewer,
    sent: Option<Sent>,
    /// A recording that goes back is another one, of which they have nothing.
    epoch: u64,
}

/// The state that they have.
#[derive(Default)]
struct Sent {
    /// The change of the actors that they know of, and which of them they have.
    change: u64,
    actors: HashSet<ActorId>,
    event: u64,
}

/// Opens a live page.
pub(super) fn open(
    inspect: Inspect,
    asked: Asked,
) -> Result<Sse<impl Stream<Item = Result<Event, Infallible>>>, Refused> {
    let filter = match asked.view.as_str() {
        "actors" => Filter::parse(&asked.filter)?,
        _ => Filter::default(),
    };
    // What cannot be shown is said at once.
    inspect.page(&asked)?;
    let viewer = inspect.observer.viewer().ok_or(Refused::TooMany)?;
    let live = Live {
        changes: inspect.observer.changes(),
        epoch: inspect.observer.epoch(),
        inspect,
        asked,
        filter,
        _viewer: viewer,
        sent: None,
    };
    let events = stream::unfold(live, |mut live| async {
        let event = live.next().await?;
        Some((Ok(event), live))
    });
    let alive = KeepAlive::new().interval(HEARTBEAT).text("alive");
    Ok(Sse::new(events).keep_alive(alive))
}

impl Live {
    /// The next event; nothing when the observer is gone.
    async fn next(&mut self) -> Option<Event> {
        loop {
            if self.sent.is_some() {
                Clock::sleep(PAUSE).await;
                let rest = Clock::timeout(REST, self.changes.changed()).await;
                if matches!(rest, Some(Err(_))) {
                    return None;
                }
            }
            self.changes.mark_unchanged();
            let epoch = self.inspect.observer.epoch();
            if std::mem::replace(&mut self.epoch, epoch) != epoch {
                self.sent = None;
            }
            let event = match (&self.sent, self.asked.view.as_str()) {
                (None, "actors") => self.actors(),
                (None, "events") => self.events(),
                (Some(_), "actors") => self.changed_actors(),
                (Some(_), "events") => self.new_events(),
                _ => self.whole(),
            };
            if event.is_some() {
                return event;
            }
        }
    }

    /// The whole page: small, and its age and head are always others.
    fn whole(&mut self) -> Option<Event> {
        let page = self.inspect.page(&self.asked).ok()?;
        self.sent = Some(Sent::default());
        Some(self.event("snapshot", page.to_string()))
    }

    fn actors(&mut self) -> Option<Event> {
        let (change, ids, page) = self.inspect.shown(|shown| {
            let page = shown.actors_page(&self.asked).ok()?;
            let ids: HashSet<String> = page.0.rows.iter().map(|row| row.id.clone()).collect();
            let ids = shown
                .seen
                .actors()
                .iter()
                .map(odeon_observe::actor::Actor::id)
                .filter(|id| ids.contains(&id.to_string()))
                .collect();
            Some((shown.seen.actors().change(), ids, page))
        })?;
        let envelope = self.inspect.envelope(page);
        self.sent = Some(Sent {
            change,
            actors: ids,
            event: 0,
        });
        self.json("snapshot", &envelope)
    }

    fn changed_actors(&mut self) -> Option<Event> {
        if !self.asked.group.is_empty() {
            return self.actors();
        }
        let mut sent = self.sent.take()?;
        let (filter, most) = (&self.filter, self.asked.rows());
        let (change, delta) = self.inspect.shown(|shown| {
            let delta = shown.actors_delta(filter, most, &mut sent.actors, sent.change);
            (shown.seen.actors().change(), delta)
        });
        let Some(delta) = delta else {
            // Too long away: all anew.
            return self.actors();
        };
        sent.change = change;
        self.sent = Some(sent);
        let envelope = self.inspect.envelope(delta);
        self.json("delta", &envelope)
    }

    fn events(&mut self) -> Option<Event> {
        let (page, last) = self
            .inspect
            .shown(|shown| (shown.events_page(&self.asked), shown.seen.events().told()));
        self.sent = Some(Sent {
            event: last,
            ..Sent::default()
        });
        let envelope = self.inspect.envelope(page);
        self.json("snapshot", &envelope)
    }

    fn new_events(&mut self) -> Option<Event> {
        let sent = self.sent.as_mut()?;
        let (events, last, all) = self.inspect.shown(|shown| {
            let events = shown.seen.events();
            let told = shown.events_after(sent.event, &self.asked.filter);
            (told, events.told(), events.iter().count())
        });
        sent.event = last;
        let shown = events.len();
        let envelope = self.inspect.envelope((told::Events { events }, shown, all));
        self.json("append", &envelope)
    }

    fn json<T: Serialize>(&self, name: &str, envelope: &told::Envelope<T>) -> Option<Event> {
        let text = serde_json::to_string(envelope).ok()?;
        Some(self.event(name, text))
    }

    fn event(&self, name: &str, text: String) -> Event {
        let observer = &self.inspect.observer;
        let seq = observer.read(odeon_observe::ClusterView::seq);
        let id = format!("{:x}-{seq}", observer.epoch());
        Event::default().event(name).id(id).data(text)
    }
}
