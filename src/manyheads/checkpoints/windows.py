"""Which layers see everything and which a window, a chunk or a state: every published way to say so."""

from __future__ import annotations

from typing import Any

from manyheads.checkpoints.draft import CHUNKED, FULL, KINDS, LINEAR, SLIDING, Draft
from manyheads.checkpoints.family import Family
from manyheads.checkpoints.fields import Fields
from manyheads.quoting import shown

__all__ = ["read_kinds"]

_SYNONYMS = {"full": FULL, "global": FULL, "attention": FULL, "sliding": SLIDING, "local": SLIDING, "chunked": CHUNKED}


def read_kinds(fields: Fields, draft: Draft, family: Family) -> None:
    """Set `draft.kinds`, `draft.window`, `draft.chunk` and the layers without rotary positions.

    `layer_types` decides where it is given; else `sliding_window_pattern` (every how-manieth layer is full); else the
    family's habit (Gemma 2: every other layer; Qwen: from `max_window_layers` on; Mistral: all). A window that is
    null or 0, or switched off by `use_sliding_window`, is none.
    """
    for field in ("max_window_layers", "window_pattern", "use_window"):
        fields.raw(field)  # understood, also where a list or a switched-off window leaves them without effect
    draft.window = _window(fields, family)
    draft.chunk = fields.optional_size("chunk", least=0) or 0
    listed = fields.items("layer_types")
    draft.kinds = _by_rule(fields, draft, family) if listed is None else _by_list(fields, draft, family, listed)
    told = listed is not None or family.windows or fields.has("window_pattern")
    if draft.window and not told:
        why = "nothing says on which layers it acts, as layer_types or sliding_window_pattern would"
        draft.add_unsupported(fields.key("window"), draft.window, why)
    if draft.window and not any(name in fields.config for name in fields.names("window")):
        draft.notes.append(f"{fields.key('window')} is absent: {draft.window}, transformers' default, is taken")
    _read_unrotated(fields, draft)


def _window(fields: Fields, family: Family) -> int:
    window = fields.optional_size("window", least=0) or 0
    switched = fields.has("use_window") or "use_window" in family.defaults
    if switched and not fields.flag("use_window"):
        return 0
    return window


def _by_rule(fields: Fields, draft: Draft, family: Family) -> list[str]:
    layers, habit = draft.layers, family.windows
    pattern = fields.raw("window_pattern", family.window_period or None)
    if isinstance(pattern, str):
        return _by_letters(fields, draft, pattern)
    period = fields.optional_size("window_pattern", family.window_period or None) or 0
    first_windowed = fields.optional_size("max_window_layers", least=0) or 0
    if draft.chunk and not draft.window:
        return _chunked(fields, draft)
    if not draft.window:
        return [FULL] * layers
    if period:
        return [FULL if (index + 1) % period == 0 else SLIDING for index in range(layers)]
    if habit == "odd":
        return [SLIDING if index % 2 == 0 else FULL for index in range(layers)]
    if habit == "odd_below":
        return [SLIDING if index % 2 == 0 and index < first_windowed else FULL for index in range(layers)]
    if habit == "from_layer":
        return [SLIDING if index >= first_windowed else FULL for index in range(layers)]
    return [SLIDING if habit == "all" else FULL] * layers


def _by_letters(fields: Fields, draft: Draft, pattern: str) -> list[str]:
    """Patterns such as "LLLG": L a window, G full, repeated over the layers (EXAONE 4)."""
    if not pattern or set(pattern) - set("LG"):
        fields.fail(f"{fields.key('window_pattern')} must be an integer or letters L and G, found {shown(pattern)}")
    if not draft.window:
        return [FULL] * draft.layers
    return [FULL if pattern[index % len(pattern)] == "G" else SLIDING for index in range(draft.layers)]


def _chunked(fields: Fields, draft: Draft) -> list[str]:
    """Llama 4: the layers with rotary positions are chunked, those without see everything."""
    draft.notes.append(f"{fields.key('chunk')} {draft.chunk} acts on the layers with rotary positions")
    unrotated = _unrotated(fields, draft)
    return [FULL if index in unrotated else CHUNKED for index in range(draft.layers)]


def _by_list(fields: Fields, draft: Draft, family: Family, listed: list[Any]) -> list[str]:
    key = fields.key("layer_types")
    if len(listed) != draft.layers:
        fields.fail(
            f"{key} lists {len(listed)} layers and {fields.key('layers')} says {draft.layers}; they must be equal"
        )
    kinds = []
    for index, value in enumerate(listed):
        kind = _SYNONYMS.get(value, value) if isinstance(value, str) else None
        if kind not in KINDS or (kind == LINEAR and not family.linear):
            known = ", ".join(k for k in KINDS if k != LINEAR)
            draft.add_unsupported(f"{key}[{index}]", value, f"kinds that are understood here: {known}")
            return [FULL] * draft.layers
        kinds.append(kind)
    return _with_sizes(fields, draft, family, kinds)


def _with_sizes(fields: Fields, draft: Draft, family: Family, kinds: list[str]) -> list[str]:
    """`kinds`, once it is clear that every window and chunk they ask for has a size."""
    if SLIDING in kinds and not draft.window:
        window = fields.config.get(fields.key("window"))
        because = "use_sliding_window is false" if window else f"{fields.key('window')} is {shown(window)}"
        fields.fail(f"layer_types asks for sliding_attention, but {because}; give a window of 1 or more")
    if CHUNKED in kinds and not draft.chunk:
        fields.fail("layer_types asks for chunked_attention, but attention_chunk_size is absent; give 1 or more")
    if draft.window and family.windows == "all" and SLIDING not in kinds:
        draft.notes.append("layer_types names no sliding layer, so the window is not used")
    return kinds


def _unrotated(fields: Fields, draft: Draft) -> frozenset[int]:
    listed = fields.items("no_rope_layers")
    if listed:
        fields.raw("no_rope_interval")  # understood, and without effect beside a list
        if len(listed) != draft.layers or any(value not in (0, 1) for value in listed):
            fields.fail(
                f"no_rope_layers must hold {draft.layers} values of 0 or 1 (1: the layer rotates), one a layer; found "
                f"{len(listed)}: {shown(listed)}"
            )
        return frozenset(index for index, rotates in enumerate(listed) if not rotates)
    interval = fields.optional_size("no_rope_interval")
    return frozenset(index for index in range(draft.layers) if interval and (index + 1) % interval == 0)


def _read_unrotated(fields: Fields, draft: Draft) -> None:
    if fields.has("no_rope_layers") or fields.has("no_rope_interval"):
        draft.unrotated = _unrotated(fields, draft)
