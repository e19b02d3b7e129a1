"""Sizes as people write them, and what is said of what is none."""

from __future__ import annotations

import pytest

from manyheads.cli.quantities import above_zero, count, memory, one_of, seed, several, share, tokens
from manyheads.errors import ManyheadsError


def test_tokens_by_hand() -> None:
    read = several(tokens())
    assert read("128k,128000,1m, 8K,1_000,1M,1.5k,2Ki") == [
        131_072, 128_000, 1_048_576, 8192, 1000, 1_048_576, 1536, 2048,
    ]  # fmt: skip


def test_bytes_by_hand() -> None:
    assert memory("80GB") == memory("80G") == memory("80 g") == 80_000_000_000
    assert memory("80 GiB") == memory("80Gi") == memory("80gib") == 85_899_345_920
    assert memory("1.5kib") == 1536
    assert memory("500MiB") == 524_288_000
    assert memory("1.5T") == 1_500_000_000_000
    assert memory("0.3KB") == 300


def test_the_rest_by_hand() -> None:
    assert count()("12") == 12
    assert (seed("0"), seed("4294967295")) == (0, 2**32 - 1)
    assert share("0.1") == 0.1
    assert above_zero("none")("1e-3") == 0.001
    assert one_of("a", "b")("b") == "b"


@pytest.mark.parametrize("text", ["", "k", "-1k", "1.3k", "0", "1e3", "٣", "1 2", "10000000000000000000000k", "80GB"])
def test_what_is_no_number_of_tokens(text: str) -> None:
    with pytest.raises(ManyheadsError, match="is not a number of tokens"):
        tokens()(text)


@pytest.mark.parametrize("text", ["", "80", "GB", "-1GB", "1e3GB", "0.1b", "80XB", "1.2.3GB", "٣GB"])
def test_what_is_no_size(text: str) -> None:
    with pytest.raises(ManyheadsError, match="80GB or 80G"):
        memory(text)


@pytest.mark.parametrize(
    ("read", "text", "said"),
    [
        (tokens(least=4), "3", "from 4 to"),
        (tokens(most=10), "1k", "from 1 to 10;"),
        (several(tokens()), "8k,x", "has 'x', which is not a number of tokens"),
        (count(10), "11", "is not a whole number from 1 to 10"),
        (count(), "9" * 5000, "is not a whole number"),
        (seed, "1.5", "is not a whole number from 0 to 4,294,967,295"),
        (share, "nan", "is not a share"),
        (share, "1", "is not a share"),
        (above_zero("no cost"), "0", "is no cost"),
        (above_zero("no cost", below=1), "1", "is no cost"),
        (one_of("a", "b"), "c", "is not one of a, b"),
        (one_of("full"), "c", "is not full"),
    ],
)
def test_what_is_refused_says_what_would_be_valid(read, text: str, said: str) -> None:
    with pytest.raises(ManyheadsError, match=said):
        read(text)
