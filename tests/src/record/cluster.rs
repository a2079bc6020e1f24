//! A cluster of three nodes with a job on all of them, one of which is killed.

use std::path::Path;
use std::process::{Command, Output};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use odeon::{Clock, Ref, System};

use super::{PATIENCE, odeon};

/// The argument with which this program is the job.
pub(crate) const LOAD: &str = "load";

/// A part of the work of a job.
pub(crate) struct Shard {
    done: u64,
}

#[odeon::actor(name = "shards.Shard")]
impl Shard {
    fn start(_args: ()) -> Self {
        Self { done: 0 }
    }

    #[handler]
    async fn crunch(&mut self) -> u64 {
        Clock::sleep(Duration::from_millis(25)).await;
        self.done += 1;
        self.done
    }
}

const NODES: [&str; 3] = ["node-1", "node-2", "node-3"];
const SHARDS: usize = 2;

/// The job: keeps shards on all nodes busy until it is stopped.
pub(crate) async fn load(system: System) -> Result<()> {
    let mut shards: Vec<(String, Ref<Shard>)> = vec![];
    for node in NODES {
        for number in 1..=SHARDS {
            let shard = system.spawn::<Shard>(()).on_node(node).isolated().await?;
            let name = format!("{node}/shard-{number}");
            system.register(&name, shard).await?;
            shards.push((name, shard));
        }
    }
    println!("{} shards on {} nodes", shards.len(), NODES.len());
    let mut lost = std::collections::BTreeSet::new();
    for _turn in 0_u64.. {
        for (name, shard) in &shards {
            if lost.contains(name) {
                continue;
            }
            let asked = shard.ask(Crunch).timeout(Duration::from_secs(2));
            if let Err(error) = asked.await {
                println!("{name} does not answer: {error}");
                lost.insert(name.clone());
            }
        }
    }
    Ok(())
}

/// The command, in a folder of its own.
struct Commands<'a> {
    folder: &'a Path,
}

impl Commands<'_> {
    fn command(&self, arguments: &[&str]) -> Result<Command> {
        let mut command = Command::new(odeon()?);
        command.current_dir(self.folder).args(arguments);
        command.args(["--dir", "head"]);
        Ok(command)
    }

    fn run(&self, arguments: &[&str]) -> Result<Output> {
        let output = self.command(arguments)?.output()?;
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        ensure!(output.status.success(), "odeon {arguments:?}: {said}");
        Ok(output)
    }
}

pub(crate) fn lost_node(scratch: &Path, into: &Path) -> Result<()> {
    let commands = Commands { folder: scratch };
    let up = [
        "up",
        "--nodes",
        "3",
        "--name",
        "node-1",
        "--api",
        "127.0.0.1:0",
    ];
    commands.run(&up)?;
    let recorded = with_cluster(&commands, into);
    // Whatever came of it, nothing stays behind.
    let down = commands.run(&["down"]);
    recorded.and(down.map(drop))
}

fn with_cluster(commands: &Commands<'_>, into: &Path) -> Result<()> {
    let own = std::env::current_exe()?;
    let own = own.to_str().context("a name that can be told")?;
    let draft = into.to_str().context("a name that can be told")?;
    let mut submit = Command::new(odeon()?);
    submit.current_dir(commands.folder);
    submit.args([
        "submit", "--dir", "head", "--name", "shards", "--node", NODES[0],
    ]);
    submit.args([own, "--", LOAD]);
    let submitted = submit.output()?;
    let said = String::from_utf8_lossy(&submitted.stderr).into_owned();
    ensure!(submitted.status.success(), "{said}");
    let runtime = tokio::runtime::Runtime::new()?;
    runtime.block_on(async {
        let running = async {
            while !printed(commands)?.contains("6 shards") {
                Clock::sleep(Duration::from_millis(200)).await;
            }
            Ok::<_, anyhow::Error>(())
        };
        Clock::timeout(PATIENCE, running)
            .await
            .context("the job runs in time")?
    })?;
    let mut recording = commands
        .command(&["record", draft, "--for", "48"])?
        .spawn()?;
    runtime.block_on(Clock::sleep(Duration::from_secs(7)));
    kill(commands)?;
    ensure!(recording.wait()?.success(), "it was not recorded");
    Ok(())
}

/// The lines that the job has printed.
fn printed(commands: &Commands<'_>) -> Result<String> {
    let printed = commands.run(&["logs", "j1"])?.stdout;
    Ok(String::from_utf8_lossy(&printed).into_owned())
}

/// Kills the daemon of the last node, as a machine without power would end.
fn kill(commands: &Commands<'_>) -> Result<()> {
    let path = commands.folder.join("head/nodes/node-3/daemon.pid");
    let pid = std::fs::read_to_string(&path).with_context(|| path.display().to_string())?;
    let pid =
        rustix::process::Pid::from_raw(pid.trim().parse()?).context("the number of a process")?;
    Ok(rustix::process::kill_process(
        pid,
        rustix::process::Signal::KILL,
    )?)
}
