"""The plan of the rooms, as far as import contracts cannot say it: no two files import each other, no room takes over."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import manyheads
from support.slow import SLOW

ROOT = Path(manyheads.__file__).parent
MOST_OF_THE_LINES = 0.20


def module(path: Path) -> str:
    parts = path.relative_to(ROOT.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module(path): path for path in sorted(ROOT.rglob("*.py"))}


def imported(tree: ast.AST) -> Iterator[str]:
    """The package's modules that run when `tree` does, those imported inside functions too; not those for types alone."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            continue
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            for name in node.names:
                whole = f"{node.module}.{name.name}"
                yield whole if whole in MODULES else node.module
        yield from imported(node)


def test_no_two_files_import_each_other() -> None:
    uses = {name: set(imported(ast.parse(path.read_text(encoding="utf-8")))) for name, path in MODULES.items()}
    circles = {
        tuple(sorted((name, other))) for name in uses for other in uses[name] & set(MODULES) if name in uses[other]
    }
    assert not {pair for pair in circles if pair[0] != pair[1]}


def test_no_room_holds_more_than_a_fifth_of_the_lines() -> None:
    lines: dict[str, int] = {}
    for path in MODULES.values():
        room = path.relative_to(ROOT).parts[0]
        lines[room] = lines.get(room, 0) + len(path.read_text(encoding="utf-8").splitlines())
    whole = sum(lines.values())
    assert {room: f"{count / whole:.1%}" for room, count in lines.items() if count > MOST_OF_THE_LINES * whole} == {}


def test_the_slow_files_are_there() -> None:
    tests = Path(__file__).parent.parent
    assert [file for file in SLOW if not (tests / file).is_file()] == []
