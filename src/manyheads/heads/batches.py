"""Batches: what a model is called with, made of what a caller has; and which tokens stand on either side of an attention."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from manyheads.errors import ManyheadsError
from manyheads.heads.attention_modules import is_cross, is_decoder
from manyheads.models.door.call import Call
from manyheads.models.door.padding import NO_TEXT
from manyheads.quoting import shown

__all__ = [
    "Batch",
    "BatchLike",
    "Tokens",
    "are_separate",
    "as_batches",
    "each_batch",
    "longest_text",
    "packed",
    "prepare",
    "side_names",
    "sides",
    "windows",
]

# Parts of a model that read no tokens, and what they are given.
_FEATURES = ("pixel_values", "pixel_values_videos", "input_features", "input_values")

Batch: TypeAlias = dict[str, Any]
"""The keyword arguments of one forward: {"input_ids": (b, t), "attention_mask": (b, t), ...}, with labels where it has some."""

BatchLike: TypeAlias = Mapping[str, Any] | Tensor | Sequence[int] | Sequence[Sequence[int]]
"""What callers hand over: a batch, or token ids (b, t) alone, or those of one text (t,)."""


@dataclass(frozen=True, eq=False)
class Tokens:
    """One side of an attention: ids (b, n), which of them are real (b, n), None for all, and where texts begin that stand in
    one row (b, n), None where a row is one text."""

    ids: Tensor
    real: Tensor | None
    begins: Tensor | None = None


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


def longest_text(model: Any, most: int) -> int:
    """The tokens that a sequence may have: `most`, or fewer where the model's positions end before."""
    config = getattr(model, "config", None)
    known = getattr(config, "max_position_embeddings", None) or getattr(config, "n_positions", None)
    if not isinstance(known, int) or known <= 0:
        return most
    # RoBERTa's positions begin after its padding token.
    kind = getattr(config, "model_type", "")
    lost = (getattr(config, "pad_token_id", None) or 0) + 1 if "roberta" in kind or kind == "camembert" else 0
    return min(most, known - lost)


def as_batches(model: Any, batches: Iterable[BatchLike] | BatchLike) -> list[Batch]:
    """Each as `prepare` makes it, with all of its logits. ManyheadsError where there is none."""
    found = [prepare(model, batch) for batch in each_batch(batches)]
    if not found:
        raise ManyheadsError("no text was given; at least one batch of two tokens is needed")
    return found


def each_batch(batches: Iterable[BatchLike] | BatchLike) -> Iterable[BatchLike]:
    """`batches`, or the one batch that was given in their place."""
    return [batches] if isinstance(batches, (Tensor, Mapping)) else batches  # type: ignore[return-value]


def prepare(model: nn.Module, batch: BatchLike, *, all_logits: bool = True) -> Batch:
    """The batch on the device of `model`: without a cache, with all logits or the last alone, and positions as its users have them.

    A decoder behind left padding is given positions that skip it, as `generate` gives them: a shorter text would be read at
    the wrong ones. Encoders, and models that make positions of what they are called with, are left to their own, as in
    `model(**batch)`: BERT counts padding, RoBERTa does not. Raises ManyheadsError for what is no token ids, for ids that the model does
    not know, for fewer than two tokens and for a mask of another shape.
    """
    device = next((parameter.device for parameter in model.parameters()), torch.device("cpu"))
    given: Batch = dict(batch) if isinstance(batch, Mapping) else {"input_ids": _token_ids(batch)}
    given = {name: x.to(device) if isinstance(x, Tensor) else x for name, x in given.items()}
    _check(given)
    _check_vocabulary(model, given.get("input_ids"))
    known = inspect.signature(model.forward).parameters
    rest = any(one.kind is one.VAR_KEYWORD for one in known.values())
    if "use_cache" in known or ("past_key_values" in known and rest):
        given.setdefault("use_cache", False)
    if "logits_to_keep" in known and not all_logits:
        given.setdefault("logits_to_keep", 1)
    mask = given.get("attention_mask")
    unknown = "position_ids" in known and "position_ids" not in given and _is_given_positions(model)
    if unknown and isinstance(mask, Tensor) and _left_padded(mask):
        given["position_ids"] = (mask.long().cumsum(-1) - 1).clamp_min(0)
    return given


def _token_ids(batch: object) -> Tensor:
    try:
        ids = torch.as_tensor(batch)
    except (TypeError, ValueError, RuntimeError):
        ids = None
    if ids is None or ids.is_floating_point():
        raise ManyheadsError(
            f"{shown(batch)} is no batch; valid: token ids (batch, tokens), or what the model is called with, such as "
            '{"input_ids": ..., "attention_mask": ...}'
        )
    return ids[None] if ids.dim() == 1 else ids


def _check_vocabulary(model: nn.Module, ids: object) -> None:
    find = getattr(model, "get_input_embeddings", None)
    try:
        rows = getattr(find() if find is not None else None, "num_embeddings", None)
    except NotImplementedError:  # a model of several parts
        return
    if not isinstance(rows, int) or not isinstance(ids, Tensor) or not ids.numel():
        return
    low, high = int(ids.min()), int(ids.max())
    if low < 0 or high >= rows:
        raise ManyheadsError(
            f"token {low if low < 0 else high:,} is not in the model's vocabulary; valid: 0 to {rows - 1:,}"
        )


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


# Methods of models that make positions themselves: from padding tokens, from where the pictures of a text are.
_OWN_POSITIONS = ("create_position_ids_from_input_ids", "get_rope_index")


def _is_given_positions(model: nn.Module) -> bool:
    """Whether `generate` gives positions to the model: it has causal attention, no encoder, and makes none itself.

    An attention that does not say whether it is causal is, as transformers takes it.
    """
    if bool(getattr(model.config, "is_encoder_decoder", False)):
        return False
    modules = list(model.modules())
    if any(hasattr(module, name) for module in modules for name in _OWN_POSITIONS):
        return False
    said = [module.is_causal for module in modules if hasattr(module, "is_causal")]
    return not said or any(said)


def _left_padded(mask: Tensor) -> bool:
    return mask.dim() == 2 and bool((~mask[:, 0].bool()).any())


def side_names(given: Mapping[str, Any], stack: str) -> tuple[str | None, str | None]:
    """What (queries, keys) of a stack are in this call: "" for the text that goes in, "decoder_" for that which comes out, None
    for images and sound. Ids and masks have names that begin so."""
    if is_cross(stack):
        if "decoder_input_ids" not in given and any(isinstance(given.get(name), Tensor) for name in _FEATURES):
            return "", None
        return "decoder_", ""
    if NO_TEXT.search(stack):
        return None, None
    comes_out = stack == "decoder" or (is_decoder(stack) and "decoder_input_ids" in given)
    return ("decoder_", "decoder_") if comes_out else ("", "")


def sides(given: Mapping[str, Any], stack: str) -> tuple[Tokens | None, Tokens | None]:
    """(queries, keys) of a stack in this call; None where it does not read tokens, or nobody knows which."""
    queries, keys = side_names(given, stack)
    return _side(given, queries), _side(given, keys)


def _side(given: Mapping[str, Any], begin: str | None) -> Tokens | None:
    ids, real = given.get(f"{begin}input_ids"), given.get(f"{begin}attention_mask")
    if begin is None or not isinstance(ids, Tensor):
        return None
    fits = isinstance(real, Tensor) and real.shape == ids.shape
    return Tokens(ids, real.bool() if fits and isinstance(real, Tensor) else None, packed(given, begin))


def packed(given: Mapping[str, Any], begin: str = "") -> Tensor | None:
    """(b, n), True where one of several texts begins that are packed into a row; None where each row is one text.

    As transformers tells them apart: by positions that do not count on, where no mask says which tokens are real.
    """
    ids, at = given.get(f"{begin}input_ids"), given.get(f"{begin}position_ids")
    mask = given.get(f"{begin}attention_mask")
    told = mask is None or (isinstance(mask, Tensor) and mask.dim() == 4)
    if not told or not isinstance(ids, Tensor) or not isinstance(at, Tensor) or at.dim() != 2:
        return None
    if at.shape[1] != ids.shape[1] or at.shape[0] not in (1, ids.shape[0]):
        return None
    found = torch.diff(at, prepend=at[:, :1] - 2, dim=-1) != 1  # the first one begins in any case
    return found.expand(ids.shape[0], -1) if bool(found[:, 1:].any()) else None


def are_separate(call: Call, begins: Tensor) -> bool:
    """Whether no query sees a key of another text of its row: not every model takes positions for a sign of packing."""
    if not isinstance(call.mask, Tensor):
        return False
    text = begins.to(call.mask.device).cumsum(-1)
    across = text[:, None, -call.q.shape[2] :, None] != text[:, None, None, :]
    return not bool((call.mask & across).any())
