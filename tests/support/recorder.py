"""Minimal references that run on meta tensors and count every contraction they make.

Each product goes through `contract`, an einsum that multiplies the lengths of all axes it names: outer products too,
which torch's own counters do not see. The references are written from the papers' equations, not from the formulas.
"""

from __future__ import annotations

from math import prod

import torch

from manyheads.spec import AttentionSpec, Cross, Heads, Latent, Mlp, Moe, State, weights


class Recorder:
    """Counts multiply-accumulates by label."""

    def __init__(self):
        self.macs = {"projection": 0, "core": 0}

    def contract(self, label: str, equation: str, *tensors: torch.Tensor) -> torch.Tensor:
        """einsum over one-letter axes; MACs = product of the lengths of all distinct axes."""
        inputs = equation.split("->", maxsplit=1)[0].split(",")
        lengths: dict[str, int] = {}
        for letters, tensor in zip(inputs, tensors, strict=True):
            assert len(letters) == tensor.ndim
            for letter, length in zip(letters, tensor.shape, strict=True):
                assert lengths.setdefault(letter, length) == length
        self.macs[label] += prod(lengths.values())
        return torch.einsum(equation, *tensors)


def parameters(spec: AttentionSpec | Mlp | Moe, d_model: int = 0) -> dict[str, torch.Tensor]:
    """The inventory as meta tensors."""
    return {w.name: torch.empty(w.shape, device="meta") for w in weights(spec, d_model)}


def run_attention(spec: AttentionSpec, queries: int, keys: int, memory: int = 0, form: str = "expanded") -> Recorder:
    """`queries` new tokens at the end of `keys`; what the past projected is there already."""
    tape, p = Recorder(), parameters(spec)
    x = torch.empty(queries, spec.d_model, device="meta")
    if isinstance(spec.kv, Latent):
        heads = _latent(tape, spec, spec.kv, p, x, keys, form)
    elif isinstance(spec.kv, State):
        heads = _state(tape, spec, spec.kv, p, x)
    else:
        heads = _heads(tape, spec, spec.kv, p, x, keys, memory)
    if "gate" in p:
        heads = heads * tape.contract("projection", "tm,yvm->tyv", x, p["gate"])
    tape.contract("projection", "tyv,myv->tm", heads, p["o"])
    return tape


def _grown(new: torch.Tensor, keys: int) -> torch.Tensor:
    return torch.empty(keys, *new.shape[1:], device="meta")


def _heads(tape: Recorder, spec: AttentionSpec, kv: Heads, p, x, keys: int, memory: int) -> torch.Tensor:
    q = tape.contract("projection", "tm,hqm->thq", x, p["q"])
    if "k" in p:
        source = torch.empty(memory, spec.d_source, device="meta") if isinstance(spec.source, Cross) else x
        k = tape.contract("projection", "sm,kqm->skq", source, p["k"])
        v = tape.contract("projection", "sm,kvm->skv", source, p["v"])
    else:  # borrowed
        k = torch.empty(1, kv.num_kv_heads, kv.head_dim, device="meta")
        v = torch.empty(1, kv.num_kv_heads, kv.v_head_dim, device="meta")
    if not isinstance(spec.source, Cross):
        k, v = _grown(k, keys), _grown(v, keys)
    grouped = q.reshape(q.shape[0], kv.num_kv_heads, -1, kv.head_dim)
    scores = tape.contract("core", "tkgq,skq->kgts", grouped, k)
    mixed = tape.contract("core", "kgts,skv->tkgv", scores.softmax(-1), v)
    return mixed.reshape(q.shape[0], spec.num_heads, kv.v_head_dim)


def _latent(tape: Recorder, spec: AttentionSpec, kv: Latent, p, x, keys: int, form: str) -> torch.Tensor:
    if kv.q_rank:
        q = tape.contract(
            "projection", "ta,hqa->thq", tape.contract("projection", "tm,am->ta", x, p["q_down"]), p["q_up"]
        )
    else:
        q = tape.contract("projection", "tm,hqm->thq", x, p["q"])
    q_nope, q_rope = q.split([kv.nope_dim, kv.rope_dim], dim=-1)
    latent = tape.contract("projection", "tm,cm->tc", x, p["kv_down"])
    k_rope = torch.empty(len(x), 0, device="meta")
    if kv.rope_dim:
        k_rope = tape.contract("projection", "tm,rm->tr", x, p["k_rope"])
    if form == "expanded":
        k = _grown(tape.contract("projection", "tc,hdc->thd", latent, p["k_up"]), keys)
        v = _grown(tape.contract("projection", "tc,hvc->thv", latent, p["v_up"]), keys)
        k = torch.cat([k, _grown(k_rope, keys)[:, None].expand(-1, spec.num_heads, -1)], -1)
        scores = tape.contract("core", "thq,shq->hts", q, k)
        return tape.contract("core", "hts,shv->thv", scores.softmax(-1), v)
    latents, rotary = _grown(latent, keys), _grown(k_rope, keys)
    absorbed = tape.contract("projection", "thd,hdc->thc", q_nope, p["k_up"])
    scores = tape.contract("core", "thc,sc->hts", absorbed, latents)
    if kv.rope_dim:
        scores = scores + tape.contract("core", "thr,sr->hts", q_rope, rotary)
    mixed = tape.contract("core", "hts,sc->thc", scores.softmax(-1), latents)
    return tape.contract("projection", "thc,hvc->thv", mixed, p["v_up"])


def _state(tape: Recorder, spec: AttentionSpec, kv: State, p, x) -> torch.Tensor:
    q = tape.contract("projection", "tm,hqm->thq", x, p["q"])
    k = tape.contract("projection", "tm,kqm->tkq", x, p["k"])
    v = tape.contract("projection", "tm,jvm->tjv", x, p["v"])
    for name in ("q", "k", "v"):
        if f"{name}_conv" in p:
            taps = torch.empty(*{"q": q, "k": k, "v": v}[name].shape, kv.conv_width, device="meta")
            tape.contract("projection", "tabz,abz->tab", taps, p[f"{name}_conv"])
    if "q_map" in p:
        q = tape.contract("projection", "thq,hqf->thf", q, p["q_map"])
        k = tape.contract("projection", "tkq,kqf->tkf", k, p["k_map"])
    if "decay" in p:
        tape.contract("projection", "tm,nfm->tnf" if kv.decay == "per_channel" else "tm,nm->tn", x, p["decay"])
    if "beta" in p:
        tape.contract("projection", "tm,nm->tn", x, p["beta"])
    out_heads, n = spec.num_output_heads, kv.num_state_heads
    k = k.repeat_interleave(n // kv.num_key_heads, 1)
    v = v.repeat_interleave(n // kv.num_value_heads, 1)
    q = q.repeat_interleave(max(1, n // spec.num_heads), 1).reshape(len(x), n, out_heads // n, -1)
    state, total, rows = torch.empty(n, kv.feature_dim, kv.v_head_dim, device="meta"), None, []
    for t in range(len(x)):
        write = v[t]
        if kv.beta != "none":
            write = write - tape.contract("core", "nf,nfv->nv", k[t], state)
        state = state + tape.contract("core", "nf,nv->nfv", k[t], write)
        rows.append(tape.contract("core", "ngf,nfv->ngv", q[t], state))
        if kv.normalised:
            total = k[t] if total is None else total + k[t]
            tape.contract("core", "ngf,nf->ng", q[t], total)
    return torch.stack(rows).reshape(len(x), out_heads, kv.v_head_dim)


def run_mlp(mlp: Mlp | Moe, d_model: int, tokens: int) -> int:
    """MACs of the MLP or of the mixture's active path."""
    tape, p = Recorder(), parameters(mlp, d_model)
    x = torch.empty(tokens, d_model, device="meta")
    if isinstance(mlp, Mlp):
        _two_or_three(tape, x, p.get("gate"), p["up"], p["down"])
        return tape.macs["projection"]
    tape.contract("projection", "tm,xm->tx", x, p["router"])
    for expert in range(mlp.active):
        gate = p["experts.gate"][expert] if mlp.gated else None
        _two_or_three(tape, x, gate, p["experts.up"][expert], p["experts.down"][expert])
    if mlp.shared_width:
        _two_or_three(tape, x, p.get("shared.gate"), p["shared.up"], p["shared.down"])
        if mlp.shared_gate:
            tape.contract("projection", "tm,im->ti", x, p["shared_gate"])
    return tape.macs["projection"]


def _two_or_three(tape: Recorder, x, gate, up, down) -> None:
    hidden = tape.contract("projection", "tm,wm->tw", x, up)
    if gate is not None:
        hidden = hidden * tape.contract("projection", "tm,wm->tw", x, gate)
    tape.contract("projection", "tw,mw->tm", hidden, down)
