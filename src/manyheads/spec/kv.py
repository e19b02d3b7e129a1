"""What is kept of keys and values: the step that every descendant of multi-head attention changes."""

from __future__ import annotations

from manyheads.errors import SpecError
from manyheads.record import record
from manyheads.spec import check
from manyheads.spec.norms import Norm

__all__ = ["KV", "Heads", "Latent", "State"]


@record
class Heads:
    """Keys and values of K heads: multi-head (K = H), grouped-query (1 < K < H) and multi-query attention (K = 1).

    Kept a token: K·(q + v) elements. Query head h reads key/value head h // (H/K) (arXiv 2305.13245).
    """

    num_kv_heads: int
    head_dim: int
    v_head_dim: int

    def __post_init__(self) -> None:
        check.size("num_kv_heads", self.num_kv_heads)
        check.size("head_dim", self.head_dim)
        check.size("v_head_dim", self.v_head_dim)


@record
class Latent:
    """Multi-head latent attention: one latent vector and one rotary key a token, shared by all heads.

    Kept a token: rank + rope_dim elements; each head's key (nope_dim) and value (v_head_dim) are linear in the latent.
    `q_rank`: width of the query latent, 0 for none. `norm`: applied to both latents (arXiv 2405.04434, section 2.1).
    """

    rank: int
    nope_dim: int
    rope_dim: int
    v_head_dim: int
    q_rank: int = 0
    norm: Norm | None = Norm()

    def __post_init__(self) -> None:
        check.size("rank", self.rank)
        check.size("nope_dim", self.nope_dim)
        check.size("rope_dim", self.rope_dim, least=0)
        check.size("v_head_dim", self.v_head_dim)
        check.size("q_rank", self.q_rank, least=0)
        if self.norm is not None:
            check.instance("latent norm", self.norm, (Norm,))

    @property
    def head_dim(self) -> int:
        """Size of a query or key head, nope_dim + rope_dim: the size that the scale 1/sqrt(head_dim) uses."""
        return self.nope_dim + self.rope_dim


@record
class State:
    """Linear attention: a running sum of key features times values, of fixed size, instead of a cache.

    S_t = decay · S_(t-1) + phi(k_t) v_t^T, read as phi(q_t) S_t; `normalised` also keeps the sum of phi(k) and divides.
    Kept: num_state_heads·(f·v + f) elements a sequence, whatever its length (arXiv 2006.16236; delta rules 2412.06464).

    `num_state_heads` is the larger of the key and value heads, or H where they are repeated first. `feature_map`:
    "identity", "elu+1", "relu" (feature_dim = head_dim) or "learned" (a head_dim x feature_dim matrix a head).
    `rule`: "sum", "gated", "delta", "gated_delta". `decay`: "none", "per_head", "per_channel". `beta`: "none",
    "scalar", "per_head". `conv_width`: taps of a short causal convolution over q, k and v, 0 for none.
    `norm`: of each head's output, with one gain of size v.
    """

    num_key_heads: int
    num_value_heads: int
    num_state_heads: int
    head_dim: int
    feature_dim: int
    v_head_dim: int
    feature_map: str = "elu+1"
    normalised: bool = True
    rule: str = "sum"
    decay: str = "none"
    beta: str = "none"
    conv_width: int = 0
    norm: Norm | None = None

    def __post_init__(self) -> None:
        for name in ("num_key_heads", "num_value_heads", "num_state_heads", "head_dim", "feature_dim", "v_head_dim"):
            check.size(name, getattr(self, name))
        for name in ("num_key_heads", "num_value_heads"):
            if self.num_state_heads % getattr(self, name):
                raise SpecError(
                    f"num_state_heads {self.num_state_heads} must be a multiple of {name} {getattr(self, name)}"
                )
        check.one_of("feature_map", self.feature_map, ("identity", "elu+1", "relu", "learned"))
        if self.feature_map != "learned" and self.feature_dim != self.head_dim:
            raise SpecError(
                f"feature map {self.feature_map} keeps the size: feature_dim {self.feature_dim} must equal head_dim "
                f"{self.head_dim}, or the feature map be learned"
            )
        check.flag("normalised", self.normalised)
        check.one_of("rule", self.rule, ("sum", "gated", "delta", "gated_delta"))
        check.one_of("decay", self.decay, ("none", "per_head", "per_channel"))
        check.one_of("beta", self.beta, ("none", "scalar", "per_head"))
        if ("gated" in self.rule) != (self.decay != "none"):
            raise SpecError(f"rule {self.rule} and decay {self.decay} disagree: gated rules decay, the others do not")
        if ("delta" in self.rule) != (self.beta != "none"):
            raise SpecError(f"rule {self.rule} and beta {self.beta} disagree: delta rules need a beta, the others none")
        check.size("conv_width", self.conv_width, least=0)
        if self.norm is not None:
            check.instance("state norm", self.norm, (Norm,))


KV = Heads | Latent | State
