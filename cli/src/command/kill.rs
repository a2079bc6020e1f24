//! `odeon kill`: SIGKILL to one process of a run.

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal, kill_process};

use crate::args::KillArgs;
use crate::print;

pub(crate) fn run(args: &KillArgs) -> Result<()> {
    let rows = super::ps::read(&args.run)?;
    let Some((_, pid)) = rows.iter().find(|(role, _)| *role == args.role) else {
        let roles: Vec<&str> = rows.iter().map(|(role, _)| role.as_str()).collect();
        bail!(
            "no role `{}` in {}; there are: {}",
            args.role,
            args.run.display(),
            roles.join(", ")
        );
    };
    let target = Pid::from_raw(*pid).context("the file of processes is broken")?;
    kill_process(target, Signal::KILL)
        .with_context(|| format!("process {pid} of {} is gone already", args.role))?;
    print::say(format!("killed {} (process {pid})", args.role));
    Ok(())
}
