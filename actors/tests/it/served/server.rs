//! A small server that speaks as vLLM and as SGLang do, over real HTTP, and generates with a tiny
//! model. It fails when it is told to.

use std::collections::{HashMap, VecDeque};
use std::net::SocketAddr;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{Request, State};
use axum::http::{Method, StatusCode};
use axum::response::{IntoResponse, Response};
use odeon_actors::engine::served::Dialect;
use odeon_algorithms::generate::{
    Finish, Generator, GeneratorConfig, InFlight, Request as Order, Sampled, Sampling,
};
use odeon_algorithms::model::{Model, ModelConfig};
use odeon_algorithms::weights::load_directory;
use odeon_gpu::Cpu;
use serde_json::{Value, json};
use tokio::runtime::Runtime;
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};

/// A fault of a server at the next request for a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// Answers with a status and some words.
    Status(u16),
    /// Begins, and then sends nothing.
    Hang,
    /// Ends the stream after the first tokens, without a word.
    Truncate,
    /// Sends tokens without log-probabilities.
    NoLogProbs,
    /// Sends half of an object.
    Garbage,
}

/// Settings that a server is made from.
#[derive(Clone, Debug)]
pub(crate) struct Setup {
    pub(crate) dialect: Dialect,
    pub(crate) config: ModelConfig,
    pub(crate) context: usize,
    /// Set when SGLang sends new tokens alone.
    pub(crate) incremental: bool,
    /// The key that it wants.
    pub(crate) key: Option<String>,
    /// The longest sequence that it says to take.
    pub(crate) says_context: usize,
}

impl Setup {
    pub(crate) fn new(dialect: Dialect, config: &ModelConfig, context: usize) -> Self {
        Self {
            dialect,
            config: config.clone(),
            context,
            incremental: false,
            key: None,
            says_context: context,
        }
    }
}

/// A server that runs, until it is dropped or killed.
pub(crate) struct Server {
    pub(crate) address: SocketAddr,
    shared: Arc<Shared>,
    runtime: Option<Runtime>,
    worker: Option<std::thread::JoinHandle<()>>,
}

struct Shared {
    setup: Setup,
    /// No other server that was started has it.
    born: usize,
    inner: Mutex<Inner>,
    changed: Condvar,
}

struct Inner {
    generator: Generator<Cpu>,
    streams: HashMap<u64, Stream>,
    next: u64,
    /// Passes that it may still do; `None` for as many as there are.
    passes: Option<usize>,
    paused: bool,
    over: bool,
    version: String,
    faults: VecDeque<Fault>,
    counts: Counts,
}

/// Number of calls that a server was asked, by kind.
#[derive(Clone, Debug, Default)]
pub(crate) struct Counts {
    pub(crate) asked: usize,
    pub(crate) updates: usize,
    pub(crate) flushes: usize,
    pub(crate) aborted: usize,
}

struct Stream {
    sent: usize,
    all: Vec<(f32, u32)>,
    prompt: Vec<u32>,
    raw: bool,
    fault: Option<Fault>,
    out: UnboundedSender<Bytes>,
}

static BORN: AtomicUsize = AtomicUsize::new(1);

impl Server {
    /// Starts one on a port of its own, with weights of its own.
    pub(crate) fn start(setup: Setup) -> Self {
        Self::start_at(setup, SocketAddr::from(([127, 0, 0, 1], 0)))
    }

    /// Starts one at an address where one was.
    pub(crate) fn start_at(setup: Setup, address: SocketAddr) -> Self {
        let options = GeneratorConfig {
            slots: 8,
            max_tokens: setup.context,
            ..GeneratorConfig::default()
        };
        let mut generator = Generator::new(Cpu::new(1), setup.config.clone(), options).unwrap();
        let own = Model::init(Cpu::new(1), setup.config.clone(), 987).unwrap();
        generator.load_flat(own.flat()).unwrap();
        let shared = Arc::new(Shared {
            setup,
            born: BORN.fetch_add(1, Ordering::Relaxed),
            inner: Mutex::new(Inner {
                generator,
                streams: HashMap::new(),
                next: 0,
                passes: None,
                paused: false,
                over: false,
                version: "default".to_owned(),
                faults: VecDeque::new(),
                counts: Counts::default(),
            }),
            changed: Condvar::new(),
        });
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        let (told, address_of) = std::sync::mpsc::channel();
        let app = Router::new()
            .fallback(answer)
            .with_state(Arc::clone(&shared));
        runtime.spawn(async move {
            let listener = tokio::net::TcpListener::bind(address).await.unwrap();
            told.send(listener.local_addr().unwrap()).unwrap();
            axum::serve(listener, app).await.unwrap();
        });
        let address = address_of.recv().expect("it listens");
        let working = Arc::clone(&shared);
        let worker = std::thread::spawn(move || work(&working));
        Self {
            address,
            shared,
            runtime: Some(runtime),
            worker: Some(worker),
        }
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// The next requests for replies go wrong like this.
    pub(crate) fn fail(&self, faults: &[Fault]) {
        self.shared.inner.lock().unwrap().faults.extend(faults);
    }

    /// It makes so many more passes and then none.
    pub(crate) fn hold_after(&self, passes: usize) {
        self.shared.inner.lock().unwrap().passes = Some(passes);
        self.shared.changed.notify_all();
    }

    pub(crate) fn go_on(&self) {
        self.shared.inner.lock().unwrap().passes = None;
        self.shared.changed.notify_all();
    }

    pub(crate) fn counts(&self) -> Counts {
        self.shared.inner.lock().unwrap().counts.clone()
    }

    /// Ends it with all of its connections.
    pub(crate) fn kill(mut self) -> (Setup, SocketAddr) {
        self.end();
        (self.shared.setup.clone(), self.address)
    }

    fn end(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            // Waits for the tasks to be dropped, so that the port is free.
            std::thread::scope(|scope| {
                scope.spawn(|| drop(runtime));
            });
        }
        self.shared.inner.lock().unwrap().over = true;
        self.shared.changed.notify_all();
        if let Some(worker) = self.worker.take() {
            worker.join().unwrap();
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.end();
    }
}

/// Makes tokens for as long as there are streams.
fn work(shared: &Shared) {
    let mut inner = shared.inner.lock().unwrap();
    loop {
        if inner.over {
            return;
        }
        if inner.paused || inner.passes == Some(0) || inner.generator.is_idle() {
            inner = shared.changed.wait(inner).unwrap();
            continue;
        }
        if let Some(passes) = &mut inner.passes {
            *passes -= 1;
        }
        let Inner {
            generator,
            streams,
            version,
            ..
        } = &mut *inner;
        let done = generator.step();
        for sampled in generator.running() {
            tell(shared, streams, sampled, None, version);
        }
        for sampled in &done {
            let word = match sampled.finish {
                Finish::Stop => "stop",
                _ => "length",
            };
            tell(shared, streams, sampled, Some(word), version);
            streams.remove(&sampled.id);
        }
        // Questions come in between.
        drop(inner);
        std::thread::yield_now();
        inner = shared.inner.lock().unwrap();
    }
}

/// Sends what is new of a reply.
fn tell(
    shared: &Shared,
    streams: &mut HashMap<u64, Stream>,
    sampled: &Sampled,
    finish: Option<&str>,
    version: &str,
) {
    let Some(stream) = streams.get_mut(&sampled.id) else {
        return;
    };
    let log_probs = match stream.raw {
        true => &sampled.logprobs,
        false => &sampled.sampling_logprobs,
    };
    let made = log_probs
        .iter()
        .copied()
        .zip(sampled.tokens.iter().copied());
    stream.all = made.collect();
    if stream.all.len() == stream.sent && finish.is_none() {
        return;
    }
    let event = match shared.setup.dialect {
        Dialect::Vllm => vllm_event(stream, finish),
        Dialect::Sglang => sglang_event(stream, finish, version, shared.setup.incremental),
    };
    let mut text = format!("data: {event}\n\n");
    stream.sent = stream.all.len();
    match stream.fault {
        Some(Fault::Garbage) => text = "data: {\"choices\": [{\"tex\n\n".to_owned(),
        Some(Fault::Hang) if stream.sent > 2 => return,
        Some(Fault::Truncate) if stream.sent > 2 => {
            // Nobody holds the sender any more: the stream ends.
            streams.remove(&sampled.id);
            return;
        }
        _ => {}
    }
    if finish.is_some() {
        text.push_str("data: [DONE]\n\n");
    }
    // Cut where no event ends, as networks do.
    let (front, back) = text.as_bytes().split_at(text.len() / 3);
    for part in [front, back] {
        // Whoever has gone does not want it.
        let _ = stream.out.send(Bytes::copy_from_slice(part));
    }
}

fn vllm_event(stream: &Stream, finish: Option<&str>) -> Value {
    let fresh = &stream.all[stream.sent..];
    let ids: Vec<u32> = fresh.iter().map(|(_, token)| *token).collect();
    let names: Vec<String> = ids.iter().map(|id| format!("token_id:{id}")).collect();
    let log_probs: Vec<f32> = fresh.iter().map(|(log_prob, _)| *log_prob).collect();
    let mut choice = json!({
        "index": 0,
        "text": "x".repeat(ids.len()),
        "logprobs": {"tokens": names, "token_logprobs": log_probs, "top_logprobs": [], "text_offset": []},
        "finish_reason": finish,
        "stop_reason": (finish == Some("stop")).then(|| ids.last()),
        "token_ids": ids,
    });
    if stream.sent == 0 {
        choice["prompt_token_ids"] = json!(stream.prompt);
    }
    if stream.fault == Some(Fault::NoLogProbs) {
        choice["logprobs"] = Value::Null;
    }
    json!({"id": "cmpl-1", "object": "text_completion", "created": 1, "model": "tiny", "choices": [choice]})
}

fn sglang_event(stream: &Stream, finish: Option<&str>, version: &str, incremental: bool) -> Value {
    let from = if incremental { stream.sent } else { 0 };
    let listed: Vec<Value> = stream.all[from..]
        .iter()
        .map(|(log_prob, token)| json!([log_prob, token, null]))
        .collect();
    let finish = finish.map(|word| match word {
        "stop" => json!({"type": word, "matched": stream.all.last().map(|(_, token)| token)}),
        word => json!({"type": word}),
    });
    let mut meta = json!({
        "id": "1",
        "finish_reason": finish,
        "completion_tokens": stream.all.len(),
        "weight_version": version,
        "output_token_logprobs": listed,
    });
    if stream.fault == Some(Fault::NoLogProbs) {
        meta.as_object_mut()
            .unwrap()
            .remove("output_token_logprobs");
    }
    json!({"text": "x", "output_ids": [], "meta_info": meta})
}

/// Every request.
async fn answer(State(shared): State<Arc<Shared>>, request: Request) -> Response {
    let path = request.uri().path().to_owned();
    let query = request.uri().query().unwrap_or_default().to_owned();
    if let Some(key) = &shared.setup.key {
        let given = request.headers().get("authorization");
        if given.is_none_or(|it| it.as_bytes() != format!("Bearer {key}").as_bytes()) {
            return (StatusCode::UNAUTHORIZED, "{\"error\":\"Unauthorized\"}").into_response();
        }
    }
    let method = request.method().clone();
    let body = axum::body::to_bytes(request.into_body(), usize::MAX)
        .await
        .unwrap();
    let body: Value = serde_json::from_slice(&body).unwrap_or_default();
    let mut inner = shared.inner.lock().unwrap();
    let dialect = shared.setup.dialect;
    match (dialect, method, path.as_str()) {
        (_, Method::GET, "/v1/models") => {
            let context = shared.setup.says_context;
            json!({"object": "list", "data": [{"id": "tiny", "max_model_len": context}]})
                .to_string()
                .into_response()
        }
        // SGLang has none unless it is told to.
        (Dialect::Vllm, Method::GET, "/metrics") => format!(
            "# HELP process_start_time_seconds Start.\nprocess_start_time_seconds {}\n\
             vllm:kv_cache_usage_perc{{engine=\"0\",model_name=\"tiny\"}} 0.25\n",
            shared.born
        )
        .into_response(),
        (Dialect::Vllm, Method::POST, "/v1/completions") => {
            let (sampling, seed) = (sampling_of(&body), body["seed"].as_i64().unwrap());
            assert_eq!(body["model"], "tiny");
            generate(
                &shared,
                &mut inner,
                &body["prompt"],
                &body["max_tokens"],
                sampling,
                seed,
            )
        }
        (Dialect::Sglang, Method::POST, "/generate") => {
            let params = &body["sampling_params"];
            let (sampling, seed) = (
                sampling_of(params),
                params["sampling_seed"].as_i64().unwrap(),
            );
            let most = &params["max_new_tokens"];
            generate(
                &shared,
                &mut inner,
                &body["input_ids"],
                most,
                sampling,
                seed,
            )
        }
        (Dialect::Vllm, Method::POST, "/pause") if query.contains("mode=abort") => {
            pause(&shared, &mut inner)
        }
        (Dialect::Sglang, Method::POST, "/pause_generation") if body["mode"] == "abort" => {
            pause(&shared, &mut inner)
        }
        (Dialect::Vllm, Method::POST, "/resume")
        | (Dialect::Sglang, Method::POST, "/continue_generation") => {
            inner.paused = false;
            shared.changed.notify_all();
            "{}".into_response()
        }
        (Dialect::Vllm, Method::POST, "/collective_rpc") if body["method"] == "reload_weights" => {
            update(&mut inner, &body["kwargs"]["weights_path"], "")
        }
        (Dialect::Sglang, Method::POST, "/update_weights_from_disk") => update(
            &mut inner,
            &body["model_path"],
            body["weight_version"].as_str().unwrap(),
        ),
        (Dialect::Vllm, Method::POST, "/reset_prefix_cache")
        | (Dialect::Sglang, Method::POST, "/flush_cache") => {
            inner.counts.flushes += 1;
            "".into_response()
        }
        (_, method, path) => (StatusCode::NOT_FOUND, format!("no {method} {path}")).into_response(),
    }
}

fn sampling_of(body: &Value) -> Sampling {
    let stop = body["stop_token_ids"].as_array().unwrap();
    Sampling {
        temperature: body["temperature"].as_f64().unwrap() as f32,
        top_p: body["top_p"].as_f64().unwrap() as f32,
        stop: stop.iter().map(|id| id.as_u64().unwrap() as u32).collect(),
    }
}

fn generate(
    shared: &Shared,
    inner: &mut Inner,
    prompt: &Value,
    most: &Value,
    sampling: Sampling,
    seed: i64,
) -> Response {
    inner.counts.asked += 1;
    let fault = inner.faults.pop_front();
    if let Some(Fault::Status(status)) = fault {
        let words = "the engine\nis unwell";
        return (StatusCode::from_u16(status).unwrap(), words).into_response();
    }
    let ids = prompt.as_array().unwrap().iter();
    let prompt: Vec<u32> = ids.map(|id| id.as_u64().unwrap() as u32).collect();
    let id = inner.next;
    inner.next += 1;
    let (out, read) = unbounded_channel();
    let stream = Stream {
        sent: 0,
        all: vec![],
        prompt: prompt.clone(),
        raw: sampling.top_p < 1.0 || sampling.temperature == 0.0,
        fault,
        out,
    };
    inner.streams.insert(id, stream);
    let order = Order {
        id,
        prompt,
        max_new_tokens: most.as_u64().unwrap() as usize,
        sampling,
        seed: seed.cast_unsigned(),
        resumed: 0,
    };
    inner.generator.submit(order).unwrap();
    shared.changed.notify_all();
    let bytes = futures::stream::unfold(read, async |mut read| {
        let next = read.recv().await?;
        Some((Ok::<_, std::convert::Infallible>(next), read))
    });
    Body::from_stream(bytes).into_response()
}

/// Ends what is under way, and begins nothing.
fn pause(shared: &Shared, inner: &mut Inner) -> Response {
    inner.paused = true;
    inner.generator.evict();
    inner.generator.take_queued();
    inner.counts.aborted += inner.streams.len();
    for (_, stream) in inner.streams.drain() {
        let event = match shared.setup.dialect {
            Dialect::Vllm => {
                json!({"choices": [{"text": "", "token_ids": [], "finish_reason": "abort"}]})
            }
            Dialect::Sglang => json!({"meta_info": {
                "completion_tokens": stream.sent, "finish_reason": {"type": "abort", "message": "paused"},
            }}),
        };
        let _ = stream
            .out
            .send(format!("data: {event}\n\ndata: [DONE]\n\n").into());
    }
    "{\"status\":\"paused\"}".into_response()
}

fn update(inner: &mut Inner, folder: &Value, version: &str) -> Response {
    assert!(inner.paused, "weights change while nothing is made");
    let folder = Path::new(folder.as_str().unwrap());
    match load_directory(folder) {
        Ok(loaded) => {
            let model = loaded.into_model(Cpu::new(1)).unwrap();
            let generator = &mut inner.generator;
            generator
                .load_flat_in_flight(model.flat(), InFlight::Recompute)
                .unwrap();
            inner.version = version.to_owned();
            inner.counts.updates += 1;
            "{\"success\": true, \"message\": \"done\"}".into_response()
        }
        Err(error) => {
            let said = json!({"success": false, "message": error.to_string()});
            (StatusCode::BAD_REQUEST, said.to_string()).into_response()
        }
    }
}
