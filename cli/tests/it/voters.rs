//! A cluster with three voters, as people use it: what is left when daemons are killed.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::Stdio;
use std::time::Duration;

use odeon::Clock;
use rustix::process::Signal;

use crate::nodes::{Nodes, eventually, found, text};

/// Three nodes of this machine, all of which vote.
struct Cluster {
    nodes: Nodes,
}

impl Cluster {
    fn new() -> Self {
        let mut nodes = Nodes::new(|_| vec![]);
        let head = nodes.folder.path().join("head");
        nodes.add("head", &head);
        for name in ["node-2", "node-3"] {
            nodes.add(name, &head.join("nodes").join(name));
        }
        Self { nodes }
    }

    fn up() -> Self {
        let cluster = Self::new();
        let said = cluster.start();
        assert!(said.contains("voters: "), "{said}");
        cluster
    }

    /// Starts what does not run. Returns what it says, with the voters by name.
    fn start(&self) -> String {
        let up = [
            "up",
            "--api",
            "127.0.0.1:0",
            "--name",
            "head",
            "--nodes=3",
            "--voters",
        ];
        let said = self.nodes.ok("head", &up);
        let mut voters: Vec<String> = self.names();
        voters.sort();
        assert_eq!(voters, ["head", "node-2", "node-3"], "{said}");
        said
    }

    fn names(&self) -> Vec<String> {
        let status = self.status("head");
        let voters = status["voters"].as_array().unwrap().iter();
        voters
            .map(|name| name.as_str().unwrap().to_owned())
            .collect()
    }
}

impl std::ops::Deref for Cluster {
    type Target = Nodes;

    fn deref(&self) -> &Nodes {
        &self.nodes
    }
}

/// Numbers that a job prints, one in a tenth of a second.
const COUNTS: &str = "n=0; while :; do n=$((n+1)); echo $n; sleep 0.1; done";

/// SEMANTICS 60.
#[test]
fn a_leader_that_is_killed_is_followed_by_another_and_nothing_is_lost() {
    let cluster = Cluster::up();
    let leader = cluster.leader("node-2").unwrap();
    let others = cluster.others(&leader);
    let (other, third) = (others[0].as_str(), others[1].as_str());
    // One that runs elsewhere, and one that waits.
    let counting = cluster.submit(other, &["/bin/sh", "--node", third, "--", "-c", COUNTS]);
    let lines = || {
        let printed = cluster.ok(other, &["logs", &counting]);
        let numbers = printed.lines().map(|line| line.parse::<u64>().unwrap());
        numbers.collect::<Vec<_>>()
    };
    eventually("three lines", || lines().len() >= 3);
    let driver = cluster.job(other, &counting)["pid"].clone();
    // Actors of two nodes that stay, and what they send each other.
    let enough = cluster.folder.path().join("enough");
    let file = enough.display().to_string();
    let sending = crate::upgrade::program().map(|program| {
        let args = [&program, "--node", other, "--", "counts", &file, third];
        cluster.submit(other, &args)
    });
    if let Some(job) = &sending {
        let begun = || cluster.ok(other, &["logs", job]).contains("counting");
        eventually("messages between two nodes", begun);
    }
    let waiting = cluster.submit(other, &["/bin/true", "--node", "nowhere"]);

    cluster.kill(&leader);
    let killed = Clock::now();
    let next = found("the next leader", || {
        cluster.leader(other).filter(|next| *next != leader)
    });
    let took = Clock::now().since(killed);
    eprintln!("{next} leads {took:?} after {leader} was killed");
    // Far more than is promised, for a machine that does other things.
    assert!(took < Duration::from_secs(15), "{took:?}");

    // What was accepted is there, what runs was not disturbed, and more is accepted.
    let jobs = cluster.ok(other, &["jobs"]);
    assert!(
        jobs.contains(&counting) && jobs.contains(&waiting),
        "{jobs}"
    );
    let seen = lines().len();
    eventually("more lines", || lines().len() >= seen + 5);
    let printed = lines();
    assert_eq!(printed, (1..=printed.len() as u64).collect::<Vec<_>>());
    let shown = cluster.job(other, &counting);
    assert_eq!(
        (&shown["state"], &shown["tries"]),
        (&"running".into(), &1.into())
    );
    assert_eq!(shown["pid"], driver);
    fs::write(enough, "").unwrap();
    if let Some(job) = &sending {
        let ended = cluster.run(other, &["wait", job]);
        let shown = cluster.job(other, job);
        assert!(ended.status.success() && shown["tries"] == 1, "{shown}");
    }
    // It goes to a node that is there, though nobody has said yet that one is not.
    let done = cluster.run(other, &["submit", "/bin/true", "--wait"]);
    assert!(done.status.success(), "{}", text(&done.stderr));
    // Whoever asks at the one that was killed hears it from another.
    assert!(cluster.ok(&leader, &["jobs"]).contains(&waiting));

    // It comes back as a voter.
    cluster.start();
    let status = cluster.status(&leader);
    assert_eq!(status["voters"].as_array().unwrap().len(), 3);
    cluster.ok(other, &["stop", &counting]);
    let shown = cluster.ok(&leader, &["job", "show", &counting]);
    assert!(shown.contains("stopped by"), "{shown}");
}

/// Numbers up to 3000 that a job prints, in bursts.
const BURSTS: &str = "n=0; while [ $n -lt 3000 ]; do n=$((n+1)); echo $n; \
    [ $((n % 10)) != 0 ] || sleep 0.02; done";

/// SEMANTICS 57.
#[test]
fn who_follows_a_job_while_the_leader_is_killed_sees_each_line_once() {
    let cluster = Cluster::up();
    let leader = cluster.leader("node-2").unwrap();
    let others = cluster.others(&leader);
    let (other, third) = (others[0].as_str(), others[1].as_str());
    let job = cluster.submit(other, &["/bin/sh", "--node", third, "--", "-c", BURSTS]);
    // One asks the leader, which dies, and one another voter.
    let mut followers: Vec<_> = [leader.as_str(), other]
        .into_iter()
        .map(|node| {
            let mut follow = cluster.command(node, &["logs", "-f", &job]);
            let follow = follow.stdout(Stdio::piped()).stderr(Stdio::piped());
            let mut child = follow.spawn().unwrap();
            let lines = BufReader::new(child.stdout.take().unwrap()).lines();
            (child, lines.map(Result::unwrap))
        })
        .collect();
    let mut seen: Vec<Vec<String>> = vec![];
    for (_, lines) in &mut followers {
        seen.push(lines.take(100).collect());
    }
    cluster.kill(&leader);
    let expect: Vec<String> = (1..=3000).map(|n| n.to_string()).collect();
    for ((mut child, lines), mut seen) in followers.into_iter().zip(seen) {
        seen.extend(lines);
        let mut said = String::new();
        child
            .stderr
            .take()
            .unwrap()
            .read_to_string(&mut said)
            .unwrap();
        assert!(child.wait().unwrap().success(), "{said}");
        assert_eq!((seen, said.as_str()), (expect.clone(), ""));
    }
    // Whoever reads it later sees the same, at whichever voter.
    cluster.start();
    for node in ["head", "node-2", "node-3"] {
        let printed = cluster.ok(node, &["logs", &job]);
        assert_eq!(printed.lines().collect::<Vec<_>>(), expect, "at {node}");
    }
}

#[test]
fn commands_go_to_another_node_while_the_daemon_of_their_machine_hangs() {
    let cluster = Cluster::up();
    let file = cluster.dir("head").join("api.json");
    let others = || {
        let file = fs::read_to_string(&file).unwrap();
        let file: serde_json::Value = serde_json::from_str(&file).unwrap();
        file["others"].as_array().map_or(0, Vec::len)
    };
    eventually("two others", || others() >= 2);
    let job = cluster.submit("head", &["/bin/sh", "--node=node-2", "--", "-c", BURSTS]);
    let mut follow = cluster.command("head", &["logs", "-f", &job]);
    let mut follow = follow.stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(follow.stdout.take().unwrap()).lines();
    let mut seen: Vec<String> = lines.by_ref().take(100).map(Result::unwrap).collect();

    cluster.signal("head", Signal::STOP);
    for args in [
        &["jobs"][..],
        &["status"],
        &["submit", "/bin/true", "--wait", "--node=node-2"],
        // What may not be sent twice.
        &["drain", "node-3"],
        &["drain", "node-3", "--undo"],
    ] {
        let begun = Clock::now();
        cluster.ok("head", args);
        let took = Clock::now().since(begun);
        eprintln!("{args:?} took {took:?}");
        // Two to four seconds when the machine does nothing else; a minute is how long an answer may take.
        assert!(took < Duration::from_secs(25), "{args:?} took {took:?}");
    }
    // Who follows a job goes to another node as well.
    seen.extend(lines.map(Result::unwrap));
    assert!(follow.wait().unwrap().success());
    let expect: Vec<String> = (1..=3000).map(|n| n.to_string()).collect();
    assert_eq!(seen, expect);
    cluster.signal("head", Signal::CONT);
    cluster.ok("head", &["wait", &job]);
}

/// SEMANTICS 60.
#[test]
fn one_voter_of_three_refuses_to_write_and_goes_on_when_another_is_back() {
    let cluster = Cluster::up();
    let before = cluster.submit("head", &["/bin/true"]);
    cluster.ok("head", &["wait", &before]);
    cluster.kill("node-2");
    cluster.kill("node-3");
    eventually("the loss of its leader", || {
        cluster.leader("head").is_none()
    });
    let begun = Clock::now();
    let why = cluster.fails("head", &["drain", "node-2"]);
    assert!(
        why.contains("the catalog cannot be written")
            || why.contains("did not answer")
            || why.contains("no majority"),
        "{why}"
    );
    assert!(!why.contains("registered") && !why.contains('@'), "{why}");
    assert!(
        Clock::now().since(begun) < Duration::from_secs(40),
        "{:?}",
        Clock::now().since(begun)
    );
    // What it knows it still tells.
    let shown = cluster.ok("head", &["job", "show", &before]);
    assert!(shown.contains("succeeded"), "{shown}");
    // That it may be old is said beside it.
    for args in [
        &["jobs", "--all", "--json"][..],
        &["job", "show", &before],
        &["namespace", "ls"],
        &["key", "list"],
        &["events"],
        &["logs", &before],
    ] {
        let output = cluster.run("head", args);
        let said = text(&output.stderr);
        assert!(output.status.success(), "{args:?}: {said}");
        let is_said = said.starts_with("no majority of the voters (")
            && said.ends_with(") works together: what is shown may be old\n")
            && said.lines().count() == 1;
        assert!(is_said, "{args:?}: {said}");
    }
    // By now it is no election any more, so nobody waits for one.
    let begun = Clock::now();
    let why = cluster.fails("head", &["submit", "/bin/true"]);
    assert!(why.contains("nothing is accepted"), "{why}");
    let took = Clock::now().since(begun);
    assert!(took < Duration::from_secs(4), "{took:?}");
    // What it does not know, it says.
    eventually("two nodes of which it knows nothing", || {
        let output = cluster.run("head", &["status"]);
        let (shown, said) = (text(&output.stdout), text(&output.stderr));
        assert_eq!(output.status.code(), Some(3), "{shown}{said}");
        assert!(said.starts_with("no majority of the voters"), "{said}");
        assert!(shown.contains("leader nobody"), "{shown}");
        let is = |node: &str, state: &str| {
            let row = shown.lines().find(|line| line.starts_with(node)).unwrap();
            row.split_whitespace().nth(1) == Some(state)
        };
        assert!(is("head", "up"), "{shown}");
        is("node-2", "unknown") && is("node-3", "unknown")
    });

    cluster.start();
    let after = cluster.submit("head", &["/bin/true"]);
    cluster.ok("head", &["wait", &after]);
    assert!(cluster.ok("node-3", &["jobs", "--all"]).contains(&before));
}

/// SEMANTICS 60.
#[test]
fn a_cluster_of_three_voters_that_was_down_is_back_with_all_it_knew() {
    let cluster = Cluster::up();
    let done = cluster.submit("head", &["/bin/sh", "--", "-c", "echo kept"]);
    cluster.ok("head", &["wait", &done]);
    let waiting = cluster.submit("node-2", &["/bin/true", "--node", "nowhere"]);
    let said = cluster.ok("head", &["down"]);
    assert!(said.contains("3 nodes down"), "{said}");
    let said = cluster.start();
    assert!(said.contains("voters: "), "{said}");
    assert!(
        cluster
            .ok("node-3", &["job", "show", &done])
            .contains("succeeded")
    );
    assert_eq!(cluster.ok("head", &["logs", &done]), "kept\n");
    assert!(cluster.ok("node-2", &["jobs"]).contains(&waiting));
    cluster.ok("node-2", &["cancel", &waiting]);
    // Whoever has written something through a node sees it there, whoever leads.
    for node in ["head", "node-2", "node-3"].repeat(5) {
        let job = cluster.submit(node, &["/bin/true", "--node", "nowhere"]);
        let shown = cluster.ok(node, &["jobs"]);
        assert!(shown.contains(&job), "{job} at {node}: {shown}");
    }
}

/// SEMANTICS 60.
#[test]
fn a_voter_without_its_disk_learns_anew_before_it_votes() {
    let cluster = Cluster::up();
    let before = cluster.submit("head", &["/bin/true"]);
    cluster.ok("head", &["wait", &before]);
    cluster.kill("node-3");
    let log = cluster.dir("node-3").join("catalog.redb");
    fs::remove_file(&log).unwrap();
    cluster.start();
    // It loses its seat, learns, and has it again.
    let file = cluster.dir("node-3").join("node.json");
    let seat = || {
        let node = fs::read_to_string(&file).unwrap();
        !node.contains("\"votes_as\": null")
    };
    eventually("its seat", seat);
    eventually("three voters", || cluster.names().len() >= 3);
    // It may be seen with the seat that it had, before it is there to be asked.
    eventually("what it has learnt", || {
        let output = cluster.run("node-3", &["jobs", "--all"]);
        output.status.success() && text(&output.stdout).contains(&before)
    });
    // It counts: without it and one more there is no majority.
    cluster.kill("node-2");
    let after = cluster.submit("node-3", &["/bin/true", "--node", "head"]);
    cluster.ok("node-3", &["wait", &after]);
}

/// SEMANTICS 16.
#[test]
fn a_node_that_was_paused_is_found_again_by_all() {
    let cluster = Cluster::new();
    let up = ["up", "--api", "127.0.0.1:0", "--name", "head", "--nodes=3"];
    cluster.ok("head", &up);
    // About as long as a link may be silent, so that one side gives it up and the other does not.
    for pause in [9_600, 10_200] {
        cluster.signal("node-2", Signal::STOP);
        let begun = Clock::now();
        while Clock::now().since(begun) < Duration::from_millis(pause) {
            cluster.status("head");
        }
        cluster.signal("node-2", Signal::CONT);
        for node in ["node-2", "node-3", "head"] {
            let said = cluster.ok(
                "head",
                &[
                    "submit",
                    "/bin/true",
                    "--wait",
                    "--retries=1",
                    "--node",
                    node,
                ],
            );
            assert!(said.contains("submitted"), "{said}");
        }
    }
}

#[test]
fn a_job_whose_node_does_not_hear_its_orders_says_so() {
    let cluster = Cluster::new();
    let up = ["up", "--api", "127.0.0.1:0", "--name", "head", "--nodes=2"];
    cluster.ok("head", &up);
    cluster.signal("node-2", Signal::STOP);
    // Nobody knows yet that it does not hear.
    let job = cluster.submit("head", &["/bin/true", "--node", "node-2", "--retries=1"]);
    let begun = Clock::now();
    let why = loop {
        let shown = cluster.job("head", &job);
        if let ("staging", Some(why)) = (shown["state"].as_str().unwrap(), shown["why"].as_str()) {
            break why.to_owned();
        }
        let waited = Clock::now().since(begun);
        assert!(waited < Duration::from_secs(30), "{shown}");
    };
    assert!(why.contains("node `node-2`"), "{why}");
    let jobs = cluster.ok("head", &["jobs"]);
    cluster.signal("node-2", Signal::CONT);
    assert!(
        jobs.contains(&format!("{job} is held up: node `node-2`")),
        "{jobs}"
    );
    cluster.ok("head", &["wait", &job]);
}

/// SEMANTICS 60.
#[test]
fn the_last_of_three_voters_goes_on_alone_when_it_is_told_to() {
    let cluster = Cluster::up();
    let before = cluster.submit("node-2", &["/bin/sh", "--", "-c", "echo kept"]);
    cluster.ok("head", &["wait", &before]);
    let why = cluster.fails("head", &["up", "--alone"]);
    assert!(why.contains("a daemon runs in"), "{why}");
    // The machines of the two others are gone.
    for node in ["head", "node-2", "node-3"] {
        cluster.kill(node);
    }
    for node in ["node-2", "node-3"] {
        fs::remove_dir_all(cluster.dir(node)).unwrap();
    }
    let alone = ["up", "--alone", "--api", "127.0.0.1:0"];
    cluster.ok("head", &alone);
    let status = cluster.ok("head", &["status"]);
    assert!(
        status.contains("leader head, voters head (3 wanted)"),
        "{status}"
    );
    assert_eq!(cluster.ok("head", &["logs", &before]), "kept\n");
    let after = cluster.submit("head", &["/bin/true", "--node", "head"]);
    cluster.ok("head", &["wait", &after]);
}

/// SEMANTICS 60.
#[test]
fn a_node_that_does_not_vote_answers_through_one_that_does() {
    let cluster = Cluster::new();
    let up = ["up", "--api", "127.0.0.1:0", "--name", "head", "--nodes=2"];
    cluster.ok("head", &up);
    let job = cluster.submit("node-2", &["/bin/sh", "--", "-c", "echo through; exit 4"]);
    assert_eq!(
        cluster.run("node-2", &["wait", &job]).status.code(),
        Some(4)
    );
    assert_eq!(cluster.ok("node-2", &["logs", &job]), "through\n");
    let keys = cluster.ok("node-2", &["key", "list"]);
    assert!(keys.contains("owner@node-2"), "{keys}");
    let refused = cluster.fails("node-2", &["job", "show", "j99"]);
    assert!(refused.contains("there is no job j99"), "{refused}");
    // Whoever has no key sends no body.
    let file = fs::read_to_string(cluster.dir("node-2").join("api.json")).unwrap();
    let file: serde_json::Value = serde_json::from_str(&file).unwrap();
    let address = file["url"]
        .as_str()
        .unwrap()
        .strip_prefix("http://")
        .unwrap();
    let mut stream = TcpStream::connect(address).unwrap();
    let head = "POST /api/v1/bundles HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer wrong\r\n\
                Content-Length: 30000000\r\n\r\n";
    stream.write_all(head.as_bytes()).unwrap();
    let mut answer = [0; 12];
    stream.read_exact(&mut answer).unwrap();
    assert_eq!(&answer, b"HTTP/1.1 401");
    // So does its live page of jobs.
    let mut stream = TcpStream::connect(address).unwrap();
    let key = file["key"].as_str().unwrap();
    let ask = format!(
        "GET /api/v1/inspect/stream?view=jobs HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {key}\r\n\r\n"
    );
    stream.write_all(ask.as_bytes()).unwrap();
    let mut lines = BufReader::new(stream).lines().map_while(Result::ok);
    for _ in 0..2 {
        assert!(lines.any(|it| it == "event: snapshot"));
        let page = lines.next().unwrap();
        assert!(page.contains(&format!("\"id\":\"{job}\"")), "{page}");
    }
    // More vote when more are wanted, and fewer when fewer are.
    cluster.ok("node-2", &["voters", "3"]);
    let status = cluster.ok("head", &["status"]);
    assert!(status.contains("voters head (3 wanted)"), "{status}");
    cluster.start();
    cluster.ok("node-3", &["voters", "1"]);
    let voters = || cluster.status("node-3")["voters"].as_array().unwrap().len();
    eventually("one voter", || voters() == 1);
    // Those that lost their seats answer still.
    for node in ["head", "node-2", "node-3"] {
        assert!(cluster.ok(node, &["jobs", "--all"]).contains(&job));
    }
    let even = cluster.fails("head", &["voters", "2"]);
    assert!(even.contains("an odd number"), "{even}");
}

/// SEMANTICS 60.
#[test]
fn a_node_that_is_silent_holds_up_the_end_of_no_job_but_its_own() {
    let cluster = Cluster::up();
    let leader = cluster.leader("head").unwrap();
    let silent = if leader == "node-3" {
        "node-2"
    } else {
        "node-3"
    };
    cluster.signal(silent, Signal::STOP);
    for _ in 0..3 {
        let job = cluster.submit(&leader, &["/bin/true", "--node", &leader]);
        cluster.ok(&leader, &["wait", &job]);
    }
    let status = cluster.status(&leader);
    let nodes = status["nodes"].as_array().unwrap();
    let row = nodes.iter().find(|node| node["name"] == silent).unwrap();
    cluster.signal(silent, Signal::CONT);
    assert_eq!(row["state"], "up", "it was lost before the jobs were over");
}

/// SEMANTICS 60.
#[test]
fn whoever_joins_after_a_change_of_leaders_is_there_at_once_and_stays() {
    let mut cluster = Cluster::up();
    let first = cluster.leader("head").unwrap();
    let others = cluster.others(&first);
    cluster.kill(&first);
    let led = || cluster.leader(&others[0]).is_some_and(|it| it != first);
    eventually("another leader", led);
    // Its name comes behind all others, so it is the one that is dialled.
    let dir = cluster.folder.path().join("zz");
    cluster.nodes.add("zz", &dir);
    let token = cluster.json(&others[0], &["token", "--json"]);
    let word = |name: &str| token[name].as_str().unwrap().to_owned();
    let (address, token) = (word("address"), word("token"));
    let join = ["join", &address, "--token", &token, "--name", "zz"];
    let places = ["--listen", "127.0.0.1:0", "--api", "127.0.0.1:0"];
    cluster.ok("zz", &[&join[..], &places].concat());
    for _ in 0..3 {
        let job = cluster.submit(&others[1], &["/bin/true", "--node", "zz"]);
        cluster.ok("zz", &["wait", &job]);
    }
    let events = cluster.ok(&others[0], &["events"]);
    let lost = |line: &&str| line.contains("zz") && line.contains("lost");
    assert_eq!(events.lines().find(lost), None);
}
