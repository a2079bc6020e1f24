//! The live page of jobs on a node that does not vote, and so knows of none: the page of a voter, again and again.

use std::convert::Infallible;
use std::time::Duration;

use axum::body::{Body, to_bytes};
use axum::extract::Request;
use axum::http::{StatusCode, Uri};
use axum::response::sse::{Event, Sse};
use axum::response::{IntoResponse, Response};
use futures::stream;
use odeon::Clock;

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

/// Answers a request for the live page of jobs by what a voter answers, whom `ask` asks. It ends when no voter answers any
/// more; whoever follows it asks again, and hears why.
pub(super) async fn live_jobs<A>(
    request: Request,
    ask: impl Fn(Request) -> A + Send + 'static,
) -> Response
where
    A: Future<Output = Response> + Send,
{
    let (mut parts, _) = request.into_parts();
    let query = parts.uri.query().unwrap_or_default();
    parts.uri = format!("{INSPECT}view?{query}")
        .parse()
        .unwrap_or(parts.uri);
    let asks = move || ask(Request::from_parts(parts.clone(), Body::empty()));
    // What is refused is said at once.
    let first = match page(asks().await).await {
        Ok(first) => first,
        Err(refused) => return refused,
    };
    let pages = stream::unfold((Some(first), asks), |(known, asks)| async move {
        let text = match known {
            Some(first) => first,
            None => {
                Clock::sleep(REST).await;
                page(asks().await).await.ok()?
            }
        };
        let event = Event::default().event("snapshot").data(text);
        Some((Ok::<_, Infallible>(event), (None, asks)))
    });
    Sse::new(pages).into_response()
}

/// The page that was answered, or what was in its place.
async fn page(response: Response) -> Result<String, Response> {
    if !response.status().is_success() {
        return Err(response);
    }
    let body = to_bytes(response.into_body(), PAGE_BYTES_MAX).await;
    let text = body.ok().and_then(|it| String::from_utf8(it.to_vec()).ok());
    text.ok_or_else(|| {
        (
            StatusCode::BAD_GATEWAY,
            "the page of a voter is too long to be handed on",
        )
            .into_response()
    })
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
