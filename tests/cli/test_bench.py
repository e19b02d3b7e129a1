"""`manyheads bench`: what it prints, its files and exit statuses, and what it refuses before measuring anything."""

from __future__ import annotations

import json

import pytest

from manyheads.cli.main import main
from support import tiny_models

torch = pytest.importorskip("torch")
pytest.importorskip("numba")


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """Everything as it is, only small: probes, buffers, rounds, the latent and the prompt."""
    from manyheads.bench import probes, run
    from manyheads.bench.contest import Pace
    from manyheads.bench.latent import LatentHeads
    from manyheads.bench.room import Room

    threads = torch.get_num_threads()
    monkeypatch.setattr(probes, "READ_BYTES", 1 << 16)
    monkeypatch.setattr(probes, "MATRIX", 32)
    monkeypatch.setattr(run, "room", lambda: Room(1 << 20, 1 << 18))
    monkeypatch.setattr(run, "_QUICK", Pace(rounds=2, least=1, path_seconds=10.0, pause_seconds=0.0))
    monkeypatch.setattr(run, "_THOROUGH", Pace(rounds=3, least=1, path_seconds=10.0, pause_seconds=0.0))
    monkeypatch.setattr(run, "DEEPSEEK_V3", LatentHeads(4, 16, 4, 12, 12))
    monkeypatch.setattr(run, "HEAD_DIM", 16)
    monkeypatch.setattr(run, "LATENT_ROWS", 64)
    monkeypatch.setattr(run, "_PREFILL_TOKENS", 24)
    yield
    torch.set_num_threads(threads)


def bench(capsys, *words: str) -> tuple[int, str, str]:
    status = main(["bench", "--threads", "1", *map(str, words)])
    out, err = capsys.readouterr()
    return status, out, err


def without_impossible(monkeypatch) -> None:
    """Caches this small are in the cache, and faster than any probe of memory: what the flag is for."""
    monkeypatch.setattr("manyheads.bench.contest.IMPOSSIBLE", float("inf"))


def test_json_of_the_standard_shapes(capsys, monkeypatch):
    without_impossible(monkeypatch)
    status, out, err = bench(capsys, "--context", "64,128", "--kv-heads", "8,2", "--kv-dtype", "fp32,int8", "--json")
    assert status == 0
    data = json.loads(out)
    assert data["schema"] == "manyheads.bench/1"
    assert [(one["dtype"], one["kv_heads"], one["keys"]) for one in data["decode"]] == [
        (dtype, kv, keys) for dtype in ("fp32", "int8") for kv in (8, 2) for keys in (64, 128)
    ]
    assert [(one["dtype"], one["keys"]) for one in data["latent"]] == [("fp32", 64)]
    assert [(one["dtype"], one["queries"]) for one in data["prefill"]] == [("fp32", 24)]
    assert data["generation"] is None
    assert data["faults"] == []
    assert data["settings"]["rounds"] == 3
    assert data["command"] == "manyheads bench --threads 1 --context 64,128 --kv-heads 8,2 --kv-dtype fp32,int8"
    assert data["machine"]["last_level_cache_bytes"] == 1 << 18
    assert {path["threads"] for one in data["decode"] for path in one["paths"]} == {1}
    assert "fp32, 8 KV heads, 64 tokens" in err


def test_text_and_a_flag_when_the_bench_is_wrong(capsys, monkeypatch):
    monkeypatch.setattr("manyheads.bench.contest.IMPOSSIBLE", 0.0)
    status, out, _ = bench(capsys, "--context", "64", "--kv-heads", "8", "--kv-dtype", "fp32")
    assert status == 1
    assert "How near is a decode step to what the machine allows?" in out
    assert "the bench is wrong here" in " ".join(out.split())
    assert "(!)" in out


def test_quick_takes_one_context(capsys, monkeypatch):
    without_impossible(monkeypatch)
    status, out, _ = bench(capsys, "--quick", "--kv-heads", "8", "--kv-dtype", "bf16", "--json")
    assert status == 0
    data = json.loads(out)
    assert [one["keys"] for one in data["decode"]] == [8192]
    assert data["settings"]["rounds"] == 2


def test_a_wrong_kernel_is_named_and_exits_1(capsys, monkeypatch):
    without_impossible(monkeypatch)
    from manyheads.kernels import attend

    right = attend.decode
    monkeypatch.setattr(attend, "decode", lambda *a, **k: right(*a, **k) * 1.5)
    status, out, _ = bench(capsys, "--context", "64", "--kv-heads", "8", "--kv-dtype", "fp32", "--json")
    assert status == 1
    data = json.loads(out)
    mine = data["decode"][0]["paths"][0]
    assert (mine["agrees"], mine["median_seconds"], mine["best_seconds"]) == (False, None, None)
    assert len(data["faults"]) == 2  # the step and the latent step


@pytest.mark.parametrize(("ending", "start"), [("html", "<!doctype html>"), ("svg", "<svg "), ("txt", "Attention")])
def test_the_file_is_what_its_ending_says(capsys, monkeypatch, tmp_path, ending, start):
    without_impossible(monkeypatch)
    target = tmp_path / f"out.{ending}"
    words = ("--context", "64,128", "--kv-heads", "8", "--kv-dtype", "fp32", "--output", target)
    status, out, err = bench(capsys, *words)
    assert (status, out) == (0, "")
    text = target.read_text()
    assert text.startswith(start)
    assert "wrote" in err
    if ending == "html":
        assert '<meta name="generator" content="manyheads bench">' in text
        assert text.count("<figure") == 1
        assert ">roofline</text>" in text


def test_a_models_own_heads(capsys, monkeypatch):
    without_impossible(monkeypatch)
    sketch = "(gqa(64, 8/2x16, window=32), gqa(64, 8/4x8)) x 2"
    status, out, _ = bench(capsys, sketch, "--context", "64", "--kv-dtype", "fp32", "--json")
    assert status == 0
    data = json.loads(out)
    assert [(one["heads"], one["kv_heads"], one["head_dim"]) for one in data["decode"]] == [(8, 2, 16), (8, 4, 8)]
    assert data["latent"] == []
    assert data["generation"] is None


def test_a_models_latent(capsys, monkeypatch):
    without_impossible(monkeypatch)
    status, out, _ = bench(
        capsys, "mla(64, 4x8+4, rank=12) x 2", "--context", "64", "--kv-dtype", "bf16,int8", "--json"
    )
    assert status == 0
    data = json.loads(out)
    assert data["decode"] == data["prefill"] == []
    assert [(one["heads"], one["head_dim"], one["v_head_dim"], one["dtype"]) for one in data["latent"]] == [
        (4, 16, 12, "bf16")
    ]


def test_a_model_with_weights_is_run(capsys, monkeypatch, tmp_path):
    pytest.importorskip("transformers")
    without_impossible(monkeypatch)
    folder = tiny_models.save("llama", tmp_path / "tiny-llama")
    status, out, err = bench(capsys, folder, "--quick", "--context", "64", "--kv-dtype", "fp32", "--json")
    assert status == 0, err
    told = json.loads(out)["generation"]
    assert told["dtype"] == "bf16"
    names = {way["name"]: way for way in told["ways"]}
    assert {"transformers sdpa", "transformers eager", "manyheads"} <= set(names)
    for way in list(names.values())[:3]:
        assert [times["cached"] for times in way["tokens"]] == told["cached"]
        assert all(times["median_seconds"] > 0 for times in way["tokens"])


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--kv-heads", "5"], "--kv-heads 5: 32 query heads cannot share them evenly; valid: 1, 2, 4, 8, 16, 32"),
        (["--kv-heads", "0"], "--kv-heads '0' is not a whole number from 1 to 32"),
        (["--kv-dtype", "fp8"], "--kv-dtype 'fp8' is not one of fp32, bf16, fp16, int8"),
        (["--context", "many"], "--context 'many' is not a number of tokens"),
        (["--context", "64m"], "two such caches take"),
        (["no/such/model"], "no/such/model"),
        (["llama-2-70b", "--kv-heads", "8"], "a model was named, which has its own"),
        (["linear(64, 4x16) x 2"], "no layer of it keeps keys and values or a latent (layers that keep a state)"),
    ],
)
def test_what_is_refused_is_one_line_and_writes_nothing(capsys, tmp_path, monkeypatch, words, said):
    monkeypatch.chdir(tmp_path)
    status, out, err = bench(capsys, *words, "--output", "out.txt")
    assert (status, out) == (2, "")
    lines = [line for line in err.splitlines() if line.startswith("manyheads: ")]
    assert len(lines) == 1
    assert said in lines[0]
    assert list(tmp_path.iterdir()) == []


def test_one_context_makes_no_picture(capsys, monkeypatch, tmp_path):
    without_impossible(monkeypatch)
    target = tmp_path / "out.svg"
    status, _, err = bench(capsys, "--context", "64", "--kv-heads", "8", "--kv-dtype", "fp32", "--output", target)
    assert status == 2
    assert "one context makes no line to draw" in err
    assert "KV heads" not in err
    assert not target.exists()


def test_a_folder_that_is_not_there_is_said_before_measuring(capsys, tmp_path):
    status, _, err = bench(capsys, "--output", tmp_path / "none" / "out.html")
    assert status == 2
    assert "does not exist" in err
    assert "KV heads" not in err
