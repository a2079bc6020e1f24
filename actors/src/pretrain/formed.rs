//! Ranks on their mesh, and the groups in which they add up and exchange numbers.

use odeon::group::{Formation, Seat};
use odeon::{Failure, Group, mesh};
use odeon_algorithms::train::Sharing;
use odeon_mesh::{CP, DP, EP, FSDP, Mesh, PP, TP};

use super::rank::{Join, PipelineSeats, PretrainRank};

/// The mesh of the ranks.
pub(super) fn mesh(sharing: Sharing) -> Result<Mesh, Failure> {
    sharing
        .mesh()
        .map_err(|error| Failure::error(error).fatal())
}

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

/// One of the seats of a pipeline rank.
type PipelineSeat = fn(&mut PipelineSeats) -> &mut Option<Seat>;

/// Ranks that are formed for collectives.
pub(super) struct Formed {
    /// Ranks can take their seats while these are there.
    _formations: Vec<Formation>,
    /// The seats of each rank.
    pub(super) joins: Vec<Join>,
}

impl Formed {
    /// The groups that ranks train in, see [`Join`].
    pub(super) async fn of(group: &Group<PretrainRank>, sharing: Sharing) -> Result<Self, Failure> {
        let mut formed = Self {
            _formations: vec![],
            joins: vec![Join::default(); group.members().len()],
        };
        let mesh = group.mesh();
        let is_shared = |dim| mesh.size(dim) > 1;
        let mut add = async |dims: &[&str], seat: fn(&mut Join) -> &mut Option<Seat>| {
            formed.add(group, dims, seat).await
        };
        // The only rank there is has a seat, too.
        add(&[DP, FSDP, EP, CP], |join| &mut join.data).await?;
        let has_shards = sharing.zero.has_shards();
        if is_shared(TP) {
            if has_shards {
                add(&[FSDP, EP, CP, TP], |join| &mut join.shards.everywhere).await?;
            } else {
                add(&[DP, EP, CP, TP], |join| &mut join.all).await?;
            }
            add(&[TP], |join| &mut join.tensor).await?;
        }
        if is_shared(EP) {
            if has_shards {
                add(&[FSDP, CP], |join| &mut join.shards.experts).await?;
            } else {
                add(&[DP, CP], |join| &mut join.same_experts).await?;
            }
            add(&[EP], |join| &mut join.experts).await?;
        }
        if has_shards {
            add(&[FSDP, EP, CP], |join| &mut join.shards.data).await?;
            add(&[DP], |join| &mut join.replicas).await?;
        }
        if is_shared(CP) {
            add(&[CP], |join| &mut join.context).await?;
        }
        if is_shared(PP) {
            add(&[PP], |join| &mut join.pipeline.all).await?;
            for ranks in mesh.groups(&[PP]) {
                formed.add_ways(group, &ranks, sharing.chunks).await?;
                // Of a head that is no embedding nothing is added up there.
                let ends = [ranks[0], ranks[ranks.len() - 1]];
                formed.pair(group, ends, [|it| &mut it.tied; 2]).await?;
            }
        }
        Ok(formed)
    }

    /// Forms the ways between the ranks of a pipeline. With several stages a rank, the last sends to the first as well.
    async fn add_ways(
        &mut self,
        group: &Group<PretrainRank>,
        ranks: &[usize],
        chunks: usize,
    ) -> Result<(), Failure> {
        let pairs = ranks.len() - usize::from(chunks == 1);
        for at in 0..pairs {
            let (before, behind) = (ranks[at], ranks[(at + 1) % ranks.len()]);
            let rows: [PipelineSeat; 2] = [|it| &mut it.rows_out, |it| &mut it.rows_in];
            self.pair(group, [before, behind], rows).await?;
            let gradients: [PipelineSeat; 2] =
                [|it| &mut it.gradients_out, |it| &mut it.gradients_in];
            self.pair(group, [behind, before], gradients).await?;
        }
        Ok(())
    }

    /// Forms two ranks, the first of which sends.
    async fn pair(
        &mut self,
        group: &Group<PretrainRank>,
        ranks: [usize; 2],
        seats: [PipelineSeat; 2],
    ) -> Result<(), Failure> {
        let members = ranks.map(|rank| group.members()[rank]).to_vec();
        let pair = Group::new(mesh! { rank: 2 }, members).map_err(Failure::error)?;
        let formation = pair.form().await.map_err(Failure::error)?;
        for ((rank, seat), own) in ranks.into_iter().zip(seats).zip(formation.seats()) {
            *seat(&mut self.joins[rank].pipeline) = Some(own);
        }
        self._formations.push(formation);
        Ok(())
    }

    /// Forms the groups along these dimensions, unless each would be of one rank of several.
    async fn add(
        &mut self,
        group: &Group<PretrainRank>,
        dims: &[&str],
        seat: fn(&mut Join) -> &mut Option<Seat>,
    ) -> Result<(), Failure> {
        let all = group.members();
        for ranks in group.mesh().groups(dims) {
            if ranks.len() == 1 && all.len() > 1 {
                continue;
            }
            let members: Vec<_> = ranks.iter().map(|rank| all[*rank]).collect();
            let group = Group::new(mesh! { rank: members.len() }, members);
            let group = group.map_err(Failure::error)?;
            let formation = group.form().await.map_err(Failure::error)?;
            for (rank, own) in ranks.into_iter().zip(formation.seats()) {
                *seat(&mut self.joins[rank]) = Some(own);
            }
            self._formations.push(formation);
        }
        Ok(())
    }
}
