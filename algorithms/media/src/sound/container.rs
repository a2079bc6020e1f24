//! Packets of compressed sound, in the order of their file.

use symphonia_bundle_flac::{FlacDecoder, FlacReader};
use symphonia_bundle_mp3::{MpaDecoder, MpaReader};
use symphonia_codec_pcm::PcmDecoder;
use symphonia_core::codecs::audio::well_known::{CODEC_ID_MP3, CODEC_ID_OPUS};
use symphonia_core::codecs::audio::{
    AudioCodecParameters, AudioDecoder, AudioDecoderOptions as DecoderOptions,
};
use symphonia_core::errors::Error;
use symphonia_core::formats::{FormatOptions, FormatReader, TrackType};
use symphonia_core::io::MediaSourceStream;
use symphonia_core::packet::Packet;
use symphonia_core::units::Duration;
use symphonia_format_ogg::OggReader;
use symphonia_format_riff::WavReader;

use super::decode::SoundFormat;
use super::frames::Frames;
use super::opus::Opus;
use super::source::Source;
use crate::error::{MediaError, MediaPlace};
use crate::scan::Scan;

/// The packets of the one track of a file that is heard.
pub(super) struct Container<'a> {
    reader: Box<dyn FormatReader + 'a>,
    /// Packets of FLAC, in the place of those of its reader.
    frames: Option<Frames<'a>>,
    track: u32,
    format: SoundFormat,
    pub(super) parameters: AudioCodecParameters,
    /// Samples of a channel, as the headers tell.
    pub(super) told: Option<u64>,
    /// Samples that an encoder of Opus put before the first, which its packets count and nobody hears.
    unheard: u64,
    /// Whether an encoder said how many samples it put behind the last.
    padded: bool,
}

impl<'a> Container<'a> {
    pub(super) fn open(bytes: &'a [u8], format: SoundFormat) -> Result<Self, MediaError> {
        let wrong = |error: Error| said(&error, format, 0);
        let bytes = behind_notes(bytes);
        let source = Source::new(bytes, format)?;
        let frames = match (format, source.parts()) {
            (SoundFormat::Flac, (head, frames)) => Some(Frames::new(&head[8..], frames)?),
            _ => None,
        };
        let source = MediaSourceStream::new(Box::new(source), Default::default());
        let options = FormatOptions::default();
        let reader: Box<dyn FormatReader + 'a> = match format {
            SoundFormat::Wav => Box::new(WavReader::try_new(source, options).map_err(wrong)?),
            SoundFormat::Flac => Box::new(FlacReader::try_new(source, options).map_err(wrong)?),
            SoundFormat::Mp3 => Box::new(MpaReader::try_new(source, options).map_err(wrong)?),
            SoundFormat::Opus => Box::new(OggReader::try_new(source, options).map_err(wrong)?),
        };
        let unheard = || {
            unsupported(
                format,
                "no track of sound",
                "look whether it is the right file",
            )
        };
        let track = reader.default_track(TrackType::Audio).ok_or_else(unheard)?;
        let parameters = track
            .codec_params
            .as_ref()
            .and_then(|params| params.audio());
        let parameters = parameters.ok_or_else(unheard)?.clone();
        match format {
            SoundFormat::Opus if parameters.codec != CODEC_ID_OPUS => {
                return Err(unsupported(
                    format,
                    "another codec than Opus",
                    "convert it to FLAC",
                ));
            }
            SoundFormat::Mp3 if parameters.codec != CODEC_ID_MP3 => {
                return Err(unsupported(format, "layer 1 or 2", "convert it to FLAC"));
            }
            _ => {}
        }
        let unheard = match format {
            SoundFormat::Opus => track.delay.unwrap_or(0).into(),
            _ => 0,
        };
        Ok(Self {
            unheard,
            padded: track.padding.is_some(),
            track: track.id,
            told: match format {
                // A guess, where no frame counts the others.
                SoundFormat::Mp3 => None,
                _ => track.num_frames.map(|told| told.saturating_sub(unheard)),
            },
            reader,
            frames,
            format,
            parameters,
        })
    }

    /// The next packet; `at` counts the samples before it, for what is wrong.
    pub(super) fn next(&mut self, at: u64) -> Result<Option<Packet>, MediaError> {
        if let Some(frames) = &mut self.frames {
            return frames.next(at);
        }
        loop {
            match self.reader.next_packet() {
                Ok(Some(packet)) if packet.track_id == self.track => {
                    return Ok(Some(self.heard(packet)));
                }
                Ok(Some(_)) => {}
                Ok(None) => return Ok(None),
                Err(error) => return Err(said(&error, self.format, at)),
            }
        }
    }

    /// A packet without what is not heard of it.
    fn heard(&mut self, mut packet: Packet) -> Packet {
        if self.format == SoundFormat::Mp3 {
            if !self.padded {
                packet.trim_end = Duration::ZERO;
            }
            let trimmed = packet.trim_start.saturating_add(packet.trim_end);
            packet.dur = packet.dur.saturating_sub(trimmed);
        }
        let skipped = self.unheard.min(packet.dur.get());
        packet.trim_start = packet.trim_start.saturating_add(Duration::new(skipped));
        packet.dur = packet.dur.saturating_sub(Duration::new(skipped));
        self.unheard -= skipped;
        packet
    }

    /// The decoder of its packets.
    pub(super) fn decoder(&self) -> Result<Decoder, MediaError> {
        let wrong = |error: Error| said(&error, self.format, 0);
        let (parameters, options) = (&self.parameters, DecoderOptions::default());
        let packets: Box<dyn AudioDecoder> = match self.format {
            SoundFormat::Wav => Box::new(PcmDecoder::try_new(parameters, &options).map_err(wrong)?),
            SoundFormat::Flac => {
                Box::new(FlacDecoder::try_new(parameters, &options).map_err(wrong)?)
            }
            SoundFormat::Mp3 => Box::new(MpaDecoder::try_new(parameters, &options).map_err(wrong)?),
            SoundFormat::Opus => {
                return Ok(Decoder::Opus(Box::new(Opus::new(parameters)?)));
            }
        };
        Ok(Decoder::Packets(packets, self.format))
    }
}

/// Makes samples of packets.
pub(super) enum Decoder {
    Packets(Box<dyn AudioDecoder>, SoundFormat),
    Opus(Box<Opus>),
}

impl Decoder {
    /// The samples of a packet, those of a moment in all channels one after the other, and the number of channels.
    pub(super) fn decode(
        &mut self,
        packet: &Packet,
        at: u64,
        interleaved: &mut Vec<f32>,
    ) -> Result<usize, MediaError> {
        match self {
            Self::Packets(decoder, format) => {
                let decoded = decoder.decode(packet);
                let decoded = decoded.map_err(|error| said(&error, *format, at))?;
                decoded.copy_to_vec_interleaved(interleaved);
                Ok(decoded.num_planes())
            }
            Self::Opus(opus) => opus.decode(packet, at, interleaved),
        }
    }
}

/// The file behind an ID3 tag, which may stand before any format.
pub(super) fn behind_notes(bytes: &[u8]) -> &[u8] {
    let mut scan = Scan::new(bytes);
    let Some([b'I', b'D', b'3', _, _, flags, a, b, c, d]) = scan.array::<10>() else {
        return bytes;
    };
    let length = [a, b, c, d]
        .iter()
        .fold(0, |all, part| (all << 7) | usize::from(part & 0x7f));
    let footer = if flags & 0x10 != 0 { 10 } else { 0 };
    bytes.get(10 + length + footer..).unwrap_or_default()
}

pub(super) fn said(error: &Error, format: SoundFormat, at: u64) -> MediaError {
    match error {
        Error::Unsupported(feature) => unsupported(format, feature, "convert it to FLAC"),
        Error::IoError(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => {
            broken(format, at, "it is cut off")
        }
        other => broken(format, at, &other.to_string()),
    }
}

pub(super) fn broken(format: SoundFormat, at: u64, reason: &str) -> MediaError {
    MediaError::Broken {
        format: format.name(),
        place: MediaPlace::Sample(at),
        reason: reason.to_owned(),
    }
}

pub(super) fn unsupported(format: SoundFormat, feature: &str, advice: &'static str) -> MediaError {
    MediaError::Unsupported {
        format: format.name(),
        feature: feature.to_owned(),
        advice,
    }
}
