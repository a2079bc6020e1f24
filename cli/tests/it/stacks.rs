//! A gang of which one rank sleeps for ever, as people see it: named with its stack by `odeon why` and among the problems,
//! and found by the stacks of all ranks.

use std::process::Command;

use odeon_skip::{Need, skip};

use crate::nodes::eventually;
use crate::programs::Node;

/// Ranks in a ring of sockets; rank 2 sleeps from its third step on.
const TRAIN: &str = "
import os, socket, time
rank, world, folder = int(os.environ['RANK']), int(os.environ['WORLD_SIZE']), os.environ['MEET']
server = socket.socket(socket.AF_UNIX)
server.bind('%s/%d' % (folder, rank))
server.listen()
after = socket.socket(socket.AF_UNIX)
while True:
    try:
        after.connect('%s/%d' % (folder, (rank + 1) % world))
        break
    except (FileNotFoundError, ConnectionRefusedError):
        time.sleep(0.01)
before = server.accept()[0]

def all_reduce():
    for _ in range(world):
        after.sendall(b'1')
        before.recv(1)

def load_batch(step):
    if rank == 2 and step == 3:
        time.sleep(1000)

for step in range(100):
    load_batch(step)
    all_reduce()
";

fn has(program: &str) -> bool {
    let output = Command::new(program).arg("--version").output();
    output.is_ok_and(|output| output.status.success())
}

/// SEMANTICS 159, 162.
#[test]
fn a_rank_that_sleeps_is_a_problem_with_its_stack_and_stands_elsewhere_than_all_others() {
    if !has("python3") {
        return skip(Need::Python, "there is no python3 here");
    }
    if !has("py-spy") {
        return skip(Need::PySpy, "there is no py-spy here");
    }
    let node = Node::up(&[]);
    node.write("train.py", TRAIN);
    let meet = format!("MEET={}", node.here().display());
    let submit = [
        "submit",
        "--gang",
        "4",
        "--name-after",
        "3s",
        "--env",
        &meet,
    ];
    node.ok(&[&submit[..], &["--", "python3", "train.py"]].concat());
    let mut why = String::new();
    eventually("a rank that is named", || {
        why = node.ok(&["why", "j1"]).0;
        why.contains("problem: rank 2, on node head (pid ")
    });
    for words in ["stands still", "it stands at load_batch (train.py:2"] {
        assert!(why.contains(words), "{words}: {why}");
    }
    for extra in [&[][..], &["--python"]] {
        let (out, _) =
            node.ok(&[&["stack", "j1", "--ranks", "--mesh", "dp=2,tp=2"], extra].concat());
        for words in [
            "4 programs of j1, at 2 places",
            "ranks 0, 1 and 3\n",
            "    all_reduce  ",
            "    load_batch  ",
        ] {
            assert!(out.contains(words), "{words}: {out}");
        }
        let last = "rank 2 stands elsewhere than most; the smallest group that holds it is a dp group (ranks 0 and 2)";
        assert_eq!(out.lines().last(), Some(last));
        assert_eq!(out.contains("nanosleep"), extra.is_empty(), "{out}");
    }
    let (logs, err) = node.ok(&["logs", "j1"]);
    assert!(
        (logs + &err).contains("rank 2 of 4, on node head (pid "),
        "it is told in the log"
    );
    node.ok(&["stop", "--force", "j1"]);
}
