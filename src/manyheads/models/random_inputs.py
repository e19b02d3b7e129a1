"""Random inputs for any model of transformers that our families describe: what two models are compared on."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from manyheads.errors import BackendError, ConversionError, ManyheadsError
from manyheads.models.load.model import first_line

__all__ = ["logits_of", "random_batch"]

_TOKENS = 24
_BATCH = 2


def random_batch(model: Any, *, seed: int = 0) -> dict[str, Tensor]:
    """Two sequences of random tokens, and random features where an encoder listens to sound, the same for each seed.

    Raises ConversionError for a model that reads something else.
    """
    draw = torch.Generator().manual_seed(seed)
    config = model.config
    limit = getattr(config, "max_position_embeddings", None) or getattr(config, "n_positions", None) or _TOKENS
    limit = min(_TOKENS, int(limit), int(getattr(config, "max_target_positions", None) or _TOKENS))
    ids = torch.randint(0, int(config.vocab_size), (_BATCH, max(limit - 2, 1)), generator=draw)
    pad = getattr(config, "pad_token_id", None)
    if isinstance(pad, int):  # positions are counted from padding in some encoders
        ids[ids == pad] = (pad + 1) % int(config.vocab_size)
    batch = {"input_ids": ids}
    if getattr(config, "is_encoder_decoder", False) and model.get_decoder() is not model:
        batch = {"input_ids": ids, "decoder_input_ids": ids.flip(1)}
    if model.main_input_name == "input_features":
        frames = 2 * int(config.max_source_positions)
        features = torch.randn(_BATCH, int(config.num_mel_bins), frames, generator=draw)
        batch = {"input_features": features, "decoder_input_ids": ids}
    elif model.main_input_name != "input_ids":
        raise ConversionError(f"{type(model).__name__} reads {model.main_input_name}, which nothing here makes up")
    return {
        name: value.to(model.device, model.dtype) if value.is_floating_point() else value.to(model.device)
        for name, value in batch.items()
    }


@torch.no_grad()
def logits_of(model: Any, *, seed: int = 0) -> Tensor:
    """What `model` answers to `random_batch`: its logits, or its last hidden states where it has no head; on the CPU.

    Raises BackendError, one line, where transformers cannot run it.
    """
    batch = random_batch(model, seed=seed)
    try:
        answer = model(**batch)
    except ManyheadsError:
        raise
    except Exception as error:  # a model of transformers that does not run is not a bug of ours
        raise BackendError(
            f"transformers cannot run {type(model).__name__} ({type(error).__name__}: {first_line(error)})"
        ) from error
    found: Tensor = answer[0] if getattr(answer, "logits", None) is None else answer.logits
    return found.double().cpu()
