"""Rows that many families share: how Hugging Face's Llama and its relatives name and lay out their tensors."""

from __future__ import annotations

from manyheads.checkpoints.family import Stored

__all__ = [
    "EMBED",
    "EXPERTS",
    "FINAL_NORM",
    "GATED_MLP",
    "HEAD",
    "LAYER",
    "LLAMA_ATTENTION",
    "LLAMA_LAYOUT",
    "LLAMA_NORMS",
    "LLAMA_PREFIXES",
    "NORMS_PER_HEAD",
    "linear",
    "norm",
]

LAYER = "decoder.layers.{i}."


def linear(name: str, canonical: str, pattern: str, bias: str) -> tuple[Stored, ...]:
    """A matrix and its bias vector: `name`.weight arranged by `pattern`, `name`.bias by `bias`."""
    return (
        Stored(f"{name}.weight", ((canonical, pattern),)),
        Stored(f"{name}.bias", ((f"{canonical}.bias", bias),)),
    )


def norm(name: str, canonical: str, axes: str = "m") -> tuple[Stored, ...]:
    """The gain and the shift of a norm."""
    return (
        Stored(f"{name}.weight", ((f"{canonical}.weight", axes),)),
        Stored(f"{name}.bias", ((f"{canonical}.bias", axes),)),
    )


EMBED = (Stored("model.embed_tokens.weight", (("tokens", "l m"),)),)
FINAL_NORM = norm("model.norm", "decoder.final_norm")
HEAD = linear("lm_head", "head", "l m", "l")

LLAMA_ATTENTION = (
    *linear("model.layers.{i}.self_attn.q_proj", LAYER + "self.q", "(h q) m", "(h q)"),
    *linear("model.layers.{i}.self_attn.k_proj", LAYER + "self.k", "(k q) m", "(k q)"),
    *linear("model.layers.{i}.self_attn.v_proj", LAYER + "self.v", "(k v) m", "(k v)"),
    *linear("model.layers.{i}.self_attn.o_proj", LAYER + "self.o", "m (y v)", "m"),
)
NORMS_PER_HEAD = (
    *norm("model.layers.{i}.self_attn.q_norm", LAYER + "self.q_norm", "q"),
    *norm("model.layers.{i}.self_attn.k_norm", LAYER + "self.k_norm", "q"),
)
GATED_MLP = (
    *linear("model.layers.{i}.mlp.gate_proj", LAYER + "mlp.gate", "w m", "w"),
    *linear("model.layers.{i}.mlp.up_proj", LAYER + "mlp.up", "w m", "w"),
    *linear("model.layers.{i}.mlp.down_proj", LAYER + "mlp.down", "m w", "m"),
)
# One tensor an expert, as Qwen, OLMoE and DeepSeek store them.
EXPERTS = (
    Stored("model.layers.{i}.mlp.gate.weight", ((LAYER + "mlp.router", "x m"),)),
    Stored("model.layers.{i}.mlp.experts.{x}.gate_proj.weight", ((LAYER + "mlp.experts.gate", "w m"),), each="x"),
    Stored("model.layers.{i}.mlp.experts.{x}.up_proj.weight", ((LAYER + "mlp.experts.up", "w m"),), each="x"),
    Stored("model.layers.{i}.mlp.experts.{x}.down_proj.weight", ((LAYER + "mlp.experts.down", "m w"),), each="x"),
)
LLAMA_NORMS = (
    *norm("model.layers.{i}.input_layernorm", LAYER + "pre_attention_norm"),
    *norm("model.layers.{i}.post_attention_layernorm", LAYER + "pre_mlp_norm"),
)
LLAMA_LAYOUT = (*EMBED, *LLAMA_ATTENTION, *GATED_MLP, *LLAMA_NORMS, *FINAL_NORM, *HEAD)
# A bare model is saved without the prefix; inside a model of images and text it stands one step deeper.
LLAMA_PREFIXES = (
    (("model.", ""),),
    (("model.", "language_model.model."), ("lm_head.", "language_model.lm_head.")),
    (("model.", "model.language_model."),),
    (("model.", "language_model."),),
)
