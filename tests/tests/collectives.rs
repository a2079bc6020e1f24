//! Collectives of a group: results near and in worker processes, a member killed in the midst of an
//! all-reduce, one that is stuck, and seats of the past.

use std::time::Duration;

use futures::future::join_all;
use odeon::collective::{Collective, Reduce};
use odeon::group::{Communicator, FormError, Seat};
use odeon::{
    AskError, Context, Failure, Group, Rank, Restart, System, WorkerCommand, WorkerMode, mesh,
};
use tokio::process::Command;

/// Takes a seat and waits until all have taken theirs.
#[derive(Clone)]
#[odeon::message(reply = Result<u64, String>)]
struct Sit(Seat);

/// Sums a vector that depends on the rank.
#[derive(Clone)]
#[odeon::message(reply = Result<Vec<f32>, String>)]
struct Sum(u32);

/// Sums again and again until it fails; answers the ranks at fault and the error.
#[derive(Clone)]
#[odeon::message(reply = (Vec<u64>, String))]
struct SumUntilItFails;

/// [`Sum`] with a deadline in milliseconds.
#[derive(Clone)]
#[odeon::message(reply = (Vec<u64>, String))]
struct SumWithin(u64);

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

    #[handler(message = SumUntilItFails)]
    async fn sum_until_it_fails(&mut self, _: SumUntilItFails) -> (Vec<u64>, String) {
        let comm = self.comm.as_mut().expect("it has a seat");
        let mut data = vec![1.0f32; 300_000];
        loop {
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

fn ranks(error: &odeon::collective::CollectiveError) -> Vec<u64> {
    let fault = error.fault().expect("a fault between ranks");
    fault.ranks().into_iter().map(|rank| rank as u64).collect()
}

#[test]
fn worker_entry() {
    odeon::job![Member].serve_if_worker();
}

async fn system() -> System {
    let worker = WorkerCommand::current_exe()
        .unwrap()
        .arg("worker_entry")
        .arg("--exact");
    System::builder()
        .workers(WorkerMode::Processes(worker))
        .start()
        .await
        .unwrap()
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
        .scatter(seats.iter().copied().map(Sit).collect())
        .await
        .unwrap();
    let generations: Vec<u64> = sitting.into_iter().map(Result::unwrap).collect();
    assert_eq!(generations, [formation.generation(); 4]);
    assert_eq!(formation.missing(), [] as [usize; 0]);
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
            Ok((named, error)) => assert_eq!((rank != 2, named), (true, vec![2]), "{error}"),
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
        .ask(Sit(old[2]))
        .await
        .unwrap()
        .unwrap_err();
    assert!(
        stale.contains("generation 1 was life 1") && stale.contains("life 2"),
        "{stale}"
    );
    let gone = group.members()[1]
        .ask(Sit(old[1]))
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

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_group_is_formed_at_home_by_the_living() {
    let system = system().await;
    let group = isolated(&system).await;
    let said = group.members()[0].ask(Form(group.clone())).await.unwrap();
    assert_eq!(said, FormError::NotHome.to_string());
    let formation = group.form().await.unwrap();
    let seats: Vec<Seat> = formation.seats().collect();
    let wrong = group.members()[0]
        .ask(Sit(seats[1]))
        .await
        .unwrap()
        .unwrap_err();
    assert!(wrong.contains("was given to"), "{wrong}");
    assert_eq!(formation.missing(), [0, 1, 2, 3]);
    drop(formation);
    let late = group.members()[0]
        .ask(Sit(seats[0]))
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
