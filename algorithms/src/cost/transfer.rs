//! Weights on their way: trainer to relays, relays to each other, relay to replica; and the global
//! broadcast that relays replace.

use std::time::Duration;

use super::{Card, seconds};

impl Card {
    /// The time that a trainer stands still to hand `bytes` of weights to the master relay.
    ///
    /// Laminar (arXiv 2510.12633) reports 0.64 s for 32B and 1.40 s for 72B on machines with
    /// 8 x 400 Gbit/s, however many rollouts there are: [103 GB/s](Self::RELAY_SHARE).
    #[must_use]
    pub fn publish(&self, bytes: u64) -> Duration {
        seconds(bytes as f64 / self.relay_bandwidth())
    }

    /// The time that a relay takes to hand `bytes` to the next, from host memory to host memory
    /// over all of the machine's network.
    #[must_use]
    pub fn relay_hop(&self, bytes: u64) -> Duration {
        seconds(HOP_SECONDS + bytes as f64 / self.relay_bandwidth())
    }

    /// The time until the last of `relays` in a line has all `bytes`, the first of which has them
    /// when it begins. Each hands on a chunk while it receives the next.
    ///
    /// `(n - 2 + k) (a + M b / k)` for `n` relays and `k` chunks, at the best `k`, which is about
    /// `sqrt((n - 2) M b / a)`: nearly independent of `n`.
    #[must_use]
    pub fn relay_chain(&self, bytes: u64, relays: u32) -> Duration {
        seconds(chain(bytes, relays, self.relay_bandwidth()))
    }

    /// The time that `gpus` cards of one machine take to load `bytes` from its memory, each its
    /// part.
    #[must_use]
    pub fn pull(&self, bytes: u64, gpus: u32) -> Duration {
        seconds(
            bytes as f64
                / f64::from(gpus.max(1))
                / (self.device.pcie_bytes_per_second * PCIE_SHARE),
        )
    }

    /// The time of a broadcast that sends `bytes` from GPUs to the GPUs of `machines` machines,
    /// over all of their network, once all of them are ready: what systems without relays do. It
    /// takes nobody's memory bandwidth into account, but everybody waits.
    #[must_use]
    pub fn global_broadcast(&self, bytes: u64, machines: u32) -> Duration {
        let network = self.device.node_network_bytes_per_second() * NETWORK_SHARE;
        // The trainer's machine is the first of the chain.
        seconds(chain(bytes, machines.saturating_add(1), network))
    }

    fn relay_bandwidth(&self) -> f64 {
        self.device.node_network_bytes_per_second() * self.relay_share
    }

    /// The share of a machine's network that relays reach: 103 GB/s of 400 GB/s in Laminar's
    /// report. The host's memory is in the way, and sharding changes on it.
    pub const RELAY_SHARE: f64 = 0.2575;
}

/// Seconds of a pipelined chain of `members`, the first of which has the bytes.
fn chain(bytes: u64, members: u32, bandwidth: f64) -> f64 {
    if members < 2 || bytes == 0 {
        return 0.0;
    }
    let wire = bytes as f64 / bandwidth;
    let between = f64::from(members - 2);
    let time = |chunks: f64| (between + chunks) * (HOP_SECONDS + wire / chunks);
    let best = (between * wire / HOP_SECONDS).sqrt();
    // The time is convex in the number of chunks.
    time(best.floor().max(1.0)).min(time(best.ceil().max(1.0)))
}

/// Start-up of one hop. With it 72B reach 64 relays in 1.55 s; Laminar reports less than 1.6 s at
/// its full scale.
const HOP_SECONDS: f64 = 50e-6;

/// The share of the network that collectives and copies between GPUs reach (assumed).
pub(super) const NETWORK_SHARE: f64 = 0.8;

/// The share of PCIe that copies from pinned memory reach (assumed; 55 GB/s on generation 5).
const PCIE_SHARE: f64 = 0.85;
