//! Weights on their way to a server, through a folder that both see.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use odeon_algorithms::model::ModelConfig;
use odeon_algorithms::weights::{FlatModel, StoredType, save};

use super::error::ServedError;

/// The weights of one server.
#[derive(Debug)]
pub(super) struct Weights {
    folder: PathBuf,
    flat: FlatModel,
    context: usize,
    written: u64,
}

impl Weights {
    /// In a folder that is named after the server; what an earlier life has left there goes.
    pub(super) fn new(
        folder: &Path,
        url: &str,
        config: &ModelConfig,
        context: usize,
    ) -> Result<Self, ServedError> {
        let flat = FlatModel::new(config.clone());
        let flat = flat.map_err(|error| ServedError::Settings(error.to_string()))?;
        let plain = |c: char| if c.is_ascii_alphanumeric() { c } else { '-' };
        let folder = folder.join(url.chars().map(plain).collect::<String>());
        // The server may stand in another folder than this process.
        let folder = std::path::absolute(&folder).map_err(wrong(&folder))?;
        fs::create_dir_all(&folder).map_err(wrong(&folder))?;
        let mut this = Self {
            folder,
            flat,
            context,
            written: 0,
        };
        // A server may not have read the last ones yet, so numbers go on from there.
        this.written = this.there()?.into_iter().max().unwrap_or(0);
        Ok(this)
    }

    /// Writes weights as they travel; gives the folder and what they are called.
    pub(super) fn write(&mut self, bytes: &[u8]) -> Result<(PathBuf, String), ServedError> {
        let wanted = 4 * self.flat.parameters();
        if bytes.len() != wanted {
            return Err(ServedError::Settings(format!(
                "weights of {} bytes are of another model than the servers', which has {wanted}",
                bytes.len()
            )));
        }
        let numbers = bytes.as_chunks::<4>().0.iter();
        let flat: Vec<f32> = numbers.map(|four| f32::from_le_bytes(*four)).collect();
        let target = self.place(self.written + 1);
        let view = self.flat.view(&flat, self.context);
        save(&target, &view, StoredType::F32, None).map_err(|error| ServedError::Folder {
            path: target.clone(),
            why: error.to_string(),
        })?;
        self.written += 1;
        Ok((target, self.name(self.written)))
    }

    /// The newest that were written.
    pub(super) fn newest(&self) -> Option<(PathBuf, String)> {
        (self.written > 0).then(|| (self.place(self.written), self.name(self.written)))
    }

    /// Removes all but the newest, which a server that is started anew needs again. What cannot be
    /// removed does no harm.
    pub(super) fn forget_older(&self) {
        let there = self.there().unwrap_or_default();
        for number in there.into_iter().filter(|it| *it != self.written) {
            let _ = fs::remove_dir_all(self.place(number));
        }
    }

    fn place(&self, number: u64) -> PathBuf {
        self.folder.join(format!("{PREFIX}{number}"))
    }

    /// No other life of this rollout has called others so.
    fn name(&self, number: u64) -> String {
        format!("odeon-{number}")
    }

    fn there(&self) -> Result<Vec<u64>, ServedError> {
        let entries = match fs::read_dir(&self.folder) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(vec![]),
            entries => entries.map_err(wrong(&self.folder))?,
        };
        let number = |entry: fs::DirEntry| {
            let name = entry.file_name();
            name.to_str()?.strip_prefix(PREFIX)?.parse().ok()
        };
        Ok(entries.flatten().filter_map(number).collect())
    }
}

fn wrong(path: &Path) -> impl FnOnce(std::io::Error) -> ServedError + use<> {
    let path = path.to_owned();
    move |error| ServedError::Folder {
        path,
        why: error.to_string(),
    }
}

const PREFIX: &str = "weights-";
