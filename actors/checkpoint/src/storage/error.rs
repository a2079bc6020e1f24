//! Errors of a storage, told apart by what to do about each.

use std::error::Error;

/// Why a file could not be read or written. What was there before is as it was.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StorageError {
    /// There is no place of such a name. Choose another.
    #[error("{place}: {detail}")]
    Place {
        /// The place.
        place: String,
        /// Why not.
        detail: String,
    },
    /// There is no such file or folder.
    #[error("{file} is not there")]
    Missing {
        /// The file.
        file: String,
    },
    /// This process may not do that. Change the file's permissions, or the keys.
    #[error("{file}: permission denied{}: {detail}", at(*offset))]
    Denied {
        /// The file.
        file: String,
        /// The byte, where it is known.
        offset: Option<u64>,
        /// Message of the system.
        detail: String,
    },
    /// There is no room. Remove something and save again.
    #[error("{file}: no room left{}: {detail}", at(*offset))]
    Full {
        /// The file.
        file: String,
        /// From which byte on it was not written, where that is known.
        offset: Option<u64>,
        /// Message of the system.
        detail: String,
    },
    /// The file is cut off.
    #[error("{file} at byte {offset}: the file ends here, and should go on to byte {expected}")]
    Short {
        /// The file.
        file: String,
        /// Where it ends.
        offset: u64,
        /// Where what was wanted ends.
        expected: u64,
    },
    /// Some bytes are others than were written.
    #[error(
        "{file} from byte {offset} on: {bytes} bytes with CRC-32 {found:08x} where {expected:08x} \
         is recorded: damaged"
    )]
    Damaged {
        /// The file.
        file: String,
        /// Where they begin.
        offset: u64,
        /// Number of bytes that were compared.
        bytes: u64,
        /// CRC-32 that is recorded.
        expected: u32,
        /// CRC-32 of the bytes that are there.
        found: u32,
    },
    /// It does not work, also when it is tried again.
    #[error("{file}{}: {detail}", at(*offset))]
    Unavailable {
        /// The file.
        file: String,
        /// The byte, where it is known.
        offset: Option<u64>,
        /// Message of the system.
        detail: String,
    },
}

fn at(offset: Option<u64>) -> String {
    offset
        .map(|offset| format!(" at byte {offset}"))
        .unwrap_or_default()
}

/// An error of a store, and whether it may pass.
pub(super) fn classify(
    error: &object_store::Error,
    file: &str,
    offset: Option<u64>,
) -> (StorageError, bool) {
    let file = file.trim_end_matches('/').to_owned();
    let detail = said(error);
    match error {
        object_store::Error::NotFound { .. } => return (StorageError::Missing { file }, false),
        object_store::Error::PermissionDenied { .. }
        | object_store::Error::Unauthenticated { .. } => {
            return (
                StorageError::Denied {
                    file,
                    offset,
                    detail,
                },
                false,
            );
        }
        _ => {}
    }
    let mut cause: Option<&(dyn Error + 'static)> = Some(error);
    while let Some(source) = cause {
        if let Some(error) = source.downcast_ref::<std::io::Error>()
            && let Some(known) = known(error.kind(), &file, offset, &detail)
        {
            return (known, false);
        }
        cause = source.source();
    }
    let passing = matches!(error, object_store::Error::Generic { .. });
    (
        StorageError::Unavailable {
            file,
            offset,
            detail,
        },
        passing,
    )
}

/// An error of the system.
pub(super) fn io(error: &std::io::Error, file: &str, offset: Option<u64>) -> StorageError {
    let detail = error.to_string();
    known(error.kind(), file, offset, &detail).unwrap_or_else(|| StorageError::Unavailable {
        file: file.into(),
        offset,
        detail,
    })
}

fn known(
    kind: std::io::ErrorKind,
    file: &str,
    offset: Option<u64>,
    detail: &str,
) -> Option<StorageError> {
    let file = file.to_owned();
    let detail = detail.to_owned();
    match kind {
        std::io::ErrorKind::NotFound => Some(StorageError::Missing { file }),
        std::io::ErrorKind::PermissionDenied | std::io::ErrorKind::ReadOnlyFilesystem => {
            Some(StorageError::Denied {
                file,
                offset,
                detail,
            })
        }
        std::io::ErrorKind::StorageFull
        | std::io::ErrorKind::QuotaExceeded
        | std::io::ErrorKind::FileTooLarge => Some(StorageError::Full {
            file,
            offset,
            detail,
        }),
        _ => None,
    }
}

/// An error with its causes, each said once.
fn said(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let more = error.to_string();
        if !text.contains(&more) {
            text.push_str(": ");
            text.push_str(&more);
        }
        cause = error.source();
    }
    text
}
