//! Clients that bring a rank its batches: from a constructor, or from the rank that fetches for it.
//!
//! ```text
//!  DataConstructor <── Fetch ── DataClient of the first rank <── Next ── those of the others
//!                                        ^ Next                                 ^ Next
//!                                       rank                                   rank
//! ```
//!
//! Which of both follows from the mesh ([`FetchPlan`]): along the dimensions that a plan broadcasts at,
//! the first rank alone has a connection to the constructor. What goes on is the handle of the batch,
//! and its bytes cross to each node once.
//!
//! A client stands beside its rank in its process, since a rank that computes hears nothing.

use std::collections::BTreeMap;
use std::time::Duration;

use odeon::serde::{Deserialize, Serialize};
use odeon::{BlobView, Clock, Context, Failure, FailureKind, Later, Ref, actor, message};
use tokio::sync::{mpsc, oneshot};

use crate::constructor::{DataConstructor, Delivery, Fetch, FetchPictures};
use crate::pack::Packed;
use crate::plan::{Feed, FetchPlan};
use crate::sample::Image;

/// From where the ranks of a mesh have their batches.
#[derive(Clone, Debug, Serialize, Deserialize, odeon::Shape)]
#[serde(crate = "odeon::serde")]
pub struct Supply {
    /// Which ranks fetch what.
    pub fetch: FetchPlan,
    /// The constructors, each with the first bucket behind its own.
    pub constructors: Vec<(Ref<DataConstructor>, u32)>,
}

impl Supply {
    /// The constructor that has a bucket.
    ///
    /// # Errors
    /// There is no such bucket.
    pub fn constructor_of(&self, bucket: u32) -> Result<Ref<DataConstructor>, Failure> {
        let seat = self.constructors.iter().find(|(_, end)| bucket < *end);
        let nobody = || Failure::error(format!("nobody builds bucket {bucket}")).fatal();
        seat.map(|(actor, _)| *actor).ok_or_else(nobody)
    }
}

/// Serve a rank of this mesh from now on.
#[message(reply = Result<(), Failure>, name = "data.Serve")]
#[derive(Clone, Debug)]
pub struct Serve {
    /// The rank.
    pub rank: u32,
    /// From where.
    pub supply: Supply,
    /// The clients of all ranks, in their order.
    pub clients: Vec<Ref<DataClient>>,
}

/// Asks for the batch of a rank in a step; the rank has no more use for any before it.
#[message(reply = Result<Delivery, Failure>, name = "data.Next")]
#[derive(Clone, Debug)]
pub struct Next {
    /// The step.
    pub step: u64,
    /// The rank that asks: that of the client, or one that it feeds.
    pub rank: u32,
    /// Set where the batch that was answered before was gone with whoever made it.
    pub again: bool,
}

/// Asks for the counts of a client.
#[message(reply = ClientCounts, name = "data.CountBrought")]
#[derive(Clone, Debug)]
pub struct CountBrought;

/// See [`CountBrought`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, odeon::Shape)]
#[serde(crate = "odeon::serde")]
pub struct ClientCounts {
    /// Batches that it fetched from a constructor.
    pub fetched: u64,
    /// Batches that it had from another rank.
    pub fed: u64,
}

/// Asks whether somebody waits for the batch of this step, or of one before it.
#[message(reply = bool, name = "data.Awaits")]
#[derive(Clone, Copy, Debug)]
pub struct Awaits(pub u64);

/// A batch was brought, or cannot be had: see `arrivals`. A client tells itself.
#[message(name = "data.Brought")]
#[derive(Clone, Debug)]
struct Brought;

/// The actor beside a rank that has its next batches ready, also for the ranks behind it.
#[derive(Debug)]
pub struct DataClient {
    serving: Option<Serving>,
    batches: BTreeMap<u64, Batch>,
    /// Below which step each rank that it serves has passed.
    passed: BTreeMap<u32, u64>,
    waiting: Vec<(u64, oneshot::Sender<Result<Delivery, Failure>>)>,
    arrived: mpsc::UnboundedSender<(u64, Arrival)>,
    arrivals: mpsc::UnboundedReceiver<(u64, Arrival)>,
    counts: ClientCounts,
}

/// A batch, mapped, so that it stays when its constructor does not.
type Arrival = Result<(Delivery, BlobView), Failure>;

#[derive(Debug)]
enum Batch {
    Coming,
    There(Box<Arrival>),
}

#[derive(Clone, Copy, Debug)]
struct Serving {
    rank: u32,
    from: Source,
}

/// The actor that has batches.
#[derive(Clone, Copy, Debug)]
enum Source {
    Constructor(Ref<DataConstructor>),
    Client(Ref<DataClient>),
}

#[actor(name = "data.DataClient")]
impl DataClient {
    fn start(_: ()) -> Self {
        let (arrived, arrivals) = mpsc::unbounded_channel();
        Self {
            serving: None,
            batches: BTreeMap::new(),
            passed: BTreeMap::new(),
            waiting: vec![],
            arrived,
            arrivals,
            counts: ClientCounts::default(),
        }
    }

    #[handler(message = Serve)]
    fn serve(&mut self, serve: Serve) -> Result<(), Failure> {
        let rank = serve.rank;
        let client = |rank: u32| {
            let client = serve.clients.get(rank as usize).copied();
            client.ok_or_else(|| Failure::error(format!("rank {rank} has no client")))
        };
        let (from, fed) = match serve.supply.fetch.of(rank) {
            Feed::From(other) => (Source::Client(client(other)?), vec![]),
            Feed::Fetches(own) => {
                let constructor = serve.supply.constructor_of(own.bucket)?;
                (Source::Constructor(constructor), own.feeds)
            }
        };
        self.passed = fed.into_iter().chain([rank]).map(|it| (it, 0)).collect();
        self.serving = Some(Serving { rank, from });
        self.batches.clear();
        Ok(())
    }

    #[handler(message = Next)]
    fn next(&mut self, next: Next, cx: &mut Context<Self>) -> Later<Result<Delivery, Failure>> {
        let (answer, receiver) = oneshot::channel();
        if let Err(failure) = self.turn_to(&next, cx) {
            return Later::new(async move { Err(failure) });
        }
        self.waiting.push((next.step, answer));
        self.answer();
        Later::new(async move {
            let answer = receiver.await;
            answer.unwrap_or_else(|_| Err(Failure::error("the client has ended")))
        })
    }

    #[handler(message = Brought)]
    fn brought(&mut self, _brought: Brought) {
        while let Ok((step, arrival)) = self.arrivals.try_recv() {
            match self.serving.map(|serving| serving.from) {
                Some(Source::Client(_)) => self.counts.fed += 1,
                _ => self.counts.fetched += 1,
            }
            // One that all have passed meanwhile is in nobody's way.
            if let Some(batch) = self.batches.get_mut(&step) {
                *batch = Batch::There(Box::new(arrival));
            }
        }
        self.answer();
    }

    #[handler(message = CountBrought)]
    fn count(&mut self, _count: CountBrought) -> ClientCounts {
        self.counts
    }

    #[handler(message = Awaits)]
    fn awaits(&mut self, Awaits(step): Awaits) -> bool {
        let mut waiting = self.waiting.iter();
        waiting.any(|(wanted, answer)| *wanted <= step && !answer.is_closed())
    }
}

impl DataClient {
    /// A rank wants a step, and none before it.
    fn turn_to(&mut self, next: &Next, cx: &Context<Self>) -> Result<(), Failure> {
        let Next { step, rank, again } = *next;
        let Some(serving) = self.serving else {
            return Err(Failure::error("this client serves no rank yet"));
        };
        let Some(passed) = self.passed.get_mut(&rank) else {
            let own = serving.rank;
            let fed = format!("rank {rank} asks the client of rank {own}, which does not feed it");
            return Err(Failure::error(fed).fatal());
        };
        *passed = step;
        let below = self.passed.values().copied().min().unwrap_or(step);
        self.batches = self.batches.split_off(&below);
        let there = match self.batches.get(&step) {
            None => false,
            Some(Batch::Coming) => true,
            // What could not be had may be there now.
            Some(Batch::There(batch)) => batch.is_ok() && !again,
        };
        if !there {
            self.batches.insert(step, Batch::Coming);
            let (me, arrived) = (cx.me(), self.arrived.clone());
            cx.spawn_task(async move {
                let arrival = bring(serving, step, again).await;
                // One that is gone needs nothing.
                let _ = arrived.send((step, arrival));
                let _ = me.tell(Brought).await;
            });
        }
        Ok(())
    }

    fn answer(&mut self) {
        for (step, answer) in std::mem::take(&mut self.waiting) {
            match self.batches.get(&step) {
                // Who does not wait any more has asked again, or is gone.
                Some(Batch::There(batch)) => {
                    let batch = batch
                        .as_ref()
                        .as_ref()
                        .map(|(delivery, _)| delivery.clone());
                    drop(answer.send(batch.map_err(Clone::clone)));
                }
                Some(Batch::Coming) => self.waiting.push((step, answer)),
                None => {
                    let passed = format!("step {step} was passed by those who wanted it");
                    drop(answer.send(Err(Failure::error(passed))));
                }
            }
        }
    }
}

/// The longest time that a batch may take in all.
const PATIENCE: Duration = Duration::from_secs(600);

/// Before somebody is asked again.
const PAUSE: Duration = Duration::from_millis(20);

/// Times that somebody may be lost while it is asked one thing.
const LOSSES_MAX: u32 = 20;

/// The batch of a rank, mapped, over the losses of those who have it.
async fn bring(serving: Serving, step: u64, again: bool) -> Arrival {
    let mut losses = Losses(0);
    loop {
        let again = again || losses.0 > 0;
        match try_bring(serving, step, again).await {
            Err(failure) => losses.count(step, failure).await?,
            there => return there,
        }
    }
}

async fn try_bring(serving: Serving, step: u64, again: bool) -> Arrival {
    let rank = serving.rank;
    let asked = match serving.from {
        Source::Constructor(constructor) => {
            let fetch = Fetch { step, rank };
            constructor.ask(fetch).timeout(PATIENCE).await
        }
        Source::Client(client) => {
            let next = Next { step, rank, again };
            client.ask(next).timeout(PATIENCE).await
        }
    };
    let delivery = asked.map_err(Failure::error)??;
    let view = delivery.bytes.open().await.map_err(Failure::error)?;
    Ok((delivery, view))
}

/// Fetches and opens the batch of a rank that has no client, over the losses of the constructor.
///
/// # Errors
/// It cannot be built, or the constructor is lost again and again.
#[odeon::boxed]
pub async fn fetch(
    from: Ref<DataConstructor>,
    step: u64,
    rank: u32,
) -> Result<(Delivery, Vec<Packed>), Failure> {
    let mut losses = Losses(0);
    loop {
        let serving = Serving {
            rank,
            from: Source::Constructor(from),
        };
        let fetched = async {
            let (delivery, _view) = try_bring(serving, step, false).await?;
            let packed = delivery.open().await?;
            Ok((delivery, packed))
        };
        match fetched.await {
            Err(failure) => losses.count(step, failure).await?,
            there => return there,
        }
    }
}

/// The pictures that a rank encodes in a step, over the losses of the constructor.
///
/// # Errors
/// They cannot be had, or the constructor is lost again and again.
#[odeon::boxed]
pub async fn fetch_pictures(
    from: Ref<DataConstructor>,
    step: u64,
    rank: u32,
) -> Result<Vec<Image>, Failure> {
    let mut losses = Losses(0);
    loop {
        let fetched = async {
            let share = from.ask(FetchPictures { step, rank }).timeout(PATIENCE);
            share.await.map_err(Failure::error)??.open().await
        };
        match fetched.await {
            Err(failure) => losses.count(step, failure).await?,
            there => return there,
        }
    }
}

/// Number of times that somebody was lost while it was asked one thing.
struct Losses(u32);

impl Losses {
    /// Waits a little before it is asked once more.
    async fn count(&mut self, step: u64, failure: Failure) -> Result<(), Failure> {
        if self.0 == LOSSES_MAX || failure.kind == FailureKind::Fatal {
            return Err(failure);
        }
        self.0 += 1;
        tracing::debug!(step, %failure, "asking for it again");
        Clock::sleep(PAUSE).await;
        Ok(())
    }
}
