"""The forms in which a pruned model can be written, and why one of them is the one.

uniform  every layer with the same, smaller counts: a stock class of transformers loads it. Of a Llama whose counts
         its own class refuses, the Mistral class, which computes the same
padded   the counts as they were, zeros where heads went: loads anywhere, saves nothing
compact  every layer as small as it can be: saves the most, and only `heads.pruning.load_pruned` loads it
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from manyheads.checkpoints.config import read_config
from manyheads.checkpoints.pruned import FORMS, KEY, FormName, Pruning, attention_at, shrunk
from manyheads.errors import ConversionError, ManyheadsError
from manyheads.heads.model_spec import stated_stack
from manyheads.heads.pruning.plan import Plan, cannot_shrink
from manyheads.models.store.head_counts import softmax_attentions, uniform_settings
from manyheads.quoting import shown
from manyheads.spec.stack import StackSpec

__all__ = ["AUTO", "Form", "choose_form"]

AUTO = "auto"


@dataclass(frozen=True)
class Form:
    """One form of a pruned model.

    name      of `checkpoints.pruned.FORMS`; `pruning`: the heads that it holds
    settings  its config.json; `stack`: what that describes
    why       why it was chosen
    """

    name: FormName
    pruning: Pruning
    settings: Mapping[str, Any]
    stack: StackSpec
    why: str


def choose_form(plan: Plan, settings: Mapping[str, Any], *, asked: str = AUTO, source: str = "config") -> Form:
    """The form `asked` for, or with "auto" the first of uniform and padded that can be.

    settings  the model's config.json as it is

    Raises ConversionError where the one asked for cannot be, saying why and what can.
    """
    if asked not in (AUTO, *FORMS):
        raise ManyheadsError(f"form {shown(asked)} is not one of {AUTO}, {', '.join(FORMS)}")
    plain = {key: value for key, value in settings.items() if key not in (KEY, "_name_or_path")}
    stated = stated_stack(settings, source=source)
    if asked == "compact":
        why = cannot_shrink(stated, plan.compact)
        if why:
            raise ConversionError(f"{source}: no compact form: {why}; valid: {_named('padded')}")
        return _made("compact", plan.compact, plain, stated, "each layer keeps only what works; asked for")
    uniform, why_not = _uniform(plan, plain, stated)
    if uniform is not None and asked != "padded":
        return uniform
    if asked == "uniform":
        raise ConversionError(f"{source}: no uniform form: {why_not}; valid: {_named('padded')} or {_named('compact')}")
    return _padded(plan, plain, stated, "asked for" if asked == "padded" else why_not)


def _named(form: str) -> str:
    """A form as callers name it."""
    return f'form="{form}"'


def _made(name: FormName, pruning: Pruning, settings: Mapping[str, Any], stated: StackSpec, why: str) -> Form:
    stack = shrunk(stated, pruning) if name == "compact" else stated
    return Form(name, pruning, {**settings, KEY: pruning.as_json()}, stack, why)


def _padded(plan: Plan, settings: Mapping[str, Any], stated: StackSpec, why: str) -> Form:
    """Zeros in the shapes that the model has now; where these differ by layer, it stays the compact form that it is."""
    pruning = plan.padded
    for role, layer, heads in pruning.layers:
        if heads.slots and len(heads.slots) != _stated_heads(stated, role, layer):
            raise ConversionError(
                f"no padded form: its layers have different counts already, which no stock class has; valid: {_named('compact')}"
            )
    return _made("padded", pruning, settings, stated, why)


def _stated_heads(stated: StackSpec, role: str, layer: int) -> int:
    spec = attention_at(stated, role, layer)
    return spec.num_heads if spec is not None else 0


def _uniform(plan: Plan, settings: Mapping[str, Any], stated: StackSpec) -> tuple[Form | None, str]:
    """The uniform form, or None and why there is none."""
    pruning = plan.uniform
    if pruning is None:
        return None, _full_layer(plan)
    why = cannot_shrink(stated, pruning)
    if why:
        return None, why
    then = shrunk(stated, pruning)
    heads = pruning.layers[0][2]
    counts = f"{len(heads.slots)} heads and {len(heads.kv_slots)} key/value heads in every layer"
    zeros = plan.zeros(pruning)
    filled = f", {zeros} of them zeros where a layer has fewer" if zeros else ""
    changed = uniform_settings(settings, stated, then)
    if changed is not None:
        made = {**settings, **changed, KEY: pruning.as_json()}
        return Form("uniform", pruning, made, then, f"{counts}{filled}; its own class loads these"), ""
    mistral = _as_mistral(settings, stated, then)
    if mistral is not None:
        made = {**mistral, KEY: pruning.as_json()}
        stack = read_config({**mistral}, source="config").stack
        return Form("uniform", pruning, made, stack, f"{counts}{filled}; the Llama class refuses these counts, the Mistral class "
                    "computes the same and loads them"), ""  # fmt: skip
    kind = settings.get("model_type", "its")
    sizes = sorted({spec.head_dim for spec in softmax_attentions(then)})
    size = " or ".join(str(each) for each in sizes)
    return None, f"no configuration that the {kind} class takes says {counts}, of {size} numbers each"


def _full_layer(plan: Plan) -> str:
    """Why the layers cannot all be smaller by the same."""
    counts = {(len(held.slots), len(held.kv_slots)) for held in plan.held.values()}
    if len(counts) > 1:
        return "its layers have different counts already"
    (full,) = counts
    for (role, layer), needed in plan.sizes.items():
        if (needed[0] * needed[1], needed[0]) == full:
            return f"layer {layer} of the {role} still needs all {full[0]} heads and {full[1]} key/value heads"
    most_groups, most_queries = (max(size[at] for size in plan.sizes.values()) for at in (0, 1))
    return f"one layer needs {most_groups} groups and another {most_queries} heads in a group, which is all there are"


def _as_mistral(settings: Mapping[str, Any], stated: StackSpec, then: StackSpec) -> dict[str, Any] | None:
    """A Llama's settings as Mistral's, with the counts of `then`; None where Mistral computes something else."""
    import transformers

    if settings.get("model_type") != "llama" or settings.get("attention_bias") or settings.get("mlp_bias"):
        return None
    full = transformers.LlamaConfig.from_dict(
        dict(settings)
    ).to_dict()  # no default of Mistral's where Llama had its own
    full.pop("attention_bias", None)
    full.pop("mlp_bias", None)
    full.pop("pretraining_tp", None)
    kinds = [str(name).replace("Llama", "Mistral") for name in settings.get("architectures") or ["LlamaForCausalLM"]]
    if not all(hasattr(transformers, name) for name in kinds):
        return None
    full |= {"model_type": "mistral", "architectures": kinds, "sliding_window": None}
    changed = uniform_settings(full, stated, then)
    return None if changed is None else {**full, **changed}
