"""The weights of an object: found by their names, their shapes and who holds them, and set to chosen values."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import product
from typing import Any

import torch
from torch import Tensor, nn

from manyheads.check.multihead.problem import Multihead
from manyheads.check.multihead.storage import Slot, bias_pattern, fits, patterns, stored
from manyheads.check.multihead.words import meaning_of, meaning_of_path, orders_of
from manyheads.check.subject import CallError, UnfitError

__all__ = ["arrays_of", "assign", "norms_of", "set_idle", "slots_of", "strange_arrays", "without_norms"]

MOST_CHOICES = 48


def arrays_of(thing: Any) -> dict[str, Any]:
    """path -> the arrays that it computes with and that are weights by their kind: parameters, or attributes that are
    tensors or numpy arrays of numbers. The arrays themselves, not copies."""
    if isinstance(thing, nn.Module):
        return dict(thing.named_parameters())
    made: dict[str, Any] = {}
    for name, value in vars(thing).items() if hasattr(thing, "__dict__") else ():
        if isinstance(value, nn.Module):
            made |= {f"{name}.{path}": array for path, array in value.named_parameters()}
        elif _is_array(value):
            made[name] = value
        elif isinstance(value, dict):
            made |= {f"{name}[{key!r}]": array for key, array in value.items() if _is_array(array)}
        elif isinstance(value, list | tuple) and value and all(hasattr(item, "__dict__") for item in value):
            for number, item in enumerate(value):
                made |= {f"{name}.{number}.{path}": array for path, array in arrays_of(item).items()}
    return made


def _is_array(value: Any) -> bool:
    if isinstance(value, Tensor):
        return value.is_floating_point() and value.dim() > 0
    return type(value).__name__ == "ndarray" and value.dtype.kind == "f" and value.ndim > 0


def assign(arrays: Mapping[str, Any], slots: tuple[Slot, ...], problem: Multihead) -> None:
    """Writes the problem's weights and biases to where they belong."""
    for slot in slots:
        made = stored(slot, problem)
        pieces = {slot.name.format(head): piece for head, piece in enumerate(made)} if isinstance(made, list) else {
            slot.name: made
        }  # fmt: skip
        for name, piece in pieces.items():
            if name not in arrays:
                raise UnfitError(f"made for these sizes, it has no weight {name}")
            array = arrays[name]
            if tuple(array.shape) != tuple(piece.shape):
                found, wanted = tuple(array.shape), tuple(piece.shape)
                raise CallError(f"its weight {name} has the shape {found}, expected {wanted}", kind="shape of a weight")
            if isinstance(array, Tensor):
                array.data.copy_(piece.detach())
            else:
                array[...] = piece.detach().numpy()


def set_idle(arrays: Mapping[str, Any], names: Iterable[str]) -> None:
    """Makes square weights the identity and their biases zero, so that they change nothing."""
    for name in names:
        array = arrays[name]
        made = torch.eye(array.shape[0]) if len(array.shape) == 2 else torch.zeros(tuple(array.shape))
        if isinstance(array, Tensor):
            array.data.copy_(made)
        else:
            array[...] = made.numpy()


def norms_of(thing: Any, width: int) -> tuple[str, ...]:
    """The paths of layers that norm vectors of this width, but for those of queries and keys."""
    if not isinstance(thing, nn.Module):
        return ()
    return tuple(
        path for path, layer in thing.named_modules()
        if "Norm" in type(layer).__name__ and meaning_of(path.rpartition(".")[2]) is None
        and any(tuple(p.shape) == (width,) for p in layer.parameters(recurse=False))
        and not re.search(r"(^|[._])[qk](_|uery|ey)?", path.rpartition(".")[2])
    )  # fmt: skip


def without_norms(thing: Any, paths: Iterable[str]) -> None:
    """Puts the identity in the place of these layers."""
    for path in paths:
        owner, _, name = path.rpartition(".")
        setattr(thing.get_submodule(owner), name, nn.Identity())


def slots_of(thing: Any, problem: Multihead) -> Iterator[tuple[Slot, ...]]:
    """The ways to read its arrays as weights of the problem's sizes, the likeliest first."""
    arrays = arrays_of(thing)
    shapes = {name: tuple(array.shape) for name, array in arrays.items()}
    groups = _grouped(shapes, problem.q.shape[1])
    roles = _roles(groups, shapes)
    choices = []
    for name, role in roles.items():
        each_head = "{}" in name
        axes = len(shapes[name.format(0)])
        ways = [Slot(name=name, role=order, pattern=pattern, each_head=each_head)
                for order in orders_of(role) for pattern in (_each(role) if each_head else patterns(role, axes))
                if _may_hold(thing, name.format(0), pattern)]  # fmt: skip
        fitting = [slot for slot in ways if fits(slot, problem, shapes)]
        if not fitting:
            return
        choices.append(fitting)
    made, open_to_both = 0, [number for number, fitting in enumerate(choices) if len(fitting) > 1]
    for chosen in product(*choices):
        if len({_is_in_out(chosen[number].pattern) for number in open_to_both}) < 2:  # all x @ W, or all x @ W.T
            made += 1
            yield (*chosen, *_biases(chosen, groups, shapes, problem))
        if made == MOST_CHOICES:
            return


def strange_arrays(thing: Any, slots: tuple[Slot, ...], heads: int) -> list[str]:
    """The arrays that no slot explains."""
    known = {slot.name.format(head) for slot in slots for head in range(heads)}
    return [name for name in arrays_of(thing) if name not in known]


def _each(role: str) -> tuple[str, ...]:
    return ("n d", "d n") if role == "o" else ("d m", "m d")


def _grouped(shapes: Mapping[str, tuple[int, ...]], heads: int) -> dict[str, list[str]]:
    """Names, with {} for the number of a head where there is one array of a shape for each."""
    numbered: dict[str, list[str]] = {}
    for name in shapes:
        numbered.setdefault(re.sub(r"(?<![^.])\d+(?![^.])", "{}", name, count=1), []).append(name)
    made: dict[str, list[str]] = {}
    for template, names in numbered.items():
        is_group = "{}" in template and len(names) == heads > 1 and len({shapes[name] for name in names}) == 1
        if (
            is_group
            and names == [template.format(head) for head in range(heads)]
            and meaning_of_path(template.format(0))
        ):
            made[template] = names
        else:
            made |= {name: [name] for name in names}
    return made


def _roles(groups: Mapping[str, list[str]], shapes: Mapping[str, tuple[int, ...]]) -> dict[str, str]:
    """Name -> role of the weights: by name, and in the order q, k, v, o where names say nothing."""
    weights = [name for name in groups if len(shapes[name.format(0)]) > 1 and not _is_bias(name)]
    meanings = {name: meaning_of_path(name.format(0)) for name in weights}
    roles: dict[str, str] = {}
    for name in sorted(weights, key=lambda name: meanings[name] is not None and meanings[name].is_vague):  # type: ignore[union-attr]
        meaning = meanings[name]
        if meaning is not None and not set(meaning.role) & set("".join(roles.values())):
            roles[name] = meaning.role
    left = [name for name in weights if name not in roles]
    free = [role for role in "qkvo" if role not in "".join(roles.values())]
    together = "".join(role for role in free if role != "o")
    if len(left) == len(free) - len(together) + 1 and len(together) > 1:  # one for all that is missing, and W_o
        free = [together, *(["o"] if "o" in free else [])]
    roles |= dict(zip(left, free, strict=False))
    return {name: roles[name] for name in weights if name in roles}


def _is_bias(name: str) -> bool:
    meaning = meaning_of_path(name.format(0))
    return meaning is not None and meaning.is_bias


def _may_hold(thing: Any, name: str, pattern: str) -> bool:
    """A Linear is (out, in), GPT-2's Conv1D (in, out); any other array may be either."""
    owner = _owner(thing, name)
    if isinstance(owner, nn.Linear):
        return not _is_in_out(pattern)
    return _is_in_out(pattern) if type(owner).__name__ == "Conv1D" else True


def _is_in_out(pattern: str) -> bool:
    """Whether the array is multiplied from the right: x @ W."""
    return pattern.removeprefix("r ").startswith("m") or pattern.endswith("n")


def _owner(thing: Any, name: str) -> Any:
    for part in name.split(".")[:-1]:
        thing = thing[int(part)] if part.isdecimal() and not isinstance(thing, nn.Module) else getattr(thing, part)
    return thing


def _biases(
    weights: tuple[Slot, ...],
    groups: Mapping[str, list[str]],
    shapes: Mapping[str, tuple[int, ...]],
    problem: Multihead,
) -> Iterator[Slot]:
    taken = {slot.name for slot in weights}
    stems = {_stem(name) for name in groups if len(shapes[name.format(0)]) > 1 and not _is_bias(name)}
    by_role = {slot.role: slot for slot in weights}
    for name in groups:
        if name in taken:
            continue
        sibling = next((slot for slot in weights if _stem(slot.name) == _stem(name)), None)
        meaning = meaning_of_path(name.format(0))
        by_name = meaning is not None and meaning.is_bias and _stem(name) not in stems  # no other weight's bias
        slot = sibling or (by_role.get(meaning.role) if meaning is not None and by_name else None)
        if slot is None or slot.each_head != ("{}" in name):
            continue
        axes = len(shapes[name.format(0)])
        pattern = bias_pattern(slot.pattern, axes) if not slot.each_head else ("n" if slot.role == "o" else "d")
        found = replace(slot, name=name, pattern=pattern, is_bias=True)
        if fits(found, problem, shapes):
            yield found


def _stem(name: str) -> str:
    return re.sub(r"[._]?(weight|bias|kernel)$", "", name)
