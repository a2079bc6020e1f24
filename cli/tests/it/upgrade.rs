//! A daemon becomes another program while what it runs goes on.

use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use odeon::Clock;
use odeon_skip::{Need, skip};
use rustix::process::{Pid, Signal, kill_process, test_kill_process};

use crate::nodes::{Nodes, PATIENCE, eventually, found, text};

/// Prints a number a line until a file is there.
const PRINTS: &str = r#"n=0; while [ ! -e "$0" ]; do n=$((n+1)); echo $n; sleep 0.002; done"#;

/// A cluster whose daemons run a copy of the command, which can be replaced.
struct Cluster {
    nodes: Nodes,
    program: PathBuf,
}

impl std::ops::Deref for Cluster {
    type Target = Nodes;

    fn deref(&self) -> &Nodes {
        &self.nodes
    }
}

impl Cluster {
    /// So many nodes: `n1`, `node-2`, and so on.
    fn new(nodes: u16) -> Self {
        let mut all = Nodes::new(|_| vec![]);
        let bin = all.folder.path().join("bin");
        fs::create_dir(&bin).unwrap();
        let program = bin.join("odeon");
        fs::copy(env!("CARGO_BIN_EXE_odeon"), &program).unwrap();
        let folder = all.folder.path().join("cluster");
        all.add("n1", &folder);
        for number in 2..=nodes {
            let name = format!("node-{number}");
            all.add(&name, &folder.join("nodes").join(&name));
        }
        let cluster = Self {
            nodes: all,
            program,
        };
        let started = found("a program that nobody writes", || {
            let started = Command::new(&cluster.program)
                .args(["up", "--name", "n1", "--listen", "127.0.0.1:0"])
                .args(["--api", "127.0.0.1:0", "--nodes", &nodes.to_string()])
                .env_remove("ODEON_LOG")
                .env("ODEON_DIR", &folder)
                .output();
            match started {
                // A process that another test starts at the moment has the new file open.
                Err(error) if error.kind() == ErrorKind::ExecutableFileBusy => None,
                started => Some(started.unwrap()),
            }
        });
        assert!(started.status.success(), "{}", text(&started.stderr));
        cluster
    }

    /// Puts another release where the daemons' program lies.
    fn release(&self) {
        let next = self.program.with_file_name("next");
        fs::copy(env!("CARGO_BIN_EXE_odeon"), &next).unwrap();
        fs::rename(next, &self.program).unwrap();
    }

    /// The file that a node's daemon runs.
    fn runs(&self, node: &str) -> u64 {
        let exe = format!("/proc/{}/exe", self.pid(node));
        fs::metadata(exe).unwrap().ino()
    }

    /// A file whose being there ends what counts and prints.
    fn end(&self) -> PathBuf {
        self.folder.path().join("enough")
    }

    fn logs(&self, node: &str, job: &str) -> Vec<String> {
        let said = self.run(node, &["logs", job]);
        assert!(said.status.success(), "{}", text(&said.stderr));
        text(&said.stdout).lines().map(str::to_owned).collect()
    }

    /// Waits until a job has printed a line that begins so.
    async fn printed(&self, job: &str, begin: &str) -> String {
        let looking = async {
            loop {
                let logs = self.logs("n1", job);
                if let Some(line) = logs.iter().find(|line| line.starts_with(begin)) {
                    return line.clone();
                }
                let job = self.job("n1", job);
                assert_eq!(job["over"], false, "{job}");
                Clock::sleep(Duration::from_millis(20)).await;
            }
        };
        let line = Clock::timeout(PATIENCE, looking).await;
        line.unwrap_or_else(|| panic!("{job} prints no {begin:?}"))
    }

    /// Waits for the end of a job, which must be a success.
    fn succeeds(&self, job: &str) {
        let waited = self.run("n1", &["wait", job]);
        let said = self.logs("n1", job).join("\n");
        let shown = self.job("n1", job);
        assert!(waited.status.success(), "{shown}\n{said}");
    }
}

/// The program with actors that the tests of clusters submit.
pub(crate) fn program() -> Option<String> {
    let program = Path::new(env!("CARGO_BIN_EXE_odeon")).with_file_name("job");
    if !program.exists() {
        let why = format!(
            "there is no {}: test the whole workspace",
            program.display()
        );
        skip(Need::OtherBinary, why);
        return None;
    }
    Some(program.display().to_string())
}

fn is_alive(pid: &str) -> bool {
    let pid = Pid::from_raw(pid.parse().unwrap()).unwrap();
    test_kill_process(pid).is_ok()
}

/// The numbers that a job has printed, each once and in order.
fn assert_whole(lines: &[String]) {
    let numbers: Vec<u64> = lines.iter().map(|line| line.parse().unwrap()).collect();
    let wanted: Vec<u64> = (1..=numbers.len() as u64).collect();
    assert_eq!(numbers, wanted);
}

/// SEMANTICS 66.
#[tokio::test(flavor = "multi_thread")]
async fn jobs_run_on_while_their_node_becomes_another_program() {
    let Some(program) = program() else {
        return;
    };
    let cluster = Cluster::new(1);
    let end = cluster.end();
    let end = end.to_str().unwrap();
    let counting = cluster.submit("n1", &[&program, "--", "counts", end, "n1", "n1"]);
    let printing = cluster.submit("n1", &["/bin/sh", "--", "-c", PRINTS, end]);
    let detaching = cluster.submit("n1", &[&program, "--", "detaches", "board"]);
    cluster.succeeds(&detaching);
    let worker = cluster.printed(&counting, "on n1: ").await;
    cluster.printed(&counting, "counting").await;
    cluster.printed(&printing, "1").await;
    let drivers = [&counting, &printing].map(|job| cluster.job("n1", job)["pid"].clone());
    let (pid, mut file) = (cluster.pid("n1"), cluster.runs("n1"));
    for _ in 0..3 {
        cluster.release();
        cluster.ok("n1", &["upgrade"]);
        let next = cluster.runs("n1");
        assert!(
            cluster.pid("n1") == pid && next != file,
            "it is another program"
        );
        file = next;
        for (job, driver) in [&counting, &printing].into_iter().zip(&drivers) {
            let shown = cluster.job("n1", job);
            let as_before = shown["state"] == "running" && shown["pid"] == *driver;
            assert!(as_before && shown["tries"] == 1, "{shown}");
        }
    }
    // What it started before is still its own: killed, it is seen to end and begun anew.
    assert!(is_alive(worker.trim_start_matches("on n1: ")));
    let binding = cluster.submit("n1", &[&program, "--", "binds", "board"]);
    cluster.succeeds(&binding);
    assert_eq!(cluster.logs("n1", &binding), ["score 2"]);
    let stopped = cluster.submit("n1", &[&program, "--", "lingers", "n1"]);
    let lingering = cluster.printed(&stopped, "on n1: ").await;
    cluster.printed(&stopped, "lingering").await;
    cluster.ok("n1", &["upgrade"]);
    cluster.ok("n1", &["stop", &stopped]);
    let waited = cluster.run("n1", &["wait", &stopped]);
    assert!(!waited.status.success());
    assert!(!is_alive(lingering.trim_start_matches("on n1: ")));
    fs::write(end, "").unwrap();
    cluster.succeeds(&counting);
    cluster.succeeds(&printing);
    assert_whole(&cluster.logs("n1", &printing));
    assert_eq!(cluster.ok("n1", &["down"]).trim(), "node down");
}

/// SEMANTICS 66.
#[tokio::test(flavor = "multi_thread")]
async fn links_between_nodes_go_on_while_each_of_them_becomes_another_program() {
    let Some(program) = program() else {
        return;
    };
    let cluster = Cluster::new(3);
    cluster.ok("n1", &["voters", "3"]);
    let voters = || cluster.status("n1")["voters"].as_array().unwrap().len();
    eventually("three voters", || voters() >= 3);
    let end = cluster.end();
    let end = end.to_str().unwrap();
    let counts = |nodes: [&str; 3]| {
        let [driver, near, far] = nodes;
        let args = [&program, "--node", driver, "--", "counts", end, near, far];
        cluster.submit("n1", &args)
    };
    let counting = counts(["node-2", "node-2", "n1"]);
    let counting_too = counts(["n1", "n1", "node-3"]);
    let prints = ["--node", "node-3", "--", "-c", PRINTS, end];
    let printing = cluster.submit("n1", &[&["/bin/sh"], &prints[..]].concat());
    cluster.printed(&counting, "counting").await;
    cluster.printed(&counting_too, "counting").await;
    cluster.printed(&printing, "1").await;
    let all = ["n1", "node-2", "node-3"];
    let before = all.map(|node| cluster.runs(node));
    cluster.release();
    cluster.ok("n1", &["upgrade", "--all"]);
    for (node, before) in all.into_iter().zip(before) {
        assert_ne!(cluster.runs(node), before, "{node}");
    }
    for node in ["node-3", "node-2", "n1"] {
        cluster.ok("n1", &["upgrade", node]);
    }
    for job in [&counting, &counting_too, &printing] {
        let shown = cluster.job("n1", job);
        assert!(
            shown["state"] == "running" && shown["tries"] == 1,
            "{shown}"
        );
    }
    fs::write(end, "").unwrap();
    cluster.succeeds(&counting);
    cluster.succeeds(&counting_too);
    cluster.succeeds(&printing);
    assert_whole(&cluster.logs("n1", &printing));
}

/// SEMANTICS 66.
#[tokio::test(flavor = "multi_thread")]
async fn who_holds_room_keeps_it_and_who_waits_for_it_goes_on_waiting() {
    let Some(program) = program() else {
        return;
    };
    let cluster = Cluster::new(1);
    let all = cluster.status("n1")["nodes"][0]["cpus"].as_f64().unwrap();
    let holds = |cpus: f64| cluster.submit("n1", &[&program, "--", "holds", &cpus.to_string()]);
    let first = holds(all - 0.5);
    cluster.printed(&first, "holding").await;
    let next = holds(1.0);
    let runs = || cluster.job("n1", &next)["state"] == "running";
    eventually("the next job", runs);
    for _ in 0..2 {
        cluster.release();
        cluster.ok("n1", &["upgrade"]);
        assert_eq!(cluster.logs("n1", &next), Vec::<String>::new());
    }
    cluster.ok("n1", &["stop", &first]);
    cluster.printed(&next, "holding").await;
    assert_eq!(cluster.job("n1", &next)["tries"], 1);
}

/// SEMANTICS 116.
#[test]
fn a_time_limit_that_one_program_began_is_kept_by_the_next() {
    let cluster = Cluster::new(1);
    let submit = [
        "/bin/sleep",
        "--time-limit=12s",
        "--retries=3",
        "--",
        "1000",
    ];
    let job = cluster.submit("n1", &submit);
    let runs = || cluster.job("n1", &job)["state"] == "running";
    eventually("the job", runs);
    let before = cluster.runs("n1");
    cluster.release();
    cluster.ok("n1", &["upgrade"]);
    assert!(runs() && cluster.runs("n1") != before);
    let waited = cluster.run("n1", &["wait", &job]);
    let said = text(&waited.stderr);
    assert_eq!(waited.status.code(), Some(124), "{said}");
    let shown = cluster.job("n1", &job);
    assert_eq!(
        (&shown["state"], &shown["tries"]),
        (&"failed".into(), &1.into()),
        "{shown}"
    );
}

/// SEMANTICS 66.
#[tokio::test(flavor = "multi_thread")]
async fn a_program_that_cannot_take_over_is_refused_and_all_goes_on() {
    let cluster = Cluster::new(1);
    let end = cluster.end();
    let end = end.to_str().unwrap();
    let printing = cluster.submit("n1", &["/bin/sh", "--", "-c", PRINTS, end]);
    cluster.printed(&printing, "1").await;
    let file = cluster.runs("n1");
    let place = |what: &dyn Fn(&Path)| {
        let next = cluster.program.with_file_name("next");
        what(&next);
        fs::rename(next, &cluster.program).unwrap();
        cluster.fails("n1", &["upgrade"])
    };
    let said = place(&|next| {
        fs::write(next, "hello").unwrap();
        fs::set_permissions(next, fs::Permissions::from_mode(0o755)).unwrap();
    });
    assert!(said.contains("cannot take over"), "{said}");
    let said = place(&|next| {
        fs::copy("/bin/true", next).unwrap();
    });
    assert!(said.contains("cannot take over"), "{said}");
    let said = cluster.fails("n1", &["upgrade", "nobody"]);
    assert!(said.contains("no node `nobody`"), "{said}");
    fs::remove_file(&cluster.program).unwrap();
    let said = cluster.fails("n1", &["upgrade"]);
    assert!(said.contains("cannot take over"), "{said}");
    assert_eq!(cluster.runs("n1"), file);
    cluster.release();
    cluster.ok("n1", &["upgrade"]);
    assert_ne!(cluster.runs("n1"), file);
    fs::write(end, "").unwrap();
    cluster.succeeds(&printing);
    assert_whole(&cluster.logs("n1", &printing));
}

/// SEMANTICS 66.
#[tokio::test(flavor = "multi_thread")]
async fn whatever_ends_while_a_node_becomes_another_program_is_seen_to_end() {
    let cluster = Cluster::new(1);
    for round in 0..6u64 {
        let short = [
            "/bin/sh",
            "--",
            "-c",
            "echo begun; sleep 0.$0; echo over; exit 3",
        ];
        let pause = (2 + round).to_string();
        let ending = cluster.submit("n1", &[&short[..], &[&pause]].concat());
        let killed = cluster.submit("n1", &["/bin/sleep", "--", "1000"]);
        cluster.printed(&ending, "begun").await;
        let runs = || cluster.job("n1", &killed)["state"] == "running";
        eventually("a job that runs", runs);
        let pid = cluster.job("n1", &killed)["pid"].as_i64().unwrap();
        let mut upgrading = cluster.command("n1", &["upgrade"]).spawn().unwrap();
        Clock::sleep(Duration::from_millis(50 * round)).await;
        kill_process(Pid::from_raw(pid as i32).unwrap(), Signal::KILL).unwrap();
        assert!(upgrading.wait().unwrap().success());
        let over = |job: &str| cluster.job("n1", job)["over"] == true;
        eventually("both jobs are over", || over(&ending) && over(&killed));
        let waited = cluster.run("n1", &["wait", &ending]);
        let shown = cluster.job("n1", &ending);
        assert_eq!(waited.status.code(), Some(3), "{shown}");
        assert_eq!(cluster.logs("n1", &ending), ["begun", "over"]);
        let waited = cluster.run("n1", &["wait", &killed]);
        let shown = cluster.job("n1", &killed);
        assert_eq!(waited.status.code(), Some(137), "{shown}");
    }
}
