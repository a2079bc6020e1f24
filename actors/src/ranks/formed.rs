//! Ranks on their mesh, and the groups in which they add up and exchange numbers.

use odeon::group::{Formation, Seat};
use odeon::{Failure, Group};
use odeon_algorithms::train::Sharing;
use odeon_mesh::{CP, DP, EP, FSDP, Mesh, PP, TP};

use super::seats::{PipelineSeats, RankSeats};

/// The mesh of the ranks.
pub(crate) fn mesh(sharing: Sharing) -> Result<Mesh, Failure> {
    sharing
        .mesh()
        .map_err(|error| Failure::error(error).fatal())
}

/// One of the seats of a pipeline rank.
type PipelineSeat = fn(&mut PipelineSeats) -> &mut Option<Seat>;

/// Ranks that are formed for collectives.
#[derive(Debug)]
pub(crate) struct Formed {
    /// Ranks can take their seats while these are there.
    _formations: Vec<Formation>,
    /// The seats of each rank.
    pub(crate) seats: Vec<RankSeats>,
}

impl Formed {
    /// The groups that ranks train in, see [`RankSeats`].
    pub(crate) async fn of<A>(group: &Group<A>, sharing: Sharing) -> Result<Self, Failure> {
        let mut formed = Self {
            _formations: vec![],
            seats: vec![RankSeats::default(); group.members().len()],
        };
        let mesh = group.mesh();
        let is_shared = |dim| mesh.size(dim) > 1;
        let mut add = async |dims: &[&str], seat: fn(&mut RankSeats) -> &mut Option<Seat>| {
            formed.add(group, dims, seat).await
        };
        let has_shards = sharing.zero.has_shards();
        // The only rank there is has a seat, too.
        if has_shards {
            add(&[DP, FSDP, EP, CP], |seats| &mut seats.data).await?;
        } else {
            add(&[DP, EP, CP], |seats| &mut seats.data).await?;
        }
        if is_shared(TP) {
            if has_shards {
                add(&[FSDP, EP, CP, TP], |seats| &mut seats.shards.everywhere).await?;
            } else {
                add(&[DP, EP, CP, TP], |seats| &mut seats.all).await?;
            }
            add(&[TP], |seats| &mut seats.tensor).await?;
        }
        if is_shared(EP) {
            if has_shards {
                add(&[FSDP, CP], |seats| &mut seats.shards.experts).await?;
            } else {
                add(&[DP, CP], |seats| &mut seats.same_experts).await?;
            }
            add(&[EP], |seats| &mut seats.experts).await?;
        }
        if has_shards {
            add(&[FSDP, EP, CP], |seats| &mut seats.shards.data).await?;
            add(&[DP], |seats| &mut seats.replicas).await?;
        }
        if is_shared(CP) {
            add(&[CP], |seats| &mut seats.context).await?;
        }
        if is_shared(PP) {
            add(&[PP], |seats| &mut seats.pipeline.all).await?;
            for ranks in mesh.groups(&[PP]) {
                formed.add_ways(group, &ranks, sharing.chunks).await?;
                // Of a head that is no embedding nothing is added up there.
                let ends = [ranks[0], ranks[ranks.len() - 1]];
                let tied: [PipelineSeat; 2] = [|it| &mut it.tied; 2];
                formed.pair(group, "tied", ends, tied).await?;
            }
        }
        Ok(formed)
    }

    /// Forms the ways between the ranks of a pipeline. With several stages a rank, the last sends to the first as well.
    async fn add_ways<A>(
        &mut self,
        group: &Group<A>,
        ranks: &[usize],
        chunks: usize,
    ) -> Result<(), Failure> {
        let pairs = ranks.len() - usize::from(chunks == 1);
        for at in 0..pairs {
            let (before, behind) = (ranks[at], ranks[(at + 1) % ranks.len()]);
            let rows: [PipelineSeat; 2] = [|it| &mut it.rows_out, |it| &mut it.rows_in];
            self.pair(group, "rows", [before, behind], rows).await?;
            let gradients: [PipelineSeat; 2] =
                [|it| &mut it.gradients_out, |it| &mut it.gradients_in];
            self.pair(group, "grads", [behind, before], gradients)
                .await?;
        }
        Ok(())
    }

    /// Forms two ranks of a pipeline, the first of which sends. Records of their calls have this name behind that of
    /// the dimension, since groups of one name and size count as doing the same.
    async fn pair<A>(
        &mut self,
        group: &Group<A>,
        name: &str,
        ranks: [usize; 2],
        seats: [PipelineSeat; 2],
    ) -> Result<(), Failure> {
        let members = ranks.map(|rank| group.members()[rank]).to_vec();
        let mesh = Mesh::new([(PP, 2), (name, 1)]).map_err(Failure::error)?;
        let pair = Group::new(mesh, members).map_err(Failure::error)?;
        let formation = pair.form().await.map_err(Failure::error)?;
        for ((rank, seat), own) in ranks.into_iter().zip(seats).zip(formation.seats()) {
            *seat(&mut self.seats[rank].pipeline) = Some(own);
        }
        self._formations.push(formation);
        Ok(())
    }

    /// Forms the groups along these dimensions, unless each would be of one rank of several. Each has a mesh of those
    /// of them that ranks share, by whose names its calls are recorded. `dp` and `fsdp` stay where nobody shares them,
    /// so that groups that do other things have other names.
    async fn add<A>(
        &mut self,
        group: &Group<A>,
        dims: &[&str],
        seat: fn(&mut RankSeats) -> &mut Option<Seat>,
    ) -> Result<(), Failure> {
        let (all, mesh) = (group.members(), group.mesh());
        let sizes = dims.iter().map(|dim| (*dim, mesh.size(dim)));
        let sizes = sizes.filter(|(dim, size)| *size > 1 || [DP, FSDP].contains(dim));
        let along = Mesh::new(sizes).map_err(Failure::error)?;
        for ranks in mesh.groups(dims) {
            if ranks.len() == 1 && all.len() > 1 {
                continue;
            }
            let members: Vec<_> = ranks.iter().map(|rank| all[*rank]).collect();
            let group = Group::new(along.clone(), members);
            let group = group.map_err(Failure::error)?;
            let formation = group.form().await.map_err(Failure::error)?;
            for (rank, own) in ranks.into_iter().zip(formation.seats()) {
                *seat(&mut self.seats[rank]) = Some(own);
            }
            self._formations.push(formation);
        }
        Ok(())
    }
}
