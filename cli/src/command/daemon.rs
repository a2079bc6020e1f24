//! `odeon up` and `odeon join`: a node of a cluster on this machine, in the background unless told
//! otherwise.

use std::fs::{self, OpenOptions};
use std::net::SocketAddr;
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use odeon::{Clock, Limits, NodeIdentity};
use odeon_artifacts::Footprint;
use odeon_client::{CONNECTION_FILE, Client, Connection, default_folder};
use odeon_cluster::access::Role;
use odeon_cluster::fact::Fact;
use odeon_cluster::keeper::Rules;
use odeon_cluster::logs::LogLimits;
use odeon_cluster::{Daemon, DaemonConfig, Entry};
use rustix::process::{Pid, Signal};
use tokio::signal::unix::{SignalKind, signal};

use crate::api::{Api, ApiConfig, Audit, Limiter, Server, new_key};
use crate::args::{DownArgs, JoinArgs, NodeArgs, UpArgs};
use crate::print;

/// The file with the number of the daemon's process.
const PID_FILE: &str = "daemon.pid";
/// What the daemon logs when it runs in the background.
const LOG_FILE: &str = "daemon.log";
/// The folder of the other nodes that `--nodes` starts on this machine.
const NODES_FOLDER: &str = "nodes";
/// How long a daemon may take to be ready.
const READY_PATIENCE: Duration = Duration::from_secs(30);
/// How long a daemon may take to end in order.
const END_PATIENCE: Duration = Duration::from_secs(30);
/// How often its state is looked at.
const LOOK_PAUSE: Duration = Duration::from_millis(20);

pub(crate) fn up(args: &UpArgs) -> Result<ExitCode> {
    let folder = args.node.dir.clone().unwrap_or_else(default_folder);
    if args.foreground {
        return run(&args.node, &folder, Entry::Found, Some(args));
    }
    let mut own: Vec<String> = vec!["up".to_owned(), "--foreground".to_owned()];
    own.extend(["--api".to_owned(), args.api.to_string()]);
    for host in &args.allow_host {
        own.extend(["--allow-host".to_owned(), host.clone()]);
    }
    own.extend(passed_on(&args.node, &folder));
    start(&folder, &own)?;
    let connection = Connection::find(&folder)?;
    print::say(format!("node up, API at {}", connection.url));
    let runtime = runtime()?;
    for number in 2..=args.nodes {
        let name = format!("node-{number}");
        let node = folder.join(NODES_FOLDER).join(&name);
        let client = Client::new(connection.clone())?;
        let token = runtime.block_on(client.token(1, Duration::from_secs(300)))?;
        let mut own = vec!["join".to_owned(), token.address, "--foreground".to_owned()];
        own.extend(["--token".to_owned(), token.token]);
        let args = NodeArgs {
            name: Some(name.clone()),
            listen: SocketAddr::new(args.node.listen.ip(), 0),
            advertise: args.node.advertise.map(|it| SocketAddr::new(it.ip(), 0)),
            ..args.node.clone()
        };
        own.extend(passed_on(&args, &node));
        start(&node, &own)?;
        print::say(format!("{name} up"));
    }
    print::say("look: odeon status    run a program: odeon submit PROGRAM    end: odeon down");
    Ok(ExitCode::SUCCESS)
}

pub(crate) fn join(args: &JoinArgs) -> Result<ExitCode> {
    let folder = args.node.dir.clone().unwrap_or_else(default_folder);
    if args.foreground {
        let identity = match &args.token {
            Some(token) => Some(admitted(args, &folder, token)?),
            None => None,
        };
        let through = args.address;
        return run(&args.node, &folder, Entry::Join { through, identity }, None);
    }
    let mut own = vec!["join".to_owned(), args.address.to_string()];
    own.push("--foreground".to_owned());
    if let Some(token) = &args.token {
        own.extend(["--token".to_owned(), token.clone()]);
    }
    own.extend(passed_on(&args.node, &folder));
    start(&folder, &own)?;
    print::say(format!("joined the cluster of {}", args.address));
    Ok(ExitCode::SUCCESS)
}

pub(crate) fn down(args: &DownArgs) -> Result<ExitCode> {
    let folder = args.dir.clone().unwrap_or_else(default_folder);
    let nodes = folder.join(NODES_FOLDER);
    let mut folders: Vec<PathBuf> = match fs::read_dir(&nodes) {
        Ok(entries) => entries
            .filter_map(|entry| Some(entry.ok()?.path()))
            .collect(),
        Err(_) => vec![],
    };
    folders.sort();
    folders.push(folder.clone());
    let mut ended = 0;
    for folder in folders {
        if end(&folder)? {
            ended += 1;
        }
    }
    match ended {
        0 => bail!("no daemon runs in {}", folder.display()),
        1 => print::say("node down"),
        n => print::say(format!("{n} nodes down")),
    }
    Ok(ExitCode::SUCCESS)
}

fn runtime() -> Result<tokio::runtime::Runtime> {
    let built = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build();
    built.context("starting tokio")
}

/// The arguments of a node, for the process that becomes it.
fn passed_on(args: &NodeArgs, folder: &Path) -> Vec<String> {
    let mut own = vec!["--dir".to_owned(), folder.display().to_string()];
    own.extend(["--listen".to_owned(), args.listen.to_string()]);
    if let Some(address) = &args.advertise {
        own.extend(["--advertise".to_owned(), address.to_string()]);
    }
    if let Some(name) = &args.name {
        own.extend(["--name".to_owned(), name.clone()]);
    }
    own.extend(["--artifacts-gib".to_owned(), args.artifacts_gib.to_string()]);
    own
}

/// Starts this program again in the background, and waits until it is ready.
fn start(folder: &Path, args: &[String]) -> Result<()> {
    if let Some(pid) = running(folder) {
        bail!(
            "a daemon runs in {} already (process {pid}): see odeon status, or end it with odeon down",
            folder.display()
        );
    }
    fs::create_dir_all(folder).with_context(|| format!("making {}", folder.display()))?;
    // Written when it is ready, so an old one must not be taken for that.
    let ready = folder.join(PID_FILE);
    let _ = fs::remove_file(&ready);
    let log = OpenOptions::new()
        .create(true)
        .append(true)
        .mode(0o600)
        .open(folder.join(LOG_FILE))?;
    let from = log.metadata()?.len();
    let program = std::env::current_exe().context("finding this program")?;
    let mut child = Command::new(program)
        .args(args)
        .stdin(Stdio::null())
        .stdout(log.try_clone()?)
        .stderr(log)
        .process_group(0)
        .spawn()
        .context("starting the daemon")?;
    let deadline = Clock::now().after(READY_PATIENCE);
    loop {
        if ready.exists() {
            return Ok(());
        }
        if let Some(status) = child.try_wait()? {
            bail!(
                "the daemon did not start ({status}): {}",
                said(folder, from)
            );
        }
        if deadline.left(Clock::now()).is_zero() {
            // It is of no use any more.
            let _ = child.kill();
            bail!(
                "the daemon was not ready within {} s: {}",
                READY_PATIENCE.as_secs(),
                said(folder, from)
            );
        }
        pause();
    }
}

/// Waits a moment, since nothing tells when the state of a daemon changes.
fn pause() {
    std::thread::park_timeout(LOOK_PAUSE);
}

/// What a daemon has logged from this byte on.
fn said(folder: &Path, from: u64) -> String {
    let path = folder.join(LOG_FILE);
    let text = fs::read(&path).unwrap_or_default();
    let text = String::from_utf8_lossy(text.get(from as usize..).unwrap_or_default());
    let lines: Vec<&str> = text.trim().lines().collect();
    let last = lines.len().saturating_sub(5);
    match lines[last..].join("\n") {
        text if text.is_empty() => format!("it said nothing in {}", path.display()),
        text => text,
    }
}

/// The process of the daemon of a folder, if one runs.
fn running(folder: &Path) -> Option<i32> {
    let text = fs::read_to_string(folder.join(PID_FILE)).ok()?;
    let pid: i32 = text.trim().parse().ok()?;
    rustix::process::test_kill_process(Pid::from_raw(pid)?).ok()?;
    // Numbers are used again: the daemon holds its folder's lock.
    let lock = OpenOptions::new()
        .write(true)
        .open(folder.join("lock"))
        .ok()?;
    let held = rustix::fs::flock(&lock, rustix::fs::FlockOperation::NonBlockingLockShared);
    held.is_err().then_some(pid)
}

/// Whether a process runs; one that has ended and that nobody has reaped does not.
fn is_alive(pid: i32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // Behind the name, which may hold anything, comes the state.
    let state = stat
        .rsplit_once(") ")
        .and_then(|(_, rest)| rest.chars().next());
    state.is_some_and(|state| state != 'Z')
}

/// Ends the daemon of a folder. Whether one ran.
fn end(folder: &Path) -> Result<bool> {
    let Some(pid) = running(folder) else {
        return Ok(false);
    };
    let process = Pid::from_raw(pid).context("a process of no number")?;
    rustix::process::kill_process(process, Signal::TERM).context("ending the daemon")?;
    let deadline = Clock::now().after(END_PATIENCE);
    while is_alive(pid) {
        if deadline.left(Clock::now()).is_zero() {
            print::say(format!(
                "the daemon in {} did not end in {} s and was killed",
                folder.display(),
                END_PATIENCE.as_secs()
            ));
            // It may have ended in this moment.
            let _ = rustix::process::kill_process(process, Signal::KILL);
        }
        pause();
    }
    Ok(true)
}

fn admitted(args: &JoinArgs, folder: &Path, token: &str) -> Result<NodeIdentity> {
    let token: odeon::JoinToken = token.parse()?;
    let name = args
        .node
        .name
        .clone()
        .unwrap_or_else(odeon_cluster::daemon::host_name);
    if folder.join("node.pem").exists() {
        bail!(
            "{} belongs to a node that has joined already: start it again without --token, or take \
             another folder (--dir)",
            folder.display()
        );
    }
    let joining = odeon::admission::join(args.address, &token, &name);
    let (identity, _told) = runtime()?.block_on(joining)?;
    Ok(identity)
}

/// Is the daemon, until it is asked to end.
fn run(args: &NodeArgs, folder: &Path, entry: Entry, head: Option<&UpArgs>) -> Result<ExitCode> {
    let gib = args.artifacts_gib << 30;
    let config = DaemonConfig {
        folder: folder.to_owned(),
        name: args.name.clone(),
        listen: args.listen,
        advertise: args.advertise,
        entry,
        devices: None,
        limits: Limits::default(),
        rules: Rules::default(),
        artifacts: Footprint {
            piece_bytes: gib / 2,
            folder_bytes: gib / 2,
        },
        logs: LogLimits::default(),
    };
    runtime()?.block_on(async {
        let mut terminate = signal(SignalKind::terminate())?;
        let mut interrupt = signal(SignalKind::interrupt())?;
        let daemon = Arc::new(Daemon::start(config).await?);
        let server = match head {
            Some(args) => Some(serve(&daemon, args).await?),
            None => None,
        };
        daemon
            .folder()
            .write(PID_FILE, std::process::id().to_string().as_bytes(), 0o600)?;
        tracing::info!(node = daemon.name(), address = daemon.address(), "up");
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
        if let Some(server) = server {
            server.end().await;
        }
        let pid = daemon.folder().path().join(PID_FILE);
        match Arc::try_unwrap(daemon) {
            Ok(daemon) => daemon.shutdown().await,
            Err(_) => tracing::warn!("requests are under way, so the node leaves without a word"),
        }
        // It may have been removed by hand.
        let _ = fs::remove_file(pid);
        Ok(ExitCode::SUCCESS)
    })
}

/// Serves the API, and writes down how this machine's user reaches it.
async fn serve(daemon: &Arc<Daemon>, args: &UpArgs) -> Result<Server> {
    let folder = daemon.folder().path().to_owned();
    let audit = Audit::open(&folder).context("opening the audit log")?;
    let limiter = Limiter::new(args.api_rate);
    let api = Arc::new(Api::new(
        Arc::clone(daemon),
        audit,
        limiter,
        args.allow_host.clone(),
    ));
    let identity = NodeIdentity::load(&folder)?;
    let listen = args.api;
    let server = Server::begin(&ApiConfig { listen }, &identity, api.router()).await?;
    let key = match Connection::read(&folder.join(CONNECTION_FILE)) {
        Ok(known) => known.key,
        Err(_) => first_key(daemon).await?,
    };
    let authority = server
        .is_secured()
        .then(|| identity.authority_pem().to_owned());
    let connection = Connection {
        url: server.url(),
        key,
        authority,
    };
    let text = serde_json::to_vec_pretty(&connection)?;
    daemon.folder().write(CONNECTION_FILE, &text, 0o600)?;
    Ok(server)
}

/// The key of the user who has started the cluster.
async fn first_key(daemon: &Daemon) -> Result<String> {
    let (secret, id) = new_key();
    let fact = Fact::KeyMade {
        id,
        name: "owner".to_owned(),
        role: Role::Admin,
        by: "the daemon".to_owned(),
    };
    daemon.catalog().write_for(fact).await?;
    Ok(secret)
}
