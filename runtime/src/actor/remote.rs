//! The receiving end of a remote ask: decode, mailbox, and the answer back over the link.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use crate::actor::cell::{ActorCell, Sender};
use crate::actor::envelope;
use crate::actor::mail::{Back, Head};
use crate::base::clock::Timestamp;
use crate::base::error::AskError;
use crate::net::wire::Call;
use crate::net::wire::codec::CodecError;

impl Back {
    pub(crate) fn is_withdrawn(&self, cell: &ActorCell) -> bool {
        cell.take_withdrawn(self.to, self.call)
    }

    /// Sends the encoded answer, or why there is none.
    pub(crate) fn send(
        self,
        cell: &ActorCell,
        outcome: Result<Result<Vec<u8>, CodecError>, AskError>,
    ) {
        let limit = cell.engine.limits.message_bytes_max;
        let lost = |why| AskError::BadReply {
            actor: cell.id,
            why,
        };
        let result = outcome.and_then(|reply| match reply {
            Ok(bytes) if bytes.len() <= limit => Ok(Bytes::from(bytes)),
            Ok(bytes) => Err(lost(format!(
                "it has {} bytes, the limit is {limit}",
                bytes.len()
            ))),
            Err(error) => Err(lost(error.to_string())),
        });
        cell.engine.send_reply(self.call, self.to, result);
    }
}

/// Puts a call into the mailbox of an actor that lives here, or answers why not.
pub(crate) fn receive(cell: &Arc<ActorCell>, call: &Call, arrived: Timestamp) {
    let engine = &cell.engine;
    let refuse = |error| engine.refuse_call(call, error);
    if call.fence != 0 && call.fence != cell.incarnation() {
        return refuse(AskError::Stale {
            actor: cell.id,
            fence: call.fence,
            current: cell.incarnation(),
        });
    }
    let Some(method) = cell.method(call.method) else {
        return refuse(AskError::NoSuchMethod {
            actor: cell.id,
            method: format!("#{:016x} of {}", call.method, cell.actor.name),
        });
    };
    // Credit bounds what honest peers send; this bounds all others.
    let limits = &engine.limits;
    if cell.queued() as usize > limits.mailbox_messages_max + 64 * limits.credit_messages as usize {
        return refuse(AskError::Full {
            actor: cell.id,
            waited: Duration::ZERO,
        });
    }
    let back = (call.call != 0).then_some(Back {
        call: call.call,
        to: call.from,
    });
    let bytes = call.payload.len() as u32;
    let sender = match back {
        Some(_) => Sender::RemoteAsk { bytes },
        None => Sender::RemoteTell {
            process: call.from,
            bytes,
        },
    };
    let head = Head {
        name: method.name,
        method: method.id,
        fence: call.fence,
        deadline: arrived.after(call.budget),
        queued: arrived,
        trace: call.trace,
        sender,
        run: method.run,
        cell: None,
    };
    match (method.unpack)(&call.payload, head, back) {
        Ok(mail) => envelope::deliver(cell, mail),
        Err((error, back)) => {
            tracing::warn!(actor = %cell.id, method = method.name, %error, "unreadable message");
            cell.message_in(sender);
            cell.message_out(sender);
            if let Some(back) = back {
                let why = error.to_string();
                back.send(
                    cell,
                    Err(AskError::BadMessage {
                        actor: cell.id,
                        why,
                    }),
                );
            }
        }
    }
}
