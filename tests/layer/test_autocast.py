"""Under torch.autocast: what enters attention is cast to its type, as torch's own attention casts; caches keep theirs."""

from __future__ import annotations

import copy

import pytest

torch = pytest.importorskip("torch")

from manyheads.errors import SpecError  # noqa: E402
from manyheads.ops import latent, sdpa, softmax, tiled  # noqa: E402
from manyheads.spec import State  # noqa: E402
from support import rounding  # noqa: E402
from support.attention_layers import SPECS, cached, kinds, layer, tokens  # noqa: E402

NARROW = [torch.bfloat16, torch.float16]


def exactly(made: torch.nn.Module, x: torch.Tensor, dtype: torch.dtype) -> rounding.Exact:
    wide = copy.deepcopy(made).double()
    return rounding.evaluated(lambda: wide(x.double()), dtype=dtype)


@pytest.mark.parametrize("dtype", NARROW)
@pytest.mark.parametrize("form", ["expanded", "absorbed"])
@pytest.mark.parametrize("name", ["mla", "mla_no_rope", "mla_query_latent"])
def test_latent_layers(name: str, form: str, dtype: torch.dtype) -> None:
    made, x = layer(name, dtype=torch.float32), tokens(2, 9, dtype=torch.float32)
    exact = exactly(made, x, dtype)
    for backend in ("plain", "tiled", "sdpa"):
        with torch.no_grad(), torch.autocast("cpu", dtype=dtype):
            assert exact.holds(made(x, form=form, backend=backend)), backend


@pytest.mark.parametrize("dtype", NARROW)
@pytest.mark.parametrize("operator", [latent.expanded, latent.absorbed])
def test_the_latent_operators_take_float32(operator: object, dtype: torch.dtype) -> None:
    draw = torch.Generator().manual_seed(3)
    shapes = ((2, 3, 5, 6), (2, 3, 5, 4), (2, 7, 12), (2, 7, 4), (3, 6, 12), (3, 4, 12))
    given = [torch.randn(shape, generator=draw) for shape in shapes]
    exact = rounding.evaluated(lambda: latent.expanded(*(x.double() for x in given), scale=0.3), dtype=dtype)
    for form in (softmax.attention, tiled.attention, sdpa.attention):
        with torch.autocast("cpu", dtype=dtype):
            found = operator(*given, scale=0.3, form=form)
        assert found.dtype == dtype
        assert exact.holds(found)


@pytest.mark.parametrize("name", ["gqa_partial_rope", "window", "chunk", "mqa_alibi", "norm_full_after", "mla", "linear",
                                  "linear_gated_delta"])  # fmt: skip
def test_caches_of_either_type_serve_a_layer(name: str) -> None:
    """In float32 nothing is lost on the way through, in the narrow type no more than a product loses."""
    made, x, dtype = layer(name, dtype=torch.float32), tokens(2, 9, dtype=torch.float32), torch.bfloat16
    exact = exactly(made, x, dtype)
    kept = [torch.float32] if isinstance(SPECS[name].kv, State) else [torch.float32, dtype]
    for kind in kinds(SPECS[name]):
        for cache_dtype in kept:
            cache = cached(kind, made.spec, 2, dtype=cache_dtype)
            with torch.no_grad(), torch.autocast("cpu", dtype=dtype):
                y = torch.cat([made(part, cache=cache) for part in x.split([4, 1, 1, 3], 1)], 1)
            assert exact.holds(y), (kind, cache_dtype)


def test_without_autocast_a_cache_of_another_type_is_refused_as_before() -> None:
    made, cache = layer("mha", dtype=torch.float32), cached("growing", SPECS["mha"], 2, dtype=torch.bfloat16)
    with pytest.raises(SpecError, match=r"does not fit x in torch\.float32"):
        made(tokens(2, 3, dtype=torch.float32), cache=cache)
