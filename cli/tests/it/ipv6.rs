//! Clusters that know no address but those of IPv6.

use std::net::{Ipv6Addr, TcpListener};

use odeon_skip::{Need, skip};

use crate::nodes::Nodes;

/// SEMANTICS 62.
#[test]
fn a_cluster_of_ipv6_alone_joins_runs_gangs_and_shows_its_pages() {
    if TcpListener::bind((Ipv6Addr::LOCALHOST, 0)).is_err() {
        return skip(Need::Networks, "there is no loopback device with IPv6 here");
    }
    let mut nodes = Nodes::new(|_| vec![]);
    for name in ["head", "other"] {
        let dir = nodes.folder.path().join(name);
        nodes.add(name, &dir);
    }
    let at = ["--listen", "[::1]:0", "--api", "[::1]:0", "--name"];
    nodes.ok("head", &[&["up"], &at[..], &["head"]].concat());
    let said = nodes.ok("head", &["token"]);
    let words: Vec<&str> = said.split_whitespace().collect();
    let behind = |word: &str| {
        let at = words.iter().position(|it| *it == word);
        words[at.unwrap_or_else(|| panic!("{said}")) + 1]
    };
    let (address, token) = (behind("join"), behind("--token"));
    assert!(address.starts_with("[::1]:"), "{said}");
    let join = ["join", address, "--token", token];
    nodes.ok("other", &[&join[..], &at, &["other"]].concat());
    // Two ranks fill a node.
    let cores = std::thread::available_parallelism().unwrap().get();
    let half = (cores as f64 / 2.0).to_string();
    let script = "echo at $MASTER_ADDR $GROUP_RANK of $GROUP_WORLD_SIZE";
    let gang = ["submit", "--gang", "4", "--cpus", &half, "--wait", "--"];
    nodes.ok("head", &[&gang[..], &["sh", "-c", script]].concat());
    // The lines are the same through the other node, whose API has brackets, too.
    let lines = nodes.ok("other", &["logs", "j1"]);
    for group in 0..2 {
        let line = format!("at ::1 {group} of 2");
        assert_eq!(lines.matches(&line).count(), 2, "{lines}");
    }
    for node in ["head", "other"] {
        let pages = nodes.ok(node, &["ui"]);
        assert!(pages.contains("http://[::1]:"), "{pages}");
    }
}
