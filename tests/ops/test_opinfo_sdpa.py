"""torch's own database of operator samples: all 25 of scaled_dot_product_attention through every form."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from manyheads.ops import masks, sdpa, softmax, tiled

FORMS = {"softmax": softmax.attention, "tiled": tiled.attention, "sdpa": sdpa.attention}


def samples() -> list[object]:
    pytest.importorskip("expecttest")
    from torch.testing._internal.common_methods_invocations import op_db

    (operator,) = (entry for entry in op_db if entry.name == "nn.functional.scaled_dot_product_attention")
    return list(operator.sample_inputs("cpu", torch.float64, requires_grad=True))


def ours(form: str, q: Tensor, k: Tensor, v: Tensor, keywords: dict[str, object]) -> Tensor:
    """torch's call said in ours: its causal flag counts from the start, its tensors broadcast over leading axes."""
    lead = torch.broadcast_shapes(q.shape[:-2], k.shape[:-2], v.shape[:-2])
    wide = [x.expand(*lead, *x.shape[-2:]) for x in (q, k, v)]
    wide = [x[:, None] if x.dim() == 3 else x for x in wide]
    asked = {"visible": masks.causal(), "offset": 0} if keywords["is_causal"] else {}
    out = FORMS[form](*wide, scale=q.shape[-1] ** -0.5, bias=keywords.get("attn_mask"), **asked)
    return out.view(*lead, *out.shape[-2:])


@pytest.mark.parametrize("form", FORMS)
def test_opinfo_samples(form: str) -> None:
    """Dropout is set to 0 on both sides: it draws, and is tested apart (test_dropout.py)."""
    found = samples()
    assert len(found) == 25
    for sample in found:
        q, (k, v), keywords = sample.input, sample.args, {**sample.kwargs, "dropout_p": 0.0}
        leaves = [x for x in (q, k, v, keywords.get("attn_mask")) if isinstance(x, Tensor)]
        want, got = scaled_dot_product_attention(q, k, v, **keywords), ours(form, q, k, v, keywords)
        assert got.shape == want.shape
        assert (got - want).abs().max() < 1e-12
        weight = torch.sin(torch.arange(want.numel(), dtype=want.dtype)).view(want.shape)
        theirs, mine = (torch.autograd.grad((out * weight).sum(), leaves) for out in (want, got))
        assert all((a - b).abs().max() < 1e-12 for a, b in zip(theirs, mine, strict=True))
