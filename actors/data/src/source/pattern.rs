//! Paths with wildcards. Pure.

/// A path whose names may have `*` (any characters), `?` (one), `[0-9]` (one of these, `[!0-9]` one of
/// no others), or be `**` (any folders).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Pattern<'a> {
    path: &'a str,
    root: usize,
}

/// The paths that a path with braces stands for: `{a,b}` is either, `{000..011}` is each number from the
/// first to the last, as wide as they are written. A brace that is not closed is itself.
///
/// # Errors
/// There are more than a run can list.
pub(crate) fn braces(path: &str) -> Result<Vec<String>, String> {
    let mut done = Vec::new();
    let mut open = vec![path.to_owned()];
    while let Some(path) = open.pop() {
        match first_brace(&path) {
            None => done.push(path),
            Some((before, parts, after)) => {
                let all = parts.into_iter().rev();
                open.extend(all.map(|part| format!("{before}{part}{after}")));
            }
        }
        if done.len() + open.len() > BRACES_MAX {
            return Err(format!("its braces stand for more than {BRACES_MAX} files"));
        }
    }
    Ok(done)
}

/// The first brace that stands for something: the text before it, what it stands for, and the text
/// behind it.
fn first_brace(path: &str) -> Option<(&str, Vec<String>, &str)> {
    let mut from = 0;
    while let Some(at) = path[from..].find('{') {
        let start = from + at;
        let end = start + path[start..].find('}')?;
        // Of braces in braces the inner ones come first.
        let start = path[..end].rfind('{').unwrap_or(start);
        if let Some(parts) = alternatives(&path[start + 1..end]) {
            return Some((&path[..start], parts, &path[end + 1..]));
        }
        from = end + 1;
    }
    None
}

fn alternatives(inside: &str) -> Option<Vec<String>> {
    if let Some((first, last)) = inside.split_once("..") {
        let digits = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
        if !digits(first) || !digits(last) {
            return None;
        }
        let (from, to) = (first.parse::<u64>().ok()?, last.parse::<u64>().ok()?);
        let width = match first.len().max(last.len()) {
            // As wide as it is written where zeros say so.
            width if first.starts_with('0') || last.starts_with('0') => width,
            _ => 1,
        };
        let (low, high) = (from.min(to), from.max(to));
        let high = high.min(low.saturating_add(BRACES_MAX as u64 + 1));
        let all = (low..=high).map(|number| format!("{number:0width$}"));
        return Some(match from <= to {
            true => all.collect(),
            false => all.rev().collect(),
        });
    }
    let parts = inside.split(',').map(str::to_owned).collect::<Vec<_>>();
    (parts.len() > 1).then_some(parts)
}

/// More are no list that anybody wrote down.
const BRACES_MAX: usize = 100_000;

impl<'a> Pattern<'a> {
    pub(crate) fn new(path: &'a str) -> Self {
        let plain = |name: &&str| !is_wild(name);
        let folders = path.split('/').take_while(plain);
        let root = folders.map(|name| name.len() + 1).sum::<usize>();
        Self {
            path,
            root: root.saturating_sub(1).min(path.len()),
        }
    }

    /// The folder below which everything is that matches; the path itself where it has no wildcards.
    pub(crate) fn root(&self) -> &'a str {
        let root = &self.path[..self.root];
        let trimmed = root.trim_end_matches('/');
        if trimmed.is_empty() && self.path.starts_with('/') {
            return "/";
        }
        trimmed
    }

    pub(crate) fn is_plain(&self) -> bool {
        self.root == self.path.len()
    }

    pub(crate) fn matches(&self, path: &str) -> bool {
        let names = |path: &'a str| path.split('/').filter(|name| !name.is_empty());
        let pattern: Vec<&str> = names(self.path).collect();
        let path: Vec<&str> = path.split('/').filter(|name| !name.is_empty()).collect();
        folders_match(&pattern, &path)
    }
}

fn folders_match(pattern: &[&str], path: &[&str]) -> bool {
    match (pattern, path) {
        ([], []) => true,
        (["**", rest @ ..], _) => (0..=path.len()).any(|skip| folders_match(rest, &path[skip..])),
        ([first, rest @ ..], [name, below @ ..]) => {
            name_matches(first.as_bytes(), name.as_bytes()) && folders_match(rest, below)
        }
        _ => false,
    }
}

fn is_wild(name: &str) -> bool {
    let class = name
        .find('[')
        .is_some_and(|open| name[open..].contains(']'));
    name.contains(['*', '?']) || class
}

/// Walks both, and goes back to the last `*` where they part.
fn name_matches(pattern: &[u8], name: &[u8]) -> bool {
    let (mut p, mut n) = (0, 0);
    let mut star = None;
    while n < name.len() {
        let step = match pattern.get(p) {
            Some(b'*') => {
                star = Some((p, n));
                p += 1;
                continue;
            }
            Some(b'[') => match class(&pattern[p..], name[n]) {
                Some((true, length)) => Some(length),
                Some((false, _)) => None,
                // One that is not closed is itself.
                None => (name[n] == b'[').then_some(1),
            },
            Some(&c) => (c == b'?' || c == name[n]).then_some(1),
            None => None,
        };
        match (step, star) {
            (Some(length), _) => (p, n) = (p + length, n + 1),
            (None, Some((at, from))) => {
                star = Some((at, from + 1));
                (p, n) = (at + 1, from + 1);
            }
            (None, None) => return false,
        }
    }
    pattern[p..].iter().all(|&c| c == b'*')
}

/// Says if a character is of the class that a pattern begins with, and how long that is; nothing where
/// it is not closed.
fn class(pattern: &[u8], character: u8) -> Option<(bool, usize)> {
    let not = matches!(pattern.get(1), Some(b'!' | b'^'));
    let first = if not { 2 } else { 1 };
    // A bracket that comes first is one of the class.
    let end = pattern.iter().skip(first + 1).position(|&c| c == b']')? + first + 1;
    let (mut at, mut found) = (first, false);
    while at < end {
        let (low, high, next) = match pattern[at..end] {
            [low, b'-', high, ..] => (low, high, at + 3),
            _ => (pattern[at], pattern[at], at + 1),
        };
        found |= (low..=high).contains(&character);
        at = next;
    }
    Some((found != not, end + 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_match_what_they_say() {
        let check = |pattern: &str, path: &str, expect: bool| {
            assert_eq!(
                Pattern::new(pattern).matches(path),
                expect,
                "{pattern} {path}"
            );
        };
        check("/a/*.jsonl", "/a/b.jsonl", true);
        check("/a/*.jsonl", "/a/b/c.jsonl", false);
        check("/a/*.jsonl", "/a/b.json", false);
        check("/a/**/*.rs", "/a/x.rs", true);
        check("/a/**/*.rs", "/a/b/c/x.rs", true);
        check("/a/**", "/a/b/c", true);
        check("/a/part-?.tar*", "/a/part-3.tar.gz", true);
        check("/a/part-?.tar", "/a/part-33.tar", false);
        check("*a*b*", "xxaxxbxx", true);
        check("*a*b", "xxaxxbxx", false);
        check("/a/s-00[0-3].tar", "/a/s-002.tar", true);
        check("/a/s-00[0-3].tar", "/a/s-004.tar", false);
        check("/a/[!a-c]*", "/a/d", true);
        check("/a/[!a-c]*", "/a/b", false);
        check("/a/[]x]", "/a/]", true);
        check("/a/b[", "/a/b[", true);
        check("/a/*[13]x", "/a/1113x", true);
    }

    #[test]
    fn braces_stand_for_each_of_what_is_in_them() {
        let check =
            |path: &str, expect: &[&str]| assert_eq!(braces(path).unwrap(), expect, "{path}");
        check("a", &["a"]);
        check(
            "s-{008..011}.t",
            &["s-008.t", "s-009.t", "s-010.t", "s-011.t"],
        );
        check("{9..11}", &["9", "10", "11"]);
        check("{2..1}{x,y}", &["2x", "2y", "1x", "1y"]);
        check("{000,002}", &["000", "002"]);
        check("{a,b{1,2}}", &["a", "b1", "a", "b2"]);
        check("{a} {", &["{a} {"]);
        assert!(braces("{0..9999999}").unwrap_err().contains("more than"));
        assert!(
            braces(&"{0..99}".repeat(9))
                .unwrap_err()
                .contains("more than")
        );
    }

    #[test]
    fn the_root_has_no_wildcards() {
        let check = |pattern: &str, root: &str, plain: bool| {
            let pattern = Pattern::new(pattern);
            assert_eq!((pattern.root(), pattern.is_plain()), (root, plain));
        };
        check("/a/b/*.jsonl", "/a/b", false);
        check("/a/b.jsonl", "/a/b.jsonl", true);
        check("/a/b/", "/a/b", true);
        check("*.jsonl", "", false);
        check("/*.jsonl", "/", false);
        check("data/**/x", "data", false);
        check("", "", true);
        check("a/s[01].tar", "a", false);
    }
}
