//! The files of a job that making its environment reads, as its lock files and its command name them: when one of them
//! changes, it is another environment. Pure, but for reading lock files.

use std::collections::{BTreeMap, BTreeSet};

use super::{EnvironmentSpec, EnvironmentSpecError};

/// The most bytes of a lock file: it lists what is to be installed, and contains none of it.
pub const LOCK_BYTES_MAX: u64 = 16 << 20;

/// Options of pip behind which another such file is named, as they are written short and long.
const NESTED: [(&str, &str); 2] = [("-r", "--requirement"), ("-c", "--constraint")];

impl EnvironmentSpec {
    /// The files that lock files and the command name, among the files of the job with their bytes: lock files, what
    /// these include (`-r`, `-c`), and files and folders that lines of them or words of the command name by path.
    /// Where it cannot be told, a file is taken for one of them. `read` gives the content of one.
    ///
    /// # Errors
    /// A lock file is missing, too large or unreadable; or it asks for a package that stays where it is (`-e`), which
    /// would be in the folder of one job.
    pub fn inputs_among(
        &self,
        files: &BTreeMap<String, u64>,
        mut read: impl FnMut(&str) -> Result<Vec<u8>, String>,
    ) -> Result<BTreeSet<String>, EnvironmentSpecError> {
        let mut inputs = Inputs {
            files,
            found: BTreeSet::new(),
        };
        let mut left = self.lock.clone();
        while let Some(lock) = left.pop() {
            let Some(bytes) = files.get(&lock) else {
                return Err(EnvironmentSpecError::NoLockFile(lock));
            };
            if *bytes > LOCK_BYTES_MAX {
                return Err(EnvironmentSpecError::LargeLockFile(lock, *bytes));
            }
            let text = match read(&lock) {
                Ok(text) => String::from_utf8_lossy(&text).into_owned(),
                Err(why) => return Err(EnvironmentSpecError::Unreadable(lock, why)),
            };
            inputs.found.insert(lock.clone());
            // A script that the command runs has no lines for pip.
            if !text.starts_with("#!") {
                left.extend(inputs.take_lock(&lock, &text)?);
            }
        }
        if let Some(setup) = &self.setup {
            inputs.take_command(setup);
        }
        Ok(inputs.found)
    }
}

/// The files of a job, and those of them that were found to be named.
struct Inputs<'a> {
    files: &'a BTreeMap<String, u64>,
    found: BTreeSet<String>,
}

impl Inputs<'_> {
    /// Takes in what a lock file names. The files of its kind that it includes, and that were not read yet.
    fn take_lock(&mut self, lock: &str, text: &str) -> Result<Vec<String>, EnvironmentSpecError> {
        let own = lock.rsplit_once('/').map_or("", |(folder, _)| folder);
        let mut nested = vec![];
        for (number, line) in logical_lines(text) {
            let words: Vec<&str> = line.split_whitespace().collect();
            let Some(first) = words.first() else { continue };
            let is_short = first.starts_with("-e") && !first.starts_with("--");
            if is_short || first.split('=').next() == Some("--editable") {
                return Err(EnvironmentSpecError::Editable {
                    lock: lock.to_owned(),
                    line: number,
                    text: line.trim().chars().take(80).collect(),
                });
            }
            if let Some(named) = nested_in(&words) {
                // Those are found from the file that names them, all others from where pip runs.
                let named = joined(own, named).filter(|name| self.files.contains_key(name));
                nested.extend(named.filter(|name| !self.found.contains(name)));
                continue;
            }
            for word in words.iter().flat_map(|word| word.split(['=', '@'])) {
                let word = word.trim_end_matches([';', ',']);
                let is_quoted = word.starts_with(['"', '\'']);
                let word = word.trim_matches(['"', '\'']);
                let word = word.strip_prefix("file:").unwrap_or(word);
                let word = word.split('[').next().unwrap_or(word);
                // In other formats the folder of a project is not what is installed.
                if !is_quoted || joined("", word).is_some_and(|path| !path.is_empty()) {
                    self.take_path(word, word.contains('/') || word.starts_with('.'));
                }
            }
        }
        Ok(nested)
    }

    /// Takes in what a command of a shell names.
    fn take_command(&mut self, command: &str) {
        let here = command.replace("${PWD}/", " ./").replace("$PWD/", " ./");
        let ends = |c: char| ";&|()\n".contains(c);
        for simple in here.split(ends) {
            let words = simple.split(|c: char| c.is_whitespace() || "\"'`=<>{}$,:".contains(c));
            let words = words.filter(|word| !word.is_empty());
            for (n, word) in words.enumerate() {
                // A command that reads a script, which is named behind it; and tests.
                if n == 0 && word == "." || word == "[" || word == "[[" {
                    continue;
                }
                match word.find(['*', '?', '[']) {
                    None => self.take_path(word, true),
                    Some(at) => {
                        let fixed = &word[..at];
                        let folder = fixed.rsplit_once('/').map_or(".", |(folder, _)| folder);
                        self.take_path(fixed, true);
                        self.take_path(folder, true);
                    }
                }
            }
        }
    }

    /// Takes in the file of a path, or all files of a folder.
    fn take_path(&mut self, word: &str, may_be_folder: bool) {
        let Some(path) = joined("", word).filter(|_| !word.is_empty()) else {
            return;
        };
        if self.files.contains_key(&path) {
            self.found.insert(path);
        } else if may_be_folder {
            let is_in = |name: &&String| {
                let rest = name.strip_prefix(&path);
                path.is_empty() || rest.is_some_and(|rest| rest.starts_with('/'))
            };
            let files = self.files.keys().filter(is_in);
            self.found.extend(files.cloned());
        }
    }
}

/// The path that a line includes.
fn nested_in<'a>(words: &[&'a str]) -> Option<&'a str> {
    let (first, rest) = words.split_first()?;
    NESTED.iter().find_map(|(short, long)| {
        let behind = match first.strip_prefix(long) {
            Some(behind) => behind.strip_prefix('=').unwrap_or(behind),
            None => first.strip_prefix(short)?,
        };
        match behind {
            "" => rest.first().copied(),
            behind => Some(behind),
        }
    })
}

/// Lines with the number of each, without comments; one that ends with a backslash goes on in the next.
fn logical_lines(text: &str) -> Vec<(usize, String)> {
    let mut lines: Vec<(usize, String)> = vec![];
    let mut goes_on = false;
    for (number, line) in (1..).zip(text.lines()) {
        let is_comment = line.trim_start().starts_with('#');
        let line = match line.find(" #") {
            _ if is_comment => "",
            Some(at) => &line[..at],
            None => line,
        };
        let (line, is_open) = match line.strip_suffix('\\') {
            Some(line) => (line, true),
            None => (line, false),
        };
        match lines.last_mut().filter(|_| goes_on) {
            Some((_, open)) => open.push_str(line),
            None => lines.push((number, line.to_owned())),
        }
        goes_on = is_open;
    }
    lines
}

/// A path as files of a job are named; none where it leads elsewhere. The folder of the job is empty.
fn joined(folder: &str, path: &str) -> Option<String> {
    if path.starts_with('/') {
        return None;
    }
    let mut parts = vec![];
    for part in folder.split('/').chain(path.split('/')) {
        match part {
            "" | "." => {}
            ".." => drop(parts.pop()?),
            part => parts.push(part),
        }
    }
    Some(parts.join("/"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILES: [&str; 9] = [
        "a.lock",
        "deps/b.lock",
        "deps/c.lock",
        "make.sh",
        "numpy/a.py",
        "pkg/setup.py",
        "pkg/src/a.py",
        "train.py",
        "wheels/tiny-1.0-py3-none-any.whl",
    ];

    fn found(locks: &[(&str, &str)], setup: Option<&str>) -> Result<Vec<String>, String> {
        let spec = EnvironmentSpec {
            lock: locks.iter().take(1).map(|it| it.0.to_owned()).collect(),
            setup: setup.map(str::to_owned),
            inputs: None,
        };
        let mut files: BTreeMap<_, _> = FILES.map(|name| (name.to_owned(), 1)).into();
        files.insert("large.lock".to_owned(), LOCK_BYTES_MAX + 1);
        let read = |name: &str| {
            let text = locks.iter().find(|it| it.0 == name);
            Ok(text.expect("it is read").1.as_bytes().to_vec())
        };
        let found = spec.inputs_among(&files, read);
        let found = found.map_err(|error| error.to_string())?;
        let others = found.into_iter().filter(|name| name != "a.lock");
        Ok(others.collect())
    }

    fn of_lock(text: &str) -> Vec<String> {
        found(&[("a.lock", text)], None).unwrap()
    }

    fn of_setup(setup: &str) -> Vec<String> {
        found(&[], Some(setup)).unwrap()
    }

    /// SEMANTICS 191.
    #[test]
    fn files_that_lock_files_name_by_path_are_found() {
        let pkg = ["pkg/setup.py", "pkg/src/a.py"];
        assert_eq!(of_lock("# ./pkg\nnumpy==2.1\n./pkg[dev] ; x\n"), pkg);
        assert_eq!(of_lock("pkg @ file:./pkg # it\n"), pkg);
        assert_eq!(of_lock("a==1 \\\n  ./pkg\n"), pkg);
        assert_eq!(of_lock("torch\nnumpy  # numpy/a.py\n"), [""; 0]);
        let wheel = ["wheels/tiny-1.0-py3-none-any.whl"];
        assert_eq!(of_lock(&format!("./{}\n", wheel[0])), wheel);
        assert_eq!(of_lock("--find-links=wheels/\ntiny\n"), wheel);
        assert_eq!(of_lock("/abs/pkg\nhttps://host/train.py\n../x\n"), [""; 0]);
        assert_eq!(of_lock(".\n").len(), 9, "all but itself");
        // Settings of a project name its folder, and do not install it.
        let toml = "source = { editable = \".\" }\nother = { path = \"./pkg\" }\n";
        assert_eq!(of_lock(toml), pkg);
        let nested = [
            ("a.lock", "-r deps/b.lock\n"),
            ("deps/b.lock", "--constraint=c.lock\n-rb.lock\n./make.sh\n"),
            ("deps/c.lock", "tiny==1\n"),
        ];
        let expect = ["deps/b.lock", "deps/c.lock", "make.sh"];
        assert_eq!(found(&nested, None).unwrap(), expect);
    }

    /// SEMANTICS 191.
    #[test]
    fn files_that_a_command_names_are_found() {
        assert_eq!(of_setup("./make.sh"), ["make.sh"]);
        assert_eq!(of_setup("set -e; \"$PWD/make.sh\" x"), ["make.sh"]);
        assert_eq!(of_setup(". ./make.sh && echo train"), ["make.sh"]);
        assert_eq!(of_setup("[ -e /x ] || ./make.sh"), ["make.sh"]);
        assert_eq!(of_setup("until [ -e /x ]; do [[ x ]]; done"), [""; 0]);
        let pkg = ["pkg/setup.py", "pkg/src/a.py"];
        assert_eq!(of_setup("pip install --target=$X './pkg'"), pkg);
        assert_eq!(of_setup("cp -r pkg $X"), pkg);
        let wheel = ["wheels/tiny-1.0-py3-none-any.whl"];
        assert_eq!(of_setup("pip install wheels/*.whl"), wheel);
        assert_eq!(
            of_setup("cd pkg && pip install .").len(),
            9,
            "all but a.lock"
        );
        assert_eq!(of_setup("echo made > /tmp/train.py"), [""; 0]);
    }

    /// SEMANTICS 191.
    #[test]
    fn what_stays_in_the_folder_of_one_job_is_refused_with_its_line() {
        for line in [
            "-e ./pkg",
            "  --editable=./pkg",
            "-e.",
            "--editable \\\n ./pkg",
        ] {
            let said = found(&[("a.lock", &format!("x==1\n{line}\n"))], None).unwrap_err();
            assert!(said.contains("line 2 of `a.lock`"), "{said}");
        }
        assert_eq!(of_lock("--extra-index-url x\n"), [""; 0]);
        // A script is no list for pip.
        assert_eq!(of_lock("#!/bin/sh\nls \\\n\n-e ./pkg\n"), [""; 0]);
        let said = found(&[("large.lock", "")], None).unwrap_err();
        assert!(
            said.contains("`large.lock`") && said.contains("16777217"),
            "{said}"
        );
        assert!(found(&[("none.lock", "")], None).is_err());
    }
}
