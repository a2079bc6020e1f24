//! Actors written for kameo or actix, reached through a [`Ref`](crate::Ref).
//!
//! A wrapper is an odeon actor that owns one actor of the other library. It is made from its
//! arguments, passes each message on and gives the answer back, and it ends with what it wraps:
//!
//! | the inner actor | the wrapper |
//! | --- | --- |
//! | panics | fails with [`FailureKind::Panic`](crate::FailureKind) and the panic's words |
//! | returns an error from a hook, or is killed | fails with [`FailureKind::Error`](crate::FailureKind) |
//! | stops itself | stops in order |
//!
//! A failure goes to the wrapper's supervisor, which makes both again from the arguments. A message
//! that meets an inner actor which is gone answers [`AskError::Died`](crate::AskError::Died) with
//! the failure.
//!
//! The wrapper passes one message on at a time, so the order is kept, and a kameo actor that
//! delegates its replies does not run several at once.
//!
//! ```text
//!   Ref<Kameo<Account>> -- ask --> Kameo<Account> -- kameo's ask --> Account
//! ```
//!
//! The crates are re-exported as [`odeon::kameo`](crate::kameo) and `odeon::actix`, in the versions
//! that the wrappers know. All that is of actix is there with the feature `actix`, and the derives of
//! kameo for a program that names kameo itself, with its feature `macros`.

#[cfg(feature = "actix")]
mod actix_actor;
mod kameo_actor;

use std::sync::Arc;

use crate::actor::cell::Control;
use crate::actor::handler::{Actor, Context};
use crate::base::failure::Reason;

#[cfg(feature = "actix")]
pub use actix_actor::{Actix, ActixActor, ActixRegistered};
pub use kameo_actor::{FromKameo, Kameo, KameoRegistered};

/// Ends this life of the wrapper with what it wraps.
fn end_with<A: Actor>(cx: &Context<A>, ended: impl Future<Output = Reason> + Send + 'static) {
    let (cell, incarnation) = (Arc::clone(&cx.cell), cx.incarnation);
    cx.engine().spawn_task(async move {
        let reason = ended.await;
        cell.order(Control::End {
            incarnation,
            reason,
        });
    });
}
