//! Rollouts by servers of others, against a small server of our own: what is promised of them.

mod run;
mod server;

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use odeon::{Clock, Timestamp};
use odeon_actors::engine::compute::{
    ComputeSpec, Device, ModelSource, Precision, Sampling, policy_optimizer,
};
use odeon_actors::engine::served::{Dialect, Patience, ServedSpec};
use odeon_actors::engine::{EngineSpec, Response, RolloutEngine};
use odeon_actors::rl::referee::ProgramSpec;
use odeon_actors::trajectory::{Decode, Order, Partial, SampleId};
use odeon_algorithms::model::{Model, ModelConfig, Recompute};
use odeon_algorithms::objective::PolicyObjective;
use odeon_algorithms::task::{SumsConfig, TaskSpec};
use odeon_algorithms::tokenizer::Tokenizer;
use odeon_algorithms::train::Schedule;
use odeon_algorithms::weights::StoredType;
use odeon_gpu::Cpu;
use server::{Fault, Server, Setup};

const CONTEXT: usize = 48;
const BOTH: [Dialect; 2] = [Dialect::Vllm, Dialect::Sglang];

fn config() -> ModelConfig {
    ModelConfig {
        vocab: Tokenizer::arithmetic().vocabulary(),
        dim: 16,
        layers: 1,
        heads: 2,
        kv_heads: 2,
        head_dim: 8,
        ffn: 24,
        ..ModelConfig::default()
    }
}

fn compute(base: &Path) -> ComputeSpec {
    ComputeSpec {
        source: ModelSource::Fresh(Box::new(config())),
        tokenizer: Tokenizer::arithmetic(),
        task: TaskSpec::Sums(SumsConfig::default()),
        programs: ProgramSpec::default(),
        environment: None,
        seed: 5,
        device: Device::Cpu,
        threads: 1,
        deterministic: false,
        products: Precision::F32,
        context: CONTEXT,
        lora_rank: 0,
        warmup_batch: 4,
        warmup_steps: 0,
        warmup_lr: 1e-3,
        lr: 1e-3,
        schedule: Schedule::Constant,
        optimizer: policy_optimizer(),
        recompute: Recompute::Nothing,
        offload: false,
        critic_lr: 1e-3,
        epochs: 1,
        minibatches: 1,
        pretrain: 0.0,
        objective: PolicyObjective::default(),
        sampling: Sampling {
            temperature: 0.8,
            top_p: 1.0,
            response_max: 24,
        },
        weights: StoredType::F32,
        slots: 4,
        base: base.to_owned(),
        share: None,
    }
}

/// Short waits: what is waited for in vain here never comes.
fn patience() -> Patience {
    Patience {
        idle: Duration::from_secs(30),
        away: Duration::from_secs(20),
        pause: Duration::from_millis(5),
        pause_max: Duration::from_millis(40),
        ..Patience::default()
    }
}

fn spec(folder: &Path, server: &Server, dialect: Dialect) -> ServedSpec {
    ServedSpec {
        dialect,
        urls: vec![server.url()],
        api_key_env: None,
        weights_dir: folder.join("weights"),
        patience: patience(),
        compute: compute(folder),
    }
}

/// Weights as they travel.
fn weights(seed: u64) -> Vec<u8> {
    let model = Model::init(Cpu::new(1), config(), seed).unwrap();
    model
        .flat()
        .iter()
        .flat_map(|it| it.to_le_bytes())
        .collect()
}

fn order(number: u64, decode: Decode, partial: Option<Partial>) -> Order {
    Order {
        id: SampleId {
            group: number,
            sample: 1,
        },
        prompt: vec![3, 1 + number as u32, 4, 1, 5],
        problem: 0,
        decode,
        partial,
    }
}

fn orders(decode: Decode) -> Vec<Order> {
    (0..4).map(|number| order(number, decode, None)).collect()
}

/// All replies to these orders, by what they are.
fn replies(engine: &mut dyn RolloutEngine, orders: &[Order]) -> BTreeMap<SampleId, Response> {
    for order in orders {
        engine.admit(order).unwrap();
    }
    rest(engine)
}

/// Fails a test that has waited for too long since then.
fn in_time(begun: Timestamp) {
    let waited = Clock::now().since(begun);
    assert!(waited < Duration::from_secs(60), "it takes too long");
}

/// Steps until nothing is under way any more.
fn rest(engine: &mut dyn RolloutEngine) -> BTreeMap<SampleId, Response> {
    let mut all = BTreeMap::new();
    let begun = Clock::now();
    while engine.active() > 0 {
        in_time(begun);
        all.extend(engine.step().unwrap().into_iter().map(|it| (it.id, it)));
    }
    all
}

/// The same by a rollout that computes.
fn computed(folder: &Path, seed: u64, orders: &[Order]) -> BTreeMap<SampleId, Response> {
    let mut engine = EngineSpec::Compute(Box::new(compute(folder)))
        .rollout()
        .unwrap();
    engine.load(&weights(seed)).unwrap();
    replies(engine.as_mut(), orders)
}

fn same_tokens(got: &BTreeMap<SampleId, Response>, want: &BTreeMap<SampleId, Response>) {
    let tokens = |all: &BTreeMap<SampleId, Response>| -> Vec<_> {
        all.values().map(|it| (it.id, it.tokens.clone())).collect()
    };
    assert_eq!(tokens(got), tokens(want));
    for response in got.values() {
        assert_eq!(response.tokens.len(), response.log_probs.len());
    }
}

fn served(spec: &ServedSpec) -> Box<dyn RolloutEngine> {
    EngineSpec::Served(Box::new(spec.clone()))
        .rollout()
        .unwrap()
}

/// A server, and a rollout with the weights of a seed on it.
fn started(folder: &Path, dialect: Dialect, seed: u64) -> (Server, Box<dyn RolloutEngine>) {
    let server = Server::start(Setup::new(dialect, &config(), CONTEXT));
    let mut engine = served(&spec(folder, &server, dialect));
    engine.load(&weights(seed)).unwrap();
    (server, engine)
}

/// Begins replies, of which the server makes so many passes and then no more; until each of them has
/// so many tokens.
fn begin(
    server: &Server,
    engine: &mut dyn RolloutEngine,
    orders: &[Order],
    passes: usize,
    tokens: usize,
) {
    server.hold_after(0);
    for order in orders {
        engine.admit(order).unwrap();
    }
    // All of them are made in the same passes.
    let begun = Clock::now();
    while server.counts().asked < orders.len() {
        in_time(begun);
        assert!(engine.step().unwrap().is_empty());
    }
    server.hold_after(passes);
    while engine
        .under_way(&|_| 0)
        .iter()
        .any(|it| it.tokens.len() < tokens)
    {
        in_time(begun);
        assert!(
            engine.step().unwrap().is_empty(),
            "none of them is that short"
        );
    }
}

/// SEMANTICS 83.
#[test]
fn replies_of_a_server_are_those_of_a_rollout_that_computes() {
    let folder = tempfile::tempdir().unwrap();
    for (dialect, incremental) in [
        (Dialect::Vllm, false),
        (Dialect::Sglang, false),
        (Dialect::Sglang, true),
    ] {
        let setup = Setup {
            incremental,
            ..Setup::new(dialect, &config(), CONTEXT)
        };
        let server = Server::start(setup);
        let mut engine = served(&spec(folder.path(), &server, dialect));
        engine.load(&weights(1)).unwrap();
        let orders = orders(Decode::Sampled);
        let (got, want) = (
            replies(engine.as_mut(), &orders),
            computed(folder.path(), 1, &orders),
        );
        same_tokens(&got, &want);
        for (got, want) in got.values().zip(want.values()) {
            for (got, want) in got.log_probs.iter().zip(&want.log_probs) {
                assert!((got - want).abs() < 1e-5, "{got} {want}");
            }
        }
        let greedy = [order(9, Decode::Greedy, None)];
        same_tokens(
            &replies(engine.as_mut(), &greedy),
            &computed(folder.path(), 1, &greedy),
        );
        assert_eq!(server.counts().asked, 5);
    }
}

/// SEMANTICS 83.
#[test]
fn new_weights_are_taken_between_replies_and_old_prefixes_forgotten() {
    let folder = tempfile::tempdir().unwrap();
    for dialect in BOTH {
        let (server, mut engine) = started(folder.path(), dialect, 1);
        let orders = orders(Decode::Greedy);
        begin(&server, engine.as_mut(), &orders, 3, 1);
        assert!(
            !engine.can_load(),
            "they are under way with the weights before"
        );
        server.go_on();
        same_tokens(&rest(engine.as_mut()), &computed(folder.path(), 1, &orders));
        assert!(engine.can_load());
        engine.load(&weights(2)).unwrap();
        let second = computed(folder.path(), 2, &orders);
        same_tokens(&replies(engine.as_mut(), &orders), &second);
        let counts = server.counts();
        assert_eq!((counts.updates, counts.flushes, counts.aborted), (2, 2, 0));
        // Of the weights that were handed over the newest are kept, for a server that begins anew.
        let own = std::fs::read_dir(folder.path().join("weights")).unwrap();
        for own in own {
            let there = std::fs::read_dir(own.unwrap().path()).unwrap().count();
            assert_eq!(there, 1);
        }
    }
}

/// SEMANTICS 83.
#[test]
fn an_interrupted_reply_goes_on_with_the_new_weights() {
    let folder = tempfile::tempdir().unwrap();
    for dialect in BOTH {
        let (server, mut engine) = started(folder.path(), dialect, 1);
        let orders = orders(Decode::Greedy);
        begin(&server, engine.as_mut(), &orders, 4, 2);
        server.hold_after(0);
        engine.interrupt(&weights(2)).unwrap();
        let begun = engine.under_way(&|_| 0);
        assert_eq!(begun.len(), orders.len());
        server.go_on();
        let got = rest(engine.as_mut());
        let old = computed(folder.path(), 1, &orders);
        for (order, begun) in orders.iter().zip(begun) {
            let got = &got[&order.id];
            assert_eq!(
                begun.tokens[..],
                old[&order.id].tokens[..begun.tokens.len()]
            );
            let partial = Partial {
                version: 1,
                life: 1,
                tokens: begun.tokens.clone(),
                log_probs: begun.log_probs.clone(),
                ..Partial::default()
            };
            let further = Order {
                partial: Some(partial),
                ..order.clone()
            };
            let new = &computed(folder.path(), 2, &[further])[&order.id];
            assert_eq!(got.tokens, [begun.tokens, new.tokens.clone()].concat());
        }
    }
}

/// SEMANTICS 83.
#[test]
fn a_server_that_is_killed_and_started_anew_loses_no_reply() {
    let folder = tempfile::tempdir().unwrap();
    for dialect in BOTH {
        let (server, mut engine) = started(folder.path(), dialect, 1);
        let orders = orders(Decode::Greedy);
        begin(&server, engine.as_mut(), &orders, 5, 2);
        let (setup, address) = server.kill();
        for _ in 0..3 {
            assert!(engine.step().unwrap().is_empty(), "nobody makes any");
        }
        // It comes back with weights of its own.
        let again = Server::start_at(setup, address);
        let got = rest(engine.as_mut());
        same_tokens(&got, &computed(folder.path(), 1, &orders));
        assert_eq!(again.counts().updates, 1, "it was given the weights again");
        assert!(again.counts().asked <= orders.len());
    }
}

/// SEMANTICS 83.
#[test]
fn a_server_that_began_anew_unseen_makes_nothing_with_its_own_weights() {
    let folder = tempfile::tempdir().unwrap();
    for dialect in BOTH {
        let (server, mut engine) = started(folder.path(), dialect, 1);
        let (setup, address) = server.kill();
        let again = Server::start_at(setup, address);
        let orders = orders(Decode::Sampled);
        let got = replies(engine.as_mut(), &orders);
        same_tokens(&got, &computed(folder.path(), 1, &orders));
        assert_eq!(again.counts().updates, 1);
    }
}

/// SEMANTICS 83.
#[test]
fn a_reply_that_is_lost_on_its_way_goes_on_from_what_has_come() {
    let folder = tempfile::tempdir().unwrap();
    for dialect in BOTH {
        for fault in [
            Fault::Status(500),
            Fault::Status(503),
            Fault::Hang,
            Fault::Truncate,
        ] {
            let server = Server::start(Setup::new(dialect, &config(), CONTEXT));
            let mut spec = spec(folder.path(), &server, dialect);
            if fault == Fault::Hang {
                spec.patience.idle = Duration::from_millis(300);
                spec.patience.losses = 100;
            }
            let mut engine = served(&spec);
            engine.load(&weights(1)).unwrap();
            server.fail(&[fault, fault]);
            let orders = orders(Decode::Greedy);
            let got = replies(engine.as_mut(), &orders);
            same_tokens(&got, &computed(folder.path(), 1, &orders));
            assert!(server.counts().asked > orders.len(), "{fault:?}");
        }
    }
}

/// The failure of a rollout that gives up.
fn gives_up(engine: &mut dyn RolloutEngine) -> String {
    engine.admit(&order(0, Decode::Sampled, None)).unwrap();
    let begun = Clock::now();
    loop {
        in_time(begun);
        match engine.step() {
            Ok(finished) => assert!(finished.is_empty(), "{finished:?}"),
            Err(failure) => return failure.to_string(),
        }
    }
}

/// SEMANTICS 83.
#[test]
fn what_time_does_not_mend_is_given_up_in_words() {
    let folder = tempfile::tempdir().unwrap();
    for dialect in BOTH {
        let path = match dialect {
            Dialect::Vllm => "/v1/completions",
            Dialect::Sglang => "/generate",
        };
        for (fault, times, words) in [
            (Fault::Status(400), 1, "answered 400: the engine is unwell"),
            (Fault::Status(500), 9, "answered 500: the engine is unwell"),
            (Fault::NoLogProbs, 1, "have no log-probabilities"),
            (Fault::Garbage, 1, "sent what is no answer of"),
        ] {
            let (server, mut engine) = started(folder.path(), dialect, 1);
            server.fail(&vec![fault; times]);
            let said = gives_up(engine.as_mut());
            let url = format!("{}{path}", server.url());
            assert!(said.contains(&url) && said.contains(words), "{said}");
        }
    }
}

/// SEMANTICS 83.
#[test]
fn a_server_that_is_away_hangs_or_wants_a_key_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(Setup {
        key: Some("secret".to_owned()),
        says_context: CONTEXT - 1,
        ..Setup::new(Dialect::Vllm, &config(), CONTEXT)
    });
    let refused = |spec: &ServedSpec| {
        let refused = EngineSpec::Served(Box::new(spec.clone())).rollout();
        refused.err().expect("it is refused").to_string()
    };
    let mut spec = spec(folder.path(), &server, Dialect::Vllm);
    spec.patience.away = Duration::from_millis(100);
    let said = refused(&spec);
    assert!(said.contains("/v1/models answered 401"), "{said}");
    spec.api_key_env = Some("ODEON_NO_SUCH_KEY".to_owned());
    let said = refused(&spec);
    assert!(
        said.contains("ODEON_NO_SUCH_KEY, which is not set"),
        "{said}"
    );
    spec.urls = vec!["ftp://there".to_owned()];
    spec.api_key_env = None;
    assert!(refused(&spec).contains("expected http:// or https://"));

    let open = Server::start(Setup {
        says_context: CONTEXT - 1,
        ..Setup::new(Dialect::Vllm, &config(), CONTEXT)
    });
    spec.urls = vec![open.url()];
    let said = refused(&spec);
    assert!(
        said.contains("47 tokens at most") && said.contains("context = 48"),
        "{said}"
    );

    let url = open.url();
    drop(open);
    spec.urls = vec![url.clone()];
    let said = refused(&spec);
    assert!(
        said.contains("given up after") && said.contains(&url),
        "{said}"
    );
    assert!(said.contains("cannot be reached"), "{said}");

    // It takes connections and never says a word.
    let mute = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    spec.urls = vec![format!("http://{}", mute.local_addr().unwrap())];
    spec.patience.idle = Duration::from_millis(50);
    let said = refused(&spec);
    assert!(said.contains("has sent nothing for"), "{said}");
}

#[test]
fn what_a_server_uses_of_its_room_is_told() {
    let folder = tempfile::tempdir().unwrap();
    let (_server, mut engine) = started(folder.path(), Dialect::Vllm, 1);
    let capacity = engine.cache().capacity;
    // The server says a quarter, whatever there is.
    let begun = Clock::now();
    while engine.cache().used != capacity / 4 {
        in_time(begun);
        engine.step().unwrap();
    }
}
