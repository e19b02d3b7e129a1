"""Whether a tokenizer was read from files: of a folder without any, transformers makes an empty one of the model's kind."""

from __future__ import annotations

import os
from typing import Any

__all__ = ["invented"]

_FILES = ("tokenizer.json", "tokenizer.model", "tekken.json", "vocab.json", "vocab.txt")


def invented(tokenizer: Any, folder: str) -> str:
    """Why `tokenizer`, loaded from `folder`, is none of the model's, "" where it is.

    A Gemma's without files knows 5 tokens and makes one of any text, a BERT's says [UNK] to every word: a loss on these would
    be a number about nothing. A tokenizer whose kind keeps no vocabulary (bytes, characters) needs no file.
    """
    own = getattr(tokenizer, "vocab_files_names", None) or {}
    names = {name for value in own.values() for name in ([value] if isinstance(value, str) else value)}
    if not names or any(os.path.isfile(os.path.join(folder, name)) for name in names.union(_FILES)):
        return ""
    return f"no tokenizer: the model came without the files of one ({', '.join(sorted(names))})"
