//! GPUs: what they can do on paper, and what their kernels reached when they were measured.

use odeon_topology::DeviceModel;
use serde::{Deserialize, Serialize};

use super::{CostError, all_positive};

/// A GPU in a machine of several.
///
/// A data sheet and what its kernels reach of that.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Card {
    /// The name that people know it by.
    pub name: String,
    /// Its data sheet.
    pub device: DeviceModel,
    /// Share of a machine's network that relays of weights reach. See [`Card::RELAY_SHARE`].
    pub relay_share: f64,
    /// Time of whole training steps relative to that of their kernels alone. See
    /// [`Card::SUSTAINED`].
    pub sustained: f64,
    /// The shares of these peaks that its kernels reach.
    pub kernels: Kernels,
}

/// Measured speeds of kernels: shares of a card's peaks, and times that no work undercuts.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Kernels {
    /// Matrix products.
    pub product: Product,
    /// Attention of one token to those before it.
    pub decode: DecodeAttention,
    /// Attention of whole prompts.
    pub prefill: PrefillAttention,
    /// All-reduces inside a machine.
    pub all_reduce: AllReduce,
}

/// A bf16 product `m x k` by `k x n`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Product {
    /// Seconds of the smallest.
    pub floor: f64,
    /// Share of the memory bandwidth.
    pub bandwidth: f64,
    /// Share of the arithmetic.
    pub flops: f64,
    /// Sharpness of the knee between the two: the exponent of their norm; 1 adds them, infinity
    /// takes the larger.
    pub knee: f64,
}

/// Attention of a decode step, for the heads that one GPU has.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct DecodeAttention {
    /// Seconds of the smallest.
    pub floor: f64,
    /// Share of the memory bandwidth at which keys and values are read.
    pub bandwidth: f64,
    /// Seconds for each sequence and key-value head, however short.
    pub head: f64,
    /// Sharpness of the knee, as in [`Product::knee`].
    pub knee: f64,
}

/// Causal attention of prompts, for the heads that one GPU has.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct PrefillAttention {
    /// Seconds of the smallest.
    pub floor: f64,
    /// Share of the arithmetic.
    pub flops: f64,
    /// Share of the memory bandwidth at which queries, keys, values and results pass.
    pub bandwidth: f64,
}

/// All-reduce among 2, 4 and 8 GPUs of one machine.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct AllReduce {
    /// Seconds of the smallest, by size of the group.
    pub start: [f64; 3],
    /// Share of the NVLink bandwidth that large ones reach, by size of the group. More than 1 is
    /// possible, since the switch can add.
    pub nvlink: [f64; 3],
    /// Seconds that say how slowly the bandwidth is reached.
    pub ramp: f64,
}

impl Kernels {
    /// The same kernels, each of which takes the part `1 / speed` of its time.
    #[must_use]
    pub fn times(self, speed: f64) -> Self {
        let Self {
            product,
            decode,
            prefill,
            all_reduce,
        } = self;
        Self {
            product: Product {
                floor: product.floor / speed,
                bandwidth: product.bandwidth * speed,
                flops: product.flops * speed,
                ..product
            },
            decode: DecodeAttention {
                floor: decode.floor / speed,
                bandwidth: decode.bandwidth * speed,
                head: decode.head / speed,
                ..decode
            },
            prefill: PrefillAttention {
                floor: prefill.floor / speed,
                flops: prefill.flops * speed,
                bandwidth: prefill.bandwidth * speed,
            },
            all_reduce: AllReduce {
                start: all_reduce.start.map(|it| it / speed),
                nvlink: all_reduce.nvlink.map(|it| it * speed),
                ramp: all_reduce.ramp / speed,
            },
        }
    }
}

/// FLOP/s of products on one core, and bytes a second that it reads: stated so that one rank of
/// `recipes/pretrain-llama.toml` takes the seconds that it took on such a core (`docs/pretraining.md`).
const PROCESSOR_FLOPS: f64 = 125e9;
const PROCESSOR_MEMORY: f64 = 12.5e9;

impl Card {
    /// H100 SXM, by [`DeviceModel::h100`].
    #[must_use]
    pub fn h100() -> Self {
        Self::new("H100", DeviceModel::h100(), H100)
    }

    /// H800 SXM, by [`DeviceModel::h800`]. Nobody published its kernels, so those of the H100 are taken:
    /// nothing here was measured on it.
    #[must_use]
    pub fn h800() -> Self {
        Self::new("H800", DeviceModel::h800(), H100)
    }

    /// H200 SXM, by [`DeviceModel::h200`].
    #[must_use]
    pub fn h200() -> Self {
        Self::new("H200", DeviceModel::h200(), H200)
    }

    /// A100 SXM, by [`DeviceModel::a100`].
    #[must_use]
    pub fn a100() -> Self {
        Self::new("A100", DeviceModel::a100(), A100)
    }

    /// So many threads of a processor, in f32. Its rates are stated and not measured where it runs, so that what is
    /// decided by them is the same everywhere: those of one core of a Xeon server of 2023 with AVX-512.
    #[must_use]
    pub fn processor(threads: usize) -> Self {
        let threads = threads.max(1) as f64;
        let device = DeviceModel {
            memory_bytes: u64::MAX,
            memory_bytes_per_second: threads * PROCESSOR_MEMORY,
            flops: threads * PROCESSOR_FLOPS,
            // Processes of one machine, however many.
            per_node: u32::MAX,
            ..DeviceModel::h100()
        };
        let kernels = Kernels {
            product: Product {
                floor: 2e-6,
                bandwidth: 0.5,
                flops: 0.8,
                knee: 1.0,
            },
            prefill: PrefillAttention {
                floor: 5e-6,
                flops: 0.3,
                bandwidth: 0.5,
            },
            ..H100
        };
        Self::new("processor", device, kernels)
    }

    fn new(name: &str, device: DeviceModel, kernels: Kernels) -> Self {
        Self {
            name: name.to_owned(),
            device,
            relay_share: Self::RELAY_SHARE,
            sustained: Self::SUSTAINED,
            kernels,
        }
    }

    pub(super) fn check(&self) -> Result<(), CostError> {
        let Kernels {
            product,
            decode,
            prefill,
            all_reduce,
        } = self.kernels;
        let [starts, links] = [all_reduce.start, all_reduce.nvlink]
            .map(|all| all.into_iter().fold(f64::INFINITY, f64::min));
        if let Some((field, value)) = self.device.flaw() {
            let of = self.name.clone();
            return Err(CostError::NotPositive { of, field, value });
        }
        all_positive(
            &self.name,
            &[
                ("relay_share", self.relay_share),
                ("sustained", self.sustained),
                ("kernels.product.floor", product.floor),
                ("kernels.product.bandwidth", product.bandwidth),
                ("kernels.product.flops", product.flops),
                ("kernels.product.knee", product.knee),
                ("kernels.decode.floor", decode.floor),
                ("kernels.decode.bandwidth", decode.bandwidth),
                ("kernels.decode.head", decode.head),
                ("kernels.decode.knee", decode.knee),
                ("kernels.prefill.floor", prefill.floor),
                ("kernels.prefill.flops", prefill.flops),
                ("kernels.prefill.bandwidth", prefill.bandwidth),
                ("kernels.all_reduce.start", starts),
                ("kernels.all_reduce.nvlink", links),
                ("kernels.all_reduce.ramp", all_reduce.ramp),
            ],
        )
    }
}

// Least squares of the logarithm, over all measured shapes of 1,024 and more (products), heads of
// 128 elements (attention) and all sizes (all-reduces). The module `cost` says how far off they are,
// and what a fit to a part of the shapes says of the others.

const H100: Kernels = Kernels {
    product: Product {
        floor: 3.6e-6,
        bandwidth: 0.861,
        flops: 0.797,
        knee: 4.5,
    },
    decode: DecodeAttention {
        floor: 11.6e-6,
        bandwidth: 0.874,
        head: 27.3e-9,
        knee: 1.7,
    },
    prefill: PrefillAttention {
        floor: 13.5e-6,
        flops: 0.682,
        bandwidth: 0.419,
    },
    all_reduce: AllReduce {
        start: [3.9e-6, 4.3e-6, 4.9e-6],
        nvlink: [0.715, 0.774, 0.934],
        ramp: 3.55e-6,
    },
};

const H200: Kernels = Kernels {
    product: Product {
        floor: 3.9e-6,
        bandwidth: 0.826,
        flops: 0.788,
        knee: 5.7,
    },
    decode: DecodeAttention {
        floor: 11.6e-6,
        bandwidth: 0.834,
        head: 27.1e-9,
        knee: 1.45,
    },
    prefill: PrefillAttention {
        floor: 13.5e-6,
        flops: 0.668,
        bandwidth: 0.317,
    },
    all_reduce: AllReduce {
        start: [4.1e-6, 4.3e-6, 4.9e-6],
        nvlink: [0.717, 0.782, 0.976],
        ramp: 2.92e-6,
    },
};

const A100: Kernels = Kernels {
    product: Product {
        floor: 5.8e-6,
        bandwidth: 0.763,
        flops: 0.833,
        knee: 1.8,
    },
    decode: DecodeAttention {
        floor: 17.2e-6,
        bandwidth: 0.681,
        head: 38.9e-9,
        knee: 4.0,
    },
    prefill: PrefillAttention {
        floor: 12.3e-6,
        flops: 0.578,
        bandwidth: 0.411,
    },
    all_reduce: AllReduce {
        start: [4.5e-6, 5.0e-6, 5.9e-6],
        nvlink: [0.666, 0.697, 0.698],
        ramp: 3.73e-6,
    },
};

#[cfg(test)]
mod tests {
    use super::super::shard::{all_reduce, decode_attention, prefill_attention, product};
    use super::*;

    #[test]
    fn kernels_of_twice_the_speed_take_half_of_the_time() {
        let card = Card::h800();
        let fast = Card {
            kernels: card.kernels.times(2.0),
            ..card.clone()
        };
        let of = |card: &Card| {
            [
                product(card, 64.0, 4_096.0, 4_096.0),
                product(card, 8_192.0, 4_096.0, 4_096.0),
                decode_attention(card, 64.0, 64_000.0, 4.0, 128.0),
                prefill_attention(card, 4_096.0, 1e7, [28.0, 4.0], 128.0),
                all_reduce(card, 4, 1e6),
            ]
        };
        for (slow, fast) in of(&card).into_iter().zip(of(&fast)) {
            assert!((slow / fast - 2.0).abs() < 1e-9, "{slow} {fast}");
        }
    }

    #[test]
    fn a_card_whose_relays_or_steps_make_no_sense_is_refused() {
        for (field, card) in [
            (
                "relay_share",
                Card {
                    relay_share: 0.0,
                    ..Card::h800()
                },
            ),
            (
                "sustained",
                Card {
                    sustained: f64::NAN,
                    ..Card::h800()
                },
            ),
        ] {
            let wrong = card.check();
            assert!(
                matches!(&wrong, Err(CostError::NotPositive { field: it, .. }) if *it == field),
                "{wrong:?}"
            );
        }
    }
}
