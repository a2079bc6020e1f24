//! The lines between what a machine lacks and what is broken, for all that opens cards and NVIDIA's libraries.

use odeon_gpu::cuda::CudaError;
use odeon_skip::{Need, skip};

/// The need that an error says is not met; `None` where something is broken.
fn need(error: &CudaError) -> Option<Need> {
    match error {
        // Whether a driver that does not start is broken is told by the card: where there is one, it may not be
        // skipped.
        CudaError::NoDriver
        | CudaError::NoDevice { .. }
        | CudaError::OldDriver { .. }
        | CudaError::OldDevice { .. }
        | CudaError::Driver { .. } => Some(Need::Card),
        CudaError::NoLibrary { name, .. } | CudaError::OldLibrary { name, .. } => match *name {
            "libcublasLt" => Some(Need::Cublas),
            "libnccl" => Some(Need::Nccl),
            "libnvrtc" => Some(Need::Nvrtc),
            _ => None,
        },
        _ => None,
    }
}

/// The value; nothing where the machine lacks what it takes, and the test is skipped.
///
/// # Panics
/// If something is broken.
pub(crate) fn or_skipped<T>(result: Result<T, CudaError>) -> Option<T> {
    let error = match result {
        Ok(value) => return Some(value),
        Err(error) => error,
    };
    let Some(need) = need(&error) else {
        panic!("{error}");
    };
    skip(need, error);
    None
}

#[test]
fn what_is_missing_is_told_from_what_is_broken() {
    let library = |name| CudaError::NoLibrary {
        name,
        tried: String::new(),
        advice: "",
    };
    for (error, lacked) in [
        (CudaError::NoDriver, Some(Need::Card)),
        (
            CudaError::Driver {
                reason: "it sees no device".to_owned(),
            },
            Some(Need::Card),
        ),
        (library("libnccl"), Some(Need::Nccl)),
        (library("libnvrtc"), Some(Need::Nvrtc)),
        (library("libcublasLt"), Some(Need::Cublas)),
        (library("libother"), None),
        (
            CudaError::Compile {
                name: "rows".to_owned(),
                arch: "sm_80".to_owned(),
                log: String::new(),
            },
            None,
        ),
    ] {
        assert_eq!(need(&error), lacked, "{error}");
    }
}
