//! Remote asks over a unix socket to a worker process, against a framed echo over the same kind of
//! socket to another process.

use std::sync::Arc;

use odeon::{Clock, Ref};
use tokio::sync::Mutex;

use crate::alone::Alone;
use crate::far::Far;
use crate::floor::{Direct, Echoing, blocking_round_trip};
use crate::mux::Mux;
use crate::pace::{Laps, PIPELINED, SEQUENTIAL, rate, rate_of_tasks};
use crate::row::{Row, Target, median};
use crate::subject::{self, Echo, Note, Subject};
use crate::turns::{higher, in_turns, lower, measured};

/// The median time of an ask.
pub(crate) async fn ask_round_trip(actor: Ref<Subject>) -> anyhow::Result<f64> {
    let mut laps = Laps::default();
    for _ in 0..SEQUENTIAL {
        let begun = Clock::now();
        actor.ask(Echo([7; 8])).await?;
        laps.add(begun);
    }
    Ok(median(&laps.0))
}

pub(crate) async fn ask_rate(actor: Ref<Subject>) -> anyhow::Result<f64> {
    rate(move || async move {
        actor.ask(Echo([7; 8])).await?;
        Ok(())
    })
    .await
}

pub(crate) async fn ask_rate_of_tasks(actor: Ref<Subject>) -> anyhow::Result<f64> {
    rate_of_tasks(|count| async move {
        for _ in 0..count {
            actor.ask(Echo([7; 8])).await?;
        }
        Ok(())
    })
    .await
}

pub(crate) async fn tell_rate(actor: Ref<Subject>) -> anyhow::Result<f64> {
    let begun = Clock::now();
    for _ in 1..PIPELINED {
        actor
            .tell(Note([7; 8]))
            .await
            .map_err(|error| error.error)?;
    }
    actor.ask(Echo([7; 8])).await?;
    Ok(PIPELINED as f64 / Clock::now().since(begun).as_secs_f64())
}

/// A mux over a new echo process, by tasks of the present runtime.
async fn mux() -> anyhow::Result<(Far, Mux)> {
    let (far, stream) = Echoing::Blocking.start_async()?;
    let (reader, writer) = stream.into_split();
    Ok((far, Mux::new(reader, writer)))
}

pub(crate) async fn measure(rounds: usize) -> anyhow::Result<Vec<Row>> {
    let system = subject::system().await?;
    let actor = system.spawn::<Subject>(()).isolated().await?;
    let alone = Alone::start()?;
    let (_blocking, socket) = Echoing::Blocking.start()?;
    let socket = Arc::new(socket);
    let (_direct, direct) = alone
        .run(async {
            let (far, stream) = Echoing::OneThread.start_async()?;
            let (reader, writer) = stream.into_split();
            Ok((far, Arc::new(Mutex::new(Direct::new(reader, writer)))))
        })
        .await?;
    let (_shared, shared) = mux().await?;
    let (_lone, lone) = alone.run(mux()).await?;
    let subjects = [
        measured(|| async {
            let socket = Arc::clone(&socket);
            tokio::task::spawn_blocking(move || blocking_round_trip(&socket)).await?
        }),
        measured(|| {
            let direct = Arc::clone(&direct);
            alone.run(async move { direct.lock().await.round_trip().await })
        }),
        measured(|| async { tokio::spawn(ask_round_trip(actor)).await? }),
        measured(|| async { tokio::spawn(shared.clone().rate()).await? }),
        measured(|| alone.run(lone.clone().rate())),
        measured(|| async { tokio::spawn(ask_rate(actor)).await? }),
        measured(|| shared.clone().rate_of_tasks()),
        measured(|| alone.run(lone.clone().rate_of_tasks())),
        measured(|| ask_rate_of_tasks(actor)),
        measured(|| async { tokio::spawn(tell_rate(actor)).await? }),
    ];
    let [
        blocking,
        direct,
        ask,
        mux,
        lone_mux,
        asks,
        mux_of_tasks,
        lone_mux_of_tasks,
        asks_of_tasks,
        tells,
    ] = in_turns(rounds, subjects).await?;
    system.shutdown().await;
    Ok(vec![
        Row::on_floor(
            "unix ask p50",
            "us",
            &ask,
            (
                "framed echo, one at a time, the quicker of blocking threads and one-thread runtimes",
                &lower(&blocking, &direct),
            ),
            Target::RatioAtMost(1.3),
        ),
        Row::on_floor(
            "unix asks, 1000 outstanding",
            "/s",
            &asks,
            (MUX, &higher(&mux, &lone_mux)),
            Target::RatioAtLeast(0.6),
        ),
        Row::on_floor(
            "unix asks, 1000 tasks",
            "/s",
            &asks_of_tasks,
            (MUX, &higher(&mux_of_tasks, &lone_mux_of_tasks)),
            Target::RatioAtLeast(0.6),
        ),
        Row::single("unix tells", "/s", &tells, None),
    ])
}

/// The floor of many asks.
const MUX: &str = "framed echo through a mux, the quicker of a shared and a one-thread runtime";
