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
from manyheads.spec import AttentionSpec, NoPositions, Rope, Window  # noqa: E402
from manyheads.spec.positions import NoScaling  # noqa: E402

TINY = json.loads((Path(__file__).parent / "fixtures" / "tiny_models.json").read_text())
CASES: dict[str, Any] = {**TINY["decoders"], **TINY["encoders"]}
TOKENS = {"bos_token_id": 1, "eos_token_id": 2}
PLACE = 5
ROTATED = [
    "llama", "mistral", "phi", "glm", "glm4", "glm4-no-bias", "starcoder2", "stablelm", "stablelm-12b", "seed_oss", "arcee",
    "apertus-biases", "persimmon", "smollm3", "smollm3-window", "exaone4", "exaone4-full", "cohere2", "gptj",
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
