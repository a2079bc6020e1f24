//! Timers of actors: the processor time of a tick, and of timers that have nothing to do.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use odeon::serde::{Deserialize, Serialize};
use odeon::{Clock, Context, System, actor, message};
use tokio::task::JoinSet;

use crate::row::{Row, Target};
use crate::subject;
use crate::turns::{in_turns, measured};

/// Timers that tick, and their period: 200,000 ticks a second.
const TIMERS: u32 = 200;
const PERIOD: Duration = Duration::from_millis(1);
/// Timers that do not tick while they are measured.
const IDLE: u32 = 10_000;
const FAR_OFF: Duration = Duration::from_secs(3600);
/// The time in which processor time is counted.
const WINDOW: Duration = Duration::from_millis(500);

/// Has so many timers of a period.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(crate = "odeon::serde")]
struct Timers {
    count: u32,
    period: Duration,
}

/// An actor with timers, which counts their ticks.
struct Ticking(u64);

#[message(name = "bench.Tick")]
#[derive(Clone, Debug)]
struct Tick;

#[message(reply = u64, name = "bench.Ticks")]
#[derive(Debug)]
struct Ticks;

#[actor(name = "bench.Ticking")]
impl Ticking {
    fn start(timers: Timers, cx: &mut Context<Self>) -> Self {
        for _ in 0..timers.count {
            cx.every(timers.period, Tick);
        }
        Self(0)
    }

    #[handler(message = Tick)]
    fn tick(&mut self, _tick: Tick) {
        self.0 += 1;
    }

    #[handler(message = Ticks)]
    fn ticks(&mut self, _ticks: Ticks) -> u64 {
        self.0
    }
}

/// Processor time of this process so far.
fn processor_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec as u32)
}

/// Processor nanoseconds for each tick in a window.
async fn ticking(system: &System) -> anyhow::Result<f64> {
    let timers = Timers {
        count: TIMERS,
        period: PERIOD,
    };
    let actor = system.spawn::<Ticking>(timers).await?;
    let (before, begun) = (actor.ask(Ticks).await?, processor_time());
    Clock::sleep(WINDOW).await;
    let spent = processor_time() - begun;
    let ticks = actor.ask(Ticks).await? - before;
    actor.stop().await?;
    Ok(spent.as_nanos() as f64 / ticks as f64)
}

/// The same with a task of tokio and its interval for each timer.
async fn bare() -> anyhow::Result<f64> {
    let ticks = Arc::new(AtomicU64::new(0));
    let mut tasks = JoinSet::new();
    for _ in 0..TIMERS {
        let ticks = Arc::clone(&ticks);
        tasks.spawn(async move {
            let mut interval = tokio::time::interval(PERIOD);
            loop {
                interval.tick().await;
                ticks.fetch_add(1, Ordering::Relaxed);
            }
        });
    }
    let (before, begun) = (ticks.load(Ordering::Relaxed), processor_time());
    Clock::sleep(WINDOW).await;
    let spent = processor_time() - begun;
    let ticks = ticks.load(Ordering::Relaxed) - before;
    tasks.shutdown().await;
    Ok(spent.as_nanos() as f64 / ticks as f64)
}

/// Processor time in a second of an actor with so many timers that are not due, in microseconds.
async fn idle(system: &System, count: u32) -> anyhow::Result<f64> {
    let timers = Timers {
        count,
        period: FAR_OFF,
    };
    let actor = system.spawn::<Ticking>(timers).await?;
    actor.ask(Ticks).await?;
    let begun = processor_time();
    Clock::sleep(WINDOW).await;
    let spent = processor_time() - begun;
    actor.stop().await?;
    Ok(spent.as_secs_f64() * 1e6 / WINDOW.as_secs_f64())
}

pub(crate) async fn measure(rounds: usize) -> anyhow::Result<Vec<Row>> {
    let system = subject::system().await?;
    let subjects = [
        measured(|| ticking(&system)),
        measured(bare),
        measured(|| idle(&system, IDLE)),
        measured(|| idle(&system, 0)),
    ];
    let [tick, bare, idle, none] = in_turns(rounds, subjects).await?;
    system.shutdown().await;
    Ok(vec![
        Row::against(
            "tick of a timer",
            "ns",
            &tick,
            ("processor time of a tick of tokio's interval", &bare),
            Target::AtMost(2000.0),
        ),
        Row::against(
            "10,000 timers that are not due",
            "us",
            &idle,
            ("processor time in a second without any", &none),
            Target::RatioAtMost(2.0),
        ),
    ])
}
