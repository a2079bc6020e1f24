//! A model of a row: the list of all that ever happened to it, searched anew for every question.

use super::*;

/// A fact that stays true.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Fact {
    /// A life began.
    Began,
    /// This life has started.
    Ran(Incarnation),
    /// This life was told to end.
    Told(Incarnation),
    /// This life is over, by itself or as it was told.
    Over(Incarnation),
    /// It has a place, or none.
    Moved(Option<Site>),
    /// A verdict gave its next life this restart.
    Planned(u64),
    /// It was told to end for good.
    Stopped,
    Disposed,
}

use Fact::{Began, Disposed, Moved, Over, Planned, Ran, Stopped, Told};

/// All that has happened to a row, in order.
pub(super) struct History {
    facts: Facts,
    happened: Vec<Fact>,
}

impl History {
    pub(super) fn new(row: RowState) -> Self {
        Self {
            facts: row.facts,
            happened: vec![Moved(row.site()), Began],
        }
    }

    fn is(&self, fact: Fact) -> bool {
        self.happened.contains(&fact)
    }

    fn life(&self) -> Incarnation {
        let begun = self.happened.iter().filter(|fact| **fact == Began);
        begun.count() as Incarnation
    }

    fn site(&self) -> Option<Site> {
        let mut back = self.happened.iter().rev();
        back.find_map(|fact| match fact {
            Moved(site) => Some(*site),
            _ => None,
        })
        .unwrap()
    }

    /// Neither over nor told to end.
    fn lives(&self) -> bool {
        let life = self.life();
        !self.is(Told(life)) && !self.is(Over(life)) && !self.is(Stopped)
    }

    fn is_over(&self) -> bool {
        self.is(Over(self.life())) && !self.is(Stopped)
    }

    fn is_in(&self, other: ProcessId) -> bool {
        [Site::Lost { process: other }]
            .iter()
            .any(|lost| self.site() == Some(*lost))
            || matches!(self.site(), Some(Site::At { process, .. }) if process == other)
    }

    /// Its messages wait.
    fn waits(&self) -> bool {
        matches!(self.site(), None | Some(Site::Lost { .. }))
    }

    /// The restart that is to begin its next life: the last that was planned in this one.
    fn restart(&self) -> Option<u64> {
        let this_life = self.happened.iter().rev().take_while(|it| **it != Began);
        let mut planned = this_life.filter_map(|fact| match fact {
            Planned(number) => Some(*number),
            _ => None,
        });
        planned.next()
    }

    pub(super) fn planned_last(&self) -> u64 {
        let planned = self.happened.iter().filter_map(|fact| match fact {
            Planned(number) => Some(*number),
            _ => None,
        });
        planned.max().unwrap_or(0)
    }

    /// The row as it has to be.
    pub(super) fn state(&self) -> RowState {
        let (life, site, next) = (self.life(), self.site(), self.restart());
        let ran = self.is(Ran(life));
        let stage = if self.is(Disposed) {
            Stage::Gone
        } else if self.is(Stopped) {
            Stage::Stopping { site, ran }
        } else if self.is(Over(life)) {
            Stage::Ended { site, ran, next }
        } else if self.is(Told(life)) {
            Stage::Halting { site, ran, next }
        } else {
            match site {
                None => Stage::Placing { next },
                Some(site) if ran => Stage::Running { site, next },
                Some(site) => Stage::Starting { site, next },
            }
        };
        RowState {
            facts: self.facts,
            life,
            stage,
        }
    }

    /// The commands that have to follow from an event. It has happened then.
    pub(super) fn expect(&mut self, event: &Event) -> Commands {
        if self.is(Disposed) {
            return vec![];
        }
        let now = self.life();
        let (facts, commands) = match event {
            Event::Placed { .. } => self.placed(event),
            Event::Started { life } => self.started(*life),
            Event::Ended { life, reason } if *life == now && self.lives() => {
                (vec![Over(now)], self.told_of_end(reason, true))
            }
            Event::ProcessGone { process, reason } if self.is_in(*process) => match self.lives() {
                true => {
                    let facts = vec![Moved(None), Over(now)];
                    (facts, self.told_of_end(reason, true))
                }
                false => (vec![Moved(None)], vec![]),
            },
            Event::Displaced { process } if self.is_in(*process) && !self.lives() => {
                (vec![Moved(None)], vec![])
            }
            Event::WayClosed { process } => match self.site() {
                Some(Site::At { process: at, .. }) if at == *process => {
                    let process = *process;
                    (vec![Moved(Some(Site::Lost { process }))], vec![])
                }
                _ => (vec![], vec![]),
            },
            Event::RestartPlanned { number } => (vec![Planned(*number)], vec![]),
            Event::RestartBegins { number } => self.begun(*number),
            Event::Failed { reason } if self.lives() => {
                (vec![Told(now)], self.told_to_end(reason, true))
            }
            Event::Halted { reason, keep_mail } => {
                let fact = match (keep_mail, self.lives()) {
                    (false, _) => vec![Stopped],
                    (true, true) => vec![Told(now)],
                    (true, false) => vec![],
                };
                (fact, self.told_to_end(reason, *keep_mail))
            }
            Event::HaltOver { life, reason } => {
                let waited_for = self.is(Told(*life)) && !self.is(Over(*life));
                match *life == now && waited_for && !self.is(Stopped) {
                    true => (vec![Over(now)], self.told_of_end(reason, false)),
                    false => (vec![], vec![]),
                }
            }
            Event::Disposed { reason } => (vec![Disposed], self.buried(reason)),
            Event::Message { .. }
            | Event::Withdrawn
            | Event::StartAwaited { .. }
            | Event::EndAwaited { .. } => (vec![], self.asked(event)),
            _ => (vec![], vec![]),
        };
        self.happened.extend(facts);
        commands
    }

    fn placed(&self, event: &Event) -> (Vec<Fact>, Commands) {
        let Event::Placed {
            life,
            process,
            lease,
            way,
        } = event.clone()
        else {
            return (vec![], vec![]);
        };
        let wanted = life == self.life() && self.lives() && self.site().is_none();
        if wanted && way {
            let there = Moved(Some(Site::At { process, lease }));
            let host = Command::SendHost { process };
            return (vec![there], vec![host, Command::SendBacklog { process }]);
        }
        if wanted {
            let what = "its process was gone before it could be hosted there";
            let reason = Reason::Failed(Failure::new(FailureKind::ProcessLost, what));
            return (vec![Over(life)], self.told_of_end(&reason, true));
        }
        let unwanted = self.facts.alone;
        let release = unwanted.then_some(Command::Release { process, lease });
        (vec![], release.into_iter().collect())
    }

    fn started(&self, life: Incarnation) -> (Vec<Fact>, Commands) {
        // One that is being placed has nobody who could say so.
        let told = !self.lives() || self.site().is_some();
        match life == self.life() && !self.is(Ran(life)) && told {
            true => (vec![Ran(life)], vec![Command::TellStarts]),
            false => (vec![], vec![]),
        }
    }

    fn begun(&self, number: u64) -> (Vec<Fact>, Commands) {
        if !self.is_over() || self.restart() != Some(number) {
            return (vec![], vec![]);
        }
        let order = match self.site() {
            Some(Site::Here) => Some(Command::OrderStart),
            Some(Site::At { process, .. }) => Some(Command::SendStart { process }),
            Some(Site::Lost { .. }) => None,
            None => Some(Command::Place),
        };
        let mut commands = vec![Command::TellRestart];
        commands.extend(order);
        (vec![Began], commands)
    }

    /// All hear of the end; those who decide do when nobody has decided it.
    fn told_of_end(&self, reason: &Reason, judged: bool) -> Commands {
        let down = down(self.life(), reason.clone());
        let mut commands = vec![
            Command::NoteDown(down.clone()),
            Command::TellWatchers(Some(down.clone())),
        ];
        commands.extend(judged.then_some(Command::Judge(down)));
        commands
    }

    fn told_to_end(&self, reason: &Reason, keep_mail: bool) -> Commands {
        let reason = reason.clone();
        match self.site() {
            Some(Site::Here) => vec![Command::OrderHalt { reason, keep_mail }],
            Some(Site::At { process, lease }) => vec![Command::SendHalt {
                process,
                lease,
                reason,
                keep_mail,
            }],
            _ => vec![],
        }
    }

    fn buried(&self, reason: &Reason) -> Commands {
        let mut commands = vec![
            Command::NoteDown(down(self.life(), reason.clone())),
            Command::Forget,
            Command::RefuseStarts,
            Command::TellWatchers(None),
            Command::RefuseBacklog,
        ];
        if let (true, Some(Site::At { process, lease })) = (self.facts.alone, self.site()) {
            commands.push(Command::Release { process, lease });
        }
        commands
    }

    fn asked(&self, event: &Event) -> Commands {
        let now = self.life();
        match event {
            Event::Message { full } => vec![match (self.waits(), *full) {
                (false, _) => Command::ReturnMessage,
                (true, true) => Command::RefuseMessage,
                (true, false) => Command::KeepMessage,
            }],
            Event::Withdrawn if self.waits() => vec![Command::DropMessage],
            Event::StartAwaited { next: true } if !self.lives() => {
                vec![Command::KeepStart { from: now + 1 }]
            }
            Event::StartAwaited { .. } => vec![match self.is(Ran(now)) {
                true => Command::AnswerStart,
                false => Command::KeepStart { from: now },
            }],
            Event::EndAwaited { known } => {
                let clear = self.is_over() || *known >= now;
                vec![match !self.lives() && clear {
                    true => Command::AnswerWatcher,
                    false => Command::KeepWatcher,
                }]
            }
            _ => vec![],
        }
    }
}
