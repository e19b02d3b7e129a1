"""The words of check: layouts, and what a function may take or not. No torch here: the command line reads it, too."""

from __future__ import annotations

from collections.abc import Iterable

from manyheads.cost.dtypes import dtype_among
from manyheads.errors import SpecError

__all__ = ["DTYPES", "FEATURES", "LAYOUTS", "MASK_AXES", "POLARITIES", "check_words"]

LAYOUTS = {
    "bhtd": "(batch, heads, tokens, dim)",
    "bthd": "(batch, tokens, heads, dim)",
    "btd": "(batch, tokens, dim)",
    "tbd": "(tokens, batch, dim)",
    "htd": "(heads, tokens, dim)",
    "thd": "(tokens, heads, dim)",
    "td": "(tokens, dim)",
}
"""Each layout by its letters. `btd` and `tbd` are packed heads where the function takes a number of heads, else one head."""

MASK_AXES = {
    "bhts": "(batch, heads, queries, keys)",
    "bts": "(batch, queries, keys)",
    "ts": "(queries, keys)",
    "nts": "(batch x heads, queries, keys)",
    "tsb": "(queries, keys, batch)",
}

POLARITIES = {
    "visible": "True = may attend",
    "blocked": "True = blocked",
    "additive": "numbers, 0 = may attend, -inf = blocked",
}

DTYPES = ("fp32", "fp64", "bf16", "fp16")
"""What --dtype takes."""

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
    "causal-cross": "takes as many queries as keys only, where it is causal",
    "causal-mask": "takes no mask together with the causal flag",
    "window": "takes no window",
    "grouped": "takes as many key/value heads as query heads only",
    "multi-query": "does not take one key/value head for several query heads",
    "scale": "takes no scale",
    "softcap": "takes no softcap",
    "sinks": "takes no sinks",
    "weights": "returns no weights",
    "gradients": "has no gradients",
    "strides": "takes contiguous tensors only",
    "empty": "takes no empty tensors",
    "empty-rows": "",
    "float64": "takes no float64",
    "float16": "takes no float16",
    "bfloat16": "takes no bfloat16",
    "projections": "is a function of q, k and v: it projects nothing",
    "biases": "has no biases",
    "cache": "takes no cache",
    "wide-heads": "its heads are as wide as x divided by their number",
    "dropout": "has no dropout to be set",
    "onnx": "the package onnx is not there",
}
"""feature -> what is said where a function lacks it. It is reported as not tested; nothing passes silently.

Some of them are also the names of demands that a right function may fail: `WEAK`.
"""

WEAK = {
    "heads": "a width that the number of heads does not divide is accepted",
    "wide-heads": "heads that are not as wide as x divided by their number, where the code takes them to be",
    "cross": "an error where there are more queries than keys",
    "causal-cross": "an error where there are more queries than keys and the causal flag",
    "empty-rows": "NaN, or the mean of the values, for a query that sees nothing: softmax over nothing is not defined",
    "grouped": "5 query heads with 2 key/value heads are accepted",
    "empty": "an error or NaN where there are no sequences, queries or keys",
    "strides": "an error where a tensor lies in memory in another order",
    "float64": "float64 is computed in float32, or comes back as another format",
    "float16": "overflow, or a softmax in float16",
    "bfloat16": "a softmax in bfloat16",
}
"""feature -> what of it is a weakness and no fault, unless it is required."""


def check_words(*, layout: str = "", mask: str = "", dtype: str = "", features: Iterable[str] = ()) -> None:
    """SpecError for a layout, a mask's way, a dtype or a feature that does not exist; "" is none asked for."""
    if dtype:
        dtype_among(dtype, DTYPES, "dtype")
    for kind, word, known in (("layout", layout, LAYOUTS), ("mask", mask, POLARITIES)):
        if word and word not in known:
            raise SpecError(f"{kind} {word!r} is not one of {', '.join(known)}")
    for feature in features:
        if feature not in FEATURES:
            raise SpecError(f"there is no feature {feature!r}; the features are {', '.join(FEATURES)}")
