"""Numbers as a person reads them; every expected text was worked out by hand."""

from __future__ import annotations

import math
import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from manyheads.report import units


@pytest.mark.parametrize(
    ("n", "text"),
    [
        (0, "0 B"),
        (1, "1 B"),
        (1_023, "1,023 B"),
        (1_024, "1.00 KiB"),
        (1_536, "1.50 KiB"),
        (327_680, "320.00 KiB"),
        (1_048_570, "1,023.99 KiB"),  # 1023.9941...
        (1_048_575, "1.00 MiB"),  # 1023.9990... KiB would round to 1,024.00
        (1_048_576, "1.00 MiB"),
        (2**30 - 1, "1.00 GiB"),
        (2**30, "1.00 GiB"),
        (41_943_040_000, "39.06 GiB"),  # 39.0625
        (335_544_320_000, "312.50 GiB"),
        (4_294_967_296, "4.00 GiB"),
        (134_217_728, "128.00 MiB"),
        (2**40, "1.00 TiB"),
        (2**50, "1.00 PiB"),
        (2**60, "1.00 EiB"),
        (2**70, "1.00 ZiB"),
        (2**80, "1.00 YiB"),
        (5_000 * 2**80, "5,000.00 YiB"),  # nothing larger has a name
        (-1_536, "-1.50 KiB"),
        (-1, "-1 B"),
    ],
)
def test_gib(n: int, text: str) -> None:
    assert units.gib(n) == text


def test_halves_round_away_from_zero_and_exactly() -> None:
    assert units.gib(1_024 + 5) == "1.00 KiB"  # 1.00488...
    assert units.gib(1_024 + 6) == "1.01 KiB"  # 1.00585...
    assert units.count(1_005) == "1.01 K"  # 1.005, which a float holds as 1.00499...
    assert units.count(-1_005) == "-1.01 K"
    assert units.si(2**60 + 1, "B") == "1.15 EB"


@pytest.mark.parametrize(
    ("n", "text"),
    [(0, "0 B"), (1_023, "1,023 B"), (41_943_040_000, "41,943,040,000 B"), (2**70, "1,180,591,620,717,411,303,424 B")],
)
def test_exact(n: int, text: str) -> None:
    assert units.exact(n) == text


def test_number() -> None:
    assert units.number(134_515_008) == "134,515,008"
    assert units.number(-1_234) == "-1,234"


@pytest.mark.parametrize(
    ("n", "text"),
    [
        (0, "0 B"),
        (1_023, "1,023 B"),
        (1_024, "1.00 KiB (1,024 B)"),
        (41_943_040_000, "39.06 GiB (41,943,040,000 B)"),
        (-2_048, "-2.00 KiB (-2,048 B)"),
    ],
)
def test_bytes_both(n: int, text: str) -> None:
    assert units.bytes_both(n) == text


@pytest.mark.parametrize(
    ("n", "text"),
    [
        (0, "0 parameters"),
        (999, "999 parameters"),
        (1_000, "1.00 K parameters"),
        (134_515_008, "134.52 M parameters"),
        (999_994_999, "999.99 M parameters"),
        (999_995_000, "1.00 B parameters"),
        (68_976_648_192, "68.98 B parameters"),  # Llama-2-70B
        (671_026_419_200, "671.03 B parameters"),  # DeepSeek-V3
        (1_000_000_000_000, "1.00 T parameters"),
        (1_234_000_000_000_000, "1,234.00 T parameters"),
    ],
)
def test_count(n: int, text: str) -> None:
    assert units.count(n, "parameters") == text


def test_count_without_a_noun() -> None:
    assert units.count(7) == "7"
    assert units.count(98_304) == "98.30 K"


@pytest.mark.parametrize(
    ("n", "text"),
    [
        (0, "0"),
        (1, "1"),
        (512, "512"),
        (1_024, "1,024 (1k)"),
        (128_000, "128,000"),
        (131_072, "131,072 (128k)"),
        (131_073, "131,073"),
        (1_048_576, "1,048,576 (1M)"),
        (10_485_760, "10,485,760 (10M)"),
        (1_000_000, "1,000,000"),
    ],
)
def test_tokens(n: int, text: str) -> None:
    assert units.tokens(n) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0 FLOP"),
        (0.0, "0 FLOP"),
        (1, "1 FLOP"),
        (999, "999 FLOP"),
        (1_000, "1.00 kFLOP"),
        (140_211_000_000, "140.21 GFLOP"),
        (312e12, "312.00 TFLOP"),
        (2**70, "1.18 ZFLOP"),
        (3.14e24, "3.14 YFLOP"),
        (0.25, "0.25 FLOP"),
        (0.5, "0.50 FLOP"),
        (999.999, "1.00 kFLOP"),
    ],
)
def test_flops(value: float, text: str) -> None:
    assert units.flops(value) == text


def test_macs_and_rates() -> None:
    assert units.macs(70_105_500_000) == "70.11 GMAC"
    assert units.si(2_039e9, "B/s") == "2.04 TB/s"
    assert units.si(1.5, "FLOP/B") == "1.50 FLOP/B"


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_is_no_number_is_not_shown_as_one(value: float) -> None:
    with pytest.raises((ValueError, OverflowError)):
        units.si(value, "FLOP")
    with pytest.raises((ValueError, OverflowError)):
        units.duration(value)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 s"),
        (1e-12, "0.00 ns"),
        (3.8e-6, "3.80 µs"),
        (46e-6, "46.0 µs"),
        (0.00123, "1.23 ms"),
        (0.0205, "20.5 ms"),
        (0.4567, "457 ms"),
        (0.9999, "1.00 s"),
        (1, "1.00 s"),
        (20.46, "20.5 s"),
        (59.94, "59.9 s"),
        (59.96, "1 min 00 s"),
        (60, "1 min 00 s"),
        (200, "3 min 20 s"),
        (3_599.4, "59 min 59 s"),
        (3_599.6, "1 h 00 min"),
        (7_500, "2 h 05 min"),
        (86_399, "1 d 00 h"),
        (86_400, "1 d 00 h"),
        (273_600, "3 d 04 h"),
        (31_536_000_000, "365,000 d 00 h"),
        (-0.5, "-500 ms"),
    ],
)
def test_duration(seconds: float, text: str) -> None:
    assert units.duration(seconds) == text


@given(st.integers(min_value=0, max_value=2**100))
@example(1_048_575)
@example(2**30 - 1)
def test_what_is_shown_is_within_half_of_its_last_digit(n: int) -> None:
    text = units.gib(n)
    value, unit = re.fullmatch(r"([\d,.]+) (\w+)", text).groups()
    size = 1_024 ** ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB", "ZiB", "YiB"].index(unit)
    digits = value.replace(",", "")
    hundredths = int(digits.replace(".", "")) if "." in digits else 100 * int(digits)
    assert abs(100 * n - hundredths * size) * 2 <= size
    assert hundredths < 102_400 or unit == "YiB"


@given(st.floats(min_value=0, max_value=1e12))
def test_a_duration_never_shows_more_than_its_unit_holds(seconds: float) -> None:
    text = units.duration(seconds)
    for value, unit in re.findall(r"([\d,.]+) (\S+)", text):
        limit = {"ns": 1_000, "µs": 1_000, "ms": 1_000, "s": 60, "min": 60, "h": 24, "d": math.inf}[unit]
        assert float(value.replace(",", "")) < limit
