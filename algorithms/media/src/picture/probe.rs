//! Facts of a picture, and the memory that it takes to decode it, read from its headers alone.

use std::fmt;

use super::{Orientation, gif, jpeg, png, webp};
use crate::error::{Bound, MediaError};

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

/// What bytes are that are no picture, for whoever has to find out.
fn foreign(bytes: &[u8]) -> String {
    if bytes.is_empty() {
        return "has no bytes".to_owned();
    }
    if bytes.get(4..8) == Some(b"ftyp") {
        let brand = bytes.get(8..12).unwrap_or_default();
        return match brand {
            b"heic" | b"heix" | b"mif1" | b"msf1" => "is HEIC: convert it to one of these",
            b"avif" | b"avis" => "is AVIF: convert it to one of these",
            _ => "is a video or another file of MP4's family",
        }
        .to_owned();
    }
    let known: [(&[u8], &str); 14] = [
        (b"BM", "looks like BMP: convert it to one of these"),
        (b"II*\0", "is TIFF: convert it to one of these"),
        (b"MM\0*", "is TIFF: convert it to one of these"),
        (
            b"\0\0\x01\0",
            "looks like an icon (ICO): convert it to one of these",
        ),
        (b"\xff\x0a", "is JPEG XL: convert it to one of these"),
        (b"\0\0\0\x0cJXL ", "is JPEG XL: convert it to one of these"),
        (b"\x1a\x45\xdf\xa3", "is WebM or Matroska, a video"),
        (b"%PDF", "is PDF: draw its pages first"),
        (b"\x1f\x8b", "is compressed by gzip: unpack it first"),
        (b"PK\x03\x04", "is a ZIP archive: unpack it first"),
        (b"RIFF", "is a RIFF file of another kind than WebP"),
        (b"<?xml", "is XML, perhaps SVG: draw it first"),
        (b"<svg", "is SVG: draw it first"),
        (
            b"version https://git-lfs",
            "is a pointer of Git LFS: fetch the file",
        ),
    ];
    if let Some((_, found)) = known.iter().find(|(start, _)| bytes.starts_with(start)) {
        return (*found).to_owned();
    }
    let start = &bytes[..bytes.len().min(64)];
    let text = start.trim_ascii_start().to_ascii_lowercase();
    if text.starts_with(b"<!doctype") || text.starts_with(b"<html") {
        return "is a page of HTML, as servers send for what they lack".to_owned();
    }
    let begins: Vec<String> = start
        .iter()
        .take(8)
        .map(|byte| format!("{byte:02x}"))
        .collect();
    format!("begins with {}", begins.join(" "))
}
