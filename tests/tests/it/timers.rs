//! Timers and tasks of one life of an actor, in virtual time.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use odeon::ActorTask;
use odeon::prelude::*;
use odeon::simulation::{SimulationSpec, World};

const SECOND: Duration = Duration::from_secs(1);

/// Says what happens, when.
#[derive(Clone, Default)]
struct Diary(Arc<Mutex<Vec<(Duration, &'static str)>>>);

thread_local! {
    static DIARY: Diary = Diary::default();
    static BEGUN: std::cell::Cell<odeon::Timestamp> = Clock::now().into();
}

fn note(what: &'static str) {
    let at = Clock::now().since(BEGUN.get());
    DIARY.with(|diary| diary.0.lock().unwrap().push((at, what)));
}

/// The times at which something has happened, in tenths of seconds.
fn times(of: &str) -> Vec<u128> {
    DIARY.with(|diary| {
        let rows = diary.0.lock().unwrap();
        let own = rows.iter().filter(|(_, what)| *what == of);
        own.map(|(at, _)| at.as_millis() / 100).collect()
    })
}

/// The order in which things have happened.
fn order() -> Vec<&'static str> {
    DIARY.with(|diary| {
        diary
            .0
            .lock()
            .unwrap()
            .iter()
            .map(|(_, what)| *what)
            .collect()
    })
}

/// Says when it is dropped.
struct Guard(&'static str);

impl Drop for Guard {
    fn drop(&mut self) {
        note(self.0);
    }
}

struct Ticker {
    ticks: Option<ActorTask>,
}

#[odeon::actor(name = "timers.Ticker")]
impl Ticker {
    fn start(ticks: bool, cx: &mut Context<Self>) -> Self {
        note("start");
        let every = || cx.every(SECOND, Tick);
        Self {
            ticks: ticks.then(every),
        }
    }

    fn stop(self) {
        note("stop");
    }

    #[handler]
    fn tick(&mut self) {
        note("tick");
    }

    #[handler]
    fn boom(&mut self) {
        panic!("boom");
    }

    /// Takes a while.
    #[handler]
    async fn rest(&mut self, time: Duration) {
        Clock::sleep(time).await;
    }

    #[handler]
    fn cancel(&mut self) {
        self.ticks.take().unwrap().cancel();
    }

    #[handler]
    fn once(&mut self, after: Duration, cx: &mut Context<Self>) {
        cx.after(after, Tick);
    }

    /// Calls of the actor in place of messages.
    #[handler]
    fn call(&mut self, cx: &mut Context<Self>) {
        let mut left = 3;
        cx.after_with(SECOND, |_, _| note("once"));
        self.ticks = Some(cx.every_with(SECOND, move |own, cx| {
            note("call");
            left -= 1;
            if left == 0 {
                own.ticks.take().unwrap().cancel();
                cx.after_with(SECOND, |_, cx| cx.stop());
            }
        }));
    }

    /// Begins work that says when it is dropped.
    #[handler]
    fn begin(&mut self, cx: &mut Context<Self>) {
        cx.spawn_task(async {
            let _guard = Guard("dropped");
            std::future::pending::<()>().await;
        });
    }

    /// Begins work that asks its own actor, which is free again by then.
    #[handler]
    fn ask_yourself(&mut self, cx: &mut Context<Self>) {
        let me = cx.me();
        cx.spawn_task(async move {
            me.ask(Tick).await.expect("it is no handler that asks");
            note("asked");
        });
    }

    /// Asks another in a task of tokio, which belongs to nobody.
    #[handler]
    async fn stray(&mut self, other: Ref<Self>) -> Option<AskError> {
        let asking = tokio::spawn(async move { other.ask(Tick).await });
        asking.await.expect("it does not panic").err()
    }

    #[handler]
    fn begin_what_panics(&mut self, cx: &mut Context<Self>) {
        cx.spawn_task(async {
            Clock::sleep(SECOND).await;
            panic!("the task panics");
        });
    }

    /// Asks another in a task and by itself, and says how long each took, in milliseconds.
    #[handler]
    fn reach(
        &mut self,
        other: Ref<Self>,
        beside: bool,
        cx: &mut Context<Self>,
    ) -> Later<Option<u64>> {
        let (tell, told) = tokio::sync::oneshot::channel();
        let reaching = async move {
            let begun = Clock::now();
            let asked = other.ask(Tick).timeout(SECOND).await;
            let took = Clock::now().since(begun).as_millis() as u64;
            let _ = tell.send(asked.ok().map(|()| took));
        };
        if beside {
            cx.spawn_task(reaching);
            return Later::new(async { told.await.unwrap_or_default() });
        }
        Later::new(async {
            reaching.await;
            told.await.unwrap_or_default()
        })
    }
}

fn simulated<F: Future<Output = ()>>(seed: u64, story: impl FnOnce(World) -> F) {
    let spec = SimulationSpec::new(odeon::job![Ticker])
        .delays(Duration::from_millis(20), Duration::from_millis(30))
        .supervision(Supervision::one_for_one().budget(50, Duration::from_secs(600)));
    System::simulated(seed, spec).run(async |world| {
        DIARY.with(|diary| diary.0.lock().unwrap().clear());
        BEGUN.set(Clock::now());
        story(world).await;
    });
}

async fn ticker(world: &World, ticks: bool) -> Ref<Ticker> {
    let spawn = world.nodes[0].spawn::<Ticker>(ticks);
    spawn.restart(Restart::Permanent).await.unwrap()
}

/// SEMANTICS 110.
#[test]
fn a_life_has_its_own_timers_and_the_next_one_no_more() {
    simulated(1, async |world| {
        let ticker = ticker(&world, true).await;
        for _ in 0..3 {
            Clock::sleep(SECOND * 10).await;
            ticker.ask(Boom).await.unwrap_err();
        }
        Clock::sleep(SECOND * 10).await;
        let lives = times("start");
        assert_eq!(lives.len(), 4);
        let ticks = times("tick");
        for (n, life) in lives.iter().enumerate() {
            let until = lives.get(n + 1).copied().unwrap_or(u128::MAX);
            let own = ticks
                .iter()
                .filter(|at| (life..&until).contains(at))
                .count();
            assert!(
                (9..=10).contains(&own),
                "life {n} ticked {own} times in ten seconds"
            );
        }
        ticker.stop().await.unwrap();
        let before = times("tick").len();
        Clock::sleep(SECOND * 10).await;
        assert_eq!(times("tick").len(), before, "who is over has no timer");
    });
}

/// SEMANTICS 110.
#[test]
fn ticks_that_nobody_could_handle_are_left_out_and_the_beat_is_kept() {
    simulated(2, async |world| {
        let ticker = ticker(&world, true).await;
        ticker
            .ask(Rest {
                time: SECOND * 5 + SECOND / 2,
            })
            .await
            .unwrap();
        Clock::sleep(SECOND * 3).await;
        // The one that fell due first waited in the mailbox; the next four were never sent.
        assert_eq!(times("tick"), [55, 60, 70, 80]);
    });
}

/// SEMANTICS 110.
#[test]
fn a_tick_in_the_mailbox_is_withdrawn_with_its_timer_or_its_life() {
    simulated(3, async |world| {
        let first = ticker(&world, true).await;
        let resting = first.tell(Rest { time: SECOND * 3 });
        resting.await.unwrap();
        first.tell(Cancel).await.unwrap();
        Clock::sleep(SECOND * 10).await;
        // It was sent before the message that cancels it, and handled before it.
        assert!(times("tick").len() <= 1);
        let second = ticker(&world, false).await;
        second.ask(Once { after: SECOND }).await.unwrap();
        second.tell(Rest { time: SECOND * 3 }).await.unwrap();
        Clock::sleep(SECOND * 2).await;
        let before = times("tick").len();
        world.nodes[0]
            .admin()
            .fail_actor(second.id(), Failure::error("enough"), SECOND * 60)
            .await
            .unwrap();
        Clock::sleep(SECOND * 10).await;
        assert_eq!(
            times("tick").len(),
            before,
            "the next life is not told of it"
        );
    });
}

/// SEMANTICS 110.
#[test]
fn a_timer_calls_its_actor_once_or_again_and_again() {
    simulated(4, async |world| {
        let ticker = ticker(&world, false).await;
        ticker.ask(Call).await.unwrap();
        ticker.down().await;
        assert_eq!(times("once"), [10]);
        assert_eq!(times("call"), [10, 20, 30]);
        assert_eq!(times("stop"), [40]);
    });
}

/// SEMANTICS 111.
#[test]
fn a_task_is_dropped_before_its_actor_stops_and_ends_it_when_it_panics() {
    simulated(5, async |world| {
        let first = ticker(&world, false).await;
        first.ask(Begin).await.unwrap();
        first.stop().await.unwrap();
        assert_eq!(order(), ["start", "dropped", "stop"]);
        let second = ticker(&world, false).await;
        second.ask(Begin).await.unwrap();
        second.ask(BeginWhatPanics).await.unwrap();
        let down = second.down().await;
        assert!(down.to_string().contains("the task panics"), "{down}");
        second.ask(Tick).await.unwrap();
        assert_eq!(order()[3..6], ["start", "dropped", "start"]);
        second.ask(AskYourself).await.unwrap();
        Clock::sleep(SECOND).await;
        assert_eq!(times("asked").len(), 1);
    });
}

/// SEMANTICS 111.
#[test]
fn a_task_of_a_simulated_actor_has_the_simulated_network() {
    for beside in [false, true] {
        simulated(6, async |world| {
            let near = ticker(&world, false).await;
            let far = world.nodes[1].spawn::<Ticker>(false).await.unwrap();
            let reach = || near.ask(Reach { other: far, beside });
            let took = reach().await.unwrap().expect("the network is whole");
            assert!((40..=70).contains(&took), "{took} ms there and back");
            world.network.part(0, 1);
            assert_eq!(reach().await.unwrap(), None);
        });
    }
}

/// SEMANTICS 111.
#[test]
fn a_task_that_belongs_to_no_node_is_told_what_to_write_and_one_in_a_scope_is_carried() {
    simulated(8, async |world| {
        let near = ticker(&world, false).await;
        let far = world.nodes[1].spawn::<Ticker>(false).await.unwrap();
        let refused = near.ask(Stray { other: far }).await.unwrap();
        let refused = refused.expect("it would bypass the network");
        assert_eq!(
            (&refused, refused.effect()),
            (&AskError::Adrift, Effect::No)
        );
        assert!(
            refused.to_string().contains("cx.spawn_task(..)"),
            "{refused}"
        );
        assert_eq!(times("tick"), [0; 0]);
        let system = world.nodes[0].clone();
        let scoped = tokio::spawn(async move { system.scope(far.ask(Tick).into_future()).await });
        scoped.await.unwrap().unwrap();
    });
}

/// SEMANTICS 111.
#[test]
fn a_simulation_begins_at_the_same_time_whatever_ran_before_it() {
    static BEGINS: AtomicU64 = AtomicU64::new(0);
    for _ in 0..3 {
        let spec = SimulationSpec::new(odeon::job![Ticker]);
        System::simulated(7, spec).run(async |_| {
            let now = Clock::now().0;
            let before = BEGINS.swap(now, Ordering::SeqCst);
            assert!(before == 0 || before == now, "{before} and {now}");
        });
    }
}
