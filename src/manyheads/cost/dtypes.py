"""Bytes of an element, exactly: plain types and the block formats of GGUF files and caches."""

from __future__ import annotations

from collections.abc import Iterable

from manyheads.cost.algebra import Number, ceil_div
from manyheads.errors import SpecError
from manyheads.facts.ggml_types import GGML_BLOCKS
from manyheads.quoting import shown
from manyheads.record import record

__all__ = [
    "CACHE_DTYPES",
    "DTYPES",
    "MODEL_DTYPES",
    "DType",
    "KVDType",
    "dtype",
    "dtype_among",
    "known_dtype",
    "kv_dtype",
]


@record
class DType:
    """A storage format: `block_bytes` bytes hold `block_elements` elements.

    `kind` says what arithmetic runs on it: "fp64", "fp32", "bf16", "fp16", "fp8", "int8" or "int4". `torch_name` and
    `safetensors_name` are what torch and safetensors files call it, "" where they have no such type.
    """

    name: str
    block_elements: int
    block_bytes: int
    kind: str
    torch_name: str = ""
    safetensors_name: str = ""

    def bytes(self, elements: Number) -> Number:
        """Bytes that hold `elements` elements, the last block rounded up."""
        if self.block_elements == 1:
            return elements * self.block_bytes
        return ceil_div(elements * self.block_bytes, self.block_elements)

    @property
    def bits_text(self) -> str:
        """Bytes an element for a sentence: "2" or "34/32"."""
        return str(self.block_bytes) if self.block_elements == 1 else f"{self.block_bytes}/{self.block_elements}"


@record
class KVDType:
    """What cached keys and values are kept in, the two apart or alike. MLA's latents and rotary keys count as keys: values
    are read out of the same rows.
    """

    keys: DType
    values: DType

    @property
    def name(self) -> str:
        """ "bf16" where both are kept alike, else keys before values: "q8_0/fp16"."""
        return self.keys.name if self.keys == self.values else f"{self.keys.name}/{self.values.name}"

    @property
    def wider(self) -> DType:
        """The one with more bytes an element: what running states, which are neither keys nor values, are priced in."""
        one, other = self.keys, self.values
        return one if one.block_bytes * other.block_elements >= other.block_bytes * one.block_elements else other

    def bytes(self, keys: Number, values: Number) -> Number:
        """Bytes of so many elements of keys and of values; kept alike, they share their last block."""
        if self.keys == self.values:
            return self.keys.bytes(keys + values)
        return self.keys.bytes(keys) + self.values.bytes(values)


# name: (elements a block, bytes a block, arithmetic, torch's name, safetensors' name)
_PLAIN = {
    "fp64": (1, 8, "fp64", "float64", "F64"),
    "fp32": (1, 4, "fp32", "float32", "F32"),
    "bf16": (1, 2, "bf16", "bfloat16", "BF16"),
    "fp16": (1, 2, "fp16", "float16", "F16"),
    "fp8": (1, 1, "fp8", "float8_e4m3fn", "F8_E4M3"),
    "int8": (1, 1, "int8", "int8", "I8"),
    "int4": (2, 1, "int4", "", ""),
}

# The block formats of ggml: 32 to 256 elements with their scales, widened before they are multiplied.
_BLOCKS = {
    name.lower(): (elements, size, "int4" if name in ("MXFP4", "NVFP4") else "int8", "", "")
    for name, (elements, size) in GGML_BLOCKS.items()
    if elements > 1
}
_TABLE = {name: DType(name, *row) for name, row in (_PLAIN | _BLOCKS).items()}

# Other words for them: torch's, numpy's, those of safetensors and of GGUF files, and what people write.
_WORDS = {
    "double": "fp64",
    "f64": "fp64",
    "float": "fp32",
    "f32": "fp32",
    "half": "fp16",
    "f16": "fp16",
    "16-bit": "bf16",
    "float8": "fp8",
    "fp8_e4m3": "fp8",
    "fp8_e5m2": "fp8",
    "f8_e4m3": "fp8",
    "f8_e5m2": "fp8",
    "float8_e5m2": "fp8",
    "i8": "int8",
    "u8": "int8",
    "uint8": "int8",
    "i4": "int4",
} | {row.torch_name: name for name, row in _TABLE.items() if row.torch_name}

DTYPES = tuple(_TABLE)
MODEL_DTYPES = ("fp32", "bf16", "fp16")
"""What models are run in."""
CACHE_DTYPES = ("model", *MODEL_DTYPES, "int8")
"""What our caches keep keys and values in; "model": as they come."""


def dtype(name: str) -> DType:
    """The format called `name` (any of the usual spellings); SpecError lists the valid ones."""
    if not isinstance(name, str):
        raise SpecError(f"a dtype is named by a word, found {shown(name)}; valid: {', '.join(DTYPES)}")
    found = known_dtype(name)
    if found is None:
        raise SpecError(f"unknown dtype {shown(name)}; valid: {', '.join(DTYPES)}")
    return found


def known_dtype(word: str) -> DType | None:
    """The same, None where no format has that name."""
    key = word.strip().lower().removeprefix("torch.")
    return _TABLE.get(_WORDS.get(key, key))


def dtype_among(word: str, valid: Iterable[str], asked: str) -> str:
    """The name of the format called `word`, which must be one of `valid`; these may hold other words too, as "model".

    SpecError says `asked` (a parameter, an option) and what is valid.
    """
    known = known_dtype(word) if isinstance(word, str) else None
    name = known.name if known else word
    names = tuple(valid)
    if name not in names:
        raise SpecError(f"{asked} {shown(word)} is not one of {', '.join(names)}")
    return name


def kv_dtype(name: str) -> KVDType:
    """The formats of keys and values: one for both, as in "q8_0", or keys before values, as in "q8_0/f16"."""
    parts = name.split("/") if isinstance(name, str) else [name]
    if len(parts) > 2:
        raise SpecError(f"a cache has one format, or those of keys and values as in q8_0/f16; found {shown(name)}")
    return KVDType(dtype(parts[0]), dtype(parts[-1]))
