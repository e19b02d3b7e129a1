"""Caches: going on from one is the same as starting over, for every scheme, mask and kind, however the tokens come."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import pairwise

import pytest

torch = pytest.importorskip("torch")

from manyheads.cost import layer as cost  # noqa: E402
from manyheads.cost.dtypes import dtype as storage  # noqa: E402
from manyheads.errors import SpecError  # noqa: E402
from manyheads.layer.caches import (  # noqa: E402
    GrowingCache,
    QuantisedCache,
    StateCache,
    StaticCache,
    WindowCache,
    cache_for,
)
from manyheads.ops import masks  # noqa: E402
from manyheads.spec import AttentionSpec, Borrowed, Cross, State  # noqa: E402
from support.attention_layers import CACHED, SPECS, cached, kinds, layer, table_for, tokens  # noqa: E402

TOLERANCE = {"rtol": 1e-12, "atol": 1e-12}
SELF = [name for name in CACHED if not isinstance(SPECS[name].source, Cross)]
PAIRS = [(name, kind) for name in SELF for kind in kinds(SPECS[name])]


def chunkings(total: int, seed: str) -> list[list[int]]:
    """One at a time, all at once, and three at random."""
    draw, found = random.Random(seed), [[1] * total, [total]]
    for _ in range(3):
        sizes: list[int] = []
        while sum(sizes) < total:
            sizes.append(draw.randint(1, min(7, total - sum(sizes))))
        found.append(sizes)
    return found


@pytest.mark.parametrize(("name", "kind"), PAIRS)
def test_in_any_pieces_it_is_the_whole(name: str, kind: str) -> None:
    """Cases O12, O14, O58, O59: prompts longer than a window, chunks of any size, single steps."""
    made, x = layer(name), tokens(2, 13)
    more = table_for(made.spec)
    with torch.no_grad():
        whole = made(x, **more)
        for sizes in chunkings(13, name + kind):
            cache = cached(kind, made.spec, 2)
            y = torch.cat([made(part, cache=cache, **more) for part in x.split(sizes, 1)], 1)
            torch.testing.assert_close(y, whole, **TOLERANCE, msg=lambda text, sizes=sizes: f"{sizes}: {text}")
            assert cache.length == 13


@pytest.mark.parametrize("said", ["always", "at first"])
@pytest.mark.parametrize(("name", "kind"), PAIRS)
def test_left_padded_it_is_each_sequence_alone(name: str, kind: str, said: str) -> None:
    """Positions are given with every call, or with the first alone: then the cache goes on counting."""
    made, x = layer(name), tokens(2, 13)
    more = table_for(made.spec)
    keep = torch.arange(13)[None] >= torch.tensor([[0], [4]])
    positions = (torch.arange(13)[None] - torch.tensor([[0], [4]])).clamp(min=0)
    with torch.no_grad():
        alone = [made(x[:1], **more), made(x[1:, 4:], **more)]
        for sizes in chunkings(13, name + kind)[1:]:
            cache, done, parts = cached(kind, made.spec, 2), 0, []
            for size in sizes if said == "always" else [6, *[1] * 7]:
                here = slice(done, done + size)
                where = positions[:, here] if said == "always" or not done else None
                seen = masks.padding(keep[:, : done + size])
                parts.append(made(x[:, here], cache=cache, visible=seen, positions=where, **more))
                done += size
            y = torch.cat(parts, 1)
            torch.testing.assert_close(y[:1], alone[0], **TOLERANCE)
            torch.testing.assert_close(y[1:, 4:], alone[1], **TOLERANCE)


def ragged(seed: str, *, right: bool) -> list[torch.Tensor]:
    """Which of the tokens of each call are some, (3, t) booleans: sequences of their own lengths, each call padded on the
    right to the longest; or holes anywhere, sequences that say nothing at all among them."""
    draw = random.Random(seed)
    sizes = [7, 1, 1, 4, 1, 6, 1, 1, 1]
    if not right:
        return [torch.tensor([[draw.random() < 0.6 for _ in range(size)] for _ in range(3)]) for size in sizes]
    lengths = [[draw.randint(0, size) for _ in range(2)] + [size] for size in sizes]
    return [torch.arange(size)[None] < torch.tensor(each)[:, None] for size, each in zip(sizes, lengths, strict=True)]


@pytest.mark.parametrize("right", [True, False], ids=["right-padded", "holes"])
@pytest.mark.parametrize(("name", "kind"), PAIRS)
def test_padding_anywhere_is_each_sequence_alone(name: str, kind: str, right: bool) -> None:
    """Tokens stand where their own sequence puts them, and a window forgets by that, not by how many columns have come.

    Padding stands anywhere: at its column, or where a running count of tokens leaves it, on the place of the last one.
    """
    made = layer(name)
    more, calls = table_for(made.spec), ragged(name + kind, right=right)
    x, keep = tokens(3, sum(call.shape[1] for call in calls)), torch.cat(calls, 1)
    counted = (keep.cumsum(1) - 1).clamp(min=0)
    elsewhere = torch.where(keep, counted, torch.arange(keep.shape[1]))
    with torch.no_grad():
        alone = [made(x[row : row + 1, keep[row]], **more) for row in range(3)]
        for places in (counted, elsewhere):
            cache, done, parts = cached(kind, made.spec, 3, capacity=keep.shape[1]), 0, []
            for call in calls:
                here, done = slice(done, done + call.shape[1]), done + call.shape[1]
                parts.append(made(x[:, here], cache=cache, visible=masks.padding(keep[:, :done]),
                                  positions=places[:, here], **more))  # fmt: skip
            y = torch.cat(parts, 1)
            for row in range(3):
                torch.testing.assert_close(y[row : row + 1, keep[row]], alone[row], **TOLERANCE)


@pytest.mark.parametrize(("name", "kind"), [pair for pair in PAIRS if not isinstance(SPECS[pair[0]].kv, State)])
def test_masks_and_biases_of_the_caller_count_tokens(name: str, kind: str) -> None:
    """Their key axis is all tokens so far, also where a ring holds fewer or a static cache has more room."""
    made, x = layer(name), tokens(2, 13)
    more, draw = table_for(made.spec), torch.Generator().manual_seed(7)
    seen = torch.rand(2, 13, 13, generator=draw) < 0.8
    bias = torch.randn(2, 6, 13, 13, dtype=torch.float64, generator=draw)[:, : made.spec.num_heads]
    bias = bias if bias.shape[1] == made.spec.num_heads else bias[:, :1]
    with torch.no_grad():
        whole = made(x, visible=seen, bias=bias, **more)
        for sizes in chunkings(13, name + kind):
            cache, done, parts = cached(kind, made.spec, 2), 0, []
            for size in sizes:
                rows, columns = slice(done, done + size), slice(0, done + size)
                parts.append(made(x[:, rows], cache=cache, visible=seen[:, rows, columns],
                                  bias=bias[:, :, rows, columns], **more))  # fmt: skip
                done += size
            torch.testing.assert_close(torch.cat(parts, 1), whole, **TOLERANCE)


@pytest.mark.parametrize("kind", ["growing", "int8"])
@pytest.mark.parametrize("name", ["cross", "cross_same_width"])
def test_a_memory_is_projected_once(name: str, kind: str) -> None:
    made, x = layer(name), tokens(2, 6)
    memory = tokens(2, 7, made.spec.source.d_memory, seed=5)
    cache = cached(kind, made.spec, 2)
    with torch.no_grad():
        whole = made(x, memory)
        parts = [made(x[:, :2], memory, cache=cache)]
        held = cache.resident_bytes
        parts += [made(x[:, 2:5], cache=cache), made(x[:, 5:], memory, cache=cache)]
    assert cache.length == 7
    assert cache.resident_bytes == held
    tolerance = TOLERANCE if kind == "growing" else {"rtol": 0.05, "atol": 0.05}
    torch.testing.assert_close(torch.cat(parts, 1), whole, **tolerance)


@pytest.mark.parametrize("padded", [5, 9])
def test_padding_a_memory_changes_nothing(padded: int) -> None:
    """Case O45: an encoder's 3 tokens, padded to 5 and to 9."""
    made, x, memory = layer("cross"), tokens(2, 4), tokens(2, 3, 13, seed=5)
    longer = torch.cat((memory, tokens(2, padded - 3, 13, seed=6)), 1)
    keep = torch.arange(padded).expand(2, -1) < 3
    torch.testing.assert_close(made(x, longer, visible=masks.padding(keep)), made(x, memory), **TOLERANCE)


@pytest.mark.parametrize(("name", "kind"), PAIRS)
def test_rows_are_swapped_dropped_and_repeated(name: str, kind: str) -> None:
    """Case O46."""
    made, x = layer(name), tokens(3, 9)
    more = table_for(made.spec)
    with torch.no_grad():
        for index in ([2, 1, 0], [1], [0, 0, 2, 1, 1]):
            cache = cached(kind, made.spec, 3)
            made(x[:, :6], cache=cache, positions=torch.arange(6).expand(3, -1) if len(index) == 3 else None, **more)
            cache.reorder(torch.tensor(index))
            assert cache.batch == len(index)
            torch.testing.assert_close(
                made(x[index, 6:], cache=cache, **more), made(x[index], **more)[:, 6:], **TOLERANCE
            )


@pytest.mark.parametrize(("name", "kind"), PAIRS)
def test_rows_are_repeated_and_selected(name: str, kind: str) -> None:
    made, x = layer(name), tokens(3, 9)
    more = table_for(made.spec)
    with torch.no_grad():
        cache = cached(kind, made.spec, 3)
        made(x[:, :6], cache=cache, **more)
        cache.repeat(2)
        cache.select(torch.tensor([True, False, False, True, True, False]))
        cache.select(torch.tensor([2, 0]))
        y = made(x[[2, 0], 6:], cache=cache, **more)
        torch.testing.assert_close(y, made(x[[2, 0]], **more)[:, 6:], **TOLERANCE)
    with pytest.raises(SpecError, match=r"a boolean for each of 2 rows, found \(3,\)"):
        cache.select(torch.tensor([True, False, True]))
    with pytest.raises(SpecError, match="repeat takes an integer of 0 or more, found -1"):
        cache.repeat(-1)


def test_a_cross_cache_follows_its_beams() -> None:
    """Case O46: the memory's keys are swapped with the rest, and dropped with it."""
    made, x, memory = layer("cross"), tokens(3, 4), tokens(3, 7, 13, seed=5)
    cache = cached("growing", made.spec, 3)
    with torch.no_grad():
        made(x, memory, cache=cache)
        for index in ([1, 0, 2], [2, 0]):
            before = memory
            memory = before[index]
            cache.reorder(torch.tensor(index))
            torch.testing.assert_close(made(x[: len(index)], cache=cache), made(x[: len(index)], memory), **TOLERANCE)


@pytest.mark.parametrize(
    ("name", "kind", "to"),
    [
        (name, kind, to)
        for name, kind in PAIRS
        for to in (5, -4, 0, -9, 9)
        if kind != "rolling" and (to not in (5, -4) or not isinstance(SPECS[name].kv, State))
    ],
)
def test_tokens_are_taken_back(name: str, kind: str, to: int) -> None:
    made, x = layer(name), tokens(2, 12)
    more, kept = table_for(made.spec), to if to >= 0 else 9 + to
    positions = torch.arange(12).expand(2, -1) if to == 5 else None
    with torch.no_grad():
        cache = cached(kind, made.spec, 2)
        made(x[:, :9] + 1 if not kept else x[:, :9], cache=cache,
             positions=None if positions is None else positions[:, :9], **more)  # fmt: skip
        cache.crop(to)
        assert cache.length == kept
        y = made(x[:, kept:], cache=cache, **more)
    torch.testing.assert_close(y, made(x, **more)[:, kept:], **TOLERANCE)


@pytest.mark.parametrize(("first", "to"), [(3, 1), (4, 2), (9, -1), (9, 8), (9, 0)])
@pytest.mark.parametrize("name", ["window", "chunk"])
def test_a_ring_gives_back_what_it_still_has(name: str, first: int, to: int) -> None:
    made, x = layer(name), tokens(2, 14)
    kept = to if to >= 0 else first + to
    with torch.no_grad():
        for size in (1, 5):
            cache = cached("rolling", made.spec, 2)
            made(x[:, :first], cache=cache)
            cache.crop(to)
            parts = [made(part, cache=cache) for part in x[:, kept:].split(size, 1)]
            torch.testing.assert_close(torch.cat(parts, 1), made(x)[:, kept:], **TOLERANCE)
            assert cache.positions().tolist() == [[10, 11, 12, 13]]


@pytest.mark.parametrize("name", ["window", "chunk"])
def test_a_ring_of_padded_sequences_gives_back_what_it_still_has(name: str) -> None:
    """Three sequences that start at different columns, one of them padded on the right: back by one, and on."""
    made, x = layer(name), tokens(3, 14)
    keep = torch.ones(3, 14, dtype=torch.bool)
    keep[1, :4] = keep[2, 2:7] = False
    places = (keep.cumsum(1) - 1).clamp(min=0)
    with torch.no_grad():
        alone = [made(x[row : row + 1, keep[row]]) for row in range(3)]
        for size in (1, 3):
            cache, done = cached("rolling", made.spec, 3), 0
            for count in (9, 1, 1):
                made(x[:, done : done + count], cache=cache, visible=masks.padding(keep[:, : done + count]),
                     positions=places[:, done : done + count])  # fmt: skip
                done += count
            cache.crop(-1)
            parts = []
            for at in range(10, 14, size):
                here = slice(at, min(at + size, 14))
                parts.append(made(x[:, here], cache=cache, visible=masks.padding(keep[:, : here.stop])))
            for row, y in enumerate(torch.cat(parts, 1)):
                torch.testing.assert_close(y, alone[row][0, -4:], **TOLERANCE)
            assert cache.held == 4
            assert cache.positions()[:, -1].tolist() == [13, 9, 8]


def test_a_ring_that_is_not_told_of_padding_refuses_what_it_could_not_answer() -> None:
    """Right padding said by a mask of rows and columns, or not at all: whether what is hidden now is a token is not known."""
    made, x = layer("window"), tokens(2, 8)
    keep = torch.tensor([[True] * 7, [True] + [False] * 6])
    for seen, later in (
        ({"visible": keep[:, None].expand(-1, 7, -1)}, {"visible": torch.cat((keep, keep[:, :1]), 1)[:, None]}),
        ({}, {}),
    ):
        growing, rolling = (cached(kind, made.spec, 2) for kind in ("growing", "rolling"))
        for cache in (growing, rolling):
            made(x[:, :7], cache=cache, **seen)
        made(x[:, 7:], cache=growing, positions=torch.tensor([[7], [1]]), **later)
        with pytest.raises(SpecError, match=r"of 4 has dropped what lies up to position 3 of sequence 1, and a query at 1 would "
                           "see some of it; valid: padding said by masks.padding from the first call on, or a grow"):  # fmt: skip
            made(x[:, 7:], cache=rolling, positions=torch.tensor([[7], [1]]), **later)
        assert rolling.length == 7


def test_what_is_gone_cannot_be_given_back() -> None:
    made = layer("window")
    cache = cached("rolling", made.spec, 2)
    made(tokens(2, 9), cache=cache)
    with pytest.raises(
        SpecError, match=r"holds tokens 5 to 8: back at 7 the next query would see token 4, which is gone"
    ):
        cache.crop(7)
    cache.crop(8)
    assert cache.held == 3
    with pytest.raises(SpecError, match=r"crop must lie in \[-8, 8\], as 8 tokens are held; found 9"):
        cache.crop(9)
    made = layer("linear")
    state = cached("growing", made.spec, 2)
    made(tokens(2, 9), cache=state)
    with pytest.raises(SpecError, match="a running state of 9 tokens cannot be taken back to 4: crop to 9 or 0"):
        state.crop(4)


@pytest.mark.parametrize(("name", "kind"), [("mha", "growing"), ("mha", "static"), ("mha", "int8"), ("mla", "growing"),
                                           ("window", "rolling"), ("linear", "growing")])  # fmt: skip
def test_no_more_is_taken_back_than_was_seen(name: str, kind: str) -> None:
    made, cache = layer(name), cached(kind, SPECS[name], 2)
    made(tokens(2, 3), cache=cache, positions=torch.arange(3))
    for wrong in (-5, -4, 4):
        with pytest.raises(SpecError, match=rf"crop must lie in \[-3, 3\], as 3 tokens are held; found {wrong}"):
            cache.crop(wrong)
    assert cache.length == 3
    cache.crop(-3)
    assert cache.length == 0


@pytest.mark.parametrize(("name", "kind"), PAIRS)
def test_reset_is_empty_again(name: str, kind: str) -> None:
    made, x = layer(name), tokens(2, 9)
    more = table_for(made.spec)
    with torch.no_grad():
        cache = cached(kind, made.spec, 2)
        made(x + 1, cache=cache, positions=torch.arange(9) + 3, **more)
        cache.reset()
        assert cache.length == 0
        torch.testing.assert_close(made(x, cache=cache, **more), made(x, **more), **TOLERANCE)


@pytest.mark.parametrize(("name", "kind"), PAIRS)
def test_gradients_flow_through_a_cache(name: str, kind: str) -> None:
    """In pieces, the gradients are those of the whole: nothing that was written is lost or changed in place."""
    made, found = layer(name), []
    more = table_for(made.spec)
    for sizes in ([9], [4, 1, 1, 3]):
        x = tokens(2, 9).requires_grad_()
        made.zero_grad()
        cache = cached(kind, made.spec, 2) if len(sizes) > 1 else None
        torch.cat([made(part, cache=cache, **more) for part in x.split(sizes, 1)], 1).square().sum().backward()
        found.append([x.grad, *(parameter.grad.clone() for parameter in made.parameters())])
    torch.testing.assert_close(*found, rtol=1e-9, atol=1e-9)


DTYPES = {"fp64": torch.float64, "fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


@pytest.mark.usefixtures("no_kernels")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("name", "kind"), [*PAIRS, ("cross", "growing")])
def test_bytes_are_the_cost_models(name: str, kind: str, dtype: str) -> None:
    made, stored = layer(name, dtype=DTYPES[dtype]), storage(dtype)
    spec = made.spec
    cache = cached(kind, spec, 3, capacity=23, dtype=DTYPES[dtype])
    for count in (1, 5, 11):
        x = tokens(3, count, dtype=DTYPES[dtype])
        memory = (tokens(3, 7, 13, dtype=DTYPES[dtype]),) if name == "cross" else ()
        with torch.no_grad():
            made(x, *memory, cache=cache, **table_for(spec, DTYPES[dtype]))
        if isinstance(spec.kv, State):
            elements = cost.state_elements(spec) + cost.conv_elements(spec)
        elif kind == "static":
            elements = 23 * cost.cache_elements(spec)
        elif kind == "rolling" or name == "cross":
            elements = cost.tokens_held(spec, cache.length, 7) * cost.cache_elements(spec)
        else:
            elements = cache.length * cost.cache_elements(spec)
        assert cache.resident_bytes == stored.bytes(3 * elements)


@pytest.mark.parametrize("name", ["mha", "window", "mla", "linear_gated_delta"])
def test_bytes_are_those_of_the_tensors(name: str) -> None:
    """Not of a formula alone: what is full, or of fixed size, holds exactly as much; what grows has room for 64 tokens."""
    spec = SPECS[name]
    for kind in kinds(spec):
        made, cache = layer(name), cached(kind, spec, 3, capacity=11)
        with torch.no_grad():
            made(tokens(3, 11), cache=cache)
        held = list(cache.saved()[1].values())
        assert cache.resident_bytes == sum(tensor.nbytes for tensor in held)
        storages = {x.untyped_storage().data_ptr(): x.untyped_storage().nbytes() for x in held}
        grows = kind in ("growing", "rolling") and not isinstance(spec.kv, State)
        most = 3 * (11 + 64) * cost.cache_elements(spec) * 8 if grows else cache.resident_bytes
        assert cache.resident_bytes <= sum(storages.values()) <= most


@pytest.mark.usefixtures("no_kernels")
def test_eight_bits_of_heads_of_32_take_what_q8_0_takes() -> None:
    """32 numbers and a 16-bit scale, as a block of ggml's q8_0 (case O78: 34 bytes for 32)."""
    spec = AttentionSpec.gqa(96, 6, 2, head_dim=32)
    cache = cached("int8", spec, 3, dtype=torch.float32)
    with torch.no_grad():
        layer(spec, dtype=torch.float32)(tokens(3, 5, 96, dtype=torch.float32), cache=cache)
    assert cache.resident_bytes == 3 * 5 * storage("q8_0").bytes(cost.cache_elements(spec))
    assert cache.resident_bytes == sum(tensor.nbytes for tensor in cache.saved()[1].values())


@pytest.mark.parametrize("name", ["gqa_partial_rope", "window", "chunk", "sinks", "mqa_alibi", "mla", "mla_no_rope"])
def test_eight_bits_are_close_and_the_same_in_any_pieces(name: str) -> None:
    made, x = layer(name), tokens(2, 13)
    with torch.no_grad():
        exact, found = made(x), []
        for sizes in chunkings(13, name):
            cache = cached("int8", made.spec, 2)
            found.append(torch.cat([made(part, cache=cache) for part in x.split(sizes, 1)], 1))
    for y in found:
        torch.testing.assert_close(y, found[0], **TOLERANCE)
    assert 0 < (found[0] - exact).abs().max() < 0.02 * exact.abs().max()


def test_eight_bits_are_those_of_a_transformers_layer() -> None:
    """The same keys, one element of them 30 times as large as the others: the same numbers, and a third of the plain error."""
    pytest.importorskip("transformers")
    from manyheads.layer.caches.storage import quantised
    from manyheads.models.caches.layers import FullLayer
    from manyheads.ops.deferred import materialized

    spec = AttentionSpec.gqa(64, 4, 2, head_dim=16)
    keys, values = torch.randn(2, 2, 2, 50, 16, generator=torch.Generator().manual_seed(3)).unbind(0)
    keys[..., 5] += 30
    ours = cache_for(spec, batch=2, kind="int8").update(keys, values)
    theirs = FullLayer(stored=torch.int8).update(keys, values)
    for x, y in zip((ours.keys, ours.values), theirs, strict=True):
        assert torch.equal(materialized(x), materialized(y))
    numbers, scales = quantised(keys)
    plain = numbers * scales.float()[..., None]
    assert (materialized(ours.keys) - keys).norm() < (plain - keys).norm() / 3


def test_eight_bits_round_to_half_a_step() -> None:
    """|x - s n| <= s/2 with s = max|x|/127, up to the rounding of s to 16 bits; zeros stay zeros."""
    from manyheads.layer.caches.storage import quantised

    x = tokens(3, 50, 7) * torch.logspace(-4, 4, 50, dtype=torch.float64)[None, :, None]
    x[0, 0] = 0
    numbers, scales = quantised(x)
    step = x.abs().amax(-1, keepdim=True) / 127
    assert numbers.dtype == torch.int8
    scales = scales[..., None]
    assert ((numbers.double() * scales.double() - x).abs() <= step * 0.5 * (1 + 2**-9) + 127 * 2**-25).all()
    assert numbers[0, 0].abs().max() == 0


def room(cache: WindowCache | GrowingCache) -> int:
    """Tokens that its buffers are for."""
    return cache._held.buffers._buffers[0].shape[2]


def test_growing_is_in_place() -> None:
    """1,000 single steps copy the cache ten times at most, each copy half as large again as the one before."""
    spec = SPECS["gqa_partial_rope"]
    cache = cached("growing", spec, 1)
    places = []
    with torch.no_grad():
        for _ in range(1000):
            cache.update(torch.zeros(1, 2, 1, 8, dtype=torch.float64), torch.zeros(1, 2, 1, 5, dtype=torch.float64))
            places.append(cache.kept().keys.data_ptr())
    assert sum(a != b for a, b in pairwise(places)) <= 10
    assert room(cache) < 1.5 * 1000 + 1


def test_a_ring_holds_no_more_than_its_window() -> None:
    made = layer("window")
    cache = cached("rolling", made.spec, 2)
    with torch.no_grad():
        made(tokens(2, 1000), cache=cache)
        assert room(cache) <= 4 + 64
        assert cache.held == 4
        assert cache.positions().tolist() == [[996, 997, 998, 999]]
        for _ in range(200):
            made(tokens(2, 1), cache=cache)
    assert room(cache) <= 5 + 64
    assert cache.positions().tolist() == [[1196, 1197, 1198, 1199]]


def test_a_static_cache_says_when_it_is_full() -> None:
    made = layer("mha")
    cache = cached("static", made.spec, 2, capacity=5)
    made(tokens(2, 3), cache=cache)
    with pytest.raises(SpecError, match="of 5 tokens holds 3: 4 more do not fit, 2 would"):
        made(tokens(2, 4), cache=cache)
    assert cache.length == 3


def test_each_spec_gets_the_cache_that_fits_it() -> None:
    fits = {"mha": GrowingCache, "mla": GrowingCache, "linear": StateCache, "cross": GrowingCache}
    for name, kind in fits.items():
        assert type(cache_for(SPECS[name], batch=1)) is kind
    assert type(cache_for(SPECS["mla"], batch=1, kind="static", capacity=3)) is StaticCache
    assert type(cache_for(SPECS["chunk"], batch=1, kind="rolling")) is WindowCache
    assert type(cache_for(SPECS["mha"], batch=1, kind="int8")) is QuantisedCache
    made, cache = layer("mla"), cached("growing", SPECS["mla"], 2)
    made(tokens(2, 3), cache=cache)
    latent, rotary_key = cache.kept().keys, cache.kept().values
    assert (latent.shape, rotary_key.shape) == ((2, 1, 3, 12), (2, 1, 3, 4))
    assert rotary_key.data_ptr() == latent.data_ptr() + 12 * 8  # side by side


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("bidirectional", {}, "sees both ways"),
        ("band", {}, "sees both ways"),
        ("linear_both_ways", {}, "sees both ways"),
        ("mha", {"kind": "rolling"}, "a rolling cache is for windowed and chunked masks"),
        ("mha", {"kind": "square"}, "must be one of growing, static, rolling, int8; found 'square'"),
        ("mha", {"kind": "static"}, "capacity is for static caches and only they need one; found none for a static"),
        ("mha", {"capacity": 4}, "found 4 for a growing cache"),
        ("mha", {"kind": "static", "capacity": 0}, "needs a capacity of 1 token or more, found 0"),
        ("cross", {"kind": "static", "capacity": 4}, "projects its memory once"),
        ("linear", {"kind": "int8"}, "there is no int8 form of it"),
        ("mha", {"batch": -1}, "batch must be an integer of 0 or more, found -1"),
        ("mha", {"dtype": torch.int8}, "dtype must be a floating one"),
    ],
)
def test_caches_that_cannot_be(name: str, options: dict, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        cache_for(SPECS[name], **{"batch": 1, **options})


def test_a_layer_that_borrows_keeps_nothing() -> None:
    with pytest.raises(SpecError, match="reads what layer 3 keeps"):
        cache_for(replace(SPECS["mha_rope"], source=Borrowed(3)), batch=1)


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (lambda: cached("growing", SPECS["mha_rope"], 2), r"the cache of another layer: GrowingCache of mha\(20"),
        (
            lambda: cached("growing", SPECS["window"], 2, dtype=torch.float32),
            r"float32 on cpu does not fit x in torch.float64",
        ),
        (lambda: cached("growing", SPECS["window"], 3), "the cache holds 3 sequences, x has 2"),
        (lambda: cache_for(SPECS["window"], batch=2, dtype=torch.float64, device="meta"), "on meta does not fit"),
        (lambda: {"keys": None}, "as cache_for makes them; found dict"),
        (lambda: cached("growing", SPECS["linear"], 2), "the cache of another layer|cannot use a StateCache"),
    ],
)
def test_a_cache_that_does_not_fit_is_refused(other: object, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        layer("window")(tokens(2, 3), cache=other())


def test_tensors_that_do_not_fit_a_cache_are_refused() -> None:
    cache = cached("growing", SPECS["gqa_partial_rope"], 2)
    keys, values = torch.zeros(2, 2, 3, 8, dtype=torch.float64), torch.zeros(2, 2, 3, 5, dtype=torch.float64)
    with pytest.raises(SpecError, match=r"takes values \(2, 2, 3, 5\), found \(2, 2, 3, 8\)"):
        cache.update(keys, keys)
    with pytest.raises(SpecError, match=r"holds torch\.float64 on cpu; found keys in torch.float32"):
        cache.update(keys.float(), values)
    with pytest.raises(SpecError, match="keeps no keys and values to update"):
        cached("growing", SPECS["linear"], 2).update(keys, values)
    cache.update(keys, values)
    with pytest.raises(SpecError, match=r"reorder index must lie in \[0, 1\], found \[2\]"):
        cache.reorder(torch.tensor([2]))
    with pytest.raises(SpecError, match="reorder needs integers"):
        cache.reorder(torch.tensor([True, False]))


def test_a_wide_state_serves_a_narrow_layer() -> None:
    """float32 states for bfloat16 layers: sums over a long text lose in 16 bits."""
    made = layer("linear", dtype=torch.bfloat16)
    cache = cache_for(made.spec, batch=2, dtype=torch.float32)
    x = tokens(2, 9, dtype=torch.bfloat16)
    with torch.no_grad():
        y = torch.cat([made(part, cache=cache) for part in x.split(1, 1)], 1)
    torch.testing.assert_close(y, made(x), rtol=0.05, atol=0.05)
    assert cache.state.sums.dtype == torch.float32


@pytest.mark.parametrize(("name", "kind"), PAIRS)
def test_rows_that_are_reordered_take_their_positions_along(name: str, kind: str) -> None:
    """A row padded by 4 and one that is not, swapped and repeated: each goes on from where it stood."""
    made, x = layer(name), tokens(2, 12)
    more, index = table_for(made.spec), [1, 0, 1]
    keep = torch.arange(12)[None] >= torch.tensor([[0], [4]])
    positions = (torch.arange(12)[None] - torch.tensor([[0], [4]])).clamp(min=0)
    with torch.no_grad():
        cache = cached(kind, made.spec, 2)
        made(x[:, :8], cache=cache, visible=masks.padding(keep[:, :8]), positions=positions[:, :8], **more)
        cache.reorder(torch.tensor(index))
        y = made(x[index, 8:], cache=cache, visible=masks.padding(keep[index]), **more)
        for row, old in enumerate(index):
            alone = made(x[old : old + 1, 4 * old :], **more)[:, 8 - 4 * old :]
            torch.testing.assert_close(y[row : row + 1], alone, **TOLERANCE)


@pytest.mark.parametrize("name", ["mha_rope", "mqa_alibi", "mla"])
def test_what_was_taken_back_stays_unseen_wherever_one_goes_on(name: str) -> None:
    """Slots beyond a crop still hold numbers: a jump to later positions must not bring them back."""
    made, x, found = layer(name), tokens(2, 9), []
    with torch.no_grad():
        for kind in ("growing", "static"):
            cache = cached(kind, made.spec, 2)
            made(x, cache=cache, positions=torch.arange(9))
            cache.crop(4)
            found.append(made(x[:, 4:7], cache=cache, positions=torch.arange(3) + 100))
    torch.testing.assert_close(found[0], found[1], **TOLERANCE)
