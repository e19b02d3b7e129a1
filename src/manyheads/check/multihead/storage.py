"""How a weight is stored: x @ W or x @ W.T, heads side by side or apart, one array for each or one for several.

A pattern is einops' with the axes m (width of x), h (heads), d (a head's numbers), n (width of y) and, where several are
in one array, r (which of them): "m (h d)" is x @ W, "(h d) m" torch's Linear, "m (h r d)" GPT-NeoX's rows, head by head.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import torch
from einops import rearrange
from torch import Tensor

from manyheads.check.multihead.problem import BIASES, Multihead, remade

__all__ = ["Slot", "bias_pattern", "fits", "fused_patterns", "in_places", "only_held", "patterns", "shape_in", "stored"]

_SINGLE = {2: ("m (h d)", "(h d) m"), 3: ("m h d", "h m d", "h d m")}
_OUTPUT = {2: ("(h d) n", "n (h d)"), 3: ("h d n", "n h d", "h n d")}
_FUSED_3 = ("r m (h d)", "r (h d) m", "m r (h d)", "r h d m", "r m h d", "m r h d", "m h r d")


@dataclass(frozen=True, kw_only=True)
class Slot:
    """A place for a weight or a bias: a parameter of a function, or the path of one in a module.

    `role`: q, k, v, o, or several, in the order in which they lie (qkv, kv). `each_head`: there is one array a head, and
    the name holds {} for its number.
    """

    name: str
    role: str
    pattern: str
    is_bias: bool = False
    each_head: bool = False

    def to_data(self) -> dict[str, Any]:
        """As JSON holds it."""
        return asdict(self)


def patterns(role: str, axes: int) -> tuple[str, ...]:
    """The ways in which a weight of so many axes may be stored."""
    if len(role) > 1:
        return tuple(fused_patterns(axes))
    return (_OUTPUT if role == "o" else _SINGLE).get(axes, ())


def fused_patterns(axes: int) -> Iterable[str]:
    """Those for several in one array; the commonest first."""
    if axes != 2:
        yield from (pattern for pattern in _FUSED_3 if _count(pattern) == axes)
        return
    for order in ("r h d", "h r d", "d r h", "h d r", "r d h", "d h r"):
        yield f"m ({order})"
        yield f"({order}) m"


def _count(pattern: str) -> int:
    depth, count = 0, 0
    for word in pattern.replace("(", "( ").replace(")", " )").split():
        depth += (word == "(") - (word == ")")
        count += word == "(" or (depth == 0 and word != ")")
    return count


def bias_pattern(pattern: str, axes: int) -> str:
    """How the bias lies beside a weight: the same without m."""
    if "n" in pattern:
        return "n"
    grouped = pattern.replace(" m", "").replace("m ", "").strip()
    return grouped if axes == 1 or "(" not in grouped else grouped.strip("()")


def stored(slot: Slot, problem: Multihead) -> Tensor | list[Tensor]:
    """The array, or one for each head. ValueError where heads of two counts cannot lie so."""
    parts = [_canonical(problem, role, is_bias=slot.is_bias) for role in slot.role]
    if slot.each_head:
        heads = parts[0].unbind(0 if slot.is_bias or slot.role == "o" else 1)
        return [rearrange(head, f"{_axes_of(slot, each=True)} -> {slot.pattern}") for head in heads]
    axes = _axes_of(slot)
    if len(parts) == 1:
        return rearrange(parts[0], f"{axes} -> {slot.pattern}").contiguous()
    if "(r h d)" in slot.pattern:  # one after the other, of any counts of heads
        single = slot.pattern.replace("(r h d)", "(h d)")
        dim = 0 if single.startswith("(") else 1
        return torch.cat([rearrange(part, f"{axes} -> {single}") for part in parts], dim)
    if len({part.shape for part in parts}) > 1:
        raise ValueError(f"{slot.pattern} holds as many key/value heads as query heads")
    return rearrange(torch.stack(parts), f"r {axes} -> {slot.pattern}").contiguous()


def in_places(slots: Iterable[Slot], problem: Multihead) -> dict[str, Tensor]:
    """name or path -> what stands there, of all slots; those of one head each have names of their own."""
    made: dict[str, Tensor] = {}
    for slot in slots:
        arrays = stored(slot, problem)
        made |= (
            {slot.name.format(head): array for head, array in enumerate(arrays)}
            if isinstance(arrays, list)
            else {slot.name: arrays}
        )
    return made


def _axes_of(slot: Slot, *, each: bool = False) -> str:
    axes = ("n" if slot.is_bias else "h d n") if slot.role == "o" else ("h d" if slot.is_bias else "m h d")
    return axes.replace("h ", "") if each else axes


def _canonical(problem: Multihead, role: str, *, is_bias: bool) -> Tensor:
    if not is_bias:
        return problem.weights[f"w_{role}"]
    weight, bias = problem.weights[f"w_{role}"], problem.weights.get(f"b_{role}")
    if bias is not None:
        return bias
    return weight.new_zeros(weight.shape[-1:] if role == "o" else weight.shape[1:])


def only_held(problem: Multihead, slots: Iterable[Slot]) -> Multihead:
    """The problem without those biases for which there is no place; and, of one head, with the identity for W_o where there
    is none: a head alone needs no join."""
    slots = tuple(slots)
    held = {f"b_{role}" for slot in slots if slot.is_bias for role in slot.role}
    kept = {name: weight for name, weight in problem.weights.items() if name not in BIASES or name in held}
    heads, dim, width = problem.weights["w_o"].shape
    if heads == 1 and dim == width and slots and not any("o" in slot.role for slot in slots):
        kept["w_o"] = torch.eye(dim, dtype=problem.dtype, device=problem.x.device).view(1, dim, dim)
    return remade(problem, weights=kept)


def shape_in(slot: Slot, problem: Multihead) -> tuple[int, ...]:
    """The shape of the array, or of each head's."""
    made = stored(slot, problem)
    return tuple(made[0].shape) if isinstance(made, list) else tuple(made.shape)


def fits(slot: Slot, problem: Multihead, shapes: Mapping[str, tuple[int, ...]]) -> bool:
    """Whether the arrays that are there have the shape that the slot says."""
    try:
        wanted = shape_in(slot, problem)
    except ValueError:
        return False
    names = [slot.name.format(head) for head in range(problem.q.shape[1])] if slot.each_head else [slot.name]
    return all(shapes.get(name) == wanted for name in names)
