"""The order inside stored tensors: taken apart by our patterns, they give the queries, keys and values of the modules.

Sizes alone cannot tell q|k|v from (head, 3, d): here tensors are moved by the tables, as the room that converts will.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
einops = pytest.importorskip("einops")
safetensors = pytest.importorskip("safetensors.torch")

import torch  # noqa: E402

from manyheads.checkpoints.config import read_config  # noqa: E402
from manyheads.checkpoints.families import named  # noqa: E402
from manyheads.checkpoints.layout import Expected, expected_tensors, groups  # noqa: E402

TINY = json.loads((Path(__file__).parent / "fixtures" / "tiny_models.json").read_text())
CASES: dict[str, Any] = {case: made for part in TINY.values() for case, made in part.items()}
TOKENS = {"bos_token_id": 1, "eos_token_id": 2}


def sides(item: Expected, part: int) -> tuple[str, str]:
    """The pattern of a part in full: (the weight's own axes, the arranged ones)."""
    axes = [axis for axis in item.parts[part].axes.split() if axis != item.stored.each]
    left, arrow, right = item.stored.parts[part][1].partition("->")
    return (left.strip(), right.strip()) if arrow else (" ".join(axes), left.strip())


def sizes_in(pattern: str, item: Expected) -> dict[str, int]:
    return {axis: item.sizes[axis] for group in groups(pattern) for axis in group if axis != "1"}


def take_apart(item: Expected, tensor: torch.Tensor) -> dict[str, torch.Tensor]:
    """The canonical tensors inside a stored one."""
    if item.stored.parts[0][1] == "...":
        return {item.parts[0].name: tensor}
    arranged = []
    for part in range(len(item.parts)):
        _, right = sides(item, part)
        known = {**item.sizes, "1": 1}
        arranged.append([int(torch.tensor([known[a] for a in group]).prod()) for group in groups(right)])
    joined = list(arranged[0])
    joined[item.stored.axis] = sum(shape[item.stored.axis] for shape in arranged)
    pieces = tensor.reshape(joined).split([shape[item.stored.axis] for shape in arranged], dim=item.stored.axis)
    found = {}
    for part, piece in enumerate(pieces):
        left, right = sides(item, part)
        found[item.parts[part].name] = einops.rearrange(piece, f"{right} -> {left}", **sizes_in(right, item))
    return found


def put_together(item: Expected, canonical: dict[str, torch.Tensor]) -> torch.Tensor:
    """The stored tensor made of canonical ones."""
    if item.stored.parts[0][1] == "...":
        return canonical[item.parts[0].name]
    pieces = []
    for part, weight in enumerate(item.parts):
        left, right = sides(item, part)
        pieces.append(einops.rearrange(canonical[weight.name], f"{left} -> {right}", **sizes_in(left, item)))
    return torch.cat(pieces, dim=item.stored.axis).reshape(item.shape)


def build(name: str) -> tuple[Any, dict[str, Any], dict[str, Expected]]:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    transformers.logging.set_verbosity_error()
    case = CASES[name]
    config = transformers.CONFIG_MAPPING[case["model_type"]](**{**TOKENS, **case["settings"]})
    config._attn_implementation = config._experts_implementation = "eager"
    cls = case.get("class")
    model = (
        getattr(transformers, cls)(config) if cls else transformers.AutoModelForCausalLM.from_config(config)
    ).eval()  # fmt: skip
    for parameter in model.parameters():  # biases and norms of a fresh model are constant, which would hide an order
        parameter.data.normal_(0, 0.3)
    found = read_config(json.loads(json.dumps(config.to_dict())))
    return model, dict(model.state_dict()), expected_tensors(named(found.family), found.stack)


# transformers renames and splits these as it loads: in memory they are not what is stored.
RENAMED = ("nomic_bert", "nomic_bert-bare")


def canonical_of(state: dict[str, torch.Tensor], expected: dict[str, Expected]) -> dict[str, torch.Tensor]:
    found: dict[str, torch.Tensor] = {}
    for name, item in expected.items():
        if name in state:
            found.update(take_apart(item, state[name]))
    return found


@pytest.mark.parametrize("name", [name for name in CASES if name not in ("opt-350m", "bert", *RENAMED)])
def test_apart_and_together_is_the_same_file(name: str) -> None:
    _, state, expected = build(name)
    moved = 0
    for stored, item in expected.items():
        if stored not in state or item.index >= 0:  # experts are one tensor in memory, one file tensor each
            continue
        parts = take_apart(item, state[stored])
        assert {w.name: w.shape for w in item.parts} == {key: tuple(t.shape) for key, t in parts.items()}
        assert torch.equal(put_together(item, parts), state[stored])  # case O37, for every family
        moved += 1
    assert moved > 10


SEEN: dict[int, tuple[torch.Tensor, torch.Tensor, torch.Tensor]] = {}


def probe(module: Any, query: Any, key: Any, value: Any, attention_mask: Any, **options: Any) -> tuple[Any, None]:
    """Remembers what reaches the attention function, and answers zeros of the right shape."""
    SEEN[module.layer_idx] = query[0, :, 0], key[0, :, 0], value[0, :, 0]
    return torch.zeros(query.shape[0], query.shape[2], query.shape[1], value.shape[-1]), None


def parallel(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two tensors are equal up to one factor (YaRN scales queries and keys)."""
    return torch.allclose(a / a.norm(), b / b.norm(), atol=1e-5)


SPLIT = ["llama", "mistral", "qwen2", "gemma", "gemma2", "olmo", "phi", "phi3", "granite", "cohere", "gpt2", "gpt_neox",
         "gptj", "opt", "gpt_oss", "starcoder2", "glm", "glm4", "seed_oss", "arcee", "persimmon-no-norm", "smollm3",
         "stablelm"]  # fmt: skip


@pytest.mark.parametrize("name", SPLIT)
def test_queries_keys_and_values_are_the_modules_own(name: str) -> None:
    """One token at position 0, where no rotation acts: q, k and v are linear in the layer's input."""
    transformers.AttentionInterface.register("probe", probe)
    model, state, expected = build(name)
    model.config._attn_implementation = "probe"
    inputs: dict[int, torch.Tensor] = {}

    def remember(module: Any, args: Any, kwargs: Any) -> None:
        inputs[module.layer_idx] = (args[0] if args else kwargs["hidden_states"])[0, 0]

    for module in model.modules():
        if hasattr(module, "layer_idx") and type(module).__name__.endswith(("Attention", "SdpaAttention")):
            module.register_forward_pre_hook(remember, with_kwargs=True)
    SEEN.clear()
    with torch.no_grad():
        model(torch.tensor([[5]]), use_cache=False)
    canonical = canonical_of(state, expected)
    assert set(SEEN) == set(inputs) == set(range(model.config.num_hidden_layers))
    for layer, (q, k, v) in SEEN.items():
        x, prefix = inputs[layer], f"decoder.layers.{layer}.self."
        for letter, seen in (("q", q), ("k", k), ("v", v)):
            ours = canonical[prefix + letter] @ x
            if prefix + letter + ".bias" in canonical:
                ours = ours + canonical[prefix + letter + ".bias"]
            assert ours.shape == seen.shape
            assert parallel(ours, seen) if letter in "qk" else torch.allclose(ours, seen, atol=1e-5), (layer, letter)


@pytest.mark.parametrize("name", ["falcon-7b", "falcon-40b", "falcon-rw", "falcon2-11b", "bloom"])
def test_fused_rows_are_split_as_the_module_does(name: str) -> None:
    model, state, expected = build(name)
    canonical = canonical_of(state, expected)
    attention = model.transformer.h[1].self_attention
    x = torch.randn(model.config.hidden_size)
    fused = attention.query_key_value(x[None, None])
    split = attention._split_heads(fused) if name.startswith("falcon") else attention._reshape(fused)
    q, k, v = (t[0, 0] for t in split) if name.startswith("falcon") else (t[0, :, 0] for t in split)
    for letter, seen in (("q", q), ("k", k), ("v", v)):
        ours = canonical[f"decoder.layers.1.self.{letter}"] @ x
        bias = canonical.get(f"decoder.layers.1.self.{letter}.bias")
        ours = ours if bias is None else ours + bias
        repeated = ours.repeat_interleave(seen.shape[0] // ours.shape[0], dim=0)  # falcon repeats groups at once
        assert torch.allclose(repeated, seen, atol=1e-5), letter


@pytest.mark.parametrize("name", ["deepseek_v2", "deepseek_v2-lite", "deepseek_v3", "minicpm3"])
def test_latent_parts_are_the_modules_own(name: str) -> None:
    transformers.AttentionInterface.register("probe", probe)
    model, state, expected = build(name)
    model.config._attn_implementation = "probe"
    inputs: dict[int, torch.Tensor] = {}
    for layer in model.model.layers:
        layer.self_attn.register_forward_pre_hook(
            lambda module, args, kwargs: inputs.__setitem__(
                module.layer_idx, (args[0] if args else kwargs["hidden_states"])[0, 0]
            ),
            with_kwargs=True,
        )
    SEEN.clear()
    with torch.no_grad():
        model(torch.tensor([[5]]), use_cache=False)
    canonical = canonical_of(state, expected)
    c = {
        key.removeprefix("decoder.layers.1.self."): value
        for key, value in canonical.items()
        if ".layers.1.self." in key
    }

    def rms(x: torch.Tensor, gain: torch.Tensor) -> torch.Tensor:
        return x / (x.square().mean() + 1e-6).sqrt() * gain

    x = inputs[1]
    latent = rms(c["kv_down"] @ x + c.get("kv_down.bias", torch.zeros(())), c["kv_down_norm.weight"])
    rotary = c["k_rope"] @ x + c.get("k_rope.bias", torch.zeros(()))
    nope = c["k_up"].shape[1]
    q, k, v = SEEN[1]
    assert torch.allclose(c["v_up"] @ latent, v, atol=1e-4)
    assert torch.allclose(c["k_up"] @ latent, k[:, :nope], atol=1e-4)
    assert torch.allclose(rotary.sort().values, k[0, nope:].sort().values, atol=1e-4)  # V3 regroups the pairs
    if "q_up" in c:
        query = c["q_up"] @ rms(c["q_down"] @ x + c.get("q_down.bias", torch.zeros(())), c["q_down_norm.weight"])
    else:
        query = c["q"] @ x
    assert torch.allclose(query[:, :nope], q[:, :nope], atol=1e-4)


def test_gated_delta_rows_are_split_as_the_module_does() -> None:
    model, state, expected = build("qwen3_next")
    canonical = canonical_of(state, expected)
    module, x = model.model.layers[0].linear_attn, torch.randn(model.config.hidden_size)
    split = module.fix_query_key_value_ordering(module.in_proj_qkvz(x[None, None]), module.in_proj_ba(x[None, None]))
    for name, seen in zip(("q", "k", "v", "gate", "beta", "decay"), split, strict=True):
        ours = canonical[f"decoder.layers.0.self.{name}"] @ x
        assert torch.allclose(ours, seen[0, 0], atol=1e-5), name


def test_gated_query_is_split_as_the_module_does() -> None:
    """transformers: q_proj(x).view(..., heads, 2 head_dim).chunk(2): each head's query, then its gate."""
    model, state, expected = build("qwen3_next")
    canonical = canonical_of(state, expected)
    module, x = model.model.layers[3].self_attn, torch.randn(model.config.hidden_size)
    query, gate = module.q_proj(x).view(model.config.num_attention_heads, -1).chunk(2, dim=-1)
    assert torch.allclose(canonical["decoder.layers.3.self.q"] @ x, query, atol=1e-5)
    assert torch.allclose(canonical["decoder.layers.3.self.gate"] @ x, gate, atol=1e-5)


def test_fused_experts_alternate_gate_and_up() -> None:
    model, state, expected = build("gpt_oss")
    canonical = canonical_of(state, expected)
    both = model.model.layers[1].mlp.experts.gate_up_proj
    assert torch.equal(canonical["decoder.layers.1.mlp.experts.gate"], both[..., ::2].transpose(1, 2))
    assert torch.equal(canonical["decoder.layers.1.mlp.experts.up"], both[..., 1::2].transpose(1, 2))


def test_the_stored_form_of_nomic_bert_is_taken_apart_as_transformers_does(tmp_path: Path) -> None:
    model, state, expected = build("nomic_bert")
    model.save_pretrained(tmp_path)
    stored = safetensors.load_file(tmp_path / "model.safetensors")
    canonical: dict[str, torch.Tensor] = {}
    for name, item in expected.items():
        canonical.update(take_apart(item, stored[name]))
    layer, prefix = "nomic_bert.layers.1.", "encoder.layers.1."
    for letter in "qkv":
        assert torch.equal(
            canonical[f"{prefix}self.{letter}"].flatten(0, 1), state[f"{layer}self_attn.{letter}_proj.weight"]
        )
    for name in ("gate", "up", "down"):
        assert torch.equal(canonical[f"{prefix}mlp.{name}"], state[f"{layer}mlp.{name}_proj.weight"])
    assert torch.equal(canonical[f"{prefix}post_mlp_norm.bias"], state[f"{layer}post_mlp_layernorm.bias"])


def test_the_halves_of_modernberts_wi_are_the_bent_one_then_the_factor() -> None:
    model, state, expected = build("modernbert-biases")
    canonical, module, x = canonical_of(state, expected), model.model.layers[2].mlp, torch.randn(48)
    c = {
        name: canonical[f"encoder.layers.2.mlp.{name}"]
        for name in ("gate", "gate.bias", "up", "up.bias", "down", "down.bias")
    }
    inner = module.act(c["gate"] @ x + c["gate.bias"]) * (c["up"] @ x + c["up.bias"])
    assert torch.allclose(c["down"] @ inner + c["down.bias"], module(x), atol=1e-5)
