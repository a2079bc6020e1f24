//! Measurements of balancing: its gain, the time to plan, and the connections that feed the ranks.
//!
//! `cargo bench -p odeon-data --bench balance -- [gain] [sweep] [text] [partition] [latency] [connections]`
//!
//! Iterations are modelled, since what is asked is how evenly work lies; times of planning are
//! measured, as processor time of one thread (Linux).

#![allow(clippy::print_stdout, reason = "a benchmark prints its numbers")]

use odeon_algorithms::balance::{
    Partition, greedy, greedy_equal, grouped, karmarkar_karp, karmarkar_karp_equal,
    largest_over_mean,
};
use odeon_algorithms::workload::normal_quantile;
use odeon_data::plan::iteration::{Encoding, Iteration, connections, iteration};
use odeon_data::plan::{
    Axis, Budget, CellMeta, EncoderSpec, Graph, Method, MicrobatchSpec, Mixture, PlanSpec,
    Planning, Quadratic, SourceShape, Waiting,
};
use odeon_data::sample::{SampleId, SampleMeta, SourceNumber};
use odeon_mesh::{CP, DP, Mesh, PP, TP};
use rand::rngs::ChaCha8Rng;
use rand::{RngExt, SeedableRng};

/// Steps that a figure is the mean of.
const STEPS: u64 = 10;
/// Patches that become one token of the backbone.
const PATCHES_PER_TOKEN: u32 = 4;

/// Distributions of samples: log-normal in everything.
#[derive(Clone, Copy)]
struct Lengths {
    /// Median of a text's tokens, and the spread of their logarithm.
    text: (f64, f64),
    /// Median of a sample's pictures; those with fewer than a half have none.
    pictures: (f64, f64),
    /// Median of a picture's patches.
    patches: (f64, f64),
    /// No sample is longer, in tokens.
    context: u32,
}

impl Lengths {
    fn of(context: u32) -> Self {
        Self {
            text: (300.0, 1.3),
            pictures: (1.0, 1.0),
            patches: (800.0, 0.8),
            context,
        }
    }

    fn sample(&self, random: &mut ChaCha8Rng, nth: u32) -> SampleMeta {
        let mut draw = |(median, sigma): (f64, f64)| {
            let at: f64 = random.random_range(1e-9..1.0 - 1e-9);
            median * (sigma * normal_quantile(at)).exp()
        };
        let most = f64::from(self.context);
        let text = draw(self.text).clamp(1.0, most) as u32;
        let mut tokens = text;
        let mut patches = vec![];
        for _ in 0..draw(self.pictures).round().min(64.0) as u32 {
            let picture = draw(self.patches).clamp(16.0, 65_536.0) as u32;
            let more = picture.div_ceil(PATCHES_PER_TOKEN);
            // A context that is full has no room for another picture.
            if tokens + more > self.context {
                continue;
            }
            tokens += more;
            patches.push(picture);
        }
        SampleMeta {
            id: SampleId {
                source: SourceNumber(0),
                epoch: 0,
                cell: 0,
                nth,
            },
            tokens,
            patches,
            bytes: 4 * tokens,
        }
    }

    /// Samples of so many tokens in all.
    fn step(&self, seed: u64, tokens: u64) -> Vec<SampleMeta> {
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        let (mut all, mut samples) = (0, vec![]);
        while all < tokens {
            let sample = self.sample(&mut random, samples.len() as u32);
            all += u64::from(sample.tokens);
            samples.push(sample);
        }
        samples
    }
}

/// The cost of computing text and pictures.
#[derive(Clone, Copy)]
struct Work {
    text: Quadratic,
    picture: Quadratic,
}

impl Work {
    /// A Llama of 12 thousand million parameters and an encoder of 2, with widths that are usual
    /// for such sizes: 40 layers of 5,120, and 48 of 1,664.
    fn llama_12b_vit_2b() -> Self {
        Self {
            text: Quadratic::causal(12e9, 40, 5120),
            picture: Quadratic::bidirectional(2e9, 48, 1664),
        }
    }
}

/// The iteration of a step's samples, balanced in this way and with pictures encoded there.
fn place(
    method: Method,
    encoding: Encoding,
    mesh: &Mesh,
    samples: &[SampleMeta],
    work: Work,
    cap: u32,
) -> Iteration {
    let microbatch = MicrobatchSpec {
        tokens: cap,
        ..MicrobatchSpec::default()
    };
    // Where the encoder is the pipeline's first stage, its work is part of a micro-batch's.
    let with = |sample: &SampleMeta| -> u64 {
        let pictures = sample.patches.iter().map(|n| work.picture.of(*n));
        match encoding {
            Encoding::Shared => 0,
            _ => pictures.sum(),
        }
    };
    let encoder = EncoderSpec {
        method,
        group: None,
    };
    let chosen = Graph::mix(mesh, samples.to_vec())
        .distribute(Axis::Data, None)
        .cost(|sample| work.text.of(sample.tokens) + with(sample))
        .balance(method, microbatch)
        .cost(|sample| work.text.of(sample.tokens))
        .encode(encoder, work.picture);
    iteration(&chosen.compile(0), work.picture, encoding)
}

/// Times of what is compared, each over that of hybrid balancing, and what bounds it.
#[derive(Default)]
struct Gains {
    /// Nothing balanced, the encoder as first stage.
    first_stage: f64,
    /// The same, balanced by what samples cost in all.
    first_stage_balanced: f64,
    /// Nothing balanced, pictures encoded by the ranks of the bucket.
    bucket: f64,
    /// The backbone alone balanced.
    backbone: f64,
    /// The share of time in which ranks are busy.
    busy: f64,
    largest_sample: f64,
    largest_picture: f64,
    encoder_part: f64,
}

fn gains(mesh: &Mesh, lengths: Lengths, work: Work, batch: u64) -> Gains {
    let mut sum = Gains::default();
    let mut hybrid = 0.0;
    let part = 1.0 / STEPS as f64;
    for seed in 0..STEPS {
        let samples = lengths.step(seed, batch);
        let place =
            |method, encoding| place(method, encoding, mesh, &samples, work, lengths.context);
        sum.first_stage += place(Method::None, Encoding::FirstStage).time;
        sum.first_stage_balanced += place(Method::Greedy, Encoding::FirstStage).time;
        sum.bucket += place(Method::None, Encoding::Bucket).time;
        sum.backbone += place(Method::Greedy, Encoding::Bucket).time;
        let best = place(Method::Greedy, Encoding::Shared);
        hybrid += best.time;
        sum.busy += best.ideal / best.time * part;
        let text: Vec<u64> = samples.iter().map(|s| work.text.of(s.tokens)).collect();
        let pictures = samples.iter().flat_map(|s| &s.patches);
        let pictures: Vec<u64> = pictures.map(|n| work.picture.of(*n)).collect();
        let buckets = Axis::Data.buckets(mesh) as usize;
        sum.largest_sample += largest_over_mean(&text, buckets) * part;
        sum.largest_picture += largest_over_mean(&pictures, mesh.len()) * part;
        let (text, pictures): (u64, u64) = (text.iter().sum(), pictures.iter().sum());
        sum.encoder_part += pictures as f64 / (text + pictures) as f64 * part;
    }
    for time in [
        &mut sum.first_stage,
        &mut sum.first_stage_balanced,
        &mut sum.bucket,
        &mut sum.backbone,
    ] {
        *time /= hybrid;
    }
    sum
}

/// As the paper's largest figure has it: PP9 DP8 CP2 TP4.
fn paper_tree() -> Mesh {
    Mesh::new([(PP, 9), (DP, 8), (CP, 2), (TP, 4)]).expect("a valid mesh")
}

/// Micro-batches of each data rank, as far as tokens fill them.
const MICROBATCHES: u64 = 36;

fn batch(mesh: &Mesh, context: u32) -> u64 {
    u64::from(Axis::Data.buckets(mesh)) * MICROBATCHES * u64::from(context)
}

fn gain() {
    println!(
        "\nTimes over that of hybrid balancing (balanced backbone, pictures balanced over all ranks);"
    );
    println!(
        "576 ranks, PP9 DP8 CP2 TP4, 12B backbone and 2B encoder, {MICROBATCHES} contexts of tokens for each data rank, {STEPS} steps.\n"
    );
    println!(
        "| context | text alone, not balanced | encoder in the first stage, not balanced | the same, balanced | encoder in the bucket, not balanced | backbone balanced | paper | busy | largest sample / mean bucket | largest picture / mean rank | encoder part |"
    );
    println!("| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |");
    for (context, paper) in [(4096, 1.71), (8192, 2.63), (16_384, 3.09)] {
        let lengths = Lengths::of(context);
        let mesh = paper_tree();
        let work = Work::llama_12b_vit_2b();
        let text = Lengths {
            pictures: (0.0, 0.0),
            ..lengths
        };
        let alone = gains(&mesh, text, work, batch(&mesh, context));
        let found = gains(&mesh, lengths, work, batch(&mesh, context));
        println!(
            "| {context} | {:.2} | {:.2} | {:.2} | {:.2} | {:.2} | {paper} | {:.2} | {:.2} | {:.2} | {:.2} |",
            alone.bucket,
            found.first_stage,
            found.first_stage_balanced,
            found.bucket,
            found.backbone,
            found.busy,
            found.largest_sample,
            found.largest_picture,
            found.encoder_part,
        );
    }
}

fn sweep() {
    println!("\nThe same by how pictures are distributed and by what the encoder costs.\n");
    println!(
        "| context | spread of the number of pictures | of their patches | encoder work | encoder part | first stage, not balanced | first stage, balanced | bucket, not balanced | backbone balanced | largest picture / mean rank |"
    );
    println!("| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |");
    for context in [4096, 8192, 16_384] {
        for (count, patches) in [(0.5, 0.4), (1.0, 0.8), (1.5, 1.2)] {
            for factor in [0.25, 1.0, 4.0] {
                let mut lengths = Lengths::of(context);
                lengths.pictures.1 = count;
                lengths.patches.1 = patches;
                let mut work = Work::llama_12b_vit_2b();
                work.picture.linear *= factor;
                work.picture.square *= factor;
                let mesh = paper_tree();
                let found = gains(&mesh, lengths, work, batch(&mesh, context));
                println!(
                    "| {context} | {count} | {patches} | x{factor} | {:.2} | {:.2} | {:.2} | {:.2} | {:.2} | {:.2} |",
                    found.encoder_part,
                    found.first_stage,
                    found.first_stage_balanced,
                    found.bucket,
                    found.backbone,
                    found.largest_picture
                );
            }
        }
    }
}

/// Text alone, with a fixed number of samples in each micro-batch: what the sheet's toy has.
fn text() {
    println!(
        "\nText alone: DP8, 8 micro-batches, PP4, log-normal lengths of spread 1.3 and median 512.\n"
    );
    println!(
        "| longest | samples a micro-batch | cost | greedy | Karmarkar-Karp | the same, equal counts | largest sample / mean micro-batch |"
    );
    println!("| --- | --- | --- | --- | --- | --- | --- |");
    let (data, batches, stages) = (8, 8, 4.0);
    for longest in [4096.0, 16_384.0, 131_072.0] {
        for each in [2, 4, 16] {
            for (name, linear) in [("24576 l + l^2", 24_576.0), ("l^2", 0.0)] {
                let cost = Quadratic {
                    linear,
                    square: 1.0,
                };
                let (mut none, mut largest) = (0.0, 0.0);
                let mut times = [0.0; 3];
                for seed in 0..50 {
                    let mut random = ChaCha8Rng::seed_from_u64(seed);
                    let draw = |_| {
                        let at: f64 = random.random_range(1e-9..1.0 - 1e-9);
                        let length = 512.0 * (1.3 * normal_quantile(at)).exp();
                        cost.of(length.clamp(1.0, longest) as u32)
                    };
                    let costs: Vec<u64> = (0..data * batches * each).map(draw).collect();
                    none += two_levels(
                        &costs,
                        data,
                        batches,
                        stages,
                        odeon_algorithms::balance::deal,
                    );
                    times[0] += two_levels(&costs, data, batches, stages, greedy);
                    times[1] += two_levels(&costs, data, batches, stages, karmarkar_karp);
                    times[2] += two_levels(&costs, data, batches, stages, karmarkar_karp_equal);
                    largest += largest_over_mean(&costs, data * batches) / 50.0;
                }
                let [fast, fine, even] = times.map(|time| none / time);
                println!(
                    "| {longest} | {each} | {name} | {fast:.2} | {fine:.2} | {even:.2} | {largest:.2} |"
                );
            }
        }
    }
}

/// Seconds that this thread has had a processor, so that others on the machine do not count.
fn busy_seconds() -> f64 {
    let read = std::fs::read_to_string("/proc/thread-self/schedstat");
    let nanoseconds = read
        .ok()
        .and_then(|text| text.split(' ').next()?.parse::<f64>().ok());
    nanoseconds.expect("Linux says how long a thread was busy") / 1e9
}

fn two_levels(
    costs: &[u64],
    data: usize,
    batches: usize,
    stages: f64,
    balance: impl Fn(&[u64], usize) -> Partition,
) -> f64 {
    let mut slowest = 0.0f64;
    for bucket in balance(costs, data).bins {
        let own: Vec<u64> = bucket.iter().map(|item| costs[*item]).collect();
        let loads = balance(&own, batches).loads;
        let most = loads.iter().copied().max().unwrap_or(0);
        slowest = slowest.max(loads.iter().sum::<u64>() as f64 + (stages - 1.0) * most as f64);
    }
    slowest
}

fn partition() {
    println!(
        "\nPartitions of log-normal costs (spread 1.3): seconds of a processor, and makespan over mean.\n"
    );
    println!(
        "| items | bins | greedy | greedy, equal counts | Karmarkar-Karp | the same, equal counts | greedy in groups of 128 |"
    );
    println!("| --- | --- | --- | --- | --- | --- | --- |");
    for (items, bins) in [
        (1_000, 64),
        (10_000, 64),
        (100_000, 1024),
        (1_000_000, 64),
        (1_000_000, 1024),
    ] {
        let mut random = ChaCha8Rng::seed_from_u64(1);
        let draw = |_| {
            let at: f64 = random.random_range(1e-9..1.0 - 1e-9);
            (1e6 * (1.3 * normal_quantile(at)).exp()) as u64
        };
        let costs: Vec<u64> = (0..items).map(draw).collect();
        // The quickest of three, since others use the caches too.
        let run = |balance: &dyn Fn(&[u64], usize) -> Partition| {
            let (mut seconds, mut imbalance) = (f64::MAX, 0.0);
            for _ in 0..3 {
                let begun = busy_seconds();
                imbalance = balance(&costs, bins).imbalance();
                seconds = seconds.min(busy_seconds() - begun);
            }
            format!("{seconds:.3} s, {imbalance:.5}")
        };
        println!(
            "| {items} | {bins} | {} | {} | {} | {} | {} |",
            run(&greedy),
            run(&greedy_equal),
            run(&karmarkar_karp),
            run(&karmarkar_karp_equal),
            run(&|costs, bins| grouped(costs, bins, 128, greedy)),
        );
    }
}

/// A world of 306 sources, as many as the paper's larger data set has.
fn latency() {
    println!(
        "\nPlanning for clients at DP = clients / 8 (TP8): 16 samples for each data rank, 306 sources; pictures in groups of 256 ranks.\n"
    );
    println!(
        "| clients | samples a step | 3 sources, backbone, greedy, ms | backbone, greedy, ms | hybrid, greedy, ms | hybrid, Karmarkar-Karp, ms | hybrid plan, KiB | state, KiB |"
    );
    println!("| --- | --- | --- | --- | --- | --- | --- | --- |");
    for clients in [64, 256, 1024, 4096, 16_384] {
        let mesh = Mesh::new([(DP, clients / 8), (TP, 8)]).expect("a valid mesh");
        let samples = clients / 8 * 16;
        let few = time_plans(3, &mesh, samples, Method::Greedy, false);
        let one = time_plans(306, &mesh, samples, Method::Greedy, false);
        let hybrid = time_plans(306, &mesh, samples, Method::Greedy, true);
        let differencing = time_plans(306, &mesh, samples, Method::KarmarkarKarp, true);
        println!(
            "| {clients} | {samples} | {:.2} | {:.2} | {:.2} | {:.2} | {} | {} |",
            few.0,
            one.0,
            hybrid.0,
            differencing.0,
            hybrid.1 / 1024,
            hybrid.2 / 1024,
        );
    }
}

/// Milliseconds of a plan in the mean, and the bytes of it and of the state.
fn time_plans(
    sources: u32,
    mesh: &Mesh,
    samples: usize,
    method: Method,
    hybrid: bool,
) -> (f64, usize, usize) {
    let names: Vec<String> = (0..sources).map(|at| format!("s{at}")).collect();
    let mut spec = PlanSpec::mix(
        Mixture::even(names.clone()),
        Budget::Samples(samples as u32),
    )
    .cost(Quadratic {
        linear: 24_576.0,
        square: 1.0,
    })
    .balance(method)
    .broadcast_at(TP);
    spec.cost.picture = Quadratic {
        linear: 4000.0,
        square: 0.2,
    };
    spec.encoder = hybrid.then_some(EncoderSpec {
        method,
        group: Some(256),
    });
    let shapes: Vec<SourceShape> = names
        .into_iter()
        .map(|name| SourceShape { name, cells: 1000 })
        .collect();
    let mut planning = Planning::new(spec, &shapes, mesh.clone()).expect("a valid plan");
    let lengths = Lengths::of(8192);
    let mut random = ChaCha8Rng::seed_from_u64(2);
    let (mut plans, mut seconds) = (0, 0.0);
    let mut bytes = 0;
    // A kernel counts by ticks of milliseconds, so many plans are counted together.
    while plans < 9 || (plans < 1000 && seconds < 0.4) {
        let begun = busy_seconds();
        let tried = planning.plan();
        seconds += busy_seconds() - begun;
        match tried {
            Ok(plan) => {
                plans += 1;
                bytes = odeon::codec::encode(&plan).map_or(0, |bytes| bytes.len());
            }
            Err(Waiting::Cell(missing)) => {
                let wants = planning.wants();
                for cell in wants.into_iter().chain([missing]) {
                    let sample = |nth| {
                        let mut sample = lengths.sample(&mut random, nth);
                        sample.id = SampleId {
                            source: cell.source,
                            epoch: cell.epoch,
                            cell: cell.cell,
                            nth,
                        };
                        sample
                    };
                    let samples = (0..256).map(sample).collect();
                    planning
                        .hear(CellMeta::of(cell, samples))
                        .expect("a true cell");
                }
            }
            Err(other) => {
                println!("{other}");
                break;
            }
        }
    }
    let state = odeon::codec::encode(&planning.state()).map_or(0, |bytes| bytes.len());
    (seconds * 1e3 / f64::from(plans), bytes, state)
}

fn mesh() {
    println!("\nConnections with 306 loaders, TP8, a constructor for 64 clients.\n");
    println!(
        "| clients | each client to each loader | through constructors | and broadcast at TP | the most at one |"
    );
    println!("| --- | --- | --- | --- | --- |");
    for clients in [64, 256, 1024, 4096, 16_384] {
        let mesh = Mesh::new([(DP, clients / 8), (TP, 8)]).expect("a valid mesh");
        let found = connections(&mesh, 306, 64);
        println!(
            "| {clients} | {} | {} | {} | {} |",
            found.direct, found.constructed, found.broadcast, found.most
        );
    }
}

fn main() {
    let asked: Vec<String> = std::env::args()
        .skip(1)
        .filter(|a| !a.starts_with('-'))
        .collect();
    let parts: [(&str, fn()); 6] = [
        ("gain", gain),
        ("sweep", sweep),
        ("text", text),
        ("partition", partition),
        ("latency", latency),
        ("connections", mesh),
    ];
    for (name, part) in parts {
        if asked.is_empty() || asked.iter().any(|asked| asked == name) {
            part();
        }
    }
}
