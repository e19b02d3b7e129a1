"""What all tests share: the hypothesis profile, and a process of our own to run the command in."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

import hypothesis
import pytest

# No deadline: the same example takes ten times as long on a machine that is busy with something else.
hypothesis.settings.register_profile("manyheads", deadline=None, print_blob=True)
hypothesis.settings.load_profile("manyheads")

Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def python() -> Run:
    """Runs this Python with the given arguments in a process of its own, and returns what came of it."""

    def run(*words: str, **options: object) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, *words]
        return subprocess.run(command, check=False, capture_output=True, text=True, timeout=120, **options)

    return run
