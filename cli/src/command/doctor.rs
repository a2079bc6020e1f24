//! `odeon doctor`: what of this machine, or of all of a cluster, would be in the way of jobs, and what to change.

use std::process::ExitCode;

use anyhow::Result;
use odeon_client::default_folder;
use odeon_client::types::{CheckedCluster, CheckedNode, MachineCheck};
use odeon_cluster::doctor::{Check, MachineFacts, examine};
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
    if args.json {
        print::line(serde_json::to_string_pretty(&checked)?)?;
    } else {
        show(&checked, args.all)?;
    }
    let nodes = checked.nodes.iter();
    let checks = nodes.flat_map(|node| &node.checks).chain(&checked.together);
    let fails = checks.into_iter().any(|check| check.fitness == "bad")
        || checked.nodes.iter().any(|node| node.unreached.is_some());
    Ok(ExitCode::from(u8::from(fails)))
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
    let mut seen = |title: &str, checks: &[MachineCheck]| -> Result<()> {
        let mut rows = vec![];
        for check in checks {
            if check.fitness == "good" {
                passed += 1;
                if !all {
                    continue;
                }
            }
            let advice = check.advice.clone().unwrap_or_default();
            rows.push(vec![
                check.what.clone(),
                check.fitness.clone(),
                check.found.clone(),
                advice,
            ]);
        }
        if rows.is_empty() {
            return Ok(print::line(format!("{title}: nothing is in the way"))?);
        }
        print::line(format!("{title}:"))?;
        for row in rows {
            let [what, fitness, found, advice] = row.as_slice() else {
                continue;
            };
            print::line(format!("  {:<9} {what}: {found}", fitness))?;
            if !advice.is_empty() {
                print::line(format!("            {advice}"))?;
            }
        }
        Ok(())
    };
    for node in &checked.nodes {
        match &node.unreached {
            Some(why) => print::line(format!("{}: {why}", node.node))?,
            None => seen(&node.node, &node.checks)?,
        }
    }
    if !checked.together.is_empty() {
        seen("beside each other", &checked.together)?;
    }
    print::line(format!(
        "{passed} checks found nothing to change{}",
        match all {
            true => "",
            false => "; --all shows them",
        }
    ))?;
    Ok(())
}
