"""What a header says of one tensor, whatever the format of the file."""

from __future__ import annotations

import math
from dataclasses import dataclass

__all__ = ["LARGEST_TENSOR_ELEMENTS", "MAX_TENSORS", "TensorInfo", "count_elements"]

# Of one model. Kimi K2 has 384 experts in 60 layers, three matrices each, of three tensors where they are packed: 207,000.
MAX_TENSORS = 2**18

# Both formats hold sizes in 64-bit integers; a product beyond them is a lie or an attack.
LARGEST_TENSOR_ELEMENTS = 2**63 - 1


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """One tensor of a weight file, as its header describes it.

    name    as stored
    dtype   the format's own word: "BF16", "F8_E4M3" (safetensors); "Q4_K", "F32" (GGUF)
    shape   outermost axis first, as torch prints it, for both formats (GGUF stores the reverse)
    nbytes  bytes of data in the file, without padding
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    nbytes: int

    @property
    def elements(self) -> int:
        """How many numbers the tensor holds: the product of its shape, 1 for a scalar."""
        return math.prod(self.shape)


def count_elements(shape: tuple[int, ...]) -> int | None:
    """The product of `shape`, or None where it passes 64 bits on the way (as the formats' own readers judge it)."""
    elements = 1
    for size in shape:
        elements *= size
        if elements > LARGEST_TENSOR_ELEMENTS:
            return None
    return elements
