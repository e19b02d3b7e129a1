"""A drop-in for `torch.nn.MultiheadAttention`: its constructor, forward and state_dict, with attention from `ops`."""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from manyheads.errors import SpecError
from manyheads.layer.multihead_forward import Given, attend, multi_head_attention_forward
from manyheads.ops.arguments import check_dropout
from manyheads.quoting import shown

__all__ = ["MultiheadAttention", "multi_head_attention_forward"]


class MultiheadAttention(nn.MultiheadAttention):
    """MultiHead(Q, K, V) = Concat(head_1, .., head_H) W_O,  head_h = softmax(Q W_Q,h (K W_K,h)^T / sqrt(d) + mask) V W_V,h.

    d = embed_dim / num_heads. Same arguments, same parameters under the same names, same initial values after the same
    seed, same shapes out as `torch.nn.MultiheadAttention`; a subclass of it, so that code that looks for one finds it.
    Masks speak torch's language here, and only here: True = may NOT attend, floats are added to the scores.

    Where the results are not torch's:
      * A query that sees nothing has weights of 0 and a context of 0 (its output is the output bias), never NaN, with
        weights or without, in training, in evaluation and inside torch's encoder layers.
      * The weights that are returned are the probabilities before dropout: rows sum to 1.
      * `attn_mask` decides what is seen. `is_causal` beside it is a hint and changes nothing. Without a mask it means
        causal where there are as many keys as queries, and is an error elsewhere: torch's own kernels count from the
        first key, decoding with a cache from the last, and a mask says which. Keys that add_bias_kv and add_zero_attn
        put behind the others are seen by every query under any mask.
      * attn_mask of (batch, queries, keys) is refused by name. A float mask that holds only 0 and 1 is warned about
        (on the CPU; looking elsewhere would make the device wait). Masks of mixed dtypes are fine.
      * need_weights=False writes no weights down (with dropout: no more than 2^24 of them); what it holds beside masks grows
        with queries + keys. Only is_causal beside padding makes a mask of booleans, up to 2^24 a sequence.
      * Nested tensors are computed as padded ones, with batch_first and no masks; torch.jit is not supported.

    Errors are SpecErrors, which are ValueErrors, with the numbers that did not fit. Source: arXiv 1706.03762, section
    3.2.2; the arguments are torch's (documentation of torch.nn.MultiheadAttention, 2.13).
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        dropout: float = 0.0,
        bias: bool = True,  # noqa: FBT001, FBT002
        add_bias_kv: bool = False,  # noqa: FBT001, FBT002
        add_zero_attn: bool = False,  # noqa: FBT001, FBT002
        kdim: int | None = None,
        vdim: int | None = None,
        batch_first: bool = False,  # noqa: FBT001, FBT002
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        embed_dim, num_heads = _whole("embed_dim", embed_dim), _whole("num_heads", num_heads)
        kdim, vdim = (None if size is None else _whole(name, size) for name, size in (("kdim", kdim), ("vdim", vdim)))
        if embed_dim < 1 or num_heads < 1:
            raise SpecError(f"embed_dim and num_heads must be 1 or more, found {embed_dim} and {num_heads}")
        if embed_dim % num_heads:
            below = embed_dim - embed_dim % num_heads
            raise SpecError(
                f"embed_dim {embed_dim} does not divide into {num_heads} heads; "
                f"embed_dim {below or below + num_heads} or {(below or num_heads) + num_heads} would"
            )
        check_dropout(dropout, all_of_it=True)
        super().__init__(
            embed_dim, num_heads, dropout=dropout, bias=bias, add_bias_kv=add_bias_kv, add_zero_attn=add_zero_attn,
            kdim=kdim, vdim=vdim, batch_first=batch_first, device=device, dtype=dtype,
        )  # fmt: skip
        self.register_forward_pre_hook(_keep_to_forward)

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,  # noqa: FBT001, FBT002
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,  # noqa: FBT001, FBT002
        is_causal: bool = False,  # noqa: FBT001, FBT002
    ) -> tuple[Tensor, Tensor | None]:
        """(output, weights): output in the layout of `query`; weights None unless needed.

        query, key, value      (tokens, width) or (tokens, batch, width), or (batch, tokens, width) if batch_first
        key_padding_mask       (keys,) or (batch, keys); True = padding, or floats to add
        attn_mask              (queries, keys) or (batch * num_heads, queries, keys); True = may not attend, or floats
        average_attn_weights   weights averaged over heads, ([batch,] queries, keys), or each head's own,
                               ([batch,] num_heads, queries, keys)
        """
        if query.is_nested or key.is_nested or value.is_nested:
            if not self.batch_first or attn_mask is not None or key_padding_mask is not None:
                raise SpecError(
                    f"nested tensors need batch_first=True and no masks, their lengths say what is padding; found "
                    f"batch_first={self.batch_first}, attn_mask {'given' if attn_mask is not None else 'None'}, "
                    f"key_padding_mask {'given' if key_padding_mask is not None else 'None'}"
                )
            return self._nested(
                query, key, value, need_weights=need_weights, average=average_attn_weights, is_causal=is_causal
            )
        return attend(
            query, key, value, given=self._given(), batch_first=self.batch_first, attn_mask=attn_mask,
            key_padding_mask=key_padding_mask, is_causal=is_causal, need_weights=need_weights,
            average_attn_weights=average_attn_weights,
        )  # fmt: skip

    def _given(self) -> Given:
        packed = self.in_proj_weight
        projections = (self.q_proj_weight, self.k_proj_weight, self.v_proj_weight) if packed is None else packed
        return Given(
            self.num_heads, projections, self.in_proj_bias, self.bias_k, self.bias_v, self.add_zero_attn,
            self.out_proj.weight, self.out_proj.bias, self.dropout if self.training else 0.0,
        )  # fmt: skip

    def _nested(
        self, query: Tensor, key: Tensor, value: Tensor, *, need_weights: bool, average: bool, is_causal: bool
    ) -> tuple[Tensor, Tensor | None]:
        """Nested tensors (torch's encoders make them of padded ones), as padded ones and back."""
        padded = {id(x): _pad(x) for x in (query, key, value)}
        (q, absent), (k, hidden), (v, _) = (padded[id(x)] for x in (query, key, value))
        out, weights = attend(
            q, k, v, given=self._given(), batch_first=True, attn_mask=None, key_padding_mask=hidden,
            is_causal=is_causal, need_weights=need_weights, average_attn_weights=average,
        )  # fmt: skip
        lengths = (~absent).sum(1).tolist()
        rows = [out[number, :length] for number, length in enumerate(lengths)]
        if weights is not None:
            weights = weights.masked_fill(absent[:, :, None] if average else absent[:, None, :, None], 0.0)
        return torch.nested.as_nested_tensor(rows, layout=query.layout), weights


def _whole(name: str, value: object) -> int:
    """`value` as an int, NumPy's own too; a float that happens to be whole would be found out in forward only."""
    if isinstance(value, bool) or not hasattr(type(value), "__index__") or isinstance(value, Tensor):
        raise SpecError(f"{name} must be an integer, found {shown(value)}")
    return operator.index(value)  # type: ignore[arg-type]


def _pad(nested: Tensor) -> tuple[Tensor, Tensor]:
    """(batch, tokens, width) with zeros behind, and True where they are."""
    rows = list(nested.unbind())
    dense = pad_sequence(rows, batch_first=True)
    lengths = torch.tensor([row.shape[0] for row in rows], device=dense.device)
    return dense, torch.arange(dense.shape[1], device=dense.device) >= lengths[:, None]


def _keep_to_forward(module: nn.Module, inputs: tuple[Any, ...]) -> None:
    """Does nothing. torch's encoder layer, in evaluation, reads the weights of a module without hooks and computes
    attention by itself, with NaN for queries that see nothing; one with a hook it calls.
    """
