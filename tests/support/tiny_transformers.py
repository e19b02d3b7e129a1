"""Tiny random models of transformers, one a family, with sizes that cannot be mistaken for one another; and inputs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
import transformers

_T5GEMMA: dict[str, Any] = {
    "hidden_size": 24, "intermediate_size": 20, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    "head_dim": 6, "vocab_size": 97, "sliding_window": 3, "layer_types": ["sliding_attention", "full_attention"],
    "query_pre_attn_scalar": 6, "attn_logit_softcapping": None, "final_logit_softcapping": None, "pad_token_id": 0,
    "bos_token_id": 1, "eos_token_id": None,
}  # fmt: skip
_TINY = json.loads((Path(__file__).parent.parent / "checkpoints" / "fixtures" / "tiny_models.json").read_text())
_TOKENS = {"bos_token_id": 1, "eos_token_id": 2}
# Not described by a family of ours, but they pass through the door.
_MORE: dict[str, Any] = {
    "jamba": {"model_type": "jamba", "settings": {
        "hidden_size": 36, "intermediate_size": 52, "num_hidden_layers": 4, "num_attention_heads": 6,
        "num_key_value_heads": 2, "vocab_size": 97, "attn_layer_period": 2, "attn_layer_offset": 1,
        "expert_layer_period": 2, "expert_layer_offset": 0, "num_experts": 3, "num_experts_per_tok": 2,
        "mamba_d_state": 4, "mamba_dt_rank": 5, "use_mamba_kernels": False, "pad_token_id": 0}},
    "modernbert": {"model_type": "modernbert", "class": "ModernBertForMaskedLM", "settings": {
        "hidden_size": 48, "intermediate_size": 52, "num_hidden_layers": 4, "num_attention_heads": 6, "vocab_size": 97,
        "pad_token_id": 0, "cls_token_id": 1, "sep_token_id": 2, "local_attention": 6,
        "global_attn_every_n_layers": 3}},
    "t5gemma": {"model_type": "t5gemma", "class": "T5GemmaForConditionalGeneration", "settings": {
        "encoder": _T5GEMMA, "decoder": _T5GEMMA, "vocab_size": 97, "decoder_start_token_id": 1, "eos_token_id": None}},
}  # fmt: skip
CASES: dict[str, Any] = {**_TINY["decoders"], **_TINY["encoders"], **_MORE}


def build(name: str, *, dtype: torch.dtype = torch.float32, attention: str = "eager", **changes: Any) -> Any:
    """The tiny model `name`, in evaluation mode, every parameter drawn anew: a fresh model's biases are constant."""
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    torch.manual_seed(0)
    case = CASES[name]
    config = transformers.CONFIG_MAPPING[case["model_type"]](**{**_TOKENS, **case["settings"], **changes})
    config._attn_implementation, config._experts_implementation = attention, "eager"
    cls = case.get("class")
    model = getattr(transformers, cls)(config) if cls else transformers.AutoModelForCausalLM.from_config(config)
    for parameter in model.parameters():
        if parameter.requires_grad:  # computed positions stay as they are: some files do not hold them
            parameter.data.normal_(0, 0.3)
    return model.eval().to(dtype)


def inputs(name: str, *, batch: int = 2, tokens: int = 11, dtype: torch.dtype = torch.float32) -> dict[str, Any]:
    """A batch for it: for encoder-decoders, fewer tokens on the decoder's side than on the encoder's."""
    draw = torch.Generator().manual_seed(1)
    ids = torch.randint(3, 90, (batch, tokens), generator=draw)
    case = CASES[name]
    if case["model_type"] == "whisper":
        return {"input_features": torch.randn(batch, 20, 62, generator=draw).to(dtype), "decoder_input_ids": ids[:, :7]}
    if case["model_type"] in ("t5", "t5gemma", "marian", "bart") and name != "t5-encoder":
        return {"input_ids": ids, "decoder_input_ids": ids[:, :7]}
    return {"input_ids": ids}


def logits(model: Any, batch: dict[str, Any], **options: Any) -> torch.Tensor:
    """What the model answers, without gradients."""
    with torch.no_grad():
        return model(**batch, **options)[0]
