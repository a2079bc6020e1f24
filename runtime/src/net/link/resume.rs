//! Resumption of a link between nodes over another connection.
//!
//! The side that has dialled dials again, the other waits for it. What each has taken in is final
//! when it is said: all that read from the connection before have ended by then.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use futures::future::BoxFuture;
use parking_lot::Mutex;
use tokio::sync::Notify;

use super::greeting::{Greeted, Heard};
use super::{Link, Streams};
use crate::base::clock::Clock;
use crate::base::error::SystemError;
use crate::base::limits::Limits;
use crate::base::random;
use crate::net::link::owner::LinkOwner;
use crate::net::wire::{Hello, Passage, Resumption};

/// The first pause between two attempts to dial. The next are twice as long each, up to a quarter of
/// the time that a connection may be silent.
const PAUSE: Duration = Duration::from_millis(50);

/// Makes another connection to the node at the other end of a link.
pub(crate) trait Dial: Send + Sync {
    /// Connects and says this hello. The streams are there when the answer says that the session
    /// goes on.
    fn dial<'a>(
        &'a self,
        owner: &'a Arc<dyn LinkOwner>,
        hello: Hello,
    ) -> BoxFuture<'a, Result<Greeted, SystemError>>;

    /// Where that node is, when that is all that it takes to dial it.
    fn address(&self) -> Option<SocketAddr> {
        None
    }
}

/// A function that makes the answer to whoever resumes a session a whole connection.
type Complete = Box<dyn FnOnce(Greeted) -> BoxFuture<'static, Result<Greeted, SystemError>> + Send>;

/// A connection that shall carry a session from now on, and has not been answered.
pub(crate) struct Knock {
    heard: Heard,
    resumption: Resumption,
    complete: Complete,
}

/// By whom the next connection is made.
pub(crate) enum Way {
    /// By this side.
    Dial(Arc<dyn Dial>),
    /// By the other.
    Wait,
}

/// That a link outlives its connections.
pub(crate) struct Session {
    pub(crate) id: u64,
    pub(super) way: Way,
    /// Which connection it is in, or tries.
    pub(super) attempt: AtomicU64,
    resumed: AtomicU32,
    /// Why the last connection ended.
    broken: Mutex<Option<String>>,
    /// The newest connection that was offered.
    knock: Mutex<Option<Knock>>,
    knocked: Notify,
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session")
            .field("id", &self.id)
            .field("resumed", &self.resumed)
            .finish_non_exhaustive()
    }
}

/// A link that goes on no more, and why.
struct Gone(String);

impl Session {
    pub(crate) fn new(id: u64, way: Way) -> Self {
        Self {
            id,
            way,
            attempt: AtomicU64::new(0),
            resumed: AtomicU32::new(0),
            broken: Mutex::default(),
            knock: Mutex::default(),
            knocked: Notify::new(),
        }
    }

    /// The number of times that it went on over another connection.
    pub(crate) fn resumed(&self) -> u32 {
        self.resumed.load(Ordering::Relaxed)
    }

    /// Why the last connection that ended did.
    pub(crate) fn broken(&self) -> Option<String> {
        self.broken.lock().clone()
    }

    /// Returns true if somebody has made another connection for it.
    pub(super) fn is_knocked(&self) -> bool {
        self.knock.lock().is_some()
    }

    pub(super) fn broke(&self, why: String) {
        *self.broken.lock() = Some(why);
    }

    /// Takes a connection that the other side has made, unless a later one is here. Returns true if
    /// it was taken.
    fn offer(&self, knock: Knock) -> bool {
        let mut waiting = self.knock.lock();
        let newest = waiting.as_ref().map(|knock| knock.resumption.attempt);
        let newest = newest.max(Some(self.attempt.load(Ordering::Acquire)));
        if newest < Some(knock.resumption.attempt) {
            *waiting = Some(knock);
            drop(waiting);
            self.knocked.notify_one();
            return true;
        }
        false
    }

    async fn knocked(&self) -> Knock {
        loop {
            if let Some(knock) = self.knock.lock().take() {
                return knock;
            }
            self.knocked.notified().await;
        }
    }
}

pub(super) const ANOTHER: &str = "the other side has made another connection";

/// Why a link is over that the other side has not.
pub(super) const UNKNOWN: &str =
    "the other side does not know this link: it has ended it, or started again";

/// Hands a connection to the session that it shall carry. `false` when there is no such session
/// here; then that has been said.
pub(crate) async fn knock<F>(
    owner: &Arc<dyn LinkOwner>,
    heard: Heard,
    complete: impl FnOnce(Greeted) -> F + Send + 'static,
) -> Result<bool, SystemError>
where
    F: Future<Output = Result<Greeted, SystemError>> + Send + 'static,
{
    let Passage::Resumes(resumption) = heard.hello.session else {
        return Ok(false);
    };
    let known = owner.link_to(heard.hello.process).and_then(|link| {
        let session = link.session.as_ref()?;
        let same = session.id == resumption.session && link.node == heard.hello.node;
        let waits = matches!(session.way, Way::Wait);
        (same && waits && !link.is_closed()).then(|| Arc::clone(&link))
    });
    let Some(link) = known else {
        let hello = owner.hello_again(Passage::Unknown);
        heard.answer(hello, owner.limits()).await?;
        return Ok(false);
    };
    if let Some(session) = &link.session {
        let taken = session.offer(Knock {
            heard,
            resumption,
            complete: Box::new(move |greeted| Box::pin(complete(greeted))),
        });
        if taken {
            link.carrier.lock().end(ANOTHER);
        }
    }
    Ok(true)
}

impl Limits {
    /// The longest time that a connection between nodes may be silent.
    pub(crate) fn connection_idle(&self) -> Duration {
        self.connection_idle.min(self.link_idle_timeout / 2)
    }
}

impl Link {
    /// The streams of the next connection. `None` when the link is closed.
    pub(super) async fn next_connection(&self, owner: &Arc<dyn LinkOwner>) -> Option<Streams> {
        let session = self.session.as_ref()?;
        if self.is_closed() {
            // Its last words may be on their way.
            return None;
        }
        if self.stands_still() {
            self.stand().await;
        }
        for pipe in self.pipes() {
            pipe.disconnect();
        }
        let connecting = async {
            match &session.way {
                Way::Dial(dial) => self.dial_again(owner, session, &**dial).await,
                Way::Wait => self.wait_again(owner, session).await,
            }
        };
        let connected = tokio::select! {
            biased;
            () = self.closed() => return None,
            () = self.frozen.over() => {
                self.stand().await;
                return None;
            }
            connected = connecting => connected,
            () = self.silence(owner.limits().link_idle_timeout) => {
                self.give_up(format!("silent for {:.1?}", self.silent_for()));
                return None;
            }
        };
        match connected {
            Ok(streams) => {
                let resumed = session.resumed.fetch_add(1, Ordering::Relaxed) + 1;
                let why = session.broken().unwrap_or_default();
                tracing::info!(peer = %self.peer, node = %self.node, resumed, why, "a link goes on");
                Some(streams)
            }
            Err(Gone(why)) => {
                self.close(why);
                None
            }
        }
    }

    /// Dials until somebody answers.
    async fn dial_again(
        &self,
        owner: &Arc<dyn LinkOwner>,
        session: &Session,
        dial: &dyn Dial,
    ) -> Result<Streams, Gone> {
        let patience = owner.limits().connection_idle() / 2;
        let mut pause = PAUSE.min(patience / 2);
        loop {
            let attempt = session.attempt.fetch_add(1, Ordering::AcqRel) + 1;
            let hello = self.resumption(owner, session, attempt);
            match Clock::timeout(patience, dial.dial(owner, hello)).await {
                Some(Ok(greeted)) => return self.go_on(session, greeted),
                Some(Err(error)) => {
                    tracing::debug!(peer = %self.peer, %error, "dialled in vain");
                }
                None => tracing::debug!(peer = %self.peer, "nobody answers"),
            }
            Clock::sleep(pause.mul_f32(0.5 + random::fraction() / 2.0)).await;
            pause = (pause * 2).min(patience / 2);
        }
    }

    /// Waits for the other side to dial.
    async fn wait_again(
        &self,
        owner: &Arc<dyn LinkOwner>,
        session: &Session,
    ) -> Result<Streams, Gone> {
        loop {
            let Knock {
                heard,
                resumption,
                complete,
            } = session.knocked().await;
            session.attempt.store(resumption.attempt, Ordering::Release);
            let hello = self.resumption(owner, session, resumption.attempt);
            let answer = async { complete(heard.answer(hello, owner.limits()).await?).await };
            let patience = owner.limits().connection_idle();
            match Clock::timeout(patience, answer).await {
                Some(Ok(greeted)) => return self.go_on(session, greeted),
                Some(Err(error)) => {
                    tracing::debug!(peer = %self.peer, %error, "a connection broke at once");
                }
                None => tracing::debug!(peer = %self.peer, "a connection did not come up"),
            }
        }
    }

    /// The hello at the beginning of another connection.
    fn resumption(&self, owner: &Arc<dyn LinkOwner>, session: &Session, attempt: u64) -> Hello {
        owner.hello_again(Passage::Resumes(Resumption {
            session: session.id,
            attempt,
            taken: self.marks(),
        }))
    }

    /// Goes on over these streams from where both sides are.
    fn go_on(&self, session: &Session, greeted: Greeted) -> Result<Streams, Gone> {
        let hello = &greeted.hello;
        let marks = match hello.session {
            Passage::Resumes(resumption)
                if resumption.session == session.id
                    && (hello.process, &hello.node) == (self.peer, &self.node) =>
            {
                resumption.taken
            }
            _ => return Err(Gone(UNKNOWN.to_owned())),
        };
        let (streams, writers) = Streams::of(greeted);
        if writers.len() != self.pipes().count() {
            return Err(Gone("it has another number of streams".to_owned()));
        }
        for ((pipe, writer), mark) in self.pipes().zip(writers).zip(marks) {
            pipe.connect(writer, mark)
                .map_err(|error| Gone(error.to_string()))?;
        }
        self.heard();
        Ok(streams)
    }
}
