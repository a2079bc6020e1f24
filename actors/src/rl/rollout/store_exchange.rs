//! Exchanges of a rollout with its store: finished replies and progress for orders; and all that it
//! works on for a store that has forgotten.

use std::collections::HashMap;

use odeon::{AskError, Clock, Context, Failure};

use super::swapping::Swap;
use super::{MESSAGE_TOKENS_MAX, Rollout, UnderWay};
use crate::engine::Response;
use crate::rl::relay::Edition;
use crate::rl::store::{Book, CameOn, Claim, Exchange, Exchanged};
use crate::trajectory::{Partial, SampleId, Trajectory};

/// Orders in one message. A prompt of a thousand tokens has 4 KiB.
const ORDERS_MAX: usize = 256;

impl Rollout {
    /// Returns true when a reply has called its tool and nobody knows yet: a rollout of which all
    /// replies wait says so before it waits with them.
    pub(super) fn is_still_to_tell(&self) -> bool {
        let mut all = self.under_way.values();
        let waits = self.calling.under_way() > 0 && self.args.swap != Swap::Interrupt && !self.shut;
        waits && all.any(|it| it.begun() > it.told)
    }

    /// Tokens that it has made since it last told its progress.
    pub(super) fn came_on(&mut self) -> Vec<CameOn> {
        self.told = Clock::now();
        if self.args.swap == Swap::Interrupt {
            // Nobody else could go on with tokens of several versions.
            return vec![];
        }
        let known = |it: &UnderWay| it.told.saturating_sub(it.begun());
        let known = |id: SampleId| self.under_way.get(&id).map_or(0, known);
        let responses = self.engine.under_way(&known).into_iter();
        let mut making: HashMap<SampleId, Response> = responses.map(|it| (it.id, it)).collect();
        let mut all = vec![];
        for (id, under_way) in &mut self.under_way {
            let from = under_way.told;
            let partial = under_way.order.partial.as_ref();
            let mut more = match partial {
                Some(partial) => partial.since(from),
                None => Partial::default(),
            };
            (more.version, more.life) = (under_way.version, under_way.life);
            if let Some(response) = making.remove(id) {
                more.tokens.extend(response.tokens);
                more.log_probs.extend(response.log_probs);
            }
            if more.tokens.is_empty() {
                continue;
            }
            under_way.told += more.tokens.len();
            all.push(CameOn {
                id: *id,
                from,
                more,
            });
        }
        all
    }

    /// Hands in what is judged, in as many messages as it takes, and gets orders with the last.
    pub(super) async fn exchange(
        &mut self,
        cx: &Context<Self>,
        room: usize,
        came_on: Vec<CameOn>,
        handed_in: Vec<SampleId>,
    ) -> Result<(), Failure> {
        let (mut came_on, mut handed_in) = (came_on, handed_in);
        let edition = self.edition;
        self.called = false;
        loop {
            let finished = message_of(&self.judging.judged);
            let (judged, last) = (finished.len(), finished.len() == self.judging.judged.len());
            let exchange = Exchange {
                rollout: cx.me(),
                incarnation: cx.incarnation(),
                book: self.book,
                begins_with: edition.filter(|_| !self.is_draining()),
                holds: edition.into_iter().collect(),
                finished,
                came_on: std::mem::take(&mut came_on),
                handed_in: std::mem::take(&mut handed_in),
                room: if last { room.min(ORDERS_MAX) } else { 0 },
            };
            let orders = match self.args.store.ask(exchange).await {
                Ok(Exchanged::Orders(orders)) => orders,
                Ok(Exchanged::OtherBook(Some(book))) => {
                    self.claim(cx, book).await?;
                    continue;
                }
                Ok(Exchanged::OtherBook(None)) => {
                    self.shut = true;
                    return Ok(());
                }
                // What is judged stays here until somebody has it.
                Err(error) => {
                    lost(error)?;
                    continue;
                }
            };
            self.judging.judged.drain(..judged);
            if last {
                self.in_vain = room > 0 && orders.is_empty();
            }
            for order in orders {
                // What it has already, and the store has not taken for its own, ends first.
                if !self.has(order.id) {
                    self.waiting.push_back(order);
                }
            }
            if last {
                return Ok(());
            }
        }
    }

    /// Returns true when it has an order for a reply, works on it, or has it judged.
    fn has(&self, id: SampleId) -> bool {
        self.under_way.contains_key(&id)
            || self.waiting.iter().any(|order| order.id == id)
            || self.judging.all().any(|(known, _)| known == id)
    }

    /// Tells the store, which deals in another book than the one that it had its orders from, what it
    /// works on.
    async fn claim(&mut self, cx: &Context<Self>, book: Book) -> Result<(), Failure> {
        let mut works_on = self.works_on();
        let count = works_on.len();
        while !works_on.is_empty() {
            let claim = Claim {
                rollout: cx.me(),
                incarnation: cx.incarnation(),
                book,
                works_on: first_of(&mut works_on),
            };
            if let Err(error) = self.args.store.ask(claim).await {
                // The next exchange finds another book.
                return lost(error);
            }
        }
        if self.book.is_some() {
            tracing::info!(count, "told the store anew what is under way");
        }
        self.book = Some(book);
        Ok(())
    }

    /// All replies that it has orders for, with what there is of them.
    fn works_on(&mut self) -> Vec<CameOn> {
        let claim = |id, more| CameOn { id, from: 0, more };
        let mut all = vec![];
        for order in &self.waiting {
            let none = || Partial {
                version: self.version.unwrap_or(0),
                life: self.edition.map_or(0, Edition::life),
                ..Partial::default()
            };
            all.push(claim(order.id, order.partial.clone().unwrap_or_else(none)));
        }
        let responses = self.engine.under_way(&|_| 0).into_iter();
        let mut making: HashMap<SampleId, Response> = responses.map(|it| (it.id, it)).collect();
        for (id, under_way) in &mut self.under_way {
            let begun = under_way.order.partial.as_ref();
            // Nobody else could go on with tokens of several versions.
            let begun = begun.filter(|_| self.args.swap != Swap::Interrupt);
            let mut more = Partial {
                version: under_way.version,
                life: under_way.life,
                ..begun.cloned().unwrap_or_default()
            };
            let made = making.remove(id);
            if let Some(made) = made.filter(|_| self.args.swap != Swap::Interrupt) {
                more.tokens.extend(made.tokens);
                more.log_probs.extend(made.log_probs);
            }
            under_way.told = more.tokens.len();
            all.push(claim(*id, more));
        }
        let judged = self.judging.all().map(|(id, weights)| {
            let (version, life) = weights;
            let more = Partial {
                version,
                life,
                ..Partial::default()
            };
            claim(id, more)
        });
        all.extend(judged);
        all.sort_by_key(|claim| claim.id);
        all
    }
}

/// Succeeds when a question to the store is to be asked again, of its next life.
fn lost(error: AskError) -> Result<(), Failure> {
    match error {
        AskError::Died(_) | AskError::LinkLost { .. } => {
            tracing::info!(%error, "asking the store again");
            Ok(())
        }
        error => Err(Failure::error(error)),
    }
}

/// As many trajectories as fit into one message: at least one, if there is one.
fn message_of(finished: &[Trajectory]) -> Vec<Trajectory> {
    let fits = fitting(
        finished
            .iter()
            .map(|it| it.prompt.len() + it.response.len()),
    );
    finished[..fits].to_vec()
}

/// Takes as many claims as fit into one message: at least one, if there is one.
fn first_of(claims: &mut Vec<CameOn>) -> Vec<CameOn> {
    // Each is some bytes more than its tokens.
    let fits = fitting(claims.iter().map(|it| it.more.tokens.len() + 8));
    claims.drain(..fits).collect()
}

/// Number of these that fit into one message, by their tokens.
fn fitting(all: impl Iterator<Item = usize>) -> usize {
    let mut tokens = 0;
    let fits = all.take_while(|more| {
        let fits = tokens < MESSAGE_TOKENS_MAX;
        tokens += more;
        fits
    });
    fits.count()
}
