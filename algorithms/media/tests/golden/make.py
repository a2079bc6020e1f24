"""Makes the extracts beside it: what Pillow and the processors of transformers make of small pictures.

    python3 -m venv V && V/bin/pip install torch torchvision transformers pillow scipy webp
    V/bin/python algorithms/media/tests/golden/make.py

Everything is drawn here, so nobody else has a right to it. Tests read the extracts alone.
"""

import json
import struct
import sys
import tarfile
import zlib
from io import BytesIO
from pathlib import Path

import numpy as np
import torch
import transformers
import webp
from PIL import Image, ImageOps
from torchvision.transforms.v2 import InterpolationMode
from torchvision.transforms.v2 import functional as tvf
from transformers import (
    Qwen2_5_VLConfig,
    Qwen2_5_VLForConditionalGeneration,
    Qwen2VLImageProcessor,
    Qwen3VLConfig,
    Qwen3VLForConditionalGeneration,
    Qwen3VLVideoProcessor,
    Siglip2ImageProcessor,
    SiglipImageProcessor,
    vision_utils,
)
from transformers.models.qwen2_vl import image_processing_qwen2_vl as qwen2
from transformers.models.qwen3_vl import video_processing_qwen3_vl as qwen3
from transformers.models.siglip2 import image_processing_pil_siglip2 as siglip2
from transformers.video_utils import VideoMetadata

HERE = Path(__file__).parent
RANDOM = np.random.default_rng(7)


class Pack:
    """Arrays one behind the other in a file, with an index."""

    def __init__(self):
        self.bytes, self.index = BytesIO(), {}

    def add(self, name, array, **more):
        at = self.bytes.tell()
        self.bytes.write(np.ascontiguousarray(array).tobytes())
        self.index[name] = {"at": at, "shape": list(array.shape), **more}

    def write(self, name):
        (HERE / f"{name}.bin").write_bytes(self.bytes.getvalue())
        write(f"{name}.json", self.index)


def write(name, value):
    (HERE / name).write_text(json.dumps(value, separators=(",", ":")) + "\n")


def refused(of, *args, **kwargs):
    try:
        return list(of(*args, **kwargs))
    except ValueError:
        return None


def sizes():
    """Sides near every edge: halves, bounds, ratios."""
    sides = [1, 2, 13, 14, 15, 27, 28, 29, 42, 56, 70, 200, 224, 500, 1000, 1036, 1999, 2000, 2001, 5000, 30000]
    pairs = [(h, w) for h in sides for w in sides]
    pairs += [tuple(int(x) for x in RANDOM.integers(1, 5000, 2)) for _ in range(200)]
    pairs += [tuple(int(x) for x in RANDOM.integers(1, 200_000, 2)) for _ in range(60)]
    bounds = [(28, 56 * 56, 28 * 28 * 1280), (32, 65536, 16777216), (28, 4 * 28 * 28, 16384 * 28 * 28), (14, 1, 10**9)]
    smart = [
        {"unit": unit, "bounds": [low, high], "of": [[h, w, refused(qwen2.smart_resize, h, w, unit, low, high)] for h, w in pairs]}
        for unit, low, high in bounds
    ]
    videos = []
    for frames in [1, 2, 3, 4, 5, 16, 101, 768]:
        for h, w in pairs[::9]:
            for unit, low, high in [(32, 128 * 32 * 32, 32 * 32 * 768), (28, 112 * 112, 14 * 14 * 2 * 2 * 2 * 6144)]:
                size = refused(qwen3.smart_resize, frames, h, w, 2, unit, low, high)
                videos.append([frames, h, w, unit, low, high, size])
    patches = [
        [h, w, most, refused(siglip2.get_image_size_for_max_num_patches, h, w, 16, most)]
        for h, w in pairs[::2]
        for most in [256, 1024, 37]
    ]
    write("sizes.json", {"smart": smart, "videos": videos, "largest": patches})


def sampled():
    """Frames and times of Qwen3-VL's videos."""
    processor, found = Qwen3VLVideoProcessor(), []
    stamps = transformers.Qwen3VLProcessor._calculate_timestamps
    for count in [1, 2, 3, 4, 5, 7, 24, 100, 239, 1000, 9999, 40000]:
        for video_fps in [1.0, 23.976, 24.0, 29.97, 60.0]:
            for fps in [0.5, 1, 2, 5]:
                metadata = VideoMetadata(total_num_frames=count, fps=video_fps)
                frames = processor.sample_frames(metadata, fps=fps).tolist()
                if len(frames) > 60 and count != 1000:
                    frames_shown = None
                else:
                    frames_shown = frames
                times = [f"<{t:.1f} seconds>" for t in stamps(None, list(frames), video_fps, 2)]
                found.append([count, video_fps, fps, len(frames), frames_shown, times if frames_shown else None])
    write("sampled.json", found)


def tiny(kind):
    text = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2,
            "num_key_value_heads": 2, "vocab_size": 100, "head_dim": 8,
            "rope_parameters": {"rope_type": "default", "mrope_section": [2, 1, 1], "rope_theta": 10000.0}}
    if kind == "qwen2_5":
        vision = {"depth": 1, "hidden_size": 32, "num_heads": 2, "intermediate_size": 16, "out_hidden_size": 16}
        config = Qwen2_5_VLConfig(text_config=text, vision_config=vision)
        return Qwen2_5_VLForConditionalGeneration(config)
    vision = {"depth": 1, "hidden_size": 32, "num_heads": 2, "intermediate_size": 16, "out_hidden_size": 16,
              "deepstack_visual_indexes": [0], "num_position_embeddings": 16}
    return Qwen3VLForConditionalGeneration(Qwen3VLConfig(text_config=text, vision_config=vision))


def positions():
    """Packing, windows, rotary angles of the tower, positions of the language model."""
    lists = [
        [[1, 4, 4]],
        [[1, 4, 6], [1, 2, 2], [1, 10, 18]],
        [[3, 4, 6], [1, 8, 2]],
        [[2, 18, 16], [1, 16, 16], [4, 2, 34]],
    ]
    packed = []
    for grids in lists:
        grid = torch.tensor(grids)
        order, windows = vision_utils.get_vision_window_index(grid, 2, 112, 14)
        packed.append({
            "grids": grids,
            "cu_seqlens": vision_utils.get_vision_cu_seqlens(grid).tolist(),
            "positions": vision_utils.get_vision_position_ids(grid, 2).tolist(),
            "order": order.tolist(),
            "windows": windows.tolist(),
        })
    model = tiny("qwen2_5")
    tower = model.model.visual
    places = vision_utils.get_vision_position_ids(torch.tensor(lists[1]), 2)
    cos, sin = tower.rotary_pos_emb(torch.zeros(1), places)
    rotary = {"grids": lists[1], "head_dim": 16, "cos": cos.double().tolist()[::7], "sin": sin.double().tolist()[::7], "every": 7}

    mrope = []
    cases = [
        [("text", 5)],
        [("text", 3), ("picture", [1, 4, 6]), ("text", 4)],
        [("picture", [1, 4, 4]), ("text", 1), ("picture", [1, 2, 10]), ("text", 2)],
        [("text", 2), ("video", [3, 4, 6], 1.0), ("text", 3)],
        [("text", 2), ("video", [5, 2, 4], 0.3), ("text", 1), ("picture", [1, 6, 4]), ("text", 1), ("video", [2, 2, 2], 2.7)],
    ]
    for case in cases:
        kinds, images, videos, seconds = [], [], [], []
        for part in case:
            if part[0] == "text":
                kinds += [0] * part[1]
                continue
            t, h, w = part[1]
            kinds += [1 if part[0] == "picture" else 2] * (t * h * w // 4)
            (images if part[0] == "picture" else videos).append(part[1])
            if part[0] == "video":
                seconds.append(part[2])
        many = lambda grids: torch.tensor(grids) if grids else None
        ids, delta = model.model.get_rope_index(
            torch.zeros(1, len(kinds), dtype=torch.long), torch.tensor([kinds], dtype=torch.int),
            many(images), many(videos), torch.tensor(seconds) if seconds else None,
        )
        mrope.append({"parts": case, "positions": ids[:, 0].T.tolist(), "delta": int(delta[0, 0])})
    # Qwen3-VL: frames of a video are pictures with text between them.
    third = tiny("qwen3").model
    kinds = [0] * 2 + ([0] * 3 + [2] * 6) * 3 + [0] * 2
    ids, delta = third.get_rope_index(
        torch.zeros(1, len(kinds), dtype=torch.long), torch.tensor([kinds], dtype=torch.int), None, torch.tensor([[3, 4, 6]])
    )
    parts = [("text", 2)] + [("text", 3), ("picture", [1, 4, 6])] * 3 + [("text", 2)]
    mrope.append({"parts": parts, "positions": ids[:, 0].T.tolist(), "delta": int(delta[0, 0])})
    per_second = model.config.vision_config.tokens_per_second
    write("positions.json", {"packed": packed, "rotary": rotary, "mrope": mrope, "tokens_per_second": per_second})


def drawn(width, height, kind=0):
    """A picture with slopes, an edge and some noise."""
    y, x = np.mgrid[0:height, 0:width].astype(np.float64)
    red = 255 * x / max(width - 1, 1)
    green = 127 + 100 * np.sin(x / 5 + y / 9 + kind)
    blue = np.where((x - width / 2) ** 2 + (y - height / 2) ** 2 < (min(width, height) / 3) ** 2, 230, 40 + 90 * y / height)
    noise = RANDOM.normal(0, 6, (height, width, 3))
    return np.clip(np.stack([red, green, blue], -1) + noise, 0, 255).astype(np.uint8)


def png16(array):
    """A PNG of 16 bits a colour, which Pillow does not write."""
    height, width, _ = array.shape
    rows = b"".join(b"\0" + array[y].astype(">u2").tobytes() for y in range(height))
    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
    header = struct.pack(">IIBBBBB", width, height, 16, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


def interlaced(array):
    """A PNG whose rows come in seven passes, which Pillow does not write."""
    height, width, _ = array.shape
    data = b""
    for x0, y0, dx, dy in [(0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2), (0, 1, 1, 2)]:
        part = array[y0::dy, x0::dx]
        if part.size:
            data += b"".join(b"\0" + row.tobytes() for row in part)
    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 1)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(data)) + chunk(b"IEND", b"")


def white(picture):
    """As it is seen on white."""
    picture = picture.convert("RGBA")
    page = Image.new("RGBA", picture.size, (255, 255, 255, 255))
    return np.asarray(Image.alpha_composite(page, picture).convert("RGB"))


def formats():
    """Pictures of every kind as files, and as Pillow decodes them."""
    pack, folder = Pack(), HERE / "pictures"
    folder.mkdir(exist_ok=True)
    base = Image.fromarray(drawn(45, 30))
    alpha = np.dstack([drawn(45, 30, 1), np.tile(np.linspace(0, 255, 45).astype(np.uint8), (30, 1))])
    faded = Image.fromarray(alpha, "RGBA")
    exif = Image.Exif()
    exif[0x0112] = 6

    def still(name, picture=base, see=None, **options):
        path = folder / name
        picture.save(path, **options)
        seen = ImageOps.exif_transpose(Image.open(path))
        pack.add(name, white(seen) if see is None else see)

    still("plain.jpg", quality=90, subsampling=2)
    still("whole.jpg", quality=92, subsampling=0)
    still("half.jpg", quality=92, subsampling=1)
    still("progressive.jpg", quality=90, progressive=True)
    still("grey.jpg", base.convert("L"), quality=90)
    still("restart.jpg", quality=90, restart_marker_rows=1)
    still("turned.jpg", quality=92, exif=exif)
    cmyk = base.convert("CMYK")
    still("cmyk.jpg", cmyk, quality=95)
    still("plain.png")
    still("grey.png", base.convert("L"))
    still("one-bit.png", base.convert("1"))
    still("grey-alpha.png", faded.convert("LA"))
    still("alpha.png", faded)
    still("palette.png", base.convert("P", palette=Image.Palette.ADAPTIVE, colors=40))
    shown = base.convert("P", palette=Image.Palette.ADAPTIVE, colors=17)
    still("palette-alpha.png", shown, transparency=3)
    still("turned.png", exif=exif)
    deep = drawn(45, 30, 2).astype(np.uint16) * 256 + 77
    (folder / "deep.png").write_bytes(png16(deep))
    pack.add("deep.png", (deep >> 8).astype(np.uint8))
    woven = drawn(45, 30, 3)
    (folder / "woven.png").write_bytes(interlaced(woven))
    pack.add("woven.png", np.asarray(Image.open(folder / "woven.png").convert("RGB")))
    still("lossy.webp", quality=90)
    still("lossless.webp", lossless=True)
    still("alpha.webp", faded, quality=90)
    still("alpha-lossless.webp", faded, lossless=True, exact=True)
    still("turned.webp", quality=95, exif=exif)

    # In eight parts, which Pillow does not write: the fields of libwebp's configuration by their number, quick methods alone.
    config = webp.WebPConfig.new(quality=90)
    fields = webp.ffi.cast("int *", config.ptr)
    fields[2], fields[18] = 0, 3
    data = bytes(webp.WebPPicture.from_pil(Image.fromarray(drawn(45, 200))).encode(config).buffer())
    (folder / "parts.webp").write_bytes(data)
    pack.add("parts.webp", white(Image.open(folder / "parts.webp")))

    def moving(name, pictures, **options):
        path = folder / name
        pictures[0].save(path, save_all=True, append_images=pictures[1:], **options)
        opened = Image.open(path)
        seen, times = [], []
        for at in range(opened.n_frames):
            opened.seek(at)
            seen.append(white(opened))
            times.append(opened.info.get("duration", 0))
        pack.add(name, np.stack(seen), times=times)

    frames = [Image.fromarray(drawn(24, 18, kind)) for kind in range(4)]
    moving("moving.gif", frames, duration=[40, 100, 250, 70], loop=0)
    # Dots on nothing, each gone before the next, and one that stays.
    def dots(at):
        picture = Image.new("RGBA", (24, 18), (0, 0, 0, 0))
        picture.paste((200, 30, 60, 255), (at * 5, at * 3, at * 5 + 6, at * 3 + 6))
        return picture
    dotted = [dots(at) for at in range(4)]
    for dispose in [1, 2, 3]:
        moving(f"dispose-{dispose}.gif", dotted, duration=50, disposal=dispose, loop=0)
    moving("moving.webp", frames, duration=[40, 100, 250, 70], lossless=True)
    moving("dots.webp", dotted, duration=80, lossless=True)
    pack.write("pictures")


def large():
    """Large pictures in small files, for the memory that decoding takes."""
    folder = HERE / "large"
    folder.mkdir(exist_ok=True)
    y, x = np.mgrid[0:901, 0:1203]
    smooth = np.stack([x * 255 // 1203, y * 255 // 901, (x + y) * 255 // 2104], -1).astype(np.uint8)
    picture = Image.fromarray(smooth)
    turned = Image.Exif()
    turned[0x0112] = 8
    for name, options in {
        "plain.jpg": {"subsampling": 2}, "whole.jpg": {"subsampling": 0}, "progressive.jpg": {"progressive": True},
        "turned.jpg": {"exif": turned}, "lossy.webp": {"quality": 20},
    }.items():
        picture.save(folder / name, **{"quality": 20, **options})
    picture.convert("CMYK").save(folder / "cmyk.jpg", quality=20, progressive=True)
    flat = np.zeros((901, 1203, 4), np.uint8)
    flat[100:300, 200:900] = [200, 40, 90, 200]
    flat = Image.fromarray(flat, "RGBA")
    flat.save(folder / "alpha.webp", quality=10)
    flat.save(folder / "lossless.webp", lossless=True)
    flat.save(folder / "alpha.png", optimize=True)
    flat.convert("L").save(folder / "grey.png", optimize=True)
    flat.convert("P").save(folder / "palette.png", optimize=True)
    flat.convert("1").save(folder / "one-bit.png", optimize=True)
    moved = [flat, Image.fromarray(np.roll(np.asarray(flat), 100, 0), "RGBA"), flat]
    moved[0].save(folder / "moving.gif", save_all=True, append_images=moved[1:], duration=50, disposal=3)
    moved[0].save(folder / "moving.webp", save_all=True, append_images=moved[1:], duration=50, lossless=True)


def photographs():
    """Means of the oracle's photographs as Pillow and Qwen's processor have them: numbers, and nothing of the pictures."""
    tar = HERE.parents[4] / "shared/oracles/images/cc12m-train-0000.tar"
    processor, found = Qwen2VLImageProcessor(), {}
    with tarfile.open(tar) as opened:
        for member in opened:
            if not member.name.endswith(".jpg"):
                continue
            picture = Image.open(BytesIO(opened.extractfile(member).read())).convert("RGB")
            made = processor(picture, return_tensors="pt")
            pixels = made["pixel_values"].double()
            found[member.name] = {
                "width": picture.width, "height": picture.height, "grid": made["image_grid_thw"][0].tolist(),
                "levels": np.asarray(picture).reshape(-1, 3).mean(0).tolist(),
                # Places differ in these, so patches in another order are seen.
                "patches": float((pixels * torch.linspace(-1, 1, pixels.numel()).reshape(pixels.shape).double()).mean()),
            }
    write("photographs.json", found)


def patches():
    """Pixels after resizing, and patches, as the processors make them."""
    levels, numbers = Pack(), Pack()
    sources = {name: drawn(w, h, at) for at, (name, w, h) in enumerate(
        [("wide", 131, 47), ("high", 33, 120), ("large", 160, 121), ("exact", 56, 84)])}
    for name, source in sources.items():
        levels.add(name, source)
        picture = Image.fromarray(source)
        high, wide = qwen2.smart_resize(source.shape[0], source.shape[1], 28, 3136, 28 * 28 * 12)
        for filter_name, pillow in [("bicubic", Image.Resampling.BICUBIC), ("bilinear", Image.Resampling.BILINEAR)]:
            levels.add(f"{name}/{filter_name}/pillow", np.asarray(picture.resize((wide, high), pillow)))
            tensor = torch.from_numpy(source).permute(2, 0, 1)
            made = tvf.resize(tensor, [high, wide], InterpolationMode(filter_name), antialias=True)
            levels.add(f"{name}/{filter_name}/torchvision", made.permute(1, 2, 0).numpy())
    def rows(name, processed, every=1):
        values = processed["pixel_values"]
        values = values.numpy() if hasattr(values, "numpy") else np.asarray(values)
        values = values.reshape(-1, values.shape[-1]) if values.ndim == 3 else values
        more = {key: np.asarray(processed[key]).tolist() for key in ["image_grid_thw", "spatial_shapes"] if key in processed}
        numbers.add(name, values[::every].astype("<f4"), every=every, **more)
    small = {"shortest_edge": 28 * 28, "longest_edge": 28 * 28 * 12}
    picture = Image.fromarray(sources["exact"])
    rows("qwen2_5/exact", Qwen2VLImageProcessor(size=small)(picture, return_tensors="pt"), 5)
    rows("qwen2_5/wide", Qwen2VLImageProcessor(size=small)(Image.fromarray(sources["wide"]), return_tensors="pt"), 5)
    third = Qwen2VLImageProcessor(
        size={"shortest_edge": 32 * 32, "longest_edge": 32 * 32 * 12}, patch_size=16, image_mean=[0.5] * 3, image_std=[0.5] * 3)
    rows("qwen3/large", third(Image.fromarray(sources["large"]), return_tensors="pt"), 5)
    siglip = SiglipImageProcessor(size={"height": 42, "width": 42})(Image.fromarray(sources["wide"]), return_tensors="pt")
    numbers.add("siglip/wide", siglip["pixel_values"][0].numpy().astype("<f4"))
    rows("siglip2/high", Siglip2ImageProcessor(max_num_patches=12)(Image.fromarray(sources["high"]), return_tensors="pt"), 3)
    video = torch.from_numpy(np.stack([drawn(56, 28, kind) for kind in range(3)])).permute(0, 3, 1, 2)
    levels.add("video", video.permute(0, 2, 3, 1).numpy())
    made = Qwen3VLVideoProcessor(patch_size=14, do_resize=False, do_sample_frames=False)(video, return_tensors="pt")
    numbers.add("qwen3/video", made["pixel_values_videos"].numpy().astype("<f4")[::3], every=3,
                image_grid_thw=made["video_grid_thw"].tolist())
    levels.write("levels")
    numbers.write("numbers")


if __name__ == "__main__":
    torch.manual_seed(0)
    for part in [sizes, sampled, positions, formats, large, photographs, patches]:
        if len(sys.argv) < 2 or part.__name__ in sys.argv[1:]:
            RANDOM = np.random.default_rng(7)
            part()
    print("made with transformers", transformers.__version__, "torch", torch.__version__)
