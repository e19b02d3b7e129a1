"""The heads on a page: under 5 MiB however long the text, safe with strange tokens, and a browser shows where a head looks."""

from __future__ import annotations

import base64
import dataclasses
import html.parser
import json
import re

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("jinja2")

import torch

import tiny_models
from manyheads.errors import ManyheadsError
from manyheads.heads.address import Head
from manyheads.heads.maps import HeadMaps, fit, head_maps, read_byte
from manyheads.heads.maps_page import HeadNote, grid_widget, maps_widget, token_texts
from manyheads.report import Column, Report, Table
from manyheads.report.html import render_html
from tiny_transformers import build, inputs

QUESTION = "What does each head do?"
EVIL = '</script><script>document.title = "ran"</script><img src=x onerror=alert(1)>'


class Elements(html.parser.HTMLParser):
    """The elements of a page, and the texts of those with an id."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict]] = []
        self.texts: dict[str, str] = {}
        self._id = ""
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))
        self._id = dict(attrs).get("id") or ""

    def handle_data(self, data):
        self.texts[self._id] = self.texts.get(self._id, "") + data

    def handle_endtag(self, tag):
        self._id = ""


def notes_of(maps: HeadMaps, **of_first) -> list[HeadNote]:
    heads = [Head(layer.layer, n, layer.stage) for layer in maps.layers for n in range(layer.heads)]
    return [HeadNote(heads[0], **of_first), *(HeadNote(head, importance=0.25) for head in heads[1:])]


def page(maps: HeadMaps, texts, notes, *, data=None) -> str:
    report = Report("tiny: 2 layers", (Table(QUESTION, (Column("a"), Column("b")), (("a", "b"),)),), data or {"x": 1})
    widgets = (grid_widget(notes, after=QUESTION, importance="loss"), maps_widget(maps, texts, notes, after=QUESTION))
    return render_html(report, widgets=widgets)


@pytest.fixture(scope="module")
def llama() -> tuple[HeadMaps, list[str]]:
    batch = inputs("llama", batch=1, tokens=30)
    maps = head_maps(build("llama"), batch, shape=dataclasses.replace(fit(12), rows=8, blocks=8))
    return maps, [f" w{n}" for n in range(30)]


@pytest.mark.parametrize(
    ("tokens", "layers", "heads", "kept"), [(2_048, 30, 9, (272, 12, 64)), (8_192, 30, 9, (272, 12, 64)), (2_048, 32, 32, (88, 8, 32))]
)  # fmt: skip
def test_a_page_stays_under_5_mib(tokens: int, layers: int, heads: int, kept: tuple[int, int, int]) -> None:
    """SmolLM2's and Llama-2's heads: one layer is read for real, for how much is kept does not depend on what is in it."""
    model = build("llama", num_hidden_layers=1, num_attention_heads=9, num_key_value_heads=3, head_dim=4, hidden_size=36,
                  max_position_embeddings=tokens)  # fmt: skip
    ids = torch.randint(3, 90, (1, tokens), generator=torch.Generator().manual_seed(2))
    shape = fit(layers * heads)
    layer = head_maps(model, {"input_ids": ids}, shape=shape).layers[0]
    assert (shape.rows, shape.keys, shape.blocks) == kept
    maps = HeadMaps(tuple(dataclasses.replace(layer, layer=n) for n in range(layers * heads // 9)))
    notes = notes_of(maps, role="induction", words="")
    notes = [
        dataclasses.replace(note, role="first token", words="first token 0.98, control 0.00; importance 0.0123")
        for note in notes
    ]
    words = {"head": "29:8", "score": 0.9012345678901234, "control": 0.0012345678901234, "low": 0.8512345678901234,
             "high": 0.9312345678901234, "q_value": 0.00012345678901234, "detail": "", "first_order": 0.01234567890123,
             "loss_without": None, "label": "first token"}  # fmt: skip
    text = page(maps, {"queries": [" antidisestablish"] * tokens}, notes, data={"heads": [words] * (layers * heads)})
    assert len(text.encode()) < 5 * 2**20 - 160_000  # what else stands on an x-ray of SmolLM2
    for line in Elements(text).texts["heads-maps"].split():
        assert len(line) <= 16 * 1_024


def test_what_the_script_reads_is_what_was_seen(llama) -> None:
    maps, texts = llama
    seen = Elements(page(maps, {"queries": texts}, notes_of(maps)))
    told = json.loads(seen.texts["heads-data"])
    lines = seen.texts["heads-maps"].split()
    assert len(lines) == len(told["heads"]) == maps.heads == 18  # 3 layers of 6
    assert told["texts"] == {"queries": texts}
    assert told["heads"][7] | {"triangle": 0} == {"address": "1:1", "stage": "", "words": "", "triangle": 0}
    assert base64.b64decode(lines[7]) == maps.layers[1].encoded(1)
    assert told["stages"][""]["rows"] == maps.layers[0].rows.tolist()


def test_only_our_script_may_run_and_only_where_there_are_maps(llama) -> None:
    import hashlib

    maps, texts = llama
    text = page(maps, {"queries": texts}, notes_of(maps))
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', text).group(1)
    script = re.search(r"<script>(.*?)</script>", text, re.DOTALL).group(1)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in policy
    assert policy.startswith("default-src 'none'")
    assert "script-src" not in render_html(Report("a: b"))
    assert not re.search(r"https?:|//[a-z]|@import|url\(|\bfetch\b|XMLHttp|import\(|eval\(", text, re.IGNORECASE)


def test_tokens_and_words_of_strangers_stay_text(llama) -> None:
    maps, texts = llama
    notes = notes_of(maps, role=EVIL, words=EVIL)
    strange = page(maps, {"queries": [EVIL, "\u202egpj.exe\x1b", *texts[2:]]}, notes)
    plain = page(maps, {"queries": texts}, notes_of(maps, role="plain", words="plain"))
    assert [tag for tag, _ in Elements(strange).found] == [tag for tag, _ in Elements(plain).found]
    told = json.loads(Elements(strange).texts["heads-data"])
    assert told["texts"]["queries"][:2] == [EVIL, "\\u202egpj.exe\\x1b"]


def test_both_sides_of_a_translator_have_their_own_text() -> None:
    batch = inputs("marian", batch=1, tokens=9)
    maps = head_maps(build("marian"), batch)
    texts = {"source": [f"s{n}" for n in range(9)], "queries": [f"t{n}" for n in range(7)]}
    told = json.loads(Elements(page(maps, texts, notes_of(maps))).texts["heads-data"])
    sides = {name: (stage["queries"], stage["keys"]) for name, stage in told["stages"].items()}
    assert sides == {
        "encoder": ("source", "source"), "decoder": ("queries", "queries"), "cross": ("queries", "source"),
    }  # fmt: skip
    assert told["texts"] == texts
    with pytest.raises(ManyheadsError, match=r"9 token texts for the 7 tokens that .* sees \(queries\)"):
        maps_widget(maps, {"queries": texts["source"]}, [], after=QUESTION)


def test_frames_of_sound_have_numbers_for_words() -> None:
    maps = head_maps(build("whisper"), inputs("whisper", batch=1))
    told = json.loads(Elements(page(maps, {"queries": ["a"] * 7}, notes_of(maps))).texts["heads-data"])
    assert told["texts"]["source"][:3] == ["1 ", "2 ", "3 "]


def test_a_grid_shows_roles_importance_and_which_are_exact() -> None:
    notes = [
        HeadNote(Head(0, 0), "induction", "induction 0.90", 4.0, exact=True), HeadNote(Head(0, 1), "", "", 1.0),
        HeadNote(Head(3, 0), "sink", "", 0.0), HeadNote(Head(3, 1), "", "", -1.0),
    ]  # fmt: skip
    seen = Elements(grid_widget(notes, after=QUESTION, importance="loss when it is gone").markup)
    cells = [attributes for tag, attributes in seen.found if tag == "rect" and "data-head" in attributes]
    assert [cell["data-head"] for cell in cells] == ["0:0", "0:1", "3:0", "3:1"] * 2
    assert [cell["class"].split()[1:] for cell in cells[:4]] == [["role-1"], [], ["role-2"], []]
    # the root of 1 / 4 is half; what helps when it is gone counts as nothing
    assert [cell["fill-opacity"] for cell in cells[4:]] == ["1.0", "0.5", "0.0", "0.0"]
    assert ["exact" in cell["class"] for cell in cells[4:]] == [True, False, False, False]
    assert len({(cell["x"], cell["y"]) for cell in cells[:4]}) == 4


@pytest.mark.parametrize("text", ["the cat sat on the mat", "naïve 🦀 crab\n\n  two", "\n"])
def test_token_texts_are_the_text(tmp_path, text: str) -> None:
    import transformers

    tiny_models.save_tokenizer(tmp_path)
    tokenizer = transformers.PreTrainedTokenizerFast.from_pretrained(tmp_path)
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    pieces = token_texts(tokenizer, text, ids)
    assert len(pieces) == len(ids)
    assert "".join(pieces) == text
    assert text.startswith("".join(token_texts(tokenizer, text, ids[:3])))


def test_tokens_that_are_not_of_the_text_are_decoded(tmp_path) -> None:
    import transformers

    tiny_models.save_tokenizer(tmp_path)
    tokenizer = transformers.PreTrainedTokenizerFast.from_pretrained(tmp_path)
    ids = tokenizer("dog cat", add_special_tokens=False)["input_ids"]
    assert "".join(token_texts(tokenizer, "another text", ids)) == "dog cat"


def test_there_must_be_a_head() -> None:
    with pytest.raises(ManyheadsError, match="no head was seen"):
        maps_widget(HeadMaps(()), {}, [], after=QUESTION)


@pytest.fixture
def shown(llama, tmp_path, browser):
    """The page in a browser at a width, with what the browser complained of."""
    maps, texts = llama
    text = page(maps, {"queries": texts}, notes_of(maps, role="induction", words="looks back"))
    path = tmp_path / "page.html"
    path.write_text(text, encoding="utf-8")
    opened = []

    def at(width: int = 1_200, **options):
        seen = browser.new_page(viewport={"width": width, "height": 900}, **options)
        seen.complaints = []
        seen.on("console", lambda message: seen.complaints.append(message.text))
        seen.on("pageerror", lambda error: seen.complaints.append(str(error)))
        seen.goto(path.as_uri())
        opened.append(seen)
        return seen

    yield at
    for seen in opened:
        seen.close()


@pytest.mark.browser
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1200, 768, 360])
def test_a_browser_shows_it_without_complaint_or_sideways_scroll(shown, width: int, scheme: str) -> None:
    seen = shown(width, color_scheme=scheme)
    assert seen.complaints == []
    assert seen.evaluate("document.documentElement.scrollWidth") <= width
    assert seen.locator("#heads-view").is_visible()
    assert seen.locator("#heads-grid").bounding_box()["width"] > 100


@pytest.mark.browser
def test_pointing_at_a_token_shows_where_the_head_looks(shown, llama) -> None:
    maps, texts = llama
    layer, row = maps.layers[1], 5
    seen = shown()
    seen.select_option("#heads-head", label="L1H4")
    seen.hover(f"#heads-queries span[data-row='{row}']")
    told = seen.inner_text("#heads-told")
    query = int(layer.rows[row])
    assert f"“w{query}” (token {query + 1})" in told
    first = float(read_byte(layer.first[4, row]))
    assert f"{first:.0%}" in told or f"{first:.1%}" in told
    best = int(layer.strongest[4, row, 0])
    lit = seen.locator("#heads-queries span.key")
    weights = read_byte(layer.weights[4, row])
    assert lit.count() == int((weights > 0).sum())
    strongest = seen.locator("#heads-queries > span").nth(best)
    assert strongest.inner_text().strip() == texts[best].strip()
    assert strongest.evaluate("span => span.style.getPropertyValue('--weight')") == "1.000"
    assert seen.locator("#heads-queries > span").nth(0).evaluate("span => span.classList.contains('first')")


@pytest.mark.browser
def test_keys_and_clicks_choose_tokens_and_heads(shown) -> None:
    seen = shown()
    assert seen.input_value("#heads-head") == "0"
    assert seen.inner_text("#heads-words") == "looks back"
    seen.locator("rect.head[data-head='1:2']").first.click()
    assert seen.input_value("#heads-head") == "8"
    assert seen.locator("rect.chosen").count() == 2  # in either grid
    seen.click("#heads-next")
    assert seen.input_value("#heads-head") == "9"
    before = seen.inner_text("#heads-told")
    seen.focus("#heads-queries")
    seen.keyboard.press("ArrowLeft")
    assert seen.inner_text("#heads-told") != before
    seen.keyboard.press("ArrowRight")
    assert seen.inner_text("#heads-told") == before


@pytest.mark.browser
def test_the_grid_is_drawn_from_the_bytes(shown, llama) -> None:
    maps, _ = llama
    blocks = maps.layers[0].blocks[0]
    seen = shown()
    drawn = seen.evaluate(
        "(() => { const c = document.getElementById('heads-grid');"
        "return [c.width, c.height, [...c.getContext('2d').getImageData(0, 0, c.width, c.height).data]]; })()"
    )
    assert drawn[:2] == [8, 8]
    alpha = torch.tensor(drawn[2]).view(8, 8, 4)[..., 3].double()
    wanted = blocks.double() / blocks.max() * 255
    assert (alpha - wanted).abs().max() <= 1


@pytest.mark.browser
def test_without_scripts_the_grid_is_there_and_says_what_is_not(shown, browser) -> None:
    path = shown().url
    context = browser.new_context(java_script_enabled=False)
    seen = context.new_page()
    seen.goto(path)
    assert seen.locator("figure.heads-grid").count() == 2
    assert not seen.locator("#heads-view").is_visible()
    assert "scripts are off here" in seen.inner_text("main")
    context.close()
