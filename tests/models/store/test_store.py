"""Weights by canonical names: out of every family's files and back, bit for bit; nothing lost, nothing unexplained."""

from __future__ import annotations

import copy
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch
import transformers
from safetensors.torch import load_file, save_file

from manyheads.checkpoints import open_model
from manyheads.checkpoints.families import named
from manyheads.errors import CheckpointError
from manyheads.models.store.read import Store, open_store, to_canonical, to_stored
from manyheads.spec import weights
from support import rounding
from support.tiny_transformers import CASES, build, inputs, logits

# Not described, or with the head of a task beside the model.
TASKS = ("bert-masked-lm", "bert-pretraining", "bert-classifier", "roberta", "distilbert")
NAMES = [name for name in CASES if name not in ("jamba", "modernbert", "opt-350m", "t5gemma")]


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Makes, saves and remembers the tiny model of a case: (folder, model)."""
    made: dict[str, tuple[Path, Any]] = {}

    def save(name: str) -> tuple[Path, Any]:
        if name not in made:
            model, folder = build(name), tmp_path_factory.mktemp(name)
            transformers.logging.disable_progress_bar()
            model.save_pretrained(folder)
            made[name] = folder, model
        return made[name]

    return save


@pytest.mark.parametrize("name", [name for name in NAMES if name not in TASKS])
def test_out_and_back_is_the_same_file_bit_for_bit(name: str, saved: Any) -> None:
    folder, _ = saved(name)
    stored = load_file(folder / "model.safetensors")
    found = open_model(folder)
    canonical = to_canonical(found.family, found.stack, stored)
    assert {key: tuple(t.shape) for key, t in canonical.items()} == {w.name: w.shape for w in weights(found.stack)}
    back = to_stored(found.family, found.stack, canonical)
    prefix = "bert." if name == "bert" else ""  # saved bare; written as the models with heads name it
    assert {prefix + key for key in stored} == set(back)
    for key, tensor in stored.items():
        assert torch.equal(back[prefix + key], tensor), key


@pytest.mark.parametrize("name", ["phi3", "falcon-40b", "qwen3_next", "gpt_oss", "mixtral"])
def test_types_are_kept(name: str, saved: Any) -> None:
    folder, _ = saved(name)
    found = open_model(folder)
    stored = {key: tensor.to(torch.bfloat16) for key, tensor in load_file(folder / "model.safetensors").items()}
    back = to_stored(found.family, found.stack, to_canonical(named(found.family), found.stack, stored))
    assert all(torch.equal(back[key], tensor) and back[key].dtype == torch.bfloat16 for key, tensor in stored.items())


@pytest.mark.parametrize("name", NAMES)
def test_a_store_says_the_same_tensor_by_tensor_and_layer_by_layer(name: str, saved: Any) -> None:
    folder, _ = saved(name)
    stored = load_file(folder / "model.safetensors")
    with open_store(folder) as store:
        found = store.checkpoint
        whole = {key: tensor for key, tensor in stored.items() if key not in store.left_out}
        canonical = to_canonical(found.family, found.stack, whole)
        assert store.names() == tuple(store) == tuple(w.name for w in weights(store.stack))
        assert len(store) == len(canonical)
        for key, tensor in store.items():
            assert torch.equal(tensor, canonical[key]), key
            assert tensor.is_contiguous()
            assert tensor.untyped_storage().nbytes() == tensor.nbytes  # the rest of a fused tensor is let go
        seen: set[str] = set()
        for stack in store.stack.stacks:
            for index in range(len(stack.blocks)):
                layer = store.layer(stack.role, index)
                assert all(torch.equal(tensor, canonical[key]) for key, tensor in layer.items())
                seen |= set(layer)
        assert seen == {key for key in canonical if ".layers." in key}
        assert (len(store.left_out) > 0) == (name in TASKS)
        for key in store.left_out:
            assert torch.equal(store.other(key), stored[key])


def test_only_what_is_asked_for_is_read(saved: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with open_store(saved("phi3")[0]) as store:
        reads: list[tuple[str, Any]] = []
        files = store._files
        monkeypatch.setattr(store, "_files", _Spy(files, reads))
        store.tensor("decoder.layers.1.self.k")
        # 6 query heads of 6 rows lie before 2 key heads of 6
        assert reads == [("model.layers.1.self_attn.qkv_proj.weight", (36, 48))]
        reads.clear()
        store.layer("decoder", 0)
        assert len(reads) == 6
        assert all(".layers.0." in name for name, _ in reads)


class _Spy:
    """Files that tell what is read of them."""

    def __init__(self, files: Any, reads: list[tuple[str, Any]]) -> None:
        self.files, self.reads, self.path = files, reads, files.path

    def read(self, name: str) -> torch.Tensor:
        self.reads.append((name, None))
        return self.files.read(name)

    def rows(self, name: str, start: int, stop: int) -> torch.Tensor:
        self.reads.append((name, (start, stop)))
        return self.files.rows(name, start, stop)

    def close(self) -> None:
        self.files.close()


def test_attention_by_its_own_names(saved: Any) -> None:
    folder, model = saved("t5")
    with open_store(folder) as store:
        cross = store.attention("decoder", 1, "cross")
        theirs = model.decoder.block[1].layer[1].EncDecAttention
        assert set(cross) == {"q", "k", "v", "o"}
        assert torch.equal(cross["k"], theirs.k.weight.detach().view(6, 10, 36))
        assert torch.equal(cross["o"], theirs.o.weight.detach().view(36, 6, 10))
        with pytest.raises(CheckpointError, match="layer 0 of 'encoder' has no weights of 'cross' attention"):
            store.attention("encoder", 0, "cross")


def test_what_is_not_there_is_said(saved: Any) -> None:
    folder, _ = saved("t5")
    with open_store(folder) as store:
        with pytest.raises(CheckpointError, match=r"no weight 'decoder\.layers\.9\.self\.q'"):
            store.tensor("decoder.layers.9.self.q")
        with pytest.raises(KeyError):
            store["nothing"]
        assert "nothing" not in store
        with pytest.raises(
            CheckpointError, match=r"no layer 7 of 'decoder'; it has encoder with 3 layers, decoder with 2"
        ):
            store.layer("decoder", 7)
        with pytest.raises(CheckpointError, match="is not among what was left out"):
            store.other("shared.weight")
    with pytest.raises(CheckpointError, match="the store is closed"):
        store.tensor("tokens")


def test_shards_and_lone_files_are_read_alike(saved: Any, tmp_path: Path) -> None:
    folder, model = saved("mixtral")
    model.save_pretrained(tmp_path / "shards", max_shard_size="50KB")
    assert len(list((tmp_path / "shards").glob("*.safetensors"))) > 1
    with (
        open_store(folder) as one,
        open_store(tmp_path / "shards") as many,
        open_store(folder / "model.safetensors") as file,
    ):
        for key, tensor in one.items():
            assert torch.equal(many[key], tensor)
            assert torch.equal(file[key], tensor)


def changed(folder: Path, target: Path, change: Any, **settings: Any) -> Path:
    """A copy of a saved model with other tensors and settings."""
    shutil.copytree(folder, target)
    tensors = load_file(target / "model.safetensors")
    change(tensors)
    save_file(tensors, target / "model.safetensors", {"format": "pt"})
    config = json.loads((target / "config.json").read_text())
    (target / "config.json").write_text(json.dumps({**config, **settings}))
    return target


def test_every_bias_is_consumed(saved: Any) -> None:
    """Case O38: 240 of 420 biases were dropped by a flag."""
    folder, model = saved("llama-biases-tied")
    with open_store(folder) as store:
        held = sum(tensor.numel() for key, tensor in store.items() if key.endswith(".bias"))
    assert held == sum(p.numel() for key, p in model.named_parameters() if key.endswith(".bias")) > 0


def test_an_unknown_tensor_is_named(saved: Any, tmp_path: Path) -> None:
    folder = changed(
        saved("llama")[0], tmp_path / "m", lambda t: t.update({"model.layers.0.self_attn.x": torch.ones(2)})
    )
    with pytest.raises(CheckpointError, match=r"1 of 31 tensors have no place in it \('model.layers.0.self_attn.x'\)"):
        open_store(folder)
    found = open_model(saved("llama")[0])
    with pytest.raises(CheckpointError, match=r"1 of 31 tensors have no place in it \('model.layers.0.self_attn.x'\)"):
        to_canonical("llama", found.stack, load_file(folder / "model.safetensors"))


def test_a_head_of_a_task_is_named_too(saved: Any) -> None:
    folder, _ = saved("bert-classifier")
    found = open_model(folder)
    with pytest.raises(
        CheckpointError, match=r"2 tensors \(classifier.bias, classifier.weight\) are no weights of the model"
    ):
        to_canonical(found.family, found.stack, load_file(folder / "model.safetensors"))


def test_a_corrupt_shape_is_named(saved: Any, tmp_path: Path) -> None:
    """Case O40: 16 heads of 256 beside a width of 3072 were skipped at debug level."""
    key = "model.layers.1.self_attn.o_proj.weight"
    folder = changed(saved("gemma")[0], tmp_path / "m", lambda t: t.update({key: torch.ones(36, 36)}))
    with pytest.raises(
        CheckpointError, match=rf"tensor '{key}' has shape \(36, 36\), the configuration predicts \(36, 60\)"
    ):
        open_store(folder)


def test_given_weights_are_checked(saved: Any) -> None:
    folder, _ = saved("llama")
    with open_store(folder) as store:
        canonical, stack = dict(store), store.stack
    q = "decoder.layers.1.self.q"
    with pytest.raises(CheckpointError, match=rf"{q} must be \(h q m\) \(6, 10, 36\), found \(6, 36, 10\)"):
        to_stored("llama", stack, {**canonical, q: canonical[q].mT})
    missing = {key: tensor for key, tensor in canonical.items() if key != q}
    with pytest.raises(
        CheckpointError, match=rf"llama: the model has 30 weights; of those given 1 are missing \({q}\)"
    ):
        to_stored("llama", stack, missing)
    with pytest.raises(CheckpointError, match=r"1 are not of the model \(head.scale\)"):
        to_stored("llama", stack, {**canonical, "head.scale": torch.ones(1)})


def test_parts_of_one_tensor_must_share_a_type(saved: Any) -> None:
    with open_store(saved("phi3")[0]) as store:
        canonical, stack = dict(store), store.stack
    canonical["decoder.layers.0.self.v"] = canonical["decoder.layers.0.self.v"].half()
    with pytest.raises(CheckpointError, match=r"must share a type, found decoder\.layers\.0\.self\.q torch\.float32, "):
        to_stored("phi3", stack, canonical)


# Of a masked language model: the token table, and what its file may hold a second time, {copy: what it repeats}.
COPIES = {
    "bert-masked-lm": {
        "cls.predictions.decoder.weight": "bert.embeddings.word_embeddings.weight",
        "cls.predictions.decoder.bias": "cls.predictions.bias",
    },
    "roberta": {
        "lm_head.decoder.weight": "roberta.embeddings.word_embeddings.weight", "lm_head.decoder.bias": "lm_head.bias",
    },
    "distilbert": {"vocab_projector.weight": "distilbert.embeddings.word_embeddings.weight"},
    "modernbert": {"decoder.weight": "model.embeddings.tok_embeddings.weight"},
    "t5": {"encoder.embed_tokens.weight": "shared.weight", "decoder.embed_tokens.weight": "shared.weight"},
    "bart": {"model.encoder.embed_tokens.weight": "model.shared.weight", "lm_head.weight": "model.shared.weight"},
}  # fmt: skip
TABLES = {name: next(iter(copies)) for name, copies in COPIES.items()}


@pytest.mark.parametrize("name", COPIES)
def test_what_a_file_holds_twice_is_counted_and_read_once(name: str, saved: Any, tmp_path: Path) -> None:
    folder, copies = saved(name)[0], COPIES[name]
    plain = open_model(folder)
    twice = changed(
        folder, tmp_path / "twice", lambda t: t.update({copy: t[source].clone() for copy, source in copies.items()})
    )
    found = open_model(twice)
    assert found.parameters_stored == plain.parameters_stored
    assert set(found.notes) - set(plain.notes) == {
        f"{copy} is stored although it is tied to {source}; it is counted once" for copy, source in copies.items()
    }
    with open_store(twice) as store, open_store(folder) as once:
        assert store.left_out == once.left_out


@pytest.mark.parametrize("name", [name for name in COPIES if name not in ("t5", "bart")])
def test_a_task_head_with_values_of_its_own_is_kept(name: str, saved: Any, tmp_path: Path) -> None:
    folder, copy = saved(name)[0], TABLES[name]
    other = changed(folder, tmp_path / "other", lambda t: t.update({copy: t[COPIES[name][copy]] + 1}))
    with open_store(other) as store:
        assert copy in store.left_out
    untied = changed(
        folder,
        tmp_path / "untied",
        lambda t: t.update({copy: t[COPIES[name][copy]].clone()}),
        tie_word_embeddings=False,
    )
    assert not any("stored although" in note for note in open_model(untied).notes)
    with open_store(untied) as store:
        assert copy in store.left_out


@pytest.mark.parametrize("name", ["t5", "bart"])
def test_a_table_of_all_parts_that_has_two_values_is_refused(name: str, saved: Any, tmp_path: Path) -> None:
    folder, copy = saved(name)[0], TABLES[name]
    other = changed(folder, tmp_path / "other", lambda t: t.update({copy: t[COPIES[name][copy]] + 1}))
    with pytest.raises(CheckpointError, match=rf"{copy}' and '{COPIES[name][copy]}' differ"):
        open_store(other)


def test_a_tied_head_that_is_stored_must_be_the_embeddings(saved: Any, tmp_path: Path) -> None:
    """Case O68."""
    folder, _ = saved("llama-biases-tied")
    embeddings = load_file(folder / "model.safetensors")["model.embed_tokens.weight"]
    same = changed(folder, tmp_path / "same", lambda t: t.update({"lm_head.weight": embeddings.clone()}))
    with open_store(same) as store:
        assert "head" not in store
        assert store.left_out == ()
    other = changed(folder, tmp_path / "other", lambda t: t.update({"lm_head.weight": embeddings + 1}))
    with pytest.raises(
        CheckpointError, match=r"'lm_head\.weight' and 'model\.embed_tokens\.weight' differ; set tie_word_embed"
    ):
        open_store(other)
    untied = changed(
        folder, tmp_path / "untied", lambda t: t.update({"lm_head.weight": embeddings + 1}), tie_word_embeddings=False
    )
    with open_store(untied) as store:
        assert torch.equal(store["head"], embeddings + 1)


def test_what_holds_no_plain_weights_is_refused(saved: Any, tmp_path: Path) -> None:
    folder, _ = saved("llama")
    with pytest.raises(CheckpointError, match="a config, which holds no weights"):
        open_store(folder / "config.json")
    with pytest.raises(CheckpointError, match="a spec, which holds no weights"):
        open_store("mha(512, 8) x 6")
    alone = tmp_path / "alone"
    alone.mkdir()
    shutil.copy(folder / "config.json", alone)
    (alone / "pytorch_model.bin").write_bytes(b"\x80\x02")
    with pytest.raises(CheckpointError, match=r"no \.safetensors beside its config\.json \(pickles are not opened\)"):
        open_store(alone)
    awq = changed(folder, tmp_path / "awq", lambda t: None, quantization_config={"quant_method": "awq", "bits": 4})
    with pytest.raises(CheckpointError, match="packed by a quantisation"):
        open_store(awq)
    fp8 = changed(
        folder, tmp_path / "fp8",
        lambda t: t.update({"model.layers.0.self_attn.q_proj.weight_scale_inv": torch.ones(1, 1)}),
        quantization_config={"quant_method": "fp8"},
    )  # fmt: skip
    with pytest.raises(CheckpointError, match=r"q_proj\.weight_scale_inv' scales quantised weights"):
        open_store(fp8)


def test_mxfp4_is_refused_by_name(saved: Any, tmp_path: Path) -> None:
    def pack(tensors: dict[str, torch.Tensor]) -> None:
        for key in [key for key in tensors if key.endswith("experts.down_proj")]:
            whole = tensors.pop(key)
            tensors[f"{key}_blocks"] = torch.zeros(whole.numel() // 2, dtype=torch.uint8)
            tensors[f"{key}_scales"] = torch.zeros(whole.numel() // 32, dtype=torch.uint8)

    settings = {"hidden_size": 64, "intermediate_size": 32}
    build("gpt_oss", **settings).save_pretrained(tmp_path / "plain")
    folder = changed(tmp_path / "plain", tmp_path / "m", pack, quantization_config={"quant_method": "mxfp4"})
    with pytest.raises(
        CheckpointError, match=r"experts\.down_proj' is stored as 'model\.layers\.0\.mlp\.experts\.down_proj_b"
    ):
        open_store(folder)


# The layer that is built from the inventory.


def test_a_layer_takes_its_weights_from_the_store(saved: Any) -> None:
    layer_room = pytest.importorskip("manyheads.layer.attention")
    for name, index in (("qwen3", 1), ("phi3", 0), ("gpt_neox", 1), ("deepseek_v3", 2), ("qwen3_next", 0)):
        with open_store(saved(name)[0]) as store:
            spec = store.stack.main.blocks[index].attention
            module = layer_room.Attention(spec)
            module.load(store.attention("decoder", index))
            canonical = store.attention("decoder", index)
            assert {key.replace(".", "_") for key in canonical} == set(module.state_dict())
            for key, tensor in canonical.items():
                assert torch.equal(getattr(module, key.replace(".", "_")), tensor)


def test_the_loaded_layer_computes_what_the_models_does(saved: Any) -> None:
    """q, k, v and the output projection in the right places: gpt2 (no rotation) end to end, against its own module."""
    layer_room = pytest.importorskip("manyheads.layer.attention")
    folder, model = saved("gpt2")
    with open_store(folder) as store:
        module = layer_room.Attention(store.stack.main.blocks[1].attention)
        module.load(store.attention("decoder", 1))
    x = torch.randn(2, 7, 36, generator=torch.Generator().manual_seed(0))
    mask = torch.full((7, 7), torch.finfo(torch.float32).min).triu(1)[None, None]
    wide = copy.deepcopy(model.transformer.h[1].attn).double()
    theirs = rounding.evaluated(lambda: wide(x.double(), attention_mask=mask.double())[0])
    with torch.no_grad():
        assert theirs.holds(module(x))


def test_one_row_of_a_square_projection_moves_one_head(saved: Any) -> None:
    """Case O36: gpt2's c_proj is square and stored (in, out), so a missing transpose fits and is wrong."""
    folder, model = saved("gpt2")
    batch = inputs("gpt2")
    before: list[torch.Tensor] = []
    handle = model.transformer.h[1].attn.c_proj.register_forward_pre_hook(lambda _, args: before.append(args[0]))
    logits(model, batch)
    handle.remove()
    with open_store(folder) as store:
        stored = load_file(folder / "model.safetensors")
        canonical = to_canonical("gpt2", store.stack, stored)
        canonical["decoder.layers.1.self.o"] = canonical["decoder.layers.1.self.o"].clone()
        canonical["decoder.layers.1.self.o"][:, 4] = 0  # what head 4 gives to the model
        edited = to_stored("gpt2", store.stack, canonical)["transformer.h.1.attn.c_proj.weight"]
    heads, whole = before[0].double(), stored["transformer.h.1.attn.c_proj.weight"].double()
    difference = heads @ whole - heads @ edited.double()
    alone = heads.clone()
    alone.view(2, 11, 6, 6)[:, :, [0, 1, 2, 3, 5]] = 0
    # 36 products of numbers below 10: 36 x 100 x 2^-53 at worst
    assert torch.allclose(difference, alone @ whole, rtol=0, atol=1e-12)
    assert not torch.equal(edited, edited.mT)


def test_conv1d_and_linear_say_the_same(saved: Any) -> None:
    """Case O35: the canonical weights of gpt2 are those of the same model with its matrices stored (out, in)."""
    folder, model = saved("gpt2")
    with open_store(folder) as store:
        q, k, v = model.transformer.h[0].attn.c_attn.weight.detach().mT.split(36)
        for letter, rows in (("q", q), ("k", k), ("v", v)):
            assert torch.equal(store[f"decoder.layers.0.self.{letter}"], rows.view(6, 6, 36))
        assert torch.equal(store["decoder.layers.0.mlp.up"], model.transformer.h[0].mlp.c_fc.weight.detach().mT)


@pytest.mark.parametrize(
    ("name", "shape"), [("olmo2", {"decoder.layers.0.self.q_norm.weight": (6, 6), "decoder.layers.0.self.k_norm.weight": (2, 6)}),
                        ("qwen3", {"decoder.layers.0.self.q_norm.weight": (10,), "decoder.layers.0.self.k_norm.weight": (10,)})],
)  # fmt: skip
def test_norms_of_queries_and_keys_lie_where_their_width_says(name: str, shape: dict[str, Any], saved: Any) -> None:
    """Case O49: OLMo 2 norms the whole projection, Qwen 3 each head."""
    with open_store(saved(name)[0]) as store:
        assert isinstance(store, Store)
        assert {key: tuple(store[key].shape) for key in shape} == shape
