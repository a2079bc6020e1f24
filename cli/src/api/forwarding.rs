//! Requests that another node answers: one that does not vote has no tables, and hands what it is
//! asked to a voter, over the links of the cluster.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes, to_bytes};
use axum::extract::Request;
use axum::http::request::Parts;
use axum::http::{HeaderName, HeaderValue, Method, StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use odeon::{AskError, Blob, Effect, Failure, Later, Shape, System};
use odeon_cluster::Daemon;
use odeon_cluster::local_only::LocalOnly;
use odeon_cluster::node_directory::{self, Unreached};
use serde::{Deserialize, Serialize};
use tower::ServiceExt;

use super::extract::in_time;
use super::group_test::LIMIT_MAX;
use super::majority;
use super::problem::No;

/// Bytes of the list of a bundle's files.
pub(super) const BUNDLE_BYTES_MAX: usize = 32 << 20;
/// Marks a request that was handed on, so that it is not handed on again.
pub(super) const HANDED_ON: HeaderName = HeaderName::from_static("odeon-handed-on");
/// The address that a request came from which was handed on.
pub(super) const FROM: HeaderName = HeaderName::from_static("odeon-from");
/// The path that tells the name and role of a request's key.
pub(super) const KEY_PATH: &str = "/api/v1/key";
/// The time that a voter may take: longer than the longest wait of a request.
const PATIENCE: Duration = Duration::from_secs(45);
/// The path of a group test.
const GROUP_TEST_PATH: &str = "/api/v1/group-test";
/// The same where the request is for a group test, which takes four times its limit at most.
const GROUP_TEST_PATIENCE: Duration = Duration::from_secs(45 + 4 * LIMIT_MAX.as_secs());
/// Larger bodies travel behind messages.
const INLINE_BYTES_MAX: usize = 64 << 10;
/// Headers that mean something to whoever answers, or to whoever has asked.
const HEADERS: [HeaderName; 5] = [
    header::AUTHORIZATION,
    header::CONTENT_TYPE,
    header::RETRY_AFTER,
    majority::HEADER,
    FROM,
];

/// A body on its way.
#[derive(Debug, Serialize, Deserialize, Shape)]
enum Payload {
    Inline(Vec<u8>),
    Bulk(Blob),
}

/// A request or an answer on its way.
#[derive(Debug, Serialize, Deserialize, Shape)]
pub(crate) struct Parcel {
    /// Method and path, or the status.
    line: (String, String),
    headers: Vec<(String, Vec<u8>)>,
    body: Payload,
}

/// The actor of a node that answers requests of others.
#[derive(Debug)]
pub(crate) struct Door {
    system: System,
    router: Router,
}

fn name_of(node: &str) -> String {
    format!("api@{node}")
}

#[odeon::actor(name = "odeon.api.Door")]
impl Door {
    async fn start(parts: LocalOnly<(System, Router)>) -> Result<Self, Failure> {
        let (system, router) = parts.take()?;
        Ok(Self { system, router })
    }

    /// Answers a request that another node was asked.
    #[handler]
    fn serve(&mut self, asked: Parcel) -> Later<Result<Parcel, String>> {
        let (system, router) = (self.system.clone(), self.router.clone());
        Later::new(async move {
            let request = asked.into_request().await?;
            let response = router.oneshot(request).await;
            let response = response.unwrap_or_else(|never| match never {});
            Parcel::of_response(&system, response).await
        })
    }
}

impl Parcel {
    async fn of_request(system: &System, request: Request) -> Result<Self, String> {
        let (parts, body) = request.into_parts();
        let path = parts.uri.path_and_query().map_or("/", |it| it.as_str());
        let line = (parts.method.to_string(), path.to_owned());
        Self::of(system, line, &parts.headers, body).await
    }

    async fn of_response(system: &System, response: Response) -> Result<Self, String> {
        let (parts, body) = response.into_parts();
        let line = (parts.status.as_str().to_owned(), String::new());
        Self::of(system, line, &parts.headers, body).await
    }

    async fn of(
        system: &System,
        line: (String, String),
        headers: &axum::http::HeaderMap,
        body: Body,
    ) -> Result<Self, String> {
        let bytes = to_bytes(body, BUNDLE_BYTES_MAX).await;
        let bytes = bytes.map_err(|error| error.to_string())?;
        let body = match bytes.len() {
            0..=INLINE_BYTES_MAX => Payload::Inline(bytes.to_vec()),
            _ => {
                let blob = system.blobs().copy_in(&bytes);
                Payload::Bulk(blob.map_err(|error| error.to_string())?)
            }
        };
        let known = HEADERS.into_iter().filter_map(|name| {
            let value = headers.get(&name)?;
            Some((name.to_string(), value.as_bytes().to_vec()))
        });
        let headers = known.collect();
        Ok(Self {
            line,
            headers,
            body,
        })
    }

    fn known_headers(&self) -> impl Iterator<Item = (HeaderName, HeaderValue)> {
        self.headers.iter().filter_map(|(name, value)| {
            let name = name.parse().ok()?;
            Some((name, HeaderValue::from_bytes(value).ok()?))
        })
    }

    async fn into_request(self) -> Result<Request, String> {
        let (method, path) = &self.line;
        let method: Method = method.parse().map_err(|_| "no method".to_owned())?;
        let mut request = Request::builder().method(method).uri(path);
        request = request
            .header(header::HOST, "localhost")
            .header(HANDED_ON, "1");
        for (name, value) in self.known_headers() {
            request = request.header(name, value);
        }
        let body = self.body.open().await?;
        request.body(body).map_err(|error| error.to_string())
    }

    async fn into_response(self) -> Result<Response, String> {
        let status = self.line.0.parse::<StatusCode>();
        let mut response = Response::builder().status(status.map_err(|_| "no status".to_owned())?);
        for (name, value) in self.known_headers() {
            response = response.header(name, value);
        }
        let body = self.body.open().await?;
        response.body(body).map_err(|error| error.to_string())
    }
}

impl Payload {
    async fn open(self) -> Result<Body, String> {
        match self {
            Self::Inline(bytes) => Ok(Body::from(bytes)),
            Self::Bulk(blob) => {
                let view = blob.open().await.map_err(|error| error.to_string())?;
                Ok(Body::from(view.to_vec()))
            }
        }
    }
}

/// Lets other nodes hand requests to this one.
pub(crate) async fn open(daemon: &Daemon, router: Router) -> anyhow::Result<()> {
    let system = daemon.system();
    let parts = LocalOnly::new((system.clone(), router));
    let door = system.spawn::<Door>(parts).await?;
    node_directory::register(system, &name_of(daemon.name()), door).await?;
    Ok(())
}

/// Hands a request to a voter, the leader first. One with a body waits outside until its key is known
/// to be good.
pub(super) async fn hand_on(daemon: &Arc<Daemon>, request: Request) -> Response {
    let (parts, body) = request.into_parts();
    if ![Method::GET, Method::DELETE].contains(&parts.method) {
        let mut asks = Request::new(Body::empty());
        *asks.uri_mut() = Uri::from_static(KEY_PATH);
        asks.headers_mut().clone_from(&parts.headers);
        let known = at_voter(daemon, &asks.into_parts().0, &Bytes::new()).await;
        if !known.status().is_success() {
            return known;
        }
    }
    match in_time(to_bytes(body, BUNDLE_BYTES_MAX)).await {
        Ok(Ok(body)) => at_voter(daemon, &parts, &body).await,
        Ok(Err(error)) => No::too_large(error).into_response(),
        Err(no) => no.into_response(),
    }
}

async fn at_voter(daemon: &Daemon, parts: &Parts, body: &Bytes) -> Response {
    let catalog = daemon.catalog();
    let (leader, voters) = (catalog.leader(), catalog.voters());
    let others = voters
        .iter()
        .filter(|voter| Some(*voter) != leader.as_ref());
    let mut why = "this node does not vote, and knows of nobody who does".to_owned();
    for voter in leader.iter().chain(others) {
        let again = Request::from_parts(parts.clone(), Body::from(body.clone()));
        match reach(daemon, voter, again).await {
            Ok(response) => return response,
            Err((told, effect)) => {
                why = told;
                if effect != Effect::No && parts.method != Method::GET {
                    why += "; what was asked may be done yet";
                    break;
                }
            }
        }
    }
    No::unavailable(why).into_response()
}

async fn reach(
    daemon: &Daemon,
    voter: &str,
    request: Request,
) -> Result<Response, (String, Effect)> {
    let system = daemon.system();
    let before = |why: String| (why, Effect::No);
    let found = node_directory::reach::<Door>(system, voter, &name_of(voter)).await;
    let door = found.map_err(|unreached| before(unreached.to_string()))?;
    let patience = match request.uri().path() {
        GROUP_TEST_PATH => GROUP_TEST_PATIENCE,
        _ => PATIENCE,
    };
    let asked = Parcel::of_request(system, request).await.map_err(before)?;
    let answer = door.ask(Serve { asked }).timeout(patience).await;
    let unanswered = |error: AskError| {
        let told = Unreached::asked(voter, &error).to_string();
        (told, error.effect())
    };
    let answer = answer.map_err(unanswered)?;
    let answer = answer.map_err(|why| (why, Effect::Unknown))?;
    let response = answer.into_response().await;
    response.map_err(|why| (why, Effect::Unknown))
}
