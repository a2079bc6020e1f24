//! A recording of a system that runs, as one response that goes on for as long as it is made.

use std::io::{self, Write};
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use axum::http::header;
use axum::response::{IntoResponse, Response};
use futures::stream;
use odeon_observe::{Observer, Recorder, today};
use serde::Deserialize;
use tokio::sync::mpsc;

use super::inspection::{Inspect, Origin};
use super::refused::Refused;
use super::standalone;

/// The query for a recording.
#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(super) struct Asked {
    /// For how long.
    seconds: f64,
}

/// The longest.
pub(crate) const SECONDS_MAX: f64 = 3_600.0;
/// Pieces that are on their way to somebody who reads slowly.
const PIECES_MAX: usize = 256;

/// Where a recorder writes to.
struct Pipe(mpsc::Sender<Bytes>);

impl Write for Pipe {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let piece = Bytes::copy_from_slice(bytes);
        match self.0.try_send(piece) {
            Ok(()) => Ok(bytes.len()),
            Err(error) => Err(io::Error::other(error.to_string())),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Records what is seen from now on, and sends the recording.
#[utoipa::path(get, operation_id = "inspect_recording", path = "/api/v1/inspect/recording", params(Asked),
    responses((status = 200, content_type = "application/octet-stream")))]
pub(super) async fn recording(
    State(inspect): State<Inspect>,
    asked: Result<Query<Asked>, QueryRejection>,
) -> Result<Response, Refused> {
    let Query(asked) = asked?;
    let Origin::Living(system) = inspect.origin.clone() else {
        return Err(Refused::Invalid(
            "this is a recording: copy its file".to_owned(),
        ));
    };
    if !(asked.seconds > 0.0 && asked.seconds <= SECONDS_MAX) {
        return Err(Refused::Invalid(format!(
            "`seconds` goes up to {SECONDS_MAX}"
        )));
    }
    // It takes a place of those who look on, and sees for itself from the first look on.
    let viewer = inspect.observer.viewer().ok_or(Refused::TooMany)?;
    let observer = Observer::new(inspect.observer.name(), 1);
    let (sender, receiver) = mpsc::channel(PIECES_MAX);
    let gone = sender.clone();
    let recorder = Recorder::new(Box::new(Pipe(sender)), observer.name(), today());
    observer.record(recorder.map_err(|error| Refused::Invalid(error.to_string()))?);
    let limit = Duration::from_secs_f64(asked.seconds);
    tokio::spawn(async move {
        tokio::select! {
            () = standalone::record(&observer, &inspect, &system, limit) => {}
            () = gone.closed() => {}
        }
        drop(viewer);
        if let Some(Err(error)) = observer.end_recording() {
            tracing::debug!(%error, "a recording has ended early");
        }
    });
    let pieces = stream::unfold(receiver, |mut receiver| async {
        let piece = receiver.recv().await?;
        Some((Ok::<_, io::Error>(piece), receiver))
    });
    let headers = [
        (header::CONTENT_TYPE, "application/octet-stream"),
        (
            header::CONTENT_DISPOSITION,
            "attachment; filename=\"odeon.odr\"",
        ),
    ];
    Ok((headers, Body::from_stream(pieces)).into_response())
}
