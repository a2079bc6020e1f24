//! `odeon run --cluster`: a recipe becomes a job of this program. What the recipe names here travels
//! with it.

mod pretraining;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, anyhow, bail};
use odeon::trace::{SpanContext, TRACEPARENT};
use odeon_actors::recipe::{Recipe, Source};
use odeon_algorithms::fetch::Artefact;
use odeon_algorithms::task::TaskSpec;
use odeon_client::Submission;

use crate::args::{RunArgs, SetArgs};
use crate::command::model::{self, ModelFolder};
use crate::print;

pub(crate) fn submit(args: &RunArgs) -> Result<ExitCode> {
    let sent = Sent::read(&args.recipe, &args.set)?;
    for note in &sent.notes {
        print::say(note);
    }
    let mut submission = Submission::of_program(super::this_program()?)?.files(sent.files)?;
    for word in sent.words {
        submission = submission.arg(word);
    }
    if args.fresh {
        submission = submission.arg("--fresh");
    }
    let there = &args.there;
    let submission = submission.with(|job| {
        job.name = sent.name;
        job.node.clone_from(&there.node);
        job.retries = there.retries;
        job.grace_s = there.grace.map(|grace| grace.as_secs());
        job.after.clone_from(&there.after);
        let given = SpanContext::given();
        let given = given.map(|given| (TRACEPARENT.to_owned(), given.traceparent()));
        job.env.extend(given);
        job.env.extend(sent.env);
    });
    super::send(&submission, there.dir.as_ref(), !there.detach, false)
}

/// A recipe as a job of this program: the words that run it, and what goes with it.
#[derive(Debug)]
pub(super) struct Sent {
    /// The name of the job.
    pub(super) name: String,
    pub(super) words: Vec<String>,
    pub(super) files: Vec<(String, PathBuf)>,
    pub(super) env: Vec<(String, String)>,
    /// What people should know of it.
    pub(super) notes: Vec<String>,
    pub(super) kept: Kept,
}

/// Files that are there until they are sent.
#[derive(Debug)]
pub(super) struct Kept {
    _folder: tempfile::TempDir,
    _model: Option<ModelFolder>,
}

impl Sent {
    /// The recipe of a file, with fields as they are to be.
    pub(super) fn read(path: &Path, set: &SetArgs) -> Result<Self> {
        let source = set.read(path)?;
        let here = std::env::current_dir().context("finding the current folder")?;
        let models = std::env::var("ODEON_MODELS").ok();
        let models = models.as_deref();
        if source.pretrains() {
            let recipe = source.pretrain_recipe()?;
            // What cannot be read here is no better there.
            let loaded = recipe.tokenizer().and_then(|it| recipe.loaded(&it));
            loaded.map_err(|failure| anyhow!("{}: {failure}", path.display()))?;
            let parcel = pretraining::parcel(&source, &recipe, &here, models)?;
            return Self::of(path, &recipe.run.name, parcel);
        }
        let recipe = source.recipe()?;
        let parcel = Parcel::of(&source, &recipe, &here, models)?;
        Self::of(path, &recipe.run.name, parcel)
    }

    fn of(path: &Path, run: &str, parcel: Parcel) -> Result<Self> {
        let mut name = file_name(path)?.to_owned();
        let mut files = parcel.files;
        while files.iter().any(|(known, _)| *known == name) {
            name = format!("recipe-{name}");
        }
        let folder = tempfile::tempdir().context("making a folder for the recipe")?;
        let sent = folder.path().join(&name);
        fs::write(&sent, &parcel.text).with_context(|| format!("writing {}", sent.display()))?;
        files.push((name.clone(), sent));
        Ok(Self {
            name: super::plain(run),
            words: vec!["run".to_owned(), name],
            files,
            env: parcel.env,
            notes: parcel.notes,
            kept: Kept {
                _folder: folder,
                _model: parcel.model,
            },
        })
    }
}

/// A recipe as it travels, and what goes with it.
#[derive(Debug)]
struct Parcel {
    text: String,
    files: Vec<(String, PathBuf)>,
    env: Vec<(String, String)>,
    /// The model that is sent, where it is one of a checkpoint.
    model: Option<ModelFolder>,
    /// What people should know of it.
    notes: Vec<String>,
}

impl Parcel {
    /// Results go to the same path wherever the recipe runs, so `run.out` becomes absolute. Files and
    /// folders that the recipe names are sent along, and named as the job finds them. A fetched
    /// model is sent, too, unless `ODEON_MODELS` says where nodes have it.
    fn of(source: &Source, recipe: &Recipe, here: &Path, models: Option<&str>) -> Result<Self> {
        let mut table: toml::Table = source.text().parse().context("reading the recipe")?;
        let (mut files, mut model) = (vec![], None);
        let out = here.join(&recipe.run.out);
        set(&mut table, &["run", "out"], text_of(&out)?);
        if let Some(load) = &recipe.model.load {
            let artefact = Artefact::named(load);
            if artefact.is_none() || models.is_none() {
                let wrong =
                    |error: anyhow::Error| source.error("model", "load", &format!("{error:#}"));
                let found = model::find(load).map_err(wrong)?;
                let found = here.join(found);
                match artefact {
                    Some(artefact) => files.push((format!("models/{}", artefact.file), found)),
                    None => {
                        let folder = ModelFolder::of(&found).map_err(wrong)?;
                        let named = send_model(&folder.path, &mut files)?;
                        model = Some(folder);
                        set(&mut table, &["model", "load"], named);
                    }
                }
            }
        }
        let problems = match &recipe.task {
            TaskSpec::Gsm8k(task) => Some(("gsm8k", &task.path)),
            TaskSpec::Maths(task) => Some(("maths", &task.path)),
            TaskSpec::Code(task) => Some(("code", &task.path)),
            _ => None,
        };
        if let Some((task, path)) = problems {
            let path = here.join(path);
            let named = format!("data/{}", file_name(&path)?);
            set(&mut table, &["task", task, "path"], named.clone());
            files.push((named, path));
        }
        Ok(Self {
            text: toml::to_string(&table).context("writing the recipe")?,
            files,
            env: surroundings(here, models)?,
            model,
            notes: vec![],
        })
    }
}

/// Variables that a run reads, as they are here.
fn surroundings(here: &Path, models: Option<&str>) -> Result<Vec<(String, String)>> {
    let log = std::env::var("ODEON_LOG").ok();
    let mut env: Vec<_> = log
        .map(|log| ("ODEON_LOG".to_owned(), log))
        .into_iter()
        .collect();
    if let Some(models) = models {
        let models = text_of(&here.join(models))?;
        env.push(("ODEON_MODELS".to_owned(), models));
    }
    Ok(env)
}

/// A model file, or the files of a model folder, and what the job calls it.
fn send_model(path: &Path, files: &mut Vec<(String, PathBuf)>) -> Result<String> {
    if path.is_file() {
        let named = format!("model/{}", file_name(path)?);
        files.push((named.clone(), path.to_owned()));
        return Ok(named);
    }
    let reading = || format!("reading {}", path.display());
    for entry in fs::read_dir(path).with_context(reading)? {
        let file = entry.with_context(reading)?.path();
        if file.is_file() {
            files.push((format!("model/{}", file_name(&file)?), file));
        }
    }
    Ok("model".to_owned())
}

fn set(table: &mut toml::Table, path: &[&str], value: String) {
    let [tables @ .., field] = path else { return };
    let mut table = table;
    for name in tables {
        let inner = table
            .entry(*name)
            .or_insert_with(|| toml::Table::new().into());
        let Some(inner) = inner.as_table_mut() else {
            return;
        };
        table = inner;
    }
    table.insert((*field).to_owned(), value.into());
}

fn file_name(path: &Path) -> Result<&str> {
    let name = path.file_name().and_then(|name| name.to_str());
    name.ok_or_else(|| anyhow!("{} names no file", path.display()))
}

fn text_of(path: &Path) -> Result<String> {
    match path.to_str() {
        Some(text) => Ok(text.to_owned()),
        None => bail!("{} is no text, so no recipe can name it", path.display()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RECIPE: &str = "[run]\nname = \"tiny\"\nout = \"results\"\n[model]\nload = \"m.gguf\"\n\
                          [task.gsm8k]\npath = \"p.jsonl\"\n[rl]\nalgorithm = \"grpo\"\nsteps = 1\n\
                          groups = 1\ngroup_size = 2\nlr = 0.1\nresponse_max = 8\n";

    fn parcel(text: &str, here: &Path, models: Option<&str>) -> Parcel {
        let recipe: Recipe = toml::from_str(text).unwrap();
        let source = Source::new(Path::new("r.toml"), text);
        Parcel::of(&source, &recipe, here, models).unwrap()
    }

    #[test]
    fn what_a_recipe_names_travels_under_names_that_the_job_finds() {
        let folder = tempfile::tempdir().unwrap();
        let here = folder.path();
        fs::create_dir(here.join("m")).unwrap();
        for file in ["m/config.json", "m/model.safetensors", "p.jsonl"] {
            fs::write(here.join(file), "").unwrap();
        }
        let model = here.join("m").display().to_string();
        let text = RECIPE.replace("m.gguf", &model);
        let mut sent = parcel(&text, here, Some("models"));
        let recipe: Recipe = toml::from_str(&sent.text).unwrap();
        assert_eq!(recipe.run.out, here.join("results"));
        assert_eq!(recipe.model.load.as_deref(), Some("model"));
        let TaskSpec::Gsm8k(task) = recipe.task else {
            panic!("{:?}", recipe.task);
        };
        assert_eq!(task.path, Path::new("data/p.jsonl"));
        sent.files.sort();
        let names: Vec<&str> = sent.files.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(
            names,
            [
                "data/p.jsonl",
                "model/config.json",
                "model/model.safetensors"
            ]
        );
        let models = (
            "ODEON_MODELS".to_owned(),
            here.join("models").display().to_string(),
        );
        assert!(sent.env.contains(&models), "{:?}", sent.env);
    }

    #[test]
    fn a_fetched_model_is_left_where_nodes_have_it() {
        let text = RECIPE.replace("m.gguf", "smollm2");
        let sent = parcel(&text, Path::new("/here"), Some("/models"));
        let recipe: Recipe = toml::from_str(&sent.text).unwrap();
        assert_eq!(recipe.model.load.as_deref(), Some("smollm2"));
        assert_eq!(sent.files.len(), 1);
    }
}
