"""AFM (Arcee): a Llama whose MLP has no gate."""

from __future__ import annotations

from manyheads.checkpoints.families.llama import LLAMA
from manyheads.checkpoints.family import like
from manyheads.checkpoints.layouts import PLAIN_MLP, llama_layout

__all__ = ["FAMILIES"]

FAMILIES = (like(LLAMA, "arcee", defaults={"norm_eps": 1e-5}, gated=False, layout=llama_layout(mlp=PLAIN_MLP)),)
