//! The tasks of a row's home, as its engine has them: each goes on when its turn comes.

use super::*;

impl World<'_> {
    pub(super) fn task(&mut self) -> Checked {
        if self.tasks.is_empty() {
            return Ok(());
        }
        let at = self.draw.below(self.tasks.len());
        let task = self.tasks.swap_remove(at);
        match task {
            Task::Launch(life) => self.launch(life),
            Task::Found(life, process) => {
                let way = self.process(process).is_some_and(|process| process.way);
                let lease = None;
                self.happen(&Event::Placed {
                    life,
                    process,
                    lease,
                    way,
                })?;
                Ok(())
            }
            Task::Begin(life, number) => self.begun(life, number),
            Task::Halt { .. } => self.halted(task),
            Task::Replace(down) => self.replace(down),
            Task::Judge(down) => self.judge(down),
            Task::JudgeSibling => self.judge_sibling(),
            Task::Siblings(number) => {
                self.turn = false;
                self.tasks.push(Task::Restart(number));
                Ok(())
            }
            Task::Restart(number) => self.happen(&Event::RestartBegins { number }).map(drop),
        }
    }

    fn launch(&mut self, life: Incarnation) -> Checked {
        if !self.quiet && self.draw.one_in(16) {
            let failure = Failure::new(FailureKind::NotPlaced, String::new());
            if life > 1 {
                let reason = Reason::Failed(failure);
                return self.happen(&Event::Ended { life, reason }).map(drop);
            }
            self.family.remove(CHILD);
            return self.dispose(Reason::Failed(failure), false);
        }
        let shares = !self.book.row.facts.alone && self.draw.below(4) > 0;
        let up = self.processes.iter().find(|process| process.up);
        let process = match up {
            Some(process) if shares => process.id,
            _ => {
                let id = ProcessId(10 + self.processes.len() as u64);
                self.processes.push(Process::new(id));
                id
            }
        };
        self.tasks.push(Task::Found(life, process));
        Ok(())
    }

    fn begun(&mut self, life: Incarnation, number: usize) -> Checked {
        match self.answers[number].1 {
            Answer::Waiting => self.tasks.push(Task::Begin(life, number)),
            Answer::Yes => drop(self.happen(&Event::Started { life })?),
            Answer::No => {
                let reason = failed();
                self.happen(&Event::Ended { life, reason })?;
            }
            Answer::Never => {}
        }
        Ok(())
    }

    /// Looks for the thing that a task waits for: true when the life is over, `None` if it waits on.
    fn waited(&mut self, wait: Wait, keep_mail: bool) -> Checked<Option<bool>> {
        let number = match wait {
            Wait::Nothing => return Ok(Some(true)),
            Wait::Here(number) => number,
            Wait::There(process, None) => return self.unheard(process).map(Some),
            Wait::There(_, Some(number)) => number,
        };
        let patience = !self.quiet && self.draw.one_in(12);
        match (self.answers[number].1, wait) {
            (Answer::Yes, _) | (Answer::Never, Wait::Here(_)) => Ok(Some(true)),
            (Answer::No | Answer::Never, Wait::There(process, _)) => {
                self.unheard(process).map(Some)
            }
            (Answer::Waiting, Wait::There(process, _)) if patience => {
                self.unheard(process).map(Some)
            }
            (Answer::Waiting, Wait::Here(_))
                if self.here.as_ref().is_some_and(|cell| cell.blocked) =>
            {
                if !keep_mail && let Some(cell) = self.here.take() {
                    self.forget_orders(&cell);
                }
                Ok(Some(false))
            }
            _ => Ok(None),
        }
    }

    /// A process has not said that a life has ended: it is ended if it is the actor's own.
    fn unheard(&mut self, id: ProcessId) -> Checked<bool> {
        let alone = self.book.row.facts.alone;
        if alone {
            self.retire(id)?;
        }
        Ok(alone || !self.process(id).is_some_and(|process| process.way))
    }

    fn retire(&mut self, id: ProcessId) -> Checked {
        self.end_process(id);
        if let Some(process) = self.process(id) {
            process.close();
        }
        self.happen(&Event::Displaced { process: id }).map(drop)
    }

    fn halted(&mut self, task: Task) -> Checked {
        let Task::Halt {
            wait,
            life,
            reason,
            keep_mail,
            then,
        } = task.clone()
        else {
            return Ok(());
        };
        let Some(over) = self.waited(wait, keep_mail)? else {
            self.tasks.push(task);
            return Ok(());
        };
        if !self.is_gone() {
            let reason = reason.clone();
            self.happen(&Event::HaltOver { life, reason })?;
        }
        match then {
            Then::Back(restart) => {
                self.turn = false;
                self.tasks.extend(restart.map(Task::Restart));
            }
            Then::Dispose { reason, turn } => {
                if turn {
                    self.turn = false;
                }
                if !self.is_gone() {
                    self.happen(&Event::Disposed { reason })?;
                    self.here = None;
                }
            }
            Then::Judge if over => self.tasks.push(Task::Judge(down(life, reason))),
            Then::Judge => self.abandoned = true,
        }
        Ok(())
    }

    /// Tells the life to end.
    pub(super) fn halt(&mut self, reason: Reason, keep_mail: bool, then: Then) -> Checked {
        let life = self.book.row.life;
        let wait = match self.is_gone() {
            true => Wait::Nothing,
            false => {
                let reason = reason.clone();
                self.happen(&Event::Halted { reason, keep_mail })?
            }
        };
        let task = Task::Halt {
            wait,
            life,
            reason,
            keep_mail,
            then,
        };
        self.tasks.push(task);
        Ok(())
    }

    pub(super) fn dispose(&mut self, reason: Reason, turn: bool) -> Checked {
        let why = reason.clone();
        self.halt(why, false, Then::Dispose { reason, turn })
    }

    fn replace(&mut self, down: Down) -> Checked {
        let row = &self.book.row;
        let mine = !row.is_living() && row.life == down.incarnation;
        if let Some(process) = row.process().filter(|_| mine) {
            self.retire(process)?;
        }
        self.tasks.push(Task::Judge(down));
        Ok(())
    }

    fn judge(&mut self, down: Down) -> Checked {
        if self.turn {
            self.tasks.push(Task::Judge(down));
            return Ok(());
        }
        if !self.book.row.awaits_verdict(down.incarnation) {
            return Ok(());
        }
        let reason = down.reason;
        match self.family.judge(CHILD, &reason, Timestamp(0), 0.0) {
            Verdict::Forget => {
                self.turn = true;
                self.dispose(reason, true)
            }
            Verdict::Restart { halt, start, .. } => {
                let number = self.plan(&start)?;
                match halt.is_empty() {
                    true => self.tasks.push(Task::Restart(number)),
                    false => {
                        self.turn = true;
                        self.tasks.push(Task::Siblings(number));
                    }
                }
                Ok(())
            }
            Verdict::Escalate(_) => self.dispose(Reason::Sibling, false),
        }
    }

    fn plan(&mut self, start: &[ActorId]) -> Checked<u64> {
        self.restarts += 1;
        let number = self.restarts;
        if start.contains(&CHILD) && !self.is_gone() {
            self.happen(&Event::RestartPlanned { number })?;
        }
        Ok(number)
    }

    fn judge_sibling(&mut self) -> Checked {
        if self.turn {
            self.tasks.push(Task::JudgeSibling);
            return Ok(());
        }
        match self.family.judge(SIBLING, &failed(), Timestamp(0), 0.0) {
            Verdict::Restart { halt, start, .. } if halt.contains(&CHILD) => {
                let number = self.plan(&start)?;
                self.turn = true;
                match start.contains(&CHILD) {
                    true => self.halt(Reason::Sibling, true, Then::Back(Some(number))),
                    false => self.dispose(Reason::Sibling, true),
                }
            }
            Verdict::Escalate(_) => self.dispose(Reason::Sibling, false),
            _ => Ok(()),
        }
    }
}
