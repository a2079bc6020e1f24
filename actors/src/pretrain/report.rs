//! Reports of a pretraining run.

use std::collections::{BTreeMap, BTreeSet};

use odeon_algorithms::model::ShardTime;
use odeon_algorithms::train::Sharing;
use odeon_diagnosis::Detector;
use odeon_diagnosis::ladder::{Forbidden, OrderedAction};
use odeon_diagnosis::run::{RunEvent, Watch};
use serde::{Deserialize, Serialize};

use super::rank::{Origin, SourcePart, Trained};
use crate::ranks::board::Acted;

/// Events of a run, in order.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Report {
    /// The ranks went on from a checkpoint, or from the begin where there is none.
    Resumed {
        /// Which life of the ranks this is, from 1.
        life: u32,
        /// Steps that are done.
        steps: u64,
        /// Number of ranks.
        ranks: u32,
        /// Where they were kept.
        from: Origin,
        /// Seconds since the life before was over, where one was lost.
        seconds: Option<f64>,
    },
    /// A step is done.
    Step(StepReport),
    /// Held-out samples were rated.
    Evaluated {
        /// Steps that were done then.
        steps: u64,
        /// Nats per predicted token over all sources.
        #[serde(with = "crate::number")]
        loss: f64,
        /// The same of each source.
        #[serde(with = "crate::number::each")]
        sources: BTreeMap<String, f64>,
    },
    /// A detector has found something. Nothing is done about it.
    Finding {
        /// The step that shows it.
        step: u64,
        /// The rule that found it: see [`odeon_diagnosis::run`].
        rule: String,
        /// The ranks that are to blame; none where it is the run as a whole.
        ranks: Vec<u32>,
        /// The finding, in words.
        why: String,
        /// The numbers that it stands on, by name.
        evidence: Vec<(String, f64)>,
    },
    /// Something was done about ranks that hold up the others or were lost, or people have to; or a person has decided
    /// what is to be done.
    Recovery {
        /// The action: `tell`, `end_process`, `evict_node`, `return_node`, `take_standby`, `group_test`, `roll_back` or
        /// `stop_for_person`; of a person also `forbid` and `allow`.
        action: String,
        /// The ranks that are to blame.
        ranks: Vec<u32>,
        /// Nodes that ranks are not placed on from now on.
        avoided: Vec<String>,
        /// Nodes that were avoided, on which ranks are placed again from now on.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        returned: Vec<String>,
        /// An action that is not taken by itself from now on.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        forbids: Option<Forbidden>,
        /// An action that may be taken by itself again.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        allows: Option<OrderedAction>,
        /// The person who ordered it, if one did.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        by: Option<String>,
        /// The finding, the action and its reason, in words.
        why: String,
    },
    /// Something has become of a standby; that one has taken a rank's number is a `Recovery`.
    Standby {
        /// Its number among standbys.
        standby: u32,
        /// What has become of it.
        state: StandbyState,
        /// The same in words, with its node and the reason.
        why: String,
    },
    /// A checkpoint is durable.
    Saved {
        /// Steps that are in it.
        steps: u64,
        /// Seconds for which the ranks stood still.
        blocked_seconds: f64,
        /// Seconds until it was durable.
        seconds: f64,
        /// Its bytes.
        bytes: u64,
        /// Seconds that the first rank spent in each stage, from the first to the last.
        stages: Vec<(String, f64)>,
    },
    /// Ranks keep a checkpoint in their memory.
    Copied {
        /// Steps that are in it.
        steps: u64,
        /// Seconds for which the ranks stood still.
        blocked_seconds: f64,
    },
    /// Something of a source was left out: it is told when it begins, and again when it is much more.
    LeftOut {
        /// Steps that were done then.
        steps: u64,
        /// The source.
        source: String,
        /// Files of it of which nothing can be read, or not their ends.
        files: u64,
        /// Things beside them that are not of the source's format.
        others: u64,
        /// Records that became no sample, of those that were read so far.
        records: u64,
        /// Those of them that cannot be read; the others have no text, or are too long.
        bad: u64,
        /// The first few, with file, place and reason.
        first: Vec<String>,
    },
    /// The files of a source have more than the run has read, which it reads behind that.
    Grown {
        /// Steps that were done then.
        steps: u64,
        /// The source.
        source: String,
        /// The difference between the files.
        what: String,
    },
    /// The files of a source are not those that the run has read, and it goes on all the same.
    Changed {
        /// Steps that were done then.
        steps: u64,
        /// The source.
        source: String,
        /// The difference between the files.
        what: String,
    },
    /// Ranks that were lost wait for room, which no node has.
    Waiting {
        /// Steps of the newest checkpoint of the storage; 0 where this try has made none.
        steps: u64,
        /// The obstacle on each node.
        why: String,
    },
    /// A source has other loaders.
    Rescaled {
        /// Steps that were done then.
        steps: u64,
        /// The source.
        source: String,
        /// Number of its loaders from now on.
        loaders: u32,
    },
    /// All steps are done.
    Finished {
        /// Number of steps.
        steps: u64,
    },
    /// It was asked to stop, and has saved.
    Halted {
        /// Steps that are done.
        steps: u64,
    },
}

impl Report {
    pub(super) fn of_recovery(acted: Acted) -> Self {
        let Acted {
            action,
            ranks,
            avoided,
            returned,
            forbids,
            allows,
            by,
            why,
        } = acted;
        Self::Recovery {
            action: action.to_owned(),
            ranks,
            avoided,
            returned,
            forbids,
            allows,
            by,
            why,
        }
    }
}

/// The state of a standby.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StandbyState {
    /// It waits, and could take the number of a rank at once.
    Ready,
    /// It was there, and is not any more.
    Lost,
    /// It could not be begun, and is tried again.
    Missing,
}

/// A step in numbers.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct StepReport {
    /// Steps that are done with it: the first is 1.
    pub step: u64,
    /// Nats per predicted token.
    #[serde(with = "crate::number")]
    pub loss: f64,
    /// The loss of a head that predicts one token further, before its weight; `None` where there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mtp_loss: Option<f64>,
    /// Norm of the gradient before clipping.
    #[serde(with = "crate::number")]
    pub grad_norm: f64,
    /// Learning rate.
    pub lr: f64,
    /// Tokens of all ranks.
    pub tokens: u64,
    /// Samples of all ranks.
    pub samples: u64,
    /// Floating point operations of all ranks.
    pub flops: f64,
    /// Seconds that it took.
    pub seconds: f64,
    /// The longest that a rank waited for its batch.
    pub wait_seconds: f64,
    /// The longest that a rank computed.
    pub compute_seconds: f64,
    /// The longest over the mean computing time of the ranks.
    pub imbalance: f64,
    /// Bytes of shards that all ranks copied before and behind gathers of parameters, beside what these write.
    #[serde(default)]
    pub gather_copies: u64,
    /// The same of sums of gradients.
    #[serde(default)]
    pub sum_copies: u64,
    /// Seconds of these gathers and sums, of all ranks together.
    #[serde(default)]
    pub moving_seconds: f64,
    /// Seconds for which passes of all ranks together waited for them.
    #[serde(default)]
    pub moving_waits: f64,
    /// The share of the time of these gathers and sums in which passes went on meanwhile; 0 where there were none.
    #[serde(default)]
    pub hidden_share: f64,
    /// Samples and tokens from each source, by name.
    pub sources: BTreeMap<String, SourcePart>,
    /// A hash of what all ranks trained on.
    pub digest: String,
}

/// A step in numbers, of what its ranks tell of their parts.
pub(super) fn of_step(
    step: u64,
    parts: &[Trained],
    sharing: Sharing,
    seconds: f64,
    name: impl Fn(u16) -> String,
) -> StepReport {
    // Pipeline ranks have the same samples, of which the last score; so have context ranks, and tensor ranks the same
    // rows.
    let of_stage = sharing.context * sharing.tensor;
    let scores = |rank: usize| rank / of_stage % sharing.stages + 1 == sharing.stages;
    let scoring = || {
        parts
            .iter()
            .enumerate()
            .filter(move |(rank, _)| scores(*rank))
    };
    let apart = || scoring().map(|(_, part)| part).step_by(sharing.tensor);
    let largest = |of: fn(&Trained) -> f64| parts.iter().map(of).fold(0.0, f64::max);
    let moves: ShardTime = parts.iter().map(Trained::moves).sum();
    let compute_seconds = largest(|part| part.compute_seconds);
    let mean = parts.iter().map(|part| part.compute_seconds).sum::<f64>() / parts.len() as f64;
    let mut sources: BTreeMap<String, SourcePart> = BTreeMap::new();
    for (source, part) in apart().flat_map(|part| &part.sources) {
        sources.entry(name(*source)).or_default().add(part);
    }
    let mut hasher = blake3::Hasher::new();
    for part in apart().step_by(sharing.context) {
        hasher.update(&part.digest);
    }
    StepReport {
        step,
        loss: parts[0].loss,
        mtp_loss: Some(parts[0].next_token_loss).filter(|loss| *loss != 0.0),
        grad_norm: parts[0].grad_norm,
        lr: parts[0].lr,
        tokens: apart().map(|part| part.tokens).sum(),
        samples: sources.values().map(|part| part.samples).sum(),
        flops: parts.iter().map(|part| part.flops).sum(),
        seconds,
        wait_seconds: largest(|part| part.wait_seconds),
        compute_seconds,
        imbalance: compute_seconds / mean.max(f64::MIN_POSITIVE),
        gather_copies: parts.iter().map(|part| part.gather_copies).sum(),
        sum_copies: parts.iter().map(|part| part.sum_copies).sum(),
        moving_seconds: moves.moving.as_secs_f64(),
        moving_waits: moves.waited.as_secs_f64(),
        hidden_share: moves.hidden_share(),
        sources,
        digest: hasher.finalize().to_hex()[..16].to_owned(),
    }
}

/// Nodes that a run avoids which told this before.
#[must_use]
pub fn avoided(before: &[Report]) -> BTreeSet<String> {
    let mut all = BTreeSet::new();
    for report in before {
        if let Report::Recovery {
            avoided, returned, ..
        } = report
        {
            all.extend(avoided.iter().cloned());
            all.retain(|node| !returned.contains(node));
        }
    }
    all
}

/// Actions that a person forbids in a run which told this before.
#[must_use]
pub fn forbidden(before: &[Report]) -> Vec<Forbidden> {
    let mut all: Vec<Forbidden> = vec![];
    for report in before {
        if let Report::Recovery {
            forbids, allows, ..
        } = report
        {
            let over = forbids.as_ref().map(|it| it.action).or(*allows);
            all.retain(|it| Some(it.action) != over);
            all.extend(forbids.clone());
        }
    }
    all
}

/// The detectors of a run of so many steps that have seen what the run told before.
#[must_use]
pub fn watch(steps: u64, before: &[Report]) -> Watch {
    let mut watch = Watch::new(steps);
    for report in before {
        // What each rank lost is told where something was found; a loss of all is finite when each is.
        let (step, losses) = match report {
            Report::Step(step) if step.loss.is_finite() => (step.step, vec![Some(step.loss)]),
            Report::Finding {
                step, ranks, rule, ..
            } if rule == "loss_not_finite" => {
                let last = ranks.iter().max().map_or(0, |last| last + 1);
                let loss = |rank| if ranks.contains(&rank) { f64::NAN } else { 0.0 };
                (*step, (0..last).map(|rank| Some(loss(rank))).collect())
            }
            _ => continue,
        };
        // It was told when it began.
        let _ = watch.observe(&RunEvent::Losses(losses), step);
    }
    watch
}

#[cfg(test)]
mod tests {
    use odeon_diagnosis::ladder::OrderedBy;

    use super::*;

    /// SEMANTICS 202.
    #[test]
    fn a_run_that_goes_on_knows_what_a_person_has_forbidden() {
        let order = |why: &str| Forbidden {
            action: OrderedAction::EndProcess,
            by: OrderedBy {
                name: "ann".to_owned(),
                why: why.to_owned(),
            },
        };
        let told = |forbids, allows| Report::Recovery {
            action: String::new(),
            ranks: vec![],
            avoided: vec![],
            returned: vec![],
            forbids,
            allows,
            by: None,
            why: String::new(),
        };
        let mut all = vec![told(Some(order("a")), None), told(Some(order("b")), None)];
        assert_eq!(forbidden(&all), [order("b")]);
        all.push(told(None, Some(OrderedAction::EvictNode)));
        assert_eq!(forbidden(&all).len(), 1);
        all.push(told(None, Some(OrderedAction::EndProcess)));
        assert_eq!(forbidden(&all), []);
        // As an earlier release has written it.
        let old = r#"{"Recovery":{"action":"tell","ranks":[],"avoided":[],"why":""}}"#;
        let old: Report = serde_json::from_str(old).unwrap();
        assert_eq!(forbidden(&[old]), []);
    }

    /// SEMANTICS 92.
    #[test]
    fn a_run_that_goes_on_knows_the_findings_that_it_told_before() {
        let step = |step, loss| {
            Report::Step(StepReport {
                step,
                loss,
                ..StepReport::default()
            })
        };
        let finding = Report::Finding {
            step: 2,
            rule: "loss_not_finite".to_owned(),
            ranks: vec![1],
            why: String::new(),
            evidence: vec![],
        };
        let mut told = vec![step(1, 1.0), step(2, f64::NAN), finding, step(3, f64::NAN)];
        let bad = RunEvent::Losses(vec![Some(1.0), Some(f64::NAN)]);
        assert_eq!(watch(9, &told).observe(&bad, 4), [], "it goes on");
        told.push(step(4, 1.0));
        assert_eq!(
            watch(9, &told).observe(&bad, 5)[0].who,
            [1],
            "it begins anew"
        );
    }
}
