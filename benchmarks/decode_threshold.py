"""Where the decode kernel starts to win against torch's SDPA, as the door would call it: the numbers of layer.backends.

    python benchmarks/decode_threshold.py [--threads N]

Caches are rotated over 512 MB, as the layers of a model do, so that they come from memory. Each figure is the lower
quartile of interleaved calls, SDPA's time over the kernel's: above 1 the kernel is faster.
"""

from __future__ import annotations

import argparse
import time

import torch

from manyheads.kernels.attend import Keys, decode
from manyheads.ops import sdpa

SHAPES = [
    (9, 3, 64),
    (32, 32, 64),
    (8, 8, 64),
    (32, 8, 128),
    (32, 32, 128),
    (32, 1, 128),
]  # query heads, KV heads, width
KEYS = (64, 128, 256, 512, 1024, 2048)
COLD_BYTES = 512 * 2**20


def ratio(shape: tuple[int, int, int], batch: int, queries: int, keys: int, dtype: torch.dtype, threads: int) -> str:
    """One line's entry: SDPA's time over the kernel's."""
    heads, kv_heads, width = shape
    size = batch * kv_heads * keys * width * dtype.itemsize * 2
    copies = max(2, min(200, COLD_BYTES // size))
    q = torch.randn(batch, heads, queries, width).to(dtype)
    pairs = [tuple(torch.zeros(batch, kv_heads, keys, width, dtype=dtype) for _ in "kv") for _ in range(copies)]
    seen = Keys.causal(batch, queries, keys)
    mask = None if queries == 1 else torch.ones(batch, 1, queries, keys, dtype=torch.bool).tril(keys - queries)
    times: dict[str, list[float]] = {"ours": [], "sdpa": []}
    for turn in range(min(copies, 40) * 2):
        for name, own in times.items():
            k, v = pairs[(2 * turn + (name == "sdpa")) % copies]
            start = time.perf_counter()
            if name == "ours":
                decode(q, k, v, seen, scale=0.1, threads=threads)
            else:
                sdpa.attention(q, k, v, scale=0.1, visible=mask)
            own.append(time.perf_counter() - start)
    ours, other = (sorted(each)[len(each) // 4] for each in times.values())
    return f"{keys}: {other / ours:.2f} ({ours * 1e6:.0f} us)"


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=1)
    threads = parser.parse_args().threads
    torch.set_num_threads(threads)
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        for shape in SHAPES:
            for batch in (1, 4):
                for queries in (1, 4, 16):
                    line = (ratio(shape, batch, queries, keys, dtype, threads) for keys in KEYS)
                    print(str(dtype)[6:], shape, f"batch {batch}, {queries} queries", *line, sep="  ", flush=True)


if __name__ == "__main__":
    with torch.no_grad():
        main()
