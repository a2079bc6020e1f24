"""Decodes, resizes and cuts photographs, and makes log-mel features, as PyTorch, Pillow and transformers do it. For each line of
standard input, such as `cut pillow`, does that once over all photographs (or a minute of sound) on one thread and prints the
seconds of processor time, or why it cannot.

usage: media_peer.py TAR_OF_PHOTOGRAPHS
"""

import io
import math
import sys
import tarfile
import time

import numpy as np

MEAN = np.array([0.48145466, 0.4578275, 0.40821073], np.float32)
STD = np.array([0.26862954, 0.26130258, 0.27577711], np.float32)
PATCH, MERGE = 14, 2


def photographs(path):
    with tarfile.open(path) as tar:
        return [tar.extractfile(member).read() for member in tar if member.name.endswith(".jpg")]


def size(height, width, factor=28, low=56 * 56, high=28 * 28 * 1280):
    rows, columns = round(height / factor) * factor, round(width / factor) * factor
    if rows * columns > high:
        beta = math.sqrt(height * width / high)
        return [max(factor, math.floor(side / beta / factor) * factor) for side in (height, width)]
    if rows * columns < low:
        beta = math.sqrt(low / (height * width))
        return [math.ceil(side * beta / factor) * factor for side in (height, width)]
    return [rows, columns]


class Pillow:
    def __init__(self):
        from PIL import Image

        self.image = Image
        scale = 1 / (255 * STD)
        self.scale, self.shift = scale.astype(np.float32), (-MEAN / STD).astype(np.float32)

    def decode(self, photo):
        return self.image.open(io.BytesIO(photo)).convert("RGB")

    def cut(self, photo):
        picture = self.decode(photo)
        height, width = size(picture.height, picture.width)
        picture = picture.resize((width, height), self.image.Resampling.BICUBIC)
        values = np.asarray(picture, np.float32)
        values *= self.scale
        values += self.shift
        patches = values.reshape(height // 28, 2, 14, width // 28, 2, 14, 3).transpose(0, 3, 1, 4, 6, 2, 5)
        patches = np.broadcast_to(patches[:, :, :, :, :, None], (*patches.shape[:5], 2, 14, 14))
        return patches.reshape(-1, 1176)


class Torchvision:
    def __init__(self):
        import torch
        import torchvision
        from torchvision.transforms.v2 import functional

        torch.set_num_threads(1)
        self.torch, self.io, self.functional = torch, torchvision.io, functional

    def decode(self, photo):
        read = self.torch.frombuffer(bytearray(photo), dtype=self.torch.uint8)
        return self.io.decode_jpeg(read, mode=self.io.ImageReadMode.RGB)

    def cut(self, photo):
        picture = self.decode(photo)
        height, width = size(*picture.shape[1:])
        mode = self.functional.InterpolationMode.BICUBIC
        picture = self.functional.resize(picture, [height, width], mode, antialias=True)
        values = self.functional.normalize(picture.float(), (MEAN * 255).tolist(), (STD * 255).tolist())
        patches = values.reshape(3, height // 28, 2, 14, width // 28, 2, 14).permute(1, 4, 2, 5, 0, 3, 6)
        return patches.unsqueeze(5).expand(-1, -1, -1, -1, -1, 2, -1, -1).reshape(-1, 1176)


class Processor:
    """The processor of transformers, on torchvision."""

    def __init__(self):
        from transformers import Qwen2VLImageProcessor

        self.before = Torchvision()
        self.processor = Qwen2VLImageProcessor()

    def cut(self, photo):
        return self.processor(self.before.decode(photo), return_tensors="pt")["pixel_values"]


def sound():
    random = np.random.default_rng(3)
    t = np.arange(480_000) / 16_000
    return (0.3 * np.sin(2 * np.pi * (200 + 90 * t) * t) + random.normal(0, 0.05, t.size)).astype(np.float32)


class Torchaudio:
    def __init__(self):
        import torch
        import torchaudio

        torch.set_num_threads(1)
        self.torch = torch
        self.mel = torchaudio.transforms.MelSpectrogram(
            16_000, n_fft=400, hop_length=160, n_mels=80, norm="slaney", mel_scale="slaney")
        self.sound = torch.from_numpy(sound())

    def features(self):
        torch = self.torch
        with torch.no_grad():
            logs = torch.clamp(self.mel(self.sound)[:, :-1], min=1e-10).log10()
            return (torch.maximum(logs, logs.max() - 8.0) + 4.0) / 4.0


class Whisper:
    """The extractor of transformers, on PyTorch."""

    def __init__(self):
        import torch
        from transformers import WhisperFeatureExtractor

        torch.set_num_threads(1)
        self.extractor, self.sound = WhisperFeatureExtractor(), sound()

    def features(self):
        return self.extractor(self.sound, sampling_rate=16_000, return_tensors="pt")["input_features"]


def main():
    photos, made = photographs(sys.argv[1]), {}
    peers = {"pillow": Pillow, "torchvision": Torchvision, "processor": Processor, "torchaudio": Torchaudio, "whisper": Whisper}
    for line in sys.stdin:
        what, name = line.split()
        try:
            peer = made.setdefault(name, None) or made.__setitem__(name, peers[name]()) or made[name]
            run = getattr(peer, what)
            began = time.process_time()
            if what == "features":
                for _ in range(2):
                    run()
            else:
                for photo in photos:
                    run(photo)
            print(time.process_time() - began, flush=True)
        except Exception as error:  # noqa: BLE001: a peer that lacks something says so
            print("cannot:", str(error).splitlines()[0] if str(error) else type(error).__name__, flush=True)


if __name__ == "__main__":
    main()
