"""From canonical tensors to stored ones: the names and shapes that a file of a family must hold for a given model.

The patterns are einops' and are only reckoned with here, on shapes; the room that moves real tensors reads the same
tables, so a name, a shape and an order are said once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod

from manyheads.checkpoints.family import Family, Stored
from manyheads.errors import CheckpointError
from manyheads.spec.inventory import Weight, weights
from manyheads.spec.positions import Rope
from manyheads.spec.stack import StackSpec

__all__ = ["Expected", "arrange", "expected_tensors", "groups"]


@dataclass(frozen=True, slots=True)
class Expected:
    """One tensor that a file must hold: its shape, the canonical weights in it, the table's row that says how.

    `sizes` has every axis length that the patterns of the row need; `index` is the position along `stored.each`; `rotated`
    counts the elements of each head that `stored.pairs` speaks of.
    """

    name: str
    shape: tuple[int, ...]
    parts: tuple[Weight, ...]
    stored: Stored
    sizes: Mapping[str, int]
    index: int = -1
    rotated: int = 0

    @property
    def elements(self) -> int:
        """Numbers in the tensor."""
        return prod(self.shape)

    @property
    def buffer(self) -> bool:
        """Whether it is stored but not a parameter."""
        return all(part.buffer for part in self.parts)


def expected_tensors(family: Family, model: StackSpec, *, most: int = 0) -> dict[str, Expected]:
    """Every tensor that a file of `family` holds for `model`, by its name in the file.

    most  refuse to list more than this many (0: no limit), since a config can ask for any number of experts

    Raises CheckpointError when the family does not say how one of the model's weights is stored.
    """
    inventory = {weight.name: weight for weight in weights(model)}
    _check_count(family, inventory, most)
    layers: dict[str, int] = {stack.role: len(stack.blocks) for stack in model.stacks}
    around: dict[str, dict[str, int]] = {}
    for weight in inventory.values():
        around.setdefault(_module(weight.name), {}).update(weight.sizes)
    found: dict[str, Expected] = {}
    left = set(inventory)
    for stored in family.layout:
        for layer in _layers_of(stored, layers):
            wanted = [canonical.replace("{i}", str(layer)) for canonical, _ in stored.parts]
            if not left.issuperset(wanted) or not _applies(stored, layer, inventory, model):
                continue
            left.difference_update(wanted)
            parts = tuple(inventory[name] for name in wanted)
            rotated = _rotated(stored, layer, model) if stored.pairs else 0
            for item in _spread(stored, parts, layer, around.get(_module(wanted[0]), {}), rotated):
                found[item.name] = item
    if left:
        first = min(left)
        raise CheckpointError(f"{family.name}: how {first} ({len(left)} weights) is stored is not known for this model")
    return found


def _check_count(family: Family, inventory: Mapping[str, Weight], most: int) -> None:
    spread = {name: s.each for s in family.layout if s.each for name, _ in s.parts}
    kinds = {name.rpartition(".mlp.")[2]: each for name, each in spread.items()}
    count = sum(w.sizes.get(kinds.get(w.name.rpartition(".mlp.")[2], ""), 1) for w in inventory.values())
    if most and count > most:
        raise CheckpointError(f"{family.name}: the configuration asks for {count} tensors, the files hold {most}")


def _layers_of(stored: Stored, layers: Mapping[str, int]) -> range:
    """The layers that a row speaks of; one turn, without a layer, for what stands outside them."""
    canonical = stored.parts[0][0]
    if "{i}" not in canonical:
        return range(-1, 0)
    return range(layers.get(canonical.partition(".")[0], 0))


def _module(name: str) -> str:
    """The attention or MLP that a canonical weight belongs to: inside one, a letter means one length."""
    for part in (".self.", ".cross.", ".mlp."):
        if part in name:
            return name.partition(part)[0] + part
    return name


def _applies(stored: Stored, layer: int, inventory: Mapping[str, Weight], model: StackSpec) -> bool:
    for condition in stored.when.split():
        if condition == "parallel":
            if not model.main.blocks[layer].parallel:
                return False
        elif condition.replace("{i}", str(layer)) not in inventory:
            return False
    return True


def _rotated(stored: Stored, layer: int, model: StackSpec) -> int:
    """The elements of a head that are rotated as halves in the layer whose self-attention `stored` belongs to."""
    role = stored.parts[0][0].partition(".")[0]
    stack = next(stack for stack in model.stacks if stack.role == role)
    attention = stack.blocks[layer].attention
    rope = None if attention is None else attention.positions
    return rope.dim if isinstance(rope, Rope) and rope.layout == "halves" else 0


def _spread(
    stored: Stored, parts: tuple[Weight, ...], layer: int, around: Mapping[str, int], rotated: int
) -> Iterator[Expected]:
    sizes = {**around, **{axis: length for part in parts for axis, length in part.sizes.items()}}
    shape, sizes = arrange(stored, parts, sizes)
    name = stored.name.replace("{i}", str(layer))
    if not stored.each:
        yield Expected(name, shape, parts, stored, sizes, rotated=rotated)
        return
    for index in range(parts[0].sizes[stored.each]):
        yield Expected(name.replace("{x}", str(index)), shape, parts, stored, sizes, index, rotated)


def groups(side: str) -> list[list[str]]:
    """One side of a pattern as axes: "(h q) m" is [[h, q], [m]]."""
    found: list[list[str]] = []
    inside = False
    for word in side.replace("(", " ( ").replace(")", " ) ").split():
        if word == "(":
            found.append([])
            inside = True
        elif word == ")":
            inside = False
        elif inside:
            found[-1].append(word)
        else:
            found.append([word])
    return found


def arrange(
    stored: Stored, parts: tuple[Weight, ...], sizes: Mapping[str, int]
) -> tuple[tuple[int, ...], dict[str, int]]:
    """The shape of the stored tensor, and the lengths of all axes that its patterns name."""
    known = {**sizes, "1": 1}
    shapes = []
    for part, (_, pattern) in zip(parts, stored.parts, strict=True):
        axes = [axis for axis in part.axes.split() if axis != stored.each]
        if pattern == "...":
            shapes.append(list(part.shape))
            continue
        left, arrow, right = pattern.partition("->")
        if arrow:
            _split_axes(left, [part.sizes[axis] for axis in axes], known)
        else:
            right = pattern
        shapes.append([prod(known[axis] for axis in group) for group in groups(right)])
    if not shapes[0]:  # a single number, which nothing can be joined to
        return (), known
    joined = list(shapes[0])
    joined[stored.axis] = sum(shape[stored.axis] for shape in shapes)
    if any(shape[: stored.axis] + shape[stored.axis + 1 :] != shapes[0][: stored.axis] + shapes[0][stored.axis + 1 :]
           for shape in shapes):  # fmt: skip
        raise CheckpointError(f"{stored.name}: its parts do not fit together: {shapes}")
    if stored.merge >= 0:
        joined[stored.merge : stored.merge + 2] = [joined[stored.merge] * joined[stored.merge + 1]]
    return tuple(joined), known


def _split_axes(left: str, lengths: list[int], known: dict[str, int]) -> None:
    """Learn the lengths of the axes that the left side of a pattern splits the weight's own axes into."""
    for group, length in zip(groups(left), lengths, strict=True):
        unknown = [axis for axis in group if axis not in known]
        rest = prod(known[axis] for axis in group if axis in known)
        if len(unknown) > 1 or length % rest or (not unknown and rest != length):
            raise CheckpointError(f"an axis of length {length} cannot be split as ({' '.join(group)})")
        if unknown:
            known[unknown[0]] = length // rest
