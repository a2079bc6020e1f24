//! Probing and decoding of sound.

use std::fmt;

use symphonia_core::audio::Channels;

use super::MonoSound;
use super::container::{Container, behind_notes, broken, unsupported};
use super::resample::Resampler;
use crate::error::{Bound, MediaError, MediaPlace, guarded};
use crate::foreign::foreign;

/// A format of sound.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum SoundFormat {
    /// WAV with whole numbers of 8 to 32 bits, floating point, A-law or mu-law.
    Wav,
    /// FLAC.
    Flac,
    /// MP3: layer 3 of MPEG 1, 2 and 2.5.
    Mp3,
    /// Opus in Ogg, of one or two channels.
    Opus,
}

impl SoundFormat {
    /// Its name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Wav => "WAV",
            Self::Flac => "FLAC",
            Self::Mp3 => "MP3",
            Self::Opus => "Opus",
        }
    }

    /// The format that bytes begin as, behind an ID3 tag, whatever the name of their file says.
    #[must_use]
    pub fn of(bytes: &[u8]) -> Option<Self> {
        let bytes = behind_notes(bytes);
        if bytes.starts_with(b"RIFF") && bytes.get(8..12) == Some(b"WAVE") {
            Some(Self::Wav)
        } else if bytes.starts_with(b"fLaC") {
            Some(Self::Flac)
        } else if bytes.starts_with(b"OggS") {
            Some(Self::Opus)
        } else if is_mp3(bytes) {
            Some(Self::Mp3)
        } else {
            None
        }
    }
}

impl fmt::Display for SoundFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Returns true for the header of a frame: its eleven bits, and no value that is reserved.
fn is_mp3(bytes: &[u8]) -> bool {
    let &[0xff, second, third, ..] = bytes else {
        return false;
    };
    let (version, layer) = (second >> 3 & 3, second >> 1 & 3);
    let (bits, rate) = (third >> 4, third >> 2 & 3);
    second & 0xe0 == 0xe0 && version != 1 && layer != 0 && bits != 15 && rate != 3
}

/// The facts that the headers of sound tell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SoundInfo {
    /// Its format, by its bytes.
    pub format: SoundFormat,
    /// Samples of a channel in a second, as they are stored; 48,000 for Opus.
    pub rate: u32,
    /// Channels.
    pub channels: u32,
    /// Samples of a channel.
    pub samples: u64,
}

impl SoundInfo {
    /// Its duration in seconds.
    #[must_use]
    pub fn seconds(&self) -> f64 {
        self.samples as f64 / f64::from(self.rate)
    }

    /// Samples that it has at another rate.
    #[must_use]
    pub fn samples_at(&self, rate: u32) -> u64 {
        let samples = u128::from(self.samples) * u128::from(rate);
        samples.div_ceil(u128::from(self.rate)) as u64
    }

    /// The most bytes that decoding it to one channel at a rate takes at once, its samples included and the file not.
    #[must_use]
    pub fn decode_bytes(&self, rate: u32) -> u64 {
        self.samples_at(rate)
            .saturating_mul(4)
            .saturating_add(PACKETS)
    }

    /// Refuses what is over a limit.
    ///
    /// # Errors
    /// [`MediaError::TooLarge`] with the first limit that it is over.
    pub fn check(&self, limits: &SoundLimits, rate: u32) -> Result<(), MediaError> {
        let seconds = self.samples.div_ceil(u64::from(self.rate));
        let checks = [
            (Bound::Seconds, seconds, limits.seconds_max),
            (Bound::Bytes, self.decode_bytes(rate), limits.bytes_max),
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

/// Bounds for untrusted sound. What is over one is refused before a sample is decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SoundLimits {
    /// Seconds: 1,800.
    pub seconds_max: u64,
    /// Bytes of memory that decoding takes at once, the file not counted: 256 MiB.
    pub bytes_max: u64,
}

impl Default for SoundLimits {
    fn default() -> Self {
        Self {
            seconds_max: 1800,
            bytes_max: 256 << 20,
        }
    }
}

/// Reads the headers of sound, and of its packets where its own tell no length: no sample is decoded.
///
/// # Errors
/// Where the bytes are no sound, contradict their format, or have what is not read.
pub fn probe_sound(bytes: &[u8]) -> Result<SoundInfo, MediaError> {
    let Some(format) = SoundFormat::of(bytes) else {
        return Err(MediaError::Unknown {
            wanted: "WAV, FLAC, MP3 or Opus",
            found: foreign(bytes),
        });
    };
    guarded(format.name(), MediaPlace::Data, || {
        let mut container = Container::open(bytes, format)?;
        let info = info(&container, format, 0)?;
        let mut samples: u64 = 0;
        while let Some(packet) = container.next(samples)? {
            samples = samples.saturating_add(packet.dur.get());
        }
        if samples == 0 {
            return Err(broken(format, 0, "it has no samples"));
        }
        // Whoever writes to a pipe does not know the length yet.
        let told = container
            .told
            .filter(|told| *told > 0 && !is_unknown(format, bytes));
        match told {
            Some(told) if told > samples => {
                let reason = format!("it is cut off: it has {samples} of {told} samples");
                Err(broken(format, samples, &reason))
            }
            _ => Ok(SoundInfo { samples, ..info }),
        }
    })
}

fn info(
    container: &Container<'_>,
    format: SoundFormat,
    samples: u64,
) -> Result<SoundInfo, MediaError> {
    let parameters = &container.parameters;
    let rate = parameters.sample_rate.unwrap_or(0);
    let channels = parameters.channels.as_ref().map_or(0, Channels::count);
    if !(RATE_MIN..=RATE_MAX).contains(&rate) {
        let feature = format!("{rate} samples a second");
        return Err(unsupported(
            format,
            &feature,
            "bring it to a rate from 4,000 to 192,000",
        ));
    }
    if !(1..=CHANNELS_MAX).contains(&channels) {
        let feature = format!("{channels} channels");
        return Err(unsupported(format, &feature, "mix it to at most 8"));
    }
    Ok(SoundInfo {
        format,
        rate,
        channels: channels as u32,
        samples,
    })
}

/// Returns true for a WAV whose length is written as larger than any file of its kind can be.
fn is_unknown(format: SoundFormat, bytes: &[u8]) -> bool {
    let length = behind_notes(bytes).get(4..8);
    format == SoundFormat::Wav && matches!(length, Some([255, 255, 255, 255] | [0, 0, 0, 0]))
}

/// Decodes sound to one channel, the mean of all, at a rate of samples a second.
///
/// # Errors
/// As [`probe_sound`], where a limit is passed, and where a packet is broken.
pub fn decode_sound(
    bytes: &[u8],
    rate: u32,
    limits: &SoundLimits,
) -> Result<MonoSound, MediaError> {
    if !(RATE_MIN..=RATE_MAX).contains(&rate) {
        return Err(MediaError::Argument {
            what: "the rate of samples",
            is: rate.into(),
            must: "4,000 to 192,000 a second",
        });
    }
    let info = probe_sound(bytes)?;
    info.check(limits, rate)?;
    guarded(info.format.name(), MediaPlace::Data, || {
        let mut container = Container::open(bytes, info.format)?;
        let mut decoder = container.decoder()?;
        let mut resampler = Resampler::new(info.rate, rate);
        let most = info.samples_at(rate) as usize;
        let mut samples = Vec::with_capacity(most);
        let (mut interleaved, mut mono, mut at) = (vec![], vec![], 0);
        while let Some(packet) = container.next(at)? {
            let channels = decoder.decode(&packet, at, &mut interleaved)?;
            mixed(&interleaved, channels, &mut mono);
            at += mono.len() as u64;
            if at > info.samples {
                let reason = "it has more samples than its packets say";
                return Err(broken(info.format, at, reason));
            }
            resampler.push(&mono, &mut samples);
        }
        if at < info.samples {
            let reason = format!("it has {at} of {} samples", info.samples);
            return Err(broken(info.format, at, &reason));
        }
        resampler.finish(&mut samples);
        Ok(MonoSound { rate, samples })
    })
}

/// The mean of all channels.
fn mixed(interleaved: &[f32], channels: usize, mono: &mut Vec<f32>) {
    mono.clear();
    match channels {
        0 => {}
        1 => mono.extend_from_slice(interleaved),
        channels => {
            let part = 1.0 / channels as f32;
            let moments = interleaved.chunks_exact(channels);
            mono.extend(moments.map(|moment| moment.iter().sum::<f32>() * part));
        }
    }
}

const RATE_MIN: u32 = 4000;
const RATE_MAX: u32 = 192_000;
const CHANNELS_MAX: usize = 8;

/// Packets, as they are read, decoded and mixed, and tables of the resampler.
const PACKETS: u64 = 16 << 20;
