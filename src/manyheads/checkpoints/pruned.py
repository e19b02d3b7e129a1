"""Which heads a pruned model still has: one key of its config.json says it, by the numbers that they first had.

    "manyheads_pruning": {"version": 1, "form": "compact", "layers": [
        {"stage": "decoder", "layer": 0, "heads": 4, "kv_heads": 4, "slots": [0, 2, 3], "kv_slots": [0, 2, 3]}]}

A slot is a head as the files hold it: the number that it had in the original model, or -1 for a head of zeros. Only in
the form "compact" do the files hold other counts than the rest of the configuration says.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any, Literal, get_args

from manyheads.errors import CheckpointError
from manyheads.quoting import shown
from manyheads.record import record
from manyheads.spec.attention import AttentionSpec
from manyheads.spec.kv import Heads
from manyheads.spec.stack import Block, StackSpec

__all__ = [
    "FORMS",
    "KEY",
    "FormName",
    "LayerHeads",
    "Pruning",
    "attention_at",
    "places",
    "prefix_in",
    "prefix_of",
    "read_pruning",
    "read_record",
    "shrunk",
    "with_attentions",
]

KEY = "manyheads_pruning"
FormName = Literal["uniform", "padded", "compact"]
FORMS: tuple[FormName, ...] = get_args(FormName)
_VERSION = 1
_MOST = 1 << 20


@record
class LayerHeads:
    """The heads of one attention: how many there were, and the original number of each that is stored (-1: zeros)."""

    heads: int
    kv_heads: int
    slots: tuple[int, ...]
    kv_slots: tuple[int, ...]

    @property
    def group(self) -> int:
        """Query heads that shared a key/value head in the original model."""
        return self.heads // self.kv_heads

    @property
    def kept(self) -> tuple[int, ...]:
        """Original numbers of the heads that still work."""
        return tuple(slot for slot in self.slots if slot >= 0)

    def at(self, numbers: Iterable[int]) -> list[int]:
        """Where heads that still work are stored, by their original numbers."""
        return [self.slots.index(number) for number in numbers]

    @property
    def removed(self) -> tuple[int, ...]:
        """Original numbers of the heads that do not."""
        return tuple(sorted(set(range(self.heads)) - set(self.slots)))


@record
class Pruning:
    """A model's removed heads. `layers`: by (stage, layer); stages are "encoder", "decoder" and "cross"."""

    form: str
    layers: tuple[tuple[str, int, LayerHeads], ...]

    def at(self, stage: str, layer: int) -> LayerHeads | None:
        """The heads of one attention, None where the record does not speak of it."""
        return next((heads for name, index, heads in self.layers if (name, index) == (stage, layer)), None)

    def as_json(self) -> dict[str, Any]:
        """What stands in config.json under `KEY`."""
        rows = [
            {"stage": stage, "layer": layer, "heads": each.heads, "kv_heads": each.kv_heads, "slots": list(each.slots),
             "kv_slots": list(each.kv_slots)}
            for stage, layer, each in self.layers
        ]  # fmt: skip
        return {"version": _VERSION, "form": self.form, "layers": rows}


def places(stack: StackSpec) -> Iterator[tuple[str, int, AttentionSpec]]:
    """Every attention of a model by (stage, layer)."""
    for each in stack.stacks:
        for index, block in enumerate(each.blocks):
            if block.attention is not None:
                yield each.role, index, block.attention
            if block.cross is not None:
                yield "cross", index, block.cross


def attention_at(stack: StackSpec, stage: str, layer: int) -> AttentionSpec | None:
    """The attention of one place, None where the model has none there."""
    return next((spec for name, index, spec in places(stack) if (name, index) == (stage, layer)), None)


def with_attentions(stack: StackSpec, change: Callable[[AttentionSpec, str, int], AttentionSpec]) -> StackSpec:
    """`stack` with what `change` makes of each attention, its stage and its layer."""

    def block_of(block: Block, role: str, layer: int) -> Block:
        made = tuple(change(a, role if a is block.attention else "cross", layer) for a in block.attentions)
        return replace(block, attentions=made)

    stacks = tuple(
        replace(each, blocks=tuple(block_of(block, each.role, index) for index, block in enumerate(each.blocks)))
        for each in stack.stacks
    )
    return replace(stack, stacks=stacks)


def prefix_of(stage: str, layer: int) -> str:
    """How the canonical names of an attention's weights begin."""
    return f"decoder.layers.{layer}.cross." if stage == "cross" else f"{stage}.layers.{layer}.self."


def prefix_in(name: str) -> str:
    """The beginning of a canonical name that is its attention's, "" of a weight of no attention."""
    parts = (part for part in (".self.", ".cross.") if part in name)
    return next((name[: name.rfind(part) + len(part)] for part in parts), "")


def shrunk(stack: StackSpec, pruning: Pruning) -> StackSpec:
    """`stack` with as many heads in each attention as `pruning` has slots for."""

    def smaller(spec: AttentionSpec, stage: str, layer: int) -> AttentionSpec:
        heads = pruning.at(stage, layer)
        if heads is None:
            return spec
        kv = replace(spec.kv, num_kv_heads=len(heads.kv_slots)) if isinstance(spec.kv, Heads) else spec.kv
        return replace(spec, num_heads=len(heads.slots), kv=kv)

    return with_attentions(stack, smaller)


def read_pruning(config: Mapping[str, Any], stack: StackSpec, *, source: str = "config") -> Pruning | None:
    """What `config` says about removed heads, None where it says nothing; `stack` is what the rest of it describes.

    Raises CheckpointError, one line, for a record that is not understood or contradicts the model.
    """
    made = read_record(config.get(KEY), source=source)
    if made is None:
        return None
    where = f"{source}: {KEY}"
    for stage, layer, heads in made.layers:
        _check_row(heads, attention_at(stack, stage, layer), made.form, f"{where}: {stage} layer {layer}")
    return made


def read_record(found: Any, *, source: str = "config") -> Pruning | None:
    """The record `found` by itself, whatever model it is of; None where there is none.

    Raises CheckpointError, one line, for one that is not understood.
    """
    if found is None:
        return None
    where = f"{source}: {KEY}"
    if not isinstance(found, Mapping) or not isinstance(found.get("layers"), list):
        raise CheckpointError(f"{where} must be an object with a list of layers, found {shown(found)}")
    if found.get("version") != _VERSION or found.get("form") not in FORMS:
        said = f"version {shown(found.get('version'))}, form {shown(found.get('form'))}"
        raise CheckpointError(f"{where} has {said}; understood: version {_VERSION} and form {', '.join(FORMS)}")
    made = Pruning(str(found["form"]), tuple(_row(row, where) for row in found["layers"]))
    seen: set[tuple[str, int]] = set()
    for stage, layer, _ in made.layers:
        if (stage, layer) in seen:
            raise CheckpointError(f"{where}: layer {layer} of {stage} is there twice")
        seen.add((stage, layer))
    return made


def _row(row: Any, where: str) -> tuple[str, int, LayerHeads]:
    numbers = ("layer", "heads", "kv_heads")
    if not isinstance(row, Mapping) or row.get("stage") not in ("encoder", "decoder", "cross"):
        raise CheckpointError(f"{where}: a layer must name its stage, encoder, decoder or cross; found {shown(row)}")
    if not all(_whole(row.get(name), least=int(name != "layer")) for name in numbers):
        raise CheckpointError(
            f"{where}: a layer must have the whole numbers layer, heads, kv_heads; found {shown(row)}"
        )
    for name in ("slots", "kv_slots"):
        if (
            not isinstance(row.get(name), list)
            or not row[name]
            or not all(_whole(slot, least=-1) for slot in row[name])
        ):
            raise CheckpointError(
                f"{where}: {name} of layer {row['layer']} must list heads; found {shown(row.get(name))}"
            )
    heads = LayerHeads(row["heads"], row["kv_heads"], tuple(row["slots"]), tuple(row["kv_slots"]))
    return str(row["stage"]), int(row["layer"]), heads


def _whole(value: Any, *, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= _MOST


def _check_row(heads: LayerHeads, spec: AttentionSpec | None, form: str, where: str) -> None:
    if spec is None:
        raise CheckpointError(f"{where}: the model has no such attention")
    for slots, count in ((heads.slots, heads.heads), (heads.kv_slots, heads.kv_heads)):
        named = [slot for slot in slots if slot >= 0]
        if len(set(named)) < len(named) or any(slot >= count for slot in named):
            raise CheckpointError(f"{where}: slots {list(slots)} are not some of {count} heads, each once")
    if heads.heads % heads.kv_heads or len(heads.slots) % len(heads.kv_slots):
        raise CheckpointError(
            f"{where}: {len(heads.slots)} of {heads.heads} heads and {len(heads.kv_slots)} of {heads.kv_heads} key/value "
            "heads make no whole groups"
        )
    stated = heads.heads if form == "compact" else len(heads.slots)
    if stated != spec.num_heads:
        raise CheckpointError(f"{where}: the record speaks of {stated} heads, the configuration of {spec.num_heads}")
