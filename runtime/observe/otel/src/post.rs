//! One request to a collector, and what its answer means.

use std::time::Duration;

use bytes::Bytes;
use opentelemetry_proto::tonic::collector::logs::v1::ExportLogsServiceResponse;
use opentelemetry_proto::tonic::collector::metrics::v1::ExportMetricsServiceResponse;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceResponse;
use prost::Message;
use reqwest::StatusCode;
use reqwest::header::{CONTENT_TYPE, RETRY_AFTER};

use crate::outbox::Signal;
use crate::settings::{Endpoint, Settings, SettingsError};

/// The fate of a request.
#[derive(Debug)]
pub(crate) enum Verdict {
    /// It has arrived; so many items were not wanted.
    Arrived { rejected: u64, why: String },
    /// It may arrive when it is sent again, after a while.
    Later {
        pause: Option<Duration>,
        why: String,
    },
    /// It will never be taken.
    Refused { why: String },
}

/// Bytes of an answer that are looked at.
const ANSWER_MAX: usize = 64 << 10;

/// The client that sends requests.
pub(crate) fn client(settings: &Settings) -> Result<reqwest::Client, SettingsError> {
    // Another may have been installed already, which does as well.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let wrong = |error: reqwest::Error| SettingsError::Value {
        from: "OTEL_EXPORTER_OTLP_CERTIFICATE".to_owned(),
        value: error.to_string(),
        why: "keeps TLS from working: it should name a file of certificates in PEM",
    };
    let mut builder = reqwest::Client::builder()
        .user_agent(concat!("odeon-otlp/", env!("CARGO_PKG_VERSION")))
        .redirect(reqwest::redirect::Policy::none());
    if !settings.certificates.is_empty() {
        let certificates = reqwest::Certificate::from_pem_bundle(&settings.certificates);
        builder = builder.tls_certs_merge(certificates.map_err(wrong)?);
    }
    builder.build().map_err(wrong)
}

/// Sends one request.
pub(crate) async fn post(
    client: &reqwest::Client,
    to: &Endpoint,
    signal: Signal,
    body: Bytes,
) -> Verdict {
    let request = client
        .post(to.url.clone())
        .headers(to.headers.clone())
        .header(CONTENT_TYPE, "application/x-protobuf")
        .timeout(to.timeout)
        .body(body);
    let response = match request.send().await {
        Ok(response) => response,
        Err(error) => {
            return Verdict::Later {
                pause: None,
                why: chain(&error),
            };
        }
    };
    let (status, pause) = (response.status(), pause_of(&response));
    // An answer that cannot be read is as good as none.
    let answer = response.bytes().await.unwrap_or_default();
    let answer = answer.slice(..answer.len().min(ANSWER_MAX));
    if status.is_success() {
        let (rejected, why) = rejected(signal, &answer).unwrap_or_default();
        return Verdict::Arrived { rejected, why };
    }
    let text: String = String::from_utf8_lossy(&answer).chars().take(200).collect();
    let text: String = text.chars().filter(|c| !c.is_control()).collect();
    let why = match text.trim() {
        "" => format!("it answers {status}"),
        text => format!("it answers {status}: {text}"),
    };
    match status {
        StatusCode::TOO_MANY_REQUESTS
        | StatusCode::BAD_GATEWAY
        | StatusCode::SERVICE_UNAVAILABLE
        | StatusCode::GATEWAY_TIMEOUT => Verdict::Later { pause, why },
        _ => Verdict::Refused { why },
    }
}

fn pause_of(response: &reqwest::Response) -> Option<Duration> {
    let text = response.headers().get(RETRY_AFTER)?.to_str().ok()?;
    text.trim().parse().ok().map(Duration::from_secs)
}

/// The number of items that were not wanted, and why.
fn rejected(signal: Signal, answer: &[u8]) -> Option<(u64, String)> {
    let (count, why) = match signal {
        Signal::Traces => {
            let partial = ExportTraceServiceResponse::decode(answer)
                .ok()?
                .partial_success?;
            (partial.rejected_spans, partial.error_message)
        }
        Signal::Metrics => {
            let partial = ExportMetricsServiceResponse::decode(answer)
                .ok()?
                .partial_success?;
            (partial.rejected_data_points, partial.error_message)
        }
        Signal::Logs => {
            let partial = ExportLogsServiceResponse::decode(answer)
                .ok()?
                .partial_success?;
            (partial.rejected_log_records, partial.error_message)
        }
    };
    Some((u64::try_from(count).unwrap_or(0), why))
}

/// The text of an error, with what led to it.
fn chain(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(error.source(), |it| it.source());
    let mut texts = vec![error.to_string()];
    texts.extend(causes.map(ToString::to_string));
    texts.dedup();
    texts.join(": ")
}
