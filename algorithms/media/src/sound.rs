//! Sound: from untrusted bytes to samples of one channel at one rate, under limits.

mod container;
mod decode;
mod frames;
mod mel;
mod opus;
mod resample;
mod source;

pub use decode::{SoundFormat, SoundInfo, SoundLimits, decode_sound, probe_sound};
pub use mel::{MelFeatures, WhisperFeatures};
pub use resample::Resampler;

/// Sound of one channel.
#[derive(Clone, Debug, PartialEq)]
pub struct MonoSound {
    /// Samples in a second.
    pub rate: u32,
    /// Its samples, mostly from -1 to 1.
    pub samples: Vec<f32>,
}

impl MonoSound {
    /// Its duration in seconds.
    #[must_use]
    pub fn seconds(&self) -> f64 {
        self.samples.len() as f64 / f64::from(self.rate)
    }
}
