//! Mailboxes: kameo's, and actix's with the feature `actix`. The frameworks' kinds of actors are named
//! here; how they are driven is known above (`crate::actor::host`).

use std::any::Any;
use std::pin::Pin;
use std::task::Poll;

use futures::future::BoxFuture;
use kameo::actor::ActorRef;
use kameo::mailbox::Signal;
use kameo::message::{BoxMessage, DynMessage};
use kameo::reply::{BoxReplySender, ReplyError};
use tokio::sync::mpsc::error::TrySendError;

use crate::actor::mail::Mail;

/// The sending end of a mailbox.
pub(crate) enum Mailbox {
    /// Driven by kameo.
    Kameo(ActorRef<KameoHost>),
    /// Driven by actix.
    #[cfg(feature = "actix")]
    Actix(actix::dev::channel::AddressSender<ActixHost>),
}

impl Mailbox {
    /// Puts a message into it, or gives it back when the actor is over.
    pub(crate) fn push(&self, mail: Box<dyn Mail>) -> Result<(), Box<dyn Mail>> {
        match self {
            Self::Kameo(host) => push_kameo(host, mail),
            #[cfg(feature = "actix")]
            Self::Actix(host) => push_actix(host, mail),
        }
    }

    /// Wakes an idle actor, so that it looks for orders.
    pub(crate) fn ring(&self) {
        match self {
            Self::Kameo(host) => ring_kameo(host),
            // Its loop listens to `ActorCell::ordered`.
            #[cfg(feature = "actix")]
            Self::Actix(_) => {}
        }
    }

    /// Drops what it drives. Returns false where that cannot be.
    pub(crate) fn kill(&self) -> bool {
        match self {
            Self::Kameo(host) => {
                host.kill();
                true
            }
            #[cfg(feature = "actix")]
            Self::Actix(_) => false,
        }
    }
}

/// The actor that kameo sees. There is one kind for all actors.
pub(crate) struct KameoHost {
    /// The loop that it drives. Boxed, since kameo copies the host several times while it spawns it.
    pub(crate) driven: Box<dyn Any + Send>,
    /// The message that came out of the mailbox and is not handled yet.
    pub(crate) handed: Option<Box<dyn Mail>>,
}

impl KameoHost {
    pub(crate) fn driving(driven: Box<dyn Any + Send>) -> Self {
        Self {
            driven,
            handed: None,
        }
    }

    /// Takes a message out of kameo's hands.
    pub(crate) fn hand(&mut self, mail: Box<dyn Mail>) {
        self.handed = Some(mail);
    }
}

/// The actor that actix sees. There is one kind for all actors.
#[cfg(feature = "actix")]
pub(crate) struct ActixHost {
    /// To the loop that it drives.
    pub(crate) mail: tokio::sync::mpsc::UnboundedSender<Box<dyn Mail>>,
    /// That loop, until it begins.
    pub(crate) driven: Option<futures::future::LocalBoxFuture<'static, ()>>,
}

/// The future of a message that was handed over: it has no size, so that it is boxed for nothing.
pub(crate) struct Handed;

impl Future for Handed {
    type Output = Result<(), Box<dyn ReplyError>>;

    fn poll(self: Pin<&mut Self>, _: &mut std::task::Context<'_>) -> Poll<Self::Output> {
        Poll::Ready(Ok(()))
    }
}

/// All actors are one kind to kameo.
pub(crate) const NAME: &str = "odeon";

fn push_kameo(host: &ActorRef<KameoHost>, mail: Box<dyn Mail>) -> Result<(), Box<dyn Mail>> {
    let Err(message) = send(host, mail) else {
        return Ok(());
    };
    let mail = message.as_any().downcast::<Box<dyn Mail>>();
    Err(*mail.expect("what comes back is what was sent"))
}

/// Wakes a loop that has no mail.
fn ring_kameo(host: &ActorRef<KameoHost>) {
    // An actor that is over needs no orders.
    let _ = send(host, Box::new(Bell));
}

/// A kameo tell of a message that is boxed already.
fn send(
    host: &ActorRef<KameoHost>,
    message: BoxMessage<KameoHost>,
) -> Result<(), BoxMessage<KameoHost>> {
    let signal = Signal::Message {
        message,
        actor_ref: host.clone(),
        reply: None,
        sent_within_actor: false,
        message_name: NAME,
    };
    match host.mailbox_sender().try_send(signal) {
        Err(
            TrySendError::Closed(Signal::Message { message, .. })
            | TrySendError::Full(Signal::Message { message, .. }),
        ) => Err(message),
        _ => Ok(()),
    }
}

/// An order waits elsewhere. It overtakes mail, since the loop looks for orders before each message.
struct Bell;

impl DynMessage<KameoHost> for Bell {
    fn handle_dyn<'a>(
        self: Box<Self>,
        _host: &'a mut KameoHost,
        _me: ActorRef<KameoHost>,
        _reply: Option<BoxReplySender>,
        _stop: &'a mut bool,
    ) -> BoxFuture<'a, Result<(), Box<dyn ReplyError>>> {
        Box::pin(Handed)
    }

    fn as_any(self: Box<Self>) -> Box<dyn Any + Send> {
        self
    }
}

#[cfg(feature = "actix")]
fn push_actix(
    host: &actix::dev::channel::AddressSender<ActixHost>,
    mail: Box<dyn Mail>,
) -> Result<(), Box<dyn Mail>> {
    use actix::prelude::SendError::{Closed, Full};
    let sent = host.do_send(Parcel(mail));
    sent.map_err(|(Closed(Parcel(mail)) | Full(Parcel(mail)))| mail)
}

/// A message as it lies in an actix mailbox.
#[cfg(feature = "actix")]
pub(crate) struct Parcel(pub(crate) Box<dyn Mail>);

#[cfg(feature = "actix")]
impl actix::Message for Parcel {
    type Result = ();
}
