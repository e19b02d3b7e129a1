"""Pruned models as files: stock transformers loads the first two rungs of the ladder, our loader the third, all with the
logits of the masked model; bytes are the cost model's; what fails leaves nothing behind."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import struct
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from safetensors.torch import load_file  # noqa: E402

import manyheads  # noqa: E402
from manyheads.checkpoints import open_model  # noqa: E402
from manyheads.checkpoints.locate import Located  # noqa: E402
from manyheads.errors import BackendError, CheckpointError, ConversionError, ManyheadsError  # noqa: E402
from manyheads.heads.pruning import export as exporting  # noqa: E402
from manyheads.heads.pruning import export_pruned, load_pruned, mask  # noqa: E402
from manyheads.heads.pruning.record import HowChosen, Losses  # noqa: E402
from manyheads.models.door.door import open_door  # noqa: E402
from manyheads.models.load.model import load  # noqa: E402
from manyheads.models.random_inputs import logits_of, random_batch  # noqa: E402
from manyheads.models.resident_bytes import Inputs, measure_cache  # noqa: E402
from manyheads.models.store.output_folder import check_folder  # noqa: E402
from manyheads.report.jsonform import as_json  # noqa: E402
from support import (  # noqa: E402
    rounding,
    tiny_models,
)
from support import tiny_transformers as tiny  # noqa: E402


@pytest.fixture
def saved(tmp_path: Path) -> Any:
    """Saves a tiny model, with parameters that are all random, and returns its folder and itself."""

    def save(name: str) -> tuple[Path, Any]:
        model = tiny.build(name)
        model.save_pretrained(tmp_path / name)
        return tmp_path / name, model

    return save


def masked(model: Any, heads: Any) -> rounding.Exact:
    """`logits_of` the model with these heads closed."""
    return rounding.model(model, random_batch(model), around=lambda wide: open_door(wide, gates=[mask(wide, heads)]))


def stock(folder: Path) -> Any:
    """As anyone loads it, every weight from the files."""
    kind = getattr(transformers, json.loads((folder / "config.json").read_text())["architectures"][0])
    model, info = kind.from_pretrained(folder, output_loading_info=True)
    assert not info["missing_keys"]
    assert not info["mismatched_keys"]
    assert not info["unexpected_keys"]
    return model.eval()


GROUPS = {0: (0, 1, 2), 1: (3, 4, 5), 2: (0, 1, 2), 3: (3, 4, 5), 4: (0, 1, 2), 5: (0, 1, 2), 6: (3, 4, 5)}
UNIFORM = {
    "llama": 3, "llama-biases-tied": 2, "mistral": 3, "qwen2": 4, "qwen3": 3, "gemma2": 5, "gemma3_text": 7, "granite": 2,
    "cohere2": 5, "phi": 2, "phi3": 2, "olmo": 2,
}  # fmt: skip


@pytest.mark.parametrize("name", list(UNIFORM))
def test_uniform_counts_reload_as_a_stock_class(saved, tmp_path: Path, name: str) -> None:
    folder, model = saved(name)
    heads = {layer: GROUPS[layer] for layer in range(UNIFORM[name])}
    done = export_pruned(folder, heads, tmp_path / "out")
    assert done.form.name == "uniform"
    loaded = stock(tmp_path / "out")
    assert (loaded.config.num_attention_heads, loaded.config.num_key_value_heads) == (3, 1)
    wanted = masked(model, heads)
    assert wanted.told(logits_of(model))
    assert wanted.holds(logits_of(loaded))
    assert done.tensor_bytes == done.predicted_bytes == 4 * sum(p.numel() for p in loaded.parameters())
    assert done.cache_bytes * 2 == done.cache_before_bytes


def test_a_llama_whose_class_refuses_the_count_becomes_a_mistral_with_the_same_logits(tmp_path: Path) -> None:
    """36 wide and 6 heads of its own group: 5 do not divide 36, which the Llama class asks for; peers.md, rung 2."""
    torch.manual_seed(3)
    config = transformers.LlamaConfig(
        hidden_size=36, intermediate_size=52, num_hidden_layers=2, num_attention_heads=6, num_key_value_heads=6, head_dim=10,
        vocab_size=97, max_position_embeddings=64, rope_parameters={"rope_type": "linear", "factor": 2.0, "rope_theta": 5e4},
    )  # fmt: skip
    model = transformers.LlamaForCausalLM(config).eval()
    model.save_pretrained(tmp_path / "src")
    with pytest.raises(Exception, match="multiple of the number of attention heads"):
        transformers.LlamaConfig(hidden_size=36, num_attention_heads=5, head_dim=10)
    done = export_pruned(tmp_path / "src", {0: (1,), 1: (4,)}, tmp_path / "out")
    loaded = stock(tmp_path / "out")
    assert type(loaded).__name__ == "MistralForCausalLM"
    assert "Mistral" in done.form.why
    assert (loaded.config.num_attention_heads, loaded.config.sliding_window) == (5, None)
    assert masked(model, {0: (1,), 1: (4,)}).holds(logits_of(loaded))


@pytest.mark.parametrize(
    "name", ["gpt2", "bert-masked-lm", "bart", "whisper", "olmo2", "llama", "minicpm3", "distilbert"]
)
def test_what_no_configuration_can_say_is_padded_and_loads_anywhere(saved, tmp_path: Path, name: str) -> None:
    folder, model = saved(name)
    heads = {0: (2,)}
    done = export_pruned(folder, heads, tmp_path / "out")
    assert done.form.name == "padded"
    loaded = stock(tmp_path / "out")
    assert type(loaded) is type(model)
    assert masked(model, heads).holds(logits_of(loaded))
    assert done.tensor_bytes == done.before_bytes


@pytest.mark.parametrize(
    "name", ["llama", "gpt2", "gpt_neox", "bert-masked-lm", "bart", "qwen3", "minicpm3", "stablelm-12b"]
)
def test_the_compact_form_needs_our_loader_and_the_stock_one_refuses_it(saved, tmp_path: Path, name: str) -> None:
    folder, model = saved(name)
    heads = {0: (0, 1, 2)} if name != "bart" else {"encoder": {1: (1, 5)}, "cross": {0: (0, 2)}}
    done = export_pruned(folder, heads, tmp_path / "out", form="compact")
    assert done.tensor_bytes == done.predicted_bytes < done.before_bytes
    loaded = load_pruned(tmp_path / "out")
    assert type(loaded.model) is type(model)
    assert masked(model, heads).holds(logits_of(loaded.model))
    stored = [*loaded.model.parameters(), *(b for n, b in loaded.model.named_buffers() if n == "final_logits_bias")]
    assert 4 * sum(tensor.numel() for tensor in stored) == done.tensor_bytes
    with pytest.raises(Exception, match=r"(?i)size|shape|mismatch"):
        type(model).from_pretrained(tmp_path / "out")


@pytest.mark.parametrize("family", ["mixtral", "gpt_oss", "deepseek_v3", "qwen3_next"])
def test_mixtures_and_latent_attention_too(tmp_path: Path, family: str) -> None:
    """Their modules hold other tensors than their files do, and the sizes of tiny_transformers do not run outside eager."""
    folder = tiny_models.save(family, tmp_path / "src", tokenizer=False)
    layer = 3 if family == "qwen3_next" else 0  # the others of qwen3_next are linear
    done = export_pruned(folder, {layer: (0, 1)}, tmp_path / "out", form="compact")
    assert done.tensor_bytes == done.predicted_bytes < done.before_bytes
    assert done.difference is not None
    assert done.difference <= 1e-5


@pytest.mark.parametrize("form", ["uniform", "compact"])
def test_the_cache_is_as_small_as_predicted(tmp_path: Path, form: str) -> None:
    folder = tiny_models.save("qwen3", tmp_path / "src")  # 4 heads in 2 groups, of size 8, in 2 layers
    heads = {0: (0, 1), 1: (2, 3)} if form == "uniform" else {0: (0, 1)}
    done = export_pruned(folder, heads, tmp_path / "out", form=form)
    one_head = 2 * 8 * 4  # a key and a value of one head of one layer, in float32
    assert (done.cache_before_bytes, done.cache_bytes) == (4 * one_head, (2 if form == "uniform" else 3) * one_head)
    loaded = load_pruned(tmp_path / "out").model
    measured = measure_cache(
        loaded, open_model(tmp_path / "out").stack, Inputs(tuple(range(3, 20))), dtype="fp32", seed=0
    )
    assert measured.equal
    assert measured.prefill.logical.measured == 16 * done.cache_bytes
    ids = torch.tensor([[5, 6, 7]])
    options = {"max_new_tokens": 5, "do_sample": False, "eos_token_id": None}
    assert torch.equal(loaded.generate(ids, **options), loaded.generate(ids, use_cache=False, **options))


def test_prunings_compose_through_files_by_original_numbers(saved, tmp_path: Path) -> None:
    folder, model = saved("gpt2")
    export_pruned(folder, {0: (1,), 1: (2, 3)}, tmp_path / "one", form="compact")
    done = export_pruned(tmp_path / "one", {1: (1, 2), 0: (5,)}, tmp_path / "two", form="compact")
    kept = {row["layer"]: row["kept"] for row in json.loads((tmp_path / "two" / "pruning.json").read_text())["layers"]}
    assert kept == {0: [0, 2, 3, 4], 1: [0, 4, 5]}
    assert [str(head) for head in done.plan.again] == ["1:2"]
    heads = {0: (1, 5), 1: (1, 2, 3)}
    assert masked(model, heads).holds(logits_of(load_pruned(tmp_path / "two").model))
    with pytest.raises(ConversionError, match="nothing to prune"):
        export_pruned(tmp_path / "two", {1: (2,)}, tmp_path / "three")
    assert not (tmp_path / "three").exists()


def test_a_uniform_export_is_pruned_again(saved, tmp_path: Path) -> None:
    folder, model = saved("mistral")
    export_pruned(folder, {layer: GROUPS[layer] for layer in range(3)}, tmp_path / "one")
    export_pruned(tmp_path / "one", {0: (4,)}, tmp_path / "two")  # of what is left, 3, 4 and 5
    heads = {layer: GROUPS[layer] for layer in range(3)} | {0: (0, 1, 2, 4)}
    assert masked(model, heads).holds(logits_of(stock(tmp_path / "two")))


def test_a_model_pruned_in_memory_survives_save_pretrained(saved, tmp_path: Path) -> None:
    from manyheads.heads.pruning import prune

    _, model = saved("qwen3")
    prune(model, {0: (0, 1, 2)})
    model.save_pretrained(tmp_path / "kept")
    loaded = load_pruned(tmp_path / "kept").model
    kept = model.state_dict()
    assert all(torch.equal(tensor, kept[name]) for name, tensor in loaded.state_dict().items())
    assert rounding.model(model, random_batch(model)).holds(logits_of(loaded))


def test_what_stands_beside_the_weights(tmp_path: Path) -> None:
    folder = tiny_models.save("llama", tmp_path / "src")
    export_pruned(folder, {0: (0, 1), 1: (2, 3)}, tmp_path / "out")
    assert {path.name for path in (tmp_path / "out").iterdir()} >= {
        "config.json", "model.safetensors", "pruning.json", "README.md", "tokenizer.json", "tokenizer_config.json"
    }  # fmt: skip
    told = json.loads((tmp_path / "out" / "pruning.json").read_text())
    assert told["schema"] == "manyheads.pruning/1"
    assert told["removed_now"] == [["decoder", 0, 0], ["decoder", 0, 1], ["decoder", 1, 2], ["decoder", 1, 3]]
    assert "0:0,1;1:2,3" in (tmp_path / "out" / "README.md").read_text()
    assert transformers.AutoTokenizer.from_pretrained(tmp_path / "out")("a b")["input_ids"]


def test_the_model_is_called_what_its_user_calls_it(tmp_path: Path) -> None:
    """A GGUF file is written on from a folder in the cache, of which nobody knows the name."""
    folder = tiny_models.save("llama", tmp_path / "src")
    found = load(folder)
    shutil.copytree(folder, tmp_path / "cache" / "0a1b2c-transformers-5.0.0")
    named = tmp_path / "named" / "My-Model.Q8_0.gguf"
    named.parent.mkdir()
    named.write_bytes(_gguf_that_says("general.license", "apache-2.0"))
    checkpoint = replace(found.checkpoint, located=Located("gguf", str(named)))
    kept = replace(found, kept=str(tmp_path / "cache" / "0a1b2c-transformers-5.0.0"), checkpoint=checkpoint)
    export_pruned(checkpoint, {0: (0, 1), 1: (2, 3)}, tmp_path / "out", loaded=kept)
    card, told = ((tmp_path / "out" / name).read_text() for name in ("README.md", "pruning.json"))
    assert card.startswith('---\nlicense: "apache-2.0"\n---\n\n# My-Model.Q8_0 without some of its attention heads')
    assert json.loads(told)["model"] == json.loads(told)["original"] == "My-Model.Q8_0"
    assert json.loads(told)["source"]["files"] == [
        {"name": named.name, "bytes": len(named.read_bytes()), "sha256": hashlib.sha256(named.read_bytes()).hexdigest()}
    ]
    assert "0a1b2c" not in card + told
    export_pruned(folder, {0: (0, 1), 1: (2, 3)}, tmp_path / "again")
    assert json.loads((tmp_path / "again" / "pruning.json").read_text())["model"] == "src"


def _gguf_that_says(key: str, value: str) -> bytes:
    """The header of a GGUF file, version 3, of no tensors and one string (type 8): the format's specification."""
    texts = [struct.pack("<Q", len(text)) + text.encode() for text in (key, value)]
    return b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + texts[0] + struct.pack("<I", 8) + texts[1]


def test_an_export_says_where_it_came_from_and_what_it_lost(tmp_path: Path) -> None:
    folder = tiny_models.save("llama", tmp_path / "src")
    (folder / "README.md").write_text("---\nlicense: other\nlicense_name: mine\ntags: [a]\n---\n# A model\n")
    (folder / "LICENSE.txt").write_text("Do as you like.\n")
    (folder / "notice").write_text("By me.\n")
    losses = Losses(
        reason="", objective="next token", loss_is="mean", unit="nats a token", before=2.0, after=2.25, change=0.25,
        interval=(0.125, 0.375), tokens=1_024, windows=4, text="a.txt", text_sha256="ab" * 32, goes_on=False, init=None,
    )  # fmt: skip
    choice = HowChosen("greedy by ablation to the mean", 3, losses)
    export_pruned(folder, {0: (0, 1)}, tmp_path / "out", choice=choice)
    told, card = (
        json.loads((tmp_path / "out" / "pruning.json").read_text()),
        (tmp_path / "out" / "README.md").read_text(),
    )
    assert {key: told[key] for key in ("chosen", "rounds", "losses")} == as_json(choice)
    assert (told["model"], told["original"], told["earlier"]) == ("src", "src", [])
    assert told["versions"]["manyheads"] == manyheads.__version__
    hashes = {
        name: hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in ("config.json", "model.safetensors")
    }
    assert {file["name"]: file["sha256"] for file in told["source"]["files"]} == hashes
    assert told["licence"] == {"license": "other", "license_name": "mine", "files": ["LICENSE.txt", "notice"]}
    assert [(tmp_path / "out" / name).read_text() for name in ("LICENSE.txt", "notice")] == [
        "Do as you like.\n",
        "By me.\n",
    ]
    assert card.startswith('---\nlicense: "other"\nlicense_name: "mine"\n---\n\n# src without')
    for said in (
        "Chosen: greedy by ablation to the mean, asked 3 times.", "2.0000 before, 2.2500 after (+0.2500, 95% +0.1250 to +0.3750)",
        f"on 1,024 tokens of a.txt (sha256 {'ab' * 32}) in 4 windows", f"Written by manyheads {manyheads.__version__}.",
        *hashes.values(), "License: other (text: LICENSE.txt, notice)",
    ):  # fmt: skip
        assert said in card


def test_a_second_pruning_numbers_heads_by_the_first_model_and_says_so(saved, tmp_path: Path) -> None:
    folder, _ = saved("gpt2")
    export_pruned(folder, {0: (1,), 1: (2, 3)}, tmp_path / "one", form="compact")
    export_pruned(tmp_path / "one", {0: (5,)}, tmp_path / "two", form="compact")
    export_pruned(tmp_path / "two", {0: (0,)}, tmp_path / "three", form="compact")
    told, card = (
        (tmp_path / "three" / "pruning.json").read_text(), (tmp_path / "three" / "README.md").read_text()
    )  # fmt: skip
    first, second = json.loads(told)["earlier"]
    assert (json.loads(told)["model"], json.loads(told)["original"]) == ("two", "gpt2")
    assert (first["model"], first["removed_now"]) == ("gpt2", [["decoder", 0, 1], ["decoder", 1, 2], ["decoder", 1, 3]])
    assert (second["model"], second["removed_now"], second["losses"]) == (
        "one", [["decoder", 0, 5]], {"reason": "not measured"}
    )  # fmt: skip
    assert "Removed in all (layer:head, numbered as in gpt2): 0:0,1,5;1:2,3" in card
    assert "Of these 0:0 went now; 4 had gone before two was made." in card
    os.unlink(tmp_path / "two" / "pruning.json")
    export_pruned(tmp_path / "two", {0: (0,)}, tmp_path / "four", form="compact")
    assert (
        "the model that two was first pruned from, whose name is not recorded"
        in (tmp_path / "four" / "README.md").read_text()
    )
    assert json.loads((tmp_path / "four" / "pruning.json").read_text())["original"] is None


@pytest.mark.parametrize("card", ["", "no block", "---\n- a\n---\n", "---\nlicense: [\n---\n", "---\nlicense: {a: b}\n---\n",
                                  "---\nlicense: 7\n---\n", f"---\nlicense: {'x' * 2_000_000}\n---\n"])  # fmt: skip
def test_a_card_that_says_nothing_is_no_licence(tmp_path: Path, card: str) -> None:
    folder = tiny_models.save("llama", tmp_path / "src", tokenizer=False)
    (folder / "README.md").write_text(card)
    export_pruned(folder, {0: (0, 1)}, tmp_path / "out", check=False)
    assert json.loads((tmp_path / "out" / "pruning.json").read_text())["licence"] == {"files": []}
    assert "src states no license here" in (tmp_path / "out" / "README.md").read_text()


@pytest.mark.parametrize("name", ["llama", "mixtral", "gpt2", "t5"])
def test_the_shards_of_the_source_stay(tmp_path: Path, name: str) -> None:
    """As many files, each holding what its namesake held and no more bytes than that."""
    model = tiny.build(name)
    model.save_pretrained(tmp_path / "src", max_shard_size=40_000)
    files = sorted(path.name for path in (tmp_path / "src").glob("*.safetensors"))
    assert len(files) > 2
    heads = "decoder/0:0-2" if name == "t5" else "0:0-2"
    export_pruned(tmp_path / "src", heads, tmp_path / "out", form="padded")
    assert sorted(path.name for path in (tmp_path / "out").glob("*.safetensors")) == files
    for file in files:
        before, after = (load_file(tmp_path / where / file) for where in ("src", "out"))
        assert set(after) == set(before)
        assert sum(x.nbytes for x in after.values()) <= sum(x.nbytes for x in before.values())
    written = load(tmp_path / "out").model
    assert masked(model, heads).holds(logits_of(written))


def test_zeros_are_not_told_as_a_gain(saved, tmp_path: Path) -> None:
    folder, _ = saved("llama")
    same = export_pruned(folder, {0: (0, 1)}, tmp_path / "same", form="compact")
    less = export_pruned(folder, {0: (0, 1, 2)}, tmp_path / "less", form="compact")
    assert same.tensor_bytes == same.before_bytes > less.tensor_bytes
    said = "Zeros stand where these heads were: nothing is smaller."
    assert said in (tmp_path / "same" / "README.md").read_text()
    assert said not in (tmp_path / "less" / "README.md").read_text()
    assert repr(less) == (
        f"Exported(3 heads removed, compact form in {tmp_path / 'less'}: {less.tensor_bytes:,} of {less.before_bytes:,} bytes "
        f"of weights, {less.cache_bytes} of {less.cache_before_bytes} bytes of cache a token)"
    )


def test_the_difference_in_float32_is_told_where_float64_decided(saved, tmp_path: Path, monkeypatch: Any) -> None:
    folder, _ = saved("llama")
    found = iter([(3e-3, 2.0), (0.0, 2.0)])  # a model that magnifies float32's rounding
    monkeypatch.setattr(exporting, "_apart", lambda *_: next(found))
    done = export_pruned(folder, {0: (0, 1, 2)}, tmp_path / "out")
    assert (done.checked, done.difference, done.float32_difference) == ("float64", 0.0, 3e-3)
    check = json.loads((tmp_path / "out" / "pruning.json").read_text())["check"]
    assert (check["in"], check["largest_difference"], check["largest_difference_float32"]) == ("float64", 0.0, 3e-3)
    assert "0.0e+00 in float64 and 3.0e-03 in float32" in (tmp_path / "out" / "README.md").read_text()


def test_python_callers_are_told_arguments(saved, tmp_path: Path) -> None:
    folder, _ = saved("olmo2")
    with pytest.raises(ConversionError, match=r'valid: form="padded"'):
        export_pruned(folder, {0: (0,)}, tmp_path / "out", form="compact")
    folder, _ = saved("jamba")
    with pytest.raises(CheckpointError) as caught:
        export_pruned(folder, {1: (0,)}, tmp_path / "out")
    assert "is not understood" in str(caught.value)
    assert "heads of attention that is not understood cannot be removed" in str(caught.value)
    assert "assume=" not in str(caught.value)


def test_types_are_kept(tmp_path: Path) -> None:
    folder = tiny_models.save("llama", tmp_path / "src", dtype="bfloat16")
    done = export_pruned(folder, {0: (0, 1), 1: (2, 3)}, tmp_path / "out")
    assert done.tensor_bytes == done.predicted_bytes == 2 * sum(p.numel() for p in stock(tmp_path / "out").parameters())


def _bystanders(tmp_path: Path) -> set[str]:
    return set(os.listdir(tmp_path))


@pytest.mark.parametrize(
    ("name", "heads", "form", "error", "said"),
    [
        ("llama", {3: (0,)}, "auto", ManyheadsError, "there is no layer 3"),
        ("llama", {}, "auto", ConversionError, "nothing to prune"),
        ("llama", {0: (0, 1, 2)}, "uniform", ConversionError, "no uniform form"),
        ("olmo2", {0: (0,)}, "compact", ConversionError, "no compact form"),
        ("phi3", {0: (0, 1, 2)}, "compact", ConversionError, "takes its head counts from the configuration"),
        ("llama", {0: (0,)}, "square", ManyheadsError, "is not one of auto, uniform, padded, compact"),
        ("bloom", {0: (0,)}, "auto", BackendError, "does not pass through"),
    ],
)
def test_what_cannot_be_written_leaves_nothing_behind(
    saved, tmp_path: Path, name: str, heads: Any, form: str, error: type[Exception], said: str
) -> None:
    folder, _ = saved(name)
    before = _bystanders(tmp_path)
    with pytest.raises(error, match=said) as caught:
        export_pruned(folder, heads, tmp_path / "deep" / "out", form=form)
    assert "\n" not in str(caught.value)
    assert _bystanders(tmp_path) - {"deep"} == before
    assert not (tmp_path / "deep").exists() or not os.listdir(tmp_path / "deep")


@pytest.mark.parametrize("name", ["x" * 256, "/".join(["d" * 200] * 30), "/".join(["d" * 200] * 19)])
def test_names_too_long_for_the_system_are_refused_before_the_work(tmp_path: Path, name: str) -> None:
    with pytest.raises(CheckpointError, match=r"File name too long; valid: a shorter one$"):
        check_folder(tmp_path / name)
    assert os.listdir(tmp_path) == []


def test_logits_that_differ_are_refused_and_nothing_is_left(
    saved, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, _ = saved("llama")
    real = exporting.load

    def wrong(model: Any, **options: Any) -> Any:
        loaded = real(model, **options)
        if loaded.source != str(folder):
            with torch.no_grad():
                loaded.model.model.layers[0].self_attn.o_proj.weight[0, 0] += 1e-3
        return loaded

    monkeypatch.setattr(exporting, "load", wrong)
    with pytest.raises(ConversionError, match="differ from the masked model's"):
        export_pruned(folder, {0: (1,)}, tmp_path / "out")
    assert _bystanders(tmp_path) == {"llama"}


def test_a_folder_in_use_and_a_full_disk(saved, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, _ = saved("llama")
    (tmp_path / "used").mkdir()
    (tmp_path / "used" / "mine.txt").write_text("x")
    with pytest.raises(CheckpointError, match="is there already"):
        export_pruned(folder, {0: (1,)}, tmp_path / "used")
    assert os.listdir(tmp_path / "used") == ["mine.txt"]

    def full(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(exporting, "card", full)
    with pytest.raises(CheckpointError, match="No space left on device"):
        export_pruned(folder, {0: (1,)}, tmp_path / "out")
    assert _bystanders(tmp_path) == {"llama", "used"}


def test_a_load_that_would_leave_an_attention_weight_fresh_fails(saved, tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    folder, _ = saved("llama")
    export_pruned(folder, {0: (0, 1, 2)}, tmp_path / "out", form="compact")
    path = tmp_path / "out" / "model.safetensors"
    tensors = load_file(path)
    gone = tensors.pop("model.layers.0.self_attn.v_proj.weight")
    save_file(tensors, path, metadata={"format": "pt"})
    with pytest.raises(CheckpointError, match=r"self_attn\.v_proj"):
        load_pruned(tmp_path / "out")
    with pytest.raises(CheckpointError, match=r"not in its files .*v_proj"):  # past our header check too
        load(tmp_path / "out" / "config.json")
    tensors["model.layers.0.self_attn.v_proj.weight"] = torch.cat([gone, gone])
    save_file(tensors, path, metadata={"format": "pt"})
    with pytest.raises(CheckpointError, match="shape"):
        load_pruned(tmp_path / "out")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"version": 2}, "version 2"),
        ({"form": "round"}, "form 'round'"),
        ({"layers": "all"}, "a list of layers"),
        ({"layers": [{"stage": "decoder", "layer": 0, "heads": 6, "kv_heads": 2, "slots": [0, 0], "kv_slots": [0]}]}, "each once"),
        ({"layers": [{"stage": "decoder", "layer": 7, "heads": 6, "kv_heads": 2, "slots": [0], "kv_slots": [0]}]}, "no such attention"),
        ({"layers": [{"stage": "decoder", "layer": 0, "heads": 6, "kv_heads": 2, "slots": [0, 1, 2], "kv_slots": [0, 1]}]}, "whole groups"),
        ({"layers": [{"stage": "decoder", "layer": 0, "heads": 8, "kv_heads": 2, "slots": [0], "kv_slots": [0]}]}, "speaks of 8 heads"),
    ],
)  # fmt: skip
def test_a_broken_record_is_one_line(saved, tmp_path: Path, change: dict[str, Any], said: str) -> None:
    folder, _ = saved("llama")
    export_pruned(folder, {0: (0, 1, 2)}, tmp_path / "out", form="compact", check=False)
    path = tmp_path / "out" / "config.json"
    config = json.loads(path.read_text())
    config["manyheads_pruning"] |= change
    path.write_text(json.dumps(config))
    with pytest.raises(CheckpointError) as caught:
        load_pruned(tmp_path / "out")
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_load_pruned_is_for_what_was_pruned(saved) -> None:
    folder, _ = saved("llama")
    with pytest.raises(CheckpointError, match="no record of removed heads"):
        load_pruned(folder)


@pytest.mark.real
def test_smollm2_without_a_group_in_every_layer(smollm2, tmp_path: Path) -> None:
    """SmolLM2: 30 layers of 9 heads in 3 groups of 64; two groups left make 6 heads, which the Llama class takes."""
    loaded = smollm2
    heads = {layer: (3 * (layer % 3), 3 * (layer % 3) + 1, 3 * (layer % 3) + 2) for layer in range(30)}
    source = loaded.kept or loaded.source
    done = export_pruned(source, heads, tmp_path / "out", loaded=loaded)
    assert done.form.name == "uniform"
    # Blind pruning leaves a model that magnifies rounding: whether float32 decides or float64 has to, is the processor's.
    assert done.checked in ("float32", "float64")
    assert done.difference <= exporting.TOLERANCE * max(1.0, done.logits_size)
    assert done.tensor_bytes == done.predicted_bytes
    # Of each layer: 2 x 3 x 64 rows of q and columns of o, 2 x 64 of k and v, each 576 long, in float32.
    assert done.before_bytes - done.tensor_bytes == 30 * (2 * 3 * 64 + 2 * 64) * 576 * 4
    model = stock(tmp_path / "out")
    ids = torch.tensor([[1, 504, 3575, 282, 4649, 314]])
    options = {"max_new_tokens": 8, "do_sample": False}
    loaded.model.double(), model.double()  # or rounding would choose between words that are equally likely
    try:
        with open_door(loaded.model, gates=[mask(loaded.model, heads)]):
            wanted = loaded.model.generate(ids, **options)
        assert torch.equal(model.generate(ids, **options), wanted)
    finally:
        loaded.model.float()
