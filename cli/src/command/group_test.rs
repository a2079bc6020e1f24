//! `odeon node check --together`: nodes make the same training steps in groups, so that the one that is to blame is found.

use std::process::ExitCode;

use anyhow::Result;
use odeon_client::Client;
use odeon_client::types::{GroupTest, GroupTested};

use crate::args::NodeCheckArgs;
use crate::print;
use crate::waiter::Waiter;

pub(super) fn run(client: &Client, waiter: &Waiter, args: &NodeCheckArgs) -> Result<ExitCode> {
    let wanted = GroupTest {
        nodes: args.nodes.clone(),
        limit_s: args.limit,
        refuse: args.refuse,
    };
    let tested = waiter.block_on(client.test_group(&wanted))?;
    match args.json {
        true => print::line(serde_json::to_string_pretty(&tested)?)?,
        false => {
            for line in lines(&tested, args.all) {
                print::line(line)?;
            }
        }
    }
    let fails = tested.groups.iter().any(|it| it.fault.is_some());
    Ok(ExitCode::from(u8::from(fails)))
}

fn lines(it: &GroupTested, all: bool) -> Vec<String> {
    let mut lines = vec![it.sentence.clone()];
    // Of a culprit the sentence has said them.
    let shown = it
        .groups
        .iter()
        .filter(|group| all || (it.culprit.is_none() && group.fault.is_some()));
    for group in shown {
        let fault = group.fault.as_deref().unwrap_or("the bits of the others");
        let nodes = group.nodes.join(" and ");
        lines.push(format!("  round {} on {nodes}: {fault}", group.round));
    }
    for left in &it.left_out {
        lines.push(format!("{} was left out: {}", left.node, left.why));
    }
    if let Some(node) = it.culprit.as_ref().filter(|_| it.refused) {
        lines.push(format!(
            "nothing is placed on {node} any more; what runs there goes on (odeon node allow {node} lets it back)"
        ));
    }
    lines.push(format!(
        "{} nodes in {} groups took {:.1} s",
        it.nodes.len(),
        it.groups.len(),
        it.took_ms as f64 / 1e3
    ));
    lines
}

#[cfg(test)]
mod tests {
    use odeon_client::types::{LeftOutNode, TestedGroup};

    use super::*;

    /// SEMANTICS 211.
    #[test]
    fn who_is_to_blame_is_told_with_the_groups_that_have_failed() {
        let group = |round, nodes: [&str; 2], fault: Option<&str>| TestedGroup {
            round,
            nodes: nodes.map(str::to_owned).to_vec(),
            fault: fault.map(str::to_owned),
        };
        let mut tested = GroupTested {
            culprit: None,
            suspects: vec![],
            refused: false,
            nodes: ["a", "b", "c", "d"].map(str::to_owned).to_vec(),
            left_out: vec![LeftOutNode {
                node: "e".to_owned(),
                why: "another kind".to_owned(),
            }],
            groups: vec![
                group(1, ["a", "b"], None),
                group(1, ["c", "d"], Some("d has not answered in time")),
            ],
            took_ms: 2_340,
            sentence: "somebody is to blame".to_owned(),
        };
        let told = [
            "somebody is to blame",
            "  round 1 on c and d: d has not answered in time",
            "e was left out: another kind",
            "4 nodes in 2 groups took 2.3 s",
        ];
        assert_eq!(lines(&tested, false), told);
        tested.culprit = Some("d".to_owned());
        tested.refused = true;
        let told = lines(&tested, false);
        assert_eq!(told.len(), 4);
        assert!(told[2].starts_with("nothing is placed on d any more"));
        let all = lines(&tested, true);
        assert_eq!(all[1], "  round 1 on a and b: the bits of the others");
    }
}
