"""The model of a verb that runs one. Apart from what all verbs share: `manyheads cost` reaches no torch."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from manyheads.cli.common import need

if TYPE_CHECKING:
    from manyheads.checkpoints import Checkpoint
    from manyheads.checkpoints.locate import Located

__all__ = ["open_runnable", "runnable"]


def runnable(options: argparse.Namespace) -> Located:
    """Where the model is that is named, or the demo model; refused where it has no weights."""
    from manyheads.checkpoints.demo import DEMO
    from manyheads.checkpoints.locate import locate
    from manyheads.models.load.model import check_runnable

    found = locate(options.model or DEMO)
    check_runnable(found)
    return found


def open_runnable(options: argparse.Namespace, *packages: str, to: str) -> Checkpoint:
    """The model that is named, read for a verb that runs it with `packages`; these are refused before a hub is asked."""
    from manyheads.checkpoints import open_model

    found = runnable(options)
    for package in packages:
        need(package, to=to)
    return open_model(found, revision=options.revision, assume=options.assume)
