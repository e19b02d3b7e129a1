"""Who may see whom. `visible` is the only polarity inside: True = this query may attend to this key."""

from __future__ import annotations

from manyheads.record import record
from manyheads.spec import check

__all__ = ["Band", "Bidirectional", "Causal", "Chunk", "Mask", "Window"]


@record
class Bidirectional:
    """Every query sees every key."""

    def visible(self, query: int, key: int) -> bool:  # noqa: ARG002 - the same question of every mask
        """Whether the query at absolute position `query` may attend to the key at `key`."""
        return True


@record
class Causal:
    """A query sees itself and what came before; with a cache, queries are the last positions (bottom-right)."""

    def visible(self, query: int, key: int) -> bool:
        """Whether the query at absolute position `query` may attend to the key at `key`."""
        return key <= query


@record
class Window:
    """Causal, and at most `keys` keys, the query's own included (Hugging Face's `sliding_window`)."""

    keys: int

    def __post_init__(self) -> None:
        check.size("window", self.keys)

    def visible(self, query: int, key: int) -> bool:
        """Whether the query at absolute position `query` may attend to the key at `key`."""
        return query - self.keys < key <= query


@record
class Band:
    """Two-sided: keys at most `radius` positions away, so 2·radius + 1 of them."""

    radius: int

    def __post_init__(self) -> None:
        check.size("radius", self.radius, least=0)

    def visible(self, query: int, key: int) -> bool:
        """Whether the query at absolute position `query` may attend to the key at `key`."""
        return abs(query - key) <= self.radius


@record
class Chunk:
    """Causal inside blocks of `size` positions, blind to earlier blocks (Llama 4's chunked attention)."""

    size: int

    def __post_init__(self) -> None:
        check.size("chunk size", self.size)

    def visible(self, query: int, key: int) -> bool:
        """Whether the query at absolute position `query` may attend to the key at `key`."""
        return key <= query and key // self.size == query // self.size


Mask = Bidirectional | Causal | Window | Band | Chunk
