"""The tiled form: memory that grows with T alone, the log-sum-exp, and tiles that nobody sees."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
import torch

from manyheads.errors import SpecError
from manyheads.ops import masks, softmax, tiled
from support import rounding
from support.attention_calls import SHAPES, arguments, tensors
from support.peak_memory import PEAK_BYTES, needs_proc

# The peak of a call in a process of its own: what the process ever held, less what it held before the call.
MEASURE = (
    PEAK_BYTES
    + """
import json, sys, time
import torch
from manyheads.ops import masks, sdpa, tiled
torch.set_num_threads(1)
form = {"tiled": tiled.attention, "sdpa": sdpa.attention}[sys.argv[1]]
q, k, v = (torch.randn(1, 1, 50_000, 8, requires_grad=True) for _ in range(3))
form(q[:, :, :64], k[:, :, :64], v[:, :, :64], scale=0.3, visible=masks.window(16)).sum().backward()
before = peak_bytes()
start = time.perf_counter()
out = form(q, k, v, scale=0.3, visible=masks.window(16))
out.sum().backward()
seconds = time.perf_counter() - start
after = peak_bytes()
i = 46_400  # beyond 2^31 pairs
rows = slice(i - 15, i + 1)
row = torch.softmax(0.3 * q[0, 0, i].double() @ k[0, 0, rows].double().T, -1) @ v[0, 0, rows].double()
print(json.dumps({"bytes": after - before, "seconds": seconds, "off": (row - out[0, 0, i]).abs().max().item(),
                  "finite": bool(q.grad.isfinite().all())}))
"""
)


@needs_proc
@pytest.mark.parametrize("form", ["tiled", "sdpa"])
def test_o61_50_000_tokens_in_a_window_stay_under_1_gib(form: str, python: Callable[..., object]) -> None:
    done = python("-c", MEASURE, form)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["bytes"] < 2**30
    assert found["seconds"] < 60
    assert (
        found["off"] < 1e-5
    )  # a mean of 16 values below 5: 16 x 5 x 2^-24 = 5e-6 at worst, and its weights' error again
    assert found["finite"]


@pytest.mark.parametrize(
    ("seen", "most"), [(masks.window(16), 2), (masks.chunk(128), 1), (masks.band(8), 3), (masks.causal(), 8)]
)
def test_tiles_that_nobody_sees_are_not_computed(
    seen: masks.Visible, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """1,024 tokens in tiles of 128: so many key tiles a query tile at most, of 8."""
    made: dict[int, int] = {}
    logits = tiled._logits

    def counting(call: object, rows: slice, columns: slice, *, whole: bool) -> object:
        made[rows.start] = made.get(rows.start, 0) + 1
        return logits(call, rows, columns, whole=whole)

    monkeypatch.setattr(tiled, "_logits", counting)
    q, k, v = (torch.randn(1, 1, 1024, 2) for _ in range(3))
    out = tiled.attention(q, k, v, scale=1.0, visible=seen, tile=128)
    assert len(made) == 8
    assert max(made.values()) <= most
    assert rounding.attention(q, k, v, scale=1.0, visible=seen).holds(out)


@pytest.mark.parametrize("call", ["causal", "holes", "softcap and bias", "sinks and holes", "nothing", "all at once"])
def test_log_sum_exp(call: str) -> None:
    shape = SHAPES["grouped"]
    q, k, v = (x.requires_grad_() for x in tensors(shape))
    asked = arguments(call, shape)
    _, lse = tiled.attention(q, k, v, **asked, tile=16, return_lse=True)
    shown = {name: value for name, value in asked.items() if name != "sinks"}
    logits = softmax.scores(q, k, stage="masked", **shown)
    if "sinks" in asked:
        logits = torch.cat((logits, asked["sinks"].view(1, -1, 1, 1).expand(*logits.shape[:3], 1)), -1)
    want = torch.logsumexp(logits, -1)
    assert torch.allclose(lse, want, atol=1e-12)
    alive = want.isfinite()
    if alive.any():
        ours, theirs = (torch.autograd.grad(x[alive].sin().sum(), (q, k)) for x in (lse, want))
        assert all((a - b).abs().nan_to_num(0.0).max() < 1e-12 for a, b in zip(ours, theirs, strict=True))
        assert all(part.isfinite().all() for part in ours)


def test_halves_are_merged_by_their_log_sum_exp() -> None:
    q, k, v = tensors(SHAPES["grouped"])
    whole = softmax.attention(q, k, v, scale=0.5)
    parts = [
        tiled.attention(q, k[:, :, at], v[:, :, at], scale=0.5, return_lse=True) for at in (slice(0, 20), slice(20, 53))
    ]
    shares = torch.softmax(torch.stack([lse for _, lse in parts]), 0)
    merged = sum(share[..., None] * out for share, (out, _) in zip(shares, parts, strict=True))
    assert torch.allclose(merged, whole, atol=1e-14)


def test_float32_large_logits_do_not_overflow() -> None:
    q, k, v = (1e4 * torch.randn(1, 2, n, 4) for n in (5, 40, 40))
    out = tiled.attention(q, k, v / 1e4, scale=1.0, tile=8)
    assert out.isfinite().all()
    assert torch.allclose(out, softmax.attention(q, k, v / 1e4, scale=1.0), atol=1e-6)


def test_a_large_batch_takes_fewer_rows_a_tile() -> None:
    assert [rows.stop - rows.start for rows in tiled._row_tiles(8, 600, 256)] == [256, 256, 88]
    assert {rows.stop - rows.start for rows in tiled._row_tiles(4096, 64, 256)} == {16}


def test_a_tile_of_nothing() -> None:
    q, k, v = tensors(SHAPES["square"])
    with pytest.raises(SpecError, match="found 0"):
        tiled.attention(q, k, v, scale=1.0, tile=0)
