"""The files beside a model's weights: a tokenizer's, and what generation starts with. transformers opens them, not we."""

from __future__ import annotations

import os
from pathlib import Path

from manyheads.checkpoints.files import check_regular, read_small
from manyheads.checkpoints.json_config import MAX_CONFIG_BYTES

__all__ = ["check_beside", "read_beside"]

_MAX_VOCABULARY_BYTES = 2**28  # the largest, of 262,144 tokens and their merges, have some 35 MB

_VOCABULARIES = (
    "merges.txt", "normalizer.json", "sentencepiece.bpe.model", "source.spm", "spiece.model", "target.spm", "tekken.json",
    "tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt",
)  # fmt: skip
_SETTINGS = (
    "added_tokens.json", "chat_template.jinja", "chat_template.json", "generation_config.json",
    "preprocessor_config.json", "processor_config.json", "special_tokens_map.json", "tokenizer_config.json",
)  # fmt: skip
_MOST_BYTES = dict.fromkeys(_VOCABULARIES, _MAX_VOCABULARY_BYTES) | dict.fromkeys(_SETTINGS, MAX_CONFIG_BYTES)


def check_beside(folder: str) -> None:
    """Raises CheckpointError for a file that transformers would open and that is none, or is too large for what it is.

    A pipe would be waited for without end, and JSON takes twenty times its size in memory.
    """
    # The configuration was read by us; an adapter's is opened too, where peft is installed.
    for name, most in {**_MOST_BYTES, "config.json": MAX_CONFIG_BYTES, "adapter_config.json": MAX_CONFIG_BYTES}.items():
        path = os.path.join(folder, name)
        if os.path.exists(path):
            check_regular(path, wanted="a file of the model", most=most)


def read_beside(folder: str) -> dict[str, bytes]:
    """The files that go where the model goes, by name. Raises CheckpointError as `check_beside` does."""
    paths = {name: Path(folder, name) for name in sorted(_MOST_BYTES)}
    return {
        name: read_small(path, wanted="a file of the model", most=_MOST_BYTES[name])
        for name, path in paths.items()
        if os.path.exists(path)
    }
