//! Decoding of probed pictures and frames.

use super::{
    Picture, PictureFormat, PictureInfo, PictureLimits, Transparency, gif, jpeg, png, probe, webp,
};
use crate::error::{Bound, MediaError, MediaPlace, guarded};

/// Decodes a picture; of an animation its first frame. It is upright.
///
/// # Errors
/// As [`probe()`], where a limit is passed, and where the compressed data is broken or ends too early.
pub fn decode(
    bytes: &[u8],
    limits: &PictureLimits,
    through: Transparency,
) -> Result<Picture, MediaError> {
    match frames(bytes, limits, through)?.next() {
        Some(frame) => Ok(frame?.picture),
        None => Err(MediaError::Broken {
            format: "picture",
            place: MediaPlace::Data,
            reason: "it has no frame".to_owned(),
        }),
    }
}

/// Decodes all frames of a picture at once; their pixels together keep to [`PictureLimits::bytes_max`].
///
/// # Errors
/// As [`decode`], and where all frames together are larger than they may be.
pub fn decode_frames(
    bytes: &[u8],
    limits: &PictureLimits,
    through: Transparency,
) -> Result<Vec<PictureFrame>, MediaError> {
    let frames = frames(bytes, limits, through)?;
    let info = frames.info();
    let all = info.pixels() * 3 * u64::from(info.frames.saturating_sub(1)) + info.decode_bytes;
    if all > limits.bytes_max {
        return Err(MediaError::TooLarge {
            format: info.format.name(),
            bound: Bound::Bytes,
            has: all,
            may: limits.bytes_max,
        });
    }
    frames.collect()
}

/// The frames of a picture one after the other, each when it is asked for. A still picture has one.
///
/// # Errors
/// As [`probe()`], and where a limit is passed. The first error of a frame is the last frame.
pub fn frames<'a>(
    bytes: &'a [u8],
    limits: &PictureLimits,
    through: Transparency,
) -> Result<PictureFrames<'a>, MediaError> {
    let info = probe(bytes)?;
    info.check(limits)?;
    let source = guarded(info.format.name(), MediaPlace::Data, || {
        Ok(match info.format {
            PictureFormat::Jpeg => Frames::Jpeg(bytes),
            PictureFormat::Png => Frames::Png(bytes),
            PictureFormat::WebP => {
                let frames = webp::Frames::new(bytes, webp::probe(bytes)?, through);
                Frames::WebP(Box::new(frames))
            }
            PictureFormat::Gif => Frames::Gif(Box::new(gif::Frames::new(bytes, info, through)?)),
        })
    })?;
    Ok(PictureFrames {
        source,
        info,
        through,
        at: 0,
        ended: false,
    })
}

/// A frame with the time at which it is seen, from the beginning of the animation; both times are 0 for a still
/// picture.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PictureFrame {
    /// The pixels.
    pub picture: Picture,
    /// The time from which on it is seen, in milliseconds.
    pub from_ms: u64,
    /// The time at which the next one is seen, in milliseconds.
    pub to_ms: u64,
}

#[derive(Debug)]
enum Frames<'a> {
    Jpeg(&'a [u8]),
    Png(&'a [u8]),
    WebP(Box<webp::Frames<'a>>),
    Gif(Box<gif::Frames<'a>>),
}

/// Frames that are decoded when they are asked for: see [`frames`].
#[derive(Debug)]
pub struct PictureFrames<'a> {
    source: Frames<'a>,
    info: PictureInfo,
    through: Transparency,
    at: u32,
    ended: bool,
}

impl PictureFrames<'_> {
    /// The facts that its headers tell.
    #[must_use]
    pub fn info(&self) -> &PictureInfo {
        &self.info
    }

    fn decoded(&mut self) -> Result<Option<(Picture, u64, u64)>, MediaError> {
        let (info, through) = (self.info, self.through);
        let still = |picture: Picture| Some((picture, 0, 0));
        let first = self.at == 0;
        let source = &mut self.source;
        guarded(
            info.format.name(),
            MediaPlace::Frame(self.at),
            || match source {
                Frames::Jpeg(bytes) if first => {
                    jpeg::decode(bytes, &jpeg::probe(bytes)?).map(still)
                }
                Frames::Png(bytes) if first => png::decode(bytes, &info, through).map(still),
                Frames::Jpeg(_) | Frames::Png(_) => Ok(None),
                Frames::WebP(frames) => frames.next(),
                Frames::Gif(frames) => frames.next(),
            },
        )
    }
}

impl Iterator for PictureFrames<'_> {
    type Item = Result<PictureFrame, MediaError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.ended {
            return None;
        }
        let decoded = self.decoded();
        self.at += 1;
        self.ended = !matches!(decoded, Ok(Some(_)));
        let (picture, from_ms, to_ms) = match decoded.transpose()? {
            Ok(decoded) => decoded,
            Err(error) => return Some(Err(error)),
        };
        let picture = picture.turned(self.info.orientation);
        Some(Ok(PictureFrame {
            picture,
            from_ms,
            to_ms,
        }))
    }
}
