"""MLA in transformers' models: heads made of the latents where many tokens are read, absorbed where few are written.

    prefill   k_h = [W_k,h c ; r], v_h = W_v,h c            as the model does it
    decode    q~_h = W_k,h^T q_h over the rows [c ; r], y_h = W_v,h (A_h c)

Between its cache and the attention function such a model calls `expand_kv` on itself. With the seam in place that returns two
tensors that are made only if somebody asks for them: the kernel does not. Source: arXiv 2405.04434, section 2.1.2.
"""

from __future__ import annotations

import types
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from manyheads.errors import BackendError
from manyheads.models.door.call import Call
from manyheads.ops.deferred import Handed, Packed, say_once, widened

__all__ = [
    "Expanded",
    "Latent",
    "absorbing",
    "close_seams",
    "latent_of",
    "open_seam",
    "open_seams",
    "seam_refusal",
    "seams",
]

_open: weakref.WeakSet[nn.Module] = weakref.WeakSet()
# Rows for which reading a head's matrix is the work; for more of them torch's product is quicker.
_MOST_ROWS = 64
_BY_KERNEL = (torch.float32, torch.bfloat16, torch.float16)
_SIZES = ("kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")


class Latent:
    """What the cache returned for one call: latents (b, 1, s, c) and rotary keys (b, 1, s, r), and whose they are."""

    def __init__(self, module: Any, latent: Tensor, rotary: Tensor) -> None:
        self.module, self.latent, self.rotary = module, latent, rotary
        self._heads: tuple[Tensor, Tensor] | None = None
        self._rows: Tensor | None = None

    def heads(self) -> tuple[Tensor, Tensor]:
        """Keys and values of all heads, as the model makes them; made once."""
        if self._heads is None:
            self._heads = type(self.module).expand_kv(self.module, widened(self.latent), widened(self.rotary))
        return self._heads

    def refusal(self) -> str:
        """Why this cannot be absorbed; "" where it can."""
        return _weights_refusal(self.module)

    def shapes(self, q: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, rows and values with the shapes, dtypes and strides that the kernel would be given; not their elements."""
        rows = self.rows()
        return q.new_empty(()).expand(*q.shape[:3], rows.shape[3]), rows, rows[..., : self.latent.shape[3]]

    def rows(self) -> Tensor:
        """[c ; r] of every token, (b, 1, s, c + r): where our cache put them side by side they are read as they lie."""
        if self._rows is None:
            self._rows = self._joined()
        return self._rows

    def _joined(self) -> Tensor:
        latent, rotary = _as_stored(self.latent), _as_stored(self.rotary)
        width, rank = latent.shape[3] + rotary.shape[3], latent.shape[3]
        adjacent = latent.data_ptr() + rank * latent.element_size() == rotary.data_ptr()
        if (
            adjacent
            and latent.stride() == rotary.stride()
            and latent.dtype == rotary.dtype
            and latent.stride(2) >= width
        ):
            return latent.as_strided((*latent.shape[:3], width), latent.stride())
        return torch.cat((latent, rotary), 3)

    def absorbed(self, q: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries over the rows (b, h, t, c + r), the rows, and the values, which are the rows' first c elements."""
        w_k, _ = _weights(self.module)
        nope = w_k.shape[1]
        b, h, t, _ = q.shape
        by_head = q[..., :nope].transpose(0, 1).reshape(h, b * t, nope)
        taken = _times(by_head, w_k, transposed=False).view(h, b, t, -1).transpose(0, 1)
        rows = self.rows()
        return torch.cat((taken, q[..., nope:].to(taken.dtype)), 3), rows, rows[..., : self.latent.shape[3]]

    def expanded_values(self, mixed: Tensor) -> Tensor:
        """y_h = W_v,h of the mixed latents: (b, h, t, c) to (b, h, t, v)."""
        _, w_v = _weights(self.module)
        b, h, t, rank = mixed.shape
        made = _times(mixed.transpose(0, 1).reshape(h, b * t, rank), w_v, transposed=True)
        return made.reshape(h, b, t, -1).transpose(0, 1)


def _times(x: Tensor, w: Tensor, *, transposed: bool) -> Tensor:
    """x (h, r, n) times w, or its transpose, head by head: in float32 by the kernels where they can, else in the dtype of w."""
    if torch.compiler.is_compiling() or not w.is_cpu or x.shape[1] > _MOST_ROWS or w.dtype not in _BY_KERNEL:
        x = x.to(w.dtype)
        return torch.bmm(x, w.mT if transposed else w)
    from manyheads.kernels import project

    return (project.times_transposed if transposed else project.times)(x, w)


class Expanded(Handed):
    """Keys or values of all heads, (b, h, s, d), that the model would make of the latents."""

    what = "an MLA cache whose heads have not been made"
    latent: Latent
    part: int

    @staticmethod
    def __new__(cls: type, latent: Latent, part: int, width: int, dtype: torch.dtype) -> Expanded:
        """`part` 0: keys, 1: values; `dtype`: what it is to look like."""
        (b, _, s, _), module = latent.latent.shape, latent.module
        heads = _weights(module)[0].shape[0]
        made: Any = torch.Tensor._make_wrapper_subclass(
            cls, (b, heads, s, width), dtype=dtype, device=latent.latent.device
        )
        made.latent, made.part = latent, part
        return made

    def widened(self) -> Tensor:
        """As the model makes them."""
        return self.latent.heads()[self.part].to(self.dtype)

    def looking(self, dtype: torch.dtype) -> Expanded:
        """The same heads, of another dtype."""
        return Expanded(self.latent, self.part, self.shape[3], dtype)


def latent_of(call: Call) -> Latent | None:
    """What the keys and values of a call would be made of, where that is one and the same latent."""
    k, v = call.k, call.v
    same = isinstance(k, Expanded) and isinstance(v, Expanded) and k.latent is v.latent and (k.part, v.part) == (0, 1)
    return k.latent if same else None


def _as_stored(x: Tensor) -> Tensor:
    """The tensor that the kernel can read: as it is stored, but for int8, whose two scales it could not tell apart."""
    if isinstance(x, Packed) and x.scales is not None:
        say_once(
            "manyheads: an int8 cache of latents is widened at every step: latent and rotary key have a scale each"
        )
        return x.widened()
    return x.numbers if isinstance(x, Packed) else x


def _weights(module: Any) -> tuple[Tensor, Tensor]:
    """(h, n, c) and (h, v, c): views of the model's own matrix, so that whatever changes it is seen."""
    nope, value = module.qk_nope_head_dim, module.v_head_dim
    both = module.kv_b_proj.weight.view(-1, nope + value, module.kv_lora_rank)
    return both[:, :nope], both[:, nope:]


def _weights_refusal(module: Any) -> str:
    project: Any = getattr(module, "kv_b_proj", None)
    if type(project) is not nn.Linear:
        return f"kv_b_proj is a {type(project).__name__}, whose weights cannot be absorbed; a plain Linear is needed"
    if project.bias is not None:
        return "kv_b_proj has a bias, which has no place in the absorbed form"
    if project.in_features != module.kv_lora_rank:
        return f"kv_b_proj reads {project.in_features} elements, the latents have {module.kv_lora_rank}"
    if project.out_features % (module.qk_nope_head_dim + module.v_head_dim):
        return f"kv_b_proj makes {project.out_features} elements, no multiple of keys and values of a head"
    return ""


def seam_refusal(module: nn.Module) -> str:
    """Why the seam cannot be put into an attention module; "" where it can. Tries a few latents through both ways."""
    missing = [name for name in _SIZES if not isinstance(getattr(module, name, None), int)]
    if missing:
        return f"it keeps no latents (no {missing[0]})"
    if not callable(getattr(type(module), "expand_kv", None)):
        return "its model makes the heads in the middle of its forward: there is no expand_kv to replace"
    reason = _weights_refusal(module)
    if reason or module.kv_b_proj.weight.device.type == "meta":  # type: ignore[union-attr]
        return reason
    with torch.no_grad():
        weight: Tensor = module.kv_b_proj.weight  # type: ignore[assignment,union-attr]
        draw = torch.Generator().manual_seed(0)
        latent = torch.randn(1, 1, 3, module.kv_lora_rank, generator=draw).to(weight)  # type: ignore[arg-type]
        rotary = torch.randn(1, 1, 3, module.qk_rope_head_dim, generator=draw).to(weight)  # type: ignore[arg-type]
        keys, values = type(module).expand_kv(module, latent, rotary)  # type: ignore[attr-defined]
        w_k, w_v = _weights(module)
        shared = rotary.expand(-1, w_k.shape[0], -1, -1)
        ours = torch.cat((latent @ w_k.mT, shared), 3), latent @ w_v.mT
    for theirs, mine in zip((keys, values), ours, strict=True):
        if theirs.shape != mine.shape or not torch.allclose(theirs.float(), mine.float(), rtol=2e-2, atol=1e-3):
            return "its expand_kv is not [W_k c ; r] and W_v c, which is what can be absorbed"
    return ""


def _expand_lazily(self: Any, kv_nope: Tensor, k_rot: Tensor) -> tuple[Tensor, Tensor]:
    """What stands in the place of `expand_kv` on a module."""
    weight = self.kv_b_proj.weight
    learning = torch.is_grad_enabled() and (weight.requires_grad or kv_nope.requires_grad or k_rot.requires_grad)
    if learning or torch.compiler.is_compiling() or self not in _open or kv_nope.device.type != "cpu":
        return type(self).expand_kv(self, widened(kv_nope), widened(k_rot))
    latent = Latent(self, kv_nope, k_rot)
    return (
        Expanded(latent, 0, self.qk_nope_head_dim + self.qk_rope_head_dim, kv_nope.dtype),
        Expanded(latent, 1, self.v_head_dim, kv_nope.dtype),
    )  # type: ignore[return-value]


def seams(model: nn.Module) -> dict[str, str]:
    """Each attention module of `model` that keeps latents, and why it has no seam ("" where it has)."""
    return {
        name: seam_refusal(module)
        for name, module in model.named_modules()
        if isinstance(getattr(module, "kv_lora_rank", None), int) and hasattr(module, "kv_b_proj")
    }


def open_seam(module: Any) -> str:
    """Put the seam into one attention module; why not, or "" where it is in place."""
    if module in _open:
        return ""
    reason = seam_refusal(module)
    if not reason:
        module.expand_kv = types.MethodType(_expand_lazily, module)
        _open.add(module)
    return reason


def open_seams(model: nn.Module) -> list[nn.Module]:
    """Put the seam into every attention module that keeps latents; returns those that had none before.

    Raises BackendError, with the module and the reason, where one keeps latents and cannot have it; then nothing is changed.
    """
    for name, reason in seams(model).items():
        if reason:
            raise BackendError(
                f"{type(model).__name__}: {name}: {reason}; its decode would expand the whole cache at each step"
            )
    closed = [module for module in map(model.get_submodule, seams(model)) if module not in _open]
    for module in closed:
        open_seam(module)
    return closed


def close_seams(modules: list[nn.Module] | None = None) -> None:
    """Take the seam out again, of these modules or of all."""
    for module in list(_open) if modules is None else modules:
        _open.discard(module)
        module.__dict__.pop("expand_kv", None)


@contextmanager
def absorbing(model: nn.Module) -> Iterator[None]:
    """The seam in `model` while this is open. Raises BackendError as `open_seams` does, and where nothing keeps latents."""
    if not seams(model):
        raise BackendError(f"{type(model).__name__} has no attention that keeps latents; valid: MLA, as in deepseek_v3")
    opened = open_seams(model)
    try:
        yield
    finally:
        close_seams(opened)
