//! Sessions over single byte streams that somebody else makes: tests, simulation, transports of
//! one's own.

use std::io;
use std::sync::Arc;

use futures::future::BoxFuture;

use super::greeting::{Greeted, Heard, greet};
use super::{
    Dial, Reader, Session, Way, Writer, attach, attach_session, is_alive, knock, session_with,
};
use crate::clock::{Clock, Timestamp};
use crate::engine::Engine;
use crate::error::SystemError;
use crate::id::ProcessId;
use crate::random;
use crate::wire::{Hello, Opening, Passage};

/// Both halves of a byte stream.
type Halves = (Reader, Writer);

/// A dialler that makes a stream to the other node.
pub(crate) struct StreamDial<D>(pub(crate) D);

impl<D, F> Dial for StreamDial<D>
where
    D: Fn() -> F + Send + Sync,
    F: Future<Output = io::Result<Halves>> + Send,
{
    fn dial<'a>(
        &'a self,
        engine: &'a Arc<Engine>,
        hello: Hello,
    ) -> BoxFuture<'a, Result<Greeted, SystemError>> {
        Box::pin(async move {
            let made = (self.0)().await;
            let (reader, writer) = made.map_err(|source| SystemError::Io {
                doing: "dialling a node".to_owned(),
                source,
            })?;
            greet(reader, writer, hello, &engine.limits).await
        })
    }
}

/// Dials a node and makes the stream a link, unless both keep one already.
pub(crate) async fn join(
    engine: &Arc<Engine>,
    dial: Arc<dyn Dial>,
) -> Result<ProcessId, SystemError> {
    loop {
        let session = random::number();
        let hello = Hello {
            session: Passage::Begins(session),
            ..engine.hello()
        };
        let mut greeted = dial.dial(engine, hello).await?;
        let (peer, kept) = (greeted.hello.process, greeted.hello.session);
        is_alive(engine, peer);
        let since = Clock::now();
        let Some(ours) = session_with(engine, peer) else {
            greeted.say(Opening::Carries, &engine.limits).await?;
            let session = Session::new(session, Way::Dial(dial));
            return Ok(attach_session(engine, greeted, session).peer);
        };
        greeted.say(Opening::Kept, &engine.limits).await?;
        if kept == Passage::Begins(ours) {
            return Ok(peer);
        }
        // The other side is about to take it in, or has lost it; then this one hears of that.
        if is_confirmed(engine, peer, since).await {
            return Ok(peer);
        }
    }
}

/// Waits until something comes over the link to a peer; returns false if it ends before.
async fn is_confirmed(engine: &Engine, peer: ProcessId, since: Timestamp) -> bool {
    let link = engine.links.get(&peer).map(|link| Arc::clone(&link));
    let Some(link) = link else { return false };
    while !link.is_closed() && link.last_heard() <= since {
        Clock::sleep(engine.limits.sweep_interval).await;
    }
    !link.is_closed()
}

/// Takes in a stream that another node has made.
pub(crate) async fn accept(engine: &Arc<Engine>, heard: Heard) -> Result<ProcessId, SystemError> {
    let peer = heard.hello.process;
    match heard.hello.session {
        Passage::Begins(session) => {
            is_alive(engine, peer);
            let kept = session_with(engine, peer);
            let hello = Hello {
                session: kept.map_or(Passage::Unsaid, Passage::Begins),
                ..engine.hello()
            };
            let mut greeted = heard.answer(hello, &engine.limits).await?;
            if greeted.opening(&engine.limits).await? == Opening::Carries {
                attach_session(engine, greeted, Session::new(session, Way::Wait));
            }
            Ok(peer)
        }
        Passage::Resumes(_) => {
            let whole = async |greeted| Ok(greeted);
            match knock(engine, heard, whole).await? {
                true => Ok(peer),
                false => Err(SystemError::Refused("that session is not here".to_owned())),
            }
        }
        Passage::Unsaid | Passage::Unknown => {
            let greeted = heard.answer(engine.hello(), &engine.limits).await?;
            Ok(attach(engine, greeted, false).peer)
        }
    }
}
