//! Two systems with a wire of some kind between them, which can be slowed down, held, damaged and
//! cut.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use odeon::{Clock, ClusterIdentity, Job, Limits, ProcessId, System, SystemError, WorkerMode};
use tokio::io::{
    AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, DuplexStream, ReadHalf, WriteHalf,
};
use tokio::net::{UdpSocket, UnixStream};
use tokio::sync::watch;

use crate::peer::{Peer, Workers};

/// The carrier of the bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A pipe in memory.
    Memory,
    /// Pipes in memory, one after the other: each breaks after so many bytes, as chance will have it.
    Torn,
    /// A pair of unix sockets.
    Unix,
    /// QUIC on the loopback device, through a relay that treats datagrams as the wire is set.
    Quic,
    /// The same, and again and again the path is lost without a word, so that only another
    /// connection gets through.
    QuicTorn,
    /// QUIC to a process of its own.
    QuicProcesses,
}

impl Kind {
    const fn is_quic(self) -> bool {
        matches!(self, Self::Quic | Self::QuicTorn | Self::QuicProcesses)
    }
}

/// The treatment of what a wire carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flow {
    /// It passes.
    Free,
    /// It passes at a few megabytes a second.
    Slow,
    /// It passes with bits flipped.
    Damaged,
    /// It is lost. A stream ends; over QUIC nothing more is heard.
    Cut,
}

/// Two linked systems, nodes `a` and `b`.
#[derive(Debug)]
pub struct Pair {
    /// One end, in the test's process.
    pub a: System,
    /// The other.
    pub b: Other,
    kind: Kind,
    flow: watch::Sender<Flow>,
}

/// The other end of a wire.
#[derive(Debug)]
pub enum Other {
    /// A system in the test's process.
    Here(System),
    /// A process of its own.
    There(Box<Peer>),
}

/// Bounds that let tests wait for losses.
pub fn limits() -> Limits {
    let mut limits = Limits::default();
    limits.link_idle_timeout = Duration::from_secs(3);
    limits.heartbeat_interval = Duration::from_millis(300);
    limits.connection_idle = Duration::from_millis(1000);
    limits
}

/// The longest time that two systems may take to link over a wire that is torn now and then.
const PATIENCE: Duration = Duration::from_secs(60);

/// The time that the path of a torn wire stays as it is, from and to, in milliseconds.
const PATH_MS: (u64, u64) = (400, 800);

/// Bounds under which a torn path is soon noticed.
fn quick() -> Limits {
    let mut limits = limits();
    limits.heartbeat_interval = Duration::from_millis(80);
    limits.connection_idle = Duration::from_millis(250);
    limits
}

impl Pair {
    /// Two systems of a job, linked. The module has what a [`Peer`] needs.
    pub async fn new(kind: Kind, job: Job, module: &str) -> Self {
        let cluster = ClusterIdentity::generate().unwrap();
        let start = async |name: &str| {
            let builder = System::builder()
                .job(job)
                .limits(if kind == Kind::QuicTorn {
                    quick()
                } else {
                    limits()
                })
                .workers(WorkerMode::InProcess);
            let builder = if kind.is_quic() {
                builder.listen(loopback(), cluster.issue(name).unwrap())
            } else {
                builder.node(name)
            };
            builder.start().await.unwrap()
        };
        let a = start("a").await;
        let b = match kind {
            Kind::QuicProcesses => {
                let identity = cluster.issue("b").unwrap();
                let peer = Peer::start(module, &identity, Workers::InProcess);
                Other::There(Box::new(peer))
            }
            _ => Other::Here(start("b").await),
        };
        let pair = Self {
            a,
            b,
            kind,
            flow: watch::channel(Flow::Free).0,
        };
        let begun = Clock::now();
        let mut joined = pair.join().await;
        while joined.is_err()
            && matches!(kind, Kind::Torn | Kind::QuicTorn)
            && Clock::now().since(begun) < PATIENCE
        {
            joined = pair.join().await;
        }
        joined.unwrap();
        pair
    }

    /// Sets how the wire treats what it carries from now on.
    pub fn set(&self, flow: Flow) {
        self.flow.send_replace(flow);
    }

    /// Links the two, over a new wire.
    pub async fn join(&self) -> Result<ProcessId, SystemError> {
        let b = match (&self.b, self.kind) {
            (Other::There(peer), _) => peer.address(),
            (Other::Here(b), Kind::Memory) => {
                let ((near, a_wire), (b_wire, far)) =
                    (tokio::io::duplex(256 << 10), tokio::io::duplex(256 << 10));
                return self.join_streams(b, (near, a_wire), (b_wire, far)).await;
            }
            (Other::Here(b), Kind::Torn) => {
                let (b, flow) = (b.clone(), self.flow.subscribe());
                let dial = move || {
                    let (b, flow) = (b.clone(), flow.clone());
                    async move { torn(b, flow) }
                };
                return self.a.admin().join_over(dial).await;
            }
            (Other::Here(b), Kind::Unix) => {
                let (near, a_wire) = UnixStream::pair().unwrap();
                let (b_wire, far) = UnixStream::pair().unwrap();
                return self.join_streams(b, (near, a_wire), (b_wire, far)).await;
            }
            (Other::Here(b), _) => b.address().unwrap(),
        };
        let torn = self.kind == Kind::QuicTorn;
        self.a
            .join(relay(b, self.flow.subscribe(), torn).await)
            .await
    }

    async fn join_streams<S>(
        &self,
        b: &System,
        (near, a_wire): (S, S),
        (b_wire, far): (S, S),
    ) -> Result<ProcessId, SystemError>
    where
        S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        let ((a_in, a_out), (b_in, b_out)) = (tokio::io::split(near), tokio::io::split(far));
        let ((from_a, to_a), (from_b, to_b)) = (tokio::io::split(a_wire), tokio::io::split(b_wire));
        drop(tokio::spawn(carry(
            from_a,
            to_b,
            self.flow.subscribe(),
            None,
        )));
        drop(tokio::spawn(carry(
            from_b,
            to_a,
            self.flow.subscribe(),
            None,
        )));
        let (ours, theirs) = tokio::join!(
            self.a.admin().join_stream(a_in, a_out),
            b.admin().join_stream(b_in, b_out)
        );
        theirs.and(ours)
    }

    /// Ends both systems.
    pub async fn shutdown(self) {
        match self.b {
            Other::Here(b) => {
                tokio::join!(self.a.shutdown(), b.shutdown());
            }
            // The process ends with its handle.
            Other::There(_peer) => self.a.shutdown().await,
        }
    }
}

/// Any free port.
pub fn loopback() -> SocketAddr {
    "127.0.0.1:0".parse().unwrap()
}

/// Bytes that pass at once on a slow wire, and the time that they take.
const SLOW: (usize, Duration) = (8 << 10, Duration::from_millis(2));

/// Carries bytes one way until the wire is cut, an end hangs up or no bytes are left to carry.
async fn carry(
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    mut flow: watch::Receiver<Flow>,
    left: Option<&AtomicU64>,
) {
    let mut buffer = vec![0; 64 << 10];
    let mut cut = flow.clone();
    let carrying = async {
        loop {
            let slow = *flow.borrow() == Flow::Slow;
            let most = if slow { SLOW.0 } else { buffer.len() };
            let Ok(read @ 1..) = from.read(&mut buffer[..most]).await else {
                break;
            };
            let now = *flow.borrow_and_update();
            match now {
                Flow::Damaged => buffer[..read].iter_mut().for_each(|byte| *byte ^= 0xa5),
                Flow::Slow => Clock::sleep(SLOW.1).await,
                _ => {}
            }
            let carried = left.map_or(read, |left| take(left, read));
            if to.write_all(&buffer[..carried]).await.is_err() || carried < read {
                break;
            }
        }
    };
    tokio::select! {
        _ = cut.wait_for(|flow| *flow == Flow::Cut) => {}
        () = carrying => {}
    }
    // An end may be gone already.
    let _ = to.shutdown().await;
}

/// A pipe to a system that breaks after so many bytes: a few hundred, or up to 32 MiB.
fn torn(
    to: System,
    flow: watch::Receiver<Flow>,
) -> std::io::Result<(ReadHalf<DuplexStream>, WriteHalf<DuplexStream>)> {
    if *flow.borrow() == Flow::Cut {
        return Err(std::io::ErrorKind::HostUnreachable.into());
    }
    let (near, a_wire) = tokio::io::duplex(256 << 10);
    let (b_wire, far) = tokio::io::duplex(256 << 10);
    let ((from_a, to_a), (from_b, to_b)) = (tokio::io::split(a_wire), tokio::io::split(b_wire));
    let (bytes, scale) = (chance(), chance() % 17);
    let length = (256 << scale) + bytes % (256 << scale);
    drop(tokio::spawn(async move {
        let left = AtomicU64::new(length);
        // When one way ends, so does the other.
        tokio::select! {
            () = carry(from_a, to_b, flow.clone(), Some(&left)) => {}
            () = carry(from_b, to_a, flow, Some(&left)) => {}
        }
    }));
    drop(tokio::spawn(async move {
        let (reader, writer) = tokio::io::split(far);
        // It may break before the greeting is over.
        let _ = to.admin().accept_stream(reader, writer).await;
    }));
    Ok(tokio::io::split(near))
}

/// Takes as much as there is, so much at most.
fn take(left: &AtomicU64, most: usize) -> usize {
    let rest = |left: u64| Some(left.saturating_sub(most as u64));
    let before = left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, rest);
    before.map_or(0, |before| before.min(most as u64) as usize)
}

/// A number that nobody knows before.
fn chance() -> u64 {
    ProcessId::random().0
}

/// Passes datagrams on between whoever sends first and `to`; ends with the pair. A `torn` one
/// changes again and again where they seem to come from, and forgets what comes to the place
/// before: to `to` that is the end of all connections, and both sides hear nothing of it.
async fn relay(to: SocketAddr, flow: watch::Receiver<Flow>, torn: bool) -> SocketAddr {
    let near = Arc::new(UdpSocket::bind(loopback()).await.unwrap());
    let address = near.local_addr().unwrap();
    let (client, known) = watch::channel(None);
    let path = async move || {
        let far = Arc::new(UdpSocket::bind(loopback()).await.unwrap());
        far.connect(to).await.unwrap();
        far
    };
    let (path_is, far) = watch::channel(path().await);
    let there = Way::There(client, far.clone());
    drop(tokio::spawn(pass(Arc::clone(&near), there, flow.clone())));
    drop(tokio::spawn(async move {
        let mut left = 100 + chance() % 200;
        loop {
            let from = Arc::clone(&far.borrow());
            let back = Way::Back(Arc::clone(&near), known.clone());
            tokio::select! {
                () = pass(from, back, flow.clone()) => return,
                () = Clock::sleep(Duration::from_millis(left)), if torn => {}
            }
            left = PATH_MS.0 + chance() % (PATH_MS.1 - PATH_MS.0);
            path_is.send_replace(path().await);
        }
    }));
    address
}

/// Which way datagrams go.
enum Way {
    /// Over the present path; says where they come from.
    There(
        watch::Sender<Option<SocketAddr>>,
        watch::Receiver<Arc<UdpSocket>>,
    ),
    /// To where the others come from.
    Back(Arc<UdpSocket>, watch::Receiver<Option<SocketAddr>>),
}

async fn pass(from: Arc<UdpSocket>, way: Way, mut flow: watch::Receiver<Flow>) {
    let mut buffer = vec![0; 65_536];
    loop {
        let received = tokio::select! {
            received = from.recv_from(&mut buffer) => received,
            changed = flow.changed() => match changed {
                Ok(()) => continue,
                // The pair is gone.
                Err(_) => return,
            },
        };
        // A peer that is gone makes a connected socket fail; it may come back.
        let Ok((read, sender)) = received else {
            continue;
        };
        let now = *flow.borrow();
        match now {
            Flow::Free => {}
            Flow::Slow => Clock::sleep(Duration::from_millis(1)).await,
            Flow::Damaged => buffer[..read].iter_mut().for_each(|byte| *byte ^= 0xa5),
            Flow::Cut => continue,
        }
        // What cannot be sent is lost, as on any network.
        let _ = match &way {
            Way::There(client, path) => {
                client.send_replace(Some(sender));
                let path = Arc::clone(&path.borrow());
                path.send(&buffer[..read]).await
            }
            Way::Back(near, client) => {
                let client = *client.borrow();
                match client {
                    Some(client) => near.send_to(&buffer[..read], client).await,
                    None => Ok(0),
                }
            }
        };
    }
}
