"""Which backend would compute each distinct layer of a model behind the door, and why: asked of the dispatcher itself.

A layer's calls are made up with the sizes that it has and no memory behind them, one new token over a full cache and a whole
prompt, and a backend is selected for them, as the door would. No weights are needed; where a configuration is
there, its model is built without memory to see whether its attention passes through the door at all.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from manyheads.checkpoints.reading import Checkpoint
from manyheads.cost.dtypes import CACHE_DTYPES, MODEL_DTYPES, dtype_among
from manyheads.cost.engine_layers import window_size
from manyheads.cost.pairs import keys_held
from manyheads.errors import BackendError, ManyheadsError
from manyheads.layer.backends import Selected, is_profitable, select
from manyheads.models.door.absorbed_mla import patchable
from manyheads.models.door.attentions import find_attentions
from manyheads.ops.bias import Alibi, alibi_slopes
from manyheads.ops.call import AttentionCall
from manyheads.ops.deferred import StoredTensor
from manyheads.ops.dtypes import torch_dtype
from manyheads.ops.latent import Latents, expand
from manyheads.ops.masks import causal, everything
from manyheads.report.value import Column, Report, Table
from manyheads.spec import Alibi as AlibiSpec
from manyheads.spec import AttentionSpec, Borrowed, Cross, RelativeBuckets, State, to_text
from manyheads.spec import Latent as LatentSpec
from manyheads.spec.masks import Band, Bidirectional, Causal

__all__ = ["Asked", "explain"]

_OWN = Selected("transformers", "the model does not ask for another")


@dataclass(frozen=True)
class Asked:
    """What is asked: tokens cached, sequences, what the model runs in, and what its cache is kept in ("model": the same)."""

    context: int = 8192
    batch: int = 1
    dtype: str = "bf16"
    cache_dtype: str = "model"


def explain(checkpoint: Checkpoint, asked: Asked) -> Report:
    """One row for each distinct layer: how it decodes, how it reads a prompt, what keeps its tokens. Raises SpecError for another dtype."""
    asked = replace(
        asked,
        dtype=dtype_among(asked.dtype, MODEL_DTYPES, "dtype"),
        cache_dtype=dtype_among(asked.cache_dtype, CACHE_DTYPES, "cache dtype"),
    )
    passes, door, unabsorbed = _door(checkpoint)
    layers = []
    for stack in checkpoint.stack.stacks:
        distinct: Counter[AttentionSpec] = Counter()
        for block, times in stack.groups:
            for spec in block.attentions:
                distinct[spec] += times
        layers += [
            _layer(spec, times, stack.role, asked, door=passes, unabsorbed=unabsorbed)
            for spec, times in distinct.items()
        ]
    data = {
        "schema": "manyheads.explain/1", "model": checkpoint.name, "source": checkpoint.source,
        "context_tokens": asked.context, "batch": asked.batch, "dtype": asked.dtype, "cache_dtype": asked.cache_dtype,
        "door": {"passes": passes, "reason": door}, "latent_seam": {"open": not unabsorbed, "reason": unabsorbed}, "layers": layers,
    }  # fmt: skip
    notes = [door] if door else []
    if unabsorbed:
        notes.append(unabsorbed)
    return Report(
        title=f"{checkpoint.name}: {asked.context:,} tokens cached, batch {asked.batch}, {asked.dtype}",
        tables=tuple(_tables(layers)), data=data, notes=(*notes, *checkpoint.notes),
    )  # fmt: skip


def _door(checkpoint: Checkpoint) -> tuple[bool, str, str]:
    """(whether attention passes, what is known or not of that, why MLA could not be absorbed)."""
    if checkpoint.config is None or "model_type" not in checkpoint.config:
        return True, "no configuration of transformers: taken to pass through its attention interface", ""
    try:
        model = _without_memory(checkpoint.config)
    except Exception as error:  # noqa: BLE001 - whatever transformers makes of a configuration
        why = str(error).strip().splitlines()
        return (
            True,
            f"transformers cannot build it ({why[0][:120] if why else type(error).__name__}): taken to pass",
            "",
        )
    try:
        find_attentions(model)
    except BackendError as error:
        return False, str(error), ""
    refused = sorted({reason for reason in patchable(model).values() if reason})
    return True, "", f"MLA cannot be absorbed: {refused[0]}" if refused else ""


def _without_memory(config: Mapping[str, Any]) -> nn.Module:
    """The model of a configuration, on the meta device, as short as its kinds of layers allow."""
    import transformers

    from manyheads.models.load.model import hushed

    known = transformers.AutoConfig.for_model(
        **{key: value for key, value in config.items() if key != "quantization_config"}
    )
    with hushed(), torch.device("meta"):
        for auto in (transformers.AutoModelForCausalLM, transformers.AutoModelForSeq2SeqLM, transformers.AutoModel):
            if type(known) in auto._model_mapping:
                return auto.from_config(known)
    raise ManyheadsError(f"{config['model_type']} has no model in transformers {transformers.__version__}")


def _layer(
    spec: AttentionSpec, times: int, role: str, asked: Asked, *, door: bool, unabsorbed: str
) -> dict[str, Any]:  # fmt: skip
    decode, prefill = _decode(spec, asked, unabsorbed=unabsorbed), _prefill(spec, asked)
    if not door:
        decode, prefill = (_OWN if each else None for each in (decode, prefill))
    return {
        "stack": role, "layers": times, "attention": to_text(spec),
        "decode": decode and {"path": decode.name, "reason": decode.reason},
        "prefill": prefill and {"path": prefill.name, "reason": prefill.reason},
        "cache": _cache(spec, asked),
    }  # fmt: skip


def _cache(spec: AttentionSpec, asked: Asked) -> str | None:
    """The layer that keeps this attention's tokens in manyheads.cache(model, dtype=...)."""
    if isinstance(spec.source, Borrowed) or (isinstance(spec.mask, Bidirectional | Band) and not _crosses(spec)):
        return None
    if isinstance(spec.kv, State):
        return "LinearAttentionLayer (transformers' own), in place"
    window, kept = window_size(spec), asked.dtype if asked.cache_dtype == "model" else asked.cache_dtype
    return f"WindowLayer, the last {window - 1:,} tokens in {kept}" if window else f"FullLayer, in {kept}"


def _crosses(spec: AttentionSpec) -> bool:
    return isinstance(spec.source, Cross)


def _decode(spec: AttentionSpec, asked: Asked, *, unabsorbed: str) -> Selected | None:
    """One new token; None for layers that are never asked for one."""
    if isinstance(spec.mask, Bidirectional | Band) and not _crosses(spec):
        return None
    if isinstance(spec.kv, State):
        return Selected(
            "transformers", "linear attention keeps a state: its step is a few products, and no call of attention"
        )
    keys = asked.context if _crosses(spec) else int(keys_held(spec.mask, asked.context))
    if isinstance(spec.kv, LatentSpec) and not unabsorbed:
        return _latent_decode(spec, spec.kv, keys, asked)
    selected = select(_call(spec, 1, keys, asked, cached=True))
    if not unabsorbed:
        return selected
    return Selected(selected.name, "; ".join(filter(None, (unabsorbed, selected.reason))))


def _prefill(spec: AttentionSpec, asked: Asked) -> Selected | None:
    """A prompt as long as the context, read at once."""
    if isinstance(spec.kv, State):
        return Selected("transformers", "linear attention: transformers' own chunked form")
    return select(_call(spec, asked.context, asked.context, asked, cached=False))


def _empty(shape: tuple[int, int, int, int], dtype: torch.dtype) -> Tensor:
    """A tensor of this shape that takes the memory of one head of one token."""
    return torch.empty(shape[3], dtype=dtype).as_strided(shape, (0, 0, 0, 1))


def _call(spec: AttentionSpec, queries: int, keys: int, asked: Asked, *, cached: bool) -> AttentionCall:
    kv, dtype = spec.kv, torch_dtype(asked.dtype)
    heads = getattr(kv, "num_kv_heads", spec.num_heads)
    q = _empty((asked.batch, spec.num_heads, queries, kv.head_dim), dtype)  # type: ignore[union-attr]
    k, v = (
        _kept((asked.batch, heads, keys, size), asked if cached else Asked(dtype=asked.dtype))
        for size in (kv.head_dim, kv.v_head_dim)  # type: ignore[union-attr]
    )
    visible: Any = None
    if not _crosses(spec) and queries > 1:
        whole = isinstance(spec.mask, Bidirectional | Causal)
        visible = everything() if isinstance(spec.mask, Bidirectional) else causal()
        if not whole:  # transformers writes other masks down
            visible = torch.ones(1, 1, 1, 1, dtype=torch.bool).expand(asked.batch, 1, queries, keys)
    bias: Any = None
    if isinstance(spec.positions, RelativeBuckets):
        bias = torch.zeros(1, 1, 1, 1, dtype=dtype).expand(1, spec.num_heads, queries, keys)
    elif isinstance(spec.positions, AlibiSpec):
        bias = Alibi(alibi_slopes(spec.num_heads))
    sinks = torch.zeros(spec.num_heads) if spec.sinks else None
    return AttentionCall.checked(q, k, v, scale=1.0, visible=visible, bias=bias, softcap=spec.softcap, sinks=sinks)


def _kept(shape: tuple[int, int, int, int], asked: Asked) -> Tensor:
    """Keys or values as a cache of this dtype hands them over."""
    outside = torch_dtype(asked.dtype)
    inside = outside if asked.cache_dtype == "model" else torch_dtype(asked.cache_dtype)
    if inside == outside:
        return _empty(shape, outside)
    scales = torch.empty(1).expand(shape[:3]) if inside == torch.int8 else None
    return StoredTensor(_empty(shape, inside), scales, outside)


def _latent_decode(spec: AttentionSpec, kv: LatentSpec, keys: int, asked: Asked) -> Selected:
    """Over rows as the cache keeps them: int8 is dequantized at each step, anything else read as it lies."""
    inside = torch_dtype(asked.dtype) if asked.cache_dtype in ("model", "int8") else torch_dtype(asked.cache_dtype)
    rows = _empty((asked.batch, 1, keys, kv.rank + kv.rope_dim), inside)
    up = torch.empty(
        spec.num_heads, kv.nope_dim + kv.v_head_dim, kv.rank, dtype=torch_dtype(asked.dtype), device="meta"
    )
    latent, rotary, k_up, v_up = rows[..., : kv.rank], rows[..., kv.rank :], up[:, : kv.nope_dim], up[:, kv.nope_dim :]
    # a model of transformers makes its heads itself, where the kernel does not take the call
    latents = Latents(latent, rotary, k_up, v_up, make=lambda: expand(latent[:, 0], rotary[:, 0], k_up, v_up))
    k, v = (each.with_dtype(torch_dtype(asked.dtype)) for each in latents.deferred())
    q = _empty((asked.batch, spec.num_heads, 1, kv.nope_dim + kv.rope_dim), torch_dtype(asked.dtype))
    answer = is_profitable(AttentionCall.checked(q, k, v, scale=1.0))
    if answer:
        dequantized = "; int8 latents are dequantized at each step" if asked.cache_dtype == "int8" else ""
        return Selected(
            "kernel", f"absorbed: {spec.num_heads} heads share rows of {kv.rank} + {kv.rope_dim}{dequantized}"
        )
    return Selected("sdpa", answer)


def _tables(layers: list[dict[str, Any]]) -> list[Table]:
    columns = (Column("layers", "right"), Column("attention"), Column("path"), Column("why"))
    made = []
    for question, step in (
        ("One new token: which path, and why?", "decode"),
        ("A prompt: which path, and why?", "prefill"),
    ):
        rows = tuple(
            (
                str(each["layers"]),
                each["attention"],
                each[step]["path"],
                each[step]["reason"] or "the quickest there is",
            )
            for each in layers
            if each[step]
        )
        if rows:
            made.append(Table(question, columns, rows))
    kept = tuple((str(each["layers"]), each["attention"], each["cache"]) for each in layers if each["cache"])
    if kept:
        made.append(Table("What keeps the tokens?", (*columns[:2], Column("layer of manyheads.cache(model)")), kept))
    return made
