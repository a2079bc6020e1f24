//! The reward actor: judges responses by the task's exact checker.

use odeon::serde::{Deserialize, Serialize};
use odeon::{Failure, actor, message};
use odeon_algorithms::task::{Split, Task, TaskSpec};
use odeon_algorithms::tokenizer::Tokenizer;

use crate::trajectory::Trajectory;

/// What a [`Reward`] is made from.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(crate = "odeon::serde")]
pub struct RewardArgs {
    /// The task whose answers it knows.
    pub task: TaskSpec,
    /// The run's seed, from which the problems follow.
    pub seed: u64,
    /// How tokens become text.
    pub tokenizer: Tokenizer,
}

/// Fills in `reward` and `correct`.
#[message(reply = Vec<Trajectory>, name = "reward.Judge")]
#[derive(Debug)]
pub struct Judge(pub Vec<Trajectory>);

/// See the module.
pub struct Reward {
    task: Box<dyn Task>,
    seed: u64,
    tokenizer: Tokenizer,
}

impl std::fmt::Debug for Reward {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Reward")
            .field("task", &self.task.name())
            .finish_non_exhaustive()
    }
}

#[actor(name = "rl.Reward")]
impl Reward {
    async fn start(args: RewardArgs) -> Result<Self, Failure> {
        let task = args.task.build().map_err(Failure::error)?;
        Ok(Self {
            task,
            seed: args.seed,
            tokenizer: args.tokenizer,
        })
    }

    #[handler(message = Judge)]
    fn judge(&mut self, judge: Judge) -> Vec<Trajectory> {
        let Judge(mut trajectories) = judge;
        for trajectory in &mut trajectories {
            let problem = self
                .task
                .problem(self.seed, Split::Train, trajectory.problem);
            // Tokens outside the vocabulary are no answer.
            let text = self
                .tokenizer
                .decode(&trajectory.response)
                .unwrap_or_default();
            let verdict = self.task.reward(&problem, &text);
            trajectory.reward = verdict.reward as f32;
            trajectory.correct = verdict.correct;
        }
        trajectories
    }
}
