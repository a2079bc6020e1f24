//! The gate of the pages: a key in the header, or in a cookie that only this host's own pages send.
//!
//! A page in a browser gets the key behind the `#` of its address, which no server and no log sees,
//! and exchanges it for a cookie, which is made from the key and is none itself: it is good for
//! inspection and for nothing else.

use axum::Router;
use axum::body::Bytes;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use odeon_client::types::Problem;
use serde::Deserialize;

use crate::api::host::is_own;
use crate::api::key::{new_key, page_key};
use crate::api::request_id::number;

/// The one key of a program that is not a cluster.
#[derive(Clone, Debug)]
pub(super) struct Gate {
    key: String,
}

/// The request for a cookie.
#[derive(Debug, Deserialize)]
pub(crate) struct Exchange {
    pub(crate) key: String,
}

/// Where keys are exchanged.
pub(crate) const SESSION: &str = "/api/v1/session";
/// Where a cookie is good.
pub(crate) const INSPECT: &str = "/api/v1/inspect/";
/// Where something is done to actors.
pub(crate) const ACTIONS: &str = "/api/v1/inspect/actions/";

/// The name of the cookie: hosts share theirs over all ports.
fn cookie_name(headers: &HeaderMap) -> String {
    let host = headers
        .get(header::HOST)
        .and_then(|host| host.to_str().ok());
    let port = host
        .and_then(|host| host.rsplit_once(':'))
        .map_or("", |(_, port)| port);
    let digits = port.chars().all(|c| c.is_ascii_digit());
    format!("odeon-{}", if digits { port } else { "" })
}

/// The key in the cookie of a request that may use one: it looks, or it comes from a page of this
/// host's own.
pub(crate) fn cookie_of<'a>(
    method: &Method,
    path: &str,
    headers: &'a HeaderMap,
) -> Option<&'a str> {
    if !path.starts_with(INSPECT) || (method != Method::GET && !is_own_page(headers)) {
        return None;
    }
    let name = cookie_name(headers);
    let cookies = headers.get_all(header::COOKIE).into_iter();
    let cookies = cookies.filter_map(|value| value.to_str().ok());
    let mut pairs = cookies.flat_map(|value| value.split(';'));
    pairs.find_map(|pair| {
        let (key, value) = pair.trim().split_once('=')?;
        (key == name).then_some(value)
    })
}

/// Returns true if a request was sent by a page of the host that it is for.
fn is_own_page(headers: &HeaderMap) -> bool {
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    let json = text("content-type").is_some_and(|it| it.starts_with("application/json"));
    let own = match (text("sec-fetch-site"), text("origin"), text("host")) {
        (Some(site), ..) => site == "same-origin",
        (None, Some(origin), Some(host)) => origin
            .split_once("://")
            .is_some_and(|(_, named)| named == host),
        _ => false,
    };
    json && own
}

/// The answer to a good key: a cookie.
pub(crate) fn with_cookie(headers: &HeaderMap, key: &str) -> Response {
    let cookie = format!(
        "{}={key}; Path=/api/v1/inspect; HttpOnly; SameSite=Strict",
        cookie_name(headers)
    );
    let mut response = StatusCode::NO_CONTENT.into_response();
    if let Ok(value) = HeaderValue::from_str(&cookie) {
        response.headers_mut().insert(header::SET_COOKIE, value);
    }
    response
}

fn no(status: StatusCode, kind: &str, why: &str) -> Response {
    let (kind, why) = (kind.to_owned(), why.to_owned());
    (status, axum::Json(Problem { kind, why })).into_response()
}

impl Gate {
    pub(super) fn new() -> Self {
        let (key, _) = new_key();
        Self { key }
    }

    pub(super) fn key(&self) -> &str {
        &self.key
    }

    /// Lets those with the key in, and nobody who calls this host by another name.
    pub(super) fn guard(self, inspection: Router, scrape: Router, pages: Router) -> Router {
        let own = self.clone();
        Router::new()
            .nest("/api/v1/inspect", inspection)
            .merge(scrape)
            .route(
                SESSION,
                post(async move |headers: HeaderMap, body: Bytes| own.exchange(&headers, &body)),
            )
            .layer(middleware::from_fn_with_state(self, admit))
            .merge(pages)
            .layer(middleware::from_fn(by_own_name))
            .layer(middleware::from_fn(number))
    }

    fn admits(&self, method: &Method, path: &str, headers: &HeaderMap) -> bool {
        let bearer = headers.get(header::AUTHORIZATION);
        let bearer = bearer.and_then(|value| value.to_str().ok());
        let bearer = bearer.and_then(|value| value.strip_prefix("Bearer "));
        match (bearer, cookie_of(method, path, headers)) {
            (Some(key), _) => is_same(key, &self.key),
            (None, Some(cookie)) => is_same(cookie, &page_key(&self.key)),
            (None, None) => false,
        }
    }

    fn exchange(&self, headers: &HeaderMap, body: &[u8]) -> Response {
        match serde_json::from_slice::<Exchange>(body) {
            Ok(asked) if is_same(&asked.key, &self.key) => {
                with_cookie(headers, &page_key(&self.key))
            }
            Ok(_) => no(
                StatusCode::UNAUTHORIZED,
                "unauthorized",
                "this key is not that of the run: take the address that the run has printed",
            ),
            Err(_) => no(
                StatusCode::UNPROCESSABLE_ENTITY,
                "invalid",
                "send {\"key\": KEY} as JSON",
            ),
        }
    }
}

/// By their digests, so that the time it takes tells nothing.
fn is_same(one: &str, other: &str) -> bool {
    let digest = |text: &str| odeon_artifacts::Digest::of(text.as_bytes());
    digest(one) == digest(other)
}

async fn admit(State(gate): State<Gate>, request: Request, next: Next) -> Response {
    let (path, headers) = (request.uri().path(), request.headers());
    if path == SESSION {
        return next.run(request).await;
    }
    if gate.admits(request.method(), path, headers) {
        return next.run(request).await;
    }
    no(
        StatusCode::UNAUTHORIZED,
        "unauthorized",
        "a key is needed: open the address that the run has printed, or send it as \
         `Authorization: Bearer KEY`",
    )
}

/// A page that calls this host by a name of its own choice is somebody else's.
async fn by_own_name(request: Request, next: Next) -> Response {
    let host = request
        .headers()
        .get(header::HOST)
        .and_then(|host| host.to_str().ok());
    if host.is_some_and(|host| is_own(host, &[])) {
        return next.run(request).await;
    }
    no(
        StatusCode::FORBIDDEN,
        "forbidden",
        "this is no name of this host: call it by its address",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(&'static str, &str)]) -> HeaderMap {
        let header = |(name, value): &(&'static str, &str)| {
            (
                axum::http::HeaderName::from_static(name),
                HeaderValue::from_str(value).unwrap(),
            )
        };
        pairs.iter().map(header).collect()
    }

    /// SEMANTICS 70.
    #[test]
    fn a_cookie_is_good_for_looking_and_for_the_hosts_own_pages() {
        let cookie = ("cookie", "a=b; odeon-7433=secret");
        let host = ("host", "127.0.0.1:7433");
        let json = ("content-type", "application/json");
        let look = "/api/v1/inspect/view";
        let act = "/api/v1/inspect/actions/stop";
        let good = |method: &Method, path: &str, with: &[(&'static str, &str)]| {
            cookie_of(method, path, &headers(with)) == Some("secret")
        };
        assert!(good(&Method::GET, look, &[cookie, host]));
        assert!(
            !good(&Method::GET, "/api/v1/jobs", &[cookie, host]),
            "jobs need a key"
        );
        assert!(!good(&Method::POST, "/api/v1/jobs", &[cookie, host, json]));
        assert!(!good(
            &Method::GET,
            look,
            &[cookie, ("host", "127.0.0.1:7434")]
        ));
        let same = ("sec-fetch-site", "same-origin");
        assert!(good(&Method::POST, act, &[cookie, host, json, same]));
        assert!(good(
            &Method::POST,
            act,
            &[cookie, host, json, ("origin", "http://127.0.0.1:7433")]
        ));
        for stranger in [
            ("sec-fetch-site", "cross-site"),
            ("origin", "http://evil.example"),
        ] {
            assert!(
                !good(&Method::POST, act, &[cookie, host, json, stranger]),
                "{stranger:?}"
            );
        }
        assert!(
            !good(&Method::POST, act, &[cookie, host, same]),
            "a form is no JSON"
        );
        assert!(
            !good(&Method::POST, act, &[cookie, host, json]),
            "nobody says where it is from"
        );
    }

    #[test]
    fn a_good_key_gives_a_cookie_that_scripts_cannot_read() {
        let gate = Gate::new();
        let headers = headers(&[("host", "localhost:80")]);
        let body = format!("{{\"key\":\"{}\"}}", gate.key());
        let response = gate.exchange(&headers, body.as_bytes());
        let cookie = response.headers()[header::SET_COOKIE].to_str().unwrap();
        assert!(cookie.starts_with("odeon-80=") && cookie.contains("HttpOnly; SameSite=Strict"));
        assert!(!cookie.contains(gate.key()), "it is no key");
        // Nor is it one in another place.
        let (_, value) = cookie.split(';').next().unwrap().split_once('=').unwrap();
        let look = "/api/v1/inspect/view";
        let with = |name: &'static str, value: String| {
            let mut headers = headers.clone();
            let name = axum::http::HeaderName::from_static(name);
            headers.insert(name, HeaderValue::from_str(&value).unwrap());
            gate.admits(&Method::GET, look, &headers)
        };
        assert!(with("cookie", format!("odeon-80={value}")));
        assert!(with("authorization", format!("Bearer {}", gate.key())));
        assert!(!with("authorization", format!("Bearer {value}")));
        assert!(!with("cookie", format!("odeon-80={}", gate.key())));
        for body in ["{\"key\":\"no\"}", "", "[]"] {
            assert_ne!(
                gate.exchange(&headers, body.as_bytes()).status(),
                StatusCode::NO_CONTENT
            );
        }
    }
}
