"""The decode kernel behind the door: what it is given, what it answers, and where it leaves a call to others."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import manyheads
from manyheads.kernels import backend as kernel
from manyheads.kernels import keys as bounds
from manyheads.layer import backends
from manyheads.layer.backends import select
from manyheads.layer.dispatch import attend
from manyheads.models.door.call import EVERYTHING, read_call
from manyheads.models.door.door import open_door
from manyheads.ops import masks
from manyheads.ops.answer import Yes
from manyheads.ops.bias import Alibi, alibi_slopes
from manyheads.ops.call import AttentionCall
from manyheads.ops.deferred import StoredTensor
from support import rounding
from support.tiny_transformers import build, inputs


def call(
    b: int = 2, h: int = 4, kv: int = 2, t: int = 1, s: int = 50, size: int = 64, seed: int = 0, **how: Any
) -> AttentionCall:
    draw = torch.Generator().manual_seed(seed)
    q, k, v = (torch.randn(b, n, m, size, generator=draw) for n, m in ((h, t), (kv, s), (kv, s)))
    return AttentionCall.checked(q, k, v, scale=size**-0.5, **how)


def exact(asked: AttentionCall) -> rounding.Exact:
    return rounding.attention(asked.q, asked.k, asked.v, **asked.options)


@pytest.mark.parametrize(
    "visible",
    [
        None,
        masks.everything(),
        masks.causal(),
        masks.window(7),
        masks.chunk(16),
        masks.causal() & masks.padding(torch.arange(50) >= torch.tensor([[0], [13]])),
        masks.lengths(torch.tensor([50, 20])),
        masks.per_head(masks.causal(), masks.window(3), masks.window(9), masks.causal()),
        ~masks.window(3) & masks.causal(),
    ],
    ids=["none", "everything", "causal", "window", "chunk", "left padding", "right padding", "per head", "a gap"],
)
@pytest.mark.parametrize("queries", [1, 5])
def test_every_way_to_say_who_sees_whom(visible: Any, queries: int) -> None:
    asked = call(t=queries, visible=visible)
    assert exact(asked).holds(kernel.run(asked))
    if visible is not None:
        mask = masks.materialise(visible, batch=2, heads=4, queries=queries, keys=50)
        assert exact(asked).holds(kernel.run(replace(asked, visible=masks.dense(mask))))


@settings(max_examples=100)
@given(st.integers(0, 2**16), st.sampled_from([(1, 1), (2, 1), (2, 4), (1, 4)]), st.integers(1, 4), st.integers(1, 9))
def test_any_mask(seed: int, shape: tuple[int, int], queries: int, keys: int) -> None:
    """Bounds and what is hidden between them say together what the mask says, whether or not it is one stretch a row."""
    draw = torch.Generator().manual_seed(seed)
    share = float(torch.rand((), generator=draw))
    mask = torch.rand(*shape, queries, keys, generator=draw) < share
    q, k = torch.empty(2, 4, queries, 1), torch.empty(2, 4, keys, 1)
    seen = bounds.seen_keys(AttentionCall.checked(q, k, k, scale=1.0, visible=mask))
    n = torch.arange(keys)
    table = ((n >= seen.keys.low[..., None]) & (n < seen.keys.high[..., None]))[:, None]
    if seen.hidden is not None:
        table = table & (seen.hidden == 0)
    assert torch.equal(*torch.broadcast_tensors(table, mask.expand(2, -1, -1, -1)))
    stretches = mask.int().diff(dim=-1, prepend=mask.new_zeros(*mask.shape[:-1], 1).int()).clamp_min(0).sum(-1)
    assert (seen.hidden is None) == (shape[1] == 1 and bool((stretches <= 1).all()))


def test_a_mask_is_read_once_and_again_when_it_has_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    reads: list[int] = []
    read = bounds._read
    monkeypatch.setattr(bounds, "_read", lambda *words: reads.append(1) or read(*words))
    mask = torch.ones(1, 1, 1, 50, dtype=torch.bool)
    asked = call(b=1, visible=mask)
    for _ in range(3):
        assert int(bounds.seen_keys(asked).keys.high) == 50
    mask[..., 40:] = False
    assert int(bounds.seen_keys(asked).keys.high) == 40
    assert len(reads) == 2


def test_a_mask_marked_as_showing_everything_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounds, "_read", lambda *_: pytest.fail("it was read"))
    mask = torch.ones(1, 1, 1, 1, dtype=torch.bool).expand(2, 1, 1, 50)
    setattr(mask, EVERYTHING, True)
    asked = call()
    told = read_call(nn.Identity(), asked.q, asked.k, asked.v, mask, {})
    assert torch.equal(kernel.run(told), kernel.run(asked))


@pytest.mark.parametrize(
    "how",
    [
        {"softcap": 3.0},
        {"sinks": torch.linspace(-1, 2, 4)},
        {"bias": torch.linspace(-3, 3, 200).view(1, 4, 1, 50)},
        {"bias": Alibi(alibi_slopes(4))},
        {"bias": torch.linspace(-3, 3, 50), "softcap": 2.0, "sinks": torch.zeros(4), "visible": masks.window(20)},
    ],
)
def test_all_that_acts_on_logits(how: dict[str, Any]) -> None:
    asked = call(t=2, **how)
    assert kernel.supports(asked)
    assert exact(asked).holds(kernel.run(asked))


def test_a_packed_cache_is_read_as_it_lies(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = call(s=90)
    scales = [x.abs().amax(-1) / 127 for x in (asked.k, asked.v)]
    packed = [
        StoredTensor((x / c[..., None]).round().to(torch.int8), c, torch.float32)
        for x, c in zip((asked.k, asked.v), scales, strict=True)
    ]
    wide = replace(asked, k=packed[0].materialized(), v=packed[1].materialized())
    monkeypatch.setattr(StoredTensor, "materialized", lambda _: pytest.fail("it was dequantized"))
    found = kernel.run(replace(asked, k=packed[0], v=packed[1]))
    assert exact(wide).holds(found)
    assert select(replace(asked, k=packed[0], v=packed[1])).name == "kernel"


@pytest.mark.parametrize(
    ("change", "name", "reason"),
    [
        ({"s": 40}, "sdpa", "40 keys, and in float32 the kernel is quicker from 512 keys on"),
        ({"s": 40, "softcap": 2.0}, "kernel", ""),
        ({"s": 40, "softcap": 2.0, "dropout": 0.1}, "plain", "torch's SDPA has no softcap"),
        ({"s": 40_000, "t": 17, "softcap": 2.0}, "tiled", "1 to 16 new queries, found 17"),
        ({"s": 9000, "dropout": 0.1}, "sdpa", "no dropout, 0.1 was asked for"),
        ({"s": 9000}, "kernel", ""),
        ({"s": 9000, "softcap": 2.0, "sinks": torch.zeros(4)}, "kernel", ""),
    ],
)
def test_who_computes_a_call_and_why(change: dict[str, Any], name: str, reason: str) -> None:
    found = select(call(**change))
    assert found.name == name
    assert reason in found.reason


def test_gradients_double_and_odd_strides_go_elsewhere() -> None:
    asked = call(s=9000)
    assert select(replace(asked, q=asked.q.clone().requires_grad_())).reason == "the kernels have no backward pass"
    double = replace(asked, q=asked.q.double(), k=asked.k.double(), v=asked.v.double())
    assert "float64" in select(double).reason
    turned = replace(asked, k=asked.k.mT.contiguous().mT)
    assert "side by side" in select(turned).reason
    for each in (double, turned):
        assert exact(each).holds(attend(each))


def test_asked_for_by_name_it_computes_what_it_can_and_leaves_the_rest() -> None:
    model, batch = build("llama", head_dim=10), inputs("llama")
    with torch.no_grad(), open_door(model, implementation="kernel") as door:
        found = model(**batch)[0]
    assert rounding.model(model, batch).holds(found)
    assert {how.name for how in door.selected.values()} == {"kernel"}
    with open_door(model, implementation="kernel") as door:
        model(**batch)[0].sum().backward()
        assert {how.name for how in door.selected.values()} == {"sdpa"}


def test_no_shape_that_does_not_fit_reaches_the_kernel() -> None:
    asked = call()
    assert "shapes that do not fit" in kernel.supports(replace(asked, v=asked.v[:, :, :9])).reason


def test_nan_and_infinity_as_in_the_reference() -> None:
    for value in (float("nan"), float("inf")):
        asked = call(s=80)
        asked.v[0, 1, 33, 5] = value
        found, expected = kernel.run(asked), exact(asked).value
        assert torch.equal(torch.isnan(found), torch.isnan(expected))
        assert torch.equal(torch.isinf(found), torch.isinf(expected))


@pytest.mark.parametrize("visible", [None, "padded"])
def test_one_graph(visible: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """torch.compile(fullgraph=True) holds all of it as one operator, which chooses where it runs."""
    monkeypatch.setattr(backends, "_is_long_enough", lambda *_: Yes())
    mask = None if visible is None else (torch.arange(50) >= torch.tensor([[0], [13]]))[:, None, None]
    asked = call(visible=mask)
    counted: list[Any] = []

    def backend(graph: Any, _: Any) -> Any:
        counted.append([str(node.target) for node in graph.graph.nodes])
        return graph

    torch._dynamo.reset()
    step = torch.compile(lambda q, k, v: attend(replace_qkv(asked, q, k, v)), fullgraph=True, backend=backend)
    with torch.no_grad():
        assert exact(asked).holds(step(asked.q, asked.k, asked.v))
    assert any("manyheads.attend_last" in name for name in counted[0])


def replace_qkv(asked: AttentionCall, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> AttentionCall:
    return AttentionCall.checked(q, k, v, scale=asked.scale, visible=asked.visible)


def test_a_model_as_one_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backends, "_is_long_enough", lambda *_: Yes())
    model, ids = build("llama", head_dim=10), inputs("llama", tokens=3)["input_ids"]
    manyheads.enable()
    try:
        model.set_attn_implementation("manyheads")
        torch._dynamo.reset()
        with torch.no_grad():
            found = torch.compile(model, fullgraph=True, backend="aot_eager")(ids, use_cache=False)[0]
        assert rounding.model(model, {"input_ids": ids}, use_cache=False).holds(found)
    finally:
        manyheads.disable()
