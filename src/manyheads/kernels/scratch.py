"""How much a task works on at a time, and the memory that a thread needs for it."""

from __future__ import annotations

from functools import cache

from manyheads.kernels.lanes import padded

__all__ = ["PACKED_ROWS", "PACKED_TILE_KEYS", "TILE_KEYS", "Scratch", "scratch"]

# Keys of a tile: enough that what is done once a row and tile is little beside the products. Where many rows pass over it,
# few enough that V, widened, stays in the first-level cache.
TILE_KEYS = 128
PACKED_TILE_KEYS = 64
# From so many rows on, turning a tile once costs less than adding lanes for every block of rows.
PACKED_ROWS = 20


class Scratch:
    """Sizes in bytes, each a whole number of lines: a thread's working memory and what lies where in it, and a part's results."""

    def __init__(self, kind: int, head_dim: int, v_head_dim: int, rows: int) -> None:
        many = rows >= PACKED_ROWS
        self.tile_at = 4 * rows * padded(kind, head_dim)
        self.packed_at = self.tile_at + 4 * rows * TILE_KEYS
        self.values_at = self.packed_at + 4 * 32 * padded(kind, head_dim) * many
        self.thread = self.values_at + 4 * PACKED_TILE_KEYS * padded(kind, v_head_dim) * many
        self.mixed = 4 * rows * padded(kind, v_head_dim)
        self.top = 4 * (-(-rows // 16) * 16)
        self.total = 4 * rows * 16


scratch = cache(Scratch)
