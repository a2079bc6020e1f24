"""Reads what loading.rs reads, with PyTorch's DataLoader as somebody would who wants it to be quick:
whole batches are asked for at once, a fast tokenizer encodes them together, and numpy packs them.
Prints the number of samples, how many came in a second between a quarter of them and three, and the
processor time of each in microseconds.

usage: loading_peer.py torch|streamed|mapped FOLDER TOKENIZER|- BATCH WORKERS PREFETCH
       loading_peer.py search torch|streamed|mapped FOLDER TOKENIZER|- BATCH
       loading_peer.py train FOLDER OUT

`search` prints the number of workers and the batches ahead of each with which most samples come.
"""

import glob
import itertools
import mmap
import os
import sys
import time
import warnings

warnings.filterwarnings("ignore")

CONTEXT = 1024
EOS = 256
PATCH, VISUAL_TOKENS = 14, 64
# Without workers, the tokenizer has all cores.
SETTINGS = [(0, 0)] + [(workers, ahead) for workers in (1, 2, 4) for ahead in (2, 8)]


def train(folder, out):
    import json

    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=8192, special_tokens=["<|end|>"], initial_alphabet=alphabet, show_progress=False
    )
    lines = (json.loads(line)["text"] for path in sorted(glob.glob(f"{folder}/*.jsonl"))[:1] for line in open(path))
    tokenizer.train_from_iterator(lines, trainer)
    os.makedirs(out, exist_ok=True)
    tokenizer.save(f"{out}/tokenizer.json")
    with open(f"{out}/tokenizer_config.json", "w") as file:
        json.dump({"eos_token": "<|end|>", "pad_token": "<|end|>"}, file)


class Encode:
    """Texts to the tokens of all, each with the token that ends it, and their lengths."""

    def __init__(self, path):
        self.tokenizer = None
        if path != "-":
            from tokenizers import Tokenizer

            self.tokenizer = Tokenizer.from_file(f"{path}/tokenizer.json")
            self.tokenizer.enable_truncation(CONTEXT - 1)

    def __call__(self, texts):
        import numpy

        if self.tokenizer is None:
            pieces = [text.encode()[: CONTEXT - 1] for text in texts]
            lengths = numpy.fromiter((len(it) + 1 for it in pieces), numpy.int64, len(pieces))
            tokens = numpy.frombuffer(b"\0".join(pieces) + b"\0", numpy.uint8).astype(numpy.int32)
            tokens[lengths.cumsum() - 1] = EOS
            return tokens, lengths
        pieces = [it.ids for it in self.tokenizer.encode_batch_fast(texts, add_special_tokens=False)]
        lengths = numpy.fromiter((len(it) + 1 for it in pieces), numpy.int64, len(pieces))
        for piece in pieces:
            piece.append(0)
        tokens = numpy.fromiter(itertools.chain.from_iterable(pieces), numpy.int32, lengths.sum())
        return tokens, lengths


def pack(tokens, lengths):
    """Samples one after the other, with where they begin and the positions inside of each."""
    import numpy
    import torch

    bounds = numpy.concatenate(([0], lengths.cumsum()))
    positions = numpy.arange(bounds[-1]) - numpy.repeat(bounds[:-1], lengths)
    made = {"tokens": tokens, "bounds": bounds, "positions": positions.astype(numpy.int32)}
    return {name: torch.from_numpy(it) for name, it in made.items()}


def fitted(width, height):
    """Rows and columns of visual tokens, as `transform::picture::fitted` has them."""
    near = [max(1, (side + PATCH) // (2 * PATCH)) for side in (height, width)]
    if near[0] * near[1] <= VISUAL_TOKENS:
        return near
    scale = (VISUAL_TOKENS / (height * width)) ** 0.5
    rows = min(max(1, int(height * scale)), near[0])
    return rows, min(max(1, int(width * scale)), near[1], VISUAL_TOKENS // rows)


def with_pictures(files, captions, encode):
    """Pictures as patches, before the tokens of their captions."""
    import numpy
    import torch
    from PIL import Image

    # Only headers are read here.
    images = [Image.open(file) for file in files]
    sizes = [fitted(*image.size) for image in images]
    counts = numpy.array([rows * columns for rows, columns in sizes])
    patches = numpy.empty((4 * counts.sum(), PATCH * PATCH * 3), numpy.uint8)
    begins = 4 * (counts.cumsum() - counts)
    for image, (rows, columns), begin, count in zip(images, sizes, begins, counts):
        size = columns * 2 * PATCH, rows * 2 * PATCH
        # JPEG is decoded at a half, a quarter or an eighth, where that is enough.
        image.draft("RGB", size)
        pixels = numpy.asarray(image.convert("RGB").resize(size, Image.BILINEAR))
        pixels = pixels.reshape(rows, 2, PATCH, columns, 2, PATCH, 3).transpose(0, 3, 1, 4, 2, 5, 6)
        place = patches[begin : begin + 4 * count].reshape(pixels.shape)
        place[...] = pixels
    words, lengths = encode(captions)
    total = counts + lengths
    tokens = numpy.full(total.sum(), EOS + 1, numpy.int32)
    is_word = numpy.repeat(numpy.tile([False, True], len(total)), numpy.stack([counts, lengths], 1).ravel())
    tokens[is_word] = words
    return pack(tokens, total) | {"patches": torch.from_numpy(patches)}


class Lines:
    """Lines of JSON, found by where they begin."""

    def __init__(self, paths, encode):
        self.encode = encode
        self.files = []
        self.places = []
        for at, path in enumerate(paths):
            with open(path, "rb") as file:
                self.files.append(mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ))
                place = 0
                for line in file:
                    self.places.append((at, place, place + len(line)))
                    place += len(line)

    def __len__(self):
        return len(self.places)

    def __getitem__(self, batch):
        import orjson

        places = (self.places[nth] for nth in batch)
        texts = [orjson.loads(self.files[at][begin:end])["text"] for at, begin, end in places]
        return pack(*self.encode(texts))


class Photographs:
    def __init__(self, paths, encode):
        self.paths = paths
        self.encode = encode

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, batch):
        paths = [self.paths[nth] for nth in batch]
        return with_pictures(paths, [caption(path) for path in paths], self.encode)


def caption(path):
    with open(path[:-3] + "txt") as file:
        return file.read()


class Mapped:
    """Rows of Arrow, of which a batch is taken at once."""

    def __init__(self, rows, made):
        self.rows = rows
        self.made = made

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, batch):
        return self.made(self.rows[batch])


def Streamed(rows, made, batch):
    import torch

    batches = rows.shuffle(seed=1, buffer_size=1000).batch(batch)

    class Batches(torch.utils.data.IterableDataset):
        def __iter__(self):
            return (made(rows) for rows in batches)

    return Batches()


def dataset(by, folder, encode, batch):
    lines = sorted(glob.glob(f"{folder}/*.jsonl"))
    photographs = sorted(glob.glob(f"{folder}/*.jpg"))
    if by == "torch":
        return Lines(lines, encode) if lines else Photographs(photographs, encode)
    import datasets

    datasets.disable_progress_bars()
    if lines:
        rows = datasets.load_dataset("json", data_files=lines, split="train", streaming=by == "streamed")

        def made(rows):
            return pack(*encode(rows["text"]))

    else:
        columns = {"image": photographs, "text": [caption(path) for path in photographs]}
        rows = datasets.Dataset.from_dict(columns)
        # Read and decoded below, to the size that is wanted.
        rows = rows.cast_column("image", datasets.Image(decode=False))
        if by == "streamed":
            rows = rows.to_iterable_dataset(num_shards=4)

        def made(rows):
            return with_pictures([image["path"] for image in rows["image"]], rows["text"], encode)

    return Mapped(rows, made) if by == "mapped" else Streamed(rows, made, batch)


def batches(data, batch, workers, ahead):
    import torch
    from torch.utils.data import BatchSampler, DataLoader, IterableDataset, RandomSampler

    os.environ["TOKENIZERS_PARALLELISM"] = "false" if workers else "true"
    torch.set_num_threads(1 if workers else os.cpu_count())
    options = {"prefetch_factor": ahead, "persistent_workers": True} if workers else {}
    if not isinstance(data, IterableDataset):
        options["sampler"] = BatchSampler(RandomSampler(data), batch, drop_last=False)
    return DataLoader(data, batch_size=None, num_workers=workers, pin_memory=False, **options)


def search(data, batch):
    """Two turns of all settings, some seconds each."""
    best = {}
    for _ in range(2):
        for setting in SETTINGS:
            samples, begun = 0, None
            started = time.perf_counter()
            for made in batches(data, batch, *setting):
                now = time.perf_counter()
                if begun is None and now - started > 0.7:
                    begun = now
                elif begun is not None:
                    samples += len(made["bounds"]) - 1
                    if now - begun > 1.5:
                        break
            rate = samples / (now - begun) if begun and now > begun else 0.0
            best[setting] = max(rate, best.get(setting, 0.0))
    return max(best, key=best.get)


def main():
    what = sys.argv[1]
    if what == "train":
        return train(*sys.argv[2:4])
    by, folder, tokenizer, batch = sys.argv[2:6] if what == "search" else sys.argv[1:5]
    data = dataset(by, folder, Encode(tokenizer), int(batch))
    if what == "search":
        return print(*search(data, int(batch)))
    before, came, samples = sum(os.times()[:4]), [], 0
    loader = batches(data, int(batch), *map(int, sys.argv[5:7]))
    for made in loader:
        samples += len(made["bounds"]) - 1
        came.append((samples, time.perf_counter()))
    quarter = next(it for it in came if it[0] >= samples / 4)
    three = next(it for it in came if it[0] >= samples * 3 / 4)
    # With the loader its workers end, and count.
    del loader
    worked = sum(os.times()[:4]) - before
    print(samples, (three[0] - quarter[0]) / (three[1] - quarter[1]), worked / samples * 1e6)


main()
