"""Where every head looks on a sample of text, small enough for one page: about 12 KB a head, however long the text.

Of each head are kept, in bytes: for chosen rows (queries) the keys with most weight, and for blocks of queries the mass on
blocks of keys. The first token draws much of most heads' weight and would swamp the rest, so its share stands by itself:
neither the strongest keys nor the blocks hold it. Weights are made tile by tile; no score matrix is ever held.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from manyheads.errors import ManyheadsError
from manyheads.heads.address import Head
from manyheads.heads.attention_modules import AttentionModule, ModuleIndex
from manyheads.models.door.door import Call, open_door
from manyheads.ops.call import AttentionCall
from manyheads.ops.deferred import materialized
from manyheads.ops.softmax import block

__all__ = [
    "BUDGET_BYTES",
    "MOST_TOKENS",
    "PAGE_BYTES",
    "HeadMaps",
    "LayerMaps",
    "MapShape",
    "fit",
    "head_maps",
    "read_byte",
]

MOST_TOKENS = 65_535
BUDGET_BYTES = 12_288
"""Bytes of a head's map at most: 16 KiB once written as base64."""

PAGE_BYTES = 5 * 2**20
"""A page stays under it."""

# What a page holds beside its maps where nobody counted: scripts, styles, tables, and words about each head.
_BESIDE_BYTES = 492_880
_WORDS_BYTES = 900
# Scripts and styles of the maps, and what their view says of each head.
_VIEW_BYTES = 64_000
_VIEW_WORDS_BYTES = 450
_LEAST_BYTES = 512
_PASSAGES = 4
_PAIRS_IN_A_TILE = 2**22


@dataclass(frozen=True)
class MapShape:
    """What is kept of a head: `rows` queries, the `keys` strongest of each, and a grid of `blocks` by `blocks`."""

    rows: int = 256
    keys: int = 12
    blocks: int = 64


def fit(
    heads: int, *, two_sided: bool = False, budget_bytes: int = BUDGET_BYTES, beside_bytes: int | None = None
) -> MapShape:
    """The largest shape so that `heads` maps fit a page: `budget_bytes` a head, less where there are many heads.

    beside_bytes  what the page holds without the maps and their view, counted; None: what an x-ray of so many heads does

    Raises ManyheadsError where not even the smallest fits.
    """
    if beside_bytes is None:
        room, words = PAGE_BYTES - _BESIDE_BYTES, _WORDS_BYTES
    else:
        room, words = PAGE_BYTES - _VIEW_BYTES - beside_bytes, _VIEW_WORDS_BYTES
    budget = min(budget_bytes, (room - words * heads) * 3 // 4 // max(heads, 1))  # base64 takes 4 for 3
    if budget < _LEAST_BYTES:
        most = max(room * 3 // (4 * _LEAST_BYTES + 3 * words), 0)
        raise ManyheadsError(f"{heads:,} heads: a page under 5 MiB has room for the maps of {most:,}")
    blocks = next(n for n in (64, 48, 32, 24, 16, 8) if _grid_bytes(n, two_sided=two_sided) <= budget * 0.4)
    keys = 12 if budget >= 6_000 else 8 if budget >= 2_000 else 4
    rows = (budget - _grid_bytes(blocks, two_sided=two_sided)) // (1 + 3 * keys)
    return MapShape(min(rows, 272) // _PASSAGES * _PASSAGES, keys, blocks)


def _grid_bytes(blocks: int, *, two_sided: bool) -> int:
    return blocks + (blocks * blocks if two_sided else blocks * (blocks + 1) // 2)


@dataclass(frozen=True, eq=False)
class LayerMaps:
    """The maps of the heads of one attention module. Every byte stands for the weight (byte / 255)².

    stage         "encoder", "decoder" or "cross" where a model has several attentions, else ""
    layer, path   its layer, and its name in the model
    numbers       the number of each head, in a pruned model its original one, -1 for a zeroed head
    queries, keys tokens on either side
    rows          (r,) the queries whose strongest keys are kept
    first         (h, r) their weight on key 0
    strongest     (h, r, n) the keys but 0 that each looks at most, falling; `weights` (h, r, n) how much
    blocks        (h, bq, bk) mean mass of a block of queries on a block of keys, without key 0; `first_blocks` (h, bq) on
                  that; a block holds `block_queries` x `block_keys` tokens, the last of each side perhaps fewer
    """

    stage: str
    layer: int
    path: str
    numbers: tuple[int, ...]
    queries: int
    keys: int
    rows: Tensor
    first: Tensor
    strongest: Tensor
    weights: Tensor
    blocks: Tensor
    first_blocks: Tensor
    block_queries: int
    block_keys: int

    @property
    def heads(self) -> int:
        """Query heads."""
        return self.first.shape[0]

    def addresses(self) -> Iterator[tuple[int, Head]]:
        """Where the tensors hold each head, and its address; zeroed heads, left by a pruning, are none."""
        for place, number in enumerate(self.numbers):
            if number >= 0:
                yield place, Head(self.layer, number, self.stage)

    @property
    def triangular(self) -> bool:
        """Whether no block of queries looks at a later block: then only the lower triangle is written."""
        square = self.blocks.shape[1] == self.blocks.shape[2] and self.queries == self.keys
        return square and not bool(self.blocks.triu(1).any())

    def encoded(self, head: int) -> bytes:
        """One head as bytes: first (r), first_blocks (bq), blocks (row by row, the lower triangle where `triangular`),
        strongest (r, n as little-endian 16-bit words), weights (r, n).
        """
        grid = self.blocks[head]
        if self.triangular:
            at = torch.tril_indices(*grid.shape)
            grid = grid[at[0], at[1]]
        keys = self.strongest[head].contiguous().numpy().astype("<u2")
        parts = (self.first[head], self.first_blocks[head], grid.contiguous())
        return b"".join(
            (*(part.numpy().tobytes() for part in parts), keys.tobytes(), self.weights[head].numpy().tobytes())
        )


@dataclass(frozen=True, eq=False)
class HeadMaps:
    """The maps of all heads of a model on one text, in the order in which its attention modules ran."""

    layers: tuple[LayerMaps, ...]

    @property
    def heads(self) -> int:
        """Heads of all layers and stages."""
        return sum(1 for layer in self.layers for _ in layer.addresses())


def read_byte(byte: Tensor) -> Tensor:
    """The weights that bytes of a map stand for: (byte / 255)², off by 0.2% of the weight's root at most."""
    return (byte.to(torch.float64) / 255) ** 2


def head_maps(model: Any, inputs: Mapping[str, Tensor], *, shape: MapShape | None = None) -> HeadMaps:
    """Where each head of `model` looks while it reads `inputs`, one text without padding; memory flat in its length.

    inputs  what the model's forward takes: input_ids (1, t), for an encoder-decoder also decoder_input_ids
    shape   what to keep; None: as much as a page has room for with as many heads as SmolLM2 has (270)

    Raises ManyheadsError for a batch, for padding, for no tokens and for a text that is too long, BackendError where
    attention does not pass the door.
    """
    _check(inputs)
    shape = shape or fit(270)
    found: dict[tuple[str, int], LayerMaps] = {}

    def look(call: Call, _: Tensor) -> None:
        module = modules.of(call)
        if (module.stack, module.layer) in found:  # one module that serves several layers, as ALBERT's
            module = replace(module, layer=sum(stack == module.stack for stack, _ in found))
        found[module.stack, module.layer] = _layer_maps(call, module, shape)

    body = getattr(model, "base_model", model)  # without a language head: logits of long texts are gigabytes
    # Not inference_mode: what a model keeps of a long text (frequencies of its positions) would stay unfit for training.
    with torch.no_grad(), open_door(model, observers=[look], mode="eval") as door:
        modules = ModuleIndex(door.attentions)
        body(**inputs)
    return HeadMaps(tuple(found.values()))


def _check(inputs: Mapping[str, Any]) -> None:
    tensors = {name: each for name, each in inputs.items() if isinstance(each, Tensor) and each.dim()}
    if not tensors:
        raise ManyheadsError(
            f"maps are made of a text, and {', '.join(inputs) or 'nothing'} was given; expected input_ids (1, t)"
        )
    for name, tensor in tensors.items():
        if tensor.shape[0] != 1:
            raise ManyheadsError(f"maps show one text at a time: {name} holds {tensor.shape[0]}; valid: a batch of 1")
        if not tensor.numel():
            raise ManyheadsError(f"{name} {tuple(tensor.shape)} holds nothing to look at; at least one token is needed")
        if name.endswith("attention_mask") and tensor.dim() == 2 and not bool(tensor.bool().all()):
            padding = int((~tensor.bool()).sum())
            raise ManyheadsError(
                f"{name}: {padding} of {tensor.shape[1]} tokens are padding, which would have rows and columns of their own; "
                "valid: the text alone"
            )


def _layer_maps(call: Call, module: AttentionModule, shape: MapShape) -> LayerMaps:
    q, k = call.q.detach(), materialized(call.k).detach()
    (_, h, t, _), s = q.shape, k.shape[2]
    if max(t, s) > MOST_TOKENS:
        raise ManyheadsError(f"{max(t, s):,} tokens: maps name keys by 16 bits; valid: at most {MOST_TOKENS:,} tokens")
    asked = AttentionCall.checked(q, k, k, **call.options)
    rows = _rows(t, shape.rows)
    kept = min(shape.keys, max(s - 1, 1))
    size_q, size_k = -(-t // shape.blocks), -(-s // shape.blocks)
    grid = torch.zeros(h, -(-t // size_q), -(-s // size_k), dtype=torch.float64)
    first = torch.zeros(h, t)
    strongest = torch.zeros(h, len(rows), kept, dtype=torch.int32)
    weights = torch.zeros(h, len(rows), kept)
    for tile in _tiles(h, t, s, size_q):
        seen = _weights(asked, tile)  # (h, rows, keys up to the last that any of them sees)
        first[:, tile] = seen[:, :, 0]
        seen[:, :, 0] = 0
        grid[:, tile.start // size_q, : -(-seen.shape[2] // size_k)] += _by_block(seen, size_k).sum(1)
        inside = (rows >= tile.start) & (rows < tile.stop)
        if inside.any():
            top = seen[:, rows[inside] - tile.start].topk(min(kept, seen.shape[2]), -1)
            weights[:, inside, : top.values.shape[2]] = top.values.float().cpu()
            strongest[:, inside, : top.values.shape[2]] = top.indices.to(torch.int32).cpu()
    strongest.masked_fill_(weights == 0, 0)  # an early token sees fewer keys than there is room for
    counts = torch.tensor([min(size_q, t - start) for start in range(0, t, size_q)])
    first_blocks = torch.stack([part.mean(1) for part in first.split(size_q, 1)], 1)
    return LayerMaps(
        module.stack, module.layer, call.path, module.computed, t, s, rows, _bytes(first[:, rows]), strongest, _bytes(weights),
        _bytes(grid / counts[:, None]), _bytes(first_blocks), size_q, size_k,
    )  # fmt: skip


def _rows(queries: int, most: int) -> Tensor:
    """All queries, or as many in passages that can be read: the first at the start of the text, the last at its end."""
    if queries <= most:
        return torch.arange(queries)
    passages = min(_PASSAGES, most)
    each = most // passages
    starts = [(queries - each) * n // max(passages - 1, 1) for n in range(passages)]
    return torch.cat([torch.arange(start, start + each) for start in starts])


def _tiles(heads: int, queries: int, keys: int, block: int) -> Iterator[slice]:
    """Rows that lie in one block of queries, few enough that a tile stays small."""
    most = max(_PAIRS_IN_A_TILE // (heads * keys), 1)
    for start in range(0, queries, block):
        stop = min(start + block, queries)
        yield from (slice(at, min(at + most, stop)) for at in range(start, stop, most))


def _weights(asked: AttentionCall, rows: slice) -> Tensor:
    """Probabilities (h, rows, keys) of some queries of the one sequence; keys after the last that is seen are left out."""
    keys = asked.k.shape[2]
    first = int(asked.offset) + rows.start
    last = first + rows.stop - rows.start
    stop = keys
    if 0 < last < keys and asked.visible.block(first, last - 1, last, keys - 1) is False:
        stop = last
    return block(asked, rows, slice(0, stop))[0]


def _by_block(seen: Tensor, size: int) -> Tensor:
    """(h, rows, keys) -> (h, rows, blocks of keys), summed."""
    h, rows, keys = seen.shape
    blocks = -(-keys // size)
    padded = torch.nn.functional.pad(seen, (0, blocks * size - keys))
    return padded.view(h, rows, blocks, size).sum(-1).double().cpu()


def _bytes(weights: Tensor) -> Tensor:
    return (weights.clamp(0, 1).sqrt() * 255).round().to(torch.uint8)
