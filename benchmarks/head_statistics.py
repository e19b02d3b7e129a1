"""All statistics of all heads against a plain forward: time and peak memory. Writes docs/head-statistics.md.

    python benchmarks/head_statistics.py [--tokens 2048 8192] [--rounds 3] [--output docs/head-statistics.md]

The model is SmolLM2-135M of the demo package, in float32, on random tokens. A plain forward is transformers' own with SDPA,
without a cache, the output layer for the last token only, which is what the statistics need too; the two take turns in one
process, after a warm-up of each. Peak memory is what the system says of a process that did only one of them (loading is in
both). Nothing is written, and the exit status is 2, where figures differ from those of whole matrices at 512 tokens; it is
1 where a ratio is above its bound: 2.5 of time, 1.5 of memory.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics as middle
import subprocess
import sys
import time
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import torch

from manyheads.heads.statistics import head_statistics
from manyheads.models.door.door import Call, open_door
from manyheads.models.load.model import load as load_model

PAGE = Path(__file__).parents[1] / "docs" / "head-statistics.md"
MOST_TIME, MOST_MEMORY = 2.5, 1.5
CHECKED_TOKENS, CHECKED_LAYERS, TOLERANCE = 512, (0, 15, 29), 1e-5
KEY_SETS = {"some": list(range(100))}


def load() -> Any:
    """The demo model with SDPA."""
    model = load_model().model
    model.config._attn_implementation = "sdpa"
    return model


def tokens(count: int) -> torch.Tensor:
    """Random tokens, the same each time."""
    return torch.randint(0, 49_152, (1, count), generator=torch.Generator().manual_seed(0))


def plain(model: Any, ids: torch.Tensor) -> None:
    """The forward that everything is compared with."""
    with torch.no_grad():
        model(input_ids=ids, use_cache=False, logits_to_keep=1)


def looked(model: Any, ids: torch.Tensor) -> None:
    """The same with all statistics of all heads."""
    head_statistics(model, [ids], key_sets=KEY_SETS)


WAYS = {"plain": plain, "statistics": looked}


def largest_difference(model: Any) -> float:
    """From the figures of whole matrices, in three layers."""
    ids = tokens(CHECKED_TOKENS)
    full: dict[int, torch.Tensor] = {}

    def keep(call: Call, _: torch.Tensor) -> None:
        if call.layer in CHECKED_LAYERS:
            full[call.layer] = call.weights()

    with open_door(model, observers=[keep]):
        plain(model, ids)
    found, worst = head_statistics(model, [ids], key_sets=KEY_SETS), 0.0
    for layer, weights in full.items():
        p = weights[0].double()
        entropy = -(p * torch.log(p.clamp_min(1e-300))).sum(-1).mean(-1)
        distance = (torch.arange(CHECKED_TOKENS)[:, None] - torch.arange(CHECKED_TOKENS)).abs()
        pairs = [
            (found.mass["first"][layer], p[:, :, 0].mean(-1)),
            (found.mass["self"][layer], p.diagonal(dim1=1, dim2=2).mean(-1)),
            (found.entropy[layer], entropy),
            (found.distance[layer] / CHECKED_TOKENS, (p * distance).sum(-1).mean(-1) / CHECKED_TOKENS),
        ]
        worst = max(worst, *(float(np.abs(ours - theirs.numpy()).max()) for ours, theirs in pairs))
    return worst


def seconds(model: Any, count: int, rounds: int) -> dict[str, list[float]]:
    """Seconds of each way, in turns."""
    ids, found = tokens(count), {name: [] for name in WAYS}
    for way in WAYS.values():
        way(model, tokens(64))
    for _ in range(rounds):
        for name, way in WAYS.items():
            began = time.perf_counter()
            way(model, ids)
            found[name].append(time.perf_counter() - began)
    return found


def peak_bytes(way: str, count: int, threads: int) -> int:
    """The most memory that a process of its own held."""
    command = [sys.executable, __file__, "--only", way, "--tokens", str(count), "--threads", str(threads)]
    return int(json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout))


def page(rows: list[list[str]], worst: float, threads: int) -> str:
    """The whole of docs/head-statistics.md."""
    asked = "".join(f" {word}" for word in sys.argv[1:])
    head = ["tokens", "plain forward, s", "with statistics, s", "times", "plain, MiB", "with statistics, MiB", "times",
            "ns a score"]  # fmt: skip
    table = "\n".join("| " + " | ".join(cells) + " |" for cells in (head, ["---:"] * len(head), *rows))
    return f"""# What looking at all heads costs

All statistics of `manyheads.heads.statistics` for the 270 heads of SmolLM2-135M (float32, random tokens) beside a plain
forward of transformers with SDPA. Medians; the two took turns. Peak memory is that of a process that did only one of them,
loading included. A score is one query and one key of one head; its time is what the statistics add, divided by their number.

{table}

Figures of layers {", ".join(map(str, CHECKED_LAYERS))} at {CHECKED_TOKENS} tokens differ from those of whole matrices by at
most {worst:.1e}. Written by `python benchmarks/head_statistics.py{asked}` on {date.today().isoformat()}, {threads} threads, torch
{torch.__version__}, Python {platform.python_version()}. Neither the length of a text nor the number of texts adds to the memory
beside the forward's own (`tests/heads/statistics/test_statistics.py`).
"""


def most_bytes() -> int:
    """What this process ever held. Not ru_maxrss, which a child starts with its parent's of."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * int(next(line.split()[1] for line in lines if line.startswith("VmHWM")))


def main() -> int:
    """Measures, and writes the page where the figures are right."""
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("--tokens", type=int, nargs="+", default=[2048, 8192])
    words.add_argument("--rounds", type=int, default=3)
    words.add_argument("--threads", type=int, default=torch.get_num_threads())
    words.add_argument("--output", type=Path, default=PAGE)
    words.add_argument("--only", choices=list(WAYS), help=argparse.SUPPRESS)
    asked = words.parse_args()
    torch.set_num_threads(asked.threads)
    model = load()
    if asked.only:
        WAYS[asked.only](model, tokens(asked.tokens[0]))
        print(most_bytes())
        return 0
    worst = largest_difference(model)
    if worst > TOLERANCE:
        print(f"no page written: figures differ from those of whole matrices by {worst:.1e}", file=sys.stderr)
        return 2
    rows, good = [], True
    for count in asked.tokens:
        took = {name: middle.median(found) for name, found in seconds(model, count, asked.rounds).items()}
        held = {name: peak_bytes(name, count, asked.threads) for name in WAYS}
        slower, larger = took["statistics"] / took["plain"], held["statistics"] / held["plain"]
        good = good and slower <= MOST_TIME and larger <= MOST_MEMORY
        scores = 270 * count * (count + 1) / 2
        rows.append([
            f"{count:,}", f"{took['plain']:.2f}", f"{took['statistics']:.2f}", f"{slower:.2f}", f"{held['plain'] / 2**20:,.0f}",
            f"{held['statistics'] / 2**20:,.0f}", f"{larger:.2f}", f"{1e9 * (took['statistics'] - took['plain']) / scores:.1f}",
        ])  # fmt: skip
        print(" | ".join(rows[-1]), file=sys.stderr)
    asked.output.write_text(page(rows, worst, asked.threads), encoding="utf-8")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
