//! A node's part in voting: it begins when the leader enlists it, with the key of the cluster's
//! authority so that it can admit nodes too, and ends when it has no seat any more.
//!
//! A node that is enlisted begins with an empty disk, whatever it knew before: what a voter has
//! promised is on its disk, and one that has lost its seat since may have broken it unheard.

use std::sync::Arc;
use std::time::Duration;

use odeon::{Clock, ClusterIdentity, Failure, System};

use crate::admit::gate::Gatekeeper;
use crate::catalog::{Catalog, CatalogError};
use crate::controller::voters::{Change, Standing};
use crate::folder::Folder;
use crate::local_only::LocalOnly;
use crate::node_directory;
use crate::presence::Presence;
use crate::raft::disk::Disk;

/// The file with the log of the voters.
pub(crate) const LOG_FILE: &str = "catalog.redb";
/// The file with the key of the cluster's authority.
const AUTHORITY_KEY_FILE: &str = "ca.key";
/// The pause between two checks of the disk for the log.
const TEND_PAUSE: Duration = Duration::from_secs(1);
/// The longest time that a node may take to open or close its disk for the log.
const PATIENCE: Duration = Duration::from_secs(20);

/// Gives one node its vote and takes it back, as the leader says.
#[derive(Clone, Debug)]
pub(crate) struct Voting {
    pub(crate) system: System,
    pub(crate) catalog: Catalog,
    pub(crate) folder: Arc<Folder>,
    pub(crate) presence: Presence,
    pub(crate) gate: Gatekeeper,
    /// Held while its vote begins or ends.
    pub(crate) turn: Arc<tokio::sync::Mutex<()>>,
}

/// The name of the actor that enlists a node and dismisses it.
fn name_of(node: &str) -> String {
    format!("voting@{node}")
}

impl Voting {
    /// Lets the leader enlist this node.
    pub(crate) async fn serve(&self, node: &str) -> Result<(), Failure> {
        let spawned = self
            .system
            .spawn::<VotingActor>(LocalOnly::new(self.clone()));
        let actor = spawned.await.map_err(|error| Failure::error(&error))?;
        let named = node_directory::register(&self.system, &name_of(node), actor).await;
        named.map_err(|error| Failure::error(&error))
    }

    /// Opens the disk for the log, unless it is open. Returns true if it is a new one.
    async fn begin(&self, number: u64, authority_key: &str) -> Result<bool, String> {
        let _turn = self.turn.lock().await;
        let words = |error: &dyn std::fmt::Display| error.to_string();
        let known = self.folder.node().map_err(|error| words(&error))?;
        if self.catalog.is_voter() {
            return match known.and_then(|known| known.votes_as) {
                Some(present) if present == number => Ok(false),
                present => Err(format!(
                    "it votes as {present:?} and is asked to as {number}"
                )),
            };
        }
        let folder = &self.folder;
        folder.remove(LOG_FILE).map_err(|error| words(&error))?;
        let disk = Disk::open(&folder.part(LOG_FILE)).map_err(|error| words(&error))?;
        let begun = self.catalog.begin_voting(number, disk).await;
        begun.map_err(|error| words(&error))?;
        let admits = self.admit(authority_key);
        let noted = admits.and_then(|()| {
            let noted = folder.change_node(|node| node.votes_as = Some(number));
            noted.map_err(|error| words(&error))
        });
        let said = match noted {
            Ok(()) => self.say().await,
            Err(why) => Err(why),
        };
        if let Err(why) = said {
            // Whoever is asked again begins anew, and says so.
            self.catalog.close().await;
            let undone = folder.change_node(|node| node.votes_as = None);
            undone.map_err(|error| words(&error))?;
            return Err(why);
        }
        Ok(true)
    }

    fn admit(&self, authority_key: &str) -> Result<(), String> {
        let written = self
            .folder
            .write(AUTHORITY_KEY_FILE, authority_key.as_bytes(), 0o600);
        written.map_err(|error| error.to_string())?;
        let cluster = ClusterIdentity::load(self.folder.path());
        let admits = cluster.and_then(|cluster| self.system.admit(cluster, self.gate.clone()));
        admits.map_err(|error| error.to_string())
    }

    /// Closes the disk for the log, for good.
    async fn end(&self) -> Result<(), String> {
        let _turn = self.turn.lock().await;
        let words = |error: &dyn std::fmt::Display| error.to_string();
        let voters = self.catalog.voters();
        self.catalog.close().await;
        let folder = &self.folder;
        let noted = folder.change_node(|node| {
            node.votes_as = None;
            node.voters = voters;
        });
        noted.map_err(|error| words(&error))?;
        folder.remove(LOG_FILE).map_err(|error| words(&error))?;
        folder
            .remove(AUTHORITY_KEY_FILE)
            .map_err(|error| words(&error))?;
        self.system.admit_nobody().map_err(|error| words(&error))?;
        self.catalog.look_around().await;
        self.say().await
    }

    /// Opens the disk again when it has failed, for ever: it may have been full for a while.
    pub(crate) async fn tend(self) {
        loop {
            Clock::sleep(TEND_PAUSE).await;
            let _turn = self.turn.lock().await;
            let why = self.catalog.broken();
            if let Some(why) = why {
                tracing::error!(why, "the disk of the catalog has failed");
                self.catalog.close_failed(why).await;
            } else if self.catalog.is_voter() {
                continue;
            }
            match self.reopen().await {
                Ok(true) => tracing::warn!("the disk of the catalog is open again"),
                Ok(false) => {}
                Err(error) => tracing::error!(error, "the disk of the catalog cannot be used yet"),
            }
        }
    }

    /// Opens the disk of a node that has a seat. Returns true if it has one.
    async fn reopen(&self) -> Result<bool, String> {
        let known = self.folder.node().map_err(|error| error.to_string())?;
        let Some(number) = known.and_then(|known| known.votes_as) else {
            return Ok(false);
        };
        if !self.folder.holds(LOG_FILE) {
            // An empty one must not vote: what this node has promised was on the other.
            return Err(format!("{LOG_FILE} is gone: start the node again"));
        }
        let disk = Disk::open(&self.folder.part(LOG_FILE)).map_err(|error| error.to_string())?;
        let begun = self.catalog.begin_voting(number, disk).await;
        begun.map_err(|error| error.to_string())?;
        Ok(true)
    }

    async fn say(&self) -> Result<(), String> {
        self.presence.say().await.map_err(|error| error.to_string())
    }
}

/// The actor by which the leader reaches it.
#[derive(Debug)]
pub(crate) struct VotingActor {
    voting: Voting,
}

#[odeon::actor(name = "odeon.cluster.Voting")]
impl VotingActor {
    async fn start(voting: LocalOnly<Voting>) -> Result<Self, Failure> {
        let voting = voting.take()?;
        Ok(Self { voting })
    }

    /// Begins to take the log. Returns true if its disk for that is a new one.
    #[handler]
    async fn enlist(&mut self, number: u64, authority_key: String) -> Result<bool, String> {
        self.voting.begin(number, &authority_key).await
    }

    /// Ends that for good.
    #[handler]
    async fn dismiss(&mut self) -> Result<(), String> {
        if !self.voting.catalog.is_voter() {
            return Ok(());
        }
        self.voting.end().await
    }
}

/// Makes a change of the voters, as their leader.
pub(crate) async fn carry_out(
    system: &System,
    catalog: &Catalog,
    folder: &Folder,
    standing: &Standing,
    change: Change,
) -> Result<(), String> {
    let words = |error: CatalogError| error.to_string();
    match change {
        Change::Enlist { node, number } => {
            let authority_key = std::fs::read_to_string(folder.part(AUTHORITY_KEY_FILE));
            let authority_key = authority_key.map_err(|error| error.to_string())?;
            let enlist = Enlist {
                number,
                authority_key,
            };
            let is_new = reach(system, &node)
                .await?
                .ask(enlist)
                .timeout(PATIENCE)
                .await;
            let is_new = is_new.map_err(|error| error.to_string())??;
            if is_new && standing.learners.contains_key(&number) {
                // What it was sent before is lost: it begins anew.
                catalog.strike(number).await.map_err(words)?;
            }
            catalog.teach(number, &node).await.map_err(words)
        }
        Change::Elect { voters } => catalog.elect(voters).await.map_err(words),
        Change::Strike { number } => catalog.strike(number).await.map_err(words),
        Change::Dismiss { node } => {
            let told = reach(system, &node).await?.ask(Dismiss).timeout(PATIENCE);
            told.await.map_err(|error| error.to_string())?
        }
    }
}

async fn reach(system: &System, node: &str) -> Result<odeon::Ref<VotingActor>, String> {
    let found = node_directory::reach(system, node, &name_of(node)).await;
    found.map_err(|unreached| unreached.to_string())
}
