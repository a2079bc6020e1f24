//! The route of group tests: nodes make the same training steps in groups, so that the one that is to blame is found.

#![allow(
    unused_qualifications,
    reason = "the description of the route expands to them"
)]

use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use axum::{Extension, Json};
use odeon_actors::ranks::group_test::{LIMIT, test_nodes};
use odeon_client::types::{GroupTest, GroupTested, LeftOutNode, TestedGroup};
use odeon_cluster::fact::Fact;
use tokio::sync::OwnedMutexGuard;

use super::Api;
use super::access::Admin;
use super::audit::Made;
use super::cluster::Making;
use super::extract::Sent;
use super::problem::No;

/// The greatest limit that may be asked for.
pub(super) const LIMIT_MAX: Duration = Duration::from_secs(120);

/// Has nodes make the same training steps in groups, in two rounds, and tells which of them is to blame. The node in failing
/// groups of both rounds may be refused at once.
#[utoipa::path(post, path = "/api/v1/group-test", request_body = GroupTest, responses((status = 200, body = GroupTested)))]
pub(super) async fn group_test(
    State(api): State<Arc<Api>>,
    Admin(caller): Admin,
    Sent(wanted): Sent<GroupTest>,
) -> Making<GroupTested> {
    let limit = wanted.limit_s.map_or(LIMIT, Duration::from_secs);
    if limit.is_zero() || limit > LIMIT_MAX {
        let most = LIMIT_MAX.as_secs();
        let why = format!("a limit is 1 to {most} s, not {}", limit.as_secs());
        return Err(No::invalid(why));
    }
    let nodes = api.nodes_to_test(&wanted.nodes)?;
    let alone = Arc::clone(&api.group_test).try_lock_owned();
    let alone = alone.map_err(|_| {
        No::conflict("this node makes a group test at the moment: try again when it is over")
    })?;
    let of = Wanted {
        nodes,
        limit,
        refuse: wanted.refuse,
        by: format!("a group test for {}", caller.name),
    };
    // It goes on where nobody waits for it any more, and refuses whom it was to refuse.
    let tested = tokio::spawn(of.tested(api, alone)).await;
    let tested = tested.map_err(No::internal)??;
    let made = Made(tested.sentence.clone());
    Ok((Extension(made), Json(tested)))
}

/// A group test that can be made.
struct Wanted {
    nodes: Vec<String>,
    limit: Duration,
    refuse: bool,
    by: String,
}

impl Wanted {
    async fn tested(self, api: Arc<Api>, _alone: OwnedMutexGuard<()>) -> Result<GroupTested, No> {
        let tested = test_nodes(api.daemon.system(), &self.nodes, self.limit).await;
        let tested = tested.map_err(No::conflict)?;
        let culprit = tested.culprit().map(str::to_owned);
        let refused = culprit.clone().filter(|_| self.refuse);
        if let Some(node) = &refused {
            let fact = Fact::NodeRefused {
                node: node.clone(),
                why: tested.evidence(node),
                by: self.by,
            };
            api.daemon.catalog().write_for(fact).await?;
        }
        let left_out = tested.left_out.iter();
        let left_out = left_out.map(|(node, why)| LeftOutNode {
            node: node.clone(),
            why: why.clone(),
        });
        let groups = tested.groups.iter().map(|it| TestedGroup {
            round: it.round,
            nodes: it.nodes.clone(),
            fault: it.fault.clone(),
        });
        Ok(GroupTested {
            culprit,
            refused: refused.is_some(),
            left_out: left_out.collect(),
            groups: groups.collect(),
            took_ms: tested.took.as_millis() as u64,
            sentence: tested.to_string(),
            suspects: tested.suspects,
            nodes: tested.nodes,
        })
    }
}

impl Api {
    /// The nodes of these names, or all that take jobs.
    fn nodes_to_test(&self, names: &[String]) -> Result<Vec<String>, No> {
        let rows = self.read(|tables| tables.nodes.clone())?;
        if names.is_empty() {
            let open = rows.values().filter(|row| row.is_up() && row.takes_jobs());
            return Ok(open.map(|row| row.spec.name.clone()).collect());
        }
        for name in names {
            let row = rows.get(name);
            let row = row.ok_or_else(|| No::unknown(format!("there is no node `{name}`")))?;
            if !row.is_up() {
                let why = format!("node `{name}` is not up: leave it out");
                return Err(No::conflict(why));
            }
        }
        Ok(names.to_vec())
    }
}
