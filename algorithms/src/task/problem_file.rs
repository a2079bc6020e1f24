//! Files of problems, a JSON object a line: how they are read, and what of them is left out.

use std::{
    fs::File,
    io::{BufRead, BufReader, Read},
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::{draw, error::TaskError, problem::Problem};
use crate::json;

/// The rule for a line that holds no problem.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnBad {
    /// The file is refused, and the line is named.
    #[default]
    Fail,
    /// It is left out, and told.
    Skip,
}

/// The lines of a file of problems that are left out: how many, and the first of them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProblemsLeftOut {
    /// Number of lines.
    pub lines: u64,
    /// The first few: file, line and reason.
    pub first: Vec<String>,
}

impl ProblemsLeftOut {
    /// A line is left out.
    pub(super) fn line(&mut self, path: &Path, line: usize, reason: &str) {
        self.lines += 1;
        if self.first.len() < FIRST {
            self.first
                .push(format!("{}:{line}: {reason}", path.display()));
        }
    }
}

/// A problem and the line that it is on.
pub(super) struct Numbered<P> {
    pub(super) line: usize,
    pub(super) problem: P,
}

/// The lines of a file by the problems on them, so that who refuses one can say where it is.
#[derive(Clone, Debug, Default)]
pub(super) struct Lines(Vec<(u64, u32)>);

impl Lines {
    pub(super) fn of(problems: &[Numbered<Problem>]) -> Self {
        let hashed = problems
            .iter()
            .map(|it| (draw::hash(&it.problem.prompt), it.line as u32));
        let mut lines: Vec<(u64, u32)> = hashed.collect();
        lines.sort_unstable();
        Self(lines)
    }

    /// The first line with this prompt.
    pub(super) fn of_prompt(&self, prompt: &str) -> Option<usize> {
        let hash = draw::hash(prompt);
        let at = self.0.partition_point(|(known, _)| *known < hash);
        let (known, line) = self.0.get(at)?;
        (*known == hash).then_some(*line as usize)
    }
}

/// The way in which a file is read.
pub(super) struct Reading<'a> {
    pub(super) path: &'a Path,
    pub(super) on_bad: OnBad,
    /// A prompt of more bytes is a bad one.
    pub(super) prompt_bytes_max: Option<usize>,
}

impl Reading<'_> {
    /// The problems that `parse` makes of the objects of a file, and the lines of which it makes none.
    pub(super) fn problems<P>(
        &self,
        parse: impl Fn(&Map<String, Value>) -> Result<P, String>,
        prompt: impl Fn(&P) -> &str,
    ) -> Result<(Vec<Numbered<P>>, ProblemsLeftOut), TaskError> {
        let mut problems = Vec::new();
        let mut left_out = ProblemsLeftOut::default();
        let mut first = None;
        self.each_line(|line, bytes| {
            let made = object(bytes).and_then(|row| parse(&row));
            let made = made.and_then(|problem| match self.prompt_bytes_max {
                Some(most) if prompt(&problem).len() > most => Err(format!(
                    "its prompt has {} bytes, more than prompt_bytes_max = {most}",
                    prompt(&problem).len()
                )),
                _ => Ok(problem),
            });
            match made {
                Ok(problem) => problems.push(Numbered { line, problem }),
                Err(reason) => {
                    left_out.line(self.path, line, &reason);
                    first.get_or_insert((line, reason));
                }
            }
        })?;
        match first {
            Some((line, mut detail)) if self.on_bad == OnBad::Fail || problems.is_empty() => {
                match left_out.lines - 1 {
                    0 => {}
                    more => {
                        detail.push_str(&format!(" ({more} more lines cannot be used either)"));
                    }
                }
                if !problems.is_empty() {
                    detail.push_str("; on_bad = \"skip\" leaves such lines out");
                }
                Err(TaskError::Line {
                    path: self.path.into(),
                    line,
                    detail,
                })
            }
            None if problems.is_empty() => {
                Err(self.refused("it is empty: there is no line with a problem"))
            }
            _ => Ok((problems, left_out)),
        }
    }

    /// Gives each line that is not blank, by its number from 1 on.
    fn each_line(&self, mut each: impl FnMut(usize, &[u8])) -> Result<(), TaskError> {
        let unread = |source| TaskError::Read {
            path: self.path.into(),
            source,
        };
        let mut file = BufReader::with_capacity(1 << 16, File::open(self.path).map_err(unread)?);
        let head = file.fill_buf().map_err(unread)?;
        if let Some((_, kind)) = KINDS.iter().find(|(magic, _)| head.starts_with(magic)) {
            return Err(self.refused(kind));
        }
        if head.starts_with(b"\xef\xbb\xbf") {
            file.consume(3);
        }
        let (mut line, mut bytes) = (0, Vec::new());
        loop {
            bytes.clear();
            line += 1;
            let most = LINE_BYTES_MAX + 1;
            let count = (&mut file).take(most).read_until(b'\n', &mut bytes);
            match count.map_err(unread)? {
                0 => return Ok(()),
                count if count as u64 == most => {
                    return Err(TaskError::Line {
                        path: self.path.into(),
                        line,
                        detail: "it is longer than 1 MiB, which is no problem".to_owned(),
                    });
                }
                _ if bytes.trim_ascii().is_empty() => {}
                _ => each(line, bytes.trim_ascii()),
            }
        }
    }

    fn refused(&self, detail: &str) -> TaskError {
        TaskError::File {
            path: PathBuf::from(self.path),
            detail: detail.to_owned(),
        }
    }
}

/// The object that a line is. Of a key that is there twice, the last counts, as in Python.
fn object(line: &[u8]) -> Result<Map<String, Value>, String> {
    let text =
        |line| std::str::from_utf8(line).map_err(|error| format!("it is not UTF-8: {error}"));
    text(line)?;
    let read = serde_json::from_slice::<Value>(line);
    let read = match (read, json::tolerated(line)) {
        (Err(_), Some(line)) => serde_json::from_slice(&line),
        (read, _) => read,
    };
    match read {
        Ok(Value::Object(row)) => Ok(row),
        Ok(other) => Err(format!("it is {} and not an object", kind(&other))),
        Err(error) => Err(format!("it is not JSON: {error}")),
    }
}

/// The text of a field, if it is there.
pub(super) fn text<'r>(
    row: &'r Map<String, Value>,
    field: &str,
) -> Result<Option<&'r str>, String> {
    match row.get(field) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) => Ok(Some(text)),
        Some(other) => Err(format!("`{field}` is {}, and a text is read", kind(other))),
    }
}

/// The fields that a row has, for who misses one.
pub(super) fn fields(row: &Map<String, Value>) -> String {
    let all = row
        .iter()
        .map(|(name, value)| format!("`{name}` ({})", kind(value)));
    match row.is_empty() {
        true => "it has no fields".to_owned(),
        false => format!("it has {}", all.collect::<Vec<_>>().join(", ")),
    }
}

fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "true or false",
        Value::Number(_) => "a number",
        Value::String(_) => "a text",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}

/// Files that are no lines of JSON, by how they begin.
const KINDS: &[(&[u8], &str)] = &[
    (
        b"\x1f\x8b",
        "it is compressed with gzip: decompress it, as with `gzip -d`",
    ),
    (
        b"\x28\xb5\x2f\xfd",
        "it is compressed with Zstandard: decompress it, as with `zstd -d`",
    ),
    (
        b"PAR1",
        "it is a Parquet file, and lines of JSON are read: write it so, as with \
         `Dataset.to_json`",
    ),
    (b"\xff\xfe", "it is UTF-16, and UTF-8 is read"),
    (b"\xfe\xff", "it is UTF-16, and UTF-8 is read"),
    (
        b"[",
        "it is a JSON array, and an object a line is read: write its items as lines, as with \
         `jq -c '.[]'`",
    ),
];

/// A longer line is no problem that anybody asks.
const LINE_BYTES_MAX: u64 = 1 << 20;

/// As many lines that are left out are told with their reasons.
const FIRST: usize = 8;
