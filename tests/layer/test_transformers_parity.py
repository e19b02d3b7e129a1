"""The attention modules of transformers, one by one: whole, in chunks, step by step and left-padded, by both caches."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("safetensors")

from support import (  # noqa: E402
    attention_parity,
    rounding,
)
from support.sweeps import some  # noqa: E402

# Families that stay in float64 through torch's SDPA.
WIDE = ("llama", "mistral", "qwen2", "gpt2", "gpt_neox", "bert", "t5", "marian", "whisper")
# Those that drop to float32 inside, in a norm or in the softmax; the last two know eager attention only.
NARROW = {"qwen3": "sdpa", "olmo2": "sdpa", "deepseek_v3": "sdpa", "gemma2": "eager", "gpt_oss": "eager"}
ENCODERS = ("bert",)
PIECES = {"whole": [12], "chunks": [5, 4, 3], "steps": [6, *[1] * 6]}


def run(model: Any, name: str, pieces: list[int], keep: torch.Tensor | None, dtype: torch.dtype) -> bool:
    """Run the model over 12 tokens in pieces; returns whether it had a cache."""
    draw = torch.Generator().manual_seed(1)
    ids = torch.randint(3, 90, (2, 12), generator=draw)
    seq2seq = name in ("t5", "marian", "whisper")
    more: dict[str, Any] = {}
    with torch.no_grad():
        if name in ENCODERS:
            model(input_ids=ids, attention_mask=None if keep is None else keep.long())
            return False
        if seq2seq:
            given = (
                {"input_features": torch.randn(2, 20, 62, generator=draw).to(dtype)}
                if name == "whisper"
                else {"input_ids": torch.randint(3, 90, (2, 7), generator=draw)}
            )
            more["encoder_outputs"] = model.get_encoder()(**given)
        cached, done = len(pieces) > 1, 0
        cache = None
        for size in pieces:
            here = slice(done, done + size)
            done += size
            if keep is not None:
                key = "decoder_attention_mask" if seq2seq else "attention_mask"
                more[key] = keep[:, :done].long()
                if not seq2seq:
                    more["position_ids"] = (keep.long().cumsum(1) - 1).clamp(min=0)[:, here]
            inputs = {"decoder_input_ids" if seq2seq else "input_ids": ids[:, here]}
            answer = model(**inputs, **more, use_cache=cached, **({"cache": cache} if cache is not None else {}))
            cache = getattr(answer, "cache", None)
    return cached


def compare(name: str, folder: Path, patch: pytest.MonkeyPatch, *, pieces: str, padded: bool, attention: str,
            dtype: torch.dtype, rounds_to: torch.dtype) -> None:  # fmt: skip
    """Every attention module of the tiny model, and our layer, against our layer in float64; pads' own rows aside.

    `rounds_to`: the narrowest type in which any of them computes.
    """
    model, store = attention_parity.stored(name, folder, dtype=dtype, attention=attention)
    notes = attention_parity.listen(model)
    keep = torch.arange(12)[None] >= torch.tensor([[0], [5]]) if padded else None
    cached = run(model, name, PIECES[pieces], keep, dtype)
    checked = 0
    with torch.no_grad():
        for where, seen in notes.items():
            own = name in ENCODERS or (seen.role == "decoder" and seen.which == "self")
            real = keep if own and keep is not None else torch.ones(torch.cat(seen.outputs, 1).shape[:2]).bool()

            def mine(seen: Any, own: bool = own, real: torch.Tensor = real) -> torch.Tensor:
                parts = attention_parity.ours(seen, store, patch, keep=keep if own else None, cached=cached)
                return torch.cat(parts, 1)[real]

            exact = rounding.evaluated(lambda seen=seen, mine=mine: mine(seen.widened()), dtype=rounds_to)
            assert exact.holds(mine(seen)), where
            assert exact.holds(torch.cat(seen.outputs, 1)[real]), where
            checked += exact.value.numel()
    assert checked > 500


def cases(names: Any) -> list[Any]:
    return [
        pytest.param(name, pieces, padded, id=f"{name}-{pieces}{'-padded' if padded else ''}")
        for name in names
        for pieces in PIECES
        for padded in (False, True)
        if pieces == "whole" or name not in ENCODERS
    ]


@pytest.mark.parametrize(("name", "pieces", "padded"), some(cases(WIDE), 2))
def test_in_float64_through_sdpa(
    name: str, pieces: str, padded: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compare(
        name,
        tmp_path,
        monkeypatch,
        pieces=pieces,
        padded=padded,
        attention="sdpa",
        dtype=torch.float64,
        rounds_to=torch.float64,
    )


@pytest.mark.parametrize(("name", "pieces", "padded"), some(cases(NARROW), 2))
def test_where_float32_is_inside(
    name: str, pieces: str, padded: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To float32 as it is, to float64 with the casts lifted."""
    common: dict[str, Any] = {"pieces": pieces, "padded": padded, "attention": NARROW[name], "dtype": torch.float64}
    # gemma2's own rows of pads are NaN in float64: the mask's minimum overflows the float32 that its softmax drops to
    if not (name == "gemma2" and padded):
        compare(name, tmp_path / "as_it_is", monkeypatch, rounds_to=torch.float32, **common)
    attention_parity.wide_casts(monkeypatch, name)
    compare(name, tmp_path / "lifted", monkeypatch, rounds_to=torch.float64, **common)


@pytest.mark.parametrize(("name", "pieces", "padded"), some(cases((*WIDE, *NARROW)), 3))
def test_in_float32(name: str, pieces: str, padded: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    attention = NARROW.get(name, "sdpa")
    compare(
        name,
        tmp_path,
        monkeypatch,
        pieces=pieces,
        padded=padded,
        attention=attention,
        dtype=torch.float32,
        rounds_to=torch.float32,
    )


@pytest.mark.parametrize(("name", "pieces", "padded"), cases(["qwen3_next"]))
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
def test_gated_delta_rules_and_gates(
    name: str, pieces: str, padded: bool, dtype: torch.dtype, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Qwen3-Next's linear layers keep their state in float32 whatever the model's dtype."""
    compare(
        name,
        tmp_path,
        monkeypatch,
        pieces=pieces,
        padded=padded,
        attention="sdpa",
        dtype=dtype,
        rounds_to=torch.float32,
    )
