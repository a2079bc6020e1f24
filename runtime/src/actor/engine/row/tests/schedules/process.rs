//! Made-up processes that host one actor: cells that obey orders, and messages in the order they were
//! sent.

use std::collections::VecDeque;

use super::*;

/// A message to a process. The last number is that of its answer.
#[derive(Debug)]
pub(super) enum Word {
    Host(Incarnation, usize),
    Start(Incarnation, usize),
    Halt(bool, usize),
}

/// A message of a process to the home.
#[derive(Debug)]
pub(super) enum Said {
    Answer(usize, bool),
    Ended(Incarnation),
    /// The last one: it is dead.
    Gone,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Order {
    Start(Incarnation),
    Halt { keep_mail: bool, done: usize },
}

/// A report of a cell.
pub(super) enum Report {
    Began(Incarnation),
    Started(Incarnation),
    Ended(Incarnation),
    /// The order of this number is carried out.
    Halted(usize),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Starting,
    Running,
    Waiting,
}

/// An actor in the process that hosts it.
#[derive(Debug)]
pub(super) struct ActorCell {
    pub(super) life: Incarnation,
    phase: Phase,
    pub(super) orders: VecDeque<Order>,
    /// A handler holds the thread.
    pub(super) blocked: bool,
}

impl ActorCell {
    pub(super) const fn new(life: Incarnation) -> Self {
        Self {
            life,
            phase: Phase::Starting,
            orders: VecDeque::new(),
            blocked: false,
        }
    }

    /// The numbers of the orders to end that it has not obeyed.
    pub(super) fn halts(&self) -> impl Iterator<Item = usize> {
        self.orders.iter().filter_map(|order| match order {
            Order::Halt { done, .. } => Some(*done),
            Order::Start(_) => None,
        })
    }

    pub(super) fn lives(&self) -> bool {
        self.phase != Phase::Waiting
    }

    pub(super) fn runs(&self) -> bool {
        self.phase == Phase::Running
    }

    pub(super) fn is_still(&self) -> bool {
        self.orders.is_empty() && self.phase != Phase::Starting
    }

    /// Does the next thing: obeys an order, starts, or fails. Also whether it is over for good.
    pub(super) fn go_on(&mut self, draw: &mut Draw, quiet: bool) -> (Vec<Report>, bool) {
        if self.blocked {
            return (vec![], false);
        }
        // A start or a handler goes on while an order lies there.
        let heeds = !self.lives() || draw.below(4) > 0;
        if heeds && let Some(order) = self.orders.pop_front() {
            return self.obey(order);
        }
        let fails = !quiet && draw.one_in(4);
        let report = match self.phase {
            Phase::Starting if !fails => {
                self.phase = Phase::Running;
                Report::Started(self.life)
            }
            Phase::Starting | Phase::Running if fails => {
                self.phase = Phase::Waiting;
                Report::Ended(self.life)
            }
            _ => return (vec![], false),
        };
        (vec![report], false)
    }

    fn obey(&mut self, order: Order) -> (Vec<Report>, bool) {
        match order {
            Order::Start(life) if self.phase == Phase::Waiting => {
                self.life = life;
                self.phase = Phase::Starting;
                (vec![Report::Began(life)], false)
            }
            Order::Start(_) => (vec![], false),
            Order::Halt { keep_mail, done } => {
                self.phase = Phase::Waiting;
                (vec![Report::Halted(done)], !keep_mail)
            }
        }
    }
}

/// A made-up process with at most one actor, and the messages on their way to it and from it.
#[derive(Debug)]
pub(super) struct Process {
    pub(super) id: ProcessId,
    pub(super) up: bool,
    /// The home knows a way to it.
    pub(super) way: bool,
    pub(super) inbox: VecDeque<Word>,
    pub(super) outbox: VecDeque<Said>,
    pub(super) cell: Option<ActorCell>,
    /// The question whose answer is the start of this life.
    awaited: Option<(Incarnation, usize)>,
    /// Orders to end a life that are waited for: whether mail is kept, and the life that was awaited.
    halts: Vec<(usize, bool, Option<Incarnation>)>,
}

impl Process {
    pub(super) const fn new(id: ProcessId) -> Self {
        Self {
            id,
            up: true,
            way: true,
            inbox: VecDeque::new(),
            outbox: VecDeque::new(),
            cell: None,
            awaited: None,
            halts: vec![],
        }
    }

    pub(super) fn is_still(&self) -> bool {
        let cell = self.cell.as_ref().is_none_or(ActorCell::is_still);
        self.outbox.is_empty() && (!self.up || cell && self.inbox.is_empty())
    }

    /// It dies. So many of the messages that it has sent still arrive.
    pub(super) fn die(&mut self, keep: usize) {
        self.up = false;
        self.cell = None;
        self.inbox.clear();
        self.outbox.truncate(keep);
        self.outbox.push_back(Said::Gone);
    }

    /// The way to it closes, if it is dead: nothing of what it has sent arrives any more.
    pub(super) fn close(&mut self) {
        if !self.up && self.way {
            self.way = false;
            self.outbox.clear();
            self.outbox.push_back(Said::Gone);
        }
    }

    fn answer(&mut self, number: usize, yes: bool) {
        self.outbox.push_back(Said::Answer(number, yes));
    }

    /// Whoever waits for the start of this life hears how it went.
    fn tell(&mut self, life: Incarnation, yes: bool) {
        if let Some((_, number)) = self.awaited.take_if(|awaited| awaited.0 == life) {
            self.answer(number, yes);
        }
    }

    fn await_start(&mut self, life: Incarnation, number: usize) {
        if let Some((_, before)) = self.awaited.replace((life, number)) {
            self.answer(before, false);
        }
    }

    /// Hears the next word of the home.
    pub(super) fn hear(&mut self, draw: &mut Draw, quiet: bool) -> Vec<Report> {
        match self.inbox.pop_front() {
            Some(Word::Host(_, number)) if !quiet && draw.one_in(24) => self.answer(number, false),
            Some(Word::Host(life, number)) => {
                self.await_start(life, number);
                self.cell = Some(ActorCell::new(life));
                return vec![Report::Began(life)];
            }
            Some(Word::Start(life, number)) => match self.cell.is_some() {
                true => {
                    self.await_start(life, number);
                    self.order(Order::Start(life));
                }
                false => self.answer(number, false),
            },
            Some(Word::Halt(keep_mail, done)) => match self.cell.is_some() {
                true => {
                    let awaited = self.awaited.map(|awaited| awaited.0);
                    self.halts.push((done, keep_mail, awaited));
                    self.order(Order::Halt { keep_mail, done });
                }
                false => self.answer(done, true),
            },
            None => {}
        }
        vec![]
    }

    fn order(&mut self, order: Order) {
        if let Some(cell) = &mut self.cell {
            cell.orders.push_back(order);
        }
    }

    /// Its actor goes on, or is given up when it blocks its thread.
    pub(super) fn go_on(&mut self, draw: &mut Draw, quiet: bool) -> Vec<Report> {
        let blocked = self.cell.as_ref().is_some_and(|cell| cell.blocked);
        if blocked && draw.one_in(4) && !self.halts.is_empty() {
            let (done, keep_mail, awaited) = self.halts.remove(0);
            self.answer(done, false);
            if let Some(life) = awaited {
                self.tell(life, false);
            }
            if !keep_mail {
                self.cell = None;
                self.answer_halts(false);
            }
            return vec![];
        }
        let Some(mut cell) = self.cell.take() else {
            return vec![];
        };
        let (reports, over) = cell.go_on(draw, quiet);
        if !over {
            self.cell = Some(cell);
        }
        for report in &reports {
            match report {
                Report::Began(_) => {}
                Report::Started(life) => self.tell(*life, true),
                Report::Ended(life) => {
                    self.outbox.push_back(Said::Ended(*life));
                    self.tell(*life, false);
                }
                Report::Halted(done) => self.halt_done(*done),
            }
        }
        if over {
            self.answer_halts(true);
        }
        reports
    }

    /// The cell is over: whoever has ordered its end hears so.
    fn answer_halts(&mut self, yes: bool) {
        for (done, _, _) in std::mem::take(&mut self.halts) {
            self.answer(done, yes);
        }
    }

    fn halt_done(&mut self, done: usize) {
        let at = self.halts.iter().position(|halt| halt.0 == done);
        if let Some((_, _, awaited)) = at.map(|at| self.halts.remove(at)) {
            // It waited for the end, and says so before it looks who waits for a start.
            if let Some(life) = awaited {
                self.tell(life, false);
            }
            self.answer(done, true);
        }
    }
}
