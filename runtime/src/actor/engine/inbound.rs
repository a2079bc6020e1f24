//! Frames that came over a link: for this process, or to be passed on.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::Engine;
use super::services::blame;
use crate::base::failure::{Failure, FailureKind};
use crate::base::id::ProcessId;
use crate::net::link::Link;
use crate::net::service::Question;
use crate::net::wire::{Fact, Frame, FrameError};

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
                self.dispatch(call, Some(link), None);
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

    fn learn(self: &Arc<Self>, link: &Arc<Link>, fact: Fact) {
        match fact {
            Fact::ProcessUp { process, hops } => self.learn_way(process, link.peer, hops),
            Fact::ProcessDown(exit) => self.unlearn_way(&exit, link.peer),
            Fact::ProcessEnded(exit) => self.learn_end(&exit, link.peer),
            Fact::Leaving => {
                if self.uplink.get() == Some(&link.peer) {
                    self.say_last_words();
                }
                link.close(super::LEFT);
            }
        }
    }
}
