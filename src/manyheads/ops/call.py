"""One call of softmax attention as one value: checked once, handed to any backend.

    call = AttentionCall.checked(q, k, v, scale=0.125, visible=masks.causal())
    out = softmax.run(call)

A backend is anything with two functions: `supports(call)`, Yes or No(reason), and `run(call)`, the output (b, h, t, v).
`softmax`, `tiled` and `sdpa` are such; `kernels.backend` is another, and `layer.backends` selects among them. Keys and values
may be deferred (`ops.deferred`): what a cache keeps in another format, or the latents of MLA (`ops.latent.Latents`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol, Self

import torch
from torch import Tensor

from manyheads.errors import SpecError
from manyheads.ops import arguments
from manyheads.ops.answer import Answer
from manyheads.ops.bias import Additive
from manyheads.ops.deferred import DeferredTensor, materialized
from manyheads.ops.layout import shapes
from manyheads.ops.masks import dense
from manyheads.ops.predicates import Dense, Everything, Grid, Visible, grid

__all__ = ["AttentionCall", "Backend"]


@dataclass(frozen=True, eq=False)
class AttentionCall:
    """q (b, h, t, q), k (b, k, s, q), v (b, k, s, v) and all that acts on their logits; nothing is left to work out.

    scale       factor on the logits
    visible     who may see whom, a predicate of `ops.masks`
    bias        added after scale and softcap: a tensor that broadcasts to (b, h, t, s), a formula in positions, or None
    softcap     logits become softcap · tanh(logits / softcap); None for no cap
    sinks       (h,) one extra logit a head in the denominator, or None
    dropout     share of the probabilities that is dropped
    offset      position of the first query, counted from the first key: an int, or a tensor with one a sequence

    `checked` makes one from arguments as callers give them; the fields themselves are not looked at again.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    scale: float
    visible: Visible
    bias: Tensor | Additive | None
    softcap: float | None
    sinks: Tensor | None
    dropout: float
    offset: int | Tensor

    @classmethod
    def checked(
        cls,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        *,
        scale: float,
        visible: Visible | Tensor | None = None,
        bias: Tensor | Additive | None = None,
        softcap: float | None = None,
        sinks: Tensor | None = None,
        dropout: float = 0.0,
        offset: int | Tensor | None = None,
        sizes_later: bool = False,
        **beside: Any,
    ) -> Self:
        """The call, if its arguments fit together; a SpecError names what does not, with its numbers.

        visible       also booleans that broadcast to (b, h, t, s), True = may attend; None: everything
        offset        None: keys - queries, so that the last query stands at the last key
        sizes_later   for `layer.dispatch`: in a graph of one step, sizes of masks are not held against those of keys, which
                      would tie the graph to both. The operator that the graph calls looks at them where it runs, and where
                      another backend is selected, `dispatch.run` calls `check_sizes`
        beside        fields that a subclass has more
        """
        _check_tensors(q, k, v)
        (b, h, t, _), s = q.shape, k.shape[2]
        seen = Everything() if visible is None else dense(visible) if isinstance(visible, Tensor) else visible
        arguments.check_scale(scale)
        arguments.check_softcap(softcap)
        arguments.check_sinks(sinks, heads=h)
        arguments.check_dropout(dropout)
        if isinstance(offset, Tensor) and (tuple(offset.shape) not in ((), (1,), (b,)) or offset.is_floating_point()):
            raise SpecError(
                f"offset must be an integer, or one a sequence, ({b},); found {offset.dtype} {tuple(offset.shape)}"
            )
        call = cls(q, k, v, scale, seen, bias, softcap, sinks, dropout, s - t if offset is None else offset, **beside)
        if not (sizes_later and call.is_one_step_of_a_graph):
            call.check_sizes()
        return call

    def check_sizes(self) -> None:
        """Raise SpecError for a mask or a bias that does not broadcast to (b, h, t, s)."""
        (b, h, t, _), s = self.q.shape, self.k.shape[2]
        self.visible.check(batch=b, heads=h, queries=t, keys=s)
        if isinstance(self.bias, Additive):
            self.bias.check(heads=h)
        else:
            arguments.check_bias(self.bias, (b, h, t, s))

    @property
    def is_one_step_of_a_graph(self) -> bool:
        """Whether torch.compile traces this call, and for one new query a sequence."""
        return torch.compiler.is_compiling() and self.q.shape[2] == 1

    @property
    def options(self) -> dict[str, Any]:
        """All but q, k, v, as keyword arguments of the functions in `manyheads.ops`."""
        return {
            "scale": self.scale, "visible": self.visible, "bias": self.bias, "softcap": self.softcap,
            "sinks": self.sinks, "dropout": self.dropout, "offset": self.offset,
        }  # fmt: skip

    @property
    def mask(self) -> Visible | Tensor | None:
        """What `visible` was made of: the booleans themselves where it is a tensor, None where everything is seen."""
        visible = self.visible
        return visible.mask if isinstance(visible, Dense) else None if isinstance(visible, Everything) else visible

    def materialized(self) -> AttentionCall:
        """The same call with keys and values that are there, where a cache handed over what they would be made of."""
        if not isinstance(self.k, DeferredTensor) and not isinstance(self.v, DeferredTensor):
            return self
        return AttentionCall(
            self.q, materialized(self.k), materialized(self.v), self.scale, self.visible, self.bias, self.softcap, self.sinks,
            self.dropout, self.offset,
        )  # fmt: skip

    def pairs(self, rows: slice, columns: slice) -> Grid:
        """The index tensors of a block of queries and keys."""
        return grid(
            batch=self.q.shape[0], heads=self.q.shape[1], rows=rows, columns=columns, offset=self.offset,
            device=self.q.device,
        )  # fmt: skip

    def all_pairs(self) -> Grid:
        """The index tensors of every query and key."""
        return self.pairs(slice(0, self.q.shape[2]), slice(0, self.k.shape[2]))

    @property
    def is_square(self) -> bool:
        """Whether query i stands at key i, as many of the one as of the other."""
        if isinstance(self.offset, Tensor):
            return False
        # as a branch, so that torch.compile sees a bool where sizes are symbols
        return True if self.offset == 0 and self.q.shape[2] == self.k.shape[2] else False  # noqa: SIM210


class Backend(Protocol):
    """One way to compute a call."""

    def supports(self, call: AttentionCall, /) -> Answer:
        """Whether it computes this call, or No(reason)."""

    def run(self, call: AttentionCall, /) -> Tensor:
        """The output (b, h, t, v) of a call that it supports, in the dtype of q."""


def _check_tensors(q: Tensor, k: Tensor, v: Tensor) -> None:
    if not q.dim() == k.dim() == v.dim() == 4:
        raise SpecError(f"q, k and v must each be (batch, heads, tokens, dim); found {shapes(q=q, k=k, v=v)}")
    if not q.shape[0] == k.shape[0] == v.shape[0]:
        raise SpecError(f"q, k and v must have the same batch size; found {shapes(q=q, k=k, v=v)}")
    if q.shape[3] != k.shape[3]:
        widths = f"{q.shape[3]} and {k.shape[3]}"
        raise SpecError(f"queries and keys must have the same width; found {widths} in {shapes(q=q, k=k, v=v)}")
    if k.shape[1:3] != v.shape[1:3]:
        raise SpecError(f"keys and values must have the same heads and tokens; found {shapes(q=q, k=k, v=v)}")
    if k.shape[1] < 1 or q.shape[1] % k.shape[1]:
        heads = f"{q.shape[1]} query heads are not a multiple of {k.shape[1]} key/value heads"
        raise SpecError(f"{heads}; found {shapes(q=q, k=k, v=v)}")
    if not q.dtype == k.dtype == v.dtype or not q.is_floating_point():
        raise SpecError(f"q, k and v must share one floating dtype; found {q.dtype}, {k.dtype}, {v.dtype}")
    if not q.device == k.device == v.device:
        raise SpecError(f"q, k and v must be on one device; found {q.device}, {k.device}, {v.device}")
