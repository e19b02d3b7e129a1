"""Every model type that transformers knows: priced as its own model counts, refused in one line, or told what is left out."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from manyheads.checkpoints import read_config  # noqa: E402
from manyheads.checkpoints.families import MODULES, names  # noqa: E402
from manyheads.checkpoints.refusals import left_out, misleading  # noqa: E402
from manyheads.errors import CheckpointError  # noqa: E402
from manyheads.spec import StackSpec  # noqa: E402

_FILE = Path(__file__).parents[2] / "benchmarks" / "model_types.py"
# Default configurations that transformers itself refuses to make.
NO_DEFAULT = {"gemma4_assistant", "nougat"}


@pytest.fixture(scope="module")
def bench() -> Any:
    """The script that also writes docs/model-types.md."""
    if not _FILE.exists():
        pytest.skip("benchmarks/ is not in this copy")
    spec = importlib.util.spec_from_file_location("model_types", _FILE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["model_types"] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def found(bench: Any) -> dict[str, Any]:
    """The outcome of every type, about 20 seconds."""
    return {each.model_type: each for each in bench.outcomes()}


def few(outcomes: list[Any]) -> list[str]:
    return [
        f"{o.model_type} ({o.family}): {o.ours} for {o.theirs}, {o.difference:+.3%}; {o.said[:120]}" for o in outcomes
    ]


def test_nothing_but_a_refusal_comes_out_of_the_reader(found: dict[str, Any]) -> None:
    assert few([each for each in found.values() if each.verdict == "escaped"]) == []
    for each in found.values():
        if each.verdict == "refused":
            assert "\n" not in each.said
            assert 0 < len(each.said) < 600


def test_every_model_that_is_read_has_its_own_count_or_says_what_is_left_out(found: dict[str, Any]) -> None:
    told = set(left_out().values())
    silent = [o for o in found.values() if o.verdict == "differs" and not any(o.said.endswith(note) for note in told)]
    assert few(silent) == []
    assert few([each for each in found.values() if abs(each.difference) >= 0.001]) == []


def test_every_model_that_is_read_was_held_against_one(found: dict[str, Any]) -> None:
    assert {each.model_type for each in found.values() if each.verdict == "not built"} <= NO_DEFAULT


def test_what_is_described_is_equal(found: dict[str, Any]) -> None:
    described = [found[name] for name in names() if name in found]
    assert len(described) > 65
    assert few([each for each in described if each.verdict != "equal"]) == []


def test_a_part_of_a_larger_model_says_so(found: dict[str, Any]) -> None:
    parts = [each for each in found.values() if each.part]
    assert len(parts) > 30
    for each in parts:
        assert each.said.startswith(f"only {each.part} is priced"), each


def test_tables_of_refusals_and_omissions_name_types_that_exist_and_are_needed(found: dict[str, Any]) -> None:
    if "5.24" not in transformers.__version__:
        pytest.skip("the tables were made for transformers 5.24")
    described = {kind for kinds in MODULES.values() for kind in kinds}
    assert (set(misleading()) | set(left_out())) <= set(found)
    assert not set(misleading()) & set(left_out())
    assert not (set(misleading()) | set(left_out())) & described
    for name, why in misleading().items():
        assert found[name].said == f"model_type {name} is not described: {why}"
    assert {name for name in left_out() if found[name].verdict != "differs"} == set()


def test_the_page_names_every_type_once(bench: Any, found: dict[str, Any]) -> None:
    page = bench.page(list(found.values()))
    assert [name for name in found if f"`{name}`" not in page] == []
    stored = _FILE.parents[1] / "docs" / "model-types.md"
    if transformers.__version__ == "5.24.0" and stored.exists():
        undated = [line for line in page.splitlines() if "python benchmarks/model_types.py" not in line]
        assert undated == [
            line for line in stored.read_text().splitlines() if "python benchmarks/model_types.py" not in line
        ]


GONE = object()
SPOILED = [GONE, None, [], ["full_attention", 3], 10**30, -1, 1.5, "x", {"a": 1}, True]


def spoiled(settings: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The settings with one of them removed or replaced, at the top and one step down."""
    for key, value in settings.items():
        for other in SPOILED:
            yield {k: v for k, v in settings.items() if k != key} | ({} if other is GONE else {key: other})
        if key in ("text_config", "rope_parameters") and isinstance(value, dict):
            for changed in spoiled(value):
                yield {**settings, key: changed}


def test_one_spoiled_setting_is_refused_in_one_line_or_read(found: dict[str, Any]) -> None:
    read = [each.model_type for each in found.values() if each.verdict in ("equal", "differs")]
    refusals, stacks = [], 0
    for model_type in ["dots3_note", *read[::7]]:
        for changed in spoiled(transformers.CONFIG_MAPPING[model_type]().to_dict()):
            try:
                stacks += isinstance(read_config(changed, source="spoiled").stack, StackSpec)
            except CheckpointError as error:
                refusals.append(str(error))
    assert stacks > 1000
    assert len(refusals) > 1000
    assert [message for message in refusals if "\n" in message or len(message) > 1000] == []
