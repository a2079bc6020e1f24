//! `odeon doctor`: what of this machine, or of all of a cluster, would be in the way of jobs, and what to change.

use std::process::ExitCode;

use anyhow::Result;
use odeon_client::default_folder;
use odeon_client::types::{CheckedCluster, CheckedNode, MachineCheck};
use odeon_cluster::doctor::{Check, Fitness, MachineFacts, examine};
use odeon_gpu::cuda::Nvrtc;
use odeon_gpu::cuda::nccl::NcclLibrary;

use super::job::cluster;
use crate::api;
use crate::args::DoctorArgs;
use crate::print;

pub(crate) fn run(args: &DoctorArgs) -> Result<ExitCode> {
    let checked = if args.cluster {
        let (client, runtime) = cluster(args.dir.as_ref())?;
        runtime.block_on(client.machines())?
    } else {
        this_machine(args)
    };
    told(&checked, args.all, args.json)
}

/// Shows what was found, as JSON or for people, and gives the exit code for it.
pub(super) fn told(checked: &CheckedCluster, all: bool, json: bool) -> Result<ExitCode> {
    match json {
        true => print::line(serde_json::to_string_pretty(checked)?)?,
        false => show(checked, all)?,
    }
    Ok(code(checked))
}

fn code(checked: &CheckedCluster) -> ExitCode {
    let nodes = checked.nodes.iter();
    let checks = nodes.flat_map(|node| &node.checks).chain(&checked.together);
    let fails = checks
        .into_iter()
        .any(|check| check.fitness == Fitness::Bad.word())
        || checked.nodes.iter().any(|node| node.unreached.is_some());
    ExitCode::from(u8::from(fails))
}

fn this_machine(args: &DoctorArgs) -> CheckedCluster {
    let folder = args.dir.clone().unwrap_or_else(default_folder);
    let facts = MachineFacts::read(&folder);
    let mut checks = examine(&facts);
    if facts
        .devices
        .as_ref()
        .is_ok_and(|devices| !devices.is_empty())
    {
        checks.extend(libraries());
    }
    CheckedCluster {
        nodes: vec![CheckedNode {
            node: "this machine".to_owned(),
            checks: checks.into_iter().map(api::dto::check).collect(),
            unreached: None,
            let_back: false,
        }],
        together: vec![],
    }
}

/// The libraries of NVIDIA's that computing on its cards takes.
fn libraries() -> [Check; 2] {
    const ADVICE: &str = "install the CUDA toolkit or the wheel of that name";
    let compiler = match Nvrtc::load() {
        Ok(nvrtc) => {
            let (major, minor) = nvrtc.version();
            Check::good("NVRTC", format!("version {major}.{minor}"))
        }
        Err(error) => Check::bad("NVRTC", error.to_string(), ADVICE),
    };
    let collectives = match NcclLibrary::load() {
        Ok(_) => Check::good("NCCL", "it can be loaded"),
        // Without it numbers of cards go over the host.
        Err(error) => Check::doubtful("NCCL", error.to_string(), ADVICE),
    };
    [compiler, collectives]
}

fn show(checked: &CheckedCluster, all: bool) -> Result<()> {
    let mut passed = 0;
    for node in &checked.nodes {
        match &node.unreached {
            Some(why) => print::line(format!("{}: {why}", node.node))?,
            None => passed += show_checks(&node.node, &node.checks, all)?,
        }
        if node.let_back {
            let name = &node.node;
            print::line(format!("{name} was refused, and may get work again"))?;
        }
    }
    if !checked.together.is_empty() {
        passed += show_checks("beside each other", &checked.together, all)?;
    }
    if passed == 0 {
        return Ok(());
    }
    let checks = match passed {
        1 => "1 check".to_owned(),
        passed => format!("{passed} checks"),
    };
    let more = if all { "" } else { "; --all shows them" };
    Ok(print::line(format!(
        "{checks} found nothing to change{more}"
    ))?)
}

/// Shows the checks below a title, and returns how many found nothing to change.
fn show_checks(title: &str, checks: &[MachineCheck], all: bool) -> Result<usize> {
    let is_good = |check: &&MachineCheck| check.fitness == Fitness::Good.word();
    let passed = checks.iter().filter(is_good).count();
    if passed == checks.len() && !all {
        print::line(format!("{title}: nothing is in the way"))?;
        return Ok(passed);
    }
    print::line(format!("{title}:"))?;
    for check in checks.iter().filter(|check| all || !is_good(check)) {
        let (fitness, what) = (&check.fitness, &check.what);
        print::line(format!("  {fitness:<9} {what}: {}", check.found))?;
        if let Some(advice) = &check.advice {
            print::line(format!("            {advice}"))?;
        }
    }
    Ok(passed)
}
