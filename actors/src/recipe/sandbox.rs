//! `[sandbox]`: what a program in a reply may take.

use std::num::NonZeroUsize;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::rl::referee::ProgramSpec;
use crate::sandbox::{Isolation, SandboxSpec};

/// `[sandbox]`: for `[task.code]`. All limits are for one run of a program.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SandboxSection {
    /// Isolation of programs from the machine.
    pub isolation: Isolation,
    /// Number of programs that run at a time.
    pub workers: usize,
    /// Seconds by the clock.
    pub seconds: f64,
    /// Seconds of processors, of all its processes together.
    pub cpu_seconds: f64,
    /// Memory, in MiB.
    pub memory_mib: u64,
    /// Processes and threads.
    pub processes: u32,
    /// All of its files together, in MiB.
    pub file_mib: u64,
    /// The most that it may print, in KiB.
    pub output_kib: usize,
}

impl Default for SandboxSection {
    fn default() -> Self {
        Self {
            isolation: Isolation::Required,
            workers: 4,
            seconds: 10.0,
            cpu_seconds: 5.0,
            memory_mib: 512,
            processes: 32,
            file_mib: 16,
            output_kib: 1024,
        }
    }
}

impl SandboxSection {
    /// The same, as those need it who judge.
    #[must_use]
    pub fn programs(&self) -> ProgramSpec {
        ProgramSpec {
            sandbox: SandboxSpec {
                wall: Duration::from_secs_f64(self.seconds),
                cpu: Duration::from_secs_f64(self.cpu_seconds),
                memory_bytes: self.memory_mib << 20,
                processes: self.processes,
                file_bytes: self.file_mib << 20,
                output_bytes: self.output_kib << 10,
                readable: vec![],
            },
            isolation: self.isolation,
            at_once: NonZeroUsize::new(self.workers).unwrap_or(NonZeroUsize::MIN),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_a_section_programs_may_take_the_same() {
        assert_eq!(SandboxSection::default().programs(), ProgramSpec::default());
    }
}
