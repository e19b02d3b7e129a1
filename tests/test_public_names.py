"""The names that others may rely on. A change here is a change of the public interface: say so in CHANGELOG.md."""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
from pathlib import Path

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
    "Loaded": "manyheads.models.load",
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
    "cache": "manyheads.models.enable",
    "disable": "manyheads.models.enable",
    "enable": "manyheads.models.enable",
    "head_importance": "manyheads.heads.effects",
    "head_roles": "manyheads.heads.roles",
    "head_statistics": "manyheads.heads.statistics",
    "load": "manyheads.models.load",
    "mha": "manyheads.layer",
    "open_door": "manyheads.models.door.door",
    "price": "manyheads.cost",
    "prune": "manyheads.heads.pruning",
    "read": "manyheads.checkpoints",
    "weights": "manyheads.spec",
}


def test_these_and_no_others() -> None:
    assert manyheads.__all__ == list(PUBLIC)


@pytest.mark.parametrize(("name", "room"), PUBLIC.items())
def test_each_is_what_its_room_holds(name: str, room: str) -> None:
    if room.startswith(("manyheads.layer", "manyheads.heads", "manyheads.models")):
        pytest.importorskip("torch")
        pytest.importorskip("transformers")
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
    assert sorted(json.loads(python("-c", script).stdout)) == ["manyheads", "manyheads.lazy"]


def _modules() -> list[str]:
    """Every module of the package but the one that runs the command line."""
    root = Path(manyheads.__file__).parent
    paths = [path.relative_to(root.parent).with_suffix("") for path in sorted(root.rglob("*.py"))]
    names = [".".join(path.parts).removesuffix(".__init__") for path in paths]
    return [name for name in names if not name.endswith("__main__")]


def test_no_package_offers_a_name_that_one_of_its_modules_has() -> None:
    """Python binds a module in its package when it is first imported, over a function of that name that is not there yet."""
    modules = _modules()
    for package in {name.rpartition(".")[0] for name in modules} - {""}:
        own = {name.rpartition(".")[2] for name in modules if name.rpartition(".")[0] == package}
        offered = getattr(importlib.import_module(package), "__all__", [])
        assert not own & set(offered), package


_ALL_NAMES = """
import importlib, random, os, sys, types
import torch, transformers.cache_utils
try:
    import numba
except ModuleNotFoundError:
    pass
modules = sys.argv[1:]
orders = [modules, modules[::-1], *(random.Random(seed).sample(modules, len(modules)) for seed in (1, 2))]
for order in orders:  # each in a process of its own, in which nothing of ours is there yet
    child = os.fork()
    if child:
        assert os.waitpid(child, 0)[1] == 0
        continue
    for name in order:
        importlib.import_module(name)
    for module in map(sys.modules.__getitem__, modules):
        for name in getattr(module, "__all__", ()):
            value = getattr(module, name)
            assert not isinstance(value, types.ModuleType), (module.__name__, name, order)
            ours = getattr(value, "__module__", "").startswith("manyheads")
            if ours and isinstance(value, (types.FunctionType, type)):
                assert value.__name__.lstrip("_") == name, (module.__name__, name, value)
    os._exit(0)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="orders of imports are tried in copies of one process")
def test_every_name_is_what_it_says_whatever_was_imported_before(python) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    skip = () if importlib.util.find_spec("numba") else ("manyheads.kernels",)
    done = python("-c", _ALL_NAMES, *(name for name in _modules() if not name.startswith(skip or "-")))
    assert done.returncode == 0, done.stderr
