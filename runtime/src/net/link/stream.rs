//! Sessions over single byte streams that somebody else makes: tests, simulation, transports of
//! one's own.

use std::io;
use std::sync::Arc;

use futures::future::BoxFuture;

use super::greeting::{Greeted, Heard, greet};
use super::{
    Dial, Link, Reader, Session, Way, Writer, attach, attach_session, is_alive, knock, session_with,
};
use crate::base::clock::{Clock, Timestamp};
use crate::base::error::SystemError;
use crate::base::id::ProcessId;
use crate::base::random;
use crate::net::link::owner::LinkOwner;
use crate::net::link::resume::UNKNOWN;
use crate::net::wire::{Hello, Opening, Passage};

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
        owner: &'a Arc<dyn LinkOwner>,
        hello: Hello,
    ) -> BoxFuture<'a, Result<Greeted, SystemError>> {
        Box::pin(async move {
            let made = (self.0)().await;
            let (reader, writer) = made.map_err(|source| SystemError::Io {
                doing: "dialling a node".to_owned(),
                source,
            })?;
            greet(reader, writer, hello, owner.limits()).await
        })
    }
}

/// Dials a node and makes the stream a link, unless both keep one already.
pub(crate) async fn join(
    owner: &Arc<dyn LinkOwner>,
    dial: Arc<dyn Dial>,
) -> Result<ProcessId, SystemError> {
    loop {
        let session = random::number();
        let hello = Hello {
            session: Passage::Begins(session),
            ..owner.hello()
        };
        let mut greeted = dial.dial(owner, hello).await?;
        let (peer, kept) = (greeted.hello.process, greeted.hello.session);
        is_alive(owner, peer);
        let since = Clock::now();
        let Some(ours) = session_with(owner, peer) else {
            greeted.say(Opening::Carries, owner.limits()).await?;
            let session = Session::new(session, Way::Dial(Arc::clone(&dial)));
            let link = attach_session(owner, greeted, session);
            if is_met(owner, &link).await {
                return Ok(peer);
            }
            // Where the stream broke before the other side heard that it carries, it has no link.
            if owner.is_closing() || link.why() != UNKNOWN {
                return Err(SystemError::Refused(link.why()));
            }
            continue;
        };
        greeted.say(Opening::Kept, owner.limits()).await?;
        if kept == Passage::Begins(ours) {
            return Ok(peer);
        }
        // The other side is about to take it in, or has lost it; then this one hears of that.
        if is_confirmed(owner, peer, since).await {
            return Ok(peer);
        }
    }
}

/// Waits until the other side of a new link beats, so it has it too; returns false if the link ends
/// before.
async fn is_met(owner: &Arc<dyn LinkOwner>, link: &Link) -> bool {
    while !link.is_closed() && !link.has_felt() {
        Clock::sleep(owner.limits().sweep_interval).await;
    }
    !link.is_closed()
}

/// Waits until something comes over the link to a peer; returns false if it ends before.
async fn is_confirmed(owner: &Arc<dyn LinkOwner>, peer: ProcessId, since: Timestamp) -> bool {
    let link = owner.link_to(peer);
    let Some(link) = link else { return false };
    while !link.is_closed() && link.last_heard() <= since {
        Clock::sleep(owner.limits().sweep_interval).await;
    }
    !link.is_closed()
}

/// Takes in a stream that another node has made.
pub(crate) async fn accept(
    owner: &Arc<dyn LinkOwner>,
    heard: Heard,
) -> Result<ProcessId, SystemError> {
    let peer = heard.hello.process;
    match heard.hello.session {
        Passage::Begins(session) => {
            is_alive(owner, peer);
            let kept = session_with(owner, peer);
            let hello = Hello {
                session: kept.map_or(Passage::Unsaid, Passage::Begins),
                ..owner.hello()
            };
            let mut greeted = heard.answer(hello, owner.limits()).await?;
            if greeted.opening(owner.limits()).await? == Opening::Carries {
                attach_session(owner, greeted, Session::new(session, Way::Wait));
            }
            Ok(peer)
        }
        Passage::Resumes(_) => {
            let whole = async |greeted| Ok(greeted);
            match knock(owner, heard, whole).await? {
                true => Ok(peer),
                false => Err(SystemError::Refused("that session is not here".to_owned())),
            }
        }
        Passage::Unsaid | Passage::Unknown => {
            let greeted = heard.answer(owner.hello(), owner.limits()).await?;
            Ok(attach(owner, greeted, false).peer)
        }
    }
}
