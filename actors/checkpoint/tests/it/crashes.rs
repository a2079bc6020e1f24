//! A crash at any moment leaves a checkpoint that loads.

use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use object_store::ObjectStore;
use object_store::local::LocalFileSystem;
use object_store::memory::InMemory;
use odeon_checkpoint::storage::Tuning;
use odeon_checkpoint::{Options, Retention, Storage, Which, commit, verify};

use crate::faulty::{Effect, Faulty, Trouble};
use crate::world::{alone, ends, expect_same, flat, load, save, small, tensors};

fn options() -> Options {
    Options {
        retention: Retention {
            newest: 1,
            every: None,
        },
        ..small()
    }
}

/// Files of a few parts each, and no patience.
fn tuned(storage: Storage) -> Storage {
    storage.tuned(Tuning {
        part_bytes: 64,
        parts: 2,
        tries: 2,
        pause: Duration::from_millis(1),
    })
}

/// Saves step 1, then step 2 on a store that crashes at each operation in turn; and what there is
/// then has to load.
async fn crash_everywhere(
    place: impl Fn() -> (Arc<dyn ObjectStore>, Storage, Option<tempfile::TempDir>),
) {
    let ranks = 2;
    let (mut at, mut before, mut after) = (0, 0, 0);
    loop {
        let mut reached = false;
        for effect in [Effect::No, Effect::Yes] {
            let (inner, sound, _folder) = place();
            let sound = tuned(sound);
            let locals = flat(&tensors(1), ranks);
            for saved in save(&mut ends(&sound, ranks, options()), &tensors(1), &locals, 1).await {
                saved.unwrap();
            }
            let (crashing, state) = Faulty::new(inner, Trouble::Crash { at, effect });
            let crashing = tuned(Storage::of(crashing, "crashing"));
            let mut ranks_of_2 = ends(&crashing, ranks, options());
            let saved = save(&mut ranks_of_2, &tensors(2), &locals, 2).await;
            reached |= state.operations() > at;
            drop(ranks_of_2);

            let (entry, _) = commit::find(&sound, Which::Latest).await.unwrap();
            let known = tensors(entry.step);
            let whole = alone(&known);
            let loaded = load(&mut ends(&sound, 1, options()), &whole, Which::Latest).await;
            expect_same(&known, &whole, loaded);
            assert!(
                verify::verify(&sound, Which::Latest)
                    .await
                    .unwrap()
                    .is_sound()
            );
            match entry.step {
                1 => before += 1,
                _ => after += 1,
            }
            // Who heard that it is complete was told the truth; who did not may be wrong.
            if saved.iter().any(Result::is_ok) {
                assert_eq!(entry.step, 2, "crash at {at}, {effect:?}");
            }

            // The next life saves as if nothing had happened, and what was left goes.
            for saved in save(&mut ends(&sound, ranks, options()), &tensors(3), &locals, 3).await {
                saved.unwrap();
            }
            let entries = commit::list(&sound).await.unwrap();
            let steps: Vec<(u64, bool)> = entries
                .iter()
                .map(|entry| (entry.step, entry.complete))
                .collect();
            assert_eq!(steps, [(3, true)], "crash at {at}, {effect:?}");
            let report = verify::verify(&sound, Which::Latest).await.unwrap();
            assert_eq!((report.faults, report.foreign), (vec![], vec![]));
        }
        if !reached {
            break;
        }
        at += 1;
    }
    assert!(
        before > 10 && after > 5,
        "{before} crashes before, {after} after it was complete"
    );
}

/// SEMANTICS 95: whatever operation of a save is the last that happens, a checkpoint loads.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_crash_at_any_operation_leaves_a_checkpoint_that_loads() {
    crash_everywhere(|| {
        let store: Arc<dyn ObjectStore> = Arc::new(InMemory::new());
        (store.clone(), Storage::of(store, "sound"), None)
    })
    .await;
}

/// SEMANTICS 95: the same in a folder.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_crash_at_any_operation_leaves_a_folder_that_loads() {
    crash_everywhere(|| {
        let folder = tempfile::tempdir().unwrap();
        let store = LocalFileSystem::new_with_prefix(folder.path()).unwrap();
        let storage = Storage::folder(folder.path()).unwrap();
        (Arc::new(store), storage, Some(folder))
    })
    .await;
}

const CHILD: &str = "ODEON_CHECKPOINT_CHILD";

/// The process to kill: makes saves step after step. Does nothing where it is a test among others.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_process_that_saves_until_it_is_killed() {
    let Some(folder) = std::env::var_os(CHILD) else {
        return;
    };
    let storage = tuned(Storage::folder(Path::new(&folder)).unwrap());
    let mut ranks = ends(&storage, 2, options());
    for step in 1.. {
        let locals = flat(&tensors(step), 2);
        for saved in save(&mut ranks, &tensors(step), &locals, step).await {
            saved.unwrap();
        }
    }
}

/// SEMANTICS 95: a process that is killed leaves a checkpoint that loads, and the next one goes on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_process_leaves_a_checkpoint_that_loads() {
    let folder = tempfile::tempdir().unwrap();
    let storage = Storage::folder(folder.path()).unwrap();
    let mut newest = 0;
    for life in 0..6 {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args([
                "--exact",
                "crashes::a_process_that_saves_until_it_is_killed",
            ])
            .env(CHILD, folder.path())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        // A few checkpoints, and then some files of the next.
        let saved = async {
            loop {
                let entries = commit::list(&storage).await.unwrap_or_default();
                let complete = entries.iter().rfind(|entry| entry.complete);
                let begun = entries.last().is_some_and(|last| !last.complete);
                if complete.is_some_and(|entry| entry.sequence >= newest + 2) && begun {
                    break;
                }
                assert!(
                    child.try_wait().unwrap().is_none(),
                    "it saves until it is killed"
                );
                tokio::time::sleep(Duration::from_millis(1 + life)).await;
            }
        };
        let saved = tokio::time::timeout(Duration::from_secs(60), saved).await;
        saved.expect("it saves");
        child.kill().unwrap();
        child.wait().unwrap();
        let (entry, _) = commit::find(&storage, Which::Latest).await.unwrap();
        newest = entry.sequence;
        let known = tensors(entry.step);
        let whole = alone(&known);
        let loaded = load(&mut ends(&storage, 1, options()), &whole, Which::Latest).await;
        expect_same(&known, &whole, loaded);
    }
}
