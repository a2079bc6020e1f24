//! `odeon merge`: several models of one architecture as one.

use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use odeon::Clock;
use odeon_algorithms::weights::{Part, StoredType, merge};

use super::model::{self, ModelFolder};
use crate::args::{MergeArgs, Stored, Weighted};
use crate::figures;
use crate::print;

pub(crate) fn run(args: &MergeArgs) -> Result<()> {
    let models = models(args)?;
    let parts = models.iter().map(|(folder, origin, weight)| Part {
        directory: folder.path.clone(),
        origin: origin.clone(),
        weight: *weight,
    });
    let parts: Vec<Part> = parts.collect();
    let stored_type = args.dtype.map(|dtype| match dtype {
        Stored::F32 => StoredType::F32,
        Stored::Bf16 => StoredType::Bf16,
    });
    let begun = Clock::now();
    let merged = merge(&parts, &args.out, stored_type, args.threads)?;
    let took = Clock::now().since(begun).as_secs_f64();
    for part in &parts {
        print::say(format!("{} of {}", part.weight, part.origin.display()));
    }
    print::say(format!(
        "{} parameters of {} models, {:.2} GB read, in {}",
        figures::short(merged.parameters as f64),
        parts.len(),
        merged.bytes_read as f64 / 1e9,
        figures::span(took * 1e3),
    ));
    Ok(print::line(args.out.display())?)
}

/// The models as folders, where they lie, and the weights that they have beside the base.
fn models(args: &MergeArgs) -> Result<Vec<(ModelFolder, PathBuf, f64)>> {
    let found = |of: &Weighted, scale: f64| -> Result<_> {
        let found = model::find(&of.model)?;
        if found.is_file() {
            bail!(
                "{}: models are merged as folders with safetensors, not as .gguf files",
                found.display()
            );
        }
        Ok((ModelFolder::of(&found)?, found, of.weight * scale))
    };
    let alpha = args.base.as_ref().map_or(0.0, |base| base.weight);
    let models = args.models.iter().map(|model| found(model, 1.0 - alpha));
    let base = args.base.iter().map(|base| found(base, 1.0));
    models.chain(base).collect::<Result<_>>().context("merging")
}
