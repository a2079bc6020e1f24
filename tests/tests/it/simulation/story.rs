//! The story of a seed: two nodes, four senders and one actor, and what befalls them.

use std::time::Duration;

use futures::future;
use odeon::simulation::{SimulationSpec, World};
use odeon::{
    ActorId, AskError, Clock, Effect, Incarnation, Ref, Restart, Supervision, System, TellError,
    Timestamp,
};

use super::middleman::{Flaw, Middleman};
use super::oracle::{Broken, End, Evidence, Happening, Sent, TRAVEL, Tally};
use super::recorder::{self, Act, Dice, Note, Recorder, limits, narrow, notes};

/// The trouble in a story.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Trouble {
    /// The network, processes and handlers.
    Anything,
    /// The network, for less time than a link bears.
    Network,
}

/// All faults of a story together take less.
const PATIENCE: Duration = Duration::from_secs(20);

/// An ask whose deadline has passed ends with one of the next sweeps.
const SWEPT: Duration = Duration::from_millis(15);

/// The notes that each sender has.
const NOTES: u64 = 60;

/// One who is none of the senders.
const CLOSING: u64 = 9;

/// The outcome of a seed.
#[derive(Debug, PartialEq)]
pub(crate) struct Told {
    pub(crate) actor: ActorId,
    /// Sender, life and number of each note in the order they were handled.
    pub(crate) seen: Vec<(u64, Incarnation, u64)>,
    pub(crate) tally: Tally,
    pub(crate) broken: Vec<Broken>,
    /// The virtual time that went by.
    pub(crate) took: Duration,
}

/// A sender: one task, whose notes are numbered.
struct Sender {
    who: u64,
    actor: Ref<Recorder>,
    trouble: Trouble,
    dice: Dice,
    number: u64,
    sent: Vec<Sent>,
    tally: Tally,
    broken: Vec<Broken>,
}

impl Sender {
    async fn play(mut self) -> Self {
        while self.number < NOTES {
            self.turn().await;
            // Some follow at once.
            if self.dice.roll(4) > 0 {
                Clock::sleep(Duration::from_micros(self.dice.roll(3_000))).await;
            }
        }
        self
    }

    async fn turn(&mut self) {
        match self.dice.roll(16) {
            0..=3 => {
                let note = self.note();
                self.tell(note).await;
            }
            4 => {
                for _ in 0..4 {
                    let note = self.note();
                    self.tell(note).await;
                }
            }
            5 => self.tell_now(),
            6 => self.ask_and_tell().await,
            7 => {
                let patience = self.dice.millis(6) + Duration::from_millis(1);
                let note = self.note();
                self.ask(note, patience, None).await;
            }
            8 => {
                let drop_after = self.dice.millis(6);
                let note = self.note();
                self.ask(note, PATIENCE, Some(drop_after)).await;
            }
            9 => {
                let mut note = self.note();
                // The last life, the present one or the next.
                let life = recorder::last_life() + self.dice.roll(3) as Incarnation;
                note.fence = life.saturating_sub(1).max(1);
                if self.dice.roll(3) == 0 {
                    self.tell(note).await;
                } else {
                    self.ask(note, PATIENCE, None).await;
                }
            }
            10 => {
                let mut note = self.note();
                note.act = Act::AnswerAtLength;
                self.ask(note, PATIENCE, None).await;
            }
            _ => {
                let note = self.note();
                self.ask(note, PATIENCE, None).await;
            }
        }
    }

    fn note(&mut self) -> Note {
        let panics = self.dice.roll(40) == 0 && self.trouble == Trouble::Anything;
        let act = if panics { Act::Panic } else { Act::Answer };
        self.number += 1;
        Note::new(self.who, self.number - 1, act)
    }

    async fn tell(&mut self, note: Note) {
        let (number, fence, begun) = (note.number, note.fence, Clock::now());
        let told = self.actor.fenced(fence).tell(note).timeout(PATIENCE).await;
        self.told(number, fence, begun, told);
    }

    fn tell_now(&mut self) {
        let note = self.note();
        let number = note.number;
        let told = self.actor.tell(note).now();
        self.told(number, 0, Clock::now(), told);
    }

    /// An ask, and a tell while its answer is awaited.
    async fn ask_and_tell(&mut self) {
        let (question, news) = (self.note(), self.note());
        let (asked, told, begun) = (question.number, news.number, Clock::now());
        let ask = self.actor.ask(question).timeout(PATIENCE);
        let tell = self.actor.tell(news).timeout(PATIENCE);
        let ask = async { (ask.await, Clock::now()) };
        let ((answer, ended), accepted) = future::join(ask, tell.into_future()).await;
        let deadline = begun.after(PATIENCE);
        let end = self.answered(asked, &answer, PATIENCE);
        self.note_end(asked, false, end, (begun, deadline, ended));
        self.told(told, 0, begun, accepted);
    }

    async fn ask(&mut self, note: Note, patience: Duration, drop_after: Option<Duration>) {
        let (number, fence, begun) = (note.number, note.fence, Clock::now());
        let deadline = begun.after(patience);
        let asking = self.actor.fenced(fence).ask(note).timeout(patience);
        let answer = match drop_after {
            Some(after) => Clock::timeout(after, asking).await,
            None => Some(asking.await),
        };
        let ended = Clock::now();
        let end = match answer {
            Some(answer) => self.answered(number, &answer, patience),
            None => End::Dropped,
        };
        if ended > deadline.after(SWEPT) {
            let late = ended.since(deadline);
            self.broken(10, number, format!("ends {late:?} after its deadline"));
        }
        self.note_end(number, fence != 0, end, (begun, deadline, ended));
    }

    fn answered(
        &mut self,
        number: u64,
        answer: &Result<Vec<u64>, AskError>,
        patience: Duration,
    ) -> End {
        let error = match answer {
            Ok(answer) if answer.first() == Some(&number) => return End::Answered,
            Ok(answer) => {
                self.broken(10, number, format!("has the answer {:?}", answer.first()));
                return End::Answered;
            }
            Err(error) => error,
        };
        self.judge_error(number, error, patience);
        match error {
            AskError::Timeout { .. } => End::Late,
            AskError::Stale { .. } => {
                self.tally.note(Happening::FencedRefused);
                End::Failed(Effect::No)
            }
            error => {
                if error.effect() == Effect::No {
                    self.tally.note(Happening::AskRefused);
                }
                End::Failed(error.effect())
            }
        }
    }

    fn told(
        &mut self,
        number: u64,
        fence: Incarnation,
        begun: Timestamp,
        told: Result<(), TellError<Note>>,
    ) {
        let ended = Clock::now();
        if ended > begun {
            self.tally.note(Happening::WaitedForRoom);
        }
        let end = match told {
            Ok(()) => End::Accepted,
            Err(TellError { error, .. }) => {
                self.judge_error(number, &error, PATIENCE);
                self.tally.note(Happening::TellRefused);
                End::Failed(error.effect())
            }
        };
        let times = (begun, begun.after(PATIENCE), ended);
        self.note_end(number, fence != 0, end, times);
    }

    /// Some errors have no place in a story.
    fn judge_error(&mut self, number: u64, error: &AskError, patience: Duration) {
        let network = self.trouble == Trouble::Network;
        let promise = match error {
            // Nothing takes as long as that: the answer was lost.
            AskError::Timeout { .. } if patience == PATIENCE => 7,
            AskError::Died(_) | AskError::LinkLost { .. } | AskError::Unreachable(_) if network => {
                7
            }
            AskError::Full { waited, .. } if *waited >= PATIENCE => 4,
            AskError::Dead(_) => 18,
            AskError::NoSuchMethod { .. } | AskError::BadMessage { .. } => 13,
            _ => return,
        };
        self.broken(promise, number, format!("fails: {error}"));
    }

    fn broken(&mut self, promise: u32, number: u64, how: impl std::fmt::Display) {
        let how = format!("{}/{number} {how}", self.who);
        self.broken.push(Broken::new(promise, how));
    }

    fn note_end(&mut self, number: u64, fenced: bool, end: End, times: Times) {
        let (sent, deadline, ended) = times;
        self.sent.push(Sent {
            sender: self.who,
            number,
            fenced,
            end,
            sent,
            deadline,
            ended,
        });
    }
}

/// When a request was sent, its deadline, and when it ended.
type Times = (Timestamp, Timestamp, Timestamp);

/// The faults of a story, and what came of them.
struct Faults {
    world: World,
    middleman: Middleman,
    actor: Ref<Recorder>,
    trouble: Trouble,
    dice: Dice,
    unquiet: Vec<(Timestamp, Timestamp)>,
    tally: Tally,
}

impl Faults {
    /// Faults while the senders run, then quiet.
    async fn play(&mut self) {
        for _ in 0..6 {
            Clock::sleep(self.dice.millis(40)).await;
            let begun = Clock::now();
            self.strike().await;
            // What was held back comes after it.
            let settled = Clock::now().after(limits().heartbeat_interval);
            self.unquiet.push((begun, settled));
            // What was missed is sent before the next fault.
            if self.trouble == Trouble::Network {
                Clock::sleep(Duration::from_millis(300)).await;
            }
        }
        let begun = Clock::now();
        let _joined = self.world.join(0, 1).await;
        self.unquiet.push((begun, Clock::now()));
    }

    async fn strike(&mut self) {
        // Links end after 900 ms.
        let kinds = match self.trouble {
            Trouble::Anything => 6,
            Trouble::Network => 3,
        };
        let network = self.world.network.clone();
        match self.dice.roll(kinds) {
            0 => {
                self.tally.note(Happening::Partition);
                network.part(0, 1);
                Clock::sleep(self.dice.millis(500)).await;
                network.heal(0, 1);
            }
            1 => {
                for _ in 0..self.dice.roll(5) {
                    self.tally.note(Happening::Snap);
                    network.snap(0, 1);
                    Clock::sleep(self.dice.millis(30)).await;
                }
            }
            2 => {
                self.tally.note(Happening::ShortCut);
                network.cut(0, 1);
                Clock::sleep(self.dice.millis(500)).await;
                network.mend(0, 1);
            }
            3 => {
                self.tally.note(Happening::LongCut);
                network.cut(0, 1);
                Clock::sleep(self.dice.millis(1_500)).await;
                let _joined = self.world.join(0, 1).await;
            }
            4 => self.kill(),
            _ => self.damage().await,
        }
    }

    /// Damages a frame, so that the link is lost, and links the nodes again.
    async fn damage(&mut self) {
        self.middleman.damage(self.dice.roll(2) as usize);
        // A beat comes soon, unless there is no connection.
        let most = limits().heartbeat_interval * 2;
        let begun = Clock::now();
        while self.middleman.is_damaging() && Clock::now().since(begun) < most {
            Clock::sleep(Duration::from_millis(1)).await;
        }
        self.middleman.spare();
        // Until it has come.
        Clock::sleep(TRAVEL + self.dice.millis(100)).await;
        let _joined = self.world.join(0, 1).await;
    }

    /// Kills the worker process that hosts the actor, if one does.
    fn kill(&mut self) {
        let nodes = &self.world.nodes;
        if let Some(process) = nodes[0].admin().process_of(self.actor)
            && nodes.iter().any(|node| node.admin().kill_worker(process))
        {
            self.tally.note(Happening::ProcessKilled);
        }
    }
}

/// Tells the story of a seed, of engines with a flaw.
pub(crate) fn story(seed: u64, trouble: Trouble, flaw: Flaw) -> Told {
    recorder::take();
    let patient = Supervision::one_for_one()
        .budget(100_000, Duration::from_secs(60))
        .backoff(Duration::from_millis(1), Duration::from_millis(50));
    let middleman = Middleman::new(seed, flaw);
    let relays = middleman.clone();
    let spec = SimulationSpec::new(odeon::job![Recorder])
        .supervision(patient)
        .limits(narrow())
        .relayed(move |from, _| relays.relay(from));
    System::simulated(seed, spec).run(async |world: World| {
        let begun = Clock::now();
        let home = &world.nodes[0];
        let spawn = home.spawn::<Recorder>(()).restart(Restart::Permanent);
        let spawn = match seed % 3 {
            0 => spawn,
            1 => spawn.isolated(),
            _ => spawn.on_node("node-1"),
        };
        let actor = spawn.await.expect("it starts");
        let evidence = gather(&world, &middleman, actor, (seed, trouble)).await;
        Told {
            actor: actor.id(),
            seen: notes(&evidence.seen)
                .map(|note| (note.sender, note.life, note.number))
                .collect(),
            tally: evidence.tally,
            broken: evidence.broken,
            took: Clock::now().since(begun),
        }
    })
}

/// Plays senders and faults to the end, and judges.
async fn gather(
    world: &World,
    middleman: &Middleman,
    actor: Ref<Recorder>,
    (seed, trouble): (u64, Trouble),
) -> Evidence {
    let senders = [(0, 1), (0, 2), (1, 3), (1, 4)].map(|(node, who)| {
        let sender = Sender {
            who,
            actor,
            trouble,
            dice: Dice(seed ^ who.wrapping_mul(0x9e37_79b9)),
            number: 0,
            sent: vec![],
            tally: Tally::default(),
            broken: vec![],
        };
        let system = world.nodes[node].clone();
        tokio::spawn(async move { system.scope(sender.play()).await })
    });
    let mut faults = Faults {
        world: world.clone(),
        middleman: middleman.clone(),
        actor,
        trouble,
        dice: Dice(seed ^ 0xfa17),
        unquiet: vec![],
        tally: Tally::default(),
    };
    faults.play().await;
    let mut evidence = Evidence {
        trouble,
        at_home: seed.is_multiple_of(3),
        sent: vec![],
        seen: vec![],
        unquiet: faults.unquiet,
        dead_letters: 0,
        tally: faults.tally,
        broken: vec![],
    };
    for sender in senders {
        match Clock::timeout(PATIENCE * 100, sender).await {
            Some(sender) => {
                let sender = sender.expect("a sender does not panic");
                evidence.sent.extend(sender.sent);
                evidence.tally.add(&sender.tally);
                evidence.broken.extend(sender.broken);
            }
            None => evidence.broken.push(Broken::new(10, "an ask does not end")),
        }
    }
    close(world, actor, seed, &mut evidence).await;
    evidence.tally.add(&middleman.tally());
    let links = evidence.tally.times(Happening::LinkBegun);
    let again = links.saturating_sub(1);
    evidence.tally.note_times(Happening::LinkBegunAgain, again);
    evidence.dead_letters = world
        .nodes
        .iter()
        .map(|system| system.admin().dead_letters())
        .sum();
    evidence.seen = recorder::take();
    evidence.judge();
    evidence
}

/// Once the faults are over, both nodes are answered; and once the actor is stopped, no more.
async fn close(world: &World, actor: Ref<Recorder>, seed: u64, evidence: &mut Evidence) {
    let mut number = 0;
    for node in &world.nodes {
        let begun = Clock::now();
        let asking = async {
            loop {
                let answer = actor.ask(Note::new(CLOSING, number, Act::Answer)).await;
                // The news of the last loss may be on its way, or what was sent since fill the room
                // of an actor that is being placed.
                if answer.is_ok() || Clock::now().since(begun) > PATIENCE {
                    break answer;
                }
                number += 1;
                Clock::sleep(limits().heartbeat_interval).await;
            }
        };
        let answer = Clock::timeout(PATIENCE * 10, node.scope(asking)).await;
        if answer != Some(Ok(vec![number])) {
            let how = format!("it does not come back: {answer:?}");
            evidence.broken.push(Broken::new(6, how));
        }
        number += 1;
    }
    if seed.is_multiple_of(2) || evidence.trouble == Trouble::Network {
        return;
    }
    let stopping = world.nodes[0].scope(actor.stop());
    if Clock::timeout(PATIENCE * 10, stopping).await.is_none() {
        evidence.broken.push(Broken::new(10, "a stop does not end"));
    }
    for node in &world.nodes {
        let note = Note::new(CLOSING, number, Act::Answer);
        let sent = Clock::now();
        let answer = node.scope(async { actor.ask(note).await }).await;
        match &answer {
            Err(AskError::Dead(_)) => evidence.tally.note(Happening::AskOfTheDead),
            _ => {
                let how = format!("the dead answer: {answer:?}");
                evidence.broken.push(Broken::new(14, how));
            }
        }
        evidence.sent.push(Sent {
            sender: CLOSING,
            number,
            fenced: false,
            end: End::Failed(Effect::No),
            sent,
            deadline: sent,
            ended: Clock::now(),
        });
        number += 1;
    }
}
