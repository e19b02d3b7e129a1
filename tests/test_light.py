"""The light install: what prices models and tells facts must never load torch, numpy or their like.

import-linter reads the source; this looks at what a real process holds, which also catches a parent package's __init__.
"""

from __future__ import annotations

import pytest

HEAVY = ("torch", "transformers", "numba", "sympy", "numpy", "gguf", "safetensors", "typer", "click")
ROOMS = ("errors", "spec", "facts", "report", "cost", "checkpoints")
COMMANDS = {
    "cost": ["cost", "llama-2-70b"],
    "cost as JSON": ["cost", "llama-2-70b", "--context", "128000", "--what-if", "mha", "--json"],
    "models": ["models"],
    "facts": ["facts"],
    "help of facts": ["facts", "--help"],
    "help of xray": ["xray", "--help"],
    "the tour": [],
}


def loaded(python, script: str) -> set[str]:
    """The top-level modules that a fresh process holds after `script`."""
    report = "import sys; sys.stderr.write('LOADED ' + ' '.join(sorted({name.split('.')[0] for name in sys.modules})))"
    done = python("-c", f"{script}\n{report}")
    assert done.returncode == 0, done.stderr
    return set(done.stderr.rpartition("LOADED ")[2].split())


def test_the_probe_sees_what_is_loaded(python) -> None:
    assert "sqlite3" not in loaded(python, "")
    assert "sqlite3" in loaded(python, "import sqlite3.dbapi2")


@pytest.mark.parametrize("room", ROOMS)
def test_a_light_room_loads_nothing_heavy(python, room: str) -> None:
    assert loaded(python, f"import manyheads.{room}").isdisjoint({*HEAVY, "rich"})


@pytest.mark.parametrize("words", COMMANDS.values(), ids=COMMANDS)
def test_a_light_command_loads_nothing_heavy(python, words: list[str]) -> None:
    held = loaded(python, f"from manyheads.cli.main import main; assert main({words!r}) == 0")
    assert held.isdisjoint(HEAVY)
    if "--json" in words or "--help" in words or not words:
        assert "rich" not in held
