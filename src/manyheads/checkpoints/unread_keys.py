"""Keys of a configuration that nothing read: which are harmless, which would change attention."""

from __future__ import annotations

import re
from typing import Any

__all__ = ["is_harmless", "is_inert", "may_change_attention"]

# Training, tokenizer, generation and bookkeeping: they change neither shapes nor what attention computes.
_HARMLESS = frozenset({
    "_attn_implementation", "_attn_implementation_autoset", "_commit_hash", "_name_or_path", "_num_labels",
    "_output_attentions", "activation", "activation_dropout", "activation_function", "add_bos_token",
    "add_eos_token", "architectures", "attention_dropout", "attention_dropout_prob", "attention_probs_dropout",
    "attention_probs_dropout_prob", "attention_softmax_in_fp32", "attn_dropout", "attn_impl", "attn_implementation",
    "attn_pdrop", "attn_softmax_bf16", "attn_uses_sequence_id", "auto_map", "aux_loss_alpha", "bad_words_ids",
    "begin_suppress_tokens", "bias_dropout_fusion", "boi_token_index", "bos_token", "bos_token_id",
    "cache_implementation", "chunk_size_feed_forward", "classifier_activation", "classifier_dropout",
    "classifier_proj_size", "cross_attention_hidden_size", "decoder_start_token_id", "dim_model_base", "do_sample",
    "dropout", "dropout_rate", "dtype", "early_stopping", "emb_pdrop", "embd_dropout", "embd_pdrop",
    "embedding_dropout", "embedding_multiplier", "embedding_scale", "encoder_no_repeat_ngram_size",
    "eoi_token_index", "eos_token", "eos_token_id", "ep_size", "exponential_decay_length_penalty",
    "finetuning_task", "flash_attn", "forced_bos_token_id", "forced_eos_token_id", "fused_norm",
    "generation_config", "gradient_checkpointing", "hidden_act", "hidden_activation", "hidden_dropout",
    "hidden_dropout_prob", "id2label", "image_token_index", "init_device", "init_std", "initial_context_length",
    "initializer_cutoff_factor", "initializer_factor", "initializer_range", "input_jitter_noise",
    "label2id", "language", "layer_norm_type", "layerdrop", "length_penalty", "logit_scale",
    "logits_scaling", "logits_to_keep", "mask_token_id", "masked_softmax_fusion", "max_length", "max_new_tokens",
    "min_length", "mlm_mask_token_id", "model_max_length", "model_type", "mtp_loss_factor", "n_group",
    "name_or_path", "no_repeat_ngram_size", "norm_topk_prob", "num_beam_groups", "num_beams", "num_labels",
    "num_mtp_layers", "num_nextn_predict_layers", "num_return_sequences", "offset_alibi", "output_attentions",
    "output_hidden_states", "output_past", "output_router_logits", "output_scores", "pad_token", "pad_token_id",
    "pdrop", "pooler_act", "prefix", "pretraining_tp", "problem_type", "pruned_heads", "quantization",
    "quantization_config", "remove_invalid_values", "reorder_and_upcast_attn", "repetition_penalty",
    "resid_dropout", "resid_pdrop", "residual_dropout", "residual_multiplier", "return_dict",
    "return_dict_in_generate", "rope_dtype", "routed_scaling_factor", "router_aux_loss_coef", "router_jitter_noise",
    "scale_depth", "scale_emb", "scale_embedding", "scoring_func", "sep_token_id", "seq_aux", "slow_but_exact",
    "softmax_in_fp32", "summary_activation", "summary_first_dropout", "summary_proj_to_labels", "summary_type",
    "summary_use_proj", "suppress_tokens", "swiglu_alpha", "swiglu_limit", "task_specific_params", "temperature",
    "tf_legacy_loss", "tie_encoder_decoder", "tie_word_embeddings", "tokenizer_class", "tokenizer_file", "top_k",
    "top_p", "topk_group", "topk_method", "torch_dtype", "torchscript", "transformers.js_config",
    "transformers_version", "transformers_weights", "typical_p", "unk_token_id", "unsloth_fixed", "unsloth_version",
    "use_bfloat16", "use_cache", "use_fast_tokenizer", "use_flash_attention", "use_flash_attention_2",
    "use_flash_attn", "use_fused_mlp", "use_fused_rms_norm", "use_fused_rope", "use_mrope", "use_scaled_rope",
    "use_sdpa", "use_xformers", "vocab_file", "weight_decay",
})  # fmt: skip

# Names that announce another kind of attention, or another kind of cache.
_MAY_CHANGE_ATTENTION = (
    r"window|sliding|latent|lora_rank|linear_|ssm|mamba|rwkv|retention|recurrent|state|delta_net|layer_types|layer_type|"
    r"chunk|block_type|block_pattern|layers_block|sparse|kv_shar|shared_kv|kv_reuse|cross_layer|cla_|compress|conv|"
    r"^index_|_index_|indexer|nsa_|dsa_|moba|attention|attn|kv_|_kv|qk_|head_dim|num_heads|alibi|hybrid|lightning|"
    r"no_rope|nope|local_|global_|dilat|longformer|reformer|lsh_|hash|bucket|memory|cache|per_layer|yoco|full_"
)


def is_inert(value: Any) -> bool:
    """Whether a value says nothing: null, false, zero, or empty."""
    return value is None or value is False or value == 0 or value == "" or value == [] or value == {}


def is_harmless(key: str) -> bool:
    """Whether `key` is known to change neither shapes nor attention."""
    return key in _HARMLESS or key.startswith("_")


def may_change_attention(key: str) -> bool:
    """Whether the name of `key` announces something about attention or its cache."""
    return re.search(_MAY_CHANGE_ATTENTION, key.lower()) is not None
