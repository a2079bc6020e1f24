//! Decompressed files, in a folder of bounded size.

use std::{
    fs, io,
    io::{BufRead, BufReader, Read, Write},
    path::{Path, PathBuf},
};

use flate2::bufread::GzDecoder;

use super::{
    fault::SourceError,
    format::foreign::foreign,
    spec::Compression,
    storage::{Content, Stamp, Windows},
};

/// The folder. Several processes may use it: a file appears there whole or not at all, and one that is
/// removed stays readable for whoever reads it.
#[derive(Clone, Debug)]
pub(crate) struct Spool {
    folder: PathBuf,
    bytes_max: u64,
}

/// The members of a gzip file, one after the other, and the zeros that fill the rest of a tape.
struct Gzip<R> {
    member: Option<GzDecoder<BufReader<R>>>,
}

impl<R: Read> Gzip<R> {
    fn new(from: R) -> Self {
        Self {
            member: Some(GzDecoder::new(BufReader::with_capacity(1 << 16, from))),
        }
    }

    /// Goes on to the next member, if there is one.
    fn go_on(&mut self) -> io::Result<()> {
        let Some(member) = self.member.take() else {
            return Ok(());
        };
        let mut rest = member.into_inner();
        let mut zeros = 0;
        let next = loop {
            let bytes = rest.fill_buf()?;
            match bytes.iter().position(|&byte| byte != 0) {
                Some(at) => {
                    zeros += at;
                    rest.consume(at);
                    break rest.fill_buf()?.first().copied();
                }
                None if bytes.is_empty() => break None,
                None => {
                    let all = bytes.len();
                    zeros += all;
                    rest.consume(all);
                }
            }
        };
        match next {
            None => Ok(()),
            Some(GZIP_BEGIN) if zeros == 0 => {
                self.member = Some(GzDecoder::new(rest));
                Ok(())
            }
            Some(_) => Err(io::Error::other("what follows its end is not gzip")),
        }
    }
}

impl<R: Read> Read for Gzip<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while let Some(member) = &mut self.member {
            match member.read(buffer)? {
                0 if !buffer.is_empty() => self.go_on()?,
                count => return Ok(count),
            }
        }
        Ok(0)
    }
}

/// The first byte of a member.
const GZIP_BEGIN: u8 = 0x1f;

/// `zstd --long=31` makes no larger windows: two gigabytes, of which only what is used is taken.
const ZSTD_WINDOW_LOG_MAX: u32 = 31;

/// A decompressed file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Spooled {
    pub(crate) path: PathBuf,
    /// Where in the compressed file it could not be read on, and why.
    pub(crate) damage: Option<(u64, String)>,
}

impl Compression {
    /// The compression of a file of this name, if it has any.
    pub(crate) fn of(self, name: &str) -> Self {
        if self != Self::Auto {
            return self;
        }
        let lower = name.to_ascii_lowercase();
        match lower.rsplit_once('.').map(|(_, suffix)| suffix) {
            Some("gz" | "dz" | "tgz") => Self::Gzip,
            Some("zst") => Self::Zstd,
            _ => Self::None,
        }
    }
}

/// A name without the ending that says how its file is compressed.
pub(crate) fn plain_name(name: &str) -> &str {
    let without = |suffix| name.strip_suffix(suffix);
    [".gz", ".dz", ".zst"]
        .into_iter()
        .find_map(without)
        .unwrap_or(name)
}

impl Spool {
    pub(crate) fn new(folder: PathBuf, bytes_max: u64) -> Self {
        Self { folder, bytes_max }
    }

    /// Where the decompressed file is, if it is still there.
    pub(crate) fn find(&self, shown: &str, stamp: Stamp) -> Option<PathBuf> {
        Some(self.path(shown, stamp)).filter(|path| path.is_file())
    }

    /// Decompresses a file, up to where it is damaged.
    pub(crate) fn fill(
        &self,
        content: &Content,
        compression: Compression,
    ) -> Result<Spooled, SourceError> {
        let shown = &content.shown;
        let mut windows = Windows::new(content);
        let refused = |source| SourceError::Read {
            file: self.folder.to_string_lossy().into_owned(),
            source,
        };
        fs::create_dir_all(&self.folder).map_err(refused)?;
        let mut partial = tempfile::NamedTempFile::new_in(&self.folder).map_err(refused)?;
        let mut reader: Box<dyn Read + '_> = match compression {
            Compression::Gzip => Box::new(Gzip::new(&mut windows)),
            Compression::Zstd => {
                let mut zstd = zstd::stream::read::Decoder::new(&mut windows).map_err(refused)?;
                zstd.window_log_max(ZSTD_WINDOW_LOG_MAX).map_err(refused)?;
                Box::new(zstd)
            }
            Compression::Auto | Compression::None => Box::new(&mut windows),
        };
        let mut buffer = vec![0; 1 << 18];
        let mut bytes = 0;
        let broken = loop {
            match reader.read(&mut buffer) {
                Ok(0) => break None,
                Ok(count) => {
                    bytes += count as u64;
                    if bytes > self.bytes_max {
                        return Err(SourceError::Spool {
                            file: shown.clone(),
                            bytes_max: self.bytes_max,
                        });
                    }
                    partial.write_all(&buffer[..count]).map_err(refused)?;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => break Some(error),
            }
        };
        drop(reader);
        let damage = match broken.map(|error| SourceError::damaged(error, shown, windows.at())) {
            None => None,
            Some(SourceError::Damaged { offset, reason, .. }) => {
                let told = match foreign(content)? {
                    Some(kind) if bytes == 0 && !kind.contains("its name does not say so") => kind.to_owned(),
                    _ if reason.contains("Dictionary") => {
                        "it was compressed with a dictionary, which is not read: compress it without".to_owned()
                    }
                    _ => format!("{reason}; {bytes} bytes were decompressed before"),
                };
                Some((offset, told))
            }
            Some(other) => return Err(other),
        };
        self.make_room(bytes).map_err(refused)?;
        let path = self.path(shown, content.stamp);
        partial
            .persist(&path)
            .map_err(|error| refused(error.error))?;
        Ok(Spooled { path, damage })
    }

    /// Removes files, oldest first, until there is room for so many bytes.
    fn make_room(&self, bytes: u64) -> io::Result<()> {
        let mut files = Vec::new();
        for entry in fs::read_dir(&self.folder)? {
            let entry = entry?;
            let Ok(metadata) = entry.metadata() else {
                continue;
            };
            if entry
                .path()
                .extension()
                .is_some_and(|suffix| suffix == SUFFIX)
            {
                files.push((metadata.modified()?, metadata.len(), entry.path()));
            }
        }
        files.sort();
        let mut all: u64 = bytes + files.iter().map(|(_, len, _)| len).sum::<u64>();
        for (_, len, path) in files {
            if all <= self.bytes_max {
                break;
            }
            match fs::remove_file(path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => all -= len,
            }
        }
        Ok(())
    }

    fn path(&self, shown: &str, stamp: Stamp) -> PathBuf {
        let mut hasher = blake3::Hasher::new();
        hasher.update(shown.as_bytes());
        hasher.update(&stamp.size.to_le_bytes());
        hasher.update(&stamp.version.to_le_bytes());
        let name = &hasher.finalize().to_hex()[..32];
        Path::new(&self.folder).join(format!("{name}.{SUFFIX}"))
    }
}

const SUFFIX: &str = "plain";
