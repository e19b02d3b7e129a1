"""Rotation and windows as transformers applies them: seen at its attention function and in its caches, not in its fields."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

import torch  # noqa: E402

from manyheads.checkpoints.config import read_config  # noqa: E402
from manyheads.spec import AttentionSpec, Band, Bidirectional, Heads, NoPositions, Rope, Window, count, weights  # noqa: E402
from manyheads.spec.positions import NoScaling  # noqa: E402

TINY = json.loads((Path(__file__).parent / "fixtures" / "tiny_models.json").read_text())
CASES: dict[str, Any] = {case: made for part in TINY.values() for case, made in part.items()}
TOKENS = {"bos_token_id": 1, "eos_token_id": 2}
PLACE = 5
ROTATED = [
    "llama", "mistral", "phi", "glm", "glm4", "glm4-no-bias", "starcoder2", "stablelm", "stablelm-12b", "seed_oss", "arcee",
    "apertus-biases", "persimmon", "smollm3", "smollm3-window", "exaone4", "exaone4-full", "cohere2", "gptj", "eurobert",
    "nomic_bert", "modernbert", "modernbert-biases",
]  # fmt: skip


def made(name: str) -> tuple[Any, list[AttentionSpec]]:
    """The tiny model and the self-attentions that its configuration is read as."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    transformers.logging.set_verbosity_error()
    case = CASES[name]
    config = transformers.CONFIG_MAPPING[case["model_type"]](**{**TOKENS, **case["settings"]})
    cls = getattr(transformers, case["class"]) if "class" in case else transformers.AutoModelForCausalLM
    model = (cls(config) if "class" in case else cls.from_config(config)).eval()
    for parameter in model.parameters():
        parameter.data.normal_(0, 0.3)
    stack = read_config(json.loads(json.dumps(config.to_dict()))).stack.main
    return model, [block.attention for block in stack.blocks if block.attention is not None]


def queries_at(model: Any, place: int) -> dict[int, torch.Tensor]:
    """Each layer's queries (heads, dim) of one token at `place`; attention answers zeros, so the input is the same."""
    seen: dict[int, torch.Tensor] = {}

    def probe(module: Any, query: Any, key: Any, value: Any, attention_mask: Any, **options: Any) -> tuple[Any, None]:
        seen[len(seen)] = query[0, :, 0]
        return torch.zeros(query.shape[0], query.shape[2], query.shape[1], value.shape[-1]), None

    transformers.AttentionInterface.register("probe", probe)
    model.set_attn_implementation("probe")
    options = {"use_cache": False} if hasattr(model.config, "use_cache") else {}
    with torch.no_grad():
        model(torch.tensor([[5]]), position_ids=torch.tensor([[place]]), **options)
    return seen


def turned(query: torch.Tensor, rope: Rope, place: int) -> torch.Tensor:
    """`query` turned by hand: pair number j by the angle place · base^(-2j/dim)."""
    angles = place * rope.base ** (-torch.arange(0, rope.dim, 2) / rope.dim)
    part = query[:, : rope.dim]
    a, b = (part[:, ::2], part[:, 1::2]) if rope.layout == "interleaved" else part.chunk(2, dim=-1)
    pair = a * angles.cos() - b * angles.sin(), b * angles.cos() + a * angles.sin()
    whole = torch.stack(pair, dim=-1).flatten(1) if rope.layout == "interleaved" else torch.cat(pair, dim=-1)
    return torch.cat([whole, query[:, rope.dim :]], dim=-1)


@pytest.mark.parametrize("name", ROTATED)
def test_queries_are_turned_as_the_spec_says(name: str) -> None:
    model, attentions = made(name)
    start, later = queries_at(model, 0), queries_at(model, PLACE)
    assert len(start) == len(attentions)
    for layer, attention in enumerate(attentions):
        if isinstance(attention.positions, NoPositions):
            assert torch.equal(start[layer], later[layer]), layer
            continue
        assert isinstance(attention.positions, Rope)
        assert attention.positions.scaling == NoScaling()
        assert not torch.allclose(start[layer], later[layer], atol=1e-3), layer
        assert torch.allclose(turned(start[layer], attention.positions, PLACE), later[layer], atol=1e-5), layer


CACHED = [
    "llama", "mistral", "qwen2", "gemma3_text", "gpt_oss", "starcoder2", "starcoder2-plain", "stablelm", "glm4", "seed_oss",
    "exaone4", "exaone4-full", "arcee", "apertus", "persimmon", "smollm3", "smollm3-window",
]  # fmt: skip


@pytest.mark.parametrize("name", CACHED)
def test_each_layer_keeps_what_transformers_cache_keeps(name: str) -> None:
    model, attentions = made(name)
    theirs = [
        getattr(layer, "sliding_window", None) or 0 for layer in transformers.DynamicCache(config=model.config).layers
    ]
    assert [a.mask.keys if isinstance(a.mask, Window) else 0 for a in attentions] == theirs


def masks_given(model: Any, tokens: int) -> dict[int, torch.Tensor]:
    """What each layer's attention function is told may be seen, (tokens, tokens)."""
    seen: dict[int, torch.Tensor] = {}

    def probe(module: Any, query: Any, key: Any, value: Any, attention_mask: Any, **options: Any) -> tuple[Any, None]:
        everything = torch.ones(tokens, tokens, dtype=torch.bool)
        seen[len(seen)] = everything if attention_mask is None else attention_mask[0, 0] >= 0
        return torch.zeros(query.shape[0], query.shape[2], query.shape[1], value.shape[-1]), None

    transformers.AttentionInterface.register("probe", probe)
    transformers.AttentionMaskInterface.register("probe", transformers.masking_utils.eager_mask)
    model.set_attn_implementation("probe")
    with torch.no_grad():
        model(torch.arange(tokens)[None] + 3)
    return seen


@pytest.mark.parametrize(
    ("name", "radii"), [("modernbert", [0, 3, 3, 0]), ("modernbert-biases", [4, 0, 4, 0]), ("eurobert", [0] * 4)]
)
def test_encoders_see_both_sides_as_far_as_transformers_lets_them(name: str, radii: list[int]) -> None:
    model, attentions = made(name)
    assert [a.mask for a in attentions] == [Band(r) if r else Bidirectional() for r in radii]
    given = masks_given(model, 12)
    for layer, attention in enumerate(attentions):
        ours = torch.tensor([[attention.mask.visible(q, k) for k in range(12)] for q in range(12)])
        assert torch.equal(ours, given[layer]), layer


def test_modernbert_has_no_norm_before_its_first_attention() -> None:
    model, _ = made("modernbert")
    stack = read_config(json.loads(json.dumps(model.config.to_dict()))).stack
    assert stack.encoder is not None
    assert [block.norm_places for block in stack.encoder.blocks] == [("pre_mlp",)] + [("pre_attention", "pre_mlp")] * 3
    assert [type(layer.attn_norm).__name__ for layer in model.model.layers] == ["Identity"] + ["LayerNorm"] * 3
    assert stack.head == "none"
    assert isinstance(stack.encoder.blocks[0].attention.kv, Heads)
    assert count(weights(stack)) == sum(p.numel() for p in model.model.parameters())
