//! Opus, of one or two channels.

use ropus::{Channels, DecodeMode, Decoder};
use symphonia_core::codecs::audio::AudioCodecParameters;
use symphonia_core::packet::Packet;

use super::container::{broken, unsupported};
use super::decode::SoundFormat;
use crate::error::MediaError;
use crate::scan::Scan;

/// Decodes packets of Opus at 48 kHz.
pub(super) struct Opus {
    decoder: Decoder,
    channels: usize,
    gain: f32,
    decoded: Vec<f32>,
}

impl Opus {
    pub(super) fn new(parameters: &AudioCodecParameters) -> Result<Self, MediaError> {
        let head = parameters.extra_data.as_deref().unwrap_or_default();
        let short = || broken(SoundFormat::Opus, 0, "its header is too short");
        let mut scan = Scan { bytes: head, at: 9 };
        let channels = usize::from(scan.u8().ok_or_else(short)?);
        scan.take(6).ok_or_else(short)?;
        let decibels = scan.u16_le().ok_or_else(short)? as i16;
        let family = scan.u8().ok_or_else(short)?;
        if family != 0 || !(1..=2).contains(&channels) {
            let feature = format!("{channels} channels");
            return Err(unsupported(
                SoundFormat::Opus,
                &feature,
                "mix it to one or two",
            ));
        }
        let of = if channels == 1 {
            Channels::Mono
        } else {
            Channels::Stereo
        };
        let decoder = Decoder::new(RATE, of);
        let decoder = decoder.map_err(|error| broken(SoundFormat::Opus, 0, &error.to_string()))?;
        Ok(Self {
            decoder,
            channels,
            // 256 for each decibel.
            gain: 10_f32.powf(f32::from(decibels) / (20.0 * 256.0)),
            decoded: vec![0.0; PACKET_SAMPLES * channels],
        })
    }

    pub(super) fn decode(
        &mut self,
        packet: &Packet,
        at: u64,
        interleaved: &mut Vec<f32>,
    ) -> Result<usize, MediaError> {
        if packet.data.is_empty() {
            return Err(broken(SoundFormat::Opus, at, "a packet is empty"));
        }
        let samples =
            self.decoder
                .decode_float(&packet.data, &mut self.decoded, DecodeMode::Normal);
        let samples = samples.map_err(|error| broken(SoundFormat::Opus, at, &error.to_string()))?;
        let start = (packet.trim_start.get() as usize).min(samples);
        let end = samples - (packet.trim_end.get() as usize).min(samples - start);
        let heard = &self.decoded[start * self.channels..end * self.channels];
        interleaved.clear();
        interleaved.extend(heard.iter().map(|sample| sample * self.gain));
        Ok(self.channels)
    }
}

const RATE: u32 = 48_000;

/// The longest packet, of 120 milliseconds.
const PACKET_SAMPLES: usize = 5760;
