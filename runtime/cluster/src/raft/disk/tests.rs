//! The voters' file and their tables as the replicated log wants them, and copies of the file.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::time::Duration;

use odeon::System;
use openraft::storage::{RaftLogStorageExt, RaftStateMachine};
use openraft::testing::{StoreBuilder, Suite, log_id};
use openraft::{BasicNode, EntryPayload, RaftSnapshotBuilder};
use parking_lot::Mutex;
use redb::StorageBackend;
use tempfile::TempDir;

use super::*;
use crate::fact::{Command, Fact, NodeSpec, Writer};
use crate::raft::machine::{Machine, Shared};
use crate::raft::network::Network;
use crate::raft::{Batch, Raft, config};
use crate::unix::Unix;

#[derive(Debug)]
struct InFolders;

impl StoreBuilder<Types, Disk, Machine, TempDir> for InFolders {
    async fn build(&self) -> Result<(TempDir, Disk, Machine), StorageError> {
        // In memory, where there is such a place: it is about what is kept, not about for how long.
        let memory = Path::new("/dev/shm");
        let folder = match memory.is_dir() {
            true => tempfile::tempdir_in(memory),
            false => tempfile::tempdir(),
        };
        let folder = folder.unwrap();
        let disk = Disk::open(&path(&folder)).unwrap();
        let machine = Machine::load(disk.clone(), Shared::default()).await;
        Ok((folder, disk, machine.unwrap()))
    }
}

fn path(folder: &TempDir) -> PathBuf {
    folder.path().join("catalog.redb")
}

/// The test suite of openraft for a log and a state machine.
#[test]
fn the_file_and_the_tables_are_what_the_replicated_log_expects() {
    Suite::test_all(InFolders).unwrap();
}

fn entry(term: u64, index: u64) -> Entry {
    let spec = NodeSpec {
        name: format!("n{index}"),
        boot: index,
        address: String::new(),
        release: String::new(),
        cpus: 1,
        memory: 1,
        devices: vec![],
        votes: false,
        api: None,
        follows: None,
        certificate: None,
        upgrades: 0,
        inventory: vec![],
        unlimited: None,
        low_disk: None,
    };
    let command = Command {
        id: index,
        at: Unix(index),
        writer: Writer::Node(spec.name.clone()),
        fact: Fact::NodeUp(spec),
    };
    Entry {
        log_id: log_id(term, 1, index),
        payload: EntryPayload::Normal(Batch(vec![command])),
    }
}

/// The acknowledged state: the log's first and last entry, the vote, the length of the tables.
#[derive(Clone, Debug, Default, PartialEq)]
struct Seen {
    first: Option<LogId>,
    last: Option<LogId>,
    entries: Vec<Entry>,
    purged: Option<LogId>,
    vote: Option<Vote>,
    committed: Option<LogId>,
    snapshot: Option<LogId>,
    nodes: usize,
}

async fn look(disk: &Disk) -> Seen {
    let mut disk = disk.clone();
    let state = disk.get_log_state().await.unwrap();
    let entries = disk.try_get_log_entries(0..u64::MAX).await.unwrap();
    let shared = Shared::default();
    let mut machine = Machine::load(disk.clone(), shared.clone()).await.unwrap();
    Seen {
        first: entries.first().map(|entry| entry.log_id),
        last: state.last_log_id,
        entries,
        purged: state.last_purged_log_id,
        vote: disk.read_vote().await.unwrap(),
        committed: disk.read_committed().await.unwrap(),
        snapshot: machine.applied_state().await.unwrap().0,
        nodes: shared.read(|tables| tables.nodes.len()),
    }
}

/// A machine that loses power keeps what it said that it has: after every write a copy of the file is
/// opened, as another process would find it.
///
/// SEMANTICS 59.
#[tokio::test]
async fn a_copy_between_two_writes_holds_all_that_was_acknowledged() {
    let folder = tempfile::tempdir().unwrap();
    let disk = Disk::open(&path(&folder)).unwrap();
    let mut writer = disk.clone();
    let shared = Shared::default();
    let mut machine = Machine::load(disk.clone(), shared).await.unwrap();
    let copy = folder.path().join("copy.redb");
    for step in 0..40u64 {
        match step % 8 {
            0 => writer.save_vote(&Vote::new(step, 1)).await.unwrap(),
            1..=3 => {
                let entries = [entry(1, 2 * step), entry(1, 2 * step + 1)];
                writer.blocking_append(entries.clone()).await.unwrap();
                machine.apply(entries).await.unwrap();
            }
            4 => {
                // Entries that another leader does not have.
                let index = 2 * step;
                writer.blocking_append([entry(1, index)]).await.unwrap();
                writer.truncate(log_id(1, 1, index)).await.unwrap();
            }
            5 => {
                let last = disk.log_state().await.unwrap().last_log_id;
                writer.save_committed(last).await.unwrap();
            }
            6 => {
                let mut builder = machine.get_snapshot_builder().await;
                builder.build_snapshot().await.unwrap();
            }
            _ => {
                let upto = machine.applied_state().await.unwrap().0.unwrap();
                writer.purge(upto).await.unwrap();
            }
        }
        let mut expected = look(&disk).await;
        fs::copy(path(&folder), &copy).unwrap();
        let found = look(&Disk::open(&copy).unwrap()).await;
        // How far entries are known to count is written with the next one.
        assert!(found.committed <= expected.committed, "step {step}");
        expected.committed = found.committed;
        assert_eq!(found, expected, "step {step}");
    }
    let seen = look(&disk).await;
    assert_eq!((seen.nodes, seen.snapshot), (30, seen.purged));
    // Nothing of it was kept in memory only.
    drop((writer, machine, disk));
    assert_eq!(look(&Disk::open(&path(&folder)).unwrap()).await, seen);
}

/// A disk whose power is cut: what was synced is there, and nothing that was written since.
#[derive(Clone, Debug, Default)]
struct Sectors(Arc<Mutex<Written>>);

#[derive(Debug, Default)]
struct Written {
    now: Vec<u8>,
    synced: Vec<u8>,
}

impl StorageBackend for Sectors {
    fn len(&self) -> io::Result<u64> {
        Ok(self.0.lock().now.len() as u64)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let from = offset as usize;
        out.copy_from_slice(&self.0.lock().now[from..from + out.len()]);
        Ok(())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.0.lock().now.resize(len as usize, 0);
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        let written = &mut *self.0.lock();
        written.synced.clone_from(&written.now);
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        let from = offset as usize;
        self.0.lock().now[from..from + data.len()].copy_from_slice(data);
        Ok(())
    }
}

impl Sectors {
    /// What is left of it when the power is cut now.
    fn after_the_cut(&self) -> Self {
        let synced = self.0.lock().synced.clone();
        let now = synced.clone();
        Self(Arc::new(Mutex::new(Written { now, synced })))
    }

    fn open(&self) -> Disk {
        let database = Database::builder().create_with_backend(self.clone());
        let database = database.unwrap();
        let begin = database.begin_write().unwrap();
        begin.open_table(LOG).unwrap();
        begin.open_table(FACTS).unwrap();
        begin.commit().unwrap();
        let file = OpenFile {
            database,
            spare: Spare::behind(tempfile::tempfile().unwrap()),
            open: watch::channel(()).0,
        };
        Disk {
            file: Arc::new(file),
        }
    }
}

/// SEMANTICS 122.
#[tokio::test(flavor = "multi_thread")]
async fn a_catalog_has_room_of_its_own_on_the_disk_however_it_grows_and_shrinks() {
    use std::os::unix::fs::MetadataExt;
    let (folder, disk, _machine) = InFolders.build().await.unwrap();
    let is_held = || {
        let file = fs::metadata(path(&folder)).unwrap();
        assert!(file.blocks() * 512 >= file.len() + SPARE_BYTES, "{file:?}");
        file.len()
    };
    let small = is_held();
    let written = disk.write(|log, _facts| {
        for index in 0..64 {
            log.insert(index, vec![1; 128 << 10].as_slice())?;
        }
        Ok(())
    });
    written.await.unwrap();
    let large = is_held();
    assert!(large > small + (4 << 20), "{small} {large}");
    for _ in 0..4 {
        let emptied = disk.write(|log, _facts| Ok(log.retain(|_, _| false)?));
        emptied.await.unwrap();
        is_held();
    }
    assert!(is_held() < large);
}

/// SEMANTICS 59.
#[tokio::test(flavor = "multi_thread")]
async fn what_a_voter_has_acknowledged_is_there_after_a_loss_of_power() {
    let sectors = Sectors::default();
    let disk = sectors.open();
    let system = System::local().await.unwrap();
    let machine = Machine::load(disk.clone(), Shared::default()).await;
    let network = Network {
        system: system.clone(),
    };
    let config = Arc::new(config().validate().unwrap());
    let raft = Raft::new(1, config, network, disk, machine.unwrap()).await;
    let raft = raft.unwrap();
    let alone = BTreeMap::from([(1, BasicNode::new("n1"))]);
    raft.initialize(alone).await.unwrap();
    let led = raft.wait(Some(Duration::from_secs(20)));
    led.current_leader(1, "it is the only one").await.unwrap();
    for index in 1..=20 {
        let EntryPayload::Normal(batch) = entry(1, index).payload else {
            unreachable!("it is a command");
        };
        let written = raft.client_write(batch.clone()).await.unwrap();
        let left = look(&sectors.after_the_cut().open()).await;
        let found = left.entries.iter().find(|it| it.log_id == written.log_id);
        let found = found.unwrap_or_else(|| panic!("{:?} is lost", written.log_id));
        assert_eq!(found.payload, EntryPayload::Normal(batch));
        assert!(left.vote.is_some(), "its vote is lost");
    }
    raft.shutdown().await.unwrap();
    system.shutdown().await;
}

#[tokio::test]
async fn a_snapshot_that_comes_late_does_not_replace_a_later_one() {
    let (_folder, disk, mut machine) = InFolders.build().await.unwrap();
    machine.apply([entry(1, 1)]).await.unwrap();
    let mut slow = machine.get_snapshot_builder().await;
    // A later one arrives from the leader while this one is made.
    let (_other, _disk, mut leader) = InFolders.build().await.unwrap();
    leader.apply([entry(1, 1), entry(1, 2)]).await.unwrap();
    let mut built = leader.get_snapshot_builder().await;
    let later = built.build_snapshot().await.unwrap();
    let installed = machine.install_snapshot(&later.meta, later.snapshot);
    installed.await.unwrap();
    slow.build_snapshot().await.unwrap();
    let seen = look(&disk).await;
    assert_eq!((seen.snapshot, seen.nodes), (Some(log_id(1, 1, 2)), 2));
}

#[tokio::test]
async fn a_snapshot_that_cannot_be_read_changes_nothing() {
    let (_folder, disk, mut machine) = InFolders.build().await.unwrap();
    machine.apply([entry(1, 1)]).await.unwrap();
    let mut builder = machine.get_snapshot_builder().await;
    let built = builder.build_snapshot().await.unwrap();
    let mut meta = built.meta.clone();
    meta.last_log_id = Some(log_id(1, 1, 9));
    let half = io::Cursor::new(built.snapshot.get_ref()[..20].to_vec());
    let installed = machine.install_snapshot(&meta, Box::new(half)).await;
    assert!(installed.is_err());
    let applied = machine.applied_state().await.unwrap().0;
    assert_eq!(applied, Some(log_id(1, 1, 1)));
    assert_eq!(look(&disk).await.snapshot, applied);
}

#[test]
fn a_file_that_cannot_be_opened_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let strange = folder.path().join("strange.redb");
    fs::write(&strange, b"this is no catalog").unwrap();
    let large = folder.path().join("large.redb");
    fs::write(&large, vec![7; 1 << 20]).unwrap();
    let missing = folder.path().join("missing/catalog.redb");
    let used = folder.path().join("used.redb");
    let _user = Disk::open(&used).unwrap();
    for path in [folder.path(), &strange, &large, &missing, &used] {
        let error = Disk::open(path).expect_err("it cannot be opened");
        assert!(
            matches!(&error, DiskError::Open { path: named, .. } if named == path),
            "{error:?}"
        );
        let words = error.to_string();
        assert!(
            words.starts_with(&format!("{} cannot be opened: ", path.display())),
            "{words}"
        );
    }
    // What could not be read was not touched.
    assert_eq!(fs::read(&strange).unwrap(), b"this is no catalog");
}
