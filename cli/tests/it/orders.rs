//! Jobs that come after others, arrays of jobs, and how long jobs may take to end, as people ask for them.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use odeon_skip::{Need, skip};
use serde_json::Value;

use crate::nodes::{Nodes, eventually, found, text};
use crate::programs::Node;

/// A shell that goes on when a file is there.
fn until(file: &Path) -> String {
    format!("while ! [ -e {} ]; do sleep 0.05; done", file.display())
}

fn shown(node: &Node, job: &str) -> Value {
    let (out, _) = node.ok(&["job", "show", "--json", job]);
    serde_json::from_str(&out).unwrap()
}

/// SEMANTICS 119.
#[test]
fn a_job_waits_for_those_that_it_comes_after() {
    let node = Node::up(&[]);
    let go = node.here().join("go");
    let until = until(&go);
    node.ok(&["submit", "--name", "first", "--", "sh", "-c", &until]);
    let after = ["submit", "--after", "first", "--after", "j1"];
    let (_, said) = node.ok(&[&after, ["--name", "second", "/bin/true"].as_slice()].concat());
    assert_eq!(said, "submitted j2 (second)\n");
    let second = [
        "submit",
        "--after",
        "second",
        "--name",
        "third",
        "/bin/true",
    ];
    node.ok(&second);
    let (jobs, _) = node.ok(&["jobs"]);
    assert!(
        jobs.contains("j2 waits: it begins after j1 and j1 have succeeded")
            || jobs.contains("j2 waits: it begins after j1 has succeeded"),
        "{jobs}"
    );
    let (why, _) = node.ok(&["why", "third"]);
    assert!(why.contains("it begins after j2 has succeeded"), "{why}");
    fs::write(&go, "").unwrap();
    node.ok(&["wait", "third"]);
    let began = |job: &str| shown(&node, job)["begun_ms"].as_u64().unwrap();
    let ended = |job: &str| shown(&node, job)["since_ms"].as_u64().unwrap();
    assert!(ended("j1") <= began("j2") && ended("j2") <= began("j3"));
    // One that fails takes with it who waits for it.
    fs::remove_file(&go).unwrap();
    let fails = format!("{until}; exit 3");
    node.ok(&["submit", "--name", "fails", "--", "sh", "-c", &fails]);
    node.ok(&["submit", "--after", "fails", "--name", "next", "/bin/true"]);
    node.ok(&["submit", "--after", "next", "--name", "last", "/bin/true"]);
    fs::write(&go, "").unwrap();
    let waited = node.run(&["wait", "last"]);
    assert_eq!(waited.status.code(), Some(125));
    let said = text(&waited.stderr);
    assert!(
        said.contains("cancelled: it comes after j5, and j4 failed: exit status: 3"),
        "{said}"
    );
    // What is no job, and what would never begin.
    let refused = node.fails(&["submit", "--after", "nobody", "/bin/true"]);
    assert!(
        refused.contains("there is no job `nobody` to come after"),
        "{refused}"
    );
    let refused = node.fails(&["submit", "--after", "j99", "/bin/true"]);
    assert!(
        refused.contains("there is no job `j99` to come after"),
        "{refused}"
    );
    let refused = node.fails(&["submit", "--after", "fails", "/bin/true"]);
    assert!(
        refused.contains("would never begin: j4 failed"),
        "{refused}"
    );
    assert!(refused.contains("odeon retry j4"), "{refused}");
}

/// SEMANTICS 120.
#[test]
fn an_array_is_a_job_for_each_index_and_one_thing_by_its_name() {
    let node = Node::up(&[]);
    let script = "echo index $ODEON_ARRAY_INDEX of $ODEON_ARRAY_COUNT; [ $ODEON_ARRAY_INDEX != 3 ]";
    let submit = [
        "submit",
        "--array",
        "0-4:2,3%2",
        "--name",
        "sweep",
        "--wait",
    ];
    let waited = node.run(&[&submit, ["--", "sh", "-c", script].as_slice()].concat());
    let said = text(&waited.stderr);
    assert!(
        said.contains("submitted sweep: 4 jobs, j1 to j4, 2 at once"),
        "{said}"
    );
    assert!(
        said.contains("sweep: 4 jobs are over: 1 failed, 3 succeeded"),
        "{said}"
    );
    assert!(
        said.contains("sweep-3 (j4) failed: exit status: 1"),
        "{said}"
    );
    assert_eq!(waited.status.code(), Some(1));
    let (out, _) = node.ok(&["logs", "sweep"]);
    assert_eq!(
        out,
        "[sweep-0] index 0 of 4\n[sweep-2] index 2 of 4\n[sweep-4] index 4 of 4\n[sweep-3] index 3 of 4\n"
    );
    assert_eq!(node.ok(&["logs", "sweep-2"]).0, "index 2 of 4\n");
    assert_eq!(shown(&node, "sweep-3")["array"]["index"], 3);
    let refused = node.fails(&["job", "show", "sweep"]);
    assert!(
        refused.contains("an array of 4 jobs, j1 to j4: name one"),
        "{refused}"
    );
    let (why, _) = node.ok(&["why", "sweep"]);
    assert!(why.starts_with("sweep: 1 failed, 3 succeeded\n"), "{why}");
    // What failed is run again, and what comes after all of it waits.
    node.ok(&["retry", "sweep"]);
    let sum = ["submit", "--after", "sweep", "--name", "sum", "/bin/true"];
    let sum = node.run(&sum);
    let said = text(&sum.stderr);
    // It may have failed again by now.
    assert!(
        sum.status.success() || said.contains("would never begin"),
        "{said}"
    );
    for (spec, why) in [
        ("0-9%", "character 5, and there is nothing"),
        ("3-1", "goes down: write 1-3"),
        ("0-1000", "more than 1000 jobs"),
    ] {
        let refused = node.fails(&["submit", "--array", spec, "/bin/true"]);
        assert!(refused.contains(why), "{refused}");
    }
    // Two run, and the others wait in one row; all are ended by one name.
    let wide = [
        "submit", "--array", "0-99%2", "--name", "wide", "--", "sleep", "1000",
    ];
    node.ok(&wide);
    let running = || {
        let (out, _) = node.ok(&["jobs"]);
        out.matches(" running ").count()
    };
    eventually("two that run", || running() == 2);
    let (jobs, _) = node.ok(&["jobs", "--limit", "200"]);
    assert!(jobs.contains("wide (98 of 100)"), "{jobs}");
    assert!(jobs.lines().count() < 8, "{jobs}");
    assert!(jobs.contains("as many as may at once"), "{jobs}");
    let (_, said) = node.ok(&["cancel", "wide"]);
    assert!(said.contains("98 cancelled"), "{said}");
    let (_, said) = node.ok(&["stop", "wide"]);
    assert!(said.contains("2 stopped"), "{said}");
    let refused = node.fails(&["stop", "wide"]);
    assert!(refused.contains("all are over"), "{refused}");
}

/// SEMANTICS 119, 120.
#[test]
fn arrays_and_later_jobs_outlive_the_leader() {
    let mut nodes = Nodes::new(|_| vec![]);
    let head = nodes.folder.path().join("head");
    nodes.add("head", &head);
    for name in ["node-2", "node-3"] {
        nodes.add(name, &head.join("nodes").join(name));
    }
    let up = [
        "up",
        "--api",
        "127.0.0.1:0",
        "--name",
        "head",
        "--nodes=3",
        "--voters",
    ];
    nodes.ok("head", &up);
    let leader = nodes.leader("node-2").unwrap();
    let others = nodes.others(&leader);
    let (other, third) = (others[0].as_str(), others[1].as_str());
    let begun = nodes.folder.path().join("begun");
    fs::create_dir(&begun).unwrap();
    // How many run at the same time is seen by folders that each makes while it does.
    let script = format!(
        "cd {0}; mkdir run-$ODEON_ARRAY_INDEX; ls -d run-* | wc -l >> ../most; sleep 0.3; rmdir run-$ODEON_ARRAY_INDEX; echo >> ../done",
        begun.display()
    );
    let array = [
        "submit", "--array", "0-19%3", "--name", "sweep", "--node", third, "--", "sh", "-c",
        &script,
    ];
    nodes.ok(other, &array);
    nodes.ok(
        other,
        &[
            "submit",
            "--after",
            "sweep",
            "--name",
            "sum",
            "--node",
            third,
            "/bin/true",
        ],
    );
    let lines = |name: &str| {
        let text = fs::read_to_string(nodes.folder.path().join(name)).unwrap_or_default();
        text.lines()
            .map(|it| it.trim().parse::<u32>().unwrap_or(0))
            .collect::<Vec<_>>()
    };
    eventually("some that are done", || lines("done").len() >= 4);
    assert_eq!(nodes.job(other, "sum")["state"], "waiting");
    nodes.kill(&leader);
    let waited = nodes.run(other, &["wait", "sum"]);
    assert!(waited.status.success(), "{}", text(&waited.stderr));
    assert_eq!(lines("done").len(), 20);
    let most = lines("most").into_iter().max().unwrap();
    assert!(most <= 3, "{most} at once");
    let sweep = nodes.run(other, &["wait", "sweep"]);
    assert!(sweep.status.success(), "{}", text(&sweep.stderr));
}

/// SEMANTICS 121.
#[test]
fn a_job_has_its_grace_to_end_whoever_ends_it() {
    let node = Node::up(&[]);
    let here = node.here().display().to_string();
    // Longer than the ten seconds of who says nothing.
    let slow = format!(
        "trap 'echo > {here}/asked; while ! [ -e {here}/go ]; do sleep 0.05; done; echo > {here}/saved; exit 0' TERM; \
         echo > {here}/ready; while :; do sleep 0.05; done"
    );
    let there = |name: &str| node.here().join(name).exists();
    let again = || {
        for name in ["asked", "go", "saved", "ready"] {
            let _ = fs::remove_file(node.here().join(name));
        }
    };
    let begin = |args: &[&str]| {
        again();
        node.ok(&[&["submit"], args, &["--", "sh", "-c", &slow]].concat());
        eventually("a job that runs", || there("ready"));
    };
    let outlasts = |what: &mut dyn FnMut() -> bool| {
        let begun = odeon::Clock::now();
        eventually("more than ten seconds", || {
            assert!(!what(), "it was ended before its grace was over");
            odeon::Clock::now().since(begun).as_secs() >= 11
        });
        fs::write(node.here().join("go"), "").unwrap();
        eventually("what it saves", || there("saved"));
    };
    // Stopped by somebody.
    begin(&["--name", "slow", "--grace", "60s"]);
    node.ok(&["stop", "--no-wait", "slow"]);
    outlasts(&mut || shown(&node, "slow")["over"] == true);
    node.run(&["wait", "slow"]);
    // By its time limit.
    begin(&["--name", "timed", "--grace", "60", "--time-limit", "1s"]);
    eventually("its time", || there("asked"));
    outlasts(&mut || shown(&node, "timed")["over"] == true);
    let waited = node.run(&["wait", "timed"]);
    assert_eq!(waited.status.code(), Some(124));
    assert_eq!(shown(&node, "timed")["grace_s"], 60);
    let refused = node.fails(&["submit", "--grace", "2h", "/bin/true"]);
    assert!(
        refused.contains("`2h` is no grace: at most 1h"),
        "{refused}"
    );
    // By the end of its node, which who ends it waits for.
    begin(&["--name", "last", "--grace", "60s"]);
    let mut down = node
        .command(&["down"])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    outlasts(&mut || down.try_wait().unwrap().is_some());
    assert!(down.wait().unwrap().success());
}

#[test]
fn a_wait_has_a_limit() {
    let node = Node::up(&[]);
    node.ok(&["submit", "--name", "long", "--", "sleep", "1000"]);
    found("the job", || {
        (shown(&node, "long")["state"] == "running").then_some(())
    });
    let waited = node.run(&["wait", "--timeout", "1s", "long"]);
    assert_eq!(waited.status.code(), Some(124));
    let said = text(&waited.stderr);
    assert!(
        said.contains("j1 is running after 1 s of waiting; it goes on"),
        "{said}"
    );
    let refused = node.fails(&["cancel", "long"]);
    assert!(refused.contains("j1 is running on head"), "{refused}");
    assert!(refused.contains("odeon stop j1"), "{refused}");
    node.ok(&["stop", "long"]);
    let refused = node.fails(&["cancel", "long"]);
    assert!(
        refused.contains("j1 is over already: it stopped by owner")
            || refused.contains("j1 is over already"),
        "{refused}"
    );
}

/// SEMANTICS 123.
#[test]
fn a_job_that_does_nothing_is_ended_and_one_that_works_is_not() {
    let node = Node::up(&[]);
    let limit = ["submit", "--idle-limit", "10s"];
    let submit = |name: &str, script: &str| {
        let words = ["--name", name, "--", "sh", "-c", script];
        node.ok(&[limit.as_slice(), &words].concat());
    };
    let done = node.here().join("done");
    let go = node.here().join("go");
    // One waits, one prints now and then, and one computes; the two end when they are told to.
    let until = |what: &str| {
        format!(
            "while ! [ -e {} ]; do {what}; done; echo >> {}",
            go.display(),
            done.display()
        )
    };
    submit("waits", "sleep 1000");
    submit("prints", &until("echo on; sleep 1"));
    submit(
        "works",
        &until("i=0; while [ $i -lt 1000 ]; do i=$((i+1)); done"),
    );
    let waited = node.run(&["wait", "waits"]);
    assert_eq!(waited.status.code(), Some(124));
    let said = text(&waited.stderr);
    let why = "ended after it had printed nothing and used no processor for 10 s, its idle limit";
    assert!(said.contains(why), "{said}");
    let (shown, _) = node.ok(&["job", "show", "waits"]);
    assert!(shown.contains("idle limit 10 s"), "{shown}");
    for name in ["prints", "works"] {
        let (jobs, _) = node.ok(&["jobs"]);
        assert!(jobs.contains(name), "{jobs}");
    }
    fs::write(&go, "").unwrap();
    for name in ["prints", "works"] {
        node.ok(&["wait", name]);
    }
    let refused = node.fails(&["submit", "--idle-limit", "1s", "/bin/true"]);
    assert!(
        refused.contains("an idle limit of 1 s: it is at least 10 s"),
        "{refused}"
    );
}

/// Files below a folder in which a text is, each with its mode.
fn holding(folder: &Path, text: &[u8]) -> Vec<(String, u32)> {
    use std::os::unix::fs::PermissionsExt;
    let mut found = vec![];
    let mut folders = vec![folder.to_owned()];
    while let Some(next) = folders.pop() {
        for entry in fs::read_dir(&next).into_iter().flatten().flatten() {
            let meta = fs::symlink_metadata(entry.path()).unwrap();
            if meta.is_dir() {
                folders.push(entry.path());
            } else if meta.is_file() {
                let bytes = fs::read(entry.path()).unwrap_or_default();
                if bytes.windows(text.len()).any(|it| it == text) {
                    let name = entry.file_name().to_string_lossy().into_owned();
                    found.push((name, meta.permissions().mode() & 0o777));
                }
            }
        }
    }
    found
}

/// SEMANTICS 124.
#[test]
fn the_value_of_a_variable_is_told_to_nobody_but_the_job() {
    let node = Node::up(&[]);
    node.ok(&["down"]);
    // Whatever a daemon logs at all.
    let up = node
        .command(&["up", "--api", "127.0.0.1:0", "--name", "head"])
        .env("ODEON_LOG", "trace")
        .output()
        .unwrap();
    assert!(up.status.success(), "{}", text(&up.stderr));
    // As nothing else is called.
    let name = node.folder().file_name().unwrap().to_string_lossy();
    let secret = format!("hush{}of{name}", std::process::id());
    let script = "[ -n \"$TOKEN\" ] && [ \"$SECOND\" = \"2 $TOKEN\" ] && echo it has ${#TOKEN} letters; sleep 1000";
    let elsewhere = tempfile::tempdir().unwrap();
    let file = elsewhere.path().join("own.env");
    fs::write(
        &file,
        format!("# Not for all.\nTOKEN=other\nexport SECOND='2 {secret}'\n"),
    )
    .unwrap();
    let submitted = node
        .command(&[
            "submit", "--json", "--env", "TOKEN", "--name", "quiet", "--array", "1-2",
        ])
        .arg("--env-file")
        .arg(&file)
        .args(["--", "sh", "-c", script])
        .env("TOKEN", &secret)
        .output()
        .unwrap();
    let mut told = vec![text(&submitted.stdout) + &text(&submitted.stderr)];
    let recording = node.folder().join("recording");
    let path = recording.display().to_string();
    eventually("two that run", || {
        let (out, _) = node.ok(&["logs", "quiet"]);
        out.matches(&format!("it has {} letters", secret.len()))
            .count()
            == 2
    });
    let ask = |args: &[&str], told: &mut Vec<String>| {
        let output = node.run(args);
        told.push(text(&output.stdout) + &text(&output.stderr));
    };
    ask(&["record", &path, "--for", "1"], &mut told);
    for args in [
        ["jobs", "--all", "--json"].as_slice(),
        &["job", "show", "--json", "quiet-1"],
        &["why", "--json", "quiet-1"],
        &["status", "--json"],
        &["ps", "--all", "--json"],
        &["top", "--once", "--json", "--page", "jobs"],
        &["stop", "quiet"],
        &["events", "--json"],
        &["jobs", "--all", "--json"],
    ] {
        ask(args, &mut told);
    }
    // What a client can ask of the API that no command does.
    for path in [
        "/api/v1/news",
        "/api/v1/jobs?named=quiet",
        "/metrics",
        "/api/v1/inspect/view?view=jobs",
    ] {
        told.push(node.get(path));
    }
    assert!(
        told[0].contains("quiet") && told.iter().all(|it| !it.is_empty()),
        "{told:?}"
    );
    for text in &told {
        assert!(!text.contains(&secret), "{text}");
    }
    assert!(
        holding(node.folder(), b"quiet").len() > 1,
        "the look finds what is there"
    );
    let mut kept = holding(&node.dir(), secret.as_bytes());
    kept.extend(holding(node.folder(), secret.as_bytes()));
    // Where jobs wait to be begun again, for the folder's owner alone.
    for (name, mode) in &kept {
        assert_eq!(
            (name.as_str(), mode & 0o077),
            ("catalog.redb", 0),
            "{kept:?}"
        );
    }
    use std::os::unix::fs::PermissionsExt;
    let folder = fs::metadata(node.dir()).unwrap().permissions().mode();
    assert_eq!(folder & 0o077, 0, "{folder:o}");
}

/// SEMANTICS 122. On a disk of 64 MB, in a namespace of its own: the test begins again there.
#[test]
fn a_disk_that_is_nearly_full_is_a_problem_until_there_is_room_again() {
    const DISK: &str = "ODEON_TEST_LOW_DISK";
    let Some(disk) = std::env::var_os(DISK) else {
        let name = "orders::a_disk_that_is_nearly_full_is_a_problem_until_there_is_room_again";
        return on_small_disk("64m", DISK, name);
    };
    let disk = Path::new(&disk);
    let node = Node::up(&[]);
    let data = disk.join("data");
    let on_disk = |args: &[&str]| {
        let output = node.command(args).env("ODEON_DIR", &data).output().unwrap();
        text(&output.stdout) + &text(&output.stderr)
    };
    on_disk(&[
        "up",
        "--api",
        "127.0.0.1:0",
        "--name",
        "small",
        "--disk-alarm",
        "50%",
    ]);
    let why = "small: less than 50 % of its disk is free";
    let status = on_disk(&["status"]);
    assert!(
        status.contains("small") && !status.contains(why),
        "{status}"
    );
    let fill = disk.join("fill");
    let made = Command::new("sh")
        .args(["-c", "head -c 40000000 /dev/zero > \"$0\""])
        .arg(&fill)
        .status();
    assert!(made.unwrap().success());
    let problem = || on_disk(&["top", "--once", "--json", "--page", "now"]).contains("low_disk");
    eventually("the word in the status", || {
        on_disk(&["status"]).contains(why)
    });
    eventually("the problem", problem);
    let events = on_disk(&["events", "--kind", "problem"]);
    assert!(
        events.contains("less than 50 % of its disk is free"),
        "{events}"
    );
    fs::remove_file(&fill).unwrap();
    eventually("room", || !on_disk(&["status"]).contains(why));
    eventually("no problem", || !problem());
    on_disk(&["down"]);
}

/// Runs a test again in a namespace of its own, with a disk of this size; skips it where none can be mounted.
fn on_small_disk(size: &str, variable: &str, test: &str) {
    let folder = tempfile::tempdir().unwrap();
    let mounted =
        format!("mount -t tmpfs -o size={size} none \"$1\" || exit 99; shift; exec \"$@\"");
    let run = Command::new("unshare")
        .args(["-m", "sh", "-c", &mounted, "sh"])
        .args([folder.path(), &std::env::current_exe().unwrap()])
        .args([test, "--exact", "--nocapture"])
        .env(variable, folder.path())
        .output();
    match run {
        Ok(run) if run.status.code() != Some(99) => {
            let (out, err) = (text(&run.stdout), text(&run.stderr));
            assert!(run.status.success(), "{out}{err}");
        }
        _ => skip(Need::Mounts, "no disk can be mounted here"),
    }
}

/// SEMANTICS 38.
#[test]
fn a_recipe_that_is_begun_anew_goes_on_from_its_checkpoint() {
    let node = Node::up(&[]);
    let steps = 200;
    let recipe = format!(
        "[run]\nname = \"tiny\"\nout = \"results\"\n
[model]\nhidden = 16\nlayers = 1\nheads = 2\nkv_heads = 2\nffn = 16\ncontext = 32\n
[task.sums]\nform = \"compact\"\noperands_min = 2\noperands_max = 2\ndigits_min = 1\ndigits_max = 1\n
[rl]\nalgorithm = \"grpo\"\nsteps = {steps}\ngroups = 2\ngroup_size = 2\nlr = 0.001\nresponse_max = 8\ncheckpoint_every = 1\n
[processes]\nrollouts = 1\nslots = 4\n[eval]\nproblems = 2\n"
    );
    node.write("tiny.toml", &recipe);
    // Also where it was to begin anew: that is for its first try.
    node.ok(&[
        "submit",
        "--retries",
        "2",
        "--name",
        "tiny",
        "tiny.toml",
        "--",
        "--fresh",
    ]);
    let steps_told = || {
        let path = node.here().join("results/tiny/metrics.jsonl");
        let told = fs::read_to_string(path).unwrap_or_default();
        let lines = told
            .lines()
            .filter_map(|line| serde_json::from_str::<Value>(line).ok());
        let steps = lines.filter_map(|it| it["Step"]["version"].as_u64());
        steps.collect::<Vec<u64>>()
    };
    eventually("a few steps", || steps_told().iter().max() >= Some(&5));
    let pid = shown(&node, "tiny")["pid"].as_u64().unwrap().to_string();
    let killed = Command::new("kill").args(["-KILL", &pid]).status();
    assert!(killed.unwrap().success());
    let waited = node.run(&["wait", "tiny"]);
    assert!(waited.status.success(), "{}", text(&waited.stderr));
    let job = shown(&node, "tiny");
    assert_eq!(job["tries"], 2, "{job}");
    let told = steps_told();
    assert_eq!(told.iter().max(), Some(&steps), "{told:?}");
    assert_eq!(
        told.iter().filter(|step| **step == 1).count(),
        1,
        "{told:?}"
    );
    let refused = node.fails(&["submit", "tiny.toml", "fresh"]);
    assert!(
        refused.contains("`fresh` is no word of a recipe"),
        "{refused}"
    );
    let refused = node.fails(&["submit", "tiny.toml", "--", "--set", "rl.step=3"]);
    assert!(
        refused.contains("--set rl.step=3: unknown field `step`"),
        "{refused}"
    );
}

/// What is sent of a folder is there as it was: links, and what may be executed.
#[test]
fn links_of_a_folder_that_is_sent_are_links_there() {
    use std::os::unix::fs::symlink;
    let node = Node::up(&[]);
    node.write("v1/run.sh", "#!/bin/sh\necho run\n");
    node.write("v1/data", "text\n");
    let here = node.here();
    symlink("v1", here.join("current")).unwrap();
    symlink("../v1/run.sh", here.join("v1/again")).unwrap();
    symlink("/etc/hostname", here.join("host")).unwrap();
    let script = "readlink current v1/again; ./current/run.sh; cat current/data; [ -s host ] && echo host; [ -x v1/data ] || echo plain";
    let (out, said) = node.ok(&["submit", "--wait", "--file", ".", "--", "sh", "-c", script]);
    assert_eq!(out, "v1\n../v1/run.sh\nrun\ntext\nhost\nplain\n");
    assert!(
        said.contains("of 1 link what they lead to is sent"),
        "{said}"
    );
    assert!(said.contains("host -> /etc/hostname"), "{said}");
    // What leads to nothing yet is there as it is, with a word.
    symlink("later", here.join("v1/dangling")).unwrap();
    let script = "readlink v1/dangling; echo made > v1/later; cat v1/dangling";
    let (out, said) = node.ok(&["submit", "--wait", "--file", ".", "--", "sh", "-c", script]);
    assert_eq!(out, "later\nmade\n");
    assert!(
        said.contains("1 link of it leads to nothing, and is sent as it is"),
        "{said}"
    );
}

#[test]
fn a_script_without_a_first_line_runs_as_in_a_shell_and_one_of_windows_is_refused_in_words() {
    let node = Node::up(&[]);
    node.write("plain.sh", "echo from $0\n");
    let (out, _) = node.ok(&["submit", "--wait", "./plain.sh"]);
    assert_eq!(out, "from ./plain.sh\n");
    node.write("win.sh", "#!/bin/sh\r\necho no\r\n");
    for words in [
        &["submit", "./win.sh"][..],
        &["submit", "--gang", "1", "./win.sh"],
        &["gang", "1", "--", "./win.sh"],
    ] {
        let output = node.run(words);
        let said = text(&output.stderr);
        assert!(!output.status.success(), "{said}");
        assert!(
            said.contains("(CRLF)") && said.contains("dos2unix"),
            "{said}"
        );
    }
}

/// No node of the cluster has so many cores; one that joins may.
#[test]
fn a_job_that_no_node_could_take_is_told_so_when_it_is_submitted() {
    let node = Node::up(&[]);
    let (_, said) = node.ok(&["submit", "--cpus", "1000", "sh", "--", "-c", "true"]);
    assert!(said.contains("submitted j1"), "{said}");
    assert!(said.contains("no node that is up could take it"), "{said}");
    assert!(
        said.contains("it asks for 1000 cpu; the one that comes nearest, `head`"),
        "{said}"
    );
}

/// SEMANTICS 123.
#[test]
fn a_gang_is_idle_when_no_rank_of_it_works_on_any_node() {
    let node = Node::up(&["--nodes", "3", "--voters"]);
    // Two ranks do not fit on a node.
    let cores = std::thread::available_parallelism().unwrap().get();
    let cores = |share: f64| (cores as f64 * share).to_string();
    let submit = |name: &str, cores: &str, script: &str| {
        let gang = [
            "submit",
            "--gang",
            "3",
            "--cpus",
            cores,
            "--idle-limit",
            "10s",
        ];
        let words = ["--name", name, "--", "sh", "-c", script];
        node.ok(&[gang.as_slice(), &words].concat());
    };
    let go = node.here().join("go");
    let work = format!(
        "if [ $RANK = 2 ]; then while ! [ -e {} ]; do :; done; else sleep 1000; fi; exit 5",
        go.display()
    );
    // The larger first: beside it there is room for the other.
    submit("waits", &cores(0.6), "sleep 1000");
    submit("works", &cores(0.2), &work);
    let waited = node.run(&["wait", "waits"]);
    let said = text(&waited.stderr);
    assert_eq!(waited.status.code(), Some(124), "{said}");
    assert!(said.contains("its idle limit"), "{said}");
    // The other has had as long a time.
    assert_eq!(shown(&node, "works")["state"], "running");
    fs::write(&go, "").unwrap();
    assert_eq!(node.run(&["wait", "works"]).status.code(), Some(5));
}
