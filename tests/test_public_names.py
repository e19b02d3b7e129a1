"""The names that others may rely on. A change here is a change of the public interface: say so in CHANGELOG.md."""

from __future__ import annotations

import json

import pytest

import manyheads

PUBLIC = {
    "Alibi": "manyheads.spec",
    "Attention": "manyheads.layer",
    "AttentionSpec": "manyheads.spec",
    "BackendError": "manyheads.errors",
    "Band": "manyheads.spec",
    "Bias": "manyheads.spec",
    "Bidirectional": "manyheads.spec",
    "Block": "manyheads.spec",
    "Borrowed": "manyheads.spec",
    "Causal": "manyheads.spec",
    "CheckpointError": "manyheads.errors",
    "Chunk": "manyheads.spec",
    "ConversionError": "manyheads.errors",
    "Cross": "manyheads.spec",
    "Heads": "manyheads.spec",
    "Latent": "manyheads.spec",
    "ManyheadsError": "manyheads.errors",
    "Mlp": "manyheads.spec",
    "Moe": "manyheads.spec",
    "MultiheadAttention": "manyheads.layer",
    "NoPositions": "manyheads.spec",
    "Norm": "manyheads.spec",
    "QKNorm": "manyheads.spec",
    "RelativeBuckets": "manyheads.spec",
    "Report": "manyheads.report",
    "Rope": "manyheads.spec",
    "Self": "manyheads.spec",
    "SpecError": "manyheads.errors",
    "Stack": "manyheads.spec",
    "StackSpec": "manyheads.spec",
    "State": "manyheads.spec",
    "Weight": "manyheads.spec",
    "Window": "manyheads.spec",
    "cache": "manyheads.models.enabling",
    "disable": "manyheads.models.enabling",
    "enable": "manyheads.models.enabling",
    "mha": "manyheads.layer",
    "price": "manyheads.cost",
    "read": "manyheads.checkpoints",
    "weights": "manyheads.spec",
}


def test_these_and_no_others() -> None:
    assert manyheads.__all__ == list(PUBLIC)


@pytest.mark.parametrize(("name", "room"), PUBLIC.items())
def test_each_is_what_its_room_holds(name: str, room: str) -> None:
    if room == "manyheads.layer":
        pytest.importorskip("torch")
    home = __import__(room, fromlist=[name])
    assert getattr(manyheads, name) is getattr(home, name)
    assert name in home.__all__


def test_dir_offers_them_before_they_are_loaded() -> None:
    assert set(PUBLIC) <= set(dir(manyheads))


def test_another_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'prize'"):
        _ = manyheads.prize  # type: ignore[attr-defined]


def test_importing_the_package_imports_none_of_its_rooms(python) -> None:
    script = "import sys, json, manyheads; print(json.dumps([m for m in sys.modules if m.startswith('manyheads')]))"
    assert json.loads(python("-c", script).stdout) == ["manyheads"]
