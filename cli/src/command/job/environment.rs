//! Variables for a job: those of `--env`, and of files of them.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow};

/// Names and values in their order: those of the files, then those that are named, of which the last
/// of a name counts.
pub(super) fn variables(files: &[PathBuf], named: &[String]) -> Result<Vec<(String, String)>> {
    let mut all = vec![];
    for path in files {
        let text = std::fs::read_to_string(path)
            .with_context(|| format!("`--env-file {}` cannot be read", path.display()))?;
        for (line, number) in text.lines().zip(1..) {
            let read = of_line(line).map_err(|what| at(path, number, &what))?;
            match read {
                Line::Nothing => {}
                Line::Set(name, value) => all.push((name, value)),
                Line::Passed(name) => {
                    let value = std::env::var(&name).map_err(|_| {
                        at(
                            path,
                            number,
                            &format!("{name} is not set here, and has no value"),
                        )
                    })?;
                    all.push((name, value));
                }
            }
        }
    }
    for variable in named {
        let (name, value) = match variable.split_once('=') {
            Some((name, value)) => (name.to_owned(), value.to_owned()),
            None => {
                let value = std::env::var(variable).with_context(|| {
                    format!("`--env {variable}` passes on a variable that is not set here")
                })?;
                (variable.clone(), value)
            }
        };
        all.push((name, value));
    }
    Ok(all)
}

/// An error of a line. It tells no value: that may be a secret.
fn at(path: &Path, line: usize, what: &str) -> anyhow::Error {
    anyhow!("{}:{line}: {what}", path.display())
}

/// What a line of a file says.
#[derive(Debug, PartialEq)]
enum Line {
    Nothing,
    Set(String, String),
    /// That of this shell.
    Passed(String),
}

/// Reads a line: `NAME=VALUE` or `NAME`, with `export` before it or not. A value in single quotes is
/// taken as it is, in double quotes `\n`, `\t`, `\"`, `\\` and `\$` stand for what they do in a shell,
/// without quotes it ends before ` #`. Nothing is put in the place of `$NAME`.
fn of_line(line: &str) -> Result<Line, String> {
    let line = line.strip_prefix('\u{feff}').unwrap_or(line).trim();
    if line.is_empty() || line.starts_with('#') {
        return Ok(Line::Nothing);
    }
    let line = line.strip_prefix("export ").map_or(line, str::trim_start);
    let (name, value) = match line.split_once('=') {
        Some((name, value)) => (name.trim_end(), Some(value.trim_start())),
        None => (line, None),
    };
    let letter = |c: char| c.is_ascii_alphanumeric() || "_.-".contains(c);
    if name.is_empty()
        || !name.chars().all(letter)
        || name.starts_with(|c: char| c.is_ascii_digit())
    {
        return Err("this is no NAME=VALUE".to_owned());
    }
    let Some(value) = value else {
        return Ok(Line::Passed(name.to_owned()));
    };
    let value = match value.chars().next() {
        Some(quote @ ('"' | '\'')) => quoted(&value[1..], quote)?,
        _ => match value.find(" #").or_else(|| value.find("\t#")) {
            Some(end) => value[..end].trim_end().to_owned(),
            None => value.to_owned(),
        },
    };
    Ok(Line::Set(name.to_owned(), value))
}

/// The text up to the quote that ends it.
fn quoted(text: &str, quote: char) -> Result<String, String> {
    let mut value = String::new();
    let mut rest = text.chars();
    loop {
        match rest.next() {
            None => return Err(format!("the value has no {quote} at its end, in this line")),
            Some(end) if end == quote => break,
            Some('\\') if quote == '"' => match rest.next() {
                Some('n') => value.push('\n'),
                Some('t') => value.push('\t'),
                Some(other @ ('"' | '\\' | '$')) => value.push(other),
                Some(other) => value.extend(['\\', other]),
                None => {}
            },
            Some(other) => value.push(other),
        }
    }
    let behind = rest.as_str().trim_start();
    match behind.is_empty() || behind.starts_with('#') {
        true => Ok(value),
        false => Err(format!(
            "something stands behind the {quote} that ends the value"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_read_as_shells_and_containers_read_them() {
        let set = |name: &str, value: &str| Line::Set(name.to_owned(), value.to_owned());
        for (line, right) in [
            ("", Line::Nothing),
            ("  # A=1", Line::Nothing),
            ("A=1", set("A", "1")),
            ("\u{feff}A = a b ", set("A", "a b")),
            ("export A_B=x=y", set("A_B", "x=y")),
            ("A=a # b", set("A", "a")),
            ("A=a#b", set("A", "a#b")),
            ("A='a # $B \\n' # c", set("A", "a # $B \\n")),
            (r#"A="a\n\"b\" \$c \d""#, set("A", "a\n\"b\" $c \\d")),
            ("A=$B", set("A", "$B")),
            ("A=", set("A", "")),
            ("A=\"\"", set("A", "")),
            ("HOME", Line::Passed("HOME".to_owned())),
        ] {
            assert_eq!(of_line(line).unwrap(), right, "{line}");
        }
        for (line, words) in [
            ("=1", "no NAME=VALUE"),
            ("1A=1", "no NAME=VALUE"),
            ("A B=1", "no NAME=VALUE"),
            ("A='x", "no ' at its end"),
            ("A=\"x\\", "no \" at its end"),
            ("A=\"x\" y", "behind the \""),
        ] {
            let error = of_line(line).unwrap_err();
            assert!(error.contains(words), "{line}: {error}");
        }
    }

    #[test]
    fn files_come_before_what_is_named_and_errors_tell_no_value() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("own.env");
        std::fs::write(&file, "A=1\r\nB=2\nA=3\n").unwrap();
        let all = variables(std::slice::from_ref(&file), &["B=4".to_owned()]).unwrap();
        let of = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        assert_eq!(
            all,
            [of("A", "1"), of("B", "2"), of("A", "3"), of("B", "4")]
        );
        std::fs::write(&file, "A=1\nhush hush=secret\n").unwrap();
        let error = variables(std::slice::from_ref(&file), &[])
            .unwrap_err()
            .to_string();
        assert!(
            error.ends_with("own.env:2: this is no NAME=VALUE"),
            "{error}"
        );
        std::fs::write(&file, "NOBODY_SETS_THIS_ONE\n").unwrap();
        let error = variables(std::slice::from_ref(&file), &[])
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("own.env:1: NOBODY_SETS_THIS_ONE is not set here"),
            "{error}"
        );
        let error = variables(&[folder.path().join("none")], &[])
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("--env-file") && error.contains("none"),
            "{error}"
        );
    }
}
