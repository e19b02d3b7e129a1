"""The tensor types of ggml: how many elements a block holds and how many bytes it takes.

Weights in GGUF files and quantised KV caches (q8_0, q4_0) are stored in such blocks, so a size in bits an element is
the exact fraction 8 * block_bytes / block_elements: q8_0 is 34 bytes for 32 elements, 8.5 bits.

Source: ggml's type table, as gguf 0.19.0 carries it (GGMLQuantizationType, GGML_QUANT_SIZES); a test compares.
"""

from __future__ import annotations

from collections.abc import Mapping

from manyheads.errors import SpecError
from manyheads.quoting import shown

__all__ = ["GGML_BLOCKS", "GGML_CODES", "block_of"]

# (code in the file, name, elements in a block, bytes of a block); the codes left out were withdrawn from ggml.
_TABLE = (
    (0, "F32", 1, 4),
    (1, "F16", 1, 2),
    (2, "Q4_0", 32, 18),
    (3, "Q4_1", 32, 20),
    (6, "Q5_0", 32, 22),
    (7, "Q5_1", 32, 24),
    (8, "Q8_0", 32, 34),
    (9, "Q8_1", 32, 40),
    (10, "Q2_K", 256, 84),
    (11, "Q3_K", 256, 110),
    (12, "Q4_K", 256, 144),
    (13, "Q5_K", 256, 176),
    (14, "Q6_K", 256, 210),
    (15, "Q8_K", 256, 292),
    (16, "IQ2_XXS", 256, 66),
    (17, "IQ2_XS", 256, 74),
    (18, "IQ3_XXS", 256, 98),
    (19, "IQ1_S", 256, 50),
    (20, "IQ4_NL", 32, 18),
    (21, "IQ3_S", 256, 110),
    (22, "IQ2_S", 256, 82),
    (23, "IQ4_XS", 256, 136),
    (24, "I8", 1, 1),
    (25, "I16", 1, 2),
    (26, "I32", 1, 4),
    (27, "I64", 1, 8),
    (28, "F64", 1, 8),
    (29, "IQ1_M", 256, 56),
    (30, "BF16", 1, 2),
    (34, "TQ1_0", 256, 54),
    (35, "TQ2_0", 256, 66),
    (39, "MXFP4", 32, 17),
    (40, "NVFP4", 64, 36),
    (41, "Q1_0", 128, 18),
)

GGML_CODES: Mapping[int, str] = {code: name for code, name, _, _ in _TABLE}
GGML_BLOCKS: Mapping[str, tuple[int, int]] = {name: (elements, bytes_) for _, name, elements, bytes_ in _TABLE}


def block_of(type_name: str) -> tuple[int, int]:
    """(elements, bytes) of a block of the ggml type, in either spelling: ``Q8_0`` or ``q8_0`` is (32, 34).

    Raises SpecError for a name that ggml does not have.
    """
    found = GGML_BLOCKS.get(type_name.upper())
    if found is None:
        raise SpecError(f"ggml has no type {shown(type_name)}; it has {', '.join(GGML_BLOCKS)}")
    return found
