"""The decode kernels where things go wrong: threads, forks, caches that cannot be written, lesser processors, no Numba."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("numba")

import numpy as np  # noqa: E402

import manyheads  # noqa: E402
from manyheads.kernels.attend import decode  # noqa: E402
from manyheads.kernels.keys import Keys  # noqa: E402

SOURCE = Path(manyheads.__file__).parent

# Answers that every process must give: a small case and one that is split over threads, as sums of float64.
CASE = """
import sys, json, warnings
sys.path.insert(0, {source!r})
import torch
from manyheads.kernels.attend import decode
from manyheads.kernels.keys import Keys

def answers(threads=0):
    draw = torch.Generator().manual_seed(0)
    told = []
    for h, kv, s in ((4, 2, 50), (16, 1, 1500)):
        q, k, v = (torch.randn(1, n, m, 16, generator=draw) for n, m in ((h, 1), (kv, s), (kv, s)))
        out = decode(q, k, v, Keys.causal(1, 1, s), scale=0.1, threads=threads)
        told += [float(out.double().sum()), float(out.double().abs().sum())]
    return told
"""


def script(rest: str) -> str:
    return CASE.format(source=str(SOURCE.parent)) + rest


@pytest.fixture(scope="module")
def expected() -> list[float]:
    space: dict[str, object] = {}
    exec(script(""), space)
    return space["answers"]()  # type: ignore[operator]


def close(found: list[float], expected: list[float]) -> bool:
    return np.allclose(found, expected, rtol=1e-5, atol=1e-5)


def test_eight_threads_at_once() -> None:
    draw = torch.Generator().manual_seed(3)
    requests = []
    for number in range(8):
        s = 200 + 300 * number
        q, k, v = (torch.randn(1, n, m, 16, generator=draw) for n, m in ((6, 1), (2, s), (2, s)))
        requests.append((q, k, v, Keys.causal(1, 1, s)))
    alone = [decode(*request, scale=0.1, threads=1) for request in requests]
    wrong: list[int] = []
    gate = threading.Barrier(8)

    def work(number: int) -> None:
        gate.wait()
        for turn in range(25):
            place = (number + turn) % 8
            if not torch.allclose(decode(*requests[place], scale=0.1, threads=3), alone[place], atol=1e-6):
                wrong.append(place)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads)
    assert wrong == []


def test_a_forked_worker_and_its_parent(python, expected) -> None:
    """After the parent's helpers have run: os.fork, and a DataLoader's worker, which is forked too."""
    rest = """
import os, torch.utils.data
torch.set_num_threads(1)
before = answers(threads=2)
read, write = os.pipe()
child = os.fork()
if not child:
    os.write(write, json.dumps(answers(threads=2)).encode())
    os._exit(0)
os.waitpid(child, 0)
forked = json.loads(os.read(read, 65536))

class Data(torch.utils.data.Dataset):
    def __len__(self):
        return 2
    def __getitem__(self, index):
        return torch.tensor(answers(threads=2), dtype=torch.float64)

loader = torch.utils.data.DataLoader(Data(), num_workers=1, multiprocessing_context="fork", batch_size=None)
print(json.dumps([before, forked, *[x.tolist() for x in loader], answers(threads=2)]))
"""
    done = python("-W", "ignore", "-c", script(rest))
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert len(told) == 5
    assert all(close(each, expected) for each in told)


def test_one_thread(python, expected) -> None:
    rest = """
import threading
before = threading.active_count()
told = answers()
print(json.dumps([told, threading.active_count() - before]))
"""
    done = python("-c", script(rest), env={**os.environ, "MANYHEADS_THREADS": "1"})
    told, more = json.loads(done.stdout)
    assert close(told, expected)
    assert more == 0


def test_nowhere_to_keep_what_is_compiled(python, expected) -> None:
    """Neither beside the source nor in a cache of the user's: the kernels run, and it is said once."""
    env = {name: value for name, value in os.environ.items() if name != "NUMBA_CACHE_DIR"}
    env["NUMBA_CACHE_LOCATOR_CLASSES"] = "UserProvidedCacheLocator"
    done = python("-c", script("print(json.dumps(answers(threads=1)))"), env=env)
    assert done.returncode == 0, done.stderr
    assert close(json.loads(done.stdout), expected)
    assert done.stderr.count("compiled kernels cannot be kept on disk") == 1
    assert "no locator available" in done.stderr


def test_kept_code_knows_all_that_it_was_made_of(monkeypatch: pytest.MonkeyPatch) -> None:
    """Numba looks at the file of a function alone; what that calls is in others."""
    from manyheads.kernels import caching
    from manyheads.kernels.decode import kernel

    stamp = kernel(0, 16, 16, many=False).code._cache._cache_file._source_stamp
    monkeypatch.setattr(caching, "_sources", caching._sources.__wrapped__)
    assert stamp[1] == caching._sources()
    read = Path.read_bytes
    monkeypatch.setattr(Path, "read_bytes", lambda path: read(path) + (b"#" if path.name == "micro.py" else b""))
    assert stamp[1] != caching._sources()


def test_kept_kernels_of_several_processes_together(python, tmp_path: Path) -> None:
    """Each kernel compiled by a process of its own, then all taken from the disk by one: each keeps its own functions.

    Numba names the functions inside by a number that every process counts anew; kernels that shared names overwrote the
    heap, since one used the sizes of the other. And a second process compiles nothing.
    """
    sizes = [(16, 16), (10, 24)]
    rest = """
from manyheads.kernels.decode import kernel
def error(size, out):
    draw = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(1, n, m, d, generator=draw) for n, m, d in ((6, 1, size), (2, 300, size), (2, 300, out)))
    found = decode(q, k, v, Keys.causal(1, 1, 300), scale=0.1)
    expected = torch.nn.functional.scaled_dot_product_attention(q.double(), k.double(), v.double(), scale=0.1, enable_gqa=True)
    return float((found - expected).abs().max()), kernel(0, size, out, many=False).from_disk
"""
    env = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path), "MANYHEADS_THREADS": "1"}
    for size in sizes:
        done = python("-c", script(rest) + f"print(json.dumps(error{size}))", env=env)
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout) == [pytest.approx(0, abs=1e-6), False]
    done = python("-c", script(rest) + f"print(json.dumps([error(*size) for size in {sizes}]))", env=env)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [[pytest.approx(0, abs=1e-6), True]] * len(sizes)


def test_a_processor_without_avx512(python, expected, tmp_path: Path) -> None:
    lesser = {"NUMBA_CPU_NAME": "haswell", "NUMBA_CPU_FEATURES": "+avx2,+fma,+f16c", "NUMBA_CACHE_DIR": str(tmp_path)}
    rest = "print(json.dumps(answers(threads=1)))"
    done = python("-c", script(rest), env={**os.environ, **lesser})
    assert done.returncode == 0, done.stderr
    assert close(json.loads(done.stdout), expected)


def test_without_numba_the_door_says_why_and_goes_on(python) -> None:
    rest = """
import sys, json, importlib.util
found = importlib.util.find_spec
importlib.util.find_spec = lambda name, *more: None if name == "numba" else found(name, *more)
sys.modules["numba"] = None
import torch
from manyheads.layer.backends import select
from manyheads.layer.dispatch import attend
from manyheads.ops.call import AttentionCall
q, k = torch.randn(1, 32, 1, 64), torch.randn(1, 8, 4096, 64)
call = AttentionCall.checked(q, k, k, scale=0.1)
selected = select(call)
print(json.dumps([selected.name, selected.reason, list(attend(call).shape)]))
"""
    done = python("-c", rest, env={**os.environ, "PYTHONPATH": str(SOURCE.parent)})
    assert done.returncode == 0, done.stderr
    name, reason, shape = json.loads(done.stdout)
    assert (name, shape) == ("sdpa", [1, 32, 1, 64])
    assert "numba is not installed" in reason


def test_more_than_two_to_the_31_elements() -> None:
    """Case O61: a cache of 2^31 + 16,000 elements, of which only the last 1,000 tokens are seen and take memory."""
    tokens = 2**27 + 1000
    store = np.zeros((1, 1, tokens, 16), np.int8)  # pages that nobody writes are not there
    store[:, :, -1000:] = np.random.default_rng(0).integers(-127, 128, (1, 1, 1000, 16), dtype=np.int8)
    cache = torch.from_numpy(store)
    assert cache.numel() > 2**31
    scales = torch.full((1, 1, 1), 0.01).expand(1, 1, tokens)
    q = torch.randn(1, 4, 1, 16, generator=torch.Generator().manual_seed(0))
    keys = Keys(torch.tensor([[tokens - 1000]]), torch.tensor([[tokens]]))
    found = decode(q, cache, cache, keys, scale=0.1, k_scale=scales, v_scale=scales)
    short = cache[:, :, -1000:].clone()
    near = decode(
        q, short, short, Keys.causal(1, 1, 1000), scale=0.1, k_scale=scales[..., :1000], v_scale=scales[..., :1000]
    )
    assert torch.allclose(found, near, atol=1e-6)


def test_more_than_two_to_the_31_elements_by_stride() -> None:
    """The second sequence lies more than 2^31 elements behind the first; tokens overlap, one element apart."""
    store = np.zeros(2**31 + 2000, np.int8)
    store[:1016] = np.arange(1016) % 120
    store[2**31 : 2**31 + 1016] = -(np.arange(1016) % 110)
    cache = torch.from_numpy(store).as_strided((2, 1, 1000, 16), (2**31, 16, 1, 1))
    scales = torch.full((2, 1, 1000), 0.01)
    q = torch.randn(2, 4, 1, 16, generator=torch.Generator().manual_seed(0))
    options = {"scale": 0.1, "k_scale": scales, "v_scale": scales}
    found = decode(q, cache, cache, Keys.causal(2, 1, 1000), **options)
    alone = cache.contiguous()
    assert torch.equal(found, decode(q, alone, alone, Keys.causal(2, 1, 1000), **options))


def test_the_same_key_at_every_place() -> None:
    """A stride of 0 along the tokens, in 2^31 + elements: the mean of one value is the value."""
    row = torch.randn(1, 1, 1, 64, generator=torch.Generator().manual_seed(0))
    cache = row.expand(1, 1, 2**25 + 64, 64)
    assert cache.numel() > 2**31
    q = torch.randn(1, 1, 1, 64, generator=torch.Generator().manual_seed(1))
    found = decode(q, cache, cache, Keys.causal(1, 1, 2**25 + 64), scale=0.01)
    assert torch.allclose(found, row, rtol=1e-2)  # 2^18 tiles, each of the same sum, in float32
