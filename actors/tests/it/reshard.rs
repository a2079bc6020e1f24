//! A model between training and generation on the same ranks, in real processes: every byte where it
//! belongs, as many of them moved as HybridFlow's formulas say, and a rank that is killed meanwhile.

use std::time::Duration;

use odeon::group::{CallError, Formation, Pool, WorkerGroup};
use odeon::{ProcessId, Restart, System, WorkerMode, mesh};
use odeon_actors::hybrid::calls::Join;
use odeon_actors::hybrid::resharding::{
    Load, Moved, ReshardArgs, ReshardWorker, Show, ToGeneration, ToTraining,
};
use odeon_algorithms::model::LayerBlock;
use odeon_algorithms::parallel::{Engine, Llama, ModelSpec};
use odeon_tests::again;
use tokio::sync::watch;
use tokio::time::timeout;

#[test]
fn worker_entry() {
    odeon_actors::hybrid::job().serve_if_worker();
}

const RANKS: usize = 8;
const LAYERS: usize = 4;
const HIDDEN: usize = 256;
const INTERMEDIATE: usize = 512;
const HEADS: usize = 8;
const KV_HEADS: usize = 2;
const HEAD: usize = 32;
const VOCABULARY: usize = 1024;
const ELEMENT: usize = 2;

fn llama() -> ModelSpec {
    let model = Llama {
        layers: LAYERS,
        hidden: HIDDEN,
        intermediate: INTERMEDIATE,
        block: LayerBlock::default(),
        heads: HEADS,
        kv_heads: KV_HEADS,
        head_width: HEAD,
        vocabulary: VOCABULARY,
        element_bytes: ELEMENT,
        tied: false,
        qkv_bias: false,
        out_bias: false,
        mlp_bias: false,
        head_norms: false,
        value_head: false,
    };
    model.spec().unwrap()
}

/// Bytes that tell where they belong.
fn weights() -> Vec<u8> {
    let mut state = 1_u64;
    let next = || {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (state >> 56) as u8
    };
    std::iter::repeat_with(next).take(llama().bytes()).collect()
}

/// `p-t-d` and `p_g-t_g`, with `p_g = 1`.
#[derive(Clone, Copy, Debug)]
struct Layouts {
    p: usize,
    t: usize,
    t_g: usize,
    engine: Engine,
}

/// The part of a stage's tensor rank, by hand: which rows or columns of which matrices.
fn cut(whole: &[u8], (stage, stages): (usize, usize), (k, t): (usize, usize)) -> Vec<u8> {
    let (mut part, mut rest) = (vec![], whole);
    for tensor in llama().tensors() {
        let name = tensor.name.as_str();
        let (bytes, later) = rest.split_at(tensor.bytes());
        rest = later;
        let layer = name.strip_prefix("model.layers.").map(|name| {
            let (layer, _) = name.split_once('.').unwrap();
            layer.parse::<usize>().unwrap()
        });
        let home = match (layer, name) {
            (Some(layer), _) => layer / (LAYERS / stages),
            (None, "model.embed_tokens.weight") => 0,
            _ => stages - 1,
        };
        if home != stage {
            continue;
        }
        if name.ends_with("norm.weight") {
            part.extend_from_slice(bytes);
            continue;
        }
        let row = tensor.shape[1] * ELEMENT;
        if name.ends_with("o_proj.weight") || name.ends_with("down_proj.weight") {
            for row in bytes.chunks(row) {
                part.extend_from_slice(&row[k * row.len() / t..(k + 1) * row.len() / t]);
            }
        } else if name.ends_with("k_proj.weight") || name.ends_with("v_proj.weight") {
            // Where there are more ranks than heads, several have the same.
            let rank_heads = (KV_HEADS / t).max(1);
            let first = k * KV_HEADS / t;
            part.extend_from_slice(&bytes[first * HEAD * row..(first + rank_heads) * HEAD * row]);
        } else {
            part.extend_from_slice(&bytes[k * bytes.len() / t..(k + 1) * bytes.len() / t]);
        }
    }
    part
}

impl Layouts {
    fn args(self, rank: usize) -> ReshardArgs {
        ReshardArgs {
            rank,
            model: llama(),
            training: mesh! { dp: RANKS / (self.p * self.t), pp: self.p, tp: self.t },
            generation: mesh! { tp: self.t_g },
            engine: self.engine,
        }
    }

    fn training(self, whole: &[u8], rank: usize) -> Vec<u8> {
        if self.engine == Engine::DeepSpeedChat {
            let each = whole.len() / RANKS;
            return whole[rank * each..(rank + 1) * each].to_vec();
        }
        let stage = rank / self.t % self.p;
        cut(whole, (stage, self.p), (rank % self.t, self.t))
    }

    fn generation(self, whole: &[u8], rank: usize) -> Vec<u8> {
        let k = match self.engine {
            // Tensor groups by steps of t / t_g.
            Engine::HybridFlow => rank % self.t / (self.t / self.t_g),
            // Consecutive ranks.
            Engine::DeepSpeedChat | Engine::HybridFlowV => rank % self.t_g,
        };
        cut(whole, (0, 1), (k, self.t_g))
    }

    /// HybridFlow's table 2, with what several tensor ranks have whole. Its layers are alike on all
    /// stages; the two ends of a model are not, and are counted for themselves.
    fn formula(self, rank: usize) -> [usize; 3] {
        let Self { p, t, t_g, engine } = self;
        let norms = LAYERS * 2 * HIDDEN * ELEMENT;
        let keys = LAYERS * 2 * KV_HEADS * HEAD * HIDDEN * ELEMENT;
        let others = (2 * HEADS * HEAD + 3 * INTERMEDIATE) * HIDDEN;
        let layers = LAYERS * others * ELEMENT + keys + norms;
        let (table, last_norm) = (VOCABULARY * HIDDEN * ELEMENT, HIDDEN * ELEMENT);
        let ends = 2 * table + last_norm;
        let m = layers + ends;

        let (s, s_g, stage) = (p * t, t_g, rank / t % p);
        // W * S, and W_g * S_g, of the layers.
        let more = |t: usize| norms * (t - 1) + keys * ((t / KV_HEADS).max(1) - 1);
        let (w, w_g) = (more(t), more(t_g));
        let first = if stage == 0 { table / t } else { 0 };
        let last = if stage == p - 1 {
            table / t + last_norm
        } else {
            0
        };
        let own_ends = first + last;
        let gathered_ends = 2 * table / t_g + last_norm;
        let exact = |bytes: usize, over: usize| {
            assert!(bytes.is_multiple_of(over));
            bytes / over
        };
        match engine {
            Engine::DeepSpeedChat => [exact(m * (RANKS - 1), RANKS), m, exact(m, RANKS)],
            Engine::HybridFlowV => [
                exact(layers * (s - 1) - w, s) + ends - own_ends,
                m,
                exact(layers + w, s) + own_ends,
            ],
            Engine::HybridFlow => [
                exact(layers * (s - s_g) + w_g * s - w * s_g, s_g * s) + gathered_ends - own_ends,
                exact(layers + w_g, s_g) + gathered_ends,
                0,
            ],
        }
    }
}

async fn system() -> System {
    let worker = again::worker(module_path!());
    let system = System::builder().workers(WorkerMode::Processes(worker));
    system.start().await.unwrap()
}

async fn start(system: &System, pool: &Pool, layouts: Layouts) -> WorkerGroup<ReshardWorker> {
    let ranks = mesh! { rank: RANKS };
    let workers = pool.spawn::<ReshardWorker>(system, ranks, |rank| layouts.args(rank.index()));
    let workers = workers.with(|group| group.restart(Restart::Temporary));
    workers.start().await.unwrap()
}

/// Seats for all; the formation has to stay.
async fn sit(workers: &WorkerGroup<ReshardWorker>) -> Formation {
    let formation = workers.form().await.unwrap();
    let seats = formation.seats().collect();
    workers.call(Join { seats }).await.unwrap();
    formation
}

/// The shards of all, and whether these are what they generate with.
async fn shown(workers: &WorkerGroup<ReshardWorker>) -> Vec<(bool, Vec<u8>)> {
    let mut shards = vec![];
    for shown in workers.call(Show).await.unwrap() {
        shards.push((shown.generates, shown.bytes.open().await.unwrap().to_vec()));
    }
    shards
}

async fn expect(
    workers: &WorkerGroup<ReshardWorker>,
    layouts: Layouts,
    whole: &[u8],
    generates: bool,
) {
    for (rank, shard) in shown(workers).await.into_iter().enumerate() {
        let expected = if generates {
            layouts.generation(whole, rank)
        } else {
            layouts.training(whole, rank)
        };
        let same = shard == (generates, expected);
        assert!(same, "{layouts:?}: rank {rank} has something else");
    }
}

/// SEMANTICS 89.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_engine_moves_the_bytes_of_its_formula_and_each_lands_where_it_belongs() {
    let system = system().await;
    let pool = Pool::new("models");
    let whole = weights();
    let blob = system.blobs().copy_in(&whole).unwrap();
    for engine in Engine::ALL {
        for (p, t, t_g) in [(1, 4, 2), (2, 2, 2), (1, 4, 1)] {
            let layouts = Layouts { p, t, t_g, engine };
            let workers = start(&system, &pool, layouts).await;
            let _formation = sit(&workers).await;
            workers.call(Load(blob.clone())).await.unwrap();
            // The second time with what has come back from the first.
            for _ in 0..2 {
                expect(&workers, layouts, &whole, false).await;
                let moved = workers.call(ToGeneration).await.unwrap();
                expect(&workers, layouts, &whole, true).await;
                for (rank, moved) in moved.iter().enumerate() {
                    let counted = [moved.received, moved.peak, moved.redundant];
                    let formula = layouts.formula(rank).map(|bytes| bytes as u64);
                    assert_eq!(counted, formula, "{layouts:?}, rank {rank}");
                }
                let sum = |of: fn(&Moved) -> u64| moved.iter().map(of).sum::<u64>();
                assert_eq!(sum(|it| it.sent), sum(|it| it.received), "{layouts:?}");
                workers.call(ToTraining).await.unwrap();
            }
            expect(&workers, layouts, &whole, false).await;
        }
    }
    system.shutdown().await;
}

/// The process of a rank.
fn process(system: &System, workers: &WorkerGroup<ReshardWorker>, rank: usize) -> ProcessId {
    let member = workers.member(rank).unwrap();
    system
        .admin()
        .process_of(member)
        .expect("the rank has a process")
}

/// All but the lost rank have what they trained, whether they had come to generate or not.
async fn keep(
    workers: &WorkerGroup<ReshardWorker>,
    lost: usize,
    (layouts, whole): (Layouts, &[u8]),
) {
    for rank in (0..RANKS).filter(|rank| *rank != lost) {
        let member = workers.member(rank).unwrap();
        member.ask(ToTraining).await.unwrap().unwrap();
        let shown = member.ask(Show).await.unwrap().unwrap();
        let shard = shown.bytes.open().await.unwrap();
        let same = *shard == layouts.training(whole, rank);
        assert!(same && !shown.generates, "rank {rank} has something else");
    }
    // The lost one has no life to end.
    let _ = workers.group().stop().await;
}

const SOON: Duration = Duration::from_secs(30);

/// SEMANTICS 89.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rank_that_is_killed_fails_those_who_wait_for_it_and_they_keep_what_they_trained() {
    let system = system().await;
    let pool = Pool::new("models");
    let whole = weights();
    let blob = system.blobs().copy_in(&whole).unwrap();
    for engine in [Engine::HybridFlow, Engine::HybridFlowV] {
        let layouts = Layouts {
            p: 1,
            t: 4,
            t_g: 1,
            engine,
        };
        let workers = start(&system, &pool, layouts).await;
        workers.call(Load(blob.clone())).await.unwrap();

        // The others of its replica wait for what only it has; those of the other do not.
        let formation = sit(&workers).await;
        let lost = 2;
        let ask = |rank: usize| {
            let asked = workers.member(rank).unwrap().ask(ToGeneration);
            tokio::spawn(async move { timeout(SOON, asked).await.expect("no hang") })
        };
        let waiting: Vec<_> = [0, 1, 3].into_iter().map(ask).collect();
        let others: Vec<_> = (4..RANKS).map(ask).collect();
        for asked in others {
            asked.await.unwrap().unwrap().unwrap();
        }
        assert!(system.admin().kill_worker(process(&system, &workers, lost)));
        for asked in waiting {
            let failure = asked.await.unwrap().unwrap().unwrap_err();
            assert!(failure.message.contains("rank 2"), "{failure}");
        }
        drop(formation);
        keep(&workers, lost, (layouts, &whole)).await;

        // Somewhere in the midst of it.
        for turn in 0..3_u32 {
            let lost = turn as usize * 3;
            let workers = start(&system, &pool, layouts).await;
            workers.call(Load(blob.clone())).await.unwrap();
            let formation = sit(&workers).await;
            let (began, begun) = watch::channel(0);
            let moving = async {
                loop {
                    began.send_modify(|calls| *calls += 1);
                    if let Err(error) = workers.call(ToGeneration).await {
                        return error;
                    }
                    if let Err(error) = workers.call(ToTraining).await {
                        return error;
                    }
                }
            };
            let mut begun = begun;
            let killing = async {
                begun.wait_for(|calls| *calls == 2).await.unwrap();
                for _ in 0..turn * 20 {
                    tokio::task::yield_now().await;
                }
                assert!(system.admin().kill_worker(process(&system, &workers, lost)));
            };
            let both = async { tokio::join!(moving, killing).0 };
            let error = timeout(SOON, both).await.expect("no hang");
            let named = matches!(error, CallError::Rank { .. } | CallError::Group(_));
            assert!(named, "{error}");
            drop(formation);
            keep(&workers, lost, (layouts, &whole)).await;
        }
    }
    system.shutdown().await;
}
