//! The client.

use std::collections::HashSet;
use std::fs::File;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use futures::StreamExt;
use futures::stream::FuturesUnordered;
use odeon_artifacts::{Listing, Piece};
use reqwest::header::{CONTENT_TYPE, HeaderMap, HeaderValue, RETRY_AFTER};
use reqwest::{Method, StatusCode};
use serde::Serialize;
use serde::de::DeserializeOwned;
use thiserror::Error;
use tokio::sync::watch;

use crate::connection::{Connection, default_folder};
use crate::majority::{MAJORITY_HEADER, Majority};
use crate::recovery::{OrderRecovery, Recovery, RecoveryOrdered};
use crate::route::Route;
use crate::submission::{Submission, SubmissionError};
use crate::types::{
    ActOnArray, ArrayAct, CheckedCluster, CheckedNode, Drain, GroupTest, GroupTested, Job, Key,
    Lines, Namespace, NamespaceUse, NewKey, NewToken, News, Node, Offered, Problem, Refuse,
    RollBackJob, Stacks, Status, StopJob, Token, UpdateJob, Voters,
};

/// A connection to the API of a cluster. Clones share it.
#[derive(Clone, Debug)]
pub struct Client {
    key: String,
    endpoints: Arc<[Endpoint]>,
    /// The one that answered last.
    present: Arc<AtomicUsize>,
    /// Set once one has answered at all.
    is_known: Arc<AtomicBool>,
    /// The state of the voters' majority, as the last answer told it.
    majority: Arc<watch::Sender<Majority>>,
}

/// A node's API.
#[derive(Debug)]
struct Endpoint {
    http: reqwest::Client,
    url: String,
}

/// A request, as often as it is sent.
#[derive(Debug)]
struct Call {
    method: Method,
    path: Route,
    body: Option<(&'static str, Bytes)>,
    /// Set if a second one does no harm when nobody knows what became of the first.
    may_repeat: bool,
    /// The time that an answer may take.
    patience: Duration,
}

impl Call {
    fn new(method: Method, path: Route) -> Self {
        Self {
            may_repeat: method == Method::GET || method == Method::PUT,
            method,
            path,
            body: None,
            patience: PATIENCE,
        }
    }

    fn bytes(mut self, bytes: impl Into<Bytes>) -> Self {
        self.body = Some(("application/octet-stream", bytes.into()));
        self
    }

    fn json(mut self, body: &impl Serialize) -> Result<Self, ClientError> {
        let body = serde_json::to_vec(body).map_err(ClientError::Unwritable)?;
        self.body = Some(("application/json", body.into()));
        Ok(self)
    }

    const fn may_repeat(mut self) -> Self {
        self.may_repeat = true;
        self
    }
}

/// Why the API did not do what was asked.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ClientError {
    /// No daemon is known here.
    #[error("no cluster is known here ({}: {source}): start one with `odeon up`, or name one with --dir or ODEON_CONNECTION", .path.display())]
    NoCluster {
        /// The file that was looked for.
        path: PathBuf,
        /// The error of the operating system.
        source: std::io::Error,
    },
    /// The file that tells how to reach it is none.
    #[error("{} does not say how to reach a cluster: {why}", .path.display())]
    Connection {
        /// Which.
        path: PathBuf,
        /// In what way.
        why: String,
    },
    /// Nobody answers.
    #[error("the cluster at {url} does not answer: {why}; is its daemon up? (odeon up starts it)")]
    Silent {
        /// Where.
        url: String,
        /// Set if it may have heard what was asked.
        was_sent: bool,
        /// The failure that was seen, in words.
        why: String,
    },
    /// A name that cannot be a part of an address. Nothing was asked.
    #[error("`{name}` is no name: it may not be empty, `.` or `..`")]
    Name {
        /// Which.
        name: String,
    },
    /// No node is known.
    #[error("the connection names no node")]
    Nowhere,
    /// It answers that it will not.
    #[error("{}", .problem.why)]
    Refused {
        /// The status.
        status: u16,
        /// Why.
        problem: Problem,
    },
    /// It was asked too much at once, and for longer than is waited for. Nothing was done.
    #[error("{}", .problem.why)]
    TooMany {
        /// When it may be asked again.
        again_after: Duration,
        /// In its own words.
        problem: Problem,
    },
    /// It answers something else.
    #[error("the cluster at {url} answers what is no answer: {why}")]
    Strange {
        /// Where.
        url: String,
        /// In what way.
        why: String,
    },
    /// The files of a job.
    #[error(transparent)]
    Submission(#[from] SubmissionError),
    /// The body of a request cannot be written down.
    #[error("the request cannot be written: {0}")]
    Unwritable(serde_json::Error),
    /// A file has changed while it was uploaded.
    #[error("{}: {source}", .path.display())]
    File {
        /// Which.
        path: PathBuf,
        /// The error of the operating system.
        source: std::io::Error,
    },
}

/// Why a request has no answer.
#[derive(Debug)]
enum Unanswered {
    /// No node has one; they may be asked again.
    ByAll(ClientError),
    /// Nobody may be asked again.
    Final(ClientError),
}

/// The progress of an upload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Upload {
    /// Bytes of all files.
    pub bytes: u64,
    /// Those that the cluster had already.
    pub known: u64,
    /// Those that have been put.
    pub put: u64,
}

/// When it is first looked whether a node lives that has not answered yet, how long that may take, and
/// the longest pause until the next look.
const LOOK_PAUSE: Duration = Duration::from_secs(1);
const LOOK_PATIENCE: Duration = Duration::from_secs(1);
const LOOK_PAUSE_MAX: Duration = Duration::from_secs(4);
/// The time that a node may take to say that it is there, before it is asked what cannot be
/// repeated.
const THERE_PATIENCE: Duration = Duration::from_secs(2);
/// The number of times that files are uploaded again which whoever answers now has not got.
const UPLOADS_AGAIN: u32 = 3;
/// The time that the connection may take.
const CONNECT_PATIENCE: Duration = Duration::from_secs(10);
/// The time that an answer may take, beyond what it is asked to wait.
const PATIENCE: Duration = Duration::from_secs(60);
/// The seconds of a group test's limit where it is given none.
const GROUP_LIMIT_S: u64 = 30;
/// The seconds that one long look waits for news.
const LONG_LOOK_S: u64 = 20;
/// The name that every certificate of a cluster is valid for.
const CLUSTER_NAME: &str = "member.odeon";
/// The number of times that nodes that have answered before are looked for again, and the pause
/// between.
const RETURN_ROUNDS: u32 = 100;
const RETURN_PAUSE: Duration = Duration::from_millis(200);
/// The longest time that is waited as a node tells that asks for more than it may, and each time.
const TOO_MANY_PATIENCE: Duration = Duration::from_secs(600);
const TOO_MANY_PAUSE_MAX: Duration = Duration::from_secs(60);
/// The time for which a connection is kept that nobody uses: a daemon closes it a few seconds later.
const IDLE_PATIENCE: Duration = Duration::from_secs(5);
/// Pieces that are put at the same time.
const PUTS: usize = 4;

impl Endpoint {
    fn new(url: &str, authority: Option<&str>) -> Result<Self, ClientError> {
        let mut url = url.to_owned();
        let named = url.clone();
        let strange = |why: String| ClientError::Strange {
            url: named.clone(),
            why,
        };
        let mut builder = reqwest::Client::builder()
            .no_proxy()
            .pool_idle_timeout(IDLE_PATIENCE)
            .connect_timeout(CONNECT_PATIENCE);
        if let Some(authority) = authority {
            let certificate = reqwest::Certificate::from_pem(authority.as_bytes());
            let certificate = certificate.map_err(|error| strange(error.to_string()))?;
            builder = builder.tls_certs_only([certificate]);
            // The certificates name members of the cluster, not hosts.
            let parsed = reqwest::Url::parse(&url).map_err(|e| strange(e.to_string()))?;
            let addresses = parsed
                .socket_addrs(|| None)
                .map_err(|error| strange(error.to_string()))?;
            let port = parsed.port_or_known_default().unwrap_or(443);
            builder = builder.resolve_to_addrs(CLUSTER_NAME, &addresses);
            url = format!("https://{CLUSTER_NAME}:{port}");
        }
        let http = builder
            .build()
            .map_err(|error| strange(error.to_string()))?;
        Ok(Self { http, url })
    }

    /// The bytes of an answer, `null` for one without a body.
    async fn send(
        &self,
        key: &str,
        call: &Call,
        majority: &watch::Sender<Majority>,
    ) -> Result<Bytes, ClientError> {
        let url = format!("{}/api/v1/{}", self.url, call.path);
        let mut request = self
            .http
            .request(call.method.clone(), url)
            .bearer_auth(key)
            .timeout(call.patience);
        if let Some((kind, body)) = &call.body {
            request = request.header(CONTENT_TYPE, *kind).body(body.clone());
        }
        let silent = |error: reqwest::Error| ClientError::Silent {
            url: self.url.clone(),
            was_sent: !error.is_connect(),
            why: in_short(&error),
        };
        let answer = request.send().await.map_err(silent)?;
        let status = answer.status();
        let told = answer.headers().get(MAJORITY_HEADER);
        majority.send_replace(Majority::of_word(told.map(HeaderValue::as_bytes)));
        let again_after = again_after(status, answer.headers());
        let bytes = answer.bytes().await.map_err(silent)?;
        if !status.is_success() {
            let refused = refused(status, &bytes);
            return Err(match (refused, again_after) {
                (ClientError::Refused { problem, .. }, Some(again_after)) => ClientError::TooMany {
                    again_after,
                    problem,
                },
                (refused, _) => refused,
            });
        }
        Ok(if status == StatusCode::NO_CONTENT {
            Bytes::from_static(b"null")
        } else {
            bytes
        })
    }

    /// Asks for an answer that goes on, and gives it when it has begun.
    async fn open(&self, key: &str, path: &Route) -> Result<reqwest::Response, ClientError> {
        let url = format!("{}/api/v1/{path}", self.url);
        let silent = |why: String| ClientError::Silent {
            url: self.url.clone(),
            was_sent: true,
            why,
        };
        let begun = async {
            let answer = self.http.get(url).bearer_auth(key).send().await;
            let answer = answer.map_err(|error| silent(in_short(&error)))?;
            let status = answer.status();
            if status.is_success() {
                return Ok(answer);
            }
            let bytes = answer.bytes().await;
            Err(refused(
                status,
                &bytes.map_err(|error| silent(in_short(&error)))?,
            ))
        };
        let begun = tokio::time::timeout(CONNECT_PATIENCE, begun).await;
        begun.unwrap_or_else(|_| Err(silent("time is up".to_owned())))
    }

    /// Returns true if it says anything in time.
    async fn is_there(&self, patience: Duration) -> bool {
        let url = format!("{}/api/v1/version", self.url);
        let asked = self.http.get(url).timeout(patience).send().await;
        asked.is_ok()
    }

    /// Resolves when it says nothing at all.
    async fn hangs(&self) {
        let mut pause = LOOK_PAUSE;
        loop {
            tokio::time::sleep(pause).await;
            if !self.is_there(LOOK_PATIENCE).await {
                return;
            }
            pause = (2 * pause).min(LOOK_PAUSE_MAX);
        }
    }
}

impl ClientError {
    /// Returns true if nobody has answered who could: nodes are down, or on their way up or down.
    #[must_use]
    pub fn is_away(&self) -> bool {
        match self {
            Self::Silent { .. } => true,
            Self::Refused { problem, .. } => problem.kind == "unavailable",
            _ => false,
        }
    }

    /// Returns true if this is to be told, of two failures of different nodes.
    const fn says_more_than(&self, other: &Self) -> bool {
        matches!(self, Self::Refused { .. }) || matches!(other, Self::Silent { .. })
    }

    /// Returns true if another node may be asked the same.
    fn may_try_another(&self, may_repeat: bool) -> bool {
        match self {
            Self::Silent { was_sent, .. } => may_repeat || !was_sent,
            Self::Refused { problem, .. } => may_repeat && problem.kind == "unavailable",
            _ => false,
        }
    }
}

impl Client {
    /// To the cluster that the environment names, or else the daemon of this machine.
    ///
    /// # Errors
    /// None is known.
    pub fn local() -> Result<Self, ClientError> {
        Self::new(Connection::find(&default_folder())?)
    }

    /// To the cluster that a connection describes.
    ///
    /// # Errors
    /// The connection cannot be meant.
    pub fn new(connection: Connection) -> Result<Self, ClientError> {
        // Another may have been installed already, which does as well.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let urls = std::iter::once(&connection.url).chain(&connection.others);
        let endpoints = urls.map(|url| Endpoint::new(url, connection.authority.as_deref()));
        Ok(Self {
            endpoints: endpoints.collect::<Result<_, _>>()?,
            key: connection.key,
            present: Arc::default(),
            is_known: Arc::default(),
            majority: Arc::default(),
        })
    }

    /// The state of the voters' majority, as the last answer told it.
    #[must_use]
    pub fn majority(&self) -> Majority {
        *self.majority.borrow()
    }

    /// The answer to a request of a node that answers.
    async fn send<T: DeserializeOwned>(&self, call: Call) -> Result<T, ClientError> {
        let (at, answer) = self.send_bytes(call).await?;
        serde_json::from_slice(&answer).map_err(|error| ClientError::Strange {
            url: self.endpoints[at].url.clone(),
            why: error.to_string(),
        })
    }

    /// The bytes of that, and which node they are from. When one has answered before, all of them are
    /// given a while to come back. Of its own, so that it is compiled once for all kinds of answers.
    #[odeon_macros::boxed]
    async fn send_bytes(&self, call: Call) -> Result<(usize, Bytes), ClientError> {
        if !call.may_repeat && !self.is_known.load(Ordering::Relaxed) {
            self.look_around().await;
        }
        let mut rounds = 0;
        let mut waited = Duration::ZERO;
        loop {
            rounds += 1;
            let error = match self.ask(&call).await {
                Err(Unanswered::ByAll(error)) => error,
                // Nothing was done, so it may be asked whatever it is.
                Err(Unanswered::Final(ClientError::TooMany { again_after, .. }))
                    if waited < TOO_MANY_PATIENCE =>
                {
                    waited += again_after;
                    tokio::time::sleep(again_after).await;
                    continue;
                }
                Err(Unanswered::Final(error)) => return Err(error),
                Ok(answer) => return Ok(answer),
            };
            // Whoever says that waits for an election itself.
            let refused = matches!(error, ClientError::Refused { .. })
                && self.majority() == Majority::Missing;
            let known = self.is_known.load(Ordering::Relaxed) && !refused;
            if !known || !error.is_away() || rounds > RETURN_ROUNDS {
                return Err(error);
            }
            tokio::time::sleep(RETURN_PAUSE).await;
        }
    }

    /// Takes the first node that is there, before one is asked what cannot be repeated.
    async fn look_around(&self) {
        if self.endpoints.len() == 1 {
            return;
        }
        for at in self.order() {
            if self.endpoints[at].is_there(THERE_PATIENCE).await {
                self.present.store(at, Ordering::Relaxed);
                return;
            }
        }
    }

    /// The nodes in the order in which they are asked: first the one that has answered last.
    fn order(&self) -> impl Iterator<Item = usize> + use<> {
        let (first, count) = (self.present.load(Ordering::Relaxed), self.endpoints.len());
        (0..count).map(move |at| (first + at) % count)
    }

    /// Asks one node after the other. The next one's turn comes when one fails, or says nothing at all;
    /// of those that were asked, the first answer counts.
    async fn ask(&self, call: &Call) -> Result<(usize, Bytes), Unanswered> {
        let mut order = self.order();
        let mut last = None;
        let mut failure: Option<ClientError> = None;
        let mut asked = FuturesUnordered::new();
        let mut watched = FuturesUnordered::new();
        let mut is_due = true;
        loop {
            if is_due && let Some(at) = order.next() {
                let endpoint = &self.endpoints[at];
                asked.push(
                    async move { (at, endpoint.send(&self.key, call, &self.majority).await) },
                );
                watched.push(async move {
                    endpoint.hangs().await;
                    at
                });
                last = Some(at);
            }
            if asked.is_empty() {
                let error = failure.unwrap_or(ClientError::Nowhere);
                return Err(Unanswered::ByAll(error));
            }
            let at = tokio::select! {
                Some((at, outcome)) = asked.next() => match outcome {
                    Err(error) if error.may_try_another(call.may_repeat) => {
                        failure = Some(match failure {
                            Some(first) if first.says_more_than(&error) => first,
                            _ => error,
                        });
                        at
                    }
                    Err(error @ ClientError::Silent { .. }) => return Err(Unanswered::Final(error)),
                    outcome => {
                        self.present.store(at, Ordering::Relaxed);
                        self.is_known.store(true, Ordering::Relaxed);
                        let answer = outcome.map_err(Unanswered::Final)?;
                        return Ok((at, answer));
                    }
                },
                Some(at) = watched.next(), if call.may_repeat => at,
            };
            is_due = last == Some(at);
        }
    }

    /// The answer of a route, in a time that is not the usual one.
    pub(crate) async fn look<T: DeserializeOwned>(
        &self,
        path: Route,
        patience: Duration,
    ) -> Result<T, ClientError> {
        let call = Call::new(Method::GET, path);
        self.send(Call { patience, ..call }).await
    }

    /// An answer that goes on, of the first node that gives one, and where that is.
    pub(crate) async fn open(
        &self,
        path: Route,
    ) -> Result<(reqwest::Response, String), ClientError> {
        let mut failure: Option<ClientError> = None;
        for at in self.order() {
            let endpoint = &self.endpoints[at];
            match endpoint.open(&self.key, &path).await {
                Ok(answer) => {
                    self.present.store(at, Ordering::Relaxed);
                    return Ok((answer, endpoint.url.clone()));
                }
                Err(error) if error.is_away() => {
                    failure = Some(match failure {
                        Some(first) if first.says_more_than(&error) => first,
                        _ => error,
                    });
                }
                Err(error) => return Err(error),
            }
        }
        Err(failure.unwrap_or(ClientError::Nowhere))
    }

    async fn get<T: DeserializeOwned>(&self, path: Route) -> Result<T, ClientError> {
        self.send(Call::new(Method::GET, path)).await
    }

    async fn post<T: DeserializeOwned>(
        &self,
        path: Route,
        body: &impl Serialize,
    ) -> Result<T, ClientError> {
        self.send(Call::new(Method::POST, path).json(body)?).await
    }

    /// The cluster at the moment.
    ///
    /// # Errors
    /// See [`ClientError`]; so do all methods below.
    #[odeon_macros::boxed]
    pub async fn status(&self) -> Result<Status, ClientError> {
        self.get(Route::to(["status"])?).await
    }

    /// The checks of all nodes' machines, made now.
    ///
    /// # Errors
    /// See [`ClientError`].
    #[odeon_macros::boxed]
    pub async fn machines(&self) -> Result<CheckedCluster, ClientError> {
        self.get(Route::to(["machines"])?).await
    }

    /// The nodes.
    ///
    /// # Errors
    /// See [`ClientError`].
    #[odeon_macros::boxed]
    pub async fn nodes(&self) -> Result<Vec<Node>, ClientError> {
        self.get(Route::to(["nodes"])?).await
    }

    /// Has a node get no new jobs, or get some again.
    ///
    /// # Errors
    /// See [`ClientError`].
    #[odeon_macros::boxed]
    pub async fn drain(&self, node: &str, drained: bool) -> Result<(), ClientError> {
        self.post(Route::to(["nodes", node, "drain"])?, &Drain { drained })
            .await
    }

    /// Has nothing placed on a node from now on, or lets it have work again.
    ///
    /// # Errors
    /// See [`ClientError`].
    #[odeon_macros::boxed]
    pub async fn refuse(&self, node: &str, refused: bool, why: &str) -> Result<(), ClientError> {
        let why = why.to_owned();
        self.post(
            Route::to(["nodes", node, "refuse"])?,
            &Refuse { refused, why },
        )
        .await
    }

    /// Checks a node's machine and its arithmetic now. One that is refused and passes may get work again.
    ///
    /// # Errors
    /// See [`ClientError`].
    #[odeon_macros::boxed]
    pub async fn check(&self, node: &str) -> Result<CheckedNode, ClientError> {
        self.post(Route::to(["nodes", node, "check"])?, &()).await
    }

    /// Has nodes make the same training steps in groups, in two rounds, to find the one that is to blame.
    ///
    /// # Errors
    /// See [`ClientError`].
    #[odeon_macros::boxed]
    pub async fn test_group(&self, wanted: &GroupTest) -> Result<GroupTested, ClientError> {
        let limit = Duration::from_secs(wanted.limit_s.unwrap_or(GROUP_LIMIT_S));
        let call = Call::new(Method::POST, Route::to(["group-test"])?).json(wanted)?;
        // In each of two rounds processes begin, then groups replay.
        let patience = PATIENCE + limit * 4;
        self.send(Call { patience, ..call }).await
    }

    /// Has a node become the program that lies where its own did, while what it runs goes on. It is
    /// another program a moment later: see [`Node::upgrades`](crate::types::Node::upgrades).
    ///
    /// # Errors
    /// See [`ClientError`].
    #[odeon_macros::boxed]
    pub async fn upgrade(&self, node: &str) -> Result<(), ClientError> {
        self.send(Call::new(
            Method::POST,
            Route::to(["nodes", node, "upgrade"])?,
        ))
        .await
    }

    /// Forgets a node that is gone.
    ///
    /// # Errors
    /// See [`ClientError`].
    #[odeon_macros::boxed]
    pub async fn forget(&self, node: &str) -> Result<(), ClientError> {
        self.send(Call::new(Method::DELETE, Route::to(["nodes", node])?))
            .await
    }

    /// Makes a join token.
    ///
    /// # Errors
    /// See [`ClientError`].
    #[odeon_macros::boxed]
    pub async fn token(&self, uses: u32, valid: Duration) -> Result<Token, ClientError> {
        let valid_s = valid.as_secs();
        self.post(Route::to(["tokens"])?, &NewToken { uses, valid_s })
            .await
    }

    /// The keys of the API, without what is secret.
    ///
    /// # Errors
    /// See [`ClientError`].
    #[odeon_macros::boxed]
    pub async fn keys(&self) -> Result<Vec<Key>, ClientError> {
        self.get(Route::to(["keys"])?).await
    }

    /// Makes a key.
    ///
    /// # Errors
    /// See [`ClientError`].
    #[odeon_macros::boxed]
    pub async fn make_key(&self, name: &str, role: &str) -> Result<Key, ClientError> {
        let (name, role) = (name.to_owned(), role.to_owned());
        self.post(Route::to(["keys"])?, &NewKey { name, role })
            .await
    }

    /// Revokes a key.
    ///
    /// # Errors
    /// See [`ClientError`].
    #[odeon_macros::boxed]
    pub async fn revoke_key(&self, name: &str) -> Result<(), ClientError> {
        self.send(Call::new(Method::DELETE, Route::to(["keys", name])?))
            .await
    }

    /// The namespaces that have bounds or jobs.
    ///
    /// # Errors
    /// See [`ClientError`].
    #[odeon_macros::boxed]
    pub async fn namespaces(&self) -> Result<Vec<NamespaceUse>, ClientError> {
        self.get(Route::to(["namespaces"])?).await
    }

    /// Sets the bounds of a namespace.
    ///
    /// # Errors
    /// See [`ClientError`].
    #[odeon_macros::boxed]
    pub async fn set_namespace(&self, name: &str, bounds: Namespace) -> Result<(), ClientError> {
        let call = Call::new(Method::PUT, Route::to(["namespaces", name])?);
        self.send(call.json(&bounds)?).await
    }

    /// Sets how many nodes shall vote.
    ///
    /// # Errors
    /// See [`ClientError`].
    #[odeon_macros::boxed]
    pub async fn set_voters(&self, count: u32) -> Result<(), ClientError> {
        let call = Call::new(Method::PUT, Route::to(["voters"])?).json(&Voters { count })?;
        self.send(call).await
    }

    /// The last events, oldest first.
    ///
    /// # Errors
    /// See [`ClientError`].
    #[odeon_macros::boxed]
    pub async fn news(&self) -> Result<Vec<News>, ClientError> {
        self.get(Route::to(["news"])?).await
    }

    // ---- jobs ----

    /// Uploads what is missing of a job's files, and submits it. `progress` hears how far that is.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn submit(
        &self,
        submission: &Submission,
        mut progress: impl FnMut(Upload),
    ) -> Result<Job, ClientError> {
        // Whoever has not heard the answer asks again, and gets the same job.
        let mut job = submission.job().clone();
        job.word
            .get_or_insert_with(|| format!("{:032x}", rand::random::<u128>()));
        let mut lacked = 0;
        loop {
            self.upload(submission, &mut progress).await?;
            let call = Call::new(Method::POST, Route::to(["jobs"])?).json(&job)?;
            let submitted = self.send(call.may_repeat()).await;
            let lacks = |problem: &Problem| problem.kind == "conflict";
            match submitted {
                // Whoever answers now has not got the files: another node, or another voter to which the node hands on.
                Err(ClientError::Refused { problem, .. })
                    if lacks(&problem) && lacked < UPLOADS_AGAIN =>
                {
                    lacked += 1;
                }
                submitted => return submitted,
            }
        }
    }

    /// Has a job go over to another program. Its files are those of a submission, where there is one: what is to change then
    /// stands in the update.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn update(
        &self,
        id: &str,
        update: &UpdateJob,
        files: Option<&Submission>,
        mut progress: impl FnMut(Upload),
    ) -> Result<Job, ClientError> {
        // Whoever has not heard the answer asks again, and it counts once.
        let mut update = update.clone();
        update
            .word
            .get_or_insert_with(|| format!("{:032x}", rand::random::<u128>()));
        let mut lacked = 0;
        loop {
            if let Some(submission) = files {
                self.upload(submission, &mut progress).await?;
            }
            let route = Route::to(["jobs", id, "update"])?;
            let call = Call::new(Method::POST, route).json(&update)?;
            let updated = self.send(call.may_repeat()).await;
            match updated {
                // Whoever answers now may not have got the files, as above.
                Err(ClientError::Refused { problem, .. })
                    if files.is_some() && problem.kind == "conflict" && lacked < UPLOADS_AGAIN =>
                {
                    lacked += 1;
                }
                updated => return updated,
            }
        }
    }

    /// Has a job go back to a version.
    ///
    /// # Errors
    /// See [`ClientError`].
    #[odeon_macros::boxed]
    pub async fn roll_back(&self, id: &str, to: &RollBackJob) -> Result<Job, ClientError> {
        self.post(Route::to(["jobs", id, "rollback"])?, to).await
    }

    /// Uploads what is missing.
    async fn upload(
        &self,
        submission: &Submission,
        progress: &mut impl FnMut(Upload),
    ) -> Result<(), ClientError> {
        let bundle = submission.bundle();
        let call = Call::new(Method::POST, Route::to(["bundles"])?).bytes(bundle.encode());
        let offered: Offered = self.send(call.may_repeat()).await?;
        let missing: HashSet<&str> = offered.missing.iter().map(String::as_str).collect();
        let bytes = bundle.bytes();
        let lacks = |piece: &Piece| missing.contains(piece.digest.to_string().as_str());
        let mut upload = Upload {
            bytes,
            known: bytes,
            put: 0,
        };
        let mut todo: Vec<(Piece, std::ops::Range<u64>, PathBuf)> = vec![];
        let mut seen = HashSet::new();
        for (name, file) in bundle.files() {
            let listing = &file.listing;
            for (piece, range) in listing.pieces().iter().zip(listing.ranges()) {
                if lacks(piece) {
                    upload.known -= u64::from(piece.bytes);
                    if seen.insert(piece.digest)
                        && let Some(source) = submission.source(name)
                    {
                        todo.push((*piece, range, source.to_owned()));
                    }
                }
            }
        }
        progress(upload);
        let mut under_way = tokio::task::JoinSet::new();
        let mut todo = todo.into_iter();
        loop {
            while under_way.len() < PUTS
                && let Some((piece, range, path)) = todo.next()
            {
                let client = self.clone();
                under_way.spawn(async move { client.put(piece, range, path).await });
            }
            let Some(done) = under_way.join_next().await else {
                break;
            };
            upload.put += done.unwrap_or_else(|error| {
                Err(ClientError::File {
                    path: submission.program().to_owned(),
                    source: std::io::Error::other(error),
                })
            })?;
            progress(upload);
        }
        Ok(())
    }

    async fn put(
        &self,
        piece: Piece,
        range: std::ops::Range<u64>,
        path: PathBuf,
    ) -> Result<u64, ClientError> {
        let failed = |source| ClientError::File {
            path: path.clone(),
            source,
        };
        let file = File::open(&path).map_err(failed)?;
        let bytes = Listing::read(&file, range, &piece).map_err(failed)?;
        let call = Call::new(
            Method::PUT,
            Route::to(["pieces", &piece.digest.to_string()])?,
        );
        self.send::<()>(call.bytes(bytes)).await?;
        Ok(u64::from(piece.bytes))
    }

    /// Jobs, the newest first.
    ///
    /// # Errors
    /// See [`ClientError`].
    #[odeon_macros::boxed]
    pub async fn jobs(&self, limit: usize, all: bool) -> Result<Vec<Job>, ClientError> {
        let route = Route::to(["jobs"])?.with("limit", limit).with("all", all);
        self.get(route).await
    }

    /// A job.
    ///
    /// # Errors
    /// See [`ClientError`].
    #[odeon_macros::boxed]
    pub async fn job(&self, id: &str) -> Result<Job, ClientError> {
        self.get(Route::to(["jobs", id])?).await
    }

    /// Where the programs of a job stand at this moment: with native frames, for which they stand for some tenths of a
    /// second, or with those of Python alone.
    ///
    /// # Errors
    /// See [`ClientError`].
    #[odeon_macros::boxed]
    pub async fn stacks(&self, id: &str, native: bool) -> Result<Stacks, ClientError> {
        let route = Route::to(["jobs", id, "stacks"])?;
        let native = if native { "true" } else { "false" };
        self.get(route.with("native", native)).await
    }

    /// The jobs that a word stands for: that of a number; else those of the newest job or array of a
    /// name, in the order of their numbers. Nothing, where there is none.
    ///
    /// # Errors
    /// See [`ClientError`].
    #[odeon_macros::boxed]
    pub async fn named(&self, word: &str) -> Result<Vec<Job>, ClientError> {
        self.get(Route::to(["jobs"])?.with("named", word)).await
    }

    /// Does something with all jobs of an array, which the number of any of them names.
    ///
    /// # Errors
    /// See [`ClientError`].
    #[odeon_macros::boxed]
    pub async fn act_on_array(&self, job: &str, act: ArrayAct) -> Result<(), ClientError> {
        let route = Route::to(["jobs", job, "array"])?;
        self.post(route, &ActOnArray { act }).await
    }

    /// Ends a job; by force, it is killed.
    ///
    /// # Errors
    /// See [`ClientError`].
    #[odeon_macros::boxed]
    pub async fn stop(&self, id: &str, force: bool) -> Result<Job, ClientError> {
        self.post(Route::to(["jobs", id, "stop"])?, &StopJob { force })
            .await
    }

    /// The recovery of the ranks of a job: what is forbidden, what was done. A role is named where several have ranks.
    ///
    /// # Errors
    /// See [`ClientError`].
    #[odeon_macros::boxed]
    pub async fn recovery(&self, id: &str, role: Option<&str>) -> Result<Recovery, ClientError> {
        let route = Route::to(["jobs", id, "recovery"])?;
        self.get(match role {
            Some(role) => route.with("role", role),
            None => route,
        })
        .await
    }

    /// Has something ordered about the ranks of a job.
    ///
    /// # Errors
    /// See [`ClientError`].
    #[odeon_macros::boxed]
    pub async fn order_recovery(
        &self,
        id: &str,
        order: &OrderRecovery,
    ) -> Result<RecoveryOrdered, ClientError> {
        self.post(Route::to(["jobs", id, "recovery"])?, order).await
    }

    /// The same of a run by itself, whose pages these are.
    ///
    /// # Errors
    /// See [`ClientError`].
    #[odeon_macros::boxed]
    pub async fn own_recovery(&self, role: Option<&str>) -> Result<Recovery, ClientError> {
        let route = Route::to(["inspect", "recovery"])?;
        self.get(match role {
            Some(role) => route.with("role", role),
            None => route,
        })
        .await
    }

    /// Has something ordered about the ranks of a run by itself, whose pages these are.
    ///
    /// # Errors
    /// See [`ClientError`].
    #[odeon_macros::boxed]
    pub async fn order_own_recovery(
        &self,
        order: &OrderRecovery,
    ) -> Result<RecoveryOrdered, ClientError> {
        self.post(Route::to(["inspect", "recovery"])?, order).await
    }

    /// Runs a job again that is over.
    ///
    /// # Errors
    /// See [`ClientError`].
    #[odeon_macros::boxed]
    pub async fn retry(&self, id: &str) -> Result<Job, ClientError> {
        self.post(Route::to(["jobs", id, "retry"])?, &()).await
    }

    /// Waits until a job is over.
    ///
    /// # Errors
    /// See [`ClientError`].
    #[odeon_macros::boxed]
    pub async fn wait(&self, id: &str) -> Result<Job, ClientError> {
        loop {
            let route = Route::to(["jobs", id])?.with("wait_s", LONG_LOOK_S);
            let job: Job = self.get(route).await?;
            if job.over {
                return Ok(job);
            }
        }
    }

    /// The lines that a job has printed after a place in its log: `next` of an answer, `end` for
    /// what has been printed up to now, nothing to begin. With `wait`, it waits a while for some.
    ///
    /// # Errors
    /// See [`ClientError`].
    #[odeon_macros::boxed]
    pub async fn logs(&self, id: &str, after: &str, wait: bool) -> Result<Lines, ClientError> {
        let wait_s = if wait { LONG_LOOK_S } else { 0 };
        let route = Route::to(["jobs", id, "logs"])?;
        let route = route.with("after", after).with("wait_s", wait_s);
        self.get(route).await
    }

    /// Records what the pages show for so many seconds, and hands over each piece of the file as it
    /// comes, until one is not taken.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn record(
        &self,
        seconds: f64,
        mut take: impl FnMut(&[u8]) -> bool,
    ) -> Result<(), ClientError> {
        let mut failed = ClientError::Nowhere;
        for at in self.order() {
            match self.endpoints[at]
                .record(&self.key, seconds, &mut take)
                .await
            {
                // Nothing was taken: another node may do it.
                Err(
                    error @ ClientError::Silent {
                        was_sent: false, ..
                    },
                ) => failed = error,
                outcome => return outcome,
            }
        }
        Err(failed)
    }
}

impl Endpoint {
    async fn record(
        &self,
        key: &str,
        seconds: f64,
        take: &mut impl FnMut(&[u8]) -> bool,
    ) -> Result<(), ClientError> {
        let silent = |error: reqwest::Error| ClientError::Silent {
            url: self.url.clone(),
            was_sent: !error.is_connect(),
            why: in_short(&error),
        };
        let url = format!("{}/api/v1/inspect/recording?seconds={seconds}", self.url);
        let asked = self.http.get(url).bearer_auth(key).send().await;
        let mut answer = asked.map_err(silent)?;
        let status = answer.status();
        if !status.is_success() {
            let bytes = answer.bytes().await.map_err(silent)?;
            let problem = serde_json::from_slice(&bytes).unwrap_or_else(|_| Problem {
                kind: "internal".to_owned(),
                why: format!("{status}: {}", String::from_utf8_lossy(&bytes)),
            });
            let status = status.as_u16();
            return Err(ClientError::Refused { status, problem });
        }
        while let Some(piece) = answer.chunk().await.map_err(silent)? {
            if !take(&piece) {
                break;
            }
        }
        Ok(())
    }
}

/// When to ask again, where a node was asked too much.
fn again_after(status: StatusCode, headers: &HeaderMap) -> Option<Duration> {
    let told = headers
        .get(RETRY_AFTER)
        .filter(|_| status == StatusCode::TOO_MANY_REQUESTS)?;
    let seconds = told.to_str().ok()?.parse().ok()?;
    Some(Duration::from_secs(seconds).min(TOO_MANY_PAUSE_MAX))
}

/// Why a node will not, in its own words.
fn refused(status: StatusCode, bytes: &[u8]) -> ClientError {
    let problem = serde_json::from_slice(bytes).unwrap_or_else(|_| Problem {
        kind: "internal".to_owned(),
        why: format!("{status}: {}", String::from_utf8_lossy(bytes)),
    });
    let status = status.as_u16();
    ClientError::Refused { status, problem }
}

/// The cause of a request's failure, without the layers through which it was heard.
pub(crate) fn in_short(error: &reqwest::Error) -> String {
    if error.is_timeout() {
        return "time is up".to_owned();
    }
    let mut lowest: &dyn std::error::Error = error;
    while let Some(below) = lowest.source() {
        lowest = below;
    }
    match lowest.downcast_ref::<std::io::Error>() {
        Some(error) if error.raw_os_error().is_some() => error.kind().to_string(),
        _ => lowest.to_string(),
    }
}
