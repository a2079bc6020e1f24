//! Requests whose actor moves, whose link is replaced after they have found the way to it, or whose
//! reference names another type.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::*;
use crate::actor::handler::Handler;
use crate::base::id::Ref;
use crate::base::shape::{self, Shape};
use crate::base::supervise::{Restart, Supervision};
use crate::simulation::{SimulationSpec, World};
use crate::{Actor, Context as Surroundings, Failure, System};

/// Says which of its lives this is.
struct Cat;

#[derive(Serialize, Deserialize)]
struct Life;

impl Shape for Life {
    const SHAPE: u64 = shape::name("Life");
}
impl Message for Life {
    const NAME: &'static str = "Life";
    type Reply = Incarnation;
}
impl Actor for Cat {
    const NAME: &'static str = "test.Cat";
    type Args = ();
    async fn start((): (), _: &mut Surroundings<Self>) -> Result<Self, Failure> {
        Ok(Self)
    }
}
impl Handler<Life> for Cat {
    async fn handle(&mut self, _: Life, cx: &mut Surroundings<Self>) -> Incarnation {
        cx.incarnation()
    }
}
crate::register!(Cat: Life);

/// Apart from closures: within the crate that makes manifests, the compiler goes round in circles where
/// it has to know both.
fn job() -> crate::Job {
    crate::job![Cat]
}

fn simulate<F: Future<Output = ()>>(seed: u64, story: impl FnOnce(World) -> F) {
    let second = Duration::from_secs(1);
    let supervision = Supervision::one_for_one().backoff(second, second);
    let spec = SimulationSpec::new(job()).supervision(supervision);
    System::simulated(seed, spec).run(async |world| {
        let home = world.nodes[0].clone();
        home.scope(story(world)).await;
    });
}

/// An ask that has found the way to its actor, and the way.
fn found(actor: Ref<Cat>) -> (Ask<Life>, Way) {
    let ask = actor.ask(Life);
    let way = ask.asking.request.way().expect("there is a way");
    (ask, way.ok().expect("there is room on it"))
}

/// Sends the ask on the way that it had found.
async fn send((mut ask, way): (Ask<Life>, Way)) -> Result<Incarnation, AskError> {
    let mut way = Some(way);
    std::future::poll_fn(|cx| match way.take() {
        Some(way) => Poll::Ready(ask.asking.send(way, &mut ask.question, cx)),
        None => Poll::Pending,
    })
    .await?;
    ask.await
}

/// SEMANTICS 7.
#[test]
fn an_ask_follows_an_actor_that_moved_since_it_was_found() {
    for seed in 0..50 {
        simulate(seed, async |world| {
            let home = &world.nodes[0];
            let spawn = home.spawn::<Cat>(()).restart(Restart::Permanent);
            let actor = spawn.isolated().await.unwrap();
            let (early, late) = (found(actor), found(actor));
            let down = actor.down();
            assert!(
                home.admin()
                    .kill_worker(home.admin().process_of(actor).unwrap())
            );
            down.await;
            // One while nobody knows where the actor will be, one when it is there.
            assert_eq!(send(early).await, Ok(2), "seed {seed}");
            assert_eq!(send(late).await, Ok(2), "seed {seed}");
        });
    }
}

/// SEMANTICS 7.
#[test]
fn an_ask_takes_the_link_that_replaced_the_one_it_had_found() {
    for seed in 0..50 {
        simulate(seed, async |world| {
            let actor = world.nodes[0].spawn::<Cat>(()).await.unwrap();
            let asking = async {
                let found = found(actor);
                world.network.cut(0, 1);
                let links = world.nodes.iter().map(|node| &node.engine().links);
                for links in links {
                    let lost = async {
                        while !links.is_empty() {
                            Clock::sleep(Duration::from_secs(1)).await;
                        }
                    };
                    let lost = Clock::timeout(Duration::from_secs(600), lost).await;
                    lost.expect("a cut ends the link");
                }
                world.join(0, 1).await.unwrap();
                send(found).await
            };
            assert_eq!(world.nodes[1].scope(asking).await, Ok(1), "seed {seed}");
        });
    }
}

/// The same message, and another type of actor.
struct Dog;
impl Actor for Dog {
    const NAME: &'static str = "test.Dog";
    type Args = ();
    async fn start((): (), _: &mut Surroundings<Self>) -> Result<Self, Failure> {
        Ok(Self)
    }
}
impl Handler<Life> for Dog {
    async fn handle(&mut self, _: Life, cx: &mut Surroundings<Self>) -> Incarnation {
        cx.incarnation()
    }
}

#[test]
fn a_reference_of_another_type_takes_no_effect_and_gives_a_tell_back() {
    simulate(1, async |world| {
        let cat = world.nodes[0].spawn::<Cat>(()).await.unwrap();
        let dog = Ref::<Dog>::from_id(cat.id(), 0);
        assert!(matches!(
            dog.ask(Life).await,
            Err(AskError::NoSuchMethod { .. })
        ));
        let refused = dog.tell(Life).await.unwrap_err();
        assert!(refused.message.is_some());
        assert!(matches!(refused.error, AskError::NoSuchMethod { .. }));
        // The room that both had taken is free again, and one that knows the message alone gets through.
        let (_, Way::Near(cell)) = found(cat) else {
            panic!("it is here")
        };
        cell.admission.give_back();
        assert_eq!(cell.queued(), 0);
        assert_eq!(cat.narrow::<Life>().ask(Life).await, Ok(1));
    });
}
