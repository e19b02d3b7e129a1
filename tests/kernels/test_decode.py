"""Decode kernels against softmax attention written out in float64."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("numba")

from manyheads.errors import SpecError  # noqa: E402
from manyheads.kernels.attend import Keys, decode, supports  # noqa: E402
from manyheads.ops import softmax  # noqa: E402
from manyheads.ops.masks import dense  # noqa: E402

DTYPES = [torch.float32, torch.bfloat16, torch.float16]
# b, h, k, t, s, q, v. One pair of head sizes, since each compiles a kernel: both end within a vector, and values are more
# than one block of columns.
SHAPES = [
    (1, 4, 4, 1, 1, 40, 72),
    (2, 9, 3, 1, 130, 40, 72),
    (3, 7, 7, 1, 65, 40, 72),
    (1, 8, 2, 2, 77, 40, 72),
    (1, 32, 1, 1, 300, 40, 72),
    (1, 16, 1, 16, 40, 40, 72),
    (2, 6, 2, 3, 50, 40, 72),
    (1, 5, 1, 1, 1000, 40, 72),
]


# The kernel adds in 16 lanes, in the same order on every processor: a sum of n products passes through n / 16 + 4
# roundings, and is off by the root of that in units of 2^-24 of the sum of their absolute values: 8 at 1,000 keys. The sums
# over a head do as much to the weights; twice both, in all heads of all shapes, is 2e-6 of a head.
FLOAT32 = 32 * 2.0**-24


def made(shape, dtype, seed=0):
    b, h, kv, t, s, q, v = shape
    generator = torch.Generator().manual_seed(seed)
    draw = lambda *size: torch.randn(size, generator=generator)  # noqa: E731
    return draw(b, h, t, q), draw(b, kv, s, q).to(dtype), draw(b, kv, s, v).to(dtype)


def reference(q, k, v, keys, **options):
    n = torch.arange(k.shape[2])
    seen = (n >= keys.low[..., None]) & (n < keys.high[..., None])
    options = {name: value.double() if isinstance(value, torch.Tensor) else value for name, value in options.items()}
    return softmax.attention(q.double(), k.double(), v.double(), visible=dense(seen[:, None]), **options)


def error(found, expected):
    """Largest over heads of |found - expected| / |expected|."""
    difference = (found.double() - expected).flatten(2).norm(dim=2)
    return float((difference / expected.flatten(2).norm(dim=2).clamp_min(1e-30)).max())


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_equals_the_reference(shape, dtype):
    q, k, v = made(shape, dtype)
    keys = Keys.causal(shape[0], shape[3], shape[4])
    scale = shape[5] ** -0.5
    expected = reference(q, k, v, keys, scale=scale)
    for threads in (1, 2, 3):
        assert error(decode(q, k, v, keys, scale=scale, threads=threads), expected) < FLOAT32


def test_sharp_logits_are_as_accurate_as_sums_in_sixteen_lanes():
    """Logits up to 15, where rounding of the scores decides: 40 products in 16 lanes pass through 3 + 4 roundings.

    Their absolute values add up to 0.5 x 40 x 2 / pi = 13, so a score is off by sqrt(7) x 13 x 2^-24 = 2e-6, and a weight
    by as much of itself; mean over draws of the worst of 32 heads.
    """
    errors = []
    for seed in range(8):
        q, k, v = made((1, 32, 1, 1, 300, 40, 72), torch.float32, seed)
        keys = Keys.causal(1, 1, 300)
        errors.append(error(decode(q, k, v, keys, scale=0.5), reference(q, k, v, keys, scale=0.5)))
    assert sum(errors) / len(errors) < 7**0.5 * 13 * 2.0**-24


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_everything_at_once(dtype):
    shape = (2, 6, 2, 3, 200, 40, 72)
    q, k, v = made(shape, dtype)
    keys = Keys.causal(2, 3, 200, window=150)
    options = {"scale": 0.15, "softcap": 2.5, "bias": torch.randn(2, 1, 3, 200), "sinks": torch.randn(6)}
    assert error(decode(q, k, v, keys, **options), reference(q, k, v, keys, **options)) < FLOAT32


def test_a_query_that_sees_nothing_gives_zeros():
    q, k, v = made((2, 4, 2, 2, 50, 16, 16), torch.float32)
    keys = Keys(torch.tensor([[0, 50], [7, 7]]), torch.tensor([[50, 50], [7, 9]]))
    out = decode(q, k, v, keys, scale=1.0)
    assert (out[0, :, 1] == 0).all()
    assert (out[1, :, 0] == 0).all()
    assert error(out[:, :, :1][:1], reference(q, k, v, keys, scale=1.0)[:1, :, :1]) < FLOAT32


def test_alibi():
    from manyheads.ops.bias import Alibi, alibi_slopes

    q, k, v = made((1, 6, 2, 2, 90, 16, 16), torch.float32)
    slopes = alibi_slopes(6)
    keys = Keys.causal(1, 2, 90)
    found = decode(q, k, v, keys, scale=0.12, slopes=slopes, positions=torch.tensor([[88, 89]]))
    n = torch.arange(90)
    seen = dense(((n >= keys.low[..., None]) & (n < keys.high[..., None]))[:, None])
    expected = softmax.attention(q.double(), k.double(), v.double(), scale=0.12, visible=seen, bias=Alibi(slopes))
    assert error(found, expected) < FLOAT32


@pytest.mark.parametrize("stored", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("strided", [False, True])
def test_int8_with_scales(stored, strided):
    q, k, v = made((2, 8, 2, 1, 100, 16, 16), torch.float32)
    scales = [(x.abs().amax(-1) / 127).to(stored) for x in (k, v)]
    if strided:
        scales = [x.mT.contiguous().mT for x in scales]
    k8, v8 = ((x / s[..., None]).round().to(torch.int8) for x, s in zip((k, v), scales, strict=True))
    keys = Keys.causal(2, 1, 100)
    found = decode(q, k8, v8, keys, scale=0.1, k_scale=scales[0], v_scale=scales[1])
    widened = [x.double() * s[..., None].double() for x, s in ((k8, scales[0]), (v8, scales[1]))]
    assert error(found, reference(q, *widened, keys, scale=0.1)) < FLOAT32


@pytest.mark.parametrize("pattern", ["bksd", "bskd", "sliced", "expanded"])
def test_strides(pattern):
    shape = (2, 6, 3, 1, 70, 16, 16)
    q, k, v = made(shape, torch.float32)
    keys = Keys.causal(2, 1, 70)
    if pattern == "bskd":
        k, v = (x.transpose(1, 2).contiguous().transpose(1, 2) for x in (k, v))
    elif pattern == "sliced":
        k, v = (torch.cat([x, x], 3)[..., :16] for x in (k, v))
    elif pattern == "expanded":
        k, v = (x[:1].expand(2, -1, -1, -1) for x in (k, v))
    assert error(decode(q, k, v, keys, scale=0.12), reference(q, k, v, keys, scale=0.12)) < FLOAT32


def test_nan_and_infinity_propagate_as_in_the_reference():
    q, k, v = made((1, 4, 2, 1, 80, 16, 16), torch.float32)
    keys = Keys.causal(1, 1, 80)
    for target, value in ((k, float("nan")), (v, float("nan")), (v, float("inf"))):
        broken = target.clone()
        broken[0, 1, 33, 5] = value
        pair = (broken, v) if target is k else (k, broken)
        found = decode(q, *pair, keys, scale=0.12)
        expected = reference(q, *pair, keys, scale=0.12)
        assert torch.equal(torch.isnan(found), torch.isnan(expected))
        assert torch.equal(torch.isinf(found), torch.isinf(expected))
        finite = torch.isfinite(expected)
        assert torch.allclose(found.double()[finite], expected[finite], atol=1e-5)


def test_a_row_of_nothing_but_nan_is_nan():
    q, k, v = made((1, 4, 2, 1, 80, 16, 16), torch.float32)
    k[0, 1, 3] = float("nan")
    keys = Keys(torch.tensor([[3]]), torch.tensor([[4]]))
    found = decode(q, k, v, keys, scale=0.1)
    assert torch.isnan(found[:, 2:]).all()
    assert torch.isfinite(found[:, :2]).all()


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda q, k, v: (q.double(), k, v), "queries must be"),
        (lambda q, k, v: (q, k.double(), v.double()), "keys and values must"),
        (lambda q, k, v: (q, k.half(), v), "keys and values must"),
        (lambda q, k, v: (q.expand(-1, -1, 17, -1), k, v), "1 to 16 new queries"),
        (lambda q, k, v: (q, k.mT.contiguous().mT, v), "side by side"),
        (lambda q, k, v: (q.requires_grad_(), k, v), "no backward pass"),
        (lambda q, k, v: (q, k[:, :, :0], v[:, :, :0]), "nothing to read"),
        (lambda q, k, v: (q[..., :7], k[..., :7].bfloat16(), v.bfloat16()), "even size"),
    ],
)
def test_what_is_not_supported_has_a_reason(change, reason):
    q, k, v = change(*made((1, 4, 2, 1, 20, 16, 16), torch.float32))
    assert reason in supports(q, k, v).reason
    with pytest.raises(SpecError, match=reason):
        decode(q, k, v, Keys.causal(1, 1, k.shape[2]), scale=1.0)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"bias": torch.zeros(3, 1, 1, 20)}, "does not fit"),
        ({"bias": torch.zeros(1, 4, 1, 1)}, "bias (1, 4, 1, 1) does not fit"),
        ({"sinks": torch.zeros(2)}, "one floating logit a query head, (4,)"),
        ({"slopes": torch.zeros(5)}, "one floating number a query head, (4,)"),
        ({"slopes": torch.zeros(4)}, "slopes need the positions"),
        ({"slopes": torch.zeros(4), "positions": torch.tensor([19.0])}, "positions must be integers"),
        ({"slopes": torch.zeros(4), "positions": torch.arange(2)}, "(1,) or (1, 1)"),
        ({"keys": Keys(torch.zeros(1, 1), torch.full((1, 1), 20.0))}, "low and high must be int64"),
        ({"keys": Keys.causal(2, 1, 20)}, "low must be (1, 1), found (2, 1)"),
        ({"int8": True}, "needs k_scale and v_scale"),
        (
            {"int8": True, "k_scale": torch.ones(1, 2, 20), "v_scale": torch.ones(1, 2, 19)},
            "v_scale must be (1, 2, 20)",
        ),
    ],
)
def test_what_would_be_read_past_its_end_is_refused(options, reason):
    q, k, v = made((1, 4, 2, 1, 20, 16, 16), torch.float32)
    options = dict(options)
    if options.pop("int8", False):
        k, v = k.to(torch.int8), v.to(torch.int8)
    with pytest.raises(SpecError) as caught:
        decode(q, k, v, options.pop("keys", Keys.causal(1, 1, 20)), scale=1.0, **options)
    assert reason in str(caught.value)


def test_the_kernel_refuses_what_every_form_refuses():
    """None alone switches something off."""
    q, k, v = made((1, 4, 2, 1, 20, 16, 16), torch.float32)
    keys, nan, inf = Keys.causal(1, 1, 20), float("nan"), float("inf")
    for value in (0.0, -2.0, nan, inf):
        with pytest.raises(SpecError, match="softcap must be a finite number above 0; None for no cap"):
            decode(q, k, v, keys, scale=0.1, softcap=value)
        with pytest.raises(SpecError, match="scale must be a finite number above 0"):
            decode(q, k, v, keys, scale=value)
    for name, value, words in (
        ("sinks", torch.tensor([0.0, nan, 0.0, 0.0]), "sinks must be finite"),
        ("slopes", torch.tensor([0.5, -0.5, 0.5, 0.5]), "slopes must be finite and 0 or more"),
        ("bias", torch.full((20,), inf), "found inf in 20 of 20"),
    ):
        with pytest.raises(SpecError, match=words):
            decode(q, k, v, keys, scale=0.1, positions=torch.tensor([19]), **{name: value})


def test_what_a_large_bias_holds_shows():
    q, k, v = made((1, 4, 2, 1, 2000, 16, 16), torch.float32)
    for value in (float("nan"), float("inf"), float("-inf")):
        bias = torch.zeros(1, 4, 1, 2000)
        bias[0, 1] = value
        out = decode(q, k, v, Keys.causal(1, 1, 2000), scale=0.1, bias=bias)
        assert out[:, [0, 2, 3]].isfinite().all()
        assert (out[:, 1] == 0).all() if value == -float("inf") else out[:, 1].isnan().all()


def test_a_bias_that_could_be_sequences_or_heads_is_refused():
    q, k, v = made((2, 2, 2, 1, 20, 16, 16), torch.float32)
    with pytest.raises(SpecError, match=r"bias \(2, 1, 20\) can be read two ways"):
        decode(q, k, v, Keys.causal(2, 1, 20), scale=0.1, bias=torch.zeros(2, 1, 20))


@pytest.mark.parametrize("window", [0, -1, 2.0])
def test_a_window_that_is_none(window):
    with pytest.raises(SpecError, match="window must"):
        Keys.causal(1, 1, 20, window=window)


def test_bounds_past_the_end_stop_there():
    q, k, v = made((1, 4, 2, 1, 50, 16, 16), torch.float32)
    wide = Keys(torch.tensor([[-7]]), torch.tensor([[10_000]]))
    assert torch.equal(decode(q, k, v, wide, scale=0.1), decode(q, k, v, Keys.causal(1, 1, 50), scale=0.1))


def test_shapes_that_do_not_fit_have_a_reason():
    q, k, v = made((1, 4, 2, 1, 20, 16, 16), torch.float32)
    for change in ((q, k[:, :, :9], v), (q[..., :8], k, v), (q[0], k, v), (q, k.expand(2, -1, -1, -1), v)):
        assert "shapes that do not fit" in supports(*change).reason
    assert "3 query heads are not a multiple of 2" in supports(q[:, :3], k, v).reason


def test_scratch_arrays_live_as_long_as_they_are_used():
    """Their addresses do not keep them alive: once they were freed, and the int8 path's temporaries were put there."""
    q, k, v = made((1, 91, 1, 1, 339, 16, 16), torch.float32)
    scales = [x.abs().amax(-1) / 127 for x in (k, v)]
    k8, v8 = ((x / s[..., None]).round().to(torch.int8) for x, s in zip((k, v), scales, strict=True))
    found = []
    for size in range(30):
        _between = torch.randn(1000 + 777 * size)  # moves what is allocated next
        found.append(
            decode(q, k8, v8, Keys.causal(1, 1, 339), scale=0.1, k_scale=scales[0], v_scale=scales[1], threads=1)
        )
    assert all(torch.equal(each, found[0]) for each in found)
