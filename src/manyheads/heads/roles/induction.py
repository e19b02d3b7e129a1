"""Induction heads: having seen "A B ... A", they look at B. Source: Olsson et al. 2022, arXiv 2209.11895.

Tested on random tokens, where nothing else could lead there: a block that comes twice, and as control two different blocks,
with the weight read at the same places.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from manyheads.errors import ManyheadsError
from manyheads.heads.address import Head
from manyheads.heads.alignment import Frame
from manyheads.heads.attention_weights import AttentionWeights, measure_heads
from manyheads.heads.batches import Batch, longest_text

__all__ = ["BLOCK_TOKENS", "SEQUENCES", "induction_scores", "random_tokens"]

BLOCK_TOKENS = 48
SEQUENCES = 16
_AT_ONCE = 8


def random_tokens(tokenizer: Any, count: int, *, rng: random.Random, most: int | None = None) -> list[int]:
    """`count` ids drawn from the whole vocabulary (the first `most` ids of it), special tokens apart."""
    special = set(getattr(tokenizer, "all_special_ids", None) or ())
    size = len(tokenizer) if most is None else min(len(tokenizer), most)
    if size <= len(special):
        raise ManyheadsError(f"the tokenizer has {size} tokens, all of them special: nothing to draw from")
    drawn: list[int] = []
    while len(drawn) < count:
        token = rng.randrange(size)
        if token not in special:
            drawn.append(token)
    return drawn


def induction_scores(
    model: Any,
    tokenizer: Any,
    *,
    around: Frame = Frame(),  # noqa: B008
    block_tokens: int = BLOCK_TOKENS,
    sequences: int = SEQUENCES,
    seed: int = 0,
) -> tuple[tuple[Head, ...], np.ndarray]:
    """(heads, array (sequences, heads, 2)): the mean weight that the tokens of a second block give to the token after
    their like in the first, where the second block is the first again, and where it is another one.

    `around`: what stands before and after the two blocks. Blocks are shorter where the model's positions end before.
    """
    room = longest_text(model, 2 * block_tokens + len(around.before) + len(around.after))
    block = (room - len(around.before) - len(around.after)) // 2
    if block < 2:
        raise ManyheadsError(f"the model has positions for {room} tokens; induction needs two blocks of at least 2")
    rng = random.Random(seed)  # noqa: S311  nothing secret hangs on it
    vocabulary = getattr(getattr(model, "config", None), "vocab_size", None)
    rows = []
    for _ in range(sequences):
        first, other = (random_tokens(tokenizer, block, rng=rng, most=vocabulary) for _ in range(2))
        rows += [[*around.before, *first, *second, *around.after] for second in (first, other)]
    begin = len(around.before)

    def measure(attention: AttentionWeights, _: int) -> Tensor:
        queries = torch.arange(begin + block, begin + 2 * block, device=attention.weights.device)
        found = attention.weights[:, :, queries, queries - block + 1].mean(-1)
        return torch.stack([found[0::2], found[1::2]], -1)

    heads, scores = measure_heads(model, _batches(rows), measure, encoder_only=True)
    return heads, scores


def _batches(rows: Sequence[Sequence[int]]) -> list[Batch]:
    return [{"input_ids": torch.tensor(rows[start : start + _AT_ONCE])} for start in range(0, len(rows), _AT_ONCE)]
