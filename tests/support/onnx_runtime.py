"""onnxruntime as a second oracle for a node case."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from support.onnx_cases import Case

__all__ = ["run"]


def run(case: Case) -> dict[str, Tensor]:
    """The case's outputs by onnxruntime on the CPU; raises what it raises where it does not know the operator."""
    import onnxruntime

    quiet = onnxruntime.SessionOptions()
    quiet.log_severity_level = 4
    quiet.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(case.model, quiet, providers=["CPUExecutionProvider"])
    feeds = {theirs.name: ours.numpy() for theirs, ours in zip(session.get_inputs(), case.inputs.values(), strict=True)}
    made = session.run(None, feeds)
    return {name: torch.from_numpy(np.asarray(value)) for name, value in zip(case.outputs, made, strict=True)}
