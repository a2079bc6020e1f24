//! Supervision trees, near and in worker processes: who restarts in which order, what climbs up,
//! what ends with what, and that no ask stays without an answer.

use std::time::Duration;

use odeon::{
    AskError, Clock, Context, Down, Failure, FailureKind, Incarnation, Limits, Orphans, Reason,
    Ref, Restart, SpawnError, Supervision, System, WorkerMode,
};
use odeon_tests::again;
use serde::{Deserialize, Serialize};

use crate::{eventually, found};

/// Writes down what happened, in order.
struct Recorder {
    lines: Vec<String>,
}

#[odeon::actor(name = "sup.Recorder")]
impl Recorder {
    fn start(_args: ()) -> Self {
        Self { lines: vec![] }
    }

    #[handler]
    fn write(&mut self, line: String) {
        self.lines.push(line);
    }

    #[handler]
    fn read(&mut self) -> Vec<String> {
        self.lines.clone()
    }
}

#[derive(Clone, Serialize, Deserialize)]
struct KidArgs {
    name: String,
    book: Ref<Recorder>,
    /// Panics in `stop`.
    clumsy: bool,
    /// Fails every start.
    stillborn: Option<Failure>,
}

/// A worker at the bottom of the tree.
struct Kid {
    name: String,
    book: Ref<Recorder>,
    clumsy: bool,
}

#[odeon::message]
struct Boom;

#[odeon::actor(name = "sup.Kid")]
impl Kid {
    async fn start(args: KidArgs) -> Result<Self, Failure> {
        let KidArgs {
            name,
            book,
            clumsy,
            stillborn,
        } = args;
        if let Some(failure) = stillborn {
            return Err(failure);
        }
        book.ask(Write {
            line: format!("start {name}"),
        })
        .await
        .map_err(Failure::error)?;
        Ok(Self { name, book, clumsy })
    }

    async fn stop(self) {
        let line = format!("stop {}", self.name);
        // The book may be out of reach already.
        let _ = self.book.ask(Write { line }).await;
        assert!(!self.clumsy, "clumsy");
    }

    #[handler(message = Boom)]
    fn boom(&mut self, _: Boom) {
        panic!("boom");
    }

    #[handler]
    fn quit(&mut self, cx: &mut Context<Self>) {
        cx.stop();
    }

    #[handler]
    fn life(&mut self, cx: &mut Context<Self>) -> Incarnation {
        cx.incarnation()
    }

    #[handler]
    async fn work(&mut self, n: u32) -> u32 {
        for _ in 0..50 {
            tokio::task::yield_now().await;
        }
        n
    }
}

#[derive(Clone, Serialize, Deserialize)]
struct SupArgs {
    kids: Vec<(KidArgs, Restart)>,
    /// The kids share a worker process.
    away: bool,
}

#[odeon::message(reply = Vec<Ref<Kid>>)]
struct Kids;

#[odeon::message]
struct BoomSup;

macro_rules! supervisor {
    ($name:ident, $stable:literal, $supervision:expr) => {
        struct $name {
            kids: Vec<Ref<Kid>>,
            book: Ref<Recorder>,
        }

        #[odeon::actor(name = $stable)]
        impl $name {
            fn supervision() -> Supervision {
                $supervision
            }

            async fn start(args: SupArgs, cx: &mut Context<Self>) -> Result<Self, Failure> {
                let mut kids = vec![];
                let book = args.kids[0].0.book;
                for (kid, restart) in args.kids {
                    let spawn = cx.spawn::<Kid>(kid).restart(restart);
                    let spawn = if args.away {
                        spawn.in_worker("kids")
                    } else {
                        spawn
                    };
                    kids.push(spawn.await.map_err(Failure::error)?);
                }
                Ok(Self { kids, book })
            }

            async fn stop(self) {
                // The book may be out of reach already.
                let _ = self
                    .book
                    .ask(Write {
                        line: "stop sup".to_owned(),
                    })
                    .await;
            }

            #[handler(message = Kids)]
            fn kids(&mut self, _: Kids) -> Vec<Ref<Kid>> {
                self.kids.clone()
            }

            #[handler(message = BoomSup)]
            fn boom(&mut self, _: BoomSup) {
                panic!("sup boom");
            }
        }
    };
}
const MINUTE: Duration = Duration::from_secs(60);
supervisor!(OneForOne, "sup.OneForOne", Supervision::one_for_one());
supervisor!(OneForAll, "sup.OneForAll", Supervision::one_for_all());
supervisor!(RestForOne, "sup.RestForOne", Supervision::rest_for_one());
supervisor!(
    Strict,
    "sup.Strict",
    Supervision::one_for_one().budget(2, MINUTE)
);
supervisor!(
    Slow,
    "sup.Slow",
    Supervision::one_for_one().backoff(Duration::from_millis(100), Duration::from_millis(200))
);

/// Watches actors and counts what it is told.
struct Watcher {
    downs: Vec<(u64, Incarnation, String)>,
}

#[odeon::actor(name = "sup.Watcher")]
impl Watcher {
    fn start(_args: ()) -> Self {
        Self { downs: vec![] }
    }

    #[handler]
    fn watch(&mut self, kid: Ref<Kid>, cx: &mut Context<Self>) {
        cx.watch(kid);
    }

    #[handler(message = Down)]
    fn down(&mut self, down: Down) {
        let kind = match down.reason {
            Reason::Failed(failure) => format!("{:?}", failure.kind),
            other => format!("{other:?}"),
        };
        self.downs.push((down.id.serial, down.incarnation, kind));
    }

    #[handler]
    fn downs(&mut self) -> Vec<(u64, Incarnation, String)> {
        self.downs.clone()
    }
}

const ORPHANS_GRACE: Duration = Duration::from_millis(300);

/// Lives in a worker and has kids in others: they become orphans when its process dies.
struct Doomed {
    kids: Vec<Ref<Kid>>,
}

#[odeon::actor(name = "sup.Doomed")]
impl Doomed {
    async fn start(kids: [KidArgs; 3], cx: &mut Context<Self>) -> Result<Self, Failure> {
        let fates = [
            Orphans::Stop,
            Orphans::StopAfter(ORPHANS_GRACE),
            Orphans::Keep,
        ];
        let mut doomed = Self { kids: vec![] };
        for (kid, fate) in kids.into_iter().zip(fates) {
            let kid = cx.spawn::<Kid>(kid).isolated().orphans(fate);
            let kid = kid.restart(Restart::Permanent);
            doomed.kids.push(kid.await.map_err(Failure::error)?);
        }
        Ok(doomed)
    }

    #[handler(message = Kids)]
    fn kids(&mut self, _: Kids) -> Vec<Ref<Kid>> {
        self.kids.clone()
    }

    #[handler]
    fn pid(&mut self) -> u32 {
        std::process::id()
    }
}

fn job() -> odeon::Job {
    odeon::job![
        Recorder, Kid, OneForOne, OneForAll, RestForOne, Strict, Slow, Watcher, Doomed
    ]
}

#[test]
fn worker_entry() {
    job().serve_if_worker();
}

async fn system_with(supervision: Supervision) -> System {
    let worker = again::worker(module_path!());
    let builder = System::builder().supervision(supervision);
    builder
        .workers(WorkerMode::Processes(worker))
        .limits(Limits::default())
        .start()
        .await
        .unwrap()
}

async fn system() -> System {
    system_with(Supervision::default()).await
}

fn kid(name: &str, book: Ref<Recorder>) -> KidArgs {
    KidArgs {
        name: name.to_owned(),
        book,
        clumsy: false,
        stillborn: None,
    }
}

fn family(book: Ref<Recorder>, away: bool) -> SupArgs {
    let kids = ["a", "b", "c"]
        .map(|name| (kid(name, book), Restart::Permanent))
        .to_vec();
    SupArgs { kids, away }
}

/// Waits until the book says this, and no longer than a deadlock would take to be sure of.
async fn expect(book: Ref<Recorder>, lines: &[&str]) {
    let begun = Clock::now();
    loop {
        let read = book.ask(Read).await.unwrap();
        if read == lines {
            return;
        }
        assert!(
            read.len() <= lines.len() && Clock::now().since(begun) < Duration::from_secs(20),
            "{read:?} not {lines:?}"
        );
        tokio::task::yield_now().await;
    }
}

macro_rules! restart_order {
    ($test:ident, $sup:ty, $after:expr) => {
        #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn $test() {
            for away in [false, true] {
                let system = system().await;
                let book = system.spawn::<Recorder>(()).await.unwrap();
                let sup = system.spawn::<$sup>(family(book, away)).await.unwrap();
                let mut story = vec!["start a", "start b", "start c"];
                expect(book, &story).await;
                let kids = sup.ask(Kids).await.unwrap();
                kids[1].ask(Boom).await.unwrap_err();
                story.extend($after);
                expect(book, &story).await;
                for (kid, name) in kids.iter().zip(["start a", "start b", "start c"]) {
                    let starts = story.iter().filter(|line| **line == name).count();
                    assert_eq!(kid.ask(Life).await, Ok(starts as Incarnation), "{name}");
                }
                // Children end with their parent: the youngest first, then the parent.
                sup.stop().await.unwrap();
                story.extend(["stop c", "stop b", "stop a", "stop sup"]);
                expect(book, &story).await;
                let error = kids[0].ask(Life).await.unwrap_err();
                assert!(matches!(error, AskError::Dead(_)), "{error}");
                system.shutdown().await;
            }
        }
    };
}
// SEMANTICS 18, 19.
restart_order!(one_for_one_restarts_one, OneForOne, ["start b"]);
// SEMANTICS 8, 18.
restart_order!(
    one_for_all_stops_the_youngest_first_and_starts_the_oldest_first,
    OneForAll,
    ["stop c", "stop a", "start a", "start b", "start c"]
);
// SEMANTICS 18.
restart_order!(
    rest_for_one_restarts_the_younger_too,
    RestForOne,
    ["stop c", "start b", "start c"]
);

/// SEMANTICS 18.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn permanent_transient_and_temporary_differ() {
    for away in [false, true] {
        let system = system().await;
        let book = system.spawn::<Recorder>(()).await.unwrap();
        let kids = [
            ("p", Restart::Permanent),
            ("t", Restart::Transient),
            ("x", Restart::Temporary),
        ];
        let kids = kids
            .map(|(name, restart)| (kid(name, book), restart))
            .to_vec();
        let sup = system
            .spawn::<OneForOne>(SupArgs { kids, away })
            .await
            .unwrap();
        let [p, t, x] = sup.ask(Kids).await.unwrap().try_into().unwrap();
        let mut story = vec!["start p", "start t", "start x"];

        t.ask(Boom).await.unwrap_err();
        story.push("start t");
        expect(book, &story).await;
        p.ask(Quit).await.unwrap();
        story.extend(["stop p", "start p"]);
        expect(book, &story).await;
        assert_eq!((p.ask(Life).await, t.ask(Life).await), (Ok(2), Ok(2)));

        t.ask(Quit).await.unwrap();
        assert_eq!(t.down().await.reason, Reason::Stopped);
        x.ask(Boom).await.unwrap_err();
        assert!(matches!(x.down().await.reason, Reason::Failed(_)));
        story.push("stop t");
        expect(book, &story).await;
        assert!(t.ask(Life).await.is_err() && x.ask(Life).await.is_err());
        assert_eq!(p.ask(Life).await, Ok(2), "others are not disturbed");
        system.shutdown().await;
    }
}

/// SEMANTICS 21.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failure_that_nobody_mends_climbs_to_the_top_with_its_causes() {
    for away in [false, true] {
        let system = system_with(Supervision::one_for_one().budget(0, MINUTE)).await;
        let book = system.spawn::<Recorder>(()).await.unwrap();
        let sup = system.spawn::<Strict>(family(book, away)).await.unwrap();
        let kids = sup.ask(Kids).await.unwrap();
        for life in 1..=3 {
            assert_eq!(kids[2].ask(Life).await, Ok(life));
            kids[2].ask(Boom).await.unwrap_err();
        }
        let failure = system.failed().await;
        let mut kinds = vec![failure.kind];
        let mut cause = &failure.cause;
        while let Some(failure) = cause {
            kinds.push(failure.kind);
            cause = &failure.cause;
        }
        use FailureKind::{Escalated, Panic};
        assert_eq!(kinds, [Escalated, Escalated, Panic], "{failure}");
        assert!(failure.root_cause().message.contains("boom"), "{failure}");
        // The whole tree is gone, also those who did not fail.
        let gone = async || system.admin().actors().await.is_empty();
        eventually("the end of the tree", gone).await;
        assert!(kids[0].ask(Life).await.is_err());
        system.shutdown().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_supervisor_that_fails_starts_again_with_its_family() {
    for away in [false, true] {
        let system = system().await;
        let book = system.spawn::<Recorder>(()).await.unwrap();
        let sup = system.spawn::<OneForAll>(family(book, away)).await.unwrap();
        let old = sup.ask(Kids).await.unwrap();
        // Both at once: whichever is judged first, the next family has the strategy of its parent.
        let (_, kid) = tokio::join!(sup.ask(BoomSup), old[0].ask(Boom));
        kid.unwrap_err();
        let kids = found("the next family", async || {
            // A life of the family may still end.
            let kids = sup.ask(Kids).await.ok().filter(|kids| *kids != old)?;
            kids[1].ask(Life).await.ok().map(|_| kids)
        })
        .await;
        let before = kids[0].ask(Life).await.unwrap();
        kids[1].ask(Boom).await.unwrap_err();
        let again = async || kids[0].ask(Life).await == Ok(before + 1);
        eventually("the next life", again).await;
        assert!(matches!(old[2].ask(Life).await, Err(AskError::Dead(_))));
        system.shutdown().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn restarts_back_off() {
    let system = system().await;
    let book = system.spawn::<Recorder>(()).await.unwrap();
    let sup = system.spawn::<Slow>(family(book, false)).await.unwrap();
    let kids = sup.ask(Kids).await.unwrap();
    // 100 ms, doubled, capped at 200; shortened at random by a fifth at most.
    for (life, least_ms) in [(2, 80), (3, 160), (4, 160)] {
        let failed = Clock::now();
        kids[0].ask(Boom).await.unwrap_err();
        assert_eq!(kids[0].ask(Life).await, Ok(life));
        let waited = Clock::now().since(failed);
        assert!(
            waited >= Duration::from_millis(least_ms),
            "life {life} after {waited:?}"
        );
    }
    system.shutdown().await;
}

/// SEMANTICS 17.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn watchers_hear_of_failures_and_of_what_siblings_bring() {
    for away in [false, true] {
        let system = system().await;
        let book = system.spawn::<Recorder>(()).await.unwrap();
        let watcher = system.spawn::<Watcher>(()).await.unwrap();
        let sup = system.spawn::<OneForAll>(family(book, away)).await.unwrap();
        let kids = sup.ask(Kids).await.unwrap();
        let (first, second) = (kids[0].id().serial, kids[1].id().serial);
        watcher.ask(Watch { kid: kids[0] }).await.unwrap();
        watcher.ask(Watch { kid: kids[1] }).await.unwrap();
        kids[1].ask(Boom).await.unwrap_err();
        let mut downs = told(watcher, 2).await;
        downs.sort();
        let expected = [
            (first, 1, "Sibling".to_owned()),
            (second, 1, "Panic".to_owned()),
        ]
        .to_vec();
        assert_eq!(downs, expected, "away: {away}");
        // The notice is for one life. The next one wants another watch.
        kids[0].ask(Life).await.unwrap();
        watcher.ask(Watch { kid: kids[0] }).await.unwrap();
        sup.stop().await.unwrap();
        assert_eq!(told(watcher, 3).await[2], (first, 2, "Sibling".to_owned()));
        // Of the dead it hears at once.
        watcher.ask(Watch { kid: kids[1] }).await.unwrap();
        assert_eq!(told(watcher, 4).await[3].0, second);
        system.shutdown().await;
    }
}

/// SEMANTICS 17.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_watcher_in_another_process_hears_of_the_dead() {
    let system = system().await;
    let book = system.spawn::<Recorder>(()).await.unwrap();
    let watcher = system.spawn::<Watcher>(()).isolated().await.unwrap();
    let spawn = system
        .spawn::<Kid>(kid("k", book))
        .isolated()
        .restart(Restart::Temporary);
    let actor = spawn.await.unwrap();
    actor.ask(Boom).await.unwrap_err();
    actor.down().await;
    watcher.ask(Watch { kid: actor }).await.unwrap();
    assert_eq!(
        told(watcher, 1).await,
        [(actor.id().serial, 1, "Panic".to_owned())]
    );
    system.shutdown().await;
}

/// Waits until a watcher has been told this many times.
async fn told(watcher: Ref<Watcher>, count: usize) -> Vec<(u64, Incarnation, String)> {
    found("news of ends", async || {
        let downs = watcher.ask(Downs).await.unwrap();
        assert!(downs.len() <= count, "{downs:?}");
        (downs.len() == count).then_some(downs)
    })
    .await
}

/// SEMANTICS 18.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_start_that_always_fails_uses_up_the_budget() {
    for away in [false, true] {
        let system = system_with(
            Supervision::one_for_one()
                .budget(2, MINUTE)
                .backoff(Duration::from_millis(1), Duration::from_millis(2)),
        )
        .await;
        let book = system.spawn::<Recorder>(()).await.unwrap();
        let args = KidArgs {
            stillborn: Some(Failure::error("stillborn")),
            ..kid("s", book)
        };
        let spawn = system.spawn::<Kid>(args);
        let error = if away { spawn.isolated() } else { spawn }
            .await
            .unwrap_err();
        let SpawnError::Failed(failure) = error else {
            panic!("{error}")
        };
        assert!(failure.to_string().contains("stillborn"), "{failure}");
        let failure = system.failed().await;
        assert_eq!(failure.root_cause().message, "stillborn", "{failure}");
        system.shutdown().await;
    }
}

/// SEMANTICS 18.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_start_that_fails_for_good_is_not_tried_again() {
    for away in [false, true] {
        let system = system_with(Supervision::one_for_one().budget(1_000, MINUTE)).await;
        let book = system.spawn::<Recorder>(()).await.unwrap();
        let args = KidArgs {
            stillborn: Some(Failure::error("stillborn").fatal()),
            ..kid("s", book)
        };
        let spawn = system.spawn::<Kid>(args);
        let spawn = if away { spawn.isolated() } else { spawn };
        let error = spawn.await.unwrap_err();
        assert!(matches!(error, SpawnError::Failed(_)), "{error}");
        let failure = system.failed().await;
        assert!(
            failure.message.ends_with(": no restart would help"),
            "{failure}"
        );
        assert_eq!(failure.root_cause().message, "stillborn", "{failure}");
        system.shutdown().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_panic_in_stop_stops_nobody() {
    for away in [false, true] {
        let system = system().await;
        let book = system.spawn::<Recorder>(()).await.unwrap();
        let mut args = family(book, away);
        args.kids[0].0.clumsy = true;
        let sup = system.spawn::<OneForAll>(args).await.unwrap();
        let kids = sup.ask(Kids).await.unwrap();
        kids[1].ask(Boom).await.unwrap_err();
        let mut story = vec!["start a", "start b", "start c", "stop c", "stop a"];
        story.extend(["start a", "start b", "start c"]);
        expect(book, &story).await;
        kids[0].ask(Quit).await.unwrap();
        let third = async || kids[0].ask(Life).await == Ok(3);
        eventually("a third life", third).await;
        sup.stop().await.unwrap();
        system.shutdown().await;
    }
}

/// SEMANTICS 19.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn orphans_do_as_they_were_told() {
    let system = system().await;
    let book = system.spawn::<Recorder>(()).await.unwrap();
    let kids = ["stops", "lingers", "keeps"].map(|name| kid(name, book));
    let doomed = system
        .spawn::<Doomed>(kids)
        .isolated()
        .restart(Restart::Temporary)
        .await
        .unwrap();
    let mut events = vec!["start stops", "start lingers", "start keeps"];
    expect(book, &events).await;
    let keeps = doomed.ask(Kids).await.unwrap()[2];
    let pid = doomed.ask(Pid).await.unwrap();
    let process = system
        .admin()
        .workers()
        .iter()
        .find(|worker| worker.1 == pid)
        .unwrap()
        .0;
    let killed = Clock::now();
    assert!(system.admin().kill_worker(process));
    let Reason::Failed(failure) = doomed.down().await.reason else {
        panic!("it was killed")
    };
    assert_eq!(failure.kind, FailureKind::ProcessLost);
    events.extend(["stop stops", "stop lingers"]);
    expect(book, &events).await;
    assert!(Clock::now().since(killed) >= ORPHANS_GRACE);
    let orphans = async || {
        let views = system.admin().actors().await;
        views
            .into_iter()
            .filter(|view| view.actor == "sup.Kid")
            .count()
    };
    // Those that stopped leave; the other runs on.
    let alone = async {
        while orphans().await != 1 {
            tokio::task::yield_now().await;
        }
    };
    Clock::timeout(MINUTE, alone).await.expect("they leave");
    // It is reached from elsewhere no more, and nobody starts it again.
    let asked = system.scope(async { keeps.ask(Life).await }).await;
    assert!(asked.is_err(), "{asked:?}");
    let views = system.admin().actors().await;
    let host = views.iter().find(|view| view.id == keeps.id());
    assert!(
        system
            .admin()
            .kill_worker(host.expect("it runs on").process)
    );
    eventually("its end", async || orphans().await == 0).await;
    expect(book, &events).await;
    system.shutdown().await;
}

/// SEMANTICS 7.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_ask_is_answered_while_its_process_is_killed_again_and_again() {
    let system = system_with(Supervision::one_for_one().budget(100, MINUTE)).await;
    let book = system.spawn::<Recorder>(()).await.unwrap();
    let spawn = system
        .spawn::<Kid>(kid("k", book))
        .isolated()
        .restart(Restart::Permanent);
    let actor = spawn.await.unwrap();
    let mut outcomes = (0, 0);
    for round in 0..5 {
        let asks: Vec<_> = (0..400)
            .map(|n| (n, tokio::spawn(actor.ask(Work { n }))))
            .collect();
        // Some are handled, some in the mailbox, some on the link, some not sent yet.
        actor.ask(Work { n: 0 }).await.unwrap();
        let process = system.admin().process_of(actor).unwrap();
        let down = actor.down();
        assert!(system.admin().kill_worker(process));
        for (n, ask) in asks {
            match ask.await.unwrap() {
                Ok(answer) => {
                    assert_eq!(answer, n);
                    outcomes.0 += 1;
                }
                Err(AskError::Died(Down {
                    reason: Reason::Failed(failure),
                    ..
                })) => {
                    assert_eq!(failure.kind, FailureKind::ProcessLost, "{failure}");
                    outcomes.1 += 1;
                }
                Err(error) => panic!("round {round}: {error}"),
            }
        }
        // All may have been handled before the process died.
        down.await;
        // It comes back, in another process, and takes mail again.
        assert_eq!(actor.ask(Work { n: 7 }).await, Ok(7));
        assert_ne!(system.admin().process_of(actor), Some(process));
        assert_eq!(actor.ask(Life).await, Ok(round + 2));
    }
    assert_eq!(outcomes.0 + outcomes.1, 2000);
    system.shutdown().await;
}
