"""What a function may take or not. A feature it lacks is reported as not tested, with the reason; it never passes silently."""

from __future__ import annotations

__all__ = ["FEATURES"]

FEATURES = {
    "heads": "takes one head only",
    "batch": "takes one sequence only",
    "cross": "takes as many queries as keys only",
    "value-width": "takes values as wide as keys only",
    "mask": "takes no mask",
    "mask-samples": "its mask is the same for all sequences",
    "mask-heads": "its mask is the same for all heads",
    "padding": "takes no padding mask",
    "bias": "takes nothing to add to the scores",
    "causal": "has no causal flag, and is not causal by itself",
    "causal-mask": "takes no mask together with the causal flag",
    "window": "takes no window",
    "grouped": "takes as many key/value heads as query heads only",
    "multi-query": "does not take one key/value head for several query heads",
    "scale": "takes no scale",
    "softcap": "takes no softcap",
    "sinks": "takes no sinks",
    "weights": "returns no weights",
    "gradients": "has no gradients",
    "float64": "takes no float64",
    "float16": "takes no float16",
    "bfloat16": "takes no bfloat16",
    "onnx": "the package onnx is not there",
}
"""feature -> what is said where a function lacks it."""
