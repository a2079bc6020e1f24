//! The live page of jobs on a node that does not vote, and so knows of none: the page of a voter, again and again.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, to_bytes};
use axum::extract::Request;
use axum::http::Uri;
use axum::http::request::Parts;
use axum::response::sse::{Event, Sse};
use axum::response::{IntoResponse, Response};
use futures::stream;
use odeon::Clock;

use super::Api;
use super::forwarding::hand_on;
use crate::inspect::INSPECT;

/// The interval at which a voter is asked. As often a page that does not change is sent again where it is made.
const REST: Duration = Duration::from_secs(2);
/// Bytes of a page.
const PAGE_BYTES_MAX: usize = 16 << 20;

/// True for an address of the live page of jobs.
pub(super) fn is_live_jobs(asked: &Uri) -> bool {
    asked.path().strip_prefix(INSPECT) == Some("stream")
        && asked
            .query()
            .is_some_and(|query| query.split('&').any(|it| it == "view=jobs"))
}

/// Answers a request for the live page of jobs. It ends when no voter answers any more; whoever follows it asks again,
/// and hears why.
pub(super) async fn live_jobs(api: Arc<Api>, request: Request) -> Response {
    let (mut parts, _) = request.into_parts();
    let query = parts.uri.query().unwrap_or_default();
    match format!("{INSPECT}view?{query}").parse() {
        Ok(page) => parts.uri = page,
        Err(_) => return hand_on(&api.daemon, Request::from_parts(parts, Body::empty())).await,
    }
    // What is refused is said at once.
    let first = page(&api, &parts).await;
    let first = match first {
        Ok(first) => first,
        Err(refused) => return refused,
    };
    let pages = stream::unfold(Some(first), move |known| {
        let (api, parts) = (Arc::clone(&api), parts.clone());
        async move {
            let text = match known {
                Some(first) => first,
                None => {
                    Clock::sleep(REST).await;
                    page(&api, &parts).await.ok()?
                }
            };
            let event = Event::default().event("snapshot").data(text);
            Some((Ok::<_, Infallible>(event), None))
        }
    });
    Sse::new(pages).into_response()
}

/// The page as a voter has it now, or what was answered in its place.
async fn page(api: &Api, parts: &Parts) -> Result<String, Response> {
    let asked = Request::from_parts(parts.clone(), Body::empty());
    let response = hand_on(&api.daemon, asked).await;
    if !response.status().is_success() {
        return Err(response);
    }
    let body = to_bytes(response.into_body(), PAGE_BYTES_MAX).await;
    let text = body.ok().and_then(|it| String::from_utf8(it.to_vec()).ok());
    text.ok_or_else(|| super::problem::No::internal("a page that is no text").into_response())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_live_page_of_jobs_is_known_by_its_address() {
        let is = |address: &str| is_live_jobs(&address.parse().unwrap());
        assert!(is("/api/v1/inspect/stream?view=jobs"));
        assert!(is("/api/v1/inspect/stream?sort=name&view=jobs"));
        for other in [
            "/api/v1/inspect/stream?view=actors",
            "/api/v1/inspect/stream?filter=view=jobs",
            "/api/v1/inspect/view?view=jobs",
            "/api/v1/inspect/stream",
        ] {
            assert!(!is(other), "{other}");
        }
    }
}
