//! A link: frames over ordered byte streams, in both directions.
//!
//! A link has one byte stream, or several: for control frames, for calls and replies, for bulk.
//! Control frames overtake waiting calls either way; calls never overtake the questions, facts and
//! notices that were sent before them, since those say where calls go. Over one stream that follows from
//! its order; over two, the sender marks among the calls how much control came before
//! ([`Frame::After`]).
//!
//! Chunks of blobs leave when nothing else waits, from the memory they lie in.
//!
//! A link between nodes is a session: it outlives the connections that carry it. What was sent is
//! kept until the other side has taken it in, and sent again over the next connection
//! ([`crate::net::session`]). A link to a worker process ends with its one stream and keeps nothing.
//!
//! The writer batches: it lets every task that is ready queue its frames before it writes, and
//! whatever gathers while one write is under way leaves with the next. A lone frame is written at
//! once from the sender's own thread, which saves two thread hops of its latency.

mod greeting;
mod handoff;
pub(crate) mod owner;
mod pipe;
mod resume;
pub(crate) mod socket;
pub(crate) mod stream;
pub(crate) mod view;

use std::convert::Infallible;
use std::fmt;
use std::os::fd::RawFd;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use bytes::BytesMut;
use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite};
use tokio::sync::{Notify, oneshot, watch};

use crate::base::clock::offset::{Exchange, Offsets};
use crate::base::clock::{Clock, Timestamp};
use crate::base::id::ProcessId;
use crate::base::limits::Limits;
use crate::net::session::Marks;
use crate::net::wire::{Beat, Frame, FrameError};

pub(crate) use greeting::{Ended, Greeted, Line, greet, greet_back, hear, say_hello};
pub(crate) use handoff::{LinkHandoff, Redial, restore};
use owner::LinkOwner;
use pipe::{BATCH_BYTES, Pipe};
pub(crate) use resume::{Dial, Session, Way, knock};
use view::LinkView;

/// The read half of a byte stream.
pub(crate) type Reader = Box<dyn AsyncRead + Send + Unpin>;
/// The write half of a byte stream.
pub(crate) type Writer = Box<dyn AsyncWrite + Send + Unpin>;

/// Bytes that are read at once.
const READ_BYTES: usize = 64 << 10;

/// Room that is made at once for a long frame.
const READ_BYTES_MAX: usize = 1 << 20;

/// By so much later than it should a task has run when its process had no thread for it.
const STALL: Duration = Duration::from_secs(1);

/// The other side of a session hears of what was taken in after so many bytes, and on every beat.
const ACKNOWLEDGE_BYTES: u64 = 64 << 10;

/// The length of a frame that says how much control calls come after.
const AFTER_BYTES: u64 = 4 + 1 + 8;

/// Why a link is closed whose other side ended the stream without a word.
const HUNG_UP: &str = "the other side closed it";

/// The sending side of a link; the receiving side are tasks that feed the owner.
pub(crate) struct Link {
    pub(crate) peer: ProcessId,
    /// The node's name at the other end.
    pub(crate) node: String,
    /// A worker process of this node, rather than another node or this worker's own node.
    pub(crate) is_worker: bool,
    /// Carries everything when there is no second stream.
    control: Pipe,
    calls: Option<Pipe>,
    bulk: Option<Pipe>,
    /// The session with which it outlives its connections, if it does.
    pub(crate) session: Option<Session>,
    /// The socket of a process of this node.
    socket: Option<RawFd>,
    /// The end of its present connection.
    carrier: Mutex<Arc<Ending>>,
    /// It stands still, since its process hands it to another program.
    frozen: Ending,
    /// It does.
    stands: Ending,
    /// Questions, facts and notices sent, and taken in.
    told: AtomicU64,
    heeded: watch::Sender<u64>,
    closed: Ending,
    /// This side closed it, because the other does not do its part.
    given_up: AtomicBool,
    /// The number of writers that are not done.
    writing: watch::Sender<usize>,
    last_heard: AtomicU64,
    /// When this side last beat.
    last_beat: AtomicU64,
    rhythm: Mutex<Rhythm>,
    /// Asks received and not answered.
    pub(crate) serving: AtomicU32,
}

impl fmt::Debug for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Link")
            .field("peer", &self.peer)
            .field("node", &self.node)
            .field("session", &self.session)
            .finish_non_exhaustive()
    }
}

/// Times that the beats of the other side tell.
#[derive(Default)]
struct Rhythm {
    /// One has come.
    felt: bool,
    /// When the last one left, by the clock there; 0 before the first.
    theirs: u64,
    /// When it came, by the clock here.
    heard: u64,
    offsets: Offsets,
}

/// The end of a link or of one of its connections: it comes once, and the first reason stands.
#[derive(Default)]
struct Ending {
    over: AtomicBool,
    why: Mutex<Option<String>>,
    came: Notify,
}

impl Ending {
    fn end(&self, why: impl Into<String>) {
        self.why.lock().get_or_insert(why.into());
        self.over.store(true, Ordering::Release);
        self.came.notify_waiters();
    }

    fn is_over(&self) -> bool {
        self.over.load(Ordering::Acquire)
    }

    async fn over(&self) {
        loop {
            let came = self.came.notified();
            if self.is_over() {
                return;
            }
            came.await;
        }
    }

    fn why(&self) -> String {
        let why = self.why.lock().clone();
        why.unwrap_or_else(|| "closed".to_owned())
    }
}

impl Link {
    /// A link over these streams, which nobody serves yet.
    fn new(peer: ProcessId, node: String, pipes: impl IntoIterator<Item = Pipe>) -> Self {
        let mut pipes = pipes.into_iter();
        Self {
            peer,
            node,
            is_worker: false,
            control: pipes.next().expect("a connection has a first stream"),
            calls: pipes.next(),
            bulk: pipes.next(),
            session: None,
            socket: None,
            carrier: Mutex::default(),
            frozen: Ending::default(),
            stands: Ending::default(),
            told: AtomicU64::new(0),
            heeded: watch::channel(0).0,
            closed: Ending::default(),
            given_up: AtomicBool::new(false),
            writing: watch::channel(0).0,
            last_heard: AtomicU64::new(Clock::now().0),
            last_beat: AtomicU64::new(Clock::now().0),
            rhythm: Mutex::default(),
            serving: AtomicU32::new(0),
        }
    }

    /// Queues a frame. With `alone` it is written at once if the link is idle. `false` when the
    /// link is closed.
    pub(crate) fn push(&self, frame: &Frame, alone: bool) -> bool {
        if self.is_closed() {
            return false;
        }
        if let Frame::Chunk(chunk) = frame {
            let pipe = self.bulk.as_ref().unwrap_or(&self.control);
            pipe.push(alone, |queue| queue.bulk.push_back(chunk.clone()));
            return true;
        }
        match &self.calls {
            Some(calls) if !frame.is_control() => {
                let told = self.told.load(Ordering::Acquire);
                calls.push(alone, |queue| {
                    if told > queue.marked {
                        queue.marked = told;
                        Frame::After(told).encode(&mut queue.calls);
                    }
                    frame.encode(&mut queue.calls);
                });
            }
            _ => self.control.push(alone, |queue| {
                let lane = if frame.is_passing() {
                    &mut queue.passing
                } else if frame.is_control() {
                    &mut queue.control
                } else {
                    &mut queue.calls
                };
                frame.encode(lane);
                if frame.binds_calls() {
                    self.told.fetch_add(1, Ordering::Release);
                }
            }),
        }
        true
    }

    fn pipes(&self) -> impl Iterator<Item = &Pipe> {
        std::iter::once(&self.control)
            .chain(&self.calls)
            .chain(&self.bulk)
    }

    /// The stream that carries calls.
    fn calls(&self) -> &Pipe {
        self.calls.as_ref().unwrap_or(&self.control)
    }

    /// Returns true if less of calls waits, or was sent and not acknowledged, than the limit.
    pub(crate) fn has_room(&self, limits: &Limits) -> bool {
        self.calls().has_room(limits.link_queue_bytes_max as u64)
    }

    /// Waits until there is room, or the link is closed.
    pub(crate) async fn wait_for_room(&self, limits: &Limits) {
        loop {
            let room = self.calls().room();
            if self.has_room(limits) || self.is_closed() {
                return;
            }
            room.await;
        }
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closed.is_over()
    }

    /// Closes the link; the first reason is kept.
    pub(crate) fn close(&self, why: impl Into<String>) {
        self.closed.end(why);
        self.calls().release();
    }

    /// Closes the link to a process that does not do its part.
    fn give_up(&self, why: impl Into<String>) {
        if !self.is_closed() {
            self.given_up.store(true, Ordering::Release);
            self.close(why);
        }
    }

    /// Returns true if this side closed it, because the other does not do its part.
    pub(crate) fn is_given_up(&self) -> bool {
        self.given_up.load(Ordering::Acquire)
    }

    /// Resolves when the link is closed.
    pub(crate) async fn closed(&self) {
        self.closed.over().await;
    }

    /// Resolves when the link is closed and its last bytes are written, or given up.
    pub(crate) async fn finished(&self) {
        let mut writing = self.writing.subscribe();
        // The sender is ours, so the wait cannot fail.
        let _ = writing.wait_for(|writers| *writers == 0).await;
    }

    /// Why it was closed.
    pub(crate) fn why(&self) -> String {
        self.closed.why()
    }

    /// A connection has broken. A session goes on over another; without one the link is over.
    fn broke(&self, carrier: &Ending, why: impl Into<String>) {
        if self.session.is_some() {
            carrier.end(why);
        } else {
            self.close(why);
        }
    }

    fn ended(&self, carrier: &Ending, ended: Ended) {
        match ended {
            Ended::Broken(why) => self.broke(carrier, why),
            Ended::Over(why) => self.close(why),
        }
    }

    /// When anything last came from the other side.
    pub(crate) fn last_heard(&self) -> Timestamp {
        Timestamp(self.last_heard.load(Ordering::Relaxed))
    }

    /// The time since the other side was last heard.
    pub(crate) fn silent_for(&self) -> Duration {
        Clock::now().since(self.last_heard())
    }

    fn heard(&self) {
        self.last_heard.store(Clock::now().0, Ordering::Relaxed);
    }

    /// Resolves when nothing has come for so long.
    async fn silence(&self, most: Duration) {
        loop {
            let left = most.saturating_sub(self.silent_for());
            if left.is_zero() {
                return;
            }
            let due = Clock::now().after(left);
            Clock::sleep(left).await;
            // Where nothing has run here for a while, what has come meanwhile is read first.
            if Clock::now().since(due) > STALL {
                Clock::sleep(STALL).await;
            }
        }
    }

    /// Bytes of each stream that were taken in; they count as said from now on.
    fn marks(&self) -> Marks {
        let mut marks = Marks::default();
        for (mark, pipe) in marks.iter_mut().zip(self.pipes()) {
            *mark = pipe.incoming.lock().say();
        }
        marks
    }

    /// Frames of one stream have been taken in. The other side hears of it when there are many.
    fn took(&self, pipe: &Pipe, bytes: u64, limits: &Limits) {
        // Nobody may wait for room until the next beat.
        let every = ACKNOWLEDGE_BYTES.min(limits.link_queue_bytes_max as u64 / 4);
        if self.session.is_some() && pipe.incoming.lock().take(bytes, every) {
            self.push(&Frame::Taken(self.marks()), true);
        }
    }

    /// The other side says how much it has taken in.
    fn acknowledged(&self, marks: Marks) -> Result<(), String> {
        for (pipe, mark) in self.pipes().zip(marks) {
            let outcome = pipe.acknowledge(mark);
            outcome.map_err(|error| error.to_string())?;
        }
        Ok(())
    }

    /// Says that this side lives, and what it has taken in since it last said so.
    fn beat(&self) {
        let news = |pipe: &Pipe| pipe.incoming.lock().is_news();
        if self.session.is_some() && self.pipes().any(news) {
            self.push(&Frame::Taken(self.marks()), false);
        }
        let rhythm = self.rhythm.lock();
        let (echo, heard) = (rhythm.theirs, rhythm.heard);
        drop(rhythm);
        let sent = Clock::now().0;
        self.last_beat.store(sent, Ordering::Relaxed);
        // At once, since its time is looked at.
        self.push(&Frame::Beat(Beat { sent, echo, heard }), true);
    }

    /// Beats in the place of the task that should have: handlers block all threads here, and the other side is not
    /// to take this process for dead. A link over another connection has to be resumed anyway.
    pub(crate) fn beat_if_late(&self, limits: &Limits) {
        let last = Timestamp(self.last_beat.load(Ordering::Relaxed));
        let is_late = Clock::now().since(last) > limits.heartbeat_interval * 3 / 2;
        if self.session.is_none() && is_late && !self.is_closed() {
            self.beat();
        }
    }

    /// A beat of the other side has come.
    fn felt(&self, beat: Beat) {
        let heard = self.last_heard().0;
        let mut rhythm = self.rhythm.lock();
        rhythm.felt = true;
        (rhythm.theirs, rhythm.heard) = (beat.sent, heard);
        if beat.echo != 0 {
            rhythm.offsets.note(Exchange {
                sent: beat.echo,
                heard_there: beat.heard,
                sent_there: beat.sent,
                heard,
            });
        }
    }

    /// Returns true if the other side has ever beaten.
    fn has_felt(&self) -> bool {
        self.rhythm.lock().felt
    }

    /// The link as counters show it.
    pub(crate) fn view(&self) -> LinkView {
        let estimate = self.rhythm.lock().offsets.estimate(Clock::now().0);
        let session = self.session.as_ref();
        LinkView {
            peer: self.peer,
            node: self.node.clone(),
            is_worker: self.is_worker,
            round_trip: estimate.map(|estimate| estimate.round_trip),
            clock_offset: estimate.map(|estimate| estimate.offset),
            offset_error: estimate.map(|estimate| estimate.error),
            resumed: session.map_or(0, Session::resumed),
            last_break: session.and_then(Session::broken),
            silent_for: self.silent_for(),
            sent_bytes: self.pipes().map(|pipe| pipe.progress().0).sum(),
            queued_bytes: self.pipes().map(Pipe::queued_bytes).sum(),
            unacknowledged_bytes: self.pipes().map(Pipe::kept_bytes).sum(),
        }
    }

    /// Writes what is queued on one stream until the link closes or its connection ends. The control
    /// stream also says that this side lives, and notices when the other side does not.
    async fn write_loop(&self, pipe: &Pipe, carrier: &Ending, limits: &Limits) {
        let beats = std::ptr::eq(pipe, &raw const self.control);
        let idle = match &self.session {
            Some(_) => limits.connection_idle(),
            None => limits.link_idle_timeout,
        };
        let mut beat = tokio::time::interval(limits.heartbeat_interval);
        beat.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        beat.tick().await;
        if beats {
            self.beat();
        }
        let mut progress = (pipe.progress().0, Clock::now());
        let mut pumping = pin!(Self::pump(pipe));
        let mut silence = pin!(self.silence(idle));
        while !self.is_closed() && !carrier.is_over() {
            tokio::select! {
                biased;
                Err(error) = &mut pumping => self.broke(carrier, error.to_string()),
                () = self.closed() => {}
                () = carrier.over() => {}
                () = &mut silence, if beats => {
                    let why = format!("silent for {:.1?}", self.silent_for());
                    if self.session.is_some() {
                        carrier.end(why);
                    } else {
                        self.give_up(why);
                    }
                }
                _ = beat.tick() => {
                    let (written, is_idle) = pipe.progress();
                    if is_idle || written != progress.0 {
                        progress = (written, Clock::now());
                    }
                    // A process on this machine that beats lives, also when handlers hold all its threads.
                    let beats_on = self.session.is_none() && self.silent_for() <= idle;
                    if !beats_on && Clock::now().since(progress.1) > limits.link_idle_timeout {
                        self.give_up("not read by the other side");
                    } else if beats {
                        self.beat();
                    }
                }
            }
        }
        if carrier.is_over() {
            return;
        }
        if beats && self.session.is_some() {
            // Else the other side would wait for another connection.
            let last = Frame::Over(self.why());
            pipe.push(false, |queue| last.encode(&mut queue.control));
        }
        // Say what is left, so that an orderly end is complete.
        let last = std::future::poll_fn(|cx| pipe.poll_finish(cx));
        // The stream may be gone already; there is nothing left to do with the outcome.
        let _ = Clock::timeout(limits.heartbeat_interval, last).await;
    }

    /// Writes what is queued for one stream, batch after batch, until that fails.
    async fn pump(pipe: &Pipe) -> std::io::Result<Infallible> {
        // Something may have been left by the connection before.
        let mut more = true;
        loop {
            if !more {
                pipe.wake.notified().await;
            }
            if pipe.queued_bytes() < BATCH_BYTES as u64 {
                // Tasks that are ready to send come first, so that their frames leave with this
                // write.
                tokio::task::yield_now().await;
            }
            more = std::future::poll_fn(|cx| pipe.poll_batch(cx)).await?;
        }
    }

    /// Waits until so many questions, facts and notices of the other side are taken in. Returns
    /// true if they were, before the connection ended.
    async fn heed(&self, after: u64, carrier: &Ending) -> bool {
        let mut heeded = self.heeded.subscribe();
        tokio::select! {
            biased;
            // The sender is ours, so the wait cannot fail.
            _ = heeded.wait_for(|heeded| *heeded >= after) => true,
            () = self.closed() => false,
            () = carrier.over() => false,
        }
    }
}

/// The streams of a connection that are read.
struct Streams {
    readers: Vec<(Reader, BytesMut)>,
    line: Option<Arc<dyn Line>>,
}

impl Streams {
    /// Takes a greeted connection apart.
    fn of(greeted: Greeted) -> (Self, Vec<Writer>) {
        let (reader, writer) = greeted.control;
        let (mut readers, mut writers) = (vec![(reader, greeted.buffer)], vec![writer]);
        for (reader, writer) in greeted.calls.into_iter().chain(greeted.bulk) {
            readers.push((reader, BytesMut::with_capacity(READ_BYTES)));
            writers.push(writer);
        }
        let line = greeted.line;
        (Self { readers, line }, writers)
    }
}

/// The session that this side keeps with a peer.
pub(crate) fn session_with(owner: &Arc<dyn LinkOwner>, peer: ProcessId) -> Option<u64> {
    let link = owner.link_to(peer)?;
    let session = link.session.as_ref()?;
    (!link.is_closed()).then_some(session.id)
}

/// A peer has said hello over a connection that is not the link's. So it lives, whatever has become
/// of that, and a session with it is not to end while the two look what they keep.
pub(crate) fn is_alive(owner: &Arc<dyn LinkOwner>, peer: ProcessId) {
    if let Some(link) = owner.link_to(peer) {
        link.heard();
    }
}

/// Makes the streams a link of `owner`, which ends with them, and serves it until then.
pub(crate) fn attach(owner: &Arc<dyn LinkOwner>, greeted: Greeted, is_worker: bool) -> Arc<Link> {
    begin(owner, greeted, is_worker, None)
}

/// Makes the streams a link of `owner` that goes on over others, and serves it until it ends.
pub(crate) fn attach_session(
    owner: &Arc<dyn LinkOwner>,
    greeted: Greeted,
    session: Session,
) -> Arc<Link> {
    begin(owner, greeted, false, Some(session))
}

fn begin(
    owner: &Arc<dyn LinkOwner>,
    greeted: Greeted,
    is_worker: bool,
    session: Option<Session>,
) -> Arc<Link> {
    let (hello, ours) = (greeted.hello.clone(), greeted.ours.clone());
    let socket = greeted.socket;
    let (streams, writers) = Streams::of(greeted);
    let in_session = session.is_some();
    let pipes = writers
        .into_iter()
        .map(|writer| Pipe::new(writer, in_session));
    let link = Arc::new(Link {
        is_worker,
        session,
        socket,
        ..Link::new(hello.process, hello.node.clone(), pipes)
    });
    owner.link_up(&link, &hello, &ours);
    owner.spawn_task(serve(Arc::clone(owner), Arc::clone(&link), Some(streams)));
    link
}

/// Serves a link over one connection after the other until it ends. Without a first one, it has none
/// yet.
async fn serve(owner: Arc<dyn LinkOwner>, link: Arc<Link>, first: Option<Streams>) {
    let mut next = match first {
        Some(streams) => Some(streams),
        None => link.next_connection(&owner).await,
    };
    while let Some(streams) = next {
        carry(&owner, &link, streams).await;
        next = link.next_connection(&owner).await;
    }
    owner.link_down(&link).await;
}

/// Serves a link over one connection, until that or the link ends and nothing of it is read any
/// more.
async fn carry(owner: &Arc<dyn LinkOwner>, link: &Arc<Link>, streams: Streams) {
    let Streams { readers, line } = streams;
    let carrier = Arc::new(Ending::default());
    link.carried_by(&carrier);
    link.writing.send_replace(readers.len());
    let (mut writing, mut reading) = (vec![], vec![]);
    for (n, (reader, buffer)) in readers.into_iter().enumerate() {
        let (done, over) = oneshot::channel();
        writing.push(over);
        let (task_link, task_carrier) = (Arc::clone(link), Arc::clone(&carrier));
        let limits = owner.limits().clone();
        owner.spawn_task(async move {
            let link = task_link;
            if let Some(pipe) = link.pipes().nth(n) {
                link.write_loop(pipe, &task_carrier, &limits).await;
            }
            link.writing.send_modify(|writers| *writers -= 1);
            // Nobody may wait for it any more.
            let _ = done.send(());
        });
        let (done, over) = oneshot::channel();
        reading.push(over);
        let (task_link, task_carrier) = (Arc::clone(link), Arc::clone(&carrier));
        let owner = Arc::clone(owner);
        owner.clone().spawn_task(async move {
            let (link, carrier) = (task_link, task_carrier);
            let ended = read_loop(&owner, &link, &carrier, n, reader, buffer).await;
            if n > 0 && ended == Ended::Broken(HUNG_UP.to_owned()) {
                // The control stream says more, and may be a moment behind.
                let said = async {
                    tokio::select! {
                        () = link.closed() => {}
                        () = carrier.over() => {}
                    }
                };
                let _ = Clock::timeout(owner.limits().heartbeat_interval, said).await;
            }
            if !link.stands_still() {
                link.ended(&carrier, ended);
            }
            // Nobody may wait for it any more.
            let _ = done.send(());
        });
    }
    let line_ended = async {
        match &line {
            Some(line) => line.ended().await,
            None => std::future::pending().await,
        }
    };
    tokio::select! {
        biased;
        ended = line_ended => link.ended(&carrier, ended),
        () = link.closed() => {}
        () = carrier.over() => {}
    }
    for over in reading {
        if over.await.is_err() {
            link.close("what reads it has failed");
        }
    }
    if link.stands_still() {
        if let Some(line) = line {
            line.close(false, &carrier.why());
        }
        return link.stand().await;
    }
    if !link.is_closed() {
        for over in writing {
            // A writer that has failed is as much at its end.
            let _ = over.await;
        }
        if let Some(Ended::Over(why)) = line.as_ref().and_then(|line| line.end()) {
            // That came a moment after a stream had broken.
            link.close(why);
        } else if let Some(session) = &link.session {
            session.broke(carrier.why());
        }
    }
    let Some(line) = line else { return };
    if !link.is_closed() {
        return line.close(false, &carrier.why());
    }
    let (owner, link) = (Arc::clone(owner), Arc::clone(link));
    owner.clone().spawn_task(async move {
        link.finished().await;
        if owner.is_closing() {
            // The other side ends the connection when it has heard the last word.
            let _ = Clock::timeout(owner.limits().heartbeat_interval, line.ended()).await;
        }
        line.close(true, &link.why());
    });
}

/// Feeds frames to the owner until the stream ends; returns why it did.
async fn read_loop(
    owner: &Arc<dyn LinkOwner>,
    link: &Arc<Link>,
    carrier: &Ending,
    stream: usize,
    mut reader: Reader,
    mut buffer: BytesMut,
) -> Ended {
    let Some(pipe) = link.pipes().nth(stream) else {
        return Ended::Over("there is no such stream".to_owned());
    };
    let mut closed = pin!(link.closed());
    let mut over = pin!(carrier.over());
    loop {
        loop {
            if carrier.is_over() {
                pipe.leave_unread(buffer);
                return Ended::Broken(carrier.why());
            }
            let mut taken = Ok(None);
            owner.within(&mut || taken = take_in(owner, link, pipe, &mut buffer));
            match taken {
                Ok(None) => break,
                Ok(Some(told)) => {
                    if link.heed(told, carrier).await {
                        link.took(pipe, AFTER_BYTES, owner.limits());
                    }
                }
                Err(why) => return Ended::Over(why),
            }
        }
        buffer.reserve(missing(&buffer).clamp(READ_BYTES, READ_BYTES_MAX));
        tokio::select! {
            biased;
            read = reader.read_buf(&mut buffer) => match read {
                Ok(0) => return Ended::Broken(HUNG_UP.to_owned()),
                Ok(_) => link.heard(),
                Err(error) => return Ended::Broken(error.to_string()),
            },
            () = &mut closed => return Ended::Over(link.why()),
            () = &mut over => {
                pipe.leave_unread(buffer);
                return Ended::Broken(carrier.why());
            }
        }
    }
}

/// Feeds the whole frames of `buffer` to the owner, up to a mark: then it says how much control
/// the rest comes after.
fn take_in(
    owner: &Arc<dyn LinkOwner>,
    link: &Arc<Link>,
    pipe: &Pipe,
    buffer: &mut BytesMut,
) -> Result<Option<u64>, String> {
    let mut taken = 0;
    let mut outcome = Ok(None);
    while !link.is_closed() {
        let before = buffer.len();
        let frame = match Frame::decode(buffer, owner.limits().message_bytes_max) {
            Ok(Some(frame)) => frame,
            Ok(None) => break,
            Err(error) => {
                outcome = Err(bad_frame(link, &error));
                break;
            }
        };
        match frame {
            Frame::After(told) => {
                outcome = Ok(Some(told));
                break;
            }
            Frame::Taken(marks) => {
                if let Err(why) = link.acknowledged(marks) {
                    outcome = Err(why);
                    break;
                }
                continue;
            }
            Frame::Beat(beat) => {
                link.felt(beat);
                continue;
            }
            frame => {
                let binding = frame.binds_calls();
                if let Err(error) = owner.take_in(link, frame) {
                    outcome = Err(bad_frame(link, &error));
                    break;
                }
                if binding {
                    link.heeded.send_modify(|heeded| *heeded += 1);
                }
            }
        }
        taken += (before - buffer.len()) as u64;
    }
    if taken > 0 {
        link.took(pipe, taken, owner.limits());
    }
    if link.is_closed() && outcome.is_ok() {
        return Err(link.why());
    }
    outcome
}

/// The number of bytes of the frame at the front that are not here yet.
fn missing(buffer: &BytesMut) -> usize {
    let length = buffer
        .first_chunk::<4>()
        .map_or(0, |head| u32::from_le_bytes(*head) as usize);
    (4 + length).saturating_sub(buffer.len())
}

fn bad_frame(link: &Link, error: &FrameError) -> String {
    tracing::error!(peer = %link.peer, %error, "a peer sent bytes that are no frame; link closed");
    format!("the other side sent bytes that are no frame: {error}")
}
