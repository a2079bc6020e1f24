//! Reasons why a file is not read: no picture or sound, broken, or too large.

use std::fmt;

use thiserror::Error;

/// A reason why a file is not read. Nothing of it is kept.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum MediaError {
    /// The bytes begin as no format that is read. Convert the file, or leave it out.
    #[error("this is no {wanted}: it {found}")]
    Unknown {
        /// The formats that are read.
        wanted: &'static str,
        /// What the bytes look like.
        found: String,
    },
    /// A limit refuses it before memory is taken. Raise the limit of that name, or make the file smaller.
    #[error("the {format} has {has} {bound}, and the limit is {may}: raise `{}`, or make it smaller", bound.setting())]
    TooLarge {
        /// The file's format.
        format: &'static str,
        /// What is limited.
        bound: Bound,
        /// What it has, or needs at least.
        has: u64,
        /// What is allowed.
        may: u64,
    },
    /// The file contradicts its format, or ends too early. Get it again from where it came from.
    #[error("the {format} is broken {place}: {reason}")]
    Broken {
        /// The file's format.
        format: &'static str,
        /// The place where that was seen.
        place: MediaPlace,
        /// What is wrong there.
        reason: String,
    },
    /// The file is well-formed in a way that is not read. Convert it.
    #[error("the {format} has {feature}, which is not read: {advice}")]
    Unsupported {
        /// The file's format.
        format: &'static str,
        /// What it has.
        feature: String,
        /// What to make of it.
        advice: &'static str,
    },
    /// A picture is so long and thin that an encoder refuses it. Cut it into several.
    #[error(
        "a picture of {width} x {height} pixels is longer than {ratio} times its other side: cut it into several"
    )]
    Ratio {
        /// Its height in pixels.
        height: u32,
        /// Its width in pixels.
        width: u32,
        /// The largest ratio of its sides.
        ratio: u32,
    },
    /// An argument makes no sense, as a side of no pixels.
    #[error("{what} is {is}, and must be {must}")]
    Argument {
        /// The argument.
        what: &'static str,
        /// What was given.
        is: u64,
        /// What is allowed.
        must: &'static str,
    },
}

/// Something of which a file may have only so much.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Bound {
    /// Pixels of a picture, or of a frame.
    Pixels,
    /// Bytes of memory that decoding takes.
    Bytes,
    /// Frames of an animation.
    Frames,
    /// Seconds of sound.
    Seconds,
}

impl Bound {
    /// The name of the limit.
    #[must_use]
    pub fn setting(self) -> &'static str {
        match self {
            Self::Pixels => "pixels_max",
            Self::Bytes => "bytes_max",
            Self::Frames => "frames_max",
            Self::Seconds => "seconds_max",
        }
    }
}

impl fmt::Display for Bound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Pixels => "pixels",
            Self::Bytes => "bytes in memory",
            Self::Frames => "frames",
            Self::Seconds => "seconds",
        })
    }
}

/// A place in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum MediaPlace {
    /// An offset from its first byte.
    Byte(u64),
    /// A frame of an animation, from 0.
    Frame(u32),
    /// A sample of sound, from 0.
    Sample(u64),
    /// Somewhere in what is compressed, which decoders give no offset of.
    Data,
}

impl fmt::Display for MediaPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Byte(at) => write!(f, "at byte {at}"),
            Self::Frame(frame) => write!(f, "in frame {frame}"),
            Self::Sample(sample) => write!(f, "behind sample {sample}"),
            Self::Data => f.write_str("in its compressed data"),
        }
    }
}

/// Runs a decoder of somebody else. One that panics has met a file that it cannot read, which is not a reason
/// to end whoever reads many.
pub(crate) fn guarded<T>(
    format: &'static str,
    place: MediaPlace,
    decode: impl FnOnce() -> Result<T, MediaError>,
) -> Result<T, MediaError> {
    // What the decoder leaves half done is dropped here and seen by nobody.
    match std::panic::catch_unwind(std::panic::AssertUnwindSafe(decode)) {
        Ok(decoded) => decoded,
        Err(payload) => {
            let said = payload.downcast_ref::<&str>().copied();
            let said = said.or_else(|| payload.downcast_ref::<String>().map(String::as_str));
            Err(MediaError::Broken {
                format,
                place,
                reason: format!("its decoder gave up: {}", said.unwrap_or("no reason told")),
            })
        }
    }
}
