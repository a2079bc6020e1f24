//! Access to the API: keys, roles, hosts.

use std::sync::Arc;

use axum::body::{Body, to_bytes};
use axum::extract::{ConnectInfo, FromRequestParts, Request, State};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, Uri, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use odeon_cluster::access::KeyRole;

use super::Api;
use super::extract::in_time;
use super::forwarding::{self, FROM, HANDED_ON};
use super::host::is_own;
use super::key::{PAGE, hash_of, page_key, page_key_of};
use super::live_jobs::{is_live_jobs, live_jobs};
use super::problem::No;
use super::serve::Peer;
use crate::inspect::{ACTIONS, Exchange, INSPECT, METRICS, SESSION, cookie_of, with_cookie};

/// The caller: the name of its key, and its role.
#[derive(Clone, Debug)]
pub(super) struct Caller {
    pub(super) name: String,
    role: KeyRole,
}

impl Caller {
    /// Checks that the caller has at least this role.
    fn must(&self, role: KeyRole) -> Result<(), No> {
        if self.role >= role {
            return Ok(());
        }
        Err(No::forbidden(format!(
            "this needs the role `{role}`, the key `{}` has `{}`: ask an admin for another \
             (odeon key make NAME --role {role})",
            self.name, self.role
        )))
    }
}

impl<S: Sync> FromRequestParts<S> for Caller {
    type Rejection = No;

    async fn from_request_parts(parts: &mut Parts, _state: &S) -> Result<Self, No> {
        let caller = parts.extensions.get::<Self>().cloned();
        caller.ok_or_else(|| No::internal("a route without a caller"))
    }
}

/// Somebody who may look.
#[derive(Debug)]
pub(super) struct Viewer;
/// A caller who may submit jobs.
#[derive(Debug)]
pub(super) struct Submitter(pub(super) Caller);
/// A caller who may do everything.
#[derive(Debug)]
pub(super) struct Admin(pub(super) Caller);

/// The role is looked at before the body is.
macro_rules! of_role {
    ($($who:ident: $role:expr),*) => {$(
        impl<S: Sync> FromRequestParts<S> for $who {
            type Rejection = No;

            async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, No> {
                let caller = Caller::from_request_parts(parts, state).await?;
                caller.must($role)?;
                Ok(Self(caller))
            }
        }
    )*};
}

impl<S: Sync> FromRequestParts<S> for Viewer {
    type Rejection = No;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, No> {
        let caller = Caller::from_request_parts(parts, state).await?;
        caller.must(KeyRole::View)?;
        Ok(Self)
    }
}

of_role!(Submitter: KeyRole::Submit, Admin: KeyRole::Admin);

/// Looks at every request before its route does, and writes down what is asked for.
pub(super) async fn admit(
    State(api): State<Arc<Api>>,
    mut request: Request,
    next: Next,
) -> Response {
    let from = request.extensions().get::<ConnectInfo<Peer>>();
    let from = from.map(|ConnectInfo(peer)| *peer);
    let handed_on = request.headers().contains_key(HANDED_ON);
    if is_page(&request) {
        // What anybody may have: it shows nothing without a key.
        return match is_for_us(&api, request.headers()) {
            Ok(()) => next.run(request).await,
            Err(no) => no.into_response(),
        };
    }
    if !api.daemon.catalog().is_voter() && !handed_on {
        let path = request.uri().path();
        let outcome = is_for_us(&api, request.headers());
        return match outcome {
            Ok(()) if OPEN.contains(&path) => next.run(request).await,
            Ok(()) if path.starts_with(ACTIONS) => {
                No::unavailable("this node does not vote: do it on the pages of one that does")
                    .into_response()
            }
            // What a node sees it shows itself; whose key it is, a voter knows, and what jobs there are.
            Ok(())
                if path.starts_with(INSPECT) && !is_of_jobs(request.uri()) || path == METRICS =>
            {
                match known_elsewhere(&api, secret_of(&request).map(str::to_owned)).await {
                    Ok(()) => next.run(request).await,
                    Err(response) => response,
                }
            }
            Ok(()) => {
                let key = secret_of(&request).map(|key| format!("Bearer {key}"));
                let headers = request.headers_mut();
                headers.remove(FROM);
                // A page's cookie is not handed on.
                if let Some(Ok(key)) = key.map(HeaderValue::try_from) {
                    headers.insert(header::AUTHORIZATION, key);
                }
                let from_text = from.map(|Peer(address)| address.to_string());
                if let Some(Ok(address)) = from_text.map(HeaderValue::try_from) {
                    headers.insert(FROM, address);
                }
                let response = match is_live_jobs(request.uri()) {
                    true => {
                        let daemon = Arc::clone(&api.daemon);
                        let ask = move |request| {
                            let daemon = Arc::clone(&daemon);
                            async move { forwarding::hand_on(&daemon, request).await }
                        };
                        live_jobs(request, ask).await
                    }
                    false => forwarding::hand_on(&api.daemon, request).await,
                };
                let is_strange = response.status() == StatusCode::UNAUTHORIZED;
                let too_many = from
                    .filter(|_| is_strange)
                    .and_then(|it| too_many(&api, it));
                too_many.map_or(response, IntoResponse::into_response)
            }
            Err(no) => no.into_response(),
        };
    }
    match admitted(&api, &request) {
        Err(no) => {
            let too_many = from
                .filter(|_| no.is_unauthorized())
                .and_then(|it| too_many(&api, it));
            too_many.unwrap_or(no).into_response()
        }
        Ok(None) => next.run(request).await,
        Ok(Some(caller)) => {
            // Another node asks that before it takes a body for us.
            let is_asked_first = handed_on && request.uri().path() == forwarding::KEY_PATH;
            if !is_asked_first && let Err(seconds) = api.limiter.check(&caller.name) {
                return No::too_many("requests with this key", seconds).into_response();
            }
            // Who comes over the wire has an address of its own, whatever it says.
            let told = request.headers().get(FROM);
            let told = told.and_then(|from| from.to_str().ok()?.parse().ok());
            let from = from.map(|Peer(address)| address).or(told);
            let (method, path) = (request.method().clone(), request.uri().path().to_owned());
            if path.starts_with(ACTIONS)
                && let Err(no) = caller.must(KeyRole::Submit)
            {
                let response = no.into_response();
                api.audit
                    .note(&caller.name, from, (method.as_str(), &path), &response);
                return response;
            }
            request.extensions_mut().insert(caller.clone());
            let response = next.run(request).await;
            if method != Method::GET {
                let asked = (method.as_str(), path.as_str());
                api.audit.note(&caller.name, from, asked, &response);
            }
            response
        }
    }
}

/// Counts a wrong key from an address; an answer, when there were too many.
fn too_many(api: &Api, Peer(from): Peer) -> Option<No> {
    let counted = api.strangers.check(&from.to_string());
    let seconds = counted.err()?;
    Some(No::too_many("wrong keys from this address", seconds))
}

/// Returns true if a request is for a part of a page.
fn is_page(request: &Request) -> bool {
    let path = request.uri().path();
    request.method() == Method::GET && !path.starts_with("/api/") && path != METRICS
}

/// The key that a request brings.
fn secret_of(request: &Request) -> Option<&str> {
    let headers = request.headers();
    let bearer = headers.get(header::AUTHORIZATION);
    let bearer = bearer.and_then(|value| value.to_str().ok());
    let bearer = bearer.and_then(|value| value.strip_prefix("Bearer "));
    bearer.or_else(|| cookie_of(request.method(), request.uri().path(), headers))
}

/// Asks a voter whether the key of a request is good; else what it says.
async fn known_elsewhere(api: &Arc<Api>, key: Option<String>) -> Result<(), Response> {
    let key = key.ok_or_else(|| No::unauthorized(NO_KEY).into_response())?;
    let asked = Request::get(forwarding::KEY_PATH)
        .header(header::AUTHORIZATION, format!("Bearer {key}"))
        .body(Body::empty());
    let asked = asked.map_err(|error| No::unauthorized(error).into_response())?;
    let response = forwarding::hand_on(&api.daemon, asked).await;
    match response.status().is_success() {
        true => Ok(()),
        false => Err(response),
    }
}

/// Returns true for a question about the jobs that pages show, once or live.
fn is_of_jobs(asked: &Uri) -> bool {
    let of_jobs = |query: &str| query.split('&').any(|it| it == "view=jobs");
    match asked.path().strip_prefix(INSPECT) {
        Some("view" | "stream") => asked.query().is_some_and(of_jobs),
        Some(path) => path.starts_with("jobs"),
        None => false,
    }
}

/// Bytes of a request for a cookie.
const EXCHANGE_BYTES_MAX: usize = 4 << 10;
const NO_KEY: &str = "a key is needed: send it as `Authorization: Bearer KEY`";

/// Gives a page a cookie for its key.
pub(super) async fn exchange(State(api): State<Arc<Api>>, request: Request) -> Response {
    let from = request.extensions().get::<ConnectInfo<Peer>>();
    let from = from.map(|ConnectInfo(peer)| *peer);
    let (parts, body) = request.into_parts();
    let body = match in_time(to_bytes(body, EXCHANGE_BYTES_MAX)).await {
        Ok(body) => body.unwrap_or_default(),
        Err(no) => return no.into_response(),
    };
    let asked = serde_json::from_slice::<Exchange>(&body);
    let Ok(Exchange { key }) = asked else {
        return No::invalid("send {\"key\": KEY} as JSON").into_response();
    };
    let known = match api.daemon.catalog().is_voter() {
        true => caller_with(&api, &key, false)
            .map(drop)
            .map_err(IntoResponse::into_response),
        false if key.starts_with(PAGE) => Err(No::unauthorized(NO_KEY).into_response()),
        false => known_elsewhere(&api, Some(key.clone())).await,
    };
    match known {
        Ok(()) => with_cookie(&parts.headers, &page_key(&key)),
        Err(response) => {
            let too_many = from.and_then(|from| too_many(&api, from));
            too_many.map_or(response, IntoResponse::into_response)
        }
    }
}

fn admitted(api: &Api, request: &Request) -> Result<Option<Caller>, No> {
    is_for_us(api, request.headers())?;
    if OPEN.contains(&request.uri().path()) {
        return Ok(None);
    }
    let secret = secret_of(request).ok_or_else(|| No::unauthorized(NO_KEY))?;
    let path = request.uri().path();
    // Another node asks whose it is.
    let looks = path.starts_with(INSPECT) || path == forwarding::KEY_PATH;
    caller_with(api, secret, looks).map(Some)
}

/// Whose key this is, or, where somebody looks on, whose page's.
fn caller_with(api: &Api, secret: &str, looks: bool) -> Result<Caller, No> {
    let hash = hash_of(secret);
    let found = api
        .daemon
        .catalog()
        .read(|tables| {
            let of_page = |kept: &&String| page_key_of(kept) == secret;
            let kept = match looks && secret.starts_with(PAGE) {
                true => tables.keys.keys().find(of_page),
                false => Some(&hash),
            };
            kept.and_then(|kept| tables.keys.get(kept).cloned())
        })
        .ok_or_else(|| No::unavailable(api.daemon.catalog().why_unread()))?;
    let key = found.ok_or_else(|| {
        No::unauthorized("this key is not known: it was revoked, or belongs to another cluster")
    })?;
    Ok(Caller {
        name: key.name,
        role: key.role,
    })
}

/// Paths that anybody may ask for.
const OPEN: [&str; 3] = ["/api/v1/version", "/api/v1/openapi.json", SESSION];

/// Checks that a request names this host.
fn is_for_us(api: &Api, headers: &HeaderMap) -> Result<(), No> {
    let host = headers
        .get(header::HOST)
        .and_then(|host| host.to_str().ok());
    if host.is_some_and(|host| is_own(host, &api.hosts)) {
        return Ok(());
    }
    Err(No::forbidden(format!(
        "`{}` is no name of this host: call it by its address, or start the daemon with --allow-host",
        host.unwrap_or("")
    )))
}
