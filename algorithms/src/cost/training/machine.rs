//! Machines in training: cards, the links between them as they were measured, and how alike they are.

use odeon_topology::{Link, LinkKind};

use super::super::Card;

/// Machines of one kind of card, as many as a plan needs.
#[derive(Clone, Debug, PartialEq)]
pub struct Machine {
    /// The card, with its kernels.
    pub card: Card,
    /// Time of kernels in a run of hours relative to that of the same alone, on a cool card.
    pub sustained: f64,
    /// A ring of collectives inside a machine: its start, and the rate of one card in one direction.
    pub inside: Link,
    /// A message between two machines, over the network of one card.
    pub between: Link,
    /// Machines that are slower than others.
    pub stragglers: Stragglers,
}

/// Machines that are slower than the others. A step waits for the slowest, so what counts is whether there is one.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Stragglers {
    /// The part of all machines.
    pub share: f64,
    /// The part of their time that they need more.
    pub slower: f64,
}

impl Stragglers {
    /// About 0.5 % of machines are some 10 % slower than the others (MegaScale, arXiv 2402.15627, section 6.3).
    pub const MEGASCALE: Self = Self {
        share: 0.005,
        slower: 0.1,
    };

    /// No machine is slower than another.
    pub const NONE: Self = Self {
        share: 0.0,
        slower: 0.0,
    };

    /// The expected time of the slowest of so many machines, relative to one that is as most are.
    #[must_use]
    pub fn slowest(&self, machines: f64) -> f64 {
        1.0 + self.slower * (1.0 - (1.0 - self.share).powf(machines))
    }
}

impl Machine {
    /// A DGX A100 with a network of 8 x 200 Gbit/s.
    ///
    /// The rate of the network is that of the data sheet by [`NETWORK_SHARE`](Self::NETWORK_SHARE): the machines that
    /// were measured had a slower one than those of papers have.
    #[must_use]
    pub fn a100() -> Self {
        Self::new(Card::a100(), A100_SUSTAINED, (45e-6, A100_RING), 29e-6)
    }

    /// A DGX H100 with a network of 8 x 400 Gbit/s.
    #[must_use]
    pub fn h100() -> Self {
        Self::new(Card::h100(), Card::SUSTAINED, (20e-6, H100_RING), 19e-6)
    }

    /// The same with H800, of which nothing was measured: its NVLink reaches the share of an H100's.
    #[must_use]
    pub fn h800() -> Self {
        let card = Card::h800();
        let ring = H100_RING / Card::h100().device.nvlink_bytes_per_second;
        let ring = ring * card.device.nvlink_bytes_per_second;
        Self::new(card, Card::SUSTAINED, (20e-6, ring), 19e-6)
    }

    /// Ranks on processors, with so many compute threads each and a core for each thread, in processes of one machine.
    ///
    /// These rates are stated, so that a plan is chosen alike on every machine: see [`Card::processor`].
    #[must_use]
    pub fn processor(threads: usize) -> Self {
        let memory = Link::new(LinkKind::Memory, PROCESSOR_RING).latency(PROCESSOR_MEETING_S);
        Self {
            card: Card::processor(threads),
            sustained: 1.0,
            inside: memory,
            between: memory,
            stragglers: Stragglers::NONE,
        }
    }

    fn new(card: Card, sustained: f64, (ring_s, ring): (f64, f64), between_s: f64) -> Self {
        let network = card.device.network_bytes_per_second * Self::NETWORK_SHARE;
        Self {
            sustained,
            inside: Link::new(LinkKind::Nvlink, ring).latency(ring_s),
            between: Link::new(LinkKind::Infiniband, network).latency(between_s),
            stragglers: Stragglers::MEGASCALE,
            card,
        }
    }

    /// Cards of a machine.
    #[must_use]
    pub fn cards(&self) -> u32 {
        self.card.device.per_node
    }

    /// Seconds of gathering `bytes` on each of `members` ranks, or of scattering as many, in rings. `beside` members
    /// are on the same machine: so many networks carry the bytes between machines, at once.
    ///
    /// Each member gets `(n - 1) / n` of the bytes. What is slower counts, the links inside or between; and each member
    /// is the start of one hop.
    #[must_use]
    pub fn gather(&self, members: u32, beside: u32, bytes: f64) -> f64 {
        if members < 2 || bytes <= 0.0 {
            return 0.0;
        }
        let received = bytes * f64::from(members - 1) / f64::from(members);
        let inside = match beside > 1 {
            true => self.inside.seconds(received),
            false => 0.0,
        };
        if members <= beside {
            return inside;
        }
        let machines = f64::from(members / beside.max(1));
        let rails = f64::from(beside.max(1));
        let hops = self.between.latency_s * machines;
        inside.max(received / (rails * self.between.bytes_per_second)) + hops
    }

    /// The share of the network's rate that messages between machines reach: 36.0 of 50 GB/s on H100 (`send_recv` of
    /// two machines, 1 MiB and more, from microsoft/vidur, MIT).
    pub const NETWORK_SHARE: f64 = 0.72;
}

/// Products of Llama 3 8B on A100 relative to the formula for products: the median over 2,048 tokens and more and groups
/// of 1 to 8 cards (from microsoft/vidur, MIT). Whole steps on H100, which its limit of power slows, take
/// [`Card::SUSTAINED`].
pub(super) const A100_SUSTAINED: f64 = 1.12;

/// Bytes a second of a ring of eight: `2 (n - 1) / n` of the bytes over the time of an all-reduce of NCCL, less its
/// start, for 8 MiB and more (from microsoft/vidur, MIT). A gather takes half of an all-reduce.
const A100_RING: f64 = 188e9;
const H100_RING: f64 = 377e9;

/// Bytes a second that a rank gets in collectives over shared memory, and seconds until all ranks of one have met
/// (stated; `docs/pretraining.md` has how far off steps are).
const PROCESSOR_RING: f64 = 1.5e9;
const PROCESSOR_MEETING_S: f64 = 60e-6;
