"""What is asked of a model: how long, how many at once, in which formats."""

from __future__ import annotations

from manyheads.cost.dtypes import DType, KVDType, dtype, kv_dtype
from manyheads.errors import SpecError
from manyheads.record import record
from manyheads.spec import check

__all__ = ["Workload"]

MOST_TOKENS = 10**12


@record
class Workload:
    """A context of so many tokens for each of `batch` sequences, and the storage formats.

    `context`: tokens read at once (prefill, training) or cached (decode). `source_tokens`: what an encoder reads.
    `weight_bytes`: what the weights really occupy where a file says so (mixed formats), 0 to derive it. Scores are
    priced in `score_dtype`, one copy, as naive code holds them; running states in `state_dtype`. `kv_dtype` is one format or
    two, keys before values: "q8_0/f16".
    """

    context: int
    batch: int = 1
    source_tokens: int = 0
    weight_dtype: str = "bf16"
    kv_dtype: str = "bf16"
    state_dtype: str = "bf16"
    score_dtype: str = "bf16"
    weight_bytes: int = 0

    def __post_init__(self) -> None:
        check.size("context", self.context, most=MOST_TOKENS)
        check.size("batch", self.batch, most=10**9)
        check.size("source_tokens", self.source_tokens, least=0, most=MOST_TOKENS)
        check.size("weight_bytes", self.weight_bytes, least=0, most=2**63)
        for name in ("weight_dtype", "state_dtype", "score_dtype"):
            dtype(getattr(self, name))
        kv_dtype(self.kv_dtype)
        if self.score.block_elements != 1:
            raise SpecError(f"scores are computed in a plain format, not in blocks; found {self.score_dtype}")

    @property
    def weight(self) -> DType:
        """Format of the weights."""
        return dtype(self.weight_dtype)

    @property
    def kv(self) -> KVDType:
        """Formats of cached keys, values and latents."""
        return kv_dtype(self.kv_dtype)

    @property
    def state(self) -> DType:
        """Format of running states."""
        return dtype(self.state_dtype)

    @property
    def score(self) -> DType:
        """Format of attention scores and other activations."""
        return dtype(self.score_dtype)
