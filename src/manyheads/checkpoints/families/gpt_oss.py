"""gpt-oss: sinks in every softmax, a window of 128 on every other layer, fused experts with biases."""

from __future__ import annotations

from typing import TYPE_CHECKING

from manyheads.checkpoints.families.llama import LLAMA
from manyheads.checkpoints.family import Stored, like
from manyheads.checkpoints.layouts import LAYER, LLAMA_ATTENTION, linear, llama_layout

if TYPE_CHECKING:
    from manyheads.checkpoints.draft import Draft
    from manyheads.checkpoints.fields import Fields

__all__ = ["FAMILIES"]


def _finish(fields: Fields, draft: Draft) -> None:
    """Every layer has sinks, which no field says."""
    draft.sinks = True


_MLP = LAYER + "mlp."
_EXPERTS = (
    *linear("model.layers.{i}.mlp.router", _MLP + "router", "x m", "x"),
    # Columns of gate and up alternate.
    Stored(
        "model.layers.{i}.mlp.experts.gate_up_proj",
        ((_MLP + "experts.gate", "x m w 1"), (_MLP + "experts.up", "x m w 1")),
        axis=3,
        merge=2,
    ),
    Stored(
        "model.layers.{i}.mlp.experts.gate_up_proj_bias",
        ((_MLP + "experts.gate.bias", "x w 1"), (_MLP + "experts.up.bias", "x w 1")),
        axis=2,
        merge=1,
    ),
    Stored("model.layers.{i}.mlp.experts.down_proj", ((_MLP + "experts.down", "x w m"),)),
    Stored("model.layers.{i}.mlp.experts.down_proj_bias", ((_MLP + "experts.down.bias", "x m"),)),
)

FAMILIES = (
    like(
        LLAMA,
        "gpt_oss",
        defaults={
            "kv_heads": 8, "head_dim": 64, "window": 128, "experts": 128, "active": 4, "attention_bias": True,
            "rope_theta": 150000.0, "norm_eps": 1e-5,
        },  # fmt: skip
        windows="odd",
        moe_bias=True,
        router_bias="weight",
        layout=llama_layout(
            attention=(*LLAMA_ATTENTION, Stored("model.layers.{i}.self_attn.sinks", ((LAYER + "self.sinks", "h"),))),
            mlp=_EXPERTS,
        ),
        finish=_finish,
    ),
)
