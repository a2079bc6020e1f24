//! The start of a run: ranks meet in the groups of their collectives.

use odeon_mesh::Mesh;

/// A way in which ranks meet at a store that serves one request after the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Meeting {
    /// For each group all ranks of the run meet at a barrier, and a request blocks the store until it is answered: as
    /// `torch.distributed.new_group` over a `TCPStore` does it.
    Barriers,
    /// The same, at a store that answers in turn without blocking.
    AsynchronousBarriers,
    /// Only the members of a group meet, group after group in the order of dimensions, at such a store.
    Members,
}

impl Meeting {
    /// All of them, the slowest first.
    pub const ALL: [Self; 3] = [Self::Barriers, Self::AsynchronousBarriers, Self::Members];

    /// Seconds of one request. MegaScale tells 1,047 s for barriers of 2,048 ranks and 361 s with another store (arXiv
    /// 2402.15627, section 3.5), from which both follow: 576 groups of 2,048 ranks each.
    #[must_use]
    pub const fn request_s(self) -> f64 {
        match self {
            Self::Barriers => 1_047.0 / CALIBRATED_REQUESTS,
            Self::AsynchronousBarriers | Self::Members => 361.0 / CALIBRATED_REQUESTS,
        }
    }

    /// Requests until all ranks are in the groups along all dimensions of a mesh: for each group one of each rank that
    /// meets there.
    #[must_use]
    pub fn requests(self, mesh: &Mesh) -> u64 {
        let ranks = mesh.len() as u64;
        let sizes = mesh.dims().iter().map(|dim| dim.size as u64);
        let sizes = sizes.filter(|size| *size > 1);
        match self {
            Self::Barriers | Self::AsynchronousBarriers => {
                ranks * sizes.map(|size| ranks / size).sum::<u64>()
            }
            Self::Members => ranks * sizes.count() as u64,
        }
    }

    /// Seconds until all ranks are in all groups.
    #[must_use]
    pub fn seconds(self, mesh: &Mesh) -> f64 {
        self.requests(mesh) as f64 * self.request_s()
    }
}

/// 2,048 ranks in tensor groups of 8 and 8 stages: `2,048 (256 + 256 + 64)`.
const CALIBRATED_REQUESTS: f64 = 2_048.0 * 576.0;
