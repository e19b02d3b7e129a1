"""Numbers as a person reads them: the only place where manyheads rounds.

Everything is rounded to the nearest, halves away from zero, in exact integer arithmetic, so that a number of bytes or
FLOPs far beyond 2**53 shows the digits it has. A value that rounds up to a whole next unit is shown in that unit
(1,048,575 B is 1.00 MiB, not 1,024.00 KiB).
"""

from __future__ import annotations

__all__ = ["bytes_both", "count", "duration", "exact", "flops", "gib", "macs", "number", "si", "tokens"]

_BINARY = ("B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB", "ZiB", "YiB")
_LARGE = ("", "k", "M", "G", "T", "P", "E", "Z", "Y")
_COUNTED = ("", "K", "M", "B", "T")
_MINUTE, _HOUR, _DAY = 60, 3_600, 86_400


def number(n: int) -> str:
    """`41,943,040,000`: the exact integer with its thousands apart."""
    return f"{n:,}"


def exact(n: int) -> str:
    """`41,943,040,000 B`: bytes, exactly."""
    return f"{n:,} B"


def gib(n: int) -> str:
    """`39.06 GiB`: bytes in the largest binary unit that they fill, from B to YiB, with two decimals from KiB on."""
    return _scaled(n, 1, 1_024, _BINARY)


def bytes_both(n: int) -> str:
    """`39.06 GiB (41,943,040,000 B)`: both; only the exact form below 1 KiB, where they are the same."""
    return exact(n) if abs(n) < 1_024 else f"{gib(n)} ({exact(n)})"


def count(n: int, noun: str = "") -> str:
    """`68.98 B parameters`: a count in thousands (K), millions (M), billions (B) or trillions (T); exact below 1,000."""
    return f"{_scaled(n, 1, 1_000, _COUNTED)} {noun}".strip()


def tokens(n: int) -> str:
    """`131,072 (128k)`: tokens exactly, with the name in powers of two that people use (k 1,024, M 1,048,576).

    Not every multiple of 1,024 is meant as one: 128,000 = 125 x 1,024 is a round decimal number and shown alone.
    """
    for size, letter in ((1 << 20, "M"), (1 << 10, "k")):
        if n and n % size == 0 and n % 1_000:
            return f"{n:,} ({n // size:,}{letter})"
    return f"{n:,}"


def si(value: float, unit: str) -> str:
    """`2.04 TB/s`: a quantity with the decimal prefix that it fills, k to Y, two decimals from k on.

    A whole number below 1,000 is shown as it is (`312 FLOP`), another with two decimals (`0.25 FLOP/B`).
    """
    numerator, denominator = value.as_integer_ratio()
    return _scaled(numerator, denominator, 1_000, tuple(prefix + unit for prefix in _LARGE))


def flops(n: float) -> str:
    """`140.21 TFLOP`: floating-point operations, two for each MAC."""
    return si(n, "FLOP")


def macs(n: float) -> str:
    """`70.11 TMAC`: multiply-accumulates."""
    return si(n, "MAC")


def duration(seconds: float) -> str:
    """`1.23 ms`, `20.5 s`, `3 min 20 s`, `2 h 05 min`, `3 d 04 h`: three digits below a minute, whole units above."""
    if seconds < 0:
        return "-" + duration(-seconds)
    if seconds == 0:
        return "0 s"
    for unit, size in (("ns", 1e-9), ("µs", 1e-6), ("ms", 1e-3), ("s", 1.0)):
        text = _three_digits(seconds / size)
        if float(text) < (60 if unit == "s" else 1_000):
            return f"{text} {unit}"
    return _clock(int(seconds + 0.5))


def _clock(seconds: int) -> str:
    if seconds < _HOUR:
        return f"{seconds // _MINUTE} min {seconds % _MINUTE:02d} s"
    minutes = (seconds + 30) // _MINUTE
    if minutes * _MINUTE < _DAY:
        return f"{minutes // 60} h {minutes % 60:02d} min"
    hours = (seconds + 1_800) // _HOUR
    return f"{hours // 24:,} d {hours % 24:02d} h"


def _three_digits(value: float) -> str:
    decimals = 2 if value < 9.995 else 1 if value < 99.95 else 0
    return f"{value:.{decimals}f}"


def _scaled(numerator: int, denominator: int, base: int, units: tuple[str, ...]) -> str:
    """numerator / denominator in the largest unit that its rounded value fills; units grow by `base`."""
    size, sign = abs(numerator), "-" if numerator < 0 else ""
    if denominator == 1 and size < base:
        return f"{sign}{size:,} {units[0]}".rstrip()
    power = 0
    while power + 1 < len(units) and _hundredths(size, denominator * base**power) >= 100 * base:
        power += 1
    whole, hundredths = divmod(_hundredths(size, denominator * base**power), 100)
    return f"{sign}{whole:,}.{hundredths:02d} {units[power]}".rstrip()


def _hundredths(numerator: int, denominator: int) -> int:
    return (200 * numerator + denominator) // (2 * denominator)
