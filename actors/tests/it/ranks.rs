//! Ranks that train one model together, as members of a group.

use std::time::Duration;

use odeon::group::Seat;
use odeon::{Clock, Context, Failure, Group, Rank, System, mesh};
use odeon_actors::engine::compute::{ComputeSpec, Critic};
use odeon_actors::engine::{EngineSpec, ScoreEngine};

use crate::versions::{batch, tiny};

/// Far less than a rank waits for one that is there and does not come.
const AT_ONCE: Duration = Duration::from_secs(20);

/// Takes a seat; what is learnt from now on is learnt together.
#[derive(Clone)]
#[odeon::message(reply = Result<(), String>)]
struct Sit(Seat);

/// Learns returns of four replies; the rank with this number has one too few of them.
#[derive(Clone)]
#[odeon::message(reply = Result<f64, String>)]
struct LearnTogether(Option<u64>);

struct Learner {
    rank: Rank,
    critic: Critic,
}

#[odeon::actor(name = "test.Learner")]
impl Learner {
    fn start((rank, spec): (Rank, ComputeSpec)) -> Result<Self, Failure> {
        let critic = Critic::new(&spec);
        Ok(Self { rank, critic })
    }

    #[handler(message = Sit)]
    async fn sit(&mut self, sit: Sit, cx: &mut Context<Self>) -> Result<(), String> {
        let seat = sit.0.take(cx).map_err(|error| error.to_string())?;
        self.critic.join(seat);
        Ok(())
    }

    #[handler(message = LearnTogether)]
    async fn learn_together(&mut self, learn: LearnTogether) -> Result<f64, String> {
        let rank = self.rank.index() as u64;
        let mut returns = vec![vec![rank as f32; 2]; 4];
        if learn.0 == Some(rank) {
            returns[3].pop();
        }
        let learnt = tokio::task::block_in_place(|| self.critic.learn(&batch(1 + rank), &returns));
        learnt.map_err(|failure| failure.to_string())
    }
}

async fn seat(group: &Group<Learner>) {
    let formation = group.form().await.unwrap();
    let sitting = group.scatter(formation.seats().map(Sit).collect());
    assert_eq!(sitting.await.unwrap(), vec![Ok(()); 3]);
}

/// SEMANTICS 51.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_rank_that_fails_in_a_step_is_named_by_the_others_at_once_and_all_meet_again() {
    let folder = tempfile::tempdir().unwrap();
    let EngineSpec::Compute(spec) = tiny(&folder.path().join("base"), 0, 1) else {
        panic!("it computes");
    };
    let system = System::builder().start().await.unwrap();
    let group = system.spawn_group::<Learner>(mesh! { dp: 3 }, |rank| (rank, (*spec).clone()));
    let group = group.await.unwrap();
    seat(&group).await;
    let learnt = group.gather(LearnTogether(None)).await.unwrap();
    assert!(learnt.iter().all(Result::is_ok), "{learnt:?}");

    let begun = Clock::now();
    let failed = group.gather(LearnTogether(Some(1))).await.unwrap();
    let took = Clock::now().since(begun);
    assert!(took < AT_ONCE, "{took:?}");
    for (rank, failed) in failed.into_iter().enumerate() {
        let error = failed.unwrap_err();
        assert_eq!(error.contains("rank 1"), rank != 1, "{rank}: {error}");
    }
    // Whoever has left says so, and does not wait.
    let again = group.gather(LearnTogether(None)).await.unwrap();
    for error in again.into_iter().map(Result::unwrap_err) {
        assert!(error.contains("left the others"), "{error}");
    }

    seat(&group).await;
    let learnt = group.gather(LearnTogether(None)).await.unwrap();
    assert!(learnt.iter().all(Result::is_ok), "{learnt:?}");
    system.shutdown().await;
}
