"""The package as it is installed: one version, the two weights of install, and every data file in the wheel."""

from __future__ import annotations

import re
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

import manyheads

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
CONSTRAINTS = dict(
    line.split("==") for line in (ROOT / "constraints.txt").read_text().splitlines() if line and line[0] != "#"
)


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def needed(requirements: list[str]) -> set[str]:
    return {canonical(re.match(r"[\w.-]+", requirement)[0]) for requirement in requirements}


def test_the_base_install_is_rich_and_nothing_else() -> None:
    assert needed(PROJECT["project"]["dependencies"]) == {"rich"}


def test_every_requirement_has_its_tested_version() -> None:
    extras = PROJECT["project"]["optional-dependencies"]
    wanted = needed([*PROJECT["project"]["dependencies"], *extras["models"], *extras["dev"]])
    assert wanted <= {canonical(name) for name in CONSTRAINTS}


def test_torch_is_pinned_without_a_local_version_so_that_the_cpu_build_serves() -> None:
    assert CONSTRAINTS["torch"] == "2.13.0"
    assert not [version for version in CONSTRAINTS.values() if "+" in version]


def test_the_version_is_written_once() -> None:
    version = manyheads.__version__
    assert re.fullmatch(r"\d+\.\d+\.\d+(\.dev\d+)?", version)
    assert PROJECT["tool"]["hatch"]["version"]["path"] == "src/manyheads/__init__.py"
    places = [path for path in (ROOT / "src").rglob("*.py") if f'"{version}"' in path.read_text()]
    assert places == [ROOT / "src/manyheads/__init__.py"]
    assert version not in (ROOT / "pyproject.toml").read_text()


def test_the_wheel_holds_every_file_of_the_source(python, tmp_path) -> None:
    pytest.importorskip("hatchling")
    done = python("-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path), cwd=ROOT)
    assert done.returncode == 0, done.stderr
    (wheel,) = tmp_path.glob("*.whl")
    held = {name for name in zipfile.ZipFile(wheel).namelist() if name.startswith("manyheads/")}
    source = {
        str(path.relative_to(ROOT / "src"))
        for path in (ROOT / "src/manyheads").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert held == source
    assert "manyheads/py.typed" in held


def test_the_console_script_is_the_command(python) -> None:
    assert PROJECT["project"]["scripts"] == {"manyheads": "manyheads.cli.main:main"}
    script = Path(sys.executable).parent / "manyheads"
    if not script.exists():
        pytest.skip("the package is not installed in this environment")
    done = python(str(script), "--version")
    assert done.stdout == f"manyheads {manyheads.__version__}\n"
