//! Nodes that jobs have left, which are refused for all jobs then. Pure.
//!
//! A job whose ranks fail on a node again and again leaves it, and records that. Whoever leads sees it and has the catalog
//! refuse the node, so that no other job meets the same, whoever leads next. A bad program fails on any node: so jobs
//! refuse few nodes at a time, and never the last one.

use odeon_observe::Date;
use odeon_observe::detectors::LeftNode;

use crate::fact::Fact;
use crate::tables::{NodeBan, NodeRow};

/// Nodes that jobs may have refused at a time, of so many that are up: one in ten, and one in any case.
const fn share(up: usize) -> usize {
    if up < 20 { 1 } else { up / 10 }
}

/// The facts that nodes are refused since jobs have left them: after they were let back last, if they ever were.
#[must_use]
pub(crate) fn to_refuse(left: &[LeftNode], nodes: &[NodeRow]) -> Vec<Fact> {
    let up: Vec<&NodeRow> = nodes.iter().filter(|row| row.is_up()).collect();
    let bans = up.iter().filter_map(|row| row.refused.as_ref());
    let by_jobs = bans.filter(|ban| ban.is_by_job()).count();
    let mut room = share(up.len()).saturating_sub(by_jobs);
    let mut open = up.iter().filter(|row| row.takes_jobs()).count();
    let mut facts: Vec<Fact> = vec![];
    for it in left.iter().filter(|it| !it.job.is_empty()) {
        let row = up.iter().find(|row| row.spec.name == it.node);
        let Some(row) = row.filter(|row| row.refused.is_none()) else {
            continue;
        };
        let let_back = row.let_back.map(|at| Date::from_ms(at.0 as f64));
        let is_known = let_back.is_some_and(|at| at >= it.since);
        let is_told = facts
            .iter()
            .any(|fact| matches!(fact, Fact::NodeRefused { node, .. } if *node == it.node));
        let closes = usize::from(row.takes_jobs());
        if is_known || is_told || room == 0 || open <= closes {
            continue;
        }
        (room, open) = (room - 1, open - closes);
        facts.push(Fact::NodeRefused {
            node: it.node.clone(),
            why: it.why.clone(),
            by: format!("{}{}", NodeBan::BY_JOB, it.job),
        });
    }
    facts
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fact::NodeSpec;
    use crate::tables::NodeState;
    use crate::unix::Unix;

    fn row(name: &str) -> NodeRow {
        let spec = NodeSpec {
            name: name.to_owned(),
            boot: 1,
            address: String::new(),
            release: String::new(),
            cpus: 1,
            memory: 1,
            devices: vec![],
            votes: false,
            api: None,
            follows: None,
            certificate: None,
            upgrades: 0,
            inventory: vec![],
            unlimited: None,
            low_disk: None,
        };
        NodeRow {
            number: 1,
            spec,
            state: NodeState::Up,
            since: Unix(0),
            drained: false,
            refused: None,
            refusals: 0,
            over_refusals: 0,
            let_back: None,
            version: 1,
        }
    }

    fn left(node: &str, at_ms: u64) -> LeftNode {
        LeftNode {
            node: node.to_owned(),
            job: "j7".to_owned(),
            since: Date::from_ms(at_ms as f64),
            why: "its process is stopped".to_owned(),
        }
    }

    fn refused(left: &[LeftNode], nodes: &[NodeRow]) -> Vec<(String, String)> {
        let facts = to_refuse(left, nodes).into_iter().map(|fact| match fact {
            Fact::NodeRefused { node, by, .. } => (node, by),
            other => panic!("{other:?}"),
        });
        facts.collect()
    }

    /// SEMANTICS 187.
    #[test]
    fn a_node_that_a_job_has_left_is_refused_once_for_each_time() {
        let mut nodes = [row("a"), row("b"), row("c")];
        let b = ("b".to_owned(), "job j7".to_owned());
        assert_eq!(refused(&[left("b", 50)], &nodes), std::slice::from_ref(&b));
        nodes[1].refused = Some(NodeBan {
            why: "so".to_owned(),
            by: b.1.clone(),
            since: Unix(51),
            found: None,
            number: 1,
        });
        assert_eq!(refused(&[left("b", 50)], &nodes), []);
        assert_eq!(refused(&[left("c", 52)], &nodes), [], "one at a time");
        nodes[1].refused = None;
        nodes[1].let_back = Some(Unix(60));
        assert_eq!(
            refused(&[left("b", 50)], &nodes),
            [],
            "it was let back since"
        );
        assert_eq!(refused(&[left("b", 70)], &nodes), [b]);
    }

    /// SEMANTICS 187.
    #[test]
    fn jobs_refuse_few_nodes_and_never_the_last() {
        let mut nodes = [row("a"), row("b")];
        nodes[0].drained = true;
        assert_eq!(refused(&[left("b", 1)], &nodes), []);
        assert_eq!(refused(&[left("a", 1)], &nodes).len(), 1);
        let names: Vec<String> = (0..40).map(|nth| format!("n{nth}")).collect();
        let nodes: Vec<_> = names.iter().map(|name| row(name)).collect();
        let all: Vec<_> = names.iter().map(|name| left(name, 1)).collect();
        assert_eq!(refused(&all, &nodes).len(), 4);
        let gone = left("nobody", 1);
        let alone = LeftNode {
            job: String::new(),
            ..left("n1", 1)
        };
        assert_eq!(refused(&[gone, alone], &nodes), []);
    }
}
