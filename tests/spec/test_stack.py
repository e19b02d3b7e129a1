"""Blocks, stacks and models: what fits together, and who may borrow from whom."""

from __future__ import annotations

from dataclasses import replace

import pytest

from manyheads.errors import SpecError
from manyheads.spec import (
    AttentionSpec,
    Bidirectional,
    Block,
    Borrowed,
    Cross,
    Mlp,
    Moe,
    Norm,
    OtherWeight,
    Stack,
    StackSpec,
)
from manyheads.spec.stack import MOST_LAYERS

OWN = AttentionSpec.gqa(64, 8, 2)
BORROWS = replace(OWN, source=Borrowed(0))
CROSS = AttentionSpec.gqa(64, 8, 8, source=Cross(48), mask=Bidirectional())
LATENT = AttentionSpec.mla(64, 8, rank=16, nope_dim=8, rope_dim=4, v_head_dim=8)
PLAIN = Block((OWN,))


def stack(*blocks: Block, role: str = "decoder", **more: object) -> Stack:
    return Stack(role, 64, blocks, **more)  # type: ignore[arg-type]


def refused(make: object, *words: object, **named: object) -> str:
    with pytest.raises(SpecError) as caught:
        make(*words, **named)  # type: ignore[operator]
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_layer_may_borrow_from_an_earlier_one() -> None:
    found = stack(PLAIN, Block((BORROWS,)), PLAIN, Block((replace(OWN, source=Borrowed(2)),)))
    assert found.groups == ((PLAIN, 2), (Block((BORROWS,)), 1), (found.blocks[3], 1))


@pytest.mark.parametrize(
    ("blocks", "parts"),
    [
        ((Block((BORROWS,)),), ["layer 0", "shares", "before"]),
        ((PLAIN, Block((replace(OWN, source=Borrowed(1)),))), ["layer 1", "before"]),
        ((PLAIN, Block((replace(OWN, source=Borrowed(7)),))), ["layer 1", "layer 7"]),
        ((PLAIN, Block((BORROWS,)), Block((replace(OWN, source=Borrowed(1)),))), ["layer 2", "layer 1", "of its own"]),
        ((Block((), Mlp(3)), Block((BORROWS,))), ["layer 1", "layer 0", "of its own"]),
        ((Block((LATENT,)), Block((BORROWS,))), ["layer 1", "layer 0"]),
        ((Block((AttentionSpec.gqa(64, 8, 4),)), Block((BORROWS,))), ["num_kv_heads=2", "num_kv_heads=4"]),
        ((Block((AttentionSpec.mha(32, 2),)),), ["layer 0", "32", "64"]),
        ((PLAIN,) * (MOST_LAYERS + 1), ["layers", "10001", "10000"]),
        ((), ["layers", "0"]),
    ],
)
def test_stacks_that_cannot_be(blocks: tuple[Block, ...], parts: list[str]) -> None:
    message = refused(stack, *blocks)
    for part in parts:
        assert part in message


@pytest.mark.parametrize(
    ("named", "parts"),
    [
        ({"attentions": ()}, ["neither"]),
        ({"attentions": [OWN]}, ["attentions", "tuple"]),
        ({"attentions": (None,)}, ["AttentionSpec", "None"]),
        ({"attentions": (OWN, OWN)}, ["one self-attention"]),
        ({"attentions": (CROSS, OWN)}, ["then"]),
        ({"attentions": (OWN, replace(CROSS, d_model=32))}, ["64", "32"]),
        ({"attentions": (OWN,), "mlp": 4}, ["mlp", "Moe", "4"]),
        ({"attentions": (OWN,), "norm": Norm()}, ["both or neither"]),
        ({"attentions": (OWN,), "norm_places": ("pre_mlp",)}, ["both or neither"]),
        ({"attentions": (OWN,), "norm": Norm(), "norm_places": ("first",)}, ["first", "pre_attention"]),
        ({"attentions": (OWN,), "norm": Norm(), "norm_places": ("pre_mlp", "pre_mlp")}, ["twice"]),
        ({"attentions": (OWN,), "parallel": None}, ["parallel", "None"]),
    ],
)
def test_blocks_that_cannot_be(named: dict[str, object], parts: list[str]) -> None:
    message = refused(Block, **named)
    for part in parts:
        assert part in message


@pytest.mark.parametrize(
    ("named", "parts"),
    [
        ({"experts": 2, "active": 3, "width": 4}, ["3", "2"]),
        ({"experts": 2, "active": 0, "width": 4}, ["active", "0"]),
        ({"experts": 2, "active": 1, "width": 4, "shared_gate": True}, ["shared_width is 0"]),
        ({"experts": 2, "active": 1, "width": 4, "router_bias": "yes"}, ["yes", "buffer"]),
    ],
)
def test_mixtures_that_cannot_be(named: dict[str, object], parts: list[str]) -> None:
    message = refused(Moe, **named)
    for part in parts:
        assert part in message


@pytest.mark.parametrize(
    ("named", "parts"),
    [
        ({"stacks": ()}, ["encoder", "[]"]),
        ({"stacks": [stack(PLAIN)]}, ["stacks", "tuple"]),
        ({"stacks": (stack(PLAIN), stack(PLAIN, role="encoder"))}, ["decoder", "encoder"]),
        ({"stacks": (stack(PLAIN),), "head": "tied"}, ["tied", "0"]),
        ({"stacks": (stack(PLAIN),), "vocab_size": 9, "head": "both"}, ["both", "untied"]),
        ({"stacks": (stack(PLAIN),), "vocab_size": 9, "head_bias": True}, ["head"]),
        ({"stacks": (stack(PLAIN),), "vocab_size": -1}, ["vocab_size", "-1"]),
        ({"stacks": (stack(PLAIN),), "head_softcap": 0.0}, ["head_softcap", "0.0"]),
        ({"stacks": (stack(PLAIN),), "other": (3,)}, ["OtherWeight", "3"]),
        ({"stacks": (stack(PLAIN, role="encoder"), stack(Block((OWN, CROSS))))}, ["layer 0", "48", "64"]),
    ],
)
def test_models_that_cannot_be(named: dict[str, object], parts: list[str]) -> None:
    message = refused(StackSpec, **named)
    for part in parts:
        assert part in message


def test_other_weights_are_named_tuples_of_sizes() -> None:
    assert "character" in refused(OtherWeight, "", (3,))
    assert "tuple" in refused(OtherWeight, "conv", [3])
    assert "conv shape" in refused(OtherWeight, "conv", (3, 0))


def test_a_bias_table_needs_an_attention_layer() -> None:
    assert "32" in refused(stack, Block((), Mlp(3)), relative_buckets=32)


def test_encoder_decoder_and_main() -> None:
    encoder = stack(PLAIN, role="encoder")
    decoder = stack(Block((OWN, replace(CROSS, source=Cross(64)))), PLAIN)
    both = StackSpec((encoder, decoder))
    assert (both.encoder, both.decoder, both.main, both.layers) == (encoder, decoder, decoder, 2)
    alone = StackSpec((encoder,))
    assert (alone.encoder, alone.decoder, alone.main, alone.layers) == (encoder, None, encoder, 1)
    assert decoder.blocks[0].attention == OWN
    assert decoder.blocks[0].cross is not None
    assert decoder.blocks[1].cross is None
    assert StackSpec((stack(Block((CROSS,))),)).main.blocks[0].attention is None
