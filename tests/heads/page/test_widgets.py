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

from manyheads.errors import ManyheadsError
from manyheads.heads.address import Head
from manyheads.heads.page.maps import HeadMaps, fit, head_maps, read_byte
from manyheads.heads.page.widgets import HeadNote, grid_widget, maps_widget, token_texts
from manyheads.report import Column, Report, Table
from manyheads.report.html import render_html
from support import tiny_models
from support.tiny_transformers import build, inputs

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
    assert told["heads"][7] | {"triangle": 0} == {
        "address": "1:1",
        "short": "L1H1",
        "stage": "",
        "role": "",
        "words": "",
        "triangle": 0,
    }
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


def test_a_grid_shows_roles_importance_and_which_are_told_apart() -> None:
    notes = [
        HeadNote(Head(0, 0), "induction", "induction 0.90", 4.0, apart=True), HeadNote(Head(0, 1), "", "", 1.0),
        HeadNote(Head(3, 0), "sink", "", 0.0), HeadNote(Head(3, 1), "", "", -1.0),
    ]  # fmt: skip
    seen = Elements(grid_widget(notes, after=QUESTION, importance="loss when it is gone").markup)
    cells = [attributes for tag, attributes in seen.found if tag == "rect" and "data-head" in attributes]
    assert [cell["data-head"] for cell in cells] == ["0:0", "0:1", "3:0", "3:1"] * 2
    assert [cell["class"].split()[1:] for cell in cells[:4]] == [["role-3"], [], ["role-12"], []]
    # the root of 1 / 4 is half; what helps when it is gone counts as nothing
    assert [cell["fill-opacity"] for cell in cells[4:]] == ["1.0", "0.5", "0.0", "0.0"]
    assert ["apart" in cell["class"] for cell in cells[4:]] == [True, False, False, False]
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
    query = int(layer.rows[row])
    assert f"“w{query}” (token {query + 1})" in seen.inner_text("#heads-told")
    first = float(read_byte(layer.first[4, row]))
    assert seen.inner_text("#heads-list .first .share") == (f"{first:.0%}" if first >= 0.0995 else f"{first:.1%}")
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


@pytest.fixture(scope="module")
def long() -> tuple[HeadMaps, list[str]]:
    """A text of 400 tokens, of which 64 can be pointed at, and every word of which comes again after 50.

    What the first three heads do shows best at rows of our choice: 40, 45 and 50.
    """
    batch = inputs("llama", batch=1, tokens=400)
    maps = head_maps(
        build("llama", max_position_embeddings=512), batch, shape=dataclasses.replace(fit(12), rows=64, keys=5)
    )
    layer = maps.layers[0]
    for head, row, back, byte in (
        (0, 40, 50, 200), (0, 30, 7, 250),  # the same word, 50 back; and something stronger that is not
        (1, 45, 49, 180), (1, 20, 7, 250),  # behind the same word
        (2, 50, 9, 240), (2, 5, 1, 255),  # the strongest of all, but for a token that sees next to nothing
    ):  # fmt: skip
        layer.strongest[head, row, 0] = int(layer.rows[row]) - back
        layer.weights[head, row, 0] = byte
    return maps, [f" word{n % 50}" for n in range(400)]


@pytest.fixture
def scrolled(long, tmp_path, browser):
    """The page of the long text; its heads 0:0 and 0:1 have roles."""
    maps, texts = long
    notes = [HeadNote(head, "", "", 0.25) for layer in maps.layers for _, head in layer.addresses()]
    notes[0] = HeadNote(Head(0, 0), "duplicate token", "duplicate token 0.40", 0.5)
    notes[1] = HeadNote(Head(0, 1), "induction", "induction 0.90: loss +0.34 nats a token without it", 0.5, apart=True)
    path = tmp_path / "long.html"
    path.write_text(page(maps, {"queries": texts}, notes), encoding="utf-8")
    opened = []

    def at(width: int = 1_200, **options):
        seen = browser.new_page(viewport={"width": width, "height": 900}, **options)
        seen.goto(path.as_uri())
        opened.append(seen)
        return seen

    yield at
    for seen in opened:
        seen.close()


IN_SIGHT = """(span) => { const box = span.parentNode.getBoundingClientRect(), own = span.getBoundingClientRect();
  return own.top >= box.top - 1 && own.bottom <= box.bottom + 1; }"""


def now(seen) -> int:
    return int(seen.locator("#heads-queries span.now").get_attribute("data-row"))


@pytest.mark.browser
def test_a_head_opens_where_what_it_does_shows_best(scrolled) -> None:
    seen = scrolled()
    assert now(seen) == 40
    seen.evaluate("document.getElementById('heads-queries').scrollTop = 0")
    seen.click("#heads-next")
    assert now(seen) == 45
    assert seen.locator("#heads-queries span.now").evaluate(IN_SIGHT)
    seen.click("#heads-next")
    assert now(seen) == 50
    shown = now(seen)
    seen.click("#heads-clearest")
    assert now(seen) != shown
    assert seen.locator("#heads-queries span.now").evaluate(IN_SIGHT)
    kept = now(seen)
    seen.check("#heads-keep")
    seen.click("#heads-next")
    assert now(seen) == kept


@pytest.mark.browser
def test_every_strongest_key_is_listed_in_its_context_and_leads_to_it(scrolled, long) -> None:
    maps, texts = long
    layer = maps.layers[0]
    seen = scrolled()
    row = now(seen)
    entries = seen.locator("#heads-list li")
    keys = layer.strongest[0, row].tolist()
    weights = read_byte(layer.weights[0, row]).tolist()
    assert all(weights)
    assert entries.count() == 2 + len(keys)  # the token itself and the first token stand before them
    query = int(layer.rows[row])
    for place, (key, weight) in enumerate(zip(keys, weights, strict=True), start=2):
        entry = entries.nth(place)
        assert entry.locator(".share").inner_text() == (f"{weight:.0%}" if weight >= 0.0995 else f"{weight:.1%}")
        assert entry.locator("b").inner_text() == texts[key].strip()
        assert entry.locator(".before").text_content().endswith(f"{texts[key - 1]} ")
        assert entry.locator(".after").text_content().startswith(f"{texts[key].strip()}{texts[key + 1]}")
        assert entry.locator(".place").inner_text() == ("itself" if key == query else f"{query - key} back")
        entry.locator("button").press("Enter")
        found = seen.locator("#heads-queries span.found")
        assert found.evaluate("span => [...span.parentNode.children].indexOf(span)") == key
        assert found.evaluate(IN_SIGHT)
        assert now(seen) == row
    entries.nth(0).locator("button").click()
    assert seen.locator("#heads-queries span.now").evaluate(IN_SIGHT)


@pytest.mark.browser
def test_words_that_come_again_are_underlined(scrolled, long) -> None:
    """The key itself in a head of duplicates, the token before it in an induction head."""
    maps, texts = long
    seen = scrolled()
    row = now(seen)
    query = int(maps.layers[0].rows[row])
    for place, key in enumerate(maps.layers[0].strongest[0, row].tolist(), start=2):
        entry = seen.locator("#heads-list li").nth(place)
        assert entry.locator("b u").count() == (key != query and texts[key] == texts[query])
        assert entry.locator(".before u").count() == (key - 1 != query and texts[key - 1] == texts[query])
    assert seen.locator("#heads-list b u").count() >= 1
    seen.click("#heads-next")
    assert seen.locator("#heads-list .before u").count() >= 1


@pytest.mark.browser
def test_the_margin_shows_where_all_lit_keys_are(scrolled) -> None:
    seen = scrolled()
    marks = seen.locator("#heads-queries-marks i.key")
    assert marks.count() == seen.locator("#heads-queries span.key").count() > 0
    assert (
        seen.locator("#heads-queries-marks i.now").count() == seen.locator("#heads-queries-marks i.first").count() == 1
    )
    assert seen.locator("#heads-queries-marks i.row").count() == 4  # the passages that can be pointed at
    wanted = seen.evaluate(
        "[...document.querySelectorAll('#heads-queries span.key')].map(s => 100 * s.offsetTop / s.parentNode.scrollHeight)"
    )
    drawn = marks.evaluate_all("marks => marks.map(mark => parseFloat(mark.style.top))")
    assert sorted(drawn) == pytest.approx(sorted(wanted), abs=0.01)
    margin = seen.locator("#heads-queries-marks")
    margin.click(position={"x": 7, "y": margin.bounding_box()["height"] - 4})
    at = seen.evaluate(
        "(() => { const b = document.getElementById('heads-queries'); return b.scrollTop / b.scrollHeight; })()"
    )
    assert at > 0.5


@pytest.mark.browser
def test_a_click_holds_the_token_and_another_lets_it_go(scrolled) -> None:
    seen = scrolled()
    seen.evaluate("document.getElementById('heads-queries').scrollTop = 0")
    token = "#heads-queries span[data-row='{}']".format
    seen.hover(token(3))
    assert now(seen) == 3
    seen.click(token(5))
    seen.hover(token(8))
    assert now(seen) == 5
    assert "held" in seen.inner_text("#heads-told")
    seen.click(token(5))
    seen.hover(token(8))
    assert now(seen) == 8
    assert "64 of the 400 tokens can be pointed at" in seen.inner_text("#heads-which")
    assert "4 passages" in seen.inner_text("#heads-which")


@pytest.mark.browser
def test_the_strip_has_two_scales_and_says_so(scrolled, long) -> None:
    maps, _ = long
    seen = scrolled()
    weight = float(read_byte(maps.layers[0].weights[0, now(seen), 0]))
    assert seen.inner_text("#heads-strip-scale") == f"0 to {f'{weight:.0%}' if weight >= 0.0995 else f'{weight:.1%}'}"
    assert seen.inner_text("#heads-last") == "400"
    assert "a scale of its own" in seen.inner_text(".heads-blocks figcaption")
    filled = seen.evaluate(
        "(() => { const c = document.getElementById('heads-strip-first'), p = c.getContext('2d').getImageData(0, 0, 1, c.height);"
        "let n = 0; for (let y = 0; y < c.height; y++) n += p.data[4 * y + 3] > 127; return n / c.height; })()"
    )
    assert filled == pytest.approx(float(read_byte(maps.layers[0].first[0, now(seen)])), abs=0.02)


@pytest.mark.browser
def test_an_entry_of_the_legend_shows_its_heads_alone(scrolled) -> None:
    seen = scrolled()
    buttons = seen.locator(".heads-key button")
    assert buttons.count() == 3  # two roles, and no role
    unfaded = "rects => rects.filter(r => !r.classList.contains('faded')).map(r => r.dataset.head)"
    cells = seen.locator(".heads-grid").first.locator("rect[data-head]")
    buttons.nth(1).press("Enter")
    assert cells.evaluate_all(unfaded) == ["0:1"]
    assert [buttons.nth(n).get_attribute("aria-pressed") for n in range(3)] == ["false", "true", "false"]
    buttons.nth(0).click()
    assert cells.evaluate_all(unfaded) == ["0:0"]
    buttons.nth(0).click()
    assert len(cells.evaluate_all(unfaded)) == 18
    assert [buttons.nth(n).get_attribute("aria-pressed") for n in range(3)] == ["false", "false", "false"]


@pytest.mark.browser
def test_fingers_find_a_head_and_read_what_is_known_of_it(scrolled) -> None:
    seen = scrolled(390, has_touch=True)
    grids = seen.locator(".heads-grid")
    cell = grids.nth(1).locator("rect[data-head='0:1']")
    assert min(cell.bounding_box()[side] for side in ("width", "height")) >= 16
    cell.tap()
    said = grids.nth(1).locator(".heads-said")
    assert said.inner_text().startswith("L0H1: induction 0.90: loss +0.34 nats a token without it")
    assert seen.input_value("#heads-head") == "1"
    said.locator("a").click()
    assert seen.evaluate("location.hash") == "#heads-view"
    assert seen.evaluate("document.documentElement.scrollWidth") <= 390


@pytest.mark.browser
def test_the_grid_can_be_walked_with_keys(scrolled) -> None:
    seen = scrolled()
    grid = seen.locator(".heads-grid").first
    grid.locator("svg").first.focus()
    seen.keyboard.press("ArrowRight")
    seen.keyboard.press("ArrowDown")
    assert grid.locator(".heads-said").inner_text().startswith("L1H1")
    seen.keyboard.press("Enter")
    assert seen.input_value("#heads-head") == "7"


RELATIONS = ("nsubj", "nmod", "nummod", "obj", "obl", "iobj", "det", "case", "cc", "ccomp", "conj", "cop", "aux", "acl",
             "advcl", "advmod", "amod", "appos", "mark", "compound", "xcomp", "fixed", "flat", "parataxis", "expl")  # fmt: skip
KNOWN = ("first token", "previous token", "next token", "itself", "fixed offset", "positional", "delimiter", "rare token",
         "duplicate token", "induction", "coreference")  # fmt: skip


def test_no_two_roles_have_the_same_letters() -> None:
    names = [*KNOWN, *(f"syntax: {relation}" for relation in RELATIONS), "~", "?", EVIL]
    notes = [HeadNote(Head(n, 0), name) for n, name in enumerate(names)]
    grid = grid_widget(notes, after=QUESTION).markup
    letters = re.findall(r'<text class="in [^"]*"[^>]*>([^<]*)</text>', grid)
    assert len(letters) == 2 * len(names)  # in the grid, and in the legend
    assert len(set(letters)) == len(names)
    assert all(re.fullmatch(r"[A-Za-z0-9]{1,2}", each) for each in letters)
    kinds = re.findall(r'<text class="in (role-\d+)"', grid)[: len(KNOWN)]
    assert len(set(kinds)) == len(KNOWN)  # and a colour each


@pytest.mark.browser
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_letters_can_be_read_on_their_colours(browser, tmp_path, scheme: str) -> None:
    """WCAG's contrast of text, 4.5."""
    notes = [HeadNote(Head(n, 0), name) for n, name in enumerate([*KNOWN, "syntax: det"])]
    report = Report("tiny: 1", (Table(QUESTION, (Column("a"),), (("a",),)),))
    path = tmp_path / "grid.html"
    path.write_text(render_html(report, widgets=[grid_widget(notes, after=QUESTION)]), encoding="utf-8")
    seen = browser.new_page(color_scheme=scheme)
    seen.goto(path.as_uri())
    pairs = seen.evaluate(
        "[...document.querySelectorAll('.heads-grid .scroll rect')].map(r => [r, r.nextElementSibling].map(e => getComputedStyle(e).fill))"
    )
    seen.close()
    assert len(pairs) == len(notes)
    for cell, letter in pairs:
        dark, light = sorted((luminance(cell), luminance(letter)))
        assert (light + 0.05) / (dark + 0.05) >= 4.5, (cell, letter)


def luminance(colour: str) -> float:
    """Of "rgb(r, g, b)", as WCAG 2.2 defines it."""
    parts = [int(part) / 255 for part in re.findall(r"\d+", colour)[:3]]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return sum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), linear, strict=True))
