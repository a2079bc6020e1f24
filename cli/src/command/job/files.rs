//! The files that `--file` names: single ones, and folders without what is to stay here.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Component, Path, PathBuf};

use anyhow::{Context, Result, anyhow, bail};
use ignore::WalkBuilder;

use super::program::{below, file_name};
use crate::{figures, print};

/// The files that are named, each under the path by which the job finds it.
pub(super) fn named(named: &[String]) -> Result<Vec<(String, PathBuf)>> {
    let mut files = vec![];
    let mut known = BTreeSet::new();
    for file in named {
        let (name, path) = match file.split_once('=') {
            Some((name, path)) => (name.to_owned(), PathBuf::from(path)),
            // All of the folder that the command is given in.
            None if Path::new(file).components().eq([Component::CurDir]) => {
                (String::new(), PathBuf::from(file))
            }
            None => {
                let name = below(file).or_else(|| file_name(file));
                let name = name.ok_or_else(|| anyhow!("`{file}` names no file"))?;
                (name, PathBuf::from(file))
            }
        };
        let name = name.trim_end_matches('/');
        let found = match path.is_dir() {
            true => of_folder(name, &path)?,
            false => vec![(name.to_owned(), path)],
        };
        for (name, path) in found {
            if !known.insert(name.clone()) {
                bail!("--file names two files `{name}`: a job finds one under each name");
            }
            files.push((name, path));
        }
    }
    Ok(files)
}

/// The files of a folder, in the order of their paths. Those stay that `.gitignore` or `.odeonignore`
/// name, what git keeps for itself, compiled Python, and environments of Python.
pub(super) fn of_folder(name: &str, folder: &Path) -> Result<Vec<(String, PathBuf)>> {
    let mut files = vec![];
    let mut bytes = 0;
    let walk = WalkBuilder::new(folder)
        .standard_filters(false)
        .git_ignore(true)
        .parents(true)
        .require_git(false)
        .add_custom_ignore_filename(".odeonignore")
        // A link stands for what it leads to: elsewhere it would lead to nothing.
        .follow_links(true)
        .filter_entry(|entry| {
            let name = entry.file_name();
            let stays = name == ".git" || name == "__pycache__";
            !stays && !entry.path().join("pyvenv.cfg").is_file()
        })
        .sort_by_file_path(Ord::cmp)
        .build();
    for entry in walk {
        let entry = entry.with_context(|| format!("reading the folder {}", folder.display()))?;
        if entry.file_type().is_some_and(|it| it.is_dir()) {
            continue;
        }
        let path = entry.into_path();
        let below = path.strip_prefix(folder).expect("it lies in the folder");
        let below = below.to_str().ok_or_else(|| {
            anyhow!(
                "{}: its name is no UTF-8: name it in .odeonignore, or rename it",
                path.display()
            )
        })?;
        let meta = fs::metadata(&path).with_context(|| path.display().to_string())?;
        if !meta.is_file() {
            bail!(
                "{} is neither a file nor a folder: name it in .odeonignore",
                path.display()
            );
        }
        bytes += meta.len();
        if bytes > FOLDER_BYTES_MAX {
            bail!(
                "the folder {} has more than {}: name in .odeonignore what the job does not need, and \
                 put data where nodes reach it",
                folder.display(),
                figures::bytes(FOLDER_BYTES_MAX as f64)
            );
        }
        let name = match name {
            "" => below.to_owned(),
            name => format!("{name}/{below}"),
        };
        files.push((name, path));
    }
    if files.is_empty() {
        bail!(
            "the folder {} has no file that would be sent: see its .gitignore and .odeonignore",
            folder.display()
        );
    }
    let (count, size) = (files.len() as u64, figures::bytes(bytes as f64));
    let count = figures::plural(count, "file");
    print::say(format!("{}: {count}, {size}", folder.display()));
    Ok(files)
}

/// The most bytes of a folder: code and settings have less, and data is read where it lies.
const FOLDER_BYTES_MAX: u64 = 1 << 30;

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn a_folder_is_sent_without_what_is_to_stay() {
        let folder = tempfile::tempdir().unwrap();
        let here = folder.path();
        for folder in ["sub", ".git", "venv/bin", "__pycache__", "data"] {
            fs::create_dir_all(here.join(folder)).unwrap();
        }
        let files = [
            "a.txt",
            "sub/b.txt",
            ".env",
            ".git/config",
            "venv/pyvenv.cfg",
            "venv/bin/python",
            "__pycache__/a.pyc",
            "a.log",
            "data/big",
            "data/small",
        ];
        for file in files {
            fs::write(here.join(file), file).unwrap();
        }
        fs::write(here.join(".gitignore"), "*.log\n.env\n").unwrap();
        fs::write(here.join(".odeonignore"), "data/big\n").unwrap();
        symlink("a.txt", here.join("link")).unwrap();
        let sent = of_folder("x", here).unwrap();
        let sent: Vec<_> = sent.iter().map(|(name, _)| name.as_str()).collect();
        let expect = [
            "x/.gitignore",
            "x/.odeonignore",
            "x/a.txt",
            "x/data/small",
            "x/link",
            "x/sub/b.txt",
        ];
        assert_eq!(sent, expect);
        let twice = named(&[
            format!("x={}", here.display()),
            format!("x/a.txt={}", here.join("a.txt").display()),
        ]);
        assert!(
            twice
                .unwrap_err()
                .to_string()
                .contains("two files `x/a.txt`")
        );
        fs::remove_file(here.join("a.txt")).unwrap();
        let error = format!("{:#}", of_folder("x", here).unwrap_err());
        assert!(error.contains("link"), "{error}");
    }
}
