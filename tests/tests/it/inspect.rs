//! Looking on: what is seen of actors over processes, and that looking disturbs nobody.

use std::time::Duration;

use odeon::inspect::{NewsKind, Sight, Watch};
use odeon::simulation::SimulationSpec;
use odeon::trace::Sampling;
use odeon::{
    ActorId, AskError, Clock, Context, Failure, FakeDevices, Handler, Limits, Phase, ProcessId,
    Ref, Supervision, System, WorkerMode, telemetry,
};
use odeon_devices::fake::{Fake, Spec};
use odeon_diagnosis::Detector;
use odeon_observe::actor::State;
use odeon_observe::detectors::Detectors;
use odeon_observe::event::{EventKind, Subject};
use odeon_observe::past::{Mark, Past};
use odeon_observe::{ClusterView, Date, Observer, here, today};
use odeon_tests::again;
use odeon_topology::DeviceModel;
use tokio::io::AsyncReadExt;
use tokio::sync::Semaphore;

use crate::eventually;

/// Opens nothing: whoever waits here waits until it is dropped.
static SHUT: Semaphore = Semaphore::const_new(0);
const PATIENCE: Duration = Duration::from_secs(30);

struct Party;

#[odeon::message]
struct Boom;

#[odeon::actor(name = "inspect.Party")]
impl Party {
    fn start(_args: ()) -> Self {
        Self
    }

    #[handler]
    fn touch(&mut self) {}

    #[handler]
    async fn wait(&mut self) {
        let _never = SHUT.acquire().await;
    }

    /// Asks a second, which is to ask a third in turn.
    #[handler]
    async fn call(&mut self, first: Ref<Party>, then: Ref<Party>) -> Result<(), AskError> {
        first.ask(Back { then }).timeout(PATIENCE).await?
    }

    #[handler]
    async fn back(&mut self, then: Ref<Party>) -> Result<(), AskError> {
        then.ask(Touch).timeout(PATIENCE).await
    }

    #[handler]
    fn tell_numbers(&mut self) {
        telemetry::gauge("rl.reward", 0.5).with("step", 3).record();
        telemetry::span("trajectory").with("version", 7).end();
    }

    /// As a rank of a training does.
    #[handler]
    fn tell_stage(&mut self, rank: u32, seconds: f64) {
        for step in 0..5 {
            let took = telemetry::gauge("train.stage_s", seconds).with("rank", rank);
            took.with("stage", "forward").with("step", step).record();
        }
    }

    /// Asks another as part of a span of its own, and tells of a span that began before that.
    #[handler]
    async fn surround(&mut self, other: Ref<Party>) -> Result<(), AskError> {
        let began = Clock::now();
        let span = telemetry::span("train step");
        span.around(other.ask(Touch).into_future()).await?;
        span.end();
        telemetry::span_from("pass", began).end();
        Ok(())
    }

    /// Its child lives where it does, and it decides about it.
    #[handler]
    async fn make(&mut self, cx: &mut Context<Self>) -> Result<Ref<Party>, String> {
        let child = cx.spawn::<Self>(()).await;
        child.map_err(|error| error.to_string())
    }

    #[handler(message = Boom)]
    fn boom(&mut self, _: Boom) {
        panic!("boom")
    }

    /// Says something, and is killed.
    #[handler]
    fn last(&mut self) {
        eprint!("my last words");
        let me = rustix::process::getpid();
        rustix::process::kill_process(me, rustix::process::Signal::KILL).unwrap();
    }
}

/// Never leaves its process: it is none of the registered messages.
#[odeon::message]
struct Whisper;

impl Handler<Whisper> for Party {
    async fn handle(&mut self, _: Whisper, _: &mut Context<Self>) {
        let _never = SHUT.acquire().await;
    }
}

fn job() -> odeon::Job {
    odeon::job![Party]
}

#[test]
fn worker_entry() {
    job().serve_if_worker();
}

async fn with_workers(limits: Limits) -> System {
    let worker = again::worker(module_path!());
    System::builder()
        .job(job())
        .limits(limits)
        .supervision(Supervision::one_for_one().budget(50, Duration::from_secs(600)))
        .workers(WorkerMode::Processes(worker))
        .start()
        .await
        .unwrap()
}

/// Looks until something is true of what is seen.
pub(crate) async fn seen<T>(system: &System, fact: impl Fn(&ClusterView) -> Option<T>) -> T {
    seen_by(&Observer::new("test", 1), system, fact).await
}

/// Has an observer look until something is true of what it sees.
async fn seen_by<T>(
    observer: &Observer,
    system: &System,
    fact: impl Fn(&ClusterView) -> Option<T>,
) -> T {
    let looking = async {
        loop {
            if let Some(found) = observer.read(&fact) {
                return found;
            }
            Clock::sleep(Duration::from_millis(5)).await;
        }
    };
    let _viewer = observer.viewer();
    tokio::select! {
        found = Clock::timeout(PATIENCE, looking) => match found {
            Some(found) => found,
            None => observer.read(|seen| {
                let events: Vec<_> = seen.events().iter().collect();
                panic!("not seen in time: {:?}, {events:#?}", seen.findings())
            }),
        },
        () = observer.follow(system) => unreachable!("it looks until it is dropped"),
    }
}

fn state_of(seen: &ClusterView, id: ActorId) -> Option<State> {
    Some(seen.actors().get(id)?.state)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_span_surrounds_is_below_it_and_a_span_may_have_begun_before_it_is_told() {
    let system = with_workers(Limits::default()).await;
    let near = system.spawn::<Party>(()).await.unwrap();
    let far = system.spawn::<Party>(()).isolated().await.unwrap();
    near.ask(Surround { other: far }).await.unwrap().unwrap();
    let (below, before) = seen(&system, |seen| {
        let spans = || seen.spans().ended();
        let named = |name: &str| spans().find(|it| &*it.name == name);
        let (step, pass) = (named("train step")?, named("pass")?);
        let ask = spans().find(|it| it.parent == step.id())?;
        let below = spans().find(|it| it.parent == ask.id())?;
        let one_trace = below.context.trace_id == step.context.trace_id;
        Some((one_trace && below.by == far.id(), pass.start <= step.start))
    })
    .await;
    assert!(
        below,
        "the handler in the other process is of the same trace"
    );
    assert!(before);
    system.shutdown().await;
}

/// SEMANTICS 67, 68.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_deadlock_over_two_processes_is_found_and_named() {
    let system = with_workers(Limits::default()).await;
    let near = system.spawn::<Party>(()).await.unwrap();
    let far = system.spawn::<Party>(()).isolated().await.unwrap();
    let asking = near
        .ask(Call {
            first: far,
            then: near,
        })
        .timeout(PATIENCE);
    let asking = tokio::spawn(asking.into_future());
    let (problem, chain) = seen(&system, |seen| {
        let found = seen
            .findings()
            .iter()
            .find(|it| it.cause.rule == "deadlock")?;
        let (chain, circle) = seen.waits().chain(near.id());
        let on: Vec<_> = chain
            .iter()
            .map(|wait| (wait.on, wait.message.clone()))
            .collect();
        Some((found.clone(), (on, circle, state_of(seen, far.id()))))
    })
    .await;
    let mut about: Vec<_> = problem.who;
    about.sort();
    let mut parties = [Subject::Actor(near.id()), Subject::Actor(far.id())];
    parties.sort();
    assert_eq!(about, parties);
    assert!(
        problem.cause.sentence.contains("limit 1 s"),
        "{}",
        problem.cause.sentence
    );
    let expected = vec![
        (far.id(), "Back".to_owned()),
        (near.id(), "Touch".to_owned()),
    ];
    assert_eq!(chain, (expected, true, Some(State::Waiting)));
    asking.abort();
    system.shutdown().await;
}

/// SEMANTICS 67.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn looking_waits_for_no_handler_and_sees_what_runs() {
    let system = System::local().await.unwrap();
    let actor = system.spawn::<Party>(()).await.unwrap();
    let asking = tokio::spawn(actor.ask(Wait).timeout(PATIENCE).into_future());
    let since = seen(&system, |seen| {
        let row = seen.actors().get(actor.id())?;
        let running = row.running()?;
        (running.message == "Wait").then_some(row.running_since?)
    })
    .await;
    for _ in 0..3 {
        actor.tell(Touch).await.unwrap();
    }
    // It lies in the mailbox and is not handled; later, the same handler counts as stuck.
    let sentence = seen(&system, |seen| {
        let row = seen.actors().get(actor.id())?;
        let later = Date(since.0).after(Duration::from_secs(41));
        let found = Detectors::default().observe(seen, later);
        let stuck = found
            .into_iter()
            .find(|it| it.cause.rule == "stuck_handler");
        (row.view.queued == 3 && row.view.handled == 1).then(|| stuck.unwrap().cause.sentence)
    })
    .await;
    assert!(
        sentence.contains("has handled one Wait for 41 s"),
        "{sentence}"
    );
    assert!(sentence.contains("limit 10 s"), "{sentence}");
    asking.abort();
    system.shutdown().await;
}

/// SEMANTICS 68.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_failed_says_why_and_how_often_it_began_anew() {
    let system = with_workers(Limits::default()).await;
    let actor = system.spawn::<Party>(()).isolated().await.unwrap();
    for life in 1..=3 {
        let error = actor.ask(Boom).await.unwrap_err();
        assert!(matches!(error, AskError::Died(_)), "{error}");
        seen(&system, |seen| {
            let row = seen.actors().get(actor.id())?;
            (row.view.incarnation == life + 1 && row.view.phase == Phase::Running).then_some(())
        })
        .await;
    }
    let (lives, problem, events) = seen(&system, |seen| {
        let row = seen.actors().get(actor.id())?;
        let problem = seen
            .findings()
            .iter()
            .find(|it| it.cause.rule == "restart_loop")?;
        let failures = seen
            .events()
            .iter()
            .filter(|it| it.kind == EventKind::Failure);
        Some((row.lives.clone(), problem.clone(), failures.count()))
    })
    .await;
    assert_eq!(events, 3);
    let caused = lives
        .iter()
        .filter(|life| life.cause.as_ref().is_some_and(|it| it.contains("boom")));
    assert_eq!(caused.count(), 3, "{lives:?}");
    assert!(
        problem.cause.sentence.contains("boom"),
        "{}",
        problem.cause.sentence
    );
    system.shutdown().await;
}

/// SEMANTICS 68.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn those_of_a_process_that_was_killed_are_remembered() {
    let system = with_workers(Limits::default()).await;
    let observer = Observer::new("test", 1);
    let _viewer = observer.viewer();
    let until = async |fact: &dyn Fn(&ClusterView) -> bool| {
        let seen = async {
            while !observer.read(fact) {
                Clock::sleep(Duration::from_millis(5)).await;
            }
        };
        Clock::timeout(PATIENCE, seen).await.expect("seen in time");
    };
    let steps = async {
        let temporary = odeon::Restart::Temporary;
        let actor = system
            .spawn::<Party>(())
            .restart(temporary)
            .isolated()
            .await
            .unwrap();
        let id = actor.id();
        until(&|seen| state_of(seen, id) == Some(State::Idle)).await;
        let process = system.admin().process_of(actor).unwrap();
        assert!(system.admin().kill_worker(process));
        until(&|seen| state_of(seen, id) == Some(State::Failed)).await;
        observer.read(|seen| {
            let row = seen.actors().get(id).unwrap();
            let ended = row.ended.clone().unwrap();
            assert!(ended.sentence.contains("signal 9"), "{ended:?}");
            assert!(seen.process(process).unwrap().ended.is_some());
        });
        let told = |seen: &ClusterView| {
            let mut problems = seen.findings().iter();
            problems.any(|it| it.cause.rule == "actor_failed")
        };
        until(&told).await;
    };
    tokio::select! {
        () = steps => {}
        () = observer.follow(&system) => unreachable!("it looks until it is dropped"),
    }
    system.shutdown().await;
}

/// One look at a system without workers.
async fn look(watch: &mut Watch) -> Sight {
    let mut node = watch.look(PATIENCE).await;
    assert!(node.silent.is_empty());
    node.processes.remove(0).sight
}

/// SEMANTICS 67.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_look_shows_what_has_changed_and_everything_to_who_comes_anew() {
    let system = System::local().await.unwrap();
    let mut actors = vec![];
    for _ in 0..100 {
        actors.push(system.spawn::<Party>(()).await.unwrap());
    }
    let mut watch = system.admin().watch();
    let first = look(&mut watch).await;
    assert!(first.anew);
    assert_eq!((first.actors.len(), first.hosted), (100, 100));
    actors[7].ask(Touch).await.unwrap();
    actors[8].stop().await.unwrap();
    let changed = async |watch: &mut Watch| {
        let (mut shown, mut gone) = (vec![], vec![]);
        // The handler of the last message may still be on its way out.
        for _ in 0..3 {
            let sight = look(watch).await;
            assert!(!sight.anew);
            shown.extend(sight.actors.iter().map(|view| view.id));
            gone.extend(sight.gone);
        }
        shown.dedup();
        (shown, gone)
    };
    let (shown, gone) = changed(&mut watch).await;
    assert!(
        shown
            .iter()
            .all(|id| [actors[7].id(), actors[8].id()].contains(id)),
        "{shown:?}"
    );
    assert!(shown.contains(&actors[7].id()));
    assert_eq!(gone, [actors[8].id()]);
    let mut other = system.admin().watch();
    assert_eq!(look(&mut other).await.actors.len(), 99);
    system.shutdown().await;
}

/// SEMANTICS 67, 69.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn spans_that_were_lost_are_counted_and_states_stay_true() {
    let mut limits = Limits::default();
    limits.trace_spans_max = 64;
    limits.trace_sampling = Sampling::All;
    let builder = System::builder().limits(limits);
    let system = builder.start().await.unwrap();
    let actor = system.spawn::<Party>(()).await.unwrap();
    let mut seen = ClusterView::default();
    let mut watch = system.admin().watch();
    seen.look(watch.look(PATIENCE).await, here(), None);
    for _ in 0..1_000 {
        actor.ask(Touch).await.unwrap();
    }
    seen.look(watch.look(PATIENCE).await, here(), None);
    seen.tick(today());
    let kept = seen.spans().ended().count() as u64;
    assert!(kept <= 64);
    assert_eq!(
        seen.spans_lost() + kept,
        2_000,
        "each ask and each handler is one"
    );
    assert_eq!(
        seen.spans().gaps().map(|gap| gap.lost).sum::<u64>(),
        seen.spans_lost()
    );
    let dropped = seen
        .findings()
        .iter()
        .find(|it| it.cause.rule == "events_dropped")
        .unwrap();
    assert!(
        dropped
            .cause
            .sentence
            .contains(&seen.spans_lost().to_string()),
        "{}",
        dropped.cause.sentence
    );
    let row = seen.actors().get(actor.id()).unwrap();
    assert_eq!((row.handled, row.state), (1_000, State::Idle));
    let methods = system
        .admin()
        .methods_of(actor.id(), system.process())
        .await
        .unwrap();
    let touch = methods
        .iter()
        .find(|method| method.name == "Touch")
        .unwrap();
    assert_eq!((touch.handled, touch.handling.count()), (1_000, 1_000));
    system.shutdown().await;
}

/// SEMANTICS 69.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_programs_tell_of_their_work_arrives_with_whose_it_is_and_when_it_was() {
    let system = with_workers(Limits::default()).await;
    let far = system.spawn::<Party>(()).isolated().await.unwrap();
    far.ask(Touch).await.unwrap();
    // The clock of its process began later than the observer's.
    let before = today();
    far.ask(TellNumbers).await.unwrap();
    let after = today();
    let (point, version, dates, error) = seen(&system, |seen| {
        let number = seen.recorded().find(|it| it.name == "rl.reward")?;
        let spans = seen.spans();
        let span = spans.ended().find(|span| &*span.name == "trajectory")?;
        assert_eq!((number.actor, span.by), (far.id(), far.id()));
        let (at, step, value) = number.points[0];
        let mut processes = seen.processes();
        let error = processes.find(|it| it.id == span.process)?.clock_error;
        let dates = [at, span.start, span.end?];
        Some(((step, value), span.label("version"), dates, error))
    })
    .await;
    assert_eq!(point, (Some(3.0), 0.5));
    assert_eq!(version.as_deref(), Some("7"));
    let may_be = before.before(error)..=after.after(error);
    for date in dates {
        assert!(may_be.contains(&date), "{date:?} in {may_be:?}");
    }
    system.shutdown().await;
}

/// SEMANTICS 69.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn numbers_that_were_lost_are_counted() {
    const TOLD: u64 = 1_000;
    let mut limits = Limits::default();
    limits.points_max = 64;
    let builder = System::builder().limits(limits);
    let system = builder.start().await.unwrap();
    let actor = system.spawn::<Party>(()).await.unwrap();
    let mut seen = ClusterView::default();
    let mut watch = system.admin().watch();
    seen.look(watch.look(PATIENCE).await, here(), None);
    for _ in 0..TOLD {
        actor.ask(TellNumbers).await.unwrap();
    }
    seen.look(watch.look(PATIENCE).await, here(), None);
    let number = seen.recorded().find(|it| it.name == "rl.reward").unwrap();
    let shown = number.points.len() as u64;
    assert!((1..=64).contains(&shown), "{shown}");
    assert_eq!(seen.missed().points + shown, TOLD);
    system.shutdown().await;
}

/// Makes a process, has it tell a number and a failure, and ends it at once.
async fn short_life(system: &System) {
    let far = system.spawn::<Party>(()).isolated().await.unwrap();
    far.ask(TellNumbers).await.unwrap();
    let failing = async {
        let child = far.ask(Make).await.unwrap().unwrap();
        let error = child.ask(Boom).await.unwrap_err();
        assert!(matches!(error, AskError::Died(_)), "{error}");
        // Its next life: what is done about the failure is known by now.
        child.ask(Touch).await.unwrap();
    };
    system.scope(failing).await;
    far.stop().await.unwrap();
}

/// The number of numbers, spans and failures of short lives that are seen.
fn left_behind(seen: &ClusterView) -> (usize, usize, usize) {
    let numbers = seen.recorded().filter(|it| it.name == "rl.reward").count();
    let spans = seen.spans().ended();
    let spans = spans.filter(|span| &*span.name == "trajectory").count();
    let events = seen.events().iter();
    let failures = events.filter(|it| it.kind == EventKind::Failure);
    let failures = failures.filter(|it| it.chain.iter().any(|why| why.contains("boom")));
    (numbers, spans, failures.count())
}

/// SEMANTICS 69.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_process_that_ends_had_to_show_is_not_lost() {
    const LIVES: usize = 8;
    let system = with_workers(Limits::default()).await;
    // Nobody looks before it is over.
    short_life(&system).await;
    seen(&system, |seen| {
        (left_behind(seen) == (1, 1, 1)).then_some(())
    })
    .await;
    // Somebody looks all the time.
    let living = async {
        for _ in 0..LIVES {
            short_life(&system).await;
        }
    };
    let looking = seen(&system, |seen| {
        let lives = 1 + LIVES;
        let processes = seen.processes();
        let over = processes.filter(|it| it.ended.is_some()).count() == lives;
        over.then(|| left_behind(seen))
    });
    let ((), found) = tokio::join!(living, looking);
    assert_eq!(found, (1 + LIVES, 1 + LIVES, 1 + LIVES));
    system.shutdown().await;
}

/// SEMANTICS 69.
#[test]
fn what_a_process_that_ends_had_to_show_waits_half_a_minute_for_who_looks() {
    let spec = SimulationSpec::new(job()).nodes(1);
    System::simulated(1, spec).run(async |world| {
        let system = &world.nodes[0];
        short_life(system).await;
        // Nobody has looked so far.
        Clock::sleep(Duration::from_secs(29)).await;
        assert_eq!(left_with(system).await, (1, 1));
        Clock::sleep(Duration::from_secs(2)).await;
        assert_eq!(left_with(system).await, (0, 0));
    });
}

/// The numbers and failures of processes that have ended, as somebody sees them who never looked before.
async fn left_with(system: &System) -> (usize, usize) {
    let sight = system.admin().watch().look(PATIENCE).await;
    let sights = sight.processes.into_iter().map(|it| it.sight);
    let ended: Vec<Sight> = sights.filter(|it| it.process != system.process()).collect();
    let numbers = ended.iter().map(|it| it.points.len()).sum();
    let news = ended.iter().flat_map(|it| &it.news);
    let failures = news.filter(|it| it.kind == NewsKind::Failed);
    (numbers, failures.count())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_message_of_one_process_alone_runs_under_its_own_name() {
    let system = with_workers(Limits::default()).await;
    let party = system.spawn::<Party>(()).await.unwrap();
    party.tell(Whisper).await.unwrap();
    let message = seen(&system, |seen| {
        let row = seen.actors().get(party.id())?;
        Some(row.running()?.message.clone())
    })
    .await;
    assert!(message.contains("Whisper"), "{message}");
    system.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rank_that_takes_much_longer_than_the_others_is_named() {
    let system = with_workers(Limits::default()).await;
    let mut ranks = vec![];
    for (rank, seconds) in [0.20, 0.21, 0.43, 0.19].into_iter().enumerate() {
        let party = system.spawn::<Party>(()).await.unwrap();
        let rank = rank as u32;
        party.ask(TellStage { rank, seconds }).await.unwrap();
        ranks.push(party);
    }
    let problem = seen(&system, |seen| {
        let mut problems = seen.findings().iter();
        problems.find(|it| it.cause.rule == "straggler").cloned()
    })
    .await;
    assert_eq!(problem.who, [Subject::Actor(ranks[2].id())]);
    for part in [
        "rank 2",
        "430 ms for forward",
        "of 4 ranks",
        "limit 2 times",
    ] {
        assert!(
            problem.cause.sentence.contains(part),
            "{}",
            problem.cause.sentence
        );
    }
    system.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_device_shows_what_its_driver_says_and_who_fills_it() {
    let fake = Fake::new(Spec::cluster(1, DeviceModel::default())).unwrap();
    let worker = again::worker(module_path!());
    let system = System::builder()
        .job(job())
        .workers(WorkerMode::Processes(worker))
        .devices(FakeDevices::new(&fake, "node0").unwrap())
        .start()
        .await
        .unwrap();
    let all: u64 = 141 << 30;
    let most = all / 100 * 97;
    let party = system
        .spawn::<Party>(())
        .needs(|needs| needs.gpus(1).device_memory(most))
        .await
        .unwrap();
    let process = system.admin().process_of(party).unwrap();
    let (reading, problem) = seen(&system, |seen| {
        let mut problems = seen.findings().iter();
        let problem = problems.find(|it| it.cause.rule == "device_memory")?;
        let row = seen.actors().get(party.id())?;
        let view = seen.nodes().next()?.hardware.as_ref()?;
        let own = |it: &&odeon::inspect::DeviceReading| row.view.devices.contains(&it.index);
        let reading = view.readings.iter().find(own)?.clone();
        let pid = seen.process(process)?.pid?;
        let held = reading
            .holders
            .value()?
            .iter()
            .any(|(holder, _)| *holder == pid);
        held.then(|| (reading, problem.clone()))
    })
    .await;
    assert!(
        reading
            .memory_used
            .value()
            .is_some_and(|used| *used >= most)
    );
    let told = |reading: Option<&str>| reading.is_some_and(|why| !why.is_empty());
    let busy = &reading.busy;
    assert!(busy.value().is_some() || told(busy.why()), "{busy:?}");
    for part in ["GiB in use", "limit 95 %"] {
        assert!(
            problem.cause.sentence.contains(part),
            "{}",
            problem.cause.sentence
        );
    }
    system.shutdown().await;
}

/// SEMANTICS 71.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whoever_knows_its_number_stops_an_actor_or_has_it_begin_anew() {
    let mut limits = Limits::default();
    limits.stop_grace = Duration::from_millis(100);
    let system = with_workers(limits).await;
    let far = system.spawn::<Party>(()).isolated().await.unwrap();
    // The row of the child is kept by the process that its parent lives in.
    let child = far.ask(Make).await.unwrap().unwrap();
    let touch = async || {
        let asking = async { child.ask(Touch).timeout(PATIENCE).await };
        system.scope(asking).await
    };
    let before = seen(&system, |seen| {
        let row = seen.actors().get(child.id())?;
        (row.state == State::Idle).then_some(row.view.incarnation)
    })
    .await;
    // It is ended in the middle of its work. It goes on, and what lies in its mailbox or is sent
    // meanwhile waits for its next life.
    let waits = system.scope(async { child.tell(Wait).await });
    waits.await.unwrap();
    seen(&system, |seen| {
        let running = seen.actors().get(child.id())?.view.running.as_ref()?;
        (running.message == "Wait").then_some(())
    })
    .await;
    let why = Failure::error("somebody asked for it");
    let failing = system.admin().fail_actor(child.id(), why, PATIENCE);
    let (queued, failed, meanwhile) = tokio::join!(touch(), failing, touch());
    failed.unwrap();
    queued.and(meanwhile).unwrap();
    let cause = seen(&system, |seen| {
        let row = seen.actors().get(child.id())?;
        let ended = row.lives.iter().find(|life| life.number == before)?;
        let lives = row.view.incarnation == before + 1 && row.ended.is_none();
        lives.then(|| ended.cause.clone()).flatten()
    })
    .await;
    assert!(cause.contains("somebody asked for it"), "{cause}");
    system
        .admin()
        .stop_actor(child.id(), PATIENCE)
        .await
        .unwrap();
    let gone = touch().await;
    assert!(matches!(gone, Err(AskError::Dead(_))), "{gone:?}");
    // One that has ended has what is asked for.
    system
        .admin()
        .stop_actor(child.id(), PATIENCE)
        .await
        .unwrap();
    let nobody = ActorId {
        home: ProcessId(1),
        serial: 1,
    };
    let refused = system.admin().stop_actor(nobody, PATIENCE).await;
    assert!(
        matches!(refused, Err(AskError::Unreachable(_))),
        "{refused:?}"
    );
    system.shutdown().await;
}

/// SEMANTICS 68.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_failed_before_anybody_looked_is_shown_too() {
    let system = with_workers(Limits::default()).await;
    let temporary = system.spawn::<Party>(()).restart(odeon::Restart::Temporary);
    let party = temporary.await.unwrap();
    party.tell(Boom).await.unwrap();
    let ended = async || party.ask(Touch).timeout(PATIENCE).await.is_err();
    eventually("its end", ended).await;
    let why = seen(&system, |seen| {
        let row = seen.actors().get(party.id())?;
        assert_eq!(row.state, State::Failed);
        Some(row.ended.clone()?.sentence)
    })
    .await;
    assert!(why.contains("boom"), "{why}");
    system.shutdown().await;
}

/// SEMANTICS 72.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_observer_that_goes_on_from_another_tells_nothing_twice_and_knows_who_is_missing() {
    let system = with_workers(Limits::default()).await;
    let begun_at = today();
    let lives = system.spawn::<Party>(()).isolated().await.unwrap();
    let ends = system.spawn::<Party>(()).isolated().await.unwrap();
    let boom = async || assert!(matches!(lives.ask(Boom).await, Err(AskError::Died(_))));
    let begun = |life| {
        move |seen: &ClusterView| {
            let row = seen.actors().get(lives.id())?;
            let there = seen.actors().get(ends.id()).is_some();
            let running = row.ended.is_none() && row.view.phase == Phase::Running;
            (there && running && row.view.incarnation == life).then_some(())
        }
    };
    let failures = |seen: &ClusterView| {
        let own = seen.events().iter().filter(|it| {
            it.kind == EventKind::Failure && it.subject == Some(Subject::Actor(lives.id()))
        });
        own.map(|it| it.seq).collect::<Vec<_>>()
    };
    let started = |seen: &ClusterView| {
        let told = seen
            .events()
            .iter()
            .filter(|it| it.kind == EventKind::Started);
        told.map(|it| (it.seq, it.subject.clone()))
            .collect::<Vec<_>>()
    };
    let process = |seen: &ClusterView| {
        let row = seen.actors().get(lives.id()).unwrap();
        seen.process(row.view.process).unwrap().started
    };
    boom().await;
    let before = Observer::new("before", 1);
    seen_by(&before, &system, begun(2)).await;
    // Whoever keeps what an observer has seen does it after each look.
    assert!(before.pause() <= Duration::from_secs(1), "looks are rare");
    let (past, known) = before.read(|seen| {
        let lines = seen.lines_since(&mut Mark::default());
        let past = Past {
            events: lines.events,
            actors: lines.actors,
            heard: lines.heard,
        };
        (past, (failures(seen), started(seen)))
    });
    let (known, known_started) = known;
    assert_eq!(known.len(), 1);
    assert_eq!(known_started.len(), 2, "{known_started:?}");
    let process_before = before.read(process);
    let second = Duration::from_secs(1);
    let fits = process_before.since(begun_at) < second && begun_at.since(process_before) < second;
    assert!(fits, "it began when it did, whenever somebody looked");
    // While nobody looks.
    boom().await;
    ends.stop().await.unwrap();
    let after = Observer::new("after", 1);
    after.write(|seen| seen.recall(past, today()));
    after.read(|seen| {
        for id in [lives.id(), ends.id()] {
            assert_eq!(
                state_of(seen, id),
                Some(State::Stopped),
                "not seen again yet"
            );
        }
    });
    seen_by(&after, &system, begun(3)).await;
    after.read(|seen| {
        let now = failures(seen);
        assert_eq!((now.len(), now[0]), (2, known[0]), "{now:?}");
        assert_eq!(
            started(seen),
            known_started,
            "who is there still is no news"
        );
        let apart = process(seen).since(process_before) + process_before.since(process(seen));
        assert!(apart < Duration::from_millis(100), "{apart:?}");
        let row = seen.actors().get(lives.id()).unwrap();
        let causes = row.lives.iter().filter(|life| life.cause.is_some());
        assert_eq!(causes.count(), 2, "{:?}", row.lives);
        let row = seen.actors().get(ends.id()).unwrap();
        let ended = row.ended.as_ref().unwrap();
        assert!(
            ended.sentence.contains("looking on began again"),
            "{ended:?}"
        );
    });
    system.shutdown().await;
}

/// SEMANTICS 75.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_workers_print_goes_to_whoever_takes_it() {
    let (tell, mut told) = tokio::sync::mpsc::unbounded_channel();
    let worker = again::worker(module_path!()).arg("--nocapture");
    let worker = worker.output(move |process, output| {
        let tell = tell.clone();
        let (mut stdout, mut stderr) = (output.stdout, output.stderr);
        tokio::spawn(async move {
            let (mut said, mut text) = (String::new(), String::new());
            let (out, err) = tokio::join!(
                stdout.read_to_string(&mut said),
                stderr.read_to_string(&mut text)
            );
            out.and(err).unwrap();
            // Nobody may wait for it any more.
            let _ = tell.send((process, text));
        });
    });
    let system = System::builder()
        .job(job())
        .workers(WorkerMode::Processes(worker))
        .start()
        .await
        .unwrap();
    let temporary = odeon::Restart::Temporary;
    let actor = system.spawn::<Party>(()).restart(temporary).isolated();
    let actor = actor.await.unwrap();
    let process = system.admin().process_of(actor).unwrap();
    // It is killed behind its last line, which no end of a line follows.
    assert!(matches!(actor.ask(Last).await, Err(AskError::Died(_))));
    let (from, text) = Clock::timeout(PATIENCE, told.recv())
        .await
        .unwrap()
        .unwrap();
    assert_eq!(from, process);
    assert!(text.ends_with("my last words"), "{text}");
    system.shutdown().await;
}
