//! Checkpoints of a trainer or critic: tensors and blobs in a place of `odeon_checkpoint`, of the role `actor`
//! or `critic`. A crash at any moment leaves the last complete checkpoint in force.
//!
//! A checkpoint's step is the number of steps that are done, supervised ones among them; `run.json` tells them
//! apart, and holds what the run itself must know to go on.

use std::path::Path;

use odeon::Failure;
use odeon_algorithms::tokenizer::Tokenizer;
use odeon_algorithms::train::Trainer;
use odeon_algorithms::weights::ModelFields;
use odeon_checkpoint::export::{Export, export};
use odeon_checkpoint::{Dtype, Opened, Options, Retention, Save, Storage, Which, commit};
use odeon_gpu::Any;
use serde::{Deserialize, Serialize};

use super::legacy_checkpoint::{self, LegacyCheckpoint};
use super::state::CheckpointRanks;
use super::{model_folder, state};
use crate::engine::{Progress, RunState};
use crate::trajectory::Version;

/// Name of the blob with the steps that are done and the state of the run.
pub(super) const RUN: &str = "run.json";

/// Number of older checkpoints that stay when a new one is complete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Older {
    /// The one before, so that a damaged one can be gone back from.
    OneKept,
    /// Two, for who goes back with somebody who keeps one, and saves before that.
    TwoKept,
}

/// Everything of a trainer that goes into a checkpoint.
pub(super) struct ToSave<'a> {
    pub(super) role: &'static str,
    pub(super) progress: Progress,
    pub(super) run: Option<&'a RunState>,
    pub(super) optimizer: &'a Trainer<Any>,
    /// The tokenizer that is exported with the model.
    pub(super) tokenizer: Option<&'a Tokenizer>,
    /// What the files of the model say of it.
    pub(super) fields: &'a ModelFields,
    /// The ranks that have a part of it each, and save together.
    pub(super) savers: &'a CheckpointRanks,
}

/// The steps of a checkpoint, and the state of its run.
#[derive(Serialize, Deserialize)]
pub(super) struct Steps {
    pub(super) progress: Progress,
    /// Updates of the optimiser since it began with the settings that it has.
    updates: u64,
    run: Option<RunState>,
}

/// The newest checkpoint of a run.
pub(super) struct Newest {
    pub(super) progress: Progress,
    kind: Kind,
}

enum Kind {
    Stored(Box<(Opened, Steps)>),
    Legacy(LegacyCheckpoint),
}

/// Writes a checkpoint, which is in force then.
pub(super) fn write(folder: &Path, older: Older, to_save: &ToSave<'_>) -> Result<(), Failure> {
    let ToSave {
        role,
        progress,
        run,
        optimizer,
        tokenizer,
        fields,
        savers,
    } = *to_save;
    let steps = Steps {
        progress,
        updates: optimizer.step(),
        run: run.cloned(),
    };
    let steps = serde_json::to_vec(&steps).map_err(Failure::error)?;
    let mut blobs = vec![];
    // Those are of all ranks: one says them for all.
    if savers.rank() == 0 {
        blobs.extend(state::owner_blobs(optimizer)?);
        blobs.push((RUN.to_owned(), steps.into()));
        blobs.extend(state::companions(fields, tokenizer));
    }
    let save = Save {
        step: progress.warmup + progress.version,
        local: state::local(role, optimizer)?,
        blobs,
        ..Save::default()
    };
    let newest = match older {
        Older::OneKept => 2,
        Older::TwoKept => 3,
    };
    let options = Options {
        retention: Retention {
            newest,
            ..Retention::default()
        },
        ..Options::default()
    };
    let storage = state::storage(folder)?;
    state::save(storage.clone(), options, optimizer, save, savers)?;
    // Those of the layout before go as older ones go.
    if savers.rank() == 0 && legacy_checkpoint::any(folder) {
        let list = async { commit::list(&storage).await.map_err(Failure::error) };
        let there = state::apart(list)?.iter().filter(|it| it.complete).count();
        legacy_checkpoint::keep(folder, newest.saturating_sub(there));
    }
    Ok(())
}

/// The newest checkpoint that is complete; `None` when there is none.
pub(super) fn newest(folder: &Path) -> Result<Option<Newest>, Failure> {
    match opened(folder, Which::Latest)? {
        Some(opened) => stored(opened).map(Some),
        None => {
            let legacy = legacy_checkpoint::latest(folder)?;
            Ok(legacy.map(|legacy| Newest {
                progress: legacy.progress,
                kind: Kind::Legacy(legacy),
            }))
        }
    }
}

/// The step of the newest checkpoint that is complete, for ranks that load it together; `None` when there is none.
/// One that looked by itself might see another than the rest.
pub(crate) fn newest_step(folder: &Path) -> Result<Option<u64>, Failure> {
    match newest(folder)?.map(|newest| newest.kind) {
        None => Ok(None),
        Some(Kind::Stored(stored)) => Ok(Some(stored.0.entry().step)),
        Some(Kind::Legacy(_)) => Err(Failure::error(format!(
            "{} has a checkpoint of the layout before, which one rank reads alone: go on once with \
             processes.ranks = 1, which saves it anew",
            folder.display()
        ))
        .fatal()),
    }
}

/// The checkpoint of a step.
pub(super) fn of_step(folder: &Path, step: u64) -> Result<Newest, Failure> {
    let lacks = || {
        let folder = folder.display();
        Failure::error(format!("{folder} has no checkpoint of step {step}"))
    };
    stored(opened(folder, Which::Step(step))?.ok_or_else(lacks)?)
}

fn stored(opened: Opened) -> Result<Newest, Failure> {
    let steps: Option<Steps> = state::apart(state::json(&opened, RUN))?;
    let steps = steps.ok_or_else(|| {
        Failure::error(format!(
            "{} has no {RUN}, so it is of a run of another kind: choose another folder, or begin the run \
             anew with --fresh",
            opened.shown()
        ))
    })?;
    Ok(Newest {
        progress: steps.progress,
        kind: Kind::Stored(Box::new((opened, steps))),
    })
}

/// A whole checkpoint of a folder, unless the folder or the checkpoint is not there.
pub(super) fn opened(folder: &Path, which: Which) -> Result<Option<Opened>, Failure> {
    if !folder.exists() {
        return Ok(None);
    }
    state::apart(async {
        let storage = Storage::folder(folder).map_err(Failure::error)?;
        let opened = Opened::of(&storage, which).await;
        opened.map_err(Failure::error)
    })
}

/// Writes the model of the newest checkpoint of a policy into a folder that is not there yet.
pub(super) fn export_newest(folder: &Path, target: &Path) -> Result<(), Failure> {
    let storage = state::storage(folder)?;
    let options = Export {
        dtype: Some(Dtype::F32),
        ..Export::default()
    };
    state::apart(async {
        let exported = export(&storage, Which::Latest, target, &options).await;
        exported.map(drop).map_err(Failure::error)
    })
}

/// The steps that are done, by the newest checkpoint; `None` when there is none. Those of pretraining are
/// versions.
///
/// # Errors
/// The checkpoint is broken.
pub fn saved_progress(folder: &Path) -> Result<Option<Progress>, Failure> {
    let Some(opened) = opened(folder, Which::Latest)? else {
        let legacy = legacy_checkpoint::latest(folder)?;
        return Ok(legacy.map(|legacy| legacy.progress));
    };
    let steps: Option<Steps> = state::apart(state::json(&opened, RUN))?;
    let pretrained = Progress {
        warmup: 0,
        version: opened.entry().step,
    };
    Ok(Some(steps.map_or(pretrained, |steps| steps.progress)))
}

impl Newest {
    /// Puts it back into an optimiser with the run's first weights.
    pub(super) fn read(
        &self,
        role: &str,
        optimizer: &mut Trainer<Any>,
        savers: &CheckpointRanks,
    ) -> Result<(), Failure> {
        let (opened, steps) = match &self.kind {
            Kind::Stored(stored) => (&stored.0, &stored.1),
            Kind::Legacy(legacy) => return legacy.read(optimizer),
        };
        let of = |failure: Failure| Failure::error(format!("{}: {failure}", opened.shown()));
        state::check_owner(opened, role, optimizer).map_err(of)?;
        let which = Which::Step(opened.entry().step);
        let loaded = state::load(opened.storage().clone(), which, role, optimizer, savers);
        loaded.map_err(|failure| {
            Failure::error(format!(
                "{failure}; restore the checkpoint from a copy, or begin the run anew with --fresh"
            ))
        })?;
        optimizer.resume_at(steps.updates);
        Ok(())
    }

    /// The state that the run needs to go on.
    pub(super) fn run_state(self) -> Result<RunState, Failure> {
        match self.kind {
            Kind::Legacy(legacy) => legacy.run_state(),
            Kind::Stored(stored) => {
                let (opened, steps) = *stored;
                steps.run.ok_or_else(|| {
                    Failure::error(format!(
                        "{RUN} of {} has no state of a run, without which nobody knows which prompts were \
                         used: begin the run anew with --fresh",
                        opened.shown()
                    ))
                })
            }
        }
    }
}

/// Forgets checkpoints of a critic of later steps than this one, for good: what is made again replaces them.
pub(crate) fn forget_after(folder: &Path, version: Version) -> Result<(), Failure> {
    if !folder.exists() {
        return Ok(());
    }
    let forgotten = state::apart(async {
        let storage = Storage::folder(folder).map_err(Failure::error)?;
        let forgotten = commit::forget_after(&storage, version).await;
        forgotten.map_err(Failure::error)
    })?;
    if !forgotten.is_empty() {
        model_folder::sync_one(folder)?;
    }
    legacy_checkpoint::forget_after(folder, version)
}
