//! Notes that a run writes down for others while it goes on: its processes, and where they are or
//! what they wait for.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Result;
use odeon::System;
use odeon_actors::hybrid::Member;
use odeon_algorithms::train::Sharing;

use crate::command::places::{self, Places};
use crate::command::processes::{DRIVER, Listing, Process};

/// Notes in a run's folder, removed when this is dropped: after the run they would not be true.
#[derive(Debug)]
pub(super) struct Notes {
    path: PathBuf,
    listing: Listing,
    places: Option<Places>,
    /// Set if anything is reserved, so that nodes are asked at all.
    reserves: bool,
    /// Of ranks that share a model.
    mesh: Option<String>,
}

impl Notes {
    pub(super) fn new(path: &Path, reserves: bool, sharing: Sharing) -> Self {
        let mesh = sharing.mesh().ok().filter(|mesh| mesh.len() > 1);
        Self {
            path: path.to_owned(),
            listing: Listing::new(path),
            places: None,
            reserves,
            mesh: mesh.map(|mesh| mesh.to_string()),
        }
    }

    /// Writes what has changed: who has a role in the run, with its process where that is another.
    pub(super) async fn write(
        &mut self,
        system: &System,
        roles: impl IntoIterator<Item = Member>,
    ) -> Result<()> {
        let pids = system.admin().workers();
        let driver = Process::running(DRIVER, "-".to_owned(), std::process::id());
        let mut processes: Vec<_> = driver.into_iter().collect();
        let mut places = Places {
            mesh: self.mesh.clone(),
            ..Places::default()
        };
        for (role, actor, process) in roles {
            let pid = pids.iter().find(|(id, _)| Some(*id) == process);
            let running = pid.and_then(|(_, pid)| Process::running(&role, actor.to_string(), *pid));
            processes.extend(running);
            places.roles.insert(role, actor);
        }
        self.listing.write(processes)?;
        if self.reserves {
            places.nodes = system.nodes().await;
        }
        if self.places.as_ref() != Some(&places) {
            places.write(&self.path)?;
            self.places = Some(places);
        }
        Ok(())
    }
}

impl Drop for Notes {
    fn drop(&mut self) {
        // Whoever reads them asks whether the driver lives.
        let _ = fs::remove_file(self.path.join(places::FILE));
    }
}
