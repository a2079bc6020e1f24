"""One of two ranks that save and load the tensors of against_torch.rs with torch.distributed.checkpoint:
DTensors that are cut along their rows, on the processor, over gloo. For each line of standard input,
such as `save FOLDER`, it does that and prints how long it was kept waiting and how long it took.

usage: torch_peer.py RANK RANKS PORT MEBIBYTES
"""

import os
import sys
import time
import warnings

warnings.filterwarnings("ignore")

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard


def shapes(mebibytes):
    """The same as in against_torch.rs."""
    rows = 1024
    columns = 1024
    count = mebibytes // 4
    return [(f"layers.{at}.w", (rows, columns)) for at in range(count)]


def main():
    rank, ranks, port, mebibytes = map(int, sys.argv[1:])
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(rank), WORLD_SIZE=str(ranks))
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=ranks)
    mesh = init_device_mesh("cpu", (ranks,))

    def state(dim, fill):
        parts = {}
        for at, (name, (rows, columns)) in enumerate(shapes(mebibytes)):
            local = (rows // ranks, columns) if dim == 0 else (rows, columns // ranks)
            data = torch.full(local, float(at + rank)) if fill else torch.ones(local)
            parts[name] = DTensor.from_local(data, mesh, [Shard(dim)])
        return parts

    saved, same, other = state(0, True), state(0, False), state(1, False)
    print(f"ready {torch.__version__}", flush=True)
    for line in sys.stdin:
        what, folder = line.split()
        dist.barrier()
        begun = time.perf_counter()
        if what == "save":
            dcp.save(saved, checkpoint_id=folder)
            blocked = time.perf_counter() - begun
        elif what == "async":
            saving = dcp.async_save(saved, checkpoint_id=folder)
            blocked = time.perf_counter() - begun
            saving.result()
        elif what == "load":
            dcp.load(same, checkpoint_id=folder)
            blocked = time.perf_counter() - begun
        elif what == "reshard":
            dcp.load(other, checkpoint_id=folder)
            blocked = time.perf_counter() - begun
        took = time.perf_counter() - begun
        dist.barrier()
        print(f"{blocked} {took}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
