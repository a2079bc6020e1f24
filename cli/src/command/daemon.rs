//! `odeon up` and `odeon join`: a node of a cluster on this machine, in the background unless told
//! otherwise.

mod process;

use std::fs::{self, OpenOptions};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, ToSocketAddrs};
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use odeon::{Clock, Limits, NodeIdentity, WorkerCommand};
use odeon_artifacts::Footprint;
use odeon_client::{CONNECTION_FILE, Client, Connection, default_folder};
use odeon_cluster::access::{KeyRole, check_name};
use odeon_cluster::catalog::WriteError;
use odeon_cluster::controller::Rules;
use odeon_cluster::fact::Fact;
use odeon_cluster::folder::{Folder, Leavings};
use odeon_cluster::logs::LogLimits;
use odeon_cluster::tables::{NodeRow, owner_key};
use odeon_cluster::{Daemon, DaemonConfig, FolderError, NodeEntry, OnDemand};
use odeon_otel::{Counting, Exporter, Settings};
use tokio::signal::unix::{SignalKind, signal};

use self::process::{PID_FILE, await_end, note_grace, running, tell_to_end};
use super::{export, upgrade};
use crate::api::{Api, ApiConfig, Audit, Limiter, Server, new_key, open_door};
use crate::args::{DownArgs, JoinArgs, NodeArgs, UpArgs};
use crate::heap;
use crate::print;
use crate::self_check;
use crate::waiter::Waiter;

/// The log file of a daemon that runs in the background.
const LOG_FILE: &str = "daemon.log";
/// The folder of the other nodes that `--nodes` starts on this machine.
const NODES_FOLDER: &str = "nodes";
/// The variable with a join token.
const TOKEN_VARIABLE: &str = "ODEON_TOKEN";
/// Where the API listens when nobody says so.
const USUAL_API: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 7433);
/// Daemons that are started at the same time: a head takes in so many strangers of one machine.
const STARTS: usize = 16;
/// The validity of the token of a node that is started at once.
const TOKEN_TIME: Duration = Duration::from_secs(300);
/// The interval at which the connection's file is looked after.
const CONNECTION_PAUSE: Duration = Duration::from_secs(1);
/// The time that a daemon may take to be ready.
const READY_PATIENCE: Duration = Duration::from_secs(30);
/// The time that one that was killed may take to be gone.
const KILLED_PATIENCE: Duration = Duration::from_millis(500);
/// The interval between looks at its state.
const LOOK_PAUSE: Duration = Duration::from_millis(20);

pub(crate) fn up(args: &UpArgs) -> Result<ExitCode> {
    check_own_name(&args.node)?;
    Settings::read(args.node.otlp.as_deref())?;
    let folder = folder_of(args.node.dir.as_ref())?;
    if args.foreground {
        return run(
            &args.node,
            &folder,
            NodeEntry::Found,
            args.voters,
            args.alone,
        );
    }
    let mut own: Vec<String> = vec!["up".to_owned(), "--foreground".to_owned()];
    own.extend(args.voters.map(|count| format!("--voters={count}")));
    own.extend(args.alone.then(|| "--alone".to_owned()));
    own.extend(passed_on(&args.node, &folder));
    let runtime = Waiter::with_threads()?;
    let runs = running(&folder).is_some() && args.nodes > 1;
    if !runs {
        Starting::begin(&folder, &own, None)?.ready()?;
    }
    let connection = Connection::read(&folder.join(CONNECTION_FILE))?;
    let how = if runs { "runs already" } else { "up" };
    print::say(format!(
        "node {how}, API at {}; `odeon ui` shows it",
        connection.url
    ));
    let client = Client::new(connection)?;
    let numbers = 2..=args.nodes;
    let (known, new): (Vec<_>, Vec<_>) =
        numbers.partition(|number| is_member(&node_folder(&folder, *number)));
    // Those that are there already need nobody's leave, and may be needed to ask for it.
    if !known.is_empty() {
        let status = runtime.block_on(client.status())?;
        let mut nodes = status.nodes.into_iter();
        let head = nodes.find(|it| it.name == status.node);
        let head = head.context("the head is no node of its cluster")?;
        start_nodes(args, &folder, &known, &head.address, None)?;
    }
    if !new.is_empty() {
        let token = runtime.block_on(client.token(new.len() as u32, TOKEN_TIME))?;
        start_nodes(args, &folder, &new, &token.address, Some(&token.token))?;
    }
    if let Some(count) = args.voters {
        runtime.block_on(elected(&client, count, usize::from(args.nodes)))?;
    }
    print::say("look: odeon status    run a program: odeon submit PROGRAM    end: odeon down");
    Ok(ExitCode::SUCCESS)
}

pub(crate) fn join(args: &JoinArgs) -> Result<ExitCode> {
    check_own_name(&args.node)?;
    Settings::read(args.node.otlp.as_deref())?;
    let folder = folder_of(args.node.dir.as_ref())?;
    let token = args
        .token
        .clone()
        .or_else(|| std::env::var(TOKEN_VARIABLE).ok());
    // What is wrong with the command line is told before anything is started.
    let through = resolve(&args.address)?;
    let was_member = is_member(&folder);
    if !was_member {
        let given = token.as_deref().with_context(|| {
            format!(
                "{} is not yet the folder of a node, so a token is needed (--token TOKEN); {JOINING}",
                folder.display()
            )
        })?;
        given.parse::<odeon::JoinToken>()?;
    }
    if args.foreground {
        let identity = match token {
            Some(_) if was_member => {
                tracing::info!("the node has joined already, so its token is not used");
                None
            }
            Some(token) => Some(admitted(args, through, &token)?),
            None => None,
        };
        let entry = NodeEntry::Join { through, identity };
        return run(&args.node, &folder, entry, None, false);
    }
    let mut own = vec!["join".to_owned(), args.address.clone()];
    own.push("--foreground".to_owned());
    own.extend(passed_on(&args.node, &folder));
    Starting::begin(&folder, &own, token.as_deref())?.ready()?;
    let connection = Connection::read(&folder.join(CONNECTION_FILE))?;
    print::say(match was_member {
        true => format!("back in its cluster, API at {}", connection.url),
        false => format!(
            "joined the cluster of {}, API at {}",
            args.address, connection.url
        ),
    });
    Ok(ExitCode::SUCCESS)
}

/// Checks that a node may have the name that it is given.
fn check_own_name(args: &NodeArgs) -> Result<()> {
    let Some(name) = &args.name else {
        return Ok(());
    };
    // It is shown as it would be read.
    let plain: String = name.chars().flat_map(char::escape_debug).collect();
    check_name("node", name).map_err(|_| {
        anyhow!("`{plain}` is no name for a node: it has letters, digits, `-`, `_` and `.`, 100 bytes at most, and not dots alone")
    })
}

/// Where the words to join with come from.
const JOINING: &str =
    "`odeon token`, on a node of the cluster, prints the whole command to join with";

/// Where a node is, by the name or address of its host and its port.
fn resolve(address: &str) -> Result<SocketAddr> {
    // An address of IPv6 has colons of its own.
    let is_without_port = address.parse::<IpAddr>().is_ok() || address.ends_with(']');
    let parts = address.rsplit_once(':').filter(|_| !is_without_port);
    let Some((host, port)) = parts.filter(|(host, _)| !host.is_empty()) else {
        bail!("`{address}` is not HOST:PORT, as in 10.0.0.1:7432 or [fd00::1]:7432; {JOINING}");
    };
    if port.parse::<u16>().is_ok_and(|port| port > 0) {
        let found = address.to_socket_addrs().map_err(|error| {
            anyhow!(
                "`{address}`: this machine finds no host `{host}` ({error}): correct the name or give \
                 an IP address; {JOINING}"
            )
        })?;
        let (four, six): (Vec<_>, Vec<_>) = found.partition(SocketAddr::is_ipv4);
        let first = four.into_iter().chain(six).next();
        return first.with_context(|| format!("`{address}`: the host `{host}` has no address"));
    }
    bail!("`{address}`: `{port}` is no port, which is a number from 1 to 65535; {JOINING}")
}

/// Starts other nodes of this machine, several at the same time.
fn start_nodes(
    args: &UpArgs,
    folder: &Path,
    numbers: &[u16],
    head: &str,
    token: Option<&str>,
) -> Result<()> {
    for numbers in numbers.chunks(STARTS) {
        start_some(args, folder, numbers, head, token)?;
    }
    Ok(())
}

fn start_some(
    args: &UpArgs,
    folder: &Path,
    numbers: &[u16],
    head: &str,
    token: Option<&str>,
) -> Result<()> {
    let mut starting = vec![];
    for number in numbers {
        let (name, node) = (format!("node-{number}"), node_folder(folder, *number));
        if running(&node).is_some() {
            print::say(format!("{name} runs already"));
            continue;
        }
        let mut own = vec![
            "join".to_owned(),
            head.to_owned(),
            "--foreground".to_owned(),
        ];
        let args = NodeArgs {
            name: Some(name.clone()),
            listen: SocketAddr::new(args.node.listen.ip(), 0),
            advertise: args.node.advertise.map(|it| SocketAddr::new(it.ip(), 0)),
            api: args.node.api.map(|it| SocketAddr::new(it.ip(), 0)),
            ..args.node.clone()
        };
        own.extend(passed_on(&args, &node));
        starting.push((name, Starting::begin(&node, &own, token)?));
    }
    for (name, starting) in starting {
        starting.ready()?;
        print::say(format!("{name} up"));
    }
    Ok(())
}

/// The folder of another node of this machine.
fn node_folder(folder: &Path, number: u16) -> PathBuf {
    folder.join(NODES_FOLDER).join(format!("node-{number}"))
}

/// Returns true if a folder is that of a node which has joined.
fn is_member(folder: &Path) -> bool {
    folder.join("node.pem").exists()
}

/// Waits until as many nodes vote as shall, and can. The leader may hear a moment later than this
/// command that one of the `started` nodes runs: until it has, that node is waited for, too.
async fn elected(client: &Client, count: u32, started: usize) -> Result<()> {
    if client.status().await?.voters_wanted != count {
        client.set_voters(count).await?;
    }
    let deadline = Clock::now().after(READY_PATIENCE);
    loop {
        let status = client.status().await?;
        let are = |state: &str| {
            status
                .nodes
                .iter()
                .filter(|node| node.state == state)
                .count()
        };
        let (up, closed) = (are("up"), are("drained") + are("refused"));
        let most = status.voters_wanted.min(up as u32);
        // An even number of nodes seats one less.
        let seated = status.voters.len() as u32 >= most.saturating_sub((most + 1) % 2);
        if up + closed >= started && seated {
            print::say(format!("voters: {}", status.voters.join(" ")));
            if most < status.voters_wanted {
                print::say(format!(
                    "{} are wanted: more nodes vote as soon as they have joined",
                    status.voters_wanted
                ));
            }
            return Ok(());
        }
        if deadline.left(Clock::now()).is_zero() {
            bail!(
                "after {} s, {up} nodes are up of {started} that were started, and {} vote: see \
                 {LOG_FILE} of the others",
                READY_PATIENCE.as_secs(),
                status.voters.join(" ")
            );
        }
        Clock::sleep(LOOK_PAUSE).await;
    }
}

pub(crate) fn down(args: &DownArgs) -> Result<ExitCode> {
    let folder = folder_of(args.dir.as_ref())?;
    let nodes = folder.join(NODES_FOLDER);
    let mut folders: Vec<PathBuf> = match fs::read_dir(&nodes) {
        Ok(entries) => entries
            .filter_map(|entry| Some(entry.ok()?.path()))
            .collect(),
        Err(_) => vec![],
    };
    folders.sort();
    folders.push(folder.clone());
    // All are told first, so that they end at the same time.
    let mut ending = vec![];
    for folder in &folders {
        if let Some(pid) = tell_to_end(folder)? {
            ending.push((folder, pid));
        }
    }
    for (folder, pid) in &ending {
        await_end(folder, *pid);
    }
    let members = folders.iter().filter(|folder| is_member(folder));
    let mut cleared = false;
    for folder in members {
        cleared |= clear(folder)?;
    }
    match ending.len() {
        0 if !cleared => bail!("no daemon runs in {}", folder.display()),
        0 => {}
        1 => print::say("node down"),
        n => print::say(format!("{n} nodes down")),
    }
    Ok(ExitCode::SUCCESS)
}

/// Ends and takes away what a killed daemon has left in its folder, and says so. Returns false if that is nothing.
fn clear(folder: &Path) -> Result<bool> {
    // One that was killed holds its folder for a moment still.
    let deadline = Clock::now().after(KILLED_PATIENCE);
    let taken = loop {
        match Folder::take(folder) {
            Err(FolderError::InUse(_)) if !deadline.left(Clock::now()).is_zero() => pause(),
            // Another one has been started since.
            Err(FolderError::InUse(_)) => return Ok(false),
            taken => break taken?,
        }
    };
    let left = Waiter::alone()?.block_on(taken.clear())?;
    if left == Leavings::default() {
        return Ok(false);
    }
    print::say(format!(
        "cleared {}, where a daemon was killed: {} of its drivers ended, {} mounts taken away",
        folder.display(),
        left.drivers,
        left.mounts
    ));
    Ok(true)
}

/// The folder of a daemon, wherever its jobs work.
fn folder_of(given: Option<&PathBuf>) -> Result<PathBuf> {
    let folder = given.cloned().unwrap_or_else(default_folder);
    std::path::absolute(&folder).with_context(|| format!("finding {}", folder.display()))
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
    own.extend(["--disk-alarm".to_owned(), args.disk_alarm.to_string()]);
    own.extend([
        "--on-demand-above-mib".to_owned(),
        args.on_demand_above_mib.to_string(),
    ]);
    if let Some(api) = &args.api {
        own.extend(["--api".to_owned(), api.to_string()]);
    }
    for host in &args.allow_host {
        own.extend(["--allow-host".to_owned(), host.clone()]);
    }
    if args.allow_actions {
        own.push("--allow-actions".to_owned());
    }
    own.extend(["--api-rate".to_owned(), args.api_rate.to_string()]);
    if let Some(url) = &args.otlp {
        own.extend(["--otlp".to_owned(), url.clone()]);
    }
    own
}

/// A daemon in the background that is not ready yet.
#[derive(Debug)]
struct Starting {
    folder: PathBuf,
    child: Child,
    /// Where its own lines begin in the log.
    log_from: u64,
    /// The folders that were made for it, the outermost first.
    made: Vec<PathBuf>,
}

impl Starting {
    /// Starts this program again. Its token is not among its arguments, which others can see.
    fn begin(folder: &Path, args: &[String], token: Option<&str>) -> Result<Self> {
        let deadline = Clock::now().after(KILLED_PATIENCE);
        while let Some(pid) = running(folder) {
            if deadline.left(Clock::now()).is_zero() {
                bail!(
                    "a daemon runs in {} already (process {pid}): see odeon status, or end it with odeon down",
                    folder.display()
                );
            }
            pause();
        }
        let missing = folder.ancestors().take_while(|it| !it.exists());
        let mut made: Vec<PathBuf> = missing.map(Path::to_owned).collect();
        made.reverse();
        fs::create_dir_all(folder).with_context(|| format!("making {}", folder.display()))?;
        // Written when it is ready, so an old one must not be taken for that.
        let _ = fs::remove_file(folder.join(PID_FILE));
        let log = OpenOptions::new()
            .create(true)
            .append(true)
            .mode(0o600)
            .open(folder.join(LOG_FILE))?;
        let log_from = log.metadata()?.len();
        let program = std::env::current_exe().context("finding this program")?;
        let child = Command::new(program)
            .args(args)
            .env_remove(TOKEN_VARIABLE)
            .envs(token.map(|token| (TOKEN_VARIABLE, token)))
            .envs(MEMORY)
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .process_group(0)
            .spawn()
            .context("starting the daemon")?;
        Ok(Self {
            folder: folder.to_owned(),
            child,
            log_from,
            made,
        })
    }

    /// Waits until it is ready.
    fn ready(mut self) -> Result<()> {
        let deadline = Clock::now().after(READY_PATIENCE);
        loop {
            if self.folder.join(PID_FILE).exists() {
                return Ok(());
            }
            if let Some(status) = self.child.try_wait()? {
                let said = said(&self.folder, self.log_from);
                self.leave_nothing();
                bail!("the daemon did not start ({status}): {said}");
            }
            if deadline.left(Clock::now()).is_zero() {
                // It is of no use any more.
                let _ = self.child.kill();
                let _ = self.child.wait();
                let said = said(&self.folder, self.log_from);
                self.leave_nothing();
                bail!(
                    "the daemon was not ready within {} s: {said}",
                    READY_PATIENCE.as_secs(),
                );
            }
            pause();
        }
    }

    /// Removes the folder of a daemon that was never up, if it was made for it.
    fn leave_nothing(&self) {
        let Some(folder) = self.made.last() else {
            return;
        };
        // What stays is no more than a folder that the next one takes.
        let _ = fs::remove_dir_all(folder);
        for outer in self.made.iter().rev().skip(1) {
            // Another node may have its folder there.
            let _ = fs::remove_dir(outer);
        }
    }
}

/// Settings by which glibc gives memory back that nobody uses: otherwise each thread that ever read a
/// file keeps some, and a daemon that had 5 MiB has 100 after a few large uploads.
const MEMORY: [(&str, &str); 3] = [
    ("MALLOC_ARENA_MAX", "2"),
    ("MALLOC_MMAP_THRESHOLD_", "131072"),
    ("MALLOC_TRIM_THRESHOLD_", "131072"),
];

/// Waits a moment, since nothing tells when the state of a daemon changes.
fn pause() {
    std::thread::park_timeout(LOOK_PAUSE);
}

/// The last lines that a daemon has logged from this byte on.
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

fn admitted(args: &JoinArgs, through: SocketAddr, token: &str) -> Result<NodeIdentity> {
    let token: odeon::JoinToken = token.parse()?;
    let name = args.node.name.clone();
    let name = name.unwrap_or_else(odeon_cluster::daemon::host_name);
    let joining = odeon::admission::join(through, &token, &name);
    let (identity, _told) = Waiter::with_threads()?.block_on(joining)?;
    Ok(identity)
}

/// Is the daemon, until it is asked to end.
fn run(
    args: &NodeArgs,
    folder: &Path,
    entry: NodeEntry,
    voters: Option<u32>,
    alone: bool,
) -> Result<ExitCode> {
    let program = std::env::current_exe().context("finding this program")?;
    let heritage = upgrade::taken_over()?;
    let (heritage, api) = heritage.unzip();
    let goes_on = heritage.is_some();
    let args = &NodeArgs {
        // Where the program before this one has listened.
        api: api.or(args.api),
        ..args.clone()
    };
    let gib = args.artifacts_gib << 30;
    let config = DaemonConfig {
        folder: folder.to_owned(),
        name: args.name.clone(),
        listen: args.listen,
        advertise: args.advertise,
        entry,
        // What the command line asked for is done.
        alone: alone && heritage.is_none(),
        devices: None,
        limits: Limits::default(),
        rules: Rules::default(),
        artifacts: Footprint {
            piece_bytes: gib / 2,
            folder_bytes: gib / 2,
        },
        on_demand: OnDemand {
            above_bytes: args.on_demand_above_mib.saturating_mul(1 << 20),
            ..OnDemand::default()
        },
        logs: LogLimits::default(),
        disk_alarm: args.disk_alarm,
        heritage,
    };
    Waiter::with_threads()?.block_on(async {
        let mut terminate = signal(SignalKind::terminate())?;
        let mut interrupt = signal(SignalKind::interrupt())?;
        let daemon = Arc::new(Daemon::start(config).await?);
        let mut exporter = export::begin(&daemon, args.otlp.as_deref())?;
        let counting = exporter.as_ref().map(Exporter::counting);
        let (server, api, connection) = serve(&daemon, args, counting).await?;
        if let Some(count) = voters.filter(|_| !goes_on) {
            want_voters(&daemon, count).await?;
        }
        let keeping = tokio::spawn(keep_connection(Arc::clone(&daemon), api, connection));
        // To the end of this process, however that comes.
        tokio::spawn(heap::keep_trimmed());
        let checking = tokio::spawn(self_check::check_left_nodes(Arc::clone(&daemon)));
        daemon
            .folder()
            .write(PID_FILE, std::process::id().to_string().as_bytes(), 0o600)?;
        tracing::info!(node = daemon.name(), address = daemon.address(), "up");
        loop {
            let order = tokio::select! {
                _ = terminate.recv() => break,
                _ = interrupt.recv() => break,
                order = daemon.upgrade_ordered() => order,
            };
            match daemon.prepare_upgrade(&program).await {
                Ok(ready) => {
                    order.answer(Ok(()));
                    keeping.abort();
                    checking.abort();
                    if let Some(exporter) = exporter.take() {
                        exporter.end().await;
                    }
                    let api = server.address();
                    server.end().await;
                    return Err(upgrade::become_next(&daemon, ready, &program, api).await);
                }
                Err(error) => {
                    tracing::warn!(%error, "the node is not upgraded");
                    order.answer(Err(&error));
                }
            }
        }
        keeping.abort();
        checking.abort();
        note_grace(&daemon)?;
        // Whoever waits for a job hears of its end while the node ends it.
        daemon.end_jobs().await;
        if let Some(exporter) = exporter {
            exporter.end().await;
        }
        server.end().await;
        daemon.end().await;
        process::forget(daemon.folder().path());
        Ok(ExitCode::SUCCESS)
    })
}

/// Has so many nodes vote, unless that is so.
async fn want_voters(daemon: &Daemon, count: u32) -> Result<()> {
    let wanted = daemon.catalog().read(|tables| tables.voters_wanted);
    if wanted == Some(count) {
        return Ok(());
    }
    let by = "odeon up".to_owned();
    daemon
        .catalog()
        .write_for(Fact::VotersSet { count, by })
        .await?;
    Ok(())
}

/// Serves the API, and writes down how this machine's user reaches it.
async fn serve(
    daemon: &Arc<Daemon>,
    args: &NodeArgs,
    counting: Option<Counting>,
) -> Result<(Server, Arc<Api>, Connection)> {
    let folder = daemon.folder().path().to_owned();
    let audit = Audit::open(&folder).context("opening the audit log")?;
    let limiter = Limiter::new(args.api_rate);
    let api = Arc::new(Api::new(
        Arc::clone(daemon),
        audit,
        limiter,
        args.allow_host.clone(),
        args.allow_actions,
        counting,
    ));
    let identity = NodeIdentity::load(&folder)?;
    let router = Arc::clone(&api).router();
    open_door(daemon, router.clone()).await?;
    self_check::open(daemon).await?;
    // As it is now, whatever lies at its place later.
    daemon.serve_daemons(WorkerCommand::new(format!(
        "/proc/{}/exe",
        std::process::id()
    )));
    let server = match args.api {
        Some(listen) => Server::begin(&ApiConfig { listen }, &identity, router).await?,
        None => {
            let usual = ApiConfig { listen: USUAL_API };
            match Server::begin(&usual, &identity, router.clone()).await {
                Ok(server) => server,
                Err(_) => {
                    let listen = SocketAddr::new(USUAL_API.ip(), 0);
                    Server::begin(&ApiConfig { listen }, &identity, router).await?
                }
            }
        }
    };
    let key = match Connection::read(&folder.join(CONNECTION_FILE)) {
        Ok(known) => known.key,
        Err(_) => first_key(daemon).await?,
    };
    let authority = server
        .is_secured()
        .then(|| identity.authority_pem().to_owned());
    // One that listens on all addresses is reached by the node's own.
    let mut reached = server.address();
    if reached.ip().is_unspecified() {
        let node: SocketAddr = daemon.address().parse()?;
        reached.set_ip(node.ip());
    }
    let url = server.url(reached);
    let connection = Connection {
        url: url.clone(),
        key,
        authority,
        others: vec![],
    };
    note_connection(daemon, &connection)?;
    daemon.set_api(url);
    Ok((server, api, connection))
}

fn note_connection(daemon: &Daemon, connection: &Connection) -> Result<()> {
    let text = serde_json::to_vec_pretty(connection)?;
    daemon.folder().write(CONNECTION_FILE, &text, 0o600)?;
    Ok(())
}

/// Keeps what is written down about the API of this machine true: who else answers, when this node
/// does not.
async fn keep_connection(daemon: Arc<Daemon>, api: Arc<Api>, mut connection: Connection) {
    loop {
        Clock::sleep(CONNECTION_PAUSE).await;
        // Since when nobody leads is known only to whoever looks.
        api.majority();
        let others = others(&daemon.catalog().nodes(), daemon.name());
        if others.is_empty() || others == connection.others {
            continue;
        }
        connection.others = others;
        if let Err(error) = note_connection(&daemon, &connection) {
            tracing::warn!(%error, "{CONNECTION_FILE} is not what it should be");
        }
    }
}

/// The APIs of other nodes that can be reached from this one.
fn others(nodes: &[NodeRow], own: &str) -> Vec<String> {
    let host = |row: &NodeRow| row.spec.address.parse().map(|it: SocketAddr| it.ip()).ok();
    let here = nodes.iter().find(|row| row.spec.name == own).and_then(host);
    let others = nodes.iter().filter(|row| row.spec.name != own);
    let mut urls: Vec<String> = others
        .filter_map(|row| {
            let url = row.spec.api.clone()?;
            // One that listens on its machine alone is no use from another.
            let is_secured = url.starts_with("https:");
            (is_secured || host(row) == here).then_some(url)
        })
        .collect();
    urls.sort();
    urls
}

/// The key of the user who has started this node.
async fn first_key(daemon: &Daemon) -> Result<String> {
    let (secret, id) = new_key();
    let name = match daemon.has_founded() {
        true => "owner".to_owned(),
        false => owner_key(daemon.name()),
    };
    let by = "the daemon".to_owned();
    let revoked = Fact::KeyRevoked {
        name: name.clone(),
        by: by.clone(),
    };
    match daemon.catalog().write_for(revoked).await {
        Ok(_) => print::say("the key of this folder's owner was lost, and is a new one"),
        Err(WriteError::Refused(_)) => {}
        Err(error) => return Err(error.into()),
    }
    let role = KeyRole::Admin;
    let made = Fact::KeyMade { id, name, role, by };
    daemon.catalog().write_for(made).await?;
    Ok(secret)
}
