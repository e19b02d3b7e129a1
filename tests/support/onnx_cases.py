"""The backend node cases of the installed onnx package: collected, kept in a file, read as plain values.

onnx makes inputs and expected outputs in process, with reference code of its own, and its collector fills one global
list: a second call for another operator returns the first one's cases. So every operator is collected in a process of
its own, once, into an .npz file in the temporary folder, named by onnx's version. No pickle.
"""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

__all__ = ["TOLERANCES", "Case", "collect", "differences"]

# (rtol, atol): the cases' own 1e-3 of the value, and what rounding of the result to its dtype allows
TOLERANCES = {
    torch.float32: (1e-3, 1e-5),
    torch.float16: (1e-3, 2e-3),
    torch.bfloat16: (1e-3, 2e-2),
}


@dataclass(frozen=True)
class Case:
    """One case of one operator: inputs and expected outputs by the operator's own names, in its own dtypes."""

    name: str
    operator: str
    opset: int
    attributes: Mapping[str, Any]
    inputs: Mapping[str, Tensor]
    outputs: Mapping[str, Tensor]
    model: bytes


@cache
def collect(operator: str) -> tuple[Case, ...]:
    """The plain cases of `operator` (its "expanded" twins, where the function's body stands in for it, left out)."""
    user = os.getuid() if hasattr(os, "getuid") else 0
    folder = Path(tempfile.gettempdir()) / f"manyheads-onnx-{version('onnx')}-form1-{user}"
    file = folder / f"{operator}.npz"
    if not file.exists():
        folder.mkdir(mode=0o700, exist_ok=True)
        done = subprocess.run(
            [sys.executable, "-W", "ignore", __file__, operator, str(file)],
            check=False, capture_output=True, text=True, timeout=300,
        )  # fmt: skip
        if done.returncode:
            raise RuntimeError(f"onnx could not make the cases of {operator}: {done.stderr[-2000:]}")
    with np.load(file, allow_pickle=False) as held:
        return tuple(_case(held, number, entry) for number, entry in enumerate(json.loads(str(held["index"]))))


def _case(held: Any, number: int, entry: dict[str, Any]) -> Case:
    def tensors(kind: str) -> dict[str, Tensor]:
        made = (
            (name, torch.from_numpy(held[f"{number}.{kind}.{i}"]).to(getattr(torch, dtype)))
            for i, (name, dtype) in enumerate(entry[kind])
        )
        return {name: value for name, value in made if name}

    return Case(
        entry["name"], entry["operator"], entry["opset"], entry["attributes"], tensors("inputs"), tensors("outputs"),
        held[f"{number}.model"].tobytes(),
    )  # fmt: skip


def differences(case: Case, got: Mapping[str, Tensor]) -> list[str]:
    """What is wrong with `got`, a line an output; an empty list where everything is as expected (NaN equals NaN)."""
    lines = []
    for name, want in case.outputs.items():
        have = got.get(name)
        if have is None:
            lines.append(f"{name}: missing")
        elif have.shape != want.shape or have.dtype != want.dtype:
            lines.append(f"{name}: {have.dtype} {tuple(have.shape)}, expected {want.dtype} {tuple(want.shape)}")
        else:
            rtol, atol = TOLERANCES[want.dtype]
            if not torch.allclose(have.double(), want.double(), rtol=rtol, atol=atol, equal_nan=True):
                # -inf in both places is no difference
                off = torch.where(have == want, 0.0, (have.double() - want.double()).abs())
                lines.append(f"{name}: off by {off.max().item():.3g}, allowed are {atol:g} + {rtol:g} of the value")
    return lines


def _write(operator: str, file: Path) -> None:
    """Runs in a process of its own."""
    from onnx.backend.test.case.node import collect_testcases
    from onnx.helper import get_attribute_value

    index, arrays = [], {}
    plain = [case for case in collect_testcases(operator) if "expanded" not in case.name]
    for number, case in enumerate(plain):
        node = case.model.graph.node[0]
        entry: dict[str, Any] = {"name": case.name, "operator": operator, "opset": case.model.opset_import[0].version}
        values = {item.name: get_attribute_value(item) for item in node.attribute}
        entry["attributes"] = {k: v.decode() if isinstance(v, bytes) else v for k, v in values.items()}
        for kind, names, data in zip(("inputs", "outputs"), _names(operator, node), case.data_sets[0], strict=True):
            entry[kind] = [
                (name, str(array.dtype).replace("int64", "long")) for name, array in zip(names, data, strict=True)
            ]
            for i, array in enumerate(data):
                arrays[f"{number}.{kind}.{i}"] = array.astype(np.float32) if array.dtype.name == "bfloat16" else array
        arrays[f"{number}.model"] = np.frombuffer(case.model.SerializeToString(), dtype=np.uint8)
        index.append(entry)
    buffer = io.BytesIO()
    np.savez_compressed(buffer, index=np.array(json.dumps(index)), **arrays)
    part = file.with_suffix(f".{os.getpid()}")
    part.write_bytes(buffer.getvalue())
    part.replace(file)


def _names(operator: str, node: Any) -> tuple[list[str], list[str]]:
    """The schema's names of the inputs and outputs that are there (a node may call them otherwise)."""
    import onnx

    schema = onnx.defs.get_schema(operator)
    ins = [formal.name for formal, name in zip(schema.inputs, node.input, strict=False) if name]
    return ins, [formal.name for formal, name in zip(schema.outputs, node.output, strict=False) if name]


if __name__ == "__main__":
    _write(sys.argv[1], Path(sys.argv[2]))
