"""The statistics of heads: what they are by definition, on many families, in tiles of any size, padded, batched, in training."""

from __future__ import annotations

import dataclasses
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("numba")

import torch

from manyheads.errors import BackendError, ManyheadsError
from manyheads.heads.batches import prepare, windows
from manyheads.heads.statistics import MASSES, HeadStatistics, Recorder, head_statistics, streaming
from manyheads.models.door.door import Call, open_door
from manyheads.ops import softmax
from support.full_matrices import by_definition
from support.padding import padded
from support.peak_memory import PEAK_BYTES, needs_proc
from support.tiny_transformers import CASES, build, inputs, logits

ARRAYS = ("offsets", "top_offsets", "entropy", "distance", "logit_std", "sink_mass", "output_norm")
BOTH = ("torch", "compiled")
MEMBERS = frozenset(range(3, 12))
FAMILIES = ("llama", "mistral", "gpt2", "gemma2", "gpt_oss", "deepseek_v3", "qwen3_next", "jamba", "bert", "modernbert", "t5",
            "marian", "whisper")  # fmt: skip


def logits_of(call: Call) -> torch.Tensor:
    options = {name: value for name, value in call.options.items() if name not in ("dropout", "sinks")}
    return softmax.scores(call.q, call.k, stage="masked", **options)


def recorded(model: Any, batch: dict[str, Any]) -> dict[str, tuple[torch.Tensor, ...]]:
    """Probabilities, logits and outputs of every layer, in full."""
    seen: dict[str, tuple[torch.Tensor, ...]] = {}
    with (
        open_door(model, observers=[lambda c, out: seen.update({c.path: (c.weights(), logits_of(c), out)})]),
        torch.no_grad(),
    ):
        model(**batch)
    return seen


def check(found: HeadStatistics, model: Any, batch: dict[str, Any]) -> None:
    """Every figure of every head against the definitions."""
    seen = recorded(model, batch)
    for row, place in enumerate(found.modules):
        weights, logits, out = seen[place.path]
        side = "decoder_input_ids" if place.stack == "decoder" and "decoder_input_ids" in batch else "input_ids"
        ids = None if place.stack == "cross" or side not in batch else batch[side].tolist()
        right = by_definition(weights, logits, ids, max_offset=found.max_offset, members=MEMBERS)
        crossed, heads = place.stack == "cross", weights.shape[1]
        for name in ("entropy", "logit_std", "sink_mass", *(() if crossed else ("distance", "offsets", "top_offsets"))):
            assert getattr(found, name)[row, :heads] == pytest.approx(right[name], abs=2e-6, rel=1e-5), (place, name)
            assert np.isnan(getattr(found, name)[row, heads:]).all()
        for name, expected in right["mass"].items():
            mine = found.mass[name][row, :heads]
            if crossed and (name in MASSES[:5] or name == "members"):
                continue
            assert mine == pytest.approx(expected, abs=1e-6, nan_ok=True), (place, name)
            assert np.all(found.eligible[name][row, :heads] == right["eligible"][name]), (place, name)
        norms = torch.linalg.vector_norm(out.double(), dim=-1).mean((0, 2))
        assert found.output_norm[row, :heads] == pytest.approx(norms.numpy(), rel=1e-5)
        assert found.queries[row] == weights.shape[0] * weights.shape[2]
        if crossed:
            assert np.isnan(found.offsets[row]).all()
            assert np.isnan(found.distance[row]).all()


@pytest.mark.parametrize("implementation", BOTH)
@pytest.mark.parametrize("name", FAMILIES)
def test_figures_are_those_of_full_matrices(name: str, implementation: str) -> None:
    model, batch = build(name), inputs(name)
    sets = {"members": sorted(MEMBERS)}
    check(head_statistics(model, [batch], key_sets=sets, max_offset=4, implementation=implementation), model, batch)


@pytest.mark.parametrize("implementation", BOTH)
@pytest.mark.parametrize("name", ["llama", "gemma2"])
def test_long_texts_in_many_tiles(name: str, implementation: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten tiles of rows, three of keys; online sums whose maximum moves."""
    monkeypatch.setattr(streaming, "_TILE_KEYS", 32)
    monkeypatch.setattr(streaming, "_TILE_ELEMENTS", 1600)
    model = build(name)
    batch = {"input_ids": torch.randint(3, 40, (1, 75), generator=torch.Generator().manual_seed(3))}
    sets = {"members": sorted(MEMBERS)}
    check(head_statistics(model, [batch], key_sets=sets, max_offset=40, implementation=implementation), model, batch)


def equal(a: HeadStatistics, b: HeadStatistics, *, atol: float = 2e-6) -> None:
    for name in ARRAYS:
        assert getattr(a, name) == pytest.approx(getattr(b, name), abs=atol, rel=1e-5, nan_ok=True), name
    for name in a.mass:
        assert a.mass[name] == pytest.approx(b.mass[name], abs=atol, nan_ok=True), name
        assert a.eligible[name] == pytest.approx(b.eligible[name]), name
    assert list(a.queries) == list(b.queries)
    if a.chance is not None and b.chance is not None:
        equal(a.chance, b.chance)


def packed(texts: list[list[int]]) -> dict[str, torch.Tensor]:
    """Texts one after the other in a row, each with positions of its own, as transformers' flattening collator makes it."""
    return {
        "input_ids": torch.tensor([[token for text in texts for token in text]]),
        "position_ids": torch.tensor([[at for text in texts for at in range(len(text))]]),
    }


# The last token of one is the first of the next: nothing may be found across the border.
TEXTS = [[5, 6, 7, 5, 6, 9, 5], [5, 8, 6, 5, 3], [6, 6, 7, 5, 6, 8, 6, 5, 4, 11]]


@pytest.mark.parametrize("implementation", BOTH)
@pytest.mark.parametrize("name", ["llama", "mistral", "gemma2", "deepseek_v3", "gpt2"])
def test_texts_in_one_row_are_as_texts_by_themselves(name: str, implementation: str) -> None:
    model, sets = build(name), {"members": sorted(MEMBERS)}
    options: dict[str, Any] = {"key_sets": sets, "max_offset": 4, "implementation": implementation}
    apart = head_statistics(model, [torch.tensor([text]) for text in TEXTS], **options)
    equal(head_statistics(model, [packed(TEXTS)], **options), apart)
    within = 7 if name in ("mistral", "gemma2") else 10  # windows of 7 keys
    assert apart.eligible["first"][0, 0] == sum(min(len(text), within) for text in TEXTS)


def test_a_row_that_the_model_reads_as_one_text_is_one() -> None:
    """gpt-oss makes its masks without a look at positions: its second text sees the first."""
    model, row = build("gpt_oss", sliding_window=64), packed(TEXTS)
    found = head_statistics(model, [row], max_offset=4)
    weights = recorded(model, row)["model.layers.0.self_attn"][0]
    assert weights[0, 0, -1, 0] > 0
    assert found.mass["first"][0] == pytest.approx(weights[0, :, :, 0].mean(-1).numpy(), abs=1e-6)


def test_texts_that_a_mask_of_pairs_tells_apart() -> None:
    model, row = build("llama"), packed(TEXTS)
    text = torch.tensor([number for number, text in enumerate(TEXTS) for _ in text])
    pairs = (text[:, None] == text) & torch.ones(len(text), len(text)).tril().bool()
    equal(
        head_statistics(model, [{**row, "attention_mask": pairs[None, None]}], max_offset=4),
        head_statistics(model, [row], max_offset=4),
    )


@pytest.mark.parametrize("tokens", [2, 31, 512])
def test_the_compiled_scan_is_its_twin(tokens: int) -> None:
    model = build("llama")
    ids = torch.randint(3, 60, (2, tokens), generator=torch.Generator().manual_seed(0))
    both = [head_statistics(model, [ids], key_sets={"some": [3, 4]}, implementation=each) for each in BOTH]
    equal(*both)


@pytest.mark.parametrize("threads", ["1", "2"])
def test_threads_change_nothing(threads: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = build("llama")
    ids = torch.randint(3, 60, (1, 300), generator=torch.Generator().manual_seed(0))
    monkeypatch.setenv("MANYHEADS_THREADS", threads)
    equal(
        head_statistics(model, [ids], implementation="compiled"), head_statistics(model, [ids], implementation="torch")
    )


def test_chance_by_hand() -> None:
    """Tokens 5 6 5 6 read causally: each query sees i + 1 keys, and a head without preferences gives each 1 / (i + 1)."""
    found = head_statistics(
        build("llama"), [torch.tensor([[5, 6, 5, 6]])], key_sets={"fives": [5]}, max_offset=3
    ).chance
    assert found is not None
    right = {
        "self": Fraction(1 + Fraction(1, 2) + Fraction(1, 3) + Fraction(1, 4), 4),
        "first": Fraction(1 + Fraction(1, 2) + Fraction(1, 3) + Fraction(1, 4), 4),
        "previous": Fraction(Fraction(1, 2) + Fraction(1, 3) + Fraction(1, 4), 3),
        "duplicate": Fraction(Fraction(1, 3) + Fraction(1, 4), 2),
        "induction": Fraction(Fraction(1, 3) + Fraction(1, 4), 2),  # query 2 to key 1, query 3 to key 2
        "fives": Fraction(1 + Fraction(1, 2) + Fraction(2, 3) + Fraction(2, 4), 4),
    }
    for name, expected in right.items():
        assert found.mass[name] == pytest.approx(np.full((3, 1), float(expected))), name
    assert found.eligible["induction"].tolist() == [[2.0]] * 3
    assert np.isnan(found.mass["next"]).all()
    assert found.entropy == pytest.approx(np.full((3, 1), np.log([1, 2, 3, 4]).mean()))
    assert found.offset(2) == pytest.approx(np.full((3, 1), (1 / 3 + 1 / 4) / 4))
    assert found.offsets[..., -1] == pytest.approx(np.full((3, 1), 1 / 4 / 4))  # distance 3 is "3 or farther"


def test_o15_o16_figures_are_of_each_head() -> None:
    """Heads are not averaged: each differs, and their mean is that of the averaged weights."""
    model, batch = build("bert"), inputs("bert")
    found = head_statistics(model, [batch])
    weights = next(iter(recorded(model, batch).values()))[0]
    assert found.mass["first"].shape == (2, 6)
    assert len(set(found.mass["first"][0].round(6))) == 6
    assert found.mass["first"][0].mean() == pytest.approx(float(weights.mean(1)[..., 0].mean()), abs=1e-6)


def test_o17_o20_in_training_mode_and_under_sdpa() -> None:
    """A model left in training: looked at in evaluation, or refused; a program's own forward has rows that sum to 1."""
    model = build("bert", attention="sdpa", attention_probs_dropout_prob=0.5, hidden_dropout_prob=0.5)
    batch = inputs("bert")
    quiet = head_statistics(model, [batch])
    model.train()
    equal(head_statistics(model, [batch]), quiet)
    assert all(module.training for module in model.modules())
    with pytest.raises(BackendError, match="training mode"):
        head_statistics(model, [batch], mode="refuse")
    recorder = Recorder(model)
    with open_door(model, observers=[recorder]):
        recorder.read(batch)
        model(**batch)
    assert recorder.result().sink_mass.max() < 1e-6


@pytest.mark.parametrize("reentrant", [False, True])
def test_o84_gradient_checkpointing_counts_once(*, reentrant: bool) -> None:
    def run(*, checkpointing: bool) -> HeadStatistics:
        model, batch = build("llama"), inputs("llama")
        model.train()
        if checkpointing:
            model.activation_checkpointing_enable({"use_reentrant": reentrant})
        recorder = Recorder(model)
        with open_door(model, observers=[recorder]):
            recorder.read(batch)
            model(**batch, use_cache=False).logits.square().mean().backward()
        assert model.model.layers[0].self_attn.q_proj.weight.grad.abs().max() > 0
        return recorder.result()

    equal(run(checkpointing=True), run(checkpointing=False))


@pytest.mark.parametrize(
    ("name", "side"),
    [(name, side) for name in ("gpt2", "opt", "llama", "mistral", "gpt_oss", "roberta", "t5-encoder")
     for side in ("left", "right")] + [("bert", "right")],
)  # fmt: skip
def test_o87_o89_padding_changes_nothing(name: str, side: str) -> None:
    """Prompts of 3 and 7 tokens in one batch, padded on either side, against each alone: learned and rotary positions."""
    model, texts = build(name), [[11, 12, 11], [20, 21, 22, 20, 21, 22, 30]]
    sets = {"some": [11, 21]}
    alone = head_statistics(model, [torch.tensor([text]) for text in texts], key_sets=sets)
    for implementation in BOTH:
        together = padded(texts, pad=model.config.pad_token_id or 0, side=side)
        equal(head_statistics(model, [together], key_sets=sets, implementation=implementation), alone, atol=2e-5)
    assert alone.queries[0] == 10


@pytest.mark.parametrize(
    "name", [name for name, case in CASES.items() if case.get("class") and case["model_type"] != "whisper"]
)
def test_left_padding_leaves_encoders_their_own_positions(name: str) -> None:
    """What a user's own call reads: BERT's positions count padding, RoBERTa's do not; bit for bit, since nothing is added."""
    model = build(name)
    batch = padded([[11, 12, 11], [20, 21, 22, 20, 21, 22, 30]], pad=model.config.pad_token_id or 0, side="left")
    if model.config.is_encoder_decoder:
        batch["decoder_input_ids"] = torch.tensor([[1, 30, 31], [1, 40, 41]])
    given = prepare(model, batch, all_logits=False)
    given.pop("logits_to_keep", None)  # of T5Gemma's, whose call gives all
    assert torch.equal(logits(model, given), logits(model, batch))


def test_left_padding_of_a_causal_bert_and_of_a_model_that_places_pictures() -> None:
    """A BERT that is a decoder is generated with positions that skip padding; one with its own positions is not given any."""
    batch = padded([[11, 12, 11], [20, 21, 22, 20, 21, 22, 30]], pad=0, side="left")
    causal = build("bert-masked-lm", is_decoder=True)
    assert prepare(causal, batch, all_logits=False)["position_ids"][0].tolist() == [0, 0, 0, 0, 0, 1, 2]
    causal.bert.get_rope_index = lambda: None
    assert "position_ids" not in prepare(causal, batch, all_logits=False)


def test_padding_of_both_sides_of_an_encoder_decoder() -> None:
    model = build("t5")
    texts, answers = [[11, 12, 11, 13], [20, 21, 22]], [[1, 30, 31], [1, 40, 41, 42]]
    one = [
        {"input_ids": torch.tensor([a]), "decoder_input_ids": torch.tensor([b])}
        for a, b in zip(texts, answers, strict=True)
    ]
    both = padded(texts, pad=0) | {f"decoder_{name}": x for name, x in padded(answers, pad=0).items()}
    equal(
        head_statistics(model, [both], key_sets={"some": [11, 21]}),
        head_statistics(model, one, key_sets={"some": [11, 21]}),
        atol=2e-5,
    )


def test_o88_a_mask_that_does_not_fit_is_refused() -> None:
    ids = torch.arange(3, 13).view(2, 5)
    with pytest.raises(ManyheadsError, match=r"attention_mask \(2, 4\) does not fit input_ids \(2, 5\)"):
        head_statistics(build("llama"), [{"input_ids": ids, "attention_mask": torch.ones(2, 4)}])


def test_o85_nothing_is_kept_of_a_batch() -> None:
    """What a recorder holds after 50 batches is what it held after 5."""
    model, batch = build("llama"), inputs("llama")
    recorder, sizes = Recorder(model), []
    with open_door(model, observers=[recorder]), torch.no_grad():
        for count in range(50):
            recorder.read(batch)
            model(**batch)
            if count + 1 in (5, 50):
                sizes.append(held_bytes(recorder))
    assert sizes[0] == sizes[1] < 200_000
    assert recorder.result().queries[0] == 50 * 22


def held_bytes(thing: Any, seen: set[int] | None = None) -> int:
    """Bytes of all tensors that can be reached from `thing`."""
    seen = set() if seen is None else seen
    if id(thing) in seen:
        return 0
    seen.add(id(thing))
    if isinstance(thing, torch.Tensor):
        return thing.untyped_storage().nbytes()
    if isinstance(thing, dict):
        return sum(held_bytes(x, seen) for x in thing.values())
    if isinstance(thing, (list, tuple, set)):
        return sum(held_bytes(x, seen) for x in thing)
    return sum(held_bytes(x, seen) for x in vars(thing).values()) if hasattr(thing, "__dict__") else 0


_PEAK = (
    PEAK_BYTES
    + """
import sys, torch
sys.path[:0] = {path!r}
torch.set_num_threads(1)
from manyheads.heads.statistics import head_statistics
from support.tiny_transformers import build
model = build("llama", attention="sdpa", num_hidden_layers=1)
head_statistics(model, [torch.ones(1, 64, dtype=torch.long)])
ids = torch.randint(3, 60, (1, {tokens}))
with torch.no_grad():
    model(ids, use_cache=False, logits_to_keep=1)
before = peak_bytes()
head_statistics(model, [ids])
print(peak_bytes() - before)
"""
)


@needs_proc
def test_o18_o86_no_score_matrix_is_held(python: Any) -> None:
    """4,096 tokens, six heads: the scores of one layer would be 400 MB, the pass adds less than a sixth of it."""
    import sys

    asked = python("-c", _PEAK.format(path=[p for p in sys.path if p], tokens=4096))
    assert asked.returncode == 0, asked.stderr
    assert int(asked.stdout) < 64e6


def test_voita_s_criterion_can_be_read() -> None:
    """A head made to look one token back: its strongest key is there in every query that has one."""
    model = build("llama")
    found = head_statistics(model, [torch.arange(3, 40)[None]], max_offset=4)
    assert found.top_offsets.sum(-1) == pytest.approx(np.ones((3, 6)))
    assert found.top_offsets[..., :4].sum() == 0  # causal: nothing ahead
    with pytest.raises(ManyheadsError, match="distance 4 was not recorded: max_offset is 4; valid: -3 to 3"):
        found.offset(4)


def test_stacks_are_told_apart() -> None:
    found = head_statistics(build("t5"), [inputs("t5")])
    assert found.stacks == ("encoder", "decoder", "cross")
    assert [len(found.of(stage).modules) for stage in found.stacks] == [3, 2, 2]
    assert found.of("cross").chance.modules == found.of("cross").modules
    assert found.of("decoder").layers == (0, 1)
    with pytest.raises(ManyheadsError, match=r"no stack 'middle'; valid: 'encoder', 'decoder', 'cross'"):
        found.of("middle")


def test_key_sets_as_functions() -> None:
    model, batch = build("bert"), inputs("bert")
    by_ids = head_statistics(model, [batch], key_sets={"some": torch.arange(3, 30)})
    by_function = head_statistics(model, [batch], key_sets={"some": lambda ids: (ids >= 3) & (ids < 30)})
    equal(by_ids, by_function)
    with pytest.raises(ManyheadsError, match=r"key set 'some' answered \(2,\); expected one boolean"):
        head_statistics(model, [batch], key_sets={"some": lambda ids: ids.sum(-1) > 0})


def test_windows_of_a_text() -> None:
    assert [w.tolist() for w in windows(range(10, 17), 3, before=[1], after=[2])] == [
        [[1, 10, 11, 12, 2]],
        [[1, 13, 14, 15, 2]],
    ]
    with pytest.raises(ManyheadsError, match="the text is 1 token long; at least 2"):
        next(windows([5], 8))
    with pytest.raises(ManyheadsError, match="windows of 1 tokens"):
        next(windows([5, 6], 1))


@pytest.mark.parametrize(
    ("batches", "message"),
    [
        ([], "there is no text to look at"),
        ([torch.tensor([[5]])], "the longest text of a batch has 1 token; at least 2"),
        ([torch.tensor(5)], r"input_ids \(\); expected \(batch, tokens\)"),
        (["a text"], r"'a text' is no batch; valid: token ids"),
        ([torch.tensor([[0.5, 0.5]])], "is no batch; valid: token ids"),
        ([[5, 1_000_000]], "token 1,000,000 is not in the model's vocabulary; valid: 0 to "),
        ([torch.tensor([[5, -1]])], "token -1 is not in the model's vocabulary"),
        ([padded([[5], [6]], pad=0)], "has 1 token; at least 2"),
    ],
)
def test_bad_texts(batches: list[Any], message: str) -> None:
    with pytest.raises(ManyheadsError, match=message):
        head_statistics(build("llama"), batches)


def test_a_text_may_be_a_list_of_its_tokens() -> None:
    model = build("llama")
    listed, tensor = (head_statistics(model, [given]) for given in ([5, 6, 7, 8], torch.tensor([[5, 6, 7, 8]])))
    np.testing.assert_array_equal(listed.entropy, tensor.entropy)


def test_bad_requests() -> None:
    model, batch = build("llama"), inputs("llama")
    with pytest.raises(ManyheadsError, match="cannot be called 'self'"):
        head_statistics(model, [batch], key_sets={"self": [1]})
    with pytest.raises(ManyheadsError, match="max_offset 1"):
        head_statistics(model, [batch], max_offset=1)
    with pytest.raises(BackendError, match="'fast' is not one of auto, torch, compiled"):
        head_statistics(model, [batch], implementation="fast")
    with pytest.raises(BackendError, match="FalconForCausalLM"):
        head_statistics(build("falcon-7b"), [batch])
    with pytest.raises(BackendError, match="computes in float32, and the model is in float64"):
        head_statistics(build("llama", dtype=torch.float64), [batch], implementation="compiled")


def test_float64_models_and_bfloat16_ones_are_seen() -> None:
    batch = inputs("gpt2")
    exact = head_statistics(build("gpt2", dtype=torch.float64), [batch])
    equal(head_statistics(build("gpt2"), [batch]), exact, atol=1e-5)
    rounded = head_statistics(build("gpt2", dtype=torch.bfloat16), [batch])
    assert rounded.entropy == pytest.approx(exact.entropy, abs=0.1)


def test_autocast_does_not_reach_the_figures() -> None:
    """Under autocast queries and keys come in bfloat16; what is done with them stays in float32."""
    model, batch = build("gpt2"), inputs("gpt2")
    seen: list[torch.Tensor] = []
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = head_statistics(model, [batch])
        with open_door(model, observers=[lambda call, out: seen.append(call.weights().float())]), torch.no_grad():
            model(**batch)
    assert found.mass["first"][0] == pytest.approx(seen[0][..., 0].mean((0, 2)).numpy(), abs=2e-3)
    assert found.sink_mass.max() < 1e-6


def test_a_decoder_s_own_tokens_are_never_guessed() -> None:
    """Where the decoder's ids are not given by name, nothing is said of duplicates in it; the encoder's are not taken."""
    model = build("t5", decoder_start_token_id=1, pad_token_id=0)
    ids = torch.randint(3, 20, (2, 9), generator=torch.Generator().manual_seed(0))
    found = head_statistics(model, [{"input_ids": ids, "labels": ids}])
    assert np.isnan(found.of("decoder").mass["duplicate"]).all()
    assert not np.isnan(found.of("encoder").mass["duplicate"]).any()
    assert not np.isnan(found.of("decoder").mass["previous"]).any()


def test_results_are_frozen() -> None:
    found = head_statistics(build("llama"), inputs("llama"))
    with pytest.raises(dataclasses.FrozenInstanceError):
        found.max_offset = 3  # type: ignore[misc]


@pytest.mark.real
def test_smollm2_by_full_matrices(smollm2: Any) -> None:
    """Sinks and induction of a trained model: 256 random tokens twice, against the whole matrices of two layers."""
    block = torch.randint(0, 49_000, (1, 256), generator=torch.Generator().manual_seed(0))
    ids = torch.cat((block, block), 1)
    found, full = head_statistics(smollm2.model, [ids]), {}
    with (
        open_door(
            smollm2.model,
            observers=[lambda c, out: full.update({c.layer: c.weights()}) if c.layer in (0, 18) else None],
        ),
        torch.no_grad(),
    ):
        smollm2.model(ids, use_cache=False, logits_to_keep=1)
    later = torch.arange(256, 512)
    for layer, weights in full.items():
        p = weights[0].double()
        assert found.mass["first"][layer] == pytest.approx(p[:, :, 0].mean(-1).numpy(), abs=1e-5)
        duplicates = p[:, later, later - 256].mean(-1)
        assert found.mass["duplicate"][layer] == pytest.approx(
            duplicates.numpy(), abs=2e-2
        )  # random tokens repeat by chance
    assert found.mass["induction"][18, 6] > 0.8
    assert np.nanmax(found.chance.mass["induction"]) < 0.01
