//! The files of a bundle as a file system, whether or not their pieces are here.
//!
//! A read that needs a piece which is not here waits for it without holding a thread: its answer is
//! kept with the piece. So what asks for names and sizes is always answered at once, and whoever
//! brings pieces never waits for whoever reads them.

use std::collections::{HashMap, VecDeque};
use std::ffi::OsStr;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, SystemTime};

use fuser::{
    AccessFlags, Config, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation,
    INodeNo, LockOwner, MountOption, OpenFlags, ReplyAttr, ReplyData, ReplyDirectory, ReplyEmpty,
    ReplyEntry, ReplyOpen, ReplyXattr, Request, Session,
};
use odeon::{Clock, Timestamp};
use odeon_artifacts::{Arrivals, Bundle, Digest, GetError, Piece, Recorder, Store, Supply};
use parking_lot::Mutex;
use rustix::mount::UnmountFlags;

use super::tree::{File, Node, Part, ROOT, Tree};

/// A bundle that is mounted. It goes when this does; what still has a file of it open may go on to
/// read what is here.
#[derive(Debug)]
pub(crate) struct Mount {
    place: PathBuf,
    files: Arc<Files>,
}

/// The files that a mount shows, and the place that they come from.
#[derive(Debug)]
pub(crate) struct Files {
    tree: Tree,
    store: Arc<Store>,
    arrivals: Arc<Arrivals>,
    /// Pieces that were compared with their names a moment ago, newest first: the system reads a
    /// piece in several parts.
    fresh: Mutex<VecDeque<(Digest, Arc<Vec<u8>>)>>,
    /// The pieces that the system reads to start the program, for as long as this lasts: nothing
    /// that is needed then is waited for, not even when the disk lost it.
    head: Mutex<HashMap<Digest, Arc<Vec<u8>>>>,
    recorder: Arc<Mutex<Recorder>>,
    begun: Timestamp,
}

/// Why nothing was mounted.
pub(crate) type MountError = io::Error;

impl Mount {
    /// Mounts a bundle at a place, which is made. What is not in the store comes by these arrivals.
    /// What is read within `window` is noted.
    ///
    /// Blocks its thread for a moment.
    pub(crate) fn new(
        place: PathBuf,
        bundle: &Bundle,
        store: Arc<Store>,
        arrivals: Arc<Arrivals>,
        window: Duration,
    ) -> Result<Self, MountError> {
        let recorder = Recorder::new(bundle.digest(), window, RECORDED_MAX);
        let files = Arc::new(Files {
            tree: Tree::of(bundle),
            store,
            arrivals,
            fresh: Mutex::default(),
            head: Mutex::default(),
            recorder: Arc::new(Mutex::new(recorder)),
            begun: Clock::now(),
        });
        std::fs::create_dir_all(&place)?;
        let mut config = Config::default();
        config.n_threads = Some(THREADS);
        config.mount_options = vec![
            MountOption::RO,
            MountOption::DefaultPermissions,
            MountOption::FSName("odeon".to_owned()),
        ];
        let session = Session::new(Shown(Arc::clone(&files)), &place, &config);
        let session = session.inspect_err(|_| drop(std::fs::remove_dir(&place)))?;
        // From here on it goes away again, whatever happens.
        let mount = Self { place, files };
        let serve = move || {
            if let Err(error) = session.run() {
                tracing::warn!(%error, "the files of a job are no longer shown");
            }
        };
        let thread = std::thread::Builder::new().name("odeon-files".to_owned());
        thread.spawn(serve)?;
        Ok(mount)
    }

    /// Where it is.
    pub(crate) fn place(&self) -> &Path {
        &self.place
    }

    pub(crate) fn files(&self) -> Arc<Files> {
        Arc::clone(&self.files)
    }

    /// The recorder of what is read in the window.
    pub(crate) fn recorder(&self) -> Arc<Mutex<Recorder>> {
        Arc::clone(&self.files.recorder)
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        // Nobody may wait for what nobody brings.
        self.files.arrivals.stop();
        unmount(&self.place);
    }
}

/// Takes a mount away, also one that is in use, and one whose daemon is gone. It is not looked at,
/// since that may be refused.
pub(super) fn unmount(place: &Path) {
    match rustix::mount::unmount(place, UnmountFlags::DETACH) {
        // It may have been taken away by hand.
        Ok(()) | Err(rustix::io::Errno::INVAL | rustix::io::Errno::NOENT) => {}
        Err(rustix::io::Errno::PERM) => unmount_as_others_do(place),
        Err(errno) => tracing::warn!(%errno, place = %place.display(), "a mount stays"),
    }
    if let Err(error) = std::fs::remove_dir(place) {
        tracing::warn!(%error, place = %place.display(), "the folder of a mount stays");
    }
}

/// A daemon that is not root has mounted by this program, and may unmount by it.
fn unmount_as_others_do(place: &Path) {
    let helpers = ["fusermount3", "fusermount"].iter();
    let mut tried = helpers.map(|helper| {
        let mut command = std::process::Command::new(helper);
        command.args(["-u", "-q", "-z", "--"]).arg(place).status()
    });
    if !tried.any(|status| status.is_ok_and(|status| status.success())) {
        tracing::warn!(place = %place.display(), "a mount stays: fusermount does not remove it");
    }
}

impl Files {
    /// Has what the system reads of a file to start it, and keeps that in memory. Blocks its thread
    /// until it is here.
    pub(crate) fn hold_head(&self, path: &str) -> io::Result<()> {
        let found = path
            .split('/')
            .try_fold(ROOT, |folder, name| self.tree.find(folder, name));
        let Some(Node::File(file)) = found.and_then(|number| self.tree.node(number)) else {
            return Err(io::ErrorKind::NotFound.into());
        };
        for part in file.parts(0, HEAD_BYTES) {
            let bytes = loop {
                match self.read(&part.piece)? {
                    Some(bytes) => break bytes,
                    None => self.arrivals.bring(&part.piece).map_err(io::Error::other)?,
                }
            };
            self.note(&part.piece.digest);
            self.head.lock().insert(part.piece.digest, bytes);
        }
        Ok(())
    }

    /// A piece as it was named; `None` when it has to be brought.
    fn read(&self, piece: &Piece) -> io::Result<Option<Arc<Vec<u8>>>> {
        if let Some(bytes) = self.head.lock().get(&piece.digest) {
            return Ok(Some(Arc::clone(bytes)));
        }
        if let Some((_, bytes)) = self.fresh.lock().iter().find(|it| it.0 == piece.digest) {
            return Ok(Some(Arc::clone(bytes)));
        }
        let bytes = match self.store.get(&piece.digest) {
            Ok(bytes) if bytes.len() == piece.bytes as usize => Arc::new(bytes),
            Ok(_) => return Err(io::ErrorKind::InvalidData.into()),
            Err(GetError::Missing(_) | GetError::Corrupt(_)) => return Ok(None),
            Err(error) => return Err(io::Error::other(error)),
        };
        let mut fresh = self.fresh.lock();
        fresh.push_front((piece.digest, Arc::clone(&bytes)));
        fresh.truncate(FRESH_MAX);
        Ok(Some(bytes))
    }

    fn note(&self, piece: &Digest) {
        let after = Clock::now().since(self.begun);
        self.recorder.lock().note(*piece, after);
    }
}

/// A read that is answered when all of its pieces are here.
#[derive(Debug)]
struct Pending {
    files: Arc<Files>,
    parts: Vec<Part>,
    reply: Mutex<Option<ReplyData>>,
    /// Pieces that have not come yet.
    left: AtomicUsize,
    /// Number of times that pieces were brought for it.
    rounds: u32,
}

/// Answers a read, now or when its pieces have come.
fn answer(files: &Arc<Files>, parts: Vec<Part>, reply: ReplyData, rounds: u32) {
    let mut bytes = vec![];
    let mut missing = vec![];
    for part in &parts {
        match files.read(&part.piece) {
            Ok(Some(piece)) => bytes.extend_from_slice(&piece[part.range.clone()]),
            Ok(None) => missing.push(part.piece),
            Err(error) => {
                tracing::warn!(%error, piece = %part.piece.digest, "a piece cannot be read");
                return reply.error(Errno::EIO);
            }
        }
    }
    if missing.is_empty() {
        return reply.data(&bytes);
    }
    // One may be collected or damaged between coming and being read, though not time after time.
    if rounds == ROUNDS_MAX {
        tracing::warn!(piece = %missing[0].digest, "a piece was brought again and again");
        return reply.error(Errno::EIO);
    }
    let pending = Arc::new(Pending {
        files: Arc::clone(files),
        parts,
        reply: Mutex::new(Some(reply)),
        left: AtomicUsize::new(missing.len()),
        rounds,
    });
    // What comes first in the file is put before the others last, and so is first.
    for piece in missing.iter().rev() {
        let pending = Arc::clone(&pending);
        files.arrivals.bring_then(piece, move |outcome| {
            if outcome.is_err() {
                if let Some(reply) = pending.reply.lock().take() {
                    reply.error(Errno::EIO);
                }
            } else if pending.left.fetch_sub(1, Ordering::AcqRel) == 1 {
                // In its own statement, so that the lock is not held while it is answered.
                let reply = pending.reply.lock().take();
                if let Some(reply) = reply {
                    answer(
                        &pending.files,
                        pending.parts.clone(),
                        reply,
                        pending.rounds + 1,
                    );
                }
            }
        });
    }
}

/// The file system that the system calls.
struct Shown(Arc<Files>);

impl Shown {
    fn attributes(&self, number: u64) -> Option<FileAttr> {
        let (kind, perm, size) = match self.0.tree.node(number)? {
            Node::Folder { .. } => (FileType::Directory, 0o555, 0),
            Node::File(file) if file.executable => (FileType::RegularFile, 0o555, file.bytes),
            Node::File(file) => (FileType::RegularFile, 0o444, file.bytes),
        };
        // As files that were put together carry it.
        let time = SystemTime::UNIX_EPOCH + Duration::from_secs(1);
        Some(FileAttr {
            ino: INodeNo(number),
            size,
            blocks: size.div_ceil(512),
            atime: time,
            mtime: time,
            ctime: time,
            crtime: time,
            kind,
            perm,
            nlink: 1,
            uid: rustix::process::getuid().as_raw(),
            gid: rustix::process::getgid().as_raw(),
            rdev: 0,
            blksize: 4096,
            flags: 0,
        })
    }

    fn file(&self, number: INodeNo) -> Option<&File> {
        match self.0.tree.node(number.0)? {
            Node::File(file) => Some(file),
            Node::Folder { .. } => None,
        }
    }
}

impl Filesystem for Shown {
    fn lookup(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let found = name
            .to_str()
            .and_then(|name| self.0.tree.find(parent.0, name));
        match found.and_then(|number| self.attributes(number)) {
            Some(found) => reply.entry(&FOREVER, &found, Generation(0)),
            None => reply.error(Errno::ENOENT),
        }
    }

    fn getattr(&self, _: &Request, number: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        match self.attributes(number.0) {
            Some(found) => reply.attr(&FOREVER, &found),
            None => reply.error(Errno::ENOENT),
        }
    }

    fn open(&self, _: &Request, _: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        // What was read once stays right.
        reply.opened(FileHandle(0), FopenFlags::FOPEN_KEEP_CACHE);
    }

    fn read(
        &self,
        _: &Request,
        number: INodeNo,
        _: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let Some(file) = self.file(number) else {
            return reply.error(Errno::EISDIR);
        };
        let parts = file.parts(offset, u64::from(size));
        for part in &parts {
            self.0.note(&part.piece.digest);
        }
        answer(&self.0, parts, reply, 0);
    }

    fn readdir(
        &self,
        _: &Request,
        number: INodeNo,
        _: FileHandle,
        offset: u64,
        mut reply: ReplyDirectory,
    ) {
        let Some(Node::Folder { parent, entries }) = self.0.tree.node(number.0) else {
            return reply.error(Errno::ENOTDIR);
        };
        let here = [(".", number.0), ("..", *parent)].into_iter();
        let below = entries
            .iter()
            .map(|(name, number)| (name.as_str(), *number));
        for ((name, number), next) in here.chain(below).zip(1..).skip(offset as usize) {
            let kind = match self.0.tree.node(number) {
                Some(Node::File(_)) => FileType::RegularFile,
                _ => FileType::Directory,
            };
            if reply.add(INodeNo(number), next, kind, name) {
                break;
            }
        }
        reply.ok();
    }

    fn flush(&self, _: &Request, _: INodeNo, _: FileHandle, _: LockOwner, reply: ReplyEmpty) {
        reply.ok();
    }

    fn access(&self, _: &Request, _: INodeNo, _: AccessFlags, reply: ReplyEmpty) {
        reply.ok();
    }

    // There are none, and the system does not ask again.
    fn getxattr(&self, _: &Request, _: INodeNo, _: &OsStr, _: u32, reply: ReplyXattr) {
        reply.error(Errno::ENOSYS);
    }

    fn listxattr(&self, _: &Request, _: INodeNo, _: u32, reply: ReplyXattr) {
        reply.error(Errno::ENOSYS);
    }
}

/// Threads that answer the system. They wait for the disk and for nothing else.
const THREADS: usize = 2;
/// The time for which the system may remember names and sizes, which never change.
const FOREVER: Duration = Duration::from_secs(86_400);
/// Pieces that are remembered for the next part that is read of them.
const FRESH_MAX: usize = 16;
/// The first bytes of a program, among which is all that the system reads ahead to start it.
const HEAD_BYTES: u64 = 256 << 10;
/// The most times that pieces are brought for one read.
const ROUNDS_MAX: u32 = 4;
/// The most pieces that are noted of a start: about a GiB.
const RECORDED_MAX: usize = 4_096;

#[cfg(test)]
mod tests;
