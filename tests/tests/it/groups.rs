//! Groups: ranks, dispatch, collection, quorum, reductions, and what happens when ranks are
//! missing. Where it matters, the same text runs near and in worker processes.

use std::sync::LazyLock;
use std::time::Duration;

use odeon::group::{Collect, Concat, Dispatch, GroupError, Max, Mean, Min, Misfit, Sum};
use odeon::{
    AskError, Context, Failure, Group, Rank, Restart, SpawnError, System, WorkerMode, at, mesh,
};
use odeon_tests::again;
use tokio::sync::{Barrier, Notify};

#[derive(Clone)]
#[odeon::message]
struct Note(u32);

#[derive(Clone)]
#[odeon::message(reply = Vec<u32>)]
struct Notes;

#[derive(Clone)]
#[odeon::message(reply = String)]
struct Where;

#[derive(Clone)]
#[odeon::message(reply = u32)]
struct Pid;

#[derive(Clone)]
#[odeon::message(reply = f64)]
struct Value;

#[derive(Clone)]
#[odeon::message(reply = u32)]
struct Double(u32);

#[derive(Clone)]
#[odeon::message]
struct Boom;

/// Waits until four members are at it.
#[derive(Clone)]
#[odeon::message(reply = bool)]
struct Meet;

/// The last rank answers when the test lets it.
#[derive(Clone)]
#[odeon::message(reply = usize)]
struct Hesitate;

static MEETING: LazyLock<Barrier> = LazyLock::new(|| Barrier::new(4));
static HESITATION: Notify = Notify::const_new();

/// The rank whose member does not start, or none.
type Unlucky = Option<usize>;

struct Member {
    rank: Rank,
    notes: Vec<u32>,
}

#[odeon::actor(name = "test.Member")]
impl Member {
    fn start(args: (Rank, Unlucky)) -> Result<Self, Failure> {
        let (rank, unlucky) = args;
        if unlucky == Some(rank.index()) {
            return Err(Failure::error("this rank brings bad luck"));
        }
        Ok(Self {
            rank,
            notes: vec![],
        })
    }

    #[handler(message = Note)]
    fn note(&mut self, note: Note) {
        self.notes.push(note.0);
    }

    #[handler(message = Notes)]
    fn notes(&mut self, _: Notes) -> Vec<u32> {
        self.notes.clone()
    }

    #[handler(message = Where)]
    fn whereabouts(&mut self, _: Where) -> String {
        self.rank.to_string()
    }

    #[handler(message = Pid)]
    fn pid(&mut self, _: Pid) -> u32 {
        std::process::id()
    }

    #[handler(message = Value)]
    fn value(&mut self, _: Value) -> f64 {
        self.rank.index() as f64
    }

    #[handler(message = Double)]
    fn double(&mut self, n: Double) -> u32 {
        2 * n.0
    }

    #[handler(message = Boom)]
    fn boom(&mut self, _: Boom) {
        panic!("boom at {}", self.rank);
    }

    #[handler(message = Meet)]
    async fn meet(&mut self, _: Meet) -> bool {
        MEETING.wait().await;
        true
    }

    #[handler(message = Hesitate)]
    async fn hesitate(&mut self, _: Hesitate) -> usize {
        if self.rank.index() + 1 == self.rank.mesh().len() {
            HESITATION.notified().await;
        }
        self.rank.index()
    }
}

/// Owns a group of children, and uses groups that it is given.
struct Head {
    mine: Group<Member>,
}

#[odeon::actor(name = "test.Head")]
impl Head {
    async fn start(_args: (), cx: &mut Context<Self>) -> Result<Self, Failure> {
        let mesh = mesh! { dp: 2 };
        let mine = cx
            .spawn_group(mesh, |rank| (rank, None))
            .await
            .map_err(Failure::error)?;
        Ok(Self { mine })
    }

    #[handler]
    async fn visit(&mut self, group: Group<Member>) -> Vec<u32> {
        group.cast(Note(7)).await.unwrap();
        group.reduce(Notes, Concat).await.unwrap()
    }

    #[handler]
    async fn hand_out(&mut self) -> Group<Member> {
        self.mine.clone()
    }
}

#[test]
fn worker_entry() {
    odeon::job![Member, Head].serve_if_worker();
}

async fn system() -> System {
    let worker = again::worker(module_path!());
    System::builder()
        .workers(WorkerMode::Processes(worker))
        .start()
        .await
        .unwrap()
}

#[derive(Clone, Copy, Debug)]
enum Home {
    Here,
    Shared,
    Isolated,
}
const HOMES: [Home; 3] = [Home::Here, Home::Shared, Home::Isolated];

async fn group(system: &System, home: Home) -> Group<Member> {
    let spawn = system.spawn_group::<Member>(mesh! { dp: 2, tp: 2 }, |rank| (rank, None));
    let spawn = spawn.restart(Restart::Permanent);
    match home {
        Home::Here => spawn,
        Home::Shared => spawn.in_worker("all"),
        Home::Isolated => spawn.isolated(),
    }
    .await
    .unwrap()
}

/// SEMANTICS 22.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn answers_come_in_rank_order() {
    for home in HOMES {
        let system = system().await;
        let group = group(&system, home).await;
        let ranks: Vec<_> = group.mesh().ranks().map(|rank| rank.to_string()).collect();
        assert_eq!(group.gather(Where).await.unwrap(), ranks);
        let mut pids = group.gather(Pid).await.unwrap();
        pids.sort_unstable();
        pids.dedup();
        assert_eq!(
            pids.len(),
            if matches!(home, Home::Isolated) { 4 } else { 1 }
        );
        assert_eq!(
            pids.contains(&std::process::id()),
            matches!(home, Home::Here)
        );
        system.shutdown().await;
    }
}

/// SEMANTICS 22.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn casts_keep_their_order_at_every_member() {
    for home in HOMES {
        let system = system().await;
        let group = group(&system, home).await;
        // More than a mailbox holds, so that some casts wait for room.
        for n in 0..1500 {
            group.cast(Note(n)).await.unwrap();
        }
        for notes in group.gather(Notes).await.unwrap() {
            assert_eq!(notes, (0..1500).collect::<Vec<_>>(), "{home:?}");
        }
        system.shutdown().await;
    }
}

/// SEMANTICS 22.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_are_asked_before_one_is_awaited() {
    let system = system().await;
    let group = group(&system, Home::Here).await;
    // Would wait for ever if the second was asked after the first had answered.
    assert_eq!(group.gather(Meet).await.unwrap(), [true; 4]);
    system.shutdown().await;
}

/// SEMANTICS 22.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn answers_become_one() {
    for home in HOMES {
        let system = system().await;
        let group = group(&system, home).await;
        assert_eq!(group.reduce(Value, Sum).await.unwrap(), 6.0);
        assert_eq!(group.reduce(Value, Mean).await.unwrap(), 1.5);
        assert_eq!(group.reduce(Value, Max).await.unwrap(), 3.0);
        assert_eq!(group.reduce(Value, Min).await.unwrap(), 0.0);
        // Not commutative: shows the order of the tree.
        let text = group
            .reduce(Where, |a, b| format!("({a}, {b})"))
            .await
            .unwrap();
        assert_eq!(
            text,
            "((rank 0 (dp=0, tp=0), rank 1 (dp=0, tp=1)), (rank 2 (dp=1, tp=0), rank 3 (dp=1, tp=1)))"
        );
        let doubled = group
            .scatter([1, 2, 3, 4].map(Double).to_vec())
            .reduce(Sum)
            .await
            .unwrap();
        assert_eq!(doubled, 20);
        system.shutdown().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn messages_are_scattered_and_answers_collected_as_data_says() {
    let system = system().await;
    let group = group(&system, Home::Shared).await;
    let messages = |count: u32| (1..=count).map(Double).collect::<Vec<_>>();
    assert_eq!(group.scatter(messages(4)).await.unwrap(), [2, 4, 6, 8]);
    assert_eq!(
        group.scatter(messages(2)).along("dp").await.unwrap(),
        [2, 2, 4, 4]
    );
    assert_eq!(
        group.scatter(messages(2)).along("tp").await.unwrap(),
        [2, 4, 2, 4]
    );
    let one_each = Collect::FirstOf("dp".to_owned());
    let split = group.scatter(messages(2)).along("dp").collect(one_each);
    assert_eq!(split.await.unwrap(), [2, 4]);
    let last = group.gather(Where).collect(Collect::At(at!(tp = -1)));
    assert_eq!(
        last.await.unwrap(),
        ["rank 1 (dp=0, tp=1)", "rank 3 (dp=1, tp=1)"]
    );
    let one = group.gather(Double(21)).dispatch(Dispatch::One(2));
    assert_eq!(one.await.unwrap(), [42]);

    let error = group.scatter(messages(3)).along("dp").await.unwrap_err();
    assert_eq!(
        error,
        GroupError::Misfit(Misfit::Messages {
            messages: 3,
            needed: 2
        })
    );
    let error = group.scatter(messages(3)).along("pp").await.unwrap_err();
    assert_eq!(
        error.to_string(),
        "the call does not fit the group: no dimension `pp`; the mesh is {dp: 2, tp: 2}"
    );
    let other = group
        .gather(Value)
        .dispatch(Dispatch::One(0))
        .collect(Collect::One(1));
    assert_eq!(
        other.await.unwrap_err(),
        GroupError::Misfit(Misfit::NothingCollected)
    );
    system.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slice_is_a_group_of_the_same_members() {
    let system = system().await;
    let group = group(&system, Home::Shared).await;
    let row = group.slice(at!(dp = 1));
    assert_eq!(row.members(), &group.members()[2..]);
    row.cast(Note(1)).await.unwrap();
    group.slice(at!(tp = 0)).cast(Note(2)).await.unwrap();
    assert_eq!(
        group.gather(Notes).await.unwrap(),
        [vec![2], vec![], vec![1, 2], vec![1]]
    );
    let corner = group.slice(at!(dp = 1, tp = -1));
    assert_eq!(corner.gather(Where).await.unwrap(), ["rank 3 (dp=1, tp=1)"]);
    assert_eq!(group.along("dp").unwrap()[1], row);
    assert!(group.try_slice(&at!(dp = 2)).is_err());
    system.shutdown().await;
}

/// SEMANTICS 23.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_missing_rank_is_named() {
    for home in HOMES {
        let system = system().await;
        let group = group(&system, home).await;
        group.members()[1].stop().await.unwrap();
        group.members()[3].stop().await.unwrap();
        let error = group.gather(Value).await.unwrap_err();
        let named: Vec<_> = error
            .failed()
            .iter()
            .map(|(rank, _)| rank.index())
            .collect();
        assert_eq!(named, [1, 3], "{error}");
        assert!(
            error
                .failed()
                .iter()
                .all(|(_, why)| matches!(why, AskError::Dead(_))),
            "{error}"
        );
        assert!(error.to_string().contains("rank 3 (dp=1, tp=1)"), "{error}");
        // In a slice, the coordinates still say who it was.
        let error = group.slice(at!(dp = 1)).gather(Value).await.unwrap_err();
        assert_eq!(error.failed()[0].0.to_string(), "rank 1 (dp=1, tp=1)");

        let error = group.slice(at!(tp = 0)).gather(Boom).await.unwrap_err();
        assert_eq!(error.failed().len(), 2, "{error}");
        assert!(
            error
                .failed()
                .iter()
                .all(|(_, why)| matches!(why, AskError::Died(_))),
            "{error}"
        );

        let error = group.cast(Note(1)).await.unwrap_err();
        assert_eq!(error.failed().len(), 2, "{error}");
        system.shutdown().await;
    }
}

/// SEMANTICS 23.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_quorum_does_not_wait_for_the_slow_and_bears_the_dead() {
    let system = system().await;
    let group = group(&system, Home::Here).await;
    let ranks = |answers: Vec<(Rank, usize)>| {
        answers
            .iter()
            .map(|(rank, answer)| (rank.index(), *answer))
            .collect::<Vec<_>>()
    };
    // The last rank does not answer before it is notified.
    let answers = group.gather(Hesitate).quorum(3).await.unwrap();
    assert_eq!(ranks(answers), [(0, 0), (1, 1), (2, 2)]);

    let error = group
        .gather(Hesitate)
        .timeout(Duration::from_millis(20))
        .await
        .unwrap_err();
    assert!(matches!(error.failed(), [(rank, AskError::Timeout { .. })] if rank.index() == 3));
    HESITATION.notify_one();

    group.members()[0].stop().await.unwrap();
    let answers = group.gather(Value).quorum(3).await.unwrap();
    assert_eq!(
        answers
            .iter()
            .map(|(rank, _)| rank.index())
            .collect::<Vec<_>>(),
        [1, 2, 3]
    );
    let error = group.gather(Value).quorum(4).await.unwrap_err();
    assert!(matches!(error.failed(), [(rank, AskError::Dead(_))] if rank.index() == 0));
    let error = group.gather(Value).quorum(5).await.unwrap_err();
    assert_eq!(
        error,
        GroupError::Misfit(Misfit::Quorum {
            quorum: 5,
            asked: 4
        })
    );
    system.shutdown().await;
}

/// SEMANTICS 22.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_group_starts_whole_or_not_at_all() {
    for home in HOMES {
        let system = system().await;
        let spawn = system
            .spawn_group::<Member>(mesh! { dp: 2, tp: 2 }, |rank| (rank, Some(2)))
            .restart(Restart::Temporary);
        let spawn = match home {
            Home::Here => spawn,
            Home::Shared => spawn.in_worker("all"),
            Home::Isolated => spawn.isolated(),
        };
        let error = spawn.await.unwrap_err();
        assert_eq!(error.rank.index(), 2, "{error}");
        assert!(matches!(&error.error, SpawnError::Failed(_)), "{error}");
        assert!(error.to_string().contains("rank 2 (dp=1, tp=0)"), "{error}");
        assert!(error.to_string().contains("bad luck"), "{error}");
        assert_eq!(system.admin().actors().await, [], "{home:?}");
        system.shutdown().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_group_travels_and_is_used_from_another_process() {
    let system = system().await;
    let near = group(&system, Home::Here).await;
    let far = group(&system, Home::Isolated).await;
    let head = system.spawn::<Head>(()).isolated().await.unwrap();
    assert_eq!(head.ask(Visit { group: near }).await, Ok(vec![7; 4]));
    assert_eq!(head.ask(Visit { group: far }).await, Ok(vec![7; 4]));

    // A group of the head's own children, who live where the head does, and end with it.
    // Their home is the worker, so the sender has to be named where one process runs many systems.
    let children = head.ask(HandOut).await.unwrap();
    let sum = system
        .scope(async { children.reduce(Value, Sum).await })
        .await;
    assert_eq!(sum.unwrap(), 1.0);
    head.stop().await.unwrap();
    let error = system
        .scope(async { children.gather(Value).await })
        .await
        .unwrap_err();
    assert_eq!(error.failed().len(), 2, "{error}");
    system.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_group_of_many_answers() {
    let system = system().await;
    let mesh = mesh! { node: 16, gpu: 32 };
    let group = system
        .spawn_group::<Member>(mesh, |rank| (rank, None))
        .await
        .unwrap();
    assert_eq!(
        group.reduce(Value, Sum).await.unwrap(),
        (512 * 511 / 2) as f64
    );
    group.stop().await.unwrap();
    assert_eq!(group.gather(Value).await.unwrap_err().failed().len(), 512);
    system.shutdown().await;
}
