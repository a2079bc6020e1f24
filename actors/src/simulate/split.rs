//! The split of a cluster's machines into those that roll out and those that train, where they are
//! apart.

use odeon_algorithms::cost::{Card, CostError, ModelSize, Replica, Sequences, Trainer};
use odeon_algorithms::workload::{SampleKey, Workload};

use super::scenario::ModelSection;

/// The parts of a step, and the cards that make it.
pub(super) struct Step<'a> {
    pub(super) card: &'a Card,
    pub(super) size: &'a ModelSize,
    pub(super) section: &'a ModelSection,
    pub(super) workload: &'a Workload,
    pub(super) prompts: usize,
    pub(super) group_size: u32,
}

/// The trainer is to have done with a step in this part of the time in which rollouts make one: a
/// queue before a server that is always busy grows without bound, and with it the age of what waits.
const TRAINER_BUSY: f64 = 0.9;

impl Step<'_> {
    /// Number of machines, of `machines`, that roll out, so that steps come soonest: as many as
    /// leave a trainer that keeps up.
    ///
    /// # Errors
    /// The model fits no trainer on fewer than all of the machines, or no rollout.
    pub(super) fn rollout_machines(&self, machines: u32) -> Result<u32, CostError> {
        let per = self.card.device.per_node;
        let replica = Replica::new(self.card, self.size, self.section.rollout_gpus)?;
        let sample = self.sample();
        let mut best: Option<(f64, u32)> = None;
        let mut wrong = None;
        for rollouts in 1..machines {
            let gpus = (machines - rollouts) * per;
            let trainer =
                match Trainer::new(self.card, self.size, gpus, self.section.trainer_tensor) {
                    Ok(trainer) => trainer,
                    Err(error) => {
                        wrong = Some(error);
                        continue;
                    }
                };
            let trains = trainer.train_step(sample.whole, 1).as_secs_f64()
                + self.card.publish(self.size.weight_bytes()).as_secs_f64();
            let takes = self
                .generating(&replica, rollouts * per, &sample)
                .max(trains / TRAINER_BUSY);
            if best.is_none_or(|(least, _)| takes < least) {
                best = Some((takes, rollouts));
            }
        }
        match (best, wrong) {
            (Some((_, rollouts)), _) => Ok(rollouts),
            (None, Some(error)) => Err(error),
            (None, None) => Ok(1),
        }
    }

    /// Seconds in which rollouts on so many cards make a step's replies, when none of them ever
    /// waits: each has its part of what is under way, at the length that a reply has on average
    /// over its time, `E[prompt] + E[L^2] / 2 E[L]`.
    fn generating(&self, replica: &Replica, gpus: u32, sample: &Sample) -> f64 {
        let replies = self.prompts as f64 * f64::from(self.group_size);
        let replicas = f64::from((gpus / self.section.rollout_gpus).max(1));
        let context = sample.prompt + sample.reply_squares / (2.0 * sample.reply);
        let room = replica.kv_capacity_tokens() as f64 / context;
        let under_way = replies * self.section.in_flight;
        let slots = self.section.slots(under_way, replicas);
        let slots = slots.min(room).max(1.0);
        let token = replica.decode_step(slots as u64, (slots * context) as u64);
        let takes = sample.reply * token.as_secs_f64() + sample.environment;
        replies * takes / (slots * replicas)
    }

    /// Sums over the samples of the first step.
    fn sample(&self) -> Sample {
        let mut sample = Sample::default();
        let mut lengths = vec![];
        for group in 0..self.prompts as u64 {
            for sample_of in 0..self.group_size {
                let episode = self.workload.episode(SampleKey {
                    group,
                    sample: sample_of,
                    version: 0,
                });
                let reply = episode.response_tokens();
                lengths.push(episode.prompt_tokens + reply);
                sample.prompt += episode.prompt_tokens as f64;
                sample.reply += reply as f64;
                sample.reply_squares += (reply as f64).powi(2);
                sample.environment += episode.environment().as_secs_f64();
            }
        }
        let count = lengths.len().max(1) as f64;
        Sample {
            whole: Sequences::of(&lengths),
            prompt: sample.prompt / count,
            reply: sample.reply / count,
            reply_squares: sample.reply_squares / count,
            environment: sample.environment / count,
        }
    }
}

/// A step's replies, on average.
#[derive(Default)]
struct Sample {
    /// All, prompts with replies.
    whole: Sequences,
    /// Tokens of a prompt.
    prompt: f64,
    /// Tokens of a reply.
    reply: f64,
    /// Their squares.
    reply_squares: f64,
    /// Seconds that the environment works for a reply.
    environment: f64,
}

#[cfg(test)]
mod tests {
    use odeon_algorithms::workload::WorkloadSpec;

    use super::super::scenario::ModelName;
    use super::*;

    fn section(size: ModelName, gpus: u32) -> ModelSection {
        ModelSection {
            size,
            gpus: None,
            rollout_gpus: gpus,
            trainer_tensor: gpus.max(2),
            rollout_share: None,
            in_flight: 1.0,
            batch_max: None,
        }
    }

    fn rollouts(machines: u32, section: &ModelSection) -> Result<u32, CostError> {
        let workload = Workload::new(WorkloadSpec::math(1)).unwrap();
        let step = Step {
            card: &Card::h800(),
            size: &section.size.size(),
            section,
            workload: &workload,
            prompts: 128,
            group_size: 16,
        };
        step.rollout_machines(machines)
    }

    #[test]
    fn more_machines_give_more_of_them_to_rollouts_whose_replies_get_no_shorter() {
        let of = |machines| rollouts(machines, &section(ModelName::Qwen7b, 1)).unwrap();
        let shares = [8, 16, 32, 64].map(|machines| f64::from(of(machines)) / f64::from(machines));
        assert!(shares.is_sorted(), "{shares:?}");
        assert!(shares[3] > shares[0], "{shares:?}");
    }

    #[test]
    fn a_trainer_gets_at_least_the_machines_that_the_model_needs() {
        let section = section(ModelName::Qwen72b, 8);
        let model = section.size.size();
        let least =
            (1..64).find(|machines| Trainer::new(&Card::h800(), &model, machines * 8, 8).is_ok());
        let least = least.unwrap();
        assert!(least > 1, "else this shows nothing");
        assert_eq!(rollouts(least + 1, &section), Ok(1));
        assert!(matches!(
            rollouts(least, &section),
            Err(CostError::Memory { .. })
        ));
    }

    #[test]
    fn a_rollout_works_on_no_more_replies_than_it_may() {
        let free = section(ModelName::Qwen7b, 1);
        let bound = ModelSection {
            batch_max: Some(128),
            ..free.clone()
        };
        assert_eq!(free.slots(8_192.0, 32.0), 256.0);
        assert_eq!(bound.slots(8_192.0, 32.0), 128.0);
        assert_eq!(bound.slots(8_192.0, 800.0), free.slots(8_192.0, 800.0));
        // Slower rollouts are given more machines.
        let given = [&bound, &free].map(|it| rollouts(8, it).unwrap());
        assert!(given[0] >= given[1], "{given:?}");
    }
}
