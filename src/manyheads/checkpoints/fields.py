"""Looking up settings in a configuration: every published spelling, what is absent, and what cannot be."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping
from typing import Any, NoReturn

from manyheads.errors import CheckpointError
from manyheads.quoting import shown
from manyheads.spec.check import LARGEST_SIZE

__all__ = ["HEAD_SIZES", "SPELLINGS", "TURNED", "Fields"]

# Canonical name: the keys that published configs use for it, the commonest first.
SPELLINGS: Mapping[str, tuple[str, ...]] = {
    "vocab_size": ("vocab_size", "padded_vocab_size"),
    "d_model": ("hidden_size", "n_embd", "d_model", "n_embed", "dim"),
    "layers": ("num_hidden_layers", "n_layer", "n_layers", "num_layers"),
    "heads": ("num_attention_heads", "n_head", "n_heads", "num_heads"),
    "kv_heads": ("num_key_value_heads", "num_kv_heads", "n_head_kv", "n_kv_heads", "multi_query_group_num"),
    "head_dim": ("head_dim", "d_kv", "attention_head_dim"),
    "v_head_dim": ("v_head_dim",),
    "mlp_width": ("intermediate_size", "n_inner", "ffn_dim", "d_ff", "ffn_hidden_size"),
    "norm_eps": ("rms_norm_eps", "layer_norm_eps", "layer_norm_epsilon", "norm_epsilon", "norm_eps"),
    "context": ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length", "n_ctx", "max_sequence_length"),
    "tied": ("tie_word_embeddings",),
    "attention_bias": ("attention_bias",),
    "qkv_bias": ("qkv_bias", "use_qkv_bias", "attention_qkv_bias"),
    "o_bias": ("attention_out_bias",),
    "mlp_bias": ("mlp_bias",),
    "bias": ("bias", "use_bias"),
    "softcap": ("attn_logit_softcapping",),
    "head_softcap": ("final_logit_softcapping",),
    "query_scalar": ("query_pre_attn_scalar",),
    "attention_multiplier": ("attention_multiplier",),
    "qk_norm": ("use_qk_norm", "qk_layernorm", "qk_norm"),
    "window": ("sliding_window", "sliding_window_size", "window_size"),
    "use_window": ("use_sliding_window",),
    "max_window_layers": ("max_window_layers",),
    "window_pattern": ("sliding_window_pattern", "_sliding_window_pattern"),
    "chunk": ("attention_chunk_size",),
    "layer_types": ("layer_types",),
    "no_rope_layers": ("no_rope_layers",),
    "no_rope_interval": ("no_rope_layer_interval",),
    "shared_kv_layers": ("num_kv_shared_layers",),
    "rope_theta": ("rope_theta", "rotary_emb_base", "rope_base"),
    "local_rope_theta": ("rope_local_base_freq", "local_rope_theta"),
    "rope_scaling": ("rope_scaling",),
    "rope_parameters": ("rope_parameters",),
    "rope_fraction": ("partial_rotary_factor", "rotary_pct", "rope_pct"),
    "rope_dim": ("rotary_dim", "rope.dimension_count"),
    "rope_interleave": ("rope_interleave", "rope_interleaved"),
    "original_context": ("original_max_position_embeddings",),
    "encoder_layers": ("encoder_layers", "num_hidden_layers"),
    "decoder_layers": ("decoder_layers",),
    "encoder_heads": ("encoder_attention_heads", "num_attention_heads"),
    "decoder_heads": ("decoder_attention_heads",),
    "encoder_width": ("encoder_ffn_dim", "intermediate_size"),
    "decoder_width": ("decoder_ffn_dim",),
    "rank": ("kv_lora_rank",),
    "q_rank": ("q_lora_rank",),
    "nope_dim": ("qk_nope_head_dim",),
    "mla_rope_dim": ("qk_rope_head_dim",),
    "qk_head_dim": ("qk_head_dim",),
    "experts": ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts"),
    "active": ("num_experts_per_tok", "num_experts_per_token", "experts_per_token", "moe_top_k", "moe_topk"),
    "expert_width": ("moe_intermediate_size", "expert_ffn_hidden_size"),
    "shared_experts": ("n_shared_experts", "num_shared_experts"),
    "shared_width": ("shared_expert_intermediate_size", "shared_intermediate_size"),
    "first_dense": ("first_k_dense_replace",),
    "moe_every": ("decoder_sparse_step", "moe_layer_freq"),
    "dense_layers": ("mlp_only_layers",),
}


# Sizes of heads, and how much of them is rotated: a key that a class does not read says nothing of its model, so no other
# spelling stands in for its own.
HEAD_SIZES = ("head_dim", "v_head_dim", "kv_heads")
TURNED = ("rope_dim", "rope_fraction")


class Fields:
    """One object of a configuration, with the spellings that a family adds, and a record of every key that was read.

    A key that is null counts as given and empty: the family's default is for keys that are absent. Errors name the key
    that was found, or all spellings that would be accepted.
    """

    def __init__(
        self,
        config: Mapping[str, Any],
        *,
        source: str,
        spellings: Mapping[str, tuple[str, ...]] | None = None,
        defaults: Mapping[str, Any] | None = None,
        accepted: Mapping[str, tuple[str, ...]] | None = None,
    ) -> None:
        """`accepted`: the only keys of some fields, where it is known which ones are read."""
        self.config = config
        self._accepted = accepted or {}
        self.source = source
        self.used: set[str] = set()
        self._own = spellings or {}
        self._defaults = defaults or {}

    def names(self, field: str) -> tuple[str, ...]:
        """Every key that is accepted for `field`."""
        if field in self._accepted:
            return self._accepted[field]
        return (*self._own.get(field, ()), *SPELLINGS.get(field, () if field in self._own else (field,)))

    def key(self, field: str) -> str:
        """The key under which `field` is given; its first spelling where it is not."""
        names = self.names(field) or SPELLINGS[field]
        return next((name for name in names if name in self.config), names[0])

    def has(self, field: str) -> bool:
        """Whether `field` is given and not null."""
        return any(self.config.get(name) is not None for name in self.names(field))

    def raw(self, field: str, default: Any = None) -> Any:
        """The value of `field` as it stands; the family's default, else `default`, where the key is absent.

        All spellings of it that are present count as read; the first that is not null wins.
        """
        present = [name for name in self.names(field) if name in self.config]
        self.used.update(present)
        for name in present:
            if self.config[name] is not None:
                return self.config[name]
        return None if present else self._defaults.get(field, default)

    def fail(self, message: str) -> NoReturn:
        """Raise a CheckpointError that begins with the source."""
        raise CheckpointError(f"{self.source}: {message}")

    def size(self, field: str, default: int | None = None, *, least: int = 1) -> int:
        """An integer of at least `least`; an error that lists the accepted spellings where it is absent."""
        value = self.optional_size(field, default, least=least)
        if value is None:
            self.fail(f"no {self.names(field)[0]}; expected {' or '.join(self.names(field))}, an integer")
        return value

    def optional_size(self, field: str, default: int | None = None, *, least: int = 1) -> int | None:
        """An integer of at least `least`, or None where it is null or absent without a default."""
        value = self.raw(field, default)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int):
            self.fail(f"{self.key(field)} must be an integer of {least} or more, found {shown(value)}")
        if not least <= value <= LARGEST_SIZE:
            self.fail(f"{self.key(field)} must lie in [{least}, {LARGEST_SIZE}], found {shown(value)}")
        self._check_agreement(field, value)
        return value

    def _check_agreement(self, field: str, value: int) -> None:
        """Two spellings of one size must say the same; contexts are let differ, since libraries use them differently."""
        if field in ("context", "active", "window"):
            return
        for name in self.names(field):
            other = self.config.get(name)
            if other is not None and other != value:
                self.fail(
                    f"{self.key(field)} {value} and {name} {shown(other)} contradict each other; give one of them"
                )

    def number(self, field: str, default: float | None = None, *, zero: bool = False) -> float | None:
        """A finite number above 0 (0 too where `zero`), or None where it is null or absent without a default."""
        return self.as_number(self.key(field), self.raw(field, default), zero=zero)

    def as_number(self, key: str, value: Any, *, zero: bool = False) -> float | None:
        """`value` as a float, with the checks of `number`."""
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int | float):
            self.fail(f"{key} must be a number, found {shown(value)}")
        bounded = float(value) if abs(value) < 1e300 else math.inf
        if not math.isfinite(bounded) or bounded < 0 or (bounded == 0 and not zero):
            self.fail(f"{key} must be a finite number {'of 0 or more' if zero else 'above 0'}, found {shown(value)}")
        return bounded

    def flag(self, field: str, default: bool = False) -> bool:  # noqa: FBT001, FBT002  the value looked up
        """True or False; null counts as False."""
        value = self.raw(field, default)
        if value is None:
            return False
        if not isinstance(value, bool):
            self.fail(f"{self.key(field)} must be true or false, found {shown(value)}")
        return value

    def word(self, field: str, default: str = "") -> str:
        """A string; null counts as ""."""
        value = self.raw(field, default)
        if value is None:
            return ""
        if not isinstance(value, str):
            self.fail(f"{self.key(field)} must be a word, found {shown(value)}")
        return value

    def items(self, field: str) -> list[Any] | None:
        """A list, or None where it is null or absent."""
        value = self.raw(field)
        if value is None:
            return None
        if not isinstance(value, list | tuple):
            self.fail(f"{self.key(field)} must be a list, found {shown(value)}")
        return list(value)

    def object(self, field: str) -> Mapping[str, Any] | None:
        """A nested object, or None where it is null or absent."""
        value = self.raw(field)
        if value is None:
            return None
        if not isinstance(value, Mapping):
            self.fail(f"{self.key(field)} must be an object, found {shown(value)}")
        return value

    def stray(self, sizes: Mapping[str, int], derived: Collection[str]) -> Iterator[tuple[str, Any, int]]:
        """(key, value, what is taken) of keys that speak of the sizes of heads, are not read, and say something else than
        `sizes`; `derived`: sizes of which no key is read. They all count as read.
        """
        for field, taken in sizes.items():
            for key in self.others(field, () if field in derived else self.names(field)):
                if self.config[key] != taken or isinstance(self.config[key], bool):
                    yield key, self.config[key], taken

    def others(self, field: str, read: Collection[str]) -> list[str]:
        """The keys of `field` that are given beside those that are `read`; they count as read from now on."""
        spellings = dict.fromkeys((*self._own.get(field, ()), *SPELLINGS[field]))
        found = [key for key in spellings if key not in read and self.config.get(key) is not None]
        self.used.update(found)
        return found

    def unread(self) -> Iterator[str]:
        """The keys that nothing has asked for."""
        return (key for key in self.config if key not in self.used)
