//! Facts of a picture, and the memory that it takes to decode it, read from its headers alone.

use std::fmt;

use super::{Orientation, gif, jpeg, png, webp};
use crate::error::{Bound, MediaError};
use crate::foreign::foreign;

/// A format of pictures.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum PictureFormat {
    /// JPEG of eight bits, sequential or progressive, with Huffman codes.
    Jpeg,
    /// PNG of any kind. Of an animated one, the picture that everybody shows.
    Png,
    /// WebP, lossy or lossless, animated or not.
    WebP,
    /// GIF with all of its frames.
    Gif,
}

impl PictureFormat {
    /// Its name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Jpeg => "JPEG",
            Self::Png => "PNG",
            Self::WebP => "WebP",
            Self::Gif => "GIF",
        }
    }

    /// The format that bytes begin as, whatever the name of their file says.
    #[must_use]
    pub fn of(bytes: &[u8]) -> Option<Self> {
        if bytes.starts_with(b"\xff\xd8\xff") {
            Some(Self::Jpeg)
        } else if bytes.starts_with(png::SIGNATURE) {
            Some(Self::Png)
        } else if bytes.starts_with(b"RIFF") && bytes.get(8..12) == Some(b"WEBP") {
            Some(Self::WebP)
        } else if bytes.starts_with(b"GIF87a") || bytes.starts_with(b"GIF89a") {
            Some(Self::Gif)
        } else {
            None
        }
    }
}

impl fmt::Display for PictureFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The facts that the headers of a picture tell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PictureInfo {
    /// Its format, by its bytes.
    pub format: PictureFormat,
    /// Its width in pixels, as it is stored.
    pub width: u32,
    /// Its height in pixels, as it is stored.
    pub height: u32,
    /// Frames of an animation, else 1.
    pub frames: u32,
    /// Time that an animation takes, once through, in milliseconds; else 0.
    pub duration_ms: u64,
    /// The way in which it is stored.
    pub orientation: Orientation,
    /// The most bytes that decoding one frame takes at once, its pixels included and the file not.
    pub decode_bytes: u64,
}

impl PictureInfo {
    /// Width and height in pixels as it is looked at and decoded.
    #[must_use]
    pub fn upright(&self) -> (u32, u32) {
        self.orientation.sides(self.width, self.height)
    }

    /// Pixels of a frame.
    #[must_use]
    pub fn pixels(&self) -> u64 {
        u64::from(self.width) * u64::from(self.height)
    }

    /// Refuses what is over a limit.
    ///
    /// # Errors
    /// [`MediaError::TooLarge`] with the first limit that it is over.
    pub fn check(&self, limits: &PictureLimits) -> Result<(), MediaError> {
        let checks = [
            (Bound::Pixels, self.pixels(), limits.pixels_max),
            (Bound::Frames, self.frames.into(), limits.frames_max.into()),
            (Bound::Bytes, self.decode_bytes, limits.bytes_max),
        ];
        for (bound, has, may) in checks {
            if has > may {
                return Err(MediaError::TooLarge {
                    format: self.format.name(),
                    bound,
                    has,
                    may,
                });
            }
        }
        Ok(())
    }
}

/// Bounds for untrusted pictures. What is over one is refused by its headers, before memory is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PictureLimits {
    /// Pixels of a picture or a frame: 67 million, as much as the largest setting of any encoder reads.
    pub pixels_max: u64,
    /// Bytes of memory that decoding takes at once, the file not counted: 512 MiB.
    pub bytes_max: u64,
    /// Frames of an animation: 4,096.
    pub frames_max: u32,
}

impl Default for PictureLimits {
    fn default() -> Self {
        Self {
            pixels_max: 1 << 26,
            bytes_max: 512 << 20,
            frames_max: 4096,
        }
    }
}

/// Reads the headers of a picture: no pixel is decoded, and no memory taken.
///
/// # Errors
/// Where the bytes are no picture, are cut off, contradict their format, or have what is not read.
pub fn probe(bytes: &[u8]) -> Result<PictureInfo, MediaError> {
    let Some(format) = PictureFormat::of(bytes) else {
        return Err(MediaError::Unknown {
            wanted: "JPEG, PNG, WebP or GIF",
            found: foreign(bytes),
        });
    };
    let info = match format {
        PictureFormat::Jpeg => jpeg::probe(bytes)?.info,
        PictureFormat::Png => png::probe(bytes)?,
        PictureFormat::WebP => webp::probe(bytes)?.info,
        PictureFormat::Gif => gif::probe(bytes)?,
    };
    Ok(info)
}
