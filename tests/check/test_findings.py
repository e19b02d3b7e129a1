"""What a failure says: the smallest input, as Python that shows the fault when it is pasted."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

pytest.importorskip("torch")
import torch

from manyheads.check.catalogue import by_name
from manyheads.check.problem import Problem
from manyheads.check.spell import call_as_code, place, row, seen_keys
from manyheads.check.subject import CallError
from support.check_support import example, guessed, outcomes


def pasted(code: str, name: str, function) -> torch.Tensor:
    """The value of the last line of `code`."""
    world = {"torch": torch, "np": np, name: function}
    *lines, call = code.split("\n")
    exec("\n".join(lines), world)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return eval(call, world)


def test_the_smallest_input_for_a_frontier_at_the_top_left() -> None:
    """One query and two keys are enough: nothing smaller has more keys than queries."""
    subject = example("wrong.py", "causal_top_left")
    finding = outcomes(subject, "causal-cache")["causal-cache"].finding
    assert finding.expected == "query 0: sees keys 0 to 1 (0.5 each)"
    assert finding.found == "query 0: sees key 0 (1)"
    assert finding.code.split("\n")[0] == "q = torch.tensor([[[[1., 1.]]]])"
    assert finding.code.split("\n")[-1] == "causal_top_left(q=q, k=k, v=v, causal=True)"
    assert pasted(finding.code, "causal_top_left", subject.function).tolist() == [[[[1.0, 0.0]]]]


def test_the_smallest_input_for_tiled_heads() -> None:
    """Four query heads, two of keys and values, one token of one number."""
    subject = example("wrong.py", "heads_tiled")
    finding = outcomes(subject, "group-order")["group-order"].finding
    assert (finding.expected, finding.found) == ("head 1, query 0: [1]", "head 1, query 0: [2]")
    assert pasted(finding.code, "heads_tiled", subject.function).flatten().tolist() == [1, 2, 1, 2]


@pytest.mark.parametrize(
    ("name", "check"), [("scale_missing", "values"), ("overflows", "large-scores"), ("mask_inverted", "mask")]
)
def test_pasted_code_shows_the_fault(name, check) -> None:
    subject = example("wrong.py", name)
    finding = outcomes(subject, check)[check].finding
    out = torch.as_tensor(pasted(finding.code, name, subject.function))
    numbers = [
        float(number.strip())
        for number in finding.found.partition("[")[2].rstrip("]").split(",")
        if "key" not in finding.found
    ]
    if numbers:
        torch.testing.assert_close(out[0, 0, 0].float(), torch.tensor(numbers), rtol=1e-4, atol=1e-4, equal_nan=True)
    else:
        assert not out.any()


def test_code_in_the_function_s_own_layout_and_names() -> None:
    subject = example("right_numpy.py", "attention")
    problem = Problem(
        q=torch.tensor([[[[0.5, -1.0]]]]), k=torch.tensor([[[[1.0, 0.0], [2.0, 0.0]]]]), v=torch.zeros(1, 1, 2, 2),
        visible=torch.tensor([[[[True, False]]]]), window=3, causal=True,
    )  # fmt: skip
    assert call_as_code(subject, problem).split("\n") == [
        "query = np.array([[[[0.5, -1.]]]], dtype=np.float32)",
        "key = np.array([[[[1., 0.]], [[2., 0.]]]], dtype=np.float32)",
        "value = np.zeros((1, 2, 1, 2), dtype=np.float32)",
        "mask = np.array([[[[True, False]]]])",
        "attention(query=query, key=key, value=value, mask=mask, causal=True, window=3)",
    ]


def test_long_inputs_are_told_by_their_shapes() -> None:
    case = by_name()["bfloat16"]
    code = call_as_code(example("right.py", "attention"), case.build(case.full, torch.Generator().manual_seed(0)))
    assert code == "too long to print: q (1, 2, 32, 16), k (1, 2, 512, 16), v (1, 2, 512, 16); seed 0"


def test_rows_and_places_in_words() -> None:
    assert row(torch.tensor([0.25, -1, torch.nan, torch.inf])) == "[0.25, -1, nan, inf]"
    assert row(torch.arange(8.0)) == "[0, 1, 2, 3, 4, 5, ...]"
    assert place((1, 0, 2), (2, 1, 3, 4)) == "batch 1, query 2"
    assert seen_keys(torch.tensor([0, 0.5, 0.5, 0]), 1e-6) == "sees keys 1 to 2 (0.5 each)"
    assert seen_keys(torch.tensor([0.5, 0, 0.5]), 1e-6) == "sees keys 0, 2 (0.5 each)"
    assert seen_keys(torch.tensor([0.25, 0.75]), 1e-6) == "weights [0.25, 0.75]"
    assert seen_keys(torch.zeros(3), 1e-6) == "sees no key: zeros"


def test_an_exception_is_a_failure_with_its_line() -> None:
    def attention(q, k, v, causal=False):
        if causal:
            raise IndexError("off the end")
        return torch.softmax(q @ k.mT / q.shape[-1] ** 0.5, -1) @ v

    finding = outcomes(guessed(attention), "causal")["causal"].finding
    assert finding.found == "IndexError: off the end"
    assert finding.line == attention.__code__.co_firstlineno + 2


def test_judges_that_look_at_the_function_alone() -> None:
    """Each of these is right in its values and wrong in one of its manners."""
    count = [0]

    def base(q, k, v):
        return torch.softmax(q @ k.mT / q.shape[-1] ** 0.5, -1) @ v

    def reads_memory(q, k, v):
        flat = v.as_strided(v.shape, torch.empty(v.shape).stride(), v.storage_offset()) if v.numel() else v
        return base(q, k, flat)

    def mixes(q, k, v):
        return base(q, k, v) + (0.01 * v.mean() - 0.01 * v[:1].mean())

    def remembers(q, k, v):
        count[0] += 1
        return base(q, k, v) * (1 + 1e-6 * (count[0] % 2))

    def narrow(q, k, v):
        return base(q.float(), k.float(), v.float()).to(q.dtype)

    def wide(q, k, v):
        return base(q.double(), k.double(), v.double()).float()

    def bad_backward(q, k, v):
        return base(q, k.detach(), v)

    def accepts_anything(q, k, v):
        k, v = (x.repeat_interleave(q.shape[1] // x.shape[1] + 1, 1)[:, : q.shape[1]] for x in (k, v))
        return base(q, k, v)

    for function, check, cause in (
        (reads_memory, "strides", "strides of v"), (mixes, "batch", "samples mix"), (remembers, "repeatable", "not repeatable"),
        (narrow, "float64", "precision"), (wide, "float64", "dtype"), (bad_backward, "gradients", "gradient of k"),
        (accepts_anything, "group-refused", "accepted"),
    ):  # fmt: skip
        outcome = outcomes(guessed(function), check)[check]
        assert (check, outcome.status) == (check, "weak" if check in ("float64", "group-refused") else "fail")
        assert outcome.finding.cause == cause
    assert "values" not in [name for name, o in outcomes(guessed(bad_backward), "values").items() if o.status == "fail"]


def test_faults_of_single_queries_and_ragged_tiles_are_found() -> None:
    """A mask that is lost where there is one query, and keys behind the last whole tile of 32."""

    def lost_at_one_query(q, k, v, mask=None):
        scores = q @ k.mT / q.shape[-1] ** 0.5
        if mask is not None and q.shape[-2] > 1:
            scores = scores.masked_fill(~mask, -torch.inf)
        return torch.softmax(scores, -1) @ v

    def whole_tiles(q, k, v):
        keys = k.shape[-2] if k.shape[-2] < 32 else k.shape[-2] // 32 * 32
        return torch.softmax(q @ k[..., :keys, :].mT / q.shape[-1] ** 0.5, -1) @ v[..., :keys, :]

    found = outcomes(guessed(lost_at_one_query), "mask", "mask-values", "mask-cross")
    assert {name: outcome.status for name, outcome in found.items()} == {
        "mask": "pass", "mask-values": "pass", "mask-cross": "fail",
    }  # fmt: skip
    assert found["mask-cross"].finding.cause == "mask ignored"
    found = outcomes(guessed(whole_tiles), "values", "fewer-queries")
    assert {outcome.status for outcome in found.values()} == {"fail"}
    assert found["values"].finding.code.split("\n")[0].count("],") + 1 == 33  # the shortest length at which it shows


def test_what_cannot_be_read_and_a_backward_that_raises_are_the_function_s() -> None:
    def base(q, k, v):
        return torch.softmax(q @ k.mT / q.shape[-1] ** 0.5, -1) @ v

    def writes_into_what_backward_needs(q, k, v):
        weights = torch.softmax(q @ k.mT / q.shape[-1] ** 0.5, -1)
        out = weights @ v
        weights.mul_(1.0)
        return out

    def elsewhere(q, k, v):
        return base(q, k, v).to("meta")

    class Hostile(torch.Tensor):
        @classmethod
        def __torch_function__(cls, func, types, args=(), kwargs=None):
            raise RuntimeError("hands off")

    found = outcomes(guessed(writes_into_what_backward_needs), "values", "gradients")
    assert [outcome.status for outcome in found.values()] == ["pass", "fail"]
    assert "modified by an inplace operation" in found["gradients"].finding.found
    with pytest.raises(CallError, match="returned a Tensor that cannot be read: NotImplementedError"):
        guessed(elsewhere)
    subject = guessed(lambda q, k, v: base(q, k, v).as_subclass(Hostile))
    assert outcomes(subject, "values")["values"].status == "pass"
