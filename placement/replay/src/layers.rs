//! The split of layers of uneven costs onto stages.

use std::ops::Range;

use thiserror::Error;

use crate::pipeline::StageCosts;

/// The layers of each stage.
#[derive(Clone, Debug, PartialEq)]
pub struct LayerSplit {
    /// The layers of each stage, in order; none is empty.
    pub stages: Vec<Range<usize>>,
    /// Seconds of the most expensive stage.
    pub most_s: f64,
}

impl LayerSplit {
    /// The costs of each stage: the sums of its layers' seconds and bytes.
    ///
    /// # Panics
    /// There are fewer costs than layers were split.
    #[must_use]
    pub fn stage_costs(&self, layers: &[StageCosts]) -> Vec<StageCosts> {
        let sum = |range: &Range<usize>| {
            let layers = layers[range.clone()].iter();
            layers.fold(StageCosts::default(), |sum, layer| StageCosts {
                forward_s: sum.forward_s + layer.forward_s,
                input_gradient_s: sum.input_gradient_s + layer.input_gradient_s,
                weight_gradient_s: sum.weight_gradient_s + layer.weight_gradient_s,
                activation_bytes: sum.activation_bytes + layer.activation_bytes,
                kept_bytes: sum.kept_bytes + layer.kept_bytes,
            })
        };
        self.stages.iter().map(sum).collect()
    }
}

/// Layers that cannot be split. Nothing was made of them.
#[derive(Clone, Debug, PartialEq, Error)]
#[non_exhaustive]
pub enum SplitError {
    /// There is no stage for the layers.
    #[error("{layers} layers cannot go onto 0 stages: give 1 at least")]
    NoStages {
        /// The number of layers.
        layers: usize,
    },
    /// A stage would be empty.
    #[error(
        "{layers} layers leave some of {stages} stages empty: give fewer stages, or fewer chunks a rank"
    )]
    TooFewLayers {
        /// The number of layers.
        layers: usize,
        /// The number of stages.
        stages: usize,
    },
    /// A cost is no number of seconds.
    #[error("layer {layer} takes {seconds} s: give a finite number, 0 or more")]
    BadCost {
        /// The layer.
        layer: usize,
        /// The seconds that were given.
        seconds: f64,
    },
}

/// Splits layers, in order, onto so many stages such that the most expensive stage is least.
///
/// `layers_s` are the seconds of all passes of a micro-batch through each layer, with embedding and head as
/// layers of their own; `stages` is the number of ranks times the chunks of each. The split is exact, by dynamic
/// programming over the last cut; of several best ones it has the last cuts as early as can be. Takes time in
/// proportion to stages times layers squared, and memory to stages times layers.
///
/// # Errors
/// See [`SplitError`].
pub fn split_layers(layers_s: &[f64], stages: usize) -> Result<LayerSplit, SplitError> {
    let layers = layers_s.len();
    if stages == 0 {
        return Err(SplitError::NoStages { layers });
    }
    if layers < stages {
        return Err(SplitError::TooFewLayers { layers, stages });
    }
    for (layer, seconds) in layers_s.iter().copied().enumerate() {
        if !seconds.is_finite() || seconds < 0.0 {
            return Err(SplitError::BadCost { layer, seconds });
        }
    }
    // For each number of layers the least that the most expensive stage may cost, and the begin of the last one.
    let mut best = vec![(f64::INFINITY, 0); layers + 1];
    best[0] = (0.0, 0);
    let mut begins = vec![];
    for stage in 0..stages {
        let mut next = vec![(f64::INFINITY, 0); layers + 1];
        // Each stage before has a layer, and so has each behind.
        for (begin, (before, _)) in best.iter().enumerate().take(layers).skip(stage) {
            let mut seconds = 0.0;
            for end in begin + 1..=layers {
                seconds += layers_s[end - 1];
                let most = before.max(seconds);
                if most < next[end].0 {
                    next[end] = (most, begin);
                }
            }
        }
        begins.push(next.iter().map(|it| it.1).collect::<Vec<_>>());
        best = next;
    }
    let mut end = layers;
    let mut ranges = vec![];
    for begins in begins.iter().rev() {
        let begin = begins[end];
        ranges.push(begin..end);
        end = begin;
    }
    ranges.reverse();
    Ok(LayerSplit {
        stages: ranges,
        most_s: best[layers].0,
    })
}
