//! The newest checkpoint of a pretraining run, and the place where its data goes on.

use std::path::Path;

use bytes::Bytes;
use odeon::Failure;
use odeon_algorithms::train;
use odeon_checkpoint::{Opened, Storage, Which};
use odeon_data::plan::PlanState;

use crate::engine::compute::state::{self, ACTOR};

/// Name of the blob with the planner's state before the next step.
pub(super) const DATA: &str = "data.json";

/// Opens the place of a run's checkpoints, and makes it where it is absent.
pub(super) fn storage(place: &Path) -> Result<Storage, Failure> {
    state::storage(place).map_err(Failure::fatal)
}

/// The steps of the newest checkpoint, and where its data goes on.
///
/// # Errors
/// It cannot be read, or is another optimiser's.
pub(super) async fn newest(
    storage: &Storage,
    own: train::Optimizer,
) -> Result<Option<(u64, PlanState)>, Failure> {
    let opened = Opened::of(storage, Which::Latest).await;
    let Some(opened) = opened.map_err(|error| Failure::error(error).fatal())? else {
        return Ok(None);
    };
    let checked = state::check_optimizer(&opened, ACTOR, own).await;
    checked.map_err(Failure::fatal)?;
    let entry = opened.entry();
    let data = opened.blob(DATA).await.map_err(Failure::error)?;
    let lacks = || {
        Failure::error(format!(
            "checkpoint {entry} has no {DATA}, so it is of a run of another kind: choose another folder, or \
             begin the run anew with --fresh"
        ))
        .fatal()
    };
    Ok(Some((entry.step, data_of(&data.ok_or_else(lacks)?)?)))
}

/// Where data goes on, as a checkpoint has it.
pub(super) fn data_of(bytes: &Bytes) -> Result<PlanState, Failure> {
    serde_json::from_slice(bytes)
        .map_err(|error| Failure::error(format!("{DATA}: {error}")).fatal())
}
