//! WebP: its chunks, and its decoder.

use std::io::Cursor;

use image_webp::{DecodingError, WebPDecoder};

use super::canvas::{Area, Canvas, blended};
use super::vp8;
use super::{Orientation, Picture, PictureFormat, PictureInfo, Transparency, exif};
use crate::error::{MediaError, MediaPlace};
use crate::scan::Scan;

/// What the chunks of a WebP tell.
pub(super) struct Header {
    pub(super) info: PictureInfo,
    animated: bool,
}

/// What is met on the way through chunks.
#[derive(Default)]
struct Seen {
    canvas: Option<(u32, u32)>,
    largest: u64,
    lossless: bool,
    frames: u32,
    duration_ms: u64,
    animated: bool,
    orientation: Option<Orientation>,
}

pub(super) fn probe(bytes: &[u8]) -> Result<Header, MediaError> {
    let mut scan = Scan { bytes, at: 4 };
    let length = scan.u32_le().map_or(usize::MAX, |length| length as usize);
    // What lies behind is nobody's.
    let Some(bytes) = length.checked_add(8).and_then(|end| bytes.get(..end)) else {
        let reason = "it is cut off: its header says that it is longer";
        return Err(broken(bytes.len(), reason));
    };
    let mut scan = Scan { bytes, at: FIRST };
    let mut seen = Seen::default();
    while !scan.rest().is_empty() {
        let at = scan.at;
        let Some((kind, chunk)) = chunk(&mut scan) else {
            return Err(broken(at, "it is cut off within a chunk"));
        };
        match (&kind, at) {
            (b"VP8X", FIRST) => {
                let mut scan = Scan::new(chunk);
                let short = || broken(at, "its header is too short");
                let flags = scan.u32_le().ok_or_else(short)?;
                let width = scan.u24_le().ok_or_else(short)? + 1;
                let height = scan.u24_le().ok_or_else(short)? + 1;
                seen.canvas = Some((width, height));
                seen.animated = flags & ANIMATED != 0;
            }
            (b"VP8 " | b"VP8L", _) => seen.bitstream(kind, chunk, at)?,
            (b"ANMF", _) => seen.frame(chunk, at)?,
            (b"EXIF", _) => seen.orientation = Some(exif::orientation(chunk)),
            _ => {}
        }
    }
    let canvas = seen.canvas.filter(|_| seen.largest > 0);
    let Some((width, height)) = canvas else {
        return Err(broken(scan.at, "it has no picture"));
    };
    if seen.animated && seen.frames == 0 {
        return Err(broken(scan.at, "it is animated and has no frame"));
    }
    let pixels = u64::from(width) * u64::from(height);
    let orientation = seen.orientation.unwrap_or(Orientation::UPRIGHT);
    let turned = if orientation == Orientation::UPRIGHT {
        0
    } else {
        3
    };
    // The pixels that come out. In a frame: those of its own, and samples or, without loss, four bytes a pixel and as
    // much again for tables and transforms.
    let inside = seen.largest * if seen.lossless { 12 } else { 6 };
    // What is seen of an animation, and a frame's part of the file once more.
    let canvas = if seen.animated {
        pixels * 4 + bytes.len() as u64
    } else {
        0
    };
    Ok(Header {
        animated: seen.animated,
        info: PictureInfo {
            format: PictureFormat::WebP,
            width,
            height,
            frames: if seen.animated { seen.frames } else { 1 },
            duration_ms: if seen.animated { seen.duration_ms } else { 0 },
            orientation,
            // Compressed data is copied, read as long as it goes on, and copied once more.
            decode_bytes: pixels * (4 + turned) + canvas + inside + bytes.len() as u64 * 4 + TABLES,
        },
    })
}

fn chunk<'a>(scan: &mut Scan<'a>) -> Option<([u8; 4], &'a [u8])> {
    let kind = scan.array()?;
    let length = scan.u32_le()? as usize;
    let chunk = scan.take(length)?;
    // Chunks are padded to even lengths; the last one's padding may be missing.
    if length % 2 == 1 {
        scan.take(1);
    }
    Some((kind, chunk))
}

impl Seen {
    /// A picture that is compressed, whose sides are no larger than where it is shown: else it takes more memory than
    /// anything tells.
    fn bitstream(&mut self, kind: [u8; 4], chunk: &[u8], at: usize) -> Result<(), MediaError> {
        let short = || broken(at, "its compressed data is too short");
        let mut scan = Scan::new(chunk);
        let (width, height) = if kind == *b"VP8 " {
            let [tag, _, _, start @ ..] = scan.array::<6>().ok_or_else(short)?;
            if tag & 1 != 0 || start != [0x9d, 0x01, 0x2a] {
                return Err(broken(
                    at,
                    "its compressed data does not begin as a picture",
                ));
            }
            let sides = (scan.u16_le(), scan.u16_le());
            let (Some(width), Some(height)) = sides else {
                return Err(short());
            };
            if !vp8::partitions_fit(chunk) {
                return Err(broken(at, "a part of its compressed data is missing"));
            }
            (u32::from(width & 0x3fff), u32::from(height & 0x3fff))
        } else {
            self.lossless = true;
            if scan.u8().ok_or_else(short)? != 0x2f {
                return Err(broken(
                    at,
                    "its compressed data does not begin as a picture",
                ));
            }
            let sides = scan.u32_le().ok_or_else(short)?;
            ((sides & 0x3fff) + 1, ((sides >> 14) & 0x3fff) + 1)
        };
        if width == 0 || height == 0 {
            return Err(broken(at, "it has no pixels"));
        }
        let (wide, high) = *self.canvas.get_or_insert((width, height));
        if width > wide || height > high {
            return Err(broken(at, "a picture in it is larger than its header says"));
        }
        self.largest = self.largest.max(u64::from(width) * u64::from(height));
        Ok(())
    }

    fn frame(&mut self, chunk: &[u8], at: usize) -> Result<(), MediaError> {
        let short = || broken(at, "a frame is too short");
        let mut scan = Scan::new(chunk);
        scan.take(12).ok_or_else(short)?;
        self.duration_ms += u64::from(scan.u24_le().ok_or_else(short)?);
        scan.take(1).ok_or_else(short)?;
        self.frames += 1;
        let mut pictures = 0;
        while !scan.rest().is_empty() {
            let within = at + 8 + scan.at;
            let Some((kind, chunk)) = self::chunk(&mut scan) else {
                return Err(broken(within, "a frame is cut off"));
            };
            if [*b"VP8 ", *b"VP8L"].contains(&kind) {
                self.bitstream(kind, chunk, within)?;
                pictures += 1;
            }
        }
        if pictures == 0 {
            return Err(broken(at, "a frame has no picture"));
        }
        Ok(())
    }
}

/// Frames of a WebP, as they are seen one after the other; the one of a still picture.
pub(super) struct Frames<'a> {
    scan: Scan<'a>,
    header: Header,
    through: Transparency,
    canvas: Canvas,
    frame: u32,
    at_ms: u64,
}

impl std::fmt::Debug for Frames<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut shown = f.debug_struct("Frames");
        shown.field("info", &self.header.info);
        shown.field("frame", &self.frame).finish_non_exhaustive()
    }
}

impl<'a> Frames<'a> {
    pub(super) fn new(bytes: &'a [u8], header: Header, through: Transparency) -> Self {
        let info = &header.info;
        let canvas = match header.animated {
            true => Canvas::new(info.width, info.height),
            false => Canvas::new(0, 0),
        };
        Self {
            scan: Scan { bytes, at: FIRST },
            header,
            through,
            canvas,
            frame: 0,
            at_ms: 0,
        }
    }

    /// The next picture, with the time in milliseconds from which on and up to which it is seen.
    pub(super) fn next(&mut self) -> Result<Option<(Picture, u64, u64)>, MediaError> {
        let info = self.header.info;
        if self.frame == info.frames {
            return Ok(None);
        }
        let (picture, shown) = if self.header.animated {
            self.moved()?
        } else {
            let (pixels, parts) = self.decoded(self.scan.bytes, info.width, info.height)?;
            let pixels = match parts {
                4 => self.through.flatten(pixels),
                _ => pixels,
            };
            (Picture::new(info.width, info.height, pixels)?, 0)
        };
        let from = self.at_ms;
        self.at_ms += shown;
        self.frame += 1;
        Ok(Some((picture, from, self.at_ms)))
    }

    /// Draws the next frame of an animation. Its decoder would draw it, too, and makes what is opaque a level darker.
    fn moved(&mut self) -> Result<(Picture, u64), MediaError> {
        let frame = loop {
            match chunk(&mut self.scan) {
                Some((kind, chunk)) if &kind == b"ANMF" => break chunk,
                Some(_) => {}
                None => {
                    return Err(broken(
                        self.scan.at,
                        "it has fewer frames than its chunks say",
                    ));
                }
            }
        };
        let short = || broken(self.scan.at, "a frame is too short");
        let mut scan = Scan::new(frame);
        let mut number = || {
            scan.u24_le()
                .map(|number| number as usize)
                .ok_or_else(short)
        };
        let (left, top) = (number()? * 2, number()? * 2);
        let (width, height, shown) = (number()? + 1, number()? + 1, number()?);
        let flags = scan.u8().ok_or_else(short)?;
        let area = Area {
            left,
            top,
            width,
            height,
        };
        let alone = alone(scan.rest(), width as u32, height as u32);
        let (pixels, parts) = self.decoded(&alone, width as u32, height as u32)?;
        drop(alone);
        let over = flags & OVERWRITES == 0;
        self.canvas.rows(area, |row, under| {
            let from = pixels[row * width * parts..].chunks_exact(parts);
            for (under, from) in under.iter_mut().zip(from) {
                let pixel = [
                    from[0],
                    from[1],
                    from[2],
                    from.get(3).copied().unwrap_or(255),
                ];
                *under = if over { blended(pixel, *under) } else { pixel };
            }
        });
        drop(pixels);
        let picture = self.canvas.seen(self.through)?;
        if flags & GOES != 0 {
            self.canvas.clear(area);
        }
        Ok((picture, shown as u64))
    }

    /// Pixels of a file with one picture of these sides, and the bytes of each.
    fn decoded(
        &self,
        file: &[u8],
        width: u32,
        height: u32,
    ) -> Result<(Vec<u8>, usize), MediaError> {
        let wrong = |error: &DecodingError| MediaError::Broken {
            format: PictureFormat::WebP.name(),
            place: MediaPlace::Frame(self.frame),
            reason: error.to_string(),
        };
        let decoder = WebPDecoder::new(Cursor::new(file));
        let mut decoder = decoder.map_err(|error| wrong(&error))?;
        decoder.set_memory_limit(self.header.info.decode_bytes as usize);
        if decoder.dimensions() != (width, height) || decoder.is_animated() {
            return Err(broken(0, "its headers say two sizes"));
        }
        let parts = if decoder.has_alpha() { 4 } else { 3 };
        let mut pixels = vec![0; width as usize * height as usize * parts];
        let read = decoder.read_image(&mut pixels);
        read.map_err(|error| wrong(&error))?;
        Ok((pixels, parts))
    }
}

/// A file with one picture, of the chunks of a frame.
fn alone(chunks: &[u8], width: u32, height: u32) -> Vec<u8> {
    let alpha = chunks.starts_with(b"ALPH");
    let mut file = Vec::with_capacity(chunks.len() + 32);
    file.extend(b"RIFF\0\0\0\0WEBP");
    if alpha {
        file.extend(b"VP8X\x0a\0\0\0\x10\0\0\0");
        file.extend(&(width - 1).to_le_bytes()[..3]);
        file.extend(&(height - 1).to_le_bytes()[..3]);
    }
    file.extend(chunks);
    let length = file.len() as u32 - 8;
    file[4..8].copy_from_slice(&length.to_le_bytes());
    file
}

fn broken(at: usize, reason: &str) -> MediaError {
    MediaError::Broken {
        format: PictureFormat::WebP.name(),
        place: MediaPlace::Byte(at as u64),
        reason: reason.to_owned(),
    }
}

/// Where the first chunk begins.
const FIRST: usize = 12;

/// The bit of a header that says that the picture moves.
const ANIMATED: u32 = 0b10;

/// Bits of a frame: that it takes the place of what is under it, and that it goes again.
const OVERWRITES: u8 = 0b10;
const GOES: u8 = 0b01;

/// Tables of codes, and chunks of notes.
const TABLES: u64 = 2 << 20;
