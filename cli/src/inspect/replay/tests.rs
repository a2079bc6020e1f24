//! A recording shows what was shown, wherever it is, and only those steer it who may look.

use std::io::{self, Write};

use axum::body::{Body, to_bytes};
use axum::http::{Request, StatusCode};
use odeon::{Ref, System, telemetry};
use odeon_observe::Recorder;
use serde_json::{Value, json};
use tower::ServiceExt;

use super::super::gate::Gate;
use super::super::output_log::OutputLog;
use super::*;

/// A file in memory.
#[derive(Clone, Default)]
struct Paper(Arc<Mutex<Vec<u8>>>);

impl Write for Paper {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().extend(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

struct Worker;

type Another = Ref<Worker>;

#[odeon::message]
struct Boom;

#[odeon::actor(name = "replay.Worker")]
impl Worker {
    fn start(_args: ()) -> Self {
        Self
    }

    #[handler]
    fn add(&mut self, n: u64) -> u64 {
        telemetry::gauge("rl.reward", n as f64)
            .with("step", n as i64)
            .record();
        n + 1
    }

    /// Has another one add.
    #[handler]
    async fn pass(&mut self, to: Another, n: u64) -> u64 {
        to.ask(Add { n }).await.unwrap_or(0)
    }

    #[handler(message = Boom)]
    fn boom(&mut self, _: Boom) {
        panic!("boom")
    }
}

/// Everything that the pages show, but what says that it is a recording.
async fn pages(inspect: &Inspect, from: Date, to: Date) -> Value {
    let router = inspect.clone().router::<()>();
    let mut paths: Vec<String> = [
        "now",
        "problems",
        "cluster",
        "jobs",
        "runs",
        "transfers",
        "events",
    ]
    .map(|view| format!("/view?view={view}"))
    .to_vec();
    paths.push("/view?view=actors&filter=system:any&sort=id".to_owned());
    let (from, to) = (from.as_ms(), to.as_ms());
    paths.push(format!("/timeline?from={from}&to={to}&px=500"));
    paths.push(format!("/spans?from={from}&to={to}&limit=2000"));
    paths.push(format!("/aggregate?from={from}&to={to}"));
    let mut all = serde_json::Map::new();
    for path in paths {
        let (status, mut page) = get(&router, &path).await;
        assert_eq!(status, StatusCode::OK, "{path}: {page}");
        page["epoch"] = Value::Null;
        page["head"]["replay"] = Value::Null;
        all.insert(path, page);
    }
    Value::Object(all)
}

async fn get(router: &axum::Router, path: &str) -> (StatusCode, Value) {
    let request = Request::get(path).body(Body::empty()).unwrap();
    answer(router, request).await
}

async fn answer(router: &axum::Router, request: Request<Body>) -> (StatusCode, Value) {
    let response = router.clone().oneshot(request).await.unwrap();
    let status = response.status();
    let bytes = to_bytes(response.into_body(), usize::MAX).await.unwrap();
    (
        status,
        serde_json::from_slice(&bytes).unwrap_or(Value::Null),
    )
}

/// Records a system of some actors: gives the recording, and the pages at each of its moments.
async fn recorded(seed: u64) -> (Vec<u8>, Vec<(Date, Value)>) {
    let system = System::local().await.unwrap();
    let begin = odeon_observe::today();
    let live = Observer::of_the_past("it", 1, begin);
    let paper = Paper::default();
    live.record(Recorder::new(Box::new(paper.clone()), "it", begin).unwrap());
    let inspect = Inspect::new(
        live.clone(),
        Facts::Standalone(OutputLog::default()),
        Origin::Living(system.clone()),
        None,
    );
    let mut watch = system.admin().watch();
    let mut workers: Vec<Ref<Worker>> = vec![];
    let (mut shown, mut dice) = (vec![], seed);
    for turn in 0..24_u64 {
        dice = dice
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(turn);
        let chosen = |many: usize| (dice >> 33) as usize % many;
        if workers.len() < 2 || chosen(3) == 0 {
            workers.push(system.spawn::<Worker>(()).await.unwrap());
        }
        let (one, other) = (workers[chosen(workers.len())], workers[0]);
        match chosen(5) {
            0 if one != other => {
                let _died = one.ask(Boom).await;
            }
            1 => {
                other.ask(Add { n: turn }).await.unwrap();
            }
            _ if one != other => {
                let _answer = one.ask(Pass { to: other, n: turn }).await;
            }
            _ => {}
        }
        let sight = watch.look(Duration::from_secs(5)).await;
        // Each turn is a second for those who look.
        let date = begin.after(Duration::from_secs(turn + 1));
        live.set_now(date);
        live.look(sight, (Clock::now(), date), None);
        live.tick();
        shown.push((date, pages(&inspect, begin, date).await));
    }
    live.end_recording().unwrap().unwrap();
    system.shutdown().await;
    let bytes = paper.0.lock().clone();
    (bytes, shown)
}

/// SEMANTICS 73.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_recording_shows_at_each_moment_what_was_shown_then() {
    for seed in [3, 17, 99] {
        let (bytes, shown) = recorded(seed).await;
        let recording = Recording::of(bytes.into()).unwrap();
        let replay = Replay::of(recording, "it", 1.0, false).unwrap();
        let begin = shown[0].0.before(Duration::from_secs(1));
        // Onward, to the end, back, and onward again.
        let count = shown.len();
        for at in [2, 3, 11, count - 1, 5, 6, 0, count - 1] {
            let (date, before) = &shown[at];
            replay.stand_at(*date).unwrap();
            let after = pages(&replay.inspect(), begin, *date).await;
            for (path, page) in before.as_object().unwrap() {
                assert_eq!(&after[path], page, "seed {seed}, moment {at}, {path}");
            }
        }
    }
}

async fn short() -> Replay {
    let (bytes, _) = recorded(1).await;
    let recording = Recording::of(bytes.into()).unwrap();
    Replay::of(recording, "it", 1.0, false).unwrap()
}

/// SEMANTICS 73.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_those_steer_who_may_look_and_only_a_recording() {
    let replay = short().await;
    let gate = Gate::new();
    let key = gate.key().to_owned();
    let router = gate.guard(
        replay.inspect().router(),
        replay.inspect().scrape(),
        Inspect::pages(),
    );
    let path = "/api/v1/inspect/replay";
    let post = |with: &[(&str, &str)], body: &str| {
        let mut request = Request::post(path).header("host", "127.0.0.1:80");
        for (name, value) in with {
            request = request.header(*name, *value);
        }
        request.body(Body::from(body.to_owned())).unwrap()
    };
    let json = ("content-type", "application/json");
    let bearer = format!("Bearer {key}");
    let bearer = ("authorization", bearer.as_str());
    let cookie = format!("odeon-80={}", crate::api::key::page_key(&key));
    let cookie = ("cookie", cookie.as_str());
    let pause = "{\"paused\":true}";
    let status =
        async |with: &[(&str, &str)], body: &str| answer(&router, post(with, body)).await.0;
    assert_eq!(status(&[json], pause).await, StatusCode::UNAUTHORIZED);
    let cross = ("sec-fetch-site", "cross-site");
    let own = ("sec-fetch-site", "same-origin");
    let refused = status(&[json, cookie, cross], pause).await;
    assert_eq!(refused, StatusCode::UNAUTHORIZED);
    assert!(!replay.head().paused, "nobody has steered it");
    assert_eq!(status(&[bearer], pause).await, StatusCode::BAD_REQUEST);
    for body in [
        "{",
        "{\"speed\":0}",
        "{\"speed\":1e9}",
        "{\"loud\":1}",
        "[]",
    ] {
        let refused = status(&[json, bearer], body).await;
        assert_eq!(refused, StatusCode::BAD_REQUEST, "{body}");
    }
    assert_eq!(status(&[json, cookie, own], pause).await, StatusCode::OK);
    assert!(replay.head().paused);
    let end = replay.recording().to();
    let body = json!({ "at": end.as_ms() + 5_000.0, "speed": 4.0 }).to_string();
    let (status, told) = answer(&router, post(&[json, bearer], &body)).await;
    assert_eq!(status, StatusCode::OK);
    // It goes no further than its end.
    let at = told["at"].as_f64().unwrap();
    assert!((at - end.as_ms()).abs() < 0.01, "{at}");
    assert_eq!(told["speed"].as_f64(), Some(4.0));
    let request = Request::get("/api/v1/inspect/view?view=now");
    let request = request
        .header("host", "127.0.0.1:80")
        .header("authorization", bearer.1);
    let (_, page) = answer(&router, request.body(Body::empty()).unwrap()).await;
    let shown = page["captured_at"].as_f64().unwrap();
    assert!((shown - end.as_ms()).abs() < 0.01, "{shown}");
    assert_eq!(page["head"]["replay"]["paused"], true);

    let system = System::local().await.unwrap();
    let observer = Observer::new("it", 1);
    let living = Inspect::new(
        observer,
        Facts::Standalone(OutputLog::default()),
        Origin::Living(system.clone()),
        None,
    );
    let mut request = post(&[json], pause);
    *request.uri_mut() = "/replay".parse().unwrap();
    let (status, _) = answer(&living.router(), request).await;
    assert_eq!(status, StatusCode::NOT_FOUND);
    system.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn it_goes_on_with_time_stands_when_told_and_begins_again_from_its_end() {
    let replay = short().await;
    let (from, to) = (replay.recording().from(), replay.recording().to());
    let at = || replay.0.at.lock().at;
    // A date that was told in milliseconds is that to a microsecond.
    let ms = || (at().since(from).as_secs_f64() * 1e3).round();
    let start = replay.0.at.lock().since;
    let second = Duration::from_secs(1);
    replay.step(start.after(second)).unwrap();
    assert_eq!(ms(), 1_000.0);
    replay.0.at.lock().speed = 4.0;
    replay.step(start.after(second * 2)).unwrap();
    assert_eq!(ms(), 5_000.0);
    replay
        .steer(&Steer {
            paused: Some(true),
            speed: None,
            at: Some(from.after(second * 3).as_ms()),
        })
        .unwrap();
    replay.step(start.after(second * 3)).unwrap();
    replay.step(start.after(second * 60)).unwrap();
    assert_eq!(ms(), 3_000.0, "it stands");
    let epoch = replay.0.observer.epoch();
    replay.stand_at(to).unwrap();
    let steer = |paused| Steer {
        paused: Some(paused),
        speed: None,
        at: None,
    };
    replay.steer(&steer(false)).unwrap();
    replay.step(start.after(second * 61)).unwrap();
    assert_eq!(at(), from);
    assert_ne!(replay.0.observer.epoch(), epoch, "what was seen is gone");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_page_of_a_recording_is_one_file_that_says_what_it_holds() {
    let replay = short().await;
    let (from, to) = (replay.recording().from(), replay.recording().to());
    let page = super::super::exported(&replay.inspect(), from, to)
        .await
        .unwrap();
    assert!(page.contains("connect-src 'none'"));
    assert!(
        page.contains("23 moments of the pages"),
        "it says what it holds"
    );
    assert!(!page.contains("src=\"") && !page.contains("<link rel=\"stylesheet"));
    let error = super::super::exported(&replay.inspect(), to, from)
        .await
        .unwrap_err();
    assert!(
        error.to_string().contains("nothing of the recording"),
        "{error}"
    );
}
