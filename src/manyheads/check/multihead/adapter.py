"""How multi-head attention wants to be called and where its weights are, as data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from manyheads.check.adapter import Adapter
from manyheads.check.multihead.problem import Widths
from manyheads.check.multihead.storage import Slot

__all__ = ["HeadsAdapter", "adapter_from"]


@dataclass(frozen=True, kw_only=True)
class HeadsAdapter(Adapter):
    """An Adapter, and around it:

    kind     "function" of x and weights, "class" that is made for each width, "object" that is there
    inputs   "x": all from one; "x+memory": queries from one, keys and values from the other; "qkv": three
    slots    where the weights are
    built    of a class: role -> parameter of its constructor, or global name of its file
    widths   of an object: width of x, heads, key/value heads; empty for any
    cache    "passed": given and returned; "kept": inside of the object; ""
    norms    layers that norm the whole width of x around the attention: they are left out
    residual whether x is added behind, as a block does: it is taken off again
    single   whether there is always one key/value head
    idle     square weights that are none of W_q, W_k, W_v and W_o: they are the identity
    """

    kind: str = "function"
    inputs: str = "x"
    slots: tuple[Slot, ...] = ()
    built: Mapping[str, str] = field(default_factory=dict)
    widths: tuple[int, ...] = ()
    cache: str = ""
    norms: tuple[str, ...] = ()
    residual: bool = False
    single: bool = False
    idle: tuple[str, ...] = ()

    @property
    def packed(self) -> bool:
        """Whether there may be several heads: as many as are asked, as the object has, or as the weights have, one for each."""
        told = "heads" in self.names or {"heads", "config"} & set(self.built) or self.widths[1:2] > (1,)
        return bool(told) or any("h" in slot.pattern and "(h d)" not in slot.pattern for slot in self.slots)

    @property
    def carries(self) -> Widths:
        """How it is given a problem of q, k and v."""
        return Widths(inputs=self.inputs, head_dim=self.widths[0] // self.widths[1] if self.widths else 0)

    @property
    def has_biases(self) -> bool:
        """Whether it has any bias."""
        return any(slot.is_bias for slot in self.slots)


def adapter_from(data: Mapping[str, Any]) -> Adapter:
    """What `to_data` gave, of either kind, read back."""
    if "kind" not in data:
        return Adapter.from_data(data)
    names = [f.name for f in fields(Adapter)]
    base = Adapter.from_data({name: data[name] for name in names})
    return HeadsAdapter(
        **{name: getattr(base, name) for name in names}, kind=data["kind"], inputs=data["inputs"], built=data["built"],
        slots=tuple(Slot(**slot) for slot in data["slots"]), widths=tuple(data["widths"]), cache=data["cache"],
        norms=tuple(data["norms"]), residual=data["residual"], single=data["single"], idle=tuple(data["idle"]),
    )  # fmt: skip
