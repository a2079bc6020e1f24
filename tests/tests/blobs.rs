//! Blobs between actors: in one process, between the processes of a node, and between nodes; what
//! keeps them alive, and what remains when a process is killed.

use std::collections::HashMap;
use std::time::Duration;

use odeon::{
    Actor, Blob, BlobError, BlobStats, BlobView, Blobs, Context, Failure, Handler, Limits, Message,
    Recipient, Ref, Restart, Shape, System, WorkerCommand, WorkerMode, codec,
};
use serde::{Deserialize, Serialize};

macro_rules! messages {
    ($($name:ident { $($field:ident: $type:ty),* } -> $reply:ty;)*) => { $(
        #[derive(Serialize, Deserialize)]
        struct $name { $($field: $type),* }
        impl Shape for $name {
            const SHAPE: u64 = odeon::shape::name(stringify!($name));
        }
        impl Message for $name {
            const NAME: &'static str = stringify!($name);
            type Reply = $reply;
        }
    )* };
}

messages! {
    // Reads it and lets it go.
    Sum { blob: Blob } -> Result<u64, BlobError>;
    // Keeps the handle, and with `open` a view too, under a name.
    Keep { name: u32, blob: Blob, open: bool } -> Result<(), BlobError>;
    // Reads what was kept: through the view if there is one, else through the handle.
    SumKept { name: u32 } -> Result<u64, BlobError>;
    Drop { name: u32 } -> ();
    // Makes one of its own, and keeps it under the name if there is one.
    Make { name: Option<u32>, len: usize, seed: u8 } -> Result<Blob, BlobError>;
    // Passes on what was kept, and forgets it at once.
    PassOn { name: u32, to: Recipient<Sum> } -> Result<u64, BlobError>;
    // Resolves when none of its own blobs is left.
    Empty {} -> BlobStats;
    Stats {} -> BlobStats;
    Pid {} -> u32;
}

#[derive(Default)]
struct Reader {
    kept: HashMap<u32, (Blob, Option<BlobView>)>,
}

impl Actor for Reader {
    const NAME: &'static str = "test.Reader";
    type Args = ();
    async fn start((): (), _: &mut Context<Self>) -> Result<Self, Failure> {
        Ok(Self::default())
    }
}
impl Handler<Sum> for Reader {
    async fn handle(&mut self, Sum { blob }: Sum, _: &mut Context<Self>) -> Result<u64, BlobError> {
        Ok(sum(&blob.open().await?))
    }
}
impl Handler<Keep> for Reader {
    async fn handle(&mut self, keep: Keep, _: &mut Context<Self>) -> Result<(), BlobError> {
        let view = if keep.open { Some(keep.blob.open().await?) } else { None };
        self.kept.insert(keep.name, (keep.blob, view));
        Ok(())
    }
}
impl Handler<SumKept> for Reader {
    async fn handle(&mut self, kept: SumKept, _: &mut Context<Self>) -> Result<u64, BlobError> {
        match &self.kept[&kept.name] {
            (_, Some(view)) => Ok(sum(view)),
            (blob, None) => Ok(sum(&blob.open().await?)),
        }
    }
}
impl Handler<Drop> for Reader {
    async fn handle(&mut self, Drop { name }: Drop, _: &mut Context<Self>) {
        self.kept.remove(&name);
    }
}
impl Handler<Make> for Reader {
    async fn handle(&mut self, make: Make, cx: &mut Context<Self>) -> Result<Blob, BlobError> {
        let blob = cx.blobs().copy_in(&pattern(make.len, make.seed))?;
        if let Some(name) = make.name {
            self.kept.insert(name, (blob.clone(), None));
        }
        Ok(blob)
    }
}
impl Handler<PassOn> for Reader {
    async fn handle(&mut self, pass: PassOn, _: &mut Context<Self>) -> Result<u64, BlobError> {
        let (blob, _) = self.kept.remove(&pass.name).unwrap();
        pass.to.ask(Sum { blob }).await.unwrap()
    }
}
impl Handler<Empty> for Reader {
    async fn handle(&mut self, _: Empty, cx: &mut Context<Self>) -> BlobStats {
        cx.blobs().when(|stats| stats.blobs == 0).await
    }
}
impl Handler<Stats> for Reader {
    async fn handle(&mut self, _: Stats, cx: &mut Context<Self>) -> BlobStats {
        cx.blobs().stats()
    }
}
impl Handler<Pid> for Reader {
    async fn handle(&mut self, _: Pid, _: &mut Context<Self>) -> u32 {
        std::process::id()
    }
}
odeon::register!(Reader: Sum, Keep, SumKept, Drop, Make, PassOn, Empty, Stats, Pid);

/// Becomes a worker when this test binary is started as one.
#[test]
fn worker_entry() {
    odeon::job![Reader].serve_if_worker();
}

async fn system_with(change: impl FnOnce(&mut Limits)) -> System {
    let worker = WorkerCommand::current_exe().unwrap().arg("worker_entry").arg("--exact");
    let mut limits = Limits::default();
    change(&mut limits);
    let builder = System::builder().workers(WorkerMode::Processes(worker)).limits(limits);
    builder.start().await.unwrap()
}

async fn system() -> System {
    system_with(|_| ()).await
}

async fn isolated(system: &System) -> Ref<Reader> {
    system.spawn::<Reader>(()).isolated().restart(Restart::Temporary).await.unwrap()
}

fn pattern(len: usize, seed: u8) -> Vec<u8> {
    (0..len).map(|i| (i as u8).wrapping_mul(31).wrapping_add(seed)).collect()
}

/// Depends on every byte and its place.
fn sum(bytes: &[u8]) -> u64 {
    bytes.iter().fold(bytes.len() as u64, |sum, byte| {
        sum.rotate_left(7).wrapping_add(u64::from(*byte)).wrapping_mul(0x9e37_79b9_7f4a_7c15)
    })
}

/// Waits for the fact, or fails with what was the case instead.
async fn wait_for(blobs: &Blobs, what: &str, fact: impl Fn(&BlobStats) -> bool + Send) {
    let waited = tokio::time::timeout(Duration::from_secs(20), blobs.when(fact)).await;
    assert!(waited.is_ok(), "{what}: {:?}", blobs.stats());
}

#[tokio::test]
async fn in_one_process_the_bytes_are_shared_without_a_mapping() {
    let system = system().await;
    let blobs = system.blobs();
    let actor = system.spawn::<Reader>(()).await.unwrap();
    let mut writer = blobs.writer(3 << 20).unwrap();
    writer.copy_from_slice(&pattern(3 << 20, 1));
    let place = writer.as_ptr();
    let blob = writer.seal();
    assert_eq!(blob.len(), 3 << 20);
    let view = blob.open().await.unwrap();
    assert_eq!(view.as_ptr(), place);
    let expected = sum(&view);
    assert_eq!(actor.ask(Sum { blob }).await.unwrap(), Ok(expected));
    let stats = blobs.stats();
    assert_eq!((stats.blobs, stats.mapped_slabs, stats.in_transit), (1, 0, 0));
    drop(view);
    wait_for(&blobs, "dropping the last view frees it", |stats| stats.bytes == 0).await;
    assert_eq!(blobs.stats().node_bytes, 0);
    system.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_reads_in_place_and_its_lease_ends_with_its_last_handle() {
    let system = system().await;
    let blobs = system.blobs();
    let worker = isolated(&system).await;
    for len in [0, 1, 100, 70_000, 9 << 20] {
        let bytes = pattern(len, 7);
        let blob = blobs.copy_in(&bytes).unwrap();
        worker.ask(Keep { name: 1, blob: blob.clone(), open: false }).await.unwrap().unwrap();
        assert_eq!(worker.ask(SumKept { name: 1 }).await.unwrap(), Ok(sum(&bytes)));
        let again = Keep { name: 2, blob: blob.clone(), open: true };
        worker.ask(again).await.unwrap().unwrap();
        drop(blob);
        wait_for(&blobs, "arrivals end the pins", |s| s.in_transit == 0 && s.leased == 1).await;
        worker.ask(Drop { name: 1 }).await.unwrap();
        assert_eq!(worker.ask(SumKept { name: 2 }).await.unwrap(), Ok(sum(&bytes)));
        assert_eq!(blobs.stats().blobs, 1, "the view keeps it");
        worker.ask(Drop { name: 2 }).await.unwrap();
        wait_for(&blobs, "the last view frees it", |stats| stats.blobs == 0).await;
    }
    assert_eq!(worker.ask(Stats {}).await.unwrap().foreign, 0);
    system.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_blob_of_a_worker_is_read_by_its_node_and_passed_to_another_worker() {
    let system = system().await;
    let (maker, other) = (isolated(&system).await, isolated(&system).await);
    let expected = sum(&pattern(5 << 20, 3));
    let blob = maker.ask(Make { name: None, len: 5 << 20, seed: 3 }).await.unwrap().unwrap();
    assert_ne!(maker.ask(Pid {}).await.unwrap(), std::process::id());
    assert_eq!(sum(&blob.open().await.unwrap()), expected);
    assert_eq!(system.blobs().stats().blobs, 0, "nothing was copied");
    // Passed on by a process that forgets it at once, and again by the next one.
    other.ask(Keep { name: 1, blob, open: false }).await.unwrap().unwrap();
    assert_eq!(other.ask(SumKept { name: 1 }).await.unwrap(), Ok(expected));
    let third = isolated(&system).await;
    let passed = other.ask(PassOn { name: 1, to: third.narrow() }).await.unwrap();
    assert_eq!(passed, Ok(expected));
    let stats = maker.ask(Empty {}).timeout(Duration::from_secs(20)).await.unwrap();
    assert_eq!((stats.leased, stats.in_transit), (0, 0));
    // And home again: the owner finds its own bytes.
    maker.ask(Make { name: Some(9), len: 100, seed: 4 }).await.unwrap().unwrap();
    let home = maker.ask(Make { name: None, len: 77, seed: 5 }).await.unwrap().unwrap();
    assert_eq!(maker.ask(Sum { blob: home }).await.unwrap(), Ok(sum(&pattern(77, 5))));
    assert_eq!(maker.ask(Stats {}).await.unwrap().mapped_slabs, 0);
    system.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_handle_on_its_way_outlives_the_one_it_was_sent_from() {
    let system = system().await;
    let blobs = system.blobs();
    let worker = isolated(&system).await;
    let bytes = pattern(300_000, 9);
    for _ in 0..20 {
        let blob = blobs.copy_in(&bytes).unwrap();
        let sent = worker.ask(Sum { blob });
        assert_eq!(sent.await.unwrap(), Ok(sum(&bytes)));
    }
    wait_for(&blobs, "nothing stays behind", |stats| stats.blobs == 0).await;
    system.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_handle_that_never_arrives_is_forgotten_in_time() {
    let system = system_with(|limits| limits.blob_transit = Duration::from_millis(30)).await;
    let blobs = system.blobs();
    let lost = codec::encode(&blobs.copy_in(b"lost").unwrap()).unwrap();
    assert_eq!(blobs.stats().in_transit, 1);
    wait_for(&blobs, "its pin ends by time", |stats| stats.blobs == 0).await;
    let late: Blob = system.scope(async { codec::decode(&lost).unwrap() }).await;
    let worker = isolated(&system).await;
    for error in [
        system.scope(late.open()).await.unwrap_err(),
        worker.ask(Sum { blob: late }).await.unwrap().unwrap_err(),
    ] {
        assert!(matches!(error, BlobError::Gone { .. }), "{error}");
    }
    system.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_owner_leaves_views_and_takes_the_rest() {
    let system = system().await;
    let (owner, reader) = (isolated(&system).await, isolated(&system).await);
    let make = |seed| owner.ask(Make { name: Some(u32::from(seed)), len: 3 << 20, seed });
    let opened = make(1).await.unwrap().unwrap();
    let unopened = make(2).await.unwrap().unwrap();
    let view = opened.open().await.unwrap();
    for (name, blob, open) in [(1, &opened, true), (2, &unopened, false)] {
        reader.ask(Keep { name, blob: blob.clone(), open }).await.unwrap().unwrap();
    }
    assert!(system.kill_worker(system.process_of(owner).unwrap()));
    owner.down().await;

    assert_eq!(sum(&view), sum(&pattern(3 << 20, 1)));
    assert_eq!(reader.ask(SumKept { name: 1 }).await.unwrap(), Ok(sum(&view)));
    let here = unopened.open().await.unwrap_err();
    let there = reader.ask(SumKept { name: 2 }).await.unwrap().unwrap_err();
    for error in [here, there] {
        let BlobError::Gone { owner, why } = &error else { panic!("{error}") };
        assert_eq!(*owner, opened.owner());
        assert!(why.contains("SIGKILL"), "{error}");
    }
    system.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_holder_frees_what_it_held() {
    let system = system().await;
    let blobs = system.blobs();
    let holder = isolated(&system).await;
    for (name, open) in [(1, true), (2, false)] {
        let blob = blobs.copy_in(&pattern(1 << 20, 1)).unwrap();
        holder.ask(Keep { name, blob, open }).await.unwrap().unwrap();
    }
    wait_for(&blobs, "both are held", |s| s.leased == 2 && s.in_transit == 0).await;
    assert!(system.kill_worker(system.process_of(holder).unwrap()));
    wait_for(&blobs, "its leases end with it", |stats| stats.bytes == 0).await;
    system.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn over_the_quota_the_error_says_what_to_do() {
    let system = system_with(|limits| limits.blob_bytes_quota = 4 << 20).await;
    let blobs = system.blobs();
    let error = blobs.writer(5 << 20).map(drop).unwrap_err();
    assert_eq!(error, BlobError::Quota { asked: 5 << 20, used: 0, quota: 4 << 20 });
    assert!(error.to_string().contains("write smaller blobs"), "{error}");
    let first = blobs.writer(3 << 20).unwrap().seal();
    let error = blobs.writer(2 << 20).map(drop).unwrap_err();
    assert_eq!(error, BlobError::Quota { asked: 2 << 20, used: 3 << 20, quota: 4 << 20 });
    assert!(error.to_string().contains("wait for their readers"), "{error}");
    let room = blobs.when(|stats| stats.node_bytes == 0);
    let (_, ()) = tokio::join!(room, async { drop(first) });
    blobs.writer(2 << 20).unwrap();
    system.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn descriptors_and_mappings_do_not_pile_up() {
    let system = system().await;
    let blobs = system.blobs();
    let worker = isolated(&system).await;
    let mut counts = vec![];
    for round in 0..30u8 {
        let blob = blobs.copy_in(&pattern(6 << 20, round)).unwrap();
        worker.ask(Sum { blob }).await.unwrap().unwrap();
        let made = worker.ask(Make { name: None, len: 6 << 20, seed: round }).await.unwrap();
        assert_eq!(sum(&made.unwrap().open().await.unwrap()), sum(&pattern(6 << 20, round)));
        wait_for(&blobs, "all is free", |stats| stats.blobs == 0 && stats.foreign == 0).await;
        worker.ask(Empty {}).await.unwrap();
        counts.push((descriptors("self"), mappings("self")));
    }
    assert_eq!(counts[2], counts[29], "{counts:?}");
    let pid = worker.ask(Pid {}).await.unwrap().to_string();
    assert_eq!((descriptors(&pid), mappings(&pid)), (1, 2), "one own slab, one of its node");
    system.shutdown().await;
}

/// Open slabs of a process.
fn descriptors(pid: &str) -> usize {
    let entries = std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap();
    let links = entries.filter_map(|entry| std::fs::read_link(entry.ok()?.path()).ok());
    links.filter(|link| link.to_string_lossy().contains("odeon-slab")).count()
}

/// Mapped slabs of a process.
fn mappings(pid: &str) -> usize {
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).unwrap();
    maps.lines().filter(|line| line.contains("odeon-slab")).count()
}
