"""What the statistics and detectors run a model on: batches of tokens, padded on either side, as the model wants them."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from manyheads.errors import ManyheadsError
from manyheads.models.door_attentions import Attentions

__all__ = ["Batch", "Place", "Tokens", "padded", "places", "prepared", "windows"]

# What a user hands over: tokens alone, or everything that the model is called with.
Batch: TypeAlias = Tensor | Mapping[str, Any]


@dataclass(frozen=True)
class Place:
    """An attention module: its name in the model, which stack it is of, and its layer there.

    `stage` is "" in a model of one stack, else "encoder", "decoder", "cross", or what the module's own name says.
    """

    path: str
    stage: str
    layer: int


@dataclass(frozen=True, eq=False)
class Tokens:
    """One side of an attention: ids (b, n) and which of them are real (b, n), None for all."""

    ids: Tensor
    real: Tensor | None


def places(attentions: Attentions) -> tuple[Place, ...]:
    """The attention modules of a model, stack by stack, each in the order of its layers."""
    paths = {path: attentions.layers[key] for key, path in attentions.paths.items()}
    kinds: dict[str, list[str]] = {}
    for path in paths:
        kinds.setdefault(re.sub(r"\d+", "#", path), []).append(path)
    names = _stages(list(kinds))
    found = [Place(p, names[kind], paths[p]) for kind, group in kinds.items() for p in group]
    order = list(dict.fromkeys(place.stage for place in found))
    return tuple(sorted(found, key=lambda place: (order.index(place.stage), place.layer)))


def _stages(kinds: list[str]) -> dict[str, str]:
    named = {kind: _stage(kind) for kind in kinds}
    return named if len(set(named.values())) > 1 else dict.fromkeys(kinds, "")


def _stage(kind: str) -> str:
    last = kind.rpartition(".")[2].lower()
    if "encoder_attn" in last or "encdec" in last or "cross" in kind.lower():
        return "cross"
    words = re.split(r"[._#]+", kind.lower())
    for word in ("decoder", "encoder"):
        if word in words:
            return word
    return next((part for part in kind.split(".") if part != "#"), "")


def padded(sequences: Sequence[Sequence[int]], *, pad: int, side: str = "right") -> dict[str, Tensor]:
    """input_ids and attention_mask of sequences of different lengths; `pad` fills `side`, "left" or "right"."""
    if side not in ("left", "right"):
        raise ManyheadsError(f"side {side!r} is not left or right")
    longest = max((len(one) for one in sequences), default=0)
    ids = torch.full((len(sequences), longest), pad)
    real = torch.zeros_like(ids)
    for row, one in enumerate(sequences):
        at = slice(longest - len(one), longest) if side == "left" else slice(0, len(one))
        ids[row, at], real[row, at] = torch.tensor(list(one)), 1
    return {"input_ids": ids, "attention_mask": real}


def windows(
    ids: Sequence[int], window: int, *, before: Sequence[int] = (), after: Sequence[int] = ()
) -> Iterator[Tensor]:
    """The text in windows of `window` tokens that do not overlap, (1, n) each, with tokens put around each (a
    beginning-of-text token, separators); a last window of one token is left out."""
    if len(ids) < 2:
        raise ManyheadsError(f"the text is {len(ids)} token{'' if len(ids) == 1 else 's'} long; at least 2 are needed")
    if window < 2:
        raise ManyheadsError(f"windows of {window} tokens hold no pair of tokens; at least 2 are needed")
    for start in range(0, len(ids), window):
        part = list(ids[start : start + window])
        if len(part) > 1:
            yield torch.tensor([[*before, *part, *after]])


def prepared(model: nn.Module, batch: Batch, *, device: Any) -> dict[str, Any]:
    """The keyword arguments that `model` is called with: no cache, no logits but the last, positions that skip padding.

    Position ids are made from the attention mask where padding comes first in a decoder: without them every shorter
    text would be read at the wrong positions. Raises ManyheadsError for fewer than two tokens and for a mask of another
    shape.
    """
    given: dict[str, Any] = {"input_ids": batch} if isinstance(batch, Tensor) else dict(batch)
    given = {name: x.to(device) if isinstance(x, Tensor) else x for name, x in given.items()}
    _check(given)
    known = inspect.signature(model.forward).parameters
    rest = any(one.kind is one.VAR_KEYWORD for one in known.values())
    if "use_cache" in known or ("past_key_values" in known and rest):
        given.setdefault("use_cache", False)
    if "logits_to_keep" in known:
        given.setdefault("logits_to_keep", 1)
    mask = given.get("attention_mask")
    unknown = "position_ids" in known and "position_ids" not in given and not _makes_positions(model)
    if unknown and isinstance(mask, Tensor) and _left_padded(mask):
        given["position_ids"] = (mask.long().cumsum(-1) - 1).clamp_min(0)
    return given


def _check(given: Mapping[str, Any]) -> None:
    ids = given.get("input_ids")
    if not isinstance(ids, Tensor):
        return
    if ids.dim() != 2:
        raise ManyheadsError(f"input_ids {tuple(ids.shape)}; expected (batch, tokens)")
    mask = given.get("attention_mask")
    if isinstance(mask, Tensor) and mask.dim() == 2 and mask.shape != ids.shape:
        raise ManyheadsError(
            f"attention_mask {tuple(mask.shape)} does not fit input_ids {tuple(ids.shape)}; expected one value a token, "
            "1 where it is real"
        )
    longest = (
        ids.shape[1] if mask is None or mask.dim() != 2 else int(mask.bool().sum(-1).amax()) if mask.numel() else 0
    )
    if longest < 2:
        raise ManyheadsError(
            f"the longest text of a batch has {longest} token{'s' * (longest != 1)}; at least 2 are needed"
        )


def _makes_positions(model: nn.Module) -> bool:
    """Whether the model skips padding by itself, as RoBERTa does, whose positions begin elsewhere."""
    return any(hasattr(module, "create_position_ids_from_input_ids") for module in model.modules())


def _left_padded(mask: Tensor) -> bool:
    return mask.dim() == 2 and bool((~mask[:, 0].bool()).any())


def sides(given: Mapping[str, Any], stage: str) -> tuple[Tokens | None, Tokens | None]:
    """(queries, keys) of a stack in this call; None where it does not read tokens, or nobody knows which."""
    source = _side(given, "input_ids", "attention_mask")
    target = _side(given, "decoder_input_ids", "decoder_attention_mask")
    if stage == "cross":
        return target, source
    one = target if stage == "decoder" else source
    return one, one


def _side(given: Mapping[str, Any], name: str, mask: str) -> Tokens | None:
    ids, real = given.get(name), given.get(mask)
    if not isinstance(ids, Tensor):
        return None
    fits = isinstance(real, Tensor) and real.shape == ids.shape
    return Tokens(ids, real.bool() if fits and isinstance(real, Tensor) else None)


def lazily(batches: Iterable[Batch] | Batch) -> Iterable[Batch]:
    """`batches`, or the one batch that was given in their place."""
    return [batches] if isinstance(batches, (Tensor, Mapping)) else batches
