"""Predicates: what they show pair by pair, how they combine, and that a block's answer is never wrong."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from manyheads.ops import masks
from manyheads.ops.predicates import Everything
from manyheads.spec.masks import Band, Bidirectional, Causal, Chunk, Window

SPECS = [Bidirectional(), Causal(), Window(1), Window(3), Window(50), Band(0), Band(2), Chunk(1), Chunk(4)]


@pytest.mark.parametrize("spec", SPECS, ids=str)
@pytest.mark.parametrize("offset", [None, 0, 3, 40])
def test_a_spec_shows_what_it_says_pair_by_pair(spec: Window, offset: int | None) -> None:
    """The spec's own `visible(query, key)` is the definition."""
    first = 9 - 5 if offset is None else offset
    seen = masks.materialise(masks.from_spec(spec), batch=2, heads=3, queries=5, keys=9, offset=offset)
    assert tuple(seen.shape) == (1, 1, 5, 9)
    assert seen[0, 0].tolist() == [[spec.visible(first + i, j) for j in range(9)] for i in range(5)]


def leaves() -> st.SearchStrategy[masks.Visible]:
    small = st.integers(1, 9)
    return st.one_of(
        st.just(masks.everything()), st.just(masks.causal()), small.map(masks.window), small.map(masks.band),
        small.map(masks.chunk), st.just(masks.padding(torch.tensor([[True] * 12 + [False] * 8]))),
    )  # fmt: skip


TREES = st.recursive(
    leaves(),
    lambda inner: st.one_of(
        inner.map(lambda a: ~a),
        st.tuples(inner, inner).map(lambda two: two[0] & two[1]),
        st.tuples(inner, inner).map(lambda two: two[0] | two[1]),
        st.tuples(inner, inner).map(lambda two: masks.per_head(*two)),
    ),
    max_leaves=4,
)


@given(tree=TREES, ends=st.tuples(*[st.integers(0, 19)] * 4))
def test_a_block_is_what_its_pairs_are(tree: masks.Visible, ends: tuple[int, int, int, int]) -> None:
    (i0, i1), (j0, j1) = sorted(ends[:2]), sorted(ends[2:])
    try:
        seen = masks.materialise(tree, batch=1, heads=2, queries=20, keys=20)
    except ValueError:  # one mask a head inside one mask a head need not fit
        return
    block = seen[..., i0 : i1 + 1, j0 : j1 + 1]
    said = tree.block(i0, i1, j0, j1)
    assert said is None or bool(block.all() if said else ~block.any())


@given(a=leaves(), b=leaves())
def test_combinations_are_those_of_logic(a: masks.Visible, b: masks.Visible) -> None:
    size = {"batch": 1, "heads": 1, "queries": 15, "keys": 20}
    x, y = masks.materialise(a, **size), masks.materialise(b, **size)
    assert torch.equal(masks.materialise(a & b, **size), x & y)
    assert torch.equal(masks.materialise(a | b, **size), x | y)
    assert torch.equal(masks.materialise(~a, **size), ~x)
    assert torch.equal(masks.materialise(~(a & b), **size), ~x | ~y)


def test_blocks_of_positions_are_decided() -> None:
    """Where positions alone decide, the answer is not None: otherwise nothing would be skipped."""
    assert masks.causal().block(10, 19, 0, 10) is True
    assert masks.causal().block(10, 19, 20, 29) is False
    assert masks.causal().block(10, 19, 0, 11) is None
    assert masks.window(8).block(100, 109, 0, 92) is False
    assert masks.window(8).block(100, 109, 0, 93) is None
    assert masks.window(20).block(100, 109, 90, 100) is True
    assert masks.chunk(16).block(32, 47, 16, 31) is False
    assert masks.band(4).block(0, 9, 14, 20) is False
    assert (masks.causal() & masks.padding(torch.ones(1, 30, dtype=torch.bool))).block(0, 9, 10, 19) is False
    assert (masks.causal() | masks.band(3)).block(10, 19, 0, 9) is True


def test_everything_is_left_out_of_combinations() -> None:
    assert masks.everything() & masks.causal() == masks.causal()
    assert masks.causal() & masks.everything() == masks.causal()
    assert masks.causal() | masks.everything() == masks.everything()
    assert ~~masks.causal() == masks.causal()
    assert masks.opposite(masks.causal()) == ~masks.causal()
    assert masks.opposite(~masks.causal()) == masks.causal()


def test_lengths_padding_and_dense_depend_on_the_sequence_or_head() -> None:
    size = {"batch": 2, "heads": 3, "queries": 2, "keys": 4}
    assert masks.materialise(masks.lengths(torch.tensor([1, 3])), **size)[:, 0, 0].int().tolist() == [
        [1, 0, 0, 0], [1, 1, 1, 0],
    ]  # fmt: skip
    keep = torch.tensor([[False, True, True, True], [True, True, False, False]])
    shown = masks.materialise(masks.padding(keep) & masks.causal(), **size)
    assert tuple(shown.shape) == (2, 1, 2, 4)
    assert shown[:, 0].int().tolist() == [[[0, 1, 1, 0], [0, 1, 1, 1]], [[1, 1, 0, 0], [1, 1, 0, 0]]]
    heads = masks.per_head(masks.window(1), masks.causal(), masks.window(1))
    assert masks.materialise(heads, **size)[0].sum((-2, -1)).tolist() == [2, 7, 2]


def test_an_offset_of_each_sequence() -> None:
    seen = masks.materialise(masks.causal(), batch=2, heads=1, queries=2, keys=4, offset=torch.tensor([0, 2]))
    assert seen[:, 0].sum(-1).tolist() == [[1, 2], [3, 4]]


def test_dense_counts_rows_from_the_first_query_whatever_the_offset() -> None:
    mask = torch.rand(2, 3, 5) < 0.5
    for offset in (0, 7, torch.tensor([4])):
        seen = masks.materialise(masks.dense(mask), batch=1, heads=2, queries=3, keys=5, offset=offset)
        assert torch.equal(seen[0], mask)


@pytest.mark.parametrize(
    "shape", [(5,), (3, 5), (1, 5), (2, 3, 5), (2, 1, 5), (4, 1, 3, 5), (4, 2, 3, 5), (1, 1, 1, 5)]
)
def test_called_with_positions_and_asked_for_a_tile_are_the_same(shape: tuple[int, ...]) -> None:
    mask = torch.rand(shape) < 0.5
    index = [torch.arange(n).view([-1 if axis == at else 1 for axis in range(4)]) for at, n in enumerate((4, 2, 3, 5))]
    want = mask.expand(4, 2, 3, 5)
    assert torch.equal(masks.dense(mask)(*index).expand(4, 2, 3, 5), want)
    assert torch.equal(
        masks.materialise(masks.dense(mask), batch=4, heads=2, queries=3, keys=5).expand(4, 2, 3, 5), want
    )


def test_placed_keys_stand_where_they_say() -> None:
    order = torch.tensor([[4, 5, 2, 3], [0, 1, -1, -1]])
    seen = masks.materialise(
        masks.placed(masks.window(3), order), batch=2, heads=1, queries=1, keys=4, offset=torch.tensor([5, 1])
    )
    assert seen[:, 0, 0].int().tolist() == [[1, 1, 0, 1], [1, 1, 0, 0]]


def test_what_a_backend_may_know_by_itself() -> None:
    keep = masks.padding(torch.ones(1, 4, dtype=torch.bool))
    assert all(masks.from_spec(spec).structural for spec in SPECS)
    assert ((masks.causal() | masks.band(2)) & ~masks.window(3)).structural
    assert not (masks.causal() & keep).structural
    assert not (~keep).structural
    assert isinstance(masks.everything(), Everything)
