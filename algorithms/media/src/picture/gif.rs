//! GIF: its blocks, and its frames put over each other.

use gif::{ColorOutput, DecodeOptions, Decoder, DecodingError, DisposalMethod, MemoryLimit};

use super::canvas::{Area, Canvas};
use super::kept::Kept;
use super::{Orientation, Picture, PictureFormat, PictureInfo, Transparency};
use crate::error::{Bound, MediaError, MediaPlace};
use crate::scan::Scan;

pub(super) fn probe(bytes: &[u8]) -> Result<PictureInfo, MediaError> {
    let mut scan = Scan { bytes, at: 6 };
    let cut = || broken(bytes.len(), "it is cut off within its header");
    let (width, height) = (
        scan.u16_le().ok_or_else(cut)?,
        scan.u16_le().ok_or_else(cut)?,
    );
    let [flags, ..] = scan.array::<3>().ok_or_else(cut)?;
    scan.take(palette_bytes(flags)).ok_or_else(cut)?;
    if width == 0 || height == 0 {
        return Err(broken(6, "it has no pixels"));
    }
    let (mut frames, mut duration_ms, mut delay, mut largest) = (0, 0, 0, 0_u64);
    loop {
        let at = scan.at;
        let cut = || broken(at, "it is cut off within a block");
        let Some(block) = scan.u8() else {
            return Err(broken(at, "it is cut off: the mark of its end is missing"));
        };
        match block {
            EXTENSION => {
                let label = scan.u8().ok_or_else(cut)?;
                if label == CONTROL && scan.rest().first() == Some(&4) {
                    let mut control = scan;
                    let [_, _, low, high, _] = control.array().ok_or_else(cut)?;
                    delay = u16::from_le_bytes([low, high]);
                }
                skip_blocks(&mut scan).ok_or_else(cut)?;
            }
            IMAGE => {
                scan.take(4).ok_or_else(cut)?;
                let wide = scan.u16_le().ok_or_else(cut)?;
                let high = scan.u16_le().ok_or_else(cut)?;
                let flags = scan.u8().ok_or_else(cut)?;
                scan.take(palette_bytes(flags) + 1).ok_or_else(cut)?;
                skip_blocks(&mut scan).ok_or_else(cut)?;
                largest = largest.max(u64::from(wide) * u64::from(high));
                frames += 1;
                duration_ms += shown_ms(delay);
                delay = 0;
            }
            END => break,
            // Between blocks some writers leave bytes of nothing.
            0 => {}
            _ => return Err(broken(at, "a block is none of the format's")),
        }
    }
    if frames == 0 {
        return Err(broken(scan.at, "it has no frame"));
    }
    let pixels = u64::from(width) * u64::from(height);
    Ok(PictureInfo {
        format: PictureFormat::Gif,
        width: width.into(),
        height: height.into(),
        frames,
        duration_ms: if frames == 1 { 0 } else { duration_ms },
        orientation: Orientation::UPRIGHT,
        // What is seen and what was seen before, with what shines through; a frame's numbers of colours; the
        // picture that is made of them.
        decode_bytes: pixels * 11 + largest + TABLES,
    })
}

/// The header, frames and what is said of each: notes and profiles would be collected.
struct Needed<'a> {
    scan: Scan<'a>,
    begun: bool,
}

impl<'a> Needed<'a> {
    fn new(bytes: &'a [u8]) -> Self {
        let scan = Scan::new(bytes);
        Self { scan, begun: false }
    }
}

impl<'a> Iterator for Needed<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        let scan = &mut self.scan;
        loop {
            let at = scan.at;
            let mut needed = true;
            if !std::mem::replace(&mut self.begun, true) {
                scan.take(10)?;
                let [flags, ..] = scan.array::<3>()?;
                scan.take(palette_bytes(flags))?;
            } else {
                match scan.u8()? {
                    EXTENSION => {
                        needed = scan.u8()? == CONTROL;
                        skip_blocks(scan)?;
                    }
                    IMAGE => {
                        scan.take(8)?;
                        let flags = scan.u8()?;
                        scan.take(palette_bytes(flags) + 1)?;
                        skip_blocks(scan)?;
                    }
                    _ => {}
                }
            }
            if needed {
                return scan.bytes.get(at..scan.at);
            }
        }
    }
}

fn palette_bytes(flags: u8) -> usize {
    match flags & 0x80 {
        0 => 0,
        _ => 3 << ((flags & 7) + 1),
    }
}

fn skip_blocks(scan: &mut Scan<'_>) -> Option<()> {
    while let length @ 1.. = scan.u8()? {
        scan.take(length.into())?;
    }
    Some(())
}

/// The time that a frame is shown, in milliseconds, of its hundredths of seconds. Browsers show one without a time for a
/// tenth of a second.
fn shown_ms(hundredths: u16) -> u64 {
    match hundredths {
        0 => 100,
        time => u64::from(time) * 10,
    }
}

/// Frames of a GIF, as they are seen one after the other.
pub(super) struct Frames<'a> {
    decoder: Decoder<Kept<'a, Needed<'a>>>,
    info: PictureInfo,
    through: Transparency,
    canvas: Canvas,
    /// What was seen before a frame that goes again.
    before: Option<Canvas>,
    frame: u32,
    at_ms: u64,
}

impl std::fmt::Debug for Frames<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut shown = f.debug_struct("Frames");
        shown.field("info", &self.info).field("frame", &self.frame);
        shown.finish_non_exhaustive()
    }
}

impl<'a> Frames<'a> {
    pub(super) fn new(
        bytes: &'a [u8],
        info: PictureInfo,
        through: Transparency,
    ) -> Result<Self, MediaError> {
        let mut options = DecodeOptions::new();
        options.set_color_output(ColorOutput::Indexed);
        let limit = info.decode_bytes.try_into();
        options.set_memory_limit(limit.map_or(MemoryLimit::Unlimited, MemoryLimit::Bytes));
        options.allow_unknown_blocks(true);
        let decoder = options.read_info(Kept::new(Needed::new(bytes)));
        Ok(Self {
            decoder: decoder.map_err(|error| wrong(&error, 0))?,
            info,
            through,
            canvas: Canvas::new(info.width, info.height),
            before: None,
            frame: 0,
            at_ms: 0,
        })
    }

    /// The next picture, with the time in milliseconds from which on and up to which it is seen.
    pub(super) fn next(&mut self) -> Result<Option<(Picture, u64, u64)>, MediaError> {
        if self.frame == self.info.frames {
            return Ok(None);
        }
        let at = self.frame;
        let next = self.decoder.next_frame_info();
        let next = next.map_err(|error| wrong(&error, at))?;
        let Some(frame) = next else {
            return Err(MediaError::Broken {
                format: PictureFormat::Gif.name(),
                place: MediaPlace::Frame(at),
                reason: "it has fewer frames than its blocks say".to_owned(),
            });
        };
        let area = Area {
            left: frame.left.into(),
            top: frame.top.into(),
            width: frame.width.into(),
            height: frame.height.into(),
        };
        let (transparent, delay, dispose) = (frame.transparent, frame.delay, frame.dispose);
        let palette = frame.palette.clone();
        let count = area.width * area.height;
        if count as u64 > self.info.decode_bytes {
            return Err(MediaError::TooLarge {
                format: PictureFormat::Gif.name(),
                bound: Bound::Bytes,
                has: count as u64,
                may: self.info.decode_bytes,
            });
        }
        let mut numbers = vec![0; count];
        if count > 0 {
            let read = self.decoder.read_into_buffer(&mut numbers);
            read.map_err(|error| wrong(&error, at))?;
        }
        let palette = match palette {
            Some(palette) => palette,
            None => self.decoder.global_palette().unwrap_or_default().to_vec(),
        };
        if dispose == DisposalMethod::Previous {
            self.before = Some(self.canvas.clone());
        }
        self.canvas.rows(area, |row, pixels| {
            let numbers = &numbers[row * area.width..][..pixels.len()];
            draw(pixels, numbers, &palette, transparent);
        });
        drop(numbers);
        let picture = self.canvas.seen(self.through)?;
        match dispose {
            DisposalMethod::Previous => {
                if let Some(before) = self.before.take() {
                    self.canvas = before;
                }
            }
            DisposalMethod::Background => self.canvas.clear(area),
            _ => {}
        }
        let from = self.at_ms;
        self.at_ms += shown_ms(delay);
        self.frame += 1;
        Ok(Some((picture, from, self.at_ms)))
    }
}

fn draw(pixels: &mut [[u8; 4]], numbers: &[u8], palette: &[u8], transparent: Option<u8>) {
    for (pixel, &number) in pixels.iter_mut().zip(numbers) {
        if transparent == Some(number) {
            continue;
        }
        // A number behind the palette is black, as browsers have it.
        let colour = palette.get(usize::from(number) * 3..usize::from(number) * 3 + 3);
        pixel[..3].copy_from_slice(colour.unwrap_or(&[0; 3]));
        pixel[3] = 255;
    }
}

fn wrong(error: &DecodingError, frame: u32) -> MediaError {
    MediaError::Broken {
        format: PictureFormat::Gif.name(),
        place: MediaPlace::Frame(frame),
        reason: error.to_string(),
    }
}

fn broken(at: usize, reason: &str) -> MediaError {
    MediaError::Broken {
        format: PictureFormat::Gif.name(),
        place: MediaPlace::Byte(at as u64),
        reason: reason.to_owned(),
    }
}

const EXTENSION: u8 = 0x21;
const CONTROL: u8 = 0xf9;
const IMAGE: u8 = 0x2c;
const END: u8 = 0x3b;

/// Tables of codes and palettes, and what is read ahead.
const TABLES: u64 = 256 << 10;
