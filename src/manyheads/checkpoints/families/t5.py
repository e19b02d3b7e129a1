"""T5 and mT5: relative buckets shared by a stack, logits that are not scaled, an inner width of its own, no biases."""

from __future__ import annotations

from typing import TYPE_CHECKING

from manyheads.checkpoints.family import Family, Stored, like
from manyheads.checkpoints.layouts import HEAD

if TYPE_CHECKING:
    from manyheads.checkpoints.encoders import EncoderDraft
    from manyheads.checkpoints.fields import Fields

__all__ = ["FAMILIES"]


def _finish(fields: Fields, draft: EncoderDraft) -> None:
    """The MLP's kind stands in one word; the encoder may be saved alone."""
    draft.gated = fields.word("feed_forward_proj", "relu").startswith("gated")
    if fields.config.get("architectures") in (["T5EncoderModel"], ["MT5EncoderModel"]):
        draft.halves, draft.head = draft.halves[:1], "none"


def _block(role: str) -> tuple[Stored, ...]:
    layer, block = role + ".layers.{i}.", role + ".block.{i}.layer."
    mlp = "1" if role == "encoder" else "2"
    rows = [
        (block + "0.SelfAttention.q.weight", layer + "self.q", "(h q) m"),
        (block + "0.SelfAttention.k.weight", layer + "self.k", "(k q) m"),
        (block + "0.SelfAttention.v.weight", layer + "self.v", "(k v) m"),
        (block + "0.SelfAttention.o.weight", layer + "self.o", "m (y v)"),
        (block + "0.layer_norm.weight", layer + "pre_attention_norm.weight", "m"),
        (block + "1.EncDecAttention.q.weight", layer + "cross.q", "(h q) m"),
        (block + "1.EncDecAttention.k.weight", layer + "cross.k", "(k q) m"),
        (block + "1.EncDecAttention.v.weight", layer + "cross.v", "(k v) m"),
        (block + "1.EncDecAttention.o.weight", layer + "cross.o", "m (y v)"),
        (block + "1.layer_norm.weight", layer + "pre_cross_norm.weight", "m"),
        (block + mlp + ".DenseReluDense.wi_0.weight", layer + "mlp.gate", "w m"),
        (block + mlp + ".DenseReluDense.wo.weight", layer + "mlp.down", "m w"),
        (block + mlp + ".layer_norm.weight", layer + "pre_mlp_norm.weight", "m"),
        (role + ".block.0.layer.0.SelfAttention.relative_attention_bias.weight", role + ".relative_bias", "o h"),
        (role + ".final_layer_norm.weight", role + ".final_norm.weight", "m"),
    ]
    return (
        *(Stored(name, ((canonical, pattern),)) for name, canonical, pattern in rows),
        Stored(
            block + mlp + ".DenseReluDense.wi_1.weight", ((layer + "mlp.up", "w m"),), when=layer + "mlp.gate"
        ),
        Stored(block + mlp + ".DenseReluDense.wi.weight", ((layer + "mlp.up", "w m"),)),
    )


_SPELLINGS = {
    "encoder_layers": ("num_layers",), "decoder_layers": ("num_decoder_layers",), "encoder_heads": ("num_heads",),
    "decoder_heads": ("num_heads",), "encoder_width": ("d_ff",), "decoder_width": ("d_ff",),
    "head_dim": ("d_kv",), "buckets": ("relative_attention_num_buckets",), "max_distance": ("relative_attention_max_distance",),
}  # fmt: skip
_LAYOUT = (Stored("shared.weight", (("tokens", "l m"),)), *_block("encoder"), *_block("decoder"), *HEAD)
# Older files store the shared table under the stacks too, and a bias of the cross-attention that nothing reads.
_COPIES = ((r"^(encoder|decoder)\.embed_tokens\.weight$", "tokens"),)
_IGNORED = (r"^decoder\.block\.0\.layer\.1\.EncDecAttention\.relative_attention_bias\.weight$",)

_T5 = Family(
    name="t5",
    model_types=("t5",),
    stack="seq2seq",
    spellings=_SPELLINGS,
    defaults={"head_dim": 64, "tied": True},
    gated=False,
    positions="buckets",
    scale=1.0,
    layout=_LAYOUT,
    ignored=_IGNORED,
    copies=_COPIES,
    passed_over=("dense_act_fn", "is_gated_act", "scale_decoder_outputs"),  # all follow from feed_forward_proj and the tied head
    finish_encoder=_finish,
)

FAMILIES = (_T5, like(_T5, "mt5", defaults={**_T5.defaults, "feed_forward_proj": "gated-gelu"}))
