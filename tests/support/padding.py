"""Texts of different lengths in one batch."""

from collections.abc import Sequence

import torch
from torch import Tensor


def padded(sequences: Sequence[Sequence[int]], *, pad: int, side: str = "right") -> dict[str, Tensor]:
    """input_ids and attention_mask of sequences of different lengths; `pad` fills `side`, "left" or "right"."""
    longest = max((len(one) for one in sequences), default=0)
    ids = torch.full((len(sequences), longest), pad)
    real = torch.zeros_like(ids)
    for row, one in enumerate(sequences):
        at = slice(longest - len(one), longest) if side == "left" else slice(0, len(one))
        ids[row, at], real[row, at] = torch.tensor(list(one)), 1
    return {"input_ids": ids, "attention_mask": real}
