//! Pictures, video frames and sound: from untrusted bytes to the numbers that encoders read.
//!
//! A pure library. It is given bytes and gives numbers; it opens no file, asks no clock and starts no thread.
//!
//! ```text
//! bytes ── probe ── limits ── decode ── resize ── normalise ── cut ──> patches, packed
//!            |                   |
//!      sizes, tokens      pixels or frames
//!      (no pixel decoded)
//!
//! bytes ── probe_sound ── limits ── decode, mix, resample ── windows, mel, logarithm ──> features
//! ```
//!
//! - What is too large is refused by its headers, before memory is taken ([`PictureLimits`]). What is broken is an error that
//!   says where ([`MediaError`]); bytes of any kind never panic.
//! - Sizes, patches and tokens are those of the processors that models were trained with, to the pixel ([`Sizing`]), and are
//!   told without decoding: what a plan reckons with is what an encoder gets.
//!
//! ```
//! use odeon_media::{PatchPacking, Picture, PictureProcessor};
//!
//! let processor = PictureProcessor::qwen2_5_vl();
//! assert_eq!(processor.tokens(480, 640)?, 17 * 23);
//!
//! let picture = Picture::new(64, 64, vec![128; 64 * 64 * 3])?; // or `decode(bytes, ..)`
//! let mut numbers = vec![];
//! let grids = [processor.append(&picture, &mut numbers)?];
//! assert_eq!(numbers.len() as u64, grids[0].patches() * 1176);
//! let packed = PatchPacking::new(&grids, processor.merge)?;
//! assert_eq!(packed.cu_seqlens, [0, 16]);
//! # Ok::<(), odeon_media::MediaError>(())
//! ```
//!
//! | file | holds |
//! | --- | --- |
//! | `error` | why a file is not read |
//! | `foreign` | names for bytes that are something else |
//! | `scan` | a walk over untrusted bytes |
//! | `picture` | pixels, and what shines through them |
//! | `picture/probe` | what headers tell, limits |
//! | `picture/exif` | which way up a picture was taken |
//! | `picture/jpeg`, `picture/png`, `picture/webp`, `picture/gif` | one format each: headers, and its decoder |
//! | `picture/kept` | a file without the parts that nobody looks at |
//! | `picture/vp8` | into how many parts a lossy WebP is cut |
//! | `picture/canvas` | frames over each other |
//! | `picture/decode` | pictures and frames, decoded when they are asked for |
//! | `fit` | sizes, and so tokens, of pictures and videos |
//! | `processor` | resize, normalise, cut into patches |
//! | `packing` | several pictures in one sequence: positions, windows |
//! | `video` | which frames are looked at, and when they are |
//! | `sound` | samples of one channel |
//! | `sound/container`, `sound/opus` | packets of each format, and their decoders |
//! | `sound/frames` | frames of FLAC |
//! | `sound/source` | a file without its notes |
//! | `sound/decode` | what headers tell, limits, samples |
//! | `sound/resample` | another rate |
//! | `sound/mel` | features of Whisper |

#![forbid(unsafe_code)]

mod error;
mod fit;
mod foreign;
mod packing;
mod picture;
mod processor;
mod scan;
mod sound;
mod video;

pub use error::{Bound, MediaError, MediaPlace};
pub use fit::{RATIO_MAX, SIDE_MAX, Sizing, video_size};
pub use packing::{AttentionWindows, MropePositions, PatchGrid, PatchPacking, SequencePart};
pub use picture::{
    Orientation, Picture, PictureFormat, PictureFrame, PictureFrames, PictureInfo, PictureLimits,
    Transparency, decode, decode_frames, frames, probe,
};
pub use processor::{PatchLayout, PictureProcessor, ResizeFilter, resized};
pub use sound::{
    MelFeatures, MonoSound, Resampler, SoundFormat, SoundInfo, SoundLimits, WhisperFeatures,
    decode_sound, probe_sound,
};
pub use video::{
    VideoBudget, VideoSampling, evenly, patch_seconds, qwen_frames, qwen_stamp, seed_stamp, seen_at,
};
