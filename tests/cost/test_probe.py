"""This machine's roofline: plausible figures, and a clear word where numpy is missing."""

from __future__ import annotations

import pytest

from manyheads.cost import probe
from manyheads.errors import BackendError


def test_this_machine_is_measured(monkeypatch):
    pytest.importorskip("numpy")
    monkeypatch.setattr(probe, "READ_BYTES", 16 << 20)
    monkeypatch.setattr(probe, "MATRIX", 256)
    machine = probe.this_machine()
    assert 10**8 < machine.bandwidth_bytes_per_second < 10**14
    assert 10**8 < machine.peak_flops_per_second["fp32"] < 10**15
    assert machine.provenance == "measured"


def test_without_numpy_the_message_says_how_to_get_it(monkeypatch):
    def missing(name):
        raise ModuleNotFoundError(name=name)

    monkeypatch.setattr(probe, "import_module", missing)
    with pytest.raises(BackendError, match=r"pip install 'manyheads\[models\]'"):
        probe.this_machine()
