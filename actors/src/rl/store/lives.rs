//! News of each life of a store, for whoever depends on what it remembers.
//!
//! A watch is for the life that there is when it is placed, and one that waits for the store's word
//! must miss none. So the watch is placed first, and the store is asked then which life it is in.

use std::pin::pin;

use futures::future::{Either, select};
use odeon::{AskError, Context, Handler, Incarnation, Ref, message};

/// Which life are you in?
#[message(reply = Incarnation, name = "store.Live")]
#[derive(Debug)]
pub struct Live;

/// The store is in this life.
#[message(name = "store.Lives")]
#[derive(Debug)]
pub struct Lives(pub Incarnation);

/// Has a life of an actor hear of the present life of the store and of each that follows.
pub(crate) fn follow<S, A>(store: Ref<S>, cx: &Context<A>)
where
    S: Handler<Live>,
    A: Handler<Lives>,
{
    let me = cx.me().fenced(cx.incarnation());
    cx.spawn_task(async move {
        loop {
            // The watch is polled first, and so is placed before the question is sent.
            let over = pin!(store.down());
            let asked = pin!(store.ask(Live));
            let (life, over) = match select(over, asked).await {
                Either::Left((_, asked)) => (asked.await, None),
                Either::Right((life, over)) => (life, Some(over)),
            };
            let told = match life {
                Ok(life) => me.tell(Lives(life)).await.is_ok(),
                // It ended in that moment, or is long in coming back or in answering.
                Err(
                    AskError::Died(_)
                    | AskError::LinkLost { .. }
                    | AskError::Timeout { .. }
                    | AskError::Full { .. },
                ) => true,
                Err(_) => false,
            };
            if !told {
                // One of both is gone for good.
                return;
            }
            if let Some(over) = over {
                over.await;
            }
        }
    });
}
