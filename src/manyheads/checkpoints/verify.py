"""A weight file's header held against the model that the configuration describes: every name, every shape, every count."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from manyheads.checkpoints.family import Family
from manyheads.checkpoints.fields import SPELLINGS
from manyheads.checkpoints.layout import Expected, expected_tensors
from manyheads.checkpoints.tensors import TensorInfo
from manyheads.cost.dtypes import known_dtype
from manyheads.errors import CheckpointError
from manyheads.quoting import shown
from manyheads.spec.inventory import count, weights
from manyheads.spec.stack import StackSpec

__all__ = ["HeaderCheck", "check_header", "copies_of", "is_task_head", "located"]

# Formats of quantisation that keep a tensor's name and shape, beside which scales are stored.
_SHAPE_KEEPING = ("fp8", "fbgemm_fp8")
_SCALES = re.compile(r"(_scale_inv|_scale|\.input_scale|\.weight_scale|\.activation_scale)$")

# The setting behind each letter of a weight's axes.
_FIELDS = {
    "m": "d_model", "h": "heads", "y": "heads", "k": "kv_heads", "q": "head_dim", "v": "v_head_dim", "w": "mlp_width",
    "l": "vocab_size", "x": "experts", "c": "rank", "r": "mla_rope_dim", "a": "q_rank", "d": "nope_dim",
    "p": "context", "u": "shared_width",
}  # fmt: skip


@dataclass(frozen=True)
class HeaderCheck:
    """What the header of a model's weights says, once it agrees with the configuration.

    stack         the model; its head is "none" where the files hold the bare model
    parameters    parameters stored, each once (a tied head that is stored again counts once, and is told in `notes`)
    buffers       elements stored that are no parameters
    stored_bytes  bytes of all tensors
    weight_dtype  the type of most bytes among the weights
    """

    stack: StackSpec
    parameters: int
    buffers: int
    stored_bytes: int
    weight_dtype: str
    notes: tuple[str, ...]


def check_header(
    tensors: Mapping[str, TensorInfo],
    family: Family,
    stack: StackSpec,
    *,
    source: str,
    config: Mapping[str, Any] | None = None,
    nested: bool = False,
) -> HeaderCheck | None:
    """Compare the tensors of a file with what `family` stores for `stack`; None where a quantisation hides the shapes.

    config  names the settings behind a shape in error messages, and says whether the weights are quantised
    nested  the model is a part of a larger one: tensors that do not begin like its own are left out, with a note

    Raises CheckpointError, one line, for the first tensor whose shape contradicts the configuration (with both shapes
    and the settings behind the predicted one), for tensors that are missing and for tensors that nothing explains.
    """
    settings = config or {}
    method = _quantisation(settings)
    if method not in ("", "mxfp4", *_SHAPE_KEEPING):
        return None
    expected = expected_tensors(family, stack, most=4 * len(tensors) + 1000)
    rename = _renaming(family, expected, tensors)
    wanted = {_renamed(name, rename): item for name, item in expected.items()}
    copies = copies_of(family, stack, wanted, {name: tensor.shape for name, tensor in tensors.items()}, settings)
    found = _matched(tensors, wanted, source, settings)
    missing = [name for name in wanted if name not in found]
    smaller = _without(stack, [wanted[name].parts[0].name for name in missing], family)
    if smaller is not None:
        made = check_header(tensors, family, smaller[0], source=source, config=config, nested=nested)
        return made and replace(made, notes=(smaller[1], *made.notes))
    extra = _unexplained(tensors, wanted, found, family, stack, copies)
    extra = [name for name in extra if not (method and _SCALES.search(name))]
    extra, notes = _set_aside(extra, tensors, family)
    if nested:
        extra, notes = _inside(extra, rename, notes)
    if missing or extra:
        _refuse(missing, extra, len(tensors), family, source)
    notes += [
        f"{name} is stored although it is tied to {original}; it is counted once" for name, original in sorted(copies.items())
    ]  # fmt: skip
    return _summary(tensors, wanted, found, stack, source, notes, method)


def _set_aside(extra: list[str], tensors: Mapping[str, TensorInfo], family: Family) -> tuple[list[str], list[str]]:
    """The unexplained tensors without those of a task's head, and a note on these."""
    tasks = {name for name in extra if is_task_head(family, name)}
    if not tasks:
        return extra, []
    elements = sum(tensors[name].elements for name in tasks)
    note = f"{elements} parameters in {len(tasks)} tensors are a task's head, not counted ({min(tasks)})"
    return [name for name in extra if name not in tasks], [note]


def _inside(extra: list[str], rename: tuple[tuple[str, str], ...], notes: list[str]) -> tuple[list[str], list[str]]:
    """The unexplained tensors that begin as the text model's do; the others belong to the rest of a larger model."""
    begins = tuple(
        {new for _, new in rename if new} or {"model.layers.", "model.embed_tokens.", "model.norm.", "lm_head."}
    )
    kept = [name for name in extra if name.startswith(begins)]
    if len(kept) < len(extra):
        notes = [*notes, f"{len(extra) - len(kept)} tensors outside the text model are left out"]
    return kept, notes


def copies_of(
    family: Family,
    stack: StackSpec,
    items: Mapping[str, Expected],
    shapes: Mapping[str, tuple[int, ...]],
    config: Mapping[str, Any],
) -> dict[str, str]:
    """Stored tensors that repeat another one, each with the name of that: a tied head, shared tables, a tied decoder.

    items   what the model's own tensors are, by their names in the files; `shapes`: of all that is stored
    config  says whether a task's head is tied to the tokens, as transformers' classes do unless it says no

    Only whoever reads the values can tell whether they are the same: files of a tied configuration may hold two.
    """
    homes = {item.parts[0].name: name for name, item in items.items() if len(item.parts) == 1 and item.index < 0}
    rules = list(family.copies)
    if stack.head == "tied":
        heads = {_renamed(s.name, way) for s in family.layout if s.parts[0][0] == "head" for way in _ways(family)}
        rules += [(f"^{re.escape(name)}$", "tokens") for name in heads]
    said = config.get("tie_word_embeddings")
    tied = said if isinstance(said, bool) else bool(family.defaults.get("tied", False))
    found = {}
    for pattern, repeated in rules:
        original = homes.get(repeated, repeated)
        for name in shapes:
            fits = name not in items and re.search(pattern, name) and shapes[name] == shapes.get(original)
            if fits and (tied or not is_task_head(family, name)):
                found[name] = original
    return found


def is_task_head(family: Family, name: str) -> bool:
    """Whether a stored tensor belongs to the head of a task, which is no part of the model."""
    return any(re.search(pattern, name) for pattern in family.task_heads)


def located(family: Family, stack: StackSpec, names: Collection[str]) -> dict[str, Expected]:
    """Every tensor that files of `family` hold for `stack`, by the name that it has in files that hold `names`."""
    expected = expected_tensors(family, stack, most=4 * len(names) + 1000)
    rename = _renaming(family, expected, names)
    return {_renamed(name, rename): item for name, item in expected.items()}


def _quantisation(config: Mapping[str, Any]) -> str:
    quantised = config.get("quantization_config")
    if not isinstance(quantised, Mapping):
        return ""
    method = quantised.get("quant_method")
    return method if isinstance(method, str) and method else "unnamed"


def _renamed(name: str, pairs: Iterable[tuple[str, str]]) -> str:
    """`name` begun as files do, by the first (old, new) pair that fits; pairs that begin with a dot end it instead."""
    for old, new in pairs:
        if old.startswith("."):
            if name.endswith(old):
                name = name[: -len(old)] + new
        elif name.startswith(old):
            name = new + name[len(old) :]
            break
    return name


def _renaming(
    family: Family, expected: Mapping[str, Expected], tensors: Collection[str]
) -> tuple[tuple[str, str], ...]:
    """The way of beginning names, of those that the family knows, under which most tensors are found."""
    names = list(expected)

    def hits(pairs: tuple[tuple[str, str], ...]) -> int:
        return sum(_renamed(name, pairs) in tensors for name in names)

    return max(_ways(family), key=hits)


def _ways(family: Family) -> list[tuple[tuple[str, str], ...]]:
    """All the ways in which files of a family begin and end their names."""
    return [(*ending, *prefix) for ending in ((), *family.endings) for prefix in ((), *family.prefixes)]


def _matched(
    tensors: Mapping[str, TensorInfo], wanted: Mapping[str, Expected], source: str, config: Mapping[str, Any]
) -> dict[str, tuple[TensorInfo, ...]]:
    """The stored tensors of each wanted one: itself, or the blocks and scales of MXFP4."""
    found: dict[str, tuple[TensorInfo, ...]] = {}
    for name, item in wanted.items():
        stored = tensors.get(name)
        if stored is None:
            blocks, scales = tensors.get(f"{name}_blocks"), tensors.get(f"{name}_scales")
            if blocks is None or scales is None:
                continue
            if 2 * blocks.elements != item.elements or 16 * scales.elements != blocks.elements:
                raise CheckpointError(
                    f"{source}: {shown(name)} is stored as {blocks.elements} bytes of pairs and {scales.elements} scales; "
                    f"the configuration predicts {item.elements} elements ({_behind(item, config)})"
                )
            found[name] = (blocks, scales)
            continue
        if stored.shape != item.shape:
            raise CheckpointError(
                f"{source}: tensor {shown(name)} has shape {stored.shape}, the configuration predicts {item.shape} "
                f"({_behind(item, config)})"
            )
        found[name] = (stored,)
    return found


def _behind(item: Expected, config: Mapping[str, Any]) -> str:
    """The settings that a predicted shape comes from, as the configuration spells them."""
    said = []
    for part in item.parts:
        for axis, length in part.sizes.items():
            field = _FIELDS.get(axis)
            if field == "v_head_dim" and "v_head_dim" not in config:
                field = "head_dim"
            spellings = SPELLINGS.get(field or "", ())
            key = next((name for name in spellings if name in config), spellings[0] if spellings else axis)
            text = f"{key} {length}"
            if text not in said:
                said.append(text)
    return ", ".join(said)


def _unexplained(
    tensors: Mapping[str, TensorInfo],
    wanted: Mapping[str, Expected],
    found: Mapping[str, tuple[TensorInfo, ...]],
    family: Family,
    stack: StackSpec,
    copies: Collection[str],
) -> list[str]:
    used = {tensor.name for stored in found.values() for tensor in stored}
    ignored = [re.compile(pattern.replace("{layers}", str(stack.layers))) for pattern in family.ignored]
    extra = []
    for name in tensors:
        if name not in used and name not in wanted and name not in copies and not any(p.search(name) for p in ignored):
            extra.append(name)
    return extra


def _refuse(missing: list[str], extra: list[str], total: int, family: Family, source: str) -> None:
    def few(names: list[str]) -> str:
        return ", ".join(shown(name) for name in names[:3]) + (", ..." if len(names) > 3 else "")

    said = []
    if missing:
        said.append(f"{len(missing)} tensors that the configuration asks for are missing ({few(missing)})")
    if extra:
        said.append(f"{len(extra)} of {total} tensors have no place in it ({few(extra)})")
    raise CheckpointError(f"{source}: not the {family.name} that its configuration describes: {'; '.join(said)}")


def _without(stack: StackSpec, missing: list[str], family: Family) -> tuple[StackSpec, str] | None:
    """The model without what its files leave out, where all that is missing may be left out; and a note on it."""
    if not missing:
        return None
    if stack.head == "untied" and set(missing) <= {"head", "head.bias"}:
        return replace(stack, head="none", head_bias=False), "the files hold the bare model, without its head"
    if family.optional and all(name.startswith(family.optional) for name in missing):
        kept = tuple(other for other in stack.other if other.name not in missing)
        return replace(stack, other=kept), f"the files leave out {', '.join(sorted(missing))}"
    return None


def _summary(
    tensors: Mapping[str, TensorInfo],
    wanted: Mapping[str, Expected],
    found: Mapping[str, tuple[TensorInfo, ...]],
    stack: StackSpec,
    source: str,
    notes: list[str],
    method: str,
) -> HeaderCheck:
    parameters = sum(wanted[name].elements for name in found if not wanted[name].buffer)
    buffers = sum(wanted[name].elements for name in found if wanted[name].buffer)
    derived = count(weights(stack))
    if parameters != derived:
        raise CheckpointError(f"{source}: holds {parameters} parameters, {derived} are derived from its configuration")
    held: Counter[str] = Counter()
    for stored in found.values():
        for tensor in stored:
            held[tensor.dtype] += tensor.nbytes
    most = held.most_common(1)[0][0] if held else ""
    known = known_dtype(most)
    dtype = method if method == "mxfp4" and most == "U8" else known.name if known else most.lower()
    return HeaderCheck(stack, parameters, buffers, sum(t.nbytes for t in tensors.values()), dtype, tuple(notes))
