//! Programs that newcomers write, each as a story that says what is right: it is told by the program
//! `mishap`, alone or as a job, and in simulations.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use futures::future::join_all;
use odeon::prelude::*;
use odeon::{ActorTask, FailureKind, Incarnation, NameError};
use tokio::sync::{Semaphore, watch};

/// The longest time that the machine may take for what comes about by itself.
const PATIENCE: Duration = Duration::from_secs(60);
/// Between two beats of a ticker.
const BEAT: Duration = Duration::from_millis(2);
/// Over the limit for a message to another process.
const LARGE: usize = 5 << 20;

/// Does what newcomers let their actors do.
pub struct Pupil {
    other: Option<Ref<Self>>,
}

#[odeon::actor(name = "cases.Pupil")]
impl Pupil {
    fn start(unfit: bool) -> Self {
        assert!(!unfit, "it overslept");
        Self { other: None }
    }

    #[handler]
    pub fn look(&mut self, cx: &mut Context<Self>) -> Incarnation {
        cx.incarnation()
    }

    #[handler]
    pub fn trip(&mut self) {
        panic!("it fell");
    }

    #[handler]
    pub fn meet(&mut self, other: Ref<Self>) {
        self.other = Some(other);
    }

    #[handler]
    pub async fn ping(&mut self, hops: u32) -> Result<u32, AskError> {
        match self.other {
            Some(other) if hops > 0 => {
                // Who asks first waits for the shortest time.
                let patience = Duration::from_secs(u64::from(4 - hops.min(3)));
                other.ask(Ping { hops: hops - 1 }).timeout(patience).await?
            }
            _ => Ok(hops),
        }
    }

    #[handler]
    pub fn weigh(&mut self, bytes: Vec<u8>) -> u64 {
        bytes.len() as u64
    }

    /// Stays until the gate is open.
    #[handler]
    pub async fn hold(&mut self, gate: Ref<Gate>) -> Result<(), AskError> {
        gate.ask(Pass).timeout(PATIENCE).await
    }

    #[handler]
    pub fn parse(&mut self, text: String) -> anyhow::Result<u32> {
        text.parse().with_context(|| format!("no page `{text}`"))
    }

    /// Asks another in a task: one of the actor, or one of tokio.
    #[handler]
    pub fn reach(
        &mut self,
        other: Ref<Self>,
        stray: bool,
        cx: &mut Context<Self>,
    ) -> Later<Result<Incarnation, AskError>> {
        let (tell, told) = tokio::sync::oneshot::channel();
        let reaching = async move {
            let answer = other.ask(Look).await;
            // The test may have given up.
            let _ = tell.send(answer);
        };
        if stray {
            drop(tokio::spawn(reaching));
        } else {
            cx.spawn_task(reaching);
        }
        Later::new(async { told.await.expect("the task comes to its end") })
    }
}

/// Lets nobody pass until it is opened.
pub struct Gate {
    came: Arc<Semaphore>,
    open: Arc<Semaphore>,
}

#[odeon::actor(name = "cases.Gate")]
impl Gate {
    fn start(_: ()) -> Self {
        let shut = || Arc::new(Semaphore::new(0));
        Self {
            came: shut(),
            open: shut(),
        }
    }

    #[handler]
    pub fn pass(&mut self) -> Later<()> {
        self.came.add_permits(1);
        let open = Arc::clone(&self.open);
        Later::new(async move { drop(open.acquire().await) })
    }

    /// Waits until somebody has come to it.
    #[handler]
    pub fn arrival(&mut self) -> Later<()> {
        let came = Arc::clone(&self.came);
        Later::new(async move { came.acquire().await.expect("it stays").forget() })
    }

    #[handler]
    pub fn open(&mut self) {
        self.open.close();
    }
}

/// Counts the beats of its timer, and those of a former life's.
pub struct Ticker {
    beats: watch::Sender<(u64, u64)>,
    _timer: ActorTask,
}

#[odeon::actor(name = "cases.Ticker")]
impl Ticker {
    fn start(_: (), cx: &mut Context<Self>) -> Self {
        let of = cx.incarnation();
        Self {
            beats: watch::Sender::default(),
            _timer: cx.every(BEAT, Beat { of }),
        }
    }

    #[handler]
    pub fn beat(&mut self, of: Incarnation, cx: &mut Context<Self>) {
        let own = of == cx.incarnation();
        self.beats.send_modify(|beats| match own {
            true => beats.0 += 1,
            false => beats.1 += 1,
        });
    }

    /// Waits for so many beats: those by then, and those of former lives.
    #[handler]
    pub fn beats(&mut self, least: u64) -> Later<(u64, u64)> {
        let mut beats = self.beats.subscribe();
        Later::new(async move {
            let enough = beats.wait_for(|beats| beats.0 >= least).await;
            *enough.expect("it lives")
        })
    }

    #[handler]
    pub fn end(&mut self) {
        panic!("over");
    }
}

/// An actor that is in no job.
pub struct Unlisted;

#[odeon::actor(name = "cases.Unlisted")]
impl Unlisted {
    fn start(_: ()) -> Self {
        Self
    }

    #[handler]
    pub fn hi(&mut self) {}
}

/// Tells a story, which is over when it is right. The first system is that of the program, the others
/// those of other nodes in the same process. The program waits for so many nodes.
pub async fn play(systems: &[System], story: &str, nodes: usize) -> bool {
    let system = &systems[0];
    match story {
        "quickstart" => quickstart(system).await,
        "killed_on_each_node" => killed_on_each_node(systems, nodes).await,
        "unlisted" => unlisted(system).await,
        "ticking" => ticking(system).await,
        "large" => large(system).await,
        "flood" => flood(system).await,
        "mutual" => mutual(system, nodes).await,
        "names" => names(system).await,
        "causes" => causes(system).await,
        "task" => task(system, nodes).await,
        _ => return false,
    }
    true
}

/// Waits for so many nodes: their names.
async fn known(system: &System, nodes: usize) -> Vec<String> {
    let knowing = async {
        loop {
            let known = system.nodes().await;
            if known.len() >= nodes {
                return known.iter().map(|it| it.node.name.to_string()).collect();
            }
            tokio::task::yield_now().await;
        }
    };
    let known = Clock::timeout(PATIENCE, knowing).await;
    known.expect("the nodes hear of each other")
}

async fn pupil(system: &System) -> Ref<Pupil> {
    system.spawn::<Pupil>(false).await.unwrap()
}

async fn isolated(system: &System) -> Ref<Pupil> {
    let pupil = system.spawn::<Pupil>(false).isolated();
    pupil.restart(Restart::Permanent).await.unwrap()
}

/// The README's program, with another actor.
async fn quickstart(system: &System) {
    let pupil = isolated(system).await;
    assert_eq!(pupil.ask(Look).await, Ok(1));
    let process = system.admin().process_of(pupil).expect("it runs");
    let workers = system.admin().workers();
    let listed = workers.iter().map(|it| it.0).collect::<Vec<_>>();
    assert_eq!(listed, [process], "the worker is listed");
    assert!(system.admin().kill_worker(process));
    let Reason::Failed(failure) = pupil.down().await.reason else {
        panic!("it was killed");
    };
    assert_eq!(failure.kind, FailureKind::ProcessLost, "{failure}");
    assert_eq!(pupil.ask(Look).await, Ok(2));
}

/// Asks while a worker is killed, on each node.
async fn killed_on_each_node(systems: &[System], nodes: usize) {
    let system = &systems[0];
    for node in known(system, nodes).await {
        let pupil = system.spawn::<Pupil>(false).on_node(node);
        let pupil = pupil.restart(Restart::Permanent).await.unwrap();
        for life in 1..=2 {
            assert_eq!(pupil.ask(Look).await, Ok(life));
            let process = system.admin().process_of(pupil).expect("it runs");
            let asks = join_all((0..8).map(|_| pupil.ask(Look).into_future()));
            let killing = async {
                let kill = |it: &System| it.admin().kill_worker(process);
                assert!(systems.iter().any(kill), "it is killed");
            };
            let (ends, ()) = futures::join!(asks, killing);
            ends.into_iter().for_each(expect_answer_or_death);
            loop {
                let end = pupil.ask(Look).await;
                let is_next = end == Ok(life + 1);
                expect_answer_or_death(end);
                if is_next {
                    break;
                }
            }
        }
    }
}

fn expect_answer_or_death(end: Result<Incarnation, AskError>) {
    match end {
        Ok(_) => {}
        Err(error @ AskError::Died(_)) => assert_eq!(error.effect(), Effect::Unknown),
        Err(error) => panic!("an ask ended otherwise: {error:?}"),
    }
}

/// An isolated actor that is not in `job!` is named, with what to do.
async fn unlisted(system: &System) {
    let near = system.spawn::<Unlisted>(()).await.unwrap();
    assert_eq!(near.ask(Hi).await, Ok(()), "it needs no list here");
    let error = system.spawn::<Unlisted>(()).isolated().await.unwrap_err();
    let said = error.to_string();
    assert!(
        said.contains("cases.Unlisted") && said.contains("odeon::job!"),
        "{said}"
    );
    assert_eq!(near.ask(Hi).await, Ok(()), "a sibling lives on");
}

/// Ticks do not become more with restarts.
async fn ticking(system: &System) {
    let ticker = system.spawn::<Ticker>(()).restart(Restart::Permanent);
    let ticker = ticker.await.unwrap();
    for _ in 0..4 {
        let begun = Clock::now();
        let error = ticker.ask(End).await.unwrap_err();
        assert!(matches!(error, AskError::Died(_)), "{error}");
        let (own, others) = ticker.ask(Beats { least: 20 }).await.unwrap();
        let most = Clock::now().since(begun).as_nanos() / BEAT.as_nanos();
        assert_eq!(others, 0, "beats of a former life");
        assert!(u128::from(own) <= most, "{own} beats where {most} fit");
    }
}

/// A large message is refused on its way to another process, and taken by an actor in this one.
async fn large(system: &System) {
    let weigh = || Weigh {
        bytes: vec![0; LARGE],
    };
    let near = pupil(system).await;
    assert_eq!(near.ask(weigh()).await, Ok(LARGE as u64));
    near.tell(weigh()).await.unwrap();
    let far = isolated(system).await;
    let expect = |error: &AskError| {
        let AskError::TooLarge { bytes, limit } = *error else {
            panic!("{error:?}");
        };
        assert!(bytes >= LARGE && limit == Limits::default().message_bytes_max);
        let said = error.to_string();
        let parts = [&limit.to_string(), "another process", "into a Blob"];
        assert!(parts.iter().all(|part| said.contains(part)), "{said}");
        assert_eq!(error.effect(), Effect::No);
    };
    expect(&far.ask(weigh()).await.unwrap_err());
    let untold = far.tell(weigh()).await.unwrap_err();
    expect(&untold.error);
    let back = untold.message.expect("the message comes back");
    assert_eq!(back.bytes.len(), LARGE);
    assert_eq!(far.ask(Look).await, Ok(1), "it was not harmed");
}

/// Tells beyond the mailbox say that nobody waited, or how long.
async fn flood(system: &System) {
    let gate = system.spawn::<Gate>(()).await.unwrap();
    for pupil in [pupil(system).await, isolated(system).await] {
        pupil.tell(Hold { gate }).await.unwrap();
        gate.ask(Arrival).await.unwrap();
        let full = loop {
            match pupil.tell(Look).now() {
                Ok(()) => {}
                Err(full) => break full.error,
            }
        };
        assert!(matches!(full, AskError::Full { .. }), "{full:?}");
        let said = full.to_string();
        assert!(said.contains("is full, and nobody waited"), "{said}");
        assert!(!said.contains("0ns"), "{said}");
    }
    let pupil = pupil(system).await;
    pupil.tell(Hold { gate }).await.unwrap();
    gate.ask(Arrival).await.unwrap();
    while pupil.tell(Look).now().is_ok() {}
    let patience = Duration::from_millis(20);
    let said = pupil.tell(Look).timeout(patience).await.unwrap_err();
    let said = said.to_string();
    assert!(said.contains("stayed full for 20ms"), "{said}");
    gate.ask(Open).await.unwrap();
    assert_eq!(pupil.ask(Look).await, Ok(1), "there is room again");
}

/// Two ask each other, wherever they are, and the time-out names the circle.
async fn mutual(system: &System, nodes: usize) {
    let last = known(system, nodes).await.pop().expect("there is one");
    let on_last = || system.spawn::<Pupil>(false).on_node(last.clone());
    let pairs = [
        (pupil(system).await, pupil(system).await),
        (pupil(system).await, isolated(system).await),
        (isolated(system).await, pupil(system).await),
        (isolated(system).await, isolated(system).await),
        (isolated(system).await, on_last().await.unwrap()),
        (on_last().await.unwrap(), pupil(system).await),
    ];
    join_all(pairs.map(|(a, b)| in_circle(a, b))).await;
}

async fn in_circle(a: Ref<Pupil>, b: Ref<Pupil>) {
    a.ask(Meet { other: b }).await.unwrap();
    b.ask(Meet { other: a }).await.unwrap();
    let error = a.ask(Ping { hops: 3 }).await.unwrap().unwrap_err();
    let said = error.to_string();
    let name = |pupil: Ref<Pupil>| format!("cases.Pupil {}", pupil.id());
    let (a, b) = (name(a), name(b));
    let way = format!("{b} waits for {a} (Ping), which waits for {b} (Ping)");
    let circle = format!("since actors wait for each other: {way}");
    assert!(said.contains(&circle), "{a} and {b}: {said}");
}

/// Names that are taken, of another type, or nobody's.
async fn names(system: &System) {
    let (first, second) = (isolated(system).await, pupil(system).await);
    system.register("desk", first).await.unwrap();
    let taken = system.register("desk", second).await.unwrap_err();
    let owner = first.id();
    let name = "desk".to_owned();
    assert_eq!(taken, NameError::Taken { name, owner });
    let wrong = system.lookup::<Ticker>("desk").await.unwrap_err();
    let said = wrong.to_string();
    let parts = ["desk", "cases.Pupil", "cases.Ticker"];
    assert!(parts.iter().all(|part| said.contains(part)), "{said}");
    let nobody = NameError::NotFound("board".to_owned());
    assert_eq!(system.lookup::<Pupil>("board").await, Err(nobody));
    first.ask(Trip).await.unwrap_err();
    assert_eq!(first.ask(Look).await, Ok(2));
    assert_eq!(system.lookup::<Pupil>("desk").await, Ok(first));
    first.stop().await.unwrap();
    let gone = NameError::NotFound("desk".to_owned());
    assert_eq!(system.lookup::<Pupil>("desk").await, Err(gone.clone()));
    // Who has no name gives up none.
    assert_eq!(system.unregister("desk", second).await, Err(gone));
    system.register("desk", second).await.unwrap();
    let other = isolated(system).await;
    let not_its = NameError::NotFound("desk".to_owned());
    assert_eq!(system.unregister("desk", other).await, Err(not_its));
    assert_eq!(system.unregister("desk", second).await, Ok(()));
    system.register("desk", other).await.unwrap();
}

/// The text and the causes of an `anyhow::Error` reach the caller.
async fn causes(system: &System) {
    for pupil in [pupil(system).await, isolated(system).await] {
        let parse = |text: &str| Parse {
            text: text.to_owned(),
        };
        assert_eq!(pupil.ask(parse("7")).await.unwrap(), Ok(7));
        let failure = pupil.ask(parse("x")).await.unwrap().unwrap_err();
        assert_eq!(failure.message, "no page `x`");
        assert_eq!(
            failure.root_cause().message,
            "invalid digit found in string"
        );
        assert_eq!(pupil.ask(Look).await, Ok(1), "it did not fail");
    }
}

/// A task in an actor asks actors of all nodes.
async fn task(system: &System, nodes: usize) {
    let near = pupil(system).await;
    for node in known(system, nodes).await {
        let other = system.spawn::<Pupil>(false).on_node(node).await.unwrap();
        for stray in [false, true] {
            let reached = near.ask(Reach { other, stray }).await;
            assert_eq!(reached.unwrap(), Ok(1), "stray: {stray}");
        }
    }
}
