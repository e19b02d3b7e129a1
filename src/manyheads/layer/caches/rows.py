"""A window whose sequences part company: which token lies in which slot of each, and which may go.

Padding, and positions that callers give, make the tokens that a window still shows differ from sequence to sequence. So what
goes is chosen by position, in each sequence: first slots without a token, then padding, then what lies furthest back.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from manyheads.errors import SpecError
from manyheads.layer.caches.base import FAR
from manyheads.spec import Chunk, Window

__all__ = ["Rows"]

_NONE, _PADDING = -2, -1  # ranks below every position
_NOWHERE = -FAR


class Rows:
    """What lies in the w slots of a window, for each of b sequences.

    numbers    (b, w) the number of the token in each slot, -1 where there is none
    positions  (b, w) where it stands, FAR where there is none
    tail       (b, w) the positions of the last w tokens, that of token n at n mod w: where the next ones stand
    gone       (b,) the furthest position of the tokens that were dropped, padding apart
    """

    def __init__(self, numbers: Tensor, gone: Tensor) -> None:
        """`numbers` (w,) or (b, w) of the tokens so far, which stand at their numbers; `gone` (b,)."""
        numbers = numbers.expand(gone.shape[0], -1)
        self.numbers = numbers.clone()
        self.positions = torch.where(numbers < 0, FAR, numbers)
        self.tail = self.positions.clone()
        self.gone = gone

    @staticmethod
    def dropped(count: int, keep: Tensor | None, *, batch: int, device: torch.device) -> Tensor:
        """`gone` where the first `count` tokens were dropped by number, `keep` (b or 1, tokens) telling which are some."""
        numbers = torch.arange(count, device=device).expand(batch, -1)
        if keep is not None:
            numbers = torch.where(keep[:, :count], numbers, _NOWHERE)
        return numbers.amax(1) if count else torch.full((batch,), _NOWHERE, device=device)

    def check(self, mask: Window | Chunk, queries: Tensor, tokens: Tensor | None) -> None:
        """Raise a SpecError if a query at one of the positions (b, t) would see a token that is gone.

        `tokens` (b or 1, t), False for queries that are padding, whose answers nobody reads.
        """
        self._refuse(mask, queries, self.gone[:, None], tokens)

    def _refuse(self, mask: Window | Chunk, queries: Tensor, gone: Tensor, tokens: Tensor | None) -> None:
        seen = gone > _out_of_sight(mask, queries)
        if tokens is not None:
            seen = seen & tokens
        if torch.compiler.is_compiling() or seen.device.type != "cpu":
            torch._assert_async(~seen.any(), "a rolling cache has dropped a token that a query would see")
        elif bool(seen.any()):
            row, query = (int(i) for i in seen.nonzero()[0])
            raise SpecError(
                f"a rolling cache of {self.numbers.shape[1]} has dropped what lies up to position {int(gone[row, 0])} of "
                f"sequence {row}, and a query at {int(queries[row, query])} would see some of it; valid: padding said by "
                "masks.padding from the first call on, or a growing cache"
            )

    def replaced(self, mask: Window | Chunk, number: int, position: Tensor, keep: Tensor | None) -> Tensor:
        """The slot (b,) of one new token, in each sequence; its position is (b, 1). Raises as `check` does."""
        rank = self._ranks(self.numbers, self.positions, keep)
        slots = rank.argmin(1)
        lost = rank.gather(1, slots[:, None])
        gone = torch.maximum(self.gone, torch.where(lost < 0, _NOWHERE, lost)[:, 0])
        self._refuse(mask, position, gone[:, None], None if keep is None else keep[:, number : number + 1])
        self.gone = gone
        self.numbers.scatter_(1, slots[:, None], number)
        self.positions.scatter_(1, slots[:, None], position)
        self._follow(number, position)
        return slots

    def joined(self, first: int, positions: Tensor) -> tuple[Tensor, Tensor]:
        """(numbers, positions) (b, w + t) of what is held and of t new tokens behind it."""
        count = positions.shape[1]
        new = torch.arange(first, first + count, device=positions.device).expand(positions.shape[0], -1)
        return torch.cat((self.numbers, new), 1), torch.cat((self.positions, positions), 1)

    def kept(self, first: int, positions: Tensor, keep: Tensor | None) -> Tensor:
        """Which w of the `joined` columns stay, (b, w), and from now on are held."""
        numbers, places = self.joined(first, positions)
        rank = self._ranks(numbers, places, keep)
        by_number = numbers.argsort(1)  # of tokens at one position the later ones stay
        order = by_number.gather(1, rank.gather(1, by_number).argsort(dim=1, stable=True))
        drop, stay = order.tensor_split([order.shape[1] - self.numbers.shape[1]], 1)
        lost = rank.gather(1, drop).amax(1)
        self.gone = torch.maximum(self.gone, torch.where(lost < 0, _NOWHERE, lost))
        self.numbers, self.positions = numbers.gather(1, stay), places.gather(1, stay)
        self._follow(first, positions)
        return stay

    def cropped(self, mask: Window | Chunk, count: int) -> None:
        """Forget the tokens after the first `count`. Raises as `check` does, for the token that comes next."""
        self.check(mask, self.last(count)[:, None] + 1, None)
        late = self.numbers >= count
        self.numbers = torch.where(late, -1, self.numbers)
        self.positions = torch.where(late, FAR, self.positions)

    def last(self, count: int) -> Tensor:
        """(b,) the position of the last of `count` tokens."""
        return self.tail[:, (count - 1) % self.tail.shape[1]]

    def in_order(self) -> Tensor:
        """(b, s) the positions that are held, oldest token first; FAR where a sequence holds fewer than another."""
        order = self.numbers.argsort(1)
        held = int((self.numbers >= 0).sum(1).max()) if self.numbers.shape[0] else 0
        return self.positions.gather(1, order[:, order.shape[1] - held :])

    def select(self, index: Tensor) -> None:
        """Row i becomes row index[i]."""
        for name, tensor in self.tensors().items():
            setattr(self, name, tensor.index_select(0, index))

    def tensors(self) -> dict[str, Tensor]:
        """All that it knows, by name."""
        return {name: getattr(self, name) for name in ("numbers", "positions", "tail", "gone")}

    @classmethod
    def of(cls, tensors: Mapping[str, Tensor]) -> Rows:
        """The opposite of `tensors`, of copies of them."""
        made = cls(tensors["numbers"], tensors["gone"])
        for name in made.tensors():
            setattr(made, name, tensors[name].clone())
        return made

    def _follow(self, first: int, positions: Tensor) -> None:
        size = self.tail.shape[1]
        last = positions[:, -size:]
        start = first + positions.shape[1] - last.shape[1]
        slots = torch.arange(start, start + last.shape[1], device=last.device) % size
        self.tail.index_copy_(1, slots, last)

    @staticmethod
    def _ranks(numbers: Tensor, positions: Tensor, keep: Tensor | None) -> Tensor:
        """Where each token stands, or that it is padding or none at all: the lower, the sooner it may go."""
        rank = positions
        if keep is not None:
            keep = keep.expand(numbers.shape[0], -1)
            rank = torch.where(keep.gather(1, numbers.clamp(min=0)), rank, _PADDING)
        return torch.where(numbers < 0, _NONE, rank)


def _out_of_sight(mask: Window | Chunk, queries: Tensor) -> Tensor:
    """The last position that a query no longer sees."""
    if isinstance(mask, Window):
        return queries - mask.keys
    return queries.div(mask.size, rounding_mode="floor") * mask.size - 1
