//! `odeon kill`: SIGKILL to one process of a run.

use anyhow::{Result, bail};

use super::processes;
use crate::args::KillArgs;
use crate::print;

pub(crate) fn run(args: &KillArgs) -> Result<()> {
    let processes = processes::read(&args.run)?;
    let Some(process) = processes.iter().find(|process| process.role == args.role) else {
        let roles: Vec<&str> = processes.iter().map(|process| &*process.role).collect();
        bail!(
            "no role `{}` in {}; there are: {}",
            args.role,
            args.run.display(),
            roles.join(", ")
        );
    };
    process.kill()?;
    print::say(format!("killed {} (process {})", args.role, process.pid));
    Ok(())
}
