//! Lives under trouble, over many seeds: an actor with timers, scoped tasks, streams of replies and
//! handlers that take long, whose handlers and tasks panic, whose process is killed and whose network
//! is broken and parted.
//!
//! The oracle: a timer ticks for its own life, never early, and goes on; a task ends with its life and
//! reaches others over the simulated network; a reader sees the first replies in their order and then
//! an end; every ask ends in time; who is killed is back soon; at last nothing is left. Programs with flaws are found out.
//!
//! `ODEON_SEEDS=n` plays so many, `ODEON_SEEDS=from..to` those, `ODEON_SEED=n` that one alone.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use futures::future::join_all;
use odeon::ActorTask;
use odeon::prelude::*;
use odeon::simulation::{SimulationSpec, World};

const PERIOD: Duration = Duration::from_secs(1);
/// The longest time from a kill to the next life, where the network is whole: the longest pause of the
/// supervisor, and what is to be said and spawned.
const BACK_WITHIN: Duration = Duration::from_secs(7);
/// The shortest way over the network.
const DELAY: Duration = Duration::from_millis(20);

/// A mistake that newcomers make, to see that the oracle finds it.
#[odeon::wire]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Flaw {
    None,
    /// A ticker of tokio's, which no life owns.
    StrayTicker,
    /// A task of tokio's, which no life owns.
    StrayTask,
    /// A reply that is made twice.
    Repeated,
    /// A timer that is cancelled when the first stream is asked for.
    Silenced,
}

/// All that happens in a simulation, which has one thread.
#[derive(Default)]
struct Book {
    /// When each life began.
    lives: Vec<odeon::Timestamp>,
    /// Calls of timers by their kind, of the present life.
    calls: BTreeMap<&'static str, u32>,
    /// Tasks that live, by their life.
    tasks: BTreeMap<usize, u32>,
    /// Streams that are being made.
    streams: u32,
    /// When its process was killed, if no life has begun since.
    killed: Option<odeon::Timestamp>,
    /// The network was not whole.
    was_parted: bool,
    broken: Vec<String>,
    tally: BTreeMap<&'static str, u64>,
}

thread_local! {
    static BOOK: RefCell<Book> = RefCell::default();
}

fn book<T>(look: impl FnOnce(&mut Book) -> T) -> T {
    BOOK.with_borrow_mut(look)
}

fn tally(what: &'static str) {
    book(|book| *book.tally.entry(what).or_default() += 1);
}

impl Book {
    fn begin(&mut self) -> usize {
        *self.tally.entry("life").or_default() += 1;
        if let Some(killed) = self.killed.take() {
            let took = Clock::now().since(killed);
            if !self.was_parted && took > BACK_WITHIN {
                self.broken.push(format!("7: back {took:?} after a kill"));
            }
        }
        let left: u32 = self.tasks.values().sum();
        if left > 0 {
            let life = self.lives.len();
            self.broken
                .push(format!("111: {left} tasks before life {life}"));
        }
        self.calls.clear();
        self.lives.push(Clock::now());
        self.lives.len() - 1
    }

    /// A timer of `of` is heard by `life`.
    fn call(&mut self, kind: &'static str, of: usize, life: usize) {
        *self.tally.entry(kind).or_default() += 1;
        if of != life || life + 1 != self.lives.len() {
            let now = self.lives.len();
            self.broken
                .push(format!("110: {kind} of life {of} in life {life} of {now}"));
            return;
        }
        let calls = self.calls.entry(kind).or_default();
        *calls += 1;
        let due = if kind == "once" { 2 } else { *calls };
        let age = Clock::now().since(self.lives[life]);
        if age < PERIOD * due || (kind == "once" && *calls > 1) {
            let calls = *calls;
            self.broken
                .push(format!("110: {kind} number {calls} after {age:?}"));
        }
    }
}

/// A task, until it is dropped.
struct Work(usize);

impl Work {
    fn begin(life: usize) -> Self {
        book(|book| *book.tasks.entry(life).or_default() += 1);
        Self(life)
    }
}

impl Drop for Work {
    fn drop(&mut self) {
        book(|book| {
            *book.tally.entry("task ended").or_default() += 1;
            *book.tasks.entry(self.0).or_default() -= 1;
        });
    }
}

/// Replies that are being made.
struct Making;

impl Making {
    fn begin() -> Self {
        book(|book| book.streams += 1);
        Self
    }
}

impl Drop for Making {
    fn drop(&mut self) {
        book(|book| book.streams -= 1);
    }
}

struct Mate;

#[odeon::actor(name = "lives.Mate")]
impl Mate {
    fn start(_: ()) -> Self {
        Self
    }

    #[handler]
    fn greet(&mut self) {}
}

#[odeon::wire]
#[derive(Clone)]
struct Setting {
    mate: Ref<Mate>,
    /// The mate is on another node.
    far: bool,
    flaw: Flaw,
}

struct Busy {
    life: usize,
    flaw: Flaw,
    ticks: Option<ActorTask>,
}

#[odeon::actor(name = "lives.Busy")]
impl Busy {
    fn start(setting: Setting, cx: &mut Context<Self>) -> Self {
        let life = book(Book::begin);
        let flaw = setting.flaw;
        if flaw == Flaw::StrayTicker {
            drop(tokio::spawn(async move {
                for _ in 0..100 {
                    Clock::sleep(PERIOD).await;
                    book(|book| book.call("call", life, life));
                }
            }));
        }
        if flaw == Flaw::StrayTask {
            drop(tokio::spawn(async move {
                let _work = Work::begin(life);
                Clock::sleep(PERIOD * 100).await;
            }));
        }
        let of = life as u64;
        let ticks = cx.every(PERIOD, Tick { of });
        cx.after(PERIOD * 2, Once { of });
        cx.every_with(PERIOD, move |own, _| {
            book(|book| book.call("call", life, own.life));
        });
        cx.spawn_task(greet_again_and_again(life, setting));
        let ticks = Some(ticks);
        Self { life, flaw, ticks }
    }

    fn stop(self) {
        tally("stop");
        let left = book(|book| book.tasks.get(&self.life).copied().unwrap_or_default());
        if left > 0 {
            book(|book| book.broken.push(format!("111: {left} tasks at the stop")));
        }
    }

    #[handler]
    fn tick(&mut self, of: u64) {
        book(|book| book.call("tick", of as usize, self.life));
    }

    #[handler]
    fn once(&mut self, of: u64) {
        book(|book| book.call("once", of as usize, self.life));
    }

    /// Keeps the actor.
    #[handler]
    async fn hold(&mut self, time: Duration) {
        Clock::sleep(time).await;
        tally("held to its end");
    }

    /// Keeps its caller, and not the actor.
    #[handler]
    fn hold_later(&mut self, time: Duration) -> Later<()> {
        Later::new(async move {
            Clock::sleep(time).await;
            tally("held to its end");
        })
    }

    /// The numbers below `to`, a pause before each.
    #[handler]
    fn count(&mut self, to: u64, pause: Duration, cx: &mut Context<Self>) -> ReplyStream<u64> {
        if self.flaw == Flaw::Silenced
            && let Some(ticks) = self.ticks.take()
        {
            ticks.cancel();
        }
        let (making, flaw) = (Making::begin(), self.flaw);
        cx.replies(futures::stream::unfold(
            (0, making),
            move |(at, making)| async move {
                if at == to {
                    return None;
                }
                Clock::sleep(pause).await;
                let repeats = flaw == Flaw::Repeated && at > 5;
                Some((at - u64::from(repeats), (at + 1, making)))
            },
        ))
    }

    #[handler]
    fn boom(&mut self) {
        panic!("boom");
    }

    #[handler]
    fn boom_in_a_task(&mut self, cx: &mut Context<Self>) {
        cx.spawn_task(async {
            Clock::sleep(PERIOD / 4).await;
            panic!("boom in a task");
        });
    }
}

async fn greet_again_and_again(life: usize, setting: Setting) {
    let _work = Work::begin(life);
    loop {
        Clock::sleep(PERIOD / 2).await;
        let begun = Clock::now();
        let greeted = setting.mate.ask(Greet).timeout(PERIOD).await;
        let took = Clock::now().since(begun);
        if greeted.is_ok() {
            tally("greeted");
            if setting.far && took < DELAY * 2 {
                book(|book| book.broken.push(format!("111: there and back in {took:?}")));
            }
        }
    }
}

/// Numbers that follow from a seed.
struct Dice(u64);

impl Dice {
    fn below(&mut self, sides: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % sides
    }

    fn millis(&mut self, below: u64) -> Duration {
        Duration::from_millis(self.below(below))
    }
}

/// One of the things that happen.
#[derive(Clone, Copy, Debug)]
enum Deed {
    Hold { time: Duration, patience: Duration },
    Read { to: u64, pause: Duration, most: u64 },
    Boom,
    BoomInATask,
    Kill,
    Snap,
    Part(Duration),
}

impl Deed {
    fn draw(dice: &mut Dice) -> Self {
        match dice.below(10) {
            0 | 1 => Self::Hold {
                time: dice.millis(6000),
                patience: dice.millis(6000),
            },
            2..=4 => Self::Read {
                to: dice.below(200),
                pause: Duration::from_millis(7 * dice.below(3)),
                most: if dice.below(4) == 0 { 30 } else { u64::MAX },
            },
            5 => Self::Boom,
            6 => Self::BoomInATask,
            7 => Self::Kill,
            8 => Self::Snap,
            _ => Self::Part(dice.millis(12_000)),
        }
    }

    async fn happen(self, world: &World, busy: Ref<Busy>) {
        let admin = world.nodes[0].admin();
        match self {
            Self::Hold { time, patience } => hold(busy, time, patience).await,
            Self::Read { to, pause, most } => read(busy, Count { to, pause }, most).await,
            Self::Boom => drop(busy.ask(Boom).timeout(PERIOD * 20).await),
            Self::BoomInATask => drop(busy.ask(BoomInATask).timeout(PERIOD * 20).await),
            Self::Kill => {
                let worker = admin.process_of(busy);
                if worker.is_some_and(|worker| admin.kill_worker(worker)) {
                    tally("killed");
                    book(|book| book.killed = Some(Clock::now()));
                }
            }
            Self::Snap => {
                book(|book| book.was_parted = true);
                world.network.snap(0, 1);
            }
            Self::Part(time) => {
                book(|book| book.was_parted = true);
                world.network.part(0, 1);
                Clock::sleep(time).await;
                world.network.heal(0, 1);
            }
        }
    }
}

/// Asks for something that takes long.
async fn hold(busy: Ref<Busy>, time: Duration, patience: Duration) {
    let begun = Clock::now();
    let held = busy.ask(Hold { time }).timeout(patience).await;
    let took = Clock::now().since(begun);
    if took > patience + PERIOD {
        book(|book| book.broken.push(format!("11: {took:?} of {patience:?}")));
    }
    match held {
        Ok(()) => tally("held"),
        Err(AskError::Timeout { .. }) => tally("late"),
        Err(_) => tally("not held"),
    }
}

async fn read(busy: Ref<Busy>, count: Count, most: u64) {
    let to = count.to;
    let mut stream = busy.ask_stream(count);
    for expected in 0..most {
        match stream.next().await {
            Some(Ok(number)) if number == expected && number < to => {}
            Some(Ok(number)) => {
                let why = format!("112: {number} of {to} after {expected}");
                return book(|book| book.broken.push(why));
            }
            Some(Err(error)) => {
                tally("stream lost");
                let more = stream.next().await;
                if error == AskError::Adrift || more.is_some() {
                    book(|book| book.broken.push(format!("112: {error}, {more:?}")));
                }
                return;
            }
            None => {
                tally("stream ended");
                if expected != to {
                    let why = format!("112: the end after {expected} of {to}");
                    book(|book| book.broken.push(why));
                }
                return;
            }
        }
    }
    tally("stream left");
}

fn spec() -> SimulationSpec {
    SimulationSpec::new(odeon::job![Busy, Mate])
        .delays(DELAY, DELAY + DELAY / 2)
        .supervision(Supervision::one_for_one().budget(100, PERIOD * 600))
}

/// Plays a seed; gives the promises that were broken, and how often what happened.
fn play(seed: u64, flaw: Flaw) -> (Vec<String>, BTreeMap<&'static str, u64>) {
    BOOK.take();
    System::simulated(seed, spec()).run(async |world| {
        let home = world.nodes[0].clone();
        home.scope(story(seed, flaw, &world)).await;
    });
    let book = BOOK.take();
    (book.broken, book.tally)
}

async fn story(seed: u64, flaw: Flaw, world: &World) {
    let mut dice = Dice(seed);
    let place = dice.below(3);
    let mate = world.nodes[1].spawn::<Mate>(()).await.expect("it starts");
    let far = place != 2;
    let setting = Setting { mate, far, flaw };
    let spawn = world.nodes[usize::from(!far)].spawn::<Busy>(setting);
    let spawn = spawn.restart(Restart::Permanent);
    let spawn = if place == 1 { spawn.isolated() } else { spawn };
    let busy = spawn.await.expect("it starts");
    let deeds: Vec<_> = (0..2 + dice.below(6))
        .map(|_| (dice.millis(8000), Deed::draw(&mut dice)))
        .collect();
    if std::env::var_os("ODEON_SEED").is_some() {
        println!("at place {place}: {deeds:#?}");
    }
    join_all(deeds.into_iter().map(|(at, deed)| async move {
        Clock::sleep(at).await;
        deed.happen(world, busy).await;
    }))
    .await;
    // Links come back, also one that was parted for too long, and what was given up is gone.
    world.join(0, 1).await.expect("the network is whole");
    Clock::sleep(PERIOD * 20).await;
    let alive = busy
        .ask(Hold {
            time: Duration::ZERO,
        })
        .timeout(PERIOD * 60);
    if let Err(error) = alive.await {
        book(|book| {
            book.broken
                .push(format!("6: it does not come back: {error}"))
        });
        return;
    }
    let before = book(|book| book.calls.clone());
    Clock::sleep(PERIOD * 10).await;
    book(|book| {
        for kind in ["tick", "call"] {
            let calls = book.calls[kind] - before.get(kind).copied().unwrap_or_default();
            if !(9..=11).contains(&calls) {
                book.broken
                    .push(format!("110: {kind} {calls} times in 10 s"));
            }
        }
        let tasks: u32 = book.tasks.values().sum();
        if (tasks, book.streams) != (1, 0) {
            let left = book.streams;
            book.broken
                .push(format!("{tasks} tasks and {left} streams are left"));
        }
    });
    if let Err(error) = busy.stop().await {
        book(|book| book.broken.push(format!("it does not stop: {error}")));
    }
    let before = book(|book| book.calls.clone());
    Clock::sleep(PERIOD * 10).await;
    book(|book| {
        let tasks: u32 = book.tasks.values().sum();
        if tasks != 0 || book.calls != before {
            book.broken
                .push(format!("{tasks} tasks after the end, or ticks"));
        }
    });
}

fn seeds() -> std::ops::Range<u64> {
    let number = |text: &str| text.parse::<u64>().expect("a number");
    if let Ok(seed) = std::env::var("ODEON_SEED") {
        let seed = number(&seed);
        return seed..seed + 1;
    }
    let Ok(seeds) = std::env::var("ODEON_SEEDS") else {
        return 0..300;
    };
    let (from, to) = seeds.split_once("..").unwrap_or(("0", &seeds));
    number(from)..number(to)
}

/// SEMANTICS 6, 11, 110, 111, 112.
#[test]
fn what_belongs_to_a_life_ends_with_it_and_goes_on_until_then() {
    let seeds = seeds();
    let (next, all) = (AtomicU64::new(seeds.start), Mutex::new(BTreeMap::new()));
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let threads = threads.min(4);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= seeds.end {
                        break;
                    }
                    let played = catch_unwind(AssertUnwindSafe(|| play(seed, Flaw::None)));
                    let (broken, tally) =
                        played.unwrap_or_else(|_| (vec!["it panics".to_owned()], BTreeMap::new()));
                    assert!(
                        broken.is_empty(),
                        "replay with ODEON_SEED={seed}: {broken:#?}"
                    );
                    let mut all = all.lock().unwrap_or_else(PoisonError::into_inner);
                    for (what, times) in tally {
                        *all.entry(what).or_insert(0) += times;
                    }
                }
            });
        }
    });
    let all = all.into_inner().unwrap_or_else(PoisonError::into_inner);
    println!("{all:#?}");
    let expected = [
        "call",
        "greeted",
        "held",
        "held to its end",
        "killed",
        "late",
        "life",
        "not held",
        "once",
        "stop",
        "stream ended",
        "stream left",
        "stream lost",
        "task ended",
        "tick",
    ];
    if seeds.end - seeds.start >= 100 {
        assert_eq!(all.keys().copied().collect::<Vec<_>>(), expected);
    }
}

/// An oracle that misses nothing is worth little.
#[test]
fn programs_with_flaws_are_found_out() {
    for (flaw, promise) in [
        (Flaw::StrayTicker, "110"),
        (Flaw::StrayTask, "111"),
        (Flaw::Repeated, "112"),
        (Flaw::Silenced, "110"),
    ] {
        let found = (0..50).find_map(|seed| {
            let broken = play(seed, flaw).0;
            broken
                .into_iter()
                .find(|broken| broken.starts_with(promise))
        });
        assert!(found.is_some(), "{flaw:?} is not found within 50 seeds");
    }
}

/// A worker that is killed leaves off in the middle, as a process does: nothing that its actors have
/// begun goes on, and they do not hear of it.
///
/// SEMANTICS 36.
#[test]
fn a_killed_worker_of_a_simulation_does_nothing_more() {
    BOOK.take();
    System::simulated(1, spec()).run(async |world| {
        let (home, hour) = (world.nodes[0].clone(), PERIOD * 3600);
        let mate = world.nodes[1].spawn::<Mate>(()).await.expect("it starts");
        let (far, flaw) = (true, Flaw::None);
        let spawn = home.spawn::<Busy>(Setting { mate, far, flaw });
        let spawn = spawn.restart(Restart::Temporary);
        let busy = spawn.isolated().await.expect("it starts");
        let worker = home.admin().process_of(busy).expect("it has a process");
        let story = async {
            let time = PERIOD * 5;
            let later = busy.ask(HoldLater { time }).timeout(hour);
            let now = busy.ask(Hold { time }).timeout(hour);
            let kill = async {
                Clock::sleep(PERIOD * 3).await;
                assert!(home.admin().kill_worker(worker));
            };
            let (later, now, ()) = futures::join!(later, now, kill);
            for ended in [later, now] {
                assert!(matches!(ended, Err(AskError::Died(_))), "{ended:?}");
            }
            Clock::sleep(PERIOD * 60).await;
        };
        home.scope(story).await;
    });
    let book = BOOK.take();
    assert_eq!(book.broken, [""; 0]);
    for never in ["held to its end", "stop"] {
        assert_eq!(book.tally.get(never), None, "{never}");
    }
    assert_eq!(book.tasks.values().sum::<u32>(), 0);
}
