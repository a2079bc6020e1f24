//! The program of a job: an executable that travels, a script, a name that its node looks up, or a
//! gang of one of these; with the files that the words name.

use std::fs;
use std::io::Read;
use std::path::{Component, Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};

use super::files::{self, Found};
use super::recipe::{Kept, Sent};
use super::{plain, this_program};
use crate::args::{RankArgs, RankRange, SetArgs};

/// The job's executable, its name where it is not that of the file, the words that it is given, and
/// the files that these name.
#[derive(Debug)]
pub(super) struct What {
    pub(super) program: PathBuf,
    pub(super) name: Option<String>,
    pub(super) words: Vec<String>,
    pub(super) files: Vec<(String, PathBuf)>,
    pub(super) links: Vec<(String, String)>,
    /// What people should know of it.
    pub(super) notes: Vec<String>,
    /// Variables that it needs.
    pub(super) env: Vec<(String, String)>,
    /// What has to be there until it is sent.
    pub(super) kept: Option<Kept>,
}

impl What {
    /// A program with a command line, which has its name if it is given none.
    fn new(program: impl Into<PathBuf>, name: Option<String>, line: Line) -> Self {
        Self {
            program: program.into(),
            name,
            words: line.words,
            files: line.files,
            links: line.links,
            notes: line.notes,
            env: vec![],
            kept: None,
        }
    }

    /// A recipe, which this program runs.
    fn recipe(path: &Path, words: &[String], set: &SetArgs) -> Result<Self> {
        let (mut set, mut fresh, mut left) = (set.clone(), None, words.iter());
        while let Some(word) = left.next() {
            match (word.as_str(), word.strip_prefix("--set=")) {
                ("--fresh", _) => fresh = Some(word.clone()),
                ("--set", _) if !left.as_slice().is_empty() => {
                    set.fields.extend(left.next().cloned());
                }
                (_, Some(field)) => set.fields.push(field.to_owned()),
                ("--set", _) => bail!("--set: expected KEY=VALUE behind it"),
                (other, _) => bail!(
                    "`{other}` is no word of a recipe: behind {} --fresh and --set KEY=VALUE may stand, and \
                     nothing else",
                    path.display()
                ),
            }
        }
        let sent = Sent::read(path, &set)?;
        Ok(Self {
            program: this_program()?,
            name: Some(sent.name),
            words: sent.words.into_iter().chain(fresh).collect(),
            files: sent.files,
            links: vec![],
            notes: sent.notes,
            env: sent.env,
            kept: Some(sent.kept),
        })
    }
}

/// A program as it is named.
#[derive(Clone, Copy, Debug)]
pub(super) struct Asked<'a> {
    /// The program and its words.
    pub(super) words: &'a [String],
    /// The gang of it, if it is one.
    pub(super) ranks: Option<Ranks<'a>>,
    /// Fields of the recipe, if it is one.
    pub(super) set: &'a SetArgs,
    /// Set where nodes install the environment that it may be of.
    pub(super) installs: bool,
}

/// The gang of a program.
#[derive(Clone, Copy, Debug)]
pub(super) enum Ranks<'a> {
    /// So many ranks, each with this, and as many cards as that.
    Of(RankRange, &'a RankArgs, Option<u32>),
    /// As these words have it, up to its program.
    AsBefore(&'a [String]),
}

/// A program as it is named, or this one, which runs a gang of it.
pub(super) fn what(args: &Asked<'_>) -> Result<What> {
    let here = std::env::current_dir().context("finding the current folder")?;
    let path = std::env::var("PATH").unwrap_or_default();
    if let Some(ranks) = args.ranks {
        let program = args.words.first().context("no program to submit")?;
        check_no_fields(program, args.set)?;
        if here.join(program).is_file() {
            check_line_ends(&here.join(program))?;
        }
        let mut gang = Line::read(args.words, &here)?;
        let name = gang.name();
        gang.words = match ranks {
            Ranks::Of(ranks, each, gpus) => gang_words(ranks, each, gpus, &gang.words),
            Ranks::AsBefore(head) => [head, &gang.words].concat(),
        };
        return Ok(What::new(this_program()?, name, gang));
    }
    let (program, words) = args.words.split_first().context("no program to submit")?;
    if program.ends_with(".toml") && here.join(program).is_file() {
        return What::recipe(Path::new(program), words, args.set);
    }
    check_no_fields(program, args.set)?;
    let installs = args.installs;
    let script = match kind_of(Path::new(program), &here, &path, installs)? {
        Kind::Executable => {
            let line = Line {
                words: words.to_vec(),
                ..Line::default()
            };
            return Ok(What::new(program, None, line));
        }
        Kind::LookedUp => {
            let line = Line::read(args.words, &here)?;
            return Ok(What::new(ENV, line.name(), line));
        }
        Kind::Script(interpreter) => interpreter,
    };
    let mut line = Line::read(words, &here)?;
    let file = below(program).or_else(|| file_name(program));
    let file = file.with_context(|| format!("`{program}` names no file"))?;
    line.files.retain(|(known, _)| *known != file);
    let own = [format!("./{file}")];
    let name = Path::new(&file)
        .file_name()
        .map(|it| plain(&it.to_string_lossy()));
    line.files.push((file, here.join(program)));
    line.words = script.into_iter().chain(own).chain(line.words).collect();
    Ok(What::new(ENV, name, line))
}

/// Refuses fields of a recipe for a program that is none.
fn check_no_fields(program: &str, set: &SetArgs) -> Result<()> {
    match set.fields.first() {
        None => Ok(()),
        Some(field) => bail!(
            "--set {field}: `{program}` is no recipe, whose fields that changes; words for the program stand behind --"
        ),
    }
}

/// What a job's program is here.
#[derive(Debug, PartialEq, Eq)]
enum Kind {
    /// A file that travels and is started.
    Executable,
    /// A file that its interpreter reads, which the node has; with what the interpreter is given.
    Script(Vec<String>),
    /// A name that the node looks up, or a path of an environment that it has.
    LookedUp,
}

/// Finds out; a name that is nowhere here may be of an environment that nodes install.
fn kind_of(program: &Path, here: &Path, path: &str, installs: bool) -> Result<Kind> {
    let file = here.join(program);
    if environment(&file).is_some() {
        return Ok(Kind::LookedUp);
    }
    if file.is_file() {
        let head = check_line_ends(&file)?;
        return Ok(match interpreter_of(&head) {
            Some(interpreter) => Kind::Script(interpreter),
            None if is_text(&head) => match other_interpreter(&file) {
                None => Kind::Script(vec![SHELL.to_owned()]),
                Some(interpreter) => bail!(
                    "{0} has no first line that names its interpreter (`#!`): submit `{interpreter} {0}`",
                    program.display()
                ),
            },
            None => Kind::Executable,
        });
    }
    let is_named = program.components().count() == 1 && !file.exists();
    if !is_named {
        return Ok(Kind::Executable);
    }
    let mut folders = path.split(':').filter(|part| !part.is_empty());
    if installs || folders.any(|folder| Path::new(folder).join(program).is_file()) {
        return Ok(Kind::LookedUp);
    }
    bail!(
        "there is no program `{}` in this folder or in PATH ({path})",
        program.display()
    )
}

/// The beginning of a program's file.
///
/// # Errors
/// It cannot be read, or is a script for a shell with line ends that the shell takes for letters.
pub(in crate::command) fn check_line_ends(file: &Path) -> Result<Vec<u8>> {
    let mut head = vec![];
    let read = fs::File::open(file).and_then(|it| it.take(HEAD_BYTES).read_to_end(&mut head));
    read.with_context(|| file.display().to_string())?;
    let first = head.split(|byte| *byte == b'\n').next();
    let shell = match interpreter_of(&head) {
        Some(words) => {
            let mut words = words.iter().flat_map(|it| it.split_whitespace());
            words.find(|it| is_shell(it)).map(str::to_owned)
        }
        None if is_text(&head) => Some(SHELL.to_owned()),
        None => None,
    };
    if let Some(shell) = shell.filter(|_| first.is_some_and(|line| line.ends_with(b"\r"))) {
        let file = file.display();
        bail!(
            "{file} has the line ends of Windows (CRLF), of which {shell} takes a part for the words of \
             the script: remove them with `dos2unix {file}` or `sed -i 's/\\r$//' {file}`"
        );
    }
    Ok(head)
}

fn is_shell(program: &str) -> bool {
    let name = Path::new(program).file_name().and_then(|it| it.to_str());
    name.is_some_and(|name| SHELLS.contains(&name))
}

/// Returns true for what a shell would run that the kernel does not: no program, and nothing in it that is
/// no text.
fn is_text(head: &[u8]) -> bool {
    let text = match std::str::from_utf8(head) {
        Ok(_) => true,
        // The beginning may end inside of a character.
        Err(error) => error.error_len().is_none(),
    };
    text && !head.starts_with(b"\x7fELF") && !head.contains(&0)
}

/// The interpreter of a script whose name says that it is none for a shell.
fn other_interpreter(file: &Path) -> Option<&'static str> {
    let ending = file.extension()?.to_str()?;
    let known = [
        ("py", "python3"),
        ("pl", "perl"),
        ("rb", "ruby"),
        ("js", "node"),
        ("lua", "lua"),
        ("R", "Rscript"),
    ];
    known.iter().find(|it| it.0 == ending).map(|it| it.1)
}

/// The words of a script's first line: the interpreter, and its argument if there is one.
fn interpreter_of(head: &[u8]) -> Option<Vec<String>> {
    let line = head.strip_prefix(b"#!")?;
    let line = line.split(|byte| *byte == b'\n').next().unwrap_or_default();
    let line = String::from_utf8_lossy(line);
    let (interpreter, argument) = match line.trim().split_once(char::is_whitespace) {
        Some((interpreter, argument)) => (interpreter, Some(argument.trim())),
        None => (line.trim(), None),
    };
    (!interpreter.is_empty()).then(|| {
        let words = std::iter::once(interpreter).chain(argument);
        words.map(str::to_owned).collect()
    })
}

/// A command line, and what of this folder it needs.
#[derive(Debug, Default)]
struct Line {
    words: Vec<String>,
    /// The module of Python that it names.
    module: Option<String>,
    files: Vec<(String, PathBuf)>,
    links: Vec<(String, String)>,
    notes: Vec<String>,
}

impl Line {
    /// Files that the words name travel, and a package that `-m` names. An environment stays where it
    /// is: it is no single file, so its nodes must have it in the same place.
    fn read(words: &[String], here: &Path) -> Result<Self> {
        let mut line = Self::default();
        let mut rest = vec![];
        for word in words {
            let path = here.join(word);
            match environment(&path).filter(|_| word.contains('/')) {
                Some(environment) => {
                    line.notes.push(format!(
                        "`{word}` is of the environment {}, which is not sent: the job runs on nodes \
                         that have it there",
                        environment.display()
                    ));
                    line.words.push(path_of(&path));
                }
                None => {
                    line.words.push(word.clone());
                    rest.push(word.clone());
                }
            }
        }
        for file in named_files(&rest, |path| here.join(path).is_file()) {
            let path = here.join(&file);
            line.files.push((file, path));
        }
        let module = words.iter().skip_while(|word| *word != "-m").nth(1);
        if let Some(module) = module.filter(|it| is_module(it)) {
            let found = module_files(module, here)?;
            line.files.extend(found.files);
            line.links.extend(found.links);
        }
        line.module = module.filter(|it| is_module(it)).cloned();
        Ok(line)
    }

    /// A name for the job: that of the first file that it names, or its program's.
    fn name(&self) -> Option<String> {
        let stem = match self.module.as_ref() {
            Some(module) => module.clone(),
            None => {
                let named = self.files.first().map(|(name, _)| name);
                let stem = Path::new(named.or_else(|| self.words.first())?).file_stem()?;
                stem.to_string_lossy().into_owned()
            }
        };
        Some(plain(&stem))
    }
}

/// The environment of Python that a program belongs to.
fn environment(program: &Path) -> Option<&Path> {
    let folder = program.parent()?.parent()?;
    (program.is_file() && folder.join("pyvenv.cfg").is_file()).then_some(folder)
}

/// A path in full, whatever it is a link to: an environment knows its programs by where they are.
fn path_of(path: &Path) -> String {
    let full = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    full.display().to_string()
}

fn is_module(word: &str) -> bool {
    let is_name = |part: &str| {
        let mut letters = part.chars();
        letters
            .next()
            .is_some_and(|it| it.is_alphabetic() || it == '_')
            && letters.all(|it| it.is_alphanumeric() || it == '_')
    };
    word.split('.').all(is_name)
}

/// The files of a module of this folder: of a package all, of its outermost one.
fn module_files(module: &str, here: &Path) -> Result<Found> {
    let outermost = module.split('.').next().unwrap_or(module);
    let (folder, file) = (here.join(outermost), format!("{outermost}.py"));
    if folder.is_dir() {
        return files::of_folder(outermost, &folder);
    }
    let path = here.join(&file);
    Ok(Found {
        files: Vec::from_iter(path.is_file().then_some((file, path))),
        ..Found::default()
    })
}

/// A word for each package of this folder that a script imports and that does not travel.
pub(super) fn unsent_packages(sent: &[(String, PathBuf)], here: &Path) -> Vec<String> {
    let scripts = sent.iter().filter(|(name, _)| name.ends_with(".py"));
    let mut notes: Vec<String> = vec![];
    for (name, path) in scripts {
        let Ok(text) = fs::read_to_string(path) else {
            continue;
        };
        for module in text.lines().filter_map(imported) {
            let package = here.join(module);
            let goes = |(known, _): &&(String, PathBuf)| {
                known
                    .strip_prefix(module)
                    .is_some_and(|it| it.starts_with('/'))
            };
            let is_package = package.join("__init__.py").is_file();
            let note = format!("{name} imports `{module}`, which is not sent: add --file {module}");
            if is_package && !sent.iter().any(|it| goes(&it)) && !notes.contains(&note) {
                notes.push(note);
            }
        }
    }
    notes
}

/// The outermost module that a line of Python imports.
fn imported(line: &str) -> Option<&str> {
    let line = line.trim_start();
    let rest = line
        .strip_prefix("import ")
        .or_else(|| line.strip_prefix("from "))?;
    let end = rest.find(|it: char| !it.is_alphanumeric() && it != '_');
    Some(&rest[..end.unwrap_or(rest.len())]).filter(|it| !it.is_empty())
}

/// A path below the current folder, as a job is to find it there.
pub(super) fn below(path: &str) -> Option<String> {
    let parts: Option<Vec<_>> = Path::new(path)
        .components()
        .filter(|part| *part != Component::CurDir)
        .map(|part| match part {
            Component::Normal(part) => part.to_str(),
            _ => None,
        })
        .collect();
    let parts = parts.filter(|parts| !parts.is_empty())?;
    Some(parts.join("/"))
}

/// The last name of a path.
pub(super) fn file_name(path: &str) -> Option<String> {
    let name = Path::new(path).file_name()?.to_str()?;
    Some(name.to_owned())
}

/// The words that name files below the current folder, each once, as the job is to find them.
fn named_files(words: &[String], is_file: impl Fn(&Path) -> bool) -> Vec<String> {
    let mut files: Vec<String> = vec![];
    for word in words {
        if let Some(name) = below(word)
            && is_file(Path::new(word))
            && !files.contains(&name)
        {
            files.push(name);
        }
    }
    files
}

/// The words by which this program runs a gang.
fn gang_words(
    ranks: RankRange,
    each: &RankArgs,
    gpus: Option<u32>,
    program: &[String],
) -> Vec<String> {
    let mut words = vec!["gang".to_owned(), ranks.to_string()];
    let mut say = |name: &str, value: Option<String>| {
        words.extend(value.map(|value| format!("--{name}={value}")));
    };
    say("max-restarts", Some(each.max_restarts.to_string()));
    let devices = each.devices_per_rank.or(gpus);
    say("devices-per-rank", devices.map(|count| count.to_string()));
    say("cpus", each.cpus.map(|cores| cores.to_string()));
    // A power of two less is exact.
    let kib = |bytes: u64| format!("{}KiB", bytes as f64 / 1024.0);
    say("memory", each.memory.map(kib));
    say("device-memory", each.device_memory.map(kib));
    let seconds = |time: Duration| format!("{}s", time.as_secs());
    say("last-call", each.last_call.map(seconds));
    say("hang-after", each.hang_after.map(seconds));
    say("name-after", each.name_after.map(seconds));
    say("grace", Some(each.rank_grace().as_secs().to_string()));
    words.push("--".to_owned());
    words.extend_from_slice(program);
    words
}

/// The program of every Linux that looks another one up.
const ENV: &str = "/usr/bin/env";
/// The shell that runs a script without a first line for another program, as shells have it.
const SHELL: &str = "/bin/sh";
/// Shells by their names.
const SHELLS: [&str; 6] = ["sh", "bash", "dash", "ash", "ksh", "zsh"];
/// Bytes at the beginning of a file that tell a script.
const HEAD_BYTES: u64 = 512;

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<String> {
        text.split(' ').map(str::to_owned).collect()
    }

    #[test]
    fn files_below_this_folder_are_found_among_the_words() {
        let there = ["train.py", "./src/net.py", "/etc/passwd", "../up", "data"];
        let is_file = |path: &Path| there.iter().any(|it| Path::new(it) == path);
        let line = "python3 train.py ./src/net.py /etc/passwd ../up --x=data train.py data .";
        let found = named_files(&words(line), is_file);
        assert_eq!(found, ["train.py", "src/net.py", "data"]);
    }

    #[test]
    fn a_program_is_a_file_a_script_or_a_name_that_is_looked_up() {
        let folder = tempfile::tempdir().unwrap();
        let here = folder.path();
        fs::write(here.join("start.sh"), "#!/bin/sh -e\necho\n").unwrap();
        fs::write(here.join("own.py"), "#!/usr/bin/env python3\n").unwrap();
        fs::write(here.join("program"), b"\x7fELF").unwrap();
        fs::create_dir_all(here.join("venv/bin")).unwrap();
        fs::write(here.join("venv/pyvenv.cfg"), "").unwrap();
        fs::write(here.join("venv/bin/python"), b"\x7fELF").unwrap();
        let check = |program: &str, expect: Kind| {
            let kind = kind_of(Path::new(program), here, "/usr/bin:/bin", false).unwrap();
            assert_eq!(kind, expect, "{program}");
        };
        check("start.sh", Kind::Script(words("/bin/sh -e")));
        check("./own.py", Kind::Script(words("/usr/bin/env python3")));
        check("program", Kind::Executable);
        fs::write(here.join("plain.sh"), "echo plain\n").unwrap();
        check("plain.sh", Kind::Script(words("/bin/sh")));
        fs::write(here.join("image"), b"RIFF\0\0").unwrap();
        check("image", Kind::Executable);
        // Python does not mind the line ends of Windows, and shells do.
        fs::write(here.join("win.py"), "#!/usr/bin/env python3\r\n1\r\n").unwrap();
        check("win.py", Kind::Script(words("/usr/bin/env python3")));
        for script in [
            "#!/bin/sh\r\nls\r\n",
            "#!/usr/bin/env bash\r\n",
            "#!/bin/sh -e\r\n",
            "ls\r\n",
        ] {
            fs::write(here.join("win.sh"), script).unwrap();
            let error = kind_of(Path::new("win.sh"), here, "/bin", false).unwrap_err();
            let said = error.to_string();
            assert!(
                said.contains("(CRLF)") && said.contains("dos2unix"),
                "{said}"
            );
        }
        check("/bin/sh", Kind::Executable);
        check("sh", Kind::LookedUp);
        check("venv/bin/python", Kind::LookedUp);
        let named = Path::new("no-such-program");
        let installed = kind_of(named, here, "/bin", true).unwrap();
        assert_eq!(installed, Kind::LookedUp);
        let error = kind_of(named, here, "/bin", false).unwrap_err();
        assert!(
            error
                .to_string()
                .contains("in this folder or in PATH (/bin)"),
            "{error}"
        );
    }

    #[test]
    fn an_environment_stays_and_a_module_travels() {
        let folder = tempfile::tempdir().unwrap();
        let here = folder.path();
        fs::create_dir_all(here.join("venv/bin")).unwrap();
        fs::write(here.join("venv/pyvenv.cfg"), "").unwrap();
        fs::write(here.join("venv/bin/python"), "").unwrap();
        fs::create_dir_all(here.join("pkg/sub")).unwrap();
        fs::write(here.join("pkg/__init__.py"), "").unwrap();
        fs::write(here.join("pkg/sub/a.py"), "").unwrap();
        fs::write(here.join("x.py"), "import pkg.sub\nfrom os import path\n").unwrap();
        let line = Line::read(&words("venv/bin/python -m pkg.sub.a"), here).unwrap();
        assert_eq!(
            line.words[0],
            here.join("venv/bin/python").display().to_string()
        );
        let sent: Vec<_> = line.files.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(sent, ["pkg/__init__.py", "pkg/sub/a.py"]);
        assert!(line.notes[0].contains("is not sent"), "{:?}", line.notes);
        assert_eq!(line.name().unwrap(), "pkg.sub.a");
        let mut sent = Line::read(&words("python3 x.py"), here).unwrap().files;
        assert_eq!(
            unsent_packages(&sent, here),
            ["x.py imports `pkg`, which is not sent: add --file pkg"]
        );
        sent.extend(line.files);
        assert_eq!(unsent_packages(&sent, here), Vec::<String>::new());
    }

    #[test]
    fn a_gang_is_submitted_with_what_was_said_of_it() {
        let each = RankArgs {
            max_restarts: 2,
            devices_per_rank: None,
            cpus: Some(0.5),
            memory: Some(3 << 29),
            device_memory: Some((20 << 30) + 1),
            grace: None,
            hang_after: Some(Duration::from_secs(600)),
            name_after: Some(Duration::from_secs(30)),
            last_call: Some(Duration::from_secs(90)),
        };
        let ranks = "2:4".parse().unwrap();
        let line = gang_words(
            ranks,
            &each,
            None,
            &words("python3 train.py --max-restarts 9"),
        );
        let expect = "gang 2:4 --max-restarts=2 --cpus=0.5 --memory=1572864KiB --device-memory=20971520.000976563KiB --last-call=90s --hang-after=600s --name-after=30s --grace=5 -- python3 train.py --max-restarts 9";
        assert_eq!(line.join(" "), expect);
    }
}
