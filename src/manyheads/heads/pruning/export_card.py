"""What an export says of itself: pruning.json for programs, README.md for people."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from manyheads.checkpoints.pruned import Pruning
from manyheads.heads.address import format_heads
from manyheads.heads.left_out import NotMeasured
from manyheads.heads.pruning.record import HowChosen, Losses
from manyheads.heads.pruning.savings import is_smaller
from manyheads.models.store.provenance import REPORT_NAME, SCHEMA, Source, front_matter, licence_text
from manyheads.models.surroundings import versions
from manyheads.quoting import shown_path
from manyheads.report.jsonform import as_json

if TYPE_CHECKING:
    from manyheads.heads.pruning.exported import Exported

__all__ = ["card", "record", "removed_text"]


def record(found: Exported, source: Source, choice: HowChosen, *, tolerance: float) -> dict[str, Any]:
    """pruning.json."""
    layers = [
        {"stage": stage, "layer": layer, "removed": list(heads.removed), "kept": list(heads.kept),
         "zeros": sum(slot < 0 for slot in heads.slots), "kv_heads": len(heads.kv_slots)}
        for stage, layer, heads in found.form.pruning.layers
    ]  # fmt: skip
    return {
        "schema": SCHEMA, "model": source.name, "original": source.original or None, "form": found.form.name,
        "why": found.form.why,
        "model_type": found.form.settings.get("model_type"), "architectures": found.form.settings.get("architectures"),
        "removed_now": [[*found.plan.place(head), head.head] for head in found.plan.new], "layers": layers,
        "chosen": choice.chosen, "rounds": choice.rounds, "losses": as_json(choice.losses),
        "weight_bytes": {"before": found.before_bytes, "predicted": found.predicted_bytes, "written": found.tensor_bytes},
        "cache_bytes_a_token": {"before": found.cache_before_bytes, "after": found.cache_bytes},
        "check": {"largest_difference": found.difference, "largest_logit": found.logits_size, "tolerance": tolerance,
                  "in": found.checked, "largest_difference_float32": found.float32_difference},
        "source": source.as_json(),
        "licence": {**source.licence, "files": sorted(source.licence_files)}, "versions": versions(),
        "earlier": list(source.earlier),
    }  # fmt: skip


def removed_text(pruning: Pruning) -> str:
    """All heads that are gone, as addresses: "0:1,3;5:2", with stages where there are several."""
    stages = list(dict.fromkeys(stage for stage, _, _ in pruning.layers))
    gone = {s: {layer: heads.removed for stage, layer, heads in pruning.layers if stage == s} for s in stages}
    return ";".join(
        text for stage in stages if (text := format_heads(gone[stage], stack=stage if len(stages) > 1 else ""))
    )  # fmt: skip


def card(found: Exported, source: Source, choice: HowChosen) -> str:
    """README.md, with the licence in front as cards of models have it."""
    kind = next(iter(found.form.settings.get("architectures") or ()), "AutoModel")
    load = (
        'from manyheads.heads.pruning import load_pruned\n\nmodel = load_pruned("path/to/this/folder").model'
        if found.form.name == "compact"
        else f'from transformers import {kind}\n\nmodel = {kind}.from_pretrained("path/to/this/folder")'
    )
    smaller = (
        "" if is_smaller(found.plan, found.form.pruning) else " Zeros stand where these heads were: nothing is smaller."
    )
    parts = [
        f"# {source.name} without some of its attention heads",
        *_heads(found, source),
        f"{_chosen(choice)} {_loss(choice.losses)}",
        (
            f"Form: {found.form.name} ({found.form.why}).{smaller} {_checked(found, source.name)} Weights: "
            f"{found.tensor_bytes:,} bytes, {found.before_bytes:,} before; cache: {found.cache_bytes:,} bytes a token, "
            f"{found.cache_before_bytes:,} before. {REPORT_NAME} has the same for programs."
        ),
        f"```python\n{load}\n```",
        f"Made from {source.name}{f', commit {source.revision}' if source.revision else ''}:",
        "\n".join(f"- {shown_path(file['name'])}, sha256 {file['sha256']}" for file in source.files),
        licence_text(source),
        f"Written by manyheads {versions()['manyheads']}.",
    ]
    return front_matter(source) + "\n\n".join(parts) + "\n"


def _heads(found: Exported, source: Source) -> list[str]:
    gone = removed_text(found.form.pruning)
    pruned = any(held.removed for held in found.plan.held.values())
    if not pruned:
        return [f"Removed (layer:head, numbered as in {source.name}): {gone}"]
    now = ", ".join(map(str, found.plan.new))
    first = source.original or f"the model that {source.name} was first pruned from, whose name is not recorded"
    lost = sum(len(held.removed) for held in found.plan.held.values())
    return [
        f"Removed in all (layer:head, numbered as in {first}): {gone}",
        (
            f"Of these {now} went now; {lost} had gone before {source.name} was made. Numbers are those of {first}, not places in "
            f"{source.name}."
        ),
    ]


def _chosen(choice: HowChosen) -> str:
    rounds = f", asked {choice.rounds} times" if choice.rounds > 1 else ""
    return f"Chosen: {choice.chosen}{rounds}."


def _loss(losses: Losses | NotMeasured) -> str:
    """What was lost, of the text that nothing was chosen on."""
    if isinstance(losses, NotMeasured):
        return f"No loss was measured: {losses.reason}."
    interval = losses.interval
    spread = f", 95% {interval[0]:+.4f} to {interval[1]:+.4f}" if interval is not None else ""
    return (
        f"Loss ({losses.objective}, {losses.unit}): {losses.before:.4f} before, {losses.after:.4f} after "
        f"({losses.change:+.4f}{spread}), on {losses.tokens:,} tokens of {shown_path(losses.text)} (sha256 "
        f"{losses.text_sha256}) in {losses.windows} window{'s' * (losses.windows != 1)}; nothing was trained "
        "afterwards."
    )


def _checked(found: Exported, name: str) -> str:
    if found.difference is None:
        return "It was not compared with the original."
    told = f"Its logits differ from those of {name} with these heads masked by at most {found.difference:.1e} in {found.checked}"
    if found.checked != "float32":
        told += f" and {found.float32_difference:.1e} in float32, whose rounding this model magnifies"
    return f"{told}."
