//! Frames that came over a link: for this process, or to be passed on.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::Engine;
use super::services::blame;
use crate::error::AskError;
use crate::failure::{Failure, FailureKind};
use crate::id::{ActorId, ProcessId};
use crate::link::Link;
use crate::remote;
use crate::service::Question;
use crate::wire::{Call, Fact, Frame, FrameError};

impl Engine {
    /// One frame from a neighbour. The caller has entered this engine.
    ///
    /// # Errors
    /// The neighbour has said to a service what that cannot read.
    pub(crate) fn receive(
        self: &Arc<Self>,
        link: &Arc<Link>,
        frame: Frame,
    ) -> Result<(), FrameError> {
        match frame {
            Frame::Call(call) => {
                if call.call != 0 {
                    link.serving.fetch_add(1, Ordering::Relaxed);
                }
                self.receive_call(call, link);
            }
            Frame::Reply { call, to, result } => {
                if to == self.process {
                    self.settle(call, result, link.last_heard());
                } else {
                    self.forwards.remove(&(to, call));
                    if self.onward(to, link).is_some() {
                        self.send_reply(call, to, result);
                    }
                }
            }
            Frame::Cancel { call, from, to } => self.receive_cancel(call, from, to),
            Frame::Credit {
                actor,
                host,
                to,
                messages,
            } => {
                if to == self.process {
                    self.credits.returned(actor, host, messages);
                } else if let Some(next) = self.onward(to, link) {
                    let credit = Frame::Credit {
                        actor,
                        host,
                        to,
                        messages,
                    };
                    next.push(&credit, true);
                }
            }
            Frame::Request {
                request,
                from,
                to,
                service,
                body,
            } => {
                if to == self.process {
                    let question = Question {
                        request,
                        from,
                        service,
                        body: body.into(),
                    };
                    let served = self.serve(question);
                    return served.or_else(|error| blame(link, from, error));
                } else if let Some(next) = self.onward(to, link) {
                    let question = Frame::Request {
                        request,
                        from,
                        to,
                        service,
                        body,
                    };
                    next.push(&question, true);
                } else {
                    let failure =
                        Failure::new(FailureKind::NodeLost, format!("no way to process {to}"));
                    self.answer(request, from, Err(failure));
                }
            }
            Frame::Answer {
                request,
                to,
                result,
            } => {
                if to == self.process {
                    return self.take_answer(link, request, result);
                } else if let Some(next) = self.onward(to, link) {
                    let answer = Frame::Answer {
                        request,
                        to,
                        result,
                    };
                    next.push(&answer, true);
                }
            }
            Frame::Chunk(chunk) => {
                if chunk.to == self.process {
                    // The first that knows the transfer takes it; what nobody awaits is late.
                    self.components.iter().any(|it| it.take_chunk(&chunk));
                } else if let Some(next) = self.onward(chunk.to, link) {
                    next.push(&Frame::Chunk(chunk), true);
                }
            }
            Frame::Fact(fact) => self.learn(link, fact),
            Frame::Notice { service, body } => {
                return self.service(service)?.hear(self, link, &body);
            }
            Frame::Over(why) => link.close(format!("the other side closed it: {why}")),
            // The link has seen to these.
            Frame::Beat(_) | Frame::Taken(_) | Frame::After(_) => {}
            Frame::Hello(_) | Frame::Opening(_) => link.close("it said hello twice"),
        }
        Ok(())
    }

    /// The next link towards a process, for a frame that came over another. What would have to go
    /// back has lost its way: its sender hears of that, or of the loss of the link, otherwise.
    fn onward(&self, to: ProcessId, came: &Link) -> Option<Arc<Link>> {
        self.next_link(to).filter(|next| next.peer != came.peer)
    }

    fn receive_call(self: &Arc<Self>, call: Call, came: &Link) {
        if let Some(cell) = self.cells.get(&call.to).map(|cell| Arc::clone(&cell)) {
            return remote::receive(&cell, &call, came.last_heard());
        }
        if call.from == self.process {
            // It came back. Its home may have said that a worker of this node hosts the actor.
            return match self.links.get(&call.at).map(|link| Arc::clone(&link)) {
                Some(link) => {
                    if call.call != 0 {
                        self.pending.sent_via(call.call, Some(link.peer));
                    }
                    link.push(&Frame::Call(call), true);
                }
                None => self.refuse_call(&call, AskError::Dead(self.obituary(call.to))),
            };
        }
        if call.at == self.process && call.to.home != self.process {
            // Its home sent it here, where the actor has ended meanwhile.
            return self.refuse_call(&call, AskError::Dead(self.obituary(call.to)));
        }
        self.pass_on(call, came.peer);
    }

    /// Sends a call of another process on its way.
    fn pass_on(self: &Arc<Self>, mut call: Call, came: ProcessId) {
        let to = call.to;
        let target = match self.members.place_of(to, self.process) {
            super::family::PlaceOf::At(process) => {
                call.at = process;
                process
            }
            // On the way from its home to the process that hosts it.
            super::family::PlaceOf::Elsewhere if self.routes_to(call.at) => call.at,
            super::family::PlaceOf::Elsewhere => {
                let back = self.next_link(to.home);
                if back.is_some_and(|link| link.peer == came) {
                    // Whoever sent it here knows no better.
                    return self.refuse_call(&call, AskError::Unreachable(to));
                }
                call.at = ProcessId(0);
                to.home
            }
            super::family::PlaceOf::Nowhere => {
                match self.members.hold(call, self.limits.backlog_messages_max) {
                    Ok(()) => {}
                    Err(super::family::Unheld::Moved(call)) => self.pass_on(*call, came),
                    Err(super::family::Unheld::Full(call)) => {
                        let waited = std::time::Duration::ZERO;
                        self.refuse_call(&call, AskError::Full { actor: to, waited });
                    }
                }
                return;
            }
            super::family::PlaceOf::Gone => {
                return self.refuse_call(&call, AskError::Dead(self.obituary(to)));
            }
        };
        let Some(link) = self.next_link(target) else {
            if self.members.lose(to, target) || !self.is_at(to, target) {
                return self.pass_on(call, came);
            }
            return self.refuse_call(&call, AskError::Unreachable(to));
        };
        if call.call != 0 {
            self.forwards
                .insert((call.from, call.call), (link.peer, to));
        }
        let (key, from) = (call.call, call.from);
        let frame = Frame::Call(call);
        if link.push(&frame, true) {
            return;
        }
        let Frame::Call(call) = frame else { return };
        // It did not leave. When the loss of the link has not ended it, it goes another way.
        if key != 0 && self.forwards.remove(&(from, key)).is_none() {
            return;
        }
        if self.is_detour(to, target, &link) {
            return self.pass_on(call, came);
        }
        let why = link.why();
        self.refuse_call(&call, AskError::LinkLost { actor: to, why });
    }

    fn receive_cancel(&self, call: u64, from: ProcessId, to: ActorId) {
        self.members.drop_held(to, from, call);
        if let Some((_, (neighbour, _))) = self.forwards.remove(&(from, call)) {
            self.send_to(neighbour, &Frame::Cancel { call, from, to });
        }
        if let Some(cell) = self.cells.get(&to) {
            cell.withdraw(from, call);
        }
    }

    fn learn(self: &Arc<Self>, link: &Arc<Link>, fact: Fact) {
        match fact {
            Fact::ProcessUp { process, hops } => self.learn_route(process, link.peer, hops),
            Fact::ProcessDown(exit) => {
                // Only the neighbour on the way to a process can know that it is gone.
                if self
                    .routes
                    .get(&exit.process)
                    .is_some_and(|route| route.0 == link.peer)
                {
                    self.process_down(&exit, link.peer);
                }
            }
            Fact::Leaving => {
                if self.uplink.get() == Some(&link.peer) {
                    self.say_last_words();
                }
                link.close(super::LEFT);
            }
        }
    }
}
