//! Elastic gangs: as many ranks as there is room for, while nodes come and go.

use std::fs;
use std::process::Command;

use crate::nodes::{eventually, text};
use crate::programs::Node;

/// Half of a node's cores: two ranks fill it.
fn half() -> String {
    let cores = std::thread::available_parallelism().unwrap().get();
    (cores as f64 / 2.0).to_string()
}

/// The ranks that say in the log of a job that they are of so many.
fn ranks_of(node: &Node, job: &str, world: u32) -> Vec<String> {
    let (out, _) = node.ok(&["logs", job]);
    let of_it = format!(" of {world} ");
    let lines = out.lines().filter(|line| line.contains(&of_it));
    lines.map(str::to_owned).collect()
}

fn kill(node: &Node, name: &str) {
    let file = node.dir().join("nodes").join(name).join("daemon.pid");
    let pid = fs::read_to_string(file).unwrap();
    let killed = Command::new("kill").args(["-KILL", pid.trim()]).status();
    assert!(killed.unwrap().success());
}

/// SEMANTICS 127.
#[test]
fn an_elastic_gang_shrinks_when_a_node_is_lost_and_grows_when_one_joins() {
    let node = Node::up(&["--nodes", "2"]);
    let up = |nodes| {
        node.ok(&["up", "--api", "127.0.0.1:0", "--nodes", nodes]);
    };
    let go = node.here().join("go");
    let variable = format!("GO={}", go.display());
    let script = "echo rank $RANK of $WORLD_SIZE local $LOCAL_RANK of $LOCAL_WORLD_SIZE groups \
                  $GROUP_WORLD_SIZE restarts $TORCHELASTIC_RESTART_COUNT
        until [ -e $GO ]; do sleep 0.05; done";
    let gang = ["submit", "--gang", "4:6", "--last-call", "1s", "--cpus"];
    let words = [
        "--env", &variable, "--node", "head", "--", "sh", "-c", script,
    ];
    node.ok(&[gang.as_slice(), &[&half()], &words].concat());
    let lives = |world, count| {
        let what = format!("{count} lines of ranks of {world}");
        eventually(&what, || ranks_of(&node, "j1", world).len() == count);
    };
    lives(4, 4);
    // A node joins, and there is room for all.
    up("3");
    lives(6, 6);
    // One is lost: four are left, of which nobody has failed.
    kill(&node, "node-2");
    lives(4, 8);
    up("3");
    lives(6, 12);
    fs::write(&go, "").unwrap();
    node.ok(&["wait", "j1"]);
    let lines = ranks_of(&node, "j1", 6);
    for rank in 0..6 {
        let line = format!(
            "rank {rank} of 6 local {} of 2 groups 3 restarts 0",
            rank % 2
        );
        let of_rank = lines.iter().filter(|it| it.ends_with(&line));
        assert_eq!(of_rank.count(), 2, "{line}: {lines:#?}");
    }
    let (out, err) = node.ok(&["logs", "j1"]);
    let said = out + &err;
    for word in [
        "there is room for 6 ranks, so the 4 begin again with them",
        "node node-2 is lost to the 6 ranks",
    ] {
        assert!(said.contains(word), "{said}");
    }
}

#[test]
fn numbers_of_ranks_that_cannot_be_are_refused_in_words() {
    let odeon = |words: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_odeon"));
        let output = command.args(words).args(["--", "true"]).output().unwrap();
        assert!(!output.status.success(), "{words:?}");
        text(&output.stderr)
    };
    for (ranks, why) in [
        ("8:4", "8 is more than 4: the least comes first, 4:8"),
        ("0:4", "a gang has one rank at least"),
        ("a:b", "the least and the most, such as 4:8"),
        ("1:300", "256 ranks at most, not 300"),
    ] {
        for words in [&["gang", ranks][..], &["submit", "--gang", ranks]] {
            let said = odeon(words);
            assert!(said.contains(why), "{said}");
        }
    }
    let said = odeon(&["gang", "2", "--last-call", "5s"]);
    assert!(said.contains("with a least and a most"), "{said}");
}
