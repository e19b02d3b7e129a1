"""Models that change what their heads give before they project it: a head's output is what arrives at the projection.

What is expected is read, and put there, by hooks on the output projections of transformers' own models.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from manyheads.errors import BackendError  # noqa: E402
from manyheads.heads.effects import ablate_heads  # noqa: E402
from manyheads.heads.statistics import head_statistics  # noqa: E402
from manyheads.models.door.attentions import find_attentions  # noqa: E402
from manyheads.models.door.door import open_door  # noqa: E402
from manyheads.models.door.head_outputs import INTERFACE, routed  # noqa: E402
from support.tiny_transformers import inputs, logits  # noqa: E402

_SIZES: dict[str, Any] = {
    "vocab_size": 97, "hidden_size": 36, "intermediate_size": 40, "num_hidden_layers": 2, "num_attention_heads": 6,
    "num_key_value_heads": 2, "head_dim": 10, "max_position_embeddings": 64, "pad_token_id": 0, "bos_token_id": 1,
    "eos_token_id": 2,
}  # fmt: skip
_EXPERTS: dict[str, Any] = {
    "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16, "n_routed_experts": 4, "n_shared_experts": 1,
    "shared_expert_intermediate_size": 16, "num_local_experts": 4,
}  # fmt: skip
_LINEAR: dict[str, Any] = {
    "num_hidden_layers": 4, "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 8,
    "linear_value_head_dim": 12, "linear_conv_kernel_dim": 4,
}  # fmt: skip
# By model type: a gate for each number, one for each head, a norm over all heads, layers that are run several times, a gate
# inside the projection, a rotation back.
GATED: dict[str, dict[str, Any]] = {
    "qwen3_next": _EXPERTS | _LINEAR, "qwen3_5_text": _LINEAR, "afmoe": _EXPERTS | {"num_dense_layers": 1, "sliding_window": 7},
    "laguna": _EXPERTS, "bitnet": {"hidden_size": 60}, "hrm_text": {}, "muse_spark_text": _EXPERTS,
    "neomme": {"head_dim": 16}, "deepseek_v4": _EXPERTS | {"o_groups": 2},
}  # fmt: skip


def build(kind: str) -> Any:
    """A tiny model of this type, in float32."""
    torch.manual_seed(0)
    transformers.logging.set_verbosity_error()
    config = transformers.CONFIG_MAPPING[kind](**{**_SIZES, **GATED[kind]})
    config._attn_implementation, config._experts_implementation = "eager", "eager"
    for auto in (transformers.AutoModelForCausalLM, transformers.AutoModel):
        if type(config) in auto._model_mapping:
            model = auto.from_config(config).eval()
            break
    for parameter in model.parameters():
        if parameter.dim() > 1:
            parameter.data.normal_(0, 0.3)
    return model


def attention_of(model: Any) -> tuple[str, Any, Any]:
    """The first attention module's name, itself, and the linear layer that projects its heads."""
    found = find_attentions(model)
    path = next(iter(found.paths.values()))
    module = model.get_submodule(path)
    projection = getattr(module, "o_proj", None) or getattr(module, "o_a_proj", None) or module.output_projection.o_proj
    return path, module, projection


def given_to(model: Any, projection: Any, batch: Any) -> list[torch.Tensor]:
    """What the projection is given, call by call."""
    kept: list[torch.Tensor] = []
    hook = projection.register_forward_pre_hook(lambda _, args: kept.append(args[0].detach().clone()))
    logits(model, batch)
    hook.remove()
    return kept


@pytest.mark.parametrize("kind", GATED)
def test_observers_see_what_the_output_projection_is_given(kind: str) -> None:
    model, batch = build(kind), inputs("llama")
    path, _, projection = attention_of(model)
    before, expected = logits(model, batch), given_to(model, projection, batch)
    seen: list[Any] = []
    with open_door(
        model, observers=[lambda call, out: seen.append((call, out)) if call.path == path else None]
    ) as door:
        assert torch.equal(given_to(model, projection, batch)[0], seen[0][1].transpose(1, 2).reshape(expected[0].shape))
        assert (door.calls[path], len(seen)) == (len(expected), len(expected))
    for (call, out), right in zip(seen, expected, strict=True):
        assert call.projected
        assert torch.allclose(out.transpose(1, 2).reshape(right.shape), right, atol=1e-4 * float(right.abs().max()))
        assert not torch.allclose(
            out, call.weights() @ call.v.repeat_interleave(out.shape[1] // call.v.shape[1], 1), atol=1e-3
        )
    assert torch.equal(logits(model, batch), before)
    assert not projection._forward_pre_hooks


@pytest.mark.parametrize("kind", GATED)
def test_a_gate_that_closes_a_head_zeroes_what_the_projection_is_given(kind: str) -> None:
    model, batch = build(kind), inputs("llama")
    path, _, projection = attention_of(model)

    def closed(call: Any, out: torch.Tensor) -> torch.Tensor:
        return out.index_fill(1, torch.tensor([1]), 0) if call.path == path else out

    with open_door(model, gates=[closed]):
        found = logits(model, batch)

    def zeroed(_: Any, args: Any) -> Any:
        x = args[0].clone()
        heads = x.view(2, 11, 6, -1) if x.shape[0] == 2 else x.view(22, 6, -1)
        heads[..., 1, :] = 0
        return (x, *args[1:])

    hook = projection.register_forward_pre_hook(zeroed)
    expected = logits(model, batch)
    hook.remove()
    assert not torch.allclose(found, logits(model, batch), atol=1e-3)
    assert torch.allclose(found, expected, atol=1e-4 * float(expected.abs().max()))


def mean_square(out: Any, _: Any) -> torch.Tensor:
    """A metric for every kind of model."""
    return out[0].double().square().mean()


@pytest.mark.parametrize("how", ["zero", "mean", "resample"])
@pytest.mark.parametrize("kind", ["qwen3_next", "laguna", "bitnet"])
def test_ablation_replaces_what_the_projection_is_given(kind: str, how: str) -> None:
    model, batch = build(kind).double(), inputs("llama")
    path, _, projection = attention_of(model)
    (whole,) = given_to(model, projection, batch)
    heads = whole.view(2, 11, 6, -1)
    instead = {"zero": torch.zeros_like(heads), "mean": heads.mean((0, 1)).expand_as(heads), "resample": heads.flip(0)}[
        how
    ]

    def swapped(_: Any, args: Any) -> Any:
        x = args[0].clone()
        x.view(heads.shape)[:, :, 4] = instead[:, :, 4]
        return (x, *args[1:])

    with torch.no_grad():
        before = mean_square(model(**batch), batch).item()
        hook = projection.register_forward_pre_hook(swapped)
        after = mean_square(model(**batch), batch).item()
        hook.remove()
    layer = next(place.layer for place in head_statistics(model, [batch]).modules if place.path == path)
    for reuse in (True, False):
        found = ablate_heads(model, [batch], how=how, metric=mean_square, heads={layer: [4]}, reuse=reuse)
        # Norms and softmax of transformers round to float32 on the way, in both runs alike.
        assert found.score((layer, 4)) == pytest.approx(after - before, rel=1e-5, abs=1e-7)


@pytest.mark.parametrize("kind", ["qwen3_next", "afmoe", "bitnet"])
def test_norms_are_of_what_the_projection_is_given(kind: str) -> None:
    model, batch = build(kind), inputs("llama")
    _, _, projection = attention_of(model)
    right = torch.linalg.vector_norm(given_to(model, projection, batch)[0].view(2, 11, 6, -1).double(), dim=-1).mean(
        (0, 1)
    )
    assert head_statistics(model, [batch]).output_norm[0] == pytest.approx(right.numpy(), rel=1e-4)


def test_gradients_pass_through_what_the_projection_is_given() -> None:
    """A factor on a head there, and the same factor put in by a hook."""
    model, batch = build("qwen3_next"), inputs("llama")
    path, _, projection = attention_of(model)
    ours, theirs = (torch.ones(6, requires_grad=True) for _ in range(2))
    with open_door(model, gates=[lambda call, out: out * ours[:, None, None] if call.path == path else out]):
        mean_square(model(**batch), batch).backward()
    hook = projection.register_forward_pre_hook(
        lambda _, args: ((args[0].view(2, 11, 6, -1) * theirs[:, None]).reshape(args[0].shape),)
    )
    mean_square(model(**batch), batch).backward()
    hook.remove()
    assert ours.grad.abs().max() > 1e-4
    assert torch.allclose(ours.grad, theirs.grad, rtol=1e-3, atol=1e-6)


def test_doors_share_the_hook_and_an_exception_leaves_none() -> None:
    model, batch = build("laguna"), inputs("llama")
    path, _, projection = attention_of(model)
    order: list[str] = []

    def noted(name: str) -> Any:
        return lambda call, out: order.append(name) if call.path == path else None

    def fail(call: Any, out: torch.Tensor) -> None:
        raise RuntimeError("on purpose")

    with open_door(model, observers=[noted("outer")]):
        with open_door(model, observers=[noted("inner")]):
            logits(model, batch)
        assert len(projection._forward_pre_hooks) == 1
        logits(model, batch)
    assert order == ["inner", "outer", "outer"]
    with pytest.raises(RuntimeError, match="on purpose"), open_door(model, observers=[fail]):
        logits(model, batch)
    assert not projection._forward_pre_hooks


def test_a_projection_that_is_given_something_else_is_an_error() -> None:
    model, batch = build("qwen3_next"), inputs("llama")
    _, module, projection = attention_of(model)
    module.o_proj = torch.nn.Sequential(projection)
    hook = module.o_proj.register_forward_pre_hook(lambda _, args: (args[0][:, :5],))
    with pytest.raises(BackendError, match=r"is given \(2, 5, 60\), where 6 heads of 10 numbers for 11 tokens"):  # noqa: SIM117
        with open_door(model):
            logits(model, batch)
    hook.remove()


# Every attention of transformers 5.24 that changes its heads' outputs before it projects them, as its source reads.
CHANGING = {
    "afmoe": "AfmoeAttention", "axk2": "AXK2Attention", "bailing_hybrid": "BailingHybridAttention", "beam": "BeamAttention",
    "bitnet": "BitNetAttention", "deepseek_v4": "DeepseekV4Attention", "dory": "DoryAttention",
    "dots3_note": "Dots3NoteTextAttention", "esmfold2": "EsmFold2AtomAttention EsmFold2DiffusionAttention",
    "hrm_text": "HrmTextAttention", "hy_v4": "HYV4Attention", "hy_v4_vl": "HYV4VLAttention",
    "kosmos2": "KosmosTextAttention", "laguna": "LagunaAttention", "lfm3": "Lfm3Attention",
    "muse_glimmer": "MuseGlimmerTextAttention", "muse_spark": "MuseSparkTextAttention", "neomme": "NeoMMEAttention",
    "qwen3_5": "Qwen3_5Attention", "qwen3_5_moe": "Qwen3_5MoeAttention", "qwen3_next": "Qwen3NextAttention",
    "qwen4_exp": "Qwen4ExpTextAttention", "step3p7": "Step3p7Attention",
}  # fmt: skip
PLAIN = (
    "llama",
    "gpt2",
    "t5",
    "whisper",
    "opt",
    "phi",
    "modernbert",
    "deepseek_v3",
    "gemma2",
    "gpt_oss",
    "mllama",
    "swin",
)


def attentions(name: str) -> Iterator[Any]:
    module = importlib.import_module(f"transformers.models.{name}.modeling_{name}")
    for kind in vars(module).values():
        own = isinstance(kind, type) and issubclass(kind, torch.nn.Module) and kind.__module__ == module.__name__
        if own and INTERFACE in inspect.getsource(kind.forward):
            yield kind


@pytest.mark.parametrize("name", [*CHANGING, *PLAIN])
def test_what_changes_its_outputs_is_read_from_its_source(name: str) -> None:
    if not (Path(transformers.__file__).parent / "models" / name).is_dir():
        pytest.skip("another version of transformers")
    found = {kind.__name__ for kind in attentions(name) if all(routed(kind.forward))}
    assert found == set(CHANGING.get(name, "").split())
