"""A model without some of its heads, written as a folder: in a form that stock transformers loads, where there is one.

    export_pruned("path/to/model", {0: (1, 3)}, "smaller")

The folder is checked before it appears: loaded as its user will load it, it must give the logits of the model whose heads
are masked. Beside weights, configuration and tokenizer stand pruning.json, which says what was done and what it saves, and
a README.md for people.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from manyheads.checkpoints.pruned import Pruning, read_pruning
from manyheads.checkpoints.reading import Checkpoint, Named, open_model
from manyheads.cost.model import cache_bytes_a_token
from manyheads.cost.parameters import stored_bytes
from manyheads.errors import CheckpointError, ConversionError
from manyheads.heads.address import Heads
from manyheads.heads.model_spec import about_removing, stated_stack
from manyheads.heads.pruning.export_card import card, record
from manyheads.heads.pruning.export_forms import AUTO, Form, choose_form
from manyheads.heads.pruning.exported import Exported
from manyheads.heads.pruning.plan import Plan, make_plan
from manyheads.heads.pruning.record import UNMEASURED, HowChosen
from manyheads.heads.pruning.remove import PrunedWeights, by_stack, mask
from manyheads.models.door.attentions import find_attentions
from manyheads.models.door.door import open_door
from manyheads.models.load.companion_files import read_beside
from manyheads.models.load.model import Loaded, load
from manyheads.models.load.weights_folder import name_of, weights_folder
from manyheads.models.random_inputs import logits_of
from manyheads.models.store.output_folder import check_folder
from manyheads.models.store.provenance import CARD_NAME, REPORT_NAME, Source, source_of
from manyheads.models.store.read import Store, open_store
from manyheads.models.store.write import Written, write_store
from manyheads.quoting import shown_path
from manyheads.report.files import folder_appearing
from manyheads.report.parts import part_folder
from manyheads.spec.stack import StackSpec

__all__ = ["TOLERANCE", "bytes_of", "export_pruned", "load_pruned"]

TOLERANCE = 1e-5
"""How far logits may lie from the masked model's, as a share of the largest one where that is above 1."""

Say = Callable[[str], None]


def export_pruned(
    source: Named | Checkpoint,
    heads: Heads,
    folder: str | os.PathLike[str],
    *,
    form: str = AUTO,
    loaded: Loaded | None = None,
    check: bool = True,
    choice: HowChosen = UNMEASURED,
    seed: int = 0,
    say: Say = lambda _: None,
) -> Exported:
    """Write the model in `source` without `heads` to `folder`, which must not exist or be empty, nor lie in the model's own.

    source  a folder with config.json and .safetensors, a .gguf file or a hub id; its weights keep their types (GGUF: float32)
    heads   original numbers, as for `prune`
    form    "uniform", "padded" or "compact" (`heads.pruning.export_forms`); "auto": the first of uniform and padded that can be
    loaded  the model of `source` in float32, if it is there already
    check   compare the logits before the folder appears, on random tokens that follow from `seed`
    choice  what the folder shall say of how heads were chosen and what that lost

    Raises ManyheadsError and its kinds, one line, for heads that are not there, for a pruning that removes nothing, a form
    that cannot be, and logits that differ. Nothing is left behind then.
    """
    with about_removing():
        checkpoint = open_model(source)
    located = checkpoint.located
    target = check_folder(folder, model=located)
    loaded = loaded or load(checkpoint, say=say)
    find_attentions(loaded.model)  # refuses, naming it, a model whose heads nobody could mask
    with part_folder(os.path.join(tempfile.gettempdir(), "model")) as scratch:
        place = weights_folder(located, loaded, scratch, say)
        with open_store(checkpoint if place == located.folder else place) as store:
            settings, name = dict(store.checkpoint.config or {}), name_of(located)
            plan, chosen = _chosen(store, settings, heads, form, name)
            say(f"reading {name} once for its hash, and writing the {chosen.name} form: {chosen.why}")
            known = source_of(name, located, place, pruned=_record(settings, name) is not None)
            made = _Making(store, plan, chosen, target, place, known, choice)
            return _write(made, loaded if check else None, seed, say)


def load_pruned(
    folder: str | os.PathLike[str], *, dtype: str = "fp32", device: str = "cpu", say: Say = lambda _: None
) -> Loaded:
    """A model that was written by `export`, in any of its forms, with every weight from its files.

    Raises CheckpointError, one line, where the folder was not pruned by manyheads, or a weight is missing or of another
    shape than its record says.
    """
    text = os.fspath(folder)
    checkpoint = open_model(text)
    if _record(dict(checkpoint.config or {}), text) is None:
        raise CheckpointError(
            f"{shown_path(text)}: its config.json has no record of removed heads; transformers loads it as it is"
        )
    return load(checkpoint, dtype=dtype, device=device, say=say)


def _record(settings: Mapping[str, Any], source: str) -> Pruning | None:
    return read_pruning(settings, stated_stack(settings, source=source), source=source)


def _chosen(store: Store, settings: Mapping[str, Any], heads: Heads, form: str, where: str) -> tuple[Plan, Form]:
    plan = make_plan(stated_stack(settings, source=where), by_stack(heads), before=_record(settings, where))
    chosen = choose_form(plan, settings, asked=form, source=where)
    held = store.stack  # without the parts that its files leave out
    chosen = replace(
        chosen, stack=replace(chosen.stack, head=held.head, head_bias=held.head_bias, other=held.other)
    )  # fmt: skip
    return plan, chosen


@dataclass(frozen=True)
class _Making:
    """What is written, from where to where, and what is known of it."""

    store: Store
    plan: Plan
    form: Form
    target: Path
    place: str
    source: Source
    choice: HowChosen


def _write(making: _Making, loaded: Loaded | None, seed: int, say: Say) -> Exported:
    store, plan, form, source = making.store, making.plan, making.form, making.source
    with folder_appearing(making.target) as part:
        written = write_store(
            part, PrunedWeights(store, store.stack, plan, form.pruning), config=form.settings, layout=store.layout,
            others={name: store.other(name) for name in store.left_out},
            beside=read_beside(making.place) | dict(source.licence_files), stack=form.stack,
        )  # fmt: skip
        found = _figures(store, plan, form, making.target, written)
        if loaded is not None:
            say("comparing its logits with those of the masked model")
            found = _compared(found, part, plan, loaded, seed)
        told = record(found, source, making.choice, tolerance=TOLERANCE)
        (part / REPORT_NAME).write_text(json.dumps(told, indent=2) + "\n", encoding="utf-8")
        (part / CARD_NAME).write_text(card(found, source, making.choice), encoding="utf-8")
    return found


def _figures(store: Store, plan: Plan, form: Form, target: Path, written: Written) -> Exported:
    kind = store.checkpoint.weight_dtype or "fp32"
    others = sum(store.other(name).nbytes for name in store.left_out)

    now, then = bytes_of(store.stack, kind), bytes_of(form.stack, kind)
    return Exported(
        folder=target, form=form, plan=plan, written=replace(written, folder=target), tensor_bytes=written.tensor_bytes,
        predicted_bytes=then[0] + others, before_bytes=now[0] + others, cache_bytes=then[1], cache_before_bytes=now[1],
        difference=None, logits_size=None,
    )  # fmt: skip


def bytes_of(stack: StackSpec, dtype: str) -> tuple[int, int]:
    """What the cost model says of a model in one format: bytes of its weights, and of one token more in its cache."""
    return stored_bytes(stack, dtype), cache_bytes_a_token(stack, dtype)


def _compared(found: Exported, part: Path, plan: Plan, loaded: Loaded, seed: int) -> Exported:
    """With the difference from the masked model; ConversionError where it is more than rounding."""
    if loaded.model.dtype != torch.float32:
        raise ConversionError(f"the model is loaded in {loaded.model.dtype}, and logits are compared from float32 on")
    written = load(part, device=str(loaded.model.device)).model
    difference, size = seen, _ = _apart(loaded.model, written, plan, seed)
    checked = "float32"
    if not difference <= TOLERANCE * max(1.0, size) and loaded.model.device.type != "mps":  # which has no float64
        # A model that lost what it needs can magnify float32's rounding, and then two right answers differ by more.
        try:
            loaded.model.double(), written.double()
            difference, size = _apart(loaded.model, written, plan, seed)
        finally:
            loaded.model.float()  # exact: these were numbers of float32
        checked = "float64"
    if not difference <= TOLERANCE * max(1.0, size):
        raise ConversionError(
            f"the {found.form.name} form gives logits that differ from the masked model's by up to {difference:.2e} (largest "
            f"{size:.1f}), more than {TOLERANCE:g} of them in {checked}; nothing was written"
        )
    return replace(
        found, difference=difference, logits_size=size, checked=checked, float32_difference=seen
    )  # fmt: skip


def _apart(model: Any, written: Any, plan: Plan, seed: int) -> tuple[float, float]:
    """The largest difference of the written model's logits from the masked model's, and the largest of these."""
    with open_door(model, gates=[mask(model, plan.new)], mode="eval"):
        wanted = logits_of(model, seed=seed)
    got = logits_of(written, seed=seed)
    if got.shape != wanted.shape:
        return float("inf"), float(wanted.abs().max())
    return float((got - wanted).abs().max()), float(wanted.abs().max())
