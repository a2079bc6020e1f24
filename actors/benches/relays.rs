//! The cost of bringing weights to relays: the time for which the process that makes them stands
//! still, and the time until all relays have them, beside one copy of the same bytes in the same
//! run.
//!
//! ```sh
//! cargo bench -p odeon-actors --bench relays
//! ```

#![allow(clippy::print_stdout, reason = "its table is what it is for")]

use std::time::Duration;

use odeon::{Clock, Context, Failure, Ref, Restart, System, Timestamp, actor, message};
use odeon_actors::rl::chain::{Forms, RelayId};
use odeon_actors::rl::relay::{Edition, Fresh, Relay, RelayArgs, Subscribe};
use odeon_actors::rl::relays::{Draw, Order, Relays};
use odeon_actors::rl::source::{Put, Source, SourceArgs};

const BYTES: usize = 64 << 20;
const VERSIONS: u64 = 7;
const BEAT: Duration = Duration::from_millis(200);

/// Makes weights in a process of its own, as a trainer does.
struct Maker {
    source: Ref<Source>,
    weights: Vec<u8>,
    copy: Vec<u8>,
}

/// Publishes a version. Answers how long a copy took, and how long it stood still for it.
#[message(reply = Result<(Duration, Duration), Failure>)]
struct Make(u64);

#[actor(name = "chain.Maker")]
impl Maker {
    async fn start(args: SourceArgs, cx: &mut Context<Self>) -> Result<Self, Failure> {
        let source = cx.spawn::<Source>(args).restart(Restart::Temporary).await;
        Ok(Self {
            source: source.map_err(Failure::error)?,
            weights: vec![1; BYTES],
            copy: vec![2; BYTES],
        })
    }

    #[handler(message = Make)]
    async fn make(
        &mut self,
        make: Make,
        cx: &mut Context<Self>,
    ) -> Result<(Duration, Duration), Failure> {
        let begun = Clock::now();
        self.copy.copy_from_slice(&self.weights);
        let copied = Clock::now().since(begun);
        let begun = Clock::now();
        let blob = cx.blobs().copy_in(&self.weights).map_err(Failure::error)?;
        let edition = Edition::new(cx.incarnation(), make.0);
        let put = self.source.tell(Put { edition, blob }).await;
        put.map_err(Failure::error)?;
        Ok((copied, Clock::now().since(begun)))
    }
}

/// Hears of new versions from all relays, as their rollouts do.
struct Listener {
    newest: Option<Edition>,
    heard: usize,
    begun: Timestamp,
    last: Timestamp,
}

/// A version is about to be made.
#[message(reply = ())]
struct Begin;

/// Asks for the number of relays that have this version, and the time until the last of them had
/// it.
#[message(reply = (usize, Duration))]
struct Heard(u64);

#[actor(name = "chain.Listener")]
impl Listener {
    async fn start(_args: ()) -> Result<Self, Failure> {
        Ok(Self {
            newest: None,
            heard: 0,
            begun: Clock::now(),
            last: Clock::now(),
        })
    }

    #[handler(message = Draw)]
    async fn draw(&mut self, draw: Draw, cx: &mut Context<Self>) {
        if let Err(error) = draw.0.tell(Subscribe(cx.me().narrow())).await {
            cx.fail(Failure::error(error));
        }
    }

    #[handler(message = Fresh)]
    fn fresh(&mut self, fresh: Fresh) {
        if self.newest != Some(fresh.0) {
            self.newest = Some(fresh.0);
            self.heard = 0;
        }
        self.heard += 1;
        self.last = Clock::now();
    }

    #[handler(message = Begin)]
    fn begin(&mut self, _begin: Begin) {
        self.begun = Clock::now();
    }

    #[handler(message = Heard)]
    fn heard(&mut self, heard: Heard) -> (usize, Duration) {
        let this = self
            .newest
            .is_some_and(|newest| newest.version() == heard.0);
        (
            if this { self.heard } else { 0 },
            self.last.since(self.begun),
        )
    }
}

fn main() -> anyhow::Result<()> {
    odeon::job![Listener, Maker, Relay, Relays, Source].run(run)
}

async fn run(system: System) -> anyhow::Result<()> {
    println!(
        "| relays | a copy of 64 MiB, ms | stands still, copies | all have it after, copies |"
    );
    println!("| --- | --- | --- | --- |");
    for relays in [1, 2, 4, 8] {
        let [copied, stall, all] = measure(&system, relays).await?;
        let ratio = |time: Duration| time.as_secs_f64() / copied.as_secs_f64();
        println!(
            "| {relays} | {:.1} | {:.1} | {:.1} |",
            copied.as_secs_f64() * 1e3,
            ratio(stall),
            ratio(all)
        );
    }
    Ok(())
}

/// The medians of a copy, of a publish, and of the way to all relays.
async fn measure(system: &System, count: usize) -> anyhow::Result<[Duration; 3]> {
    let chain = system.spawn::<Relays>(()).await?;
    let listener = system.spawn::<Listener>(()).await?;
    let mut relays = vec![];
    for id in 0..count as RelayId {
        let args = RelayArgs {
            id,
            relays: chain,
            seats: vec![listener.narrow()],
            beat: BEAT,
            forms: Forms::Full,
        };
        relays.push(system.spawn::<Relay>(args).isolated().await?);
    }
    while chain.ask(Order).await?.len() < count {
        Clock::sleep(BEAT).await;
    }
    let args = SourceArgs {
        relays: chain,
        beat: BEAT,
        forms: Forms::Full,
    };
    let maker = system.spawn::<Maker>(args).isolated().await?;
    let (mut copies, mut stalls, mut alls) = (vec![], vec![], vec![]);
    for version in 1..=VERSIONS {
        listener.ask(Begin).await?;
        let (copied, stall) = maker.ask(Make(version)).await??;
        let last = loop {
            let (heard, last) = listener.ask(Heard(version)).await?;
            if heard == count {
                break last;
            }
            Clock::sleep(Duration::from_millis(10)).await;
        };
        // The first ones touch memory that is fresh everywhere.
        if version > 2 {
            copies.push(copied);
            stalls.push(stall);
            alls.push(last.saturating_sub(copied));
        }
    }
    maker.stop().await?;
    for relay in relays {
        relay.stop().await?;
    }
    Ok([copies, stalls, alls].map(median))
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times[times.len() / 2]
}
