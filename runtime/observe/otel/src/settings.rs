//! Where to and how: from a flag, and the variables that all tools of OpenTelemetry read.

use std::time::Duration;

use opentelemetry_sdk::Resource;
use reqwest::Url;
use reqwest::header::{HeaderMap, HeaderName, HeaderValue};
use thiserror::Error;

use crate::outbox::Signal;

/// Where what is seen is sent, and how often.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Where spans go, if anywhere.
    pub traces: Option<Endpoint>,
    /// Where numbers go.
    pub metrics: Option<Endpoint>,
    /// Where records of what has happened go.
    pub logs: Option<Endpoint>,
    /// The time between two requests of spans and records.
    pub interval: Duration,
    /// The time between two readings of numbers.
    pub metrics_interval: Duration,
    /// Bytes of each signal that may wait. 32 MiB are about 100,000 spans.
    pub bytes_max: usize,
    /// Certificates that are trusted beside the system's, in PEM.
    pub certificates: Vec<u8>,
    /// The resource that the user describes, for all processes.
    pub resource: Resource,
}

/// Where one signal goes.
#[derive(Clone, Debug)]
pub struct Endpoint {
    /// The whole address.
    pub url: Url,
    /// Headers that go with each request.
    pub headers: HeaderMap,
    /// The longest time that a request may take.
    pub timeout: Duration,
}

/// Why nothing can be exported so. Nothing has begun.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum SettingsError {
    /// The address cannot be one.
    #[error("{from}: `{url}` is no address of a collector: {why}; write it as http://HOST:4318")]
    Url {
        /// The flag or variable that says so.
        from: String,
        /// The address that it gives.
        url: String,
        /// The reason why it is none.
        why: String,
    },
    /// The protocol is not spoken here.
    #[error(
        "{from}: `{protocol}` is not spoken, only http/protobuf is: collectors take it on port 4318"
    )]
    Protocol {
        /// The flag or variable that says so.
        from: String,
        /// The protocol that it gives.
        protocol: String,
    },
    /// A value cannot be read.
    #[error("{from}: `{value}` {why}")]
    Value {
        /// The flag or variable that says so.
        from: String,
        /// The value that it gives.
        value: String,
        /// The reason, as words that follow the value.
        why: &'static str,
    },
    /// A file cannot be read.
    #[error("{from}: {path} cannot be read: {source}")]
    File {
        /// The flag or variable that names it.
        from: String,
        /// Which.
        path: String,
        /// The error of the operating system.
        source: std::io::Error,
    },
}

const BYTES_MAX: usize = 32 << 20;
const INTERVAL: Duration = Duration::from_secs(1);
const METRICS_INTERVAL: Duration = Duration::from_secs(10);
const TIMEOUT: Duration = Duration::from_secs(10);

impl Settings {
    /// Reads the settings that a flag and the process's variables ask for; `None` when they ask for
    /// nothing. The flag stands above `OTEL_EXPORTER_OTLP_ENDPOINT`.
    ///
    /// # Errors
    /// What is asked for cannot be meant.
    pub fn read(flag: Option<&str>) -> Result<Option<Self>, SettingsError> {
        let variable = |name: &str| std::env::var(name).ok();
        Self::of(flag, &variable, crate::resource::given())
    }

    /// To one collector, as the flag says it.
    ///
    /// # Errors
    /// It is no address.
    pub fn to(url: &str) -> Result<Self, SettingsError> {
        let settings = Self::of(Some(url), &|_| None, Resource::builder_empty().build())?;
        Ok(settings.expect("an address asks for something"))
    }

    fn of(
        flag: Option<&str>,
        variable: &dyn Fn(&str) -> Option<String>,
        resource: Resource,
    ) -> Result<Option<Self>, SettingsError> {
        let variables = Variables(variable);
        if variables.get("OTEL_SDK_DISABLED").as_deref() == Some("true") {
            return Ok(None);
        }
        let endpoint = |signal| variables.endpoint(flag, signal);
        let (traces, metrics, logs) = (
            endpoint(Signal::Traces)?,
            endpoint(Signal::Metrics)?,
            endpoint(Signal::Logs)?,
        );
        if traces.is_none() && metrics.is_none() && logs.is_none() {
            return Ok(None);
        }
        let file = "OTEL_EXPORTER_OTLP_CERTIFICATE";
        let certificates = match variables.get(file) {
            Some(path) => std::fs::read(&path).map_err(|source| SettingsError::File {
                from: file.to_owned(),
                path,
                source,
            })?,
            None => vec![],
        };
        let (interval, metrics_interval) = (
            variables.millis("OTEL_BSP_SCHEDULE_DELAY")?,
            variables.millis("OTEL_METRIC_EXPORT_INTERVAL")?,
        );
        Ok(Some(Self {
            traces,
            metrics,
            logs,
            interval: interval.unwrap_or(INTERVAL),
            metrics_interval: metrics_interval.unwrap_or(METRICS_INTERVAL),
            bytes_max: BYTES_MAX,
            certificates,
            resource,
        }))
    }

    /// Where a signal goes.
    #[must_use]
    pub const fn endpoint(&self, signal: Signal) -> Option<&Endpoint> {
        match signal {
            Signal::Traces => self.traces.as_ref(),
            Signal::Metrics => self.metrics.as_ref(),
            Signal::Logs => self.logs.as_ref(),
        }
    }
}

struct Variables<'a>(&'a dyn Fn(&str) -> Option<String>);

impl Variables<'_> {
    /// One that says something.
    fn get(&self, name: &str) -> Option<String> {
        (self.0)(name).filter(|value| !value.trim().is_empty())
    }

    /// The one of a signal, or the one of all.
    fn of_signal(&self, signal: Signal, what: &str) -> Option<(String, String)> {
        let own = format!("OTEL_EXPORTER_OTLP_{}_{what}", signal.word().to_uppercase());
        let all = format!("OTEL_EXPORTER_OTLP_{what}");
        let found = |name: String| self.get(&name).map(|value| (name, value));
        found(own).or_else(|| found(all))
    }

    fn endpoint(
        &self,
        flag: Option<&str>,
        signal: Signal,
    ) -> Result<Option<Endpoint>, SettingsError> {
        let upper = signal.word().to_uppercase();
        let exporter = format!("OTEL_{upper}_EXPORTER");
        match self.get(&exporter).as_deref() {
            Some("none") => return Ok(None),
            None | Some("otlp") => {}
            Some(other) => {
                return Err(SettingsError::Value {
                    from: exporter,
                    value: other.to_owned(),
                    why: "is none of otlp and none",
                });
            }
        }
        let own = format!("OTEL_EXPORTER_OTLP_{upper}_ENDPOINT");
        let all = "OTEL_EXPORTER_OTLP_ENDPOINT";
        let url = match (self.get(&own), flag) {
            // What is said of one signal is its whole address.
            (Some(url), _) => parsed(&own, &url)?,
            (None, Some(url)) => of_base("--otlp", url, signal)?,
            (None, None) => match self.get(all) {
                Some(url) => of_base(all, &url, signal)?,
                None => return Ok(None),
            },
        };
        let spoken = self.of_signal(signal, "PROTOCOL");
        if let Some((from, protocol)) = spoken.filter(|(_, it)| it != "http/protobuf") {
            return Err(SettingsError::Protocol { from, protocol });
        }
        let pressed = self.of_signal(signal, "COMPRESSION");
        if let Some((from, value)) = pressed.filter(|(_, it)| it != "none") {
            return Err(SettingsError::Value {
                from,
                value,
                why: "is not supported: requests are sent as they are",
            });
        }
        let timeout = self.of_signal(signal, "TIMEOUT");
        let timeout = timeout
            .map(|(from, value)| millis(from, value))
            .transpose()?;
        Ok(Some(Endpoint {
            url,
            headers: self.headers(signal)?,
            timeout: timeout.unwrap_or(TIMEOUT),
        }))
    }

    fn headers(&self, signal: Signal) -> Result<HeaderMap, SettingsError> {
        let mut headers = HeaderMap::new();
        let Some((from, text)) = self.of_signal(signal, "HEADERS") else {
            return Ok(headers);
        };
        for pair in text.split(',').filter(|pair| !pair.trim().is_empty()) {
            let read = || {
                let (name, value) = pair.split_once('=')?;
                let name = HeaderName::try_from(name.trim()).ok()?;
                let mut value = HeaderValue::try_from(decoded(value.trim())).ok()?;
                // It is a key more often than not.
                value.set_sensitive(true);
                Some((name, value))
            };
            let Some((name, value)) = read() else {
                // The rest may be a secret.
                let name = pair.split('=').next().unwrap_or_default();
                return Err(SettingsError::Value {
                    from,
                    value: name.trim().to_owned(),
                    why: "is no header: write NAME=VALUE, with commas between them",
                });
            };
            headers.insert(name, value);
        }
        Ok(headers)
    }

    fn millis(&self, name: &str) -> Result<Option<Duration>, SettingsError> {
        let value = self.get(name);
        value
            .map(|value| millis(name.to_owned(), value))
            .transpose()
    }
}

fn millis(from: String, value: String) -> Result<Duration, SettingsError> {
    match value.trim().parse::<u64>() {
        Ok(ms) if ms > 0 => Ok(Duration::from_millis(ms)),
        _ => Err(SettingsError::Value {
            from,
            value,
            why: "is no number of milliseconds above 0",
        }),
    }
}

/// The address of a signal below a base, by the rules of OTLP.
fn of_base(from: &str, text: &str, signal: Signal) -> Result<Url, SettingsError> {
    let mut url = parsed(from, text)?;
    let path = format!("{}/v1/{}", url.path().trim_end_matches('/'), signal.word());
    url.set_path(&path);
    Ok(url)
}

fn parsed(from: &str, text: &str) -> Result<Url, SettingsError> {
    let wrong = |why: String| SettingsError::Url {
        from: from.to_owned(),
        url: text.to_owned(),
        why,
    };
    let url: Url = text
        .trim()
        .parse()
        .map_err(|error| wrong(format!("{error}")))?;
    match url.scheme() {
        "http" | "https" if url.has_host() => Ok(url),
        other => Err(wrong(format!("`{other}` is neither http nor https"))),
    }
}

/// A text with its `%41` as `A`.
fn decoded(text: &str) -> String {
    let bytes = text.as_bytes();
    let (mut out, mut at) = (Vec::with_capacity(bytes.len()), 0);
    while at < bytes.len() {
        let code = text.get(at + 1..at + 3).filter(|_| bytes[at] == b'%');
        let code = code.and_then(|code| u8::from_str_radix(code, 16).ok());
        out.push(code.unwrap_or(bytes[at]));
        at += if code.is_some() { 3 } else { 1 };
    }
    String::from_utf8_lossy(&out).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(flag: Option<&str>, pairs: &[(&str, &str)]) -> Result<Option<Settings>, SettingsError> {
        let variable = |name: &str| {
            let found = pairs.iter().find(|(known, _)| *known == name);
            found.map(|(_, value)| (*value).to_owned())
        };
        Settings::of(flag, &variable, Resource::builder_empty().build())
    }

    fn url(settings: &Settings, signal: Signal) -> &str {
        settings.endpoint(signal).unwrap().url.as_str()
    }

    #[test]
    fn addresses_follow_the_rules_of_otlp() {
        assert!(of(None, &[]).unwrap().is_none());
        let base = of(
            Some("http://c:4318"),
            &[("OTEL_EXPORTER_OTLP_ENDPOINT", "http://no:1")],
        );
        let base = base.unwrap().unwrap();
        assert_eq!(url(&base, Signal::Traces), "http://c:4318/v1/traces");
        assert_eq!(url(&base, Signal::Metrics), "http://c:4318/v1/metrics");
        let own = of(
            None,
            &[
                ("OTEL_EXPORTER_OTLP_ENDPOINT", "https://c/otlp/"),
                ("OTEL_EXPORTER_OTLP_LOGS_ENDPOINT", "http://d:1/in"),
                ("OTEL_METRICS_EXPORTER", "none"),
                (
                    "OTEL_EXPORTER_OTLP_HEADERS",
                    "authorization=Bearer%20a%2Cb, x-tenant=7",
                ),
                ("OTEL_EXPORTER_OTLP_TIMEOUT", "500"),
            ],
        );
        let own = own.unwrap().unwrap();
        assert_eq!(url(&own, Signal::Traces), "https://c/otlp/v1/traces");
        assert_eq!(url(&own, Signal::Logs), "http://d:1/in");
        assert!(own.metrics.is_none());
        let traces = own.traces.unwrap();
        assert_eq!(traces.headers["authorization"], "Bearer a,b");
        assert_eq!(traces.headers["x-tenant"], "7");
        assert_eq!(traces.timeout, Duration::from_millis(500));
        let off = of(Some("http://c"), &[("OTEL_SDK_DISABLED", "true")]);
        assert!(off.unwrap().is_none());
    }

    #[test]
    fn what_cannot_be_meant_is_named() {
        let said = |flag, pairs: &[(&str, &str)]| of(flag, pairs).unwrap_err().to_string();
        let flag = said(Some("localhost:4318"), &[]);
        assert!(
            flag.starts_with("--otlp: `localhost:4318` is no address"),
            "{flag}"
        );
        assert!(said(Some("http://"), &[]).contains("--otlp"));
        let grpc = [("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")];
        assert!(said(Some("http://c"), &grpc).contains("4318"));
        let secret = [("OTEL_EXPORTER_OTLP_HEADERS", "a b=secret")];
        let secret = said(Some("http://c"), &secret);
        assert!(
            secret.contains("`a b`") && !secret.contains("secret"),
            "{secret}"
        );
        let delay = [("OTEL_BSP_SCHEDULE_DELAY", "soon")];
        assert!(said(Some("http://c"), &delay).contains("milliseconds"));
    }
}
