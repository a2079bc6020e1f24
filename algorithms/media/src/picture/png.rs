//! PNG: its chunks, and its decoder.

use png::{ColorType, DecodingError, Transformations};

use super::kept::Kept;
use super::{Orientation, Picture, PictureFormat, PictureInfo, Transparency, exif};
use crate::error::{MediaError, MediaPlace};
use crate::scan::Scan;

pub(super) const SIGNATURE: &[u8] = b"\x89PNG\r\n\x1a\n";

pub(super) fn probe(bytes: &[u8]) -> Result<PictureInfo, MediaError> {
    let mut scan = Scan {
        bytes,
        at: SIGNATURE.len(),
    };
    let mut first = None;
    let (mut orientation, mut shines, mut data) = (Orientation::UPRIGHT, false, false);
    loop {
        let at = scan.at;
        let cut = || broken(at, "it is cut off within a chunk");
        let length = scan.u32_be().ok_or_else(cut)? as usize;
        let kind: [u8; 4] = scan.array().ok_or_else(cut)?;
        let chunk = scan.take(length).ok_or_else(cut)?;
        scan.take(4).ok_or_else(cut)?;
        match (&kind, &first) {
            (b"IHDR", None) => first = Some(sides(chunk, at)?),
            (_, None) => return Err(broken(at, "its first chunk is not its header")),
            (b"eXIf", _) => orientation = exif::orientation(chunk),
            (b"tRNS", _) => shines = true,
            (b"IDAT", _) => data = true,
            (b"IEND", _) => break,
            _ => {}
        }
    }
    let Some((width, height, channels)) = first.filter(|_| data) else {
        return Err(broken(scan.at, "it has no picture"));
    };
    let pixels = u64::from(width) * u64::from(height);
    // As they are decoded, and in three colours; those once more where they are turned.
    let decoded = match (channels, shines) {
        (1, true) => 2,
        (3, true) => 4,
        (channels, _) => channels,
    };
    let copies = if orientation == Orientation::UPRIGHT {
        0
    } else {
        3
    };
    let most = (decoded + if decoded < 3 { 3 } else { 0 }).max(3 + copies);
    Ok(PictureInfo {
        format: PictureFormat::Png,
        width,
        height,
        frames: 1,
        duration_ms: 0,
        orientation,
        decode_bytes: pixels * most + u64::from(width) * ROW_BYTES + TABLES,
    })
}

/// The signature and all chunks but notes: those of a camera would be copied twice.
fn needed(bytes: &[u8]) -> impl Iterator<Item = &[u8]> {
    let mut scan = Scan::new(bytes);
    let signature = scan.take(SIGNATURE.len());
    let chunks = std::iter::from_fn(move || {
        loop {
            let at = scan.at;
            let length = scan.u32_be()? as usize;
            let kind: [u8; 4] = scan.array()?;
            scan.take(length)?;
            scan.take(4)?;
            if !NOTES.contains(&&kind) {
                return bytes.get(at..scan.at);
            }
        }
    });
    signature.into_iter().chain(chunks)
}

/// Width, height, and the channels of a decoded pixel.
fn sides(chunk: &[u8], at: usize) -> Result<(u32, u32, u64), MediaError> {
    let mut scan = Scan::new(chunk);
    let short = || broken(at, "its header is too short");
    let (width, height) = (
        scan.u32_be().ok_or_else(short)?,
        scan.u32_be().ok_or_else(short)?,
    );
    let [_, colour, ..] = scan.array::<5>().ok_or_else(short)?;
    if width == 0 || height == 0 {
        return Err(broken(at, "it has no pixels"));
    }
    if width.max(height) > i32::MAX as u32 {
        return Err(broken(at, "a side is longer than the format allows"));
    }
    let channels = match colour {
        0 => 1,
        2 => 3,
        // Of a palette with or without what shines through.
        3 | 6 => 4,
        4 => 2,
        _ => return Err(broken(at, "its kind of colours is none of the format's")),
    };
    Ok((width, height, channels))
}

/// Decodes a PNG that was probed.
pub(super) fn decode(
    bytes: &[u8],
    info: &PictureInfo,
    through: Transparency,
) -> Result<Picture, MediaError> {
    let mut decoder = png::Decoder::new_with_limits(
        Kept::new(needed(bytes)),
        png::Limits {
            bytes: info.decode_bytes as usize,
        },
    );
    decoder.set_transformations(Transformations::EXPAND | Transformations::STRIP_16);
    decoder.set_ignore_text_chunk(true);
    decoder.set_ignore_iccp_chunk(true);
    let mut reader = decoder.read_info().map_err(|error| wrong(&error))?;
    let read = reader.info();
    if (read.width, read.height) != (info.width, info.height) {
        return Err(broken(0, "its headers say two sizes"));
    }
    let pixels = info.pixels() as usize;
    let (colours, _) = reader.output_color_type();
    let size = reader.output_buffer_size();
    if size != Some(pixels * colours.samples()) {
        return Err(broken(0, "its headers say two sizes of a pixel"));
    }
    let mut decoded = vec![0; pixels * colours.samples()];
    let frame = reader
        .next_frame(&mut decoded)
        .map_err(|error| wrong(&error))?;
    if (frame.width, frame.height) != (info.width, info.height) {
        return Err(broken(0, "its picture has another size than its header"));
    }
    let pixels = match colours {
        ColorType::Rgb => decoded,
        ColorType::Rgba => through.flatten(decoded),
        ColorType::Grayscale => coloured(&decoded, |&[grey]| [grey; 3]),
        ColorType::GrayscaleAlpha => coloured(&decoded, |&[grey, alpha]| {
            through.over([grey, grey, grey, alpha])
        }),
        ColorType::Indexed => return Err(broken(0, "it has no palette")),
    };
    Picture::new(info.width, info.height, pixels)
}

/// Pixels in three colours, of those with fewer parts.
fn coloured<const N: usize>(decoded: &[u8], colours: impl Fn(&[u8; N]) -> [u8; 3]) -> Vec<u8> {
    let (pixels, _) = decoded.as_chunks::<N>();
    let mut out = Vec::with_capacity(pixels.len() * 3);
    for pixel in pixels {
        out.extend_from_slice(&colours(pixel));
    }
    out
}

fn wrong(error: &DecodingError) -> MediaError {
    MediaError::Broken {
        format: PictureFormat::Png.name(),
        place: MediaPlace::Data,
        reason: error.to_string(),
    }
}

fn broken(at: usize, reason: &str) -> MediaError {
    MediaError::Broken {
        format: PictureFormat::Png.name(),
        place: MediaPlace::Byte(at as u64),
        reason: reason.to_owned(),
    }
}

/// Chunks of notes, of texts and of a profile of colours.
const NOTES: [&[u8; 4]; 5] = [b"eXIf", b"tEXt", b"zTXt", b"iTXt", b"iCCP"];

/// Bytes of rows that are filtered, for each pixel of a row: two of up to 8 bytes a pixel, and what is read ahead.
const ROW_BYTES: u64 = 64;

/// The window of the compression and its tables.
const TABLES: u64 = 512 << 10;
