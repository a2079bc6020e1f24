//! Many seeds, one story: two nodes, asks and tells under delay, partitions, broken streams, lost
//! links, panics and killed workers. The oracle: every ask ends; no message is handled twice; each
//! sender's messages are handled in order; a message that was answered was handled; the actor comes
//! back. While only the network fails, and not for too long, nothing is lost at all. Besides, single
//! promises in moments that are hard to meet elsewhere.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use odeon::simulation::{SimulationSpec, World};
use odeon::{
    Actor, ActorId, AskError, Clock, Context, Effect, Failure, FailureKind, Handler, Limits,
    Message, Ref, Restart, Shape, SpawnError, Supervision, System,
};
use serde::{Deserialize, Serialize};

/// A record of what handlers saw, over all lives of all actors in this thread.
mod record {
    use std::cell::RefCell;

    thread_local!(static SEEN: RefCell<Vec<(u64, u32, u64)>> = const { RefCell::new(vec![]) });

    pub fn add(sender: u64, life: u32, number: u64) {
        SEEN.with_borrow_mut(|seen| seen.push((sender, life, number)));
    }

    pub fn take() -> Vec<(u64, u32, u64)> {
        SEEN.take()
    }
}

#[derive(Clone, Serialize, Deserialize)]
struct Note {
    sender: u64,
    number: u64,
    panic: bool,
}
impl Shape for Note {
    const SHAPE: u64 = 11;
}
impl Message for Note {
    const NAME: &'static str = "Note";
    type Reply = u64;
}

struct Recorder;
impl Actor for Recorder {
    const NAME: &'static str = "test.Recorder";
    type Args = ();
    async fn start((): (), _: &mut Context<Self>) -> Result<Self, Failure> {
        Ok(Self)
    }
}
impl Handler<Note> for Recorder {
    async fn handle(&mut self, note: Note, cx: &mut Context<Self>) -> u64 {
        record::add(note.sender, cx.incarnation(), note.number);
        Clock::sleep(Duration::from_micros(note.number % 7 * 100)).await;
        if note.panic {
            // A panic that prints nothing.
            std::panic::resume_unwind(Box::new("as ordered"));
        }
        note.number
    }
}
odeon::register!(Recorder: Note);

/// Small and good enough to choose faults with.
struct Dice(u64);
impl Dice {
    fn roll(&mut self, below: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % below
    }
}

/// The trouble in a story.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Trouble {
    /// The network, processes and handlers.
    Anything,
    /// The network, for less time than a link bears.
    Network,
}

/// All faults of a story together take less.
const PATIENCE: Duration = Duration::from_secs(20);

/// Nodes that soon notice a loss.
fn limits() -> Limits {
    let mut limits = Limits::default();
    limits.heartbeat_interval = Duration::from_millis(100);
    limits.connection_idle = Duration::from_millis(300);
    limits.link_idle_timeout = Duration::from_millis(900);
    limits
}

#[derive(Default)]
struct Tally {
    answered: Vec<(u64, u64)>,
    told: Vec<(u64, u64)>,
    surely_not: Vec<(u64, u64)>,
    unknown: usize,
}

async fn sender(
    world: World,
    node: usize,
    who: u64,
    actor: Ref<Recorder>,
    (seed, trouble): (u64, Trouble),
) -> Tally {
    let system = world.nodes[node].clone();
    system
        .scope(async move {
            let mut dice = Dice(seed ^ who.wrapping_mul(0x9e37_79b9));
            let mut tally = Tally::default();
            for number in 0..60 {
                let note = Note {
                    sender: who,
                    number,
                    panic: dice.roll(40) == 0 && trouble == Trouble::Anything,
                };
                if dice.roll(3) == 0 {
                    match actor.tell(note).timeout(PATIENCE).await {
                        Ok(()) => tally.told.push((who, number)),
                        Err(error) if error.error.effect() == Effect::No => {
                            tally.surely_not.push((who, number));
                        }
                        Err(_) => {}
                    }
                } else {
                    match actor.ask(note).timeout(PATIENCE).await {
                        Ok(answer) => {
                            assert_eq!(answer, number);
                            tally.answered.push((who, number));
                        }
                        Err(error) if error.effect() == Effect::No => {
                            assert!(!matches!(error, AskError::NoSuchMethod { .. }), "{error}");
                            tally.surely_not.push((who, number));
                        }
                        // Nothing in the story takes as long as its patience: a reply was lost.
                        Err(error) if matches!(error, AskError::Timeout { .. }) => {
                            panic!("{who}/{number}: {error}");
                        }
                        Err(_) => tally.unknown += 1,
                    }
                }
                Clock::sleep(Duration::from_micros(dice.roll(3_000))).await;
            }
            tally
        })
        .await
}

/// Faults while the senders run, then quiet.
async fn faults(world: World, actor: Ref<Recorder>, (seed, trouble): (u64, Trouble)) {
    let mut dice = Dice(seed ^ 0xfa17);
    // Links end after 900 ms.
    let kinds = match trouble {
        Trouble::Anything => 6,
        Trouble::Network => 3,
    };
    for _ in 0..6 {
        Clock::sleep(Duration::from_millis(dice.roll(40))).await;
        match dice.roll(kinds) {
            0 => {
                world.network.part(0, 1);
                Clock::sleep(Duration::from_millis(dice.roll(500))).await;
                world.network.heal(0, 1);
            }
            1 => {
                for _ in 0..dice.roll(5) {
                    world.network.snap(0, 1);
                    Clock::sleep(Duration::from_millis(dice.roll(30))).await;
                }
            }
            2 => {
                world.network.cut(0, 1);
                Clock::sleep(Duration::from_millis(dice.roll(500))).await;
                world.network.mend(0, 1);
            }
            3 => {
                world.network.cut(0, 1);
                Clock::sleep(Duration::from_millis(dice.roll(1_500))).await;
                let _joined = world.join(0, 1).await;
            }
            4 => {
                if let Some(process) = world.nodes[0].process_of(actor) {
                    let _was_there = world.nodes[0].kill_worker(process);
                }
            }
            _ => {}
        }
        // What was missed is sent before the next fault.
        if trouble == Trouble::Network {
            Clock::sleep(Duration::from_millis(300)).await;
        }
    }
    let _joined = world.join(0, 1).await;
}

/// The outcome of a seed.
#[derive(Debug, PartialEq)]
struct Told {
    actor: ActorId,
    /// Sender, life and number of each note in the order they were handled.
    seen: Vec<(u64, u32, u64)>,
    unknown: usize,
    /// The virtual time that went by.
    took: Duration,
}

fn story(seed: u64, trouble: Trouble) -> Told {
    record::take();
    let patient = Supervision::one_for_one()
        .budget(100_000, Duration::from_secs(60))
        .backoff(Duration::from_millis(1), Duration::from_millis(20));
    let spec = SimulationSpec::new(odeon::job![Recorder])
        .supervision(patient)
        .limits(limits());
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
        let senders = [(0, 1), (0, 2), (1, 3), (1, 4)]
            .map(|(node, who)| sender(world.clone(), node, who, actor, (seed, trouble)))
            .map(tokio::spawn);
        faults(world.clone(), actor, (seed, trouble)).await;
        let mut tally = Tally::default();
        for sender in senders {
            let one = Clock::timeout(Duration::from_secs(600), sender).await;
            let one = one.expect("every ask ends").expect("a sender panicked");
            tally.answered.extend(one.answered);
            tally.told.extend(one.told);
            tally.surely_not.extend(one.surely_not);
            tally.unknown += one.unknown;
        }
        // Liveness: once the faults are over, both nodes are answered.
        for node in &world.nodes {
            let note = Note {
                sender: 9,
                number: 1000,
                panic: false,
            };
            let answer = node.scope(async { actor.ask(note).await }).await;
            assert_eq!(answer, Ok(1000), "seed {seed}");
        }
        let seen = record::take();
        check(seed, &seen, &tally);
        if trouble == Trouble::Network {
            check_nothing_lost(seed, &seen, &tally);
        }
        Told {
            actor: actor.id(),
            seen,
            unknown: tally.unknown,
            took: Clock::now().since(begun),
        }
    })
}

fn check(seed: u64, seen: &[(u64, u32, u64)], tally: &Tally) {
    let mut handled = HashSet::new();
    let mut last: HashMap<u64, u64> = HashMap::new();
    for (sender, _, number) in seen.iter().filter(|(sender, ..)| *sender != 9) {
        assert!(
            handled.insert((*sender, *number)),
            "seed {seed}: {sender}/{number} handled twice"
        );
        if let Some(before) = last.insert(*sender, *number) {
            assert!(
                before < *number,
                "seed {seed}: {sender} {number} after {before}"
            );
        }
    }
    for message in &tally.answered {
        assert!(
            handled.contains(message),
            "seed {seed}: {message:?} answered, not handled"
        );
    }
    for message in &tally.surely_not {
        assert!(
            !handled.contains(message),
            "seed {seed}: {message:?} handled, called not done"
        );
    }
}

/// While both processes live, all that was accepted is handled, and all asks are answered.
fn check_nothing_lost(seed: u64, seen: &[(u64, u32, u64)], tally: &Tally) {
    assert_eq!(tally.unknown, 0, "seed {seed}: asks without an answer");
    assert_eq!(tally.surely_not, [], "seed {seed}: the link was lost");
    let handled: HashSet<_> = seen
        .iter()
        .map(|(sender, _, number)| (*sender, *number))
        .collect();
    for message in &tally.told {
        assert!(
            handled.contains(message),
            "seed {seed}: {message:?} was accepted and not handled"
        );
    }
}

/// Plays the story of many seeds. A failing one is in the panic message; `ODEON_SEED=n` replays it
/// alone.
fn stories(trouble: Trouble) {
    for_each_seed(1000, |seed| drop(story(seed, trouble)));
}

fn for_each_seed(seeds: u64, story: impl Fn(u64) + std::panic::RefUnwindSafe) {
    let number = |name| std::env::var(name).map(|number| number.parse().expect("a number"));
    if let Ok(seed) = number("ODEON_SEED") {
        return story(seed);
    }
    for seed in 0..number("ODEON_SEEDS").unwrap_or(seeds) {
        let outcome = std::panic::catch_unwind(|| story(seed));
        assert!(outcome.is_ok(), "replay with ODEON_SEED={seed}");
    }
}

/// SEMANTICS 1, 2, 3, 10: order, at most once, no lost reply, restart.
#[test]
fn promises_hold_under_faults() {
    stories(Trouble::Anything);
}

/// SEMANTICS 1, 2, 7.
#[test]
fn nothing_is_lost_while_both_processes_live() {
    stories(Trouble::Network);
}

/// SEMANTICS 36.
#[test]
fn the_same_seed_gives_the_same_run() {
    for seed in [3, 4, 8] {
        let told = story(seed, Trouble::Anything);
        assert!(told.seen.len() > 100, "{told:?}");
        assert_eq!(story(seed, Trouble::Anything), told, "seed {seed}");
        assert_ne!(
            story(seed + 9, Trouble::Anything).seen,
            told.seen,
            "seed {seed}"
        );
    }
}

/// Those that run at once have the same ids, and do not meet.
///
/// SEMANTICS 36.
#[test]
fn simulations_of_one_seed_run_side_by_side() {
    let alone = story(3, Trouble::Anything);
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..4)
            .map(|_| scope.spawn(|| story(3, Trouble::Anything)))
            .collect();
        for thread in threads {
            assert_eq!(thread.join().unwrap(), alone);
        }
    });
}

#[test]
fn a_system_may_supervise_with_its_own_budget() {
    let spec = SimulationSpec::new(odeon::job![Recorder]).nodes(1);
    System::simulated(1, spec).run(async |_world| {
        let system = System::builder()
            .supervision(Supervision::one_for_one().budget(1, Duration::from_secs(60)))
            .start()
            .await
            .expect("it starts");
        system
            .scope(async {
                let actor = system.spawn::<Recorder>(()).await.expect("it starts");
                for _ in 0..2 {
                    let note = Note {
                        sender: 9,
                        number: 0,
                        panic: true,
                    };
                    assert!(actor.ask(note).await.is_err());
                }
                let failure = system.failed().await;
                assert!(
                    failure.root_cause().message.contains("as ordered"),
                    "{failure}"
                );
            })
            .await;
        system.clone().shutdown().await;
    });
}

// ---- single promises ----

fn note(number: u64) -> Note {
    Note {
        sender: 9,
        number,
        panic: false,
    }
}

/// Runs a story in the scope of node 0.
fn at_home<F: Future<Output = ()>>(
    seed: u64,
    spec: &SimulationSpec,
    story: impl FnOnce(World) -> F,
) {
    System::simulated(seed, spec.clone()).run(async |world: World| {
        let home = world.nodes[0].clone();
        home.scope(story(world)).await;
    });
}

/// Waits for an answer, which comes in virtual time if it comes at all.
async fn in_time<T>(future: impl Future<Output = T>) -> T {
    let ended = Clock::timeout(Duration::from_secs(600), future).await;
    ended.expect("it does not wait for ever")
}

/// SEMANTICS 4, 7.
#[test]
fn tells_that_are_refused_give_their_credit_back() {
    const BACKLOG: u64 = 4;
    const CREDIT: u64 = 8;
    // More than credit that does not come back would allow.
    const TOLD: u64 = 10 * CREDIT;
    let minute = Duration::from_secs(60);
    let supervision = Supervision::one_for_one().backoff(minute, minute);
    let mut spec = SimulationSpec::new(odeon::job![Recorder]).supervision(supervision);
    spec.limits.backlog_messages_max = BACKLOG as usize;
    spec.limits.credit_messages = CREDIT as u32;
    for (seed, sender) in (0..50).flat_map(|seed| [(seed, 0), (seed, 1)]) {
        record::take();
        at_home(seed, &spec, async |world: World| {
            let home = &world.nodes[0];
            let spawn = home.spawn::<Recorder>(()).restart(Restart::Permanent);
            let actor = spawn.isolated().await.expect("it starts");
            let lost = home.process_of(actor).expect("it has a process");
            let down = actor.down();
            assert!(home.kill_worker(lost));
            down.await;
            let telling = async {
                for number in 0..TOLD {
                    let tell = actor.tell(note(number)).timeout(Duration::from_secs(1));
                    let told = tell.await.map_err(|error| error.error);
                    assert_eq!(told, Ok(()), "seed {seed}, node {sender}, tell {number}");
                }
            };
            world.nodes[sender].scope(telling).await;
            while home.process_of(actor).is_none() {
                Clock::sleep(Duration::from_secs(1)).await;
            }
            assert_eq!(home.dead_letters(), TOLD - BACKLOG, "seed {seed}");
            let asked = world.nodes[sender].scope(actor.ask(note(TOLD))).await;
            assert_eq!(asked, Ok(TOLD), "seed {seed}");
        });
        let handled: Vec<_> = record::take().iter().map(|seen| seen.2).collect();
        let expected: Vec<_> = (0..BACKLOG).chain([TOLD]).collect();
        assert_eq!(handled, expected, "seed {seed}, node {sender}");
    }
}

/// SEMANTICS 7.
#[test]
fn a_node_that_stays_away_is_lost_in_time() {
    let spec = SimulationSpec::new(odeon::job![Recorder]).limits(limits());
    for seed in 0..50 {
        at_home(seed, &spec, async |world: World| {
            let far = world.nodes[1]
                .spawn::<Recorder>(())
                .await
                .expect("it starts");
            assert_eq!(far.ask(note(1)).await, Ok(1));
            let down = tokio::spawn({
                let home = world.nodes[0].clone();
                async move { home.scope(async { far.down().await }).await }
            });
            Clock::sleep(Duration::from_millis(seed * 20)).await;
            let cut = Clock::now();
            match seed % 2 {
                0 => world.network.cut(0, 1),
                _ => world.network.part(0, 1),
            }
            let asked = in_time(far.ask(note(2)).into_future()).await;
            assert!(
                matches!(asked, Err(AskError::LinkLost { .. })),
                "seed {seed}: {asked:?}"
            );
            in_time(down).await.expect("no panic");
            let noticed = Clock::now().since(cut);
            let most = limits().link_idle_timeout + spec.delay_max;
            assert!(noticed <= most, "seed {seed}: {noticed:?}");
            let least = limits().link_idle_timeout - limits().heartbeat_interval - spec.delay_max;
            assert!(noticed >= least, "seed {seed}: {noticed:?}");
            world.network.heal(0, 1);
        });
    }
}

/// SEMANTICS 18.
#[test]
fn a_process_that_is_lost_before_it_hosts_its_actor_is_replaced() {
    let (step, delay) = (Duration::from_millis(1), Duration::from_millis(5));
    let supervision = Supervision::one_for_one().backoff(delay, delay);
    let spec = SimulationSpec::new(odeon::job![Recorder])
        .supervision(supervision)
        .delays(delay, delay);
    // The process is killed at every moment of a second spawn into it.
    for (moment, node) in (0..30).flat_map(|moment| [(moment, 0), (moment, 1)]) {
        at_home(moment, &spec, async |world: World| {
            let home = &world.nodes[0];
            let listener = home.spawn::<Recorder>(()).await.expect("it starts");
            let spawn = || {
                let spawn = home.spawn::<Recorder>(()).restart(Restart::Permanent);
                spawn.on_node(format!("node-{node}")).in_worker("pool")
            };
            let first = spawn().await.expect("it starts");
            let process = home.process_of(first).expect("it has a process");
            // With bytes on the way all the time, what the other node says within a few
            // milliseconds arrives at once: that there is a process, and that it is gone.
            let other = world.nodes[1].clone();
            let chatter = tokio::spawn(async move {
                let chatting = async {
                    while listener.tell(note(0)).await.is_ok() {
                        Clock::sleep(step).await;
                    }
                };
                other.scope(chatting).await;
            });
            let second = tokio::spawn(spawn().into_future());
            Clock::sleep(step * moment as u32).await;
            assert!(world.nodes[node].kill_worker(process));
            let second = in_time(second).await.expect("no panic").expect("it starts");
            for actor in [first, second] {
                in_time(async {
                    // It may be on its way to another process still.
                    while actor.ask(note(1)).await != Ok(1) {
                        Clock::sleep(step).await;
                    }
                })
                .await;
            }
            chatter.abort();
        });
    }
}

/// SEMANTICS 18.
#[test]
fn an_actor_that_its_process_does_not_know_is_named() {
    let spec = SimulationSpec::new(odeon::job![]).nodes(1);
    at_home(1, &spec, async |world: World| {
        let spawn = world.nodes[0].spawn::<Recorder>(()).isolated();
        let error = in_time(spawn.restart(Restart::Temporary).into_future()).await;
        let Err(SpawnError::Failed(failure)) = error else {
            panic!("{error:?}")
        };
        assert_eq!(failure.kind, FailureKind::UnknownActor);
        assert!(failure.message.contains(Recorder::NAME), "{failure}");
    });
}

/// A node that was killed is back under its names, though the others come to know of the end of its
/// former life before, while and after they greet it, each at a moment of its own.
///
/// SEMANTICS 16.
#[test]
fn names_of_a_former_life_are_free_whenever_its_end_becomes_known() {
    const NAME: &str = "api";
    /// The former life, those who stay, and the next life.
    const NODES: (usize, [usize; 2], usize) = (0, [1, 2], 3);
    let (former, others, next) = NODES;
    let spec = SimulationSpec::new(odeon::job![Recorder])
        .limits(limits())
        .nodes(4);
    let lost_after = limits().link_idle_timeout;
    for_each_seed(400, |seed| {
        System::simulated(seed, spec.clone()).run(async |world: World| {
            let mut dice = Dice(seed);
            for node in [former, others[0], others[1]] {
                world.network.cut(node, next);
            }
            Clock::sleep(lost_after * 2).await;
            let register = async |node: usize| {
                let home = world.nodes[node].clone();
                let registering = async {
                    let actor = home.spawn::<Recorder>(()).await.expect("it starts");
                    home.register(NAME, actor).await
                };
                home.scope(registering).await
            };
            assert_eq!(register(former).await, Ok(()));
            let (mut begun, mut joins) = (vec![], vec![]);
            for other in others {
                let world = world.clone();
                begun.push(tokio::spawn({
                    let world = world.clone();
                    let later = Duration::from_millis(dice.roll(40));
                    async move {
                        Clock::sleep(later).await;
                        world.network.cut(former, other);
                    }
                }));
                let later = lost_after + Duration::from_millis(dice.roll(60));
                joins.push(tokio::spawn(async move {
                    Clock::sleep(later).await;
                    world.join(other, next).await
                }));
            }
            for cut in begun {
                cut.await.expect("no panic");
            }
            for joined in joins {
                joined.await.expect("no panic").expect("it joins");
            }
            Clock::sleep(lost_after * 3).await;
            assert_eq!(register(next).await, Ok(()), "seed {seed}");
        });
    });
}
