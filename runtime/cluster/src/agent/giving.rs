//! Files of jobs from the agents of other nodes.

use std::time::Duration;

use odeon::{Blob, System};
use odeon_artifacts::Digest;

use super::CLEAR_PATIENCE;
use super::actor::{Bundle, Heat, Pieces, reach, unanswered};
use crate::json::Json;
use crate::staging::givers::{Given, Givers};

/// The longest time that a node may take to say what is read first: a start goes without rather
/// than wait.
const HEAT_PATIENCE: Duration = Duration::from_secs(2);

/// The agents of other nodes, as they are asked for files.
#[derive(Clone, Debug)]
pub(crate) struct Agents {
    pub(crate) system: System,
}

impl Givers for Agents {
    fn bundle<'a>(&'a self, node: &'a str, digest: Digest) -> Given<'a, Option<Blob>> {
        Box::pin(async move {
            let agent = reach(&self.system, node).await?;
            let digest = Json(digest);
            let asked = agent.ask(Bundle { digest }).timeout(CLEAR_PATIENCE);
            asked.await.map_err(|error| unanswered(node, &error))
        })
    }

    fn heat<'a>(&'a self, node: &'a str, digest: Digest) -> Given<'a, Option<Blob>> {
        Box::pin(async move {
            let agent = reach(&self.system, node).await?;
            let digest = Json(digest);
            let asked = agent.ask(Heat { digest }).timeout(HEAT_PATIENCE);
            asked.await.map_err(|error| unanswered(node, &error))
        })
    }

    fn pieces<'a>(&'a self, node: &'a str, digests: &[Digest]) -> Given<'a, Vec<Option<Blob>>> {
        let digests = Json(digests.to_vec());
        Box::pin(async move {
            let agent = reach(&self.system, node).await?;
            let asked = agent.ask(Pieces { digests }).timeout(CLEAR_PATIENCE);
            asked.await.map_err(|error| unanswered(node, &error))
        })
    }
}
