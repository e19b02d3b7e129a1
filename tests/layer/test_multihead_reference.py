"""The drop-in against multi-head attention written in numpy: random shapes and options, masks, dtypes and strides."""

from __future__ import annotations

import itertools

import pytest

torch = pytest.importorskip("torch")
numpy = pytest.importorskip("numpy")

from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as some  # noqa: E402
from torch import nn  # noqa: E402

from manyheads.layer.multihead import MultiheadAttention  # noqa: E402
from support import multihead_reference  # noqa: E402

OPTIONS = list(itertools.product((False, True), (False, True), ("one width", "widths of their own"), ("mean", "heads")))
DTYPES = {torch.float64: 1e-12, torch.float32: 2e-5, torch.bfloat16: 0.06, torch.float16: 0.008}


def layer(m, heads, *, dtype=torch.float64, **options):
    made = MultiheadAttention(m, heads, batch_first=True, dtype=dtype, **options)
    for name, weight in made.named_parameters():
        nn.init.normal_(weight, std=weight.shape[-1] ** -0.5 if name.endswith("weight") else 0.5)
    return made


@pytest.mark.parametrize("number", range(100))
def test_a_hundred_random_shapes(number) -> None:
    """Each combination of learned extra keys, keys of zeros, widths and averaging in turn; masks on every second one."""
    torch.manual_seed(number)
    draw = numpy.random.default_rng(number)
    extra, zeros, widths, average = OPTIONS[number % len(OPTIONS)]
    heads, d, batch, queries, keys = (int(x) for x in draw.integers(1, (6, 9, 5, 9, 9)))
    own = {"kdim": int(draw.integers(1, 20)), "vdim": int(draw.integers(1, 20))} if widths != "one width" else {}
    ours = layer(heads * d, heads, add_bias_kv=extra, add_zero_attn=zeros, bias=bool(number // 16 % 2), **own)
    sizes = ((queries, ours.embed_dim), (keys, ours.kdim), (keys, ours.vdim))
    q, k, v = (torch.randn(batch, *size, dtype=torch.float64) for size in sizes)
    masks = {}
    if number % 2:
        masks["key_padding_mask"] = torch.rand(batch, keys) < 0.3
    if number % 3:
        masks["attn_mask"] = torch.rand(*((batch * heads,) if number % 3 == 2 else ()), queries, keys) < 0.3
    expected, weights = multihead_reference.attend(ours, q, k, v, **masks)
    for need_weights in (True, False):
        out, found = ours(q, k, v, need_weights=need_weights, average_attn_weights=average == "mean", **masks)
        numpy.testing.assert_allclose(out.detach().numpy(), expected, rtol=0, atol=1e-12)
        if need_weights:
            weights = weights.mean(1) if average == "mean" else weights
            numpy.testing.assert_allclose(found.detach().numpy(), weights, rtol=0, atol=1e-13)


@some.composite
def calls(draw):
    """A layer, its inputs with some strides, and masks of either kind; rows that see nothing come up often."""
    dtype = draw(some.sampled_from(list(DTYPES)))
    heads, d = draw(some.integers(1, 4)), draw(some.integers(1, 6))
    batch, queries, keys = (draw(some.integers(0, 4)) for _ in range(3))
    torch.manual_seed(draw(some.integers(0, 2**20)))
    names = ("bias", "add_bias_kv", "add_zero_attn")
    options = {name: draw(some.booleans()) for name in names}
    if draw(some.booleans()):
        options |= {"kdim": draw(some.integers(1, 7)), "vdim": draw(some.integers(1, 7))}
    ours = layer(heads * d, heads, dtype=dtype, **options)
    sizes = ((queries, ours.embed_dim), (keys, ours.kdim), (keys, ours.vdim))
    inputs = [draw(strided(torch.randn(batch, *size).to(dtype))) for size in sizes]
    masks = {}
    shape = draw(some.sampled_from([(queries, keys), (batch * heads, queries, keys)]))
    for name, size in (("attn_mask", shape), ("key_padding_mask", (batch, keys))):
        kind = draw(some.sampled_from(["none", "flags", "all", "floats", "infinite", "another dtype"]))
        flags = torch.rand(size) < (1.0 if kind == "all" else 0.4)
        masks[name] = {
            "none": None,
            "flags": flags,
            "all": flags,
            "floats": torch.randn(size).to(dtype),
            "infinite": torch.zeros(size, dtype=dtype).masked_fill(flags, -torch.inf),
            "another dtype": torch.randn(size, dtype=torch.float64).masked_fill(flags, -torch.inf),
        }[kind]
    return ours, inputs, masks


@some.composite
def strided(draw, x):
    axes = draw(some.permutations(range(3)))
    x = x.permute(axes).contiguous().permute([axes.index(axis) for axis in range(3)])
    return torch.stack([x, x + 1], -1)[..., 0] if draw(some.booleans()) else x


@settings(max_examples=200)
@given(calls(), some.booleans(), some.sampled_from(["batch first", "tokens first", "no batch"]))
def test_any_call_is_the_references(call, average, layout) -> None:
    ours, inputs, masks = call
    expected, weights = multihead_reference.attend(ours, *inputs, **masks)
    tolerance = DTYPES[ours.out_proj.weight.dtype]
    ours.batch_first = layout != "tokens first"
    if layout == "tokens first":
        inputs = [x.transpose(0, 1) for x in inputs]
    if layout == "no batch":
        if not len(inputs[0]):
            return
        inputs, expected, weights = [x[0] for x in inputs], expected[0], weights[:1]
        mask, padding = masks["attn_mask"], masks["key_padding_mask"]
        masks = {
            "attn_mask": mask if mask is None or mask.dim() == 2 else mask[: ours.num_heads],
            "key_padding_mask": None if padding is None else padding[0],
        }
    weights = weights.mean(1) if average else weights
    for need_weights in (True, False):
        out, found = ours(*inputs, need_weights=need_weights, average_attn_weights=average, **masks)
        assert out.dtype == ours.out_proj.weight.dtype
        dense = out.detach().double().numpy()
        dense = dense.swapaxes(0, 1) if layout == "tokens first" else dense
        scale = max(1.0, abs(expected).max(initial=0.0))
        numpy.testing.assert_allclose(dense, expected, rtol=0, atol=tolerance * scale)
        if found is not None:
            same = weights[0] if layout == "no batch" else weights
            numpy.testing.assert_allclose(found.detach().double().numpy(), same, rtol=0, atol=tolerance)
