"""Normalisation: a vector's kind of norm, its gain and its shift."""

from __future__ import annotations

from manyheads.record import record
from manyheads.spec import check

__all__ = ["Norm", "QKNorm"]


@record
class Norm:
    """RMSNorm, y = x / sqrt(mean(x^2) + eps) * g, or LayerNorm, which first takes the mean away.

    `gain`: "w" stores g itself, "1+w" stores w with g = 1 + w (Gemma), "none" stores nothing (OLMo-1).
    `shift`: whether a bias vector is added.
    """

    kind: str = "rms"
    eps: float = 1e-6
    gain: str = "w"
    shift: bool = False

    def __post_init__(self) -> None:
        check.one_of("norm kind", self.kind, ("rms", "layer"))
        check.one_of("norm gain", self.gain, ("w", "1+w", "none"))
        check.number("norm eps", self.eps)
        check.flag("norm shift", self.shift)


@record
class QKNorm:
    """A norm of queries and keys before their product.

    `scope`: "head" normalises each head with one gain of size q shared by all heads (Qwen3, Gemma 3), "each_head"
    normalises each head with a gain of its own (Cohere), "full" normalises the whole projection, H·q and K·q wide
    (OLMo-2). `place`: before or after the rotary embedding.
    """

    norm: Norm = Norm()
    scope: str = "head"
    place: str = "before_rope"

    def __post_init__(self) -> None:
        check.instance("qk_norm.norm", self.norm, (Norm,))
        check.one_of("qk_norm.scope", self.scope, ("head", "each_head", "full"))
        check.one_of("qk_norm.place", self.place, ("before_rope", "after_rope"))
