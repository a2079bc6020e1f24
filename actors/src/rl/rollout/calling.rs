//! Replies that have called their tool, each waiting for its answer while others are generated.
//!
//! Who waits has no slot. What there is of it is the rollout's as before: the store is told of it, and
//! whoever goes on with it asks for the same answer.

use std::collections::{HashMap, VecDeque};

use odeon::serde::{Deserialize, Serialize};
use odeon::telemetry::{self, OpenSpan};
use odeon::{Clock, Context, Failure, Ref, Timestamp, message};
use odeon_algorithms::environment::{Environment, EnvironmentConfig, Next};
use odeon_algorithms::tokenizer::Tokenizer;

use super::Rollout;
use super::judging::insist;
use crate::rl::tools::{Call, Tools};
use crate::trajectory::{Partial, SampleId};

/// A call has its answer, or cannot have one. A rollout is told so by itself.
#[message(name = "rollout.Answered")]
#[derive(Debug)]
pub struct Answered {
    /// Which reply has called.
    pub id: SampleId,
    /// Which of this rollout's calls it was.
    pub number: u64,
    /// The answer of the tool.
    pub outcome: Result<String, Failure>,
}

/// The tool that replies can call, and the actor that answers.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(crate = "odeon::serde")]
pub struct Tooling {
    /// The actor that answers.
    pub tools: Ref<Tools>,
    /// The tool that they can call, and its limits.
    pub environment: EnvironmentConfig,
    /// The tokenizer that turns tokens into text.
    pub tokenizer: Tokenizer,
    /// The longest reply, in tokens.
    pub response_max: usize,
}

/// The calls of one rollout that are under way, and the replies that have their answers.
pub(super) struct Calling {
    tooling: Option<(Tooling, Environment)>,
    under_way: HashMap<SampleId, UnderWay>,
    calls: u64,
    /// Replies that have their answers and go on.
    pub(super) answered: VecDeque<SampleId>,
}

/// A call that was made.
struct UnderWay {
    number: u64,
    begun: Timestamp,
    /// For people to see.
    span: OpenSpan,
}

impl Calling {
    pub(super) fn new(tooling: Option<Tooling>) -> Self {
        let tooling = tooling.map(|it| {
            let environment = Environment::new(it.environment, it.tokenizer.clone());
            (it, environment)
        });
        Self {
            tooling,
            under_way: HashMap::new(),
            calls: 0,
            answered: VecDeque::new(),
        }
    }

    /// Replies that wait for an answer.
    pub(super) fn under_way(&self) -> usize {
        self.under_way.len()
    }

    /// Replies that wait for an answer or for a slot to go on in.
    pub(super) fn held(&self) -> usize {
        self.under_way.len() + self.answered.len()
    }

    /// Forgets all of them: others go on with them.
    pub(super) fn forget(&mut self) {
        self.under_way.clear();
        self.answered.clear();
    }

    /// The next thing to do for a reply of which there is so much.
    pub(super) fn next(&self, partial: &Partial) -> Next {
        let Some((tooling, environment)) = &self.tooling else {
            return Next::GoesOn;
        };
        if partial.tokens.len() >= tooling.response_max {
            return Next::Ended;
        }
        let own = &partial.tokens[partial.observed.end()..];
        let closes = |last| environment.closing().contains(last);
        match own.last().is_some_and(closes) {
            true => environment.next(own, partial.observed.turns()),
            false => Next::GoesOn,
        }
    }

    /// Asks the tool; the rollout hears of it.
    pub(super) fn begin(&mut self, call: Call, cx: &Context<Rollout>) {
        let Some((tooling, _)) = &self.tooling else {
            return;
        };
        let (id, tools, me) = (call.id, tooling.tools, cx.me());
        self.calls += 1;
        let number = self.calls;
        let span = telemetry::span("tool")
            .with("group", id.group)
            .with("sample", id.sample)
            .with("turn", call.turn as u64);
        let context = span.context();
        let under_way = UnderWay {
            number,
            begun: Clock::now(),
            span,
        };
        self.under_way.insert(id, under_way);
        cx.spawn_task(async move {
            let asked = telemetry::below(context, insist(tools, || call.clone()));
            let outcome = asked.await.and_then(|answer| answer);
            let answered = Answered {
                id,
                number,
                outcome,
            };
            // The replies of a rollout that is gone are gone on with elsewhere.
            let _ = me.tell(answered).await;
        });
    }

    /// An answer has come, after so long a wait. One to a call that nobody waits for any more is
    /// nothing.
    pub(super) fn end(
        &mut self,
        answered: Answered,
    ) -> Result<Option<(SampleId, String, std::time::Duration)>, Failure> {
        let Answered {
            id,
            number,
            outcome,
        } = answered;
        if self.under_way.get(&id).is_none_or(|it| it.number != number) {
            return Ok(None);
        }
        let Some(call) = self.under_way.remove(&id) else {
            return Ok(None);
        };
        let waited = Clock::now().since(call.begun);
        call.span.end();
        telemetry::gauge("rl.tools.wait", waited.as_secs_f64())
            .with("unit", "s")
            .record();
        Ok(Some((id, outcome?, waited)))
    }

    /// Writes an answer into a reply that goes on. Returns true if there is room for that and more;
    /// where there is not, the reply ends with what it says.
    pub(super) fn observe(&mut self, id: SampleId, partial: &mut Partial, answer: &str) -> bool {
        let Some((tooling, environment)) = &self.tooling else {
            return false;
        };
        let observation = environment.observation(answer);
        let from = partial.tokens.len();
        let to = from + observation.len();
        let fits = to < tooling.response_max;
        if fits {
            partial.tokens.extend(observation);
            partial.observed.push(from..to);
            self.answered.push_back(id);
        }
        fits
    }
}
