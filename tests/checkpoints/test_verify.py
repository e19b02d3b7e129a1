"""A header against its configuration: what is missing, what is too much, what has another shape."""

from __future__ import annotations

import json
from math import prod
from pathlib import Path
from typing import Any

import pytest

from manyheads.checkpoints import open_model, read_config
from manyheads.checkpoints.families import named
from manyheads.checkpoints.layout import expected_tensors
from manyheads.errors import CheckpointError
from manyheads.spec import count, weights

TINY = json.loads((Path(__file__).parent / "fixtures" / "tiny_models.json").read_text())["decoders"]
BYTES = {"F32": 4, "BF16": 2, "F16": 2, "F8_E4M3": 1, "U8": 1}

Entries = dict[str, tuple[str, tuple[int, ...]]]


def config_of(name: str, **changes: Any) -> dict[str, Any]:
    return {"model_type": TINY[name]["model_type"], **TINY[name]["settings"], **changes}


def tensors_of(config: dict[str, Any], dtype: str = "BF16") -> Entries:
    found = read_config(config)
    return {name: (dtype, item.shape) for name, item in expected_tensors(named(found.family), found.stack).items()}


def write(folder: Path, config: dict[str, Any], entries: Entries) -> Path:
    """A folder with a configuration and a safetensors file of zeros, written without torch."""
    header, position = {}, 0
    for name, (dtype, shape) in entries.items():
        end = position + prod(shape) * BYTES[dtype]
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [position, end]}
        position = end
    raw = json.dumps(header).encode()
    folder.mkdir(exist_ok=True)
    (folder / "model.safetensors").write_bytes(len(raw).to_bytes(8, "little") + raw + bytes(position))
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def refusal(folder: Path) -> str:
    with pytest.raises(CheckpointError) as caught:
        open_model(folder)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("name", [name for name in TINY if name != "opt-350m"])
def test_what_is_predicted_is_accepted(name: str, tmp_path: Path) -> None:
    config = config_of(name)
    entries = tensors_of(config)
    found = open_model(write(tmp_path, config, entries))
    assert found.parameters_stored == count(weights(found.stack))
    assert found.weight_dtype == "bf16"
    assert found.stored_bytes == 2 * sum(prod(shape) for _, shape in entries.values())


def test_o40_a_shape_that_the_config_contradicts_names_the_tensor_and_the_settings(tmp_path: Path) -> None:
    config = config_of("gemma")
    entries = tensors_of(config)
    name = "model.layers.1.self_attn.q_proj.weight"
    entries[name] = ("BF16", (36, 36))
    message = refusal(write(tmp_path, config, entries))
    for part in (name, "(36, 36)", "(60, 36)", "num_attention_heads 6", "head_dim 10", "hidden_size 36"):
        assert part in message


def test_o38_tensors_that_nothing_explains_are_counted_and_named(tmp_path: Path) -> None:
    entries = tensors_of(config_of("llama-biases-tied"))
    message = refusal(write(tmp_path, config_of("llama-biases-tied", attention_bias=False, mlp_bias=False), entries))
    assert "14 of 34 tensors have no place in it" in message
    assert "model.layers.0.self_attn.q_proj.bias" in message


def test_missing_tensors_are_counted_and_named(tmp_path: Path) -> None:
    entries = tensors_of(config_of("llama"))
    for name in [name for name in entries if "layers.2." in name]:
        del entries[name]
    message = refusal(write(tmp_path, config_of("llama"), entries))
    assert "9 tensors that the configuration asks for are missing (model.layers.2." in message.replace("'", "")


def test_a_layer_too_few_in_the_config(tmp_path: Path) -> None:
    message = refusal(write(tmp_path, config_of("llama", num_hidden_layers=2), tensors_of(config_of("llama"))))
    assert "9 of 30 tensors have no place in it" in message


def test_o67_tied_head_stored_again_counts_once(tmp_path: Path) -> None:
    config = config_of("llama-biases-tied")
    entries = tensors_of(config)
    alone = open_model(write(tmp_path / "a", config, entries)).parameters_stored
    entries["lm_head.weight"] = ("BF16", (97, 36))
    found = open_model(write(tmp_path / "b", config, entries))
    assert found.parameters_stored == alone
    assert any(
        "lm_head.weight is stored although it is tied to model.embed_tokens.weight" in note for note in found.notes
    )
    entries["lm_head.weight"] = ("BF16", (97, 35))
    assert "lm_head.weight" in refusal(write(tmp_path / "c", config, entries))


@pytest.mark.parametrize(
    ("name", "buffers"),
    [
        ("llama", {"model.layers.0.self_attn.rotary_emb.inv_freq": (5,)}),
        ("gpt2", {"transformer.h.0.attn.bias": (1, 1, 31, 31), "transformer.h.0.attn.masked_bias": ()}),
        ("gpt_neox", {"gpt_neox.layers.0.attention.bias": (1, 1, 9, 9), "gpt_neox.layers.0.attention.masked_bias": (),
                      "gpt_neox.layers.0.attention.rotary_emb.inv_freq": (1,)}),
        ("deepseek_v3", {"model.layers.3.eh_proj.weight": (36, 72), "model.layers.3.enorm.weight": (36,)}),
    ],
)  # fmt: skip
def test_stored_buffers_and_extra_layers_are_left_out(name: str, buffers: dict[str, Any], tmp_path: Path) -> None:
    config = config_of(name)
    entries = tensors_of(config)
    alone = open_model(write(tmp_path / "a", config, entries)).parameters_stored
    entries.update({key: ("F32", shape) for key, shape in buffers.items()})
    found = open_model(write(tmp_path / "b", config, entries))
    assert found.parameters_stored == alone


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("llama", "model.", "language_model.model."), ("llama", "model.", "model.language_model."), ("gpt2", "transformer.", ""),
        ("bloom", "transformer.", ""),
    ],
)  # fmt: skip
def test_other_beginnings_of_names(name: str, old: str, new: str, tmp_path: Path) -> None:
    config = config_of(name)
    renamed: Entries = {}
    for key, value in tensors_of(config).items():
        if key.startswith("lm_head.") and new == "language_model.model.":
            renamed["language_model." + key] = value
        else:
            renamed[new + key.removeprefix(old) if key.startswith(old) else key] = value
    found = open_model(write(tmp_path, config, renamed))
    assert found.parameters_stored == count(weights(found.stack))


def test_fp8_keeps_shapes_and_stores_scales(tmp_path: Path) -> None:
    config = config_of("deepseek_v3", quantization_config={"quant_method": "fp8"})
    entries = {
        name: ("F8_E4M3" if "proj" in name else "BF16", shape) for name, (_, shape) in tensors_of(config).items()
    }
    entries |= {f"{name}_scale_inv": ("F32", (1, 1)) for name in list(entries) if "proj" in name}
    found = open_model(write(tmp_path, config, entries))
    assert found.weight_dtype == "fp8"
    assert found.parameters_stored == count(weights(found.stack))


def test_mxfp4_blocks_and_scales_stand_for_the_experts(tmp_path: Path) -> None:
    config = config_of(
        "gpt_oss",
        hidden_size=64,
        intermediate_size=32,
        num_local_experts=40,
        quantization_config={"quant_method": "mxfp4"},
    )
    entries = tensors_of(config)
    for name in [name for name in entries if name.endswith(("gate_up_proj", "down_proj"))]:
        _, (experts, inner, outer) = entries.pop(name)
        entries[f"{name}_blocks"] = ("U8", (experts, outer, inner // 32, 16))
        entries[f"{name}_scales"] = ("U8", (experts, outer, inner // 32))
    found = open_model(write(tmp_path, config, entries))
    assert found.parameters_stored == count(weights(found.stack))
    assert found.weight_dtype == "mxfp4"


def test_packed_weights_are_not_checked_and_that_is_said(tmp_path: Path) -> None:
    config = config_of("llama", quantization_config={"quant_method": "gptq", "bits": 4})
    found = open_model(write(tmp_path, config, {"model.layers.0.self_attn.q_proj.qweight": ("U8", (5, 36))}))
    assert found.parameters_stored is None
    assert found.weight_dtype == "int4"
    assert any("not checked" in note for note in found.notes)


def test_a_config_that_asks_for_a_trillion_experts_is_refused_at_once(tmp_path: Path) -> None:
    message = refusal(write(tmp_path, config_of("mixtral", num_local_experts=2**39), tensors_of(config_of("mixtral"))))
    assert "tensors" in message


def test_bert_files_with_the_old_names_of_norms(tmp_path: Path) -> None:
    config = {"model_type": "bert", "hidden_size": 36, "intermediate_size": 52, "num_hidden_layers": 2,
              "num_attention_heads": 6, "vocab_size": 97, "max_position_embeddings": 31}  # fmt: skip
    old = {
        name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): value
        for name, value in tensors_of(config).items()
    }
    found = open_model(write(tmp_path, config, old))
    assert found.parameters_stored == count(weights(found.stack))
