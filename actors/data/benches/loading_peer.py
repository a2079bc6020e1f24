"""Reads what loading.rs reads, once through, with two worker processes of PyTorch's DataLoader, and
prints how many samples there were and how many came in a second, from the first batch to the last.

usage: loading_peer.py torch|streamed|mapped FOLDER TOKENIZER|- BATCH
       loading_peer.py train FOLDER OUT
"""

import glob
import json
import os
import sys
import time
import warnings

warnings.filterwarnings("ignore")

CONTEXT = 1024
EOS = 256
PATCH, VISUAL_TOKENS = 14, 64


def train(folder, out):
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=8192, special_tokens=["<|end|>"], initial_alphabet=alphabet)
    lines = (json.loads(line)["text"] for path in sorted(glob.glob(f"{folder}/*.jsonl"))[:1] for line in open(path))
    tokenizer.train_from_iterator(lines, trainer)
    os.makedirs(out, exist_ok=True)
    tokenizer.save(f"{out}/tokenizer.json")
    with open(f"{out}/tokenizer_config.json", "w") as file:
        json.dump({"eos_token": "<|end|>", "pad_token": "<|end|>"}, file)


class Encode:
    """Text to a tensor of tokens, with the token that ends it."""

    def __init__(self, path):
        self.path = path
        self.tokenizer = None

    def __call__(self, text):
        import torch

        if self.path == "-":
            tokens = bytearray(text.encode()[: CONTEXT - 1])
            tokens = torch.frombuffer(tokens, dtype=torch.uint8).to(torch.int32)
            return torch.cat([tokens, torch.tensor([EOS], dtype=torch.int32)])
        if self.tokenizer is None:
            from tokenizers import Tokenizer

            self.tokenizer = Tokenizer.from_file(f"{self.path}/tokenizer.json")
        ids = self.tokenizer.encode(text).ids[: CONTEXT - 1]
        return torch.tensor(ids + [0], dtype=torch.int32)


def pack(samples):
    """Samples one after the other, with where they begin and the positions inside of each."""
    import torch

    tokens = [sample["tokens"] for sample in samples]
    lengths = torch.tensor([len(it) for it in tokens])
    bounds = torch.nn.functional.pad(lengths.cumsum(0), (1, 0))
    positions = torch.cat([torch.arange(int(it)) for it in lengths])
    batch = {"tokens": torch.cat(tokens), "bounds": bounds, "positions": positions}
    if "patches" in samples[0]:
        batch["patches"] = torch.cat([sample["patches"] for sample in samples])
    return batch


def sized(image):
    """A picture as patches, of as many as it may have."""
    import numpy
    import torch
    from PIL import Image

    image = image.convert("RGB")
    unit = 2 * PATCH
    width, height = image.size
    rows, columns = max(1, round(height / unit)), max(1, round(width / unit))
    if rows * columns > VISUAL_TOKENS:
        shrink = (VISUAL_TOKENS / (rows * columns)) ** 0.5
        rows, columns = max(1, int(rows * shrink)), max(1, int(columns * shrink))
    image = image.resize((columns * unit, rows * unit), Image.BILINEAR)
    pixels = torch.from_numpy(numpy.array(image))
    patches = pixels.view(rows, 2, PATCH, columns, 2, PATCH, 3).permute(0, 3, 1, 4, 2, 5, 6)
    return patches.reshape(-1, PATCH * PATCH * 3), rows * columns


def with_picture(image, caption, encode):
    import torch

    patches, count = sized(image)
    tokens = torch.cat([torch.full((count,), EOS + 1, dtype=torch.int32), encode(caption)])
    return {"tokens": tokens, "patches": patches}


class Lines:
    """Lines of JSON, found by where they begin."""

    def __init__(self, paths, encode):
        self.encode = encode
        self.paths = paths
        self.places = []
        for at, path in enumerate(paths):
            place = 0
            with open(path, "rb") as file:
                for line in file:
                    self.places.append((at, place))
                    place += len(line)
        self.files = None

    def __len__(self):
        return len(self.places)

    def __getitem__(self, nth):
        if self.files is None:
            self.files = [open(path, "rb") for path in self.paths]
        at, place = self.places[nth]
        self.files[at].seek(place)
        return {"tokens": self.encode(json.loads(self.files[at].readline())["text"])}


class Photographs:
    def __init__(self, paths, encode):
        self.paths = paths
        self.encode = encode

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, nth):
        from PIL import Image

        path = self.paths[nth]
        with open(path[:-3] + "txt") as file:
            caption = file.read()
        return with_picture(Image.open(path), caption, self.encode)


def dataset(by, folder, encode):
    lines = sorted(glob.glob(f"{folder}/*.jsonl"))
    photographs = sorted(glob.glob(f"{folder}/*.jpg"))
    if by == "torch":
        return Lines(lines, encode) if lines else Photographs(photographs, encode)
    import datasets

    datasets.disable_progress_bars()
    if lines:
        read = datasets.load_dataset("json", data_files=lines, split="train", streaming=by == "streamed")

        def mapped(batch):
            return {"tokens": [encode(text) for text in batch["text"]]}

    else:
        rows = {"image": photographs, "text": [open(path[:-3] + "txt").read() for path in photographs]}
        read = datasets.Dataset.from_dict(rows).cast_column("image", datasets.Image())
        if by == "streamed":
            read = read.to_iterable_dataset(num_shards=4)

        def mapped(batch):
            pairs = zip(batch["image"], batch["text"])
            made = [with_picture(image, text, encode) for image, text in pairs]
            return {name: [one[name] for one in made] for name in ("tokens", "patches")}

    if by == "mapped":
        return read.with_transform(mapped)
    read = read.shuffle(seed=1, buffer_size=1000)
    if lines:
        return Streamed(read, lambda row: {"tokens": encode(row["text"])})
    return Streamed(read, lambda row: with_picture(row["image"], row["text"], encode))


def Streamed(read, function):
    """Tensors beside the columns: `map` would bring them into Arrow and back."""
    import torch

    class Rows(torch.utils.data.IterableDataset):
        def __iter__(self):
            return (function(row) for row in read)

    return Rows()


def main():
    by, folder, tokenizer = sys.argv[1:4]
    if by == "train":
        return train(folder, tokenizer)
    import torch
    from torch.utils.data import DataLoader

    torch.set_num_threads(1)
    batch = int(sys.argv[4])
    data = dataset(by, folder, Encode(tokenizer))
    shuffle = {} if by == "streamed" else {"shuffle": True}
    loader = DataLoader(data, batch_size=batch, num_workers=2, collate_fn=pack, **shuffle)
    samples, begun, first = 0, None, 0
    for batch in loader:
        samples += len(batch["bounds"]) - 1
        if begun is None:
            begun, first = time.perf_counter(), samples
    print(samples, (samples - first) / (time.perf_counter() - begun))


main()
