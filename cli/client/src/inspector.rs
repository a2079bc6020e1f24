//! Looking on: the routes below `/api/v1/inspect`, of a cluster or of one run.

use std::time::Duration;

use serde::de::DeserializeOwned;

use crate::client::{Client, ClientError};
use crate::connection::Connection;
use crate::inspect::{
    About, ActorDetail, Envelope, JobDetail, Logs, SpanDetail, Spans, Spread, Trace, Traces,
};
use crate::page::{Asked, Page, Update, View};
use crate::route::Route;
use crate::sse::{Event, Parser};

/// Looks at what runs. Clones share the connection.
#[derive(Clone, Debug)]
pub struct Inspector {
    client: Client,
}

/// The time that a page may take.
const PATIENCE: Duration = Duration::from_secs(15);
/// A stream says something every five seconds; after so long without it is taken for dead.
const SILENCE_MAX: Duration = Duration::from_secs(12);

impl Inspector {
    /// Looks at what a connection leads to.
    ///
    /// # Errors
    /// The connection cannot be meant.
    pub fn new(connection: Connection) -> Result<Self, ClientError> {
        let client = Client::new(connection)?;
        Ok(Self { client })
    }

    /// The connection, for what is no inspection.
    #[must_use]
    pub const fn client(&self) -> &Client {
        &self.client
    }

    async fn get<T: DeserializeOwned>(&self, route: Route) -> Result<T, ClientError> {
        self.client.look(route, PATIENCE).await
    }

    /// The system that can be looked at, and the bounds on what is kept of it.
    ///
    /// # Errors
    /// See [`ClientError`]; so do all methods below.
    #[odeon_macros::boxed]
    pub async fn about(&self) -> Result<About, ClientError> {
        self.get(Route::to(["inspect", "about"])?).await
    }

    /// A page as it is now.
    ///
    /// # Errors
    /// See [`ClientError`].
    #[odeon_macros::boxed]
    pub async fn page(&self, asked: &Asked) -> Result<Envelope<Page>, ClientError> {
        let route = asked_of("view", asked)?;
        Ok(match asked.view {
            View::Now => self.get::<Envelope<_>>(route).await?.map(Page::Now),
            View::Problems => self.get::<Envelope<_>>(route).await?.map(Page::Problems),
            View::Cluster => self.get::<Envelope<_>>(route).await?.map(Page::Cluster),
            View::Actors => self.get::<Envelope<_>>(route).await?.map(Page::Actors),
            View::Jobs => self.get::<Envelope<_>>(route).await?.map(Page::Jobs),
            View::Transfers => self.get::<Envelope<_>>(route).await?.map(Page::Transfers),
            View::Events => self.get::<Envelope<_>>(route).await?.map(Page::Events),
            View::Runs => self.get::<Envelope<_>>(route).await?.map(Page::Runs),
        })
    }

    /// A page as it is now, and then what changes of it.
    ///
    /// # Errors
    /// See [`ClientError`].
    #[odeon_macros::boxed]
    pub async fn live(&self, asked: &Asked) -> Result<Live, ClientError> {
        let (answer, url) = self.client.open(asked_of("stream", asked)?).await?;
        Ok(Live {
            answer,
            url,
            view: asked.view,
            parser: Parser::default(),
            events: vec![].into_iter(),
        })
    }

    /// All about an actor, by its id.
    ///
    /// # Errors
    /// See [`ClientError`].
    #[odeon_macros::boxed]
    pub async fn actor(&self, id: &str) -> Result<Envelope<ActorDetail>, ClientError> {
        self.get(Route::to(["inspect", "actors", id])?).await
    }

    /// A job, in detail.
    ///
    /// # Errors
    /// See [`ClientError`].
    #[odeon_macros::boxed]
    pub async fn job(&self, id: &str) -> Result<Envelope<JobDetail>, ClientError> {
        self.get(Route::to(["inspect", "jobs", id])?).await
    }

    /// All that one message caused.
    ///
    /// # Errors
    /// See [`ClientError`].
    #[odeon_macros::boxed]
    pub async fn trace(&self, id: &str) -> Result<Envelope<Trace>, ClientError> {
        self.get(Route::to(["inspect", "traces", id])?).await
    }

    /// All about a span.
    ///
    /// # Errors
    /// See [`ClientError`].
    #[odeon_macros::boxed]
    pub async fn span(&self, id: &str) -> Result<Envelope<SpanDetail>, ClientError> {
        self.get(Route::to(["inspect", "spans", id])?).await
    }

    /// Spans of a part of time, in milliseconds since 1970; the oldest of them.
    ///
    /// # Errors
    /// See [`ClientError`].
    #[odeon_macros::boxed]
    pub async fn spans(
        &self,
        from: f64,
        to: f64,
        limit: usize,
    ) -> Result<Envelope<Spans>, ClientError> {
        let route = Route::to(["inspect", "spans"])?.with("from", from);
        self.get(route.with("to", to).with("limit", limit)).await
    }

    /// The slowest traces of a part of time, in milliseconds since 1970.
    ///
    /// # Errors
    /// See [`ClientError`].
    #[odeon_macros::boxed]
    pub async fn traces(
        &self,
        from: f64,
        to: f64,
        limit: usize,
    ) -> Result<Envelope<Traces>, ClientError> {
        let route = Route::to(["inspect", "traces"])?.with("from", from);
        self.get(route.with("to", to).with("limit", limit)).await
    }

    /// A number of the whole over a part of time, in so many points.
    ///
    /// # Errors
    /// See [`ClientError`].
    #[odeon_macros::boxed]
    pub async fn series(
        &self,
        name: &str,
        from: f64,
        to: f64,
        points: usize,
    ) -> Result<Envelope<Spread>, ClientError> {
        let route = Route::to(["inspect", "series"])?.with("name", name);
        let route = route.with("from", from).with("to", to);
        self.get(route.with("px", points)).await
    }

    /// The last lines that a job has printed before a place, `earlier` of an answer, if one is named.
    ///
    /// # Errors
    /// See [`ClientError`].
    #[odeon_macros::boxed]
    pub async fn lines(
        &self,
        job: &str,
        before: Option<&str>,
        limit: usize,
    ) -> Result<Envelope<Logs>, ClientError> {
        let mut route = Route::to(["inspect", "logs"])?.with("job", job);
        if let Some(before) = before {
            route = route.with("before", before);
        }
        self.get(route.with("limit", limit)).await
    }
}

fn asked_of(what: &str, asked: &Asked) -> Result<Route, ClientError> {
    let mut route = Route::to(["inspect", what])?.with("view", asked.view);
    for (name, value) in [("filter", &asked.filter), ("sort", &asked.sort)] {
        if !value.is_empty() {
            route = route.with(name, value);
        }
    }
    if let Some(limit) = asked.limit {
        route = route.with("limit", limit);
    }
    Ok(route)
}

/// A page that is told as it changes.
#[derive(Debug)]
pub struct Live {
    answer: reqwest::Response,
    url: String,
    view: View,
    parser: Parser,
    events: std::vec::IntoIter<Event>,
}

impl Live {
    /// The next update; nothing when whoever tells has ended. Dropped while it waits, nothing is
    /// lost.
    ///
    /// # Errors
    /// It is not heard any more, or says what cannot be understood.
    #[odeon_macros::boxed]
    pub async fn next(&mut self) -> Result<Option<Update>, ClientError> {
        loop {
            if let Some(event) = self.events.next() {
                match self.update(&event)? {
                    Some(update) => return Ok(Some(update)),
                    None => continue,
                }
            }
            let silent = |why: String| ClientError::Silent {
                url: self.url.clone(),
                was_sent: true,
                why,
            };
            let heard = tokio::time::timeout(SILENCE_MAX, self.answer.chunk()).await;
            let heard = heard
                .map_err(|_| silent(format!("nothing heard for {} s", SILENCE_MAX.as_secs())))?;
            let heard = heard.map_err(|error| silent(crate::client::in_short(&error)))?;
            let Some(bytes) = heard else {
                return Ok(None);
            };
            let events = self.parser.feed(&bytes);
            let events = events.ok_or_else(|| self.strange("an event without an end"))?;
            self.events = events.into_iter();
        }
    }

    fn strange(&self, why: &str) -> ClientError {
        ClientError::Strange {
            url: self.url.clone(),
            why: why.to_owned(),
        }
    }

    /// The update that an event brings; nothing where its name is not known, as a later release may
    /// have more.
    fn update(&self, event: &Event) -> Result<Option<Update>, ClientError> {
        fn read<T: DeserializeOwned>(event: &Event) -> Result<Envelope<T>, serde_json::Error> {
            serde_json::from_slice(&event.data)
        }
        let whole = || -> Result<Envelope<Page>, serde_json::Error> {
            Ok(match self.view {
                View::Now => read(event)?.map(Page::Now),
                View::Problems => read(event)?.map(Page::Problems),
                View::Cluster => read(event)?.map(Page::Cluster),
                View::Actors => read(event)?.map(Page::Actors),
                View::Jobs => read(event)?.map(Page::Jobs),
                View::Transfers => read(event)?.map(Page::Transfers),
                View::Events => read(event)?.map(Page::Events),
                View::Runs => read(event)?.map(Page::Runs),
            })
        };
        let update = match event.name.as_str() {
            "snapshot" => whole().map(|page| Update::Whole(Box::new(page))),
            "delta" => read(event).map(|delta| Update::Actors(Box::new(delta))),
            "append" => read(event).map(|more| Update::Events(Box::new(more))),
            _ => return Ok(None),
        };
        let update = update.map_err(|error| self.strange(&error.to_string()))?;
        Ok(Some(update))
    }
}
