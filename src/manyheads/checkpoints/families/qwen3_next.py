"""Qwen3-Next: three layers of gated delta rule to one of softmax attention with an output gate, and a mixture."""

from __future__ import annotations

from typing import TYPE_CHECKING

from manyheads.checkpoints.draft import FULL, LINEAR
from manyheads.checkpoints.families.llama import LLAMA
from manyheads.checkpoints.family import Stored, like
from manyheads.checkpoints.layouts import (
    EXPERTS,
    GATED_MLP,
    LAYER,
    LLAMA_ATTENTION,
    NORMS_PER_HEAD,
    ROTARY_BUFFERS,
    SHARED_EXPERT,
    llama_layout,
)
from manyheads.spec.attention import AttentionSpec
from manyheads.spec.kv import State
from manyheads.spec.masks import Causal
from manyheads.spec.norms import Norm
from manyheads.spec.positions import NoPositions

if TYPE_CHECKING:
    from manyheads.checkpoints.draft import Draft
    from manyheads.checkpoints.fields import Fields

__all__ = ["FAMILIES"]

_LINEAR = LAYER + "self.decay"
_STATE = (
    # Rows by key head: its query, its key, then the values and the gates of the value heads that share it.
    Stored(
        "model.layers.{i}.linear_attn.in_proj_qkvz.weight",
        (
            (LAYER + "self.q", "h q m"),
            (LAYER + "self.k", "k q m"),
            (LAYER + "self.v", "(k g) v m -> k (g v) m"),
            (LAYER + "self.gate", "(k g) v m -> k (g v) m"),
        ),
        axis=1,
        merge=0,
        when=_LINEAR,
    ),
    Stored(
        "model.layers.{i}.linear_attn.in_proj_ba.weight",
        ((LAYER + "self.beta", "(k g) m -> k g m"), (LAYER + "self.decay", "(k g) m -> k g m")),
        axis=1,
        merge=0,
    ),
    Stored(
        "model.layers.{i}.linear_attn.conv1d.weight",
        (
            (LAYER + "self.q_conv", "(h q) 1 z"),
            (LAYER + "self.k_conv", "(k q) 1 z"),
            (LAYER + "self.v_conv", "(j v) 1 z"),
        ),
    ),
    Stored("model.layers.{i}.linear_attn.A_log", ((LAYER + "self.decay_rate", "n"),)),
    Stored("model.layers.{i}.linear_attn.dt_bias", ((LAYER + "self.decay_bias", "n"),)),
    Stored("model.layers.{i}.linear_attn.norm.weight", ((LAYER + "self.out_norm.weight", "v"),)),
    Stored("model.layers.{i}.linear_attn.out_proj.weight", ((LAYER + "self.o", "m (y v)"),), when=_LINEAR),
)
# In the softmax layers the rows of a query head are its query and then its gate.
_GATED_QUERY = (
    Stored(
        "model.layers.{i}.self_attn.q_proj.weight",
        ((LAYER + "self.q", "h q m"), (LAYER + "self.gate", "y v m")),
        axis=1,
        merge=0,
    ),
)


def _finish(fields: Fields, draft: Draft) -> None:
    """The interval of softmax layers and the sizes of the linear ones: no other family has them."""
    interval = fields.size("full_attention_interval", 4)
    if not fields.has("layer_types"):
        draft.kinds = [LINEAR if (index + 1) % interval else FULL for index in range(draft.layers)]
    heads, value_heads = fields.size("linear_num_key_heads", 16), fields.size("linear_num_value_heads", 32)
    width, v_width = fields.size("linear_key_head_dim", 128), fields.size("linear_value_head_dim", 128)
    eps = draft.norm.eps if draft.norm is not None else 1e-6
    state = State(
        heads, value_heads, value_heads, width, width, v_width, "identity", normalised=False, rule="gated_delta",
        decay="per_head", beta="per_head", conv_width=fields.size("linear_conv_kernel_dim", 4), norm=Norm("rms", eps),
    )  # fmt: skip
    draft.linear = AttentionSpec(
        d_model=draft.d_model, num_heads=heads, kv=state, positions=NoPositions(), mask=Causal(), scale=width**-0.5,
        output_gate=True,
    )  # fmt: skip
    draft.output_gate = True
    if draft.bias.letters:
        draft.add_unsupported("attention_bias", "true", "a bias on the gate of the queries is not described")


FAMILIES = (
    like(
        LLAMA,
        "qwen3_next",
        rope_share=("partial_rotary_factor",),
        defaults={
            "kv_heads": 2, "head_dim": 256, "rope_fraction": 0.25, "experts": 512, "active": 10, "expert_width": 512,
            "shared_width": 512,
        },  # fmt: skip
        linear=True,
        gain="1+w",
        qk_norm="head",
        shared_gate=True,
        layout=llama_layout(
            attention=(*_STATE, *_GATED_QUERY, *LLAMA_ATTENTION, *NORMS_PER_HEAD),
            mlp=(*GATED_MLP, *EXPERTS, *SHARED_EXPERT),
        ),
        ignored=(*ROTARY_BUFFERS, r"^mtp\."),
        finish=_finish,
    ),
)
