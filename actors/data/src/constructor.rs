//! Data constructors: make batches of what loaders have, near those who train on them.
//!
//! A constructor serves the buckets of some ranks. It asks for the plans of the next steps before
//! anybody wants them, takes the samples from their loaders, packs each micro-batch, cuts it where
//! ranks share sequences, and keeps the result as a blob that ranks map. It is the one connection of
//! its ranks to all loaders, and of all loaders to its ranks.
//!
//! What it has is made from plans and sources alone, so a constructor that is lost is made again and
//! makes the same.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use bytes::Bytes;
use futures::future::{join_all, try_join_all};
use odeon::serde::{Deserialize, Serialize};
use odeon::{
    ActorId, Blob, Blobs, Clock, Context, Failure, FailureKind, Later, Ref, Timestamp, actor,
    message,
};
use tokio::sync::oneshot;

use crate::asking::Holder;
use crate::ledger::{Built, Ledger, Product};
use crate::loader::Take;
use crate::pack::{Packed, PackedSlice};
use crate::plan::{self, Bucket, CellName, EncoderShare, Feed, FetchPlan, Slice};
use crate::planner::{Dealt, Part, PartOf, Passed, Planner};
use crate::sample::{Image, Reader, Sample, SampleError, SampleId, write_images};

/// The arguments of a constructor.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(crate = "odeon::serde")]
pub struct ConstructorArgs {
    /// The planner of the steps.
    pub planner: Ref<Planner>,
    /// The ledger of what was built.
    pub ledger: Ref<Ledger>,
    /// Which ranks fetch what.
    pub fetch: FetchPlan,
    /// Set where pictures are shared among all ranks, apart from their samples.
    pub encodes: bool,
    /// The first bucket that it builds.
    pub first: u32,
    /// Number of buckets that it builds.
    pub count: u32,
    /// The first step that somebody will want.
    pub step: u64,
    /// Steps that are built before somebody wants them.
    pub ahead: u64,
    /// The longest time that a loader may take before its shadow is asked, too.
    pub patience: Duration,
}

/// Asks for the batch of a rank in a step. Answered when it is built. A rank that fetches it has no
/// more use for the steps before.
#[message(reply = Result<Delivery, Failure>, name = "data.Fetch")]
#[derive(Clone, Debug)]
pub struct Fetch {
    /// The step.
    pub step: u64,
    /// The rank: bucket and slice follow from the mesh.
    pub rank: u32,
}

/// See [`Fetch`].
#[derive(Clone, Debug, Serialize, Deserialize, odeon::Shape)]
#[serde(crate = "odeon::serde")]
pub struct Delivery {
    /// The step.
    pub step: u64,
    /// The bucket.
    pub bucket: u32,
    /// Which part of each sequence.
    pub slice: Slice,
    /// Samples of the whole step.
    pub samples: u32,
    /// The samples of each micro-batch, in the order in which they are packed.
    pub microbatches: Vec<Vec<SampleId>>,
    /// Bytes of each packed micro-batch; one after the other they are `bytes`.
    pub lengths: Vec<u64>,
    /// The micro-batches, packed.
    pub bytes: Blob,
    /// A hash of the bytes, and of what is in them.
    pub digest: [u8; 32],
    /// For each rank the pictures of the step that it encodes ([`FetchPictures`]), and then the
    /// pictures here have no pixels; empty where they have.
    pub encoder: Vec<EncoderShare>,
}

/// The pictures of a step that a rank encodes, where the plan shares them among all. Answered when
/// they are there.
#[message(reply = Result<Share, Failure>, name = "data.FetchPictures")]
#[derive(Clone, Debug)]
pub struct FetchPictures {
    /// The step.
    pub step: u64,
    /// The rank.
    pub rank: u32,
}

/// See [`FetchPictures`].
#[derive(Clone, Debug, Serialize, Deserialize, odeon::Shape)]
#[serde(crate = "odeon::serde")]
pub struct Share {
    /// The pictures, in the order of the plan.
    pub bytes: Blob,
    /// Number of pictures.
    pub count: u32,
    /// A hash of the bytes.
    pub digest: [u8; 32],
}

impl Share {
    /// The pictures, with their pixels.
    ///
    /// # Errors
    /// The bytes are gone with who made them, or are none of pictures.
    #[odeon::boxed]
    pub async fn open(&self) -> Result<Vec<Image>, Failure> {
        let bytes = whole(&self.bytes).await?;
        let mut reader = Reader::new(&bytes);
        let images = reader.images(self.count);
        let images = images.and_then(|headers| reader.pixels(headers));
        images.map_err(Failure::error)
    }
}

impl Delivery {
    /// The packed micro-batches of a delivery that is not cut.
    ///
    /// # Errors
    /// The bytes are gone with who made them, or are none of whole micro-batches.
    #[odeon::boxed]
    pub async fn open(&self) -> Result<Vec<Packed>, Failure> {
        self.opened(Packed::decode).await
    }

    /// The slices of the micro-batches of a delivery that is cut.
    ///
    /// # Errors
    /// The bytes are gone with who made them, or are none of slices.
    #[odeon::boxed]
    pub async fn open_slices(&self) -> Result<Vec<PackedSlice>, Failure> {
        self.opened(PackedSlice::decode).await
    }

    async fn opened<T>(
        &self,
        decode: fn(&Bytes) -> Result<T, SampleError>,
    ) -> Result<Vec<T>, Failure> {
        let mut rest = whole(&self.bytes).await?;
        let mut opened = vec![];
        for length in &self.lengths {
            let length = *length as usize;
            if length > rest.len() {
                return Err(Failure::error("a delivery is cut off"));
            }
            let own = rest.split_to(length);
            opened.push(decode(&own).map_err(Failure::error)?);
        }
        Ok(opened)
    }
}

/// Asks for the counts of a constructor since it started.
#[message(reply = ConstructorCounts, name = "data.CountBuilt")]
#[derive(Clone, Debug)]
pub struct CountBuilt;

/// See [`CountBuilt`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, odeon::Shape)]
#[serde(crate = "odeon::serde")]
pub struct ConstructorCounts {
    /// Steps that were built.
    pub steps: u64,
    /// Samples in them.
    pub samples: u64,
    /// Seconds for which somebody waited for a batch that was not built.
    pub waited_seconds: f64,
    /// The longest of these waits.
    pub waited_max_seconds: f64,
    /// Bytes of batches that it has.
    pub held_bytes: u64,
}

/// A step was built, or cannot be. A constructor tells itself.
#[message(name = "data.StepBuilt")]
#[derive(Clone, Debug)]
struct StepBuilt {
    step: u64,
    /// Which order to build it was.
    round: u64,
    built: Step,
}

/// A step, or why there is none and never will be.
type Step = Result<BuiltStep, Failure>;

#[derive(Clone, Debug, Serialize, Deserialize, odeon::Shape)]
#[serde(crate = "odeon::serde")]
struct BuiltStep {
    /// Bucket by bucket and slice by slice.
    batches: Vec<Delivery>,
    /// By rank.
    shares: BTreeMap<u32, Share>,
}

/// Somebody waits for a batch.
#[derive(Debug)]
struct Waiter {
    step: u64,
    since: Timestamp,
    wanted: Wanted,
}

#[derive(Debug)]
enum Wanted {
    /// This of the step's batches.
    Batch(usize, oneshot::Sender<Result<Delivery, Failure>>),
    /// The pictures that this rank encodes.
    Share(u32, oneshot::Sender<Result<Share, Failure>>),
}

/// The actor that builds batches for some ranks, ahead of need, and serves them.
#[derive(Debug)]
pub struct DataConstructor {
    args: ConstructorArgs,
    blobs: Blobs,
    /// Steps that are built.
    built: BTreeMap<u64, Step>,
    /// The step that is ordered next.
    next: u64,
    /// Raised when it goes back: what was ordered before counts no more.
    round: u64,
    /// Below which step each rank that fetches, or encodes, has passed.
    passed: BTreeMap<u32, u64>,
    waiting: Vec<Waiter>,
    counts: ConstructorCounts,
}

#[actor(name = "data.DataConstructor")]
impl DataConstructor {
    async fn start(args: ConstructorArgs, cx: &mut Context<Self>) -> Result<Self, Failure> {
        let own = args.first..args.first + args.count;
        let fetch = &args.fetch;
        let ranks = (0..(fetch.mesh.len() as u32)).filter(|rank| {
            let comes = args.encodes || matches!(fetch.of(*rank), Feed::Fetches(_));
            comes && own.contains(&fetch.axis.bucket(&fetch.mesh, *rank))
        });
        let mut constructor = Self {
            passed: ranks.map(|rank| (rank, args.step)).collect(),
            blobs: cx.blobs(),
            built: BTreeMap::new(),
            next: args.step,
            round: 0,
            waiting: vec![],
            counts: ConstructorCounts::default(),
            args,
        };
        // A new life does not know what is wanted: that is said by who fetches.
        if cx.incarnation() == 1 {
            constructor.order(cx);
        }
        Ok(constructor)
    }

    #[handler(message = Fetch)]
    async fn fetch(
        &mut self,
        fetch: Fetch,
        cx: &mut Context<Self>,
    ) -> Later<Result<Delivery, Failure>> {
        let (answer, receiver) = oneshot::channel();
        let Fetch { step, rank } = fetch;
        let nth = match self.place_of(rank) {
            Ok(nth) => nth,
            Err(failure) => return Later::new(async move { Err(failure) }),
        };
        self.turn_to(step, rank, cx).await;
        self.waiting.push(Waiter {
            step,
            since: Clock::now(),
            wanted: Wanted::Batch(nth, answer),
        });
        self.answer();
        Later::new(async move {
            let answer = receiver.await;
            answer.unwrap_or_else(|_| Err(Failure::error("the constructor has ended")))
        })
    }

    #[handler(message = FetchPictures)]
    async fn fetch_pictures(
        &mut self,
        fetch: FetchPictures,
        cx: &mut Context<Self>,
    ) -> Later<Result<Share, Failure>> {
        let (answer, receiver) = oneshot::channel();
        let FetchPictures { step, rank } = fetch;
        if !self.passed.contains_key(&rank) || !self.args.encodes {
            let why = format!("rank {rank} has no pictures to encode here");
            return Later::new(async move { Err(Failure::error(why).fatal()) });
        }
        self.turn_to(step, rank, cx).await;
        self.waiting.push(Waiter {
            step,
            since: Clock::now(),
            wanted: Wanted::Share(rank, answer),
        });
        self.answer();
        Later::new(async move {
            let answer = receiver.await;
            answer.unwrap_or_else(|_| Err(Failure::error("the constructor has ended")))
        })
    }

    #[handler(message = StepBuilt)]
    fn step_built(&mut self, done: StepBuilt, cx: &mut Context<Self>) {
        if done.round != self.round {
            return;
        }
        match &done.built {
            Ok(built) => {
                self.counts.steps += 1;
                let samples = built
                    .batches
                    .iter()
                    .flat_map(|it| &it.microbatches)
                    .map(Vec::len);
                self.counts.samples += samples.sum::<usize>() as u64;
            }
            // Whoever wants it hears that; others may want what can be had.
            Err(failure) if failure.kind == FailureKind::Fatal => {}
            Err(failure) => {
                self.waiting.clear();
                return cx.fail(failure.clone());
            }
        }
        self.built.insert(done.step, done.built);
        self.answer();
    }

    #[handler(message = CountBuilt)]
    fn count(&mut self, _count: CountBuilt) -> ConstructorCounts {
        let held = self.built.values().flatten().map(|step| {
            let batches = step.batches.iter().map(|it| it.bytes.len());
            let shares = step.shares.values().map(|it| it.bytes.len());
            batches.chain(shares).sum::<u64>()
        });
        ConstructorCounts {
            held_bytes: held.sum(),
            ..self.counts
        }
    }
}

impl DataConstructor {
    /// Which of the batches of a step a rank fetches.
    fn place_of(&self, rank: u32) -> Result<usize, Failure> {
        let ConstructorArgs {
            fetch,
            first,
            count,
            ..
        } = &self.args;
        let refused = |why: String| Err(Failure::error(why).fatal());
        if rank >= (fetch.mesh.len() as u32) {
            let ranks = fetch.mesh.len();
            return refused(format!("rank {rank} fetches, and there are {ranks} ranks"));
        }
        let plan::Fetch { bucket, slice, .. } = match fetch.of(rank) {
            Feed::Fetches(fetch) => fetch,
            Feed::From(other) => {
                return refused(format!(
                    "rank {rank} is fed by rank {other} and does not fetch"
                ));
            }
        };
        match bucket.checked_sub(*first).filter(|own| own < count) {
            Some(own) => Ok((own * fetch.slices() + slice.part) as usize),
            None => refused(format!(
                "rank {rank} works on bucket {bucket}; this constructor has {count} from {first} on"
            )),
        }
    }

    /// A rank wants a step, and none before it.
    async fn turn_to(&mut self, step: u64, rank: u32, cx: &Context<Self>) {
        let low = self.passed.values().copied().min().unwrap_or(step);
        self.passed.insert(rank, step);
        let known = self.built.contains_key(&step) || (low..self.next).contains(&step);
        if !known {
            // Whoever trains has gone back, or a new life was asked for the first time.
            self.round += 1;
            self.built.clear();
            self.passed.values_mut().for_each(|below| *below = step);
            self.next = step;
        }
        let below = self.passed.values().copied().min().unwrap_or(step);
        if below != low || !known {
            self.built = self.built.split_off(&below);
            let passed = Passed {
                first: self.args.first,
                below,
            };
            // A planner that is gone hears it with the next.
            let _ = self.args.planner.tell(passed).await;
        }
        self.order(cx);
    }

    /// Orders the steps that are to be built ahead.
    fn order(&mut self, cx: &Context<Self>) {
        let below = self.passed.values().copied().min().unwrap_or(self.next);
        while self.next < below + self.args.ahead.max(1) {
            let (step, round, me) = (self.next, self.round, cx.me());
            let build = build(self.args.clone(), self.blobs.clone(), step);
            cx.spawn_task(async move {
                let built = build.await;
                // One that is gone needs nothing.
                let _ = me.tell(StepBuilt { step, round, built }).await;
            });
            self.next += 1;
        }
    }

    fn answer(&mut self) {
        for waiter in std::mem::take(&mut self.waiting) {
            let Some(built) = self.built.get(&waiter.step) else {
                self.waiting.push(waiter);
                continue;
            };
            let waited = Clock::now().since(waiter.since).as_secs_f64();
            self.counts.waited_seconds += waited;
            self.counts.waited_max_seconds = self.counts.waited_max_seconds.max(waited);
            let built = built.as_ref().map_err(Clone::clone);
            // Who does not wait any more has asked again, or is gone.
            match waiter.wanted {
                Wanted::Batch(nth, answer) => {
                    drop(answer.send(built.map(|step| step.batches[nth].clone())));
                }
                Wanted::Share(rank, answer) => {
                    let lacks = || Failure::error("the plan shares no pictures").fatal();
                    let share = built.and_then(|step| {
                        let share = step.shares.get(&rank).cloned();
                        share.ok_or_else(lacks)
                    });
                    drop(answer.send(share));
                }
            }
        }
    }
}

/// The longest time that the planner may take: as long as reading may.
const PATIENCE: Duration = Duration::from_secs(180);

/// Before the planner, or what was lost with a loader, is asked for again.
const PAUSE: Duration = Duration::from_millis(20);

/// Times that something may be lost while one step is built.
const LOSSES_MAX: u32 = 50;

/// Builds a step, over the losses of those who help.
async fn build(args: ConstructorArgs, blobs: Blobs, step: u64) -> Step {
    let mut losses = 0;
    loop {
        match try_build(&args, &blobs, step).await {
            Err(failure) if failure.kind != FailureKind::Fatal && losses < LOSSES_MAX => {
                losses += 1;
                tracing::debug!(step, %failure, "building it again");
                Clock::sleep(PAUSE).await;
            }
            ended => return ended,
        }
    }
}

async fn try_build(args: &ConstructorArgs, blobs: &Blobs, step: u64) -> Step {
    let wanted = PartOf {
        step,
        first: args.first,
        count: args.count,
    };
    let dealt = args.planner.ask(wanted).timeout(PATIENCE).await;
    let part = match dealt.map_err(Failure::error)?? {
        Dealt::Part(part) => part,
        Dealt::Ended(ended) => return Err(Failure::error(ended).fatal()),
    };
    let shares = shares(args, &part);
    let pictures = shares.iter().flat_map(|(_, share)| &share.pictures);
    let wanted: BTreeSet<SampleId> = part
        .own
        .iter()
        .flat_map(Bucket::samples)
        .chain(pictures.map(|it| it.sample))
        .collect();
    let samples = fetch_samples(wanted, &part.holders, args.patience).await?;
    let mut deliveries = vec![];
    for (bucket, nth) in part.own.iter().zip(args.first..) {
        let mut packed = pack(bucket, &samples)?;
        if !part.encoder.is_empty() {
            packed = packed.into_iter().map(Packed::without_pixels).collect();
        }
        for part_of in 0..args.fetch.slices() {
            let slice = Slice {
                part: part_of,
                of: args.fetch.slices(),
            };
            let batch = Batch {
                bucket,
                nth,
                slice,
                packed: &packed,
            };
            deliveries.push(batch.delivered(&part, &args.fetch, blobs)?);
        }
    }
    let mut encoded = BTreeMap::new();
    for (rank, share) in shares {
        encoded.insert(rank, share_of(share, &samples, blobs)?);
    }
    let batches = deliveries.iter().map(|delivery| {
        let product = Product::Batch {
            bucket: delivery.bucket,
            buckets: part.buckets,
            slice: delivery.slice,
        };
        (product, delivery.digest)
    });
    let pictures = encoded.iter().map(|(rank, share)| {
        let product = Product::Pictures {
            rank: *rank,
            ranks: part.encoder.len() as u32,
        };
        (product, share.digest)
    });
    let told = batches.chain(pictures).map(|(product, digest)| {
        args.ledger.ask(Built {
            step,
            product,
            digest,
        })
    });
    for told in join_all(told).await {
        told.map_err(Failure::error)??;
    }
    Ok(BuiltStep {
        batches: deliveries,
        shares: encoded,
    })
}

/// The shares of encoding of the ranks that work on the buckets of a constructor.
fn shares<'a>(args: &ConstructorArgs, part: &'a Part) -> Vec<(u32, &'a EncoderShare)> {
    let own = args.first..args.first + args.count;
    let (mesh, axis) = (&args.fetch.mesh, args.fetch.axis);
    let shares = (0..).zip(&part.encoder);
    shares
        .filter(|(rank, _)| own.contains(&axis.bucket(mesh, *rank)))
        .collect()
}

/// The pictures of a share.
fn share_of(share: &EncoderShare, samples: &Fetched, blobs: &Blobs) -> Result<Share, Failure> {
    let mut images = vec![];
    for picture in &share.pictures {
        let id = picture.sample;
        let image = samples
            .sample(id)?
            .images
            .get(picture.nth as usize)
            .cloned();
        let lacks = || Failure::error(format!("{id:?} has no picture {}", picture.nth));
        images.push(image.ok_or_else(lacks)?);
    }
    let mut bytes = vec![];
    write_images(&images, &mut bytes);
    for image in &images {
        bytes.extend_from_slice(&image.pixels);
    }
    Ok(Share {
        count: images.len() as u32,
        digest: *blake3::hash(&bytes).as_bytes(),
        bytes: blobs.copy_in(&bytes).map_err(Failure::error)?,
    })
}

/// Where the bytes of each sample are.
type Samples = BTreeMap<SampleId, (usize, std::ops::Range<usize>)>;

/// Bytes that loaders have handed out.
struct Fetched {
    views: Vec<Bytes>,
    at: Samples,
}

/// Takes samples from those who have them, from each in one go.
async fn fetch_samples(
    samples: BTreeSet<SampleId>,
    holders: &[(CellName, Holder)],
    patience: Duration,
) -> Result<Fetched, Failure> {
    let holders: BTreeMap<CellName, Holder> = holders.iter().copied().collect();
    let mut wanted: BTreeMap<ActorId, (Holder, Vec<SampleId>)> = BTreeMap::new();
    for id in samples {
        let holder = holders.get(&CellName::of(id));
        let holder = *holder.ok_or_else(|| Failure::error(format!("nobody has {id:?}")))?;
        let (_, ids) = wanted
            .entry(holder.number())
            .or_insert_with(|| (holder, vec![]));
        ids.push(id);
    }
    let taken = wanted.into_values().map(async |(holder, ids)| {
        let take = Take {
            samples: ids.clone(),
        };
        let taken = holder.ask(take, patience).await?;
        Ok::<_, Failure>((ids, taken.lengths, whole(&taken.bytes).await?))
    });
    let mut fetched = Fetched {
        views: vec![],
        at: BTreeMap::new(),
    };
    for (ids, lengths, view) in try_join_all(taken).await? {
        let nth = fetched.views.len();
        let mut begin = 0;
        for (id, length) in ids.into_iter().zip(lengths) {
            let end = begin + length as usize;
            fetched.at.insert(id, (nth, begin..end));
            begin = end;
        }
        fetched.views.push(view);
    }
    Ok(fetched)
}

impl Fetched {
    fn sample(&self, id: SampleId) -> Result<Sample, Failure> {
        let lacks = || Failure::error(format!("{id:?} was not handed out"));
        let (view, range) = self.at.get(&id).ok_or_else(lacks)?;
        let bytes = Some(&self.views[*view]).filter(|bytes| range.end <= bytes.len());
        let bytes = bytes.ok_or_else(lacks)?.slice(range.clone());
        Sample::decode(&bytes).map_err(|error| Failure::error(format!("{id:?}: {error}")))
    }
}

/// The bytes of a blob, mapped.
async fn whole(blob: &Blob) -> Result<Bytes, Failure> {
    let view = blob.open().await.map_err(Failure::error)?;
    Ok(Bytes::from_owner(view))
}

/// The micro-batches of a bucket, packed.
fn pack(bucket: &Bucket, samples: &Fetched) -> Result<Vec<Packed>, Failure> {
    let mut packed = vec![];
    for microbatch in &bucket.microbatches {
        let own = microbatch.samples.iter().map(|id| samples.sample(*id));
        let own: Vec<Sample> = own.collect::<Result<_, _>>()?;
        packed.push(Packed::pack(&own).map_err(Failure::error)?);
    }
    Ok(packed)
}

/// A part of each sequence of a bucket.
struct Batch<'a> {
    bucket: &'a Bucket,
    /// Its number.
    nth: u32,
    slice: Slice,
    packed: &'a [Packed],
}

impl Batch<'_> {
    fn delivered(
        &self,
        part: &Part,
        fetch: &FetchPlan,
        blobs: &Blobs,
    ) -> Result<Delivery, Failure> {
        let mut bytes = vec![];
        let mut lengths = vec![];
        for packed in self.packed {
            let begin = bytes.len();
            if self.slice == Slice::WHOLE {
                packed.encode_into(&mut bytes);
            } else {
                let slice = packed.slice(fetch.slicing, self.slice);
                slice.encode_into(&mut bytes);
            }
            lengths.push((bytes.len() - begin) as u64);
        }
        let microbatches = self.bucket.microbatches.iter();
        let microbatches: Vec<Vec<SampleId>> = microbatches.map(|it| it.samples.clone()).collect();
        let mut hasher = blake3::Hasher::new();
        for id in microbatches.iter().flatten() {
            for number in [u32::from(id.source.0), id.epoch, id.cell, id.nth] {
                hasher.update(&number.to_le_bytes());
            }
        }
        hasher.update(&bytes);
        Ok(Delivery {
            step: part.step,
            bucket: self.nth,
            slice: self.slice,
            samples: part.samples,
            microbatches,
            lengths,
            bytes: blobs.copy_in(&bytes).map_err(Failure::error)?,
            digest: *hasher.finalize().as_bytes(),
            encoder: part.encoder.clone(),
        })
    }
}
