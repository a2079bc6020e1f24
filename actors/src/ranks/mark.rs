//! A sign that ranks have the storage of their driver.

use std::fs;
use std::path::Path;

use odeon::Failure;
use tempfile::NamedTempFile;

/// A file beside the checkpoints, by which ranks see that they have the same storage as the run's driver.
/// It is gone when this is dropped.
#[derive(Debug)]
pub(crate) struct Mark {
    file: NamedTempFile,
}

impl Mark {
    /// Puts one into the place of a run's checkpoints.
    ///
    /// # Errors
    /// Nothing can be written there.
    pub(crate) fn set(place: &Path) -> Result<Self, Failure> {
        let made = tempfile::Builder::new()
            .prefix(".driver-")
            .tempfile_in(place);
        made.map(|file| Self { file }).map_err(|error| {
            Failure::error(format!("writing to {}: {error}", place.display())).fatal()
        })
    }

    /// The name of the file.
    pub(crate) fn name(&self) -> String {
        let name = self.file.path().file_name().unwrap_or_default();
        name.to_string_lossy().into_owned()
    }

    /// Checks that the mark of this name is in the place of checkpoints that a rank of that name has.
    ///
    /// # Errors
    /// It is not: the rank's node has another storage there than the driver's.
    pub(crate) fn check(place: &Path, name: &str, rank: &str) -> Result<(), Failure> {
        let found = fs::symlink_metadata(place.join(name));
        found.map(drop).map_err(|error| {
            Failure::error(format!(
                "{rank} does not see the checkpoints of this run in {}: a file that the driver has put there \
                 is not there on its node ({error}). All ranks write into one folder, so let run.out be on \
                 storage that all nodes share, or the ranks be on the node of the driver",
                place.display()
            ))
            .fatal()
        })
    }
}

#[cfg(test)]
mod tests {
    use odeon::FailureKind;

    use super::*;

    #[test]
    fn a_rank_with_another_storage_than_the_driver_is_told_so_and_leaves_nothing_there() {
        let (own, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let mark = Mark::set(own.path()).unwrap();
        Mark::check(own.path(), &mark.name(), "rank 0").unwrap();
        let place = other.path().join("checkpoint");
        let failure = Mark::check(&place, &mark.name(), "rank 3").unwrap_err();
        assert_eq!(failure.kind, FailureKind::Fatal);
        for said in ["rank 3", &place.display().to_string(), "run.out"] {
            assert!(failure.message.contains(said), "{failure}");
        }
        assert!(!place.exists());
        drop(mark);
        assert_eq!(fs::read_dir(own.path()).unwrap().count(), 0);
        let failure = Mark::set(&place).unwrap_err();
        assert_eq!(failure.kind, FailureKind::Fatal);
    }
}
