"""Roles end to end: heads that were built to do one thing are told so, random ones are told nothing, and every choice is said."""

from __future__ import annotations

import copy
import json
import math
import random
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from manyheads.errors import ManyheadsError  # noqa: E402
from manyheads.heads.address import Head  # noqa: E402
from manyheads.heads.alignment import frame  # noqa: E402
from manyheads.heads.roles import RoleReport, head_roles, parse_conllu  # noqa: E402
from manyheads.heads.roles.coreference import KINDS, UNITS  # noqa: E402
from manyheads.heads.roles.induction import induction_scores, random_tokens  # noqa: E402
from manyheads.heads.roles.record import roles_tested  # noqa: E402
from manyheads.models.load.text import shipped_text  # noqa: E402
from manyheads.report.jsonform import as_json  # noqa: E402
from support import tiny_models  # noqa: E402

WORDS = ("the", "cat", "sat", "on", "a", "mat", "and", "one", "dog", "ran", "after", "it", "while", "birds", "sang", "in",
         "old", "trees")  # fmt: skip


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("tokenizer")
    tiny_models.save_tokenizer(folder)
    return transformers.AutoTokenizer.from_pretrained(folder)


@pytest.fixture(scope="module")
def text() -> str:
    rng = random.Random(5)
    return " ".join(" ".join(rng.choices(WORDS, k=rng.randint(4, 9))) + "." for _ in range(40))


def model_of(family: str, **changes: Any) -> Any:
    torch.set_num_threads(1)
    kind, config, settings = tiny_models.FAMILIES[family]
    torch.manual_seed(0)
    return getattr(transformers, kind)(getattr(transformers, config)(**{**settings, **changes})).eval()


@pytest.fixture(scope="module")
def planted() -> Any:
    """A GPT-2 of one layer whose head 0 looks one token back, whose head 1 spreads evenly, whose head 2 looks four back, and
    whose head 3 looks at the first token: positions are unit vectors, and the query of each head turns its own by so many.
    """
    positions = 64
    config = transformers.GPT2Config(
        vocab_size=tiny_models.VOCABULARY,
        n_embd=4 * positions,
        n_layer=1,
        n_head=4,
        n_positions=positions,
        attn_pdrop=0.0,
        bos_token_id=1,
        eos_token_id=2,
    )
    model = transformers.GPT2LMHeadModel(config).eval()
    body = model.transformer
    with torch.no_grad():
        for weight in (body.wte.weight, body.wpe.weight, body.h[0].attn.c_attn.weight, body.h[0].attn.c_attn.bias):
            weight.zero_()
        body.wpe.weight[:, :positions] = torch.eye(positions)
        query, key, _ = body.h[0].attn.c_attn.weight.split(4 * positions, dim=1)
        for head, back in ((0, 1), (2, 4)):
            for place in range(back, positions):
                query[place, head * positions + place - back] = 5.0
            key[:positions, head * positions : (head + 1) * positions] = torch.eye(positions)
        query[:positions, 3 * positions] = 5.0
        key[0, 3 * positions] = 5.0
    return model


@pytest.fixture(scope="module")
def report(planted: Any, tokenizer: Any, text: str) -> RoleReport:
    return head_roles(planted, tokenizer, texts=text, bos=False, seed=3)


def test_heads_that_were_built_for_it_and_one_that_was_not(report: RoleReport) -> None:
    assert report.label(Head(0, 0)) in ("previous token", "positional")
    assert report.label(Head(0, 1)) == report.label("0:1") == ""
    assert report.of("L0H3") == report.of(Head(0, 3))
    assert report.label(Head(0, 2)) in ("fixed offset", "positional")
    assert report.label(Head(0, 3)) == "first token"
    assert report.labels() == {head: report.label(head) for head in map(Head, [0] * 4, range(4))}
    (previous,) = report.clearest("previous token")
    assert previous.head == Head(0, 0)
    assert previous.score > 0.99
    assert previous.low <= previous.score <= previous.high
    assert previous.q_value >= previous.p_value
    four = next(role for role in report.of(Head(0, 2)) if role.name == "fixed offset")
    assert four.detail == "4 before"
    positional = {role.head: role.detail for role in report.clearest("positional")}
    assert positional == {Head(0, 0): "1 before", Head(0, 2): "4 before"}


@pytest.mark.parametrize("family", ["llama", "mistral", "gpt_oss", "deepseek_v3", "bert", "t5"])
def test_random_weights_have_no_role(family: str, tokenizer: Any, text: str) -> None:
    model = model_of(family).train()  # and are left in the mode that they came in
    report = head_roles(model, tokenizer, texts=[text])
    assert model.training
    assert set(report.labels().values()) == {""}
    assert report.tests == sum(sum(not math.isnan(p) for p in one.p_value) for one in report.evidence)
    stacks = {head.stack for one in report.evidence for head in one.heads}
    assert stacks == ({"encoder", "decoder", "cross"} if family == "t5" else {""})
    if family == "bert":
        assert any(one.name == "next token" for one in report.evidence)
    elif family != "t5":
        assert "next token" in dict(report.not_tested)
    assert dict(report.not_tested)["syntax"].endswith("conllu=")
    json.loads(json.dumps(as_json(roles_tested(report)), allow_nan=False))


@pytest.mark.parametrize("seed", [2, 7, 8])
def test_random_weights_with_peaked_attention_have_no_role(seed: int, peaked: tuple[Any, str]) -> None:
    """At random, heads like some tokens and shun others: that is no liking for delimiters, nor for antecedents."""
    tokenizer, text = peaked
    torch.manual_seed(seed)
    config = tiny_models.FAMILIES["bert"][2] | {"vocab_size": 1500, "hidden_size": 128, "num_attention_heads": 8}
    model = transformers.BertModel(transformers.BertConfig(**config)).eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if name.endswith(("query.weight", "key.weight")):
                weight.mul_(10.0)
    assert set(head_roles(model, tokenizer, texts=text, seed=seed).labels().values()) == {""}


@pytest.fixture(scope="module")
def peaked(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, str]:
    """A tokenizer of whole words, and the text that it was learned from."""
    text = shipped_text().text[:9000]
    folder = tmp_path_factory.mktemp("words")
    tiny_models.save_tokenizer(folder, vocabulary=1500, text=text)
    return transformers.AutoTokenizer.from_pretrained(folder), text


def test_a_head_that_looks_at_near_tokens_has_a_window_and_no_distance(planted: Any, tokenizer: Any, text: str) -> None:
    """The same attention to the tokens at distances 1 to 5: each has a neighbour like it; four of five are at most 4 away."""
    model, positions = copy.deepcopy(planted), 64
    with torch.no_grad():
        query, _, _ = model.transformer.h[0].attn.c_attn.weight.split(4 * positions, dim=1)
        query[:, :positions].zero_()
        for place in range(positions):
            for back in range(1, 6):
                query[place, max(place - back, 0)] = 5.0
    report = head_roles(model, tokenizer, texts=text, bos=False)
    near = {role.name: role for role in report.of(Head(0, 0))}
    assert report.label(Head(0, 0)) == "local window"
    assert near["local window"].detail == "at most 4 away"
    assert near["local window"].score == pytest.approx(0.8, abs=0.03)  # the first queries have fewer keys
    for name in ("previous token", "fixed offset", "itself", "positional"):
        assert near[name].verdict != "holds"


def test_the_least_effect_is_settable_and_said(planted: Any, tokenizer: Any, text: str) -> None:
    report = head_roles(planted, tokenizer, texts=text, bos=False, seed=3, least_effect=0.96)
    # 1 against an even spread over the keys that are seen: of 42 tokens that is above 0.04 for every distance.
    assert not report.clearest("previous token")
    assert {role.verdict for role in report.of(Head(0, 0)) if role.name == "previous token"} == {
        "above its control, but by too little"
    }
    assert roles_tested(report).least_effect == 0.96
    for wrong in (-0.1, 1.0, math.nan):
        with pytest.raises(ManyheadsError, match=r"least effect of .* valid: a share from 0 to below 1"):
            head_roles(planted, tokenizer, texts=text, least_effect=wrong)


def test_the_same_seed_the_same_report(report: RoleReport, planted: Any, tokenizer: Any, text: str) -> None:
    again = head_roles(planted, tokenizer, texts=text, bos=False, seed=3)
    assert as_json(roles_tested(again)) == as_json(roles_tested(report))


def test_what_stands_before_the_text_is_recorded(report: RoleReport, planted: Any, tokenizer: Any, text: str) -> None:
    with_it, without = head_roles(planted, tokenizer, texts=text, bos=True), report
    assert with_it.bos.startswith("<s> before, nothing after the text (as asked)")
    assert without.bos.startswith("nothing before")
    # The head that looks at the first position finds the mark there, or the text's first token; it is one head either way.
    assert {one.clearest("first token")[0].head for one in (with_it, without)} == {Head(0, 3)}


def test_induction_with_and_without_a_mark_before_the_blocks(planted: Any, tokenizer: Any) -> None:
    """Case O92. The head that spreads evenly gives 1 / keys; 64 positions hold two blocks of 32, or a mark and two of 31."""
    for bos, first, last in ((False, 32, 63), (True, 32, 62)):
        _, scores = induction_scores(planted, tokenizer, around=frame(tokenizer, bos=bos), sequences=4)
        expected = sum(1 / (query + 1) for query in range(first, last + 1)) / (last - first + 1)
        assert scores[:, 1].mean() == pytest.approx(expected, rel=1e-5)
        assert scores.shape == (4, 4, 2)


def test_short_texts_are_said_and_not_judged(planted: Any, tokenizer: Any) -> None:
    report = head_roles(planted, tokenizer, texts="the cat sat on the mat and the dog ran")
    why = dict(report.not_tested)
    assert "expected at least 8" in why["previous token"]
    assert not any(one.name == "positional" for one in report.evidence)


def test_models_that_read_few_tokens_at_once(tokenizer: Any, text: str) -> None:
    """Sentences that are too long for the model are left out and said, blocks and windows are shorter."""
    report = head_roles(model_of("gpt2", n_positions=12), tokenizer, texts=text)
    assert report.window_tokens == 12
    assert "coreference" in dict(report.not_tested)
    left = next(one for one in report.left_out if one.what == "sets of coreference sentences")
    assert left.count == left.of == UNITS * len(KINDS)
    assert "longer than the model reads" in left.why
    assert {one.name for one in report.evidence} >= {"previous token", "induction"}


def test_a_text_of_two_tokens_is_read(planted: Any, tokenizer: Any) -> None:
    report = head_roles(planted, tokenizer, texts="the cat")
    assert (report.windows, report.window_tokens) == (1, 2)
    assert {one.name for one in report.evidence} == {"induction", "coreference"}


@pytest.mark.parametrize("texts", ["", "a", [], ["the cat sat", "a"]])
def test_texts_of_less_than_two_tokens(planted: Any, tokenizer: Any, texts: Any) -> None:
    with pytest.raises(ManyheadsError, match="at least 2") as caught:
        head_roles(planted, tokenizer, texts=texts)
    assert "\n" not in str(caught.value)


def test_what_cannot_be_asked(report: RoleReport, planted: Any, tokenizer: Any, text: str, tmp_path: Path) -> None:
    with pytest.raises(ManyheadsError, match="without a tokenizer"):
        head_roles(planted, None, texts=text)
    with pytest.raises(ManyheadsError, match="false discovery rate of 1"):
        head_roles(planted, tokenizer, texts=text, fdr=1.0)
    with pytest.raises(ManyheadsError, match="takes input_features"):
        head_roles(model_of("whisper"), tokenizer, texts=text)
    broken = tmp_path / "broken.conllu"
    broken.write_text("1\tA\n")
    with pytest.raises(ManyheadsError, match="line 1: 2 fields"):
        head_roles(planted, tokenizer, texts=text, conllu=str(broken))
    for ask in (report.of, report.label):
        with pytest.raises(ManyheadsError, match="7:0: no role was tested"):
            ask(Head(7, 0))
    with pytest.raises(ManyheadsError, match="no role that was tested; tested: previous token"):
        report.clearest("syntax: obj")


def test_syntax_is_held_against_the_fixed_offset(planted: Any, tokenizer: Any, text: str) -> None:
    """A head of position is right whenever the offset is, and so proves nothing about syntax."""
    lines = []
    for _ in range(80):
        lines += [f"{i}\t{word}\t_\t_\t_\t_\t{head}\t{rel}\t_\t_" for i, (word, head, rel) in enumerate(
            [("the", 2, "det"), ("cat", 3, "nsubj"), ("ran", 0, "root"), ("after", 6, "case"), ("a", 6, "det"), ("dog", 3, "obl")], 1
        )] + [""]  # fmt: skip
    report = head_roles(planted, tokenizer, texts=text, conllu=parse_conllu("\n".join(lines)))
    found = next(one for one in report.evidence if one.name == "syntax: nsubj")
    # cat <- ran: one word back, and the words are one piece each, so the planted head is always right; and so is the offset.
    previous = found.role(found.heads.index(Head(0, 0)))
    assert (previous.score, previous.null) == (1.0, 1.0)
    assert previous.detail == "governor to dependent; against a governor 1 after"
    assert previous.verdict == "not above its control"
    assert not any(label.startswith("syntax") for label in report.labels().values())


def test_random_tokens_are_of_the_vocabulary_and_not_special(tokenizer: Any) -> None:
    drawn = random_tokens(tokenizer, 2_000, rng=random.Random(0))
    assert not set(drawn) & set(tokenizer.all_special_ids)
    assert max(drawn) < len(tokenizer)
    assert max(random_tokens(tokenizer, 500, rng=random.Random(0), most=50)) < 50
