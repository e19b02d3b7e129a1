"""What `manyheads prune` does: heads chosen on one half of a text, judged on the other, and a smaller model written.

The tables (`heads.pruning.tables`) and the JSON are functions of what it returns, so that what is printed and what was measured
cannot differ.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Literal, get_args

from manyheads.checkpoints.pruned import FORMS, FormName, LayerHeads, read_pruning
from manyheads.checkpoints.reading import Checkpoint
from manyheads.errors import ManyheadsError
from manyheads.heads.address import parse_heads
from manyheads.heads.alignment import frame
from manyheads.heads.batches import longest_text
from manyheads.heads.effects import DRIFT, Metric, Objective, text_objective
from manyheads.heads.left_out import NotMeasured
from manyheads.heads.model_spec import Described, describe, stated_stack
from manyheads.heads.progress import Pace
from manyheads.heads.pruning import choose as choosing
from manyheads.heads.pruning.export import bytes_of, export_pruned
from manyheads.heads.pruning.export_forms import choose_form
from manyheads.heads.pruning.exported import Exported
from manyheads.heads.pruning.loss_change import LossChange, measure_loss_change
from manyheads.heads.pruning.plan import Plan, head_counts, make_plan, now_held
from manyheads.heads.pruning.record import (
    AtInit,
    FormBytes,
    HowChosen,
    LayerPruning,
    Losses,
    LossFigures,
    PruningReport,
    SizesNow,
    WrittenFolder,
)
from manyheads.heads.pruning.remove import by_stack
from manyheads.heads.pruning.savings import completing, heads_text, why_nothing
from manyheads.models.door.attentions import find_attentions
from manyheads.models.load.model import Loaded, load
from manyheads.models.load.text import Reading
from manyheads.models.scoring import first_tokens

__all__ = ["METHODS", "SCHEMA", "Request", "pruning"]

SCHEMA = "manyheads.prune/1"
Method = Literal["first-order", "zero", "mean", "resample", "gates"]
GATES: Final = "gates"
METHODS: tuple[Method, ...] = get_args(Method)
_WINDOW = 256

Say = Callable[[str], None]


@dataclass(frozen=True)
class Request:
    """What is asked.

    heads         addresses, "" where they are to be chosen; budget  "12" or "20%", "" where they are named or gates tell
    method        of METHODS; penalty, steps  of the gates
    whole_groups  heads that share a key/value head go together
    reading       the text; `tokens`  the first so many of it, half to choose on and half to judge on
    output        the folder to write, "" for none; form  as in `heads.pruning.export`
    compare_init  repeat it on the same architecture at initialisation
    named         whether the user named the model, for the command that is suggested
    """

    model: Checkpoint
    reading: Reading
    heads: str = ""
    budget: str = ""
    method: Method = "first-order"
    penalty: float = 0.0
    steps: int = 300
    whole_groups: bool = False
    rounds: int = 8
    tokens: int = 4096
    output: str = ""
    form: str = "auto"
    compare_init: bool = False
    device: str = "cpu"
    seed: int = 0
    named: bool = True


@dataclass(frozen=True)
class _Text:
    """Batches to choose on and to judge on, or why there are none."""

    judge: Objective | None = None
    choosing: tuple[Mapping[str, Any], ...] = ()
    judging: tuple[Mapping[str, Any], ...] = ()
    reason: str = ""
    goes_on: bool = False

    @property
    def metric(self) -> Metric | None:
        """Of the objective, None where there is none."""
        return self.judge.metric if self.judge is not None else None


def pruning(request: Request, *, say: Say = lambda _: None) -> PruningReport:
    """Does it, as docs/pruning.md describes.

    Raises ManyheadsError, one line, for heads that are not there, a pruning that removes nothing, a model that does not
    pass through the door, text of fewer than two tokens, and a form that cannot be; nothing is written then.
    """
    checkpoint = request.model
    named = parse_heads(request.heads) if request.heads else {}
    _check_early(request, checkpoint, named)
    say(f"loading {checkpoint.name} in float32 on {request.device}")
    loaded = load(checkpoint, device=request.device, say=say)
    find_attentions(loaded.model)
    known = describe(loaded.model)
    text = _text(request, loaded)
    if text.reason and not named:
        raise ManyheadsError(
            f"{checkpoint.name}: {text.reason}; importance needs a loss, so name the heads with heads="
        )
    if text.judge is not None:
        _check_judge(request, text.judge, named=bool(named))
    choice = _choice(request, loaded.model, known, named, text, say)
    plan = make_plan(known.stated, by_stack(choice.heads), before=known.before)
    losses = _losses(request, loaded.model, choice, text, say)
    found = _report(request, loaded, known, choice, plan, losses)
    if not request.output:
        return found
    written = export_pruned(
        checkpoint, choice.heads, request.output, form=request.form, loaded=loaded,
        choice=HowChosen(found.chosen, found.rounds, found.losses), seed=request.seed, say=say,
    )  # fmt: skip
    return replace(found, written=_written(written))


def _check_judge(request: Request, judge: Objective, *, named: bool) -> None:
    if not named:
        judge.check(request.method)
    if request.compare_init and judge.name == DRIFT:
        raise ManyheadsError(
            "compare_init=True: the model has no language head, so what is measured is how far its output drifts from its own, "
            "which says nothing of two models; leave the option out"
        )


def _check_early(request: Request, checkpoint: Checkpoint, named: Mapping[str, Mapping[int, Sequence[int]]]) -> None:
    """What the configuration alone tells, before a large model is loaded: heads that are not there, budgets that cannot be."""
    stated, before = checkpoint.stack, None
    if checkpoint.config is not None:
        stated = stated_stack(checkpoint.config, source=checkpoint.name)
        before = read_pruning(checkpoint.config, stated, source=checkpoint.name)
    if named:
        make_plan(stated, named, before=before)
    elif request.budget:
        _budget(request, now_held(stated, before))


def _budget(request: Request, held: Mapping[tuple[str, int], LayerHeads]) -> int:
    """The heads that --budget means."""
    least, most, what = choosing.removable_range(held, whole_groups=request.whole_groups)
    total = sum(len(each.kept) for each in held.values())
    return choosing.budget_heads(request.budget, total, least=least, most=most, what=what)


def _text(request: Request, loaded: Loaded) -> _Text:
    """Windows of the text, every other one to choose on, as a model of its kind is judged on them (`heads.effects.objective`)."""
    model, tokenizer = loaded.model, loaded.tokenizer
    if loaded.without_tokenizer:
        return _Text(reason=loaded.without_tokenizer)
    around = frame(tokenizer)
    try:
        judge = text_objective(model, tokenizer, around=around, seed=request.seed)
    except ManyheadsError as error:
        return _Text(reason=str(error))
    named = request.reading.name
    try:
        ids, goes_on = first_tokens(tokenizer, request.reading, request.tokens)
    except ManyheadsError as error:
        if not request.reading.shipped:
            raise
        return _Text(reason=str(error))  # nobody asked for this text
    vocabulary = int(model.get_input_embeddings().weight.shape[0])
    if max(ids) >= vocabulary:
        return _Text(reason=f"its tokenizer makes token {max(ids):,}, and the model knows {vocabulary:,}")
    room = longest_text(model, _limit(model)) - len(around.before) - len(around.after)
    window = max(min(_WINDOW, room, max(len(ids) // 2, 2)), 2)
    parts = [ids[start : start + window] for start in range(0, len(ids), window)]
    rows = [part for part in parts if len(part) > 1]
    if len(rows) < 2:
        return _Text(
            reason=f"{named} is {len(ids)} tokens long; at least 4 are needed, half to choose on and half to judge on"
        )
    try:
        batches = judge.batches(rows)
    except ManyheadsError as error:
        return _Text(reason=str(error))
    return _Text(judge, tuple(batches[::2]), tuple(batches[1::2]), goes_on=goes_on)


def _limit(model: Any) -> int:
    return describe(model).stack.most_tokens or _WINDOW


def _choice(
    request: Request, model: Any, known: Described, named: Mapping[str, Mapping[int, Sequence[int]]], text: _Text, say: Say
) -> choosing.Choice:  # fmt: skip
    if named:
        plan = make_plan(known.stated, named, before=known.before)
        return choosing.Choice((*plan.new, *plan.again), "named", 0)
    return _chosen_on(model, request, text, say)


def _chosen_on(model: Any, request: Request, text: _Text, say: Say) -> choosing.Choice:
    """Heads chosen by importance or gates on the first half of the text, on whichever model."""
    if request.method == GATES:
        from manyheads.heads.gates import train_gates

        say(f"training gates for {request.steps} steps")
        gates = train_gates(
            model, text.choosing, metric=text.metric, penalty=request.penalty, steps=request.steps,
            per="group" if request.whole_groups else "head", seed=request.seed, say=Pace(say).counted("steps"),
        )  # fmt: skip
        return choosing.closed_by_gates(gates)
    known = describe(model)
    return choosing.choose_heads(
        model, text.choosing, _budget(request, now_held(known.stated, known.before)), method=request.method,
        whole_groups=request.whole_groups, rounds=request.rounds, metric=text.metric, say=say,
    )  # fmt: skip


def _report(
    request: Request, loaded: Loaded, known: Described, choice: choosing.Choice, plan: Plan, losses: Losses | NotMeasured
) -> PruningReport:  # fmt: skip
    checkpoint = request.model
    settings = {**loaded.model.config.to_dict(), "architectures": [type(loaded.model).__name__]}
    # A quantised file is written, and priced here, as what it is dequantised to.
    kind = "fp32" if checkpoint.located.kind == "gguf" else checkpoint.weight_dtype or "fp32"
    more = completing(plan)
    return PruningReport(
        schema=SCHEMA, model=checkpoint.name, source=checkpoint.located.asked, chosen=choice.how, rounds=choice.rounds,
        heads_before=sum(len(held.kept) for held in plan.held.values()), heads_removed=len(plan.new),
        removed=tuple(map(str, plan.new)), gone_before=tuple(map(str, plan.again)),
        gone_earlier=sum(held.heads - len(held.kept) for held in plan.held.values()),
        staged=len(head_counts(known.stated, known.before)) > 1, layers=_layers(plan), weight_dtype=kind,
        bytes_before=SizesNow(*bytes_of(known.stack, kind)),
        forms=tuple(_form(name, plan, settings, kind, checkpoint.name) for name in FORMS), losses=losses, written=None,
        stored_bytes=checkpoint.stored_bytes, stored_dtype=checkpoint.weight_dtype or None, note=why_nothing(plan, known.stated),
        heads=heads_text(plan.new), heads_that_save=heads_text(sorted((*plan.new, *more))) if more else "",
        typed=_typed(request),
    )  # fmt: skip


def _layers(plan: Plan) -> tuple[LayerPruning, ...]:
    compact = {(stage, layer): heads for stage, layer, heads in plan.compact.layers}
    return tuple(
        LayerPruning(
            stage, layer, tuple(sorted(plan.gone[stage, layer])),
            tuple(head.head for head in plan.new if plan.place(head) == (stage, layer)),
            tuple(head for head in range(held.heads) if head not in plan.gone[stage, layer]),
            len(held.kv_slots), len(compact[stage, layer].kv_slots),
        )
        for (stage, layer), held in plan.held.items()
    )  # fmt: skip


def _typed(request: Request) -> str:
    """How the command is typed again."""
    words = [request.model.located.asked] if request.named else []
    words += ["--revision", request.model.revision] if request.model.revision else []
    words += [] if request.device == "cpu" else ["--device", request.device]
    return shlex.join(["manyheads", "prune", *words])


def _form(name: FormName, plan: Plan, settings: Mapping[str, Any], kind: str, source: str) -> FormBytes:
    """What one form would hold, or why there is none."""
    try:
        form = choose_form(plan, settings, asked=name, source=source)
    except ManyheadsError as error:
        why = str(error).removeprefix(f"{source}: ").removeprefix(f"no {name} form: ").partition("; valid: ")[0]
        return FormBytes(name, None, None, None, why)
    weight_bytes, cache_bytes = bytes_of(form.stack, kind)
    return FormBytes(name, weight_bytes, cache_bytes, plan.zeros(form.pruning), form.why)


def _losses(request: Request, model: Any, choice: choosing.Choice, text: _Text, say: Say) -> Losses | NotMeasured:
    if text.judge is None:
        return NotMeasured(text.reason)
    say("measuring the loss with and without these heads")
    found = measure_loss_change(model, text.judging, choice.heads, metric=text.metric)
    tokens = sum(int(batch["input_ids"].numel()) for batch in text.judging)
    init = None
    if request.compare_init:
        again = None if choice.how == "named" else lambda new: _chosen_on(new, request, text, say).heads
        there = choosing.compare_with_init(
            model,
            text.judging,
            choice.heads,
            again=again,
            trained=found,
            seed=request.seed,
            metric=text.metric,
            say=say,
        )
        init = AtInit(there.seed, _change(there.same), _change(there.own) if there.own else None)
    return Losses(
        reason="", text=request.reading.name, text_sha256=request.reading.sha256, tokens=tokens, windows=len(text.judging),
        goes_on=text.goes_on, before=found.before, after=found.after, change=found.change, interval=found.interval, init=init,
        objective=text.judge.name, loss_is=text.judge.said, unit=text.judge.unit,
    )  # fmt: skip


def _change(found: LossChange) -> LossFigures:
    return LossFigures(found.before, found.after, found.change, found.interval)


def _written(found: Exported) -> WrittenFolder:
    return WrittenFolder(
        folder=str(found.folder), form=found.form.name, why=found.form.why, model_type=found.form.settings.get("model_type"),
        tensor_bytes=found.tensor_bytes, predicted_bytes=found.predicted_bytes, largest_difference=found.difference,
        largest_logit=found.logits_size, checked_in=found.checked, largest_difference_float32=found.float32_difference,
    )  # fmt: skip
