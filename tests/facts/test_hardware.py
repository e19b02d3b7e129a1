"""The devices against their makers' documents, and how one is found."""

from __future__ import annotations

import pytest

from manyheads.errors import SpecError
from manyheads.facts.hardware import Hardware, find_hardware, hardware


@pytest.mark.parametrize(
    ("name", "memory_bytes", "bandwidth_gb", "dtype", "tera"),
    [
        ("p100", 16e9, 732, "fp32", 10.6),
        ("v100", 32e9, 900, "fp16", 125),
        ("tpu-v2", 16 * 2**30, 700, "bf16", 46),
        ("tpu-v3", 32 * 2**30, 900, "bf16", 123),
        ("tpu-v4", 32 * 2**30, 1200, "bf16", 275),
        ("a100-40gb", 40e9, 1555, "bf16", 312),
        ("a100-80gb", 80e9, 2039, "bf16", 312),
        ("h100", 80e9, 3350, "bf16", 989.4),
        ("h200", 141e9, 4800, "fp8", 1979),
        ("l4", 24e9, 300, "fp16", 121),
        ("rtx-4090", 24e9, 1008, "bf16", 165.2),
        ("mi300x", 192e9, 5300, "bf16", 1307.4),
    ],
)
def test_figures_of_the_data_sheets(name: str, memory_bytes: float, bandwidth_gb: int, dtype: str, tera: float) -> None:
    device = find_hardware(name)
    assert device.memory_bytes == memory_bytes
    assert device.bandwidth_bytes_per_second == bandwidth_gb * 10**9
    assert device.peak_flops_per_second[dtype] == round(tera * 10**12)


def test_figures_that_sum_from_channels_and_cores() -> None:
    xeon, epyc, laptop = (find_hardware(name) for name in ("xeon-8480", "epyc-9654", "ryzen-7840u"))
    assert xeon.bandwidth_bytes_per_second == 8 * 8 * 4_800_000_000  # channels x bytes x transfers
    assert epyc.bandwidth_bytes_per_second == 12 * 8 * 4_800_000_000
    assert laptop.bandwidth_bytes_per_second == 2 * 8 * 5_600_000_000
    assert xeon.peak_flops_per_second["fp32"] == 56 * 2_000_000_000 * 64
    assert epyc.peak_flops_per_second["fp32"] == 96 * 2_400_000_000 * 32
    assert laptop.peak_flops_per_second["fp32"] == 8 * 3_300_000_000 * 32


@pytest.mark.parametrize("device", hardware(), ids=lambda device: device.name)
def test_every_device_is_whole_and_plausible(device: Hardware) -> None:
    assert device.source
    assert device.provenance == "published"
    assert device.kind in ("gpu", "tpu", "cpu")
    assert (device.memory_bytes is None) == (device.memory is None) == (device.kind == "cpu")
    assert set(device.peak_flops_per_second) <= {"fp32", "tf32", "fp16", "bf16", "fp8", "int8"}
    rates = (device.bandwidth_bytes_per_second, *device.peak_flops_per_second.values())
    assert all(type(rate) is int for rate in rates)
    assert 5 * 10**10 < device.bandwidth_bytes_per_second < 10**13
    # A data sheet's sparse figure taken for a dense one shows here: fp8 and int8 are at most four times bf16.
    peak = device.peak_flops_per_second
    for narrow, wide, times in (("fp8", "bf16", 2), ("int8", "bf16", 4), ("bf16", "tf32", 2.01)):
        if narrow in peak and wide in peak:
            assert peak[narrow] <= times * peak[wide] * 1.02


@pytest.mark.parametrize(
    ("asked", "name"),
    [
        ("H100", "h100"),
        ("a100", "a100-80gb"),
        ("RTX 4090", "rtx-4090"),
        ("4090", "rtx-4090"),
        ("tpu_v4", "tpu-v4"),
        ("tpuv4", "tpu-v4"),
    ],
)
def test_find_takes_the_spellings_people_use(asked: str, name: str) -> None:
    assert find_hardware(asked).name == name


def test_no_spelling_is_claimed_twice() -> None:
    spellings = [spelling for device in hardware() for spelling in (device.name, *device.aliases)]
    assert len(spellings) == len(set(spellings))


def test_an_unknown_device_is_refused_with_the_valid_names() -> None:
    with pytest.raises(SpecError, match="abacus") as refusal:
        find_hardware("abacus")
    message = str(refusal.value)
    assert "\n" not in message
    assert all(device.name in message for device in hardware())
