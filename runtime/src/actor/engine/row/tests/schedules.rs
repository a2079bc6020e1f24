//! Random schedules of one row: its family, its supervisor's tasks, and a network of made-up processes
//! whose messages come late and which die at any moment.

mod home;
mod process;

use super::*;
use crate::base::clock::Timestamp;
use crate::base::supervise::{Backoff, Budget, Family, Restart, Strategy, Supervision, Verdict};
use process::{ActorCell, Order, Process, Report, Word};

const SIBLING: ActorId = ActorId {
    home: ProcessId(9),
    serial: 3,
};

/// A question that waits for its answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Answer {
    Waiting,
    Yes,
    No,
    /// Whoever was asked is gone.
    Never,
}

/// The thing that a task waits for.
#[derive(Clone, Copy, Debug)]
enum Wait {
    Nothing,
    /// An order to the cell here.
    Here(usize),
    /// An order to a process; without a number there was no way to it.
    There(ProcessId, Option<usize>),
}

/// The next act of a task that has ended a life.
#[derive(Clone, Debug)]
enum Then {
    /// The turn passes, and with a number a restart follows.
    Back(Option<u64>),
    Dispose {
        reason: Reason,
        turn: bool,
    },
    Judge,
}

/// A task of the row's home.
#[derive(Clone, Debug)]
enum Task {
    /// A process is looked for.
    Launch(Incarnation),
    /// One was found.
    Found(Incarnation, ProcessId),
    /// A process was told to begin a life.
    Begin(Incarnation, usize),
    Halt {
        wait: Wait,
        life: Incarnation,
        reason: Reason,
        keep_mail: bool,
        then: Then,
    },
    /// The device under a life has failed: its process is ended before the verdict.
    Replace(Down),
    Judge(Down),
    /// A sibling has failed.
    JudgeSibling,
    /// Siblings halt, in the turn of a verdict.
    Siblings(u64),
    Restart(u64),
}

/// One schedule: a row, its family, its processes, and the tasks of its home.
struct World<'a> {
    apply: Apply,
    draw: Draw,
    reached: &'a mut Reached,
    book: Book,
    family: Family,
    here: Option<ActorCell>,
    processes: Vec<Process>,
    tasks: Vec<Task>,
    answers: Vec<(ProcessId, Answer)>,
    /// A verdict is being carried out.
    turn: bool,
    restarts: u64,
    /// The last life whose end is known.
    known: Incarnation,
    /// The last life that has begun somewhere, and those that have started.
    begun: Incarnation,
    ran: u64,
    /// Somebody had it fail while it blocked its thread, and was told that it cannot be reached: nobody
    /// restarts it.
    abandoned: bool,
    quiet: bool,
    /// Of twelve times, those when something comes by chance, and when a task of the home goes on: in some
    /// schedules much happens, in others words come late.
    pace: (usize, usize),
}

type Checked<T = ()> = Result<T, String>;

impl<'a> World<'a> {
    fn new(apply: Apply, seed: u64, reached: &'a mut Reached) -> Self {
        let mut draw = Draw(seed);
        let row = new_row(draw.below(3) as u8);
        let strategy = match draw.below(3) {
            0 => Strategy::OneForOne,
            _ => Strategy::OneForAll,
        };
        let mut family = Family::new(Supervision {
            strategy,
            budget: Budget {
                restarts: 2 + draw.below(8) as u32,
                ..Budget::default()
            },
            backoff: Backoff::default(),
        });
        let restart = match draw.below(6) {
            0 => Restart::Temporary,
            1 => Restart::Transient,
            _ => Restart::Permanent,
        };
        family.adopt(CHILD, restart);
        family.adopt(SIBLING, Restart::Permanent);
        let mut world = Self {
            apply,
            draw,
            reached,
            book: Book::new(row),
            family,
            here: None,
            processes: vec![],
            tasks: vec![],
            answers: vec![],
            turn: false,
            restarts: 0,
            known: 0,
            begun: 0,
            ran: 0,
            abandoned: false,
            quiet: false,
            pace: (0, 0),
        };
        world.pace = (1 + world.draw.below(4), 1 + world.draw.below(4));
        match row.site() {
            Some(_) => {
                world.begun = 1;
                world.here = Some(ActorCell::new(1));
            }
            None => world.tasks.push(Task::Launch(1)),
        }
        world
    }

    fn is_gone(&self) -> bool {
        self.book.row.stage == Stage::Gone
    }

    // ---- the row ----

    /// Has an event happen and carries out what follows, as far as it takes no time. The order to end a
    /// life that is waited for.
    fn happen(&mut self, event: &Event) -> Checked<Wait> {
        self.reached.event(&self.book.row, event);
        if let Event::RestartBegins { number } = event
            && let Stage::Halting { next, .. } = self.book.row.stage
            && next == Some(*number)
        {
            return Err("a restart is due while the life before it ends".to_owned());
        }
        let placed = match event {
            Event::Placed { process, .. } => Some(*process),
            _ => None,
        };
        let before = self.book.row;
        let commands = self.book.happen(self.apply, event);
        let commands = commands.map_err(|why| format!("{why} after {event:?} at {before:?}"))?;
        if let (true, Some(process)) = (self.is_gone() && self.book.row.facts.alone, placed) {
            self.end_process(process);
        }
        let mut wait = Wait::Nothing;
        for command in commands {
            self.reached.command(&command);
            self.carry_out(command, &mut wait)?;
        }
        let life = self.book.row.life;
        if self.book.row.is_running() && self.ran & (1 << life) == 0 {
            return Err(format!(
                "life {life} runs, as is thought, and has not started"
            ));
        }
        Ok(wait)
    }

    fn carry_out(&mut self, command: Command, wait: &mut Wait) -> Checked {
        let life = self.book.row.life;
        match command {
            Command::OrderStart => {
                if let Some(cell) = &mut self.here {
                    cell.orders.push_back(Order::Start(life));
                }
            }
            Command::OrderHalt { keep_mail, .. } => {
                let done = self.ask(ProcessId(9));
                *wait = Wait::Here(done);
                match &mut self.here {
                    Some(cell) => cell.orders.push_back(Order::Halt { keep_mail, done }),
                    None => self.answers[done].1 = Answer::Never,
                }
            }
            Command::SendStart { process } => {
                if let Some(number) = self.send(process, |number| Word::Start(life, number)) {
                    self.tasks.push(Task::Begin(life, number));
                }
            }
            Command::SendHost { process } => {
                match self.send(process, |number| Word::Host(life, number)) {
                    Some(number) => self.tasks.push(Task::Begin(life, number)),
                    None => return Err("it is hosted where no way leads".to_owned()),
                }
            }
            Command::SendHalt {
                process, keep_mail, ..
            } => {
                let sent = self.send(process, |number| Word::Halt(keep_mail, number));
                *wait = Wait::There(process, sent);
            }
            Command::Place => self.tasks.push(Task::Launch(life)),
            Command::Judge(down) => {
                let replaced = self.draw.one_in(8);
                self.tasks.push(match replaced {
                    true => Task::Replace(down),
                    false => Task::Judge(down),
                });
            }
            Command::Release { process, .. } => self.end_process(process),
            Command::NoteDown(down) => self.known = self.known.max(down.incarnation),
            _ => {}
        }
        Ok(())
    }

    fn ask(&mut self, process: ProcessId) -> usize {
        self.answers.push((process, Answer::Waiting));
        self.answers.len() - 1
    }

    fn send(&mut self, to: ProcessId, word: impl FnOnce(usize) -> Word) -> Option<usize> {
        let at = self.processes.iter().position(|it| it.id == to && it.way)?;
        let number = self.ask(to);
        // What is sent to a process that is dead already is lost.
        if self.processes[at].up {
            self.processes[at].inbox.push_back(word(number));
        }
        Some(number)
    }

    fn process(&mut self, id: ProcessId) -> Option<&mut Process> {
        self.processes.iter_mut().find(|process| process.id == id)
    }

    fn end_process(&mut self, id: ProcessId) {
        let keep = self.draw.below(3);
        if let Some(process) = self.process(id)
            && process.up
        {
            process.die(keep);
        }
    }

    // ---- processes ----

    /// The cell here goes on, and what it reports is heard at once.
    fn go_on_here(&mut self) -> Checked {
        let Some(mut cell) = self.here.take() else {
            return Ok(());
        };
        let (reports, over) = cell.go_on(&mut self.draw, self.quiet);
        match over {
            true => self.forget_orders(&cell),
            false => self.here = Some(cell),
        }
        for report in reports {
            match report {
                Report::Began(life) => self.note_begun(life)?,
                Report::Started(life) => {
                    self.ran |= 1 << life;
                    self.happen(&Event::Started { life })?;
                }
                Report::Ended(life) => {
                    self.known = self.known.max(life);
                    let reason = failed();
                    self.happen(&Event::Ended { life, reason })?;
                }
                Report::Halted(done) => self.answers[done].1 = Answer::Yes,
            }
        }
        Ok(())
    }

    /// Nobody obeys what was ordered of a cell that is over.
    fn forget_orders(&mut self, cell: &ActorCell) {
        for done in cell.halts() {
            self.answers[done].1 = Answer::Never;
        }
    }

    fn note_begun(&mut self, life: Incarnation) -> Checked {
        if life <= self.begun {
            return Err(format!("life {life} begins twice"));
        }
        self.begun = life;
        let cells = self.processes.iter().filter(|process| process.up);
        let cells = cells.filter_map(|process| process.cell.as_ref());
        let living = cells.chain(&self.here).filter(|cell| cell.lives());
        match living.count() {
            0 | 1 => Ok(()),
            _ => Err("two lives at a time".to_owned()),
        }
    }

    fn go_on_there(&mut self) -> Checked {
        if self.processes.is_empty() {
            return Ok(());
        }
        let at = self.draw.below(self.processes.len());
        let process = &mut self.processes[at];
        let reports = match self.draw.below(3) {
            0 => process.hear(&mut self.draw, self.quiet),
            1 => process.go_on(&mut self.draw, self.quiet),
            // That a process is gone is known a while after the way to it has closed.
            _ if !process.way && !self.quiet && self.draw.below(5) > 0 => return Ok(()),
            _ => return self.hear(at),
        };
        for report in reports {
            match report {
                Report::Began(life) => self.note_begun(life)?,
                Report::Started(life) => self.ran |= 1 << life,
                Report::Ended(_) | Report::Halted(_) => {}
            }
        }
        Ok(())
    }

    /// The home hears the next word of a process.
    fn hear(&mut self, at: usize) -> Checked {
        let id = self.processes[at].id;
        match self.processes[at].outbox.pop_front() {
            None => Ok(()),
            Some(process::Said::Answer(number, yes)) => {
                let answer = &mut self.answers[number].1;
                if *answer == Answer::Waiting {
                    *answer = if yes { Answer::Yes } else { Answer::No };
                }
                Ok(())
            }
            Some(process::Said::Ended(life)) => match self.is_gone() {
                true => Ok(()),
                false => {
                    let reason = failed();
                    self.happen(&Event::Ended { life, reason }).map(drop)
                }
            },
            Some(process::Said::Gone) => {
                self.processes[at].way = false;
                let asked = self.answers.iter_mut().filter(|asked| asked.0 == id);
                let open = asked.filter(|asked| asked.1 == Answer::Waiting);
                open.for_each(|asked| asked.1 = Answer::Never);
                let (process, reason) = (id, failed());
                if self.book.row.was_in(process) {
                    self.happen(&Event::ProcessGone { process, reason })?;
                }
                Ok(())
            }
        }
    }

    // ---- whatever may come ----

    fn chance(&mut self) -> Checked {
        match self.draw.below(22) {
            0..=4 if !self.is_gone() => {
                let next = self.draw.one_in(2);
                let known = self.known;
                let full = self.book.backlog.len() >= 2;
                let event = match self.draw.below(4) {
                    0 => Event::StartAwaited { next },
                    1 => Event::EndAwaited { known },
                    2 => Event::Withdrawn,
                    _ => Event::Message { full },
                };
                self.happen(&event)?;
            }
            5..=6 => {
                let up = self.processes.iter().filter(|process| process.up);
                if let Some(id) = up.map(|process| process.id).next_back() {
                    self.end_process(id);
                }
            }
            7..=9 => {
                let dead = self.processes.iter_mut().filter(|process| !process.up);
                if let Some(process) = dead.filter(|process| process.way).last() {
                    let id = process.id;
                    process.close();
                    if self.book.row.process() == Some(id) {
                        self.happen(&Event::WayClosed { process: id })?;
                    }
                }
            }
            10..=11 => self.tasks.push(Task::JudgeSibling),
            12..=13 if !self.is_gone() => {
                let reason = failed();
                let lives = self.book.row.is_living();
                let life = self.book.row.life;
                let wait = self.happen(&Event::Failed { reason })?;
                if lives {
                    self.tasks.push(Task::Halt {
                        wait,
                        life,
                        reason: failed(),
                        keep_mail: true,
                        then: Then::Judge,
                    });
                }
            }
            14 if !self.is_gone() && self.draw.one_in(3) => {
                self.family.remove(CHILD);
                self.dispose(Reason::Stopped, false)?;
            }
            15..=16 => {
                let cells = self.processes.iter_mut();
                let cells = cells.filter_map(|process| process.cell.as_mut());
                if let Some(cell) = cells.chain(&mut self.here).last() {
                    cell.blocked ^= true;
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn step(&mut self) -> Checked {
        let (chances, tasks) = if self.quiet { (0, 4) } else { self.pace };
        match self.draw.below(12) {
            n if n < chances => self.chance(),
            n if n < chances + tasks => self.task(),
            _ if self.here.is_some() => self.go_on_here(),
            _ => self.go_on_there(),
        }
    }

    /// Nothing is under way.
    fn is_still(&self) -> bool {
        let here = self.here.as_ref().is_none_or(ActorCell::is_still);
        here && self.tasks.is_empty() && self.processes.iter().all(Process::is_still)
    }

    /// Everything happens that is under way, and nothing else.
    fn settle(&mut self) -> Checked {
        self.quiet = true;
        for process in &mut self.processes {
            if let Some(cell) = &mut process.cell {
                cell.blocked = false;
            }
        }
        if let Some(cell) = &mut self.here {
            cell.blocked = false;
        }
        for _ in 0..4_000 {
            if self.is_still() {
                return self.look();
            }
            self.step()?;
        }
        Err(format!("it does not come to rest: {:?}", self.tasks))
    }

    /// Checks that a row at rest says what is there.
    fn look(&self) -> Checked {
        let row = &self.book.row;
        let cell = match row.site() {
            Some(Site::Here) => self.here.as_ref(),
            _ => {
                let up = self.processes.iter().filter(|process| process.up);
                let mut up = up.filter(|process| Some(process.id) == row.process());
                up.next().and_then(|process| process.cell.as_ref())
            }
        };
        let runs = cell.is_some_and(|cell| cell.runs() && cell.life == row.life);
        match row.is_running() {
            true if runs => Ok(()),
            true => Err(format!("nothing runs where it is thought: {row:?}")),
            false if self.is_gone() || self.abandoned => Ok(()),
            false => Err(format!("nothing more will happen to it: {row:?}")),
        }
    }
}

fn play(apply: Apply, seed: u64, reached: &mut Reached) -> Checked {
    let mut world = World::new(apply, seed, reached);
    let steps = 20 + world.draw.below(180);
    for _ in 0..steps {
        world.step()?;
    }
    world.settle()
}

/// Plays schedules on two threads.
fn play_all(schedules: u64) -> Reached {
    let threads = 2;
    let played = std::thread::scope(|scope| {
        let play = |n: u64| {
            let mut reached = Reached::new();
            for seed in (n..schedules).step_by(threads) {
                let outcome = play(apply, seed, &mut reached);
                assert_eq!(outcome, Ok(()), "seed {seed}");
            }
            reached
        };
        let runs = (0..threads as u64).map(|n| scope.spawn(move || play(n)));
        let runs: Vec<_> = runs.collect();
        runs.into_iter()
            .map(|run| run.join().unwrap())
            .collect::<Vec<_>>()
    });
    let mut all = Reached::new();
    played.iter().for_each(|reached| all.add(reached));
    all
}

/// SEMANTICS 6, 7, 8, 17, 18.
/// A hundred thousand schedules, or as many as `ODEON_SCHEDULES` says.
#[test]
fn a_row_and_its_family_come_to_rest_under_any_schedule() {
    let schedules = std::env::var("ODEON_SCHEDULES").ok();
    let schedules = schedules.and_then(|schedules| schedules.parse().ok());
    let schedules = schedules.unwrap_or(100_000);
    let reached = play_all(schedules);
    let never = reached.never(|event, stage| {
        let rare = comes_late(event, stage) && schedules < 1_000_000;
        can_come(event, stage) && !rare
    });
    assert!(never.is_empty(), "never reached: {never:#?}");
}

/// Returns true if somebody can bring about an event in this stage.
fn can_come(event: &str, stage: &str) -> bool {
    let (stage, site) = stage.split_once(' ').unwrap_or((stage, "nowhere"));
    match event {
        // Nobody finds a process for it, or ends one.
        "Placed" | "Displaced" if site == "here" => false,
        // It is told to those alone that are there.
        "ProcessGone" => ["at", "lost"].contains(&site),
        "WayClosed" => site == "at",
        "Disposed" => stage == "Stopping",
        // It has left its family.
        "RestartPlanned" => stage != "Stopping",
        // A cell here says so once, and at once.
        "Started" if stage == "Running" => site != "here",
        _ => is_counted(event, stage, site),
    }
}

/// Returns false for words of an earlier life that come when the next one runs already and the way to it
/// has closed, which too few schedules have.
fn is_counted(event: &str, stage: &str, site: &str) -> bool {
    let late = ["Placed", "Ended", "RestartBegins", "HaltOver", "Displaced"];
    (stage, site) != ("Running", "lost") || !late.contains(&event)
}

/// Returns true for words that come as late as that in one of some ten thousand schedules.
fn comes_late(event: &str, stage: &str) -> bool {
    let late: &[&str] = match stage {
        "Starting lost" => &["Placed", "Displaced"],
        "Running at" => &["RestartBegins", "HaltOver", "Displaced"],
        "Running lost" => &["Started"],
        "Halting lost" => &["Placed", "RestartBegins"],
        "Ended lost" | "Stopping lost" => &["Placed"],
        _ => &[],
    };
    late.contains(&event)
}

#[test]
fn schedules_find_flaws() {
    // A verdict over an end that another has judged is none: the family bears that.
    let borne = "a life that is told to end is judged, too";
    for (flaw, flawed) in FLAWS.iter().filter(|(flaw, _)| *flaw != borne) {
        let mut outcomes = (0..20_000).map(|seed| play(*flawed, seed, &mut Reached::new()));
        assert!(
            outcomes.any(|outcome| outcome.is_err()),
            "not found: {flaw}"
        );
    }
}
