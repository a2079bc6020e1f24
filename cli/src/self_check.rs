//! The check of a node that is not trusted: what `odeon doctor` looks at, and arithmetic. A machine computes a few training
//! steps of a small model, with weights and texts that are always the same, once on each processor at the same time; sound
//! machines of one kind have the same bits, each time (ByteRobust, arXiv 2509.16293).

use std::collections::BTreeMap;
use std::sync::Arc;
use std::thread::ScopedJoinHandle;
use std::time::Duration;

use futures::future::join_all;
use odeon::{Clock, Failure, Later, Shape, System, Timestamp};
use odeon_actors::ranks::replay::processor;
use odeon_algorithms::model::{Batch, Model, ModelConfig, Sequence};
use odeon_algorithms::train::{CrossEntropy, TrainConfig, Trainer};
use odeon_cluster::Daemon;
use odeon_cluster::doctor::{Check, Fitness, examine};
use odeon_cluster::fact::Fact;
use odeon_cluster::local_only::LocalOnly;
use odeon_cluster::node_directory::{self, Unreached};
use odeon_gpu::Cpu;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

/// Steps of the model, so that an error of one has grown in the weights.
const STEPS: usize = 4;
/// Runs at the same time: more than this many processors are tried by chance alone.
const RUNS_MAX: usize = 64;
/// Time that a machine may take: its processors may be others' meanwhile.
const PATIENCE: Duration = Duration::from_secs(60);
/// Other nodes whose bits are compared.
const OTHERS_MAX: usize = 4;
/// From one look for nodes to check to the next.
const PAUSE: Duration = Duration::from_secs(2);
/// The longest time from one try to check a node that cannot be checked to the next.
const BACKOFF_MAX: Duration = Duration::from_mins(5);
/// The hash of a run that has panicked.
const PANICKED: &str = "panicked";
/// The name of who has nodes let back that pass the check after jobs have left them.
const BY_CHECK: &str = "its check";

/// The bits that the runs of a machine have come to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, Shape)]
pub(crate) struct ComputedBits {
    /// The kind of machine: those of one kind have the same bits.
    kind: String,
    /// Hashes of losses and weights, each with the number of runs that came to it.
    hashes: Vec<(String, u32)>,
}

/// The actor of a node that computes for its check.
#[derive(Debug)]
pub(crate) struct SelfCheck;

#[odeon::actor(name = "odeon.api.SelfCheck")]
impl SelfCheck {
    async fn start(_: LocalOnly<()>) -> Result<Self, Failure> {
        Ok(Self)
    }

    /// Computes the steps on each processor.
    #[handler]
    fn compute(&mut self) -> Later<Result<ComputedBits, String>> {
        Later::new(async {
            let computed = tokio::task::spawn_blocking(ComputedBits::compute).await;
            computed.map_err(|error| error.to_string())?
        })
    }
}

fn name_of(node: &str) -> String {
    format!("self-check@{node}")
}

/// Lets other nodes have this one checked.
pub(crate) async fn open(daemon: &Daemon) -> anyhow::Result<()> {
    let system = daemon.system();
    let check = system.spawn::<SelfCheck>(LocalOnly::new(())).await?;
    node_directory::register(system, &name_of(daemon.name()), check).await?;
    Ok(())
}

impl ComputedBits {
    fn compute() -> Result<Self, String> {
        let runs = std::thread::available_parallelism().map_or(1, usize::from);
        let runs = runs.min(RUNS_MAX);
        let ended: Vec<_> = std::thread::scope(|scope| {
            let begun: Vec<_> = (0..runs).map(|_| scope.spawn(hash_of_steps)).collect();
            begun.into_iter().map(ScopedJoinHandle::join).collect()
        });
        let mut hashes = BTreeMap::new();
        for hash in ended {
            let hash = hash.unwrap_or_else(|_| Ok(PANICKED.to_owned()))?;
            *hashes.entry(hash).or_default() += 1;
        }
        Ok(Self {
            kind: processor(),
            hashes: hashes.into_iter().collect(),
        })
    }

    /// The hash of all runs, where they agree.
    fn agreed(&self) -> Option<&str> {
        match self.hashes.as_slice() {
            [(hash, _)] if hash != PANICKED => Some(hash),
            _ => None,
        }
    }
}

/// A hash of the losses and the last weights of the steps.
fn hash_of_steps() -> Result<String, String> {
    let config = ModelConfig {
        dim: 64,
        layers: 2,
        ..ModelConfig::default()
    };
    let vocab = config.vocab as u32;
    let model = Model::init(Cpu::new(1), config, 7).map_err(|error| error.to_string())?;
    let settings = TrainConfig {
        lr: 1e-2,
        ..TrainConfig::default()
    };
    let mut trainer = Trainer::new(model, settings);
    let tokens: Vec<u32> = (0..48).map(|at| at * at % vocab).collect();
    let sequence = Sequence {
        tokens: &tokens,
        prompt: 1,
    };
    let batch = Batch::pack(&[sequence]).map_err(|error| error.to_string())?;
    let mut hash = Sha256::new();
    for _ in 0..STEPS {
        let mut loss = CrossEntropy::mean_over(tokens.len() - 1);
        let passed = trainer.accumulate(&batch, &mut loss);
        trainer.apply(1.0);
        hash.update(passed.loss.to_bits().to_le_bytes());
    }
    for weight in trainer.model().to_flat() {
        hash.update(weight.to_bits().to_le_bytes());
    }
    let hash = hash.finalize();
    Ok(hash[..8].iter().map(|byte| format!("{byte:02x}")).collect())
}

/// Judges the bits of a machine beside those of others. Pure.
fn judge(own: &ComputedBits, others: &[(String, ComputedBits)]) -> Check {
    const WHAT: &str = "arithmetic";
    const ADVICE: &str = "run no training on this machine: have its processors and memory tested";
    let runs: u32 = own.hashes.iter().map(|(_, runs)| runs).sum();
    let Some(hash) = own.agreed() else {
        let ended = own.hashes.iter().filter(|(hash, _)| hash != PANICKED);
        let odd = runs - ended.map(|(_, runs)| *runs).max().unwrap_or(0);
        let found =
            format!("{odd} of {runs} runs of the same training steps had other bits, or panicked");
        return Check::bad(WHAT, found, ADVICE);
    };
    let alike = others.iter().filter(|(_, it)| it.kind == own.kind);
    let alike = alike.filter_map(|(node, it)| Some((node, it.agreed()?)));
    let (same, other): (Vec<_>, Vec<_>) = alike.partition(|(_, it)| *it == hash);
    let named = |nodes: &[(&String, &str)]| {
        let names = nodes.iter().map(|(node, _)| node.as_str());
        names.collect::<Vec<_>>().join(" and ")
    };
    match (same.len(), other.len()) {
        (0, 0) => Check::good(
            WHAT,
            format!("{runs} runs of training steps had the same bits; no other machine is like it"),
        ),
        // Those that differ from each other are no majority.
        (same_count, other_count) if other_count <= same_count => Check::good(
            WHAT,
            format!(
                "{runs} runs of training steps had the bits of {}",
                named(&same)
            ),
        ),
        _ => Check::bad(
            WHAT,
            format!(
                "its training steps have other bits than those of {}",
                named(&other)
            ),
            ADVICE,
        ),
    }
}

/// Checks a node now, beside others that are up and not refused.
///
/// # Errors
/// It cannot be checked, and why.
pub(crate) async fn check_node(daemon: &Daemon, node: &str) -> Result<Vec<Check>, String> {
    let system = daemon.system();
    let machines = daemon.machines().await.into_iter();
    let facts = machines
        .filter(|(name, _)| name == node)
        .map(|it| it.1)
        .next();
    let facts = facts.ok_or_else(|| format!("there is no node `{node}`"))??;
    let rows = daemon.catalog().nodes().into_iter();
    let others = rows.filter(|row| row.is_up() && row.refused.is_none());
    let others = others.map(|row| row.spec.name).filter(|name| name != node);
    let asked = others.take(OTHERS_MAX).map(async |other| {
        let bits = computed_by(system, &other).await.ok()?;
        Some((other, bits))
    });
    // Others compute only for one that has.
    let own = computed_by(system, node).await?;
    let others: Vec<_> = join_all(asked).await.into_iter().flatten().collect();
    let mut checks = examine(&facts);
    checks.push(judge(&own, &others));
    Ok(checks)
}

async fn computed_by(system: &System, node: &str) -> Result<ComputedBits, String> {
    let found = node_directory::reach::<SelfCheck>(system, node, &name_of(node)).await;
    let check = found.map_err(|error| error.to_string())?;
    let asked = check.ask(Compute {}).timeout(PATIENCE).await;
    asked.map_err(|error| Unreached::asked(node, &error).to_string())?
}

/// What a check says of a node that is refused: it is let back, or stays refused for what was found, too.
pub(crate) fn verdict(node: &str, checks: &[Check], by: &str, of: Option<u64>) -> Fact {
    let bad = checks.iter().filter(|it| it.fitness == Fitness::Bad);
    let bad: Vec<String> = bad.map(|it| format!("{}: {}", it.what, it.found)).collect();
    let (node, by) = (node.to_owned(), by.to_owned());
    match bad.is_empty() {
        true => Fact::NodeLetBack {
            node,
            why: format!(
                "{} checks found nothing that is in the way of jobs",
                checks.len()
            ),
            by,
            passed: true,
            of,
        },
        false => Fact::NodeChecked {
            node,
            found: bad.join("; "),
            by,
            of,
        },
    }
}

/// Checks each node once that is refused since jobs have left it, as long as this daemon leads.
pub(crate) async fn check_left_nodes(daemon: Arc<Daemon>) {
    // Nodes that could not be checked: when they are tried again, and the pause before that.
    let mut later: BTreeMap<String, (Timestamp, Duration)> = BTreeMap::new();
    loop {
        Clock::sleep(PAUSE).await;
        let catalog = daemon.catalog();
        if !catalog.leads() {
            continue;
        }
        for row in catalog.nodes() {
            let ban = row.refused.as_ref().filter(|_| row.is_up());
            if !ban.is_some_and(|ban| ban.is_by_job() && ban.found.is_none()) {
                continue;
            }
            let node = &row.spec.name;
            let pause = later.get(node).copied();
            if pause.is_some_and(|(from, _)| Clock::now() < from) {
                continue;
            }
            let written = match check_node(&daemon, node).await {
                Ok(checks) => {
                    let of = ban.map(|ban| ban.number);
                    catalog
                        .write_for(verdict(node, &checks, BY_CHECK, of))
                        .await
                }
                Err(why) => {
                    tracing::debug!(node, why, "it cannot be checked yet");
                    let pause = pause.map_or(PAUSE, |(_, pause)| (pause * 2).min(BACKOFF_MAX));
                    later.insert(node.clone(), (Clock::now().after(pause), pause));
                    continue;
                }
            };
            later.remove(node);
            if let Err(error) = written {
                tracing::warn!(node, %error, "a check of it is not noted");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bits(kind: &str, hashes: &[(&str, u32)]) -> ComputedBits {
        let hashes = hashes
            .iter()
            .map(|(hash, runs)| ((*hash).to_owned(), *runs));
        ComputedBits {
            kind: kind.to_owned(),
            hashes: hashes.collect(),
        }
    }

    /// SEMANTICS 188.
    #[test]
    fn a_machine_whose_bits_differ_does_not_pass() {
        let own = bits("x", &[("1", 8)]);
        let node = |name: &str, kind: &str, hash: &str| (name.to_owned(), bits(kind, &[(hash, 4)]));
        let judged = |own: &ComputedBits, others: &[(String, ComputedBits)]| {
            let check = judge(own, others);
            (check.fitness, check.found)
        };
        let (fitness, found) = judged(&bits("x", &[("1", 7), ("2", 1)]), &[]);
        assert_eq!(fitness, Fitness::Bad);
        assert!(found.starts_with("1 of 8 runs"), "{found}");
        for (hashes, odd) in [
            (&[("1", 7), (PANICKED, 1)][..], 1),
            (&[(PANICKED, 8)][..], 8),
        ] {
            let (fitness, found) = judged(&bits("x", hashes), &[]);
            assert_eq!(fitness, Fitness::Bad);
            assert!(found.starts_with(&format!("{odd} of 8 runs")), "{found}");
        }
        assert_eq!(judged(&own, &[]).0, Fitness::Good);
        let (fitness, found) = judged(&own, &[node("a", "x", "1"), node("b", "x", "2")]);
        assert_eq!(fitness, Fitness::Good, "{found}");
        assert!(found.ends_with("the bits of a"), "{found}");
        let (fitness, found) = judged(&own, &[node("a", "x", "2")]);
        assert_eq!(fitness, Fitness::Bad);
        assert!(found.ends_with("those of a"), "{found}");
        assert_eq!(
            judged(&own, &[node("a", "y", "2")]).0,
            Fitness::Good,
            "of another kind"
        );
    }

    /// SEMANTICS 188.
    #[test]
    fn the_steps_have_the_same_bits_on_each_processor() {
        let computed = ComputedBits::compute().unwrap();
        assert!(computed.agreed().is_some(), "{computed:?}");
        assert_eq!(computed.agreed(), ComputedBits::compute().unwrap().agreed());
    }

    /// SEMANTICS 188.
    #[test]
    fn only_what_fails_jobs_keeps_a_node_refused() {
        let good = Check::good("a", "fine");
        let doubtful = Check::doubtful("b", "slow", "mend it");
        let bad = Check::bad("c", "broken", "replace it");
        let passed = verdict("n", &[good.clone(), doubtful.clone()], "ann", Some(1));
        assert!(matches!(passed, Fact::NodeLetBack { passed: true, .. }));
        let failed = verdict("n", &[good, doubtful, bad], "ann", None);
        let Fact::NodeChecked { found, .. } = failed else {
            panic!("{failed:?}");
        };
        assert_eq!(found, "c: broken");
    }
}
