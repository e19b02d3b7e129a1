"""`manyheads check` as a person and a course run it: what it prints, what it refuses, and what it returns."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("torch")
from manyheads.cli.main import main

EXAMPLES = Path(__file__).parent.parent.parent / "examples/check"
RIGHT, WRONG = f"{EXAMPLES}/right.py:attention", f"{EXAMPLES}/wrong.py"


def run(capsys, *words: str) -> tuple[int, str, str]:
    status = main(["check", *words])
    out, err = capsys.readouterr()
    return status, out, err


def flat(text: str) -> str:
    return " ".join(text.split())


def test_a_right_function_exits_0(capsys) -> None:
    status, out, err = run(capsys, RIGHT, "--json")
    data = json.loads(out)
    assert status == 0
    assert (data["schema"], data["ok"], data["failed"], data["function"]) == ("manyheads.check/2", True, 0, "attention")
    assert (data["passed"] + data["not_tested"], data["weak"]) == (len(data["checks"]), 0)
    assert len(data["checks"]) == 68
    assert {check["name"] for check in data["checks"] if check["status"] == "not tested"} <= {"onnx"}
    assert data["taken"]["layout"] == "bhtd"
    assert err == f"{EXAMPLES}/right.py is run as your own code, with your rights, in a process of its own\n"


def test_a_wrong_function_exits_1_and_says_why(capsys) -> None:
    status, out, _ = run(capsys, f"{WRONG}:heads_tiled", "--only", "grouped-heads")
    text = flat(out)
    assert status == 1
    assert "2 checks pass, 2 wrong, 0 weak, 0 not tested" in text
    assert "q, k, v q, k, v: (batch, heads, tokens, dim) by trying" in text
    assert "grouped-heads WRONG group-order: query head h reads key/value head h // (H/K)" in text
    assert "why the key/value heads are tiled (0, 1, 0, 1)" in text
    assert "heads_tiled(q=q, k=k, v=v)" in text
    assert "https://github.com/onnx/onnx/issues/7274" in text
    assert "also group-values" in text
    assert f"Next: manyheads check {WRONG}:heads_tiled --only group-order" in out
    assert max(map(len, (line for line in out.splitlines() if not line.startswith(("Next", "heads_tiled in"))))) <= 80


def test_the_finding_in_json(capsys) -> None:
    status, out, _ = run(capsys, f"{WRONG}:window_one_more", "--only", "window,scale", "--only", "bias", "--json")
    data = json.loads(out)
    assert status == 1
    assert [(check["name"], check["status"]) for check in data["checks"]] == [
        ("scale", "pass"), ("bias", "not tested"), ("window", "fail"),
    ]  # fmt: skip
    assert data["checks"][1]["reason"] == "takes nothing to add to the scores"
    finding = data["checks"][2]["finding"]
    assert set(finding) == {"expected", "found", "cause", "explanation", "code", "line", "resembles", "demand", "grade"}
    assert (finding["grade"], finding["demand"]) == ("wrong", "")
    assert finding["cause"] == "window one more"
    assert finding["resembles"][0] == "https://github.com/huggingface/transformers/issues/26792"
    assert finding["found"] == "query 1: sees keys 0 to 1 (0.5 each)"


def test_required_features_fail_instead_of_being_left_out(capsys) -> None:
    status, out, _ = run(capsys, f"{WRONG}:scale_missing", "--only", "softcap-values", "--require", "softcap")
    assert status == 1
    assert "expected a function that takes softcap" in flat(out)
    assert "found takes no softcap" in flat(out)


def test_what_is_weak_is_a_remark_and_a_fault_where_it_is_required(capsys) -> None:
    only = ("--only", "empty-row,bfloat16,values")
    status, out, _ = run(capsys, f"{EXAMPLES}/weak.py:nan_on_empty_rows", *only)
    text = flat(out)
    assert status == 0
    assert "1 checks pass, 0 wrong, 2 weak, 0 not tested" in text
    assert "masks weak empty-row: a query that sees nothing gives zeros" in text
    assert "What is weak: empty-row" in text
    assert "a fault with --require empty-rows" in text
    status, out, _ = run(capsys, f"{EXAMPLES}/weak.py:nan_on_empty_rows", *only, "--require", "empty-rows", "--json")
    data = json.loads(out)
    assert (status, data["ok"], data["passed"], data["failed"], data["weak"]) == (1, False, 1, 1, 1)
    graded = {check["name"]: (check["status"], check["finding"]) for check in data["checks"]}
    assert (graded["empty-row"][0], graded["empty-row"][1]["grade"]) == ("fail", "wrong")
    assert (graded["bfloat16"][0], graded["bfloat16"][1]["grade"]) == ("weak", "weak")
    assert graded["bfloat16"][1]["demand"] == "bfloat16"


def test_a_module_is_made_and_its_weights_are_told(capsys) -> None:
    status, out, _ = run(capsys, f"{EXAMPLES}/wrong_module.py:NoOutputProjection", "--only", "projections")
    text = flat(out)
    assert status == 1
    assert "what a class, made for each size by trying" in text
    assert "made with num_heads (heads), d_model (d_model)" in text or "d_model (d_model), num_heads (heads)" in text
    assert "W_q.weight: W_q, (h d) m" in text
    assert "why the heads are joined and returned: the output projection W_o is missing" in text
    assert "module = NoOutputProjection(d_model=" in text
    status, out, _ = run(capsys, f"{EXAMPLES}/right_module.py:MultiHeadAttention", "--only", "projected", "--json")
    data = json.loads(out)
    assert (status, data["taken"]["kind"], data["taken"]["cache"]) == (0, "class", "passed")
    assert data["taken"]["slots"][0] == {
        "name": "W_q.weight", "role": "q", "pattern": "(h d) m", "is_bias": False, "each_head": False,
    }  # fmt: skip


def test_what_is_told_is_taken(capsys) -> None:
    status, out, _ = run(
        capsys, f"{EXAMPLES}/weak.py:nan_on_empty_rows", "--only", "mask", "--mask", "blocked", "--no", "bias", "--layout", "bhtd",
        "--names", "q=q,k=k", "--names", "mask=mask", "--json",
    )  # fmt: skip
    data = json.loads(out)
    assert status == 1  # told that True blocks, and it does not
    assert (data["taken"]["mask"], data["known"]["mask"], data["known"]["layout"]) == ("blocked", "told", "told")
    assert data["checks"][0]["finding"]["cause"].startswith("mask inverted")


def test_prints_of_the_file_are_counted_or_shown(capsys, tmp_path) -> None:
    path = tmp_path / "loud.py"
    path.write_text("print('loud')\ndef f(q, k, v):\n    return (q @ k.mT / q.shape[-1] ** 0.5).softmax(-1) @ v\n")
    _, out, err = run(capsys, f"{path}:f", "--only", "scale")
    assert "the file printed 1 line, kept out of here (see --prints)" in out
    assert err.count("\n") == 1
    _, out, err = run(capsys, f"{path}:f", "--only", "scale", "--prints", "--json")
    assert json.loads(out)["ok"]
    assert err.endswith("\nloud\n")


def test_the_list_needs_no_file(capsys) -> None:
    status, out, err = run(capsys, "--list", "--json")
    data = json.loads(out)
    assert (status, err, data["schema"]) == (0, "", "manyheads.check-list/1")
    assert len(data["checks"]) == 85
    assert data["checks"][0] == {
        "name": "values", "suite": "basics", "proves": "softmax(q k^T / sqrt(dim)) v, for each sequence and head",
        "needs": [], "resembles": ["pytorch/pytorch#119811"],
    }  # fmt: skip


def test_output_goes_to_a_file(capsys, tmp_path) -> None:
    target = tmp_path / "result.json"
    status, out, _ = run(capsys, f"{WRONG}:overflows", "--only", "scale", "--json", "--output", str(target))
    assert (status, out) == (0, "")
    assert json.loads(target.read_text())["passed"] == 1


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "name a function as FILE.py:FUNCTION, or ask for --list"),
        (["file.py"], "'file.py' names no function"),
        (["no_such_file.py:f"], "no_such_file.py does not exist"),
        ([f"{EXAMPLES}:f"], "is a folder"),
        ([f"{WRONG}:head_tiled"], "has no function 'head_tiled'; its functions are scale_missing"),
        ([RIGHT, "--timeout", "never"], "--timeout 'never'"),
        ([RIGHT, "--tolerance", "small"], "--tolerance 'small' is not a number between 0 and 1"),
        ([RIGHT, "--tolerance", "2"], "--tolerance '2' is not a number between 0 and 1"),
        ([RIGHT, "--names", "q"], "--names 'q' is not ROLE=NAME"),
        ([RIGHT, "--names", "q=Q"], "there is no parameter 'Q'"),
        ([RIGHT, "--mask", "up"], "invalid choice: 'up'"),
        ([RIGHT, "--layout", "xyz"], "layout 'xyz' is not one of bhtd"),
        ([RIGHT, "--no", "masks"], "there is no feature 'masks'"),
        ([RIGHT, "--dtype", "fp8"], "dtype 'fp8' is not one of fp32"),
        ([RIGHT, "--device", "abacus"], "the device 'abacus' cannot be used"),
        ([RIGHT, "--only", "maks"], "there is no check 'maks'; did you mean masks?"),
        ([RIGHT, "--output", "/no/such/folder/x"], "does not exist"),
    ],
)
def test_wrong_requests_get_one_line_and_exit_2(capsys, words, message) -> None:
    status, out, err = run(capsys, *words)
    assert (status, out) == (2, "")
    lines = [line for line in err.splitlines() if "is run as your own code" not in line]
    assert len(lines) == 1
    assert message in lines[0]
    assert "Traceback" not in err


def test_nothing_that_can_be_tested_exits_2(capsys) -> None:
    status, _, err = run(capsys, f"{WRONG}:scale_missing", "--only", "sinks")
    assert status == 2
    assert "nothing could be tested: takes no sinks" in err
