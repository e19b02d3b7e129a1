"""The masks of transformers as the door wants them: booleans, or None where the module's own word says it all.

None has two meanings only: causal over as many keys as queries, and everything for one query that comes last. transformers'
own function for SDPA also returns it for a bidirectional mask, and for the first fill of a static cache, where the same
None with the same sizes could mean two things.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from manyheads.errors import BackendError
from manyheads.models.door.call import EVERYTHING
from manyheads.quoting import shown

__all__ = ["make_mask"]


def make_mask(
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: int | Tensor = 0,
    kv_offset: int = 0,
    mask_function: Callable | None = None,
    attention_mask: Tensor | None = None,
    local_size: int | None = None,
    allow_is_causal_skip: bool = True,  # noqa: FBT001, FBT002 - transformers' signature
    allow_is_bidirectional_skip: bool = False,  # noqa: FBT001, FBT002
    use_vmap: bool = False,  # noqa: FBT001, FBT002
    device: torch.device | str = "cpu",
    dtype: torch.dtype | None = None,  # noqa: ARG001 - for masks of floats
    config: Any = None,  # noqa: ARG001 - offered to whoever wants it
    **unknown: Any,
) -> Tensor | None:
    """What transformers' `AttentionMaskInterface` calls, with its arguments: (batch, 1, queries, keys), True = may attend.

    Raises BackendError for an argument that is not known and says something, and for a padding mask that leaves tokens out.
    """
    from transformers.masking_utils import causal_mask_function, sdpa_mask

    said = [name for name, value in unknown.items() if value is not None]
    if said:
        raise BackendError(
            f"the argument {shown(said[0])} arrived at the mask function, and nothing here knows what it means"
        )
    _check_padding(attention_mask, q_length, kv_length, q_offset, kv_offset)
    last = isinstance(q_offset, int) and q_offset + q_length == kv_offset + kv_length
    # a graph would be made for keys that a window does not hide, and another for those that it does
    windowed = local_size is not None and torch.compiler.is_compiling()
    mask = sdpa_mask(
        batch_size=batch_size, q_length=q_length, kv_length=kv_length, q_offset=q_offset, kv_offset=kv_offset,
        mask_function=mask_function or causal_mask_function, attention_mask=attention_mask, local_size=local_size,
        allow_is_causal_skip=allow_is_causal_skip and last and q_length in (1, kv_length) and not windowed,
        allow_is_bidirectional_skip=allow_is_bidirectional_skip, use_vmap=use_vmap, device=device,
    )  # fmt: skip
    if mask is None and allow_is_bidirectional_skip and not allow_is_causal_skip:
        mask = torch.ones(1, 1, 1, 1, dtype=torch.bool, device=device).expand(batch_size, 1, q_length, kv_length)
        setattr(mask, EVERYTHING, True)
    return mask


def _check_padding(
    padding: Tensor | None, q_length: int, kv_length: int, q_offset: int | Tensor, kv_offset: int
) -> None:
    """transformers takes a padding mask (batch, tokens) that is too short and pads it with zeros, at its end: most keys of a
    longer cache would not be seen, or where it holds no zero, all of them."""
    if padding is None or padding.dim() != 2:
        return
    if isinstance(q_offset, Tensor):  # a static cache's, which would break a graph, or be waited for
        q_offset = int(q_offset) if q_offset.is_cpu and not torch.compiler.is_compiling() else 0
    tokens = min(kv_offset + kv_length, q_offset + q_length)
    if padding.shape[1] < tokens:
        raise BackendError(
            f"attention_mask {tuple(padding.shape)} speaks of {padding.shape[1]} tokens, and with those in the cache there are "
            f"{tokens}; valid: one column for each of them, those in the cache first"
        )
