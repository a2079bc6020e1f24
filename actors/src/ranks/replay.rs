//! A small training run that nodes make together, always the same: a few steps of a small model with fixed weights and
//! texts, in data-parallel ranks. Sound nodes of one kind come to the same bits, however many of them make it together,
//! since gradients are added up in the order of the texts.

use std::fmt;
use std::time::Duration;

use odeon::collective::Collective;
use odeon::group::Seat;
use odeon::serde::{Deserialize, Serialize};
use odeon::{Actor, Context, Shape, actor, message};
use odeon_algorithms::model::{Batch, Model, ModelConfig, Sequence};
use odeon_algorithms::train::{CrossEntropy, TrainConfig, Trainer};
use odeon_gpu::Cpu;

/// Texts of a step: ranks of which each has at least one.
pub const TEXTS: usize = 8;
/// Steps, so that an error of one has grown in the weights.
const STEPS: usize = 4;
/// Tokens of a text.
const TOKENS: u32 = 32;
const LEARNING_RATE: f32 = 0.1;

/// The kind of a node's processor: see [`processor`].
#[message(reply = String, name = "ranks.ShowProcessor")]
#[derive(Clone, Debug)]
pub struct ShowProcessor;

/// The steps, made together with the other ranks of this seat. Answers the bits that they have come to.
#[message(reply = Result<String, ReplayTrouble>, name = "ranks.ReplaySteps")]
#[derive(Clone, Debug)]
pub struct ReplaySteps {
    /// The place among them.
    pub seat: Seat,
    /// The longest time, in milliseconds, that a rank may be late for a collective.
    pub patience_ms: u64,
}

impl ReplaySteps {
    /// Takes the seat of this actor, and makes the steps. Blocks until they are made.
    ///
    /// # Errors
    /// Why they have not come to bits.
    pub fn replay<A: Actor>(&self, cx: &Context<A>) -> Result<String, ReplayTrouble> {
        let mut ranks = self.seat.take(cx).map_err(ReplayTrouble::failed)?;
        ranks.set_deadline(Duration::from_millis(self.patience_ms));
        replay(self.seat.rank(), self.seat.world(), |own, counts, all| {
            let gathered = ranks.all_gather_v(own, counts, all);
            gathered.map_err(ReplayTrouble::failed)
        })
    }
}

/// Why steps have not come to bits.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, Shape)]
#[serde(crate = "odeon::serde")]
pub enum ReplayTrouble {
    /// A number is not finite.
    NotFinite,
    /// The ranks cannot go on together, for this reason.
    Failed(String),
}

impl ReplayTrouble {
    fn failed(error: impl fmt::Display) -> Self {
        Self::Failed(error.to_string())
    }
}

/// The part of a node in a replay, in a process of its own.
#[derive(Debug)]
pub struct ReplayRank;

#[actor(name = "ranks.ReplayRank")]
impl ReplayRank {
    fn start(_: ()) -> Self {
        Self
    }

    #[handler(message = ShowProcessor)]
    fn show(&mut self, _: ShowProcessor) -> String {
        processor()
    }

    #[handler(message = ReplaySteps)]
    async fn replay(
        &mut self,
        asked: ReplaySteps,
        cx: &mut Context<Self>,
    ) -> Result<String, ReplayTrouble> {
        asked.replay(cx)
    }
}

/// The maker's name of the processor, and those of its instruction sets that loops are compiled for; empty where the
/// system does not tell. Processors of one kind have the same bits.
#[must_use]
pub fn processor() -> String {
    let told = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let of = |wanted: &str| {
        let lines = told.lines().filter_map(|line| line.split_once(':'));
        let mut found = lines.filter(|(key, _)| key.trim() == wanted);
        found.next().map_or("", |(_, text)| text.trim())
    };
    let flags: Vec<&str> = of("flags").split(' ').collect();
    let sets = ["fma", "avx2", "avx512f", "avx512vl", "avx512dq", "avx512bw"];
    let has: Vec<&str> = sets.into_iter().filter(|it| flags.contains(it)).collect();
    format!("{} {}", of("model name"), has.join(" "))
}

/// The bits that the steps come to on this node alone.
///
/// # Errors
/// A number is not finite.
pub fn replay_alone() -> Result<String, ReplayTrouble> {
    replay(0, 1, |own, _, all| {
        all.copy_from_slice(own);
        Ok(())
    })
}

/// The numbers of each text that ranks exchange: its gradient and, behind that, its loss.
struct Steps {
    trainer: Trainer<Cpu>,
    texts: Vec<Batch>,
    weights: Vec<f32>,
}

impl Steps {
    fn new() -> Result<Self, ReplayTrouble> {
        let config = ModelConfig {
            dim: 32,
            layers: 2,
            heads: 2,
            kv_heads: 2,
            head_dim: 16,
            ffn: 64,
            ..ModelConfig::default()
        };
        let vocab = config.vocab as u32;
        let model = Model::init(Cpu::new(1), config, 11).map_err(ReplayTrouble::failed)?;
        let weights = model.to_flat();
        let texts = (0..TEXTS as u32).map(|text| {
            let tokens: Vec<u32> = (0..TOKENS)
                .map(|at| (at * at + text * 37) % vocab)
                .collect();
            let sequence = Sequence {
                tokens: &tokens,
                prompt: 1,
            };
            Batch::pack(&[sequence]).map_err(ReplayTrouble::failed)
        });
        Ok(Self {
            texts: texts.collect::<Result<_, _>>()?,
            trainer: Trainer::new(model, TrainConfig::default()),
            weights,
        })
    }

    /// The numbers of one text.
    fn numbers(&mut self, text: usize) -> Result<Vec<f32>, ReplayTrouble> {
        self.trainer.restart(TrainConfig::default());
        let model = self.trainer.model_mut();
        model
            .load_flat(&self.weights)
            .map_err(ReplayTrouble::failed)?;
        let mut loss = CrossEntropy::mean_over(TOKENS as usize - 1);
        let passed = self.trainer.accumulate(&self.texts[text], &mut loss);
        let mut numbers = self.trainer.gradient();
        numbers.push(passed.loss as f32);
        Ok(numbers)
    }

    /// Goes down the gradients of all texts, in their order. Answers the sum of the losses.
    fn descend<'a>(&mut self, of_texts: impl Iterator<Item = &'a [f32]>) -> f32 {
        let mut sums = vec![0.0; self.weights.len() + 1];
        for numbers in of_texts {
            for (sum, number) in sums.iter_mut().zip(numbers) {
                *sum += number;
            }
        }
        for (weight, sum) in self.weights.iter_mut().zip(&sums) {
            *weight -= LEARNING_RATE / TEXTS as f32 * sum;
        }
        sums[self.weights.len()]
    }
}

/// Makes the steps as one of several ranks. Each computes every text whose number leaves its own when divided by the number
/// of ranks; `gather` gives the numbers of all to each, in the order of the ranks, told how many each has.
fn replay(
    rank: usize,
    world: usize,
    mut gather: impl FnMut(&[f32], &[usize], &mut [f32]) -> Result<(), ReplayTrouble>,
) -> Result<String, ReplayTrouble> {
    let mut steps = Steps::new()?;
    let each = steps.weights.len() + 1;
    let texts_of = |rank: usize| (rank..TEXTS).step_by(world);
    let counts: Vec<usize> = (0..world).map(|it| texts_of(it).len() * each).collect();
    let mut hash = blake3::Hasher::new();
    let mut all = vec![0.0; TEXTS * each];
    for _ in 0..STEPS {
        let mut own = Vec::with_capacity(counts[rank]);
        for text in texts_of(rank) {
            own.extend(steps.numbers(text)?);
        }
        gather(&own, &counts, &mut all)?;
        if !all.iter().all(|it| it.is_finite()) {
            return Err(ReplayTrouble::NotFinite);
        }
        // Where the numbers of each text lie behind those of lower ranks.
        let mut places = [0; TEXTS];
        for (place, text) in (0..world).flat_map(texts_of).enumerate() {
            places[text] = place;
        }
        let in_order = places.iter().map(|it| &all[it * each..(it + 1) * each]);
        let loss = steps.descend(in_order);
        hash.update(&loss.to_bits().to_le_bytes());
    }
    for weight in &steps.weights {
        hash.update(&weight.to_bits().to_le_bytes());
    }
    Ok(hash.finalize().to_hex()[..16].to_owned())
}

#[cfg(test)]
mod tests {
    use odeon::collective::{Communicator, Topology, queue};

    use super::*;

    /// SEMANTICS 210.
    #[test]
    fn any_number_of_ranks_comes_to_the_bits_of_one() {
        let alone = replay_alone().unwrap();
        assert_eq!(alone, replay_alone().unwrap());
        for world in [2, 3, 8] {
            let ranks = queue::gang(&Topology::one_node(world), 1);
            let threads = (0..).zip(ranks).map(|(rank, transport)| {
                std::thread::spawn(move || {
                    let mut ranks = Communicator::new(transport);
                    replay(rank, world, |own, counts, all| {
                        let gathered = ranks.all_gather_v(own, counts, all);
                        gathered.map_err(ReplayTrouble::failed)
                    })
                })
            });
            // All at once, since they wait for each other.
            for thread in threads.collect::<Vec<_>>() {
                let ended = thread.join().unwrap();
                assert_eq!(ended.as_ref(), Ok(&alone), "{world} ranks");
            }
        }
    }

    /// SEMANTICS 210.
    #[test]
    fn one_bit_of_one_number_changes_what_all_come_to() {
        let alone = replay_alone();
        let mut gathers = 0;
        let flipped = replay(0, 1, |own, _, all| {
            all.copy_from_slice(own);
            gathers += 1;
            // One that is not lost when it is added up.
            let number = all.iter_mut().find(|it| it.abs() > 1e-3).unwrap();
            if gathers == 2 {
                *number = f32::from_bits(number.to_bits() ^ (1 << 20));
            }
            Ok(())
        });
        assert!(flipped.is_ok());
        assert_ne!(flipped, alone);
        let spoilt = replay(0, 1, |own, _, all| {
            all.copy_from_slice(own);
            all[7] = f32::NAN;
            Ok(())
        });
        assert_eq!(spoilt, Err(ReplayTrouble::NotFinite));
    }
}
