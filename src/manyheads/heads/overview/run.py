"""What `manyheads heads` does: statistics of every head on a text, the roles that beat their control, and their importance.

The tables (`heads.overview.tables`) and the JSON are functions of what it returns, so that what is printed and what was measured
cannot differ.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
import torch

from manyheads.checkpoints.reading import Checkpoint
from manyheads.errors import ManyheadsError
from manyheads.heads.address import Head, format_head, parse_head
from manyheads.heads.alignment import Frame, frame
from manyheads.heads.attention_modules import row_of
from manyheads.heads.batches import longest_text, windows
from manyheads.heads.effects import FDR, Importance, head_importance, reads_with_decoder, text_objective
from manyheads.heads.left_out import LeftOut, present
from manyheads.heads.overview.record import Chance, HeadFigures, HeadInDetail, HeadsOverview, ImportanceSaid, TextRead
from manyheads.heads.progress import Pace
from manyheads.heads.roles import LEAST_EFFECT, RoleReport, Sentence, head_roles, read_conllu, token_kinds
from manyheads.heads.roles.record import roles_tested
from manyheads.heads.statistics import HeadStatistics, head_statistics
from manyheads.models.load.model import Loaded, hushed, load
from manyheads.models.load.text import Reading
from manyheads.models.scoring import first_tokens
from manyheads.models.surroundings import usual_threads

__all__ = ["IMPORTANCE", "SCHEMA", "Request", "overview"]

SCHEMA = "manyheads.heads/1"
Importances = Literal["first-order", "zero", "mean", "resample", "none"]
IMPORTANCE: tuple[Importances, ...] = get_args(Importances)
# The figures by their names in the object, and where HeadStatistics has them.
_PLAIN = {
    "entropy": "entropy", "distance": "distance", "spread": "logit_std", "sink": "sink_mass", "output_norm": "output_norm",
}  # fmt: skip

Say = Callable[[str], None]
# Is shown the model while it is there: (loaded, what was found, the text, its tokens, what is put around them).
Look = Callable[[Loaded, HeadsOverview, str, Sequence[int], Frame], None]
Sentences = tuple[Sentence, ...]


@dataclass(frozen=True)
class Request:
    """What is asked.

    reading      the text; `tokens` the first so many of it, in windows of `window`
    bos          whether a beginning-of-text token stands before each window; None: as the tokenizer does
    head         the address of one head, "" for all
    roles        whether roles are tested; conllu  a CoNLL-U file for the syntactic ones, "" for none
    least_effect how far above its control the score of a role must be
    importance   how it is measured
    asked        the model as the user named it, "" where nobody did, for the command that is suggested
    """

    model: Checkpoint
    reading: Reading
    tokens: int = 8192
    window: int = 512
    bos: bool | None = None
    head: str = ""
    roles: bool = True
    conllu: str = ""
    least_effect: float = LEAST_EFFECT
    importance: Importances = "first-order"
    dtype: str = "fp32"
    device: str = "cpu"
    threads: int = 0
    seed: int = 0
    asked: str = ""


def overview(request: Request, *, say: Say = lambda _: None, look: Look | None = None) -> HeadsOverview:
    """Does it, as docs/heads.md describes. `look` is called at the end, while the model is still there.

    Raises ManyheadsError, one line, for a head that is not there, a text of fewer than two tokens, a model that reads no
    text or came without a tokenizer; BackendError where its attention does not pass through the door.
    """
    one = parse_head(request.head) if request.head else None
    sentences = read_conllu(request.conllu) if request.conllu else None
    with _threads(request.threads) as threads:
        say(f"loading {request.model.name} in {request.dtype} on {request.device}; threads: {threads}")
        loaded = load(request.model, dtype=request.dtype, device=request.device, say=say)
        with hushed():
            found, ids, around = _found(request, loaded, one, sentences, say)
            if look is not None:
                say("where every head looks")
                look(loaded, found, request.reading.text, ids, around)
            return found


@contextlib.contextmanager
def _threads(asked: int) -> Iterator[int]:
    before = torch.get_num_threads()
    torch.set_num_threads(asked or usual_threads())
    try:
        yield torch.get_num_threads()
    finally:
        torch.set_num_threads(before)


def _found(
    request: Request, loaded: Loaded, one: Head | None, sentences: Sentences | None, say: Say
) -> tuple[HeadsOverview, list[int], Frame]:
    ids, goes_on, around = _text(request, loaded)
    # The two ends of a short batch: enough to know which heads there are, before anything takes long.
    two = head_statistics(loaded.model, [reads_with_decoder(loaded.model, torch.tensor([ids[:2]]))], max_offset=2)
    one = None if one is None else _there(two, one)
    width = longest_text(loaded.model, request.window + len(around.before) + len(around.after))
    width -= len(around.before) + len(around.after)
    parts = [reads_with_decoder(loaded.model, x) for x in windows(ids, width, before=around.before, after=around.after)]
    words = token_kinds(loaded.tokenizer, ids, marks=(*around.before[1:], *around.after))
    sets = {"delimiters": sorted(words.delimiters), "rare": sorted(words.rare)}
    say(f"reading {len(ids):,} tokens in {len(parts)} windows")
    told = Pace(say).counted("windows")
    found = head_statistics(loaded.model, parts, key_sets=sets, say=lambda done: told(done, len(parts)))
    tested, why_no_roles = _roles(request, loaded, ids, sentences, say)
    scores, judge, why_no_scores = _importance(request, loaded, ids, width, around, say)
    reading = request.reading
    text = TextRead(
        reading.name, reading.sha256, len(ids), width, len(parts), goes_on, _alone(ids, width), around.said, _both(loaded.model)
    )  # fmt: skip
    return HeadsOverview(
        schema=SCHEMA, model=request.model.name, seed=request.seed, dtype=request.dtype, device=request.device, text=text, reach=found.max_offset,
        heads=_heads(found, tested, scores), chance=_chance(found), one=None if one is None else _one(found, one),
        uncalled=tuple(found.uncalled), roles=None if tested is None else roles_tested(tested), without_roles=why_no_roles,
        importance=judge, without_importance=why_no_scores, asked=request.asked,
    ), ids, around  # fmt: skip


def _text(request: Request, loaded: Loaded) -> tuple[list[int], bool, Frame]:
    """The tokens that are read, whether the text goes on, and what stands around each window."""
    if loaded.without_tokenizer:
        raise ManyheadsError(f"{request.model.name}: {loaded.without_tokenizer}, so it cannot be shown a text")
    if loaded.model.main_input_name != "input_ids":
        raise ManyheadsError(
            f"{request.model.name} reads {loaded.model.main_input_name}, no text; manyheads.head_statistics takes batches of it"
        )
    ids, goes_on = first_tokens(loaded.tokenizer, request.reading, request.tokens)
    known = int(loaded.model.get_input_embeddings().weight.shape[0])
    if max(ids) >= known:
        raise ManyheadsError(
            f"{request.model.name}: its tokenizer makes token {max(ids):,}, and the model knows {known:,}"
        )
    return ids, goes_on, frame(loaded.tokenizer, bos=request.bos)


def _alone(ids: Sequence[int], width: int) -> tuple[LeftOut, ...]:
    """A last window of one token, which is not read."""
    why = "the last window would have one token, which sees no other"
    return present(LeftOut("tokens", int(len(ids) % width == 1), len(ids), why))


def _both(model: Any) -> bool:
    return bool(getattr(model.config, "is_encoder_decoder", False))


def _there(found: HeadStatistics, head: Head) -> Head:
    """The head that is meant: an address without a stage is the decoder's where a model has several stacks, as in `prune`.
    ManyheadsError, naming what there is, where there is none."""
    if not head.stack and "" not in found.stacks and "decoder" in found.stacks:
        head = head._replace(stack="decoder")
    _row(found, head)
    return head


def _row(found: HeadStatistics, head: Head) -> int:
    for row, module in enumerate(found.modules):
        if (module.stack, module.layer) != (head.stack, head.layer):
            continue
        if head.head in _numbers(found, row):
            return row
        if module.pruned is not None and head.head in module.pruned.removed:
            left = ", ".join(map(str, _numbers(found, row))) or "none"
            raise ManyheadsError(f'head="{format_head(head)}" was removed before; its layer still has {left}')
    said = []
    for stage in found.stacks:
        rows = [row for row, module in enumerate(found.modules) if module.stack == stage]
        layers = [found.modules[row].layer for row in rows]
        most = max((number for row in rows for number in _numbers(found, row)), default=0)
        said.append(f"{stage}{' ' * bool(stage)}layers {min(layers)} to {max(layers)} with heads 0 to {most}")
    raise ManyheadsError(f'head="{format_head(head)}": there is no such head; the model has {"; ".join(said)}')


def _numbers(found: HeadStatistics, row: int) -> list[int]:
    """The heads that the model has there; of a pruned one those that are left."""
    return np.flatnonzero(~np.isnan(found.entropy[row])).tolist()


def _roles(
    request: Request, loaded: Loaded, ids: Sequence[int], sentences: Sentences | None, say: Say
) -> tuple[RoleReport | None, str]:
    if not request.roles:
        return None, "not asked for"
    try:
        text = loaded.tokenizer.decode(ids)
        return head_roles(
            loaded.model, loaded.tokenizer, texts=[text], conllu=sentences, seed=request.seed,
            bos=request.bos, least_effect=request.least_effect, say=say,
        ), ""  # fmt: skip
    except ManyheadsError as error:
        if sentences is not None:
            raise
        return None, str(error)


def _importance(
    request: Request, loaded: Loaded, ids: Sequence[int], width: int, around: Frame, say: Say
) -> tuple[Importance | None, ImportanceSaid | None, str]:
    """The scores, what they are about, and why there are none."""
    if request.importance == "none":
        return None, None, "not asked for"
    try:
        judge = text_objective(loaded.model, loaded.tokenizer, around=around, seed=request.seed)
        judge.check(request.importance)
        rows = [ids[start : start + width] for start in range(0, len(ids), width)]
        parts = judge.batches(row for row in rows if len(row) > 1)
    except ManyheadsError as error:
        return None, None, str(error)
    say(f"importance: {request.importance}, for {judge.name}")
    told = Pace(say).counted("passes")
    scores = head_importance(loaded.model, parts, metric=judge.metric, method=request.importance, say=told)
    return scores, ImportanceSaid(request.importance, scores.baseline, judge.name, judge.said, judge.unit), ""


def _heads(found: HeadStatistics, tested: RoleReport | None, scores: Importance | None) -> tuple[HeadFigures, ...]:
    labels = {} if tested is None else tested.labels()
    costs = _costs(scores)
    return tuple(
        HeadFigures(
            head=format_head(head), stage=module.stack, layer=module.layer, number=number, **_figures(found, row, number),
            **_strongest(found, row, number), role=labels.get(head, ""),
            importance=math.nan if scores is None else scores.score(head), **costs(head),
        )
        for row, module in enumerate(found.modules)
        for number in _numbers(found, row)
        for head in [Head(module.layer, number, module.stack)]
    )  # fmt: skip


def _costs(scores: Importance | None) -> Callable[[Head], dict[str, Any]]:
    """What is known of how sure the importance of a head is, where heads were taken out on several windows."""
    if scores is None or not bool(scores.exact.any()) or len(scores.weights) < 2:
        return lambda _: {"importance_low": math.nan, "importance_high": math.nan, "told_apart": None}
    (low, high), q_values = scores.interval(), scores.q_values()

    def costs(head: Head) -> dict[str, Any]:
        at = row_of(scores.modules, head), head.head
        apart = bool(q_values[at] <= FDR) and scores.score(head) > 0
        return {
            "importance_low": float(low[at]), "importance_high": float(high[at]), "told_apart": apart
        }  # fmt: skip

    return costs


def _figures(found: HeadStatistics, row: int, number: int) -> dict[str, Any]:
    masses = {name: float(array[row, number]) for name, array in found.mass.items()}
    return {"mass": masses} | {
        name: float(getattr(found, attribute)[row, number]) for name, attribute in _PLAIN.items()
    }


def _strongest(found: HeadStatistics, row: int, number: int) -> dict[str, Any]:
    """The distance that most queries have their strongest key at (± reach: so far or farther), and the share of them."""
    shares = found.top_offsets[row, number]
    if np.isnan(shares).all():
        return {"top_offset": None, "top_offset_share": math.nan}
    best = int(np.nanargmax(shares))
    return {"top_offset": best - found.max_offset, "top_offset_share": float(shares[best])}


def _chance(found: HeadStatistics) -> tuple[Chance, ...]:
    assert found.chance is not None
    chance = found.chance
    return tuple(
        Chance(stage=module.stack, layer=module.layer, queries=int(found.queries[row]), **_figures(chance, row, 0))
        for row, module in enumerate(found.modules)
    )


def _one(found: HeadStatistics, head: Head) -> HeadInDetail:
    """One head, with its probabilities by distance."""
    row = _row(found, head)
    assert found.chance is not None
    shares = (found.offsets[row, head.head], found.chance.offsets[row, 0], found.top_offsets[row, head.head])
    return HeadInDetail(format_head(head), *(tuple(map(float, each)) for each in shares))
