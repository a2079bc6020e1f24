//! Paths with wildcards. Pure.

/// A path whose names may have `*` (any characters), `?` (one), or be `**` (any folders).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Pattern<'a> {
    path: &'a str,
    root: usize,
}

impl<'a> Pattern<'a> {
    pub(crate) fn new(path: &'a str) -> Self {
        let plain = |name: &&str| !name.contains(['*', '?']);
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

/// Walks both, and goes back to the last `*` where they part.
fn name_matches(pattern: &[u8], name: &[u8]) -> bool {
    let (mut p, mut n) = (0, 0);
    let mut star = None;
    while n < name.len() {
        match pattern.get(p) {
            Some(b'*') => {
                star = Some((p, n));
                p += 1;
            }
            Some(&c) if c == b'?' || c == name[n] => {
                p += 1;
                n += 1;
            }
            _ => match star {
                Some((at, from)) => {
                    star = Some((at, from + 1));
                    (p, n) = (at + 1, from + 1);
                }
                None => return false,
            },
        }
    }
    pattern[p..].iter().all(|&c| c == b'*')
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
    }
}
