"""Many random requests to the decode kernel against attention written out in float64.

    python benchmarks/kernel_fuzz.py [--requests 10000] [--seed N]

Shapes, strides, dtypes, masks, lengths and all that acts on logits, drawn by Hypothesis as in tests/kernels/test_fuzz.py,
with more head sizes and longer caches. Exit status 1 and the smallest request that fails, if one does.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from hypothesis import HealthCheck, given, seed, settings

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

from support.kernel_requests import KernelRequest, check, kernel_requests

SIZES = [(64, 64), (128, 128), (128, 96), (40, 24), (80, 80), (96, 64), (256, 256), (16, 16), (2, 2), (72, 8), (30, 6)]


def main() -> int:
    """Runs them and says how long it took."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()

    done = 0

    @seed(options.seed)
    @settings(max_examples=options.requests, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(kernel_requests(sizes=SIZES, longest=3000))
    def one(asked: KernelRequest) -> None:
        nonlocal done
        check(asked)
        done += 1
        if done % 500 == 0:
            print(f"{done} requests, {time.perf_counter() - began:.0f} s", file=sys.stderr, flush=True)

    began = time.perf_counter()
    one()
    print(f"{done} requests agree, {time.perf_counter() - began:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
