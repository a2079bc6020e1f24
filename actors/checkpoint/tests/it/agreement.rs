//! Agreement of ranks: plans that stay good, ranks that fail or are lost, and the waits for each
//! other.

use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use futures::future::{self, BoxFuture};
use object_store::memory::InMemory;
use odeon_checkpoint::stage::{Observer, Stage, StageTime};
use odeon_checkpoint::storage::Tuning;
use odeon_checkpoint::{
    Checkpointer, Load, Ranks, RanksError, Save, Source, Storage, Which, commit, within,
};

use crate::faulty::{Effect, Faulty, Trouble};
use crate::world::{alone, ends, expect_same, flat, load, reference, save, small, tensors};

/// Counts bytes that a rank sends.
#[derive(Debug)]
struct Counted<R> {
    ranks: R,
    sent: Arc<AtomicUsize>,
}

impl<R: Ranks> Ranks for Counted<R> {
    fn rank(&self) -> usize {
        self.ranks.rank()
    }

    fn ranks(&self) -> usize {
        self.ranks.ranks()
    }

    fn send(&self, to: usize, bytes: Bytes) -> BoxFuture<'_, Result<(), RanksError>> {
        self.sent.fetch_add(bytes.len(), SeqCst);
        self.ranks.send(to, bytes)
    }

    fn receive(&self, from: usize) -> BoxFuture<'_, Result<Bytes, RanksError>> {
        self.ranks.receive(from)
    }
}

/// SEMANTICS 99: a plan is made once, also when some ranks have it and others do not.
#[tokio::test]
async fn a_plan_is_made_once_and_again_when_a_rank_has_something_else() {
    let sent = Arc::new(AtomicUsize::new(0));
    let storage = Storage::memory();
    let counted = |ranks| {
        let sent = sent.clone();
        Arc::new(Counted { ranks, sent })
    };
    let ways: Vec<_> = within(4).into_iter().map(counted).collect();
    let fresh = |rank: usize| Checkpointer::new(storage.clone(), ways[rank].clone(), small());
    let mut ranks: Vec<Checkpointer> = (0..4).map(fresh).collect();
    let mut known = tensors(1);
    let mut locals = flat(&known, 4);
    let bytes = async |ranks: &mut Vec<Checkpointer>, known: &[_], locals: &[_], step| {
        let before = sent.load(SeqCst);
        for saved in save(ranks, known, locals, step).await {
            saved.unwrap();
        }
        sent.load(SeqCst) - before
    };
    let first = bytes(&mut ranks, &known, &locals, 1).await;
    let second = bytes(&mut ranks, &known, &locals, 2).await;
    let third = bytes(&mut ranks, &known, &locals, 3).await;
    assert!(3 * second < 2 * first, "{second} bytes instead of {first}");
    // Times are told with more digits or fewer.
    assert!(
        second.abs_diff(third) < first / 20,
        "{second} and {third} bytes"
    );
    // Another tensor at one rank: all plan anew.
    known.push(crate::world::Known::new(
        "more",
        odeon_checkpoint::Dtype::U8,
        &[3],
        9,
    ));
    let more = known.last().unwrap().whole();
    locals[2].add("actor", "model", vec![more]).unwrap();
    let whole_plan = bytes(&mut ranks, &known, &locals, 4).await;
    assert!(whole_plan > first);
    let known_plan = bytes(&mut ranks, &known, &locals, 5).await;
    assert!(
        3 * known_plan < 2 * whole_plan,
        "{known_plan} bytes of {whole_plan}"
    );
    // Ranks that begin anew have no plan where the others have one: all plan again, once, and then have the
    // same. Also where it is the rank that plans for all.
    for (step, lost) in [(6, vec![2]), (8, vec![0]), (10, vec![1, 3])] {
        for rank in lost {
            ranks[rank] = fresh(rank);
        }
        let again = bytes(&mut ranks, &known, &locals, step).await;
        assert!(3 * again > 2 * whole_plan, "{again} bytes of {whole_plan}");
        let kept = bytes(&mut ranks, &known, &locals, step + 1).await;
        assert!(3 * kept < 2 * whole_plan, "{kept} bytes of {whole_plan}");
    }
    let whole = alone(&known);
    let loaded = load(&mut ends(&storage, 1, small()), &whole, Which::Latest).await;
    expect_same(&known, &whole, loaded);
}

/// Fails at one rank.
struct Broken;

impl Source for Broken {
    fn copy(&self, tensor: usize, _: Range<usize>, _: &mut [u8]) -> Result<(), String> {
        Err(format!("the device has lost tensor {tensor}"))
    }
}

/// SEMANTICS 95: one rank that fails fails the save at all, with its number, and the next goes on.
#[tokio::test]
async fn a_rank_that_fails_fails_the_save_at_all_with_its_number() {
    let storage = Storage::memory();
    let known = tensors(1);
    let locals = flat(&known, 3);
    let mut ranks = ends(&storage, 3, small());
    for saved in save(&mut ranks, &known, &locals, 1).await {
        saved.unwrap();
    }
    let failing = ranks
        .iter_mut()
        .zip(&locals)
        .enumerate()
        .map(|(rank, (end, local))| {
            let known = &known;
            async move {
                let source: Box<dyn Source> = match rank {
                    1 => Box::new(Broken),
                    _ => Box::new(reference(known, local)),
                };
                let save = Save {
                    step: 2,
                    local: local.clone(),
                    ..Save::default()
                };
                end.save(save, &*source).await?.wait().await
            }
        });
    for saved in future::join_all(failing).await {
        let said = saved.unwrap_err().to_string();
        assert!(
            said.contains("rank 1: the device has lost tensor"),
            "{said}"
        );
    }
    let (entry, _) = commit::find(&storage, Which::Latest).await.unwrap();
    assert_eq!(entry.step, 1);
    for saved in save(&mut ranks, &known, &locals, 3).await {
        saved.unwrap();
    }
    let different = ranks
        .iter_mut()
        .zip(&locals)
        .enumerate()
        .map(|(rank, (end, local))| {
            let save = Save {
                step: 4 + rank as u64,
                local: local.clone(),
                ..Save::default()
            };
            async move { end.save(save, &Broken).await }
        });
    for saved in future::join_all(different).await {
        let said = saved.unwrap_err().to_string();
        assert!(
            said.contains("ranks save different steps: 4 and 6"),
            "{said}"
        );
    }
}

/// SEMANTICS 95: a rank that is lost is named by those who wait for it.
#[tokio::test]
async fn a_lost_rank_is_named_and_no_checkpoint_is_made() {
    let storage = Storage::memory();
    let known = tensors(1);
    let locals = flat(&known, 4);
    let mut ranks = ends(&storage, 4, small());
    for saved in save(&mut ranks, &known, &locals, 1).await {
        saved.unwrap();
    }
    drop(ranks.pop());
    for saved in save(&mut ranks, &known, &locals, 2).await {
        let said = saved.unwrap_err().to_string();
        assert!(said.contains("rank 3 is lost"), "{said}");
    }
    let (entry, _) = commit::find(&storage, Which::Latest).await.unwrap();
    assert_eq!(entry.step, 1);
    // The next save is of ranks that are there.
    for saved in save(&mut ends(&storage, 4, small()), &known, &locals, 3).await {
        saved.unwrap();
    }
    let (entry, _) = commit::find(&storage, Which::Latest).await.unwrap();
    assert_eq!(entry.step, 3);
}

/// Counts copies of tensors, and changes what is copied afterwards.
#[derive(Default)]
struct Training(Mutex<u8>);

impl Source for Training {
    fn copy(&self, _: usize, _: Range<usize>, out: &mut [u8]) -> Result<(), String> {
        out.fill(*self.0.lock().unwrap());
        Ok(())
    }
}

#[derive(Default)]
struct Told(Mutex<Vec<(u64, StageTime)>>);

impl Observer for Told {
    fn stage(&self, step: u64, time: StageTime) {
        self.0.lock().unwrap().push((step, time));
    }
}

/// SEMANTICS 100: a save returns while the storage still works, and what changes then is not in it.
#[tokio::test(start_paused = true)]
async fn a_save_waits_for_its_snapshot_alone_and_the_next_waits_for_it() {
    let slow = object_store::throttle::ThrottledStore::new(
        InMemory::new(),
        object_store::throttle::ThrottleConfig {
            wait_put_per_call: Duration::from_secs(60),
            ..Default::default()
        },
    );
    let storage = Storage::of(Arc::new(slow), "slow");
    let known = tensors(1);
    let local = alone(&known).remove(0);
    let told = Arc::new(Told::default());
    let rank = Arc::new(within(1).remove(0));
    let mut end = Checkpointer::new(storage.clone(), rank, small()).with_observer(told.clone());
    let training = Training::default();
    let save = |step| Save {
        step,
        local: local.clone(),
        ..Save::default()
    };
    let begun = tokio::time::Instant::now();
    let saving = end.save(save(1), &training).await.unwrap();
    assert_eq!(
        begun.elapsed(),
        Duration::ZERO,
        "it did not wait for the storage"
    );
    *training.0.lock().unwrap() = 1;
    let second = end.save(save(2), &training).await.unwrap();
    let waited = begun.elapsed();
    assert!(
        waited >= Duration::from_secs(120),
        "it waited for the one before: {waited:?}"
    );
    assert!(
        second
            .blocked()
            .iter()
            .any(|time| time.stage == Stage::Wait && time.seconds > 100.0)
    );
    assert_eq!(saving.wait().await.unwrap().entry.step, 1);
    second.wait().await.unwrap();
    end.settle().await.unwrap();
    for (step, byte) in [(1, 0), (2, 1)] {
        let mut one = ends(&storage, 1, small());
        let loaded = load(&mut one, std::slice::from_ref(&local), Which::Step(step));
        let (_, filled) = loaded.await.remove(0).unwrap();
        assert!(
            filled.concat().iter().all(|found| *found == byte),
            "step {step}"
        );
    }
    // Each stage was told, and is in the manifest up to the commit.
    let stages: Vec<Stage> = told
        .0
        .lock()
        .unwrap()
        .iter()
        .map(|(_, time)| time.stage)
        .collect();
    for stage in [
        Stage::Wait,
        Stage::Plan,
        Stage::Snapshot,
        Stage::Serialise,
        Stage::Upload,
        Stage::Commit,
        Stage::Collect,
    ] {
        assert!(stages.contains(&stage), "{stage}");
    }
    let (_, manifest) = commit::find(&storage, Which::Latest).await.unwrap();
    let upload = manifest
        .stages
        .iter()
        .find(|time| time.stage == Stage::Upload)
        .unwrap();
    assert!(upload.seconds > 50.0 && upload.bytes > 0);
}

/// SEMANTICS 95: what fails while the caller has gone on is told to whoever waits, and not lost.
#[tokio::test]
async fn a_save_that_fails_later_says_so_and_the_next_one_works() {
    let inner = Arc::new(InMemory::new());
    let crash = Trouble::Crash {
        at: 3,
        effect: Effect::No,
    };
    let (store, _) = Faulty::new(inner.clone(), crash);
    let storage = Storage::of(store, "place").tuned(Tuning {
        tries: 1,
        ..Tuning::default()
    });
    let known = tensors(1);
    let locals = flat(&known, 2);
    for saved in save(&mut ends(&storage, 2, small()), &known, &locals, 1).await {
        let said = saved.unwrap_err().to_string();
        let (_, file) = said.split_once("place/00000001-step-1/").expect(&said);
        assert!(said.contains("rank ") && !file.starts_with(':'), "{said}");
    }
    let sound = Storage::of(inner, "place");
    for saved in save(&mut ends(&sound, 2, small()), &known, &locals, 2).await {
        assert_eq!(
            saved.unwrap().entry.sequence,
            2,
            "the folder of the failed one is not used again"
        );
    }
    let mut end = ends(&sound, 1, small()).remove(0);
    let nothing = Load {
        blobs: vec!["rng".into()],
        ..Load::default()
    };
    let buffers = Arc::new(odeon_checkpoint::Buffers::default());
    let said = end.load(nothing, &buffers).await.unwrap_err().to_string();
    assert!(said.contains("has no blob `rng`"), "{said}");
}
