"""The drop-in on torch's own databases of inputs, those that its own test suite is built on.

ModuleInfo `nn.MultiheadAttention`: 64 inputs for training, 64 for evaluation, each with a reference. The entries of
torch's encoder and decoder layers, with the drop-in put inside. OpInfo `multi_head_attention_forward`: 192 inputs, half
of them with dropout, which the drop-in draws as torch does, so that one seed gives one result. All of them in
`make test-sweeps`, every fifth else.
"""

from __future__ import annotations

import copy
from unittest import mock

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("expecttest")  # torch's databases do not import without it

from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402
from torch.testing._internal.common_methods_invocations import op_db  # noqa: E402
from torch.testing._internal.common_modules import module_db  # noqa: E402

from manyheads.layer.multihead import MultiheadAttention, multi_head_attention_forward  # noqa: E402
from support import rounding  # noqa: E402
from support.sweeps import WHOLE, some  # noqa: E402

pytestmark = pytest.mark.filterwarnings(
    "ignore:enable_nested_tensor is True", "ignore:The PyTorch API of nested tensors"
)

INPUTS = {
    "MultiheadAttention": (64, 64),
    "TransformerEncoderLayer": (39, 35),
    "TransformerEncoder": (39, 35),
    "TransformerDecoderLayer": (67, 67),
    "Transformer": (64, 64),
}
EVERY = 5  # of a run's inputs: no number of theirs goes into their counts, so that every setting comes up
each_dtype = pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
each_mode = pytest.mark.parametrize("training", [True, False])


def samples(name, dtype, training, requires_grad=True):
    """(input, module of torch's) of one entry of the module database."""
    torch.manual_seed(0)
    entry = next(entry for entry in module_db if entry.name == f"nn.{name}")
    made = []
    for sample in entry.module_inputs_func(
        entry, device="cpu", dtype=dtype, requires_grad=requires_grad, training=training
    ):
        arguments = sample.constructor_input
        module = entry.module_cls(*arguments.args, **arguments.kwargs).to(dtype).train(training)
        for weight in module.parameters():
            nn.init.normal_(weight, std=0.5)
        made.append((sample, module))
    assert len(made) == INPUTS[name][0 if training else 1]
    return some(made, EVERY)


def stand_in(theirs):
    """The drop-in with the weights and the mode of a module of torch's."""
    ours = MultiheadAttention(
        theirs.embed_dim,
        theirs.num_heads,
        dropout=theirs.dropout,
        bias=theirs.in_proj_bias is not None,
        add_bias_kv=theirs.bias_k is not None,
        add_zero_attn=theirs.add_zero_attn,
        kdim=theirs.kdim,
        vdim=theirs.vdim,
        batch_first=theirs.batch_first,
        dtype=theirs.out_proj.weight.dtype,
    )
    ours.load_state_dict(theirs.state_dict())
    return ours.train(theirs.training)


def with_ours_inside(module):
    """A copy in which every multi-head attention of torch's is ours."""
    module = copy.deepcopy(module)
    for parent in list(module.modules()):
        for name, child in list(parent.named_children()):
            if type(child) is nn.MultiheadAttention:
                setattr(parent, name, stand_in(child))
    return module


def same(found, expected, dtype):
    """Equal but for rounding to `dtype`."""
    assert len(found) == len(expected)
    for one, exact in zip(found, expected, strict=True):
        if exact is None:
            assert one is None
            continue
        assert one.dtype == dtype
        assert exact.holds(one)


def widened(x):
    return x.detach().double().requires_grad_(x.requires_grad) if torch.is_tensor(x) and x.is_floating_point() else x


def outcome(module, args, kwargs):
    """All outputs, then the gradients of all inputs and weights."""
    found = module(*args, **kwargs)
    found = [x for x in (found if isinstance(found, tuple) else (found,)) if x is not None]
    torch.manual_seed(1)
    loss = sum((x * torch.randn(x.shape).to(x.dtype)).sum() for x in found)
    wrt = [*(x for x in args if x.requires_grad), *module.parameters()]
    return [*found, *torch.autograd.grad(loss, wrt, allow_unused=True)]


def exact_outcome(module, given, dtype):
    """The same in float64, with what rounding to `dtype` may make of it."""
    wide = copy.deepcopy(module).double()
    args, kwargs = [widened(x) for x in given.args], {name: widened(x) for name, x in given.kwargs.items()}
    return rounding.each(lambda: outcome(wide, args, kwargs), dtype=dtype)


@each_dtype
@each_mode
def test_all_inputs_of_the_module_against_their_references(dtype, training) -> None:
    """64 of 64 in each mode: the references of torch's module and of ours (a batch of one), and torch's gradients."""
    for sample, theirs in samples("MultiheadAttention", dtype, training):
        ours, given = stand_in(theirs), sample.forward_input
        expected = exact_outcome(theirs, given, dtype)
        same(outcome(ours, given.args, given.kwargs), expected, dtype)
        for module in (theirs, ours):
            said = [x for x in sample.reference_fn(module, *given.args, **given.kwargs) if x is not None]
            same(said, expected[: len(said)], dtype)


@each_mode
@pytest.mark.parametrize("name", [name for name in INPUTS if name.startswith("Transformer")])
def test_inside_torchs_own_layers(name, training) -> None:
    """Values and gradients of torch's layers with ours inside are those with torch's inside."""
    for sample, theirs in samples(name, torch.float64, training):
        ours = with_ours_inside(theirs)
        assert any(isinstance(module, MultiheadAttention) for module in ours.modules())
        given = sample.forward_input
        expected = exact_outcome(theirs, given, torch.float64)
        same(outcome(ours, given.args, given.kwargs), expected, torch.float64)
        if sample.reference_fn is not None:
            same([sample.reference_fn(ours, *given.args, **given.kwargs)], expected[:1], torch.float64)


@pytest.mark.parametrize("name", [name for name in INPUTS if name.startswith("Transformer")])
def test_torchs_fast_path_does_not_pass_us_by(name) -> None:
    """In evaluation without gradients torch's layers may compute attention without calling the module they hold."""
    for sample, theirs in samples(name, torch.float64, training=False, requires_grad=False):
        ours = with_ours_inside(theirs)
        layers = sum(isinstance(module, MultiheadAttention) for module in ours.modules())
        with (
            torch.no_grad(),
            mock.patch.object(
                MultiheadAttention, "forward", autospec=True, side_effect=MultiheadAttention.forward
            ) as called,
        ):
            given = sample.forward_input
            found = ours(*given.args, **given.kwargs)
            expected = theirs(*given.args, **given.kwargs)
        assert called.call_count == layers
        # With gradients at hand torch takes no fast path: what padding gives differs, what rounding does to it does not.
        assert exact_outcome(theirs, given, torch.float64)[0].near(found, expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_all_inputs_of_the_function(dtype) -> None:
    """192 of 192: torch's values after the same seed, and its weights without their dropout (case O17)."""
    operator = next(entry for entry in op_db if entry.name == "nn.functional.multi_head_attention_forward")
    torch.manual_seed(0)
    number = dropped = 0
    for sample in some(operator.sample_inputs("cpu", dtype, requires_grad=False), EVERY):
        number += 1
        dropped += sample.kwargs["training"]
        wide = [widened(x) for x in (sample.input, *sample.args)]
        told = {name: widened(x) for name, x in sample.kwargs.items()}

        def theirs(seed=number, wide=wide, told=told):
            torch.manual_seed(seed)
            out, _ = functional.multi_head_attention_forward(*wide, **told)
            return (out, *functional.multi_head_attention_forward(*wide, **{**told, "training": False}))

        with torch.no_grad():
            expected, without, weights = rounding.each(theirs, dtype=dtype)
        torch.manual_seed(number)
        found = multi_head_attention_forward(sample.input, *sample.args, **sample.kwargs)
        same(found, (expected, weights), dtype)
        found = multi_head_attention_forward(
            sample.input, *sample.args, **{**sample.kwargs, "training": False, "need_weights": False}
        )
        same(found, (without, None), dtype)
    assert (number, dropped) == ((192, 96) if WHOLE else (39, 19))


def test_gradients_of_the_function() -> None:
    """The inputs that the database has for gradients, mask and extra keys among them."""
    operator = next(entry for entry in op_db if entry.name == "nn.functional.multi_head_attention_forward")
    torch.manual_seed(0)
    for sample in operator.sample_inputs("cpu", torch.float64, requires_grad=True):
        wrt = [x for x in (sample.input, *sample.args, *sample.kwargs.values()) if isinstance(x, torch.Tensor)]

        def slopes(function, sample=sample, wrt=wrt):
            torch.manual_seed(2)
            out, _ = function(sample.input, *sample.args, **sample.kwargs)
            return torch.autograd.grad((out * out).sum(), wrt, allow_unused=True)

        expected = rounding.each(lambda: slopes(functional.multi_head_attention_forward), dtype=torch.float64)
        same(slopes(multi_head_attention_forward), expected, torch.float64)
