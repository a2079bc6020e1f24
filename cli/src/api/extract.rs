//! Extractors of the parts of a request: its body, its query, parts of its path. What is wrong with
//! them is answered as all other problems are.

use std::time::Duration;

use axum::body::Bytes;
use axum::extract::rejection::{BytesRejection, JsonRejection, PathRejection, QueryRejection};
use axum::extract::{FromRequest, FromRequestParts, Request};
use axum::http::StatusCode;
use axum::http::request::Parts;
use odeon::Clock;
use serde::de::DeserializeOwned;

use super::problem::No;

/// A body of JSON.
#[derive(Debug)]
pub(super) struct Sent<T>(pub(super) T);

/// A body of bytes.
#[derive(Debug)]
pub(super) struct Raw(pub(super) Bytes);

/// The query.
#[derive(Debug)]
pub(super) struct Query<T>(pub(super) T);

/// The parts of the path that a route leaves open.
#[derive(Debug)]
pub(super) struct Path<T>(pub(super) T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequest<S> for Sent<T> {
    type Rejection = No;

    async fn from_request(request: Request, state: &S) -> Result<Self, No> {
        let read = in_time(axum::Json::<T>::from_request(request, state)).await?;
        let refused = |it: JsonRejection| No::unreadable(it.status(), it.body_text());
        read.map(|axum::Json(value)| Self(value)).map_err(refused)
    }
}

impl<S: Send + Sync> FromRequest<S> for Raw {
    type Rejection = No;

    async fn from_request(request: Request, state: &S) -> Result<Self, No> {
        let read = in_time(Bytes::from_request(request, state)).await?;
        let refused = |it: BytesRejection| No::unreadable(it.status(), it.body_text());
        read.map(Self).map_err(refused)
    }
}

impl<T: DeserializeOwned, S: Send + Sync> FromRequestParts<S> for Query<T> {
    type Rejection = No;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, No> {
        let read = axum::extract::Query::<T>::from_request_parts(parts, state).await;
        let refused = |it: QueryRejection| No::unreadable(it.status(), it.body_text());
        read.map(|axum::extract::Query(value)| Self(value))
            .map_err(refused)
    }
}

impl<T: DeserializeOwned + Send, S: Send + Sync> FromRequestParts<S> for Path<T> {
    type Rejection = No;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, No> {
        let read = axum::extract::Path::<T>::from_request_parts(parts, state).await;
        let refused = |it: PathRejection| No::unreadable(it.status(), it.body_text());
        read.map(|axum::extract::Path(value)| Self(value))
            .map_err(refused)
    }
}

/// A body that has come, unless it takes too long: whoever stops in the middle of it holds its
/// connection no longer.
pub(super) async fn in_time<T>(reading: impl Future<Output = T>) -> Result<T, No> {
    let read = Clock::timeout(BODY_PATIENCE, reading).await;
    read.ok_or_else(|| {
        let why = format!("its body did not come within {} s", BODY_PATIENCE.as_secs());
        No::unreadable(StatusCode::REQUEST_TIMEOUT, why)
    })
}

/// The time that the body of a request may take to come.
const BODY_PATIENCE: Duration = Duration::from_secs(30);
