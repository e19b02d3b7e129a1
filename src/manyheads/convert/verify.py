"""What a conversion loses: the original and the converted model on the same held-out tokens, in one run.

Never one average: by text, within and beyond the calibrated length, by kind of token, with the spread over windows.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from manyheads.convert.held_out import HeldOut
from manyheads.convert.record import Interval, Probe, Sample, TextLoss, TokenKind, TokenKindLoss
from manyheads.heads.significance import mean_interval

__all__ = ["embedding_cosine", "probes", "samples", "verify"]

_RARE = 0.1
_INDUCTION = "loss on random tokens that come a second time in the same order, in nats a token"
_RECALL = "share of pairs of random tokens whose second is found the likeliest when the first comes again"

Say = Callable[[str], None]


@dataclass(frozen=True)
class _Window:
    """Of the scored tokens of a window: their losses before and after, KL, agreement, and which kind each is."""

    before: Tensor
    after: Tensor
    kl: Tensor
    same: Tensor
    kinds: tuple[TokenKind, ...]


def verify(
    original: Any, converted: Any, held: Sequence[HeldOut], *, say: Say = lambda _: None
) -> tuple[TextLoss, ...]:
    """The loss on each text of two causal language models of one vocabulary."""
    found = []
    for text in held:
        say(f"comparing on {text.text}, {len(text.windows)} windows of {len(text.windows[0]):,} tokens")
        counts = Counter(int(token) for window in text.windows for token in window)
        rare = _rare(counts)
        found.append(
            _summed(text, [_compared(original, converted, each, text.scored_from, rare) for each in text.windows])
        )
    return tuple(found)


def _log_probabilities(model: Any, window: Tensor) -> Tensor:
    with torch.inference_mode():
        logits = model(input_ids=window[None].to(model.device), use_cache=False).logits[0, :-1]
        return logits.float().log_softmax(-1)


def _compared(original: Any, converted: Any, window: Tensor, first: int, rare: frozenset[int]) -> _Window:
    theirs, ours = (_log_probabilities(model, window)[first - 1 :] for model in (original, converted))
    following = window[first:, None].to(theirs.device)
    before, after = (-each.gather(1, following)[:, 0].double().cpu() for each in (theirs, ours))
    kl = (theirs.exp() * (theirs - ours)).sum(-1).double().cpu()
    same = (theirs.argmax(-1) == ours.argmax(-1)).double().cpu()
    return _Window(before, after, kl, same, _kinds(window.tolist(), first, rare))


def _rare(counts: Counter[int]) -> frozenset[int]:
    """The least frequent tokens of a text that together are a tenth of it."""
    budget, found = _RARE * sum(counts.values()), []
    for token, count in sorted(counts.items(), key=lambda item: (item[1], item[0])):
        budget -= count
        if budget < 0:
            break
        found.append(token)
    return frozenset(found)


def _kinds(tokens: list[int], first: int, rare: frozenset[int]) -> tuple[TokenKind, ...]:
    """The kind of each scored token; of several, the first of copied, rare, late."""
    seen: set[tuple[int, int]] = set()
    found: list[TokenKind] = []
    for at in range(1, len(tokens)):
        pair = (tokens[at - 1], tokens[at])
        if at >= first:
            kind: TokenKind = (
                "copied" if pair in seen else "rare" if tokens[at] in rare else "late" if 2 * at >= len(tokens) else "other"
            )  # fmt: skip
            found.append(kind)
        seen.add(pair)
    return tuple(found)


def _summed(text: HeldOut, windows: Sequence[_Window]) -> TextLoss:
    before, after = (torch.cat([getattr(each, name) for each in windows]) for name in ("before", "after"))
    changes = [float((each.after - each.before).mean()) for each in windows]
    change = float((after - before).mean())
    return TextLoss(
        text=text.text, kind=text.kind, sha256=text.sha256, windows=len(windows), window=len(text.windows[0]),
        scored_from=text.scored_from, tokens=before.numel(), perplexity_before=_exp(float(before.mean())),
        perplexity=_exp(float(after.mean())), ratio=_exp(change), ratio_interval=_interval(changes, [each.before.numel() for each in windows]),
        worst_ratio=_exp(max(changes)), kl=float(torch.cat([each.kl for each in windows]).mean()),
        agreement=float(torch.cat([each.same for each in windows]).mean()), by_kind=_by_kind(windows, before, after),
    )  # fmt: skip


def _by_kind(windows: Sequence[_Window], before: Tensor, after: Tensor) -> tuple[TokenKindLoss, ...]:
    kinds = [kind for each in windows for kind in each.kinds]
    names: tuple[TokenKind, ...] = ("copied", "rare", "late", "other")
    rows = {name: [at for at, kind in enumerate(kinds) if kind == name] for name in names}
    return tuple(
        TokenKindLoss(name, len(at), float(before[at].mean()), float(after[at].mean())) for name, at in rows.items() if at
    )  # fmt: skip


def _exp(nats: float) -> float:
    try:
        return math.exp(nats)
    except OverflowError:
        return math.inf


def _interval(changes: Sequence[float], tokens: Sequence[int]) -> Interval | None:
    """Of the ratio of perplexities, 95%, over windows weighted by their tokens."""
    if len(changes) < 2:
        return None
    low, high = mean_interval(np.asarray(changes), np.asarray(tokens, dtype=float))
    return _exp(float(low)), _exp(float(high))


def embedding_cosine(original: Any, converted: Any, held: Sequence[HeldOut]) -> float:
    """Mean cosine of mean-pooled embeddings of windows, of two models without a language head."""
    found = []
    for text in held:
        for window in text.windows:
            with torch.inference_mode():
                a, b = (
                    model(input_ids=window[None].to(model.device))[0][0].mean(0).double()
                    for model in (original, converted)
                )
            found.append(float(torch.nn.functional.cosine_similarity(a, b, dim=0)))
    return math.fsum(found) / len(found)


def probes(original: Any, converted: Any, *, most_tokens: int = 0, seed: int = 0) -> tuple[Probe, ...]:
    """Induction and recall on random tokens, before and after; `most_tokens`: that the models read, 0 for any number."""
    vocabulary = int(original.get_input_embeddings().weight.shape[0])
    draw = torch.Generator().manual_seed(seed)
    half, listed = min(64, most_tokens // 2 or 64), min(32, (most_tokens - 2) // 8 * 8 if most_tokens else 32)
    if listed < 8:
        return ()
    once = torch.randint(vocabulary, (4, half), generator=draw)
    pairs = torch.randint(vocabulary, (4, listed), generator=draw)
    copied = [_induction(model, once) for model in (original, converted)]
    found = [_recall(model, pairs) for model in (original, converted)]
    return Probe("induction", copied[0], copied[1], _INDUCTION), Probe("recall", found[0], found[1], _RECALL)


def _induction(model: Any, once: Tensor) -> float:
    losses = []
    for row in once:
        window = row.repeat(2)
        found = _log_probabilities(model, window)[len(row) :]
        losses.append(-float(found.gather(1, window[len(row) + 1 :, None].to(found.device)).mean()))
    return math.fsum(losses) / len(losses)


def _recall(model: Any, pairs: Tensor) -> float:
    """A list of pairs, then the first of each again: is its second found?"""
    right = total = 0
    for row in pairs:
        keys, values = row[::2], row[1::2]
        for key, value in zip(keys[::4], values[::4], strict=True):
            window = torch.cat((row, key[None], value[None]))
            right += int(_log_probabilities(model, window)[-1].argmax()) == int(value)
            total += 1
    return right / total


def samples(
    original: Any, converted: Any, tokenizer: Any, held: Sequence[HeldOut], *, most_tokens: int = 0, tokens: int = 24
) -> tuple[Sample, ...]:
    """Greedy continuations of the first 32 tokens of a window of each text, or of half of what the models read."""
    found = []
    begin = min(32, most_tokens // 2 or 32)
    tokens = min(tokens, most_tokens - begin) if most_tokens else tokens
    for text in held:
        if text.scored_from > 1:
            continue
        prompt = text.windows[0][:begin]
        before, after = (_continued(model, prompt, tokens) for model in (original, converted))
        found.append(Sample(*(tokenizer.decode(ids) for ids in (prompt.tolist(), before, after))))
    return tuple(found)


def _continued(model: Any, prompt: Tensor, tokens: int) -> list[int]:
    with torch.inference_mode():
        ids = model.generate(
            input_ids=prompt[None].to(model.device), attention_mask=torch.ones_like(prompt)[None].to(model.device),
            max_new_tokens=tokens, do_sample=False, pad_token_id=0,
        )  # fmt: skip
    return [int(token) for token in ids[0, len(prompt) :]]
