//! Native programs by content, so that only what a node lacks of one travels.

#![forbid(unsafe_code)]

mod bundle;
mod digest;
mod disk;
mod listing;
#[cfg(test)]
mod noise;
mod store;

pub use bundle::{Bundle, BundleError, BundleFile, DecodeError, OfProgramError};
pub use digest::{Digest, DigestError};
pub use disk::DiskError;
pub use listing::{ListError, Listing, ListingError, Piece};
pub use store::{
    AssembleError, Assembled, CollectError, Footprint, Freed, Full, GetError, Kind, Put, PutError,
    Recovered, Store, VerifyError,
};
