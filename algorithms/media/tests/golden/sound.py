"""Makes the extracts of sound beside it: what libsndfile decodes, and the features of transformers' Whisper.

    V/bin/pip install torch transformers soundfile pytest-audioeval
    V/bin/python algorithms/media/tests/golden/sound.py

`speech.*` is "Hello world." of the package pytest-audioeval 0.1.3 (MIT, damvolkov), everything else is made here.
"""

import json
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest_audioeval
import soundfile
import transformers
from scipy.signal import resample_poly
from transformers import WhisperFeatureExtractor

HERE = Path(__file__).parent
FOLDER = HERE / "sounds"
RECORDING = Path(list(pytest_audioeval.__path__)[0]) / "samples/audio/en/hello_world.wav"


class Pack:
    """Arrays one behind the other in a file, with an index."""

    def __init__(self):
        self.bytes, self.index = BytesIO(), {}

    def add(self, name, array, **more):
        at = self.bytes.tell()
        self.bytes.write(np.ascontiguousarray(array.astype("<f4")).tobytes())
        self.index[name] = {"at": at, "shape": list(array.shape), **more}

    def write(self, name):
        (HERE / f"{name}.bin").write_bytes(self.bytes.getvalue())
        (HERE / f"{name}.json").write_text(json.dumps(self.index, separators=(",", ":")) + "\n")


def tones(rate, seconds, channels):
    """Sweeps, another in each channel, with a little noise."""
    random = np.random.default_rng(5)
    t = np.arange(int(rate * seconds)) / rate
    made = [
        0.5 * np.sin(2 * np.pi * (200 + 300 * c) * t + 900 * (c + 1) * t * t) + random.normal(0, 0.01, t.size)
        for c in range(channels)
    ]
    return np.stack(made, -1)


def main():
    FOLDER.mkdir(exist_ok=True)
    speech, rate = soundfile.read(RECORDING)
    heard = Pack()

    def file(name, samples, rate, **options):
        soundfile.write(FOLDER / name, samples, rate, **options)
        seen, rate_seen = soundfile.read(FOLDER / name, dtype="float64", always_2d=True)
        heard.add(name, seen.mean(1)[::3], every=3, samples=len(seen), rate=rate_seen, channels=seen.shape[1])

    file("speech.wav", speech, rate, subtype="PCM_16")
    file("speech.flac", speech, rate, subtype="PCM_16")
    file("speech.mp3", speech, rate)
    # libsndfile gives Opus at the rate that it was made of, and its packets are of 48 kHz.
    fine = resample_poly(speech, 3, 1)
    file("speech.opus", fine, 48000, format="OGG", subtype="OPUS", compression_level=0.97)
    file("speech-high.opus", fine, 48000, format="OGG", subtype="OPUS", compression_level=0.2)
    two = tones(44100, 0.3, 2)
    for subtype in ["PCM_U8", "PCM_16", "PCM_24", "PCM_32", "FLOAT", "DOUBLE", "ULAW", "ALAW"]:
        few = two[: len(two) // 4]
        file(f"tones-{subtype.lower()}.wav", few, 44100, subtype=subtype)
    file("tones-extensible.wav", two[:4000], 44100, format="WAVEX", subtype="PCM_16")
    file("tones-16.flac", two, 44100, subtype="PCM_16")
    file("tones-24.flac", tones(96000, 0.1, 1), 96000, subtype="PCM_24")
    file("tones.mp3", two, 44100)
    file("tones.opus", tones(48000, 0.3, 2), 48000, format="OGG", subtype="OPUS")
    file("tones-low.opus", tones(48000, 0.4, 1), 48000, format="OGG", subtype="OPUS", compression_level=1.0)
    heard.write("sounds")

    # An hour of silence in a few kilobytes.
    silence = np.zeros(3600 * 8000, np.int16)
    soundfile.write(FOLDER / ".hour.flac", silence, 8000, subtype="PCM_16")
    (FOLDER / ".hour.flac").rename(HERE / "hour.flac")

    mel = Pack()
    read, _ = soundfile.read(FOLDER / "speech.wav", dtype="float32")
    sweep = tones(16000, 2.0, 1)[:, 0].astype(np.float32)
    soft = (sweep * 1e-3).astype(np.float32)
    click = np.zeros(5000, np.float32)
    click[2500] = 0.9
    signals = {"speech": read, "sweep": sweep, "soft": soft, "click": click, "silence": np.zeros(4000, np.float32)}
    for name, samples in signals.items():
        if name != "speech":
            mel.add(name, samples)
        for bins in [80, 128]:
            extractor = WhisperFeatureExtractor(feature_size=bins)
            padded = np.pad(samples, (0, 480000 - samples.size))[None]
            seen = extractor._np_extract_fbank_features(padded, "cpu")[0]
            told = extractor(samples, sampling_rate=16000)["input_features"][0]
            assert np.abs(seen - told).max() < 5e-4, np.abs(seen - told).max()
            frames = samples.size // 160 + 3
            mel.add(f"{name}/{bins}", seen[:, :frames:4], every=4, frames=seen.shape[1])
    mel.write("mel")
    print("made with transformers", transformers.__version__, "libsndfile", soundfile.__libsndfile_version__)


if __name__ == "__main__":
    main()
