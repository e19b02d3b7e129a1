"""Rows that many families share: how Hugging Face's Llama and its relatives name and lay out their tensors."""

from __future__ import annotations

import re
from dataclasses import replace

from manyheads.checkpoints.family import Stored

__all__ = [
    "EMBED",
    "EXPERTS",
    "FINAL_NORM",
    "FUSED_GATED_MLP",
    "GATED_MLP",
    "HEAD",
    "LATENT_ATTENTION",
    "LAYER",
    "LLAMA_ATTENTION",
    "LLAMA_LAYOUT",
    "LLAMA_NORMS",
    "LLAMA_PREFIXES",
    "NORMS_PER_HEAD",
    "OUTPUT_NORMS",
    "PLAIN_MLP",
    "ROTARY_BUFFERS",
    "SHARED_EXPERT",
    "SHARED_EXPERTS",
    "as_encoder",
    "fused_projections",
    "linear",
    "llama_layout",
    "norm",
    "plain_mlp",
    "projections",
    "rows_by_head",
    "seq2seq_stack",
    "tied_decoder",
]

LAYER = "decoder.layers.{i}."


def linear(name: str, canonical: str, pattern: str, bias: str) -> tuple[Stored, ...]:
    """A matrix and its bias vector: `name`.weight arranged by `pattern`, `name`.bias by `bias`."""
    return (
        Stored(f"{name}.weight", ((canonical, pattern),)),
        Stored(f"{name}.bias", ((f"{canonical}.bias", bias),)),
    )


def tied_decoder(name: str) -> tuple[tuple[str, str], ...]:
    """Copies that files of masked language models hold of the token table and of the logits' bias (`Family.copies`)."""
    begin = re.escape(name)
    return (rf"^{begin}\.decoder\.weight$", "tokens"), (rf"^{begin}\.decoder\.bias$", f"{name}.bias")


def norm(name: str, canonical: str, axes: str = "m", *, when: str = "") -> tuple[Stored, ...]:
    """The gain and the shift of a norm."""
    return (
        Stored(f"{name}.weight", ((f"{canonical}.weight", axes),), when=when),
        Stored(f"{name}.bias", ((f"{canonical}.bias", axes),), when=when),
    )


def as_encoder(rows: tuple[Stored, ...]) -> tuple[Stored, ...]:
    """The same rows for an encoder that is made of a decoder's parts."""
    return tuple(
        replace(row, parts=tuple((name.replace("decoder.", "encoder.", 1), axes) for name, axes in row.parts))
        for row in rows
    )


def projections(layer: str, q: str, k: str, v: str, o: str) -> tuple[Stored, ...]:
    """Queries, keys, values and outputs stored apart under these names, with their biases; `layer` is the attention's own."""
    return (
        *linear(q, f"{layer}.q", "(h q) m", "(h q)"),
        *linear(k, f"{layer}.k", "(k q) m", "(k q)"),
        *linear(v, f"{layer}.v", "(k v) m", "(k v)"),
        *linear(o, f"{layer}.o", "m (y v)", "m"),
    )


def fused_projections(name: str, layer: str) -> tuple[Stored, ...]:
    """One matrix and one bias of queries, keys and values, in this order."""
    return (
        Stored(f"{name}.weight", ((f"{layer}.q", "(h q) m"), (f"{layer}.k", "(k q) m"), (f"{layer}.v", "(k v) m"))),
        Stored(
            f"{name}.bias", ((f"{layer}.q.bias", "(h q)"), (f"{layer}.k.bias", "(k q)"), (f"{layer}.v.bias", "(k v)"))
        ),
    )


def plain_mlp(layer: str, up: str, down: str) -> tuple[Stored, ...]:
    """An MLP without a gate under these names."""
    return (*linear(up, f"{layer}mlp.up", "w m", "w"), *linear(down, f"{layer}mlp.down", "m w", "m"))


def rows_by_head(name: str) -> tuple[Stored, ...]:
    """A fused matrix and bias whose rows are (head, 3, head_dim): each head's query, key, value (GPT-NeoX, BLOOM)."""
    return (
        Stored(
            f"{name}.weight",
            ((LAYER + "self.q", "h q m"), (LAYER + "self.k", "k q m"), (LAYER + "self.v", "k v m")),
            axis=1,
            merge=0,
        ),
        Stored(
            f"{name}.bias",
            ((LAYER + "self.q.bias", "h q"), (LAYER + "self.k.bias", "k q"), (LAYER + "self.v.bias", "k v")),
            axis=1,
            merge=0,
        ),
    )


def seq2seq_stack(role: str, *, places: str) -> tuple[Stored, ...]:
    """The layers of an encoder or a decoder as BART, Marian and Whisper name them; norms "pre" or "post"."""
    name, layer = f"model.{role}.layers.{{i}}.", f"{role}.layers.{{i}}."
    attentions = [("self_attn", "self")] + ([("encoder_attn", "cross")] if role == "decoder" else [])
    rows: list[Stored] = []
    for theirs, ours in attentions:
        rows += projections(f"{layer}{ours}", *(f"{name}{theirs}.{part}_proj" for part in ("q", "k", "v", "out")))
        place = "attention" if ours == "self" else "cross"
        rows += norm(f"{name}{theirs}_layer_norm", f"{layer}{places}_{place}_norm")
    rows += plain_mlp(layer, f"{name}fc1", f"{name}fc2")
    rows += norm(f"{name}final_layer_norm", f"{layer}{places}_mlp_norm")
    return tuple(rows)


EMBED = (Stored("model.embed_tokens.weight", (("tokens", "l m"),)),)
FINAL_NORM = norm("model.norm", "decoder.final_norm")
HEAD = linear("lm_head", "head", "l m", "l")

LLAMA_ATTENTION = projections(LAYER + "self", *(f"model.layers.{{i}}.self_attn.{part}_proj" for part in "qkvo"))
NORMS_PER_HEAD = (
    *norm("model.layers.{i}.self_attn.q_norm", LAYER + "self.q_norm", "q"),
    *norm("model.layers.{i}.self_attn.k_norm", LAYER + "self.k_norm", "q"),
)
GATED_MLP = (
    *linear("model.layers.{i}.mlp.gate_proj", LAYER + "mlp.gate", "w m", "w"),
    *linear("model.layers.{i}.mlp.up_proj", LAYER + "mlp.up", "w m", "w"),
    *linear("model.layers.{i}.mlp.down_proj", LAYER + "mlp.down", "m w", "m"),
)
PLAIN_MLP = plain_mlp(LAYER, "model.layers.{i}.mlp.up_proj", "model.layers.{i}.mlp.down_proj")
# Gate and up as one matrix, the rows of the gate first (Phi-3, GLM).
FUSED_GATED_MLP = (
    Stored("model.layers.{i}.mlp.gate_up_proj.weight", ((LAYER + "mlp.gate", "w m"), (LAYER + "mlp.up", "w m"))),
    *linear("model.layers.{i}.mlp.down_proj", LAYER + "mlp.down", "m w", "m"),
)
# One tensor an expert, as Qwen, OLMoE and DeepSeek store them.
EXPERTS = (
    Stored("model.layers.{i}.mlp.gate.weight", ((LAYER + "mlp.router", "x m"),)),
    Stored("model.layers.{i}.mlp.experts.{x}.gate_proj.weight", ((LAYER + "mlp.experts.gate", "w m"),), each="x"),
    Stored("model.layers.{i}.mlp.experts.{x}.up_proj.weight", ((LAYER + "mlp.experts.up", "w m"),), each="x"),
    Stored("model.layers.{i}.mlp.experts.{x}.down_proj.weight", ((LAYER + "mlp.experts.down", "m w"),), each="x"),
)


def _shared(name: str) -> tuple[Stored, ...]:
    return tuple(
        Stored(f"model.layers.{{i}}.mlp.{name}.{part}_proj.weight", ((f"{LAYER}mlp.shared.{part}", axes),))
        for part, axes in (("gate", "u m"), ("up", "u m"), ("down", "m u"))
    )


# Qwen's one expert that is always on, and the gate on it.
SHARED_EXPERT = (
    *_shared("shared_expert"),
    Stored("model.layers.{i}.mlp.shared_expert_gate.weight", ((LAYER + "mlp.shared_gate", "i m"),)),
)
# DeepSeek's, stored side by side as one.
SHARED_EXPERTS = _shared("shared_experts")
_ATTENTION = "model.layers.{i}.self_attn."
LATENT_ATTENTION = (
    *linear(_ATTENTION + "q_proj", LAYER + "self.q", "(h q) m", "(h q)"),
    *linear(_ATTENTION + "q_a_proj", LAYER + "self.q_down", "a m", "a"),
    *norm(_ATTENTION + "q_a_layernorm", LAYER + "self.q_down_norm", "a"),
    Stored(_ATTENTION + "q_b_proj.weight", ((LAYER + "self.q_up", "(h q) a"),)),
    # The latent, then the rotary key that all heads share.
    Stored(_ATTENTION + "kv_a_proj_with_mqa.weight", ((LAYER + "self.kv_down", "c m"), (LAYER + "self.k_rope", "r m"))),
    Stored(
        _ATTENTION + "kv_a_proj_with_mqa.bias",
        ((LAYER + "self.kv_down.bias", "c"), (LAYER + "self.k_rope.bias", "r")),
    ),
    *norm(_ATTENTION + "kv_a_layernorm", LAYER + "self.kv_down_norm", "c"),
    # Rows by head: the part of its key without position, then its value.
    Stored(
        _ATTENTION + "kv_b_proj.weight",
        ((LAYER + "self.k_up", "h d c"), (LAYER + "self.v_up", "h v c")),
        axis=1,
        merge=0,
    ),
    *linear(_ATTENTION + "o_proj", LAYER + "self.o", "m (y v)", "m"),
)
LLAMA_NORMS = (
    *norm("model.layers.{i}.input_layernorm", LAYER + "pre_attention_norm"),
    *norm("model.layers.{i}.post_attention_layernorm", LAYER + "pre_mlp_norm"),
)
# On the outputs of the two halves, before they are added (OLMo 2, EXAONE 4, Gemma 2).
OUTPUT_NORMS = (
    *norm("model.layers.{i}.post_attention_layernorm", LAYER + "out_attention_norm"),
    *norm("model.layers.{i}.post_feedforward_layernorm", LAYER + "out_mlp_norm"),
)


def llama_layout(
    *, attention: tuple[Stored, ...] = LLAMA_ATTENTION, mlp: tuple[Stored, ...] = GATED_MLP,
    norms: tuple[Stored, ...] = LLAMA_NORMS, final_norm: tuple[Stored, ...] = FINAL_NORM,
) -> tuple[Stored, ...]:  # fmt: skip
    """Rows of a Llama some of whose parts are others."""
    return (*EMBED, *attention, *mlp, *norms, *final_norm, *HEAD)


LLAMA_LAYOUT = llama_layout()
ROTARY_BUFFERS = (r"rotary_emb\.\w*inv_freq$", r"rotary_emb\.(cos|sin)_cached$")
# A bare model is saved without the prefix; inside a model of images and text it stands one step deeper.
LLAMA_PREFIXES = (
    (("model.", ""),),
    (("model.", "language_model.model."), ("lm_head.", "language_model.lm_head.")),
    (("model.", "model.language_model."),),
    (("model.", "language_model."),),
)
