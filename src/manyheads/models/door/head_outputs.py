"""Where the output of a head is taken: what it gives to the output projection, heads still apart.

Most modules hand on what the attention function returned, and there it is taken. Some change it first: a gate (Qwen3-Next,
AFMoE, Step 3.5), a norm over all heads (BitNet), a rotation back (DeepSeek V4). Of those, gates and observers of a door see
what arrives at the projection instead, by a hook that is there while the door is open. Which modules do so is read from
the source of their forward, as it is read whether they call the interface at all.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from torch import Tensor, nn

from manyheads.errors import BackendError

__all__ = ["INTERFACE", "expect", "projection_of", "routed", "tap", "untap"]

INTERFACE = "ALL_ATTENTION_FUNCTIONS"
# What modules call their output projection.
_PROJECTIONS = frozenset({
    "Wo", "c_proj", "dense", "linear", "o", "o_a_proj", "o_proj", "out", "out_lin", "out_proj", "output", "output_projection",
    "proj", "projection", "to_out", "wo",
})  # fmt: skip
# What changes the shape or type of a tensor and no number of it, or nothing in evaluation.
_HARMLESS = frozenset({
    "_recombine_heads", "cat", "clone", "contiguous", "dropout", "flatten", "float", "movedim", "permute", "reshape", "squeeze", "to", "transpose",
    "type_as", "unsqueeze", "view", "view_as",
})  # fmt: skip
_SIZES = frozenset({"dtype", "device", "dim", "shape", "size", "stride", "numel"})


def projection_of(module: nn.Module) -> nn.Module | None:
    """The module that `module`, an attention, hands its heads' outputs to after it changed them; None where it does not."""
    name, changed = routed(type(module).forward)
    inner: nn.Module | None = getattr(module, name, None) if name else None
    if not isinstance(inner, nn.Module):
        return None
    deeper, inside = routed(type(inner).forward, inside=True)
    last = getattr(inner, deeper, None) if deeper else None
    if inside and isinstance(last, nn.Module):
        return last
    return inner if changed else None


@lru_cache(maxsize=512)
def routed(forward: Callable[..., Any], *, inside: bool = False) -> tuple[str, bool]:
    """(name of the projection, whether the outputs are changed before it); "" where there is none to be found.

    inside  `forward` is that of a projection, whose first argument they are; else that of an attention that calls the
            interface, once: modules that mix the outputs of two calls have none.
    """
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(forward)))
    except (OSError, TypeError, SyntaxError):
        return "", False
    function = next((node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)), None)
    if function is None:
        return "", False
    route = _Route()
    if inside:
        route.outputs |= {argument.arg for argument in function.args.args[1:2]}
    for statement in _statements(function.body):
        if route.follow(statement):
            break
    return (route.found, route.changed) if inside or route.calls == 1 else ("", False)


def _statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Statements in the order of the text, those of branches after each other."""
    for statement in body:
        yield statement
        for name in ("body", "orelse", "finalbody"):
            yield from _statements(getattr(statement, name, None) or [])


class _Route:
    """Follows the names that hold the outputs from statement to statement."""

    def __init__(self) -> None:
        self.functions: set[str] = set()
        self.outputs: set[str] = set()
        self.changed = False
        self.calls = 0
        self.found = ""

    def follow(self, statement: ast.stmt) -> bool:
        """Takes a statement in; whether the outputs have arrived at a projection."""
        value = getattr(statement, "value", None)
        if not isinstance(statement, ast.Assign | ast.AnnAssign | ast.AugAssign | ast.Return) or value is None:
            return False
        targets = statement.targets if isinstance(statement, ast.Assign) else [getattr(statement, "target", None)]
        if any(isinstance(node, ast.Name) and node.id == INTERFACE for node in ast.walk(value)):
            self.functions |= {target.id for target in targets if isinstance(target, ast.Name)}
            return False
        if any(isinstance(node, ast.Call) and self._is_interface(node.func) for node in ast.walk(value)):
            self.calls += 1
            self.outputs |= _first_names(targets)
            return False
        projection = next((call for call in _own_calls(value) if call.func.attr in _PROJECTIONS  # type: ignore[attr-defined]
                           and any(self._holds(argument) for argument in call.args)), None)  # fmt: skip
        if projection is not None:
            self.found = projection.func.attr  # type: ignore[attr-defined]
            self.changed |= not all(self._plain(argument) for argument in projection.args[:1])
            return True
        if isinstance(statement, ast.AugAssign) and self._holds(statement.target):
            self.changed = True
        elif self._holds(value):
            self.changed |= not self._plain(value)
            self.outputs |= _first_names(targets)
        return False

    def _is_interface(self, node: ast.expr) -> bool:
        return isinstance(node, ast.Name) and node.id in self.functions

    def _holds(self, node: ast.AST) -> bool:
        """Whether the outputs themselves are in an expression, and not their sizes alone."""
        if isinstance(node, ast.Attribute) and node.attr in _SIZES:
            return False
        if isinstance(node, ast.Name):
            return node.id in self.outputs
        return any(self._holds(child) for child in ast.iter_child_nodes(node))

    def _plain(self, node: ast.expr) -> bool:
        """Whether an expression is the outputs with every number as it was."""
        if not self._holds(node):
            return False
        if isinstance(node, ast.Name):
            return True
        if isinstance(node, ast.Subscript):
            return self._plain(node.value)
        if isinstance(node, ast.Tuple | ast.List):
            return all(self._plain(each) for each in node.elts)
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            return False
        if "dropout" not in node.func.attr and node.func.attr not in _HARMLESS:
            return False
        held = node.func.value if self._holds(node.func.value) else node.args[0] if node.args else node
        return held is not node and self._plain(held)


def _own_calls(node: ast.AST) -> Iterator[ast.Call]:
    """The calls of the module's own parts in an expression, self.x(...), the outermost first."""
    for each in ast.walk(node):
        owner = each.func.value if isinstance(each, ast.Call) and isinstance(each.func, ast.Attribute) else None
        if isinstance(owner, ast.Name) and owner.id == "self" and isinstance(each, ast.Call):
            yield each


def _first_names(targets: list[Any]) -> set[str]:
    """What the first result is called: (out, weights) = ..., or out = ..."""
    firsts = [target.elts[0] if isinstance(target, ast.Tuple) else target for target in targets]
    return {first.id for first in firsts if isinstance(first, ast.Name)}


@dataclass(frozen=True, eq=False)
class _Expected:
    """What shall be done with the outputs of a call when they arrive: `like` (b, h, t, v) is what attention gave."""

    like: Tensor
    then: Callable[[Tensor], Tensor]
    where: str


# By thread and attention module, between the attention function and the projection.
_expected: dict[tuple[int, int], _Expected] = {}
# By attention module: the hook on its projection, and how many open doors want it.
_taps: dict[int, tuple[Any, int]] = {}
_lock = threading.Lock()


def expect(module: nn.Module, like: Tensor, then: Callable[[Tensor], Tensor], *, where: str) -> None:
    """When the outputs of `module` arrive at its projection, give it what `then` makes of them, (b, h, t, v) as `like`."""
    _expected[threading.get_ident(), id(module)] = _Expected(like, then, where)


def tap(projections: Mapping[int, nn.Module]) -> None:
    """Put a hook on each projection, until `untap`; doors that nest share it."""
    with _lock:
        for key, projection in projections.items():
            handle, doors = _taps.get(key, (None, 0))
            if handle is None:
                handle = projection.register_forward_pre_hook(lambda _, given, key=key: _arrived(key, given))
            _taps[key] = (handle, doors + 1)


def untap(projections: Mapping[int, nn.Module]) -> None:
    """Take back what `tap` put there; the last door to do so removes the hooks."""
    with _lock:
        for key in projections:
            handle, doors = _taps.pop(key)
            if doors > 1:
                _taps[key] = (handle, doors - 1)
                continue
            handle.remove()
            for left in [one for one in _expected if one[1] == key]:  # of a forward that ended in an exception
                del _expected[left]


def _arrived(key: int, given: tuple[Any, ...]) -> tuple[Any, ...] | None:
    expected = _expected.pop((threading.get_ident(), key), None)
    if expected is None:  # a thread that has no door open
        return None
    b, h, t, v = expected.like.shape
    x = given[0]
    if x.numel() != b * t * h * v:
        raise BackendError(
            f"{expected.where}: its output projection is given {tuple(x.shape)}, where {h} heads of {v} numbers for {t} tokens "
            f"in {b} sequences were expected: heads cannot be told apart there"
        )
    out = x.reshape(b, t, h, v).transpose(1, 2)
    new = expected.then(out)
    return None if new is out else (new.transpose(1, 2).reshape(x.shape).to(x.dtype), *given[1:])
