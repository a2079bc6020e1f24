//! Jobs whose files come while they run: real daemons, drivers and workers, and mounts of FUSE.

use std::collections::{BTreeSet, HashMap};
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use odeon::Clock;
use odeon_artifacts::{Digest, Listing, Piece};
use odeon_cluster::job::{JobSpec, Outcome};
use odeon_cluster::{Daemon, DaemonConfig};
use odeon_skip::{Need, skip};
use odeon_tests::again;
use rustix::process::{Pid, Signal, kill_process};
use tracing::field::{Field, Visit};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::{Context, SubscriberExt};

use crate::daemons::{
    PATIENCE, ended, found, join, join_with, linked, printed, prints, stop, submit_with,
    upload_files, when,
};

const SAMPLE_BYTES: u64 = 64 << 10;
/// Bytes that a read of a sample may take along: what the system reads ahead on both sides, and
/// pieces that begin or end there.
const AROUND: u64 = 2 << 20;

/// A file that cannot be made smaller, places in it, and what is read there.
struct Data {
    path: PathBuf,
    places: Vec<u64>,
    lines: Vec<String>,
    listing: Listing,
}

impl Data {
    /// Of so many bytes; another one for each seed.
    fn new(folder: &Path, seed: u64, bytes: usize) -> Self {
        let path = folder.join("data");
        let mut noise = vec![0; bytes];
        let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        for chunk in noise.chunks_mut(8) {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            chunk.copy_from_slice(&state.to_le_bytes()[..chunk.len()]);
        }
        let mut file = fs::File::create(&path).unwrap();
        file.write_all(&noise).unwrap();
        // From the back to the front, which no order of a file is.
        let part = bytes as u64 / 10;
        let places: Vec<u64> = (0..4).rev().map(|n| n * 3 * part + part / 3).collect();
        let lines = places.iter().map(|at| {
            let sample = &noise[*at as usize..(at + SAMPLE_BYTES) as usize];
            format!("{at}: {}", Digest::of(sample))
        });
        Self {
            lines: lines.collect(),
            places,
            listing: Listing::of_file(&path).unwrap(),
            path,
        }
    }

    /// The pieces that a sample needs, in the order in which samples are read.
    fn needed(&self) -> Vec<Piece> {
        let overlap = |at: &u64| {
            let (from, to) = (*at, at + SAMPLE_BYTES);
            self.pieces_between(from, to)
        };
        self.places.iter().flat_map(overlap).collect()
    }

    /// The pieces that no sample comes near to.
    fn far(&self) -> Vec<Piece> {
        let near = self.places.iter().flat_map(|at| {
            self.pieces_between(at.saturating_sub(AROUND), at + SAMPLE_BYTES + AROUND)
        });
        let near: BTreeSet<Piece> = near.collect();
        let pieces = self.listing.pieces().iter().copied();
        pieces.filter(|piece| !near.contains(piece)).collect()
    }

    fn pieces_between(&self, from: u64, to: u64) -> Vec<Piece> {
        let pieces = self.listing.pieces().iter().zip(self.listing.ranges());
        let within = pieces.filter(|(_, range)| range.start < to && range.end > from);
        within.map(|(piece, _)| *piece).collect()
    }

    /// Uploads the test program with it, to read samples on a node.
    async fn upload(&self, daemon: &Daemon, verb: &str, node: &str) -> JobSpec {
        let places = self.places.iter().map(u64::to_string);
        let args: Vec<String> = [verb.to_owned(), "data".to_owned()]
            .into_iter()
            .chain(places)
            .collect();
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        let program = Path::new(env!("CARGO_BIN_EXE_job"));
        let files = [("job", program), ("data", self.path.as_path())];
        let spec = upload_files(daemon, &files, &args).await;
        JobSpec {
            node: Some(node.to_owned()),
            ..spec
        }
    }
}

async fn submit(daemon: &Daemon, spec: JobSpec) -> odeon_cluster::job::JobId {
    daemon
        .submit(spec, "tester".to_owned(), None)
        .await
        .unwrap()
}

/// Where a store keeps a piece.
fn place_of(daemon: &Daemon, piece: &Piece) -> PathBuf {
    let name = piece.digest.to_string();
    let pieces = daemon.artifacts().folder().join("pieces");
    pieces.join(&name[..2]).join(name)
}

/// Where something is mounted below a folder.
fn mounted_below(folder: &Path) -> Vec<String> {
    let folder = fs::canonicalize(folder).unwrap();
    let table = fs::read_to_string("/proc/self/mountinfo").unwrap();
    let places = table.lines().filter_map(|line| line.split(' ').nth(4));
    let below = places.filter(|place| Path::new(place).starts_with(&folder));
    below.map(str::to_owned).collect()
}

/// Waits until no thread of a mount is left, and nothing is mounted.
async fn expect_nothing_left(folder: &Path) {
    assert_eq!(mounted_below(folder), Vec::<String>::new());
    let threads = || {
        let tasks = fs::read_dir("/proc/self/task").unwrap();
        let names =
            tasks.filter_map(|task| fs::read_to_string(task.ok()?.path().join("comm")).ok());
        let ours = names.filter(|name| {
            ["odeon-files", "odeon-pieces", "fuser-"]
                .iter()
                .any(|ours| name.starts_with(ours))
        });
        ours.collect::<Vec<_>>()
    };
    let gone = async {
        while !threads().is_empty() {
            Clock::sleep(Duration::from_millis(5)).await;
        }
    };
    let waited = Clock::timeout(PATIENCE, gone).await;
    assert!(waited.is_some(), "threads are left: {:?}", threads());
}

/// Returns true where a test is to go on: in a process of its own, so that threads and mounts that are
/// left, and what is logged, are those of its story alone.
fn goes_on(test: &str) -> bool {
    may_mount() && again::alone(module_path!(), test)
}

/// Returns true if this machine mounts; else the test is skipped.
fn may_mount() -> bool {
    let fuse = fs::OpenOptions::new()
        .read(true)
        .write(true)
        .open("/dev/fuse");
    if let Err(error) = fuse {
        skip(Need::Mounts, format!("/dev/fuse: {error}"));
        return false;
    }
    let root = rustix::process::geteuid().is_root();
    if !root {
        skip(Need::Mounts, "only root mounts");
    }
    root
}

/// The pieces that came to each node for each bundle, in order.
static ARRIVED: Mutex<Vec<HashMap<String, String>>> = Mutex::new(vec![]);

struct Watch;

struct Fields(HashMap<String, String>);

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        let said = format!("{value:?}").trim_matches('"').to_owned();
        self.0.insert(field.name().to_owned(), said);
    }
}

impl<S: tracing::Subscriber> Layer<S> for Watch {
    fn on_event(&self, event: &tracing::Event<'_>, _: Context<'_, S>) {
        if event.metadata().target() == "odeon_cluster::staging::arriving" {
            let mut fields = Fields(HashMap::new());
            event.record(&mut fields);
            let mut arrived = ARRIVED.lock().unwrap_or_else(PoisonError::into_inner);
            arrived.push(fields.0);
        }
    }
}

fn watch() {
    let subscriber = tracing_subscriber::registry().with(Watch);
    tracing::subscriber::set_global_default(subscriber).unwrap();
}

fn arrived(node: &str, bundle: &Digest) -> Vec<String> {
    let (node, bundle) = (node.to_owned(), bundle.to_string());
    let arrived = ARRIVED.lock().unwrap_or_else(PoisonError::into_inner);
    let here = arrived.iter().filter(|fields| {
        fields.get("node") == Some(&node) && fields.get("bundle") == Some(&bundle)
    });
    here.filter_map(|fields| fields.get("piece").cloned())
        .collect()
}

/// SEMANTICS 55, 56.
#[tokio::test(flavor = "multi_thread")]
async fn a_program_runs_before_its_files_are_here_and_the_next_node_reads_first_what_it_read() {
    let test =
        "a_program_runs_before_its_files_are_here_and_the_next_node_reads_first_what_it_read";
    if !goes_on(test) {
        return;
    }
    watch();
    let folder = tempfile::tempdir().unwrap();
    let data = Data::new(folder.path(), 1, 96 << 20);
    let head = found(folder.path()).await;
    let spec = data.upload(&head, "samples", "second").await;
    let bundle = spec.bundle;
    let first = submit(&head, spec.clone()).await;
    // What no sample needs is nowhere, so that all cannot be here when the program has read.
    let away = tempfile::tempdir_in(folder.path()).unwrap();
    let far = data.far();
    assert!(far.len() > data.listing.pieces().len() / 2);
    for piece in &far {
        fs::rename(
            place_of(&head, piece),
            away.path().join(piece.digest.to_string()),
        )
        .unwrap();
    }
    let second = join(folder.path(), &head, "second").await;
    assert_eq!(ended(&head, first).await, Outcome::Succeeded);
    assert_eq!(printed(&head, first), data.lines);
    assert_eq!(second.artifacts().missing(&far).unwrap().len(), far.len());
    assert_eq!(mounted_below(folder.path()), Vec::<String>::new());
    assert!(!second.artifacts().has_assembled(&bundle));
    let heat = second
        .artifacts()
        .heat(&bundle)
        .unwrap()
        .expect("what was read first");
    let hot: Vec<Digest> = heat.hot().iter().map(|hot| hot.piece).collect();
    let ranks = data.needed().into_iter().map(|piece| {
        let rank = hot.iter().position(|it| *it == piece.digest);
        rank.expect("a piece that was read is hot")
    });
    assert!(
        ranks.is_sorted(),
        "samples were read from the back to the front"
    );
    // All is there again, and a fresh node begins.
    for piece in &far {
        fs::rename(
            away.path().join(piece.digest.to_string()),
            place_of(&head, piece),
        )
        .unwrap();
    }
    let third = join(folder.path(), &head, "third").await;
    linked(&third, "second").await;
    let spec = JobSpec {
        node: Some("third".to_owned()),
        ..spec
    };
    let again = submit(&head, spec.clone()).await;
    assert_eq!(ended(&head, again).await, Outcome::Succeeded);
    assert_eq!(printed(&head, again), data.lines);
    let order = arrived("third", &bundle);
    let last_hot = order
        .iter()
        .rposition(|it| hot.iter().any(|hot| hot.to_string() == *it));
    let last_hot = last_hot.expect("something hot came");
    let cold = order[..last_hot]
        .iter()
        .filter(|it| hot.iter().all(|hot| hot.to_string() != **it));
    // Those that were on their way beside the last.
    assert!(cold.count() <= 8, "{order:?}");
    assert!(order.len() >= hot.len(), "{} of {}", order.len(), hot.len());
    let known = third.artifacts().heat(&bundle).unwrap().unwrap();
    assert_eq!(known.starts(), 2);
    for daemon in [third, second, head] {
        daemon.shutdown().await;
    }
    expect_nothing_left(folder.path()).await;
}

/// SEMANTICS 55, 56.
#[tokio::test(flavor = "multi_thread")]
async fn a_piece_that_is_nowhere_fails_the_try_with_its_name() {
    if !goes_on("a_piece_that_is_nowhere_fails_the_try_with_its_name") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let data = Data::new(folder.path(), 2, 40 << 20);
    let head = found(folder.path()).await;
    let spec = data.upload(&head, "samples", "second").await;
    let id = submit(&head, spec).await;
    // The second sample was damaged on the one node that has it.
    let damaged = data.pieces_between(data.places[1], data.places[1] + 1)[0];
    let place = place_of(&head, &damaged);
    let mut bytes = fs::read(&place).unwrap();
    bytes[7] ^= 1;
    fs::write(&place, bytes).unwrap();
    let impatient = |config: &mut DaemonConfig| config.on_demand.patience = Duration::ZERO;
    let second = join_with(folder.path(), &head, "second", impatient).await;
    let Outcome::Failed { code, why } = ended(&head, id).await else {
        panic!("it read what nobody has");
    };
    assert_eq!(code, Some(7));
    let named = format!("piece {} of `data` could not be brought", damaged.digest);
    assert!(why.contains(&named) && why.contains("head"), "{why}");
    let lines = printed(&head, id);
    assert!(
        lines.contains(&data.lines[0]) && !lines.contains(&data.lines[1]),
        "{lines:?}"
    );
    assert_eq!(mounted_below(folder.path()), Vec::<String>::new());
    for daemon in [second, head] {
        daemon.shutdown().await;
    }
    expect_nothing_left(folder.path()).await;
}

/// SEMANTICS 56, 66.
#[tokio::test(flavor = "multi_thread")]
async fn a_driver_that_is_killed_leaves_no_mount_and_later_tries_start_from_files() {
    let test = "a_driver_that_is_killed_leaves_no_mount_and_later_tries_start_from_files";
    if !goes_on(test) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let data = Data::new(folder.path(), 3, 40 << 20);
    let head = found(folder.path()).await;
    let second = join(folder.path(), &head, "second").await;
    let spec = data.upload(&head, "studies", "second").await;
    let bundle = spec.bundle;
    let id = submit(&head, spec.clone()).await;
    prints(&head, id, "studying").await;
    assert_eq!(mounted_below(folder.path()).len(), 1);
    // Another program could not go on with the mount.
    let program = Path::new(env!("CARGO_BIN_EXE_job"));
    let refused = second
        .prepare_upgrade(program)
        .await
        .unwrap_err()
        .to_string();
    assert!(
        refused.contains("reads its files while they come"),
        "{refused}"
    );
    // All comes, and is put together beside the mount.
    let whole = async {
        while !second.artifacts().has_assembled(&bundle) {
            Clock::sleep(Duration::from_millis(5)).await;
        }
    };
    assert!(
        Clock::timeout(PATIENCE, whole).await.is_some(),
        "its files never were all there"
    );
    let drivers = second.system().admin().processes();
    let driver = drivers.iter().find_map(|it| it.pid).unwrap();
    kill_process(Pid::from_raw(driver as i32).unwrap(), Signal::KILL).unwrap();
    let Outcome::Failed { code, .. } = ended(&head, id).await else {
        panic!("a killed driver has failed");
    };
    assert_eq!(code, Some(137));
    assert_eq!(mounted_below(folder.path()), Vec::<String>::new());
    let again = submit(&head, spec).await;
    prints(&head, again, "studying").await;
    assert_eq!(mounted_below(folder.path()), Vec::<String>::new());
    stop(&head, again, false).await;
    ended(&head, again).await;
    for daemon in [second, head] {
        daemon.shutdown().await;
    }
    expect_nothing_left(folder.path()).await;
}

/// SEMANTICS 56.
#[tokio::test(flavor = "multi_thread")]
async fn workers_start_from_a_mount_and_where_nothing_can_be_mounted_from_files() {
    let test = "workers_start_from_a_mount_and_where_nothing_can_be_mounted_from_files";
    if !goes_on(test) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let head = found(folder.path()).await;
    let small = |config: &mut DaemonConfig| config.on_demand.above_bytes = 1 << 20;
    let second = join_with(folder.path(), &head, "second", small).await;
    let third = join_with(folder.path(), &head, "third", small).await;
    // A file is where its mounts would be.
    fs::write(folder.path().join("third/mounts"), "").unwrap();
    linked(&second, "third").await;
    let id = submit_with(&head, &["lingers", "second", "third"], |spec| {
        spec.node = Some("second".to_owned());
    });
    let id = id.await;
    prints(&head, id, "lingering").await;
    let bundle = when(&head, id, "a row", |_| true).await.spec.bundle;
    assert_eq!(mounted_below(folder.path()).len(), 1);
    assert!(third.artifacts().has_assembled(&bundle));
    stop(&head, id, true).await;
    ended(&head, id).await;
    assert_eq!(mounted_below(folder.path()), Vec::<String>::new());
    for daemon in [third, second, head] {
        daemon.shutdown().await;
    }
    expect_nothing_left(folder.path()).await;
}
