//! The files that `--file` names: single ones, and folders without what is to stay here.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Component, Path, PathBuf};

use anyhow::{Context, Result, anyhow, bail};
use ignore::WalkBuilder;

use super::program::{below, file_name};
use crate::{figures, print};

/// Files and links, each under the path by which the job finds it.
#[derive(Debug, Default)]
pub(super) struct Found {
    pub(super) files: Vec<(String, PathBuf)>,
    /// Links with what they lead to, seen from each.
    pub(super) links: Vec<(String, String)>,
}

impl Found {
    /// Returns true where something has this path.
    pub(super) fn has(&self, name: &str) -> bool {
        self.files.iter().any(|(known, _)| known == name)
            || self.links.iter().any(|(known, _)| known == name)
    }
}

/// The files that are named.
pub(super) fn named(named: &[String]) -> Result<Found> {
    let mut all = Found::default();
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
            false => Found {
                files: vec![(name.to_owned(), path)],
                ..Found::default()
            },
        };
        let names = found.files.iter().map(|(name, _)| name);
        for name in names.chain(found.links.iter().map(|(name, _)| name)) {
            if !known.insert(name.clone()) {
                bail!("--file names two files `{name}`: a job finds one under each name");
            }
        }
        all.files.extend(found.files);
        all.links.extend(found.links);
    }
    Ok(all)
}

/// Adds the lock files of an environment, each under its name, unless it is among the files already.
///
/// # Errors
/// Another file has its name: one of them would be missing.
pub(super) fn add_lock_files(
    files: &mut Vec<(String, PathBuf)>,
    lock: &[(String, PathBuf)],
) -> Result<()> {
    for (name, path) in lock {
        match files.iter().find(|(known, _)| known == name) {
            None => files.push((name.clone(), path.clone())),
            Some((_, other)) if fs::canonicalize(other)? == fs::canonicalize(path)? => {}
            Some((_, other)) => bail!(
                "`{name}` is the lock file {} (--environment) and the file {} (--file) at once: a job finds one under \
                 each name, so rename one",
                path.display(),
                other.display()
            ),
        }
    }
    Ok(())
}

/// The files of a folder, in the order of their paths. Those stay that `.gitignore` or `.odeonignore`
/// name, what git keeps for itself, compiled Python, and environments of Python. A link that leads to
/// something that is sent is sent as a link; of another one what it leads to is.
pub(super) fn of_folder(name: &str, folder: &Path) -> Result<Found> {
    let mut walk = Walk {
        folder: fs::canonicalize(folder)
            .with_context(|| format!("reading the folder {}", folder.display()))?,
        bytes: 0,
        found: Found::default(),
        outside: vec![],
        dangling: vec![],
        left_out: vec![],
    };
    let root = walk.folder.clone();
    walk.walk("", &root, 0)?;
    let Walk {
        bytes,
        mut found,
        outside,
        dangling,
        left_out,
        ..
    } = walk;
    if found.files.is_empty() {
        bail!(
            "the folder {} has no file that would be sent: see its .gitignore and .odeonignore",
            folder.display()
        );
    }
    found.files.sort();
    found.links.sort();
    let (count, size) = (found.files.len() as u64, figures::bytes(bytes as f64));
    let count = figures::plural(count, "file");
    print::say(format!("{}: {count}, {size}", folder.display()));
    if let Some(first) = outside.first() {
        let count = figures::plural(outside.len() as u64, "link");
        print::say(format!(
            "{}: of {count} what they lead to is sent, since that lies elsewhere or is not sent ({first})",
            folder.display()
        ));
    }
    if let Some(first) = dangling.first() {
        let count = figures::plural(dangling.len() as u64, "link");
        print::say(format!(
            "{}: {count} of it leads to nothing, and is sent as it is ({first})",
            folder.display()
        ));
    }
    if let Some(first) = left_out.first() {
        let count = figures::plural(left_out.len() as u64, "link");
        print::say(format!(
            "{}: {count} of it leads to nothing outside of it, and is not sent ({first})",
            folder.display()
        ));
    }
    if !name.is_empty() {
        let prefix = |path: &mut String| *path = format!("{name}/{path}");
        found.files.iter_mut().for_each(|(path, _)| prefix(path));
        found.links.iter_mut().for_each(|(path, _)| prefix(path));
    }
    Ok(found)
}

/// A folder that is walked through.
struct Walk {
    folder: PathBuf,
    bytes: u64,
    found: Found,
    /// Links of which what they lead to is sent.
    outside: Vec<String>,
    /// Links that lead to nothing, and are sent as they are.
    dangling: Vec<String>,
    /// Links that lead to nothing, out of the folder: a job has none that leads out of its own.
    left_out: Vec<String>,
}

impl Walk {
    /// Takes in a folder, which is found under this name, below so many links.
    fn walk(&mut self, name: &str, folder: &Path, depth: usize) -> Result<()> {
        let walk = WalkBuilder::new(folder)
            .standard_filters(false)
            .git_ignore(true)
            .parents(true)
            .require_git(false)
            .add_custom_ignore_filename(".odeonignore")
            .filter_entry(|entry| {
                let name = entry.file_name();
                let stays = name == ".git" || name == "__pycache__";
                !stays && !entry.path().join("pyvenv.cfg").is_file()
            })
            .sort_by_file_path(Ord::cmp)
            .build();
        let mut links = vec![];
        for entry in walk {
            let entry =
                entry.with_context(|| format!("reading the folder {}", folder.display()))?;
            if entry.file_type().is_some_and(|it| it.is_dir()) {
                continue;
            }
            let is_link = entry.path_is_symlink();
            let path = entry.into_path();
            let below = path.strip_prefix(folder).expect("it lies in the folder");
            let below = below.to_str().ok_or_else(|| {
                anyhow!(
                    "{}: its name is no UTF-8: name it in .odeonignore, or rename it",
                    path.display()
                )
            })?;
            let name = match name {
                "" => below.to_owned(),
                name => format!("{name}/{below}"),
            };
            match is_link {
                true => links.push((name, path)),
                false => self.take(name, path)?,
            }
        }
        // What they may lead to is known by now, but for other links.
        loop {
            let before = links.len();
            links.retain(|(name, path)| !self.keep(name, path));
            if links.len() == before {
                break;
            }
        }
        for (name, path) in links {
            self.follow(name, path, depth)?;
        }
        Ok(())
    }

    fn take(&mut self, name: String, path: PathBuf) -> Result<()> {
        let meta = fs::metadata(&path).with_context(|| path.display().to_string())?;
        if !meta.is_file() {
            bail!(
                "{} is neither a file nor a folder: name it in .odeonignore",
                path.display()
            );
        }
        self.bytes += meta.len();
        if self.bytes > FOLDER_BYTES_MAX {
            bail!(
                "the folder {} has more than {}: name in .odeonignore what the job does not need, and \
                 put data where nodes reach it",
                self.folder.display(),
                figures::bytes(FOLDER_BYTES_MAX as f64)
            );
        }
        self.found.files.push((name, path));
        Ok(())
    }

    /// Takes in a link as it is, where it leads to something that is sent. Returns true then.
    fn keep(&mut self, name: &str, path: &Path) -> bool {
        let Ok(target) = fs::read_link(path) else {
            return false;
        };
        let is_sent = inside(name, &target).is_some_and(|to| self.is_sent(&to));
        match target.to_str().filter(|_| is_sent) {
            Some(target) => self.found.links.push((name.to_owned(), target.to_owned())),
            None => return false,
        }
        true
    }

    /// Takes in what a link leads to.
    fn follow(&mut self, name: String, path: PathBuf, depth: usize) -> Result<()> {
        let target = fs::read_link(&path).with_context(|| path.display().to_string())?;
        let Ok(leads_to) = fs::canonicalize(&path) else {
            self.dangle(name, &target);
            return Ok(());
        };
        self.outside.push(format!("{name} -> {}", target.display()));
        if !leads_to.is_dir() {
            return self.take(name, path);
        }
        let holder = path.parent().map(fs::canonicalize).transpose()?;
        if holder.is_some_and(|it| it.starts_with(&leads_to)) || depth == LINKS_DEEP_MAX {
            bail!(
                "{} is a link to a folder that it lies in itself: name it in .odeonignore",
                path.display()
            );
        }
        self.walk(&name, &leads_to, depth + 1)
    }

    /// Takes in a link that leads to nothing, where a job may have it.
    fn dangle(&mut self, name: String, target: &Path) {
        let told = format!("{name} -> {}", target.display());
        let to = target.to_str().filter(|_| inside(&name, target).is_some());
        match to {
            Some(to) => {
                self.dangling.push(told);
                self.found.links.push((name, to.to_owned()));
            }
            None => self.left_out.push(told),
        }
    }

    /// Returns true where a file, a folder with one, or a link of this path is sent.
    fn is_sent(&self, path: &str) -> bool {
        let is_in = |name: &str| {
            let rest = name.strip_prefix(path);
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        };
        let files = self.found.files.iter().any(|(name, _)| is_in(name));
        files || self.found.links.iter().any(|(name, _)| name == path)
    }
}

/// The path below the folder that a link there leads to; none where it leads elsewhere.
fn inside(link: &str, target: &Path) -> Option<String> {
    let mut parts: Vec<&str> = link.split('/').collect();
    parts.pop();
    for part in target.components() {
        match part {
            Component::CurDir => {}
            Component::ParentDir => drop(parts.pop()?),
            Component::Normal(part) => parts.push(part.to_str()?),
            Component::RootDir | Component::Prefix(_) => return None,
        }
    }
    (!parts.is_empty()).then(|| parts.join("/"))
}

/// Links to folders within each other that are followed.
const LINKS_DEEP_MAX: usize = 8;
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
        let elsewhere = tempfile::tempdir().unwrap();
        fs::create_dir(elsewhere.path().join("more")).unwrap();
        fs::write(elsewhere.path().join("more/c.txt"), "c").unwrap();
        symlink("a.txt", here.join("link")).unwrap();
        symlink("../a.txt", here.join("sub/up")).unwrap();
        symlink("sub", here.join("folder")).unwrap();
        symlink("link", here.join("early")).unwrap();
        symlink("../sub/../a.txt", here.join("sub/round")).unwrap();
        symlink("a.log", here.join("stays")).unwrap();
        symlink(elsewhere.path(), here.join("outside")).unwrap();
        let found = of_folder("x", here).unwrap();
        let sent: Vec<_> = found.files.iter().map(|(name, _)| name.as_str()).collect();
        let expect = [
            "x/.gitignore",
            "x/.odeonignore",
            "x/a.txt",
            "x/data/small",
            "x/outside/more/c.txt",
            "x/stays",
            "x/sub/b.txt",
        ];
        assert_eq!(sent, expect);
        let links: Vec<_> = found
            .links
            .iter()
            .map(|(name, to)| (name.as_str(), to.as_str()))
            .collect();
        let expect = [
            ("x/early", "link"),
            ("x/folder", "sub"),
            ("x/link", "a.txt"),
            ("x/sub/round", "../sub/../a.txt"),
            ("x/sub/up", "../a.txt"),
        ];
        assert_eq!(links, expect);
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
        let mut files = vec![("a.lock".to_owned(), here.join("a.txt"))];
        let lock = |path: PathBuf| [("a.lock".to_owned(), path)];
        add_lock_files(&mut files, &lock(here.join("link"))).unwrap();
        assert_eq!(files.len(), 1, "it is the same file");
        let twice = add_lock_files(&mut files, &lock(here.join("sub/b.txt")));
        assert!(twice.unwrap_err().to_string().contains("rename one"));
        symlink(elsewhere.path(), elsewhere.path().join("more/round")).unwrap();
        let error = format!("{:#}", of_folder("x", here).unwrap_err());
        assert!(error.contains("a folder that it lies in itself"), "{error}");
        fs::remove_file(elsewhere.path().join("more/round")).unwrap();
        fs::remove_file(here.join("a.txt")).unwrap();
        // What leads to nothing now is sent as it is, and what leads out to nothing is not.
        symlink("/no/such/file", here.join("out")).unwrap();
        let links = of_folder("x", here).unwrap().links;
        let names: Vec<_> = links.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(
            names,
            ["x/early", "x/folder", "x/link", "x/sub/round", "x/sub/up"]
        );
    }
}
