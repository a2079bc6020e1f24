//! JPEG: its segments up to the first scan, and its decoder.

use zune_core::bytestream::ZCursor;
use zune_core::colorspace::ColorSpace;
use zune_core::options::DecoderOptions;
use zune_jpeg::JpegDecoder;
use zune_jpeg::errors::DecodeErrors;

use super::{Orientation, Picture, PictureFormat, PictureInfo, exif};
use crate::error::{MediaError, MediaPlace};
use crate::scan::Scan;

/// What the segments of a JPEG tell.
pub(super) struct Header {
    pub(super) info: PictureInfo,
    /// Bytes of the parts that are needed.
    needed: usize,
}

/// The frame header: sides, and each component's factors of sampling.
struct Frame {
    progressive: bool,
    width: u32,
    height: u32,
    factors: Vec<(u64, u64)>,
}

pub(super) fn probe(bytes: &[u8]) -> Result<Header, MediaError> {
    let mut scan = Scan { bytes, at: 2 };
    let (mut frame, mut orientation) = (None, Orientation::UPRIGHT);
    let in_scan = loop {
        let marker = marker(&mut scan)?;
        let at = scan.at;
        let segment = segment(&mut scan)?;
        match marker {
            SOF_FIRST..=SOF_LAST if ![DHT, JPG, DAC].contains(&marker) => {
                if frame.is_some() {
                    return Err(broken(at, "it has two frame headers"));
                }
                frame = Some(frame_header(marker, segment, at)?);
            }
            APP1 if segment.starts_with(b"Exif\0\0") && orientation == Orientation::UPRIGHT => {
                orientation = exif::orientation(segment);
            }
            SOS => break usize::from(segment.first().copied().unwrap_or_default()),
            _ => {}
        }
    };
    let Some(frame) = frame else {
        return Err(broken(scan.at, "a scan comes before the frame header"));
    };
    // A decoder draws grey where data ends too early.
    if memchr::memmem::rfind(scan.rest(), &[0xff, EOI]).is_none() {
        return Err(broken(
            bytes.len(),
            "it is cut off: the mark of its end is missing",
        ));
    }
    let mut needed = 0;
    plain(bytes, |part| needed += part.len())?;
    let decode_bytes = needed as u64 + decode_bytes(&frame, in_scan, orientation);
    Ok(Header {
        needed,
        info: PictureInfo {
            format: PictureFormat::Jpeg,
            width: frame.width,
            height: frame.height,
            frames: 1,
            duration_ms: 0,
            orientation,
            decode_bytes,
        },
    })
}

/// The next mark, behind any bytes that fill.
fn marker(scan: &mut Scan<'_>) -> Result<u8, MediaError> {
    let at = scan.at;
    let cut = || broken(at, "it ends within its headers");
    let mut between = 0;
    while scan.u8().ok_or_else(cut)? != 0xff {
        between += 1;
    }
    if between > 1 {
        return Err(broken(at, "bytes stand between its segments"));
    }
    loop {
        match scan.u8().ok_or_else(cut)? {
            0xff | 0x00 => {}
            EOI => return Err(broken(at, "it ends before its picture")),
            marker => return Ok(marker),
        }
    }
}

/// What stands in the segment that begins here.
fn segment<'a>(scan: &mut Scan<'a>) -> Result<&'a [u8], MediaError> {
    let at = scan.at;
    let cut = || broken(at, "a segment goes on behind the end of the file");
    let length = usize::from(scan.u16_be().ok_or_else(cut)?);
    let Some(length) = length.checked_sub(2) else {
        return Err(broken(at, "a segment is shorter than its own length"));
    };
    scan.take(length).ok_or_else(cut)
}

fn frame_header(marker: u8, segment: &[u8], at: usize) -> Result<Frame, MediaError> {
    let unsupported = |feature: &str| MediaError::Unsupported {
        format: PictureFormat::Jpeg.name(),
        feature: feature.to_owned(),
        advice: "convert it to a JPEG of eight bits with Huffman codes",
    };
    let feature = match marker - SOF_FIRST {
        0..=2 => None,
        3 => Some("lossless compression"),
        5..=7 | 13..=15 => Some("hierarchical frames"),
        _ => Some("arithmetic codes"),
    };
    if let Some(feature) = feature {
        return Err(unsupported(feature));
    }
    let short = || broken(at, "its frame header is too short");
    let mut scan = Scan::new(segment);
    let bits = scan.u8().ok_or_else(short)?;
    if bits != 8 {
        return Err(unsupported(&format!("{bits} bits a colour")));
    }
    let height = u32::from(scan.u16_be().ok_or_else(short)?);
    let width = u32::from(scan.u16_be().ok_or_else(short)?);
    if height == 0 {
        return Err(unsupported("its height behind its picture"));
    }
    if width == 0 {
        return Err(broken(at, "it has no pixels"));
    }
    let components = scan.u8().ok_or_else(short)?;
    if ![1, 3, 4].contains(&components) {
        return Err(unsupported(&format!("{components} colours")));
    }
    let mut factors = vec![];
    for _ in 0..components {
        let [_, sampling, _] = scan.array().ok_or_else(short)?;
        let (across, down) = (u64::from(sampling >> 4), u64::from(sampling & 15));
        if !(1..=4).contains(&across) || !(1..=4).contains(&down) {
            return Err(broken(
                at,
                "a colour is sampled fewer than once or more than 4 times",
            ));
        }
        factors.push((across, down));
    }
    Ok(Frame {
        progressive: marker == SOF_FIRST + 2,
        width,
        height,
        factors,
    })
}

/// The most that decoding takes: the pixels, those once more where they are turned, rows of samples on their way
/// to pixels, and all coefficients where they come in several scans. What is needed of the file comes to it, once.
fn decode_bytes(frame: &Frame, in_scan: usize, orientation: Orientation) -> u64 {
    let pixels = u64::from(frame.width) * u64::from(frame.height) * 3;
    let copies = if orientation == Orientation::UPRIGHT {
        1
    } else {
        2
    };
    let most = |of: fn(&(u64, u64)) -> u64| frame.factors.iter().map(of).max().unwrap_or(1);
    let (across, down) = (most(|factors| factors.0), most(|factors| factors.1));
    let blocks_wide = u64::from(frame.width).div_ceil(8 * across);
    let blocks_high = u64::from(frame.height).div_ceil(8 * down);
    let of_one: u64 = frame
        .factors
        .iter()
        .map(|(across, down)| across * down)
        .sum();
    // Coefficients of 16 bits, 64 a block.
    let row = blocks_wide * of_one * 64 * 2;
    let all = if frame.progressive || in_scan < frame.factors.len() {
        // A colour that is alone is not sampled, whatever its header says.
        let alone = u64::from(frame.width).div_ceil(8) * u64::from(frame.height).div_ceil(8) * 128;
        (row * blocks_high).max(if frame.factors.len() == 1 { alone } else { 0 })
    } else {
        0
    };
    let rows = (blocks_wide * across * 8) * down * frame.factors.len() as u64 * ROW_BYTES;
    pixels * copies + all + row + rows + TABLES
}

/// Gives all parts of a picture that are needed to decode it: its decoder would keep profiles, notes of cameras and
/// editors, and sort them again at each segment.
fn plain(bytes: &[u8], mut put: impl FnMut(&[u8])) -> Result<(), MediaError> {
    let mut scan = Scan { bytes, at: 2 };
    let mut scanned = false;
    put(&bytes[..2]);
    let mut next = Some(marker(&mut scan)?);
    while let Some(marker) = next {
        let is_note = matches!(marker, APP0..=APP_LAST | COMMENT);
        let at = scan.at;
        if scanned && !(is_note || [DHT, DQT, DRI, SOS].contains(&marker)) {
            put(&[0xff, marker]);
            if marker == EOI {
                return Ok(());
            }
        } else {
            let segment = segment(&mut scan)?;
            let needed = match marker {
                // That tables are missing, and what colours are: as much of it as is read.
                APP0 if segment.starts_with(b"AVI1\0") => segment.get(..5),
                APP14 if segment.starts_with(b"Adobe") => segment.get(..12),
                SOF_FIRST..=SOF_LAST | DQT | DRI | SOS => Some(segment),
                _ => None,
            };
            if let Some(needed) = needed {
                put(&[0xff, marker]);
                put(&(needed.len() as u16 + 2).to_be_bytes());
                put(needed);
            }
        }
        scanned |= marker == SOS;
        if !scanned {
            next = Some(self::marker(&mut scan)?);
            continue;
        }
        let data;
        (data, next) = compressed(&mut scan);
        if !data.is_empty() && (is_note || [DHT, DQT, DRI].contains(&marker)) {
            return Err(broken(at, "compressed data goes on behind a segment"));
        }
        put(data);
    }
    Ok(())
}

/// Compressed data, and the mark behind it.
fn compressed<'a>(scan: &mut Scan<'a>) -> (&'a [u8], Option<u8>) {
    let data = scan.rest();
    let mut at = 0;
    while let Some(found) = memchr::memchr(0xff, &data[at..]) {
        let mark = at + found;
        let fill = data[mark..].iter().take_while(|byte| **byte == 0xff);
        let behind = mark + fill.count();
        match data.get(behind) {
            None => break,
            Some(0 | RESTART_FIRST..=RESTART_LAST) => at = behind + 1,
            Some(&marker) => {
                scan.at += behind + 1;
                return (&data[..mark], Some(marker));
            }
        }
    }
    scan.at = scan.bytes.len();
    (data, None)
}

/// Decodes a JPEG whose segments were read.
pub(super) fn decode(bytes: &[u8], header: &Header) -> Result<Picture, MediaError> {
    let info = &header.info;
    let options = DecoderOptions::default()
        .jpeg_set_out_colorspace(ColorSpace::RGB)
        .set_max_width(usize::from(u16::MAX))
        .set_max_height(usize::from(u16::MAX))
        .set_strict_mode(true);
    let mut file = Vec::with_capacity(header.needed);
    plain(bytes, |part| file.extend_from_slice(part))?;
    let mut decoder = JpegDecoder::new_with_options(ZCursor::new(file), options);
    let wrong = |error: DecodeErrors| MediaError::Broken {
        format: PictureFormat::Jpeg.name(),
        place: MediaPlace::Data,
        reason: error.to_string(),
    };
    decoder.decode_headers().map_err(wrong)?;
    let (width, height) = (info.width as usize, info.height as usize);
    if decoder.dimensions() != Some((width, height)) {
        return Err(broken(0, "its headers say two sizes"));
    }
    let mut pixels = vec![0; width * height * 3];
    if decoder.output_buffer_size() != Some(pixels.len()) {
        return Err(broken(0, "its headers say two numbers of colours"));
    }
    decoder.decode_into(&mut pixels).map_err(wrong)?;
    Picture::new(info.width, info.height, pixels)
}

fn broken(at: usize, reason: &str) -> MediaError {
    MediaError::Broken {
        format: PictureFormat::Jpeg.name(),
        place: MediaPlace::Byte(at as u64),
        reason: reason.to_owned(),
    }
}

const SOF_FIRST: u8 = 0xc0;
const SOF_LAST: u8 = 0xcf;
const DHT: u8 = 0xc4;
const JPG: u8 = 0xc8;
const DAC: u8 = 0xcc;
const EOI: u8 = 0xd9;
const SOS: u8 = 0xda;
const DQT: u8 = 0xdb;
const DRI: u8 = 0xdd;
const APP0: u8 = 0xe0;
const APP1: u8 = 0xe1;
const APP14: u8 = 0xee;
const APP_LAST: u8 = 0xef;
const COMMENT: u8 = 0xfe;
const RESTART_FIRST: u8 = 0xd0;
const RESTART_LAST: u8 = 0xd7;

/// Bytes of rows that wait to become pixels, for each sample of a row of blocks: as its decoder holds them.
const ROW_BYTES: u64 = 96;

/// Tables of codes and of quantisation.
const TABLES: u64 = 256 << 10;
