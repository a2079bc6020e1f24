//! Nodes that nothing is placed on.

use odeon_diagnosis::{Detector, Severity};

use super::{Finding, NODE_REFUSED, finding};
use crate::cluster_view::ClusterView;
use crate::date::Date;
use crate::event::Subject;

/// Finds nodes that nothing is placed on, as the catalog has them.
#[derive(Clone, Copy, Debug)]
pub(super) struct RefusedNodes;

impl Detector<ClusterView> for RefusedNodes {
    fn observe(&mut self, seen: &ClusterView, _: Date) -> Vec<Finding> {
        let refused = seen.refused_nodes().iter().map(|it| {
            let sentence = format!(
                "nothing is placed on node {node}, which is refused by {why}; `odeon node allow {node}` lets it back",
                node = it.node,
                why = it.why
            );
            let who = vec![Subject::Node(it.node.clone())];
            finding(NODE_REFUSED, Severity::Warning, it.since, sentence, who)
        });
        refused.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster_view::RefusedNode;

    /// SEMANTICS 186.
    #[test]
    fn a_node_is_a_problem_while_it_is_refused() {
        let mut seen = ClusterView::default();
        let since = Date(7);
        let (node, why) = ("b".to_owned(), "ann: it flips bits".to_owned());
        seen.nodes_refused(vec![RefusedNode { node, since, why }]);
        seen.tick(Date(9));
        let [found] = seen.findings() else {
            panic!("{:?}", seen.findings());
        };
        assert_eq!((found.cause.rule, found.since), (NODE_REFUSED, since));
        let says = ["node b", "ann: it flips bits", "odeon node allow b"];
        let sentence = &found.cause.sentence;
        assert!(says.iter().all(|it| sentence.contains(it)), "{sentence}");
        // Who refuses it has told an event.
        assert_eq!(seen.events().iter().count(), 0);
        seen.nodes_refused(vec![]);
        seen.tick(Date(10));
        assert_eq!(seen.findings(), []);
    }
}
