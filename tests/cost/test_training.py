"""Activations kept for the backward pass: what autograd really saves, each storage once, against the formula."""

from __future__ import annotations

import pytest

from manyheads.cost.training import attention_activation_elements, kept_activation_bytes, mlp_activation_elements
from manyheads.cost.workload import Workload
from manyheads.spec import AttentionSpec, Block, Mlp, NoPositions, Norm, Stack, StackSpec, State, weights

torch = pytest.importorskip("torch")
F = torch.nn.functional
T = 7


def saved_elements(run, parameters) -> int:
    """Elements of the float tensors that autograd keeps, each storage once, parameters apart."""
    own, kept = {p.untyped_storage().data_ptr() for p in parameters}, {}

    def pack(tensor):
        storage = tensor.untyped_storage()
        if tensor.is_floating_point() and storage.data_ptr() not in own:
            kept[storage.data_ptr()] = (storage.nbytes() // tensor.element_size(), tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        run()
    return sum(elements for elements, _ in kept.values())


def make(spec, d_model=0):
    return {w.name: torch.randn(w.shape, requires_grad=True) for w in weights(spec, d_model)}


def linear(x, w):
    return F.linear(x, w.flatten(end_dim=-2) if w.shape[-1] == x.shape[-1] else w)


@pytest.mark.parametrize(("heads", "kv_heads", "head_dim", "v"), [(6, 6, 5, 5), (6, 2, 5, 3), (4, 1, 3, 8)])
def test_attention_with_scores_held(heads, kv_heads, head_dim, v):
    spec = AttentionSpec.gqa(11, heads, kv_heads, head_dim=head_dim, v_head_dim=v)
    p = make(spec)

    def run():
        x = torch.randn(T, 11, requires_grad=True) * 1
        q = linear(x, p["q"]).view(T, kv_heads, -1, head_dim).permute(1, 2, 0, 3).reshape(kv_heads, -1, head_dim)
        k = linear(x, p["k"]).view(T, kv_heads, head_dim).transpose(0, 1)
        value = linear(x, p["v"]).view(T, kv_heads, v).transpose(0, 1)
        probabilities = (torch.bmm(q, k.transpose(1, 2)) * spec.scale).softmax(-1)
        out = torch.bmm(probabilities, value).view(kv_heads, -1, T, v).permute(2, 0, 1, 3).reshape(T, -1)
        return F.linear(out, p["o"].flatten(1))

    assert saved_elements(run, p.values()) == T * attention_activation_elements(spec) + heads * T * T


def test_latent_attention():
    spec = AttentionSpec.mla(11, 3, rank=9, nope_dim=5, rope_dim=2, v_head_dim=4, q_rank=6)
    p = make(spec)

    def run():
        x = torch.randn(T, 11, requires_grad=True) * 1
        q = linear(F.layer_norm(linear(x, p["q_down"]), (6,), p["q_down_norm.weight"]), p["q_up"])
        q = q.view(T, 3, 7).transpose(0, 1)
        latent = F.layer_norm(linear(x, p["kv_down"]), (9,), p["kv_down_norm.weight"])
        rope = linear(x, p["k_rope"])
        k = torch.cat([linear(latent, p["k_up"]).view(T, 3, 5), rope[:, None].expand(-1, 3, -1)], -1).transpose(0, 1)
        value = linear(latent, p["v_up"]).view(T, 3, 4).transpose(0, 1)
        probabilities = (torch.bmm(q, k.transpose(1, 2)) * spec.scale).softmax(-1)
        out = torch.bmm(probabilities, value).transpose(0, 1).reshape(T, -1)
        return F.linear(out, p["o"].flatten(1))

    statistics = 2 * 2 * T  # mean and reciprocal deviation of two norms
    assert saved_elements(run, p.values()) == T * attention_activation_elements(spec) + 3 * T * T + statistics


def test_linear_attention():
    spec = AttentionSpec(
        d_model=11, num_heads=3, kv=State(3, 3, 3, 5, 5, 4, "identity", False), positions=NoPositions(),
        mask=AttentionSpec.mha(8, 2).mask, scale=1.0,
    )  # fmt: skip
    p = make(spec)

    def run():
        x = torch.randn(T, 11, requires_grad=True) * 1
        q = linear(x, p["q"]).view(T, 3, 5).transpose(0, 1)
        k = linear(x, p["k"]).view(T, 3, 5).transpose(0, 1)
        v = linear(x, p["v"]).view(T, 3, 4).transpose(0, 1)
        state = torch.bmm(k.transpose(1, 2), v)
        return F.linear(torch.bmm(q, state).transpose(0, 1).reshape(T, -1), p["o"].flatten(1))

    assert saved_elements(run, p.values()) == T * attention_activation_elements(spec) + 3 * 5 * 4


@pytest.mark.parametrize("gated", [True, False])
def test_mlp(gated):
    mlp = Mlp(13, gated)
    p = make(mlp, 11)

    def run():
        x = torch.randn(T, 11, requires_grad=True) * 1
        up = F.linear(x, p["up"])
        hidden = F.silu(F.linear(x, p["gate"])) * up if gated else F.gelu(up)
        return F.linear(hidden, p["down"])

    assert saved_elements(run, p.values()) == T * mlp_activation_elements(mlp, 11)


def test_korthikanti_without_dropout():
    """arXiv 2205.05198: s·b·h(34 + 5·a·s/h) bytes a layer with dropout; its masks and copies are 2·s·b·h + 3·a·s²·b.

    Of 34: attention 11 (one a dropout mask), MLP 19 (one a mask), norms 4; the mask after the attention's output is the
    1 in 11. Without them 32·s·b·h + 2·a·s²·b.
    """
    s, b, h, a = 96, 3, 64, 4
    block = Block((AttentionSpec.mha(h, a),), Mlp(4 * h), Norm("layer", shift=True), ("pre_attention", "pre_mlp"))
    model = StackSpec((Stack("decoder", h, (block,) * 5),))
    load = Workload(context=s, batch=b)
    assert kept_activation_bytes(model, load, tiled=False) == 5 * (32 * s * b * h + 2 * a * s * s * b)
    assert kept_activation_bytes(model, load, tiled=True) == 5 * (32 * s * b * h + 4 * a * s * b)
