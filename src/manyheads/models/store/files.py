"""Weight files that give up one tensor at a time: safetensors, mapped into memory, and GGUF, dequantised."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import TYPE_CHECKING, Any, Protocol

from torch import Tensor

from manyheads.errors import BackendError, CheckpointError
from manyheads.quoting import shown, shown_path

if TYPE_CHECKING:
    from manyheads.checkpoints.gguf_header import GGUFHeader

__all__ = ["Files", "GgufFile", "InMemory", "SafetensorsFiles"]


class Files(Protocol):
    """Stored tensors by their names in the files; nothing is read before it is asked for."""

    @property
    def path(self) -> str:
        """What they were read from."""
        ...

    @property
    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """The shape of each tensor."""
        ...

    @property
    def numbers(self) -> Mapping[str, int]:
        """Which of several .safetensors files holds each tensor, counted from 0; empty where they are no such files."""
        ...

    def read(self, name: str) -> Tensor:
        """The tensor."""
        ...

    def rows(self, name: str, start: int, stop: int) -> Tensor:
        """Some rows of it."""
        ...

    def close(self) -> None:
        """Let go of the files."""
        ...


class InMemory:
    """Tensors that are there already; what is read of them shares their memory."""

    def __init__(self, path: str, tensors: Mapping[str, Tensor]) -> None:
        self.path = path
        self.numbers: dict[str, int] = {}
        self.shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
        self._tensors = tensors

    def read(self, name: str) -> Tensor:
        return self._tensors[name]

    def rows(self, name: str, start: int, stop: int) -> Tensor:
        return self._tensors[name][start:stop]

    def close(self) -> None:
        self._tensors = {}


class SafetensorsFiles:
    """The tensors of one or several .safetensors files; their types are the files' own."""

    def __init__(self, path: str, files: tuple[str, ...]) -> None:
        import safetensors

        self.path = path
        self.shapes: dict[str, tuple[int, ...]] = {}
        self.numbers: dict[str, int] = {}
        self._home: dict[str, Any] = {}
        self._open: list[Any] = []
        try:
            for number, file in enumerate(files):
                mapped = safetensors.safe_open(file, framework="pt")
                self._open.append(mapped)
                for name in mapped.keys():  # noqa: SIM118 - not a mapping
                    self._home[name], self.numbers[name] = mapped, number
                    self.shapes[name] = tuple(mapped.get_slice(name).get_shape())
        except (OSError, safetensors.SafetensorError) as error:
            raise CheckpointError(f"{shown_path(path)}: cannot be read ({_first_line(error)})") from None

    def read(self, name: str) -> Tensor:
        return self._get(name, None)

    def rows(self, name: str, start: int, stop: int) -> Tensor:
        return self._get(name, slice(start, stop))

    def _get(self, name: str, rows: slice | None) -> Tensor:
        import safetensors

        if not self._open:
            raise CheckpointError(f"{shown_path(self.path)}: the store is closed")
        try:
            home = self._home[name]
            return home.get_tensor(name) if rows is None else home.get_slice(name)[rows]
        except (OSError, RuntimeError, safetensors.SafetensorError) as error:
            reason = _first_line(error)
            raise CheckpointError(f"{shown_path(self.path)}: {shown(name)} cannot be read ({reason})") from None

    def close(self) -> None:
        self._open.clear()
        self._home.clear()


class GgufFile:
    """The tensors of one GGUF file, dequantised to float32 when they are asked for.

    The header is ours, since the gguf package's reader takes seconds for a vocabulary; unpacking blocks is theirs.
    """

    def __init__(self, header: GGUFHeader) -> None:
        try:
            import gguf
            import numpy
        except ImportError:
            raise BackendError("reading GGUF tensors needs the package gguf: pip install 'manyheads[models]'") from None
        self.path = header.path
        self.numbers: dict[str, int] = {}
        self.shapes = {tensor.name: tensor.shape for tensor in header.tensors}
        self._types = gguf.GGMLQuantizationType
        self._tensors = {t.name: (t, start) for t, start in zip(header.tensors, header.starts, strict=True)}
        try:
            self._bytes: Any = numpy.memmap(header.path, mode="r", dtype=numpy.uint8)
        except (OSError, ValueError) as error:
            raise CheckpointError(f"{shown_path(self.path)}: cannot be read ({_first_line(error)})") from None
        if int.from_bytes(self._bytes[4:8].tobytes(), "little") > 0xFFFF:
            raise CheckpointError(
                f"{shown_path(self.path)}: a big-endian GGUF file, whose blocks are not unpacked here"
            )

    def read(self, name: str) -> Tensor:
        return self._unpacked(name, None)

    def rows(self, name: str, start: int, stop: int) -> Tensor:
        if len(self.shapes[name]) < 2:  # one run of blocks
            return self.read(name)[start:stop].clone()
        return self._unpacked(name, slice(start, min(stop, self.shapes[name][0])))

    def _unpacked(self, name: str, rows: slice | None) -> Tensor:
        import torch
        from gguf.quants import dequantize

        if name not in self._tensors:
            raise CheckpointError(f"{shown_path(self.path)}: the store is closed")
        (tensor, start), shape = self._tensors[name], self.shapes[name]
        lines = self._bytes[start : start + tensor.nbytes].reshape(prod(shape[:-1]), -1)
        if rows is not None:
            each = len(lines) // shape[0]
            lines = lines[rows.start * each : rows.stop * each]
        try:
            values = dequantize(lines, self._types[tensor.dtype])
        except (NotImplementedError, KeyError):
            raise CheckpointError(
                f"{shown_path(self.path)}: {shown(name)} is {tensor.dtype}, which the package gguf cannot unpack"
            ) from None
        own = torch.from_numpy(values.copy()).to(torch.float32)
        return own.reshape(-1, *shape[1:]) if shape else own.reshape(())

    def close(self) -> None:
        self._tensors = {}
        self._bytes = None


def _first_line(error: BaseException) -> str:
    text = (getattr(error, "strerror", None) or str(error)).strip() or type(error).__name__
    return text.splitlines()[0][:200]
