//! The other node as a process of its own, which obeys orders that come over its standard input,
//! whatever has become of its link.

use std::io::{BufRead, Write};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Child, ChildStdin, Command, Stdio};

use odeon::{Job, NodeIdentity, ProcessId, System, WorkerMode};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::sync::{Mutex, mpsc};

use crate::again;
use crate::wires::{limits, loopback};

/// The variable that tells a test binary the folder of the node's identity.
const IDENTITY: &str = "ODEON_TEST_PEER";

/// The variable that tells it where its workers live.
const WORKERS: &str = "ODEON_TEST_PEER_WORKERS";

/// The variable that tells it where to listen.
const ADDRESS: &str = "ODEON_TEST_PEER_ADDRESS";

/// Where the workers of the other node live.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Workers {
    /// In the node's own process.
    InProcess,
    /// In processes of their own.
    Processes,
}

/// The other node as a process, killed when this is dropped. The module of the test needs another of
/// the name `peer_entry` that calls [`serve`].
#[derive(Debug)]
pub struct Peer {
    child: Child,
    address: SocketAddr,
    /// Its standard input and its answers: one order at a time.
    talk: Mutex<Talk>,
    _identity: Folder,
}

#[derive(Debug)]
struct Talk {
    orders: Option<ChildStdin>,
    answers: mpsc::UnboundedReceiver<String>,
}

impl Peer {
    /// Starts it for a module and waits until it listens.
    pub fn start(module: &str, identity: &NodeIdentity, workers: Workers) -> Self {
        Self::start_at(module, loopback(), identity, workers)
    }

    /// Starts it where another has listened.
    pub fn start_at(
        module: &str,
        address: SocketAddr,
        identity: &NodeIdentity,
        workers: Workers,
    ) -> Self {
        let folder = Folder::new(identity);
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args([&again::name(module, "peer_entry"), "--exact", "--nocapture"])
            .env(IDENTITY, &folder.0)
            .env(WORKERS, format!("{workers:?}"))
            .env(ADDRESS, address.to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = std::io::BufReader::new(child.stdout.take().unwrap()).lines();
        let address = lines
            .find_map(|line| line.unwrap().strip_prefix("address ")?.parse().ok())
            .expect("the peer says its address");
        let (answer, answers) = mpsc::unbounded_channel();
        std::thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                if let Some(line) = line.strip_prefix("answer ") {
                    // The test may be over.
                    let _ = answer.send(line.to_owned());
                }
            }
        });
        let talk = Talk {
            orders: child.stdin.take(),
            answers,
        };
        Self {
            child,
            address,
            talk: Mutex::new(talk),
            _identity: folder,
        }
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Its process.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Has it do something, and waits until that is done.
    pub async fn order<T: DeserializeOwned>(&self, order: &impl Serialize) -> T {
        let mut talk = self.talk.lock().await;
        let line = serde_json::to_string(order).unwrap();
        let orders = talk.orders.as_mut().expect("it has not been told to end");
        writeln!(orders, "{line}").unwrap();
        let answer = talk.answers.recv().await.expect("the peer lives");
        serde_json::from_str(&answer).unwrap()
    }

    /// Has it end in order.
    pub async fn leave(&self) {
        self.talk.lock().await.orders = None;
    }

    /// Waits for its end. Returns true if that was in order.
    pub fn wait(&mut self) -> bool {
        self.child.wait().unwrap().success()
    }

    /// Ends it without a word.
    pub fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        // It may be dead already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Becomes the other node when this process was started as one: says its address, and lets `obey`
/// carry out orders until its standard input ends. `workers` is how it starts worker processes, if
/// it does.
pub fn serve<O: DeserializeOwned>(
    job: Job,
    workers: WorkerMode,
    obey: impl AsyncFn(&System, O) -> Value,
) {
    let Some(folder) = std::env::var_os(IDENTITY) else {
        return;
    };
    let in_process =
        std::env::var(WORKERS).is_ok_and(|named| named == format!("{:?}", Workers::InProcess));
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let identity = NodeIdentity::load(PathBuf::from(folder).as_path()).unwrap();
        let builder = System::builder()
            .job(job)
            .limits(limits())
            .workers(if in_process {
                WorkerMode::InProcess
            } else {
                workers
            });
        let address = std::env::var(ADDRESS).unwrap().parse().unwrap();
        let system = builder.listen(address, identity).start().await.unwrap();
        say("address", system.address().unwrap());
        let (order, mut orders) = mpsc::unbounded_channel();
        std::thread::spawn(move || {
            for line in std::io::stdin().lines().map_while(Result::ok) {
                // The node may be gone.
                let _ = order.send(line);
            }
        });
        while let Some(order) = orders.recv().await {
            let order = serde_json::from_str(&order).unwrap();
            say("answer", obey(&system, order).await);
        }
        system.shutdown().await;
    });
}

/// Prints a line of its own, in whatever the test harness prints.
fn say(what: &str, content: impl std::fmt::Display) {
    println!("\n{what} {content}");
    std::io::stdout().flush().unwrap();
}

/// A folder with the identity of a node, removed when it is dropped.
#[derive(Debug)]
struct Folder(PathBuf);

impl Folder {
    fn new(identity: &NodeIdentity) -> Self {
        let folder = std::env::temp_dir().join(format!("odeon-{:016x}", ProcessId::random().0));
        std::fs::create_dir(&folder).unwrap();
        identity.save(&folder).unwrap();
        Self(folder)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.0).unwrap();
    }
}
