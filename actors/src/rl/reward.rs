//! The reward actor: judges responses by the task's exact checker, or by running the programs in them.
//!
//! It answers later, so that any number of responses are judged at a time; how many programs run at
//! once is up to the [referee](super::referee).

use std::sync::Arc;

use odeon::serde::{Deserialize, Serialize};
use odeon::{Context, Failure, Later, actor, message};
use odeon_algorithms::task::{Split, TaskSpec};
use odeon_algorithms::tokenizer::Tokenizer;

use super::referee::{ProgramSpec, Referee};
use crate::trajectory::Trajectory;

/// Settings that a [`Reward`] is made from.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(crate = "odeon::serde")]
pub struct RewardArgs {
    /// The task whose answers it knows.
    pub task: TaskSpec,
    /// Settings for running programs in replies, where the task has some.
    pub programs: ProgramSpec,
    /// The run's seed, from which the problems follow.
    pub seed: u64,
    /// The tokenizer that turns tokens into text.
    pub tokenizer: Tokenizer,
}

/// Fills in `reward` and `correct`. The failure is never that of the response.
#[message(reply = Result<Trajectory, Failure>, name = "reward.Judge")]
#[derive(Debug)]
pub struct Judge(pub Trajectory);

/// The actor that gives each reply its reward by the exact checker.
#[derive(Debug)]
pub struct Reward {
    bench: Arc<Bench>,
}

/// The referee, and all else that judging takes.
#[derive(Debug)]
struct Bench {
    referee: Referee,
    seed: u64,
    tokenizer: Tokenizer,
}

#[actor(name = "rl.Reward")]
impl Reward {
    async fn start(args: RewardArgs, cx: &mut Context<Self>) -> Result<Self, Failure> {
        let referee = Referee::open(&args.task, &args.programs).await;
        let referee = referee.map_err(|error| match Failure::error(error) {
            // Another start would find the same machine.
            failure if cx.incarnation() == 1 => failure.fatal(),
            failure => failure,
        })?;
        let bench = Bench {
            referee,
            seed: args.seed,
            tokenizer: args.tokenizer,
        };
        Ok(Self {
            bench: Arc::new(bench),
        })
    }

    #[handler(message = Judge)]
    fn judge(&mut self, judge: Judge) -> Later<Result<Trajectory, Failure>> {
        let bench = Arc::clone(&self.bench);
        Later::new(async move { bench.judge(judge.0).await })
    }
}

impl Bench {
    async fn judge(&self, mut trajectory: Trajectory) -> Result<Trajectory, Failure> {
        let task = self.referee.task();
        let problem = task.problem(self.seed, Split::Train, trajectory.problem);
        // Tokens outside the vocabulary are no answer.
        let text = self.tokenizer.decode_reply(&trajectory.response);
        let text = text.unwrap_or_default();
        let verdict = self.referee.judge(&problem, &text).await;
        let verdict = verdict.map_err(Failure::error)?;
        trajectory.reward = verdict.reward as f32;
        trajectory.correct = verdict.correct;
        Ok(trajectory)
    }
}
