"""The exceptions of manyheads.

ManyheadsError
 ├── SpecError         a description of a layer or a model that cannot be
 ├── CheckpointError   a file or folder that cannot be read as a model
 ├── ConversionError   a model that cannot be turned into the one asked for
 └── BackendError      a fast path or a package that is not there

Every message is one line of at most 1,000 characters: what was asked, what was found with its numbers, what would be valid.
"""

from __future__ import annotations

from manyheads.quoting import one_line

__all__ = ["BackendError", "CheckpointError", "ConversionError", "ManyheadsError", "SpecError"]

_LONGEST_MESSAGE = 1000


class ManyheadsError(Exception):
    """Base of every error that manyheads raises on purpose; the command line prints it as one line, exit status 2."""

    def __init__(self, message: object = "") -> None:
        """Whatever a message quotes, it stays one line, and nothing in it moves a terminal."""
        super().__init__(one_line(str(message), _LONGEST_MESSAGE))


class SpecError(ManyheadsError, ValueError):
    """A description of attention that contradicts itself; the message holds both numbers."""


class CheckpointError(ManyheadsError, ValueError):
    """A configuration or a weight file that is missing, broken or not understood; the message names the file and field."""


class ConversionError(ManyheadsError, ValueError):
    """A change of a model that cannot be made, or that would not be what it claims."""


class BackendError(ManyheadsError, RuntimeError):
    """Something that is not installed or not supported here; the message says how to get it."""
