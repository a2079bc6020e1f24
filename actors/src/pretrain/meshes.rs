//! The meshes of ranks: as the data plane sees them, and with other numbers of copies of the model.

use odeon::Failure;
use odeon_algorithms::train::Sharing;
use odeon_mesh::{DP, Mesh, TP};

/// The ranks as the data plane sees them: those with samples of their own, and those beside each that have the same.
pub(crate) fn data_mesh(sharing: Sharing) -> Result<Mesh, Failure> {
    let Sharing {
        copies,
        experts,
        context,
        tensor,
        stages,
        ..
    } = sharing;
    let of_same = (TP, stages * context * tensor);
    let of_same = Some(of_same).filter(|(_, size)| *size > 1);
    let made = Mesh::new(std::iter::once((DP, copies * experts)).chain(of_same));
    made.map_err(|error| Failure::error(error).fatal())
}

/// The same with so many ranks or fewer, which have whole copies of the model, and as many of these for each set of
/// shards: one at least.
pub(super) fn of_ranks(sharing: Sharing, ranks: u32) -> Sharing {
    let copies = (ranks as usize / sharing.of_copy()).max(1);
    let with = Sharing { copies, ..sharing };
    Sharing {
        copies: copies - copies % with.copies_of_shards(),
        ..with
    }
}
