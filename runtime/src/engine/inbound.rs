//! Frames that came over a link: for this process, or to be passed on.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::Engine;
use crate::blob::{BlobRequest, bring_for};
use crate::cell::Control;
use crate::error::AskError;
use crate::failure::{Failure, FailureKind, Reason};
use crate::host;
use crate::id::{ActorId, ProcessId};
use crate::inspect::LastSight;
use crate::link::Link;
use crate::remote;
use crate::wire::{Answer, Call, Fact, Frame, HostOrder, Request};

impl Engine {
    /// One frame from a neighbour. The caller has entered this engine.
    pub(crate) fn receive(self: &Arc<Self>, link: &Arc<Link>, frame: Frame) {
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
                body,
            } => {
                if to == self.process {
                    self.serve(request, from, body);
                } else if let Some(next) = self.onward(to, link) {
                    let question = Frame::Request {
                        request,
                        from,
                        to,
                        body,
                    };
                    next.push(&question, true);
                } else if request != 0 {
                    let failure =
                        Failure::new(FailureKind::NodeLost, format!("no way to process {to}"));
                    self.answer(request, from, Answer::Failed(failure));
                }
            }
            Frame::Answer { request, to, body } => {
                if to != self.process {
                    if let Some(next) = self.onward(to, link) {
                        next.push(&Frame::Answer { request, to, body }, true);
                    }
                } else if let Some((_, requested)) = self.requests.remove(&request) {
                    // Whoever asked may have stopped waiting.
                    let _ = requested.answer.send(body);
                }
            }
            Frame::Chunk(chunk) => {
                if chunk.to == self.process {
                    if !self.gangs.take(&chunk) {
                        self.blobs.take_chunk(chunk);
                    }
                } else if let Some(next) = self.onward(chunk.to, link) {
                    next.push(&Frame::Chunk(chunk), true);
                }
            }
            Frame::Fact(fact) => self.learn(link, fact),
            Frame::Over(why) => link.close(format!("the other side closed it: {why}")),
            // The link has seen to these.
            Frame::Beat(_) | Frame::Taken(_) | Frame::After(_) => {}
            Frame::Hello(_) | Frame::Opening(_) => link.close("it said hello twice"),
        }
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

    /// A question from another engine.
    pub(super) fn serve(self: &Arc<Self>, request: u64, from: ProcessId, body: Request) {
        let engine = Arc::clone(self);
        match body {
            Request::Host(order) => self.serve_host(request, from, &order),
            Request::Start { id, incarnation } => match self.cells.get(&id) {
                Some(cell) => {
                    self.await_start(id, from, request);
                    cell.order(Control::Start(incarnation));
                }
                None => self.answer(request, from, no_such_actor()),
            },
            Request::Halt {
                id,
                reason,
                keep_mail,
            } => {
                let Some(cell) = self.cells.get(&id).map(|cell| Arc::clone(&cell)) else {
                    return self.answer(request, from, Answer::Done);
                };
                self.begin_task(async move {
                    let answer = if engine.halt_here(&cell, reason, keep_mail).await {
                        Answer::Done
                    } else {
                        let what = "it blocks its thread";
                        Answer::Failed(Failure::new(FailureKind::Hang, what))
                    };
                    engine.answer(request, from, answer);
                });
            }
            Request::Ended {
                id,
                incarnation,
                reason,
            } => self.ended(id, Some(incarnation), reason),
            Request::Watch(id) => {
                let down = self.watch(id);
                self.spawn_task(async move {
                    let down = down.await;
                    engine.answer(request, from, Answer::Down(down));
                });
            }
            Request::Stop(id) => self.begin_task(async move {
                let answer = match engine.stop_actor(id).await {
                    Ok(()) => Answer::Done,
                    Err(error) => Answer::Failed(Failure::error(error)),
                };
                engine.answer(request, from, answer);
            }),
            Request::Fail { id, failure } => self.begin_task(async move {
                let answer = match engine.fail_actor(id, failure).await {
                    Ok(()) => Answer::Done,
                    Err(error) => Answer::Failed(Failure::error(error)),
                };
                engine.answer(request, from, answer);
            }),
            Request::Register(row) => {
                let outcome = self.register_here(row);
                self.answer(request, from, Answer::Name(outcome));
            }
            Request::Lookup { job, name } => {
                let outcome = self.lookup_here(&job, &name);
                self.answer(request, from, Answer::Name(outcome));
            }
            Request::LastWords(words) => {
                self.workers.hear_last_words(from, words);
                self.answer(request, from, Answer::Done);
            }
            Request::Blob(ask) if !matches!(ask, BlobRequest::Bring { .. }) => {
                self.serve_blob(request, from, ask);
            }
            Request::Domain => self.answer(request, from, Answer::Process(self.domain())),
            Request::KeepGang { gang, ranks } => {
                let memory = self.gangs.keep(gang, from, ranks as usize);
                self.answer(request, from, Answer::Gang(memory));
            }
            Request::ForgetGang(gang) => self.gangs.forget(gang),
            Request::Gang(news) => self.gangs.hear(self, from, news),
            Request::Look(order) => {
                let sight = self.onlookers.show(self, order);
                self.answer(request, from, Answer::Sight(Box::new(sight)));
            }
            Request::Methods(actor) => {
                let methods = crate::inspect::methods(self, actor);
                self.answer(request, from, Answer::Methods(methods));
            }
            later => self.serve_later(request, from, later),
        }
    }

    /// The answer to a question that takes a while; `None` when nobody waits for one.
    pub(super) async fn answer_to(
        self: &Arc<Self>,
        from: ProcessId,
        body: Request,
    ) -> Option<Answer> {
        Some(match body {
            Request::Launch(order) => match self.launch_here(order).await {
                Ok(launched) if self.next_link(from).is_none() => {
                    // Whoever wanted it is gone.
                    self.release_here(launched.process, launched.lease).await;
                    return None;
                }
                Ok(launched) => Answer::Launched(launched),
                Err(failure) => Answer::Failed(failure),
            },
            Request::LaunchLeased(lease) => match self.launch_leased(lease).await {
                Ok(Some(_)) if self.next_link(from).is_none() => {
                    // Whoever wanted it is gone.
                    self.release_lease(lease).await;
                    return None;
                }
                Ok(Some(launched)) => Answer::Launched(launched),
                Ok(None) => Answer::Outdated,
                Err(failure) => Answer::Failed(failure),
            },
            Request::Release { process, lease } => {
                self.release_here(process, lease).await;
                Answer::Done
            }
            Request::Retire {
                process,
                fault,
                why,
            } => {
                self.retire(process, fault, &why).await;
                Answer::Done
            }
            Request::Schedule(ask) => match self.schedule(&ask).await {
                Ok(granted) => Answer::Scheduled(granted),
                Err(failure) => Answer::Failed(failure),
            },
            Request::Picture => Answer::Picture(Box::new(self.picture().await)),
            Request::Pictures => Answer::Pictures(self.pictures().await),
            Request::Claim { version, leases } => {
                let claimed = self.claim_here(version, &leases).await;
                claimed.map_or(Answer::Outdated, Answer::Claimed)
            }
            Request::Unclaim(leases) => {
                self.unclaim_here(&leases).await;
                return None;
            }
            Request::HandOver {
                lease,
                actor,
                holder,
                rank,
                priority,
            } => {
                let handed = self.hand_over_here(lease, actor, &holder, rank, priority);
                if handed.await {
                    Answer::Done
                } else {
                    Answer::Outdated
                }
            }
            Request::Evict { holders, by } => {
                self.evict_here(&holders, &by).await;
                return None;
            }
            Request::Detach(order) => Answer::Detached(self.detach(*order).await),
            Request::Blob(BlobRequest::Bring { origin }) => {
                Answer::Brought(bring_for(self, origin).await)
            }
            // The others are answered at once.
            _ => return None,
        })
    }

    /// Whoever sent this request hears when the actor has started, or that it will not.
    fn await_start(&self, id: ActorId, from: ProcessId, request: u64) {
        if let Some((home, before)) = self.awaiting_start.insert(id, (from, request)) {
            self.answer(before, home, super::family::halted_answer());
        }
    }

    fn serve_host(self: &Arc<Self>, request: u64, from: ProcessId, order: &HostOrder) {
        let found = self
            .types
            .iter()
            .map(|row| row())
            .find(|row| row.name == order.actor);
        let Some(actor) = found else {
            let failure = Failure::new(
                FailureKind::UnknownActor,
                format!(
                    "the worker's binary has no actor `{}`: list it in `job!`",
                    order.actor
                ),
            );
            return self.answer(request, from, Answer::Failed(failure));
        };
        self.await_start(order.id, from, request);
        if let Err(failure) = host::host_order(self, actor, order) {
            self.awaiting_start.remove(&order.id);
            self.answer(request, from, Answer::Failed(failure));
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
            Fact::Named(row) => self.learn_names(&[row], link.peer),
            Fact::Unnamed { job, name, id } => self.unlearn_name(&job, &name, id, link.peer),
            Fact::RoomChanged => self.hardware.stir(),
            Fact::LastSight(last) => self.keep_last_sight(link, last),
            Fact::Leaving => {
                if self.uplink.get() == Some(&link.peer) {
                    self.show_last();
                }
                link.close(super::LEFT);
            }
        }
    }
}

impl Engine {
    /// A process of this node that leaves has shown what was not seen of it.
    fn keep_last_sight(&self, link: &Link, last: LastSight) {
        let process = link.peer;
        let mut started = self.workers.list().into_iter();
        let Some(view) = started.find(|view| view.process == process) else {
            return;
        };
        self.last_sights.keep(view, &link.view(), last);
    }
}

fn no_such_actor() -> Answer {
    Answer::Failed(Failure::error(Reason::Unknown))
}
