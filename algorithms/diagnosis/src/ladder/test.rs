//! The group test as a rung: when it is made, and what follows from what it has come to.

use std::collections::BTreeSet;
use std::time::Duration;

use super::{
    Ladder, OrderError, OrderedAction, OrderedBy, RankFault, RankFinding, Rung, Surroundings,
    in_words, named,
};
use crate::Action;
use crate::group_test::GroupTest;

/// A group test of the nodes of ranks, as whoever made it tells it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TestedNodes {
    /// The node that is to blame, if one alone is suspected.
    pub culprit: Option<String>,
    /// The one that is to blame and why, in words, or why nobody knows.
    pub said: String,
}

impl Ladder {
    /// Takes in what the group test has come to that was made for a finding, and answers the next rung: the node that is to
    /// blame is avoided, and the ranks begin again once more, which is not of the budget; else what would have been done
    /// without a test is.
    pub fn tested(
        &mut self,
        found: &RankFinding,
        test: &TestedNodes,
        around: Surroundings,
        now: Duration,
    ) -> Rung {
        self.under_way = false;
        self.tested = Some((now, test.said.clone()));
        let said = format!("a group test of the nodes was made: {}", test.said);
        let (node, stays) = match self.left_by_test(test, around) {
            Ok(node) => (Some(node), None),
            Err(stays) => (None, stays),
        };
        let Some(node) = node else {
            let said = match stays {
                Some(stays) => format!("{said}; {stays}"),
                None => said,
            };
            return self.taken(found, around, now, Some(&said));
        };
        let evicted = vec![node.clone()];
        self.leave(&evicted);
        self.restart(found, evicted.clone(), now, false);
        Rung {
            action: Action::EvictNode,
            evicted,
            innocent: vec![],
            why: format!(
                "{}: {}; {said}; it is avoided from now on, and all begin again once more (not counted)",
                named(&found.who),
                found.cause
            ),
        }
    }

    /// Takes in what the group test has come to that a person has ordered. Nothing of it counts.
    pub fn tested_by_order(
        &mut self,
        by: &OrderedBy,
        test: &TestedNodes,
        around: Surroundings,
    ) -> Rung {
        self.under_way = false;
        let said = format!("{}; {}", by.says("asked for a group test"), test.said);
        let (action, evicted, why) = match self.left_by_test(test, around) {
            Ok(node) => {
                self.leave(std::slice::from_ref(&node));
                self.under_way = true;
                let does = "it is avoided from now on, and all begin again (not counted)";
                (Action::EvictNode, vec![node], format!("{said}; {does}"))
            }
            Err(Some(stays)) => (Action::Tell, vec![], format!("{said}; {stays}")),
            Err(None) => (Action::Tell, vec![], format!("{said}; nothing is done")),
        };
        Rung {
            action,
            evicted,
            innocent: vec![],
            why,
        }
    }

    /// The node that is left since a test has named it; else why it is not, where it has named one.
    fn left_by_test(
        &self,
        test: &TestedNodes,
        around: Surroundings,
    ) -> Result<String, Option<String>> {
        let node = test.culprit.clone().ok_or(None)?;
        if self.policy.trusted.contains(&node) {
            return Err(Some("it is not left: the recipe trusts it".to_owned()));
        }
        if self.needed.contains(&node) {
            let why = "it is not left: there was no room elsewhere before";
            return Err(Some(why.to_owned()));
        }
        match self.why_it_stays(around.elsewhere) {
            Some(stays) => Err(Some(format!("it is not left, {stays}"))),
            None => Ok(node),
        }
    }

    /// Why a group test would tell more about a finding, in words. `again` says that the same has come again elsewhere.
    pub(super) fn why_to_test(&self, found: &RankFinding, again: bool) -> Option<String> {
        let most = self.policy.restarts;
        if self.counted() >= most {
            let window = in_words(self.policy.window);
            return Some(format!(
                "its ranks have begun again {most} times within {window}"
            ));
        }
        if found.cause.fault != RankFault::NotFinite {
            return None;
        }
        let nodes: BTreeSet<&String> = found.who.iter().map(|it| &it.node).collect();
        match nodes.len() {
            _ if again => Some("the same came again elsewhere".to_owned()),
            1 => None,
            _ => Some("no one node is to blame".to_owned()),
        }
    }

    /// Why no group test is made; nothing where one is. In words where people are to hear of it: of ranks that cannot leave a
    /// node nobody expects one.
    pub(super) fn why_no_test(&self, around: Surroundings, now: Duration) -> Option<String> {
        let Some(nodes) = around.nodes else {
            return Some("its ranks cannot leave a node, so that no group test is made".to_owned());
        };
        if let Some(forbidden) = self.forbids(OrderedAction::GroupTest) {
            return Some(format!("no group test is made: {forbidden}"));
        }
        if nodes < GroupTest::MACHINES_MIN {
            return Some(too_few(nodes));
        }
        let (at, said) = self.tested.as_ref()?;
        let ago = now.saturating_sub(*at);
        (ago <= self.policy.window)
            .then(|| format!("a group test was made {} before: {said}", in_words(ago)))
    }

    /// The rung of a group test for a finding.
    pub(super) fn test(&mut self, found: &RankFinding, why: &str) -> Rung {
        self.under_way = true;
        Rung {
            action: Action::GroupTest,
            evicted: vec![],
            innocent: vec![],
            why: format!(
                "{}: {}; the nodes of all ranks are tested in groups, since {why}",
                named(&found.who),
                found.cause
            ),
        }
    }

    /// The rung of a group test that a person has ordered.
    pub(super) fn test_by_order(
        &mut self,
        by: &OrderedBy,
        around: Surroundings,
    ) -> Result<Rung, OrderError> {
        let nodes = around.nodes.ok_or(OrderError::RanksStay)?;
        if nodes < GroupTest::MACHINES_MIN {
            return Err(OrderError::TooFewNodes(nodes));
        }
        self.under_way = true;
        Ok(Rung {
            action: Action::GroupTest,
            evicted: vec![],
            innocent: vec![],
            why: by.says("asked for a group test of the nodes of all ranks (not counted)"),
        })
    }
}

/// Why so few nodes are not tested.
pub(super) fn too_few(nodes: u32) -> String {
    let of = match nodes {
        1 => "one node".to_owned(),
        nodes => format!("{nodes} nodes"),
    };
    let least = GroupTest::MACHINES_MIN;
    format!("no group test is made: the ranks are on {of}, and it takes {least}")
}

#[cfg(test)]
mod tests;
