"""ALBERT: all its layers are one module, called many times. A head of it is one set of weights, which goes everywhere at once.

What is expected is made by hand on the inputs of the one output projection, call by call.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from manyheads.errors import CheckpointError  # noqa: E402
from manyheads.heads.address import Head  # noqa: E402
from manyheads.heads.effects import ablate_heads, ablated, head_importance  # noqa: E402
from manyheads.heads.pruning import prune  # noqa: E402
from manyheads.heads.statistics import head_statistics  # noqa: E402
from manyheads.models.door.door import open_door  # noqa: E402
from manyheads.ops import softmax  # noqa: E402
from support.full_matrices import by_definition  # noqa: E402
from support.tiny_transformers import inputs, logits  # noqa: E402


def mean_square(out: Any, _: Any) -> torch.Tensor:
    """A metric that needs no labels."""
    return out[0].double().square().mean()


def albert(**changes: Any) -> Any:
    """Three layers that are one module, called three times."""
    torch.manual_seed(0)
    config = transformers.AlbertConfig(**{
        "vocab_size": 97, "embedding_size": 8, "hidden_size": 12, "num_hidden_layers": 3, "num_attention_heads": 2,
        "intermediate_size": 16, "attn_implementation": "sdpa", **changes,
    })  # fmt: skip
    model = transformers.AlbertForMaskedLM(config).eval().double()
    for parameter in model.parameters():
        parameter.data.normal_(0, 0.5)
    return model


def seen_in_each_layer(model: Any, ids: torch.Tensor) -> list[torch.Tensor]:
    """The inputs (b, t, h·v) of the one output projection, layer by layer."""
    kept: list[torch.Tensor] = []
    projection = model.albert.encoder.albert_layer_groups[0].albert_layers[0].attention.dense
    hook = projection.register_forward_pre_hook(lambda _, args: kept.append(args[0].detach().clone()))
    logits(model, {"input_ids": ids})
    hook.remove()
    return kept


@pytest.mark.parametrize("how", ["zero", "mean", "resample"])
def test_a_head_of_a_shared_module_goes_from_every_layer_at_once(how: str) -> None:
    """ALBERT: one row; what its output projection is given for a head is replaced in each of three calls."""
    model, ids = albert(), inputs("bert")["input_ids"]
    found = ablate_heads(model, [ids], how=how, metric=mean_square)
    assert found.reused
    assert found.scores.shape == (1, 2)
    layers = seen_in_each_layer(model, ids)
    mean = torch.stack(layers).mean((0, 1, 2))
    instead = {"zero": [0 * x for x in layers], "mean": [mean.expand_as(x) for x in layers],
               "resample": [x.roll(-1, 0) for x in layers]}[how]  # fmt: skip
    projection = model.albert.encoder.albert_layer_groups[0].albert_layers[0].attention.dense
    for head in (0, 1):
        given = iter(instead)

        def swap(_: Any, args: Any, *, given: Any = given, part: slice = slice(6 * head, 6 * head + 6)) -> Any:
            x = args[0].clone()
            x[..., part] = next(given)[..., part]
            return (x,)

        hook = projection.register_forward_pre_hook(swap)
        wanted = mean_square((logits(model, {"input_ids": ids}),), None).item() - found.baseline
        hook.remove()
        assert found.score(Head(0, head)) == pytest.approx(wanted, rel=1e-9)


def test_first_order_scores_of_a_shared_module_are_slopes_of_all_its_calls_together() -> None:
    model, ids = albert(), inputs("bert", batch=1)["input_ids"]
    found = head_importance(model, [ids], metric=mean_square)
    projection = model.albert.encoder.albert_layer_groups[0].albert_layers[0].attention.dense
    weight, values = projection.weight.data.clone(), []
    for factor in (1 + 1e-5, 1 - 1e-5):  # of head 1, in every layer
        projection.weight.data[:, 6:] = weight[:, 6:] * factor
        values.append(mean_square((logits(model, {"input_ids": ids}),), None).item())
    assert found.slopes[0, 1].item() == pytest.approx((values[0] - values[1]) / 2e-5, rel=1e-6)


def test_a_masked_head_gives_nothing_in_any_layer() -> None:
    model, ids = albert(), inputs("bert")["input_ids"]
    with ablated(model, {0: [1]}):
        found = logits(model, {"input_ids": ids})
    model.albert.encoder.albert_layer_groups[0].albert_layers[0].attention.dense.weight.data[:, 6:] = 0
    assert torch.allclose(found, logits(model, {"input_ids": ids}), atol=1e-12)


@pytest.mark.parametrize("implementation", ["torch", "compiled"])
def test_statistics_are_means_over_all_calls_and_count_each_query_thrice(implementation: str) -> None:
    model, batch = albert().float(), inputs("bert")
    calls: list[tuple[Any, ...]] = []

    def look(call: Any, out: Any) -> None:
        options = {name: value for name, value in call.options.items() if name not in ("dropout", "sinks")}
        calls.append((call.weights(), softmax.scores(call.q, call.k, stage="masked", **options), out))

    with open_door(model, observers=[look]), torch.no_grad():
        model(**batch)
    found = head_statistics(
        model, [batch], key_sets={"members": [3, 4, 5]}, max_offset=4, implementation=implementation
    )
    ids = batch["input_ids"].tolist()
    each = [by_definition(w, scores, ids, max_offset=4, members=frozenset((3, 4, 5))) for w, scores, _ in calls]
    assert len(each) == 3
    assert found.layers == (0,)
    assert found.queries.tolist() == [3 * 22]
    for name in ("entropy", "logit_std", "offsets", "top_offsets", "distance"):
        wanted = np.mean([one[name] for one in each], 0)
        assert getattr(found, name)[0] == pytest.approx(wanted, abs=2e-6, rel=1e-5), name
        assert np.ptp([one[name] for one in each], 0).max() > 1e-3  # or one call could stand for all
    for name in ("first", "self", "previous"):
        assert found.mass[name][0] == pytest.approx(np.mean([one["mass"][name] for one in each], 0), abs=2e-6), name
        assert found.eligible[name][0] == pytest.approx(3 * each[0]["eligible"][name])
    norms = np.mean([torch.linalg.vector_norm(out, dim=-1).mean((0, 2)).numpy() for _, _, out in calls], 0)
    assert found.output_norm[0] == pytest.approx(norms, rel=1e-5)


def test_such_a_model_is_not_pruned_in_its_files() -> None:
    """It is not described, so nothing says what its files would hold: one line, and nothing has changed."""
    model = albert()
    before, config = {name: value.clone() for name, value in model.state_dict().items()}, model.config.to_dict()
    with pytest.raises(
        CheckpointError, match="model_type albert is not described: all its layers share one set of weights"
    ):
        prune(model, [Head(0, 1)])
    assert model.config.to_dict() == config
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
