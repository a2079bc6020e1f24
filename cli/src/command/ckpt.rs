//! `odeon ckpt`: what a place of checkpoints holds, and whole checkpoints.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use odeon::Clock;
use odeon_checkpoint::export::{Export, export};
use odeon_checkpoint::reshard::{Cuts, reshard};
use odeon_checkpoint::stage::Stage;
use odeon_checkpoint::{Dtype, Manifest, Options, Storage, Which, commit, verify};
use odeon_mesh::{DP, Mesh, PP, TP};

use crate::args::{CkptArgs, CkptCommand, Stored};
use crate::figures;
use crate::print;
use crate::waiter::Waiter;

pub(crate) fn run(command: &CkptCommand) -> Result<()> {
    let runtime = Waiter::with_threads()?;
    runtime.block_on(async {
        match command {
            CkptCommand::Ls { place, json } => list(place, *json).await,
            CkptCommand::Show { of, tensors, json } => show(of, *tensors, *json).await,
            CkptCommand::Verify { of, json } => check(of, *json).await,
            CkptCommand::Reshard {
                of,
                to,
                layout,
                flat,
            } => {
                let cuts = match (layout, flat) {
                    (Some([pipeline, tensor, data]), _) => {
                        Cuts::Mesh(Mesh::new([(DP, *data), (PP, *pipeline), (TP, *tensor)])?)
                    }
                    (None, ranks) => Cuts::Flat(ranks.unwrap_or(1)),
                };
                cut(of, to, cuts).await
            }
            CkptCommand::Export {
                of,
                out,
                role,
                dtype,
                with,
            } => {
                let options = Export {
                    role: role.clone(),
                    dtype: dtype.map(|dtype| match dtype {
                        Stored::F32 => Dtype::F32,
                        Stored::Bf16 => Dtype::BF16,
                    }),
                    files: with.as_deref().map(beside).transpose()?.unwrap_or_default(),
                    ..Export::default()
                };
                give(of, out, &options).await
            }
        }
    })
}

const fn which(of: &CkptArgs) -> Which {
    match of.step {
        Some(step) => Which::Step(step),
        None => Which::Latest,
    }
}

async fn list(place: &str, json: bool) -> Result<()> {
    let storage = Storage::open(place)?;
    let mut rows = vec![];
    for entry in commit::list(&storage).await? {
        let size: u64 = storage
            .files(&entry.folder())
            .await?
            .iter()
            .map(|(_, bytes)| bytes)
            .sum();
        if json {
            let mut row = serde_json::to_value(&entry)?;
            row["folder"] = entry.folder().into();
            row["bytes"] = size.into();
            print::line(row)?;
            continue;
        }
        rows.push(vec![
            entry.folder(),
            entry.step.to_string(),
            figures::bytes(size as f64),
            if entry.complete {
                "complete"
            } else {
                "incomplete"
            }
            .to_owned(),
        ]);
    }
    if rows.is_empty() && !json {
        bail!("{place} holds no checkpoints");
    }
    if !json {
        print::table(&["checkpoint", "step", "size", "state"], &rows)?;
    }
    Ok(())
}

async fn show(of: &CkptArgs, tensors: bool, json: bool) -> Result<()> {
    let storage = Storage::open(&of.place)?;
    let (entry, manifest) = commit::find(&storage, which(of)).await?;
    if json {
        return Ok(print::line(serde_json::to_string(&manifest)?)?);
    }
    print::line(format!(
        "{entry}: step {}, saved by {}, {} in {}",
        manifest.step,
        figures::plural(manifest.ranks as u64, "rank"),
        figures::bytes(manifest.file_bytes() as f64),
        figures::plural((manifest.files.len() + manifest.blobs.len()) as u64, "file"),
    ))?;
    states(&manifest)?;
    for (loader, readers) in &manifest.loaders {
        let readers = figures::plural(*readers as u64, "reader");
        print::line(format!("data loader {loader}: {readers}"))?;
    }
    for (name, blob) in &manifest.blobs {
        print::line(format!(
            "blob {name}: {}",
            figures::bytes(blob.bytes as f64)
        ))?;
    }
    stages(&manifest)?;
    if tensors {
        let row = |(name, tensor): (
            odeon_checkpoint::TensorName,
            &odeon_checkpoint::manifest::Tensor,
        )| {
            vec![
                name.to_string(),
                format!("{:?}", tensor.dtype),
                format!("{:?}", tensor.shape),
                tensor.pieces.len().to_string(),
            ]
        };
        let rows: Vec<Vec<String>> = manifest.tensors().map(row).collect();
        print::table(&["tensor", "type", "shape", "boxes"], &rows)?;
    }
    Ok(())
}

fn states(manifest: &Manifest) -> Result<()> {
    let mut rows = vec![];
    for (role, states) in &manifest.roles {
        for (state, tensors) in states {
            let elements = tensors
                .values()
                .map(|tensor| tensor.shape.iter().product::<usize>());
            let boxes: usize = tensors.values().map(|tensor| tensor.pieces.len()).sum();
            let bytes: usize = tensors
                .values()
                .map(odeon_checkpoint::manifest::Tensor::bytes)
                .sum();
            rows.push(vec![
                format!("{role}/{state}"),
                tensors.len().to_string(),
                figures::short(elements.sum::<usize>() as f64),
                figures::bytes(bytes as f64),
                boxes.to_string(),
            ]);
        }
    }
    Ok(print::table(
        &["state", "tensors", "elements", "size", "boxes"],
        &rows,
    )?)
}

/// Prints the times that ranks took, the slowest by its number.
fn stages(manifest: &Manifest) -> Result<()> {
    let mut by_stage: BTreeMap<Stage, Vec<(f64, usize, u64)>> = BTreeMap::new();
    for time in &manifest.stages {
        let of = (time.seconds, time.rank, time.bytes);
        by_stage.entry(time.stage).or_default().push(of);
    }
    let mut rows = vec![];
    for (stage, mut times) in by_stage {
        times.sort_by(|a, b| a.0.total_cmp(&b.0));
        let (median, (most, rank, _)) = (times[times.len() / 2].0, times[times.len() - 1]);
        let bytes: u64 = times.iter().map(|(.., bytes)| bytes).sum();
        rows.push(vec![
            stage.to_string(),
            figures::span(median * 1e3),
            figures::span(most * 1e3),
            rank.to_string(),
            figures::bytes(bytes as f64),
        ]);
    }
    if rows.is_empty() {
        return Ok(());
    }
    Ok(print::table(
        &["stage", "median", "slowest", "rank", "bytes"],
        &rows,
    )?)
}

async fn check(of: &CkptArgs, json: bool) -> Result<()> {
    let storage = Storage::open(&of.place)?;
    let report = verify::verify(&storage, which(of)).await?;
    if json {
        print::line(serde_json::to_string(&report)?)?;
    } else {
        for fault in &report.faults {
            print::line(&fault.detail)?;
        }
        for file in &report.foreign {
            print::line(format!("{file} does not belong to it"))?;
        }
    }
    if !report.is_sound() {
        let faults = figures::plural(report.faults.len() as u64, "fault");
        bail!("{} of {}: {faults}", report.entry, storage.place());
    }
    if !json {
        print::line(format!(
            "{} is sound: {} in {}",
            report.entry,
            figures::bytes(report.bytes as f64),
            figures::plural(report.files as u64, "file"),
        ))?;
    }
    Ok(())
}

async fn cut(of: &CkptArgs, to: &str, cuts: Cuts) -> Result<()> {
    let from = Storage::open(&of.place)?;
    let to = Storage::create(to)?;
    let options = Options {
        file_bytes: 256 << 20,
        ..Options::default()
    };
    let begun = Clock::now();
    let entry = reshard(&from, which(of), &to, cuts, &options).await?;
    let took = Clock::now().since(begun).as_secs_f64();
    print::say(format!("in {}", figures::span(took * 1e3)));
    Ok(print::line(to.shown(&entry.folder()))?)
}

async fn give(of: &CkptArgs, out: &Path, options: &Export) -> Result<()> {
    let storage = Storage::open(&of.place)?;
    let exported = export(&storage, which(of), out, options).await?;
    let bytes: u64 = exported.files.iter().map(|(_, bytes)| bytes).sum();
    print::say(format!(
        "{} parameters of {}, {} in {}",
        figures::short(exported.parameters as f64),
        exported.entry,
        figures::bytes(bytes as f64),
        figures::plural(exported.files.len() as u64, "file"),
    ));
    Ok(print::line(out.display())?)
}

/// The files of a model folder that go along: all but its parameters.
fn beside(folder: &Path) -> Result<Vec<PathBuf>> {
    let entries = fs::read_dir(folder).with_context(|| format!("reading {}", folder.display()))?;
    let mut files = vec![];
    for entry in entries {
        let path = entry?.path();
        let name = path
            .file_name()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned();
        let text = [".json", ".txt", ".model", ".jinja"]
            .iter()
            .any(|end| name.ends_with(end));
        if path.is_file() && text && !name.ends_with(".index.json") {
            files.push(path);
        }
    }
    Ok(files)
}
