"""From a configuration (config.json as a dict) to a StackSpec. What decides is the fields, not the model's name.

A `model_type` that is not known is read by its fields, as a Llama-like decoder where nothing else shows. A setting that
changes attention and is not understood is refused by its name: a price that silently left it out could be ten times off.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from manyheads.checkpoints.draft import UnsupportedSetting, build_decoder
from manyheads.checkpoints.families import family as find_family
from manyheads.checkpoints.families import recognise
from manyheads.checkpoints.family import Family
from manyheads.checkpoints.fields import HEAD_SIZES, SPELLINGS, TURNED, Fields
from manyheads.checkpoints.refusals import left_out, misleading
from manyheads.checkpoints.unread_keys import is_harmless, is_inert, may_change_attention
from manyheads.cost.dtypes import known_dtype
from manyheads.errors import CheckpointError, SpecError
from manyheads.quoting import few, shown, shown_name
from manyheads.spec.stack import StackSpec

__all__ = ["ASSUMPTIONS", "ModelConfig", "NotUnderstoodError", "read_config", "text_part"]

ASSUMPTIONS = ("", "full")

_NESTED = ("text_config", "llm_config", "language_config", "language_model_config")

# Settings that the shared readers look at for other reasons than the stack.
_READ_HERE = ("model_type", "torch_dtype", "dtype", "quantization_config", "tie_word_embeddings", "manyheads_pruning")


class NotUnderstoodError(CheckpointError):
    """A setting changes attention and is not understood. `said`: which, without the advice how to price it all the same."""

    def __init__(self, said: str) -> None:
        super().__init__(f'{said}. assume="full" prices plain full attention instead')
        self.said = said


@dataclass(frozen=True)
class ModelConfig:
    """What a configuration says.

    stack         the model
    family        name of the family that read it; "generic" for the plain Llama-like decoder
    weight_dtype  how the weights are stored ("bf16", "fp16", "fp32", "fp8", "int8", "int4", "mxfp4"), "" where nothing
                  says
    unknown_keys  keys that nothing understood, and that do not look as if they changed attention
    ignored       keys that are known to change neither shapes nor attention
    notes         what was assumed or left out, a sentence each
    """

    stack: StackSpec
    family: str
    weight_dtype: str
    unknown_keys: tuple[str, ...]
    ignored: tuple[str, ...]
    notes: tuple[str, ...]


def read_config(config: Mapping[str, Any], *, source: str = "config", assume: str = "") -> ModelConfig:
    """Read a model's configuration, a JSON object as Hugging Face writes it.

    source  begins every error message: a path or a name
    assume  "full" prices a model whose attention is not understood as plain full attention, and says so in `notes`

    Raises CheckpointError, one line: sizes that are absent (with the spellings that are accepted), impossible or
    contradictory (with both numbers), and settings that change attention and are not understood.
    """
    if not isinstance(config, Mapping):
        raise CheckpointError(f"{source}: must be a JSON object of settings, found {shown(config)}")
    if assume not in ASSUMPTIONS:
        raise CheckpointError(f"{source}: assume must be empty or 'full', found {shown(assume)}")
    inner, notes = text_part(config, source)
    family = _family_of(inner, source, notes)
    defaults = dict(family.defaults)
    if inner is not config:
        defaults = {**family.nested_defaults, **defaults}
        if isinstance(config.get("tie_word_embeddings"), bool):
            defaults["tied"] = config["tie_word_embeddings"]
    fields = Fields(inner, source=source, spellings=family.spellings, defaults=defaults, accepted=_accepted(family))
    fields.used.update(_READ_HERE)
    try:
        stack, found = _read(fields, family, assume)
        if "manyheads_pruning" in inner:
            stack = _pruned(inner, stack, source, found)
    except SpecError as error:
        raise CheckpointError(f"{source}: {error}") from None
    unread = [key for key in fields.unread() if isinstance(key, str)]
    ignored = tuple(
        sorted(key for key in unread if is_harmless(key) or (may_change_attention(key) and is_inert(inner[key])))
    )
    unknown = tuple(sorted(set(unread) - set(ignored)))
    return ModelConfig(stack, family.name, _weight_dtype(inner, config), unknown, ignored, (*notes, *found))


def _accepted(family: Family) -> dict[str, tuple[str, ...]]:
    """Of sizes of heads and of what is rotated of them, the keys that the family's class reads; {} where no class is known."""
    if family.name == "generic":
        return {}
    sizes = {field: (*family.spellings.get(field, ()), SPELLINGS[field][0]) for field in HEAD_SIZES}
    read = (*family.rope_share, "rope.dimension_count")  # GGUF's own, which no class reads
    return sizes | {field: tuple(key for key in SPELLINGS[field] if key in read) for field in TURNED}


def text_part(config: Mapping[str, Any], source: str = "config") -> tuple[Mapping[str, Any], list[str]]:
    """The part of a configuration that describes the text model, and a note where that is not the whole."""
    for key in _NESTED:
        inner = config.get(key)
        if inner is None:
            continue
        if not isinstance(inner, Mapping):
            raise CheckpointError(f"{source}: {key} must be an object, found {shown(inner)}")
        others = sorted(name for name in config if isinstance(config[name], Mapping) and name.endswith("_config"))
        rest = few((name for name in others if name not in (key, "quantization_config")), most=6)
        note = f"only {key} is priced" + (f"; {rest} is left out" if rest else "")
        return inner, [note]
    return config, []


def _family_of(config: Mapping[str, Any], source: str, notes: list[str]) -> Family:
    model_type = config.get("model_type", "")
    if not isinstance(model_type, str):
        raise CheckpointError(f"{source}: model_type must be a word, found {shown(model_type)}")
    found = find_family(model_type)
    if found is not None:
        return found
    if model_type in misleading():
        raise CheckpointError(f"{source}: model_type {model_type} is not described: {misleading()[model_type]}")
    found = recognise(config)
    named = f"model_type {shown(model_type)} is not known" if model_type else "there is no model_type"
    like = "a plain Llama-like decoder" if found.name == "generic" else f"{found.name} by its fields"
    notes.append(f"{named}: read as {like}" + (f"; {left_out()[model_type]}" if model_type in left_out() else ""))
    return found


def _read(fields: Fields, family: Family, assume: str) -> tuple[StackSpec, list[str]]:
    if family.stack in ("encoder", "seq2seq"):
        from manyheads.checkpoints.encoders import read_encoder

        stack, notes, unsupported = read_encoder(fields, family)
        _refuse_or_assume(fields, [*unsupported, *_unread_attention_keys(fields)], family, assume, notes)
        return stack, notes
    from manyheads.checkpoints.decoder import read_decoder

    draft = read_decoder(fields, family)
    if _refuse_or_assume(fields, [*draft.unsupported, *_unread_attention_keys(fields)], family, assume, draft.notes):
        draft.assume_full()
    return build_decoder(draft), draft.notes


def _pruned(config: Mapping[str, Any], stack: StackSpec, source: str, notes: list[str]) -> StackSpec:
    """The model without the heads that its configuration says are gone, and a note on it."""
    from manyheads.checkpoints.pruned import read_pruning, shrunk

    pruning = read_pruning(config, stack, source=source)
    if pruning is None:
        return stack
    gone = sum(len(heads.removed) for _, _, heads in pruning.layers)
    notes.append(f"pruned by manyheads ({pruning.form}): {gone} heads of the original model are gone")
    return shrunk(stack, pruning) if pruning.form == "compact" else stack


def _unread_attention_keys(fields: Fields) -> list[UnsupportedSetting]:
    return [
        UnsupportedSetting(shown_name(key), fields.config[key], "it may change attention or its cache")
        for key in fields.unread()
        if isinstance(key, str)
        and not is_harmless(key)
        and may_change_attention(key)
        and not is_inert(fields.config[key])
    ]


def _refuse_or_assume(
    fields: Fields, unsupported: list[UnsupportedSetting], family: Family, assume: str, notes: list[str]
) -> bool:
    """Whether full attention has to be assumed, told in `notes`; raises where that was not asked for."""
    if not unsupported:
        return False
    if assume != "full":
        first = unsupported[0]
        more = f" ({len(unsupported) - 1} more such)" if len(unsupported) > 1 else ""
        raise NotUnderstoodError(
            f"{fields.source}: {first.key} = {shown(first.value)} is not understood{more}: {first.why}; read as {family.name}"
        )
    what = ", ".join(f"{setting.key} {shown(setting.value)}" for setting in unsupported[:3])
    notes.append(f"plain full attention is assumed on every layer; not understood: {what}")
    return True


def _weight_dtype(inner: Mapping[str, Any], outer: Mapping[str, Any]) -> str:
    """How the weights are stored: the quantisation where there is one, else the dtype of the configuration."""
    for config in (inner, outer):
        quantised = config.get("quantization_config")
        if isinstance(quantised, Mapping):
            found = _quantised_dtype(quantised)
            if found:
                return found
    for config in (inner, outer):
        for key in ("dtype", "torch_dtype"):
            value = config.get(key)
            if isinstance(value, str):
                known = known_dtype(value)
                return known.name if known else ""
    return ""


def _quantised_dtype(quantised: Mapping[str, Any]) -> str:
    method = quantised.get("quant_method")
    if method in ("fp8", "fbgemm_fp8", "mxfp4", "nvfp4"):
        return "fp8" if method == "fbgemm_fp8" else str(method)
    if quantised.get("load_in_4bit") is True:
        return "int4"
    if quantised.get("load_in_8bit") is True:
        return "int8"
    bits = quantised.get("bits", quantised.get("w_bit"))
    return {4: "int4", 8: "int8"}.get(bits, "") if isinstance(bits, int) else ""
