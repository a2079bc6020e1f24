//! The heat of bundles, kept beside them: the pieces that are read first when one starts.

use std::collections::HashSet;
use std::fs;
use std::path::PathBuf;

use super::{HEAT, Store, digests};
use crate::disk;
use crate::{Digest, DiskError, Heat};

impl Store {
    /// Which pieces of a bundle are read first, if that is known. What was damaged is not known.
    ///
    /// # Errors
    /// When the disk fails.
    pub fn heat(&self, bundle: &Digest) -> Result<Option<Heat>, DiskError> {
        let path = self.heat_path(bundle);
        let read = disk::if_there(fs::read(&path)).map_err(DiskError::at("read", &path))?;
        Ok(read.and_then(|bytes| Heat::decode(&bytes)))
    }

    /// Remembers which pieces of a bundle are read first, for as long as the bundle is kept.
    ///
    /// # Errors
    /// When the disk fails. What was known is known still.
    pub fn set_heat(&self, bundle: &Digest, heat: &Heat) -> Result<(), DiskError> {
        let _gate = self.gate.shared()?;
        self.write(&self.heat_path(bundle), &heat.encode())
    }

    /// Forgets the heat of bundles that are not kept.
    pub(super) fn cool(&self) -> Result<(), DiskError> {
        let kept: HashSet<Digest> = self.bundles()?.into_iter().collect();
        for digest in digests(&self.folder.join(HEAT))? {
            if !kept.contains(&digest) {
                disk::remove(&self.heat_path(&digest))?;
            }
        }
        Ok(())
    }

    fn heat_path(&self, bundle: &Digest) -> PathBuf {
        self.folder.join(HEAT).join(bundle.to_string())
    }
}
