//! Ranks of a gang that are on several nodes: what they say to each other goes over the links.
//!
//! ```text
//!  Ends ─┬─ near: Member    memory of this node (`odeon-shm`)
//!        └─ far:  Far ─── frames ─── node ═══ node ─── frames ─── Far of the other rank
//! ```
//!
//! Bytes travel as chunks, behind everything else that waits for a link, each with its checksum and
//! its place in the order; how many may be under way is bounded by the reader. Two ranks find each
//! other when both have a wish: who wants to send or to receive says so ([`GangNews::Open`]), and is
//! answered if the other is there; else the other says so when it wants the same.
//!
//! A rank is lost when its process is, or when it says that it has left. It sleeps on the bell that
//! its memory has, which is rung for what comes from near and from far.

pub(crate) mod protocol;
mod service;

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::fmt;
use std::sync::{Arc, Weak};
use std::time::Instant;

use bytes::{Buf, Bytes};
use odeon_collective::{Board, Fault, Membership, Report, Transport, Trouble};
use odeon_shm::{Bell, Gang, GangName, GangOptions, Member};
use parking_lot::Mutex;

use crate::actor::engine::Engine;
use crate::actor::engine::component::Component;
use crate::base::failure::ProcessExit;
use crate::base::id::ProcessId;
use crate::net::wire::{Chunk, Frame};

use protocol::{GangNews, GangRanks, RankId};

/// Bytes from one rank to another that may be under way or unread.
const WINDOW_BYTES: usize = 1 << 20;

/// Bytes of a chunk at most. Another frame waits for no longer than one takes.
const CHUNK_BYTES: usize = 256 << 10;

/// The reader gives room back when it has read so much.
const ROOM_BYTES: usize = WINDOW_BYTES / 4;

/// Ranks that have left and are remembered, so that who comes late hears of it.
const LEFT_MAX: usize = 1024;

/// Gangs whose memory a node keeps at a time. It does so while they form.
const KEPT_MAX: usize = 1024;

/// The ranks of this process that have others on other nodes, and the memory that this node keeps
/// for gangs whose home is elsewhere.
#[derive(Default)]
pub(crate) struct Gangs {
    ends: Mutex<HashMap<RankId, Weak<Shared>>>,
    /// Where chunks go: whose they are, and from which rank.
    transfers: Mutex<HashMap<u64, (Weak<Shared>, usize)>>,
    left: Mutex<VecDeque<RankId>>,
    kept: Mutex<HashMap<u64, (ProcessId, Gang)>>,
}

impl Gangs {
    /// Makes memory for so many ranks of a gang, and keeps it until its home says that it is not
    /// needed, or is gone.
    pub(crate) fn keep(
        &self,
        gang: u64,
        home: ProcessId,
        ranks: usize,
    ) -> Result<GangName, String> {
        let mut kept = self.kept.lock();
        if kept.len() >= KEPT_MAX {
            return Err(format!(
                "this node keeps memory for {KEPT_MAX} gangs that form, the most"
            ));
        }
        let memory = memory(ranks)?;
        let name = memory.name();
        kept.insert(gang, (home, memory));
        Ok(name)
    }

    /// For how many gangs that form this node keeps memory.
    pub(crate) fn forming(&self) -> usize {
        self.kept.lock().len()
    }

    /// Nobody joins any more. Those who have joined have the memory mapped.
    pub(crate) fn forget(&self, gang: u64) {
        self.kept.lock().remove(&gang);
    }

    /// News of a rank of another process, which is `sender`.
    pub(crate) fn hear(&self, engine: &Engine, sender: ProcessId, news: GangNews) {
        let end = self.ends.lock().get(&news.to()).and_then(Weak::upgrade);
        if let Some(end) = end {
            return end.hear(engine, sender, news);
        }
        if let GangNews::Open { to, from, .. } = news
            && self.left.lock().contains(&to)
        {
            let left = GangNews::Left {
                to: RankId {
                    gang: to.gang,
                    rank: from,
                },
                from: to.rank,
            };
            tell(engine, sender, &left);
        }
    }

    /// The ranks that have not left. Collected first: what is done with one may end it.
    fn living(&self) -> Vec<Arc<Shared>> {
        let ends = self.ends.lock();
        ends.values().filter_map(Weak::upgrade).collect()
    }
}

impl Component for Gangs {
    fn take_chunk(&self, chunk: &Chunk) -> bool {
        let found = self.transfers.lock().get(&chunk.transfer).cloned();
        let Some((shared, from)) = found else {
            return false;
        };
        if let Some(shared) = shared.upgrade() {
            shared.arrive(from, chunk);
        }
        true
    }

    fn process_down(&self, _: &Arc<Engine>, exit: &ProcessExit) {
        self.kept
            .lock()
            .retain(|_, (home, _)| *home != exit.process);
        for end in self.living() {
            end.process_down(exit);
        }
    }

    fn close(&self) {
        self.kept.lock().clear();
        for end in self.living() {
            // To this rank it is over with all, and it is this one that the others lose.
            let leaving = lost(end.id.rank as usize, "its process is leaving");
            for (_, peer) in end.peers() {
                peer.end(leaving.clone());
            }
            end.bell.ring();
        }
    }
}

impl Engine {
    /// Its gangs.
    pub(crate) fn gangs(&self) -> &Gangs {
        self.component::<Gangs>()
    }
}

/// Memory for the ranks of one node.
pub(crate) fn memory(ranks: usize) -> Result<Gang, String> {
    Gang::create(ranks, GangOptions::default()).map_err(|error| error.to_string())
}

fn tell(engine: &Engine, to: ProcessId, news: &GangNews) {
    engine.tell::<GangRanks>(to, news);
}

/// The state that a rank's thread and the links share.
struct Shared {
    id: RankId,
    bell: Bell,
    /// By rank; `None` for those of this node.
    peers: Vec<Option<Peer>>,
    told: Mutex<Option<Report>>,
}

/// A rank of another node.
struct Peer {
    process: ProcessId,
    /// Under which number its chunks come.
    transfer: u64,
    way: Mutex<Way>,
}

/// The traffic between this rank and another.
#[derive(Default)]
struct Way {
    /// It was told that this rank is here.
    opened: bool,
    /// Under which number it takes chunks.
    theirs: Option<u64>,
    /// Bytes that it still takes, and how many chunks it was sent.
    room: usize,
    sent: u64,
    /// Chunks that have come in order, the next number, and chunks that came before their turn, by
    /// another way.
    arrived: VecDeque<Bytes>,
    next: u64,
    ahead: BTreeMap<u64, Bytes>,
    /// Bytes that have come and are not read.
    unread: usize,
    /// Bytes that were read since room was last given back.
    read: usize,
    /// Why nothing more comes or goes.
    over: Option<Fault>,
    /// This rank has left.
    closed: bool,
}

fn lost(rank: usize, why: impl Into<String>) -> Fault {
    let why = why.into();
    Fault::Lost { rank, why }
}

/// The next chunk, if it has come.
fn take_next(way: &mut Way) -> Option<Bytes> {
    let bytes = way.ahead.remove(&way.next)?;
    way.next += 1;
    Some(bytes)
}

/// Chunks that may come before their turn.
const AHEAD_MAX: usize = 4096;

const LEFT: &str = "it has given up its membership";

impl Peer {
    /// The first reason stands.
    fn end(&self, why: Fault) {
        self.way.lock().over.get_or_insert(why);
    }
}

impl Shared {
    fn peers(&self) -> impl Iterator<Item = (usize, &Peer)> {
        let peers = self.peers.iter().enumerate();
        peers.filter_map(|(rank, peer)| Some((rank, peer.as_ref()?)))
    }

    fn peer(&self, rank: u32) -> Option<&Peer> {
        self.peers.get(rank as usize)?.as_ref()
    }

    fn arrive(&self, from: usize, chunk: &Chunk) {
        let Some(peer) = &self.peers[from] else {
            return;
        };
        let mut way = peer.way.lock();
        let garbled = |why: &str| Fault::Garbled {
            rank: from,
            why: why.to_owned(),
        };
        let fault = if crc32fast::hash(&chunk.bytes) != chunk.checksum {
            Some(garbled("a chunk was damaged on its way"))
        } else if chunk.index < way.next || way.ahead.contains_key(&chunk.index) {
            Some(garbled("a chunk came twice"))
        } else if way.unread + chunk.bytes.len() > WINDOW_BYTES || way.ahead.len() > AHEAD_MAX {
            Some(garbled("it sends more than there is room for"))
        } else {
            way.unread += chunk.bytes.len();
            way.ahead.insert(chunk.index, chunk.bytes.clone());
            None
        };
        let mut fault = fault;
        while let Some(bytes) = take_next(&mut way) {
            if bytes.is_empty() {
                fault.get_or_insert_with(|| lost(from, LEFT));
            } else {
                way.arrived.push_back(bytes);
            }
        }
        if let Some(fault) = fault {
            way.over.get_or_insert(fault);
        }
        drop(way);
        self.bell.ring();
    }

    fn hear(&self, engine: &Engine, sender: ProcessId, news: GangNews) {
        let from = news.from();
        // Only the rank's own process speaks for it.
        let Some(peer) = self.peer(from).filter(|peer| peer.process == sender) else {
            return;
        };
        match news {
            GangNews::Open {
                transfer, answer, ..
            } => {
                let mut way = peer.way.lock();
                if way.closed {
                    drop(way);
                    return tell(engine, sender, &self.left(from));
                }
                if way.theirs.is_none() {
                    way.theirs = Some(transfer);
                    way.room = WINDOW_BYTES;
                }
                way.opened = true;
                drop(way);
                if !answer {
                    tell(engine, sender, &self.open(from, peer, true));
                }
                let told = self.told.lock().clone();
                if let Some(report) = told {
                    tell(engine, sender, &self.report(from, &report));
                }
            }
            GangNews::Room { bytes, .. } => {
                let mut way = peer.way.lock();
                way.room = way.room.saturating_add(bytes as usize).min(WINDOW_BYTES);
            }
            GangNews::Report { report, .. } => {
                let report = Report::decode(&report).filter(|report| {
                    let ranks = report.fault.ranks();
                    ranks.iter().all(|rank| *rank < self.peers.len())
                });
                if let Some(report) = report {
                    self.told.lock().get_or_insert(report);
                }
            }
            GangNews::Left { .. } => peer.end(lost(from as usize, LEFT)),
        }
        self.bell.ring();
    }

    fn left(&self, rank: u32) -> GangNews {
        GangNews::Left {
            to: self.at(rank),
            from: self.id.rank,
        }
    }

    fn open(&self, rank: u32, peer: &Peer, answer: bool) -> GangNews {
        GangNews::Open {
            to: self.at(rank),
            from: self.id.rank,
            transfer: peer.transfer,
            answer,
        }
    }

    fn report(&self, rank: u32, report: &Report) -> GangNews {
        GangNews::Report {
            to: self.at(rank),
            from: self.id.rank,
            report: report.encode(),
        }
    }

    const fn at(&self, rank: u32) -> RankId {
        RankId {
            gang: self.id.gang,
            rank,
        }
    }

    fn process_down(&self, exit: &ProcessExit) {
        for (rank, peer) in self.peers() {
            if peer.process == exit.process {
                peer.end(lost(rank, format!("its process: {}", exit.status)));
            }
        }
        self.bell.ring();
    }
}

/// A rank's way to those of other nodes. When it is dropped, they lose this rank.
struct Far {
    engine: Arc<Engine>,
    shared: Arc<Shared>,
}

impl Far {
    fn told(&self) -> Result<(), Trouble> {
        match &*self.shared.told.lock() {
            Some(report) => Err(Trouble::Told(report.clone())),
            None => Ok(()),
        }
    }

    fn is_far(&self, rank: usize) -> bool {
        self.shared.peers[rank].is_some()
    }

    /// Tells a rank that this one is here, once.
    fn open(&self, rank: usize, peer: &Peer, way: &mut Way) {
        if std::mem::replace(&mut way.opened, true) {
            return;
        }
        if self.engine.routes_to(peer.process) {
            let open = self.shared.open(rank as u32, peer, false);
            tell(&self.engine, peer.process, &open);
        } else {
            way.over
                .get_or_insert_with(|| lost(rank, "its process is gone, or no link leads to it"));
        }
    }

    fn send_some(&self, to: usize, bytes: &[u8]) -> Result<usize, Trouble> {
        self.told()?;
        let Some(peer) = &self.shared.peers[to] else {
            return Ok(0);
        };
        let mut way = peer.way.lock();
        if let Some(fault) = &way.over {
            return Err(Trouble::Found(fault.clone()));
        }
        let Some(transfer) = way.theirs else {
            self.open(to, peer, &mut way);
            return Ok(0);
        };
        let len = bytes.len().min(way.room).min(CHUNK_BYTES);
        if len == 0 {
            return Ok(0);
        }
        let bytes = Bytes::copy_from_slice(&bytes[..len]);
        let chunk = Chunk {
            transfer,
            to: peer.process,
            index: way.sent,
            checksum: crc32fast::hash(&bytes),
            bytes,
        };
        way.sent += 1;
        way.room -= len;
        // This rank alone sends, so the order stays.
        drop(way);
        self.engine.send_to(peer.process, &Frame::Chunk(chunk));
        Ok(len)
    }

    fn receive_some(&self, from: usize, into: &mut [u8]) -> Result<usize, Trouble> {
        self.told()?;
        let Some(peer) = &self.shared.peers[from] else {
            return Ok(0);
        };
        let mut way = peer.way.lock();
        let mut got = 0;
        while got < into.len()
            && let Some(chunk) = way.arrived.front_mut()
        {
            let len = chunk.len().min(into.len() - got);
            chunk.copy_to_slice(&mut into[got..got + len]);
            got += len;
            if chunk.is_empty() {
                way.arrived.pop_front();
            }
        }
        if got == 0 {
            if let Some(fault) = way.over.as_ref().filter(|_| !into.is_empty()) {
                return Err(Trouble::Found(fault.clone()));
            }
            self.open(from, peer, &mut way);
            return Ok(0);
        }
        way.unread -= got;
        way.read += got;
        let read = if way.read >= ROOM_BYTES {
            std::mem::take(&mut way.read)
        } else {
            0
        };
        drop(way);
        if read > 0 {
            let room = GangNews::Room {
                to: self.shared.at(from as u32),
                from: self.shared.id.rank,
                bytes: read as u64,
            };
            tell(&self.engine, peer.process, &room);
        }
        Ok(got)
    }

    /// Bytes that a rank has not said to have taken; it says so for [`ROOM_BYTES`] at a time.
    fn under_way(&self, to: usize) -> usize {
        let Some(peer) = &self.shared.peers[to] else {
            return 0;
        };
        let way = peer.way.lock();
        let under_way = match way.theirs {
            Some(_) => WINDOW_BYTES - way.room,
            None => 0,
        };
        if under_way < ROOM_BYTES { 0 } else { under_way }
    }

    /// Returns true if one of `to` takes bytes, or some of one of `from` are here, or it is over
    /// with one.
    fn ready(&self, to: &[usize], from: &[usize]) -> Result<bool, Trouble> {
        self.told()?;
        let holds = |rank: &usize, holds: fn(&Way) -> bool| {
            let peer = self.shared.peers[*rank].as_ref();
            peer.is_some_and(|peer| {
                let way = peer.way.lock();
                way.over.is_some() || holds(&way)
            })
        };
        let takes = |way: &Way| way.theirs.is_some() && way.room > 0;
        Ok(to.iter().any(|rank| holds(rank, takes))
            || from
                .iter()
                .any(|rank| holds(rank, |way| !way.arrived.is_empty())))
    }

    fn abort(&self, report: &Report) {
        self.shared
            .told
            .lock()
            .get_or_insert_with(|| report.clone());
        for (rank, peer) in self.shared.peers() {
            let report = self.shared.report(rank as u32, report);
            tell(&self.engine, peer.process, &report);
        }
    }
}

impl Drop for Far {
    fn drop(&mut self) {
        let gangs = &self.engine.gangs();
        let mut left = gangs.left.lock();
        left.push_back(self.shared.id);
        if left.len() > LEFT_MAX {
            left.pop_front();
        }
        drop(left);
        gangs.ends.lock().remove(&self.shared.id);
        let mut transfers = gangs.transfers.lock();
        for (_, peer) in self.shared.peers() {
            transfers.remove(&peer.transfer);
        }
        drop(transfers);
        for (_, peer) in self.shared.peers() {
            let mut way = peer.way.lock();
            way.closed = true;
            // Behind what was sent.
            if let Some(transfer) = way.theirs.filter(|_| way.over.is_none()) {
                let end = Chunk {
                    transfer,
                    to: peer.process,
                    index: way.sent,
                    checksum: 0,
                    bytes: Bytes::new(),
                };
                drop(way);
                self.engine.send_to(peer.process, &Frame::Chunk(end));
            }
        }
    }
}

/// A rank's end of a gang: memory of its node, and links where there are other nodes.
pub(crate) struct Ends {
    near: Member,
    far: Option<Far>,
}

impl Ends {
    /// A rank that has joined its node's memory. `processes` are those of all ranks.
    pub(crate) fn new(engine: &Arc<Engine>, near: Member, processes: &[ProcessId]) -> Self {
        let membership = near.membership();
        let (me, topology) = (membership.rank, &membership.topology);
        if topology.node_count() == 1 {
            return Self { near, far: None };
        }
        let id = RankId {
            gang: membership.gang,
            rank: me as u32,
        };
        let peers = processes.iter().enumerate().map(|(rank, process)| {
            (!topology.near(me, rank)).then(|| Peer {
                process: *process,
                transfer: crate::base::random::number(),
                way: Mutex::default(),
            })
        });
        let shared = Arc::new(Shared {
            id,
            bell: near.bell(),
            peers: peers.collect(),
            told: Mutex::default(),
        });
        let mut transfers = engine.gangs().transfers.lock();
        for (rank, peer) in shared.peers() {
            transfers.insert(peer.transfer, (Arc::downgrade(&shared), rank));
        }
        drop(transfers);
        let weak = Arc::downgrade(&shared);
        engine.gangs().ends.lock().insert(id, weak);
        let far = Far {
            engine: Arc::clone(engine),
            shared,
        };
        Self {
            near,
            far: Some(far),
        }
    }

    fn far(&self, rank: usize) -> Option<&Far> {
        self.far.as_ref().filter(|far| far.is_far(rank))
    }
}

impl Transport for Ends {
    fn membership(&self) -> &Membership {
        self.near.membership()
    }

    fn send_some(&mut self, to: usize, bytes: &[u8]) -> Result<usize, Trouble> {
        if let Some(far) = self.far(to) {
            self.near.told()?;
            return far.send_some(to, bytes);
        }
        if let Some(far) = &self.far {
            far.told()?;
        }
        self.near.send_some(to, bytes)
    }

    fn receive_some(&mut self, from: usize, into: &mut [u8]) -> Result<usize, Trouble> {
        if let Some(far) = self.far(from) {
            self.near.told()?;
            return far.receive_some(from, into);
        }
        if let Some(far) = &self.far {
            far.told()?;
        }
        self.near.receive_some(from, into)
    }

    fn wait(&mut self, to: &[usize], from: &[usize], until: Instant) -> Result<(), Trouble> {
        let Some(far) = &self.far else {
            return self.near.wait(to, from, until);
        };
        let (far_to, near_to): (Vec<_>, Vec<_>) = to.iter().partition(|rank| far.is_far(**rank));
        let (far_from, near_from): (Vec<_>, Vec<_>) =
            from.iter().partition(|rank| far.is_far(**rank));
        let ready = || far.ready(&far_to, &far_from);
        self.near.wait_unless(&near_to, &near_from, until, ready)
    }

    fn under_way(&self, to: usize) -> usize {
        match self.far(to) {
            Some(far) => far.under_way(to),
            None => self.near.under_way(to),
        }
    }

    fn abort(&mut self, report: &Report) {
        self.near.abort(report);
        if let Some(far) = &self.far {
            far.abort(report);
        }
    }

    fn board(&mut self) -> Option<&mut dyn Board> {
        match self.far {
            None => self.near.board(),
            Some(_) => None,
        }
    }
}

impl fmt::Debug for Ends {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ends")
            .field("membership", self.near.membership())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
