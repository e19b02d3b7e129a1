"""What the documentation shows runs as it stands: its Python on a tiny model of 18 layers, its commands on tiny files.

Docstrings count: an indented block of one that is Python and calls something is an example.
"""

from __future__ import annotations

import ast
import copy
import importlib
import re
import shlex
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import manyheads
from manyheads.cli.main import main

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("numba")

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
TEXT = "the cat sat on the mat, and the dog ran after the cat. " * 3
# Steps of training that are many in a document and none too few here.
SHORTER = (("steps=400", "steps=8"), ("steps=300", "steps=8"))


def look(call: Any, out: Any) -> None:
    """An observer."""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any, Any]:
    """A folder with a model of 18 layers, the model, and its tokenizer."""
    import transformers

    from support import tiny_models

    folder = tiny_models.save("llama", tmp_path_factory.mktemp("documents") / "model")
    config = transformers.AutoConfig.from_pretrained(folder, num_hidden_layers=18)
    torch.manual_seed(0)
    model = transformers.LlamaForCausalLM(config).eval()
    model.save_pretrained(folder)
    return folder, model, transformers.AutoTokenizer.from_pretrained(folder)


@pytest.fixture
def names(made: tuple[Path, Any, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What the documents take for granted: a model and its tokenizer, texts, tokens; and files of a model."""
    folder, model, tokenizer = made
    model = copy.deepcopy(model)
    (tmp_path / "path" / "to").mkdir(parents=True)
    for place in ("path/to/model", "my-checkpoint"):
        (tmp_path / place).symlink_to(folder, target_is_directory=True)
    monkeypatch.chdir(tmp_path)
    ids = torch.randint(3, 300, (1, 24), generator=torch.Generator().manual_seed(0))
    return {
        "manyheads": manyheads, "model": model, "whole": model, "tokenizer": tokenizer, "text": TEXT, "ids": ids,
        "other_ids": ids.flip(1), "batches": [ids, ids.flip(1)], "batch": {"input_ids": ids}, "look": look,
        "prompt": {"input_ids": ids}, "prompt_and_more": ids,
    }  # fmt: skip


def run(code: str, where: str, names: dict[str, Any]) -> None:
    """Runs `code`; what it compares must be so."""
    for long, short in SHORTER:
        code = code.replace(long, short)
    tree = ast.parse(code)
    for at, line in enumerate(tree.body):
        if isinstance(line, ast.Expr) and isinstance(line.value, ast.Compare):
            tree.body[at] = ast.copy_location(ast.Assert(line.value, None), line)
    exec(compile(ast.fix_missing_locations(tree), where, "exec"), names)


@pytest.mark.parametrize("name", ["README.md", "docs/heads.md", "docs/head-gates.md", "docs/pruning.md"])
def test_the_python_of_a_document_runs(names: dict[str, Any], name: str, capsys: pytest.CaptureFixture[str]) -> None:
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / name).read_text(encoding="utf-8"), re.DOTALL)
    assert blocks
    try:
        for block in blocks:
            names["other_ids"] = names["ids"].flip(1)  # as long as the tokens that a block before may have made
            run(block, name, names)
    finally:
        manyheads.disable()
    capsys.readouterr()


def commands() -> list[str]:
    """The commands of the README's blocks of shell, those of its table apart."""
    blocks = re.findall(r"```sh\n(.*?)```", README, re.DOTALL)
    lines = [line.split(" #")[0].rstrip().removeprefix(".venv/bin/") for block in blocks for line in block.splitlines()]
    return [line for line in lines if line.startswith("manyheads ")]


@pytest.mark.parametrize("command", commands())
def test_a_command_of_the_readme_runs(
    command: str, names: dict[str, Any], capsys: pytest.CaptureFixture[str], request: pytest.FixtureRequest
) -> None:
    words = shlex.split(command)[1:]
    if words == ["xray"]:
        request.getfixturevalue("smollm2_file")
        words += ["--tokens", "64", "--no-heads"]  # all of it takes minutes: tests/cli/test_xray.py
    assert main(words) == 0, capsys.readouterr().err
    out = capsys.readouterr().out
    shown = re.search(rf"{re.escape(command)}\n```\n(?:[^`\n]*\n){{0,4}}```\n(.*?)```", README, re.DOTALL)
    if shown and words[0] != "xray":
        lines = [line for line in shown[1].splitlines() if line.strip()]
        assert [line for line in lines if line.strip() not in out] == []


def examples() -> Iterator[tuple[str, str, str]]:
    """(module, what it is of, code) of each example in a docstring."""
    root = Path(manyheads.__file__).parent
    for path in sorted(root.rglob("*.py")):
        module = ".".join(path.relative_to(root.parent).with_suffix("").parts).removesuffix(".__init__")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
                for block in re.findall(r"(?:^|\n\n)((?: {4,}.*(?:\n|$))+)", ast.get_docstring(node) or ""):
                    code = textwrap.dedent(block)
                    try:
                        calls = any(isinstance(each, ast.Call) for each in ast.walk(ast.parse(code)))
                    except SyntaxError:
                        continue
                    if calls:
                        yield module, getattr(node, "name", ""), code


EXAMPLES = list(examples())
# What stands before an example where its module does not say it: the example of a new module may need a line here.
CALL = """
from manyheads.ops import masks, softmax
from manyheads.ops.call import AttentionCall
q, k, v = torch.randn(3, 1, 4, 8, 64).unbind()
call = AttentionCall.checked(q, k, v, scale=0.125, visible=masks.causal())
"""
DOOR = (
    "from manyheads.models.door.attentions import find_attentions\nfrom manyheads.models.door.door import open_door\n"
)
SETTINGS = {
    "manyheads.heads.attention_modules": DOOR,
    "manyheads.heads.statistics.measure": DOOR + "batch = {'input_ids': ids}\n",
    "manyheads.heads.effects.objective": """
from manyheads.heads.alignment import frame
from manyheads.heads.effects import head_importance
ids = ids[0].tolist() * 11
""",
    "manyheads.heads.roles.detect": "from manyheads.heads.address import Head\n",
    "manyheads.layer.backends": CALL,
    "manyheads.layer.dispatch": CALL,
    "manyheads.layer.caches.saved": """
layer = manyheads.Attention(manyheads.AttentionSpec.gqa(64, 4, 2))
cache = cache_for(layer.spec, batch=1)
layer(torch.randn(1, 5, 64), cache=cache)
""",
    "manyheads.lazy": "__name__ = 'manyheads.layer'\n",
    "manyheads.models.caches.saved": """
cache = manyheads.cache(model)
model(ids[:, :-1], past_key_values=cache)
""",
    "manyheads.ops.call": CALL,
}


@pytest.mark.parametrize(
    ("module", "code"), [(module, code) for module, _, code in EXAMPLES], ids=[f"{m}:{of}" for m, of, _ in EXAMPLES]
)
def test_an_example_of_a_docstring_runs(module: str, code: str, names: dict[str, Any]) -> None:
    """With what its module offers, and with what a person who reads it would have by then."""
    had = (
        names
        | {"torch": torch}
        | {name: value for name, value in vars(importlib.import_module(module)).items() if name[0] != "_"}
    )
    exec(SETTINGS.get(module, ""), had)
    try:
        run(code, module, had)
    finally:
        manyheads.disable()
