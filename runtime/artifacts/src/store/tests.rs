//! Tests of a store alone, among threads and processes, and after it was killed.

use std::collections::HashSet;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, SystemTime};

use odeon_skip::{Need, skip};
use proptest::prelude::*;
use tempfile::TempDir;

use super::*;
use crate::disk::tests::{KILLED, STEPS};
use crate::noise::noise;
use crate::{BundleFile, Heat, Listing, Recorder};

const AMPLE: Footprint = Footprint {
    piece_bytes: 1 << 30,
    folder_bytes: 1 << 30,
};
const NOTHING: Footprint = Footprint {
    piece_bytes: 0,
    folder_bytes: 0,
};

/// `seconds` after a moment that all tests share.
fn at(seconds: u64) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_secs(1_700_000_000 + seconds)
}

fn open(folder: &TempDir, budget: Footprint) -> Store {
    Store::open(folder.path().join("store"), budget).unwrap()
}

fn store() -> (TempDir, Store) {
    let folder = tempfile::tempdir().unwrap();
    let store = open(&folder, AMPLE);
    (folder, store)
}

/// A bundle and the bytes of its files, of which the first is the entry.
struct Program {
    bundle: Bundle,
    files: Vec<(&'static str, Vec<u8>)>,
}

impl Program {
    fn new(files: impl IntoIterator<Item = (&'static str, Vec<u8>)>) -> Self {
        let files: Vec<_> = files.into_iter().collect();
        let listed = files.iter().map(|(path, bytes)| {
            let file = BundleFile {
                executable: !path.ends_with(".txt"),
                listing: Listing::of(bytes.as_slice()).unwrap(),
            };
            ((*path).to_owned(), file)
        });
        let bundle = Bundle::new(files[0].0, listed).unwrap();
        Self { bundle, files }
    }

    /// Of one file without pattern.
    fn of(seed: u64, len: usize) -> Self {
        Self::new([("run", noise(seed, len))])
    }

    fn digest(&self) -> Digest {
        self.bundle.digest()
    }

    /// Its pieces with their bytes.
    fn pieces(&self) -> Vec<(Piece, &[u8])> {
        let mut pieces = vec![];
        for (path, bytes) in &self.files {
            let listing = &self.bundle.file(path).unwrap().listing;
            for (piece, range) in listing.pieces().iter().zip(listing.ranges()) {
                pieces.push((*piece, &bytes[range.start as usize..range.end as usize]));
            }
        }
        pieces
    }

    /// Brings what the store lacks.
    fn upload(&self, store: &Store, now: SystemTime) {
        let missing = store.missing(self.bundle.pieces()).unwrap();
        for (piece, bytes) in self.pieces() {
            if missing.contains(&piece) {
                store.put(&piece.digest, bytes, now).unwrap();
            }
        }
    }

    /// Asserts that all of its files lie in the folder.
    fn expect_in(&self, assembled: &Assembled) {
        assert_eq!(assembled.entry, assembled.folder.join(self.files[0].0));
        for (path, bytes) in &self.files {
            let path = assembled.folder.join(path);
            assert_eq!(&fs::read(&path).unwrap(), bytes);
            let mode = fs::metadata(&path).unwrap().permissions().mode() & 0o777;
            let text = path.extension().is_some_and(|it| it == "txt");
            assert_eq!(mode, if text { 0o444 } else { 0o555 });
        }
    }
}

fn mixed() -> Program {
    Program::new([
        ("bin/train", noise(1, 700_000)),
        ("lib/deep/libx.so", noise(2, 100_000)),
        ("lib/liby.so", noise(2, 100_000)),
        ("empty.txt", vec![]),
    ])
}

/// Asserts the invariants of a store, which hold at any moment.
fn expect_sound(store: &Store, programs: &[&Program]) {
    let mut held = Footprint::default();
    for item in store.held_pieces().unwrap() {
        let bytes = store
            .get(&item.digest)
            .expect("a piece is what its name says");
        held.piece_bytes += bytes.len() as u64;
    }
    for program in programs {
        let assembled = store.assembled_path(&program.digest());
        if assembled.exists() {
            store
                .verify(&program.bundle)
                .expect("an assembled bundle is whole");
            held.folder_bytes += program.bundle.bytes();
        }
    }
    assert_eq!(store.held(), held);
}

#[test]
fn an_upload_goes_from_missing_to_assembled() {
    let (folder, store) = store();
    let program = mixed();
    store.pin(&program.bundle, at(60)).unwrap();
    let missing = store.missing(program.bundle.pieces()).unwrap();
    let pieces = program.pieces();
    let different: HashSet<Piece> = pieces.iter().map(|(piece, _)| *piece).collect();
    assert_eq!(missing.len(), different.len(), "each once");
    let error = store.assemble(&program.bundle, at(0)).unwrap_err();
    assert!(matches!(error, AssembleError::Lacks(lacks) if lacks == missing));
    for (piece, bytes) in &pieces {
        store.put(&piece.digest, bytes, at(0)).unwrap();
        assert_eq!(store.put(&piece.digest, bytes, at(0)).unwrap(), Put::Here);
        assert_eq!(&store.get(&piece.digest).unwrap(), bytes);
    }
    assert_eq!(store.missing(program.bundle.pieces()).unwrap(), []);
    let assembled = store.assemble(&program.bundle, at(1)).unwrap();
    program.expect_in(&assembled);
    let built = fs::metadata(&assembled.entry).unwrap();
    assert_eq!(store.assemble(&program.bundle, at(2)).unwrap(), assembled);
    let again = fs::metadata(&assembled.entry).unwrap();
    assert_eq!(built.ino(), again.ino(), "it was not built twice");
    expect_sound(&store, &[&program]);
    assert_eq!(store.bundle(&program.digest()).unwrap(), program.bundle);
    assert_eq!(store.bundles().unwrap(), [program.digest()]);

    drop(store);
    let store = open(&folder, AMPLE);
    assert_eq!(store.recovered(), Recovered::default());
    expect_sound(&store, &[&program]);
}

#[test]
fn bytes_under_a_wrong_name_are_not_taken() {
    let (_folder, store) = store();
    let digest = Digest::of(b"right");
    let error = store.put(&digest, b"wrong", at(0)).unwrap_err();
    assert!(matches!(error, PutError::Mismatch { .. }), "{error}");
    for bytes in [vec![], vec![0; Piece::BYTES_MAX + 1]] {
        let error = store.put(&Digest::of(&bytes), &bytes, at(0)).unwrap_err();
        assert!(matches!(error, PutError::Length { bytes: n } if n == bytes.len()));
    }
    let missing = store.get(&digest).unwrap_err();
    assert!(matches!(missing, GetError::Missing(it) if it == digest));
    assert_eq!(store.held(), NOTHING);
}

/// SEMANTICS 55.
#[test]
fn a_damaged_piece_is_removed_and_can_be_brought_again() {
    for damage in [
        Damage::Flip,
        Damage::Truncate,
        Damage::Empty,
        Damage::Lengthen,
    ] {
        let (_folder, store) = store();
        let program = Program::of(3, 900_000);
        program.upload(&store, at(0));
        let (piece, bytes) = program.pieces()[1];
        damage.inflict(&store.piece_path(&piece.digest));
        let error = store.get(&piece.digest).unwrap_err();
        assert!(matches!(error, GetError::Corrupt(it) if it == piece.digest));
        assert_eq!(store.missing(program.bundle.pieces()).unwrap(), [piece]);
        let error = store.get(&piece.digest).unwrap_err();
        assert!(matches!(error, GetError::Missing(_)), "{damage:?}: {error}");
        assert_eq!(
            store.put(&piece.digest, bytes, at(1)).unwrap(),
            Put::Written
        );
        program.expect_in(&store.assemble(&program.bundle, at(1)).unwrap());
    }
}

/// SEMANTICS 55.
#[test]
fn all_damaged_pieces_of_a_bundle_are_found_at_once() {
    let (_folder, store) = store();
    let program = Program::of(3, 900_000);
    program.upload(&store, at(0));
    let pieces = program.pieces();
    let whole = pieces.len() - 3;
    assert!(whole > 0);
    for ((piece, _), damage) in
        pieces
            .iter()
            .zip([Damage::Flip, Damage::Truncate, Damage::Lengthen])
    {
        damage.inflict(&store.piece_path(&piece.digest));
    }
    assert_eq!(store.scrub(&program.bundle).unwrap(), 3);
    let missing = store.missing(program.bundle.pieces()).unwrap();
    assert_eq!(missing.len(), 3);
    assert_eq!(store.scrub(&program.bundle).unwrap(), 0);
    program.upload(&store, at(1));
    program.expect_in(&store.assemble(&program.bundle, at(1)).unwrap());
    expect_sound(&store, &[&program]);
}

/// SEMANTICS 55.
#[test]
fn a_program_is_not_built_from_a_damaged_piece() {
    for damage in [Damage::Flip, Damage::Truncate] {
        let (_folder, store) = store();
        let program = mixed();
        program.upload(&store, at(0));
        let (piece, bytes) = program.pieces()[1];
        damage.inflict(&store.piece_path(&piece.digest));
        let error = store.assemble(&program.bundle, at(0)).unwrap_err();
        assert!(matches!(&error, AssembleError::Lacks(lacks) if *lacks == [piece]));
        assert!(!store.assembled_path(&program.digest()).exists());
        assert_eq!(store.held().folder_bytes, 0);
        assert_eq!(store.missing(program.bundle.pieces()).unwrap(), [piece]);
        store.put(&piece.digest, bytes, at(0)).unwrap();
        program.expect_in(&store.assemble(&program.bundle, at(0)).unwrap());
        expect_sound(&store, &[&program]);
    }
}

#[test]
fn a_listing_that_lies_gives_no_program() {
    let (_folder, store) = store();
    let program = Program::of(4, 10_000);
    program.upload(&store, at(0));
    let piece = program.pieces()[0].0;
    let bundle_of = |listing| {
        let file = BundleFile {
            executable: true,
            listing,
        };
        Bundle::new("run", [("run".to_owned(), file)]).unwrap()
    };
    let other = Listing::new(Digest::of(b"other"), 10_000, vec![piece]).unwrap();
    let error = store.assemble(&bundle_of(other), at(0)).unwrap_err();
    assert!(matches!(error, AssembleError::Listing { .. }), "{error}");
    let short = Piece {
        bytes: 9_999,
        ..piece
    };
    let other = bundle_of(Listing::new(Digest::of(b"other"), 9_999, vec![short]).unwrap());
    let error = store.assemble(&other, at(0)).unwrap_err();
    assert!(matches!(error, AssembleError::Length { found: 10_000, .. }));
    // Nor does it cost a piece that is right.
    store.keep(&other).unwrap();
    let folder = store.folder().to_owned();
    drop(store);
    let store = Store::open(folder, AMPLE).unwrap();
    assert_eq!(store.recovered(), Recovered::default());
    program.expect_in(&store.assemble(&program.bundle, at(0)).unwrap());
}

/// SEMANTICS 55.
#[test]
fn a_changed_program_is_built_anew() {
    let (_folder, store) = store();
    let program = mixed();
    program.upload(&store, at(0));
    let entry = store.assemble(&program.bundle, at(0)).unwrap().entry;
    let changes: [&dyn Fn(); 4] = [
        &|| fs::remove_file(&entry).unwrap(),
        &|| fs::set_permissions(&entry, fs::Permissions::from_mode(0o755)).unwrap(),
        &|| Damage::Truncate.inflict(&entry),
        &|| Damage::Flip.inflict(&entry),
    ];
    for change in changes {
        change();
        program.expect_in(&store.assemble(&program.bundle, at(0)).unwrap());
        expect_sound(&store, &[&program]);
    }
}

#[test]
fn reading_a_program_finds_what_its_outside_does_not_show() {
    let (_folder, store) = store();
    let program = mixed();
    let error = store.verify(&program.bundle).unwrap_err();
    assert!(matches!(error, VerifyError::NotAssembled(_)), "{error}");
    program.upload(&store, at(0));
    let entry = store.assemble(&program.bundle, at(0)).unwrap().entry;
    store.verify(&program.bundle).unwrap();
    // As a disk does it.
    let time = fs::metadata(&entry).unwrap().modified().unwrap();
    Damage::Flip.inflict(&entry);
    fs::set_permissions(&entry, fs::Permissions::from_mode(0o555)).unwrap();
    fs::File::open(&entry).unwrap().set_modified(time).unwrap();
    store.assemble(&program.bundle, at(0)).unwrap();
    let error = store.verify(&program.bundle).unwrap_err();
    assert_eq!(
        error.to_string(),
        "\"bin/train\" of the bundle was changed since it was put together: its bytes are others"
    );
    program.expect_in(&store.assemble(&program.bundle, at(0)).unwrap());
    store.verify(&program.bundle).unwrap();
}

#[derive(Clone, Copy, Debug)]
enum Damage {
    Flip,
    Truncate,
    Empty,
    Lengthen,
}

impl Damage {
    fn inflict(self, path: &Path) {
        let mut bytes = fs::read(path).unwrap();
        match self {
            Self::Flip => {
                let middle = bytes.len() / 2;
                bytes[middle] ^= 1;
            }
            Self::Truncate => bytes.truncate(bytes.len() - 1),
            Self::Empty => bytes.clear(),
            Self::Lengthen => bytes.resize(Piece::BYTES_MAX + 10, 0),
        }
        fs::set_permissions(path, fs::Permissions::from_mode(0o644)).unwrap();
        fs::write(path, bytes).unwrap();
    }
}

#[test]
fn the_budget_refuses_with_the_numbers_and_nothing_stays() {
    let folder = tempfile::tempdir().unwrap();
    let budget = Footprint {
        piece_bytes: 5_000,
        folder_bytes: 2_999,
    };
    let store = open(&folder, budget);
    let (first, second) = (Program::of(1, 3_000), Program::of(2, 2_001));
    first.upload(&store, at(0));
    let (piece, bytes) = second.pieces()[0];
    let error = store.put(&piece.digest, bytes, at(0)).unwrap_err();
    let PutError::Full(full) = error else {
        panic!("{error}");
    };
    assert_eq!((full.kind, full.needed), (ContentKind::Pieces, 2_001));
    assert_eq!((full.budget, full.held), (5_000, 3_000));
    assert_eq!(
        store.missing(second.bundle.pieces()).unwrap(),
        [piece],
        "it is still missing"
    );
    let error = store.assemble(&first.bundle, at(0)).unwrap_err();
    let AssembleError::Full(full) = error else {
        panic!("{error}");
    };
    assert_eq!((full.kind, full.held), (ContentKind::Folders, 0));
    expect_sound(&store, &[&first, &second]);
    // The store knows what it holds after it was opened again, and may have more then.
    drop(store);
    let store = open(&folder, AMPLE);
    assert_eq!(store.held().piece_bytes, 3_000);
    second.upload(&store, at(0));
    first.expect_in(&store.assemble(&first.bundle, at(0)).unwrap());
}

#[test]
fn opening_finds_pieces_of_a_wrong_length() {
    let (folder, store) = store();
    let (known, unknown) = (Program::of(1, 5_000), Program::of(2, 5_000));
    for program in [&known, &unknown] {
        program.upload(&store, at(0));
    }
    store.keep(&known.bundle).unwrap();
    let path_of = |program: &Program| store.piece_path(&program.pieces()[0].0.digest);
    Damage::Truncate.inflict(&path_of(&known));
    Damage::Empty.inflict(&path_of(&unknown));
    let bundle = Program::of(3, 10);
    store.keep(&bundle.bundle).unwrap();
    Damage::Truncate.inflict(&store.bundle_path(&bundle.digest()));
    // What is not ours stays.
    let foreign = store.folder().join("pieces/README");
    fs::write(&foreign, "hands off").unwrap();
    drop(store);
    let store = open(&folder, AMPLE);
    assert_eq!(
        store.recovered(),
        Recovered {
            drafts: 0,
            pieces: 2,
            bundles: 1,
        }
    );
    assert_eq!(store.held(), NOTHING);
    assert_eq!(store.missing(known.bundle.pieces()).unwrap().len(), 1);
    assert!(foreign.exists());
}

#[test]
fn threads_that_bring_the_same_pieces_count_them_once() {
    let (_folder, store) = store();
    let programs = [Program::of(1, 2_000_000), mixed()];
    std::thread::scope(|scope| {
        for n in 0..6 {
            let (store, programs) = (&store, &programs);
            scope.spawn(move || {
                for program in programs {
                    for (piece, bytes) in program.pieces() {
                        store.put(&piece.digest, bytes, at(n)).unwrap();
                    }
                    program.expect_in(&store.assemble(&program.bundle, at(n)).unwrap());
                    store.collect(&[], AMPLE, at(n)).unwrap();
                }
            });
        }
    });
    expect_sound(&store, &[&programs[0], &programs[1]]);
    assert_eq!(
        fs::read_dir(store.folder().join(DRAFTS)).unwrap().count(),
        1
    );
}

/// Runs this test binary again, with only the test `name`, which sees `FOLDER`.
fn again(name: &str, folder: &Path) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args([&format!("store::tests::{name}"), "--exact", "--nocapture"])
        .env(FOLDER, folder);
    command
}

const FOLDER: &str = "ODEON_ARTIFACTS_FOLDER";

#[test]
fn processes_share_a_store() {
    let programs = [Program::of(1, 1_500_000), mixed()];
    if let Some(folder) = std::env::var_os(FOLDER) {
        let store = Store::open(folder, AMPLE).unwrap();
        for program in &programs {
            for (piece, bytes) in program.pieces() {
                store.put(&piece.digest, bytes, at(0)).unwrap();
            }
            program.expect_in(&store.assemble(&program.bundle, at(0)).unwrap());
            store.collect(&[], AMPLE, at(0)).unwrap();
        }
        return;
    }
    let (_folder, store) = store();
    let command = || {
        again("processes_share_a_store", store.folder())
            .spawn()
            .unwrap()
    };
    let processes: Vec<_> = (0..4).map(|_| command()).collect();
    for mut process in processes {
        assert!(process.wait().unwrap().success());
    }
    // What the others brought is counted here.
    store.collect(&[], AMPLE, at(0)).unwrap();
    assert!(store.held().piece_bytes > 1_500_000);
    expect_sound(&store, &[&programs[0], &programs[1]]);
    assert_eq!(
        fs::read_dir(store.folder().join(DRAFTS)).unwrap().count(),
        1
    );
}

#[test]
fn a_process_killed_at_any_step_leaves_a_store_that_works() {
    let (old, new) = (Program::of(9, 100_000), mixed());
    if let Some(folder) = std::env::var_os(FOLDER) {
        // All that a store does.
        let store = Store::open(folder, AMPLE).unwrap();
        old.upload(&store, at(0));
        store.assemble(&old.bundle, at(0)).unwrap();
        store.pin(&new.bundle, at(60)).unwrap();
        new.upload(&store, at(1));
        let entry = store.assemble(&new.bundle, at(1)).unwrap().entry;
        Damage::Truncate.inflict(&entry);
        store.assemble(&new.bundle, at(2)).unwrap();
        store.collect(&[], NOTHING, at(3)).unwrap();
        store.unpin(&new.digest()).unwrap();
        store.collect(&[], NOTHING, at(3)).unwrap();
        return;
    }
    for steps in 0.. {
        // What was written stays when a process is killed, so no disk has to be waited for.
        let folder = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir());
        let folder = folder.unwrap();
        let place = folder.path().join("store");
        let mut child = again(
            "a_process_killed_at_any_step_leaves_a_store_that_works",
            &place,
        );
        let done = child.env(STEPS, steps.to_string()).output().unwrap();
        let store = Store::open(&place, AMPLE).unwrap();
        assert_eq!(store.recovered().pieces, 0, "step {steps}");
        assert_eq!(store.recovered().bundles, 0, "step {steps}");
        let drafts = store.folder().join(DRAFTS);
        assert_eq!(fs::read_dir(drafts).unwrap().count(), 1, "step {steps}");
        if store.assembled_path(&new.digest()).exists() {
            // The scenario damages it on the way, and that is mended.
            store.assemble(&new.bundle, at(3)).unwrap();
        }
        expect_sound(&store, &[&old, &new]);
        for program in [&old, &new] {
            store.pin(&program.bundle, at(60)).unwrap();
            program.upload(&store, at(4));
            program.expect_in(&store.assemble(&program.bundle, at(4)).unwrap());
        }
        store.collect(&[], NOTHING, at(61)).unwrap();
        assert_eq!(store.held(), NOTHING, "step {steps}");
        if done.status.success() {
            assert!(steps > 60, "{steps} steps are not all that a store does");
            return;
        }
        let said = String::from_utf8_lossy(&done.stderr);
        assert_eq!(done.status.code(), Some(KILLED), "step {steps}: {said}");
    }
}

#[test]
fn pins_and_live_bundles_stay_and_the_oldest_go_first() {
    let (_folder, store) = store();
    let programs: Vec<Program> = (0..4).map(|n| Program::of(n, 1_000)).collect();
    for (program, n) in programs.iter().zip(0..) {
        store.keep(&program.bundle).unwrap();
        program.upload(&store, at(n));
        store.assemble(&program.bundle, at(n)).unwrap();
    }
    let here = || -> Vec<bool> {
        let here = |program: &Program| {
            let pieces = store.missing(program.bundle.pieces()).unwrap().is_empty();
            let folder = store.assembled_path(&program.digest()).exists();
            assert_eq!(pieces, folder);
            pieces
        };
        programs.iter().map(here).collect()
    };
    // The second is used again, the first is live, the last is pinned for a while.
    store.assemble(&programs[1].bundle, at(5)).unwrap();
    store.pin(&programs[3].bundle, at(10)).unwrap();
    store.pin(&programs[3].bundle, at(8)).unwrap();
    let live = [programs[0].digest()];
    let down_to = Footprint {
        piece_bytes: 3_500,
        folder_bytes: 3_000,
    };
    let freed = store.collect(&live, down_to, at(9)).unwrap();
    assert_eq!(
        freed,
        Freed {
            pieces: 1,
            piece_bytes: 1_000,
            folders: 1,
            folder_bytes: 1_000,
            bundles: 1,
        }
    );
    assert_eq!(here(), [true, true, false, true]);
    store.collect(&live, NOTHING, at(9)).unwrap();
    assert_eq!(here(), [true, false, false, true]);
    store.collect(&live, NOTHING, at(10)).unwrap();
    assert_eq!(here(), [true, false, false, false]);
    expect_sound(&store, &[&programs[0]]);
    let unknown = Digest::of(b"unknown");
    let error = store.collect(&[unknown], NOTHING, at(9)).unwrap_err();
    assert!(matches!(error, CollectError::NotKept(it) if it == unknown));
    assert_eq!(here(), [true, false, false, false]);
}

#[test]
fn what_is_known_of_a_start_stays_with_its_bundle() {
    let (_folder, store) = store();
    let program = Program::of(1, 1_000);
    let other = Digest::of(b"another bundle");
    let mut heat = Heat::default();
    let mut recorder = Recorder::new(program.digest(), Duration::from_secs(1), 8);
    recorder.note(program.pieces()[0].0.digest, Duration::ZERO);
    heat.learn([recorder.recording().clone()]);
    store.keep(&program.bundle).unwrap();
    for bundle in [program.digest(), other] {
        assert_eq!(store.heat(&bundle).unwrap(), None);
        store.set_heat(&bundle, &heat).unwrap();
        assert_eq!(store.heat(&bundle).unwrap().as_ref(), Some(&heat));
    }
    let live = [program.digest()];
    store.collect(&live, NOTHING, at(0)).unwrap();
    assert_eq!(store.heat(&program.digest()).unwrap(), Some(heat));
    assert_eq!(store.heat(&other).unwrap(), None);
    let path = store
        .folder()
        .join("heat")
        .join(program.digest().to_string());
    fs::write(path, "of no use").unwrap();
    assert_eq!(store.heat(&program.digest()).unwrap(), None);
}

#[test]
fn a_full_disk_is_told_from_a_full_budget() {
    if let Some(folder) = std::env::var_os(FOLDER) {
        let store = Store::open(folder, AMPLE).unwrap();
        let program = Program::of(1, 16 << 20);
        let refused = program.pieces().into_iter().find_map(|(piece, bytes)| {
            let put = store.put(&piece.digest, bytes, at(0));
            put.err().map(|error| (piece, error))
        });
        let (piece, error) = refused.expect("16 MiB do not fit into 4");
        let full = matches!(error, PutError::Disk(DiskError::DiskFull(_)));
        assert!(full, "{error:?}");
        assert!(!store.missing([&piece]).unwrap().is_empty());
        expect_sound(&store, &[]);
        // What was removed makes room again.
        store.collect(&[], NOTHING, at(1)).unwrap();
        let small = Program::of(2, 1_000_000);
        small.upload(&store, at(2));
        small.expect_in(&store.assemble(&small.bundle, at(2)).unwrap());
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let this = std::env::current_exe().unwrap();
    let mounted = "mount -t tmpfs -o size=4m none \"$1\" || exit 99; shift; exec \"$@\"";
    let run = Command::new("unshare")
        .args(["-m", "sh", "-c", mounted, "sh"])
        .args([folder.path(), &this])
        .args([
            "store::tests::a_full_disk_is_told_from_a_full_budget",
            "--exact",
        ])
        .env(FOLDER, folder.path())
        .output();
    match run {
        Ok(done) if done.status.success() => {}
        Ok(done) if done.status.code() == Some(101) => {
            panic!("{}", String::from_utf8_lossy(&done.stdout));
        }
        // Both need rights that a user does not have everywhere.
        Ok(done) => skip(Need::Mounts, String::from_utf8_lossy(&done.stderr)),
        Err(error) => skip(Need::Mounts, format!("unshare: {error}")),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn collecting_never_takes_what_is_live_or_pinned(
        // Of each program: the parts that it consists of, and whether it is live, or pinned.
        programs in prop::collection::vec(
            (prop::collection::btree_set(0_u64..8, 1..4), any::<bool>(), any::<bool>()), 1..6,
        ),
        down_to in 0_u64..6_000,
    ) {
        let (_folder, store) = store();
        let paths = ["a", "b", "c", "d", "e", "f", "g", "h"];
        let programs: Vec<_> = programs.into_iter().map(|(parts, live, pinned)| {
            let files = parts.into_iter().map(|part| (paths[part as usize], noise(part, 1_000)));
            (Program::new(files), live, pinned)
        }).collect();
        for ((program, _, pinned), n) in programs.iter().zip(0..) {
            store.keep(&program.bundle).unwrap();
            if *pinned {
                store.pin(&program.bundle, at(100)).unwrap();
            }
            program.upload(&store, at(n));
            store.assemble(&program.bundle, at(n)).unwrap();
        }
        let live: Vec<Digest> =
            programs.iter().filter(|it| it.1).map(|(program, ..)| program.digest()).collect();
        let down_to = Footprint { piece_bytes: down_to, folder_bytes: down_to };
        let before = store.held();
        let freed = store.collect(&live, down_to, at(99)).unwrap();
        let held = store.held();
        prop_assert_eq!(before.piece_bytes - freed.piece_bytes, held.piece_bytes);
        prop_assert_eq!(before.folder_bytes - freed.folder_bytes, held.folder_bytes);
        let all: Vec<&Program> = programs.iter().map(|(program, ..)| program).collect();
        let mut different = all.clone();
        different.sort_by_key(|program| program.digest());
        different.dedup_by_key(|program| program.digest());
        expect_sound(&store, &different);
        let stays = |program: &Program| {
            programs.iter().any(|(it, live, pinned)| {
                it.digest() == program.digest() && (*live || *pinned)
            })
        };
        let (mut needed, mut folders) = (HashSet::new(), 0);
        for program in different.iter().filter(|program| stays(program)) {
            prop_assert!(store.missing(program.bundle.pieces()).unwrap().is_empty());
            prop_assert!(store.assembled_path(&program.digest()).exists());
            prop_assert!(store.bundle(&program.digest()).is_ok());
            needed.extend(program.bundle.pieces().map(|piece| piece.digest));
            folders += program.bundle.bytes();
        }
        let needed = needed.len() as u64 * 1_000;
        prop_assert!(held.piece_bytes <= needed.max(down_to.piece_bytes));
        prop_assert!(held.folder_bytes <= folders.max(down_to.folder_bytes));
    }
}

#[test]
fn bundles_that_share_a_large_file_have_it_once_on_the_disk_and_damage_is_mended() {
    use std::os::unix::fs::MetadataExt;

    let (_folder, store) = store();
    let gang = |seed| Program::new([("run", noise(1, 1_500_000)), ("x.py", noise(seed, 100))]);
    let (a, b) = (gang(2), gang(3));
    for program in [&a, &b] {
        store.keep(&program.bundle).unwrap();
        program.upload(&store, at(0));
        program.expect_in(&store.assemble(&program.bundle, at(0)).unwrap());
    }
    let entry = |program: &Program| store.assembled_path(&program.digest()).join("run");
    let inode = |program: &Program| fs::metadata(entry(program)).unwrap().ino();
    assert_eq!(inode(&a), inode(&b));
    // What damages one damages both, and each is written anew before it runs.
    Damage::Flip.inflict(&entry(&a));
    for program in [&a, &b] {
        assert!(store.verify(&program.bundle).is_err());
        program.expect_in(&store.assemble(&program.bundle, at(1)).unwrap());
        store.verify(&program.bundle).unwrap();
    }
    expect_sound(&store, &[&a, &b]);
    store.collect(&[b.digest()], NOTHING, at(2)).unwrap();
    assert!(!entry(&a).exists());
    expect_sound(&store, &[&b]);
}

#[test]
fn an_upload_that_is_given_up_is_pinned_no_longer() {
    let (_folder, store) = store();
    let (whole, half) = (Program::of(1, 300_000), Program::of(2, 300_000));
    whole.upload(&store, at(0));
    for program in [&whole, &half] {
        store.pin(&program.bundle, at(100)).unwrap();
    }
    let pieces = half.pieces();
    let (first, bytes) = pieces[0];
    store.put(&first.digest, bytes, at(0)).unwrap();
    let last = pieces.last().unwrap().0;
    assert!(last != first, "it has several pieces");
    assert_eq!(store.abandon(&whole.pieces()[0].0.digest).unwrap(), 0);
    assert_eq!(store.abandon(&last.digest).unwrap(), 1);
    store.collect(&[], NOTHING, at(1)).unwrap();
    assert_eq!(
        store.missing(half.bundle.pieces()).unwrap().len(),
        pieces.len()
    );
    assert_eq!(store.missing(whole.bundle.pieces()).unwrap(), []);
}
