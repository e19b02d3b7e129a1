"""This machine as hardware that a model can be priced for."""

from __future__ import annotations

from manyheads.bench import this_machine as module


def test_this_machine_is_measured(monkeypatch):
    monkeypatch.setattr(module, "BUFFER_BYTES", 1 << 17)
    machine = module.this_machine()
    assert 10**6 < machine.bandwidth_bytes_per_second < 10**14
    assert 10**5 < machine.peak_flops_per_second["fp32"] < 10**15
    assert machine.provenance == "measured"
    assert "best of 5" in machine.source
