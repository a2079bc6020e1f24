//! The cluster itself: `odeon status`, `drain`, `node`, `upgrade`, `forget`, `token`, `key`, `namespace`.

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use odeon::Clock;
use odeon_client::types::{CheckedCluster, Namespace, Node, Status};
use odeon_client::{Client, ClientError, Majority};

use serde::Serialize;

use super::job::cluster;
use crate::args::{
    DrainArgs, ForgetArgs, KeyArgs, KeyCommand, NamespaceArgs, NamespaceCommand, NodeTrust,
    NodeTrustArgs, StatusArgs, TokenArgs, UpgradeArgs, VotersArgs,
};
use crate::print;

/// The exit code of a status without a majority.
const NO_MAJORITY: u8 = 3;
/// The time that an election may take.
const ELECTION_PATIENCE: Duration = Duration::from_secs(4);

pub(crate) fn status(args: &StatusArgs) -> Result<ExitCode> {
    let (client, runtime) = cluster(args.cluster.dir.as_ref())?;
    let status = runtime.block_on(settled(&client))?;
    if !status.majority {
        print::say(format!(
            "no majority of the voters ({}) works together: nothing is accepted until there is one, \
             and what is shown here may be old",
            status.voters.join(" ")
        ));
    }
    if args.json {
        print::line(serde_json::to_string_pretty(&status)?)?;
    } else {
        show(&status)?;
    }
    Ok(match status.majority {
        true => ExitCode::SUCCESS,
        false => ExitCode::from(NO_MAJORITY),
    })
}

/// The cluster at the moment, after an election if one is under way.
async fn settled(client: &Client) -> Result<Status> {
    let deadline = Clock::now().after(ELECTION_PATIENCE);
    loop {
        let status = client.status().await?;
        let is_settled = client.majority() != Majority::Unsettled;
        if status.majority || is_settled || deadline.left(Clock::now()).is_zero() {
            return Ok(status);
        }
        Clock::sleep(LOOK_PAUSE).await;
    }
}

/// The answer of a cluster, after an election if one is under way. It is said when that may be old.
pub(crate) async fn look<T>(
    client: &Client,
    ask: impl AsyncFn() -> Result<T, ClientError>,
) -> Result<T> {
    let deadline = Clock::now().after(ELECTION_PATIENCE);
    loop {
        let seen = ask().await?;
        match client.majority() {
            Majority::Works => return Ok(seen),
            Majority::Unsettled if !deadline.left(Clock::now()).is_zero() => {}
            _ => {
                print::say(format!(
                    "no majority of the voters ({}) works together: what is shown may be old",
                    client.status().await?.voters.join(" ")
                ));
                return Ok(seen);
            }
        }
        Clock::sleep(LOOK_PAUSE).await;
    }
}

fn show(status: &Status) -> Result<()> {
    let leader = status.leader.as_deref().unwrap_or("nobody");
    let wanted = match status.voters_wanted as usize {
        wanted if wanted > status.voters.len() => format!(" ({wanted} wanted)"),
        _ => String::new(),
    };
    print::line(format!(
        "leader {leader}, voters {}{wanted}, release {}",
        status.voters.join(" "),
        status.release
    ))?;
    let jobs: Vec<String> = status
        .jobs
        .iter()
        .map(|(state, n)| format!("{n} {state}"))
        .collect();
    print::line(match jobs.is_empty() {
        true => "no jobs yet".to_owned(),
        false => format!("jobs: {}", jobs.join(", ")),
    })?;
    let head = [
        "node", "state", "since", "drivers", "cpus", "memory", "devices", "address",
    ];
    let mut table = print::Table::new(head);
    let mut nodes: Vec<&Node> = status.nodes.iter().collect();
    nodes.sort_by_cached_key(|node| print::natural(&node.name));
    for node in &nodes {
        table.row([
            node.name.clone(),
            node.state.clone(),
            print::ago(status.now_ms.saturating_sub(node.since_ms)),
            node.drivers.to_string(),
            node.cpus.to_string(),
            format!("{} GiB", node.memory_bytes >> 30),
            match node.devices.first() {
                Some(model) => format!("{} x {model}", node.devices.len()),
                None => "-".to_owned(),
            },
            node.address.clone(),
        ]);
    }
    table.print()?;
    for node in nodes {
        if let Some(why) = &node.why {
            print::line(format!("{} {why}", node.name))?;
        }
        if let Some(why) = node.low_disk.as_ref().filter(|_| node.state != "left") {
            print::line(format!("{}: {why}", node.name))?;
        }
    }
    for unlimited in unlimited(&status.nodes, |_| true) {
        print::line(unlimited)?;
    }
    Ok(())
}

/// The nodes that do not hold jobs to what they have reserved, and why: one sentence for each reason.
pub(crate) fn unlimited(nodes: &[Node], of: impl Fn(&Node) -> bool) -> Vec<String> {
    let mut reasons: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    let up = |node: &&Node| ["up", "drained", "refused"].contains(&node.state.as_str());
    for node in nodes.iter().filter(up).filter(|node| of(node)) {
        if let Some(why) = &node.unlimited {
            reasons.entry(why).or_default().push(&node.name);
        }
    }
    let sentence = |(why, names): (&str, Vec<&str>)| {
        let names = names.join(", ");
        format!(
            "jobs are not held to the processors and memory that they reserve on {names}: {why}"
        )
    };
    reasons.into_iter().map(sentence).collect()
}

pub(crate) fn voters(args: &VotersArgs) -> Result<()> {
    let (client, runtime) = cluster(args.cluster.dir.as_ref())?;
    runtime.block_on(client.set_voters(args.count))?;
    print::say(match args.count {
        1 => "one node is to vote".to_owned(),
        n => format!("{n} nodes are to vote, as soon as there are as many: see odeon status"),
    });
    Ok(())
}

pub(crate) fn upgrade(args: &UpgradeArgs) -> Result<()> {
    let (client, runtime) = cluster(args.cluster.dir.as_ref())?;
    runtime.block_on(async {
        let status = client.status().await?;
        let names = match (args.all, args.nodes.is_empty()) {
            (true, _) => {
                let up = status.nodes.iter();
                let up =
                    up.filter(|node| ["up", "drained", "refused"].contains(&node.state.as_str()));
                // The one that answers comes last.
                let (own, others): (Vec<_>, Vec<_>) = up
                    .map(|node| node.name.clone())
                    .partition(|name| *name == status.node);
                [others, own].concat()
            }
            (false, true) => vec![status.node.clone()],
            (false, false) => args.nodes.clone(),
        };
        for name in names {
            let before = status.nodes.iter().find(|node| node.name == name);
            let before = before.map_or(0, |node| node.upgrades);
            let begun = Clock::now();
            let ordered = client.upgrade(&name).await;
            ordered.with_context(|| format!("{name} is not upgraded"))?;
            let node = upgraded(&client, &name, before).await?;
            print::say(format!(
                "{name} runs odeon {} now, and its {} on; it took {:.1?}",
                node.release,
                match node.drivers {
                    1 => "job goes".to_owned(),
                    n => format!("{n} jobs go"),
                },
                Clock::now().since(begun)
            ));
        }
        Ok(())
    })
}

/// Waits until a node says that it is another program.
async fn upgraded(client: &Client, name: &str, before: u32) -> Result<Node> {
    let deadline = Clock::now().after(UPGRADE_PATIENCE);
    loop {
        // It may be the one that answers.
        if let Ok(nodes) = client.nodes().await
            && let Some(node) = nodes.into_iter().find(|node| node.name == name)
            && node.upgrades > before
        {
            return Ok(node);
        }
        if deadline.left(Clock::now()).is_zero() {
            bail!(
                "{name} has not come back within {} s: see its daemon.log",
                UPGRADE_PATIENCE.as_secs()
            );
        }
        Clock::sleep(LOOK_PAUSE).await;
    }
}

/// The time that a node may take to be another program.
const UPGRADE_PATIENCE: Duration = Duration::from_secs(30);

pub(crate) fn drain(args: &DrainArgs) -> Result<ExitCode> {
    let (client, runtime) = cluster(args.cluster.dir.as_ref())?;
    runtime.block_on(client.drain(&args.node, !args.undo))?;
    print::say(match args.undo {
        true => format!("{} may get jobs again", args.node),
        false => format!("{} gets no new jobs; those that it runs go on", args.node),
    });
    if args.wait {
        runtime.block_on(emptied(&client, &args.node))?;
        print::say(format!("{} runs none any more", args.node));
    }
    Ok(ExitCode::SUCCESS)
}

pub(crate) fn node(args: &NodeTrustArgs) -> Result<ExitCode> {
    let (client, runtime) = cluster(args.cluster.dir.as_ref())?;
    let (name, refused, why) = match &args.command {
        NodeTrust::Check(args) if args.together => {
            return super::group_test::run(&client, &runtime, args);
        }
        NodeTrust::Check(args) => {
            let [node] = args.nodes.as_slice() else {
                bail!("one node is checked at a time: name one, or check several with --together");
            };
            let checked = CheckedCluster {
                nodes: vec![runtime.block_on(client.check(node))?],
                together: vec![],
            };
            return super::doctor::told(&checked, args.all, args.json);
        }
        NodeTrust::Refuse { node, why } => (node, true, why),
        NodeTrust::Allow { node, why } => (node, false, why),
    };
    runtime.block_on(client.refuse(name, refused, why))?;
    let open = runtime.block_on(client.nodes())?;
    let is_open = open.iter().any(|node| node.state == "up");
    print::say(match refused {
        true => format!(
            "nothing is placed on {name} any more; what runs there goes on (odeon node allow {name} lets it back)"
        ),
        false => format!("{name} may get work again"),
    });
    if !is_open {
        print::say("no node takes jobs now: those that come wait");
    }
    Ok(ExitCode::SUCCESS)
}

/// Waits until a node runs no driver.
async fn emptied(client: &Client, name: &str) -> Result<()> {
    loop {
        let nodes = client.nodes().await?;
        let node = nodes.iter().find(|node| node.name == name);
        if node.is_none_or(|node| node.drivers == 0) {
            return Ok(());
        }
        Clock::sleep(LOOK_PAUSE).await;
    }
}

/// The interval between looks at a node that is to become empty.
const LOOK_PAUSE: Duration = Duration::from_millis(500);

pub(crate) fn token(args: &TokenArgs) -> Result<()> {
    let (client, runtime) = cluster(args.cluster.dir.as_ref())?;
    let valid = Duration::from_secs(args.valid_minutes * 60);
    let token = runtime.block_on(client.token(args.uses, valid))?;
    if args.json {
        print::line(serde_json::to_string(&token)?)?;
        return Ok(());
    }
    print::line(format!(
        "odeon join {} --token {}",
        token.address, token.token
    ))?;
    Ok(())
}

pub(crate) fn key(args: &KeyArgs) -> Result<()> {
    let (client, runtime) = cluster(args.cluster.dir.as_ref())?;
    match &args.command {
        KeyCommand::Make { name, role } => {
            let key = runtime.block_on(client.make_key(name, role))?;
            print::say(format!(
                "the key of `{name}` ({role}), which is shown this once:"
            ));
            print::line(key.key.unwrap_or_default())?;
        }
        KeyCommand::Revoke { name } => {
            runtime.block_on(client.revoke_key(name))?;
            print::say(format!("the key of `{name}` is not good any more"));
        }
        KeyCommand::List { json } => {
            let keys = runtime.block_on(look(&client, || client.keys()))?;
            if *json {
                return each_as_json(&keys);
            }
            let mut table = print::Table::new(["key", "role", "since"]);
            for key in keys {
                let since = odeon_cluster::unix::Unix(key.since_ms).to_string();
                table.row([key.name, key.role, since]);
            }
            table.print()?;
        }
    }
    Ok(())
}

/// One JSON object for each.
fn each_as_json(rows: &[impl Serialize]) -> Result<()> {
    for row in rows {
        print::line(serde_json::to_string(row)?)?;
    }
    Ok(())
}

pub(crate) fn forget(args: &ForgetArgs) -> Result<()> {
    let (client, runtime) = cluster(args.cluster.dir.as_ref())?;
    runtime.block_on(client.forget(&args.node))?;
    print::say(format!("{} is forgotten", args.node));
    Ok(())
}

/// The bounds of a namespace, in words.
fn bounds_of(bounds: &Namespace) -> String {
    let counted = |count: String, what: &str| match count.as_str() {
        "1" => format!("1 {what}"),
        _ => format!("{count} {what}s"),
    };
    let milli = |milli: u64, what| counted((milli as f64 / 1000.0).to_string(), what);
    let words: Vec<String> = [
        bounds
            .running_max
            .map(|most| counted(most.to_string(), "job")),
        bounds.gpu_milli.map(|most| milli(most, "gpu")),
        bounds.cpu_milli.map(|most| milli(most, "cpu")),
        bounds
            .memory_bytes
            .map(|most| format!("{} GiB", most >> 30)),
    ]
    .into_iter()
    .flatten()
    .collect();
    match words.as_slice() {
        [] => "-".to_owned(),
        words => words.join(", "),
    }
}

pub(crate) fn namespace(args: &NamespaceArgs) -> Result<()> {
    let (client, runtime) = cluster(args.cluster.dir.as_ref())?;
    let set = |name: &str, bounds| runtime.block_on(client.set_namespace(name, bounds));
    match &args.command {
        NamespaceCommand::Ls { json } => {
            let namespaces = runtime.block_on(look(&client, || client.namespaces()))?;
            if *json {
                return each_as_json(&namespaces);
            }
            let mut table = print::Table::new(["namespace", "running", "waiting", "at most"]);
            for it in namespaces {
                table.row([
                    it.name,
                    it.running.to_string(),
                    it.waiting.to_string(),
                    bounds_of(&it.bounds),
                ]);
            }
            table.print()?;
        }
        NamespaceCommand::Set { name, bounds } => {
            let milli = |what: &str, number: Option<f64>| {
                let milli = number.map(odeon_placement::milli).transpose();
                milli.with_context(|| format!("--{what}"))
            };
            let bounds = Namespace {
                running_max: bounds.running_max,
                gpu_milli: milli("gpus", bounds.gpus)?,
                cpu_milli: milli("cpus", bounds.cpus)?,
                memory_bytes: bounds.memory_gib.map(odeon::gib),
            };
            set(name, bounds)?;
            print::say(format!("{name} may have {}", bounds_of(&bounds)));
        }
        NamespaceCommand::Rm { name } => {
            let known = runtime.block_on(client.namespaces())?;
            if !known.iter().any(|it| it.name == *name) {
                bail!("there is no namespace `{name}` with bounds or jobs: see odeon namespace ls");
            }
            set(name, Namespace::default())?;
            print::say(format!("{name} has no bounds any more"));
        }
    }
    Ok(())
}
