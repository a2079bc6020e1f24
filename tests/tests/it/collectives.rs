//! Collectives of a group: results near, in worker processes and over nodes, a member or a node
//! killed in the midst of an all-reduce, one that is stuck, and seats of the past.

use std::time::Duration;

use futures::future::join_all;
use odeon::collective::{Collective, CollectiveError, Reduce, bf16};
use odeon::group::{Communicator, FormError, Seat};
use odeon::trace::SpanKind;
use odeon::{
    AskError, Clock, ClusterIdentity, Context, Failure, Group, Rank, Restart, System, WorkerMode,
    mesh,
};
use odeon_tests::again;
use odeon_tests::peer::{self, Peer, Workers};
use odeon_tests::wires::loopback;
use tokio::process::Command;

use crate::PATIENCE;

/// Takes a seat and waits until all have taken theirs.
#[derive(Clone)]
#[odeon::message(reply = Result<u64, String>)]
struct Sit(Seat);

/// Sums a vector that depends on the rank.
#[derive(Clone)]
#[odeon::message(reply = Result<Vec<f32>, String>)]
struct Sum(u32);

/// Sums ranks over the communicator below the seat's, which is given away.
#[derive(Clone)]
#[odeon::message(reply = Result<f32, String>)]
struct SumBelow;

/// Sums again and again until it fails; answers the ranks at fault and the error.
#[derive(Clone)]
#[odeon::message(reply = (Vec<u64>, String))]
struct SumUntilItFails;

/// [`Sum`] with a deadline in milliseconds.
#[derive(Clone)]
#[odeon::message(reply = (Vec<u64>, String))]
struct SumWithin(u64);

/// Does every operation with so many elements.
#[derive(Clone)]
#[odeon::message(reply = Result<(), String>)]
struct Everything(u32);

#[derive(Clone)]
#[odeon::message(reply = u32)]
struct Pid;

/// Forms a group that another process has spawned.
#[derive(Clone)]
#[odeon::message(reply = String)]
struct Form(Group<Member>);

struct Member {
    rank: Rank,
    comm: Option<Communicator>,
}

#[odeon::actor(name = "test.CollectiveMember")]
impl Member {
    fn start(rank: Rank) -> Result<Self, Failure> {
        Ok(Self { rank, comm: None })
    }

    #[handler(message = Sit)]
    async fn sit(&mut self, sit: Sit, cx: &mut Context<Self>) -> Result<u64, String> {
        let mut comm = sit.0.take(cx).map_err(|error| error.to_string())?;
        comm.set_deadline(Duration::from_secs(20));
        comm.barrier().map_err(|error| error.to_string())?;
        let generation = comm.membership().generation;
        self.comm = Some(comm);
        Ok(generation)
    }

    #[handler(message = Sum)]
    async fn sum(&mut self, sum: Sum) -> Result<Vec<f32>, String> {
        let rank = self.rank.index() as f32;
        let comm = self.comm.as_mut().ok_or("no seat")?;
        let mut data = vec![rank; sum.0 as usize];
        comm.all_reduce(&mut data, Reduce::Sum)
            .map_err(|error| error.to_string())?;
        Ok(data)
    }

    #[handler(message = SumBelow)]
    async fn sum_below(&mut self, _: SumBelow) -> Result<f32, String> {
        let mut below = self.comm.take().ok_or("no seat")?.into_inner();
        let mut sum = [self.rank.index() as f32];
        tokio::task::block_in_place(|| below.all_reduce(&mut sum, Reduce::Sum))
            .map_err(|error| error.to_string())?;
        Ok(sum[0])
    }

    #[handler(message = SumUntilItFails)]
    async fn sum_until_it_fails(&mut self, _: SumUntilItFails) -> (Vec<u64>, String) {
        let Some(comm) = self.comm.as_mut() else {
            return (vec![], "no seat in this life".to_owned());
        };
        let mut data = vec![1.0f32; 300_000];
        let begun = Clock::now();
        loop {
            assert!(Clock::now().since(begun) < PATIENCE, "nobody is lost");
            if let Err(error) = comm.all_reduce(&mut data, Reduce::Mean) {
                return (ranks(&error), error.to_string());
            }
            assert_eq!(data[299_999], 1.0);
        }
    }

    #[handler(message = SumWithin)]
    async fn sum_within(&mut self, within: SumWithin) -> (Vec<u64>, String) {
        let comm = self.comm.as_mut().expect("it has a seat");
        comm.set_deadline(Duration::from_millis(within.0));
        let error = comm
            .all_reduce(&mut [1.0f32; 10], Reduce::Sum)
            .expect_err("a rank is missing");
        (ranks(&error), error.to_string())
    }

    #[handler(message = Everything)]
    async fn everything(&mut self, everything: Everything) -> Result<(), String> {
        let comm = self.comm.as_mut().ok_or("no seat")?;
        every_operation(comm, everything.0 as usize).map_err(|error| error.to_string())
    }

    #[handler(message = Pid)]
    fn pid(&mut self, _: Pid) -> u32 {
        std::process::id()
    }

    #[handler(message = Form)]
    async fn form(&mut self, form: Form) -> String {
        form.0
            .form()
            .await
            .expect_err("it is not at home here")
            .to_string()
    }
}

/// Every operation, with numbers that are exact in any order.
fn every_operation(comm: &mut Communicator, len: usize) -> Result<(), CollectiveError> {
    let (rank, world) = (comm.membership().rank, comm.membership().world());
    let number = |rank: usize, i: usize| ((rank + 1) * (i % 7)) as f32;
    let of = |rank: usize| -> Vec<f32> { (0..len).map(|i| number(rank, i)).collect() };
    let all: usize = (1..=world).sum();

    let mut data = of(rank);
    comm.all_reduce(&mut data, Reduce::Sum)?;
    let sums: Vec<f32> = (0..len).map(|i| (all * (i % 7)) as f32).collect();
    assert_eq!(data, sums);
    let mut data: Vec<bf16> = of(rank).into_iter().map(bf16::from_f32).collect();
    comm.all_reduce(&mut data, Reduce::Max)?;
    let greatest: Vec<bf16> = of(world - 1).into_iter().map(bf16::from_f32).collect();
    assert_eq!(data, greatest);
    for root in 0..world {
        let mut data = of(rank);
        comm.broadcast(&mut data, root)?;
        assert_eq!(data, of(root));
    }
    let whole: Vec<f32> = (0..world).flat_map(of).collect();
    let mut gathered = vec![0.0; whole.len()];
    comm.all_gather(&of(rank), &mut gathered)?;
    assert_eq!(gathered, whole);
    let input: Vec<f32> = (0..world).flat_map(|_| of(rank)).collect();
    let mut mine = vec![0.0; len];
    comm.reduce_scatter(&input, &mut mine, Reduce::Sum)?;
    assert_eq!(mine, sums);
    let mut output = vec![0.0; whole.len()];
    comm.all_to_all(&input, &mut output)?;
    assert_eq!(output, whole);
    // Once around, the other way for every second rank.
    let (next, before) = ((rank + 1) % world, (rank + world - 1) % world);
    let mut got = vec![0.0f32; len];
    if rank % 2 == 0 {
        comm.send(&of(rank), next)?;
        comm.receive(&mut got, before)?;
    } else {
        comm.receive(&mut got, before)?;
        comm.send(&of(rank), next)?;
    }
    assert_eq!(got, of(before));
    comm.barrier()
}

fn ranks(error: &CollectiveError) -> Vec<u64> {
    let fault = error.fault().expect("a fault between ranks");
    fault.ranks().into_iter().map(|rank| rank as u64).collect()
}

#[test]
fn worker_entry() {
    odeon::job![Member].serve_if_worker();
}

/// Becomes the other node when this test binary is started as one.
#[test]
fn peer_entry() {
    peer::serve(odeon::job![Member], workers(), async |_, order: String| {
        panic!("no orders are given: {order}")
    });
}

fn workers() -> WorkerMode {
    let worker = again::worker(module_path!());
    WorkerMode::Processes(worker)
}

async fn system() -> System {
    System::builder().workers(workers()).start().await.unwrap()
}

/// This process as node `a`, linked to another one as node `b`.
async fn two_nodes() -> (System, Peer) {
    let cluster = ClusterIdentity::generate().unwrap();
    let builder = System::builder()
        .job(odeon::job![Member])
        .limits(odeon_tests::wires::limits())
        .workers(workers());
    let system = builder
        .listen(loopback(), cluster.issue("a").unwrap())
        .start()
        .await
        .unwrap();
    let identity = cluster.issue("b").unwrap();
    let peer = Peer::start(module_path!(), &identity, Workers::Processes);
    system.join(peer.address()).await.unwrap();
    (system, peer)
}

/// Four members, ranks 1 and 2 on node `b`.
async fn on_two_nodes(system: &System) -> Group<Member> {
    let spawn = system.spawn_group::<Member>(mesh! { dp: 4 }, |rank| rank);
    let spawn = spawn.restart(Restart::Permanent).isolated();
    let spawn = spawn.each(|rank, spawn| {
        spawn.on_node(if [1, 2].contains(&rank.index()) {
            "b"
        } else {
            "a"
        })
    });
    spawn.await.unwrap()
}

async fn isolated(system: &System) -> Group<Member> {
    let spawn = system.spawn_group::<Member>(mesh! { dp: 4 }, |rank| rank);
    spawn.restart(Restart::Permanent).isolated().await.unwrap()
}

/// Forms the group and has all members sit; gives the generation and the seats.
async fn seat(group: &Group<Member>) -> (u64, Vec<Seat>) {
    let formation = group.form().await.unwrap();
    let seats: Vec<Seat> = formation.seats().collect();
    let sitting = group
        .scatter(seats.iter().cloned().map(Sit).collect())
        .await
        .unwrap();
    let generations: Vec<u64> = sitting.into_iter().map(Result::unwrap).collect();
    assert_eq!(generations, [formation.generation(); 4]);
    (formation.generation(), seats)
}

/// SEMANTICS 50.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn members_reduce_together_wherever_they_are() {
    let system = system().await;
    let spawn = || system.spawn_group::<Member>(mesh! { dp: 4 }, |rank| rank);
    let groups = [
        spawn().await.unwrap(),
        spawn().in_worker("all").await.unwrap(),
        spawn().isolated().await.unwrap(),
        spawn()
            .each(|rank, spawn| {
                if rank.index() % 2 == 0 {
                    spawn
                } else {
                    spawn.isolated()
                }
            })
            .await
            .unwrap(),
    ];
    for group in groups {
        assert_eq!(
            group.gather(Sum(3)).await.unwrap(),
            vec![Err("no seat".to_owned()); 4]
        );
        // A second formation takes the place of the first.
        for _ in 0..2 {
            assert_eq!(seat(&group).await.0, 1);
            for len in [0, 1, 1000, 200_000] {
                let sums = group.gather(Sum(len)).await.unwrap();
                assert_eq!(sums, vec![Ok(vec![6.0; len as usize]); 4]);
            }
        }
    }
    system.shutdown().await;
}

/// Collectives of another kind, such as those between cards, are formed over it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_communicator_below_that_of_a_seat_goes_on_where_that_was() {
    let system = system().await;
    let group = isolated(&system).await;
    seat(&group).await;
    group.gather(Sum(3)).await.unwrap();
    assert_eq!(group.gather(SumBelow).await.unwrap(), vec![Ok(6.0); 4]);
    system.shutdown().await;
}

/// Whoever looks on sees what each rank spends on waiting for the others.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_collective_is_a_span_of_its_rank() {
    let system = system().await;
    let group = system
        .spawn_group::<Member>(mesh! { dp: 4 }, |rank| rank)
        .await
        .unwrap();
    seat(&group).await;
    group.gather(Sum(1000)).await.unwrap();
    let mut ranks = vec![];
    for span in system.admin().spans() {
        if span.kind != SpanKind::Collective || span.message != "all_reduce" {
            continue;
        }
        let label = |wanted: &str| {
            let found = span.labels.iter().find(|(name, _)| name == wanted);
            found.unwrap().1.to_string()
        };
        assert_eq!(
            (label("bytes"), label("world")),
            ("4000".into(), "4".into())
        );
        assert_ne!(span.parent, 0, "below the handler that called it");
        ranks.push(label("rank"));
    }
    ranks.sort();
    assert_eq!(ranks, ["0", "1", "2", "3"]);
    system.shutdown().await;
}

/// SEMANTICS 51, 53.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_member_killed_in_an_all_reduce_is_named_and_the_next_generation_works() {
    let system = system().await;
    let group = isolated(&system).await;
    let (first, old) = seat(&group).await;
    assert_eq!(first, 1);
    let pids = group.gather(Pid).await.unwrap();
    let asks = join_all(group.members().iter().map(|member| {
        let ask = member.ask(SumUntilItFails);
        tokio::spawn(ask)
    }));
    let kill = async {
        let killed = Command::new("kill")
            .args(["-9", &pids[2].to_string()])
            .status();
        assert!(killed.await.unwrap().success());
    };
    let (answers, ()) = tokio::join!(asks, kill);
    for (rank, answer) in answers.into_iter().enumerate() {
        match answer.unwrap() {
            // What had not reached it waits for its next life.
            Ok((named, error)) if rank == 2 => assert!(named.is_empty(), "{error}"),
            Ok((named, error)) => assert_eq!(named, [2], "{error}"),
            Err(error) => assert!(
                rank == 2 && matches!(error, AskError::Died(_)),
                "{rank} {error}"
            ),
        }
    }

    // The others are broken and say why; then the whole group meets in its next generation.
    let refused = group.members()[0].ask(Sum(1)).await.unwrap().unwrap_err();
    assert!(
        refused.contains("broken") && refused.contains("rank 2"),
        "{refused}"
    );
    let (second, _) = seat(&group).await;
    assert_eq!(second, 2);
    assert_eq!(
        group.gather(Sum(5)).await.unwrap(),
        vec![Ok(vec![6.0; 5]); 4]
    );

    // A seat of the past: of another life, or taken already.
    let stale = group.members()[2]
        .ask(Sit(old[2].clone()))
        .await
        .unwrap()
        .unwrap_err();
    assert!(
        stale.contains("generation 1 was life 1") && stale.contains("life 2"),
        "{stale}"
    );
    let gone = group.members()[1]
        .ask(Sit(old[1].clone()))
        .await
        .unwrap()
        .unwrap_err();
    assert!(gone.contains("no seat"), "{gone}");
    assert_eq!(
        group.gather(Sum(5)).await.unwrap(),
        vec![Ok(vec![6.0; 5]); 4]
    );
    system.shutdown().await;
}

/// SEMANTICS 51.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_member_that_is_elsewhere_is_named_within_the_deadline() {
    let system = system().await;
    let group = isolated(&system).await;
    seat(&group).await;
    let others = [0, 2, 3].map(|rank| group.members()[rank].ask(SumWithin(400)));
    for answer in join_all(others).await {
        let (named, error) = answer.unwrap();
        assert_eq!(named, [1], "{error}");
    }
    // It hears why nobody waits for it.
    let late = group.members()[1].ask(Sum(10)).await.unwrap().unwrap_err();
    assert!(late.contains("rank 1 did not come"), "{late}");
    system.shutdown().await;
}

/// SEMANTICS 50, 53.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn members_on_two_nodes_reduce_together() {
    let (system, peer) = two_nodes().await;
    let group = on_two_nodes(&system).await;
    for _ in 0..2 {
        assert_eq!(seat(&group).await.0, 1);
        for len in [0, 1, 1000, 700_000] {
            assert_eq!(
                group.gather(Everything(len)).await.unwrap(),
                vec![Ok(()); 4]
            );
        }
    }
    system.shutdown().await;
    drop(peer);
}

/// SEMANTICS 51, 53.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_member_killed_on_another_node_is_named_and_the_next_generation_works() {
    let (system, peer) = two_nodes().await;
    let group = on_two_nodes(&system).await;
    for (generation, victim) in [(1, 2), (2, 0), (3, 1)] {
        assert_eq!(seat(&group).await.0, generation);
        let pids = group.gather(Pid).await.unwrap();
        let asks = join_all(group.members().iter().map(|member| {
            let ask = member.ask(SumUntilItFails);
            tokio::spawn(ask)
        }));
        let kill = async {
            let killed = Command::new("kill")
                .args(["-9", &pids[victim].to_string()])
                .status();
            assert!(killed.await.unwrap().success());
        };
        let (answers, ()) = tokio::join!(asks, kill);
        for (rank, answer) in answers.into_iter().enumerate() {
            match answer.unwrap() {
                // What had not reached it waits for its next life.
                Ok((named, error)) if rank == victim => assert!(named.is_empty(), "{error}"),
                Ok((named, error)) => assert_eq!(named, [victim as u64], "{error}"),
                Err(error) => assert_eq!(rank, victim, "{error}"),
            }
        }
    }
    seat(&group).await;
    assert_eq!(
        group.gather(Everything(100)).await.unwrap(),
        vec![Ok(()); 4]
    );
    system.shutdown().await;
    drop(peer);
}

/// SEMANTICS 51.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_is_lost_takes_its_ranks_with_it_and_one_of_them_is_named() {
    let (system, mut peer) = two_nodes().await;
    let group = on_two_nodes(&system).await;
    seat(&group).await;
    let sums = group.gather(Sum(3)).await.unwrap();
    assert_eq!(sums, vec![Ok(vec![6.0; 3]); 4]);
    let near = [0, 3].map(|rank| group.members()[rank].ask(SumUntilItFails));
    let far = [1, 2].map(|rank| group.members()[rank].ask(SumUntilItFails));
    let lost = async { peer.kill() };
    let (near, far, ()) = tokio::join!(join_all(near), join_all(far), lost);
    for answer in near {
        let (named, error) = answer.unwrap();
        assert!(named == [1] || named == [2], "{error}");
        assert!(error.contains("is lost"), "{error}");
    }
    assert!(far.iter().all(Result::is_err), "{far:?}");
    system.shutdown().await;
}

/// SEMANTICS 51.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_member_that_stays_away_is_named_over_nodes_too() {
    let (system, peer) = two_nodes().await;
    let group = on_two_nodes(&system).await;
    seat(&group).await;
    let others = [0, 2, 3].map(|rank| group.members()[rank].ask(SumWithin(600)));
    for answer in join_all(others).await {
        let (named, error) = answer.unwrap();
        assert_eq!(named, [1], "{error}");
    }
    let late = group.members()[1].ask(Sum(10)).await.unwrap().unwrap_err();
    assert!(late.contains("rank 1 did not come"), "{late}");
    system.shutdown().await;
    drop(peer);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_group_is_formed_at_home_by_the_living() {
    let system = system().await;
    let group = isolated(&system).await;
    let said = group.members()[0].ask(Form(group.clone())).await.unwrap();
    assert_eq!(said, FormError::NotHome.to_string());
    let formation = group.form().await.unwrap();
    let seats: Vec<Seat> = formation.seats().collect();
    let wrong = group.members()[0]
        .ask(Sit(seats[1].clone()))
        .await
        .unwrap()
        .unwrap_err();
    assert!(wrong.contains("was given to"), "{wrong}");
    drop(formation);
    let late = group.members()[0]
        .ask(Sit(seats[0].clone()))
        .await
        .unwrap()
        .unwrap_err();
    assert!(late.contains("no seat"), "{late}");
    group.members()[3].stop().await.unwrap();
    let dead = group.form().await.unwrap_err();
    assert!(
        matches!(&dead, FormError::Dead { rank, .. } if rank.index() == 3),
        "{dead}"
    );
    system.shutdown().await;
}
