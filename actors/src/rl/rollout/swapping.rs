//! Swaps of a rollout's weights: when it takes newer ones, and what becomes of what is under way.

use odeon::serde::{Deserialize, Serialize};
use odeon::{Clock, Failure, telemetry};

use super::Rollout;
use crate::engine::{in_place, rest};
use crate::rl::relay::{Latest, Weights};

/// The way in which a rollout changes to newer weights.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(crate = "odeon::serde", rename_all = "snake_case")]
pub enum Swap {
    /// At once, for what it begins: what is under way ends with the weights before, which it keeps
    /// meanwhile. Two sets of weights for a while, and no slot waits.
    #[default]
    Overlap,
    /// When what is under way has ended: once there are newer weights it begins nothing more. One set
    /// of weights; slots are empty towards the end, unless the rest is
    /// [packed](crate::rl::packer::Packer) together (Laminar, arXiv 2510.12633).
    Drain,
    /// At once, for everything: keys and values of what is under way are computed anew, and its
    /// trajectories come from several versions (partial rollout as in AReaL, arXiv 2505.24298).
    Interrupt,
}

impl Rollout {
    /// Returns true when the relay has told of other weights than there are here.
    pub(super) fn has_newer(&self) -> bool {
        self.announced > self.edition
    }

    /// Returns true when it can take other weights now.
    pub(super) fn may_pull(&self) -> bool {
        match self.args.swap {
            // Whoever goes on with a begun reply needs the weights that it has now.
            Swap::Overlap => {
                let begun = self.waiting.iter().any(|order| order.partial.is_some());
                self.engine.can_load() && !begun
            }
            Swap::Drain => self.under_way.is_empty() && self.waiting.is_empty(),
            Swap::Interrupt => true,
        }
    }

    /// Returns true when it only ends what is under way.
    pub(super) fn is_draining(&self) -> bool {
        self.args.swap == Swap::Drain && self.version.is_some() && self.has_newer()
    }

    /// Swaps to the newest complete weights. When they cannot be had now, the old ones stay.
    pub(super) async fn pull(&mut self) -> Result<(), Failure> {
        let latest = match self.relay {
            Some(relay) => relay.ask(Latest).await.ok().flatten(),
            None => None,
        };
        let newer = |weights: &Weights| Some(weights.edition) > self.edition;
        let Some(weights) = latest.filter(newer) else {
            // The relay tells again when it has some.
            self.announced = self.edition;
            return Ok(());
        };
        let view = match weights.blob.open().await {
            Ok(view) => view,
            Err(error) => {
                tracing::warn!(%error, "the weights are gone again; the relay will tell of others");
                self.announced = self.edition;
                return Ok(());
            }
        };
        let begun = Clock::now();
        in_place(|| match self.args.swap {
            Swap::Interrupt if !self.under_way.is_empty() => self.engine.interrupt(&view),
            _ => self.engine.load(&view),
        })?;
        rest(self.engine.takes()).await;
        self.counts.pulls += 1;
        self.counts.pulling += Clock::now().since(begun);
        self.in_vain = false;
        let version = weights.edition.version();
        self.edition = Some(weights.edition);
        self.version = Some(version);
        self.announced = self.announced.max(self.edition);
        telemetry::gauge("weights.version", version as f64).record();
        Ok(())
    }
}
