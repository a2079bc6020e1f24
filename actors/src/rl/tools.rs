//! The tool actor: answers what replies call, many calls at a time.
//!
//! It answers later, so that a slow call holds up no other. A call is known by its reply, its turn and
//! what it says: who asks again while it is under way, as a rollout does that goes on with the reply of
//! another, waits for the same answer. So a call is made once unless this actor is lost, and then again
//! from its begin.

use std::collections::{HashMap, VecDeque};

use futures::future::{BoxFuture, FutureExt, Shared};
use odeon::serde::{Deserialize, Serialize};
use odeon::{Clock, Context, Failure, Later, actor, message};
use odeon_algorithms::environment::{EnvironmentConfig, Latency};

use super::referee::ProgramSpec;
use super::toolbox::Toolbox;
use crate::trajectory::SampleId;

/// Settings that [`Tools`] are made from.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(crate = "odeon::serde")]
pub struct ToolsArgs {
    /// The tool that replies can call, and its limits.
    pub environment: EnvironmentConfig,
    /// Settings for running programs, where calls hold some.
    pub programs: ProgramSpec,
    /// Time that is added to each call, beside what it takes.
    pub latency: Latency,
    /// The seed of latencies.
    pub seed: u64,
}

/// A reply calls its tool, and is answered. The failure is never the call's.
#[message(reply = Result<String, Failure>, name = "tools.Call")]
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Call {
    /// Which reply.
    pub id: SampleId,
    /// Which of its calls, from 0.
    pub turn: usize,
    /// The text of the call.
    pub input: String,
}

/// Count the calls of the tool actor since it started.
#[message(reply = ToolCounts, name = "tools.Count")]
#[derive(Debug)]
pub struct CountCalls;

/// See [`CountCalls`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, odeon::Shape)]
#[serde(crate = "odeon::serde")]
pub struct ToolCounts {
    /// Calls that were made.
    pub made: u64,
    /// Calls that somebody asked for while they were made, or after.
    pub again: u64,
}

type Answer = Shared<BoxFuture<'static, Result<String, Failure>>>;

/// The actor that runs the calls of replies, each of them once.
#[derive(Debug)]
pub struct Tools {
    toolbox: Toolbox,
    latency: Latency,
    seed: u64,
    /// Calls under way, and the last that were answered.
    calls: HashMap<Call, Answer>,
    /// In the order in which they came.
    order: VecDeque<Call>,
    counts: ToolCounts,
}

#[actor(name = "rl.Tools")]
impl Tools {
    async fn start(args: ToolsArgs, cx: &mut Context<Self>) -> Result<Self, Failure> {
        let toolbox = Toolbox::open(&args.environment, &args.programs).await;
        let toolbox = toolbox.map_err(|error| match Failure::error(error) {
            // Another start would find the same machine.
            failure if cx.incarnation() == 1 => failure.fatal(),
            failure => failure,
        })?;
        Ok(Self {
            toolbox,
            latency: args.latency,
            seed: args.seed,
            calls: HashMap::new(),
            order: VecDeque::new(),
            counts: ToolCounts::default(),
        })
    }

    #[handler(message = Call)]
    fn call(&mut self, call: Call) -> Later<Result<String, Failure>> {
        let known = self.calls.get(&call);
        // One that could not be made is made again.
        if let Some(answer) = known.filter(|it| !matches!(it.peek(), Some(Err(_)))) {
            self.counts.again += 1;
            return Later::new(answer.clone());
        }
        self.counts.made += 1;
        let answer = self.begin(&call);
        if self.calls.insert(call.clone(), answer.clone()).is_none() {
            self.order.push_back(call);
            self.forget();
        }
        Later::new(answer)
    }

    #[handler(message = CountCalls)]
    fn count(&mut self, _count: CountCalls) -> ToolCounts {
        self.counts
    }
}

impl Tools {
    /// Makes a call, whoever still waits for it.
    fn begin(&self, call: &Call) -> Answer {
        let (toolbox, input) = (self.toolbox.clone(), call.input.clone());
        let Call { id, turn, .. } = call;
        let takes = self.latency.of(self.seed, id.group, id.sample, *turn);
        let made = tokio::spawn(async move {
            if !takes.is_zero() {
                Clock::sleep(takes).await;
            }
            toolbox.run(&input).await
        });
        let answer = async move { made.await.map_err(Failure::error)? };
        answer.boxed().shared()
    }

    /// Forgets the calls that were answered longest ago.
    fn forget(&mut self) {
        while self.order.len() > KEPT
            && let Some(call) = self.order.pop_front()
        {
            match self.calls.get(&call).map(Shared::peek) {
                // One that takes long stays as long as it takes.
                Some(None) => {
                    self.order.push_back(call);
                    return;
                }
                _ => {
                    self.calls.remove(&call);
                }
            }
        }
    }
}

/// Answers that are kept: who goes on with a reply asks soon after.
const KEPT: usize = 4096;
