"""ggml's tensor types, as the readers name them; the table stands in `facts`, where the cost room can reach it too."""

from __future__ import annotations

from manyheads.facts.ggml_types import GGML_BLOCKS, GGML_CODES, block_of, packed_bytes

__all__ = ["GGML_BLOCKS", "GGML_CODES", "block_of", "packed_bytes"]
