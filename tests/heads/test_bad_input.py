"""What cannot be asked of heads, through the command and through Python: one line, nothing written, the model untouched."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytest.importorskip("numba")

from manyheads.checkpoints import files  # noqa: E402
from manyheads.cli.main import main  # noqa: E402
from manyheads.errors import BackendError, CheckpointError, ConversionError, ManyheadsError  # noqa: E402
from manyheads.heads.pruning import export as exporting  # noqa: E402
from manyheads.heads.pruning import export_pruned, load_pruned, mask, prune  # noqa: E402
from support import tiny_models  # noqa: E402
from support import tiny_transformers as tiny  # noqa: E402

TEXT = "the cat sat on the mat, and the dog ran after the cat. " * 30
OUTSIDE = {
    "falcon": ("FalconConfig", "FalconForCausalLM", {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}),
    "bloom": ("BloomConfig", "BloomForCausalLM", {"hidden_size": 32, "n_layer": 2, "n_head": 4}),
    "mpt": ("MptConfig", "MptForCausalLM", {"d_model": 32, "n_heads": 4, "n_layers": 2, "max_seq_len": 64}),
}  # fmt: skip


@pytest.fixture(scope="module")
def llama(tmp_path_factory) -> Path:
    """2 layers of 4 heads in 2 groups, with a tokenizer."""
    return tiny_models.save("llama", tmp_path_factory.mktemp("model") / "tiny-llama")


@pytest.fixture
def here(tmp_path, monkeypatch) -> Path:
    """An empty folder to work in, but for a text."""
    folder = tmp_path / "here"
    folder.mkdir()
    (folder / "t.txt").write_text(TEXT)
    monkeypatch.chdir(folder)
    monkeypatch.setenv("MANYHEADS_CACHE", str(tmp_path / "cache"))
    return folder


def contents(folder: Path) -> dict[str, str]:
    """Every file and folder in it, files by the hash of what they hold."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else "folder"
        for path in folder.rglob("*")
    }


def command(capsys, *words: object) -> tuple[int, str, str]:
    status = main([str(word) for word in words])
    out, err = capsys.readouterr()
    return status, out, err


def refused(capsys, model: Path, *words: object, status: int = 2) -> str:
    """The one line that a request is refused with; the model's folder and this one stay byte for byte as they were."""
    before = contents(model), contents(Path.cwd())
    found, out, err = command(capsys, *words)
    assert (found, out) == (status, ""), err
    assert (contents(model), contents(Path.cwd())) == before
    assert "Traceback" not in err
    assert "bug in manyheads" not in err
    if status == 2:
        assert sum(line.startswith("manyheads: ") for line in err.splitlines()) == 1
        assert err.splitlines()[-1].startswith("manyheads: ")
    return err.splitlines()[-1]


@pytest.mark.parametrize(
    ("heads", "said"),
    [
        ("9:0", "there is no layer 9; the model has 2 layers, 0 to 1"),
        ("0:9", "there is no head 9; layer 0 has 4 heads, 0 to 3"),
        ("-1:0", "'-1:0' is not a list of heads"),
        ("0:-1", "'0:-1' is not a list of heads"),
        ("0:1,1", "names head 0:1 twice"),
        ("0:1;L0H1", "names head 0:1 twice"),
        ("0:1;", "is not a list of heads"),
        ("0:1,,2", "is not a list of heads"),
        ("0:0-", "is not a list of heads"),
        ("0:3-1", "the range 3-1 runs backwards; expected 1-3"),
        ("0:0-4", "there is no head 4; layer 0 has 4 heads, 0 to 3"),
        ("0:0-99999", "0-99999 are 100,000 heads, and no layer has as many"),
        ("0:0-999999999", "no model has a layer or head 999999..."),
        ("9:0-9999", "there is no layer 9; the model has 2 layers, 0 to 1"),
        ("0:0-2,1", "names head 0:1 twice"),
        ("0:1\n1:2", "is not a list of heads"),
        ("0:" + "9" * 5000, "no model has a layer or head 999999..."),
        ("x" * 5000, "is not a list of heads"),
        ("cross/0:1", "there is no stack 'cross'; the model has decoder"),
        ("middle/0:1", "there is no stack 'middle'"),
    ],
)
def test_heads_that_are_not_there(capsys, here, llama, heads: str, said: str) -> None:
    line = refused(capsys, llama, "prune", llama, f"--heads={heads}", "--text", "t.txt", "--output", "out")
    assert said in line
    assert len(line) < 400


@pytest.mark.parametrize(
    "budget", ["0", "0%", "100%", "101%", "-1", "-5%", "8", "9", "1e3", "nan", "inf%", "1.5", "%", "0.001%"]
)
def test_budgets_that_cannot_be_met(capsys, here, llama, budget: str) -> None:
    words = ("prune", llama, f"--budget={budget}", "--text", "t.txt", "--tokens", 100, "--rounds", 1, "--output", "out")
    line = refused(capsys, llama, *words)
    assert f"--budget {budget!r}" in line
    assert "expected from 1 to 6: one of each layer stays" in line or "is not a number of heads" in line


def test_a_budget_that_would_empty_a_layer(capsys, here, llama) -> None:
    line = refused(capsys, llama, "prune", llama, "--budget", 7, "--text", "t.txt", "--tokens", 100, "--rounds", 1)
    assert "--budget '7' is 7 of 8 heads; expected from 1 to 6: one of each layer stays" in line
    line = refused(capsys, llama, "prune", llama, "--budget", 5, "--whole-groups")
    assert "--budget '5' is 5 of 8 heads; expected from 2 to 4 in groups of 2: one of each layer stays" in line


@pytest.mark.parametrize("penalty", ["0", "-1", "nan", "inf", "1e400", "x"])
def test_penalties_that_are_none(capsys, here, llama, penalty: str) -> None:
    assert "is not a cost of a head in nats" in refused(capsys, llama, "prune", llama, f"--gates={penalty}")


def test_a_head_pruned_twice_in_two_sessions(capsys, here, llama) -> None:
    """Each line a process of its own, so that only the folder remembers."""

    def session(*words: str) -> subprocess.CompletedProcess[str]:
        line = [
            sys.executable,
            "-c",
            "import sys; from manyheads.cli.main import main; sys.exit(main())",
            "prune",
            *words,
        ]
        return subprocess.run(
            [*line, "--text", "t.txt", "--tokens", "100"], check=False, capture_output=True, text=True
        )

    assert session(str(llama), "--heads", "0:0,1;1:2,3", "--output", "one").returncode == 0
    before = contents(here)
    again = session("one", "--heads", "1:3;0:0", "--output", "two")
    assert again.returncode == 2
    assert again.stderr.splitlines()[-1] == (
        "manyheads: nothing to prune: already pruned: 0:0, 1:3; expected a head that the model still has"
    )
    assert contents(here) == before
    more = session("one", "--heads", "1:3;0:2", "--output", "two")
    assert more.returncode == 0, more.stderr
    kept = {row["layer"]: row["kept"] for row in json.loads(Path("two/pruning.json").read_text())["layers"]}
    assert kept == {0: [3], 1: [0, 1]}


@pytest.mark.parametrize("form", ["auto", "uniform", "padded", "compact"])
def test_all_heads_of_a_model_leave_what_the_masked_model_computes(capsys, here, llama, form: str) -> None:
    """Documented: a layer keeps one zeroed head. The export compares logits itself; here stock transformers does too."""
    words = ("prune", llama, "--heads", "0:0,1,2,3;1:0,1,2,3", "--text", "t.txt", "--tokens", 100, "--form", form)
    status, out, err = command(capsys, *words, "--output", "out", "--json")
    assert status == 0, err
    assert json.loads(out)["heads_removed"] == 8
    ids = torch.arange(5, 25)[None]
    whole = transformers.LlamaForCausalLM.from_pretrained(llama).eval()
    with torch.no_grad():
        for layer in whole.model.layers:  # Llama's output projection has no bias
            layer.self_attn.o_proj.weight.zero_()
        small = (
            load_pruned("out").model if form == "compact" else transformers.AutoModelForCausalLM.from_pretrained("out")
        )
        assert torch.allclose(small.eval()(ids).logits, whole(ids).logits, atol=1e-5)
    assert "already pruned" in refused(capsys, Path("out"), "prune", "out", "--heads", "1:2")


@pytest.fixture(scope="module")
def outside(tmp_path_factory) -> Callable[[str], Path]:
    root = tmp_path_factory.mktemp("outside")

    def folder(name: str) -> Path:
        if not (root / name).exists():
            config, kind, settings = OUTSIDE[name]
            made = getattr(transformers, config)(vocab_size=384, **settings)
            getattr(transformers, kind)(made).save_pretrained(root / name)
            tiny_models.save_tokenizer(root / name)
        return root / name

    return folder


@pytest.mark.parametrize("name", list(OUTSIDE))
def test_models_that_do_not_pass_the_door(capsys, here, outside, name: str) -> None:
    folder = outside(name)
    for words in (("prune", folder, "--heads", "0:1", "--output", "out"), ("heads", folder, "--text", "t.txt")):
        assert "does not pass through transformers' AttentionInterface" in refused(capsys, folder, *words)
    before = contents(folder)
    status, out, _ = command(capsys, "xray", folder, "--text", "t.txt", "--json")
    told = json.loads(out)
    assert status == 0  # the rest is measured, and the heads say why they are not
    assert "does not pass" in told["heads"]["maps"]["reason"]
    assert contents(folder) == before
    model = transformers.AutoModelForCausalLM.from_pretrained(folder)
    for asked in (
        lambda: prune(model, {0: (1,)}),
        lambda: mask(model, {0: (1,)}),
        lambda: export_pruned(folder, {0: (1,)}, "out"),
    ):
        with pytest.raises(BackendError, match="does not pass"):
            asked()
    assert set(os.listdir()) == {"t.txt", "xray.html", "xray.json"}


@pytest.mark.parametrize(
    ("name", "data", "said"),
    [
        ("one.txt", b"a", "one.txt is 1 token long; at least 2 are needed"),
        ("empty.txt", b"", "empty.txt: empty"),
        ("blank.txt", b" \n\n\t", "blank.txt: empty"),
        ("latin.txt", b"caf\xe9 " * 40, "latin.txt: byte 0xe9 at offset 3 is no UTF-8"),
        ("zero.txt", b"a\0b" * 40, "zero.txt: holds zero bytes"),
        ("missing.txt", None, "missing.txt: no such file"),
    ],
)
@pytest.mark.parametrize("verb", ["prune", "heads", "xray"])
def test_texts_that_are_none(capsys, here, llama, verb: str, name: str, data: bytes | None, said: str) -> None:
    if data is not None:
        Path(name).write_bytes(data)
    more = ("--heads", "0:0,1", "--output", "out") if verb == "prune" else ()
    assert said in refused(capsys, llama, verb, llama, "--text", name, *more)


def test_folders_that_cannot_be_written_are_refused_before_the_model_is_loaded(
    capsys, here, llama, monkeypatch
) -> None:
    Path("file").write_text("x")
    Path("used").mkdir()
    Path("used/mine.txt").write_text("x")
    Path("link").symlink_to("nowhere")
    Path("loop").symlink_to(llama, target_is_directory=True)
    monkeypatch.setattr("manyheads.models.load.model.load", lambda *_, **__: pytest.fail("the model was loaded"))
    for folder, said in {
        "file": "is there already", "used": "is there already", "link": "is there already", ".": "is there already",
        "file/out": "is not a folder", llama: "is there already", llama / "out": "inside the folder of the model",
        llama / "a" / "b": "inside the folder of the model", "loop/out": "inside the folder of the model",
        "nul\0l": "no name that a folder with a model can have", "o\udcffut": "no name that a folder",
    }.items():  # fmt: skip
        line = refused(capsys, llama, "prune", llama, "--heads", "0:0,1;1:0,1", "--output", folder)
        assert said in line, folder
        with pytest.raises(CheckpointError, match=said):
            export_pruned(llama, {0: (0, 1)}, folder)


def test_a_folder_of_someone_else_is_refused_before_the_work(capsys, here, llama, monkeypatch) -> None:
    """Root may write anywhere, so the system's answer is given for it."""
    monkeypatch.setattr(os, "access", lambda path, _: Path(path) != here)
    line = refused(capsys, llama, "prune", llama, "--heads", "0:0", "--output", "deep/out")
    assert f"--output deep/out: {here} cannot be written into" in line


def test_a_gguf_file_may_have_the_smaller_model_beside_it(tmp_path: Path, here, llama) -> None:
    pytest.importorskip("gguf")
    (tmp_path / "models").mkdir()
    file = tiny_models.save_gguf(llama, tmp_path / "models" / "tiny.gguf")
    assert export_pruned(str(file), {0: (0, 1), 1: (2, 3)}, tmp_path / "models" / "out").form.name == "uniform"


def _fails(error: BaseException) -> Callable[..., Any]:
    def fail(*_: Any, **__: Any) -> Any:
        raise error

    return fail


def _no_space() -> OSError:
    return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize("place", ["safetensors.torch.save_file", "manyheads.heads.pruning.export.card"])
def test_a_full_disk_midway(capsys, here, llama, monkeypatch, place: str) -> None:
    from safetensors import SafetensorError

    words = ("prune", llama, "--heads", "0:0", "--text", "t.txt", "--tokens", 100, "--output", "new/deep/out")
    monkeypatch.setattr(place, _fails(_no_space()))
    line = refused(capsys, llama, *words)
    assert line == f"manyheads: {here}/new/deep/out: cannot be written (No space left on device)"
    if place.startswith("safetensors"):
        monkeypatch.setattr(place, _fails(SafetensorError("I/O error: No space left on device (os error 28)")))
        assert f"{here}/new/deep/out: cannot be written (I/O error: No space left" in refused(capsys, llama, *words)


@pytest.mark.parametrize(
    "place",
    [
        "safetensors.torch.save_file",
        "manyheads.heads.pruning.export._apart",
        "manyheads.heads.pruning.export.card",
        "os.replace",
    ],
)
def test_ctrl_c_midway_leaves_nothing_and_an_empty_folder_empty(capsys, here, llama, monkeypatch, place: str) -> None:
    Path("ready").mkdir()
    for folder in ("new/deep/out", "ready"):
        with monkeypatch.context() as patched:
            patched.setattr(place, _fails(KeyboardInterrupt()))
            refused(
                capsys, llama, "prune", llama, "--heads", "0:0", "--text", "t.txt", "--tokens", 100, "--output", folder,
                status=130,
            )  # fmt: skip
        assert set(os.listdir()) == {"t.txt", "ready"}
        assert os.listdir("ready") == []


def test_a_model_that_was_handed_over_is_in_float32_again_after_ctrl_c(here, llama, monkeypatch) -> None:
    """Where float32 is not enough the logits are compared in float64, and the model given as `loaded` is the caller's."""
    loaded = exporting.load(llama)
    before = {name: value.clone() for name, value in loaded.model.state_dict().items()}
    asked: list[torch.dtype] = []

    def apart(model: Any, *_: Any) -> tuple[float, float]:
        asked.append(model.dtype)
        if model.dtype == torch.float64:
            raise KeyboardInterrupt
        return 1.0, 1.0

    monkeypatch.setattr(exporting, "_apart", apart)
    with pytest.raises(KeyboardInterrupt):
        export_pruned(llama, {0: (0,)}, "out", loaded=loaded)
    assert asked == [torch.float32, torch.float64]
    assert loaded.model.dtype == torch.float32
    assert all(torch.equal(value, before[name]) for name, value in loaded.model.state_dict().items())
    assert os.listdir() == ["t.txt"]


def test_a_tokenizer_that_cannot_be_read_is_named(capsys, here, llama, monkeypatch) -> None:
    def denied(path: str | os.PathLike[str], mode: str) -> Any:
        if os.fspath(path) == f"{llama}/tokenizer.json":
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return open(path, mode)

    words = ("prune", llama, "--heads", "0:0", "--text", "t.txt", "--tokens", 100, "--output", "out")
    with monkeypatch.context() as patched:
        patched.setattr(files, "open", denied, raising=False)
        status, out, err = command(capsys, *words)
    assert (status, out) == (2, "")
    assert err.splitlines()[-1] == (
        f"manyheads: {llama}/tokenizer.json: cannot be read (Permission denied); expected a file of the model"
    )
    assert os.listdir() == ["t.txt"]


def _tampered(folder: Path, change: Callable[[dict[str, Any]], None]) -> None:
    from safetensors.torch import load_file, save_file

    path = folder / "model.safetensors"
    tensors = load_file(path)
    change(tensors)
    save_file(tensors, path, metadata={"format": "pt"})


FAMILIES = {
    "llama": ({0: (0, 1), 1: (2, 3)}, "model.layers.1.self_attn.k_proj.weight"),
    "gpt2": ({0: (1,)}, "transformer.h.0.attn.c_attn.bias"),
    "bert": ({0: (1, 2)}, "bert.encoder.layer.1.attention.self.value.weight"),
    "t5": ({stack: dict.fromkeys(range(n), (1,)) for stack, n in (("encoder", 2), ("decoder", 3), ("cross", 3))},
           "decoder.block.2.layer.1.EncDecAttention.o.weight"),
}  # fmt: skip


@pytest.mark.parametrize("form", ["auto", "compact"])
@pytest.mark.parametrize("family", list(FAMILIES))
def test_a_weight_that_is_gone_renamed_or_reshaped_is_named(tmp_path: Path, family: str, form: str) -> None:
    heads, name = FAMILIES[family]
    folder = tiny_models.save(family, tmp_path / "src", tokenizer=False)
    changes: dict[str, tuple[Callable[[dict[str, Any]], None], str]] = {
        "gone": (lambda tensors: tensors.pop(name), "missing"),
        "renamed": (lambda tensors: tensors.update({name + "s": tensors.pop(name)}), "missing"),
        "reshaped": (lambda tensors: tensors.update({name: torch.cat([tensors[name]] * 2)}), "has shape"),
    }
    for number, (change, said) in enumerate(changes.values()):
        out = tmp_path / f"out{number}"
        export_pruned(folder, heads, out, form=form, check=False)
        load_pruned(out)  # whole, it loads
        _tampered(out, change)
        with pytest.raises(CheckpointError) as caught:
            load_pruned(out)
        assert said in str(caught.value)
        assert f"'{name}'" in str(caught.value)
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["llama", "gpt2", "bert-masked-lm", "t5", "gpt_oss", "qwen3"])
def test_the_python_door_says_the_same(name: str) -> None:
    """Addresses that a model does not have are refused by masks as by prunings, and nothing has changed."""
    model = tiny.build(name)
    before = {key: value.clone() for key, value in model.state_dict().items()}
    stack = "encoder" if name in ("bert-masked-lm", "t5") else "decoder"
    for heads, said in (
        ({stack: {7: (0,)}}, "there is no layer 7"),
        ({stack: {0: (99,)}}, "there is no head 99"),
        ({stack: {0: (-1,)}}, "there is no head -1"),
        ({stack: {-1: (0,)}}, "there is no layer -1"),
        ({stack: {0: (1, 1)}}, "twice"),
        ({"middle": {0: (1,)}}, "there is no stack 'middle'"),
    ):
        for asked in (prune, mask):
            with pytest.raises(ManyheadsError, match=said) as caught:
                asked(model, heads)
            assert "\n" not in str(caught.value)
    for nothing in ({}, {0: ()}, {stack: {}}, []):
        for asked in (prune, mask):
            with pytest.raises(ConversionError, match="nothing to prune"):
                asked(model, nothing)
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
