"""Head addresses, both ways."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from manyheads.errors import ManyheadsError
from manyheads.heads.address import (
    Head,
    by_layer,
    check_heads,
    format_head,
    format_heads,
    format_numbers,
    parse_head,
    parse_heads,
)


@pytest.mark.parametrize("text", ["17:3", "L17H3", "l17h3", " 17:3 "])
def test_one_head_is_written_in_two_ways(text: str) -> None:
    assert parse_head(text) == Head(17, 3) == (17, 3, "")


def test_the_stack_goes_before_the_address() -> None:
    assert parse_head("cross/2:5") == Head(2, 5, "cross")
    assert format_head(Head(2, 5, "cross")) == "cross/2:5"
    assert format_head(Head(2, 5, "cross"), short=True) == "cross/L2H5"
    assert str(Head(18, 6)) == "18:6"


def test_a_list_is_a_dictionary_by_layer() -> None:
    assert parse_heads("0:1,3;5:2") == {"": {0: (1, 3), 5: (2,)}}
    assert parse_heads("L5H2;L0H3;L0H1") == parse_heads("5:2;0:3,1") == {"": {0: (1, 3), 5: (2,)}}
    assert parse_heads("encoder/0:1,3;cross/5:2") == {"encoder": {0: (1, 3)}, "cross": {5: (2,)}}
    assert parse_heads("0:1;encoder/2:2") == {"": {0: (1,)}, "encoder": {2: (2,)}}


@pytest.mark.parametrize(
    ("text", "heads"),
    [
        ("0:0-2", {0: (0, 1, 2)}),
        ("0:3-3", {0: (3,)}),
        ("0:0-2,5;4:7", {0: (0, 1, 2, 5), 4: (7,)}),
        ("0:5, 0 - 2 , 7-8", {0: (0, 1, 2, 5, 7, 8)}),
    ],
)
def test_ranges_have_both_ends(text: str, heads: dict[int, tuple[int, ...]]) -> None:
    spaced = ";".join(f"{layer}:{format_numbers(heads[layer], between=', ')}" for layer in heads)
    for written in (text, format_heads(heads, short=True), spaced):
        assert parse_heads(written) == {"": heads}


def test_three_in_a_row_are_written_as_a_range() -> None:
    assert format_numbers((5, 0, 1, 2, 7, 8)) == "0-2,5,7,8"
    assert format_heads({3: (0, 1, 2), 0: (1, 2)}, stack="cross", short=True) == "cross/0:1,2;cross/3:0-2"
    assert parse_heads("cross/0:0-2;encoder/1:4") == {"cross": {0: (0, 1, 2)}, "encoder": {1: (4,)}}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("0:3-1", "the range 3-1 runs backwards; expected 1-3"),
        ("0:0-999999999", "no model has a layer or head 999999..."),
        ("0:0-99999", "0-99999 are 100,000 heads, and no layer has as many"),
        ("0:0-2,1", "0:1 twice"),
        ("0:-1", "not a list"),
        ("0:1-", "not a list"),
        ("0:1-2-3", "not a list"),
        ("L0H1-3", "not a list"),
        ("0:1,3;0:1", "0:1 twice"),
        ("0:1,1", "0:1 twice"),
        ("", "not a list"),
        ("0:1;", "not a list"),
        ("0", "not a list"),
        ("०:१", "not a list"),  # digits of another script
        ("-1:2", "not a list"),
        ("0:a", "not a list"),
        ("mid dle/0:1", "not a list"),
        ("7/0:1", "not a list"),
        ("a/b/0:1", "not a list"),
        ("9999999:1", "999999..."),
    ],
)
def test_what_is_no_list_says_so_on_one_line(text: str, said: str) -> None:
    with pytest.raises(ManyheadsError) as caught:
        parse_heads(text)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_unknown_layers_and_heads_are_named_with_what_there_is() -> None:
    check_heads({0: (0, 7), 1: (3,)}, [8, 4])
    with pytest.raises(ManyheadsError, match=r"no layer 2; the model has 2 layers, 0 to 1"):
        check_heads({2: (0,)}, [8, 4])
    with pytest.raises(ManyheadsError, match=r"no head 4; layer 1 has 4 heads, 0 to 3"):
        check_heads({1: (4,)}, [8, 4])


@given(
    st.lists(
        st.builds(
            Head,
            st.integers(0, 99),
            st.integers(0, 63),
            st.sampled_from(["", "cross", "vision_tower", "codec.decoder"]),
        ),
        min_size=1,
    )
)
def test_what_is_written_is_read_back(heads: list[Head]) -> None:
    for head in heads:
        assert parse_head(format_head(head)) == parse_head(format_head(head, short=True)) == head
    alike = [head for head in heads if head.stack == heads[0].stack]
    grouped = by_layer(alike)
    for short in (False, True):
        text = format_heads(grouped, stack=heads[0].stack, short=short)
        assert parse_heads(text) == {heads[0].stack: grouped}
