"""Apertus: norms on heads, an MLP without a gate, and an activation (xIELU) that learns two numbers a layer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from manyheads.checkpoints.families.llama import LLAMA
from manyheads.checkpoints.family import Stored, like
from manyheads.checkpoints.layouts import LAYER, LLAMA_ATTENTION, NORMS_PER_HEAD, PLAIN_MLP, llama_layout, norm
from manyheads.spec.positions import Llama3Scaling, Rope
from manyheads.spec.stack import OtherWeight

if TYPE_CHECKING:
    from manyheads.checkpoints.draft import Draft
    from manyheads.checkpoints.fields import Fields

__all__ = ["FAMILIES"]

_SLOPES = ("alpha_p", "alpha_n")
_CONSTANTS = ("beta", "eps")


def _finish(fields: Fields, draft: Draft) -> None:
    """The numbers inside xIELU, learned and stored, and how its class stretches the context where nothing says."""
    if fields.word("hidden_act", "xielu") == "xielu":
        draft.other = tuple(
            OtherWeight(f"decoder.layers.{index}.mlp.act.{name}", (1,) if name in _SLOPES else (), name in _CONSTANTS)
            for index in range(draft.layers)
            for name in (*_SLOPES, *_CONSTANTS)
        )
    if not fields.has("rope_parameters") and not fields.has("rope_scaling"):
        base = fields.number("rope_theta", 1.2e7) or 1.2e7
        scaling = Llama3Scaling(8.0, 1.0, 4.0, 8192)
        draft.positions = {kind: Rope(draft.head_dim, base, "halves", scaling) for kind in draft.positions}


FAMILIES = (
    like(
        LLAMA,
        "apertus",
        "apertus",
        "apertus1p5_text",
        defaults={"norm_eps": 1e-5, "rope_theta": 1.2e7},
        gated=False,
        qk_norm="head",
        layout=llama_layout(
            attention=(*LLAMA_ATTENTION, *NORMS_PER_HEAD),
            mlp=(
                *PLAIN_MLP,
                *(
                    Stored(f"model.layers.{{i}}.mlp.act_fn.{name}", ((LAYER + f"mlp.act.{name}", "..."),))
                    for name in (*_SLOPES, *_CONSTANTS)
                ),
            ),
            norms=(
                *norm("model.layers.{i}.attention_layernorm", LAYER + "pre_attention_norm"),
                *norm("model.layers.{i}.feedforward_layernorm", LAYER + "pre_mlp_norm"),
            ),
        ),
        finish=_finish,
    ),
)
