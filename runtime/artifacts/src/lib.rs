//! Native programs by content, so that only what a node lacks of one travels.

#![forbid(unsafe_code)]

mod bundle;
mod digest;
mod listing;
#[cfg(test)]
mod noise;

pub use bundle::{Bundle, BundleError, BundleFile, DecodeError, OfProgramError};
pub use digest::{Digest, DigestError};
pub use listing::{ListError, Listing, ListingError, Piece};
