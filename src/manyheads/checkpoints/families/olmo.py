"""OLMo 1 to 3 and OLMoE: a norm without gain in the first, norms on the outputs and on whole projections later."""

from __future__ import annotations

from typing import TYPE_CHECKING

from manyheads.checkpoints.draft import SLIDING
from manyheads.checkpoints.families.llama import LLAMA
from manyheads.checkpoints.family import like
from manyheads.checkpoints.layouts import EXPERTS, LAYER, LLAMA_ATTENTION, OUTPUT_NORMS, llama_layout, norm
from manyheads.spec.positions import Rope

if TYPE_CHECKING:
    from manyheads.checkpoints.draft import Draft
    from manyheads.checkpoints.fields import Fields

__all__ = ["FAMILIES"]

_NORMED_ATTENTION = (
    *LLAMA_ATTENTION,
    *norm("model.layers.{i}.self_attn.q_norm", LAYER + "self.q_norm", "(h q)"),
    *norm("model.layers.{i}.self_attn.k_norm", LAYER + "self.k_norm", "(k q)"),
)


def _clipped(fields: Fields, draft: Draft) -> None:
    """clip_qkv bounds queries, keys and values: it changes no shape and no cost, so it is only told."""
    bound = fields.number("clip_qkv")
    if bound is not None:
        draft.notes.append(f"queries, keys and values are clipped at {bound:g}")


def _unscaled_windows(fields: Fields, draft: Draft) -> None:
    """A rope_scaling of the old spelling acts on the full layers only, as in transformers' OLMo 3."""
    sliding = draft.positions.get(SLIDING)
    if isinstance(sliding, Rope) and not fields.has("rope_parameters"):
        draft.positions[SLIDING] = Rope(sliding.dim, sliding.base, sliding.layout)


_OLMO2 = like(
    LLAMA,
    "olmo2",
    defaults={"norm_eps": 1e-5},
    norm_places=("out_attention", "out_mlp"),
    qk_norm="full",
    layout=llama_layout(attention=_NORMED_ATTENTION, norms=OUTPUT_NORMS),
)

FAMILIES = (
    like(LLAMA, "olmo", norm="layer", gain="none", finish=_clipped),
    _OLMO2,
    like(
        _OLMO2,
        "olmo3",
        defaults={"norm_eps": 1e-5, "window": 4096, "rope_theta": 5e5},
        windows="pattern",
        window_period=4,
        finish=_unscaled_windows,
    ),
    like(
        LLAMA,
        "olmoe",
        derived=("head_dim",),  # its projections would take one, its norms of queries and keys do not
        defaults={"norm_eps": 1e-5, "experts": 64, "active": 8},
        qk_norm="full",
        layout=llama_layout(attention=_NORMED_ATTENTION, mlp=EXPERTS),
        finish=_clipped,
    ),
)
