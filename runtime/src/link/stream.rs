//! Sessions over single byte streams that somebody else makes: tests, simulation, transports of
//! one's own.

use std::io;
use std::sync::Arc;

use futures::future::BoxFuture;

use super::greeting::{Greeted, Heard, greet};
use super::{
    Dial, Reader, Session, Way, Writer, attach, attach_session, is_kept, knock, session_with,
};
use crate::engine::Engine;
use crate::error::SystemError;
use crate::id::ProcessId;
use crate::random;
use crate::wire::{Hello, Opening, Passage};

/// Both halves of a byte stream.
type Halves = (Reader, Writer);

/// What makes a stream to the other node.
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
    let session = random::number();
    let hello = Hello {
        session: Passage::Begins(session),
        ..engine.hello()
    };
    let mut greeted = dial.dial(engine, hello).await?;
    let peer = greeted.hello.process;
    if let Passage::Begins(kept) = greeted.hello.session {
        let ours = session_with(engine, peer) == Some(kept);
        let answer = if ours {
            Opening::Kept
        } else {
            Opening::Unknown
        };
        greeted.say(answer, &engine.limits).await?;
        if ours {
            is_kept(engine, peer);
            return Ok(peer);
        }
    }
    let session = Session::new(session, Way::Dial(dial));
    Ok(attach_session(engine, greeted, session).peer)
}

/// Takes in a stream that another node has made.
pub(crate) async fn accept(engine: &Arc<Engine>, heard: Heard) -> Result<ProcessId, SystemError> {
    let peer = heard.hello.process;
    match heard.hello.session {
        Passage::Begins(session) => {
            let kept = session_with(engine, peer);
            let hello = Hello {
                session: kept.map_or(Passage::Unsaid, Passage::Begins),
                ..engine.hello()
            };
            let mut greeted = heard.answer(hello, &engine.limits).await?;
            if kept.is_none() || greeted.opening(&engine.limits).await? == Opening::Unknown {
                attach_session(engine, greeted, Session::new(session, Way::Wait));
            } else {
                is_kept(engine, peer);
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
