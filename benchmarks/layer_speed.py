"""Writes docs/layer-speed.md: forward and backward of our layer beside torch's own module and four bare Linears.

    python benchmarks/layer_speed.py [SECONDS] > docs/layer-speed.md        by default 60 a row, at least 5 rounds each

All four hold the same weights and are fed the same tokens; where an output or a gradient differs nothing is timed and the
exit status is 2. They take turns in a random order, so that whatever else the machine does falls on all of them. A round
gives ratios; stated are their medians and, in brackets, where nine in ten resampled medians lie. The second copy of our
layer shows the noise. The exit status is 1 where ours is slower than the faster of the two others beyond that.
"""

from __future__ import annotations

import os
import platform
import random
import statistics
import sys
import time
from collections.abc import Callable
from datetime import date
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from manyheads.layer import Attention
from manyheads.spec import AttentionSpec, Bidirectional, Causal

WIDTH, HEADS, LENGTHS = 512, 8, (128, 1024, 4096)
LEAST_ROUNDS, RESAMPLED = 5, 2000
Step = Callable[[Tensor], Tensor]
Interval = tuple[float, float, float]

HEAD = """\
# How fast the layer is

`Attention(mha(512, 8))`, forward and backward over one sequence, beside `torch.nn.MultiheadAttention(512, 8,
need_weights=False)` and beside torch's `scaled_dot_product_attention` between four bare `Linear`s, all with biases and the
same weights. A ratio below 1 says that ours is faster. Each is the median of rounds in which all took turns; in brackets,
where nine in ten resampled medians lie; "itself" is a second copy of our layer, so its interval is noise.

Written by `python benchmarks/layer_speed.py`, which writes nothing where an output or a gradient differs by more than 1e-4.
"""


class Bare(nn.Module):
    """What one would write by hand."""

    def __init__(self, *, causal: bool) -> None:
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.causal = causal

    def forward(self, x: Tensor) -> Tensor:
        b, t, _ = x.shape
        q, k, v = (part(x).view(b, t, HEADS, -1).transpose(1, 2) for part in (self.q, self.k, self.v))
        mixed = scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        return self.o(mixed.transpose(1, 2).reshape(b, t, WIDTH))


def contestants(*, causal: bool) -> dict[str, Step]:
    """Ours, ours again, the bare one and torch's module, with the same weights."""
    mask = Causal() if causal else Bidirectional()
    ours, again = (Attention(AttentionSpec.mha(WIDTH, HEADS, mask=mask, bias="qkvo")) for _ in range(2))
    for parameter in ours.parameters():
        nn.init.normal_(parameter, std=WIDTH**-0.5)
    again.load_state_dict(ours.state_dict())
    bare, theirs = Bare(causal=causal), nn.MultiheadAttention(WIDTH, HEADS, batch_first=True)
    with torch.no_grad():
        for name in "qkvo":
            part, weight = getattr(bare, name), getattr(ours, name)
            part.weight.copy_(weight.flatten(1) if name == "o" else weight.flatten(0, 1))
            part.bias.copy_(getattr(ours, f"{name}_bias").flatten())
        theirs.in_proj_weight.copy_(torch.cat([getattr(bare, name).weight for name in "qkv"]))
        theirs.in_proj_bias.copy_(torch.cat([getattr(bare, name).bias for name in "qkv"]))
        theirs.out_proj.load_state_dict(bare.o.state_dict())

    def module(x: Tensor) -> Tensor:
        blocked = nn.Transformer.generate_square_subsequent_mask(x.shape[1]) if causal else None
        return theirs(x, x, x, need_weights=False, attn_mask=blocked, is_causal=causal)[0]

    return {"ours": ours, "itself": again, "bare": bare, "module": module}


def check(steps: dict[str, Step], x: Tensor) -> None:
    """Refuses to time what does not compute the same."""
    found = {}
    for name, step in steps.items():
        tokens = x.clone().requires_grad_()
        y = step(tokens)
        y.square().mean().backward()
        found[name] = y.detach(), tokens.grad
    for name, (y, gradient) in found.items():
        for what, one, other in (("outputs", y, found["ours"][0]), ("gradients", gradient, found["ours"][1])):
            worst = float((one - other).abs().max() / other.abs().max())
            if not worst < 1e-4:
                print(f"no figures: {what} of {name} differ by {worst:.1e} at {x.shape[1]} tokens", file=sys.stderr)
                raise SystemExit(2)


def rounds(steps: dict[str, Step], x: Tensor, seconds: float) -> list[dict[str, float]]:
    """Seconds of a forward and backward of each, in a random order, again and again."""
    draw, found, until = random.Random(0), [], time.perf_counter() + seconds  # noqa: S311
    while len(found) < LEAST_ROUNDS or time.perf_counter() < until:
        order, took = list(steps), {}
        draw.shuffle(order)
        for name in order:
            tokens = x.clone().requires_grad_()
            start = time.perf_counter()
            steps[name](tokens).sum().backward()
            took[name] = time.perf_counter() - start
        found.append(took)
    return found


def ratio(found: list[dict[str, float]], other: str) -> Interval:
    """Median of ours / other, and where nine in ten medians of resampled rounds lie."""
    values = [took["ours"] / took[other] for took in found]
    draw = random.Random(0)  # noqa: S311
    medians = sorted(statistics.median(draw.choices(values, k=len(values))) for _ in range(RESAMPLED))
    return statistics.median(values), medians[RESAMPLED // 20], medians[-RESAMPLED // 20]


def machine(before: float) -> str:
    """When, where, with what, and how busy it was."""
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    model = next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), platform.processor())
    return (
        f"Last written on {date.today().isoformat()} with torch {torch.__version__} and Python "
        f"{platform.python_version()}, {torch.get_num_threads()} threads, float32, on {model or platform.machine()}; "
        f"load {before:.1f} before and {os.getloadavg()[0]:.1f} after, of which this took {torch.get_num_threads()}."
    )


def main() -> int:
    """Times each length and mask, prints the page."""
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 60.0
    torch.manual_seed(0)
    rows, slower, before = [], False, os.getloadavg()[0]
    for causal in (True, False):
        steps = contestants(causal=causal)
        for length in LENGTHS:
            x = torch.randn(1, length, WIDTH)
            check(steps, x)
            found = rounds(steps, x, seconds)
            ratios = {name: ratio(found, name) for name in ("module", "bare", "itself")}
            best = max(ratios["module"], ratios["bare"])
            slower |= best[1] > max(ratios["itself"][2], 1.0)
            cells = [f"{middle:.3f} [{low:.3f}, {high:.3f}]" for middle, low, high in ratios.values()]
            took = statistics.median(round_["ours"] for round_ in found) * 1e3
            rows.append([f"{length:,}", "causal" if causal else "all", str(len(found)), f"{took:.1f}", *cells])
            print(f"{length} tokens, {'causal' if causal else 'all'}: {' '.join(cells)}", file=sys.stderr)
    names = ["tokens", "sees", "rounds", "ours, ms", "ours / module", "ours / bare", "ours / itself"]
    table = [names, ["---:", "---", *["---:"] * 5], *rows]
    print(f"{HEAD}\n{machine(before)}\n")
    print("\n".join(f"| {' | '.join(row)} |" for row in table))
    print("\nSlower than the faster of the two, beyond noise: " + ("yes." if slower else "nowhere."))
    return int(slower)


if __name__ == "__main__":
    raise SystemExit(main())
