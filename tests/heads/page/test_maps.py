"""Maps of heads: equal to transformers' own attentions, within what a byte can say, and as small as they promise."""

from __future__ import annotations

import dataclasses

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch

from manyheads.errors import BackendError, ManyheadsError
from manyheads.heads.page.maps import BUDGET_BYTES, MapShape, fit, head_maps, read_byte
from support.tiny_transformers import build, inputs

# A byte says the root of a weight to 1/510, so the weight w to 2 sqrt(w) / 510 + 1 / 510².
WORST = 2 / 510 + 1 / 510**2
FAMILIES = (
    "llama",
    "mistral",
    "gemma2",
    "gpt_oss",
    "gpt2",
    "deepseek_v3",
    "bert",
    "modernbert",
    "t5",
    "whisper",
    "marian",
)


def eager(name: str, batch: dict) -> dict[str, list[torch.Tensor]]:
    """transformers' own attention weights, (h, t, s) for each layer, by stage."""
    with torch.no_grad():
        out = build(name)(**batch, output_attentions=True)
    names = {
        "": "attentions",
        "encoder": "encoder_attentions",
        "decoder": "decoder_attentions",
        "cross": "cross_attentions",
    }
    found = {stage: getattr(out, attribute, None) for stage, attribute in names.items()}
    return {stage: [layer[0] for layer in layers] for stage, layers in found.items() if layers}


@pytest.mark.parametrize("name", FAMILIES)
def test_maps_are_transformers_eager_attentions(name: str) -> None:
    batch = inputs(name, batch=1, tokens=19)
    wanted = eager(name, batch)
    maps = head_maps(build(name), batch, shape=MapShape(rows=64, keys=4, blocks=5))
    assert {layer.stage for layer in maps.layers} == set(wanted)
    assert maps.heads == sum(layer.shape[0] for layers in wanted.values() for layer in layers)
    for layer in maps.layers:
        truth = wanted[layer.stage][layer.layer].double()
        h, t, s = truth.shape
        assert (layer.heads, layer.queries, layer.keys) == (h, t, s)
        rows = truth[:, layer.rows]
        assert (read_byte(layer.first) - rows[..., 0]).abs().max() <= WORST
        rest = rows.clone()
        rest[..., 0] = 0
        named = rest.gather(-1, layer.strongest.long())
        assert (read_byte(layer.weights) - named).abs().max() <= WORST
        best = rest.topk(layer.strongest.shape[-1], -1).values
        torch.testing.assert_close(named, best, atol=1e-5, rtol=0)
        assert_blocks(layer, truth)


def assert_blocks(layer, truth: torch.Tensor) -> None:
    """The grid against means and sums written out, block by block."""
    _, t, s = truth.shape
    for i in range(layer.blocks.shape[1]):
        queries = truth[:, i * layer.block_queries : (i + 1) * layer.block_queries]
        assert (read_byte(layer.first_blocks[:, i]) - queries[..., 0].mean(1)).abs().max() <= WORST
        for j in range(layer.blocks.shape[2]):
            mass = queries[..., max(j * layer.block_keys, 1) : (j + 1) * layer.block_keys].sum(-1).mean(1)
            assert (read_byte(layer.blocks[:, i, j]) - mass).abs().max() <= WORST
    assert layer.blocks.shape[1:] == (-(-t // layer.block_queries), -(-s // layer.block_keys))


def test_long_texts_keep_four_passages_and_tiles_do_not_show(monkeypatch) -> None:
    from manyheads.heads.page import maps as room

    batch = inputs("llama", batch=1, tokens=90)
    shape = MapShape(rows=12, keys=5, blocks=8)
    whole = head_maps(build("llama"), batch, shape=shape)
    assert whole.layers[0].rows.tolist() == [0, 1, 2, 29, 30, 31, 58, 59, 60, 87, 88, 89]
    monkeypatch.setattr(room, "_PAIRS_IN_A_TILE", 1)  # a row at a time
    for mine, theirs in zip(whole.layers, head_maps(build("llama"), batch, shape=shape).layers, strict=True):
        for head in range(mine.heads):
            assert mine.encoded(head) == theirs.encoded(head)


def test_one_head_as_bytes() -> None:
    maps = head_maps(build("llama"), inputs("llama", batch=1, tokens=6), shape=MapShape(rows=8, keys=3, blocks=3))
    layer = maps.layers[1]
    data = layer.encoded(2)
    # 6 rows on the first token, 3 blocks on it, 1 + 2 + 3 blocks, 6 rows of 3 keys in two bytes and as many weights
    assert len(data) == 6 + 3 + 6 + 6 * 3 * 2 + 6 * 3
    assert data[0] == 255  # the first token sees only itself
    assert list(data[:6]) == layer.first[2].tolist()
    assert data[9:15] == bytes(int(layer.blocks[2, i, j]) for i in range(3) for j in range(i + 1))
    keys = [data[15 + 2 * i] + 256 * data[16 + 2 * i] for i in range(18)]
    assert keys == layer.strongest[2].flatten().tolist()
    assert list(data[51:]) == layer.weights[2].flatten().tolist()


@pytest.mark.parametrize("two_sided", [False, True])
@pytest.mark.parametrize("heads", [1, 144, 270, 1_024, 3_000])
def test_what_fits_a_page(heads: int, two_sided: bool) -> None:
    shape = fit(heads, two_sided=two_sided)
    grid = shape.blocks**2 if two_sided else shape.blocks * (shape.blocks + 1) // 2
    each = shape.rows * (1 + 3 * shape.keys) + shape.blocks + grid
    assert each <= BUDGET_BYTES
    assert heads * each * 4 / 3 < 4.3 * 2**20
    assert shape.rows >= 4


def test_more_heads_than_a_page_holds() -> None:
    with pytest.raises(ManyheadsError, match=r"16,128 heads: a page under 5 MiB has room for the maps of 3,001"):
        fit(126 * 128)
    fit(3_001)


def test_a_batch_and_a_family_that_does_not_pass_are_refused() -> None:
    with pytest.raises(ManyheadsError, match=r"input_ids holds 2; valid: a batch of 1"):
        head_maps(build("llama"), inputs("llama", batch=2))
    with pytest.raises(BackendError, match="bloom"):
        head_maps(build("bloom"), inputs("bloom", batch=1))


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({}, "nothing was given; expected input_ids"),
        ({"input_ids": [[1, 2, 3]]}, "input_ids was given; expected input_ids"),
        ({"input_ids": torch.zeros(1, 0, dtype=torch.long)}, "at least one token is needed"),
        (
            {"input_ids": torch.arange(3, 9)[None], "attention_mask": torch.tensor([[0, 0, 1, 1, 1, 1]])},
            "attention_mask: 2 of 6 tokens are padding",
        ),
    ],
)
def test_what_is_no_text_without_padding_is_refused(given, said: str) -> None:
    with pytest.raises(ManyheadsError, match=said):
        head_maps(build("llama"), given)


def test_a_mask_of_ones_and_words_that_are_no_tensors_change_nothing() -> None:
    model, batch = build("llama"), inputs("llama", batch=1)
    more = head_maps(model, batch | {"attention_mask": torch.ones(1, 11), "use_cache": False})
    for one, other in zip(head_maps(model, batch).layers, more.layers, strict=True):
        assert [one.encoded(head) for head in range(one.heads)] == [other.encoded(head) for head in range(one.heads)]


def test_what_a_model_keeps_of_a_long_text_is_fit_for_training() -> None:
    """Frequencies that grow with the text are stored in the model by its own forward."""
    model = build(
        "llama", max_position_embeddings=16, rope_parameters={"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}
    )
    before = model.model.rotary_emb.inv_freq
    head_maps(model, inputs("llama", batch=1, tokens=40))
    assert model.model.rotary_emb.inv_freq is not before
    assert not any(tensor.is_inference() for tensor in (*model.buffers(), *model.parameters()))


def test_looking_leaves_the_model_as_it_was() -> None:
    model, batch = build("llama"), inputs("llama", batch=1)
    model.train()
    head_maps(model, batch)
    assert model.training
    assert model.config._attn_implementation == "eager"
    assert all(parameter.grad is None for parameter in model.parameters())


def test_a_text_of_one_token_has_only_itself() -> None:
    batch = {"input_ids": torch.tensor([[5]])}
    layer = head_maps(build("llama"), batch).layers[0]
    assert (layer.first == 255).all()
    assert (layer.weights == 0).all()


def test_more_tokens_than_sixteen_bits_name(monkeypatch) -> None:
    from manyheads.heads.page import maps as room

    monkeypatch.setattr(room, "MOST_TOKENS", 10)
    with pytest.raises(ManyheadsError, match="11 tokens: maps name keys by 16 bits"):
        head_maps(build("llama"), inputs("llama", batch=1, tokens=11))


def test_memory_does_not_grow_with_the_square_of_the_text() -> None:
    """At four times the tokens no tensor that is made is sixteen times as large: no score matrix (case O18)."""
    from torch.utils._python_dispatch import TorchDispatchMode

    class Largest(TorchDispatchMode):
        elements = 0

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            out = func(*args, **(kwargs or {}))
            if isinstance(out, torch.Tensor):
                self.elements = max(self.elements, out.numel())
            return out

    seen = {}
    for tokens in (2_000, 4_000):
        ids = torch.randint(3, 90, (1, tokens), generator=torch.Generator().manual_seed(0))
        with Largest() as largest:
            head_maps(build("llama", max_position_embeddings=8_192, num_hidden_layers=1), {"input_ids": ids})
        seen[tokens] = largest.elements
    assert seen[2_000] <= 2**22
    assert seen[4_000] <= 2**22  # 6 heads x 4,000² would be 96,000,000


def test_shapes_are_values() -> None:
    assert fit(270) == fit(270)
    assert dataclasses.replace(fit(270), rows=4).rows == 4
