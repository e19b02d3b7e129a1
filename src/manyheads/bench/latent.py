"""One step of multi-head latent attention: the cache absorbed as it stands, against its expansion in every step.

    absorbed    q~_h = [W_k_up,h^T q_h ; r_h];  y_h = W_v_up,h (softmax(q~_h · rows) rows[:c])
    expanded    keys and values of every head made of every row first, as transformers does (`expand_kv`)

From the queries and the cached rows to the heads' outputs. Each step has its own rows and its own weights, as the layers of
a model have; DeepSeek-V3's head shape: 128 heads, 128 + 64 wide, values 128, a latent of 512 (arXiv 2412.19437, 4.2).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from manyheads.bench.contest import Contest, run_contest
from manyheads.bench.decode import Plan
from manyheads.bench.paths import OURS, Call, Path
from manyheads.bench.peers import missing
from manyheads.bench.probes import probes
from manyheads.bench.reference_check import BOUNDS
from manyheads.bench.rotation import Buffer
from manyheads.bench.shape import Shape
from manyheads.cost.dtypes import dtype as storage
from manyheads.cost.formulas import expanded_tokens_macs, flops, latent_cache_elements
from manyheads.kernels import attend, project
from manyheads.ops.answer import Answer, No, Yes
from manyheads.ops.dtypes import torch_dtype

__all__ = [
    "DEEPSEEK_V3",
    "EXPANDED",
    "LatentHeads",
    "LatentRotation",
    "LatentStep",
    "expected",
    "latent",
    "latent_paths",
]

EXPANDED = "transformers, which expands the cache"


@dataclass(frozen=True)
class LatentHeads:
    """The sizes of a latent attention."""

    heads: int
    nope_dim: int
    rope_dim: int
    v_head_dim: int
    rank: int

    @property
    def row(self) -> int:
        """Elements that are kept of a token."""
        return int(latent_cache_elements(self.rank, self.rope_dim))

    @property
    def scale(self) -> float:
        return float((self.nope_dim + self.rope_dim) ** -0.5)

    @property
    def up_elements(self) -> int:
        """Weights that make keys and values of latents, of all heads."""
        return int(expanded_tokens_macs(1, self.heads, self.nope_dim, self.v_head_dim, self.rank))

    def shape(self, keys: int, dtype: str) -> Shape:
        """The absorbed step as attention: all heads over one row a token, whose first part is the value too."""
        return Shape(self.heads, 1, self.row, self.rank, keys, dtype)


DEEPSEEK_V3 = LatentHeads(128, 128, 64, 128, 512)


@dataclass(frozen=True, eq=False)
class LatentStep:
    """q_nope (1, h, 1, n), q_rope (1, h, 1, r), rows (1, s, c + r): latent | rotary key, up (h·(n + v), c)."""

    q_nope: Tensor
    q_rope: Tensor
    rows: Tensor
    up: Tensor
    sizes: LatentHeads

    @property
    def parts(self) -> tuple[Tensor, Tensor]:
        """W_k_up (h, n, c) and W_v_up (h, v, c)."""
        each = self.up.view(self.sizes.heads, -1, self.sizes.rank)
        return each[:, : self.sizes.nope_dim], each[:, self.sizes.nope_dim :]


class LatentRotation:
    """Steps over two buffers, of rows and of weights: each larger than the last-level cache, if there is room."""

    def __init__(self, sizes: LatentHeads, keys: int, dtype: str, plan: Plan) -> None:
        kind = torch_dtype(dtype)
        half = plan.room.rotation_bytes // 2
        self.sizes, self.keys = sizes, keys
        self.rows = Buffer(dtype, max(half, 2 * keys * sizes.row * kind.itemsize), seed=plan.seed)
        self.ups = Buffer(dtype, max(half, 2 * sizes.up_elements * kind.itemsize), seed=plan.seed + 1)
        generator = torch.Generator().manual_seed(plan.seed)
        # Keys made by unit weights are sqrt(rank) wide: with these queries logits are about 1, as in a trained layer.
        q = torch.randn(1, sizes.heads, 1, sizes.nope_dim + sizes.rope_dim, generator=generator) * sizes.rank**-0.5
        self.q_nope, self.q_rope = q.to(kind).split((sizes.nope_dim, sizes.rope_dim), -1)
        self._next = 0

    def step(self, index: int) -> LatentStep:
        rows = _at(self.rows.elements, index, self.keys * self.sizes.row).view(1, self.keys, -1)
        up = _at(self.ups.elements, index, self.sizes.up_elements).view(-1, self.sizes.rank)
        return LatentStep(self.q_nope, self.q_rope, rows, up, self.sizes)

    def next(self) -> LatentStep:
        self._next += 1
        return self.step(self._next)


def _at(elements: Tensor, index: int, size: int) -> Tensor:
    start = index % (len(elements) // size) * size
    return elements[start : start + size]


def expected(step: LatentStep) -> Tensor:
    """The heads' outputs (1, h, 1, v) in float64, expanded head by head."""
    latents, rotary = step.rows[0].double().split((step.sizes.rank, step.sizes.rope_dim), -1)
    k_up, v_up = step.parts
    out = torch.empty(1, step.sizes.heads, 1, step.sizes.v_head_dim, dtype=torch.float64)
    for head in range(step.sizes.heads):
        k = torch.cat((latents @ k_up[head].double().T, rotary), -1)
        q = torch.cat((step.q_nope[0, head], step.q_rope[0, head]), -1).double()
        out[0, head] = (q @ k.T * step.sizes.scale).softmax(-1) @ (latents @ v_up[head].double().T)
    return out


def latent_paths(threads: int) -> tuple[Path, ...]:
    """Ours and transformers'."""
    return Path(OURS, OURS, threads, _ours_supports, _absorbed), _expanding(threads)


def _ours_supports(shape: Shape) -> Answer:
    return No("latent rows in int8 are not described") if shape.dtype == "int8" else Yes()


def _absorbed(step: Any) -> Call:
    k_up, v_up = step.parts
    keys = attend.Keys.causal(1, 1, step.rows.shape[1])
    rows = step.rows[:, None]
    latents = rows[..., : step.sizes.rank]

    def call() -> Tensor:
        q = torch.cat((project.times(step.q_nope[0], k_up), step.q_rope[0].float()), -1)[None]
        mixed = attend.decode(q, rows, latents, keys, scale=step.sizes.scale)
        return project.times_transposed(mixed[0], v_up)[None].to(step.rows.dtype)

    return call


def _expanding(threads: int) -> Path:
    def supports(shape: Shape) -> Answer:
        if shape.dtype == "int8":
            return No("it has no int8 cache")
        try:
            from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3Attention
        except ImportError:
            return No(missing("transformers") or "this transformers has no DeepSeek-V3")
        return Yes() if hasattr(DeepseekV3Attention, "expand_kv") else No("this transformers has no `expand_kv`")

    def prepare(step: Any) -> Call:
        from transformers.integrations.sdpa_attention import sdpa_attention_forward

        module = _module(step.sizes)
        module.kv_b_proj.weight = torch.nn.Parameter(step.up, requires_grad=False)
        latents, rotary = step.rows[:, None].split((step.sizes.rank, step.sizes.rope_dim), -1)

        def call() -> Tensor:
            k, v = module.expand_kv(latents, rotary)
            q = torch.cat((step.q_nope, step.q_rope), -1)
            return sdpa_attention_forward(module, q, k, v, None, scaling=step.sizes.scale)[0].transpose(1, 2)

        return call

    return Path(EXPANDED, EXPANDED, threads, supports, prepare)


def _module(sizes: LatentHeads) -> Any:
    """transformers' own attention of these sizes; of its weights only those that expand are ever real."""
    from transformers import DeepseekV3Config
    from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3Attention

    config = DeepseekV3Config(
        num_attention_heads=sizes.heads, num_key_value_heads=sizes.heads, kv_lora_rank=sizes.rank,
        qk_nope_head_dim=sizes.nope_dim, qk_rope_head_dim=sizes.rope_dim, v_head_dim=sizes.v_head_dim, hidden_size=64,
        q_lora_rank=None,
    )  # fmt: skip
    with torch.device("meta"):
        return DeepseekV3Attention(config, 0).eval()


def latent(
    sizes: LatentHeads, keys: int, dtypes: Sequence[str], plan: Plan, *, paths: Sequence[Path] | None = None
) -> tuple[Contest, ...]:
    """A contest for each type but int8, over `keys` cached rows."""
    torch.set_num_threads(plan.threads)
    paths = latent_paths(plan.threads) if paths is None else paths
    done = []
    for dtype in (name for name in dtypes if name != "int8"):
        plan.say(f"latent attention, {dtype}, {sizes.heads} heads over {keys:,} rows of {sizes.row}")
        rotation = LatentRotation(sizes, keys, dtype, plan)
        shape, checked_step = sizes.shape(keys, dtype), rotation.step(0)
        # Read once: rows and weights. The absorbed step multiplies the weights too, once a head.
        moved = int(storage(dtype).bytes(keys * sizes.row + sizes.up_elements))
        pace = replace(plan.pace, rounds=min(plan.pace.rounds, 7))
        done.append(run_contest(
            paths, probes(rotation.rows.words(), plan.threads), shape=shape, step=rotation.next, checked_step=checked_step,
            expected=expected(checked_step), bound=BOUNDS[dtype], moved_bytes=moved, flops=shape.flops + int(flops(sizes.up_elements)),
            pace=pace,
        ))  # fmt: skip
    return tuple(done)
