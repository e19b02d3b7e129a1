"""A tiny decoder with ALiBi that calls transformers' AttentionInterface: none of transformers' own families does both."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
import transformers
from torch import Tensor, nn
from transformers.masking_utils import create_causal_mask
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

# Press et al., arXiv 2108.12409: of four heads 2^-2 to 2^-8, and for two more every other one of eight, 2^-1 and 2^-3.
SLOPES = (2**-2, 2**-4, 2**-6, 2**-8, 2**-1, 2**-3)


class AlibiConfig(transformers.PretrainedConfig):
    """36 wide, six heads of size 6, two layers."""

    model_type = "tiny-alibi"

    def __init__(self, **settings: Any) -> None:
        self.hidden_size, self.num_attention_heads, self.num_hidden_layers, self.vocab_size = 36, 6, 2, 97
        super().__init__(**settings)


def eager(_: nn.Module, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, **options: Any) -> tuple[Tensor, Tensor]:
    """Attention written out, for whoever runs the model without a door."""
    logits = q @ k.mT * options["scaling"] + options["position_bias"]
    weights = (logits if mask is None else logits + mask).softmax(-1)
    return (weights @ v).transpose(1, 2), weights


class AlibiAttention(nn.Module):
    """Self-attention whose only positions are a slope a head on the distance."""

    is_causal = True

    def __init__(self, config: AlibiConfig, layer: int) -> None:
        super().__init__()
        self.config, self.layer_idx = config, layer
        self.q_proj, self.k_proj, self.v_proj, self.o_proj = (nn.Linear(36, 36) for _ in range(4))

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        """(b, t, 36) to the same."""
        q, k, v = (each(x).unflatten(-1, (6, 6)).transpose(1, 2) for each in (self.q_proj, self.k_proj, self.v_proj))
        at = torch.arange(x.shape[1])
        bias = -torch.tensor(SLOPES)[:, None, None] * (at[:, None] - at[None]).abs()
        attend = ALL_ATTENTION_FUNCTIONS.get_interface(self.config._attn_implementation, eager)
        out, _ = attend(self, q, k, v, mask, scaling=6**-0.5, dropout=0.0, position_bias=bias[None])
        return self.o_proj(out.flatten(2))


class AlibiModel(transformers.PreTrainedModel):
    """A language model of such layers."""

    config_class = AlibiConfig
    _supports_sdpa = _supports_attention_backend = True

    def __init__(self, config: AlibiConfig) -> None:
        super().__init__(config)
        self.embed = nn.Embedding(97, 36)
        self.layers = nn.ModuleList(AlibiAttention(config, layer) for layer in range(2))
        self.head = nn.Linear(36, 97)
        self.post_init()

    @classmethod
    def tiny(cls) -> AlibiModel:
        """The same each time, every parameter drawn anew."""
        torch.manual_seed(0)
        config = AlibiConfig()
        config._attn_implementation = "eager"
        model = cls(config)
        for parameter in model.parameters():
            parameter.data.normal_(0, 0.3)
        return model.eval()

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None, **_: Any) -> Any:
        """Logits of the next token."""
        x = self.embed(input_ids)
        mask = create_causal_mask(self.config, x, attention_mask, None)
        for layer in self.layers:
            x = x + layer(x, mask)
        return Answer(logits=self.head(x))


class Answer(SimpleNamespace):
    """What the model answers: by name, or by number as transformers' own outputs."""

    def __getitem__(self, at: int) -> Tensor:
        return list(vars(self).values())[at]
