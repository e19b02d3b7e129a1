"""A model of transformers run one layer at a time over many windows of text: only what passes between layers is kept.

The model's own forward makes what a layer is called with (masks, angles), with the layers before it skipped; what they gave
lies in a file that is mapped into memory, so that memory does not grow with the text. Every layer reads what the original
model gives it.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from manyheads.convert.source import Source
from manyheads.errors import ConversionError
from manyheads.models.door.attentions import find_attentions
from manyheads.models.door.door import Call, Observer, open_door

__all__ = ["Layer", "LayerRun"]


@dataclass(frozen=True)
class Layer:
    """A layer of the stack. `path`: its module; `attention`: its self-attention's, "" where none passes through the door."""

    index: int
    path: str
    attention: str


class _Enough(Exception):  # noqa: N818  no error: the rest of the forward is not needed
    """Ends a forward where what is wanted has been seen."""


class LayerRun(AbstractContextManager["LayerRun"]):
    """Windows of tokens on their way through a model, layer by layer.

    `done`: how many layers were advanced through. Raises ConversionError for a model that is not one stack of layers in a row.
    """

    def __init__(self, source: Source, windows: Sequence[Tensor]) -> None:
        self.source = source
        self.windows = tuple(windows)
        self.layers = _layers(source)
        self._exit = ExitStack()
        self._folder = Path(self._exit.enter_context(tempfile.TemporaryDirectory(prefix="manyheads-")))
        self._ends = torch.tensor([window.numel() for window in self.windows]).cumsum(0).tolist()
        self._now: Tensor | None = None
        self.done = 0
        self._outer: dict[tuple[int, int], Any] = {}
        source.holding_surroundings(self.layers[0].path.rpartition(".")[0])

    def attention(self, layer: Layer, observer: Observer, *, inside: Callable[[], object] = lambda: None) -> None:
        """Run the layers' attention alone on every window; `observer` sees its call and its heads' outputs.

        `inside` is called before each window.
        """
        self._check(layer)

        def last(call: Call, outputs: Tensor) -> None:
            if call.path == layer.attention:
                observer(call, outputs)
                raise _Enough

        with self.source.holding(layer.path), open_door(self.source.model, observers=[last], mode="eval"):
            for number in range(len(self.windows)):
                inside()
                self._forward(layer, number)

    def calls(self, layer: Layer, seen: Callable[[int, tuple[Any, ...], dict[str, Any], Any], None]) -> None:
        """Run the whole layer; `seen` gets each window's number and what its attention module was given and gave."""
        self._check(layer)
        module = self.source.model.get_submodule(layer.attention)
        at = 0

        def hook(_: nn.Module, given: tuple[Any, ...], named: dict[str, Any], out: Any) -> None:
            seen(at, given, named, out)
            raise _Enough

        handle = module.register_forward_hook(hook, with_kwargs=True)
        try:
            with self.source.holding(layer.path):
                for at in range(len(self.windows)):
                    self._forward(layer, at)
        finally:
            handle.remove()

    def advance(self, layer: Layer, observer: Observer | None = None) -> None:
        """Run the whole layer on every window, and go on to the next; `observer` sees its attention on the way."""
        self._check(layer)
        kept: Tensor | None = None
        last = layer.index == len(self.layers) - 1

        def looked(call: Call, outputs: Tensor) -> None:
            if observer is not None and call.path == layer.attention:
                observer(call, outputs)

        looking = open_door(self.source.model, observers=[looked], mode="eval") if observer is not None else ExitStack()
        with self.source.holding(layer.path), looking:
            for number in range(len(self.windows)):
                hidden = self._forward(layer, number)
                if last:
                    continue
                if kept is None:
                    kept = self._file(hidden, layer.index)
                kept[self._rows(number)] = hidden[0]
        self._now, self.done = kept, layer.index + 1
        for path in self._folder.glob("*.hidden"):
            if path.name != f"{layer.index}.hidden":
                path.unlink()

    def __exit__(self, *_: object) -> None:
        self._now = None
        self._exit.close()

    def _check(self, layer: Layer) -> None:
        if layer.index != self.done:
            raise AssertionError(f"layer {layer.index} is asked for where layer {self.done} is next")

    def _rows(self, number: int) -> slice:
        return slice(self._ends[number] - self.windows[number].numel(), self._ends[number])

    def _file(self, hidden: Tensor, index: int) -> Tensor:
        path, rows = self._folder / f"{index}.hidden", self._ends[-1]
        path.touch()
        size = rows * hidden.shape[-1]
        mapped = torch.from_file(str(path), shared=True, size=size, dtype=hidden.dtype)
        return mapped.view(rows, hidden.shape[-1])

    def _forward(self, layer: Layer, number: int) -> Tensor:
        """One window through `layer`; what the layer gives, (1, t, m), empty where its attention was enough."""
        found: list[Tensor] = []
        given = None if self._now is None else self._now[self._rows(number)].clone().unsqueeze(0)
        body = getattr(self.source.model, "base_model", self.source.model)
        ids = self.windows[number].unsqueeze(0).to(_device(self.source.model))
        with _stopping(self._modules(), layer.index, given, found, self._outer), torch.no_grad():
            try:
                body(input_ids=ids, **_uncached(body))
            except _Enough:
                return found[0] if found else torch.empty(0)
        raise ConversionError(
            f"{type(body).__name__}: layer {layer.index} was not called; layers in a row are expected"
        )

    def _modules(self) -> list[nn.Module]:
        return [self.source.model.get_submodule(layer.path) for layer in self.layers]


@contextmanager
def _stopping(
    modules: Sequence[nn.Module],
    index: int,
    given: Tensor | None,
    found: list[Tensor],
    outer: dict[tuple[int, int], Any],
) -> Iterator[None]:
    """The layers before `index` hand on what they are given, and `index` itself reads `given` and ends the forward."""

    def skipped(at: int) -> Callable[..., Any]:
        def one(*arguments: Any, **named: Any) -> Any:
            hidden = _hidden(arguments, named)
            rest = outer.get((at, hidden.shape[1]))
            return hidden if rest is None else (hidden, *rest)

        return one

    def run(forward: Callable[..., Any]) -> Callable[..., Any]:
        def one(*arguments: Any, **named: Any) -> Any:
            if given is not None:
                if arguments:
                    arguments = (given, *arguments[1:])
                else:
                    named = {**named, "hidden_states": given}
            out = forward(*arguments, **named)
            hidden, rest = (out[0], out[1:]) if isinstance(out, tuple) else (out, None)
            outer[index, hidden.shape[1]] = rest  # T5's layers hand on the bias that the first one makes
            found.append(hidden)
            raise _Enough

        return one

    for at in range(index):
        modules[at].forward = skipped(at)
    modules[index].forward = run(modules[index].forward)
    try:
        yield
    finally:
        for module in modules[: index + 1]:
            del module.forward  # the instance's own: the class's is there again


def _hidden(arguments: tuple[Any, ...], named: dict[str, Any]) -> Tensor:
    found: Tensor = arguments[0] if arguments else named["hidden_states"]
    return found


def _device(model: nn.Module) -> torch.device:
    return next((p.device for p in model.parameters() if p.device.type != "meta"), torch.device("cpu"))


def _uncached(body: nn.Module) -> dict[str, Any]:
    return {"use_cache": False} if hasattr(getattr(body, "config", None), "use_cache") else {}


def _layers(source: Source) -> tuple[Layer, ...]:
    """The layers of the model's only stack, from the modules that hold its attentions."""
    name = type(source.model).__name__
    if len(source.stack.stacks) > 1:
        raise ConversionError(
            f"{name}: an encoder and a decoder are not run layer by layer; valid: models of one stack"
        )
    attentions = find_attentions(source.model).paths.values()
    lists = {
        path: module
        for path, module in source.model.named_modules()
        if isinstance(module, nn.ModuleList) and len(module) == len(source.stack.main.blocks)
        and any(each.startswith(f"{path}.") for each in attentions)
    }  # fmt: skip
    if not lists:
        raise ConversionError(f"{name}: no row of its {len(source.stack.main.blocks)} layers was found")
    row = min(lists, key=len)
    return tuple(
        Layer(index, f"{row}.{index}", next((each for each in attentions if each.startswith(f"{row}.{index}.")), ""))
        for index in range(len(lists[row]))
    )
