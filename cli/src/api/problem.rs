//! Problems as answers: what goes wrong, with a status.

use axum::Json;
use axum::http::{StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use odeon_client::types::Problem;
use odeon_cluster::catalog::WriteError;
use odeon_cluster::fact::RefusalKind;
use odeon_cluster::submit::SubmitError;

/// An answer that says no, and why.
#[derive(Debug)]
pub(super) struct No {
    status: StatusCode,
    kind: &'static str,
    why: String,
    again_after_s: Option<u64>,
}

impl No {
    fn new(status: StatusCode, kind: &'static str, why: impl std::fmt::Display) -> Self {
        Self {
            status,
            kind,
            why: plain(&why.to_string()),
            again_after_s: None,
        }
    }

    pub(super) fn unauthorized(why: impl std::fmt::Display) -> Self {
        Self::new(StatusCode::UNAUTHORIZED, "unauthorized", why)
    }

    pub(super) fn forbidden(why: impl std::fmt::Display) -> Self {
        Self::new(StatusCode::FORBIDDEN, "forbidden", why)
    }

    pub(super) fn unknown(why: impl std::fmt::Display) -> Self {
        Self::new(StatusCode::NOT_FOUND, "unknown", why)
    }

    pub(super) fn invalid(why: impl std::fmt::Display) -> Self {
        Self::new(StatusCode::UNPROCESSABLE_ENTITY, "invalid", why)
    }

    pub(super) fn conflict(why: impl std::fmt::Display) -> Self {
        Self::new(StatusCode::CONFLICT, "conflict", why)
    }

    pub(super) fn too_large(why: impl std::fmt::Display) -> Self {
        Self::new(StatusCode::PAYLOAD_TOO_LARGE, "too_large", why)
    }

    /// A body, a query or a path that is not what the route takes.
    pub(super) fn unreadable(status: StatusCode, why: impl std::fmt::Display) -> Self {
        match status {
            StatusCode::PAYLOAD_TOO_LARGE => Self::too_large(why),
            status if status.is_server_error() => Self::internal(why),
            status => Self::new(status, "invalid", why),
        }
    }

    /// `what` came too often.
    pub(super) fn too_many(what: &str, again_after_s: u64) -> Self {
        let why = format!("too many {what}: try again in {again_after_s} s");
        Self {
            again_after_s: Some(again_after_s),
            ..Self::new(StatusCode::TOO_MANY_REQUESTS, "too_many", why)
        }
    }

    /// Returns true if it is about a key that is missing or wrong.
    pub(super) fn is_unauthorized(&self) -> bool {
        self.status == StatusCode::UNAUTHORIZED
    }

    pub(super) fn unavailable(why: impl std::fmt::Display) -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "unavailable", why)
    }

    pub(super) fn internal(why: impl std::fmt::Display) -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, "internal", why)
    }
}

/// A text without what a terminal would take for orders: names in it may be anybody's.
fn plain(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    for c in text.chars() {
        match c.is_control() {
            true => plain.extend(c.escape_debug()),
            false => plain.push(c),
        }
    }
    plain
}

impl IntoResponse for No {
    fn into_response(self) -> Response {
        let problem = Problem {
            kind: self.kind.to_owned(),
            why: self.why,
        };
        let mut response = (self.status, Json(problem)).into_response();
        if let Some(seconds) = self.again_after_s {
            response
                .headers_mut()
                .insert(header::RETRY_AFTER, seconds.into());
        }
        response
    }
}

impl From<WriteError> for No {
    fn from(error: WriteError) -> Self {
        match &error {
            WriteError::Refused(refusal) => match refusal.kind {
                RefusalKind::Unknown => Self::unknown(error),
                RefusalKind::Invalid => Self::invalid(error),
                RefusalKind::Conflict | RefusalKind::NotYours => Self::conflict(error),
            },
            WriteError::NoQuorum { .. } | WriteError::Unknown { .. } => Self::unavailable(error),
        }
    }
}

impl From<SubmitError> for No {
    fn from(error: SubmitError) -> Self {
        match error {
            SubmitError::Catalog(error) => error.into(),
            SubmitError::Spec(_) => Self::invalid(error),
            SubmitError::Missing { .. } | SubmitError::Unlisted(_) | SubmitError::Word => {
                Self::conflict(error)
            }
            SubmitError::TooLarge { .. } => Self::too_large(error),
            SubmitError::Piece(_) => Self::invalid(error),
            SubmitError::Unsafe { .. } => Self::unavailable(error),
            _ => Self::internal(error),
        }
    }
}

pub(super) async fn no_such_route(uri: Uri) -> No {
    No::unknown(format!(
        "there is no {}: see /api/v1/openapi.json",
        uri.path()
    ))
}

pub(super) async fn no_such_method(uri: Uri) -> No {
    let why = format!(
        "{} does not take this method: see /api/v1/openapi.json",
        uri.path()
    );
    No::new(StatusCode::METHOD_NOT_ALLOWED, "unknown", why)
}
