//! Blobs between actors: in one process, between the processes of a node, and between nodes; what
//! keeps them alive, and what remains when a process is killed.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use odeon::simulation::SimulationSpec;
use odeon::{
    Actor, Blob, BlobError, BlobStats, BlobView, Blobs, Clock, Context, Failure, Handler, Limits,
    Message, Recipient, Ref, Restart, Shape, System, WorkerMode, codec,
};
use odeon_tests::again;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

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
        let view = if keep.open {
            Some(keep.blob.open().await?)
        } else {
            None
        };
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
    let worker = again::worker(module_path!());
    let mut limits = Limits::default();
    change(&mut limits);
    let builder = System::builder()
        .workers(WorkerMode::Processes(worker))
        .limits(limits);
    builder.start().await.unwrap()
}

async fn system() -> System {
    system_with(|_| ()).await
}

async fn isolated(system: &System) -> Ref<Reader> {
    system
        .spawn::<Reader>(())
        .isolated()
        .restart(Restart::Temporary)
        .await
        .unwrap()
}

fn pattern(len: usize, seed: u8) -> Vec<u8> {
    (0..len)
        .map(|i| (i as u8).wrapping_mul(31).wrapping_add(seed))
        .collect()
}

/// Depends on every byte and its place.
fn sum(bytes: &[u8]) -> u64 {
    bytes.iter().fold(bytes.len() as u64, |sum, byte| {
        sum.rotate_left(7)
            .wrapping_add(u64::from(*byte))
            .wrapping_mul(0x9e37_79b9_7f4a_7c15)
    })
}

/// Waits for the fact, or fails with what was the case instead.
async fn wait_for(blobs: &Blobs, what: &str, fact: impl Fn(&BlobStats) -> bool + Send) {
    let waited = tokio::time::timeout(Duration::from_secs(20), blobs.when(fact)).await;
    assert!(waited.is_ok(), "{what}: {:?}", blobs.stats());
}

/// SEMANTICS 27.
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
    assert_eq!(
        (stats.blobs, stats.mapped_slabs, stats.in_transit),
        (1, 0, 0)
    );
    drop(view);
    wait_for(&blobs, "dropping the last view frees it", |stats| {
        stats.bytes == 0
    })
    .await;
    assert_eq!(blobs.stats().node_bytes, 0);
    system.shutdown().await;
}

/// SEMANTICS 27.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_reads_in_place_and_its_lease_ends_with_its_last_handle() {
    let system = system().await;
    let blobs = system.blobs();
    let worker = isolated(&system).await;
    for len in [0, 1, 100, 70_000, 9 << 20] {
        let bytes = pattern(len, 7);
        let blob = blobs.copy_in(&bytes).unwrap();
        worker
            .ask(Keep {
                name: 1,
                blob: blob.clone(),
                open: false,
            })
            .await
            .unwrap()
            .unwrap();
        assert_eq!(
            worker.ask(SumKept { name: 1 }).await.unwrap(),
            Ok(sum(&bytes))
        );
        let again = Keep {
            name: 2,
            blob: blob.clone(),
            open: true,
        };
        worker.ask(again).await.unwrap().unwrap();
        drop(blob);
        wait_for(&blobs, "arrivals end the pins", |s| {
            s.in_transit == 0 && s.leased == 1
        })
        .await;
        worker.ask(Drop { name: 1 }).await.unwrap();
        assert_eq!(
            worker.ask(SumKept { name: 2 }).await.unwrap(),
            Ok(sum(&bytes))
        );
        assert_eq!(blobs.stats().blobs, 1, "the view keeps it");
        worker.ask(Drop { name: 2 }).await.unwrap();
        wait_for(&blobs, "the last view frees it", |stats| stats.blobs == 0).await;
    }
    assert_eq!(worker.ask(Stats {}).await.unwrap().foreign, 0);
    system.shutdown().await;
}

/// SEMANTICS 28.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_blob_of_a_worker_is_read_by_its_node_and_passed_to_another_worker() {
    let system = system().await;
    let (maker, other) = (isolated(&system).await, isolated(&system).await);
    let expected = sum(&pattern(5 << 20, 3));
    let blob = maker
        .ask(Make {
            name: None,
            len: 5 << 20,
            seed: 3,
        })
        .await
        .unwrap()
        .unwrap();
    assert_ne!(maker.ask(Pid {}).await.unwrap(), std::process::id());
    assert_eq!(sum(&blob.open().await.unwrap()), expected);
    assert_eq!(system.blobs().stats().blobs, 0, "nothing was copied");
    // Passed on by a process that forgets it at once, and again by the next one.
    other
        .ask(Keep {
            name: 1,
            blob,
            open: false,
        })
        .await
        .unwrap()
        .unwrap();
    assert_eq!(other.ask(SumKept { name: 1 }).await.unwrap(), Ok(expected));
    let third = isolated(&system).await;
    let passed = other
        .ask(PassOn {
            name: 1,
            to: third.narrow(),
        })
        .await
        .unwrap();
    assert_eq!(passed, Ok(expected));
    let stats = maker
        .ask(Empty {})
        .timeout(Duration::from_secs(20))
        .await
        .unwrap();
    assert_eq!((stats.leased, stats.in_transit), (0, 0));
    // And home again: the owner finds its own bytes.
    maker
        .ask(Make {
            name: Some(9),
            len: 100,
            seed: 4,
        })
        .await
        .unwrap()
        .unwrap();
    let home = maker
        .ask(Make {
            name: None,
            len: 77,
            seed: 5,
        })
        .await
        .unwrap()
        .unwrap();
    assert_eq!(
        maker.ask(Sum { blob: home }).await.unwrap(),
        Ok(sum(&pattern(77, 5)))
    );
    assert_eq!(maker.ask(Stats {}).await.unwrap().mapped_slabs, 0);
    system.shutdown().await;
}

/// SEMANTICS 28.
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

/// SEMANTICS 28.
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

/// SEMANTICS 29.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_owner_leaves_views_and_takes_the_rest() {
    let system = system().await;
    let (owner, reader) = (isolated(&system).await, isolated(&system).await);
    let make = |seed| {
        owner.ask(Make {
            name: Some(u32::from(seed)),
            len: 3 << 20,
            seed,
        })
    };
    let opened = make(1).await.unwrap().unwrap();
    let unopened = make(2).await.unwrap().unwrap();
    let view = opened.open().await.unwrap();
    for (name, blob, open) in [(1, &opened, true), (2, &unopened, false)] {
        reader
            .ask(Keep {
                name,
                blob: blob.clone(),
                open,
            })
            .await
            .unwrap()
            .unwrap();
    }
    assert!(
        system
            .admin()
            .kill_worker(system.admin().process_of(owner).unwrap())
    );
    owner.down().await;

    assert_eq!(sum(&view), sum(&pattern(3 << 20, 1)));
    assert_eq!(
        reader.ask(SumKept { name: 1 }).await.unwrap(),
        Ok(sum(&view))
    );
    let here = unopened.open().await.unwrap_err();
    let there = reader.ask(SumKept { name: 2 }).await.unwrap().unwrap_err();
    for error in [here, there] {
        let BlobError::Gone { owner, why } = &error else {
            panic!("{error}")
        };
        assert_eq!(*owner, opened.owner());
        assert!(why.contains("SIGKILL"), "{error}");
    }
    system.shutdown().await;
}

/// SEMANTICS 29.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_holder_frees_what_it_held() {
    let system = system().await;
    let blobs = system.blobs();
    let holder = isolated(&system).await;
    for (name, open) in [(1, true), (2, false)] {
        let blob = blobs.copy_in(&pattern(1 << 20, 1)).unwrap();
        holder
            .ask(Keep { name, blob, open })
            .await
            .unwrap()
            .unwrap();
    }
    wait_for(&blobs, "both are held", |s| {
        s.leased == 2 && s.in_transit == 0
    })
    .await;
    assert!(
        system
            .admin()
            .kill_worker(system.admin().process_of(holder).unwrap())
    );
    wait_for(&blobs, "its leases end with it", |stats| stats.bytes == 0).await;
    system.shutdown().await;
}

/// SEMANTICS 30.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn over_the_quota_the_error_says_what_to_do() {
    let system = system_with(|limits| limits.blob_bytes_quota = 4 << 20).await;
    let blobs = system.blobs();
    let error = blobs.writer(5 << 20).map(drop).unwrap_err();
    assert_eq!(
        error,
        BlobError::Quota {
            asked: 5 << 20,
            used: 0,
            quota: 4 << 20
        }
    );
    assert!(error.to_string().contains("write smaller blobs"), "{error}");
    let first = blobs.writer(3 << 20).unwrap().seal();
    let error = blobs.writer(2 << 20).map(drop).unwrap_err();
    assert_eq!(
        error,
        BlobError::Quota {
            asked: 2 << 20,
            used: 3 << 20,
            quota: 4 << 20
        }
    );
    assert!(
        error.to_string().contains("wait for their readers"),
        "{error}"
    );
    let room = blobs.when(|stats| stats.node_bytes == 0);
    let (_, ()) = tokio::join!(room, async { drop(first) });
    blobs.writer(2 << 20).unwrap();
    system.shutdown().await;
}

/// SEMANTICS 29, 30.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_processes_of_a_node_share_one_quota_and_a_dead_one_gives_back() {
    let system = system_with(|limits| limits.blob_bytes_quota = 8 << 20).await;
    let blobs = system.blobs();
    let (first, second) = (isolated(&system).await, isolated(&system).await);
    let make = |name| Make {
        name: Some(name),
        len: 3 << 20,
        seed: 1,
    };
    drop(first.ask(make(1)).await.unwrap().unwrap());
    drop(second.ask(make(1)).await.unwrap().unwrap());
    assert_eq!(blobs.stats().node_bytes, 6 << 20);
    let refused = BlobError::Quota {
        asked: 3 << 20,
        used: 6 << 20,
        quota: 8 << 20,
    };
    assert_eq!(blobs.writer(3 << 20).map(drop).unwrap_err(), refused);
    assert_eq!(second.ask(make(2)).await.unwrap().unwrap_err(), refused);
    assert!(
        system
            .admin()
            .kill_worker(system.admin().process_of(first).unwrap())
    );
    wait_for(&blobs, "its part comes back", |stats| {
        stats.node_bytes == 3 << 20
    })
    .await;
    drop(second.ask(make(2)).await.unwrap().unwrap());
    // Its place in the account is given to the next one.
    let third = isolated(&system).await;
    drop(
        third
            .ask(Make {
                name: Some(1),
                len: 2 << 20,
                seed: 1,
            })
            .await
            .unwrap()
            .unwrap(),
    );
    assert_eq!(blobs.stats().node_bytes, 8 << 20);
    system.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn descriptors_and_mappings_do_not_pile_up() {
    let system = system().await;
    let blobs = system.blobs();
    let worker = isolated(&system).await;
    let pid = worker.ask(Pid {}).await.unwrap().to_string();
    for round in 0..30u8 {
        let blob = blobs.copy_in(&pattern(6 << 20, round)).unwrap();
        worker.ask(Sum { blob }).await.unwrap().unwrap();
        let made = worker
            .ask(Make {
                name: None,
                len: 6 << 20,
                seed: round,
            })
            .await
            .unwrap();
        assert_eq!(
            sum(&made.unwrap().open().await.unwrap()),
            sum(&pattern(6 << 20, round))
        );
        wait_for(&blobs, "all is free", |stats| {
            stats.blobs == 0 && stats.foreign == 0
        })
        .await;
        worker.ask(Empty {}).await.unwrap();
        let held = (descriptors(&pid), mappings(&pid));
        assert_eq!(held, (1, 2), "round {round}: one own slab, one of its node");
        assert_eq!(blobs.stats().mapped_slabs, 1);
    }
    system.shutdown().await;
}

/// Links two systems of this process; `tamper` sees every chunk of a blob on its way to `to`.
async fn join(from: &System, to: &System, tamper: impl FnMut(&mut [u8]) + Send + 'static) {
    let (ours, ours_far) = tokio::io::duplex(64 << 10);
    let (theirs, theirs_far) = tokio::io::duplex(64 << 10);
    let (ours_read, ours_write) = tokio::io::split(ours);
    let (theirs_read, theirs_write) = tokio::io::split(theirs);
    let (ours_far_read, ours_far_write) = tokio::io::split(ours_far);
    let (theirs_far_read, theirs_far_write) = tokio::io::split(theirs_far);
    tokio::spawn(relay(ours_far_read, theirs_far_write, tamper));
    tokio::spawn(relay(theirs_far_read, ours_far_write, |_| ()));
    let (here, there) = tokio::join!(
        from.admin().join_stream(ours_read, ours_write),
        to.admin().join_stream(theirs_read, theirs_write),
    );
    here.unwrap();
    there.unwrap();
}

/// Passes frames on until either side ends.
async fn relay(
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    mut tamper: impl FnMut(&mut [u8]),
) {
    const CHUNK: u8 = 11;
    const HEAD: usize = 1 + 8 + 8 + 8 + 4;
    let mut frame = vec![];
    while let Ok(length) = from.read_u32_le().await {
        frame.resize(length as usize, 0);
        if from.read_exact(&mut frame).await.is_err() {
            break;
        }
        if frame[0] == CHUNK {
            tamper(&mut frame[HEAD..]);
        }
        let sent = async {
            to.write_u32_le(length).await?;
            to.write_all(&frame).await
        };
        if sent.await.is_err() {
            break;
        }
    }
    let _ = to.shutdown().await;
}

/// SEMANTICS 27.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_node_gets_a_copy_that_its_processes_share() {
    let (near, far) = (system().await, system().await);
    let chunks = Arc::new(AtomicUsize::new(0));
    let counting = Arc::clone(&chunks);
    join(&near, &far, move |_| {
        counting.fetch_add(1, Ordering::Relaxed);
    })
    .await;
    let (first, second) = (isolated(&far).await, isolated(&far).await);
    let maker = isolated(&near).await;
    let expected = sum(&pattern(3_000_001, 5));
    // Made by a worker of one node, read by two workers of another.
    let make = Make {
        name: None,
        len: 3_000_001,
        seed: 5,
    };
    let blob = near
        .scope(async { maker.ask(make).await })
        .await
        .unwrap()
        .unwrap();
    for reader in [first, second] {
        let keep = Keep {
            name: 1,
            blob: blob.clone(),
            open: true,
        };
        near.scope(async { reader.ask(keep).await })
            .await
            .unwrap()
            .unwrap();
        assert_eq!(reader.ask(SumKept { name: 1 }).await.unwrap(), Ok(expected));
    }
    assert_eq!(chunks.load(Ordering::Relaxed), 12, "the bytes crossed once");
    assert_eq!(far.blobs().stats().blobs, 1, "the node has one copy");
    assert_eq!(near.blobs().stats().blobs, 0, "the owner's node none");
    for worker in [first, second] {
        let stats = worker.ask(Stats {}).await.unwrap();
        assert_eq!((stats.blobs, stats.mapped_slabs), (0, 1));
    }
    // The copy is passed on within its node, also when the owner is gone.
    drop(blob);
    assert!(
        near.admin()
            .kill_worker(near.admin().process_of(maker).unwrap())
    );
    near.scope(maker.down()).await;
    let passed = first
        .ask(PassOn {
            name: 1,
            to: second.narrow(),
        })
        .await
        .unwrap();
    assert_eq!(passed, Ok(expected));
    assert_eq!(chunks.load(Ordering::Relaxed), 12);
    second.ask(Drop { name: 1 }).await.unwrap();
    wait_for(&far.blobs(), "the copy ends with its readers", |stats| {
        stats.blobs == 0
    })
    .await;
    far.shutdown().await;
    near.shutdown().await;
}

/// SEMANTICS 27.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_damaged_chunk_is_sent_again_and_a_damaging_network_is_named() {
    for (damages, outcome) in [(3, Ok(())), (usize::MAX, Err(()))] {
        let (near, far) = (system().await, system().await);
        let mut left = damages;
        join(&near, &far, move |bytes| {
            if left > 0 {
                left -= 1;
                let middle = bytes.len() / 2;
                bytes[middle] ^= 1;
            }
        })
        .await;
        let reader = far.spawn::<Reader>(()).await.unwrap();
        let bytes = pattern(2_000_000, 2);
        let blob = near.blobs().copy_in(&bytes).unwrap();
        let answer = near
            .scope(async { reader.ask(Sum { blob }).await })
            .await
            .unwrap();
        match (answer, outcome) {
            (Ok(answer), Ok(())) => assert_eq!(answer, sum(&bytes)),
            (Err(BlobError::Corrupt { tries: 4, .. }), Err(())) => {}
            (answer, _) => panic!("{damages} damages: {answer:?}"),
        }
        wait_for(&near.blobs(), "the owner is rid of it", |stats| {
            stats.blobs == 0
        })
        .await;
        wait_for(&far.blobs(), "and the reader", |s| {
            s.blobs == 0 && s.foreign == 0
        })
        .await;
        far.shutdown().await;
        near.shutdown().await;
    }
}

/// SEMANTICS 25.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn messages_overtake_a_transfer_and_its_end_by_a_lost_node_is_told() {
    let (near, far) = (system().await, system().await);
    let chunks = Arc::new(AtomicUsize::new(0));
    let counting = Arc::clone(&chunks);
    join(&near, &far, move |_| {
        counting.fetch_add(1, Ordering::Relaxed);
    })
    .await;
    let (reader, other) = (
        far.spawn::<Reader>(()).await.unwrap(),
        far.spawn::<Reader>(()).await.unwrap(),
    );
    let blob = near.blobs().writer(96 << 20).unwrap().seal();
    let sum = Sum { blob: blob.clone() };
    let system = near.clone();
    let transfer = tokio::spawn(async move { system.scope(async { reader.ask(sum).await }).await });
    let mut answers = 0;
    while !transfer.is_finished() {
        near.scope(async { other.ask(Pid {}).await }).await.unwrap();
        let under_way = 1..(96 << 20) / (256 << 10);
        answers += usize::from(under_way.contains(&chunks.load(Ordering::Relaxed)));
    }
    // Behind the transfer, none would have come before its end.
    assert!(answers > 1, "{answers} answers came during the transfer");
    transfer.await.unwrap().unwrap().unwrap();

    let reader = far.spawn::<Reader>(()).await.unwrap();
    let keep = Keep {
        name: 1,
        blob,
        open: false,
    };
    near.scope(async { reader.ask(keep).await })
        .await
        .unwrap()
        .unwrap();
    let before = chunks.load(Ordering::Relaxed);
    let system = far.clone();
    let cut = tokio::spawn(async move {
        system
            .scope(async { reader.ask(SumKept { name: 1 }).await })
            .await
    });
    while chunks.load(Ordering::Relaxed) == before {
        assert!(!cut.is_finished(), "it begins with a chunk");
        tokio::task::yield_now().await;
    }
    near.shutdown().await;
    let error = cut.await.unwrap().unwrap().unwrap_err();
    assert!(matches!(error, BlobError::Gone { .. }), "{error}");
    far.shutdown().await;
}

/// Open slabs of a process.
fn descriptors(pid: &str) -> usize {
    let entries = std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap();
    let links = entries.filter_map(|entry| std::fs::read_link(entry.ok()?.path()).ok());
    links
        .filter(|link| link.to_string_lossy().contains("odeon-slab"))
        .count()
}

/// Mapped slabs of a process.
fn mappings(pid: &str) -> usize {
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).unwrap();
    maps.lines()
        .filter(|line| line.contains("odeon-slab"))
        .count()
}

/// SEMANTICS 30.
#[test]
fn memory_without_a_blob_goes_back_to_the_system_on_each_node() {
    let spec = SimulationSpec::new(odeon::job![Reader]);
    System::simulated(1, spec).run(async |world| {
        let (owner, other) = (&world.nodes[0], &world.nodes[1]);
        let reader = other.spawn::<Reader>(()).await.unwrap();
        let mut writer = owner.blobs().writer(64 << 20).unwrap();
        writer.fill(1);
        let blob = writer.seal();
        let reading = owner.scope(async { reader.ask(Sum { blob }).await });
        reading.await.unwrap().unwrap();
        let held = |node: &System| {
            let stats = node.blobs().stats();
            stats.bytes + stats.warm_bytes
        };
        assert!(held(owner) >= 64 << 20 && held(other) >= 64 << 20);
        Clock::sleep(Duration::from_secs(15)).await;
        assert_eq!((held(owner), held(other)), (0, 0));
    });
}
