"""Public bug reports about looking at heads, each tried on what looks at heads here, and observers under stress.

Others of their kind stand beside what they are about: O15, O16, O17, O18, O20, O84 in test_statistics, O70 in test_ablation,
O71, O72, O74 in test_prune, O90, O91 in test_alignment and test_syntax, O92 in test_roles, O93 in test_detectors.
"""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytest.importorskip("numba")

from torch.nn import functional  # noqa: E402

from manyheads.errors import BackendError, ManyheadsError  # noqa: E402
from manyheads.heads.address import Head  # noqa: E402
from manyheads.heads.effects import ablate_heads, head_importance, next_token_loss  # noqa: E402
from manyheads.heads.gates import train_gates  # noqa: E402
from manyheads.heads.page.maps import head_maps  # noqa: E402
from manyheads.heads.page.widgets import maps_widget  # noqa: E402
from manyheads.heads.pruning import choose_heads, export_pruned, load_pruned, mask  # noqa: E402
from manyheads.heads.roles.induction import induction_scores  # noqa: E402
from manyheads.heads.statistics import HeadStatistics, head_statistics  # noqa: E402
from manyheads.models.door import attentions as door_attentions  # noqa: E402
from manyheads.models.door import door as doors  # noqa: E402
from manyheads.models.door.door import open_door  # noqa: E402
from manyheads.models.random_inputs import logits_of  # noqa: E402
from support import tiny_transformers as tiny  # noqa: E402
from support.alibi_model import AlibiModel  # noqa: E402
from support.padding import padded  # noqa: E402
from support.peak_memory import PEAK_BYTES, needs_proc  # noqa: E402

FIGURES = ("entropy", "distance", "logit_std", "output_norm", "offsets")


def alike(a: HeadStatistics, b: HeadStatistics, *, atol: float) -> None:
    for name in FIGURES:
        assert getattr(a, name) == pytest.approx(getattr(b, name), abs=atol, nan_ok=True), name
    for name in a.mass:
        assert a.mass[name] == pytest.approx(b.mass[name], abs=atol, nan_ok=True), name
    assert list(a.queries) == list(b.queries)


def padded_batch(lengths: tuple[int, ...], **changes: Any) -> tuple[list[list[int]], dict[str, Any]]:
    draw = torch.Generator().manual_seed(4)
    texts = [torch.randint(3, 60, (length,), generator=draw).tolist() for length in lengths]
    return texts, padded(texts, **{"pad": 0, "side": "left", **changes})


# What torch's own function gives for values that are the rows of the identity: its weights, which it never returns.
def fused_weights(model: Any, batch: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """(weights, heads' outputs) of each layer as torch's fused attention has them, the model run past any door."""
    fused, seen = functional.scaled_dot_product_attention, []

    def noting(q: Any, k: Any, v: Any, **options: Any) -> Any:
        rows = torch.eye(k.shape[2], dtype=k.dtype).expand(*k.shape[:2], -1, -1)
        out = fused(q, k, v, **options)
        seen.append((fused(q, k, rows, **options), out))
        return out

    with monkeypatch.context() as patched:
        patched.setattr(functional, "scaled_dot_product_attention", noting)
        tiny.logits(model, batch)
    return seen


@pytest.mark.parametrize("masked", ["whole", "padded on the right"])
@pytest.mark.parametrize("name", ["llama", "mistral", "gpt2", "bert", "granite", "qwen3"])
def test_o19_weights_are_those_of_the_fused_function(name: str, masked: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Causal, windowed and two-sided masks, groups, scales of the model's own (granite), with and without padding."""
    model, batch = tiny.build(name, attention="sdpa", dtype=torch.float64), tiny.inputs(name)
    if masked != "whole":
        batch["attention_mask"] = (torch.arange(11) < torch.tensor([[11], [7]])).long()
    real = batch.get("attention_mask", torch.ones(2, 11)).bool()
    wanted = fused_weights(model, batch, monkeypatch)
    seen: list[Any] = []
    with open_door(model, observers=[lambda call, out: seen.append((call.weights(), call.v, out))]):
        tiny.logits(model, batch)
    assert len(seen) == len(wanted) == model.config.num_hidden_layers
    for (weights, v, out), (fused, theirs) in zip(seen, wanted, strict=True):
        kept = real[:, None, :, None].expand_as(weights)
        assert torch.allclose(weights[kept], fused[kept], atol=1e-6, rtol=0)
        values = v.repeat_interleave(weights.shape[1] // v.shape[1], dim=1)
        rows = real[:, None].expand(weights.shape[:3])
        assert torch.allclose((weights @ values)[rows], theirs[rows], atol=1e-5, rtol=1e-5)
        assert torch.allclose(out[rows], theirs[rows], atol=1e-5, rtol=1e-5)
    found = head_statistics(model, [batch])
    for layer, (fused, _) in enumerate(wanted):
        entropy = torch.special.entr(fused.double()).sum(-1).transpose(1, 2)[real].mean(0)
        first = fused.double()[..., 0].transpose(1, 2)[real]
        first = first.sum(0) / (first > 0).sum(0)  # of the queries that see it: a window leaves it behind
        assert found.entropy[layer] == pytest.approx(entropy.numpy(), abs=1e-5)
        assert found.mass["first"][layer] == pytest.approx(first.numpy(), abs=1e-6)


UNEQUAL = {0: (0, 1, 2), 2: (3,)}


def test_o69_transformers_prunes_nothing_itself() -> None:
    """Why export has to: in transformers 5 the method is gone and its configuration key does nothing."""
    assert not hasattr(transformers.PreTrainedModel, "prune_heads")
    assert not hasattr(transformers.PreTrainedModel, "_prune_heads")


@pytest.mark.parametrize("name", ["llama", "gpt2", "bert-masked-lm", "qwen3", "opt"])
def test_o69_unequal_counts_load_in_stock_transformers_with_equal_logits(name: str, tmp_path: Path) -> None:
    model = tiny.build(name)
    model.save_pretrained(tmp_path / "src")
    heads = {layer: numbers for layer, numbers in UNEQUAL.items() if layer < model.config.num_hidden_layers}
    done = export_pruned(tmp_path / "src", heads, tmp_path / "out")
    kind = getattr(transformers, json.loads((tmp_path / "out" / "config.json").read_text())["architectures"][0])
    loaded, info = kind.from_pretrained(tmp_path / "out", output_loading_info=True)
    assert not any(info[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    with open_door(model, gates=[mask(model, heads)]):
        wanted = logits_of(model)
    assert done.form.name == "padded"
    assert torch.allclose(logits_of(loaded.eval()), wanted, atol=1e-5 * max(1.0, float(wanted.abs().max())))
    assert not torch.allclose(logits_of(model), wanted, atol=1e-3)  # or the heads would not matter


def test_o69_what_stock_transformers_cannot_load_is_said_plainly(tmp_path: Path) -> None:
    model = tiny.build("llama")
    model.save_pretrained(tmp_path / "src")
    export_pruned(tmp_path / "src", UNEQUAL, tmp_path / "out", form="compact")
    with pytest.raises(Exception, match=r"(?i)size|shape|mismatch"):
        transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    card = (tmp_path / "out" / "README.md").read_text()
    assert "load_pruned" in card
    assert "from_pretrained" not in card
    assert json.loads((tmp_path / "out" / "pruning.json").read_text())["form"] == "compact"
    load_pruned(tmp_path / "out")


def test_o73_frozen_models_have_scores_gates_and_a_choice() -> None:
    model, ids = tiny.build("llama"), tiny.inputs("llama")["input_ids"]
    asked: dict[str, Callable[[], Any]] = {
        "scores": lambda: head_importance(model, [ids]).scores,
        "gates": lambda: train_gates(model, [ids], penalty=0.05, steps=10).a,
        "choice": lambda: choose_heads(model, [{"input_ids": ids}], 3, rounds=2).heads,
    }
    wanted = {name: ask() for name, ask in asked.items()}
    model.requires_grad_(False)
    for name, ask in asked.items():
        got = ask()
        assert got == wanted[name] if name == "choice" else torch.equal(got, wanted[name]), name
        assert not any(parameter.requires_grad or parameter.grad is not None for parameter in model.parameters())
    for context in (torch.no_grad, torch.inference_mode):
        for name, ask in asked.items():
            with context(), pytest.raises(ManyheadsError, match=r"no_grad\(\) or inference_mode\(\)") as caught:
                ask()
            assert "\n" not in str(caught.value), name


_PEAK = (
    PEAK_BYTES
    + """
import sys, torch
sys.path[:0] = {path!r}
torch.set_num_threads(1)
from support.tiny_transformers import build
from manyheads.heads.effects import ablate_heads, head_importance
from manyheads.heads.statistics import head_statistics
from manyheads.models.door.door import open_door
model = build("llama", attention="sdpa")
def texts(count):
    draw = torch.Generator().manual_seed(0)
    return (torch.randint(3, 60, (2, 384), generator=draw) for _ in range(count))
def kept(model, batches):
    kept = []
    with torch.no_grad(), open_door(model, observers=[lambda call, out: kept.append(call.weights())]):
        for batch in batches: model(batch, use_cache=False)
which = {{"kept": kept, "statistics": head_statistics, "importance": head_importance,
         "ablation": lambda model, batches: ablate_heads(model, batches, heads={{0: (1,)}})}}["{which}"]
which(model, texts(5))
before = peak_bytes()
which(model, texts({more}))
print(peak_bytes() - before)
"""
)


@needs_proc
@pytest.mark.parametrize("which", ["statistics", "importance", "ablation"])
def test_o85_memory_does_not_grow_with_the_number_of_batches(python: Any, which: str) -> None:
    """Twenty batches after five. The weights of one are 21 MB (3 layers, 2 texts, 6 heads, 384 x 384): kept, 380 MB more."""
    asked = python("-c", _PEAK.format(path=[p for p in sys.path if p], which=which, more=20))
    assert asked.returncode == 0, asked.stderr
    assert int(asked.stdout) < 30e6


@needs_proc
def test_o85_weights_that_are_kept_would_be_seen(python: Any) -> None:
    asked = python("-c", _PEAK.format(path=[p for p in sys.path if p], which="kept", more=10))
    assert asked.returncode == 0, asked.stderr
    assert int(asked.stdout) > 80e6


_CAPPED = """
import resource, torch
torch.set_num_threads(1)
from manyheads.heads.statistics import norm_weighted
b, h, t, d, width = 1, 12, 512, 64, 768
draw = torch.Generator().manual_seed(0)
p, v, o = (torch.rand(*shape, generator=draw) for shape in ((b, h, t, t), (b, h, t, d), (h, d, width)))
def naive(p, v, o):
    return torch.linalg.vector_norm(p[..., None] * torch.einsum("bhsv,hvd->bhsd", v, o)[:, :, None], dim=-1)
first = naive(p[:, :, :8, :8], v[:, :, :8], o)
norm_weighted(p[:, :, :8, :8], v[:, :, :8], o)
held = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (held + {cap}, held + {cap}))
found = norm_weighted(p, v, o)
assert torch.allclose(found[:, :, :8, :8], first, rtol=1e-4), "not the naive value"
try:
    naive(p, v, o)
except RuntimeError as error:
    print("the naive form:", "allocate" in str(error))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the cap is on the address space, as Linux counts it")
def test_o86_norms_are_worked_out_under_a_cap_that_the_tensor_breaks(python: Any) -> None:
    """L = 512, d = 768: the (b, h, t, s, d) tensor has 9.7 GB; 100 MB more than at rest are enough."""
    asked = python("-c", _CAPPED.format(cap=100_000_000))
    assert asked.returncode == 0, asked.stderr
    assert asked.stdout == "the naive form: True\n"


@pytest.mark.parametrize("name", ["gpt2", "opt", "llama", "gpt_oss", "alibi"])
def test_o87_o89_three_prompts_padded_on_the_left_are_three_solo_runs(name: str) -> None:
    """Learned, rotary and ALiBi positions: figures, losses, scores and exact ablations."""
    model = AlibiModel.tiny() if name == "alibi" else tiny.build(name)
    texts, together = padded_batch((3, 7, 12))
    alone = [{"input_ids": torch.tensor([text])} for text in texts]
    alike(head_statistics(model, [together]), head_statistics(model, alone), atol=2e-5)
    options = {"metric": next_token_loss}  # of a class that nobody knows, whether it is a language model is not known
    one, other = head_importance(model, [together], **options), head_importance(model, alone, **options)
    assert one.baseline == pytest.approx(other.baseline, rel=1e-5)
    assert torch.allclose(one.scores, other.scores, rtol=1e-3, atol=1e-5)
    heads = {0: (1, 3)}
    one, other = (ablate_heads(model, batches, heads=heads, **options) for batches in ([together], alone))
    for head in (Head(0, 1), Head(0, 3)):
        assert one.score(head) == pytest.approx(other.score(head), abs=1e-5)


def test_o87_alibi_models_of_transformers_are_refused_by_name() -> None:
    """They are all there are, and they compute attention themselves; one that calls the interface is tried above."""
    for name in ("bloom", "mpt", "falcon-rw"):
        for ask in (head_statistics, head_importance, ablate_heads):
            with pytest.raises(BackendError, match="AttentionInterface"):
                ask(tiny.build(name), tiny.inputs(name)["input_ids"])


def test_the_alibi_model_is_alibi() -> None:
    """Press et al. (arXiv 2108.12409): six heads have slopes 2^-2, 2^-4, 2^-6, 2^-8, 2^-1, 2^-3, at each distance once."""
    model, seen = AlibiModel.tiny(), []
    ids = torch.full((1, 6), 7)  # one token over and over: all keys of a head are alike, so only the distance is left
    with open_door(model, observers=[lambda call, out: seen.append(call.weights())]):
        tiny.logits(model, {"input_ids": ids})
    falls = (seen[0][0, :, 5, 1:].log() - seen[0][0, :, 5, :-1].log()).mean(-1)
    assert falls.tolist() == pytest.approx([2**-2, 2**-4, 2**-6, 2**-8, 2**-1, 2**-3], abs=1e-5)


@pytest.mark.parametrize("name", ["t5", "bart", "marian"])
def test_o88_an_encoder_decoder_padded_on_both_sides_is_its_solo_runs(name: str) -> None:
    model = tiny.build(name)
    texts, batch = padded_batch((11, 5, 8), side="right")
    answers, target = padded_batch((4, 7, 3), side="right")
    both = {**batch, **{f"decoder_{key}": value for key, value in target.items()}}
    alone = [
        {"input_ids": torch.tensor([text]), "decoder_input_ids": torch.tensor([answer])}
        for text, answer in zip(texts, answers, strict=True)
    ]
    alike(head_statistics(model, [both]), head_statistics(model, alone), atol=3e-5)


def test_o88_two_texts_where_one_is_meant_are_refused_in_words_about_texts() -> None:
    model = tiny.build("llama")
    _, batch = padded_batch((4, 7))
    with pytest.raises(ManyheadsError, match="maps show one text at a time: input_ids holds 2; valid: a batch of 1"):
        head_maps(model, batch)
    with pytest.raises(ManyheadsError, match=r"attention_mask \(2, 6\) does not fit input_ids \(2, 7\)"):
        head_statistics(model, [batch | {"attention_mask": batch["attention_mask"][:, 1:]}])
    maps = head_maps(model, {"input_ids": batch["input_ids"][1:]})
    with pytest.raises(ManyheadsError, match=r"14 token texts for the 7 tokens that model\.layers\.0\.self_attn sees"):
        maps_widget(maps, {"queries": ["word "] * 14}, [], after="x")


# Everything that runs a model and looks at it: it must leave no trace, however it ends.
IDS = torch.arange(3, 25).view(2, 11)
LOOKS: dict[str, Callable[[Any], Any]] = {
    "statistics": lambda model: head_statistics(model, [IDS, IDS]).entropy,
    "scores": lambda model: head_importance(model, [IDS, IDS]).scores.numpy(),
    "ablation": lambda model: ablate_heads(model, [IDS, IDS], heads={0: (1,), 1: (2,)}).scores.numpy(),
    "mean ablation": lambda model: ablate_heads(model, [IDS, IDS], how="mean", heads={1: (1,)}).scores.numpy(),
    "gates": lambda model: train_gates(model, [IDS, IDS], penalty=0.05, steps=8).a.numpy(),
    "maps": lambda model: head_maps(model, {"input_ids": IDS[:1]}).layers[-1].weights.numpy(),
    "roles": lambda model: induction_scores(model, Numbers(), block_tokens=8, sequences=4)[1],
}


class Numbers:
    """As much of a tokenizer as random tokens need."""

    all_special_ids = (0, 1, 2)

    def __len__(self) -> int:
        return 90


def left_behind(model: Any) -> Any:
    """All that looking could leave: modes, hooks, attributes, gradients, settings, doors that are open."""
    return (
        [
            (module.training, sorted(module.__dict__), len(module._forward_hooks), len(module._forward_pre_hooks))
            for module in model.modules()
        ],
        [(parameter.requires_grad, parameter.grad is None) for parameter in model.parameters()],
        {key: repr(value) for key, value in vars(model.config).items()},
        [list(doors._open), doors._stack.get(), dict(door_attentions._held)],
    )


class StoppedError(Exception):
    """Raised in the middle of a forward."""


@pytest.mark.parametrize("error", [StoppedError, KeyboardInterrupt])
@pytest.mark.parametrize("look", list(LOOKS))
def test_a_forward_that_fails_leaves_no_trace(look: str, error: type[BaseException]) -> None:
    """Behind the first attention, the second time that the model runs where it runs twice; modes are mixed before."""
    model = tiny.build("llama", attention="sdpa")
    model.model.layers[1].train()
    whole = LOOKS[look](model)
    mlp, real, calls = model.model.layers[0].mlp, type(model.model.layers[0].mlp).forward, []

    def failing(self: Any, *inputs: Any) -> Any:
        calls.append(self is mlp)
        if sum(calls) == (1 if look in ("maps", "roles") else 2):
            raise error("in the middle")
        return real(self, *inputs)

    before = left_behind(model)
    type(mlp).forward = failing
    try:
        with pytest.raises(error):
            LOOKS[look](model)
    finally:
        type(mlp).forward = real
    assert left_behind(model) == before
    assert np.array_equal(LOOKS[look](model), whole, equal_nan=True)  # and it works as before


@pytest.mark.parametrize("look", list(LOOKS))
def test_in_training_mode_with_dropout_what_is_found_is_the_same(look: str) -> None:
    model = tiny.build("gpt2", attn_pdrop=0.5, resid_pdrop=0.5, embd_pdrop=0.5)
    wanted = LOOKS[look](model)
    model.train()
    before = left_behind(model)
    assert np.array_equal(LOOKS[look](model), wanted, equal_nan=True)
    assert left_behind(model) == before
    assert model.training


@pytest.mark.parametrize("look", list(LOOKS))
def test_under_inference_mode_it_is_the_same_or_refused(look: str) -> None:
    model = tiny.build("llama", attention="sdpa")
    wanted = LOOKS[look](model)
    before = left_behind(model)
    with torch.inference_mode():
        if look in ("scores", "gates"):
            with pytest.raises(ManyheadsError, match=r"inference_mode\(\)"):
                LOOKS[look](model)
        else:
            assert LOOKS[look](model) == pytest.approx(wanted, abs=1e-6, nan_ok=True)
    assert left_behind(model) == before
    assert not any(tensor.is_inference() for tensor in (*model.parameters(), *model.buffers()))


@pytest.mark.parametrize("look", list(LOOKS))
def test_a_model_in_bfloat16_has_the_figures_of_its_float32_twin(look: str) -> None:
    """Weights are the same numbers in both; what differs is the rounding of activations, to 3 digits."""
    half = tiny.build("llama", dtype=torch.bfloat16)
    twin = tiny.build("llama")
    twin.load_state_dict({name: value.float() for name, value in half.state_dict().items()})
    got, wanted = (np.nan_to_num(LOOKS[look](model).astype(float)) for model in (half, twin))
    assert np.isfinite(LOOKS[look](half)[~np.isnan(LOOKS[look](twin))]).all()
    assert np.abs(got - wanted).max() <= 0.1 * max(1.0, np.abs(wanted).max())
    assert {parameter.dtype for parameter in half.parameters()} == {torch.bfloat16}


def test_two_models_in_two_threads_see_only_their_own() -> None:
    """Each thread takes every look again and again while the other does, and finds what it finds alone."""
    models = [tiny.build("llama", attention="sdpa"), tiny.build("gpt2", attention="sdpa")]
    alone = [{look: ask(model) for look, ask in LOOKS.items()} for model in models]
    before = [left_behind(model) for model in models]
    start, wrong = threading.Barrier(2), []

    def run(number: int) -> None:
        start.wait()
        try:
            for _ in range(3):
                for look, ask in LOOKS.items():
                    if not np.allclose(ask(models[number]), alone[number][look], atol=1e-6, equal_nan=True):
                        wrong.append((number, look))
        except BaseException as error:  # noqa: BLE001  a thread's own would be lost
            wrong.append((number, repr(error)))

    threads = [threading.Thread(target=run, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=120)
    assert wrong == []
    assert [left_behind(model) for model in models] == before


@pytest.mark.parametrize("look", list(LOOKS))
def test_inside_a_door_of_the_users_own(look: str) -> None:
    """Heads that an outer door masks are masked for what looks inside; the outer observers see it all, and stay."""
    model, plain = tiny.build("llama"), tiny.build("llama")
    with torch.no_grad():
        plain.model.layers[0].self_attn.o_proj.weight[:, 20:30] = 0  # head 2 of layer 0
    seen: list[str] = []
    gate = mask(model, {0: (2,)})
    with open_door(model, gates=[gate], observers=[lambda call, _: seen.append(call.path)]) as door:
        found = LOOKS[look](model)
        count = len(seen)
        tiny.logits(model, {"input_ids": IDS})
        assert len(seen) == count + 3
        assert sum(door.calls.values()) == len(seen)
    wanted = LOOKS[look](plain)
    assert found == pytest.approx(wanted, abs=2e-5, nan_ok=True)
    assert count > 0
    assert doors._open == []
