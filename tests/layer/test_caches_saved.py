"""A layer's caches on disk: of every kind, gone on with as if never left, refused where they do not belong."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("safetensors")

from manyheads.errors import BackendError, CheckpointError, ManyheadsError  # noqa: E402
from manyheads.layer.caches import Cache  # noqa: E402
from manyheads.layer.caches.saved import load_caches, save_caches  # noqa: E402
from manyheads.ops import masks  # noqa: E402
from manyheads.spec import Cross, State  # noqa: E402
from support.attention_layers import CACHED, SPECS, cached, kinds, layer, table_for, tokens  # noqa: E402

SELF = [name for name in CACHED if not isinstance(SPECS[name].source, Cross)]
PAIRS = [
    (name, kind)
    for name in SELF
    for kind in (*kinds(SPECS[name]), *(() if isinstance(SPECS[name].kv, State) else ("int8",)))
]
KEEP = torch.arange(12)[None] >= torch.tensor([[0], [3]])
PLACES = (KEEP.cumsum(1) - 1).clamp(min=0)


def told(*, padded: bool, start: int, stop: int) -> dict[str, object]:
    """The keywords of a call that takes in the tokens from `start` to `stop`."""
    return {"visible": masks.padding(KEEP[:, :stop]), "positions": PLACES[:, start:stop]} if padded else {}


@pytest.mark.parametrize("padded", [False, True], ids=["whole", "left-padded"])
@pytest.mark.parametrize(("name", "kind"), PAIRS)
def test_gone_on_with_as_if_never_left(name: str, kind: str, padded: bool, tmp_path: Path) -> None:
    made, x = layer(name), tokens(2, 12)
    more = table_for(made.spec)
    with torch.no_grad():
        cache = cached(kind, made.spec, 2)
        made(x[:, :9], cache=cache, **told(padded=padded, start=0, stop=9), **more)
        save_caches([cache], tmp_path / "c", [made])
        before = (tmp_path / "c").read_bytes()
        (again,) = load_caches(tmp_path / "c", [made])
        assert (type(again), again.length, again.resident_bytes) == (type(cache), cache.length, cache.resident_bytes)
        assert torch.equal(again.positions(), cache.positions())
        for at in (9, 10, 11):
            step = told(padded=padded, start=at, stop=at + 1)
            y, expected = (made(x[:, at : at + 1], cache=each, **step, **more) for each in (again, cache))
            torch.testing.assert_close(y, expected, rtol=1e-12, atol=1e-12)  # sums over other strides
    assert (tmp_path / "c").read_bytes() == before  # mapped, and not written to
    assert os.listdir(tmp_path) == ["c"]


def test_a_memory_is_saved_too(tmp_path: Path) -> None:
    made, x, memory = layer("cross"), tokens(2, 4), tokens(2, 7, 13, seed=5)
    cache = cached("growing", made.spec, 2)
    made(x, memory, cache=cache)
    save_caches([cache], tmp_path / "c", [made])
    assert torch.equal(made(x, cache=load_caches(tmp_path / "c", [made])[0]), made(x, memory))


def filled(name: str, kind: str = "growing") -> Cache:
    cache = cached(kind, SPECS[name], 2)
    layer(name)(tokens(2, 5), cache=cache)
    return cache


def test_several_layers_and_those_of_others(tmp_path: Path) -> None:
    layers, caches = [layer("mha"), layer("window")], [filled("mha"), filled("window", "rolling")]
    save_caches(caches, tmp_path / "c", layers)
    assert [cache.length for cache in load_caches(tmp_path / "c", layers)] == [5, 5]
    other = layer("mha", seed=1)
    for wrong, why in (
        ([other, layers[1]], "a cache of another model: configuration or weights differ from these layers"),
        (layers[:1], "a cache of another model"),
        ([each.float() for each in (layer("mha"), layer("window"))], "in torch.float64; this one is in torch.float32"),
    ):
        with pytest.raises(CheckpointError, match=why):
            load_caches(tmp_path / "c", wrong)


def test_what_cannot_be_saved_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = layer("mha")
    for caches, layers, why in (
        ([cached("growing", made.spec, 2)], [made], "the cache is empty"),
        ([filled("window")], [made], "cache 0 is of gqa.* layer 0 is mha.*: not its own"),
        ([filled("mha")], [], "found 1 caches and 0 layers"),
        ([{}], [made], "cache 0 is a dict; valid: what cache_for makes"),
    ):
        with pytest.raises(BackendError, match=why):
            save_caches(caches, tmp_path / "c", layers)
    with pytest.raises(BackendError, match="the cache is empty"):
        save_caches([cached("growing", SPECS["linear"], 2)], tmp_path / "c", [layer("linear")])

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(ManyheadsError, match="No space left on device"):
        save_caches([filled("mha")], tmp_path / "c", [made])
    assert os.listdir(tmp_path) == []
