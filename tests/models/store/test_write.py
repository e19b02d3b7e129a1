"""Writing a model: what transformers reads back is the same model, whole or not there at all."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import safetensors.torch
import torch
import transformers
from safetensors.torch import load_file

from manyheads.checkpoints import open_model
from manyheads.errors import CheckpointError
from manyheads.models.store.read import open_store
from manyheads.models.store.write import write_store
from support import rounding
from support.tiny_transformers import CASES, build, inputs, logits


def save(name: str, folder: Path, **changes: Any) -> Any:
    model = build(name, **changes)
    transformers.logging.disable_progress_bar()
    model.save_pretrained(folder)
    return model


def again(name: str, folder: Path) -> Any:
    cls = getattr(transformers, CASES[name].get("class", "AutoModelForCausalLM"))
    model, info = cls.from_pretrained(
        folder, output_loading_info=True, attn_implementation="eager", experts_implementation="eager"
    )
    assert not info["missing_keys"]
    assert not info["unexpected_keys"]
    return model.eval()


@pytest.mark.parametrize(
    "name",
    ["llama", "llama-biases-tied", "phi3", "gpt2", "gpt_neox", "falcon-40b", "bloom", "mixtral", "gpt_oss", "deepseek_v3",
     "qwen3_next", "t5", "bart", "whisper", "marian", "bert", "gemma2", "t5-encoder"],
)  # fmt: skip
@pytest.mark.parametrize("shard_bytes", [10**9, 40_000])
def test_transformers_loads_what_is_written(name: str, shard_bytes: int, tmp_path: Path) -> None:
    model = save(name, tmp_path / "a")
    with open_store(tmp_path / "a") as store:
        config = json.loads((tmp_path / "a" / "config.json").read_text())
        written = write_store(tmp_path / "b", store, config=config, shard_bytes=shard_bytes)
    assert (len(written.files) == 1) == (shard_bytes == 10**9)
    read = again(name, tmp_path / "b")
    stored = model.state_dict()
    assert set(read.state_dict()) == set(stored)
    assert all(torch.equal(tensor, stored[key]) for key, tensor in read.state_dict().items())
    # Where a file puts a tensor in memory decides how it is multiplied, and so how rounding falls.
    assert rounding.model(model, inputs(name)).holds(logits(read, inputs(name)))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b"]


@pytest.mark.skipif(os.name == "nt", reason="permissions of another kind")
@pytest.mark.parametrize(("mask", "mode"), [(0o022, 0o644), (0o027, 0o640), (0o002, 0o664)])
@pytest.mark.parametrize("shard_bytes", [10**9, 40_000])
def test_files_can_be_read_by_whom_the_umask_says(mask: int, mode: int, shard_bytes: int, tmp_path: Path) -> None:
    model = save("llama", tmp_path / "a")
    before = os.umask(mask)
    try:
        with open_store(tmp_path / "a") as store:
            write_store(
                tmp_path / "b", store, config=model.config.to_dict(), shard_bytes=shard_bytes, beside={"x.txt": b"x"}
            )
    finally:
        os.umask(before)
    assert {stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "b").iterdir()} == {mode}


def test_bytes_do_not_depend_on_shards(tmp_path: Path) -> None:
    """Cases O65 and O66: a tied head is stored nowhere, and the index's total is the sum of what is."""
    model = save("gpt2", tmp_path / "a")
    config = json.loads((tmp_path / "a" / "config.json").read_text())
    totals = []
    with open_store(tmp_path / "a") as store:
        for number, shard_bytes in enumerate((10**9, 30_000, 1)):
            written = write_store(tmp_path / f"b{number}", store, config=config, shard_bytes=shard_bytes)
            held = [t for file in written.files for t in load_file(written.folder / file).values()]
            assert sum(tensor.nbytes for tensor in held) == written.tensor_bytes
            assert sum(tensor.numel() for tensor in held) == written.parameters
            totals.append(written.tensor_bytes)
            if len(written.files) > 1:
                index = json.loads((written.folder / "model.safetensors.index.json").read_text())
                assert index["metadata"]["total_size"] == written.tensor_bytes
                assert set(index["weight_map"].values()) == set(written.files)
                assert all(
                    sum(t.nbytes for t in load_file(written.folder / file).values()) <= shard_bytes
                    or len(load_file(written.folder / file)) == 1
                    for file in written.files
                )
    assert totals == [sum(p.nbytes for p in model.parameters())] * 3  # parameters() counts the tied table once
    loaded = again("gpt2", tmp_path / "b1")
    assert loaded.lm_head.weight.data_ptr() == loaded.transformer.wte.weight.data_ptr()


def test_a_tied_head_goes_and_comes_back_untied(tmp_path: Path) -> None:
    """Case O67: without the head where the configuration ties it, with it where it does not; equal logits both ways."""
    model = save("llama-biases-tied", tmp_path / "a")
    config = json.loads((tmp_path / "a" / "config.json").read_text())
    with open_store(tmp_path / "a") as store:
        canonical = dict(store)
    both = {**canonical, "head": canonical["tokens"]}
    write_store(tmp_path / "tied", both, config=config)
    write_store(tmp_path / "untied", both, config={**config, "tie_word_embeddings": False})
    assert "lm_head.weight" not in load_file(tmp_path / "tied" / "model.safetensors")
    assert "lm_head.weight" in load_file(tmp_path / "untied" / "model.safetensors")
    exact = rounding.model(model, inputs("llama"))
    for name in ("tied", "untied"):
        assert exact.holds(logits(again("llama", tmp_path / name), inputs("llama")))
    with pytest.raises(CheckpointError, match="ties the head to the embeddings, but the two given differ"):
        write_store(tmp_path / "no", {**both, "head": canonical["tokens"] + 1}, config=config)


def test_a_family_can_be_changed_on_the_way(tmp_path: Path) -> None:
    """A Llama without biases is a Mistral without a window, which allows head sizes that Llama does not."""
    model = save("llama", tmp_path / "a")
    config = json.loads((tmp_path / "a" / "config.json").read_text())
    config |= {"model_type": "mistral", "architectures": ["MistralForCausalLM"], "sliding_window": None}
    for key in ("attention_bias", "mlp_bias", "pretraining_tp"):
        config.pop(key, None)
    with open_store(tmp_path / "a") as store:
        write_store(tmp_path / "b", store, config=config)
    loaded = again("mistral", tmp_path / "b")
    assert type(loaded).__name__ == "MistralForCausalLM"
    assert rounding.model(model, inputs("llama")).holds(logits(loaded, inputs("llama")))


def test_heads_of_tasks_and_other_files_come_along(tmp_path: Path) -> None:
    model = save("bert-classifier", tmp_path / "a")
    config = json.loads((tmp_path / "a" / "config.json").read_text())
    with open_store(tmp_path / "a") as store:
        others = {name: store.other(name) for name in store.left_out}
        write_store(tmp_path / "b", store, config=config, others=others, beside={"tokenizer.json": b"{}"})
    assert rounding.model(model, inputs("bert")).holds(logits(again("bert-classifier", tmp_path / "b"), inputs("bert")))
    assert (tmp_path / "b" / "tokenizer.json").read_bytes() == b"{}"


class Watched(Mapping[str, torch.Tensor]):
    """Weights that tell when they are asked for, and how many are alive."""

    def __init__(self, weights: Mapping[str, torch.Tensor]) -> None:
        self.weights, self.asked = weights, []

    def __getitem__(self, name: str) -> torch.Tensor:
        self.asked.append(name)
        return self.weights[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.weights)

    def __len__(self) -> int:
        return len(self.weights)


@pytest.mark.parametrize("name", ["deepseek_v3", "phi3", "t5"])
def test_weights_are_asked_for_once_layer_by_layer(name: str, tmp_path: Path) -> None:
    save(name, tmp_path / "a")
    config = json.loads((tmp_path / "a" / "config.json").read_text())
    with open_store(tmp_path / "a") as store:
        watched = Watched(store)
        write_store(tmp_path / "b", watched, config=config, shard_bytes=20_000)
        assert sorted(watched.asked) == sorted(store)
    layers = [name.split(".")[0] + name.split(".")[2] for name in watched.asked if ".layers." in name]
    assert layers == sorted(layers, key=layers.index)  # none is returned to


def test_what_is_there_is_not_touched(tmp_path: Path) -> None:
    save("llama", tmp_path / "a")
    config = json.loads((tmp_path / "a" / "config.json").read_text())
    with open_store(tmp_path / "a") as store:
        with pytest.raises(CheckpointError, match=r"a: is there already; expected a folder that does not exist yet"):
            write_store(tmp_path / "a", store, config=config)
        (tmp_path / "file").write_text("mine")
        with pytest.raises(CheckpointError, match="is there already"):
            write_store(tmp_path / "file", store, config=config)
        (tmp_path / "empty").mkdir()
        write_store(tmp_path / "empty", store, config=config)
        write_store(tmp_path / "deep" / "er" / "new", store, config=config)
    assert (tmp_path / "file").read_text() == "mine"
    assert open_model(tmp_path / "deep" / "er" / "new").stack == open_model(tmp_path / "empty").stack
    assert (tmp_path / "empty").stat().st_mode == (tmp_path / "a").stat().st_mode
    assert not list(tmp_path.glob(".*"))


def test_nothing_is_left_of_a_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save("mixtral", tmp_path / "a")
    config = json.loads((tmp_path / "a" / "config.json").read_text())
    with open_store(tmp_path / "a") as store:
        canonical, stack = dict(store), store.stack
    assert stack.main.d_model == 36
    bad = [
        ({k: v for k, v in canonical.items() if k != "decoder.layers.1.self.q"}, config, {}, "1 are missing"),
        ({**canonical, "decoder.layers.1.self.q": torch.ones(6, 36, 10)}, config, {}, "self.q must be"),
        ({**canonical, "head.bias": torch.ones(97)}, config, {}, r"1 are not of the model \(head.bias\)"),
        (canonical, {**config, "quantization_config": {"quant_method": "awq"}}, {}, "take that key out"),
        (canonical, config, {"others": {"surprise": torch.ones(3)}}, r"b: not the mixtral .* \('surprise'\)"),
        (canonical, config, {"others": {"lm_head.weight": torch.ones(3)}}, "two tensors would be stored as 'lm_head"),
        (canonical, config, {"beside": {"../x": b""}}, "'../x' cannot be put beside the weights"),
        (canonical, config, {"beside": {"config.json": b""}}, "'config.json' cannot be put beside the weights"),
    ]
    for weights, settings, options, match in bad:
        with pytest.raises(CheckpointError, match=match) as caught:
            write_store(tmp_path / "b", weights, config=settings, shard_bytes=30_000, **options)
        assert "\n" not in str(caught.value)
        assert ".part" not in str(caught.value)
    real, count = safetensors.torch.save_file, []

    def full(*words: Any, **options: Any) -> None:
        count.append(1)
        if len(count) == 3:
            raise OSError(28, "No space left on device")
        real(*words, **options)

    monkeypatch.setattr(safetensors.torch, "save_file", full)
    with pytest.raises(CheckpointError, match=r"b: cannot be written \(No space left on device\)"):
        write_store(tmp_path / "b", canonical, config=config, shard_bytes=30_000)

    def stopped(*words: Any, **options: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(safetensors.torch, "save_file", stopped)
    with pytest.raises(KeyboardInterrupt):
        write_store(tmp_path / "b", canonical, config=config)
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def test_one_piece_of_memory_under_two_names(tmp_path: Path) -> None:
    """Case O66: saving tensors that share memory raises in safetensors; parts of one table, and one norm for two."""
    save("llama", tmp_path / "a")
    config = json.loads((tmp_path / "a" / "config.json").read_text())
    with open_store(tmp_path / "a") as store:
        canonical = dict(store)
    norm = torch.ones(36)
    shared = {key: norm if key.endswith("_norm.weight") else tensor for key, tensor in canonical.items()}
    both = torch.cat([canonical["tokens"], canonical["head"]])
    shared["tokens"], shared["head"] = both[:97], both[97:]
    write_store(tmp_path / "b", shared, config=config)
    with open_store(tmp_path / "b") as store:
        assert all(torch.equal(tensor, shared[key]) for key, tensor in store.items())
