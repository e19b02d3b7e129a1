"""The Python in the documentation runs as it stands, on a tiny model of 18 layers."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("numba")

DOCS = Path(__file__).parents[1] / "docs"
TEXT = "the cat sat on the mat, and the dog ran after the cat. " * 3
# Steps of training that are many in a document and none too few here.
SHORTER = (("steps=400", "steps=8"),)


@pytest.fixture
def names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What the documents take for granted: a model and its tokenizer, texts, tokens."""
    import transformers

    from support import tiny_models

    folder = tiny_models.save("llama", tmp_path / "model")
    config = transformers.AutoConfig.from_pretrained(folder, num_hidden_layers=18)
    torch.manual_seed(0)
    model = transformers.LlamaForCausalLM(config).eval()
    ids = torch.randint(3, 300, (1, 24))
    monkeypatch.chdir(tmp_path)
    return {
        "model": model, "whole": model, "tokenizer": transformers.AutoTokenizer.from_pretrained(folder), "text": TEXT,
        "ids": ids, "other_ids": ids.flip(1), "batches": [ids, ids.flip(1)],
    }  # fmt: skip


@pytest.mark.parametrize("name", ["heads.md", "head-gates.md", "pruning.md"])
def test_the_python_of_a_document_runs(names: dict[str, Any], name: str, capsys: pytest.CaptureFixture[str]) -> None:
    blocks = re.findall(r"```python\n(.*?)```", (DOCS / name).read_text(encoding="utf-8"), re.DOTALL)
    assert blocks
    for block in blocks:
        for long, short in SHORTER:
            block = block.replace(long, short)  # noqa: PLW2901
        names["other_ids"] = names["ids"].flip(1)  # as long as the tokens that a block before may have made
        exec(compile(block, name, "exec"), names)
    capsys.readouterr()
