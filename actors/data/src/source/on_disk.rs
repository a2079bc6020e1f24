//! The files of this machine that a source names, for those who take them to another one.

use std::path::{Path, PathBuf};

use super::{
    fault::SourceError,
    finding::{folder, takes},
    spec::{Captions, Format, Images, SourceSpec},
    storage::{Found, Storage},
};

/// A path of a source, and what it names on this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OnDisk {
    /// The keys of a source's table that lead to it.
    pub keys: &'static [&'static str],
    /// The path as it is written.
    pub path: String,
    /// The folder, as an absolute path, that all of its files are below.
    pub folder: PathBuf,
    /// The rest of the path below that folder: the name of a file, a pattern, or nothing for all.
    pub rest: String,
    /// The files.
    pub files: Vec<PathBuf>,
    /// The bytes of all of them.
    pub bytes: u64,
}

/// The files of this machine that a source names, path by path; paths are seen from `here`. A path into
/// a bucket has no place here.
///
/// # Errors
/// [`SourceError`] when a path names nothing, or cannot be read.
pub fn on_disk(spec: &SourceSpec, here: &Path) -> Result<Vec<OnDisk>, SourceError> {
    let format = &spec.format;
    let of_format = |name: &str| takes(format, name);
    let mut all = vec![];
    all.extend(named(&["path"], &spec.path, here, &of_format)?);
    let beside: Option<(&'static [&'static str], &String)> = match format {
        Format::Idx(idx) => Some((&["format", "idx", "labels"], &idx.labels)),
        Format::Images(Images {
            captions: Captions::Listed { path, .. },
        }) => Some((&["format", "images", "captions", "listed", "path"], path)),
        _ => None,
    };
    if let Some((keys, path)) = beside {
        all.extend(named(keys, path, here, &|_| true)?);
    }
    Ok(all)
}

fn named(
    keys: &'static [&'static str],
    path: &str,
    here: &Path,
    takes: &dyn Fn(&str) -> bool,
) -> Result<Option<OnDisk>, SourceError> {
    let local = match path.split_once("://") {
        None => path,
        Some(("file", local)) => local,
        Some(_) => return Ok(None),
    };
    let absolute = std::path::absolute(here.join(local)).ok();
    let absolute = absolute.and_then(|it| it.into_os_string().into_string().ok());
    let absolute = absolute.ok_or_else(|| SourceError::Read {
        file: path.to_owned(),
        source: std::io::Error::other("the path is not UTF-8"),
    })?;
    let Found { files, .. } = Storage::Disk.list(&absolute, takes)?;
    let [first, ..] = files.as_slice() else {
        return Err(SourceError::Nothing {
            path: path.to_owned(),
            others: String::new(),
        });
    };
    let file = absolute.trim_end_matches('/');
    let root = match first.name == file {
        true => file.rsplit_once('/').map_or("", |(folder, _)| folder),
        false => folder(&absolute),
    };
    let rest = absolute.strip_prefix(root).unwrap_or_default();
    Ok(Some(OnDisk {
        keys,
        path: path.to_owned(),
        folder: PathBuf::from(if root.is_empty() { "/" } else { root }),
        rest: rest.trim_matches('/').to_owned(),
        bytes: files.iter().map(|file| file.stamp.size).sum(),
        files: files.into_iter().map(|file| file.name.into()).collect(),
    }))
}
