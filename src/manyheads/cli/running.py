"""The model of a verb that runs one. Apart from what all verbs share: `manyheads cost` reaches no torch."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from manyheads.cli.common import need

if TYPE_CHECKING:
    from manyheads.checkpoints import Checkpoint

__all__ = ["open_runnable"]


def open_runnable(options: argparse.Namespace, *packages: str, to: str) -> Checkpoint:
    """The model that is named, or the demo model, read for a verb that runs it with `packages`.

    What has no weights and packages that are not there are refused before a hub is asked or anything heavy is imported.
    """
    from manyheads.checkpoints import open_model
    from manyheads.checkpoints.demo import DEMO
    from manyheads.checkpoints.locate import locate
    from manyheads.models.load.model import check_runnable

    found = locate(options.model or DEMO)
    check_runnable(found)
    for package in packages:
        need(package, to=to)
    return open_model(found, revision=options.revision, assume=options.assume)
