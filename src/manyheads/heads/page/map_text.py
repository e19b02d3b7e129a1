"""What maps of heads are made of: a text as the model reads it, and the words that its tokens stand for."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from manyheads.errors import ManyheadsError
from manyheads.heads.alignment import Frame
from manyheads.heads.effects import reads_with_decoder
from manyheads.heads.page.widgets import token_texts
from manyheads.models.load.model import Loaded

__all__ = ["MAP_TOKENS", "map_text"]

MAP_TOKENS = 2_048
"""Of a text at most, where nothing else is asked for."""

Texts = dict[str, list[str]]


def map_text(
    loaded: Loaded, text: str, ids: Sequence[int], *, around: Frame, most: int
) -> tuple[dict[str, Tensor], Texts]:
    """The first of `ids`, which are the first tokens of `text`, at most `most` with what is put `around` them: inputs of the
    model (1, n), and the texts of the "queries", and of the "source" where a decoder reads behind an encoder.

    ManyheadsError for a model that reads no text.
    """
    model, tokenizer = loaded.model, loaded.tokenizer
    if model.main_input_name != "input_ids":
        raise ManyheadsError(f"its encoder hears {model.main_input_name}, and maps are made of text")
    ids = list(ids[: max(most - len(around.before) - len(around.after), 1)])
    names = [
        *_marks(tokenizer, around.before), *token_texts(tokenizer, text, ids), *_marks(tokenizer, around.after),
    ]  # fmt: skip
    tokens = torch.tensor([[*around.before, *ids, *around.after]], device=model.device)
    batch = reads_with_decoder(model, tokens)
    if "decoder_input_ids" not in batch:
        return batch, {"queries": names}
    first = _marks(tokenizer, [int(batch["decoder_input_ids"][0, 0])])
    return batch, {"source": names, "queries": [*first, *names[:-1]]}


def _marks(tokenizer: object, ids: Sequence[int]) -> list[str]:
    """Tokens that stand for no text, by their names."""
    found = tokenizer.convert_ids_to_tokens(list(ids)) if ids else []  # type: ignore[attr-defined]
    return [f"{name} " for name in found]
