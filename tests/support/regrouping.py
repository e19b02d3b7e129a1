"""What tests of conversions share: token windows, and the regrouped model beside the original."""

from __future__ import annotations

import copy
from typing import Any

import torch

from manyheads.convert.calibration_text import Calibration
from manyheads.convert.regrouped_weights import put_into_model
from manyheads.convert.source import open_source
from support import tiny_transformers as tiny

__all__ = ["as_model", "difference", "kv_heads", "windows"]


def windows(count: int = 6, tokens: int = 24) -> Calibration:
    """Random tokens, the same each time."""
    draw = torch.Generator().manual_seed(3)
    return Calibration(tuple(torch.randint(3, 90, (tokens,), generator=draw) for _ in range(count)), ())


def kv_heads(model: Any) -> int:
    """Of its first layer."""
    return open_source(model).stack.main.blocks[0].attentions[0].kv.num_kv_heads


def as_model(model: Any, made: Any) -> Any:
    """A copy of `model` that computes what the regrouped one does."""
    source, changed = open_source(model), copy.deepcopy(model)
    put_into_model(changed, source.family, source.stack, made.weights, made.stack)
    return changed


def difference(one: Any, other: Any, name: str) -> float:
    """The largest difference of their answers, as a share of the largest answer."""
    batch = tiny.inputs(name)
    wanted = tiny.logits(one, batch)
    return float((tiny.logits(other, batch) - wanted).abs().max() / wanted.abs().max())
