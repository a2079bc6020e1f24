//! The ranks of a life: those that are left of the last, and new ones in the seats of others.

use std::collections::BTreeMap;

use futures::future::join_all;
use odeon::group::SpawnGroup;
use odeon::{Failure, Group, Ref, Restart, System};
use odeon_mesh::{Mesh, TP};

use super::rank::{PretrainRank, RankArgs};
use super::run::{PretrainPlan, stop};

/// The ranks of this shape, with `left` in their seats and new ones in all others. What ranks of a copy of
/// the model reserve lies on one node.
///
/// # Errors
/// One did not start, or there is no room for all. None is left then.
pub(super) async fn seated(
    system: &System,
    plan: &PretrainPlan,
    shape: Mesh,
    of: impl Fn(usize) -> RankArgs,
    left: &BTreeMap<usize, Ref<PretrainRank>>,
) -> Result<Group<PretrainRank>, Failure> {
    if left.is_empty() {
        let group = system.spawn_group::<PretrainRank>(shape, |rank| of(rank.index()));
        return with_options(group, plan).await.map_err(Failure::error);
    }
    let tensor = plan.sharing.tensor;
    let copies = (0..shape.len() / tensor).map(async |copy| {
        let first = copy * tensor;
        let seats = first..first + tensor;
        let Some((_, near)) = left.range(seats.clone()).next() else {
            let line = Mesh::new([(TP, tensor)]).map_err(Failure::error)?;
            let group = system.spawn_group::<PretrainRank>(line, |rank| of(first + rank.index()));
            let group = with_options(group, plan).await.map_err(Failure::error)?;
            return Ok(group.members().iter().copied().map(Ok).collect());
        };
        let members = seats.map(async |rank| match left.get(&rank) {
            Some(member) => Ok(*member),
            None => {
                let member = system.spawn::<PretrainRank>(of(rank));
                let member = member.restart(Restart::Temporary).isolated();
                let member = member.needs(|_| match plan.needs.is_empty() {
                    true => plan.needs.clone(),
                    false => plan.needs.clone().near(near),
                });
                member.await.map_err(Failure::error)
            }
        });
        Ok(join_all(members).await)
    });
    let mut members: Vec<Result<Ref<PretrainRank>, Failure>> = vec![];
    for copy in join_all(copies).await {
        match copy {
            Ok(copy) => members.extend(copy),
            Err(failure) => members.push(Err(failure)),
        }
    }
    let there: Vec<Ref<PretrainRank>> = members.iter().flatten().copied().collect();
    if let Some(failure) = members.into_iter().find_map(Result::err) {
        if let Ok(all) = Mesh::new([(TP, there.len())]) {
            stop(&Group::new(all, there).map_err(Failure::error)?).await;
        }
        return Err(failure);
    }
    Group::new(shape, there).map_err(Failure::error)
}

/// One that came back by itself would be asked as if it had the others' weights.
fn with_options(group: SpawnGroup<PretrainRank>, plan: &PretrainPlan) -> SpawnGroup<PretrainRank> {
    let group = group.restart(Restart::Temporary).isolated();
    let group = group.needs(|_| plan.needs.clone());
    match plan.sharing.tensor {
        1 => group,
        _ => group.together(TP),
    }
}
