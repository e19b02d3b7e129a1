"""Addresses of heads: layers and heads are counted from 0, as they are in the model that was loaded first.

    parse_head("17:3") == parse_head("L17H3") == Head(17, 3)
    parse_heads("0:1,3;5:2") == {"": {0: (1, 3), 5: (2,)}}
    parse_heads("cross/0:0-2,5") == {"cross": {0: (0, 1, 2, 5)}}

Models with an encoder and a decoder have several attentions of the same layer number; there a stack goes before the
address: "encoder/2:5", "decoder/2:5", "cross/2:5". Other models of several stacks name them as their parts:
"vision_tower/2:5" (`heads.attention_modules` finds them). Numbers stay those of the original model after heads were removed.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from operator import index
from typing import Any, NamedTuple, TypeAlias

from manyheads.errors import ManyheadsError
from manyheads.quoting import shown

__all__ = ["Head", "Heads", "OneHead", "address", "addresses", "by_layer", "check_heads", "format_head", "format_heads", "format_numbers",
           "parse_head", "parse_heads"]  # fmt: skip

_STACK = r"(?:(?P<stack>(?!\d)[^\s/:;,]{1,100})/)?"
_ONE = re.compile(_STACK + r"(?:(?P<a>\d+):(?P<b>\d+)|[Ll](?P<c>\d+)[Hh](?P<d>\d+))", re.ASCII)
_SOME = r"\d+(?:\s*-\s*\d+)?"
_LAYER = re.compile(_STACK + rf"(?P<layer>\d+):(?P<heads>{_SOME}(?:\s*,\s*{_SOME})*)", re.ASCII)
_MOST_HEADS = 10_000  # of a range, which is written out
_VALID = 'valid: "17:3" or "L17H3", and "cross/17:3" where a model has several stacks'
_VALID_HEADS = 'valid: "0:1,3;5:2", {0: (1, 3)}, {"cross": {0: (1, 3)}}, or addresses such as Head(0, 1)'
_VALID_LIST = 'valid: layer:head,head;layer:head, such as "0:1,3;5:2", "0:0-2,5" or "L0H1;L5H2"'


class Head(NamedTuple):
    """One head. `stack` is "encoder", "decoder", "cross" or a part's name where a model has several attentions, else ""."""

    layer: int
    head: int
    stack: str = ""

    def __str__(self) -> str:
        return format_head(self)


# A head as callers give it; `address` makes a Head of it.
OneHead: TypeAlias = Head | tuple[int, int] | tuple[int, int, str] | str
# Heads as callers give them: text, {layer: (head, head)}, {stack: {layer: (head, head)}}, or addresses one by one.
Heads: TypeAlias = str | Mapping[int, Sequence[int]] | Mapping[str, Mapping[int, Sequence[int]]] | Iterable[OneHead]


def addresses(heads: Heads) -> list[Head]:
    """The heads that are meant, in the order in which they are given.

        addresses("0:1,3;5:2") == addresses({0: (1, 3), 5: (2,)}) == addresses([(0, 1), "0:3", Head(5, 2)])
        addresses({"cross": {2: (0,)}}) == addresses("cross/2:0")

    Raises ManyheadsError for anything else.
    """
    if isinstance(heads, str):
        return _listed(parse_heads(heads))
    if isinstance(heads, Head):
        return [heads]
    if isinstance(heads, Mapping):
        by_stack = any(isinstance(key, str) for key in heads)
        return _listed(heads if by_stack else {"": heads})
    if not isinstance(heads, Iterable):
        raise ManyheadsError(f"{shown(heads)} names no heads; {_VALID_HEADS}")
    return [address(head) for head in heads]


def _listed(heads: Mapping[Any, Any]) -> list[Head]:
    found = []
    for stack, layers in heads.items():
        if not isinstance(stack, str) or not isinstance(layers, Mapping):
            raise ManyheadsError(f"{shown(heads)} names no heads; {_VALID_HEADS}")
        for layer, numbers in layers.items():
            if isinstance(numbers, str) or not isinstance(numbers, Iterable):
                raise ManyheadsError(f"layer {layer} is given {shown(numbers)}; expected its heads, such as (1, 3)")
            found += [address((layer, number, stack)) for number in numbers]
    return found


def address(head: Any) -> Head:
    """One head, as callers give it: "17:3", "L17H3", (17, 3), Head(17, 3). Raises ManyheadsError for anything else."""
    if isinstance(head, str):
        return parse_head(head)
    try:
        layer, number, *stack = head
        return Head(index(layer), index(number), *[str(name) for name in stack])
    except (TypeError, ValueError):
        raise ManyheadsError(f"{shown(head)} is no head; {_VALID_HEADS}") from None


def parse_head(text: str) -> Head:
    """The head that "17:3", "L17H3" or "cross/17:3" names. Raises ManyheadsError for anything else.

    Which stacks there are is known to the model alone: `heads.attention_modules.row_of` tells.
    """
    found = _ONE.fullmatch(text.strip())
    if found is None:
        raise ManyheadsError(f"{shown(text)} is not the address of a head; {_VALID}")
    stack = found["stack"] or ""
    return Head(_number(found["a"] or found["c"], text), _number(found["b"] or found["d"], text), stack)


def parse_heads(text: str) -> dict[str, dict[int, tuple[int, ...]]]:
    """The heads of a list such as "0:1,3;5:2", "0:0-2,5" or "encoder/0:1;cross/5:2", by stack and layer, all ascending. A range
    has both of its ends; which stacks and heads there are is known to the model alone.

    Raises ManyheadsError for text that is no such list, for a head that is named twice, and for a range that runs backwards or
    is longer than any layer.
    """
    heads: list[Head] = []
    for part in (part.strip() for part in text.split(";")):
        layer = _LAYER.fullmatch(part)
        if layer is not None:
            number = _number(layer["layer"], text)
            heads += [
                Head(number, each, layer["stack"] or "")
                for word in layer["heads"].split(",")
                for each in _range(word, text)
            ]
            continue
        for word in part.split(","):
            if _ONE.fullmatch(word.strip()) is None:
                raise ManyheadsError(f"{shown(text)} is not a list of heads (at {shown(word.strip())}); {_VALID_LIST}")
            heads.append(parse_head(word))
    counts = Counter(heads)
    twice = next((head for head in heads if counts[head] > 1), None)
    if twice is not None:
        raise ManyheadsError(f"{shown(text)} names head {format_head(twice)} twice; expected each once")
    return {
        stack: by_layer(head for head in heads if head.stack == stack)
        for stack in sorted({head.stack for head in heads})
    }


def by_layer(heads: Iterable[tuple[int, int] | Head]) -> dict[int, tuple[int, ...]]:
    """{layer: (head, head)} of pairs (layer, head), both ascending, each head once."""
    found: dict[int, set[int]] = {}
    for layer, head, *_ in heads:
        found.setdefault(layer, set()).add(head)
    return {layer: tuple(sorted(found[layer])) for layer in sorted(found)}


def format_head(head: tuple[int, int] | Head, *, short: bool = False) -> str:
    """ "17:3", or "L17H3" where it is to be `short` and read by people; "cross/17:3" with its stack."""
    layer, number, *stack = head
    text = f"L{layer}H{number}" if short else f"{layer}:{number}"
    return f"{stack[0]}/{text}" if stack and stack[0] else text


def format_heads(heads: Mapping[int, Sequence[int]], *, stack: str = "", short: bool = False) -> str:
    """ "0:1,3;5:2": what `parse_heads` reads; layers without heads are left out. `short`: three or more in a row as "0-2"."""
    begin = f"{stack}/" if stack else ""
    return ";".join(
        f"{begin}{layer}:{format_numbers(heads[layer]) if short else ','.join(map(str, sorted(heads[layer])))}"
        for layer in sorted(heads)
        if heads[layer]
    )


def format_numbers(numbers: Iterable[int], *, between: str = ",") -> str:
    """ "0-2,5,7": three or more in a row as a range."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return between.join(
        f"{run[0]}-{run[-1]}" if len(run) > 2 else between.join(map(str, run)) for run in runs
    )  # fmt: skip


def check_heads(heads: Mapping[int, Sequence[int]], counts: Sequence[int], *, stack: str = "") -> None:
    """Raises ManyheadsError unless every layer and head exists; `counts` holds the number of heads of each layer."""
    begin = f"{stack}/" if stack else ""
    for layer in heads:
        if not 0 <= layer < len(counts):
            raise ManyheadsError(
                f"{begin}{format_heads({layer: heads[layer]}, short=True)}: there is no layer {layer}; the model has "
                f"{len(counts)} layers, 0 to {len(counts) - 1}"
            )
        for head in heads[layer]:
            if not 0 <= head < counts[layer]:
                raise ManyheadsError(
                    f"{begin}{layer}:{head}: there is no head {head}; layer {layer} has {counts[layer]} heads, "
                    f"0 to {counts[layer] - 1}"
                )


def _range(word: str, text: str) -> range:
    """The heads that "3" or "0-2" stands for."""
    first, _, last = word.partition("-")
    low = _number(first, text)
    high = _number(last, text) if last else low
    if high < low:
        raise ManyheadsError(f"{shown(text)}: the range {low}-{high} runs backwards; expected {high}-{low}")
    if high - low >= _MOST_HEADS:
        raise ManyheadsError(f"{shown(text)}: {low}-{high} are {high - low + 1:,} heads, and no layer has as many")
    return range(low, high + 1)


def _number(digits: str, text: str) -> int:
    digits = digits.strip()
    if len(digits) > 6:  # int() of thousands of digits raises, and no model has a million heads
        raise ManyheadsError(f"{shown(text)}: no model has a layer or head {digits[:6]}...")
    return int(digits)
