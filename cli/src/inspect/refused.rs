//! A page, or why not.

use axum::extract::rejection::QueryRejection;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use odeon_client::inspect as told;
use odeon_observe::filter::FilterError;

/// Why a request is not answered.
#[derive(Debug)]
pub(super) enum Refused {
    /// There is none.
    Unknown(String),
    /// It cannot be read.
    Invalid(String),
    /// It may not be done from here.
    Forbidden(String),
    /// It was not done, or is not known to be.
    Undone(String),
    /// Too many look on.
    TooMany,
}

impl From<FilterError> for Refused {
    fn from(error: FilterError) -> Self {
        Self::Invalid(error.to_string())
    }
}

impl From<QueryRejection> for Refused {
    fn from(error: QueryRejection) -> Self {
        Self::Invalid(error.body_text())
    }
}

impl IntoResponse for Refused {
    fn into_response(self) -> Response {
        let (status, kind, why) = match self {
            Self::Unknown(why) => (StatusCode::NOT_FOUND, "unknown", why),
            Self::Invalid(why) => (StatusCode::BAD_REQUEST, "invalid", why),
            Self::Forbidden(why) => (StatusCode::FORBIDDEN, "forbidden", why),
            Self::Undone(why) => (StatusCode::SERVICE_UNAVAILABLE, "unavailable", why),
            Self::TooMany => (
                StatusCode::TOO_MANY_REQUESTS,
                "too_many",
                "too many pages look on at this node: close one, or look from another node"
                    .to_owned(),
            ),
        };
        let problem = odeon_client::types::Problem {
            kind: kind.to_owned(),
            why,
        };
        (status, axum::Json(problem)).into_response()
    }
}

/// A page, or why not.
pub(super) type Told<T> = Result<axum::Json<told::Envelope<T>>, Refused>;
