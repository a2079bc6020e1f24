//! `odeon node check --together`: daemons of this machine whose nodes make the same steps in groups.

use rustix::process::Signal;
use serde_json::Value;

use crate::nodes::{Nodes, eventually, text};

const NAMES: [&str; 4] = ["head", "node-2", "node-3", "node-4"];

fn up() -> Nodes {
    let mut nodes = Nodes::new(|_| vec![]);
    let head = nodes.folder.path().join("head");
    nodes.add("head", &head);
    for name in &NAMES[1..] {
        nodes.add(name, &head.join("nodes").join(name));
    }
    let up = ["up", "--api", "127.0.0.1:0", "--name", "head", "--nodes=4"];
    nodes.ok("head", &up);
    nodes
}

/// Goes on with a daemon that was stopped, also where a test fails.
struct Stopped<'a>(&'a Nodes, &'static str);

impl Drop for Stopped<'_> {
    fn drop(&mut self) {
        self.0.signal(self.1, Signal::CONT);
    }
}

/// SEMANTICS 211.
#[test]
fn the_node_that_hangs_is_named_among_four_and_refused() {
    let nodes = up();
    let check = ["node", "check", "--together", "--limit=60"];
    // One that does not vote has another answer.
    let sound = nodes.json("node-2", &[&check[..], &["--json"]].concat());
    assert_eq!(sound["suspects"], serde_json::json!([]), "{sound}");
    assert_eq!(sound["nodes"], serde_json::json!(NAMES), "{sound}");
    assert_eq!(sound["groups"].as_array().unwrap().len(), 4, "{sound}");
    let few = nodes.fails("head", &["node", "check", "--together", "head", "node-2"]);
    assert!(few.contains("there are 2 (head, node-2)"), "{few}");
    let stopped = Stopped(&nodes, "node-3");
    nodes.signal("node-3", Signal::STOP);
    // By name, since the cluster may have noticed meanwhile that it is silent.
    let all = [&check[..], &NAMES, &["--refuse", "--json"]].concat();
    let output = nodes.run("head", &all);
    drop(stopped);
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    let tested: Value = serde_json::from_str(&text(&output.stdout)).unwrap();
    assert_eq!(tested["culprit"], "node-3", "{tested}");
    assert_eq!(tested["refused"], true, "{tested}");
    // It comes back, and is refused whatever it was taken for meanwhile.
    eventually("the node that is refused", || {
        let status = nodes.status("head");
        let all = status["nodes"].as_array().unwrap().iter();
        let refused = all.filter(|it| it["state"] == "refused");
        let refused: Vec<_> = refused
            .map(|it| (it["name"].clone(), it["why"].to_string()))
            .collect();
        matches!(refused.as_slice(), [(name, why)] if name == "node-3" && why.contains("round 1"))
    });
}
