//! A pretraining recipe as it travels: its tokenizer, its model and its data go with it.
//!
//! What is named by a path below the current folder keeps that path, so the recipe says the same of it
//! here and there. Anything else is found by the job in a folder of its own. Data of a size that no job
//! should carry stays where it is, named by an absolute path, and so do buckets.

use std::fs;
use std::path::{Component, Path, PathBuf};

use anyhow::{Context, Result, anyhow};
use odeon_actors::engine::compute::is_checkpoint;
use odeon_actors::recipe::{PretrainRecipe, Source};
use odeon_data::source::{OnDisk, SourceSpec, on_disk};

use super::{Parcel, file_name, set, surroundings, text_of};
use crate::figures;

/// A recipe whose paths are seen from `here`.
pub(super) fn parcel(
    source: &Source,
    recipe: &PretrainRecipe,
    here: &Path,
    models: Option<&str>,
) -> Result<Parcel> {
    let mut table: toml::Table = source.text().parse().context("reading the recipe")?;
    let mut luggage = Luggage::new(here);
    for (table_name, field, path) in [
        ("run", "out", &recipe.run.out),
        ("data", "cache", &recipe.data.cache),
    ] {
        let path = text_of(&here.join(path))?;
        set(&mut table, &[table_name, field], path);
    }
    let wrong = |name: &str, field: &str, error: &anyhow::Error| {
        anyhow::Error::from(source.error(name, field, &format!("{error:#}")))
    };
    let model = recipe.model.load.as_ref().map(PathBuf::from);
    if let Some(path) = &model {
        let files = model_files(&here.join(path));
        let files = files.map_err(|error| wrong("model", "load", &error))?;
        if let Some(named) = luggage.take(path, files)? {
            set(&mut table, &["model", "load"], named);
        }
    }
    if let Some(path) = &recipe.tokenizer.load {
        let files = match model.as_ref() == Some(path) {
            true => model_files(&here.join(path)),
            false => tokenizer_files(&here.join(path)),
        };
        let files = files.map_err(|error| wrong("tokenizer", "load", &error))?;
        if let Some(named) = luggage.take(path, files)? {
            set(&mut table, &["tokenizer", "load"], named);
        }
    }
    for (number, spec) in recipe.sources.iter().enumerate() {
        let found = on_disk(spec, here);
        let found = found.map_err(|error| {
            let what = format!("source `{}`: {error}", spec.name);
            source.error(&format!("source.{number}"), "path", &what)
        })?;
        let own = table.get_mut("source").and_then(|all| all.get_mut(number));
        let own = own.and_then(toml::Value::as_table_mut);
        let own = own.with_context(|| format!("the recipe has no source `{}`", spec.name))?;
        for found in found {
            let keys = found.keys;
            if let Some(named) = luggage.data(spec, found)? {
                set(own, keys, named);
            }
        }
    }
    Ok(Parcel {
        text: toml::to_string(&table).context("writing the recipe")?,
        files: luggage.files,
        env: surroundings(here, models)?,
        model: None,
        notes: luggage.notes,
    })
}

/// Files that go along, each under the path by which the job finds it.
struct Luggage<'a> {
    here: &'a Path,
    files: Vec<(String, PathBuf)>,
    notes: Vec<String>,
    /// Folders that are no part of this one.
    others: usize,
}

impl<'a> Luggage<'a> {
    const fn new(here: &'a Path) -> Self {
        Self {
            here,
            files: vec![],
            notes: vec![],
            others: 0,
        }
    }

    /// Takes in a file, or these files of a folder, and gives the path that the job finds it by where that
    /// is another than the recipe has.
    fn take(&mut self, path: &Path, files: Vec<PathBuf>) -> Result<Option<String>> {
        let full = std::path::absolute(self.here.join(path))?;
        let (named, is_other) = match self.below(path) {
            Some(below) => (below, false),
            None => (format!("{}/{}", self.other(), file_name(&full)?), true),
        };
        for file in files {
            let inner = file.strip_prefix(&full).unwrap_or_else(|_| Path::new(""));
            let name = match text_of(inner)? {
                inner if inner.is_empty() => named.clone(),
                inner => format!("{named}/{inner}"),
            };
            self.add(name, file);
        }
        Ok(is_other.then_some(named))
    }

    /// The same for the data of a source, which stays where it is if it is too much.
    fn data(&mut self, spec: &SourceSpec, found: OnDisk) -> Result<Option<String>> {
        let files = found.files.len();
        let folder = found.folder.as_path();
        if found.bytes > BYTES_MAX || files > FILES_MAX {
            let path = text_of(&folder.join(&found.rest))?;
            self.notes.push(format!(
                "source `{}`: its {} in {} stay where they are, since at most {} in {FILES_MAX} files are sent: each \
                 node that reads them has to have them at {path}, or let them be in a bucket",
                spec.name,
                figures::bytes(found.bytes as f64),
                figures::plural(files as u64, "file"),
                figures::bytes(BYTES_MAX as f64),
            ));
            return Ok((path != found.path).then_some(path));
        }
        let is_file = files == 1 && found.files[0] == folder.join(&found.rest);
        // All of this folder is more than the job has of it, so that would find other files there.
        let kept = match folder.strip_prefix(self.here) {
            Ok(below) if is_file || below != Path::new("") => {
                self.below(Path::new(&found.path)).map(|_| below)
            }
            _ => None,
        };
        let (named, is_other) = match kept {
            Some(below) => (text_of(below)?, false),
            None => (self.other(), true),
        };
        for file in found.files {
            let inner = file.strip_prefix(folder).map_err(|_| {
                anyhow!(
                    "source `{}`: {} lies outside of {}: leave `..` out of its path",
                    spec.name,
                    file.display(),
                    folder.display()
                )
            })?;
            let name = text_of(&Path::new(&named).join(inner))?;
            self.add(name, file);
        }
        Ok(is_other.then(|| match found.rest.as_str() {
            "" => named,
            rest => format!("{named}/{rest}"),
        }))
    }

    /// Several sources may read the same file.
    fn add(&mut self, name: String, file: PathBuf) {
        if !self.files.iter().any(|(known, _)| *known == name) {
            self.files.push((name, file));
        }
    }

    /// A folder of the job for what is none of this folder's.
    fn other(&mut self) -> String {
        loop {
            self.others += 1;
            let name = format!("given/{}", self.others);
            if !self.here.join(&name).exists() {
                return name;
            }
        }
    }

    /// A path below this folder, without what means nothing; none for one that is absolute or leads out.
    #[expect(clippy::unused_self, reason = "it belongs to the others")]
    fn below(&self, path: &Path) -> Option<String> {
        let mut parts = vec![];
        for part in path.components() {
            match part {
                Component::CurDir => {}
                Component::Normal(part) => parts.push(part.to_str()?),
                _ => return None,
            }
        }
        (!parts.is_empty()).then(|| parts.join("/"))
    }
}

/// The files of a model: a file itself, all of a checkpoint, and of a folder those that lie in it.
fn model_files(path: &Path) -> Result<Vec<PathBuf>> {
    files_of(path, is_checkpoint(path), &|_| true)
}

/// The files of a tokenizer: a folder may have weights as well, which it does not need.
fn tokenizer_files(path: &Path) -> Result<Vec<PathBuf>> {
    let is_stored = is_checkpoint(path);
    files_of(path, is_stored, &|file| {
        let ending = file.extension().and_then(|it| it.to_str());
        is_stored || !ending.is_some_and(|it| WEIGHTS.contains(&it))
    })
}

fn files_of(path: &Path, deep: bool, takes: &dyn Fn(&Path) -> bool) -> Result<Vec<PathBuf>> {
    let path = std::path::absolute(path)?;
    if path.is_file() {
        return Ok(vec![path]);
    }
    let (mut files, mut folders) = (vec![], vec![path]);
    while let Some(folder) = folders.pop() {
        let reading = || format!("reading {}", folder.display());
        for entry in fs::read_dir(&folder).with_context(reading)? {
            let entry = entry.with_context(reading)?.path();
            if entry.is_dir() {
                folders.extend(deep.then_some(entry));
            } else if entry.is_file() && takes(&entry) {
                files.push(entry);
            }
        }
    }
    files.sort();
    Ok(files)
}

/// The most bytes of a source that are sent.
const BYTES_MAX: u64 = 1 << 30;
/// The most files of a source that are sent: a job has 16,384 in all.
const FILES_MAX: usize = 4_096;
/// Endings of files with weights.
const WEIGHTS: [&str; 7] = ["safetensors", "bin", "gguf", "pt", "pth", "onnx", "h5"];

#[cfg(test)]
mod tests {
    use super::*;

    const RECIPE: &str = r#"
[run]
name = "sent"
out = "results"
[model]
hidden = 8
layers = 1
heads = 2
kv_heads = 1
ffn = 8
context = 64
[tokenizer]
load = "tok"
[pretrain]
steps = 1
[plan]
step = { samples = 1 }
[plan.mixture.sources.one]
weight = { constant = 1.0 }
[[source]]
name = "one"
path = "PATH"
format = FORMAT
context = 64
"#;

    /// A folder with a folder to be in and one elsewhere.
    fn place() -> tempfile::TempDir {
        let place = tempfile::tempdir().unwrap();
        let files = [
            "here/tok/tokenizer.json",
            "here/tok/model.safetensors",
            "here/a.jsonl",
            "here/data/b.jsonl",
            "here/data/c.parquet",
            "here/data/deep/d.jsonl",
            "here/data/e.tar",
            "else/f.jsonl",
            "else/g/h.jsonl",
            "else/p/1.png",
            "else/p/1.txt",
            "else/captions.json",
            "else/images",
            "else/labels",
        ];
        for file in files {
            let path = place.path().join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, "[]").unwrap();
        }
        place
    }

    fn sent(place: &Path, path: &str, format: &str) -> (PretrainRecipe, Vec<String>, Parcel) {
        let there = |text: &str| text.replace("ELSE", &place.join("else").display().to_string());
        let text = RECIPE.replace("PATH", &there(path));
        let text = text.replace("FORMAT", &there(format));
        let source = Source::new(Path::new("r.toml"), &text);
        let recipe: PretrainRecipe = toml::from_str(&text).unwrap();
        let parcel = parcel(&source, &recipe, &place.join("here"), None).unwrap();
        let mut names: Vec<String> = parcel.files.iter().map(|it| it.0.clone()).collect();
        names.retain(|name| !name.starts_with("tok/"));
        names.sort();
        (toml::from_str(&parcel.text).unwrap(), names, parcel)
    }

    const JSONL: &str = "{ jsonl = { text = \"text\" } }";

    #[test]
    fn data_keeps_its_path_below_the_folder_and_has_one_of_the_job_elsewhere() {
        let place = place();
        for (path, named, files) in [
            ("a.jsonl", "a.jsonl", &["a.jsonl"][..]),
            ("./data/b.jsonl", "./data/b.jsonl", &["data/b.jsonl"]),
            ("data", "data", &["data/b.jsonl", "data/deep/d.jsonl"]),
            (
                "data/**/*.jsonl",
                "data/**/*.jsonl",
                &["data/b.jsonl", "data/deep/d.jsonl"],
            ),
            (
                "data/{b,deep/d}.jsonl",
                "data/{b,deep/d}.jsonl",
                &["data/b.jsonl", "data/deep/d.jsonl"],
            ),
            ("*.jsonl", "given/1/*.jsonl", &["given/1/a.jsonl"]),
            ("../else/f.jsonl", "given/1/f.jsonl", &["given/1/f.jsonl"]),
            ("ELSE/f.jsonl", "given/1/f.jsonl", &["given/1/f.jsonl"]),
            (
                "file://ELSE/f.jsonl",
                "given/1/f.jsonl",
                &["given/1/f.jsonl"],
            ),
            ("ELSE/g", "given/1", &["given/1/h.jsonl"]),
            (
                "ELSE/**/*.jsonl",
                "given/1/**/*.jsonl",
                &["given/1/f.jsonl", "given/1/g/h.jsonl"],
            ),
            ("s3://bucket/texts", "s3://bucket/texts", &[]),
        ] {
            let (recipe, names, parcel) = sent(place.path(), path, JSONL);
            assert_eq!(recipe.sources[0].path, named, "{path}");
            assert_eq!(names, files, "{path}");
            assert!(parcel.notes.is_empty(), "{:?}", parcel.notes);
        }
        let (_, names, _) = sent(place.path(), "data", "{ parquet = {} }");
        assert_eq!(names, ["data/c.parquet"]);
        let (_, names, _) = sent(place.path(), "data", "{ webdataset = {} }");
        assert_eq!(names, ["data/e.tar"]);
    }

    #[test]
    fn folders_that_are_written_become_absolute_and_a_tokenizer_travels_without_weights() {
        let place = place();
        let (recipe, _, parcel) = sent(place.path(), "a.jsonl", JSONL);
        let here = place.path().join("here");
        assert_eq!(recipe.run.out, here.join("results"));
        assert_eq!(recipe.data.cache, here.join("models/cache"));
        assert_eq!(recipe.tokenizer.load.unwrap(), Path::new("tok"));
        let names: Vec<&str> = parcel.files.iter().map(|it| it.0.as_str()).collect();
        assert_eq!(names, ["tok/tokenizer.json", "a.jsonl"]);
    }

    #[test]
    fn pictures_travel_with_what_is_said_of_them() {
        let place = place();
        let beside = "{ images = { captions = { beside = \"txt\" } } }";
        let (_, names, _) = sent(place.path(), "ELSE/p", beside);
        assert_eq!(names, ["given/1/1.png", "given/1/1.txt"]);
        let listed = r#"{ images = { captions = { listed = { path = "ELSE/captions.json", image = "i", caption = "c" } } } }"#;
        let (recipe, names, _) = sent(place.path(), "ELSE/p", listed);
        assert!(
            names.contains(&"given/2/captions.json".to_owned()),
            "{names:?}"
        );
        let text = toml::to_string(&recipe).unwrap();
        assert!(text.contains("given/2/captions.json"), "{text}");
        let idx = "{ idx = { labels = \"ELSE/labels\" } }";
        let (_, names, _) = sent(place.path(), "ELSE/images", idx);
        assert_eq!(names, ["given/1/images", "given/2/labels"]);
    }

    #[test]
    fn data_that_no_job_should_carry_stays_where_it_is_with_a_word() {
        let place = place();
        let large = fs::File::create(place.path().join("here/data/large.jsonl")).unwrap();
        large.set_len(BYTES_MAX + 1).unwrap();
        let (recipe, names, parcel) = sent(place.path(), "data/large.jsonl", JSONL);
        let stays = place.path().join("here/data/large.jsonl");
        assert_eq!(Path::new(&recipe.sources[0].path), stays);
        assert_eq!(names, [""; 0]);
        let [note] = parcel.notes.as_slice() else {
            panic!("{:?}", parcel.notes);
        };
        let path = stays.display().to_string();
        assert!(
            note.contains("source `one`") && note.contains(&path),
            "{note}"
        );
    }

    #[test]
    fn what_is_not_there_is_refused_at_its_line() {
        let place = place();
        let refused = |from: &str, to: &str| {
            let text = RECIPE.replace("PATH", "a.jsonl").replace("FORMAT", JSONL);
            let text = text.replace(from, to);
            let source = Source::new(Path::new("r.toml"), &text);
            let recipe: PretrainRecipe = toml::from_str(&text).unwrap();
            let refused = parcel(&source, &recipe, &place.path().join("here"), None);
            refused.unwrap_err().to_string()
        };
        let said = refused("a.jsonl", "none.jsonl");
        assert!(said.starts_with("r.toml:22: source `one`"), "{said}");
        let said = refused("\"tok\"", "\"none\"");
        assert!(said.starts_with("r.toml:13: "), "{said}");
    }
}
