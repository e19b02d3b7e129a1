"""The hard concrete distribution (Louizos et al., arXiv 1712.01312): gates that are 0 or 1 most of the time, and still pass
gradients to the odds that they are open.

    s = sigmoid((log u - log(1 - u) + a) / BETA), u uniform in (0, 1);  z = clip(s (ZETA - GAMMA) + GAMMA, 0, 1)
    P(z > 0) = sigmoid(a - BETA log(-GAMMA / ZETA))

`a` is the trained number of a gate.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

__all__ = ["BETA", "GAMMA", "ZETA", "drawn", "likely", "open_probability"]

BETA = 2 / 3
GAMMA = -0.1
ZETA = 1.1

_EDGE = 1e-6  # keeps log u finite


def drawn(a: Tensor, uniform: Tensor) -> Tensor:
    """A draw of the gates `a` for numbers in (0, 1) that broadcast with them; differentiable in `a`."""
    u = uniform.clamp(_EDGE, 1 - _EDGE)
    return _stretched(torch.sigmoid((torch.log(u) - torch.log1p(-u) + a) / BETA))


def likely(a: Tensor) -> Tensor:
    """What the gates are without noise: clip(sigmoid(a) (ZETA - GAMMA) + GAMMA, 0, 1)."""
    return _stretched(torch.sigmoid(a))


def open_probability(a: Tensor) -> Tensor:
    """The probability that a draw is not 0: the gate's part of the expected L0 norm."""
    return torch.sigmoid(a - BETA * math.log(-GAMMA / ZETA))


def _stretched(s: Tensor) -> Tensor:
    return (s * (ZETA - GAMMA) + GAMMA).clamp(0, 1)
