//! A mount without nodes: what it lacks comes from a list of bytes.

use std::fs;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::sync::atomic::AtomicBool;

use odeon_artifacts::{BundleFile, Footprint, Listing};
use odeon_skip::{Need, skip};
use tempfile::TempDir;

use super::super::stale::is_mounted_below;
use super::*;

/// A bundle of two files that is mounted, whose pieces are brought by a thread.
struct Shelf {
    folder: TempDir,
    bytes: Vec<u8>,
    listing: Listing,
    store: Arc<Store>,
    arrivals: Arc<Arrivals>,
    mount: Option<Mount>,
    /// Set while pieces come when they are asked for.
    brings: Arc<AtomicBool>,
    carrier: Option<std::thread::JoinHandle<Vec<Digest>>>,
}

/// Numbers without pattern.
fn noise(seed: u64) -> impl Iterator<Item = u64> {
    let next = |state: &u64| {
        let mut state = *state;
        state ^= state << 13;
        state ^= state >> 7;
        Some(state ^ (state << 17))
    };
    std::iter::successors(Some(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15)), next)
        .map(|state| state >> 11)
}

const NOW: SystemTime = SystemTime::UNIX_EPOCH;

impl Shelf {
    /// `None` where nothing can be mounted, and the test is skipped. Pieces come only when they are read, in pieces of a size
    /// that parts of reads do not share.
    fn new() -> Option<Self> {
        let folder = tempfile::tempdir().unwrap();
        let bytes: Vec<u8> = noise(7).map(|it| it as u8).take(3 << 20).collect();
        let listing = Listing::of(&bytes[..]).unwrap();
        let file = |executable, listing: &Listing| BundleFile {
            executable,
            listing: listing.clone(),
        };
        let empty = Listing::of(&b""[..]).unwrap();
        let files = [
            ("lib/data".to_owned(), file(false, &listing)),
            ("none".to_owned(), file(false, &empty)),
            ("run".to_owned(), file(true, &listing)),
        ];
        let bundle = Bundle::new("run", files).unwrap();
        let ample = Footprint {
            piece_bytes: 1 << 30,
            folder_bytes: 1 << 30,
        };
        let store = Arc::new(Store::open(folder.path().join("store"), ample).unwrap());
        let arrivals = Arc::new(Arrivals::new([]));
        let (place, window) = (folder.path().join("mounts/0"), Duration::from_secs(60));
        let mounted = Mount::new(
            place,
            &bundle,
            Arc::clone(&store),
            Arc::clone(&arrivals),
            window,
        );
        let mount = match mounted {
            Ok(mount) => mount,
            Err(error) => {
                skip(Need::Mounts, error);
                return None;
            }
        };
        let brings = Arc::new(AtomicBool::new(true));
        let carrier = {
            let (arrivals, store, brings) = (arrivals.clone(), store.clone(), brings.clone());
            let (bytes, listing) = (bytes.clone(), listing.clone());
            std::thread::spawn(move || {
                let mut brought = vec![];
                while let Some(piece) = arrivals.next() {
                    if !brings.load(Ordering::Acquire) {
                        arrivals.failed(&piece.digest, "nobody has it");
                        continue;
                    }
                    // It came between somebody's look and his asking, as the daemon sees, too.
                    if store.get(&piece.digest).is_ok() {
                        arrivals.arrived(&piece.digest);
                        continue;
                    }
                    let mut named = listing.pieces().iter().zip(listing.ranges());
                    let (_, range) = named.find(|(it, _)| **it == piece).unwrap();
                    let bytes = &bytes[range.start as usize..range.end as usize];
                    store.put(&piece.digest, bytes, NOW).unwrap();
                    brought.push(piece.digest);
                    arrivals.arrived(&piece.digest);
                }
                brought
            })
        };
        Some(Self {
            folder,
            bytes,
            listing,
            store,
            arrivals,
            mount: Some(mount),
            brings,
            carrier: Some(carrier),
        })
    }

    fn place(&self) -> &Path {
        self.mount.as_ref().unwrap().place()
    }

    /// Takes the mount away. Returns what was brought, in order.
    fn end(&mut self) -> Vec<Digest> {
        drop(self.mount.take());
        assert!(!is_mounted_below(self.folder.path()));
        assert!(!self.folder.path().join("mounts/0").exists());
        self.carrier.take().unwrap().join().unwrap()
    }
}

/// SEMANTICS 55.
#[test]
fn what_is_read_is_what_was_named_whoever_reads_it_and_when() {
    let Some(mut shelf) = Shelf::new() else {
        return;
    };
    let place = shelf.place().to_owned();
    let names = |folder: &Path| -> Vec<String> {
        let entries = fs::read_dir(folder).unwrap();
        entries
            .map(|it| it.unwrap().file_name().into_string().unwrap())
            .collect()
    };
    assert_eq!(names(&place), ["lib", "none", "run"]);
    assert_eq!(names(&place.join("lib")), ["data"]);
    assert_eq!(fs::read(place.join("none")).unwrap(), b"");
    assert!(fs::metadata(place.join("run/x")).is_err() && fs::metadata(place.join("x")).is_err());
    let found = fs::metadata(place.join("run")).unwrap();
    let mode = found.permissions().mode() & 0o7777;
    assert_eq!((found.len(), mode), (3 << 20, 0o555));
    assert!(fs::write(place.join("run"), b"other").is_err());
    std::thread::scope(|scope| {
        for seed in 0..4 {
            let (place, bytes) = (&place, &shelf.bytes);
            scope.spawn(move || {
                let mut random = noise(seed + 1);
                let mut below = |bound: usize| random.next().unwrap() as usize % bound;
                let file = fs::File::open(place.join(["run", "lib/data"][seed as usize % 2]));
                let file = file.unwrap();
                for _ in 0..40 {
                    let at = below(bytes.len());
                    let end = (at + 1 + below(200_000)).min(bytes.len());
                    let mut read = vec![0; end - at];
                    file.read_exact_at(&mut read, at as u64).unwrap();
                    assert!(read == bytes[at..end], "{at}..{end} differ");
                }
            });
        }
    });
    assert_eq!(fs::read(place.join("run")).unwrap(), shelf.bytes);
    let brought = shelf.end();
    // Both files are of the same pieces, each of which came once.
    let once: std::collections::HashSet<&Digest> = brought.iter().collect();
    assert_eq!(
        (brought.len(), once.len()),
        (shelf.listing.pieces().len(), brought.len())
    );
}

/// SEMANTICS 55.
#[test]
fn a_piece_that_was_damaged_on_the_disk_is_brought_again_before_it_is_read() {
    let Some(mut shelf) = Shelf::new() else {
        return;
    };
    let range = shelf.listing.ranges().next().unwrap();
    let piece = shelf.listing.pieces()[0];
    let right = &shelf.bytes[..range.end as usize];
    shelf.store.put(&piece.digest, right, NOW).unwrap();
    let name = piece.digest.to_string();
    let path = shelf
        .store
        .folder()
        .join("pieces")
        .join(&name[..2])
        .join(&name);
    let mut wrong = right.to_vec();
    wrong[5] ^= 1;
    fs::write(path, wrong).unwrap();
    let mut read = vec![0; 4096];
    let file = fs::File::open(shelf.place().join("run")).unwrap();
    file.read_exact_at(&mut read, 0).unwrap();
    assert_eq!(read, shelf.bytes[..4096]);
    drop(file);
    assert_eq!(shelf.end()[0], piece.digest);
}

#[test]
fn a_read_of_what_does_not_come_fails_and_is_right_when_it_comes_after_all() {
    let Some(mut shelf) = Shelf::new() else {
        return;
    };
    shelf.brings.store(false, Ordering::Release);
    let path = shelf.place().join("lib/data");
    let error = fs::read(&path).unwrap_err();
    assert_eq!(
        error.raw_os_error(),
        Some(rustix::io::Errno::IO.raw_os_error())
    );
    // What needs no pieces is answered.
    assert_eq!(fs::metadata(&path).unwrap().len(), 3 << 20);
    let held = shelf.mount.as_ref().unwrap().files();
    let why = held.hold_head("run").unwrap_err().to_string();
    assert!(why.contains("nobody has it"), "{why}");
    shelf.brings.store(true, Ordering::Release);
    assert_eq!(fs::read(&path).unwrap(), shelf.bytes);
    shelf.end();
}

#[test]
fn what_is_read_first_is_noted_and_the_head_stays_in_memory() {
    let Some(mut shelf) = Shelf::new() else {
        return;
    };
    let mount = shelf.mount.as_ref().unwrap();
    mount.files().hold_head("run").unwrap();
    let held = mount.files().head.lock().len();
    assert!(held > 0 && held < shelf.listing.pieces().len());
    let last = shelf.listing.pieces().last().unwrap().digest;
    let file = fs::File::open(mount.place().join("lib/data")).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, (3 << 20) - 1).unwrap();
    drop(file);
    let noted = mount.recorder().lock().recording().clone();
    let noted: Vec<Digest> = noted.reads.iter().map(|read| read.piece).collect();
    assert_eq!(noted[0], shelf.listing.pieces()[0].digest);
    assert!(noted[held..].contains(&last), "{noted:?}");
    assert!(noted.len() < shelf.listing.pieces().len());
    // A reader who waits when the mount goes is let go.
    shelf.brings.store(false, Ordering::Release);
    shelf.end();
    assert!(shelf.arrivals.bring(&shelf.listing.pieces()[0]).is_err());
}
