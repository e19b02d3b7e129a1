"""MLA in transformers' models: heads made of the latents where many tokens are read, absorbed where few are written.

    prefill   k_h = [W_k,h c ; r], v_h = W_v,h c            as the model does it
    decode    q~_h = W_k,h^T q_h over the rows [c ; r], y_h = W_v,h (A_h c)

Between its cache and the attention function such a model calls `expand_kv` on itself. The absorbed-MLA patch replaces that on
the instance: it returns two tensors that are made only if somebody asks for their elements, and the kernel does not. Source: arXiv 2405.04434, section 2.1.2.
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
from manyheads.ops.deferred import materialized
from manyheads.ops.latent import Latents

__all__ = ["absorbed_mla", "patch", "patch_module", "patch_refusal", "patchable", "unpatch"]

_patched: weakref.WeakSet[nn.Module] = weakref.WeakSet()
_SIZES = ("kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")


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


def patch_refusal(module: nn.Module) -> str:
    """Why an attention module cannot be patched; "" where it can. Tries a few latents through both ways."""
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


def _expand_deferred(self: Any, kv_nope: Tensor, k_rot: Tensor) -> tuple[Tensor, Tensor]:
    """What stands in the place of `expand_kv` on a patched module: (b, 1, s, c) and (b, 1, s, r) to keys and values of heads."""
    weight = self.kv_b_proj.weight
    learning = torch.is_grad_enabled() and (weight.requires_grad or kv_nope.requires_grad or k_rot.requires_grad)
    elsewhere = torch.compiler.is_compiling() or self not in _patched or kv_nope.device.type != "cpu"

    def make() -> tuple[Tensor, Tensor]:
        made: tuple[Tensor, Tensor] = type(self).expand_kv(self, materialized(kv_nope), materialized(k_rot))
        return made

    if learning or elsewhere or _weights_refusal(self):
        return make()
    return Latents(kv_nope, k_rot, *_weights(self), make=make).deferred()


def patchable(model: nn.Module) -> dict[str, str]:
    """Each attention module of `model` that keeps latents, and why it cannot be patched ("" where it can)."""
    return {
        name: patch_refusal(module)
        for name, module in model.named_modules()
        if isinstance(getattr(module, "kv_lora_rank", None), int) and hasattr(module, "kv_b_proj")
    }


def patch_module(module: Any) -> str:
    """Patch one attention module; why not, or "" where it is patched."""
    if module in _patched:
        return ""
    reason = patch_refusal(module)
    if not reason:
        module.expand_kv = types.MethodType(_expand_deferred, module)
        _patched.add(module)
    return reason


def patch(model: nn.Module) -> list[nn.Module]:
    """Patch every attention module that keeps latents; returns those that were not before.

    Raises BackendError, with the module and the reason, where one keeps latents and cannot be; then nothing is changed.
    """
    found = patchable(model)
    for name, reason in found.items():
        if reason:
            raise BackendError(
                f"{type(model).__name__}: {name}: {reason}; its decode would expand the whole cache at each step"
            )
    new = [module for module in map(model.get_submodule, found) if module not in _patched]
    for module in new:
        patch_module(module)
    return new


def unpatch(modules: list[nn.Module] | None = None) -> None:
    """Take the patch out again, of these modules or of all."""
    for module in list(_patched) if modules is None else modules:
        _patched.discard(module)
        module.__dict__.pop("expand_kv", None)


@contextmanager
def absorbed_mla(model: nn.Module) -> Iterator[None]:
    """`model` patched while this is open. Raises BackendError as `patch` does, and where nothing keeps latents."""
    if not patchable(model):
        raise BackendError(f"{type(model).__name__} has no attention that keeps latents; valid: MLA, as in deepseek_v3")
    patched = patch(model)
    try:
        yield
    finally:
        unpatch(patched)
