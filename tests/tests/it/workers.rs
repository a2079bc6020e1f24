//! Worker groups: how calls are dealt out and joined by every protocol, whose failure is told, and
//! whose turn it is in a pool.

use std::sync::LazyLock;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures::stream::FuturesOrdered;
use futures::{FutureExt, StreamExt, poll};
use odeon::group::{
    CallError, Collect, Dispatch, GroupError, MeshPlace, Misfit, Pool, Protocol, WhereIn,
    WorkerCall, WorkerGroup,
};
use odeon::{Clock, Context, Failure, Rank, System, WorkerMode, mesh};
use odeon_tests::again;
use tokio::sync::{Semaphore, watch};

/// Adds a rank's number to rows: `(row, rank)` for each.
#[odeon::message(reply = Result<Vec<(u32, u32)>, Failure>)]
#[derive(Clone)]
struct Mark {
    rows: Vec<u32>,
    /// The protocol, as JSON.
    by: String,
    /// The rank that cannot do it.
    unlucky: Option<usize>,
}

impl WorkerCall for Mark {
    type Part = Vec<(u32, u32)>;
    type Output = Vec<(u32, u32)>;

    fn protocol(&self) -> Protocol {
        serde_json::from_str(&self.by).unwrap()
    }

    fn deal(&self, parts: usize) -> Result<Vec<Self>, Failure> {
        if !self.rows.len().is_multiple_of(parts) {
            return Err(Failure::error("an odd number of rows"));
        }
        let each = self.rows.chunks(self.rows.len() / parts);
        Ok(each
            .map(|rows| Self {
                rows: rows.to_vec(),
                ..self.clone()
            })
            .collect())
    }

    fn join(&self, parts: Vec<Self::Part>) -> Result<Self::Output, Failure> {
        Ok(parts.concat())
    }
}

/// Begins and stays until the test lets it go.
#[odeon::message(reply = Result<u32, Failure>)]
#[derive(Clone)]
struct Stay(u32);

impl WorkerCall for Stay {
    type Part = u32;
    type Output = u32;

    fn protocol(&self) -> Protocol {
        Protocol::RankZero
    }

    fn deal(&self, parts: usize) -> Result<Vec<Self>, Failure> {
        Ok(vec![self.clone(); parts])
    }

    fn join(&self, parts: Vec<u32>) -> Result<u32, Failure> {
        Ok(parts[0])
    }
}

/// A moment of a [`Stay`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Moment {
    Begun(u32),
    Over(u32),
}

/// The moments of all stays, in order.
static STAYS: LazyLock<watch::Sender<Vec<Moment>>> = LazyLock::new(|| watch::channel(vec![]).0);
static LEAVE: LazyLock<Semaphore> = LazyLock::new(|| Semaphore::new(0));
static ASKED_WHERE: AtomicUsize = AtomicUsize::new(0);

struct Worker {
    rank: Rank,
}

#[odeon::actor(name = "test.Worker")]
impl Worker {
    fn start(rank: Rank) -> Self {
        Self { rank }
    }

    #[handler(message = Mark)]
    fn mark(&mut self, mark: Mark) -> Result<Vec<(u32, u32)>, Failure> {
        if mark.unlucky == Some(self.rank.index()) {
            return Err(Failure::error("it slipped"));
        }
        let me = self.rank.index() as u32;
        Ok(mark.rows.into_iter().map(|row| (row, me)).collect())
    }

    #[handler(message = Stay)]
    async fn stay(&mut self, Stay(n): Stay, _cx: &mut Context<Self>) -> Result<u32, Failure> {
        STAYS.send_modify(|stays| stays.push(Moment::Begun(n)));
        LEAVE.acquire().await.map_err(Failure::error)?.forget();
        STAYS.send_modify(|stays| stays.push(Moment::Over(n)));
        Ok(n)
    }

    /// In `generate` two neighbours have the same rows, and the second answers; in `odd` nobody
    /// answers for the last part; in others there is no place.
    #[handler(message = WhereIn)]
    fn place(&mut self, place: WhereIn) -> Option<MeshPlace> {
        ASKED_WHERE.fetch_add(1, Ordering::SeqCst);
        let rank = self.rank.index();
        match place.0.as_str() {
            "generate" => Some(MeshPlace {
                part: rank / 2,
                collected: rank % 2 == 1,
            }),
            "odd" => Some(MeshPlace {
                part: rank,
                collected: rank < 7,
            }),
            _ => None,
        }
    }
}

#[test]
fn worker_entry() {
    odeon::job![Worker].serve_if_worker();
}

async fn processes() -> System {
    let worker = again::worker(module_path!());
    let system = System::builder().workers(WorkerMode::Processes(worker));
    system.start().await.unwrap()
}

fn mark(by: Protocol, rows: u32) -> Mark {
    Mark {
        rows: (0..rows).collect(),
        by: serde_json::to_string(&by).unwrap(),
        unlucky: None,
    }
}

/// SEMANTICS 84.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_protocol_deals_each_row_out_and_brings_it_back_once() {
    let system = processes().await;
    let pool = Pool::new("models");
    let mesh = mesh! { pp: 2, dp: 2, tp: 2 };
    let workers = pool.spawn::<Worker>(&system, mesh, |rank| rank);
    let workers = workers.start().await.unwrap().with_meshes();

    let whole = |rank| -> Vec<(u32, u32)> { (0..8).map(|row| (row, rank)).collect() };
    let by = async |protocol| workers.call(mark(protocol, 8)).await.unwrap();
    assert_eq!(by(Protocol::RankZero).await, whole(0));
    let all: Vec<_> = (0..8).flat_map(whole).collect();
    assert_eq!(by(Protocol::OneToAll).await, all);
    let own: Vec<_> = (0..8).map(|row| (row, row)).collect();
    assert_eq!(by(Protocol::Data).await, own);
    assert_eq!(by(Protocol::AllToAll).await, own);
    // The last stage's first tensor rank of both replicas: ranks 4 and 6.
    let replicas: Vec<_> = (0..8)
        .map(|row| (row, if row < 4 { 4 } else { 6 }))
        .collect();
    assert_eq!(by(Protocol::ThreeD).await, replicas);
    let stages = [whole(0), whole(4)].concat();
    assert_eq!(by(Protocol::PipelineOnly).await, stages);
    let second: Vec<_> = (0..8).map(|row| (row, row / 2 * 2 + 1)).collect();
    for _ in 0..3 {
        assert_eq!(by(Protocol::Mesh("generate".to_owned())).await, second);
    }
    let turned = Protocol::Pair(
        Dispatch::Parts((0..8).rev().map(Some).collect()),
        Collect::Ranks((0..8).rev().collect()),
    );
    let back: Vec<_> = (0..8).map(|row| (row, 7 - row)).collect();
    assert_eq!(by(turned).await, back);
    system.shutdown().await;
}

/// SEMANTICS 84.
#[tokio::test]
async fn micro_groups_share_their_rows_and_meshes_are_asked_for_once() {
    let system = System::builder().start().await.unwrap();
    let mesh = mesh! { micro: 2, rank: 4 };
    let group = system
        .spawn_group::<Worker>(mesh, |rank| rank)
        .await
        .unwrap();
    let workers = WorkerGroup::new(group, &Pool::new("here"));
    let rows = workers.call(mark(Protocol::MicroData, 4)).await.unwrap();
    assert_eq!(rows, [(0, 0), (1, 0), (2, 4), (3, 4)]);

    let by = |name: &str| mark(Protocol::Mesh(name.to_owned()), 8);
    let unasked = workers.call(by("generate")).await.unwrap_err();
    assert!(matches!(unasked, CallError::NoMeshes(_)), "{unasked}");
    let workers = workers.with_meshes();
    for _ in 0..3 {
        workers.call(by("generate")).await.unwrap();
    }
    assert_eq!(ASKED_WHERE.load(Ordering::SeqCst), 8);
    let outside = workers.call(by("train")).await.unwrap_err();
    assert_eq!(outside.to_string(), "rank 0 has no place in mesh `train`");
    let odd = workers.call(by("odd")).await.unwrap_err();
    let expect = Misfit::Uncollected {
        part: 7,
        answers: 0,
    };
    assert!(
        matches!(&odd, CallError::Group(GroupError::Misfit(error)) if *error == expect),
        "{odd}"
    );
    system.shutdown().await;
}

/// SEMANTICS 84.
#[tokio::test]
async fn a_failure_is_told_with_its_rank_also_where_no_answer_counts() {
    let system = System::builder().start().await.unwrap();
    let mesh = mesh! { pp: 2, dp: 2, tp: 2 };
    let group = system
        .spawn_group::<Worker>(mesh, |rank| rank)
        .await
        .unwrap();
    let workers = WorkerGroup::new(group, &Pool::new("models"));
    // Rank 1 works for replica 0, and rank 4 answers for it.
    let call = Mark {
        unlucky: Some(1),
        ..mark(Protocol::ThreeD, 8)
    };
    let error = workers.call(call).await.unwrap_err();
    assert_eq!(
        error.to_string(),
        "Mark failed on rank 1 of pool models: it slipped"
    );
    assert_eq!(Failure::from(error).root_cause().message, "it slipped");

    let uncut = workers.call(mark(Protocol::Data, 7)).await.unwrap_err();
    let words = "Mark cannot be dealt out in 8 parts: an odd number of rows";
    assert_eq!(uncut.to_string(), words);
    system.shutdown().await;
}

/// SEMANTICS 85.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn models_of_one_pool_take_turns_and_those_of_others_do_not_wait() {
    let system = System::builder().start().await.unwrap();
    let spawn = async |pool: &Pool| {
        let group = system.spawn_group::<Worker>(mesh! { dp: 1 }, |rank| rank);
        WorkerGroup::new(group.await.unwrap(), pool)
    };
    let (one, other) = (Pool::new("one"), Pool::new("other"));
    let (first, second) = (spawn(&one).await, spawn(&one).await);
    let third = spawn(&other).await;
    let begun = async |n: u32| {
        let mut stays = STAYS.subscribe();
        let waiting = stays.wait_for(|stays| stays.contains(&Moment::Begun(n)));
        let begun = Clock::timeout(Duration::from_secs(30), waiting).await;
        begun.expect("it begins").unwrap().clone()
    };

    // The second waits for the first; the third, made later and of another pool, does not.
    let mut calls = FuturesOrdered::new();
    for (n, group) in [(1, &first), (2, &second), (3, &third)] {
        calls.push_back(group.call(Stay(n)).boxed());
        assert!(poll!(calls.next()).is_pending());
    }
    begun(1).await;
    let stays = begun(3).await;
    assert!(!stays.contains(&Moment::Begun(2)), "{stays:?}");
    LEAVE.add_permits(3);
    for n in 1..=3 {
        assert_eq!(calls.next().await.unwrap().unwrap(), n);
    }

    // Five of one pool that are made while the first of them is at work.
    for n in 10..15 {
        let group = if n % 2 == 0 { &first } else { &second };
        calls.push_back(group.call(Stay(n)).boxed());
        assert!(poll!(calls.next()).is_pending());
    }
    begun(10).await;
    LEAVE.add_permits(5);
    for n in 10..15 {
        assert_eq!(calls.next().await.unwrap().unwrap(), n);
    }
    let stays = STAYS.borrow().clone();
    let of_one = |moment: &Moment| !matches!(moment, Moment::Begun(3) | Moment::Over(3));
    let one_by_one: Vec<_> = [1, 2, 10, 11, 12, 13, 14]
        .into_iter()
        .flat_map(|n| [Moment::Begun(n), Moment::Over(n)])
        .collect();
    assert_eq!(
        stays.into_iter().filter(of_one).collect::<Vec<_>>(),
        one_by_one
    );
    system.shutdown().await;
}
