"""How GGUF names and lays out tensors: one set of names for all architectures, with the few ways in which they differ.

llama.cpp's converter splits what Hugging Face fuses by head, transposes GPT-2's matrices to (out, in), adds 1 to Gemma's
gains, and turns the rows of Llama's queries and keys from halves into interleaved pairs.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from manyheads.checkpoints.family import Stored
from manyheads.checkpoints.layouts import LAYER, linear, norm

__all__ = ["gguf_layout"]

# Architectures whose query and key rows are stored in the pairs that ggml's rotation of these turns, (2i, 2i + 1) of the
# first rope.dimension_count elements of a head.
_PAIRED = ("llama", "granite", "deepseek", "olmo")
# Architectures that norm the outputs of the sub-layers under these names; in gpt-oss the same name is another norm.
_OUTPUT_NORMS = ("gemma2", "gemma3", "olmo2")

_BLOCK = "blk.{i}."
_MLP = LAYER + "mlp."


def gguf_layout(architecture: str, names: Collection[str]) -> tuple[Stored, ...]:
    """The rows for a file of `architecture` that holds the tensors `names`."""
    return (
        Stored("token_embd.weight", (("tokens", "l m"),)),
        Stored("position_embd.weight", (("decoder.positions", "p m"),)),
        *norm("token_embd_norm", "decoder.embedding_norm"),
        *_attention(architecture, names),
        *_norms(architecture),
        *_mlp(architecture),
        *_EXPERTS,
        *norm("output_norm", "decoder.final_norm"),
        *linear("output", "head", "l m", "l"),
    )


def _attention(architecture: str, names: Collection[str]) -> tuple[Stored, ...]:
    fused = (
        Stored(
            _BLOCK + "attn_qkv.weight",
            ((LAYER + "self.q", "(h q) m"), (LAYER + "self.k", "(k q) m"), (LAYER + "self.v", "(k v) m")),
        ),
        Stored(
            _BLOCK + "attn_qkv.bias",
            ((LAYER + "self.q.bias", "(h q)"), (LAYER + "self.k.bias", "(k q)"), (LAYER + "self.v.bias", "(k v)")),
        ),
    )
    rotated = (
        *linear(_BLOCK + "attn_q", LAYER + "self.q", "(h q) m", "(h q)"),
        *linear(_BLOCK + "attn_k", LAYER + "self.k", "(k q) m", "(k q)"),
    )
    return (
        *(fused if "blk.0.attn_qkv.weight" in names else ()),
        *(replace(row, pairs=architecture in _PAIRED) for row in rotated),
        *linear(_BLOCK + "attn_v", LAYER + "self.v", "(k v) m", "(k v)"),
        *linear(_BLOCK + "attn_output", LAYER + "self.o", "m (y v)", "m"),
        *_head_norms(architecture),
        Stored(_BLOCK + "attn_sinks.weight", ((LAYER + "self.sinks", "h"),)),
        *_latent(names),
    )


def _head_norms(architecture: str) -> tuple[Stored, ...]:
    full, each = architecture in ("olmo2", "olmoe"), architecture == "command-r"
    q, k = ("(h q)", "(k q)") if full else ("h q", "k q") if each else ("q", "q")
    return (
        *norm(_BLOCK + "attn_q_norm", LAYER + "self.q_norm", q),
        *norm(_BLOCK + "attn_k_norm", LAYER + "self.k_norm", k),
    )


def _latent(names: Collection[str]) -> tuple[Stored, ...]:
    split = (
        # Newer files hold the two halves apart, the keys' transposed, ready to be absorbed.
        Stored(_BLOCK + "attn_k_b.weight", ((LAYER + "self.k_up", "h c d"),)),
        Stored(_BLOCK + "attn_v_b.weight", ((LAYER + "self.v_up", "h v c"),)),
    )
    fused = (
        Stored(
            _BLOCK + "attn_kv_b.weight",
            ((LAYER + "self.k_up", "h d c"), (LAYER + "self.v_up", "h v c")),
            axis=1,
            merge=0,
        ),
    )
    return (
        *linear(_BLOCK + "attn_q_a", LAYER + "self.q_down", "a m", "a"),
        *norm(_BLOCK + "attn_q_a_norm", LAYER + "self.q_down_norm", "a"),
        Stored(_BLOCK + "attn_q_b.weight", ((LAYER + "self.q_up", "(h q) a"),)),
        Stored(_BLOCK + "attn_kv_a_mqa.weight", ((LAYER + "self.kv_down", "c m"), (LAYER + "self.k_rope", "r m"))),
        *norm(_BLOCK + "attn_kv_a_norm", LAYER + "self.kv_down_norm", "c"),
        *(split if "blk.0.attn_k_b.weight" in names else fused),
    )


def _norms(architecture: str) -> tuple[Stored, ...]:
    after = "out_attention_norm" if architecture in _OUTPUT_NORMS else "pre_mlp_norm"
    two = f"parallel {LAYER}pre_mlp_norm.weight"
    falcon = (
        *norm(_BLOCK + "attn_norm_2", LAYER + "pre_attention_norm", when=two),
        *norm(_BLOCK + "attn_norm", LAYER + "pre_mlp_norm", when=two),
    )
    ffn = () if architecture == "gpt-oss" else norm(_BLOCK + "ffn_norm", LAYER + "pre_mlp_norm")
    return (
        *(falcon if architecture == "falcon" else ()),
        *norm(_BLOCK + "attn_norm", LAYER + "pre_attention_norm"),
        *ffn,
        *norm(_BLOCK + "post_attention_norm", LAYER + after),
        *norm(_BLOCK + "post_ffw_norm", LAYER + "out_mlp_norm"),
    )


def _mlp(architecture: str) -> tuple[Stored, ...]:
    if architecture == "phi3":
        both = (Stored(_BLOCK + "ffn_up.weight", ((_MLP + "gate", "w m"), (_MLP + "up", "w m"))),)
        return (*both, *linear(_BLOCK + "ffn_down", _MLP + "down", "m w", "m"))
    return (
        *linear(_BLOCK + "ffn_gate", _MLP + "gate", "w m", "w"),
        *linear(_BLOCK + "ffn_up", _MLP + "up", "w m", "w"),
        *linear(_BLOCK + "ffn_down", _MLP + "down", "m w", "m"),
    )


_EXPERTS = (
    *linear(_BLOCK + "ffn_gate_inp", _MLP + "router", "x m", "x"),
    Stored(_BLOCK + "exp_probs_b.bias", ((_MLP + "router.bias", "x"),)),
    *linear(_BLOCK + "ffn_gate_exps", _MLP + "experts.gate", "x w m", "x w"),
    *linear(_BLOCK + "ffn_up_exps", _MLP + "experts.up", "x w m", "x w"),
    *linear(_BLOCK + "ffn_down_exps", _MLP + "experts.down", "x m w", "x m"),
    Stored(_BLOCK + "ffn_gate_shexp.weight", ((_MLP + "shared.gate", "u m"),)),
    Stored(_BLOCK + "ffn_up_shexp.weight", ((_MLP + "shared.up", "u m"),)),
    Stored(_BLOCK + "ffn_down_shexp.weight", ((_MLP + "shared.down", "m u"),)),
    Stored(_BLOCK + "ffn_gate_inp_shexp.weight", ((_MLP + "shared_gate", "i m -> (i m)"),)),
)
