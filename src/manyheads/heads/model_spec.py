"""The spec of a model whose heads are looked at or removed, with its record of those that were removed before."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from torch import nn

from manyheads.checkpoints.config import ModelConfig, NotUnderstoodError, read_config, text_part
from manyheads.checkpoints.families import named
from manyheads.checkpoints.family import Family
from manyheads.checkpoints.pruned import KEY, Pruning, read_pruning, shrunk
from manyheads.errors import CheckpointError, ConversionError
from manyheads.spec.stack import StackSpec

__all__ = ["Described", "about_removing", "describe", "model_settings", "stated_stack"]


@dataclass(frozen=True)
class Described:
    """A transformers model as our rooms know it: its family, what it was without its record, what it is, the record."""

    family: Family
    stated: StackSpec
    stack: StackSpec
    before: Pruning | None


def describe(model: nn.Module) -> Described:
    """What a model of transformers is, by its configuration. CheckpointError and ConversionError as in `stated_stack`."""
    name = type(model).__name__
    stated = _read(model_settings(model), name)
    before = read_pruning({KEY: getattr(model.config, KEY, None)}, stated.stack, source=name)
    stack = shrunk(stated.stack, before) if before is not None and before.form == "compact" else stated.stack
    return Described(named(stated.family), stated.stack, stack, before)


def model_settings(model: nn.Module) -> dict[str, Any]:
    """The configuration of a model, apart from its record of removed heads."""
    config: Any = model.config
    settings: dict[str, Any] = config.to_dict()
    settings.pop(KEY, None)
    return settings | {"architectures": [type(model).__name__]}  # says which parts of the family's model there are


def stated_stack(settings: Mapping[str, Any], *, source: str) -> StackSpec:
    """What a configuration describes apart from its record of removed heads.

    Raises ConversionError for the text part of a larger model, of which nothing is written here, and CheckpointError for a
    configuration that is not understood.
    """
    return _read({key: value for key, value in settings.items() if key != KEY}, source).stack


def _read(settings: Mapping[str, Any], source: str) -> ModelConfig:
    if text_part(settings)[0] is not settings:
        raise ConversionError(f"{source}: heads of the text part of a larger model are not removed here")
    with about_removing():
        return read_config(settings, source=source)


@contextmanager
def about_removing() -> Iterator[None]:
    """Errors of reading a model, without the advice how to price what is not understood: its heads cannot be removed."""
    try:
        yield
    except NotUnderstoodError as error:
        raise CheckpointError(f"{error.said}; heads of attention that is not understood cannot be removed") from None
