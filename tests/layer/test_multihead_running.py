"""The drop-in at work: dropout, nested tensors, torch.compile and torch.export, and how much memory it holds."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from manyheads.errors import SpecError  # noqa: E402
from manyheads.layer import backends  # noqa: E402
from manyheads.layer.multihead import MultiheadAttention, multi_head_attention_forward  # noqa: E402
from manyheads.ops import sdpa  # noqa: E402
from support.peak_memory import PEAK_BYTES  # noqa: E402

either_way = pytest.mark.parametrize("need_weights", [True, False])


def pair(dropout=0.0, **options):
    """torch's module and ours with the same weights."""
    torch.manual_seed(0)
    theirs = nn.MultiheadAttention(8, 2, dropout=dropout, batch_first=True, **options)
    ours = MultiheadAttention(8, 2, dropout=dropout, batch_first=True, **options)
    ours.load_state_dict(theirs.state_dict())
    return theirs, ours


def dropped_weights(scores, share, *, need_weights, training=True):
    """What is left of the weights after dropout, (queries, keys): the output of one head with values of 1 at its own key."""
    queries, keys = scores.shape
    unit = torch.eye(keys, dtype=torch.float64)
    spread = torch.cat([scores, torch.zeros(queries, keys - queries)], 1) if queries < keys else scores
    out, _ = multi_head_attention_forward(
        spread * math.sqrt(keys), unit, unit, keys, 1, torch.cat([unit] * 3), None, None, None, False, share, unit, None,
        training=training, need_weights=need_weights,
    )  # fmt: skip
    return out


@pytest.mark.parametrize("form", ["with weights", "torch's", "tile by tile"])
def test_dropout_drops_its_share_and_keeps_the_expectation(form, monkeypatch) -> None:
    if form == "tile by tile":
        monkeypatch.setattr(sdpa, "LARGEST_DROPPED_ELEMENTS", 0)
        monkeypatch.setattr(backends, "_LARGEST_PLAIN_ELEMENTS", 0)
    need_weights, share = form == "with weights", 0.25
    torch.manual_seed(0)
    scores = torch.randn(60, 60, dtype=torch.float64)
    whole = scores.softmax(-1)
    torch.testing.assert_close(dropped_weights(scores, share, need_weights=need_weights, training=False), whole)
    mean, runs, number = torch.zeros_like(whole), 40, 0
    for _ in range(runs):
        left = dropped_weights(scores, share, need_weights=need_weights)
        kept = left != 0
        torch.testing.assert_close(left, whole * kept / (1 - share))
        mean, number = mean + left / runs, number + int(kept.sum())
    trials = runs * whole.numel()
    assert abs(number / trials - (1 - share)) < 5 * math.sqrt(share * (1 - share) / trials)
    # one standard error of the mean is whole · sqrt(share / (1 - share) / runs) = 0.091 of it; 3,600 are compared
    assert ((mean - whole).abs() < 5.5 * 0.0913 * whole).all()


@either_way
def test_dropout_is_torchs_after_the_same_seed(need_weights) -> None:
    theirs, ours = pair(dropout=0.3)
    x = torch.randn(2, 5, 8)
    mask = torch.ones(5, 5, dtype=torch.bool).triu(1)
    outs = []
    for module in (theirs, ours):
        torch.manual_seed(1)
        outs.append(module.train()(x, x, x, attn_mask=mask, need_weights=need_weights)[0])
    torch.testing.assert_close(*outs)
    torch.testing.assert_close(ours.eval()(x, x, x, attn_mask=mask)[0], theirs.eval()(x, x, x, attn_mask=mask)[0])
    assert not torch.allclose(outs[1], ours(x, x, x, attn_mask=mask)[0])


@either_way
def test_dropout_of_everything_leaves_the_output_bias(need_weights) -> None:
    _, ours = pair(dropout=1.0)
    nn.init.normal_(ours.out_proj.bias)
    x = torch.randn(2, 5, 8)
    out, weights = ours.train()(x, x, x, need_weights=need_weights)
    torch.testing.assert_close(out, ours.out_proj.bias.expand(2, 5, 8))
    assert weights is None or torch.allclose(weights.sum(-1), torch.ones(2, 5))


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("layout", [torch.strided, torch.jagged])
@pytest.mark.parametrize("average", [True, False])
def test_nested_tensors_are_computed_a_sequence_at_a_time(layout, average) -> None:
    _, ours = pair()
    lengths = [3, 1, 5]
    rows = [torch.randn(length, 8, requires_grad=True) for length in lengths]
    nested = torch.nested.as_nested_tensor(rows, layout=layout)
    out, weights = ours(nested, nested, nested, average_attn_weights=average)
    assert out.is_nested
    assert out.layout == layout
    for number, (row, found) in enumerate(zip(rows, out.unbind(), strict=True)):
        expected, expected_weights = ours(row, row, row, average_attn_weights=average)
        torch.testing.assert_close(found, expected)
        length = lengths[number]
        torch.testing.assert_close(weights[number][..., :length, :length], expected_weights)
        assert not weights[number][..., length:, :].any()
        assert not weights[number][..., length:].any()
    found = torch.autograd.grad(sum(x.square().sum() for x in out.unbind()), rows)
    for row, gradient in zip(rows, found, strict=True):
        alone = torch.autograd.grad(ours(row, row, row, need_weights=False)[0].square().sum(), row)[0]
        torch.testing.assert_close(gradient, alone)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_nested_memory_and_what_nested_tensors_need() -> None:
    _, ours = pair()
    memory = torch.nested.as_nested_tensor([torch.randn(2, 8), torch.randn(4, 8)])
    query = torch.nested.as_nested_tensor([torch.randn(3, 8), torch.randn(1, 8)])
    out, _ = ours(query, memory, memory, need_weights=False)
    for number, found in enumerate(out.unbind()):
        torch.testing.assert_close(found, ours(query[number], memory[number], memory[number])[0])
    with pytest.raises(SpecError, match=r"need batch_first=True and no masks.*key_padding_mask given"):
        ours(query, memory, memory, torch.zeros(2, 4).bool())
    ours.batch_first = False
    with pytest.raises(SpecError, match="found batch_first=False"):
        ours(query, memory, memory)


SQUARE = torch.ones(5, 5, dtype=torch.bool).triu(1)
PADDING = torch.tensor([[False] * 5, [False, False, True, True, True]])
CALLS = {
    "weights": {},
    "no weights": {"need_weights": False},
    "each head": {"average_attn_weights": False, "key_padding_mask": PADDING},
    "padding": {"need_weights": False, "key_padding_mask": PADDING},
    "causal": {"need_weights": False, "is_causal": True},
    "causal and padding": {"need_weights": False, "is_causal": True, "key_padding_mask": PADDING},
    "mask": {"need_weights": False, "attn_mask": SQUARE, "key_padding_mask": PADDING},
    "floats": {"attn_mask": torch.zeros(5, 5).masked_fill(SQUARE, -torch.inf), "key_padding_mask": PADDING},
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_case_o64_compiles_into_one_graph_forward_and_backward(call) -> None:
    torch._dynamo.reset()
    _, ours = pair(add_bias_kv=True, add_zero_attn=True)
    compiled = torch.compile(ours, fullgraph=True, backend="aot_eager")
    x = torch.randn(2, 5, 8)
    for q in (x, torch.randn(2, 5, 8)):
        results = []
        for module in (ours, compiled):
            out, weights = module(q, x, x, **call)
            gradients = torch.autograd.grad(out.square().sum(), list(ours.parameters()))
            results.append([out, *([] if weights is None else [weights]), *gradients])
        torch.testing.assert_close(*results)


def test_a_layer_that_torch_made_compiles_with_ours_inside() -> None:
    torch._dynamo.reset()
    _, ours = pair(dropout=0.1)
    outer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    outer.self_attn = ours
    x = torch.randn(2, 5, 8)
    compiled = torch.compile(outer, fullgraph=True, backend="aot_eager")
    assert torch.isfinite(compiled.train()(x, src_key_padding_mask=PADDING | True)).all()
    outer.eval()
    torch.testing.assert_close(compiled(x, src_mask=SQUARE), outer(x, src_mask=SQUARE))


def test_exports_with_batch_and_length_open() -> None:
    _, ours = pair()

    class Self(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attention = ours.eval()

        def forward(self, x, padding):
            return self.attention(x, x, x, key_padding_mask=padding, need_weights=False)[0]

    batch, tokens = torch.export.Dim("batch"), torch.export.Dim("tokens", max=4096)
    program = torch.export.export(
        Self(), (torch.randn(3, 4, 8), torch.zeros(3, 4).bool()), dynamic_shapes=({0: batch, 1: tokens},) * 2
    )
    x = torch.randn(2, 5, 8)
    torch.testing.assert_close(program.module()(x, PADDING), ours(x, x, x, PADDING)[0])


MEMORY = (
    PEAK_BYTES
    + """
import sys, torch
from manyheads.layer.multihead import MultiheadAttention
torch.set_num_threads(1)
tokens, how = int(sys.argv[1]), sys.argv[2]
layer = MultiheadAttention(8, int(sys.argv[3]), dropout=0.1 if how == "dropout" else 0.0, batch_first=True)

def run(tokens):
    x = torch.randn(1, tokens, 8, requires_grad=how != "alone")
    padding = torch.arange(tokens).expand(1, tokens) >= tokens - 3 if how in ("padding", "dropout") else None
    with torch.set_grad_enabled(how != "alone"):
        out, weights = layer(x, x, x, padding, need_weights=how == "weights", is_causal=how in ("causal", "alone"))
    if how != "alone":
        out.sum().backward()

run(64)
before = peak_bytes()
run(tokens)
print(peak_bytes() - before)
"""
)


def most_bytes(python, *words):
    if not Path("/proc/self/status").exists():
        pytest.skip("how much memory a process ever held is read from /proc")
    ran = python("-c", MEMORY, *map(str, words))
    assert ran.returncode == 0, ran.stderr
    return int(ran.stdout)


@pytest.mark.parametrize("how", ["nothing", "padding", "causal", "dropout"])
def test_case_o18_no_weights_are_written_down_unless_asked(python, how) -> None:
    """4 heads of 4,096 x 4,096 weights are 256 MiB, one is 64 MiB: forward and backward stay below one."""
    assert most_bytes(python, 4096, how, 4) < 60 * 2**20


def test_case_o18_asked_for_they_are(python) -> None:
    """The same measure, so that the test above can fail."""
    assert most_bytes(python, 4096, "weights", 4) > 256 * 2**20


def test_case_o61_more_pairs_than_32_bits_can_count(python) -> None:
    """46,342 x 46,342 booleans would be 2 GiB."""
    assert most_bytes(python, 46_342, "alone", 1) < 2**30


def test_case_o61_the_last_of_many_tokens_sees_all_of_them() -> None:
    tokens = 46_342
    layer = MultiheadAttention(8, 1, batch_first=True)
    x = torch.randn(1, tokens, 8)
    with torch.no_grad():
        out, _ = layer(x, x, x, need_weights=False, is_causal=True)
        for at in (0, 1, 40_000, tokens - 1):
            seen = x[:, : at + 1]
            torch.testing.assert_close(
                out[:, at : at + 1], layer(x[:, at : at + 1], seen, seen)[0], atol=1e-5, rtol=1e-4
            )
