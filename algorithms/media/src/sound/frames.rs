//! Frames of FLAC, one behind the other: its reader would collect up to 16 MiB of what is none.

use symphonia_core::checksum::{Crc8Ccitt, Crc16Ansi};
use symphonia_core::io::Monitor;
use symphonia_core::packet::Packet;
use symphonia_core::units::{Duration, Timestamp};

use super::container::broken;
use super::decode::SoundFormat;
use crate::error::MediaError;
use crate::scan::Scan;

/// The frames of a stream (RFC 9639).
pub(super) struct Frames<'a> {
    rest: &'a [u8],
    stream: Stream,
    next: Option<Header>,
}

/// What a stream says of all its frames.
struct Stream {
    block: u32,
    rate: u32,
    channels: u32,
    bits: u32,
}

/// What a frame says of itself.
#[derive(Clone, Copy)]
struct Header {
    samples: u32,
    /// The number of its first sample, or its own number where all frames are of one length.
    number: u64,
    by_sample: bool,
}

impl<'a> Frames<'a> {
    /// The frames that follow the block that describes their stream.
    pub(super) fn new(stream: &[u8], frames: &'a [u8]) -> Result<Self, MediaError> {
        let stream = Stream::of(stream).ok_or_else(|| {
            let reason = "the block that describes its stream is too short";
            broken(SoundFormat::Flac, 0, reason)
        })?;
        Ok(Self {
            next: stream.header(frames),
            rest: frames,
            stream,
        })
    }

    /// The next frame; `at` counts the samples before it.
    pub(super) fn next(&mut self, at: u64) -> Result<Option<Packet>, MediaError> {
        if self.rest.is_empty() {
            return Ok(None);
        }
        let header = self.next.ok_or_else(|| {
            let reason = "where a frame begins is none";
            broken(SoundFormat::Flac, at, reason)
        })?;
        let within = &self.rest[..self.rest.len().min(self.stream.longest())];
        let (mut sum, mut summed, mut from) = (Crc16Ansi::new(0), 0, 1);
        let (length, next) = loop {
            let found = memchr::memchr(0xff, &within[from..]).map(|found| from + found);
            let (end, next) = match found {
                Some(end) => (end, self.stream.header(&self.rest[end..])),
                None if within.len() == self.rest.len() => (within.len(), None),
                None => return Err(broken(SoundFormat::Flac, at, "a frame has no end")),
            };
            let follows = next.is_some_and(|next| next.follows(header));
            if (follows || found.is_none()) && end >= summed + 2 {
                sum.process_buf_bytes(&within[summed..end - 2]);
                summed = end - 2;
                if within[summed..end] == sum.crc().to_be_bytes() {
                    break (end, next);
                }
            }
            if found.is_none() {
                return Err(broken(
                    SoundFormat::Flac,
                    at,
                    "its last frame is damaged or cut off",
                ));
            }
            from = end + 1;
        };
        let (frame, rest) = self.rest.split_at(length);
        (self.rest, self.next) = (rest, next);
        let duration = Duration::from(header.samples);
        let start = Timestamp::new(i64::try_from(at).unwrap_or(i64::MAX));
        Ok(Some(Packet::new(0, start, duration, frame)))
    }
}

impl Header {
    fn follows(self, before: Self) -> bool {
        let step = if self.by_sample {
            before.samples.into()
        } else {
            1
        };
        self.by_sample == before.by_sample && self.number == before.number + step
    }
}

impl Stream {
    fn of(block: &[u8]) -> Option<Self> {
        let mut scan = Scan::new(block);
        let (_shortest, longest) = (scan.u16_be()?, scan.u16_be()?);
        scan.take(6)?;
        // 20 bits of the rate, 3 of the channels and 5 of a sample's bits.
        let [high, middle, low, bits] = scan.array()?;
        let rate = u32::from_be_bytes([0, high, middle, low]) >> 4;
        let bits_more = (u32::from(low & 1) << 4) | u32::from(bits >> 4);
        Some(Self {
            block: longest.into(),
            rate,
            channels: u32::from(low >> 1 & 7) + 1,
            bits: bits_more + 1,
        })
    }

    /// Bytes of the longest frame, whose samples are not compressed, with a bit more for differences of channels, and
    /// room for headers.
    fn longest(&self) -> usize {
        let channel = u64::from(self.block) * u64::from(self.bits + 1) / 8 + 1024;
        (channel * u64::from(self.channels) + 64) as usize
    }

    /// The header of the frame of this stream that begins here.
    fn header(&self, bytes: &[u8]) -> Option<Header> {
        let mut scan = Scan::new(bytes);
        let [0xff, kind, sizes, shape] = scan.array()? else {
            return None;
        };
        if kind & 0xfe != 0xf8 || shape & 1 != 0 {
            return None;
        }
        let number = number(&mut scan)?;
        let samples = match sizes >> 4 {
            1 => 192,
            size @ 2..=5 => 576 << (size - 2),
            6 => u32::from(scan.u8()?) + 1,
            7 => u32::from(scan.u16_be()?) + 1,
            size @ 8.. => 256 << (size - 8),
            _ => return None,
        };
        let rate = match sizes & 15 {
            0 => self.rate,
            12 => u32::from(scan.u8()?) * 1000,
            13 => u32::from(scan.u16_be()?),
            14 => u32::from(scan.u16_be()?) * 10,
            rate => *RATES.get(usize::from(rate) - 1)?,
        };
        let bits = match shape >> 1 & 7 {
            0 => self.bits,
            bits => *BITS.get(usize::from(bits) - 1)?,
        };
        let channels = match shape >> 4 {
            channels @ 0..=7 => u32::from(channels) + 1,
            8..=10 => 2,
            _ => return None,
        };
        let mut sum = Crc8Ccitt::new(0);
        sum.process_buf_bytes(&bytes[..scan.at]);
        let fits = samples <= self.block
            && (rate, bits, channels) == (self.rate, self.bits, self.channels);
        (fits && scan.u8()? == sum.crc()).then_some(Header {
            samples,
            number,
            by_sample: kind & 1 == 1,
        })
    }
}

/// A number of up to 36 bits, as UTF-8 would have it.
fn number(scan: &mut Scan<'_>) -> Option<u64> {
    let first = scan.u8()?;
    let more = match first.leading_ones() {
        0 => return Some(first.into()),
        ones @ 2..=7 => ones - 1,
        _ => return None,
    };
    let mut number = u64::from(first) & (0x3f >> more);
    for _ in 0..more {
        number = (number << 6) | u64::from(scan.u8()? & 0x3f);
    }
    Some(number)
}

/// Rates of the codes from 1 on.
const RATES: [u32; 11] = [
    88_200, 176_400, 192_000, 8000, 16_000, 22_050, 24_000, 32_000, 44_100, 48_000, 96_000,
];

/// Bits of a sample of the codes from 1 on; of the third is none.
const BITS: [u32; 7] = [8, 12, 0, 16, 20, 24, 32];
