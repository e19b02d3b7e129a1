"""Multi-head attention as a subject: what is right of it, how its faults are told apart, how its weights are found."""

from __future__ import annotations

import types
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("torch")
import numpy as np
import torch
from torch.nn.functional import multi_head_attention_forward

from manyheads.check.multihead.adapter import adapter_from
from manyheads.check.multihead.problem import Widths, lift, natural, remade, whole_answer
from manyheads.check.multihead.storage import Slot, bias_pattern, patterns, stored
from manyheads.check.multihead.twins import TWINS, diagnose
from manyheads.check.multihead.words import meaning_of, meaning_of_path
from manyheads.check.problem import Problem, Sizes, answer
from manyheads.check.suites.basics import plain
from manyheads.check.twins import TWINS as OF_HEADS
from manyheads.errors import ManyheadsError
from support.check_support import named, outcomes

SUBJECTS = Path(__file__).parent / "subjects"
SIZES = Sizes(batch=2, heads=3, kv_heads=3, queries=4, keys=4, dim=2, value_dim=2)


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


# what is right


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("cross", [False, True])
def test_the_right_answer_is_that_of_torch(causal, cross) -> None:
    """torch.nn.functional.multi_head_attention_forward, another program, on the same numbers in float64."""
    sizes = replace(SIZES, keys=6) if cross else SIZES
    p = replace(natural(sizes, generator(), biases=True, cross=cross), causal=causal).to(torch.float64)
    late = torch.ones(4, sizes.keys, dtype=torch.bool).triu(1 + sizes.keys - 4) if causal else None
    query, key, value = (x.transpose(0, 1) for x in p.inputs)
    rows = torch.cat([p.weights[f"w_{role}"].flatten(1).T for role in "qkv"])
    biases = torch.cat([p.weights[f"b_{role}"].flatten() for role in "qkv"])
    expected, _ = multi_head_attention_forward(
        query, key, value, 6, 3, rows, biases, None, None, False, 0.0, p.weights["w_o"].flatten(0, 1).T, p.weights["b_o"],
        training=False, attn_mask=late, need_weights=False,
    )  # fmt: skip
    torch.testing.assert_close(whole_answer(p)[:, 0], expected.transpose(0, 1), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("inputs", ["x", "x+memory", "qkv"])
def test_x_and_weights_carry_a_problem_of_q_k_and_v(inputs) -> None:
    problem = plain(SIZES, generator())
    carried = lift(problem, Widths(inputs=inputs))
    torch.testing.assert_close(whole_answer(carried), answer(problem), rtol=1e-12, atol=1e-12)
    grouped = plain(replace(SIZES, heads=4, kv_heads=2), generator())
    torch.testing.assert_close(
        whole_answer(lift(grouped, Widths(inputs=inputs))), answer(grouped), rtol=1e-12, atol=1e-12
    )


def test_what_cannot_be_carried() -> None:
    problem = plain(replace(SIZES, queries=2), generator())
    assert lift(problem, Widths(inputs="x")) is None  # x gives as many keys as queries
    assert lift(problem, Widths(inputs="qkv")) is not None
    assert lift(plain(SIZES, generator()), Widths(inputs="x", head_dim=4)) is None  # 2 + 2 + 2 numbers in 4
    assert lift(plain(SIZES, generator()), Widths(inputs="x", head_dim=6)) is not None


# faults


def problem_for(name: str):
    cross = any(word in name for word in ("memory", "from x"))
    p = natural(SIZES, generator(), biases="b_" in name or "biases" in name, cross=cross)
    return natural(SIZES, generator(), extra=2) if "x's width" in name else p


@pytest.mark.parametrize("twin", TWINS[len(OF_HEADS) :], ids=lambda twin: twin.name)
def test_a_fault_of_projections_is_named(twin) -> None:
    p = problem_for(twin.name)
    wrong = twin.output(p.to(torch.float64))
    assert not torch.allclose(wrong, whole_answer(p), atol=1e-3)
    found = diagnose(p, wrong.float(), 1e-4)
    assert found is not None
    assert found.name == twin.name


def test_names_of_faults_are_told_once() -> None:
    assert len({twin.name for twin in TWINS}) == len(TWINS)
    assert len({twin.says for twin in TWINS}) == len(TWINS)
    assert diagnose(natural(SIZES, generator()), whole_answer(natural(SIZES, generator())), 1e-5) is None


def test_w_o_missing_by_hand() -> None:
    """One token of two numbers, W_v = [[1, 2], [3, 4]], W_o = 10: the values are [7, 10], y is ten times as much."""
    p = natural(Sizes(heads=1, dim=2, value_dim=2), generator())
    weights = {
        **p.weights,
        "w_v": torch.tensor([[1.0, 2], [3, 4]]).view(2, 1, 2),
        "w_o": 10 * torch.eye(2).view(1, 2, 2),
    }
    p = remade(p, x=torch.tensor([[[1.0, 2.0]]]), weights=weights)
    assert whole_answer(p).flatten().tolist() == [70.0, 100.0]
    assert next(twin for twin in TWINS if twin.name == "W_o missing").output(p).flatten().tolist() == [7.0, 10.0]


# names and places


@pytest.mark.parametrize(
    ("name", "role", "is_bias"),
    [
        ("W_q", "q", False), ("WQ", "q", False), ("wk", "k", False), ("value_weight", "v", False), ("bo", "o", True),
        ("q_proj", "q", False), ("to_queries", "q", False), ("out_proj", "o", False), ("c_attn", "qkv", False),
        ("in_proj_bias", "qkv", True), ("query_key_value", "qkv", False), ("to_qvk", "qvk", False), ("w_kv", "kv", False),
        ("unifyheads", "o", False), ("w_concat", "o", False), ("w_qs", "q", False), ("b_v", "v", True), ("fc", "o", False),
    ],
)  # fmt: skip
def test_names_of_weights(name, role, is_bias) -> None:
    meaning = meaning_of(name)
    assert (meaning.role, meaning.is_bias) == (role, is_bias)


@pytest.mark.parametrize(
    "name", ["x", "mask", "num_heads", "q_norm", "head_dim", "dropout", "rel_pos", "kv_cache", "b", "W"]
)
def test_names_that_are_no_weights(name) -> None:
    assert meaning_of(name) is None


def test_paths_of_weights() -> None:
    assert meaning_of_path("attention.self.query.weight").role == "q"
    assert meaning_of_path("heads.0.key.weight").role == "k"
    assert meaning_of_path("to_out.0.bias") == replace(meaning_of_path("to_out.0.weight"), is_bias=True)
    assert meaning_of_path("linears.3.weight") is None
    assert meaning_of_path("layer_norm.weight") is None


def test_weights_lie_as_their_patterns_say() -> None:
    p = natural(replace(SIZES, heads=2, kv_heads=2, dim=3, value_dim=3), generator(), biases=True)
    w_q, w_k, w_v = (p.weights[f"w_{role}"] for role in "qkv")
    torch_rows = stored(Slot(name="w", role="qkv", pattern="(r h d) m"), p)
    assert torch.equal(torch_rows, torch.cat([w.flatten(1).T for w in (w_q, w_k, w_v)]))
    neox = stored(Slot(name="w", role="qkv", pattern="(h r d) m"), p).T.view(6, 2, 3, 3)  # m, head, which, number
    assert torch.equal(neox[:, 1, 2], w_v[:, 1])
    assert torch.equal(stored(Slot(name="w", role="q", pattern="m (h d)"), p), w_q.flatten(1))
    assert torch.equal(
        stored(Slot(name="b", role="kv", pattern="(r h d)", is_bias=True), p)[6:], p.weights["b_v"].flatten()
    )
    each = stored(Slot(name="heads.{}.w", role="o", pattern="n d", each_head=True), p)
    assert torch.equal(each[1], p.weights["w_o"][1].T)
    assert bias_pattern("m (h r d)", 1) == "(h r d)"
    assert set(patterns("q", 2)) == {"m (h d)", "(h d) m"}


def slots(name: str) -> dict[str, tuple[str, str]]:
    file, _, inside = name.partition(":")
    adapter = named(str(SUBJECTS / f"{file}.py"), inside).adapter
    return {slot.name: (slot.role, slot.pattern) for slot in adapter.slots if not slot.is_bias}


def test_where_weights_are_found() -> None:
    assert slots("functions:mha") == {
        "W_q": ("q", "m (h d)"), "W_k": ("k", "m (h d)"), "W_v": ("v", "m (h d)"), "W_o": ("o", "(h d) n"),
    }  # fmt: skip
    assert slots("functions:linears")["out_weight"] == ("o", "n (h d)")
    assert slots("functions:unnamed") == {
        "a": ("q", "m (h d)"), "b": ("k", "m (h d)"), "c": ("v", "m (h d)"), "d": ("o", "(h d) n"),
    }  # fmt: skip
    assert slots("functions:neox") == {"qkv_weight": ("qkv", "(h r d) m"), "dense_weight": ("o", "n (h d)")}
    assert slots("einops_style:DimFirst")["to_qvk.weight"] == ("qkv", "(d r h) m")
    assert slots("gpt:CausalSelfAttention")["c_attn.weight"] == ("qkv", "(r h d) m")
    assert slots("annotated:MultiHeadedAttention")["linears.3.weight"] == ("o", "n (h d)")
    assert slots("one_file:MultiHeadAttention")["heads.{}.key.weight"] == ("k", "d m")
    assert slots("keras_like:MultiHeadAttention")["output_kernel"] == ("o", "h d n")
    assert slots("numpy_style:SelfAttention")["Wo"] == ("o", "(h d) n")
    assert slots("d2l_style:MultiHeadAttention")["W_q.weight"] == ("q", "(h d) m")


def test_one_weight_the_other_way_round_is_the_fault_and_not_the_way() -> None:
    assert slots("numpy_style:output_transposed")["W_q"] == ("q", "m (h d)")


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("numpy_style:multi_head_attention", {"layout": "td", "framework": "numpy"}),
        ("transformer_style:MultiHeadAttention", {"inputs": "qkv", "residual": True, "norms": ("layer_norm",)}),
        ("transformer_style:SelfAttention", {"causal": "flag", "inputs": "x"}),
        ("transformer_style:attention_of_four", {"kind": "object", "widths": (24, 2, 2)}),
        ("transformer_style:StartPosition", {"mask": "additive", "cache": "kept"}),
        ("hub_style:GroupedAttention", {"causal": "always", "cache": "passed", "bias": "mask", "weights": "flag"}),
        ("d2l_style:MultiHeadAttention", {"padding": "lengths", "inputs": "qkv"}),
        ("keras_like:MultiHeadAttention", {"mask": "visible", "mask_axes": "bts"}),
        ("torch_style:MultiheadAttention", {"layout": "btd", "mask": "blocked", "causal": ""}),
    ],
)
def test_conventions_that_are_found(name, expected) -> None:
    file, _, inside = name.partition(":")
    adapter = named(str(SUBJECTS / f"{file}.py"), inside).adapter
    assert {field: getattr(adapter, field) for field in expected} == expected
    assert adapter_from(adapter.to_data()) == adapter


_WITH_A_TABLE = """def __init__(self, d_model, num_heads):
        super().__init__()
        self.qkv, self.out = nn.Linear(d_model, 3 * d_model), nn.Linear(d_model, d_model)
        self.table = nn.Parameter(torch.zeros(7, 3))"""


def test_weights_that_names_do_not_tell_can_be_told(tmp_path) -> None:
    (tmp_path / "told.py").write_text(
        """
def attention(tokens, one, two, three, four, count):
    b, t, m = tokens.shape
    q, k, v = ((tokens @ w).view(b, t, count, -1).transpose(1, 2) for w in (two, one, three))
    return ((q @ k.mT / q.shape[-1] ** 0.5).softmax(-1) @ v).transpose(1, 2).reshape(b, t, m) @ four

def as_told(tokens, one, two, three, four, count):
    return attention(tokens, one, two, three, four, count)

as_told.manyheads_check = {"names": {"w_q": "two", "w_k": "one"}}
attention.manyheads_check = {"names": {"w_x": "two"}}
"""
    )
    found = outcomes(named(str(tmp_path / "told.py"), "as_told"), "projected")["projected"]
    assert found.status == "pass"
    with pytest.raises(ManyheadsError, match="there is no role 'w_x'"):
        named(str(tmp_path / "told.py"), "attention")


def test_objects_and_names_that_tell_little(tmp_path) -> None:
    """An object whose attribute is called n; torch's flag, a hint beside the mask; and nothing but *args."""
    (tmp_path / "little.py").write_text(
        """
import torch
from torch import nn
from manyheads import MultiheadAttention

class Few(nn.Module):
    def __init__(self, width, count):
        super().__init__()
        self.n, self.i, self.o = count, nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x):
        q, k, v = (y.unflatten(-1, (self.n, -1)).transpose(1, 2) for y in self.i(x).chunk(3, -1))
        out = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.o(out.transpose(1, 2).flatten(2))

few = Few(24, 4)

def anything(*args):
    q, k, v = args
    return torch.softmax(q @ k.mT / q.shape[-1] ** 0.5, -1) @ v
"""
    )
    few = named(str(tmp_path / "little.py"), "few")
    assert (few.adapter.widths, few.adapter.causal) == ((24, 4, 4), "always")
    assert outcomes(few, "projected", "causal-values")["projected"].status == "pass"
    ours = named(str(tmp_path / "little.py"), "MultiheadAttention")
    assert ours.adapter.lacks["causal-mask"].startswith("its is_causal is a hint")
    assert {outcome.status for outcome in outcomes(ours, "projected-causal", "mask", "causal").values()} == {"pass"}
    assert outcomes(named(str(tmp_path / "little.py"), "anything"), "values")["values"].status == "pass"


def test_tokens_first_is_found(tmp_path) -> None:
    (tmp_path / "first.py").write_text(
        "import torch\n"
        "class Attention(torch.nn.Module):\n"
        "    def __init__(self, embed_dim, num_heads):\n"
        "        super().__init__()\n"
        "        self.inner = torch.nn.MultiheadAttention(embed_dim, num_heads)\n"
        "    def forward(self, x):\n"
        "        return self.inner(x, x, x, need_weights=False)[0]\n"
    )
    subject = named(str(tmp_path / "first.py"), "Attention")
    assert subject.adapter.layout == "tbd"
    assert {outcome.status for outcome in outcomes(subject, "projected", "batch", "values").values()} == {"pass"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("def __init__(self, d_model, num_heads, flavour): super().__init__()", "the constructor's parameter 'flavour'"),
        ("def __init__(self, d_model, num_heads): raise ValueError('no')", r"A\(d_model=12, num_heads=2\) cannot be made: ValueError: no"),
        (_WITH_A_TABLE, "has weights that are not understood: table"),
        (
            "def __init__(self, config):\n        super().__init__()\n        self.a = nn.Linear(config.n_embd, config.flavour)",
            "'flavour', asked of the configuration, is not understood",
        ),
    ],
)  # fmt: skip
def test_classes_that_cannot_be_taken_say_why_in_one_line(tmp_path, text, message) -> None:
    (tmp_path / "a.py").write_text(
        f"import torch\nfrom torch import nn\nclass A(nn.Module):\n    {text}\n    def forward(self, x): return x\n"
    )
    with pytest.raises(ManyheadsError, match=message) as error:
        named(str(tmp_path / "a.py"), "A")
    assert "\n" not in str(error.value)


def test_rotary_positions_are_refused_and_not_called_wrong(tmp_path) -> None:
    (tmp_path / "rotary.py").write_text(
        """
import torch
from torch import nn

class Rotary(nn.Module):
    def __init__(self, d_model, n_heads):
        super().__init__()
        self.h, self.qkv, self.o = n_heads, nn.Linear(d_model, 3 * d_model), nn.Linear(d_model, d_model)

    def turn(self, x):
        half = x.shape[-1] // 2
        angle = torch.arange(x.shape[2])[:, None] * 10_000.0 ** (-torch.arange(half) / half)
        a, b = x[..., :half], x[..., half : 2 * half]
        turned = (a * angle.cos() - b * angle.sin(), a * angle.sin() + b * angle.cos(), x[..., 2 * half :])
        return torch.cat(turned, -1).to(x)

    def forward(self, x):
        q, k, v = (y.unflatten(-1, (self.h, -1)).transpose(1, 2) for y in self.qkv(x).chunk(3, -1))
        out = nn.functional.scaled_dot_product_attention(self.turn(q), self.turn(k), v, is_causal=True)
        return self.o(out.transpose(1, 2).flatten(2))
"""
    )
    with pytest.raises(ManyheadsError, match="depends on where tokens stand"):
        named(str(tmp_path / "rotary.py"), "Rotary")


# what is said


@pytest.mark.parametrize(
    ("name", "check"),
    [
        ("functions:grouped_tiled", "projected-grouped"), ("gpt:NoOutputProjection", "projected"),
        ("hub_style:KeyValueHeadsTiled", "projected-grouped"), ("numpy_style:output_transposed", "projected"),
        ("one_file:HeadsReversed", "projected"),
    ],
)  # fmt: skip
def test_pasted_code_shows_the_fault(name, check) -> None:
    file, _, inside = name.partition(":")
    subject = named(str(SUBJECTS / f"{file}.py"), inside)
    finding = outcomes(subject, check)[check].finding
    function = subject.function if subject.plan is None else subject.plan.cls
    world = {"torch": torch, "np": np, "types": types, inside: function}
    *lines, call = finding.code.split("\n")
    module = getattr(function, "__globals__", vars(subject.plan.module) if subject.plan else {})
    for line in lines:
        exec(line, world)
        module |= {name: world[name] for name in ("n_embd", "n_head", "block_size", "dropout") if name in world}
    made = eval(call, world)
    out = torch.as_tensor(made[0] if isinstance(made, tuple) else made).detach()
    numbers = [
        float(number) for number in finding.found.partition("[")[2].rstrip("]").split(",") if "..." not in number
    ]
    row = out.reshape(-1, out.shape[-1])[int(finding.found.partition("query ")[2].partition(":")[0])]
    torch.testing.assert_close(row[: len(numbers)].float(), torch.tensor(numbers), rtol=1e-4, atol=1e-4)


def test_the_smallest_input_of_a_missing_output_projection_is_one_token() -> None:
    subject = named(str(SUBJECTS / "gpt.py"), "NoOutputProjection")
    finding = outcomes(subject, "projected")["projected"].finding
    assert finding.code.split("\n")[0].startswith("x = torch.tensor([[[")
    assert finding.code.split("\n")[0].count(",") <= 1


def test_a_function_of_q_k_and_v_is_not_asked_about_projections() -> None:
    subject = named(str(SUBJECTS / "annotated.py"), "attention")
    assert outcomes(subject, "projected")["projected"].reason == "is a function of q, k and v: it projects nothing"


def test_a_method_is_called_on_an_object_of_the_size_of_its_call() -> None:
    subject = named(str(SUBJECTS / "annotated.py"), "MultiHeadedAttention.attend")
    assert subject.name.startswith("MultiHeadedAttention(h=(query.shape[1] if query.ndim == 4 else 1)")
    assert subject.name.endswith(").attend")
    assert isinstance(subject.prepare(plain(SIZES, generator())), Problem)
