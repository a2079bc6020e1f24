//! Where NVIDIA's libraries may lie.

use std::env;
use std::error::Error as _;
use std::path::{Path, PathBuf};

/// One library, and where it is looked for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Places {
    /// The variable that names the file, or a folder that holds it somewhere.
    pub(super) variable: &'static str,
    /// Names under which the loader may know it, the newest first.
    pub(super) names: &'static [&'static str],
    /// Folders of wheels, below `site-packages/nvidia`, that hold it.
    pub(super) wheels: &'static [&'static str],
}

/// Why a library is not loaded, with the words of the loader.
pub(super) fn unusable(path: &Path, error: &libloading::Error) -> String {
    let words = error.source().map(ToString::to_string);
    // The loader names the file itself, where it has something to say of it.
    words.unwrap_or_else(|| format!("{}: {error}", path.display()))
}

/// Folders below one that is searched.
const DEPTH: usize = 6;

impl Places {
    /// The libraries to try, in this order: what the variable says and nothing else, or what the
    /// loader finds, `$CUDA_HOME` or `/usr/local/cuda`, and the virtual environment of Python.
    pub(super) fn candidates(&self) -> Vec<PathBuf> {
        let given = |name: &str| env::var_os(name).filter(|value| !value.is_empty());
        if let Some(place) = given(self.variable).map(PathBuf::from) {
            return if place.is_dir() {
                self.found_below(&place, DEPTH)
            } else {
                vec![place]
            };
        }
        let mut candidates: Vec<PathBuf> = self.names.iter().map(PathBuf::from).collect();
        let home = given("CUDA_HOME").map_or_else(|| "/usr/local/cuda".into(), PathBuf::from);
        let lib = home.join("lib64");
        candidates.extend(self.names.iter().map(|name| lib.join(name)));
        if let Some(environment) = given("VIRTUAL_ENV").map(PathBuf::from) {
            candidates.extend(self.found_below(&environment.join("lib"), DEPTH));
        }
        candidates
    }

    /// The library in folders of wheels: `.../nvidia/cu13/lib`, `.../nvidia/nccl/lib`.
    fn found_below(&self, folder: &Path, depth: usize) -> Vec<PathBuf> {
        /// The folders that lead to all of them.
        const LEADS: [&str; 3] = ["site-packages", "nvidia", "lib"];
        let Ok(entries) = folder.read_dir() else {
            return Vec::new();
        };
        let mut found = Vec::new();
        for entry in entries.flatten() {
            let (path, name) = (entry.path(), entry.file_name());
            let name = name.to_string_lossy();
            let leads = |folders: &[&str]| folders.contains(&name.as_ref());
            if self.names.contains(&name.as_ref()) {
                found.push(path);
            } else if depth > 0
                && (leads(&LEADS) || leads(self.wheels) || name.starts_with("python"))
                && path.is_dir()
            {
                found.extend(self.found_below(&path, depth - 1));
            }
        }
        found.sort();
        found.reverse();
        found
    }
}
