//! Speaking to a server over HTTP.

use std::path::{Path, PathBuf};
use std::sync::mpsc::Sender;
use std::time::Duration;

use reqwest::{Certificate, Response};
use serde_json::Value;
use tokio::time::{sleep, timeout};

use super::dialect::{Ask, Call, Dialect, Finish, metric};
use super::error::{DecodeError, ServedError, excerpt};
use super::events::Events;
use super::retry::Patience;
use crate::trajectory::SampleId;

/// One attempt at a reply: what comes of others is old news.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Attempt {
    pub(super) id: SampleId,
    pub(super) number: u64,
}

/// News for the engine from the tasks that speak to the server.
#[derive(Debug)]
pub(super) enum News {
    /// New tokens.
    Made(Attempt, Vec<(u32, f32)>),
    /// The reply is whole.
    Ended(Attempt),
    /// It is not.
    Lost(Attempt, ServedError),
    /// Weights were given to the server, or were not, in the so-manieth change.
    Updated(u64, Result<Instance, ServedError>),
}

/// Marks that tell a server from the same one started anew.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Instance {
    /// When its process began, if it tells.
    started: Option<f64>,
    /// The name of its weights, if it keeps such a name.
    pub(super) version: String,
}

/// Numbers that a server tells of itself.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Metrics {
    /// When its process began.
    pub(super) started: Option<f64>,
    /// Part of the room for keys and values that is in use.
    pub(super) cache: Option<f64>,
}

/// One server.
#[derive(Clone, Debug)]
pub(super) struct Client {
    http: reqwest::Client,
    pub(super) dialect: Dialect,
    pub(super) url: String,
    key: Option<String>,
    pub(super) patience: Patience,
}

impl Client {
    pub(super) fn new(
        dialect: Dialect,
        url: &str,
        key: Option<String>,
        patience: Patience,
    ) -> Result<Self, ServedError> {
        // Another may have been installed already, which does as well.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let url = url.trim_end_matches('/').to_owned();
        let wrong = |why: String| ServedError::Settings(format!("{url} is no address: {why}"));
        let parsed = reqwest::Url::parse(&url).map_err(|error| wrong(error.to_string()))?;
        if !matches!(parsed.scheme(), "http" | "https") {
            return Err(wrong("expected http:// or https://".to_owned()));
        }
        let mut builder = reqwest::Client::builder()
            .user_agent(concat!("odeon/", env!("CARGO_PKG_VERSION")))
            .no_proxy()
            .connect_timeout(patience.connect)
            // What is posted twice on the way to another place is not what was asked for.
            .redirect(reqwest::redirect::Policy::none());
        if parsed.scheme() == "http" {
            // No certificate is looked at, so none needs to be on this machine.
            builder = builder.tls_certs_only(Vec::<Certificate>::new());
        }
        let http = builder.build().map_err(|error| wrong(chain(&error)))?;
        Ok(Self {
            http,
            dialect,
            url,
            key,
            patience,
        })
    }

    /// Sends a request and gives the answer when it has begun and is a good one.
    async fn send(
        &self,
        path: &str,
        body: Option<&Value>,
        waits: Duration,
    ) -> Result<Response, ServedError> {
        let url = format!("{}{path}", self.url);
        let request = match body {
            Some(body) => self.http.post(&url).json(body),
            None => self.http.post(&url),
        };
        self.answered(request, url, waits).await
    }

    async fn get(&self, path: &str) -> Result<String, ServedError> {
        let url = format!("{}{path}", self.url);
        let waits = self.patience.idle;
        let response = self
            .answered(self.http.get(&url), url.clone(), waits)
            .await?;
        text(response, &url, waits).await
    }

    async fn answered(
        &self,
        request: reqwest::RequestBuilder,
        url: String,
        waits: Duration,
    ) -> Result<Response, ServedError> {
        let request = match &self.key {
            Some(key) => request.bearer_auth(key),
            None => request,
        };
        let response = match timeout(waits, request.send()).await {
            Ok(Ok(response)) => response,
            Ok(Err(error)) if error.is_connect() => {
                let why = chain(&error);
                return Err(ServedError::Unreachable { url, why });
            }
            Ok(Err(error)) => {
                let why = chain(&error);
                return Err(ServedError::BrokenOff { url, why });
            }
            Err(_) => return Err(ServedError::Silent { url, waited: waits }),
        };
        let status = response.status();
        if status.is_success() {
            return Ok(response);
        }
        // An answer that cannot be read is as good as none.
        let body = text(response, &url, waits).await.unwrap_or_default();
        Err(ServedError::Status {
            url,
            status: status.as_u16(),
            body: excerpt(&body),
        })
    }

    /// Makes a call and waits for all of its answer.
    async fn call(&self, call: &Call, waits: Duration) -> Result<(), ServedError> {
        let url = format!("{}{}", self.url, call.path);
        let response = self.send(&call.path, call.body.as_ref(), waits).await?;
        let status = response.status().as_u16();
        let body = text(response, &url, waits).await?;
        let said: Value = serde_json::from_str(&body).unwrap_or_default();
        if said.get("success") == Some(&Value::Bool(false)) {
            let body = excerpt(&body);
            return Err(ServedError::Status { url, status, body });
        }
        Ok(())
    }

    /// The name of the model that it serves, and the longest sequence that it takes.
    async fn model(&self) -> Result<(String, Option<usize>), ServedError> {
        let said = self.get("/v1/models").await?;
        let strange = |why: String| ServedError::Strange {
            url: format!("{}/v1/models", self.url),
            dialect: self.dialect,
            why: DecodeError::Json {
                why,
                excerpt: excerpt(&said),
            },
        };
        let models: Value = serde_json::from_str(&said).map_err(|e| strange(e.to_string()))?;
        let first = &models["data"][0];
        let name = first["id"].as_str();
        let name = name.ok_or_else(|| strange("it names no model".to_owned()))?;
        let context = first["max_model_len"].as_u64().map(|it| it as usize);
        Ok((name.to_owned(), context))
    }

    /// Asks the server for its metrics; all `None` where it has none.
    pub(super) async fn metrics(&self) -> Result<Metrics, ServedError> {
        let said = match self.get("/metrics").await {
            Err(ServedError::Status { .. }) => return Ok(Metrics::default()),
            said => said?,
        };
        let names = self.dialect.cache_metrics().iter();
        Ok(Metrics {
            started: metric(&said, "process_start_time_seconds"),
            cache: names.filter_map(|name| metric(&said, name)).next(),
        })
    }

    /// Gives it the weights in a folder, once.
    async fn update(&self, folder: &Path, version: &str) -> Result<Instance, ServedError> {
        let waits = self.patience.update;
        let update = self.dialect.update(folder, version);
        let mut done = Ok(());
        for call in &update.calls {
            done = self.call(call, waits).await;
            if done.is_err() {
                break;
            }
        }
        let resumed = self.call(&update.resume, waits).await;
        done.and(resumed)?;
        Ok(Instance {
            started: self.metrics().await?.started,
            version: version.to_owned(),
        })
    }

    /// The same until it goes well, or cannot, or takes longer than a server may be away.
    pub(super) async fn insist(
        self,
        folder: PathBuf,
        version: String,
    ) -> Result<Instance, ServedError> {
        self.until_back(|| self.update(&folder, &version)).await
    }

    /// [`Self::model`], as soon as the server is there.
    pub(super) async fn find_model(self) -> Result<(String, Option<usize>), ServedError> {
        self.until_back(|| self.model()).await
    }

    /// Asks for a reply, and tells what comes of it.
    pub(super) async fn reply(
        self,
        attempt: Attempt,
        model: String,
        ask: Ask,
        instance: Instance,
        after: Duration,
        out: Sender<News>,
    ) {
        sleep(after).await;
        let told = self.stream(attempt, &model, &ask, &instance, &out).await;
        // Nobody listens any more: then nobody wants it.
        let _ = out.send(match told {
            Ok(()) => News::Ended(attempt),
            Err(lost) => News::Lost(attempt, lost),
        });
    }

    async fn stream(
        &self,
        attempt: Attempt,
        model: &str,
        ask: &Ask,
        instance: &Instance,
        out: &Sender<News>,
    ) -> Result<(), ServedError> {
        let restarted = || ServedError::Restarted {
            url: self.url.clone(),
        };
        // A connection holds on to one process: what begins with the right one ends with it.
        let started = self.metrics().await?.started;
        if let (Some(now), Some(then)) = (started, instance.started)
            && now != then
        {
            return Err(restarted());
        }
        let call = self.dialect.generate(model, ask);
        let url = format!("{}{}", self.url, call.path);
        let strange = |why| ServedError::Strange {
            url: url.clone(),
            dialect: self.dialect,
            why,
        };
        let waits = self.patience.idle;
        let mut response = self.send(&call.path, call.body.as_ref(), waits).await?;
        let (mut events, mut have) = (Events::default(), 0);
        while let Some(bytes) = next(&mut response, &url, waits).await? {
            for data in events.push(&bytes).map_err(strange)? {
                if data == "[DONE]" {
                    continue;
                }
                let piece = self.dialect.decode(&data, ask, have).map_err(strange)?;
                if piece.weights.is_some_and(|held| held != instance.version) {
                    return Err(restarted());
                }
                have += piece.tokens.len();
                if !piece.tokens.is_empty() && out.send(News::Made(attempt, piece.tokens)).is_err()
                {
                    return Ok(());
                }
                match piece.finish {
                    Some(Finish::Complete) if have == 0 => {
                        return Err(strange(DecodeError::NoTokens));
                    }
                    Some(Finish::Complete) => return Ok(()),
                    Some(Finish::Aborted(why)) => {
                        return Err(ServedError::Aborted {
                            url: url.clone(),
                            why,
                        });
                    }
                    None => {}
                }
            }
        }
        Err(ServedError::BrokenOff {
            url: url.clone(),
            why: format!("the stream ended after {have} tokens, and the reply did not"),
        })
    }

    /// Does something until it goes well, or cannot, or takes longer than a server may be away.
    async fn until_back<T, F>(&self, mut work: impl FnMut() -> F) -> Result<T, ServedError>
    where
        F: Future<Output = Result<T, ServedError>>,
    {
        let mut last = None;
        let begun = odeon::Clock::now();
        let trying = async {
            for failures in 1.. {
                match work().await {
                    Err(error) if super::retry::passes(&error) => {
                        tracing::warn!(%error, "a server of replies; it is tried again");
                        last = Some(error);
                    }
                    done => return Some(done),
                }
                if odeon::Clock::now().since(begun) >= self.patience.away {
                    break;
                }
                sleep(self.patience.pause(failures)).await;
            }
            None
        };
        // One call that takes its time is not cut short by those before.
        let longest = self.patience.away + self.patience.update;
        if let Ok(Some(done)) = timeout(longest, trying).await {
            return done;
        }
        let waited = odeon::Clock::now().since(begun);
        let url = self.url.clone();
        let last = Box::new(last.unwrap_or(ServedError::Silent { url, waited }));
        Err(ServedError::GivenUp { waited, last })
    }
}

/// The next bytes of an answer; none at its end.
async fn next(
    response: &mut Response,
    url: &str,
    waits: Duration,
) -> Result<Option<Vec<u8>>, ServedError> {
    match timeout(waits, response.chunk()).await {
        Ok(Ok(bytes)) => Ok(bytes.map(|bytes| bytes.to_vec())),
        Ok(Err(error)) => Err(ServedError::BrokenOff {
            url: url.to_owned(),
            why: chain(&error),
        }),
        Err(_) => Err(ServedError::Silent {
            url: url.to_owned(),
            waited: waits,
        }),
    }
}

/// All of an answer that is no stream.
async fn text(mut response: Response, url: &str, waits: Duration) -> Result<String, ServedError> {
    let mut all = vec![];
    while all.len() < ANSWER_BYTES_MAX
        && let Some(bytes) = next(&mut response, url, waits).await?
    {
        all.extend(bytes);
    }
    Ok(String::from_utf8_lossy(&all).into_owned())
}

/// The text of an error and of its causes.
fn chain(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(error.source(), |it| it.source());
    let mut texts = vec![error.to_string()];
    texts.extend(causes.map(ToString::to_string));
    texts.dedup();
    texts.join(": ")
}

/// Of an answer that is no stream; the rest of a longer one is not read.
const ANSWER_BYTES_MAX: usize = 4 << 20;
