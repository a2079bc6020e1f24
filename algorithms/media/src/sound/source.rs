//! As much of a file as its sound needs, for a reader that would keep every note, picture and comment in it.

use std::io::{self, Read, Seek, SeekFrom};

use symphonia_core::checksum::Crc32;
use symphonia_core::io::{MediaSource, Monitor};

use super::container::{broken, unsupported};
use super::decode::SoundFormat;
use crate::error::MediaError;
use crate::scan::Scan;

/// Headers without notes, and what comes behind them. A reader takes them for one file.
pub(super) struct Source<'a> {
    head: Vec<u8>,
    tail: &'a [u8],
    at: u64,
}

impl<'a> Source<'a> {
    /// What is heard of a file that begins with no ID3 tag.
    pub(super) fn new(bytes: &'a [u8], format: SoundFormat) -> Result<Self, MediaError> {
        let (head, tail) = match format {
            SoundFormat::Wav => wav(bytes)?,
            SoundFormat::Flac => flac(bytes)?,
            SoundFormat::Opus => opus(bytes)?,
            // Its reader skips what is no frame.
            SoundFormat::Mp3 => (vec![], bytes),
        };
        Ok(Self { head, tail, at: 0 })
    }

    /// Headers, and what comes behind them.
    pub(super) fn parts(&self) -> (&[u8], &'a [u8]) {
        (&self.head, self.tail)
    }

    fn length(&self) -> u64 {
        (self.head.len() + self.tail.len()) as u64
    }
}

impl Read for Source<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let at = usize::try_from(self.at).unwrap_or(usize::MAX);
        let mut rest = match self.head.get(at..) {
            Some(rest) if !rest.is_empty() => rest,
            _ => self.tail.get(at - self.head.len()..).unwrap_or_default(),
        };
        let read = rest.read(into)?;
        self.at += read as u64;
        Ok(read)
    }
}

impl Seek for Source<'_> {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let to = match to {
            SeekFrom::Start(to) => Some(to),
            SeekFrom::End(to) => self.length().checked_add_signed(to),
            SeekFrom::Current(to) => self.at.checked_add_signed(to),
        };
        self.at = to.ok_or(io::ErrorKind::InvalidInput)?;
        Ok(self.at)
    }
}

impl MediaSource for Source<'_> {
    fn is_seekable(&self) -> bool {
        true
    }

    fn byte_len(&self) -> Option<u64> {
        Some(self.length())
    }
}

type Parts<'a> = (Vec<u8>, &'a [u8]);

/// The chunks that say what samples are, and all from the samples on.
fn wav(bytes: &[u8]) -> Result<Parts<'_>, MediaError> {
    let format = SoundFormat::Wav;
    let cut = || broken(format, 0, "it is cut off");
    let mut scan = Scan::new(bytes);
    let mut head = scan.take(12).ok_or_else(cut)?.to_vec();
    let (mut described, mut counted) = (None, None);
    loop {
        let chunk = scan.at;
        let kind: [u8; 4] = scan.array().ok_or_else(cut)?;
        let length = scan.u32_le().ok_or_else(cut)? as usize;
        if &kind == b"data" {
            let found = [described, counted].into_iter().flatten();
            found.for_each(|chunk| head.extend_from_slice(chunk));
            return Ok((head, &bytes[chunk..]));
        }
        scan.take(length).ok_or_else(cut)?;
        let whole = &bytes[chunk..scan.at];
        // Chunks are padded to even lengths.
        scan.take(length % 2).ok_or_else(cut)?;
        match &kind {
            b"fmt " | b"fact" if !is_description(&whole[8..]) => {
                let reason = "a chunk that describes its samples has no length of the format's";
                return Err(broken(format, 0, reason));
            }
            b"fmt " => described = Some(whole),
            b"fact" => counted = Some(whole),
            _ => {}
        }
    }
}

/// Returns true for a description of samples that says no more bytes of itself than there are: a reader would take
/// samples for chunks.
fn is_description(chunk: &[u8]) -> bool {
    let more = Scan {
        bytes: chunk,
        at: 16,
    }
    .u16_le();
    let fits = more.is_none_or(|more| 18 + usize::from(more) <= chunk.len());
    fits && chunk.len().is_multiple_of(2) && chunk.len() <= DESCRIPTION_MAX
}

/// What its stream is, as the last block before the frames, and the frames.
fn flac(bytes: &[u8]) -> Result<Parts<'_>, MediaError> {
    let format = SoundFormat::Flac;
    let cut = || broken(format, 0, "it is cut off");
    let mut scan = Scan { bytes, at: 4 };
    let mut stream = None;
    loop {
        let [kind, high, middle, low] = scan.array().ok_or_else(cut)?;
        let length = u32::from_be_bytes([0, high, middle, low]);
        let block = scan.take(length as usize).ok_or_else(cut)?;
        if kind & 0x7f == STREAM {
            if length != STREAM_BYTES || stream.is_some() {
                let reason =
                    "the block that describes its stream is there twice, or has another length";
                return Err(broken(format, 0, reason));
            }
            stream = Some(block);
        }
        if kind & LAST != 0 {
            break;
        }
    }
    let stream = stream.ok_or_else(|| {
        let reason = "the block that describes its stream is missing";
        broken(format, 0, reason)
    })?;
    let mut head = b"fLaC".to_vec();
    head.extend([LAST | STREAM, 0, 0, STREAM_BYTES as u8]);
    head.extend(stream);
    Ok((head, scan.rest()))
}

/// A page of Ogg.
struct Page<'a> {
    flags: u8,
    serial: [u8; 4],
    sequence: [u8; 4],
    lengths: &'a [u8],
    body: &'a [u8],
}

/// The next page. One whose sum is wrong is refused, for a reader would look for pages within it.
fn page<'a>(scan: &mut Scan<'a>) -> Result<Page<'a>, MediaError> {
    let at = scan.at;
    let cut = || {
        broken(
            SoundFormat::Opus,
            0,
            "it is cut off: its last page is missing",
        )
    };
    let [b'O', b'g', b'g', b'S', version, flags] = scan.array().ok_or_else(cut)? else {
        return Err(broken(
            SoundFormat::Opus,
            0,
            "between its pages are other bytes",
        ));
    };
    scan.take(8).ok_or_else(cut)?;
    let serial = scan.array().ok_or_else(cut)?;
    let sequence = scan.array().ok_or_else(cut)?;
    let sum: [u8; 4] = scan.array().ok_or_else(cut)?;
    let segments = scan.u8().ok_or_else(cut)?;
    let lengths = scan.take(segments.into()).ok_or_else(cut)?;
    let length = lengths.iter().map(|length| usize::from(*length)).sum();
    let body = scan.take(length).ok_or_else(cut)?;
    let whole = &scan.bytes[at..scan.at];
    if version != 0 || flags & !FLAGS != 0 || checksum([&whole[..22], &[0; 4], &whole[26..]]) != sum
    {
        return Err(broken(SoundFormat::Opus, 0, "a page of it is damaged"));
    }
    Ok(Page {
        flags,
        serial,
        sequence,
        lengths,
        body,
    })
}

/// The first page, an empty page of notes, and the pages behind those of its own notes.
fn opus(bytes: &[u8]) -> Result<Parts<'_>, MediaError> {
    let format = SoundFormat::Opus;
    let cut = || broken(format, 0, "it is cut off: its last page is missing");
    let mut scan = Scan::new(bytes);
    let first = page(&mut scan)?;
    if first.flags & FIRST == 0 {
        return Err(broken(format, 0, "its first page does not say that it is"));
    }
    if !first.body.starts_with(b"OpusHead") {
        let feature = "another codec than Opus";
        return Err(unsupported(format, feature, "convert it to FLAC"));
    }
    let mut head = bytes[..scan.at].to_vec();
    let mut ended = first.flags & END != 0;
    // Pages are looked at to the end, so that what is refused is refused before any is read.
    let (mut behind, mut packet, mut opened) = (None, 0, false);
    while !scan.rest().is_empty() {
        let page = page(&mut scan)?;
        ended = page.flags & END != 0;
        if page.flags & FIRST != 0 || page.serial != first.serial {
            let feature = "several streams";
            return Err(unsupported(format, feature, "keep the one of sound alone"));
        }
        if behind.is_none() {
            opened |= page.body.starts_with(b"OpusTags");
            let ends = page.lengths.iter().position(|length| *length < 255);
            if !opened || ends.is_some_and(|ends| ends + 1 < page.lengths.len()) {
                let reason = "behind its header are no notes on pages of their own";
                return Err(broken(format, 0, reason));
            }
            if ends.is_some() {
                behind = Some(scan.at);
                head.extend(no_notes(&page));
            }
            continue;
        }
        for length in page.lengths {
            packet += usize::from(*length);
            if packet > PACKET_MAX {
                return Err(broken(format, 0, "a packet is longer than any of Opus"));
            }
            if *length < 255 {
                packet = 0;
            }
        }
    }
    let behind = behind.filter(|_| ended).ok_or_else(cut)?;
    Ok((head, &bytes[behind..]))
}

/// A page in the place of this one, with notes of which none is there.
fn no_notes(last: &Page<'_>) -> [u8; 44] {
    let mut page = [0; 44];
    page[..4].copy_from_slice(b"OggS");
    page[14..18].copy_from_slice(&last.serial);
    page[18..22].copy_from_slice(&last.sequence);
    (page[26], page[27]) = (1, 16);
    page[28..36].copy_from_slice(b"OpusTags");
    let sum = checksum([&page, &[], &[]]);
    page[22..26].copy_from_slice(&sum);
    page
}

/// The checksum of a page of Ogg, in which the place of its own is empty (RFC 3533).
fn checksum(parts: [&[u8]; 3]) -> [u8; 4] {
    let mut sum = Crc32::new(0);
    parts.iter().for_each(|part| sum.process_buf_bytes(part));
    sum.crc().to_le_bytes()
}

/// The longest chunk of a WAV that describes samples.
const DESCRIPTION_MAX: usize = 40;

/// Of a block of FLAC: the bit of the last, the kind that describes the stream, and the bytes of that.
const LAST: u8 = 0x80;
const STREAM: u8 = 0;
const STREAM_BYTES: u32 = 34;

/// Bits of a page of Ogg: the first and the last of its stream.
const FIRST: u8 = 2;
const END: u8 = 4;
const FLAGS: u8 = 7;

/// Bytes of the longest packet of Opus: 48 frames of 1,275, and their lengths (RFC 6716).
const PACKET_MAX: usize = 48 * 1275 + 2 + 96;
