//! Files as they were when they were read, so that who goes on later knows if they are others, or more.
//! Pure.

use std::cmp::Ordering;
use std::collections::{BTreeMap, HashMap};

use serde::{Deserialize, Serialize};

/// A file as it was when it was read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, odeon::Shape)]
pub struct FileState {
    /// Its name, from the path of its source on.
    pub name: String,
    /// Its bytes, as they are stored.
    pub size: u64,
    /// A hash of what is in it: of all of it for lines and tables of text, of its members for a tar
    /// file, of its footer for Parquet, of its caption for a picture. Empty where files are read whole,
    /// one record each.
    pub digest: String,
}

/// The files of a source as they were before more came behind them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, odeon::Shape)]
pub struct Earlier {
    /// Its files.
    pub files: Vec<FileState>,
    /// The last pass over the source in which what came later is read behind them. In those after it all
    /// is mixed.
    pub until: u32,
}

/// The files of a source as they were, by their names.
#[derive(Debug)]
pub(crate) struct Kept {
    files: HashMap<String, FileState>,
    pub(crate) until: u32,
    /// Set once it is known that something came since.
    pub(crate) has_grown: bool,
}

impl Kept {
    pub(crate) fn of(earlier: &Earlier) -> Self {
        let files = earlier.files.iter();
        Self {
            files: files
                .map(|file| (file.name.clone(), file.clone()))
                .collect(),
            until: earlier.until,
            has_grown: false,
        }
    }

    /// The file of this name, if there was one.
    pub(crate) fn file(&self, name: &str) -> Option<&FileState> {
        self.files.get(name)
    }

    /// Number of files.
    pub(crate) fn len(&self) -> usize {
        self.files.len()
    }

    pub(crate) fn files(&self) -> impl Iterator<Item = &FileState> {
        self.files.values()
    }

    /// Returns true where files are not of the sizes that they have now, or more.
    pub(crate) fn differs(&self, now: &BTreeMap<&str, u64>) -> bool {
        let same =
            |(name, size): (&&str, &u64)| self.file(name).is_some_and(|file| file.size == *size);
        self.len() != now.len() || !now.iter().all(same)
    }

    /// Says how files are more than something was added to those that were, if they are: one is gone, or
    /// shorter, or longer where nothing can be added to it.
    pub(crate) fn kept_by(
        &self,
        now: &BTreeMap<&str, u64>,
        grows: impl Fn(&str) -> bool,
    ) -> Result<(), String> {
        let old = |pick: &dyn Fn(&FileState, Option<u64>) -> bool| -> Vec<FileState> {
            let files = self.files();
            let picked = files.filter(|file| pick(file, now.get(file.name.as_str()).copied()));
            picked.cloned().collect()
        };
        let other = old(&|file, size| {
            size.is_some_and(|size| size < file.size || size > file.size && !grows(&file.name))
        });
        let gone = old(&|_, size| size.is_none());
        let sized = other.iter().map(|file| FileState {
            size: now[file.name.as_str()],
            ..file.clone()
        });
        let sized: Vec<FileState> = sized.collect();
        match difference(&[other.clone(), gone].concat(), &sized) {
            None => Ok(()),
            Some(what)
                if sized
                    .iter()
                    .zip(&other)
                    .any(|(new, old)| new.size > old.size) =>
            {
                Err(format!(
                    "{what}, and nothing can be added to a file of its format: what is new comes as a file of its own"
                ))
            }
            Some(what) => Err(what),
        }
    }
}

impl FileState {
    /// Returns true where the file is the same, as far as is known of it.
    fn is(&self, now: &Self) -> bool {
        let digest = self.digest.is_empty() || self.digest == now.digest;
        digest && self.size == now.size
    }
}

/// Says how the files of a source differ from those that were read, if they do: the first of each kind
/// of difference by its name.
#[must_use]
pub fn difference(before: &[FileState], now: &[FileState]) -> Option<String> {
    let names = |files: &[FileState]| -> BTreeMap<String, FileState> {
        let all = files.iter();
        all.map(|file| (file.name.clone(), file.clone())).collect()
    };
    let (old, new) = (names(before), names(now));
    let gone = old.keys().filter(|name| !new.contains_key(*name));
    let come = new.keys().filter(|name| !old.contains_key(*name));
    let both = |(name, old): (&String, &FileState)| Some((old.clone(), new.get(name)?.clone()));
    let other = old
        .iter()
        .filter_map(both)
        .filter(|(old, new)| !old.is(new));
    let other: Vec<(FileState, FileState)> = other.collect();
    let mut said = Vec::new();
    if let Some((old, new)) = other.first() {
        let how = match new.size.cmp(&old.size) {
            Ordering::Greater => {
                format!("grew from {} to {} bytes", old.size, new.size)
            }
            Ordering::Less => {
                format!("shrank from {} to {} bytes", old.size, new.size)
            }
            Ordering::Equal => "has the same size and other content".to_owned(),
        };
        said.push(format!("{} {how}{}", old.name, more(other.len(), "file")));
    }
    for (names, what) in [
        (gone.collect::<Vec<_>>(), "is gone"),
        (come.collect(), "is new"),
    ] {
        if let Some(first) = names.first() {
            said.push(format!("{first} {what}{}", more(names.len(), "file")));
        }
    }
    (!said.is_empty()).then(|| said.join("; "))
}

fn more(all: usize, one: &str) -> String {
    match all {
        0 | 1 => String::new(),
        2 => format!(" (and 1 {one} more)"),
        all => format!(" (and {} {one}s more)", all - 1),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_difference_names_the_first_file_of_each_kind() {
        let file = |name: &str, size, digest: &str| FileState {
            name: name.to_owned(),
            size,
            digest: digest.to_owned(),
        };
        let before = [file("a", 5, "x"), file("b", 7, "y")];
        let check = |now: &[FileState], expect: Option<&str>| {
            assert_eq!(difference(&before, now).as_deref(), expect);
        };
        check(&before, None);
        check(&[file("b", 7, "y"), file("a", 5, "x")], None);
        check(
            &[file("a", 5, "x"), file("b", 9, "z")],
            Some("b grew from 7 to 9 bytes"),
        );
        check(
            &[file("a", 5, "z"), file("b", 7, "y")],
            Some("a has the same size and other content"),
        );
        check(
            &[file("a", 4, "z"), file("b", 6, "y"), file("0", 1, "")],
            Some("a shrank from 5 to 4 bytes (and 1 file more); 0 is new"),
        );
        check(&[], Some("a is gone (and 1 file more)"));
    }
}
