//! A book of everybody who waits at a row, and of everything that was ordered: it knows no stages.

use std::collections::VecDeque;

use super::*;

/// The account of one row, and of the answers that everybody has had. What must not be is an error
/// in words.
pub(super) struct Book {
    pub(super) row: RowState,
    /// Those who wait for a start, with the first life that counts.
    pub(super) starts: Vec<(Incarnation, u32)>,
    pub(super) watchers: Vec<u32>,
    pub(super) backlog: VecDeque<u32>,
    /// Everybody who ever waited for something; each has one number.
    last: u32,
    /// The answers that each has had.
    answers: Vec<u8>,
    /// The newest message that was sent on.
    sent_on: u32,
    /// The last life that was told of as begun, as over, and as to be judged.
    begun: Incarnation,
    noted: Incarnation,
    judged: Incarnation,
    restart: Option<u64>,
    /// The process that it was sent to, and that is not known to be out of reach.
    reached: Option<ProcessId>,
    /// The same, whether it is out of reach or not, and not known to have ended.
    housed: Option<ProcessId>,
    /// Set once it is disposed of.
    gone: bool,
}

impl Book {
    pub(super) fn new(row: RowState) -> Self {
        Self {
            row,
            starts: vec![],
            watchers: vec![],
            backlog: VecDeque::new(),
            last: 0,
            answers: vec![0],
            sent_on: 0,
            begun: 1,
            noted: 0,
            judged: 0,
            restart: None,
            reached: None,
            housed: None,
            gone: false,
        }
    }

    fn enter(&mut self) -> u32 {
        self.last += 1;
        self.answers.push(0);
        self.last
    }

    fn answer(&mut self, who: u32) -> Result<(), String> {
        let answers = &mut self.answers[who as usize];
        *answers += 1;
        match *answers {
            1 => Ok(()),
            _ => Err(format!("number {who} is answered twice")),
        }
    }

    /// Has an event happen, and does what follows beside the row.
    pub(super) fn happen(&mut self, apply: Apply, event: &Event) -> Result<Commands, String> {
        let before = self.row;
        let (row, commands) = apply(before, event.clone());
        self.row = row;
        if self.gone && (row != before || !commands.is_empty()) {
            return Err("something happens to one that is disposed of".to_owned());
        }
        self.look_at(event, &before)?;
        for command in &commands {
            self.carry_out(command)?;
        }
        self.look_after(event, &before, &commands)?;
        Ok(commands)
    }

    fn look_at(&mut self, event: &Event, before: &RowState) -> Result<(), String> {
        match event {
            Event::WayClosed { process } if self.reached == Some(*process) => self.reached = None,
            Event::ProcessGone { process, .. } if self.housed == Some(*process) => {
                (self.reached, self.housed) = (None, None);
            }
            Event::Displaced { process }
                if self.housed == Some(*process) && !before.is_living() =>
            {
                (self.reached, self.housed) = (None, None);
            }
            Event::RestartPlanned { number } => self.restart = Some(*number),
            Event::RestartBegins { number } if self.row.life != before.life => {
                if self.restart.take() != Some(*number) {
                    return Err("a restart that was replaced begins a life".to_owned());
                }
                if self.noted < before.life {
                    return Err("a life begins before the last one has ended".to_owned());
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn carry_out(&mut self, command: &Command) -> Result<(), String> {
        let life = self.row.life;
        match command {
            Command::OrderStart | Command::OrderHalt { .. }
                if self.row.site() != Some(Site::Here) =>
            {
                return Err("a cell is ordered that is not here".to_owned());
            }
            Command::SendStart { process } | Command::SendHalt { process, .. }
                if self.reached != Some(*process) =>
            {
                return Err(format!("{process} is told, where the actor is not"));
            }
            Command::SendHost { process } => {
                if self.housed.is_some() {
                    return Err("it is hosted twice".to_owned());
                }
                (self.reached, self.housed) = (Some(*process), Some(*process));
            }
            Command::SendBacklog { .. } | Command::RefuseBacklog => {
                for message in std::mem::take(&mut self.backlog) {
                    if message <= self.sent_on {
                        return Err("a message overtakes another".to_owned());
                    }
                    self.sent_on = message;
                    self.answer(message)?;
                }
            }
            Command::TellStarts => {
                let told = self.starts.extract_if(.., |(from, _)| *from <= life);
                for (_, who) in told.collect::<Vec<_>>() {
                    self.answer(who)?;
                }
            }
            Command::RefuseStarts => {
                for (_, who) in std::mem::take(&mut self.starts) {
                    self.answer(who)?;
                }
            }
            Command::TellWatchers(_) => {
                for who in std::mem::take(&mut self.watchers) {
                    self.answer(who)?;
                }
            }
            Command::NoteDown(down) => {
                if down.incarnation != life {
                    return Err("the end of another life is noted".to_owned());
                }
                self.noted = life;
            }
            Command::TellRestart => {
                if life != self.begun + 1 {
                    return Err("lives begin out of order".to_owned());
                }
                self.begun = life;
            }
            Command::Judge(down) => {
                if down.incarnation <= self.judged {
                    return Err("an end is judged twice".to_owned());
                }
                self.judged = down.incarnation;
            }
            Command::Forget => self.gone = true,
            _ => {}
        }
        Ok(())
    }

    /// Sees to whoever has just asked, and to what holds after each event.
    fn look_after(
        &mut self,
        event: &Event,
        before: &RowState,
        commands: &Commands,
    ) -> Result<(), String> {
        let asks = matches!(
            event,
            Event::Message { .. } | Event::StartAwaited { .. } | Event::EndAwaited { .. }
        );
        if asks && !self.gone {
            let who = self.enter();
            match commands.as_slice() {
                [Command::KeepMessage] => self.backlog.push_back(who),
                [Command::KeepStart { from }] => self.starts.push((*from, who)),
                [Command::KeepWatcher] => self.watchers.push(who),
                [
                    Command::RefuseMessage
                    | Command::ReturnMessage
                    | Command::AnswerStart
                    | Command::AnswerWatcher,
                ] => self.answer(who)?,
                _ => return Err("somebody who asks hears nothing".to_owned()),
            }
        }
        let told = commands
            .iter()
            .any(|command| matches!(command, Command::NoteDown(_)));
        if told && !self.watchers.is_empty() {
            return Err("somebody waits for an end that has been".to_owned());
        }
        if *commands == [Command::DropMessage]
            && let Some(message) = self.backlog.pop_back()
        {
            self.answer(message)?;
        }
        let process = match event {
            Event::Placed { process, .. } => Some(*process),
            _ => None,
        };
        self.look_at_rest(event, before, process, commands)
    }

    fn look_at_rest(
        &self,
        event: &Event,
        before: &RowState,
        placed: Option<ProcessId>,
        commands: &Commands,
    ) -> Result<(), String> {
        if self.gone {
            let waits = self.starts.len() + self.watchers.len() + self.backlog.len();
            if waits > 0 || self.answers[1..].iter().any(|n| *n != 1) {
                return Err("somebody waits for ever at one that is disposed of".to_owned());
            }
        } else if self.reached.is_some() && !self.backlog.is_empty() {
            return Err("messages wait although there is a way".to_owned());
        }
        let released = commands
            .iter()
            .any(|command| matches!(command, Command::Release { .. }));
        let was_gone = before.stage == Stage::Gone;
        if self.row.facts.alone && !was_gone {
            let unwanted = placed.is_some()
                && self.housed != placed
                && before.is_living() == self.row.is_living();
            let left = matches!(event, Event::Disposed { .. }) && self.reached.is_some();
            if (unwanted || left) && !released {
                return Err("a process of its own is not given back".to_owned());
            }
        }
        let running =
            self.row.is_running() && self.starts.iter().any(|(from, _)| *from <= self.row.life);
        if running {
            return Err("somebody waits for a start that has been".to_owned());
        }
        Ok(())
    }
}
