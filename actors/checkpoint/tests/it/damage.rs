//! Bad input, each with an error that names the file and the byte.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use object_store::memory::InMemory;
use odeon_checkpoint::manifest::MANIFEST;
use odeon_checkpoint::storage::Tuning;
use odeon_checkpoint::{Storage, Which, commit, verify};

use crate::faulty::{Faulty, Trouble};
use crate::world::{alone, ends, expect_same, flat, load, save, small, tensors};

/// A folder with a checkpoint of step 1, of two ranks.
async fn saved() -> (tempfile::TempDir, Storage, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let storage = Storage::folder(folder.path()).unwrap();
    let locals = flat(&tensors(1), 2);
    for saved in save(&mut ends(&storage, 2, small()), &tensors(1), &locals, 1).await {
        saved.unwrap();
    }
    let (entry, _) = commit::find(&storage, Which::Latest).await.unwrap();
    let path = folder.path().join(entry.folder());
    (folder, storage, path)
}

fn files(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).unwrap();
    let mut files: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    files.sort();
    files
}

/// The first fault that `verify` finds, if any: file, offset, words.
async fn found(storage: &Storage) -> Option<(String, Option<u64>, String)> {
    match verify::verify(storage, Which::Latest).await {
        Ok(report) => {
            let fault = report.faults.into_iter().next()?;
            Some((fault.file, fault.offset, fault.detail))
        }
        Err(error) => Some((String::new(), None, error.to_string())),
    }
}

/// SEMANTICS 96: every byte of every file, one bit of each, by verifying and by loading.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flipped_bit_at_any_byte_is_found_and_named() {
    let (_folder, storage, path) = saved().await;
    assert_eq!(found(&storage).await, None);
    let known = tensors(1);
    let whole = alone(&known);
    let mut flipped = 0;
    for file in files(&path) {
        let sound = fs::read(&file).unwrap();
        let name = file.file_name().unwrap().to_str().unwrap();
        let header = sound
            .get(..8)
            .map(|bytes| u64::from_le_bytes(bytes.try_into().unwrap()));
        for at in 0..sound.len() {
            let mut bytes = sound.clone();
            bytes[at] ^= 1 << (at % 8);
            fs::write(&file, bytes).unwrap();
            let (_, offset, said) = found(&storage)
                .await
                .unwrap_or_else(|| panic!("{name}, {at}"));
            assert!(said.contains(name), "{said}");
            assert!(said.contains(" byte ") || name == MANIFEST, "{said}");
            if let Some(offset) = offset {
                let block = offset..offset + 32_u64.max(header.unwrap_or(0) + 8);
                assert!(block.contains(&(at as u64)), "{at} is not in {said}");
            }
            // What is loaded reads no headers, and all of the rest.
            let read = name == MANIFEST || header.is_some_and(|bytes| at as u64 >= bytes + 8);
            if read && at.is_multiple_of(13) {
                for filled in load(&mut ends(&storage, 1, small()), &whole, Which::Latest).await {
                    let said = filled.expect_err("it is damaged").to_string();
                    assert!(said.contains(name) && said.contains("byte"), "{said}");
                }
            }
            flipped += 1;
        }
        fs::write(&file, sound).unwrap();
    }
    assert!(flipped > 1000, "{flipped} bytes");
    assert_eq!(found(&storage).await, None, "all is as it was");
}

/// SEMANTICS 96: files that are cut off anywhere.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_truncated_file_is_named_with_the_byte_at_which_it_ends() {
    let (_folder, storage, path) = saved().await;
    let known = tensors(1);
    let whole = alone(&known);
    for file in files(&path) {
        let sound = fs::read(&file).unwrap();
        let name = file.file_name().unwrap().to_str().unwrap();
        for end in (0..sound.len()).step_by(23) {
            fs::write(&file, &sound[..end]).unwrap();
            let (.., said) = found(&storage).await.unwrap();
            assert!(said.contains(name) && said.contains("byte"), "{said}");
            if name != MANIFEST {
                assert!(
                    said.contains(&format!("at byte {end}: the file ends here")),
                    "{said}"
                );
                for filled in load(&mut ends(&storage, 1, small()), &whole, Which::Latest).await {
                    let said = filled.expect_err("it is cut off").to_string();
                    // Some other file may be read first, but only this one is cut off.
                    assert!(said.contains(name) && said.contains("ends here"), "{said}");
                }
            }
        }
        let longer = [&*sound, b"more"].concat();
        fs::write(&file, longer).unwrap();
        let (.., said) = found(&storage).await.unwrap();
        assert!(said.contains(name), "{said}");
        fs::write(&file, sound).unwrap();
    }
}

/// SEMANTICS 96: what is missing is named, and with a missing manifest the one before is in force.
#[tokio::test]
async fn missing_files_are_named_and_a_missing_manifest_means_the_one_before() {
    let (folder, storage, path) = saved().await;
    let file = files(&path)
        .into_iter()
        .find(|file| !file.ends_with(MANIFEST))
        .unwrap();
    let moved = folder.path().join("moved");
    fs::rename(&file, &moved).unwrap();
    let name = file.file_name().unwrap().to_str().unwrap();
    let (.., said) = found(&storage).await.unwrap();
    assert!(
        said.contains(name) && said.contains("is not there"),
        "{said}"
    );
    let whole = alone(&tensors(1));
    let loaded = load(&mut ends(&storage, 1, small()), &whole, Which::Latest).await;
    let said = loaded[0].as_ref().unwrap_err().to_string();
    assert!(
        said.contains(name) && said.contains("is not there"),
        "{said}"
    );
    fs::rename(&moved, &file).unwrap();

    let locals = flat(&tensors(2), 2);
    for saved in save(&mut ends(&storage, 2, small()), &tensors(2), &locals, 2).await {
        saved.unwrap();
    }
    let (second, _) = commit::find(&storage, Which::Latest).await.unwrap();
    fs::remove_file(folder.path().join(second.file(MANIFEST))).unwrap();
    let loaded = load(&mut ends(&storage, 1, small()), &whole, Which::Latest).await;
    expect_same(&tensors(1), &whole, loaded);
    fs::remove_file(path.join(MANIFEST)).unwrap();
    let loaded = load(&mut ends(&storage, 1, small()), &whole, Which::Latest).await;
    let said = loaded[0].as_ref().unwrap_err().to_string();
    assert!(
        said.contains("holds no complete checkpoint; 2 were begun"),
        "{said}"
    );
    let said = commit::find(&storage, Which::Step(9))
        .await
        .unwrap_err()
        .to_string();
    assert!(said.contains("no complete checkpoint of step 9"), "{said}");
}

/// SEMANTICS 96: each failure of a place is told with the file, and the one before stays.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_disk_and_denied_permission_leave_the_last_good_state() {
    for (trouble, expected) in [
        (Trouble::Full { bytes: 0 }, "no room left"),
        (Trouble::Full { bytes: 150 }, "no room left"),
        (Trouble::Full { bytes: 900 }, "no room left"),
        (Trouble::Denied, "permission denied"),
    ] {
        let inner = Arc::new(InMemory::new());
        let sound = Storage::of(inner.clone(), "sound");
        let known = tensors(1);
        let locals = flat(&known, 2);
        for saved in save(&mut ends(&sound, 2, small()), &known, &locals, 1).await {
            saved.unwrap();
        }
        let (store, _) = Faulty::new(inner, trouble);
        let full = Storage::of(store, "place").tuned(Tuning {
            part_bytes: 64,
            ..Tuning::default()
        });
        for saved in save(&mut ends(&full, 2, small()), &tensors(2), &locals, 2).await {
            let said = saved.unwrap_err().to_string();
            assert!(
                said.contains(expected) && said.contains("place/00000002-step-2/"),
                "{said}"
            );
            assert!(said.contains("of step 2 was not made: rank"), "{said}");
        }
        let whole = alone(&known);
        let loaded = load(&mut ends(&sound, 1, small()), &whole, Which::Latest).await;
        expect_same(&known, &whole, loaded);
    }
}

/// A real disk without room: the system's own error, through the same code.
#[tokio::test]
async fn a_folder_that_is_a_file_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    fs::write(&file, "no folder").unwrap();
    let error = Storage::create(file.join("below").to_str().unwrap()).unwrap_err();
    assert!(error.to_string().contains("file/below"), "{error}");
}

/// SEMANTICS 98: what fails and may pass is tried again.
#[tokio::test]
async fn what_may_pass_is_tried_again() {
    let (store, state) = Faulty::new(Arc::new(InMemory::new()), Trouble::Flaky);
    let flaky = Storage::of(store, "flaky").tuned(Tuning {
        pause: Duration::from_millis(1),
        ..Tuning::default()
    });
    let known = tensors(1);
    let locals = flat(&known, 1);
    for saved in save(&mut ends(&flaky, 1, small()), &known, &locals, 1).await {
        saved.unwrap();
    }
    let whole = alone(&known);
    let loaded = load(&mut ends(&flaky, 1, small()), &whole, Which::Latest).await;
    expect_same(&known, &whole, loaded);
    assert!(state.operations() > 20, "half of them failed");
}

/// SEMANTICS 98.
#[tokio::test]
async fn what_does_not_pass_is_tried_a_bounded_number_of_times() {
    for tries in [1, 3] {
        let (store, state) = Faulty::new(Arc::new(InMemory::new()), Trouble::Busy);
        let busy = Storage::of(store, "busy").tuned(Tuning {
            tries,
            pause: Duration::from_millis(1),
            ..Tuning::default()
        });
        let said = busy.get("a file").await.unwrap_err().to_string();
        assert!(said.contains("503 Slow Down"), "{said}");
        assert_eq!(state.operations(), tries as usize);
        let said = busy.put("a file", &["bytes".into()]).await.unwrap_err();
        assert!(said.to_string().contains("a file"), "{said}");
        assert_eq!(state.operations(), 2 * tries as usize);
    }
}
