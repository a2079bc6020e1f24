//! Promises of a chain of relays, with processes that are killed: the newest weights come to all,
//! whoever is lost on the way, and who makes them waits for nobody.

use std::time::Duration;

use odeon::serde::{Deserialize, Serialize};
use odeon::{
    Clock, Context, Failure, Limits, ProcessId, Ref, Restart, System, WorkerMode, actor, message,
};
use odeon_actors::rl::chain::delta::Word;
use odeon_actors::rl::chain::{Forms, RelayId};
use odeon_actors::rl::relay::{Edition, Fresh, Hold, Latest, Relay, RelayArgs, Subscribe};
use odeon_actors::rl::relays::{Draw, Order, Relays, Seek};
use odeon_actors::rl::source::{CountHanded, HandingCounts, Put, Source, SourceArgs};
use odeon_tests::again;
use rustix::process::{Pid, Signal, kill_process};

/// A dozen chunks for five members.
const BYTES: usize = 8 << 20;
const BEAT: Duration = Duration::from_millis(100);
const RELAYS: usize = 4;
/// Versions of which one has travelled as changes.
const VERSIONS_MAX: u64 = 20;

fn job() -> odeon::Job {
    odeon::job![Maker, Reader, Relay, Relays, Source]
}

#[test]
fn worker_entry() {
    job().serve_if_worker();
}

/// In the place of a trainer: makes weights when it is told to.
#[derive(Debug)]
struct Maker {
    source: Ref<Source>,
    life: odeon::Incarnation,
}

/// Publish a version. Answered when it goes on.
#[message(reply = Result<Edition, Failure>, name = "test.Make")]
#[derive(Debug)]
struct Make(u64);

/// Count the bytes that were handed to the master.
#[message(reply = HandingCounts, name = "test.Handed")]
#[derive(Debug)]
struct Handed;

#[actor(name = "test.Maker")]
impl Maker {
    async fn start(args: SourceArgs, cx: &mut Context<Self>) -> Result<Self, Failure> {
        let source = cx.spawn::<Source>(args).restart(Restart::Temporary).await;
        Ok(Self {
            source: source.map_err(Failure::error)?,
            life: cx.incarnation(),
        })
    }

    #[handler(message = Handed)]
    async fn handed(&mut self, _handed: Handed) -> HandingCounts {
        self.source.ask(CountHanded).await.unwrap_or_default()
    }

    #[handler(message = Make)]
    async fn make(&mut self, make: Make, cx: &mut Context<Self>) -> Result<Edition, Failure> {
        let mut writer = cx.blobs().writer(BYTES).map_err(Failure::error)?;
        for word in writer.as_chunks_mut::<8>().0 {
            *word = make.0.to_le_bytes();
        }
        let edition = Edition::new(self.life, make.0);
        let blob = writer.seal();
        let put = self.source.tell(Put { edition, blob }).await;
        put.map_err(Failure::error).map(|()| edition)
    }
}

/// In the place of a rollout: takes whatever is newer.
#[derive(Debug, Default)]
struct Reader {
    relay: Option<Ref<Relay>>,
    newest: Option<Edition>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(crate = "odeon::serde")]
struct ReaderArgs(Ref<Relays>);

/// The newest weights that it has.
#[message(reply = Option<Edition>, name = "test.Newest")]
#[derive(Debug)]
struct Newest;

#[actor(name = "test.Reader")]
impl Reader {
    async fn start(args: ReaderArgs, cx: &mut Context<Self>) -> Result<Self, Failure> {
        let seek = Seek(cx.me().narrow());
        args.0.tell(seek).await.map_err(Failure::error)?;
        Ok(Self::default())
    }

    #[handler(message = Draw)]
    async fn draw(&mut self, draw: Draw, cx: &mut Context<Self>) {
        self.relay = Some(draw.0);
        // One that is gone is shown again when it is back.
        let _ = draw.0.tell(Subscribe(cx.me().narrow())).await;
    }

    #[handler(message = Fresh)]
    async fn fresh(&mut self, _fresh: Fresh) {
        let Some(relay) = self.relay else { return };
        let Ok(Some(weights)) = relay.ask(Latest).await else {
            return;
        };
        if Some(weights.edition) <= self.newest {
            return;
        }
        let Ok(view) = weights.blob.open().await else {
            return;
        };
        assert_eq!(view.len(), BYTES);
        let version = weights.edition.version().to_le_bytes();
        let words = view.as_chunks::<8>().0;
        assert!(words.iter().all(|word| *word == version), "mixed weights");
        self.newest = Some(weights.edition);
    }

    #[handler(message = Newest)]
    fn newest(&mut self, _newest: Newest) -> Option<Edition> {
        self.newest
    }
}

struct World {
    system: System,
    forms: Forms,
    chain: Ref<Relays>,
    maker: Ref<Maker>,
    readers: Vec<Ref<Reader>>,
    relays: Vec<Ref<Relay>>,
}

impl World {
    /// All but the relays.
    async fn begin() -> Self {
        Self::with(Forms::Full).await
    }

    /// The same with chunks that travel so.
    async fn with(forms: Forms) -> Self {
        let mut limits = Limits::default();
        limits.stop_grace = Duration::from_millis(100);
        let worker = again::worker(module_path!());
        let system = System::builder()
            .limits(limits)
            .job(job())
            .workers(WorkerMode::Processes(worker))
            .start()
            .await
            .unwrap();
        let always = Restart::Permanent;
        let chain = system.spawn::<Relays>(()).restart(always).isolated();
        let chain = chain.await.unwrap();
        let args = SourceArgs {
            relays: chain,
            beat: BEAT,
            forms,
        };
        let maker = system.spawn::<Maker>(args).restart(always).isolated();
        let maker = maker.await.unwrap();
        let mut readers = vec![];
        for _ in 0..RELAYS {
            // Readers compare; they need no process of their own for that.
            let reader = system.spawn::<Reader>(ReaderArgs(chain));
            readers.push(reader.await.unwrap());
        }
        Self {
            system,
            forms,
            chain,
            maker,
            readers,
            relays: vec![],
        }
    }

    async fn relays(mut self) -> Self {
        for (id, reader) in self.readers.iter().enumerate() {
            let args = RelayArgs {
                id: id as RelayId,
                relays: self.chain,
                seats: vec![reader.narrow()],
                beat: BEAT,
                forms: self.forms,
            };
            let relay = self.system.spawn::<Relay>(args);
            let relay = relay.restart(Restart::Permanent).isolated();
            self.relays.push(relay.await.unwrap());
        }
        self.until("all stand", async |world| {
            world.order().await.len() == RELAYS
        })
        .await;
        self
    }

    /// Waits for a fact.
    async fn until(&self, what: &str, fact: impl AsyncFn(&Self) -> bool) {
        let waiting = async {
            while !fact(self).await {
                Clock::sleep(Duration::from_millis(2)).await;
            }
        };
        let ended = Clock::timeout(Duration::from_secs(60), waiting).await;
        assert!(ended.is_some(), "never: {what}");
    }

    async fn order(&self) -> Vec<RelayId> {
        self.chain.ask(Order).await.unwrap_or_default()
    }

    async fn make(&self, version: u64) -> Edition {
        self.maker.ask(Make(version)).await.unwrap().unwrap()
    }

    async fn latest(&self, relay: usize) -> Option<Edition> {
        let latest = self.relays[relay].ask(Latest).await.ok().flatten();
        latest.map(|weights| weights.edition)
    }

    /// Waits until a version has begun to come to a relay.
    async fn comes_to(&self, relay: usize, edition: Edition) {
        let begun = async |world: &Self| {
            let Ok(held) = world.relays[relay].ask(Hold).await else {
                return false;
            };
            let comes = held
                .incoming
                .is_some_and(|(version, _)| version == edition.in_chain());
            comes || held.complete == Some(edition.in_chain())
        };
        self.until("a version begins to come", begun).await;
    }

    /// Waits until all have a version; at those that were `untouched` versions only go up.
    async fn is_everywhere(&self, edition: Edition, untouched: &[usize]) {
        let mut seen = vec![None; RELAYS];
        let waiting = async {
            loop {
                let mut all = true;
                for (relay, seen) in seen.iter_mut().enumerate() {
                    let latest = self.latest(relay).await;
                    assert!(
                        latest >= *seen || !untouched.contains(&relay),
                        "relay {relay} went down"
                    );
                    all &= latest == Some(edition);
                    *seen = latest;
                }
                for reader in &self.readers {
                    all &= reader.ask(Newest).await.unwrap() == Some(edition);
                }
                if all {
                    break;
                }
                Clock::sleep(Duration::from_millis(2)).await;
            }
        };
        let ended = Clock::timeout(Duration::from_secs(60), waiting).await;
        let order = self.order().await;
        assert!(
            ended.is_some(),
            "{edition:?} not everywhere: {seen:?}, {order:?}"
        );
    }

    fn kill<A>(&self, actor: Ref<A>) -> ProcessId {
        let process = self.system.admin().process_of(actor).expect("it runs");
        assert!(self.system.admin().kill_worker(process));
        process
    }

    /// Sends a signal to the processes of all relays.
    fn signal_relays(&self, signal: Signal) {
        let workers = self.system.admin().workers();
        for relay in &self.relays {
            let process = self.system.admin().process_of(*relay);
            let worker = workers.iter().find(|(id, _)| Some(*id) == process);
            let (_, pid) = worker.expect("it runs");
            let pid = Pid::from_raw(*pid as i32).unwrap();
            kill_process(pid, signal).unwrap();
        }
    }

    /// Kills relays while a version travels, and once more while nothing does.
    async fn lose_relays(self, positions: &[usize]) {
        let first = self.make(1).await;
        self.is_everywhere(first, &[]).await;
        let order = self.order().await;
        let lost: Vec<usize> = positions.iter().map(|at| order[*at] as usize).collect();
        let untouched: Vec<usize> = (0..RELAYS).filter(|id| !lost.contains(id)).collect();
        let second = self.make(2).await;
        self.comes_to(lost[0], second).await;
        for id in &lost {
            self.kill(self.relays[*id]);
        }
        // Nobody is waited for: these go on before the lost ones are back.
        self.make(3).await;
        let last = self.make(4).await;
        self.is_everywhere(last, &untouched).await;
        self.until("all stand again", async |world| {
            world.order().await.len() == RELAYS
        })
        .await;
        let idle = self.order().await[positions[0]] as usize;
        self.kill(self.relays[idle]);
        self.is_everywhere(last, &[]).await;
        self.system.shutdown().await;
    }
}

/// SEMANTICS 80.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn weights_come_to_all_when_the_master_is_killed() {
    World::begin().await.relays().await.lose_relays(&[0]).await;
}

/// SEMANTICS 80.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn weights_come_to_all_when_a_relay_in_the_middle_is_killed() {
    World::begin().await.relays().await.lose_relays(&[1]).await;
}

/// SEMANTICS 80.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn weights_come_to_all_when_the_last_relay_is_killed() {
    World::begin().await.relays().await.lose_relays(&[3]).await;
}

/// SEMANTICS 80.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn weights_come_to_all_when_two_relays_are_killed_at_once() {
    let world = World::begin().await.relays().await;
    world.lose_relays(&[0, 2]).await;
}

/// SEMANTICS 80.
/// Weights that were half handed over give way to those of the next life, though their number is no
/// higher.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn weights_of_a_trainer_that_was_killed_in_the_middle_give_way_to_those_of_its_next_life() {
    let world = World::begin().await.relays().await;
    let first = world.make(5).await;
    world.is_everywhere(first, &[]).await;
    let half = world.make(6).await;
    let master = world.order().await[0] as usize;
    world.comes_to(master, half).await;
    let process = world.kill(world.maker);
    world
        .until("the trainer is back", async |world| {
            let there = world.system.admin().process_of(world.maker);
            there.is_some_and(|there| there != process)
        })
        .await;
    let again = world.make(5).await;
    assert!(again > half);
    world.is_everywhere(again, &[0, 1, 2, 3]).await;
    world.system.shutdown().await;
}

/// SEMANTICS 80.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn weights_come_to_all_when_who_watches_the_relays_is_killed() {
    let world = World::begin().await.relays().await;
    let first = world.make(1).await;
    world.is_everywhere(first, &[]).await;
    world.kill(world.chain);
    let second = world.make(2).await;
    world.is_everywhere(second, &[0, 1, 2, 3]).await;
    // With a relay at the same time, of whose end nobody hears.
    let master = world.order().await[0] as usize;
    world.kill(world.relays[master]);
    world.kill(world.chain);
    let last = world.make(3).await;
    world.is_everywhere(last, &[]).await;
    world.system.shutdown().await;
}

/// SEMANTICS 81.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_trainer_publishes_though_there_is_no_relay() {
    let world = World::begin().await;
    for version in 1..=3 {
        world.make(version).await;
    }
    let last = world.make(4).await;
    let world = world.relays().await;
    world.is_everywhere(last, &[]).await;
    world.system.shutdown().await;
}

/// SEMANTICS 81.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_trainer_publishes_though_all_its_relays_stand_still() {
    let world = World::begin().await.relays().await;
    let first = world.make(1).await;
    world.is_everywhere(first, &[]).await;
    let relays = || {
        world
            .relays
            .iter()
            .map(|relay| world.system.admin().process_of(*relay))
    };
    let processes: Vec<Option<ProcessId>> = relays().collect();
    world.signal_relays(Signal::STOP);
    for version in 2..=4 {
        world.make(version).await;
    }
    let last = world.make(5).await;
    // Who hands the weights over is not held up either.
    world.maker.ask(Handed).await.unwrap();
    // All that before anybody took a relay for lost.
    assert_eq!(relays().collect::<Vec<_>>(), processes);
    world.signal_relays(Signal::CONT);
    world.is_everywhere(last, &[0, 1, 2, 3]).await;
    world.system.shutdown().await;
}

/// SEMANTICS 80.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn weights_that_travel_as_changes_come_to_all_when_a_relay_is_killed() {
    let world = World::with(Forms::Changes(Word::Two)).await.relays().await;
    world.lose_relays(&[1]).await;
}

/// SEMANTICS 80.
/// One word of four changes with a version, so that half of the bytes travel: the word, and where.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn weights_that_travel_as_changes_are_fewer_bytes_and_the_same() {
    let world = World::with(Forms::Changes(Word::Two)).await.relays().await;
    let handed = async || world.maker.ask(Handed).await.unwrap();
    let mut before = handed().await;
    // The first is whole, and so are others of which the first relay has not the one before, or has it in other chunks:
    // the chain is arranged anew whenever a relay is not heard for long.
    for version in 1.. {
        // Readers compare every byte.
        let edition = world.make(version).await;
        world.is_everywhere(edition, &[]).await;
        let now = handed().await;
        let whole = now.whole - before.whole;
        let travelled = now.travelled - before.travelled;
        assert!(whole >= BYTES as u64, "{whole}");
        if version == 1 {
            assert_eq!(travelled, whole, "there is nothing to change");
        } else if travelled < whole * 3 / 5 {
            assert!(travelled > whole * 2 / 5, "{travelled} of {whole}");
            break;
        }
        assert!(version < VERSIONS_MAX, "{travelled} of {whole}");
        before = now;
    }
    world.system.shutdown().await;
}
