"""Public reports about grouped heads, layouts and rotations (cases O24 to O37), through the store and the layer."""

from __future__ import annotations

import copy
import json
from dataclasses import replace
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from manyheads import Attention, AttentionSpec, Rope, read  # noqa: E402
from manyheads.checkpoints.config import read_config  # noqa: E402
from manyheads.checkpoints.families import named  # noqa: E402
from manyheads.checkpoints.gguf_layouts import gguf_layout  # noqa: E402
from manyheads.cost.whatif import what_if  # noqa: E402
from manyheads.models.store.read import open_store, to_canonical, to_stored  # noqa: E402
from manyheads.models.store.write import write_store  # noqa: E402
from manyheads.ops.rope import frequencies  # noqa: E402
from manyheads.spec import Block, Stack, StackSpec, weights  # noqa: E402
from support import rounding  # noqa: E402
from support.tiny_transformers import build, inputs, logits  # noqa: E402


def grouped(heads: int = 4, kv_heads: int = 2, **options: Any) -> Attention:
    torch.manual_seed(0)
    return Attention(AttentionSpec.gqa(22, heads, kv_heads, head_dim=6, **options), dtype=torch.float64)


def canonical(layer: Attention) -> dict[str, torch.Tensor]:
    return {name.replace("_bias", ".bias"): value.detach().clone() for name, value in layer.named_parameters()}


def repeated(weights: dict[str, torch.Tensor], times: int) -> dict[str, torch.Tensor]:
    """Each key/value head, weight and bias, `times` in a row."""
    kv = ("k", "v", "k.bias", "v.bias")
    return {n: w.repeat_interleave(times, 0) if n.rsplit("self.")[-1] in kv else w for n, w in weights.items()}


def pooled(weights: dict[str, torch.Tensor], times: int) -> dict[str, torch.Tensor]:
    """The mean of each `times` consecutive key/value heads."""
    kv = ("k", "v", "k.bias", "v.bias")
    return {n: w.unflatten(0, (-1, times)).mean(1) if n.rsplit("self.")[-1] in kv else w for n, w in weights.items()}


def test_o24_circuits_of_a_grouped_layer_are_those_of_its_expansion() -> None:
    layer, wide = grouped(6, 2), grouped(6, 6)
    wide.load(repeated(canonical(layer), 3))
    for head in range(6):
        kv = head // 3
        assert torch.equal(layer.q[head].T @ layer.k[kv], wide.q[head].T @ wide.k[head])  # what it looks for
        assert torch.equal(layer.o[:, head] @ layer.v[kv], wide.o[:, head] @ wide.v[head])  # what it moves
    x = torch.randn(2, 9, 22, dtype=torch.float64)
    ours, theirs = layer(x, need_weights="heads"), wide(x, need_weights="heads")
    for a, b in zip(ours, theirs, strict=True):
        assert torch.allclose(a, b, atol=1e-14)


@pytest.mark.parametrize("name", ["llama", "qwen2"])
def test_o25_grouped_to_multi_head_and_back(name: str) -> None:
    """Repeated in order, logits stay; the mean of the copies is the original, bit for bit."""
    model = build(name, dtype=torch.float64)
    config = read_config(model.config.to_dict())
    before = to_canonical(config.family, config.stack, model.state_dict())
    attention = config.stack.decoder.blocks[0].attention
    times = attention.num_heads // attention.kv.num_kv_heads
    assert times > 1
    wide_stack = what_if(config.stack, "mha")
    wide = repeated(before, times)
    other = build(name, dtype=torch.float64, num_key_value_heads=attention.num_heads)
    other.load_state_dict(to_stored(config.family, wide_stack, wide), strict=False)
    batch = inputs(name)
    assert torch.allclose(logits(model, batch), logits(other, batch), atol=1e-9)
    # powers of two divide exactly; three equal numbers may round, so the mean is taken of the first and last bit alike
    assert all(torch.allclose(pooled(wide, times)[n], w, rtol=1e-15, atol=0) for n, w in before.items())


def test_o26_pooling_heads_of_a_fused_matrix() -> None:
    """GPT-NeoX's rows are (head, 3, dim): split first, then the mean of equal heads loses nothing."""
    model = build("gpt_neox", dtype=torch.float64)
    config = read_config(model.config.to_dict())
    tensors = to_canonical(config.family, config.stack, model.state_dict())
    heads = config.stack.decoder.blocks[0].attention.num_heads
    times = next(n for n in range(2, heads + 1) if heads % n == 0)
    equal = repeated(pooled(tensors, times), times)
    model.load_state_dict(to_stored(config.family, config.stack, equal), strict=False)
    again = to_canonical(config.family, config.stack, model.state_dict())
    spec = config.stack.decoder.blocks[0].attention
    own = {n.removeprefix("decoder.layers.0.self."): w for n, w in again.items() if ".layers.0.self." in n}
    few_spec = what_if(config.stack, f"gqa:{heads // times}").decoder.blocks[0].attention
    many, few = Attention(spec, dtype=torch.float64), Attention(few_spec, dtype=torch.float64)
    many.load(own)
    few.load({n.removeprefix("self."): w for n, w in pooled({f"self.{n}": w for n, w in own.items()}, times).items()})
    x = torch.randn(2, 7, spec.d_model, dtype=torch.float64)
    assert torch.allclose(many(x), few(x), atol=1e-12)


@pytest.mark.parametrize(("heads", "kv_heads"), [(6, 2), (32, 4)])
def test_o27_keys_are_permuted_with_their_own_head_count(heads: int, kv_heads: int) -> None:
    """llama.cpp turns rows of each head from (2, dim/2) to (dim/2, 2): keys by K heads, invisible only where 64/8 = 8."""
    names = ["blk.0.attn_q.weight", "blk.0.attn_k.weight", "blk.0.attn_v.weight", "blk.0.attn_output.weight"]
    spec = AttentionSpec.gqa(20, heads, kv_heads, head_dim=8, positions=Rope(8))
    stack = StackSpec((Stack("decoder", 20, (Block((spec,)),)),))
    family = replace(named("llama"), layout=gguf_layout("llama", names), prefixes=())
    own = {w.name: torch.randn(w.shape) for w in weights(stack)}
    stored = to_stored(family, stack, own)
    for letter, count in (("q", heads), ("k", kv_heads)):
        plain = own[f"decoder.layers.0.self.{letter}"].reshape(count, 2, 4, 20)
        assert torch.equal(stored[f"blk.0.attn_{letter}.weight"], plain.transpose(1, 2).reshape(count * 8, 20))


def test_o29_interleaved_to_halves_and_back() -> None:
    """Rows of q and k turned from pairs to halves: the same function, and the way back is the same bits."""
    pairs = grouped(6, 2, positions=Rope(6, layout="interleaved"))
    halves = grouped(6, 2, positions=Rope(6, layout="halves"))
    tensors = canonical(pairs)
    to_halves = [0, 2, 4, 1, 3, 5]
    turned = {n: w[:, to_halves] if n in ("q", "k") else w for n, w in tensors.items()}
    halves.load(turned)
    x = torch.randn(1, 1200, 22, dtype=torch.float64)
    assert torch.allclose(pairs(x), halves(x), atol=1e-12)
    back = [to_halves.index(i) for i in range(6)]
    assert all(torch.equal(turned[n][:, back] if n in ("q", "k") else turned[n], w) for n, w in tensors.items())


def test_o31_the_rotary_base_survives_an_export(tmp_path: Any) -> None:
    model = build("mistral")
    config = json.loads(model.config.to_json_string(use_diff=False))
    config.pop("rope_parameters", None)
    config |= {"rope_theta": 1e6, "architectures": ["MistralForCausalLM"]}
    stack = read_config(copy.deepcopy(config)).stack
    write_store(tmp_path / "out", to_canonical("mistral", stack, model.state_dict()), config=config)
    for block in read(tmp_path / "out").decoder.blocks:
        assert block.attention.positions.base == 1e6
    from transformers import AutoConfig

    again = AutoConfig.from_pretrained(tmp_path / "out")
    assert (getattr(again, "rope_parameters", None) or {"rope_theta": again.rope_theta})["rope_theta"] == 1e6


@pytest.mark.parametrize(
    "name",
    [pytest.param("gpt_neox", id="o33-gpt_neox"), *(pytest.param(n, id=f"o34-{n}") for n in ("falcon-40b", "bloom"))],
)
def test_o33_o34_fused_rows_give_the_models_own_attention(name: str) -> None:
    """One layer of the model with its fused matrix against the layer with what the store makes of it."""
    model = build(name, dtype=torch.float64)
    config = read_config(model.config.to_dict())
    spec = config.stack.decoder.blocks[0].attention
    tensors = to_canonical(config.family, config.stack, model.state_dict())
    prefix = "decoder.layers.0.self."
    own = {n.removeprefix(prefix): w for n, w in tensors.items() if n.startswith(prefix)}
    found: dict[str, torch.Tensor] = {}
    fused = next(m for n, m in model.named_modules() if n.endswith(("query_key_value",)))
    dense = next(m for n, m in model.named_modules() if n.endswith(("self_attention.dense", "attention.dense")))
    fused.register_forward_pre_hook(lambda module, arguments: found.update(x=arguments[0]))
    dense.register_forward_hook(lambda module, arguments, output: found.setdefault("y", output))
    for module in model.modules():
        if hasattr(module, "inv_freq"):  # made in float32
            module.inv_freq = torch.tensor(frequencies(spec.positions), dtype=torch.float64)
    with rounding.Wide():  # bloom and falcon take the softmax in float32
        logits(model, inputs(name))
    layer = Attention(spec, dtype=torch.float64)
    layer.load(own)
    assert rounding.evaluated(lambda: layer(found["x"]), dtype=torch.float64).holds(found["y"])


def test_o35_o36_gpt2_stores_its_matrices_the_other_way_round() -> None:
    """c_attn is (in, 3·out), c_proj square and (in, out): one row of a head in it moves that head's output alone."""
    model = build("gpt2")
    config = read_config(model.config.to_dict())
    state = {n: w.clone() for n, w in model.state_dict().items()}
    before = {n: w.clone() for n, w in to_canonical(config.family, config.stack, state).items()}
    spec = config.stack.decoder.blocks[0].attention
    assert state["transformer.h.0.attn.c_attn.weight"].shape == (spec.d_model, 3 * spec.d_model)
    state["transformer.h.0.attn.c_proj.weight"][spec.head_dim + 1] += 1.0
    after = to_canonical(config.family, config.stack, state)
    moved = (after["decoder.layers.0.self.o"] - before["decoder.layers.0.self.o"]).abs().sum((0, 2))
    assert moved[1] > 0
    assert moved.sum() == moved[1]


def test_o37_phi3_split_and_fused_again_is_the_same_file() -> None:
    model = build("phi3")
    config = read_config(model.config.to_dict())
    state = model.state_dict()
    spec = config.stack.decoder.blocks[0].attention
    rows = (spec.num_heads + 2 * spec.kv.num_kv_heads) * spec.head_dim
    assert state["model.layers.0.self_attn.qkv_proj.weight"].shape[0] == rows
    again = to_stored(config.family, config.stack, to_canonical(config.family, config.stack, state))
    assert all(torch.equal(again[n], w) for n, w in state.items() if n in again)
    assert set(state) - set(again) <= {"lm_head.weight"}


def test_o20_recorded_attentions_are_never_none(tmp_path: Any) -> None:
    """`output_attentions` under transformers' own SDPA gives nothing; through the door it gives probabilities."""
    from manyheads.models.door.door import open_door

    model = build("bert", attention="sdpa")
    with open_door(model), torch.no_grad():
        attentions = model(**inputs("bert"), output_attentions=True).attentions
    assert len(attentions) == model.config.num_hidden_layers
    for probabilities in attentions:
        assert torch.allclose(probabilities.sum(-1), torch.ones(()), atol=1e-5)


def test_the_store_is_open_for_all_of_these(tmp_path: Any) -> None:
    """The same weights from a file, by name: what the cases above took from memory."""
    model = build("llama")
    model.save_pretrained(tmp_path)
    with open_store(tmp_path) as store:
        config = read_config(model.config.to_dict())
        tensors = to_canonical(config.family, config.stack, model.state_dict())
        assert set(store) == set(tensors)
        assert all(torch.equal(store[n], w) for n, w in tensors.items())
