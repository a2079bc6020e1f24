//! Model folders that other tools read, and files that survive a loss of power.

use std::fs;
use std::path::Path;

use odeon::Failure;
use odeon_algorithms::model::Model;
use odeon_algorithms::tokenizer::Tokenizer;
use odeon_algorithms::weights::{ModelFields, ModelView, StoredType, save};
use odeon_gpu::Any;

/// Writes a model with its adapters merged, into a folder that is not there yet.
pub(super) fn write(
    target: &Path,
    model: &Model<Any>,
    fields: ModelFields,
    tokenizer: Option<&Tokenizer>,
) -> Result<(), Failure> {
    let flat = model.merged();
    let view = ModelView::of(model, &flat, fields);
    save(target, &view, StoredType::F32, tokenizer).map_err(Failure::error)
}

/// Has a file, or a folder with all in it, survive a loss of power.
pub(super) fn sync(path: &Path) -> Result<(), Failure> {
    if path.is_dir() {
        let unread = |error| Failure::error(format!("reading {}: {error}", path.display()));
        for entry in fs::read_dir(path).map_err(unread)? {
            sync(&entry.map_err(unread)?.path())?;
        }
    }
    sync_one(path)
}

/// Has a file, or the names in a folder, survive a loss of power.
pub(super) fn sync_one(path: &Path) -> Result<(), Failure> {
    let synced = fs::File::open(path).and_then(|file| file.sync_all());
    synced.map_err(|error| Failure::error(format!("writing {}: {error}", path.display())))
}
