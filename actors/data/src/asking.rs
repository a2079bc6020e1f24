//! Asking a loader, and whoever stands in for it when it does not answer in time.

use std::time::Duration;

use futures::future::{Either, select};
use odeon::serde::{Deserialize, Serialize};
use odeon::{AskError, Clock, Failure, Handler, Message, Ref};

use crate::loader::{LoadFault, ShadowLoader, SourceLoader};

/// The actors that have a cell.
#[derive(Clone, Copy, Debug, Serialize, Deserialize, odeon::Shape)]
#[serde(crate = "odeon::serde")]
pub struct Holder {
    /// The loader.
    pub loader: Ref<SourceLoader>,
    /// The loader that stands in for it.
    pub shadow: Option<Ref<ShadowLoader>>,
}

/// The longest wait for samples in all. Reading a cell takes seconds at most; a store that does not
/// answer for so long will not.
const PATIENCE: Duration = Duration::from_secs(120);

/// Times that a loader may be lost while it is asked one thing.
const LOSSES_MAX: u32 = 20;

impl Holder {
    /// Those of one loader have one number.
    pub(crate) fn number(self) -> odeon::ActorId {
        self.loader.id()
    }

    /// Asks the loader, and after `patience` the shadow too; whoever answers first has answered.
    ///
    /// Both give the same, so it does not matter who does, and a loader that is late is not waited
    /// for.
    pub(crate) async fn ask<M, R>(self, message: M, patience: Duration) -> Result<R, Failure>
    where
        M: Message<Reply = Result<R, LoadFault>> + Clone,
        SourceLoader: Handler<M>,
        ShadowLoader: Handler<M>,
    {
        let asked = Box::pin(insist(self.loader, message.clone()));
        let Some(shadow) = self.shadow else {
            return asked.await;
        };
        let late = Box::pin(Clock::sleep(patience));
        let asked = match select(asked, late).await {
            // The shadow may be able to do what the loader is not.
            Either::Left((Ok(reply), _)) => return Ok(reply),
            Either::Left((Err(_), _)) => return insist(shadow, message).await,
            Either::Right(((), asked)) => asked,
        };
        let stood_in = Box::pin(insist(shadow, message));
        match select(asked, stood_in).await {
            Either::Left((Ok(reply), _)) | Either::Right((Ok(reply), _)) => Ok(reply),
            Either::Left((Err(_), other)) => other.await,
            Either::Right((Err(_), other)) => other.await,
        }
    }
}

/// Asks until there is an answer, over the losses of whom is asked.
async fn insist<A, M, R>(actor: Ref<A>, message: M) -> Result<R, Failure>
where
    M: Message<Reply = Result<R, LoadFault>> + Clone,
    A: Handler<M>,
{
    let mut losses = 0;
    loop {
        match actor.ask(message.clone()).timeout(PATIENCE).await {
            Ok(answer) => return answer.map_err(|fault| Failure::error(fault).fatal()),
            Err(error @ (AskError::Died(_) | AskError::LinkLost { .. })) if losses < LOSSES_MAX => {
                losses += 1;
                tracing::debug!(message = M::NAME, %error, "asking again");
            }
            Err(error) => return Err(Failure::error(error)),
        }
    }
}
