//! Three sources, a mixture that turns, and the batches of a mesh of eight ranks; a loader and a
//! constructor are killed on the way, and the ranks get the same to the bit.

use odeon_mesh::{CP, DP, Mesh, TP};
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use odeon::prelude::*;
use odeon_algorithms::tokenizer::Tokenizer;
use odeon_data::client::{DataClient, Next, Serve};
use odeon_data::plan::{Budget, CostSpec, Method, Mixture, PlanSpec, Quadratic, Schedule};
use odeon_data::plane::{Changed, Constructors, DataPlan, DataPlane, Loaders, Processes};
use odeon_data::source::{Fields, Format, SourceSpec};

const STEPS: u64 = 6;

/// Lines of JSON, of very different lengths.
fn source(folder: &Path, name: &str, words: usize) -> anyhow::Result<SourceSpec> {
    let mut lines = String::new();
    for record in 0..2000 {
        let text = format!("{name} {record} ").repeat(1 + record * 7 % words);
        writeln!(lines, "{{\"text\": \"{text}\"}}")?;
    }
    let path = folder.join(format!("{name}.jsonl"));
    fs::write(&path, lines)?;
    let format = Format::Jsonl(Fields::text("text"));
    Ok(SourceSpec {
        block_bytes: 16 << 10,
        ..SourceSpec::new(name, path.to_string_lossy(), format)
    })
}

/// From short to long: what each step has, and who works on it, follows from this alone.
fn steps() -> PlanSpec {
    let mut mixture = Mixture::even(["short", "middle", "long"]);
    for (name, points) in [
        ("short", [(0, 0.8), (STEPS, 0.1)]),
        ("long", [(0, 0.1), (STEPS, 0.8)]),
    ] {
        if let Some(source) = mixture.sources.get_mut(name) {
            source.weight = Schedule::Linear(points.to_vec());
        }
    }
    let cost = CostSpec {
        text: Quadratic {
            linear: 768.0,
            square: 1.0,
        },
        ..CostSpec::default()
    };
    PlanSpec::mix(mixture, Budget::Tokens(65_536))
        .cost(cost)
        .balance(Method::Greedy)
        .broadcast_at(TP)
}

/// The batches of all ranks in each step, as digests; somebody is killed before each of the `victims`.
async fn run(
    system: &System,
    plan: DataPlan,
    victims: &BTreeMap<u64, &str>,
) -> anyhow::Result<Vec<Vec<[u8; 32]>>> {
    let mesh = plan.mesh.clone();
    let names: Vec<String> = plan.sources.iter().map(|it| it.name.clone()).collect();
    let plane = DataPlane::start(system, plan).await?;
    let mut clients: Vec<Ref<DataClient>> = vec![];
    for _ in 0..(mesh.len() as u32) {
        clients.push(system.spawn::<DataClient>(()).await?);
    }
    for (rank, client) in (0..).zip(&clients) {
        let (supply, clients) = (plane.supply(), clients.clone());
        let serve = Serve {
            rank,
            supply,
            clients,
        };
        client.ask(serve).await??;
    }
    let mut steps = vec![];
    for step in 0..STEPS {
        if let Some(victim) = victims.get(&step) {
            let role = plane.roles().find(|(name, ..)| name == victim);
            let process = role.and_then(|(.., process)| process);
            let killed = process.is_some_and(|process| system.admin().kill_worker(process));
            anyhow::ensure!(killed, "{victim} has a process");
            println!("killed: {victim}");
        }
        let (mut digests, mut shares, mut tokens) = (vec![], BTreeMap::new(), vec![]);
        for (rank, client) in (0..).zip(&clients) {
            let again = false;
            let delivery = client.ask(Next { step, rank, again }).await??;
            digests.push(delivery.digest);
            let own: usize = delivery
                .open_slices()
                .await?
                .iter()
                .map(|it| it.tokens.len())
                .sum();
            tokens.push(own);
            // Each sample counts once: where its bucket's first rank has it.
            let of_model = [CP, TP];
            if of_model
                .iter()
                .all(|it| mesh.coordinate(rank as usize, it) == 0)
            {
                for id in delivery.microbatches.iter().flatten() {
                    *shares.entry(&names[usize::from(id.source.0)]).or_insert(0) += 1;
                }
            }
        }
        println!("step {step}: samples {shares:?}, tokens of the ranks {tokens:?}");
        steps.push(digests);
    }
    for client in clients {
        client.stop().await?;
    }
    plane.stop().await;
    Ok(steps)
}

async fn story(system: System) -> anyhow::Result<()> {
    let folder = tempfile::tempdir()?;
    let lengths = [("short", 8), ("middle", 40), ("long", 200)];
    let sources = lengths.map(|(name, words)| source(folder.path(), name, words));
    let needs = Needs::new;
    let plan = DataPlan {
        prefix: String::new(),
        sources: sources.into_iter().collect::<anyhow::Result<_>>()?,
        tokenizer: Tokenizer::bytes(),
        cache: folder.path().join("cache"),
        spec: steps(),
        mesh: Mesh::new([(DP, 2), (CP, 2), (TP, 2)])?,
        state: None,
        earlier: BTreeMap::new(),
        loaders: Loaders {
            sources: Some(vec![vec![0], vec![0], vec![1]]),
            scaling: None,
            step_seconds: 1.0,
            shadows: 1,
            bytes_max: 16 << 20,
            threads: 1,
            needs: needs(),
        },
        constructors: Constructors {
            count: 2,
            ahead: 2,
            needs: needs(),
        },
        planned_ahead: 4,
        patience: Duration::from_millis(50),
        processes: Processes::Own,
        changed: Changed::Refuse,
    };
    let undisturbed = run(&system, plan.clone(), &BTreeMap::new()).await?;
    let victims = BTreeMap::from([(2, "loader-1"), (4, "constructor-0")]);
    let disturbed = run(&system, plan, &victims).await?;
    anyhow::ensure!(undisturbed == disturbed, "the same to the bit");
    println!("the same batches to the bit, with and without losses");
    Ok(())
}

fn main() -> anyhow::Result<()> {
    odeon_data::job().run(story)
}
