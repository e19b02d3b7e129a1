"""Masks as torch.nn.MultiheadAttention takes them (True = may not attend, floats are added), turned into ours.

Masks decide; hints do not. Booleans become predicates and never meet an arithmetic: what is hidden twice is hidden once,
and a row where nothing is left sees nothing (cases O01 to O04, O47).
"""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from manyheads.errors import SpecError
from manyheads.ops import masks
from manyheads.ops.masks import Visible
from manyheads.ops.precision import wide

__all__ = ["Sizes", "translate"]


@dataclass(frozen=True)
class Sizes:
    """The sizes of one call; `extra` keys stand after the `keys` that masks speak of, and every query sees them."""

    batch: int
    heads: int
    queries: int
    keys: int
    extra: int


def translate(
    attn_mask: Tensor | None, key_padding_mask: Tensor | None, *, is_causal: bool, sizes: Sizes, like: Tensor
) -> tuple[Visible | None, Tensor | None]:
    """What may be seen, and what is added to the scores of `like`'s dtype: either may be None.

    attn_mask          (queries, keys) or (batch · heads, queries, keys)
    key_padding_mask   (batch, keys)
    is_causal          without an attn_mask: causal, for as many keys as queries; with one: ignored, the mask says it
    """
    visible: list[Visible] = []
    added: list[Tensor] = []
    if attn_mask is not None:
        _sort(_ranked(attn_mask, sizes), "attn_mask", sizes, visible, added)
    elif is_causal:
        visible.append(_causal(sizes, like.device))
    if key_padding_mask is not None:
        _check_padding(key_padding_mask, sizes)
        if key_padding_mask.dtype == torch.bool and attn_mask is None and not is_causal:
            # one number a key: torch's kernels keep that as it is, and spread booleans over all queries
            key_padding_mask = like.new_zeros(key_padding_mask.shape).masked_fill(key_padding_mask, -torch.inf)
        _sort(key_padding_mask[:, None, None], "key_padding_mask", sizes, visible, added)
    seen = visible[0] & visible[1] if len(visible) == 2 else visible[0] if visible else None
    return seen, _sum(added, like)


def _sort(mask: Tensor, name: str, sizes: Sizes, visible: list[Visible], added: list[Tensor]) -> None:
    """Put a mask with four axes where it belongs."""
    if mask.dtype == torch.bool:
        visible.append(masks.dense(pad(~mask, (0, sizes.extra), value=True) if sizes.extra else ~mask))
    elif mask.is_floating_point():
        _look_at_floats(mask, name)
        added.append(pad(mask, (0, sizes.extra)) if sizes.extra else mask)
    else:
        raise SpecError(
            f"{name} must be boolean (True = may not attend) or floating (added to the scores); found {mask.dtype}"
        )


def _ranked(mask: Tensor, sizes: Sizes) -> Tensor:
    """attn_mask with the axes (batch or 1, heads or 1, queries, keys)."""
    plain = (sizes.queries, sizes.keys)
    each = (sizes.batch * sizes.heads, *plain)
    if tuple(mask.shape) == plain:
        return mask[None, None]
    if tuple(mask.shape) == each:
        return mask.view(sizes.batch, sizes.heads, *plain)
    hint = ""
    if tuple(mask.shape) == (sizes.batch, *plain):
        hint = f"; for one a sequence, pass attn_mask.repeat_interleave({sizes.heads}, 0)"
    raise SpecError(
        f"attn_mask must be (queries, keys) {plain} or (batch * heads, queries, keys) {each}; "
        f"found {tuple(mask.shape)}{hint}"
    )


def _check_padding(mask: Tensor, sizes: Sizes) -> None:
    if tuple(mask.shape) != (sizes.batch, sizes.keys):
        raise SpecError(
            f"key_padding_mask must be (batch, keys) {(sizes.batch, sizes.keys)}, or (keys,) for unbatched input; "
            f"found {tuple(mask.shape)}"
        )


def _causal(sizes: Sizes, device: torch.device) -> Visible:
    t, s = sizes.queries, sizes.keys
    if t != s:
        raise SpecError(
            f"is_causal without attn_mask needs as many keys as queries, found {t} queries and {s} keys: say where the "
            f"queries stand, with attn_mask = torch.ones({t}, {s}, dtype=torch.bool).triu({s - t + 1}) if they are the "
            f"last of the keys (decoding with a cache), .triu(1) if they are the first"
        )
    if not sizes.extra:
        return masks.causal()
    square = torch.ones(t, s, dtype=torch.bool, device=device).tril()
    return masks.dense(pad(square, (0, sizes.extra), value=True))


def _sum(added: list[Tensor], like: Tensor) -> Tensor | None:
    """The masks added up, in float32 or wider: two times the least float16 is not minus infinity (case O47)."""
    if not added:
        return None
    if len(added) == 1 and added[0].dtype == like.dtype:
        return added[0]
    total = added[0].to(wide(like.dtype))
    for mask in added[1:]:
        total = total + mask.to(total.dtype)
    # the fused kernels elsewhere take a bias in the queries' own dtype only
    return total if like.device.type == "cpu" else total.to(like.dtype)


def _look_at_floats(mask: Tensor, name: str) -> None:
    """NaN and +inf are errors (`ops.arguments` has the rule); a float mask of zeros and ones was meant as a boolean one (case
    O09). Not looked at where looking costs a wait.
    """
    if torch.compiler.is_compiling() or type(mask) is not Tensor or mask.device.type != "cpu" or not mask.numel():
        return
    least, most = (float(end) for end in mask.detach().aminmax())
    if not most < math.inf:
        raise SpecError(f"{name} must be finite, or -inf where a query may not attend; found {most}")
    if (least, most) == (0.0, 1.0) and bool(((mask == 0) | (mask == 1)).all()):
        warnings.warn(
            f"{name} is floating and holds only 0 and 1: it is added to the scores and hides nothing; "
            f"pass it as boolean, True = may not attend, to hide",
            UserWarning,
            stacklevel=2,
        )
