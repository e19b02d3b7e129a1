"""SmolLM2: what was hidden in it is found again, and as many heads as before are the model itself."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch

from manyheads.checkpoints.pruned import places, prefix_of
from manyheads.convert.calibration_text import calibration_windows, documentation, split_blocks
from manyheads.convert.regroup import regroup
from manyheads.convert.regrouped_weights import put_into_model
from manyheads.convert.source import Source, open_source
from support.hidden_heads import factors, write_attention
from support.sweeps import some

pytestmark = pytest.mark.real


def _map(size: int, draw: torch.Generator, condition: float) -> torch.Tensor:
    """A random map of that condition number."""
    left, _, right = torch.linalg.svd(torch.randn(size, size, generator=draw, dtype=torch.float64))
    steps = torch.logspace(0, -float(torch.tensor(condition).log10()), size, dtype=torch.float64)
    return left @ torch.diag(steps * condition**0.5) @ right


@torch.no_grad()
def _hidden(original: Any, condition: float, dtype: torch.dtype) -> tuple[Any, dict[int, list[int]]]:
    """SmolLM2 as MHA with 9 heads that computes what it did: KV heads repeated, all heads shuffled, keys times a complex
    factor in each plane and values times a map, both undone in queries and outputs."""
    import transformers

    config = copy.deepcopy(original.config)
    config.num_key_value_heads = config.num_attention_heads
    model = transformers.LlamaForCausalLM(config).to(dtype).eval()
    own = original.state_dict()
    shared = {name: each.to(dtype) for name, each in own.items() if ".k_proj." not in name and ".v_proj." not in name}
    model.load_state_dict(shared, strict=False)
    before, after = open_source(original), open_source(model)
    draw, new, base = torch.Generator().manual_seed(0), {}, {}
    for role, layer, spec in places(before.stack):
        old = {name: each.double() for name, each in before.attention(role, layer).items()}
        order = torch.randperm(9, generator=draw)
        base[layer] = (order // 3).tolist()
        keys = [factors(spec.positions, 64, draw, spread=0.3) for _ in range(9)]
        values = [_map(64, draw, condition) for _ in range(9)]
        made = {
            "k": torch.stack([keys[h] @ old["k"][order[h] // 3] for h in range(9)]),
            "q": torch.stack([torch.linalg.inv(keys[h]).T @ old["q"][order[h]] for h in range(9)]),
            "v": torch.stack([values[h] @ old["v"][order[h] // 3] for h in range(9)]),
            "o": torch.stack([old["o"][:, order[h]] @ torch.linalg.inv(values[h]) for h in range(9)], 1),
        }
        new |= {prefix_of(role, layer) + name: each for name, each in made.items()}
    write_attention(model, after, new)
    return model, base


# A layer takes seconds: a run takes some of them, a sweep all thirty, of ill-conditioned maps too.
LAYERS = some(range(30), 8)


@pytest.mark.parametrize(("condition", "dtype"), some([(10.0, torch.float32), (1e3, torch.float64)], 2))
def test_three_heads_hidden_among_nine_are_found(smollm2: Any, condition: float, dtype: torch.dtype) -> None:
    _, loaded = smollm2
    hidden, base = _hidden(loaded.model, condition, dtype)
    calibration = calibration_windows(loaded.tokenizer, windows=2, length=256)
    source = open_source(hidden)
    made = regroup(source, dict.fromkeys(LAYERS, 3), calibration=calibration)
    found = [
        all(len({base[figures.layer][head] for head in group}) == 1 for group in figures.groups)
        for figures in made.layers
    ]
    assert found == [True] * len(LAYERS)
    converted = copy.deepcopy(hidden)
    put_into_model(converted, source.family, source.stack, made.weights, made.stack)
    text = calibration_windows(loaded.tokenizer, [split_blocks(documentation(), "held-out")], windows=1, length=256)
    with torch.inference_mode():
        wanted = loaded.model(input_ids=text.windows[0][None]).logits
        got = converted(input_ids=text.windows[0][None]).logits
    assert float((got.float() - wanted).abs().max()) <= 5e-4


def test_as_many_heads_as_before_are_the_model_itself(smollm2: Any) -> None:
    source: Source = open_source(smollm2[1])
    made = regroup(
        source, 3, method="closed", calibration=calibration_windows(smollm2[1].tokenizer, windows=1, length=16)
    )
    assert all(torch.equal(made.weights[name], source.weights[name]) for name in made.weights)
