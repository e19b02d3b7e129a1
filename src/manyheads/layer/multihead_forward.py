"""What `MultiheadAttention` computes, as a function of its weights: projections, extra keys, masks, attention, output."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import dropout, linear

from manyheads.errors import SpecError
from manyheads.layer import dispatch
from manyheads.layer.multihead_masks import Sizes, translate
from manyheads.ops import softmax
from manyheads.ops.arguments import check_dropout
from manyheads.ops.call import AttentionCall
from manyheads.ops.layout import shapes
from manyheads.ops.masks import Visible
from manyheads.ops.precision import in_full, wide
from manyheads.spec import check

__all__ = ["Given", "attend", "multi_head_attention_forward"]


@dataclass(frozen=True, eq=False)
class Given:
    """The weights of one layer, and what does not change from call to call.

    `projections` is (3m, m), packed as queries, keys, values; or three matrices (m, m), (m, kdim), (m, vdim).
    `dropout` is the share to drop now: 0 in evaluation.
    """

    num_heads: int
    projections: Tensor | tuple[Tensor, Tensor, Tensor]
    bias: Tensor | None
    bias_k: Tensor | None
    bias_v: Tensor | None
    add_zero_attn: bool
    output: Tensor
    output_bias: Tensor | None
    dropout: float

    @property
    def widths(self) -> tuple[int, int, int]:
        """Of what queries, keys and values are made from."""
        if isinstance(self.projections, Tensor):
            return (self.projections.shape[1],) * 3
        q, k, v = self.projections
        return q.shape[1], k.shape[1], v.shape[1]


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    given: Given,
    batch_first: bool,
    attn_mask: Tensor | None,
    key_padding_mask: Tensor | None,
    is_causal: bool,
    need_weights: bool,
    average_attn_weights: bool,
    static_k: Tensor | None = None,
    static_v: Tensor | None = None,
) -> tuple[Tensor, Tensor | None]:
    """Output in the layout of `query`, and the probabilities before dropout where they are needed, else None."""
    _check(query, key, value, given)
    alone = query.dim() == 2
    batch_axis = None if alone else 0 if batch_first else 1
    if batch_axis is not None and query.shape[batch_axis] != key.shape[batch_axis]:
        raise SpecError(
            f"query and key must have the same batch size, found {query.shape[batch_axis]} and {key.shape[batch_axis]} "
            f"on axis {batch_axis} (batch_first={batch_first})"
        )
    q, k, v = (_split(x, given.num_heads, batch_axis) for x in _project(query, key, value, given))
    k = k if static_k is None else _static("static_k", static_k, q)
    v = v if static_v is None else _static("static_v", static_v, q)
    keys = k.shape[2]
    k, v = _with_extra_keys(k, v, given)
    sizes = Sizes(q.shape[0], q.shape[1], q.shape[2], keys, k.shape[2] - keys)
    if alone and key_padding_mask is not None:
        key_padding_mask = key_padding_mask[None]
    visible, bias = translate(attn_mask, key_padding_mask, is_causal=is_causal, sizes=sizes, like=q)
    if need_weights or given.dropout == 1:
        mixed, weights = _with_weights(q, k, v, visible, bias, given.dropout)
    else:
        mixed, weights = _without_weights(q, k, v, visible, bias, given.dropout), None
    out = linear(_merge(mixed, batch_axis), given.output, given.output_bias)
    if weights is None or not need_weights:
        return out, None
    weights = (weights.mean(1) if average_attn_weights else weights).to(q.dtype)
    return out, weights[0] if alone else weights


def _with_weights(
    q: Tensor, k: Tensor, v: Tensor, visible: Visible | None, bias: Tensor | None, share: float
) -> tuple[Tensor, Tensor]:
    """The mixed values, and the probabilities (b, h, t, s) that were there before dropout (case O17)."""
    compute = wide(q.dtype)
    weights = softmax.scores(
        q.to(compute), k.to(compute), scale=_scale(q), stage="probabilities", visible=visible, bias=bias
    )
    # torch's own dropout, drawn in the order of torch's module: the same seed drops the same weights
    kept = dropout(weights, share) if share else weights
    with in_full(q):
        return (kept @ v.to(kept.dtype)).to(q.dtype), weights


def _without_weights(
    q: Tensor, k: Tensor, v: Tensor, visible: Visible | None, bias: Tensor | None, share: float
) -> Tensor:
    return dispatch.attend(
        AttentionCall.checked(q, k, v, scale=_scale(q), visible=visible, bias=bias, dropout=share, sizes_later=True)
    )


def _scale(q: Tensor) -> float:
    return 1.0 / math.sqrt(q.shape[3])


def _project(query: Tensor, key: Tensor, value: Tensor, given: Given) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values in the caller's layout, in as few products as the inputs' identities allow."""
    bias, m = given.bias, given.output.shape[0]
    if not isinstance(given.projections, Tensor):
        biases = (None, None, None) if bias is None else bias.chunk(3)
        q, k, v = (linear(x, w, b) for x, w, b in zip((query, key, value), given.projections, biases, strict=True))
        return q, k, v
    packed = given.projections
    if query is key and key is value:
        q, k, v = linear(query, packed, bias).chunk(3, dim=-1)
        return q, k, v
    q = linear(query, packed[:m], None if bias is None else bias[:m])
    if key is value:
        k, v = linear(key, packed[m:], None if bias is None else bias[m:]).chunk(2, dim=-1)
        return q, k, v
    k = linear(key, packed[m : 2 * m], None if bias is None else bias[m : 2 * m])
    return q, k, linear(value, packed[2 * m :], None if bias is None else bias[2 * m :])


def _split(x: Tensor, heads: int, batch_axis: int | None) -> Tensor:
    """(tokens, m), (batch, tokens, m) or (tokens, batch, m) -> (batch, heads, tokens, d)."""
    x = x.unflatten(-1, (heads, x.shape[-1] // heads))
    if batch_axis is None:
        return x.transpose(0, 1)[None]
    return x.transpose(1, 2) if batch_axis == 0 else x.permute(1, 2, 0, 3)


def _merge(x: Tensor, batch_axis: int | None) -> Tensor:
    """The inverse of `_split`."""
    if batch_axis is None:
        return x[0].transpose(0, 1).flatten(-2)
    return (x.transpose(1, 2) if batch_axis == 0 else x.permute(2, 0, 1, 3)).flatten(-2)


def _static(name: str, given: Tensor, q: Tensor) -> Tensor:
    """Keys or values (batch · heads, keys, d) that were projected before."""
    batch, heads, _, dim = q.shape
    if given.dim() != 3 or (given.shape[0], given.shape[2]) != (batch * heads, dim):
        raise SpecError(
            f"{name} must be (batch * heads, keys, head_dim), ({batch * heads}, any, {dim}); found {tuple(given.shape)}"
        )
    return given.reshape(batch, heads, given.shape[1], dim)


def _with_extra_keys(k: Tensor, v: Tensor, given: Given) -> tuple[Tensor, Tensor]:
    """One learned key and value at the end (add_bias_kv), then one of zeros (add_zero_attn)."""
    batch, heads, _, dim = k.shape
    more_k, more_v = [k], [v]
    if given.bias_k is not None and given.bias_v is not None:
        more_k.append(given.bias_k.reshape(1, heads, 1, dim).expand(batch, -1, -1, -1).to(k.dtype))
        more_v.append(given.bias_v.reshape(1, heads, 1, dim).expand(batch, -1, -1, -1).to(v.dtype))
    if given.add_zero_attn:
        more_k.append(k.new_zeros(batch, heads, 1, dim))
        more_v.append(v.new_zeros(batch, heads, 1, dim))
    return (torch.cat(more_k, 2), torch.cat(more_v, 2)) if len(more_k) > 1 else (k, v)


def _check(query: Tensor, key: Tensor, value: Tensor, given: Given) -> None:
    tensors = {"query": query, "key": key, "value": value}
    if not query.dim() == key.dim() == value.dim() or query.dim() not in (2, 3):
        raise SpecError(
            f"query, key and value must all be 2-D (unbatched) or all 3-D (batched); found {shapes(**tensors)}"
        )
    for (name, x), width in zip(tensors.items(), given.widths, strict=True):
        if x.shape[-1] != width:
            raise SpecError(
                f"{name} must be {width} wide, as its projection is; found {x.shape[-1]} in {shapes(**tensors)}"
            )
        if x.device != given.output.device:
            raise SpecError(f"{name} is on {x.device} and the weights are on {given.output.device}: move one")
        if x.dtype != given.output.dtype and not torch.is_autocast_enabled(x.device.type):
            raise SpecError(f"{name} must have the weights' dtype {given.output.dtype}, found {x.dtype}")
    if key.shape[:-1] != value.shape[:-1]:
        raise SpecError(f"key and value must agree in all but their width; found {shapes(**tensors)}")
    if (given.bias_k is None) != (given.bias_v is None):
        raise SpecError("bias_k and bias_v come together; found one without the other")


def multi_head_attention_forward(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    embed_dim_to_check: int,
    num_heads: int,
    in_proj_weight: Tensor | None,
    in_proj_bias: Tensor | None,
    bias_k: Tensor | None,
    bias_v: Tensor | None,
    add_zero_attn: bool,  # noqa: FBT001
    dropout_p: float,
    out_proj_weight: Tensor,
    out_proj_bias: Tensor | None,
    training: bool = True,  # noqa: FBT001, FBT002
    key_padding_mask: Tensor | None = None,
    need_weights: bool = True,  # noqa: FBT001, FBT002
    attn_mask: Tensor | None = None,
    use_separate_proj_weight: bool = False,  # noqa: FBT001, FBT002
    q_proj_weight: Tensor | None = None,
    k_proj_weight: Tensor | None = None,
    v_proj_weight: Tensor | None = None,
    static_k: Tensor | None = None,
    static_v: Tensor | None = None,
    average_attn_weights: bool = True,  # noqa: FBT001, FBT002
    is_causal: bool = False,  # noqa: FBT001, FBT002
) -> tuple[Tensor, Tensor | None]:
    """`torch.nn.functional.multi_head_attention_forward`, same arguments (tokens before batch), as
    `MultiheadAttention` computes it: its docstring has the equation and where results differ from torch's.
    """
    check.size("num_heads", num_heads)
    if query.shape[-1] != embed_dim_to_check or embed_dim_to_check % num_heads:
        raise SpecError(
            f"query must be embed_dim_to_check {embed_dim_to_check} wide, a multiple of {num_heads} heads; "
            f"found {query.shape[-1]}"
        )
    check_dropout(dropout_p, all_of_it=True)
    projections = (q_proj_weight, k_proj_weight, v_proj_weight) if use_separate_proj_weight else in_proj_weight
    if projections is None or (isinstance(projections, tuple) and any(w is None for w in projections)):
        needed = "q_proj_weight, k_proj_weight and v_proj_weight" if use_separate_proj_weight else "in_proj_weight"
        raise SpecError(f"use_separate_proj_weight={use_separate_proj_weight} needs {needed}; found None")
    given = Given(
        num_heads, projections, in_proj_bias, bias_k, bias_v, add_zero_attn, out_proj_weight, out_proj_bias,
        dropout_p if training else 0.0,
    )  # type: ignore[arg-type]  # fmt: skip
    return attend(
        query, key, value, given=given, batch_first=False, attn_mask=attn_mask, key_padding_mask=key_padding_mask,
        is_causal=is_causal, need_weights=need_weights, average_attn_weights=average_attn_weights, static_k=static_k,
        static_v=static_v,
    )  # fmt: skip
