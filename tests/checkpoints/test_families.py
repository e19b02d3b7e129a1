"""Every family against transformers: a tiny model saved by it must be, name by name and shape by shape, what we predict."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

import torch  # noqa: E402

from manyheads.checkpoints import open_model, read_config  # noqa: E402
from manyheads.checkpoints.families import MODULES, family, named  # noqa: E402
from manyheads.checkpoints.layout import expected_tensors  # noqa: E402
from manyheads.checkpoints.safetensors_header import read_header  # noqa: E402
from manyheads.errors import CheckpointError  # noqa: E402
from manyheads.spec import Chunk, Latent, Rope, State, Window, count, weights  # noqa: E402

# Awkward on purpose: H != K, H/K != K, head_dim != d_model/H where the family allows it, an odd vocabulary,
# nope != rope != v, so that no size can be mistaken for another.
TINY = json.loads((Path(__file__).parent / "fixtures" / "tiny_models.json").read_text())
DECODERS: dict[str, dict[str, Any]] = TINY["decoders"]
ENCODERS: dict[str, dict[str, Any]] = {**TINY["encoders"], **TINY["more_encoders"]}
TOKENS = {"bos_token_id": 1, "eos_token_id": 2}
NOT_DESCRIBED = ("opt-350m",)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Makes, saves and remembers the tiny model of a case: (folder, model)."""
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    made: dict[str, tuple[Path, Any]] = {}

    def save(name: str) -> tuple[Path, Any]:
        if name not in made:
            case = DECODERS.get(name) or ENCODERS[name]
            config = transformers.CONFIG_MAPPING[case["model_type"]](**{**TOKENS, **case["settings"]})
            if name in DECODERS:
                model = transformers.AutoModelForCausalLM.from_config(config)
            else:
                model = getattr(transformers, case["class"])(config)
            folder = tmp_path_factory.mktemp(name)
            model.save_pretrained(folder)
            made[name] = folder, model
        return made[name]

    return save


@pytest.mark.parametrize("name", [name for name in DECODERS if name not in NOT_DESCRIBED])
def test_decoder_is_what_transformers_saves(name: str, saved: Any) -> None:
    folder, model = saved(name)
    found = open_model(folder)
    assert found.family == named(found.family).name
    assert found.parameters_stored == sum(p.numel() for p in model.parameters())
    assert found.weight_dtype == "fp32"
    assert found.unknown_keys == ()
    stored = {name: tensor.shape for name, tensor in read_header(folder / "model.safetensors").tensors.items()}
    predicted = expected_tensors(named(found.family), found.stack)
    assert {name: item.shape for name, item in predicted.items()} == stored


@pytest.mark.parametrize("name", list(ENCODERS))
def test_encoder_is_what_transformers_saves(name: str, saved: Any) -> None:
    folder, model = saved(name)
    found = open_model(folder)
    base = sum(p.numel() for p in model.parameters())
    outside = sum(
        p.numel()
        for key, p in model.named_parameters()
        if (key.startswith(("cls.", "classifier.", "lm_head.", "vocab_", "head.")) and "word_embeddings" not in key)
        or (name.startswith("modernbert") and key.startswith("decoder."))
        or (name == "marian" and "embed_positions" in key)  # computed, and not saved
    )  # fmt: skip
    assert found.parameters_stored == base - outside
    assert found.parameters_stored == count(weights(found.stack))


PARTS = {"qwen2_vl_text": "Qwen2VLTextModel", "qwen2_5_vl_text": "Qwen2_5_VLTextModel", "qwen3_vl_text": "Qwen3VLTextModel",
         "apertus1p5_text": "Apertus1p5TextForCausalLM"}  # fmt: skip


@pytest.mark.parametrize("model_type", list(PARTS))
def test_text_part_of_a_larger_model_is_what_transformers_saves(model_type: str, tmp_path: Path) -> None:
    settings = {"hidden_size": 36, "intermediate_size": 52, "num_hidden_layers": 2, "num_attention_heads": 6,
                "num_key_value_heads": 2, "vocab_size": 97, "pad_token_id": 0}  # fmt: skip
    config = transformers.CONFIG_MAPPING[model_type](**{**TOKENS, **settings})
    model = getattr(transformers, PARTS[model_type])(config)
    model.save_pretrained(tmp_path)
    found = open_model(tmp_path)
    assert model_type in named(found.family).model_types
    assert found.parameters_stored == sum(p.numel() for p in model.parameters())


def test_every_described_model_type_has_a_tiny_model() -> None:
    tried = {case["model_type"] for case in (*DECODERS.values(), *ENCODERS.values())}
    # Same family under another name, or nothing that transformers can build.
    aliases = {"code_llama", "RefinedWeb", "RefinedWebModel", "gemma3", "xlm-roberta", "camembert", "mt5", "deepseek"}
    aliases |= {"qwen2_5_omni_text", *PARTS}  # parts of larger models
    assert {kind for kinds in MODULES.values() for kind in kinds} - tried == aliases


def test_table_of_modules_agrees_with_the_families() -> None:
    for kinds in MODULES.values():
        for kind in kinds:
            found = family(kind)
            assert found is not None
            assert kind in found.model_types
            assert named(found.name) is found


@pytest.mark.parametrize("name", [name for name in DECODERS if name not in NOT_DESCRIBED])
def test_scale_is_the_modules_own(name: str, saved: Any) -> None:
    folder, model = saved(name)
    blocks = open_model(folder).stack.main.blocks
    scales = {
        float(module.scaling)
        for module in model.modules()
        if type(module).__name__.endswith(("Attention", "SdpaAttention")) and isinstance(getattr(module, "scaling", None), float)
    }  # fmt: skip
    ours = {b.attention.scale for b in blocks if b.attention and not isinstance(b.attention.kv, State)}
    if scales:
        assert sorted(ours) == pytest.approx(sorted(scales))
    else:
        assert ours == {b.attention.head_dim**-0.5 for b in blocks if b.attention}


@pytest.mark.parametrize("name", ["mistral", "qwen2", "gemma2", "gemma3_text", "olmo3", "cohere2", "gpt_oss"])
def test_windows_are_the_modules_own(name: str, saved: Any) -> None:
    folder, model = saved(name)
    theirs = []
    for index in range(model.config.num_hidden_layers):
        attention = model.model.layers[index].self_attn
        window = getattr(attention, "sliding_window", None) or 0
        theirs.append(model.config.sliding_window if name == "mistral" else window)
    masks = [block.attention.mask for block in open_model(folder).stack.main.blocks if block.attention]
    assert [mask.keys if isinstance(mask, Window) else 0 for mask in masks] == theirs
    assert not any(isinstance(mask, Chunk) for mask in masks)


@pytest.mark.parametrize(
    "name", ["llama", "phi", "gpt_neox", "qwen3_next", "deepseek_v2", "minicpm3", "gemma2", "granite"]
)
def test_rotary_angles_are_the_modules_own(name: str, saved: Any) -> None:
    folder, model = saved(name)
    theirs = next(buffer for key, buffer in model.named_buffers() if key.endswith("inv_freq")).float()
    attention = [
        b.attention
        for b in open_model(folder).stack.main.blocks
        if b.attention and not isinstance(b.attention.kv, State)
    ]
    rope = attention[0].positions
    assert isinstance(rope, Rope)
    ours = rope.base ** (-torch.arange(0, rope.dim, 2, dtype=torch.float64) / rope.dim)
    assert torch.allclose(ours.float(), theirs, rtol=1e-5)


def test_latent_sizes_and_scale(saved: Any) -> None:
    folder, _ = saved("deepseek_v3")
    attention = open_model(folder).stack.main.blocks[0].attention
    assert attention is not None
    assert isinstance(attention.kv, Latent)
    assert (attention.kv.rank, attention.kv.rope_dim, attention.kv.nope_dim) == (14, 4, 10)
    assert (attention.kv.v_head_dim, attention.kv.q_rank) == (8, 18)
    assert attention.scale == pytest.approx(14**-0.5)  # nope + rope, never rank + rope (case O81)


def test_projected_embeddings_are_refused(saved: Any) -> None:
    folder, _ = saved("opt-350m")
    with pytest.raises(CheckpointError, match="word_embed_proj_dim 20 differs from hidden_size 36"):
        open_model(folder)


def test_a_bare_model_is_read_without_its_head(tmp_path: Path, saved: Any) -> None:
    _, model = saved("llama")
    model.model.save_pretrained(tmp_path)
    found = open_model(tmp_path)
    assert found.parameters_stored == sum(p.numel() for p in model.model.parameters())
    assert found.stack.head == "none"
    assert any("without its head" in note for note in found.notes)


def test_shards_say_the_same(tmp_path: Path, saved: Any) -> None:
    folder, model = saved("mixtral")
    model.save_pretrained(tmp_path, max_shard_size="100KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 1
    whole, parts = open_model(folder), open_model(tmp_path)
    assert parts.parameters_stored == whole.parameters_stored  # case O65
    assert parts.stack == whole.stack


def test_gemma3_with_images_prices_its_text_part(tmp_path: Path) -> None:
    text = DECODERS["gemma3_text"]["settings"]
    vision = {"hidden_size": 24, "intermediate_size": 28, "num_hidden_layers": 1, "num_attention_heads": 2,
              "image_size": 28, "patch_size": 14}  # fmt: skip
    config = transformers.Gemma3Config(text_config={**text, **TOKENS}, vision_config=vision, mm_tokens_per_image=4)
    model = transformers.Gemma3ForConditionalGeneration(config)
    model.save_pretrained(tmp_path)
    found = open_model(tmp_path)
    language = sum(p.numel() for p in model.model.language_model.parameters())
    assert found.parameters_stored == language
    assert any("text_config" in note for note in found.notes)
    assert any("outside the text model" in note for note in found.notes)


def test_config_alone_and_folder_say_the_same(saved: Any) -> None:
    folder, _ = saved("qwen3_moe")
    alone = open_model(folder / "config.json")
    assert alone.stack == open_model(folder).stack
    assert alone.parameters_stored is None
    assert json.loads((folder / "config.json").read_text())["model_type"] == "qwen3_moe"


STRAY = ("head_dim", "v_head_dim", "d_kv", "attention_head_dim", "num_key_value_heads", "num_kv_heads")


def _weights_of(settings: dict[str, Any], name: str) -> int:
    """Numbers in the parameters that transformers' class builds."""
    case = DECODERS.get(name) or ENCODERS[name]
    config = transformers.CONFIG_MAPPING[case["model_type"]](**{**TOKENS, **settings})
    with torch.device("meta"):
        kind = (
            transformers.AutoModelForCausalLM.from_config if name in DECODERS else getattr(transformers, case["class"])
        )
        return sum(p.numel() for p in kind(config).parameters())


@pytest.mark.parametrize("name", [name for name in (*DECODERS, *ENCODERS) if name not in NOT_DESCRIBED])
def test_a_size_of_heads_that_the_class_ignores_is_not_priced(name: str) -> None:
    """A key more: it changes what we predict by as much as what transformers builds, or is refused by its name."""
    case = DECODERS.get(name) or ENCODERS[name]
    transformers.logging.set_verbosity(50)
    before = {"model_type": case["model_type"], **case["settings"]}
    ours, theirs = count(weights(read_config(before).stack)), _weights_of(case["settings"], name)
    head_dim = read_config(before).stack.main.blocks[0].attention.head_dim
    for key in STRAY:
        value = 1 if key.endswith("kv_heads") else 2 * head_dim
        found = None if key in case["settings"] else _priced(before | {key: value}, key)
        if found is not None:
            assert found - ours == _weights_of({**case["settings"], key: value}, name) - theirs, key


def _priced(settings: dict[str, Any], key: str) -> int | None:
    """Numbers in the weights that are predicted; None where `key` is refused by its name."""
    try:
        return count(weights(read_config(settings).stack))
    except CheckpointError as error:
        if key not in str(error):
            raise
        return None


def test_a_size_that_the_class_works_out_may_be_said_as_it_is() -> None:
    case = DECODERS["gpt_neox"]
    before = {"model_type": "gpt_neox", **case["settings"]}
    plain = read_config(before)
    head_dim, heads = plain.stack.main.blocks[0].attention.head_dim, plain.stack.main.blocks[0].attention.num_heads
    agreeing = {"head_dim": head_dim, "v_head_dim": head_dim, "num_key_value_heads": heads}
    assert read_config(before | agreeing).stack == plain.stack
    words = f"head_dim = {head_dim + 2} is not understood: transformers' class of gpt_neox does not read it and takes {head_dim}"
    with pytest.raises(CheckpointError, match=words):
        read_config(before | {"head_dim": head_dim + 2})
    assumed = read_config(before | {"head_dim": head_dim + 2}, assume="full")
    assert count(weights(assumed.stack)) == count(weights(plain.stack))


def test_what_no_class_is_known_of_may_spell_its_sizes_as_it_likes() -> None:
    sizes = {
        "hidden_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 6,
        "intermediate_size": 64,
        "vocab_size": 32,
    }
    found = (
        read_config(sizes | {"attention_head_dim": 12, "num_kv_heads": 2, "v_head_dim": 10})
        .stack.main.blocks[0]
        .attention
    )
    assert (found.head_dim, found.v_head_dim, found.kv.num_kv_heads) == (12, 10, 2)


@pytest.mark.parametrize("name", [name for name in DECODERS if name not in NOT_DESCRIBED and name != "gptj"])
def test_how_much_of_a_head_is_turned_is_what_the_class_turns(name: str) -> None:
    """Half of a head by another key than the class reads is refused by its name; what is read is as long as its table."""
    case = DECODERS[name]
    before = {"model_type": case["model_type"], **case["settings"]}
    attention = read_config(before).stack.main.blocks[0].attention
    if not isinstance(attention.positions, Rope) or isinstance(attention.kv, Latent):
        return
    nested = {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5}}
    for more in ({}, {"rotary_dim": 2}, {"partial_rotary_factor": 0.5}, {"rotary_pct": 0.5}, nested):
        if any(key in case["settings"] for key in more) or (more is nested and case["model_type"] == "gpt_neox"):
            continue
        try:
            found = read_config(before | more).stack.main.blocks[0].attention.positions.dim
        except CheckpointError as error:
            if not any(key in str(error) for key in (*more, "partial_rotary_factor")):
                raise
            continue
        config = transformers.CONFIG_MAPPING[case["model_type"]](**{**TOKENS, **case["settings"], **more})
        with torch.device("meta"):
            model = transformers.AutoModelForCausalLM.from_config(config)
        tables = {
            2 * t.shape[-1] for key, t in model.named_buffers() if key.endswith("inv_freq") and "original" not in key
        }
        assert tables == {found}, more
