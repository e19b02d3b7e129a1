"""One call of attention inside a real model, as everyone behind the door sees it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from manyheads.errors import BackendError, ManyheadsError, SpecError
from manyheads.ops import arguments, masks, softmax
from manyheads.ops.call import AttentionCall
from manyheads.ops.precision import as_autocast
from manyheads.ops.predicates import Visible
from manyheads.quoting import shown

__all__ = ["EVERYTHING", "Call", "read_call"]

# Set on a mask that shows everything, so that nobody has to look at its elements; a copy that lost it is still right.
EVERYTHING = "_manyheads_everything"

# Keywords that speak of bookkeeping around attention and change nothing in it. A window is in the mask already, and is
# read only where there is none.
_HARMLESS = frozenset({
    "cache_position", "deterministic", "logits_to_keep", "num_items_in_batch", "num_logits_to_keep", "output_hidden_states",
    "output_router_logits", "position_embeddings", "position_ids", "return_dict", "use_cache",
})  # fmt: skip
# Keywords that change what attention means in ways that are not built here: fine while they say nothing.
_REFUSED: Mapping[str, str] = {
    "cu_seq_lens_q": "packed sequences are told apart by position_ids here, not by their lengths",
    "cu_seq_lens_k": "packed sequences are told apart by position_ids here, not by their lengths",
    "max_length_q": "packed sequences are told apart by position_ids here, not by their lengths",
    "max_length_k": "packed sequences are told apart by position_ids here, not by their lengths",
    "seq_idx": "packed sequences are told apart by position_ids here, not by an index",
    "indices": "attention to a chosen list of keys is not described",
    "block_indices": "attention to a chosen list of blocks is not described",
}
_CONSUMED = ("dropout", "is_causal", "output_attentions", "position_bias", "s_aux", "scaling", "sinks", "sliding_window",
             "softcap")  # fmt: skip


@dataclass(frozen=True, eq=False)
class Call(AttentionCall):
    """A call of attention, checked, and the attention module that makes it.

    module      the attention module; `path` its name in the opened model, "" where no door knows it
    layer       its layer, counted within its stack; -1 where it has none
    recomputed  the backward of gradient checkpointing runs the forward again: count and look only where this is False
    projected   the module changes what its heads give before it projects it (a gate, a norm): gates and observers are given
                the input of the output projection, which is not `weights() @ v`
    filled      (b, t) booleans of a part that reads no text: zeros that the model put in to fill up a window, None for none
    """

    module: nn.Module = field(kw_only=True)
    path: str = field(default="", kw_only=True)
    layer: int = field(default=-1, kw_only=True)
    recomputed: bool = field(default=False, kw_only=True)
    wants_weights: bool = field(default=False, kw_only=True, repr=False)
    projected: bool = field(default=False, kw_only=True)
    filled: Tensor | None = field(default=None, kw_only=True, repr=False)

    def padding(self) -> Tensor | None:
        """(b, t), True at positions that hold nothing, as `filled` or a mask tells: in self-attention, one that does not see
        itself in any head. None where there is none. Of text, its own mask says more.
        """
        found = self.filled
        mask = self.mask
        if isinstance(mask, Tensor) and self.q.shape[2] == self.k.shape[2] == mask.shape[-1] == mask.shape[-2]:
            whole = mask[(None,) * (4 - mask.dim())]
            hidden = ~whole.diagonal(dim1=-2, dim2=-1).any(1).expand(self.q.shape[0], -1)
            if bool(hidden.any()):
                found = hidden if found is None else found | hidden
        return found

    def weights(self, *, heads: Sequence[int] | None = None, queries: Sequence[int] | None = None) -> Tensor:
        """The probabilities (b, h, t, s) of this call before dropout, worked out on demand; rows that see nothing are 0.

        Of all heads and queries, or of those that are named, as they stand here: then (b, len(heads), len(queries), s), and
        nothing larger is held than that and a few rows of all heads. ManyheadsError for one that is not there.
        """
        call = self.materialized()
        if heads is None and queries is None:
            return softmax.logits(call, "probabilities")
        (_, h, t, _), s = self.q.shape, self.k.shape[2]
        chosen = _within(range(h) if heads is None else heads, h, "heads", self.path)
        rows = _within(range(t) if queries is None else queries, t, "queries", self.path)
        parts = [softmax.block(call, run, slice(0, s))[:, chosen].to(self.q.dtype) for run in _runs(rows)]
        return torch.cat(parts, 2)


_ROWS_AT_ONCE = 64


def _runs(rows: Sequence[int]) -> Iterator[slice]:
    """Rows as slices: those together that follow each other, but not too many."""
    start = 0
    for at in range(1, len(rows) + 1):
        if at == len(rows) or rows[at] != rows[at - 1] + 1 or at - start == _ROWS_AT_ONCE:
            yield slice(rows[start], rows[at - 1] + 1)
            start = at


def _within(asked: Sequence[int], count: int, what: str, path: str) -> list[int]:
    wrong = [number for number in asked if not 0 <= number < count]
    if wrong or not len(asked):
        said = f"{wrong[0]}" if wrong else "none"
        raise ManyheadsError(f"weights of {what} {said} were asked for; {path or 'this call'} has 0 to {count - 1}")
    return list(asked)


def read_call(
    module: nn.Module,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    keywords: Mapping[str, Any],
    *,
    path: str = "",
    layer: int = -1,
    recomputed: bool = False,
) -> Call:
    """What transformers hands to an attention function, every keyword of it understood.

    Raises BackendError, one line, for a keyword that is not known and says something, for what `AttentionCall.checked`
    refuses, and for a mask that could be read in two ways.
    """
    where = path or type(module).__name__
    _check_keywords(keywords, where)
    scaling = keywords.get("scaling")
    q, k, v = as_autocast(q, k, v)
    q = q.expand(k.shape[0], -1, -1, -1) if q.shape[0] == 1 else q  # learned queries serve every sequence
    visible, bias = _mask(module, q, k, mask, keywords, where)
    extra = keywords.get("position_bias")
    if extra is not None:
        bias = extra if bias is None else bias + extra
    scale = q.shape[-1] ** -0.5 if scaling is None else float(scaling)
    try:
        arguments.check_window(keywords.get("sliding_window"))
        return Call.checked(
            q, k, v, sizes_later=True, scale=scale, visible=visible, bias=bias, softcap=keywords.get("softcap"),
            sinks=_sinks(keywords, q.shape[1], where), dropout=float(keywords.get("dropout") or 0.0), module=module,
            path=path, layer=layer, recomputed=recomputed, wants_weights=_weights_wanted(module, keywords),
        )  # fmt: skip
    except SpecError as error:
        raise BackendError(f"{where}: {error}") from None


def _weights_wanted(module: nn.Module, keywords: Mapping[str, Any]) -> bool:
    """Whether somebody asks for the probabilities: by keyword, by the configuration, or by recording what modules return.

    The last is how transformers gathers `output_attentions`. The keyword is lost on the way in many families (stablelm,
    persimmon, opt, gpt2), whose modules name it in their signature and do not hand it on: only their own eager function,
    which gives the weights whether asked or not, would fill the answer.
    """
    asked = keywords.get("output_attentions")
    asked = getattr(getattr(module, "config", None), "output_attentions", False) if asked is None else asked
    return bool(asked) or any("attention" in name for name in _recorded())


def _recorded() -> Iterable[str]:
    """Names of what the running forward of transformers keeps of its modules' answers."""
    try:
        from transformers.utils.output_capturing import _active_collector as collector
    except ImportError:
        return ()
    # A context variable cannot be traced; under torch.compile transformers keeps the same in a plain one.
    found = collector.global_var if torch.compiler.is_compiling() else collector.get()
    return found or ()


def _check_keywords(keywords: Mapping[str, Any], where: str) -> None:
    for name, value in keywords.items():
        if name in _CONSUMED or name in _HARMLESS or value is None:
            continue
        why = _REFUSED.get(name, "it may change the result, and nothing here knows what it means")
        raise BackendError(
            f"{where}: the keyword {shown(name)} ({type(value).__name__}) arrived at the attention function: {why}; known: "
            + ", ".join(_CONSUMED)
        )


def _sinks(keywords: Mapping[str, Any], heads: int, where: str) -> Tensor | None:
    found = [(name, keywords[name]) for name in ("s_aux", "sinks") if keywords.get(name) is not None]
    if not found:
        return None
    sinks = found[0][1]
    if len(found) > 1 or tuple(sinks.shape) != (heads,):
        raise BackendError(
            f"{where}: {' and '.join(name for name, _ in found)} of shape {tuple(sinks.shape)}; expected one logit a "
            f"query head, ({heads},)"
        )
    return sinks


def _mask(
    module: nn.Module, q: Tensor, k: Tensor, mask: Tensor | None, keywords: Mapping[str, Any], where: str
) -> tuple[Visible | Tensor | None, Tensor | None]:
    """(visible, bias) of what stands in the place of the mask."""
    if mask is None:
        return _implied(module, q, k, keywords, where), None
    if not isinstance(mask, Tensor) or mask.dim() != 4:
        found = tuple(mask.shape) if isinstance(mask, Tensor) else type(mask).__name__
        raise BackendError(f"{where}: the mask is {found}; expected (batch, heads or 1, queries, keys)")
    if getattr(mask, EVERYTHING, False):
        return None, None
    if mask.dtype == torch.bool:
        return mask, None
    if not mask.is_floating_point():
        raise BackendError(
            f"{where}: the mask holds {mask.dtype}; expected booleans, True = may attend, or floats to add"
        )
    # What is added to forbid is the least number of its type: such a pair is not visible, not merely unlikely.
    seen = mask > torch.finfo(mask.dtype).min
    return seen, torch.where(seen, mask, 0.0).to(mask.dtype)


def _implied(module: nn.Module, q: Tensor, k: Tensor, keywords: Mapping[str, Any], where: str) -> Visible | None:
    """No mask: what the module says of itself. transformers' contract is causal, or everything for one query."""
    queries, keys, window = q.shape[2], k.shape[2], keywords.get("sliding_window") or 0
    narrow = 0 < window < keys
    causal = keywords.get("is_causal")
    causal = getattr(module, "is_causal", True) if causal is None else causal
    if not causal and queries > 1:
        if narrow:
            raise BackendError(f"{where}: a two-sided window of {window} over {keys} keys came without its mask")
        return None
    if causal and queries not in (1, keys):
        raise BackendError(
            f"{where}: {queries} queries over {keys} keys came without a mask; whether the first query sees one key or "
            f"{keys - queries + 1} cannot be told"
        )
    if narrow:
        return masks.window(window)
    return masks.causal() if queries > 1 else None
