"""One graph, whole: compiled, exported, and as ONNX's own Attention node."""

from __future__ import annotations

import copy
import shutil
import warnings
from collections.abc import Iterator

import pytest

torch = pytest.importorskip("torch")

from torch._dynamo.testing import CompileCounterWithBackend  # noqa: E402

from manyheads.layer import Attention, MultiheadAttention  # noqa: E402
from manyheads.ops import masks  # noqa: E402
from manyheads.spec import AttentionSpec, Bidirectional, Cross, State  # noqa: E402
from support import rounding  # noqa: E402
from support.attention_layers import SPECS, cached, layer, table_for, tokens  # noqa: E402
from support.sweeps import some  # noqa: E402

DEFAULT = "inductor" if shutil.which("g++") or shutil.which("clang++") else "aot_eager"
SCHEMES = (
    "mha_rope",
    "gqa_partial_rope",
    "mqa_alibi",
    "window",
    "softcap",
    "sinks",
    "mla",
    "linear",
    "linear_gated_delta",
)


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    torch._dynamo.reset()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the compiler's own
        yield
    torch._dynamo.reset()


def steps(made: Attention, kind: str, backend: str) -> int:
    """A prompt of 6 tokens and 64 compiled steps, the same as uncached; how many graphs it took."""
    counter = CompileCounterWithBackend(backend)
    compiled = torch.compile(made, fullgraph=True, backend=counter)
    x = tokens(2, 70, dtype=torch.float32)
    cache = cached(kind, made.spec, 2, capacity=80, dtype=torch.float32)
    with torch.no_grad():
        parts = [made(x[:, :6], cache=cache), *(compiled(x[:, i : i + 1], cache=cache) for i in range(6, 70))]
        torch.testing.assert_close(torch.cat(parts, 1), made(x), rtol=2e-4, atol=2e-4)
    assert cache.length == 70
    return counter.frame_count


@pytest.mark.parametrize("name", SCHEMES)
def test_a_cache_of_fixed_size_takes_one_graph(name: str) -> None:
    made = layer(name, dtype=torch.float32)
    kind = "growing" if isinstance(made.spec.kv, State) else "static"
    assert steps(made, kind, DEFAULT) == 1


@pytest.mark.parametrize(
    ("name", "backend"), [("gqa_partial_rope", DEFAULT), *((name, "aot_eager") for name in some(SCHEMES, 2))]
)
def test_a_cache_that_grows_takes_few(name: str, backend: str) -> None:
    assert steps(layer(name, dtype=torch.float32), "growing", backend) <= 8


@pytest.mark.parametrize("name", ["window", "chunk"])
def test_a_ring_takes_few(name: str) -> None:
    assert steps(layer(name, dtype=torch.float32), "rolling", "aot_eager") <= 8


def test_eight_bits_take_few() -> None:
    """In float64, where no rounding of a sum decides between two of 255 numbers."""
    made = layer("gqa_partial_rope")
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(made, fullgraph=True, backend=counter)
    x, cache, plain = tokens(2, 70), cached("int8", made.spec, 2), cached("int8", made.spec, 2)
    with torch.no_grad():
        for i in range(70):
            step = x[:, i : i + 1]
            torch.testing.assert_close(compiled(step, cache=cache), made(step, cache=plain), rtol=1e-12, atol=1e-12)
    assert counter.frame_count <= 8


def test_a_full_static_cache_is_noticed_in_a_graph_too() -> None:
    made = layer("mha", dtype=torch.float32)
    compiled = torch.compile(made, fullgraph=True, backend="aot_eager")
    cache = cached("static", made.spec, 2, capacity=3, dtype=torch.float32)
    with torch.no_grad():
        for i in range(3):
            compiled(tokens(2, 1, seed=i, dtype=torch.float32), cache=cache)
        with pytest.raises(RuntimeError, match="a static cache is full"):
            compiled(tokens(2, 1, dtype=torch.float32), cache=cache)


def test_a_left_padded_batch_takes_one_graph() -> None:
    """Positions and padding come as tensors: 30 steps over a prompt padded by 4, each row as it is alone."""
    made = layer("gqa_partial_rope", dtype=torch.float32)
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(made, fullgraph=True, backend=counter)
    x, cache = tokens(2, 36, dtype=torch.float32), cached("static", made.spec, 2, dtype=torch.float32)
    keep = torch.arange(40)[None] >= torch.tensor([[0], [4]])
    places = (torch.arange(36)[None] - torch.tensor([[0], [4]])).clamp(min=0)
    with torch.no_grad():
        parts = [made(x[:, :6], cache=cache, visible=masks.padding(keep), positions=places[:, :6])]
        for i in range(6, 36):
            here = slice(i, i + 1)
            parts.append(compiled(x[:, here], cache=cache, visible=masks.padding(keep), positions=places[:, here]))
        y = torch.cat(parts, 1)
        torch.testing.assert_close(y[:1], made(x[:1]), rtol=2e-4, atol=2e-4)
        torch.testing.assert_close(y[1:, 4:], made(x[1:, 4:]), rtol=2e-4, atol=2e-4)
    assert counter.frame_count == 1


class Stack(torch.nn.Module):
    """Layers one after the other, each with a residual."""

    def __init__(self, layers: list[Attention]) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList(layers)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for made in self.layers:
            x = x + made(x) / 10
        return x


def test_a_stack_of_every_scheme_is_one_graph_forward_and_backward() -> None:
    """Case O64: six layers, and not one break."""
    names = ("mha_rope", "gqa_partial_rope", "mqa_alibi", "mla", "linear", "linear_gated_delta", "sinks", "norm_full")
    stack, found = Stack([layer(name) for name in names]), []
    for run in (stack, torch.compile(stack, fullgraph=True, backend="aot_eager")):
        x = tokens(2, 9).requires_grad_()
        stack.zero_grad()
        y = run(x)
        y.square().mean().backward()
        found.append([y, x.grad, *(parameter.grad.clone() for parameter in stack.parameters())])
    torch.testing.assert_close(*found, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", some(SPECS, 3))
def test_every_scheme_is_exported(name: str) -> None:
    """torch.export with a free batch size, and for softmax attention a free length: right at sizes it was not traced at."""
    made = layer(name, dtype=torch.float32)
    cross, state = isinstance(made.spec.source, Cross), isinstance(made.spec.kv, State)

    def inputs(batch: int, count: int) -> tuple[torch.Tensor, ...]:
        memory = (tokens(batch, count + 2, made.spec.source.d_memory, dtype=torch.float32),) if cross else ()
        return tokens(batch, count, dtype=torch.float32), *memory

    auto = torch.export.Dim.AUTO
    free = {0: auto} if state else {0: auto, 1: auto}
    shapes = {"x": free} | ({"memory": {0: auto, 1: auto}} if cross else {})
    more = table_for(made.spec, torch.float32)
    program = torch.export.export(
        made, inputs(3, 9), more, dynamic_shapes=shapes | ({"table": None} if more else {}), strict=False
    )
    for batch, count in ((3, 9), (5, 9 if state else 14)):
        torch.testing.assert_close(program.module()(*inputs(batch, count), **more), made(*inputs(batch, count), **more),
                                   rtol=1e-4, atol=1e-4)  # fmt: skip


ONNX = ("mha_rope", "gqa_interleaved", "window", "bidirectional", "norm_full_after", "mqa_alibi", "softcap")


@pytest.mark.parametrize("name", some(ONNX, 2))
def test_onnx_has_one_attention_node(name: str) -> None:
    """And no softmax of its own: onnxruntime computes the same, at the length it was exported with and at another."""
    onnx = pytest.importorskip("onnx")
    pytest.importorskip("onnxscript")
    runtime = pytest.importorskip("onnxruntime")
    made = layer(name, dtype=torch.float32)
    wide = copy.deepcopy(made).double()
    x = tokens(2, 9, dtype=torch.float32)
    program = torch.onnx.export(
        made, (x,), dynamo=True, opset_version=23, verbose=False, dynamic_shapes=({0: "batch", 1: "tokens"},)
    )
    kinds_of_node = [node.op_type for node in program.model_proto.graph.node]
    assert kinds_of_node.count("Attention") == 1
    assert "Softmax" not in kinds_of_node
    assert not program.model_proto.functions
    onnx.checker.check_model(program.model_proto)
    session = runtime.InferenceSession(program.model_proto.SerializeToString(), providers=["CPUExecutionProvider"])
    for count in (9, 14):
        x = tokens(3, count, dtype=torch.float32)
        (y,) = session.run(None, {session.get_inputs()[0].name: x.numpy()})
        assert rounding.evaluated(lambda x=x: wide(x.double())).holds(torch.from_numpy(y))


class Masked(torch.nn.Module):
    """A module with its mask as an input of the graph."""

    def __init__(self, made: torch.nn.Module, name: str) -> None:
        super().__init__()
        self.made, self.name = made, name

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        if self.name == "visible":
            return self.made(x, visible=mask)
        return self.made(x, x, x, need_weights=False, **{self.name: mask})[0]


@pytest.mark.parametrize("opset", some([18, 20, 23], 2))
@pytest.mark.parametrize("how", ["attn_mask", "attn_mask of floats", "key_padding_mask", "visible", "softcap"])
def test_a_query_that_sees_nothing_gives_zeros_at_every_opset(how: str, opset: int) -> None:
    """Before opset 23 torch writes attention out as it stands there, and softmax of nothing is an even mean, or NaN."""
    pytest.importorskip("onnx")
    pytest.importorskip("onnxscript")
    runtime = pytest.importorskip("onnxruntime")
    if how == "softcap" and opset < 23:
        pytest.skip("softcap is exported as ONNX's Attention, which older opsets lack")
    x, blocked = tokens(2, 3, 8, dtype=torch.float32), torch.zeros(3, 3, dtype=torch.bool)
    blocked[1], name = True, how.split(maxsplit=1)[0]
    empty = (slice(None), 1)
    if name in ("visible", "softcap"):
        cap = 5.0 if name == "softcap" else None
        spec = AttentionSpec.gqa(8, 4, 2, mask=Bidirectional(), softcap=cap)
        module, mask = Masked(layer(spec, dtype=torch.float32), "visible"), ~blocked
    else:
        module = Masked(MultiheadAttention(8, 2, bias=False, batch_first=True).eval(), name)
        mask = torch.zeros(3, 3).masked_fill(blocked, -torch.inf) if "floats" in how else blocked
    if name == "key_padding_mask":
        mask, empty = torch.tensor([[False] * 3, [True] * 3]), (1,)
    program = torch.onnx.export(module, (x, mask), dynamo=True, opset_version=opset, verbose=False)
    assert program.model_proto.opset_import[0].version == opset
    session = runtime.InferenceSession(program.model_proto.SerializeToString(), providers=["CPUExecutionProvider"])
    given = {each.name: one.numpy() for each, one in zip(session.get_inputs(), (x, mask), strict=True)}
    (y,) = session.run(None, given)
    assert not y[empty].any()
    torch.testing.assert_close(torch.from_numpy(y), module(x, mask), rtol=1e-5, atol=1e-5)


def test_a_graph_in_which_every_query_sees_itself_has_no_more_nodes() -> None:
    """A causal mask leaves no row empty, and where nothing is exported nothing is added."""
    program = torch.export.export(layer("window", dtype=torch.float32), (tokens(2, 9, dtype=torch.float32),))
    assert not any("any" in str(node.target) for node in program.graph.nodes)
