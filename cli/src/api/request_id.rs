//! A number for each request, in its answer and in the log: people who report what went wrong can say
//! which it was.

use axum::extract::Request;
use axum::http::{HeaderMap, HeaderName, HeaderValue};
use axum::middleware::Next;
use axum::response::Response;

/// Where it is, in a request that has one already and in each answer.
const HEADER: HeaderName = HeaderName::from_static("x-request-id");
/// The longest that is taken from whoever asks.
const LENGTH_MAX: usize = 64;

/// Numbers a request, and logs one that is refused or fails.
pub(crate) async fn number(request: Request, next: Next) -> Response {
    let id = given(request.headers()).unwrap_or_else(made);
    let (method, path) = (request.method().clone(), request.uri().path().to_owned());
    let mut response = next.run(request).await;
    let status = response.status();
    let request = String::from_utf8_lossy(id.as_bytes());
    if status.is_server_error() {
        tracing::warn!(%request, %method, path, status = status.as_u16(), "a request has failed");
    } else if status.is_client_error() {
        tracing::info!(%request, %method, path, status = status.as_u16(), "a request was refused");
    }
    response.headers_mut().insert(HEADER, id);
    response
}

/// The id that whoever asks has given the request, if a log can hold it.
fn given(headers: &HeaderMap) -> Option<HeaderValue> {
    let id = headers.get(HEADER)?;
    let plain = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    let bytes = id.as_bytes();
    let good = !bytes.is_empty() && bytes.len() <= LENGTH_MAX && bytes.iter().all(plain);
    good.then(|| id.clone())
}

fn made() -> HeaderValue {
    let id = format!("{:016x}", rand::random::<u64>());
    HeaderValue::from_str(&id).unwrap_or(HeaderValue::from_static("-"))
}

#[cfg(test)]
mod tests {
    use axum::Router;
    use axum::body::Body;
    use axum::routing::get;
    use tower::ServiceExt;

    use super::*;

    #[tokio::test]
    async fn each_answer_says_its_number_and_one_that_is_given_stays_if_it_is_plain() {
        let router = Router::new()
            .route("/", get(async || "here"))
            .layer(axum::middleware::from_fn(number));
        let ask = async |given: Option<&str>, path: &str| {
            let mut request = Request::get(path);
            if let Some(given) = given {
                request = request.header(HEADER, given);
            }
            let request = request.body(Body::empty()).unwrap();
            let response = router.clone().oneshot(request).await.unwrap();
            response.headers()[HEADER].to_str().unwrap().to_owned()
        };
        assert_eq!(ask(Some("from-a-script.7"), "/").await, "from-a-script.7");
        let long = "x".repeat(LENGTH_MAX + 1);
        for (given, path) in [
            (None, "/"),
            (None, "/nowhere"),
            (Some("two words"), "/"),
            (Some(long.as_str()), "/"),
        ] {
            let id = ask(given, path).await;
            assert_eq!(id.len(), 16, "{id}");
            assert!(id.bytes().all(|it| it.is_ascii_hexdigit()), "{id}");
        }
    }
}
