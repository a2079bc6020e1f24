//! Looking at a cluster over HTTP, as a page in a browser does.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::Stdio;
use std::time::Duration;

use odeon::{AskError, Clock, Ref};
use odeon_skip::{Need, skip};
use odeon_tests::again;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::nodes::{Nodes, text};

const PATIENCE: Duration = Duration::from_secs(30);

/// The nodes `head`, `node-2` and so on, on this machine.
fn up(nodes: u32) -> Nodes {
    up_with(nodes, &[])
}

/// The same, with more arguments.
fn up_with(nodes: u32, more: &[&str]) -> Nodes {
    let mut cluster = Nodes::new(|_| vec![]);
    let dir = cluster.folder.path().join("head");
    cluster.add("head", &dir);
    for number in 2..=nodes {
        let name = format!("node-{number}");
        cluster.add(&name, &dir.join("nodes").join(&name));
    }
    let count = nodes.to_string();
    let args = [
        "up",
        "--api",
        "127.0.0.1:0",
        "--name",
        "head",
        "--nodes",
        &count,
    ];
    cluster.ok("head", &[&args, more].concat());
    cluster
}

/// The address and the key by which a node's pages are asked for.
struct Face {
    address: String,
    key: String,
}

impl Face {
    fn of(cluster: &Nodes, node: &str) -> Self {
        let address = cluster.ok(node, &["ui"]);
        let address = address.trim().strip_prefix("http://").unwrap();
        let (address, key) = address.split_once("/#k=").unwrap();
        let (address, key) = (address.to_owned(), key.to_owned());
        Self { address, key }
    }

    fn open(&self, request: &str) -> TcpStream {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.write_all(request.as_bytes()).unwrap();
        stream
    }

    /// The head and the body of an answer.
    fn ask(&self, line: &str, headers: &str, body: &str) -> (String, String) {
        let length = body.len();
        let request = format!(
            "{line} HTTP/1.1\r\nConnection: close\r\nContent-Length: {length}\r\n{headers}\r\n{body}"
        );
        let mut answer = String::new();
        self.open(&request).read_to_string(&mut answer).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        (head.to_owned(), body.to_owned())
    }

    fn host(&self) -> String {
        format!("Host: {}\r\n", self.address)
    }

    fn with_key(&self) -> String {
        format!("{}Authorization: Bearer {}\r\n", self.host(), self.key)
    }

    fn view(&self, view: &str) -> Value {
        let line = format!("GET /api/v1/inspect/view?view={view}");
        let (head, body) = self.ask(&line, &self.with_key(), "");
        assert!(head.starts_with("HTTP/1.1 200"), "{head}\n{body}");
        serde_json::from_str(&body).unwrap()
    }

    /// Looks until something is true of a page.
    async fn until<T>(&self, view: &str, fact: impl Fn(&Value) -> Option<T>) -> T {
        let mut last = Value::Null;
        let looking = async {
            loop {
                last = self.view(view);
                if let Some(found) = fact(&last) {
                    return found;
                }
                Clock::sleep(Duration::from_millis(50)).await;
            }
        };
        match Clock::timeout(PATIENCE, looking).await {
            Some(found) => found,
            None => panic!("{view}: {last:#}"),
        }
    }
}

fn status(head: &str) -> &str {
    head.split(' ').nth(1).unwrap()
}

/// SEMANTICS 70.
#[tokio::test]
async fn who_has_no_key_or_comes_from_elsewhere_sees_nothing() {
    let cluster = up(1);
    let face = Face::of(&cluster, "head");
    let view = "GET /api/v1/inspect/view?view=now";
    let (head, page) = face.ask("GET /", &face.host(), "");
    assert_eq!(status(&head), "200");
    assert!(
        head.contains("default-src 'none'") && page.contains("app.js"),
        "{head}"
    );
    assert_eq!(status(&face.ask(view, &face.host(), "").0), "401");
    assert_eq!(
        status(&face.ask(view, "Host: evil.example\r\n", "").0),
        "403"
    );
    assert_eq!(
        status(&face.ask("GET /", "Host: evil.example\r\n", "").0),
        "403"
    );

    let json = "Content-Type: application/json\r\n";
    let session = format!("{}{json}", face.host());
    let (head, _) = face.ask("POST /api/v1/session", &session, "{\"key\":\"odeon-no\"}");
    assert_eq!(status(&head), "401");
    let body = format!("{{\"key\":\"{}\"}}", face.key);
    let (head, _) = face.ask("POST /api/v1/session", &session, &body);
    assert_eq!(status(&head), "204");
    let cookie = head
        .lines()
        .find_map(|line| line.strip_prefix("set-cookie: "))
        .unwrap();
    for word in ["HttpOnly", "SameSite=Strict", "Path=/api/v1/inspect"] {
        assert!(cookie.contains(word), "{cookie}");
    }
    let cookie = format!(
        "{}Cookie: {}\r\n",
        face.host(),
        cookie.split(';').next().unwrap()
    );
    assert_eq!(status(&face.ask(view, &cookie, "").0), "200");
    // It is good for looking: jobs need the key itself.
    assert_eq!(status(&face.ask("GET /api/v1/jobs", &cookie, "").0), "401");
    let submit = format!("{cookie}{json}Sec-Fetch-Site: same-origin\r\n");
    assert_eq!(
        status(&face.ask("POST /api/v1/jobs", &submit, "{}").0),
        "401"
    );
    for (wrong, word) in [
        ("view?view=nothing", "there is no view"),
        ("view?view=actors&filter=speed%3E3", "keys are"),
        ("timeline?from=5&to=1", "`from` must lie before `to`"),
    ] {
        let line = format!("GET /api/v1/inspect/{wrong}");
        let (head, body) = face.ask(&line, &cookie, "");
        assert_eq!(status(&head), "400", "{body}");
        assert!(body.contains(word), "{body}");
    }
    assert_eq!(
        status(&face.ask("GET /api/v1/inspect/actors/no.1", &cookie, "").0),
        "404"
    );
    cluster.ok("head", &["down"]);
}

/// SEMANTICS 68, 70.
#[tokio::test]
async fn a_cluster_is_seen_from_any_node_and_a_lost_one_stays() {
    let cluster = up(3);
    let face = Face::of(&cluster, "head");
    let names = |page: &Value| -> Vec<String> {
        let nodes = page["data"]["nodes"].as_array().unwrap().iter();
        let up = nodes.filter(|node| node["state"] == "up");
        up.map(|node| node["name"].as_str().unwrap().to_owned())
            .collect()
    };
    let all = ["head", "node-2", "node-3"];
    face.until("cluster", |page| (names(page) == all).then_some(()))
        .await;
    // The clocks of the others are known, and the links are there.
    face.until("cluster", |page| {
        let nodes = page["data"]["nodes"].as_array().unwrap();
        let known = nodes
            .iter()
            .filter(|node| node["clock"]["error_us"].is_number())
            .count();
        let links = page["data"]["links"].as_array().unwrap().len();
        (known == 2 && links >= 4).then_some(())
    })
    .await;
    // A node that does not vote sees the same, with the key that a voter knows.
    let other = Face::of(&cluster, "node-2");
    other
        .until("cluster", |page| (names(page) == all).then_some(()))
        .await;
    // Jobs a voter knows.
    cluster.ok(
        "node-2",
        &["submit", "--name", "seen", "/bin/true", "--wait"],
    );
    let (head, job) = other.ask("GET /api/v1/inspect/jobs/j1", &other.with_key(), "");
    assert!(
        status(&head) == "200" && job.contains("\"seen\""),
        "{head}\n{job}"
    );
    let why = cluster.ok("node-2", &["why", "seen"]);
    assert!(why.contains("j1"), "{why}");
    let strange = format!("{}Authorization: Bearer odeon-no\r\n", other.host());
    let (head, _) = other.ask("GET /api/v1/inspect/view?view=now", &strange, "");
    assert_eq!(status(&head), "401");

    cluster.kill("node-3");
    let down = |page: &Value| {
        let problems = page["data"]["problems"].as_array().unwrap().iter();
        let mut down = problems.filter(|it| it["rule"] == "node_down");
        down.find(|it| it["sentence"].as_str().unwrap().contains("node-3"))
            .map(|_| ())
    };
    face.until("now", down).await;
    let page = face.view("cluster");
    let nodes = page["data"]["nodes"].as_array().unwrap();
    let gone = nodes.iter().find(|node| node["name"] == "node-3").unwrap();
    assert_eq!(gone["state"], "down", "it stays to be seen");
    cluster.ok("head", &["down"]);
}

/// SEMANTICS 67.
#[tokio::test]
async fn a_live_page_is_sent_and_then_what_changes() {
    let cluster = up(1);
    let face = Face::of(&cluster, "head");
    let request = format!(
        "GET /api/v1/inspect/stream?view=actors&filter=system:any HTTP/1.1\r\n{}\r\n",
        face.with_key()
    );
    let mut lines = BufReader::new(face.open(&request)).lines();
    let mut next = |name: &str| loop {
        let line = lines.next().unwrap().unwrap();
        if line != format!("event: {name}") {
            continue;
        }
        let data = loop {
            let line = lines.next().unwrap().unwrap();
            if let Some(data) = line.strip_prefix("data: ") {
                break data.to_owned();
            }
        };
        return serde_json::from_str::<Value>(&data).unwrap();
    };
    let page = next("snapshot");
    let rows = page["data"]["rows"].as_array().unwrap();
    assert!(
        rows.iter().any(|row| row["type"] == "odeon.cluster.Agent"),
        "{page:#}"
    );
    let change = next("delta");
    assert_eq!(change["epoch"], page["epoch"]);
    assert!(change["seq"].as_u64() > page["seq"].as_u64());
    assert!(change["data"]["upsert"].is_array() && change["data"]["remove"].is_array());
    drop(lines);
    cluster.ok("head", &["down"]);
}

/// The actors of a job that a page shows.
fn rows_of<'a>(page: &'a Value, job: &str) -> Vec<&'a Value> {
    let rows = page["data"]["rows"].as_array().unwrap().iter();
    rows.filter(|row| row["job"].as_str().is_some_and(|it| it.contains(job)))
        .collect()
}

/// SEMANTICS 71.
#[tokio::test]
async fn actors_are_stopped_from_the_pages_only_where_and_by_whom_that_is_allowed() {
    let post = |face: &Face, who: &str, what: &str, actor: &str| {
        let json = "Content-Type: application/json\r\n";
        let line = format!("POST /api/v1/inspect/actions/{what}");
        let body = format!("{{\"actor\":\"{actor}\"}}");
        let (head, body) = face.ask(&line, &format!("{}{who}{json}", face.host()), &body);
        (status(&head).to_owned(), body)
    };
    let bearer = |key: &str| format!("Authorization: Bearer {key}\r\n");
    let cluster = up(1);
    let face = Face::of(&cluster, "head");
    let (code, why) = post(&face, &bearer(&face.key), "stop", "1.1");
    assert!(code == "403" && why.contains("--allow-actions"), "{why}");
    cluster.ok("head", &["down"]);

    let cluster = up_with(1, &["--allow-actions"]);
    let face = Face::of(&cluster, "head");
    let owner = bearer(&face.key);
    let job = cluster.submit("head", &["--gang", "1", "--", "sleep", "600"]);
    let view = format!("actors&filter=job:{job}");
    let rank = |page: &Value| {
        let rows = rows_of(page, &job).into_iter();
        let mut ranks = rows.filter(|row| row["type"].as_str().unwrap().ends_with("Exec"));
        let up = |row: &&Value| ["idle", "busy"].contains(&row["state"].as_str().unwrap());
        let row = ranks.find(up)?;
        Some((row["id"].as_str()?.to_owned(), row["restarts"].as_u64()?))
    };
    let (id, restarts) = face.until(&view, rank).await;
    assert_eq!(restarts, 0);

    let said = cluster.ok("head", &["key", "make", "guest", "--role", "view"]);
    let guest = said.lines().find(|it| it.starts_with("odeon-")).unwrap();
    let (code, why) = post(&face, &bearer(guest), "stop", &id);
    assert!(code == "403" && why.contains("`submit`"), "{why}");
    // A cookie does it from a page of this host alone.
    let port = face.address.rsplit_once(':').unwrap().1;
    let json = "Content-Type: application/json\r\n";
    let body = format!("{{\"key\":\"{}\"}}", face.key);
    let session = format!("{}{json}", face.host());
    let (head, _) = face.ask("POST /api/v1/session", &session, &body);
    let given = head.split(&format!("odeon-{port}=")).nth(1).unwrap();
    let given = given.split(';').next().unwrap();
    let cookie = format!("Cookie: odeon-{port}={given}\r\n");
    // It is no key.
    let (head, _) = face.ask(
        "GET /api/v1/jobs",
        &format!("{}{}", face.host(), bearer(given)),
        "",
    );
    assert_eq!(status(&head), "401", "{head}");
    for elsewhere in [
        "",
        "Sec-Fetch-Site: cross-site\r\n",
        "Origin: http://evil.example\r\n",
    ] {
        let (code, why) = post(&face, &format!("{cookie}{elsewhere}"), "stop", &id);
        assert_eq!(code, "401", "{why}");
    }
    for (what, actor, code, word) in [
        ("stop", "7.7", "404", "no actor 7.7"),
        ("explode", id.as_str(), "404", "stop and restart"),
    ] {
        let (seen, why) = post(&face, &owner, what, actor);
        assert!(seen == code && why.contains(word), "{seen} {why}");
    }
    let system = |page: &Value| {
        let rows = page["data"]["rows"].as_array().unwrap().iter();
        let mut agents = rows.filter(|row| row["type"] == "odeon.cluster.Agent");
        Some(agents.next()?["id"].as_str()?.to_owned())
    };
    let agent = face.until("actors&filter=system:any", system).await;
    for what in ["stop", "restart"] {
        let (code, why) = post(&face, &owner, what, &agent);
        assert!(code == "403" && why.contains("the system itself"), "{why}");
    }

    let own = format!("{cookie}Sec-Fetch-Site: same-origin\r\n");
    let (code, said) = post(&face, &own, "restart", &id);
    assert!(code == "200" && said.contains("next one"), "{code} {said}");
    // The gang, which supervises it, has heard why, and so has whoever waits for the job.
    face.until("events", |page| {
        let events = page["data"]["events"].as_array().unwrap().iter();
        let mut told = events.filter(|it| it.to_string().contains("somebody who looked on"));
        told.next().map(|_| ())
    })
    .await;

    // One that is stopped does not begin anew.
    let job = cluster.submit("head", &words_of(&program("idles")));
    let view = format!("actors&filter=job:{job}");
    let idle = |page: &Value| {
        let row = rows_of(page, &job).into_iter().next()?;
        Some(row["id"].as_str()?.to_owned())
    };
    let id = face.until(&view, idle).await;
    let (code, said) = post(&face, &owner, "stop", &id);
    assert!(
        code == "200" && said.contains("was stopped"),
        "{code} {said}"
    );
    let stopped = |page: &Value| {
        let rows = page["data"]["rows"].as_array().unwrap().iter();
        let mut is = rows.filter(|row| row["id"] == *id && row["state"] == "stopped");
        is.next().map(|_| ())
    };
    face.until("actors&filter=state:stopped", stopped).await;
    cluster.ok("head", &["down"]);
}

/// SEMANTICS 72.
#[tokio::test]
async fn what_happened_is_there_again_when_the_head_is() {
    let cluster = up(1);
    let face = Face::of(&cluster, "head");
    let job = cluster.submit("head", &words_of(&program("fails")));
    let failed = |page: &Value| {
        let rows = rows_of(page, &job).into_iter();
        let mut rows = rows.filter(|row| row["state"] == "failed");
        Some(rows.next()?["id"].as_str()?.to_owned())
    };
    let all = "actors&filter=state:failed";
    let id = face.until(all, failed).await;
    let told = |page: &Value| {
        let events = page["data"]["events"].as_array().unwrap().iter();
        let mut of_it = events.filter(|it| it["kind"] == "failure" && it["subject"]["id"] == *id);
        let event = of_it.next()?;
        Some((
            event["seq"].as_u64()?,
            event["sentence"].as_str()?.to_owned(),
        ))
    };
    let before = face.until("events", told).await;
    // This one ends with the head and has told nothing of that.
    let lasting = cluster.submit("head", &words_of(&program("waits")));
    let there = |page: &Value| {
        let row = rows_of(page, &lasting).into_iter().next()?;
        Some(row["id"].as_str()?.to_owned())
    };
    let living = face.until("actors", there).await;
    // It is on the disk a moment later, and a crash loses what is not.
    let file = cluster.dir("head").join("history.redb");
    let kept = async {
        loop {
            let bytes = std::fs::read(&file).unwrap_or_default();
            let has = |word: &str| {
                let mut windows = bytes.windows(word.len());
                windows.any(|it| it == word.as_bytes())
            };
            if has(&before.1) && has(&living) {
                return;
            }
            Clock::sleep(Duration::from_millis(50)).await;
        }
    };
    // A second is promised; this machine does other things, too.
    let soon = Duration::from_secs(5);
    Clock::timeout(soon, kept).await.expect("it is kept");
    cluster.kill("head");
    cluster.ok("head", &["up", "--api", "127.0.0.1:0"]);
    let face = Face::of(&cluster, "head");
    assert_eq!(face.until("events", told).await, before);
    assert_eq!(face.until(all, failed).await, id);
    let stopped = |page: &Value| {
        let mut rows = page["data"]["rows"].as_array().unwrap().iter();
        rows.find(|row| row["id"] == *living && row["state"] == "stopped")?["ended"]["sentence"]
            .as_str()
            .map(str::to_owned)
    };
    let said = face.until("actors&filter=state:stopped", stopped).await;
    assert!(said.contains("not there any more"), "{said}");
    // What the catalog says of the job is among it, once.
    let page = face.view("events");
    let events = page["data"]["events"].as_array().unwrap().iter();
    let of_job = events.filter(|it| it["kind"] == "job" && it["subject"]["id"] == *job);
    let said: Vec<_> = of_job.map(|it| it["sentence"].as_str().unwrap()).collect();
    let submitted = said.iter().filter(|it| it.contains("submitted by")).count();
    assert_eq!(submitted, 1, "{said:?}");
    cluster.ok("head", &["down"]);
}

/// SEMANTICS 70.
#[tokio::test]
async fn whoever_scrapes_needs_a_key_and_gets_the_numbers_of_the_node() {
    let cluster = up(2);
    let scraped = |face: &Face, path: &str| {
        let (head, text) = face.ask(&format!("GET {path}"), &face.with_key(), "");
        assert_eq!(status(&head), "200", "{head}\n{text}");
        assert!(
            head.to_lowercase()
                .contains("content-type: text/plain; version=0.0.4"),
            "{head}"
        );
        text
    };
    let nodes = |text: &str| {
        let lines = text
            .lines()
            .filter(|line| line.starts_with("odeon_node_up{"));
        lines.map(str::to_owned).collect::<Vec<_>>()
    };
    for node in ["head", "node-2"] {
        let face = Face::of(&cluster, node);
        let (head, _) = face.ask("GET /metrics", &face.host(), "");
        assert_eq!(status(&head), "401", "{head}");
        let (head, _) = face.ask("GET /metrics?scope=all", &face.with_key(), "");
        assert_eq!(status(&head), "400", "{head}");
        let seen = async {
            while nodes(&scraped(&face, "/metrics")).is_empty() {
                Clock::sleep(Duration::from_millis(50)).await;
            }
        };
        Clock::timeout(PATIENCE, seen)
            .await
            .expect("it shows itself");
        let up = nodes(&scraped(&face, "/metrics"));
        assert_eq!(up, [format!("odeon_node_up{{node=\"{node}\"}} 1")]);
    }
    let head = Face::of(&cluster, "head");
    let all = async {
        while nodes(&scraped(&head, "/metrics?scope=cluster")).len() < 2 {
            Clock::sleep(Duration::from_millis(50)).await;
        }
    };
    Clock::timeout(PATIENCE, all).await.expect("it shows both");
}
/// The actors that [`program_entry`] runs, which ask each other in a circle.
struct Party;

#[odeon::actor(name = "test.Party")]
impl Party {
    fn start(_args: ()) -> Self {
        Self
    }

    #[handler]
    fn touch(&mut self) {}

    #[handler]
    fn fail(&mut self) {
        panic!("it was told to fail")
    }

    /// Asks a second, which is to ask a third in turn.
    #[handler]
    async fn call(&mut self, first: Ref<Self>, then: Ref<Self>) -> Result<(), AskError> {
        let asking = odeon::telemetry::span("round of calls");
        let answer = first
            .ask(Back { then })
            .timeout(Duration::from_secs(600))
            .await;
        asking.end();
        answer?
    }

    #[handler]
    async fn back(&mut self, then: Ref<Self>) -> Result<(), AskError> {
        then.ask(Touch).timeout(Duration::from_secs(600)).await
    }
}

/// The arguments that submit this test binary as a program that does this.
fn program(does: &str) -> Vec<String> {
    let program = std::env::current_exe().unwrap();
    let does = format!("ODEON_TEST_PROGRAM={does}");
    let words = [
        program.to_str().unwrap(),
        "--name",
        "parties",
        "--env",
        &does,
    ];
    let entry = again::name(module_path!(), "program_entry");
    let words = words.into_iter().chain(["--", &entry, "--exact"]);
    words.map(str::to_owned).collect()
}

fn words_of(words: &[String]) -> Vec<&str> {
    words.iter().map(String::as_str).collect()
}

/// The program of a job, when this test binary is one; else nothing.
#[test]
fn program_entry() {
    let Ok(does) = std::env::var("ODEON_TEST_PROGRAM") else {
        return;
    };
    let outcome: anyhow::Result<()> = odeon::job![Party].run(async |system| {
        if does == "fails" {
            let temporary = odeon::Restart::Temporary;
            let party = system.spawn::<Party>(()).restart(temporary).await?;
            party.tell(Fail).await?;
            return std::future::pending().await;
        }
        let ping = system.spawn::<Party>(()).await?;
        if does == "idles" {
            return std::future::pending().await;
        }
        let pong = system.spawn::<Party>(()).await?;
        system.register("ping", ping).await?;
        system.register("pong", pong).await?;
        // A trace that ends, before one that does not.
        ping.ask(Touch).await?;
        ping.ask(Call {
            first: pong,
            then: ping,
        })
        .timeout(Duration::from_secs(600))
        .await??;
        Ok(())
    });
    outcome.unwrap();
}

/// The first answer of a command that is as it should be.
async fn until<T>(cluster: &Nodes, args: &[&str], fact: impl Fn(&str) -> Option<T>) -> T {
    let mut last = String::new();
    let looking = async {
        loop {
            let output = cluster.run("head", args);
            last = text(&output.stdout) + &text(&output.stderr);
            if let Some(found) = fact(&last) {
                return found;
            }
            Clock::sleep(Duration::from_millis(50)).await;
        }
    };
    match Clock::timeout(PATIENCE, looking).await {
        Some(found) => found,
        None => panic!("{args:?}: {last}"),
    }
}

fn json_lines(text: &str) -> Vec<Value> {
    let lines = text.lines();
    lines
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

#[tokio::test]
async fn a_terminal_shows_what_the_pages_show_and_names_a_deadlock() {
    let cluster = up(1);
    let job = cluster.submit("head", &words_of(&program("waits")));
    let deadlock = |text: &str| text.contains("deadlock: ").then(|| text.to_owned());
    let stack = until(&cluster, &["stack", "ping"], deadlock).await;
    for words in [
        "0  ping",
        "handles Call for",
        "in \"round of calls\" for",
        "1  pong",
        "handles Back for",
    ] {
        assert!(stack.contains(words), "{words}: {stack}");
    }
    assert!(
        stack.ends_with("deadlock: ping, pong wait for each other, and none can go on\n"),
        "{stack}"
    );
    let stack = cluster.json("head", &["stack", "pong", "--json"]);
    assert_eq!(
        (&stack["back"]["frame"], &stack["deadlock"]),
        (&0.into(), &true.into())
    );
    let names: Vec<_> = stack["frames"]
        .as_array()
        .unwrap()
        .iter()
        .map(|it| &it["name"])
        .collect();
    assert_eq!(names, ["pong", "ping"]);
    let several = cluster.fails("head", &["stack", "type:test.Party"]);
    assert!(
        several.contains("is 2 actors, so take the id of one"),
        "{several}"
    );
    let none = cluster.fails("head", &["stack", "nobody-of-this-name"]);
    assert!(none.contains("no actor is `nobody-of-this-name`"), "{none}");

    // The same actors in every list.
    let list = cluster.ok("head", &["ps", "--filter", "state:waiting"]);
    for words in [
        "ping",
        "pong",
        "\u{25d0} waiting",
        "test.Party",
        "Call, waits for pong to Back",
    ] {
        assert!(list.contains(words), "{words}: {list}");
    }
    let rows = json_lines(&cluster.ok("head", &["ps", "--json", "--sort", "name"]));
    let names: Vec<_> = rows.iter().map(|row| &row["name"]).collect();
    assert_eq!(names, ["ping", "pong"], "the daemon's own are left out");
    let all = json_lines(&cluster.ok("head", &["ps", "--json", "--all"]));
    assert!(all.iter().any(|row| row["type"] == "odeon.cluster.Agent"));
    let wrong = cluster.fails("head", &["ps", "--filter", "speed>3"]);
    assert!(wrong.contains("keys are"), "{wrong}");
    let wrong = cluster.run("head", &["ps", "--sort", "speed"]);
    assert!(text(&wrong.stderr).contains("there is no column `speed`"));

    let now = cluster.ok("head", &["top", "--once"]);
    assert!(now.contains("deadlock") && now.contains("1 Now"), "{now}");
    let page = cluster.json("head", &["top", "--once", "--json", "--page", "jobs"]);
    assert_eq!(page["data"]["jobs"][0]["id"], job.as_str());
    let piped = cluster.fails("head", &["top"]);
    assert!(piped.contains("odeon ps --json"), "{piped}");

    // A trace by its own id and by that of a span in it.
    let traces = json_lines(&cluster.ok("head", &["trace", "--slowest", "--json"]));
    let touch = traces
        .iter()
        .find(|it| it["first"]["name"] == "Touch")
        .unwrap();
    let tree = cluster.ok("head", &["trace", touch["trace"].as_str().unwrap()]);
    assert!(
        tree.contains("* ask Touch") && tree.contains("handle Touch  ping"),
        "{tree}"
    );
    assert_eq!(
        cluster
            .ok("head", &["trace", touch["first"]["id"].as_str().unwrap()])
            .lines()
            .count(),
        tree.lines().count()
    );
    let gone = cluster.fails("head", &["trace", "00000000000000000000000000000001"]);
    assert!(gone.contains("is not kept"), "{gone}");
    let wrong = cluster.fails("head", &["trace", "ping"]);
    assert!(wrong.contains("is no id of a trace or a span"), "{wrong}");

    let events = json_lines(&cluster.ok("head", &["events", "--json", "--kind", "problem,job"]));
    let has = |kind: &str, word: &str| {
        let what = |it: &Value| it["what"].as_str().unwrap().to_owned();
        events
            .iter()
            .any(|it| it["kind"] == kind && what(it).contains(word))
    };
    assert!(
        has("problem", "limit 1 s") && has("job", "runs on node"),
        "{events:#?}"
    );
    assert!(events.is_sorted_by_key(|it| it["at_ms"].as_u64().unwrap()));
    cluster.ok("head", &["down"]);
}

#[tokio::test]
async fn events_are_followed_as_they_come() {
    let cluster = up(1);
    let mut command = cluster.command("head", &["events", "--follow", "--json", "--kind", "job"]);
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let job = cluster.submit("head", &["/bin/true"]);
    cluster.ok("head", &["wait", &job]);
    let told = lines.find_map(|line| {
        let event: Value = serde_json::from_str(&line.unwrap()).unwrap();
        (event["about"] == job.as_str()).then_some(event)
    });
    assert_eq!(told.unwrap()["kind"], "job");
    child.kill().unwrap();
    child.wait().unwrap();
    cluster.ok("head", &["down"]);
}

/// A terminal of `script`, which every distribution has with its basic tools.
#[tokio::test]
async fn a_terminal_is_as_it_was_before_when_looking_on_ends() {
    let cluster = up(1);
    let folder = cluster.folder.path().to_owned();
    let shell = "stty cols 100 rows 30; stty -g > before; \
                 sh -c 'echo $$ > pid; exec \"$ODEON\" top'; echo $? > code; stty -g > after";
    let mut command = std::process::Command::new("script");
    command.args(["-q", "-f", "-c", shell, "/dev/null"]);
    command
        .env("ODEON", env!("CARGO_BIN_EXE_odeon"))
        .env("TERM", "xterm-256color");
    command
        .env("ODEON_DIR", cluster.dir("head"))
        .current_dir(&folder);
    let pipes = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null());
    let mut child = match pipes.spawn() {
        Ok(child) => child,
        Err(error) => return skip(Need::Terminal, format!("no `script` to make one: {error}")),
    };
    let mut keys = child.stdin.take().unwrap();
    let mut screen = child.stdout.take().unwrap();
    let (tell, told) = std::sync::mpsc::channel();
    let reading = std::thread::spawn(move || {
        let mut bytes = [0; 4096];
        while let Ok(n @ 1..) = screen.read(&mut bytes) {
            if tell.send(bytes[..n].to_vec()).is_err() {
                return;
            }
        }
    });
    let mut seen = String::new();
    let mut until = |words: &str| {
        while !seen.contains(words) {
            let bytes = told.recv_timeout(PATIENCE);
            let bytes = bytes.unwrap_or_else(|_| panic!("no {words:?}: {seen}"));
            seen += &String::from_utf8_lossy(&bytes);
        }
        std::mem::take(&mut seen)
    };
    // Cells that are blank are not written, so a word is all that is looked for.
    until("problems");
    keys.write_all(b"2").unwrap();
    until("Processes");
    keys.write_all(b"3/system:any\r").unwrap();
    until("odeon.cluster.Agent");
    let read = |name: &str| std::fs::read_to_string(folder.join(name)).unwrap();
    let pid: i32 = read("pid").trim().parse().unwrap();
    kill_process(Pid::from_raw(pid).unwrap(), Signal::TERM).unwrap();
    // It leaves the screen that it has taken.
    until("\u{1b}[?1049l");
    drop(keys);
    child.wait().unwrap();
    reading.join().unwrap();
    assert_eq!(read("code").trim(), "143");
    assert_eq!(read("before"), read("after"));
    cluster.ok("head", &["down"]);
}
