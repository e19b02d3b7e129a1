"""Every option of every verb, frozen: scripts rely on them. A change here belongs in CHANGELOG.md."""

from __future__ import annotations

import argparse
import ast
import re
from pathlib import Path

import pytest

import manyheads
from manyheads.cli.main import VERBS, build_parser, main
from manyheads.cli.options import DTYPES, IMPORTANCES, SEED, Option, declared, renamed, spoken
from manyheads.errors import ManyheadsError

# In the order of --help. [NAME] may be left out; * may be given many times; = is the default; {a|b} the choices.
OPTIONS: dict[str, list[str]] = {
    "cost": [
        "MODEL",
        "--revision REV",
        "--assume full",
        "--context N",
        "--batch N = 1",
        "--source-tokens N",
        "--weight-dtype TYPE",
        "--kv-dtype TYPE = bf16",
        "--hardware NAME",
        "--memory SIZE",
        "--tensor-parallel N = 1",
        "--what-if CHANGE *",
        "--json",
        "--output FILE",
        "--debug",
    ],
    "xray": [
        "[MODEL]",
        "--revision REV",
        "--assume full",
        "--text FILE",
        "--tokens N = 8192",
        "--bos/--no-bos",
        "--context N",
        "--dtype TYPE = fp32",
        "--device NAME = cpu",
        "--threads N",
        "--seconds N = 180",
        "--exact",
        "--map-tokens N = 2048",
        "--conllu FILE",
        "--least-effect SHARE = 0.1",
        "--no-heads",
        "--seed N",
        "--json",
        "--output FOLDER",
        "--debug",
    ],
    "explain": [
        "MODEL",
        "--revision REV",
        "--assume full",
        "--context N = 8k",
        "--batch N = 1",
        "--dtype TYPE",
        "--kv-dtype TYPE = model",
        "--json",
        "--output FILE",
        "--debug",
    ],
    "models": [
        "[WORDS] *",
        "--scheme SCHEME {mha|gqa|mqa|mla|linear|window}",
        "--sort SORT {year|heads|cache|parameters|name} = year",
        "--reverse",
        "--json",
        "--output FILE",
        "--debug",
    ],
    "check": [
        "[FILE.py:FUNCTION]",
        "--layout AXES",
        "--mask WAY {visible|blocked|additive}",
        "--names ROLE=NAME *",
        "--no FEATURE *",
        "--require FEATURE *",
        "--only CHECK *",
        "--list",
        "--dtype TYPE",
        "--tolerance X",
        "--device NAME = cpu",
        "--timeout SECONDS = 20",
        "--prints",
        "--seed N",
        "--json",
        "--output FILE",
        "--debug",
    ],
    "bench": [
        "[MODEL]",
        "--revision REV",
        "--assume full",
        "--context N",
        "--kv-heads N",
        "--kv-dtype TYPE",
        "--threads N",
        "--quick",
        "--seed N",
        "--json",
        "--output FILE",
        "--debug",
    ],
    "facts": [
        "[KEY|WORD] *",
        "--verdict VERDICT {right|wrong|imprecise|unverified}",
        "--table NAME",
        "--cite CITE {bibtex|csl|ris}",
        "--json",
        "--output FILE",
        "--debug",
    ],
    "prune": [
        "[MODEL]",
        "--revision REV",
        "--assume full",
        "--heads HEADS",
        "--budget N",
        "--gates PENALTY",
        "--importance METHOD = first-order",
        "--rounds N = 8",
        "--steps N = 300",
        "--whole-groups",
        "--text FILE",
        "--tokens N = 4096",
        "--compare-init",
        "--form FORM = auto",
        "--device NAME = cpu",
        "--seed N",
        "--json",
        "--output FOLDER",
        "--debug",
    ],
    "convert": [
        "[MODEL]",
        "--revision REV",
        "--assume full",
        "--kv-heads N",
        "--method METHOD = closed",
        "--text FILE *",
        "--context N = 512",
        "--windows N = 16",
        "--max-ratio RATIO = 1.5",
        "--accept-loss",
        "--seed N",
        "--json",
        "--output FOLDER",
        "--debug",
    ],
    "heads": [
        "[MODEL]",
        "--revision REV",
        "--assume full",
        "--text FILE",
        "--tokens N = 8192",
        "--window N = 512",
        "--head HEAD",
        "--bos/--no-bos",
        "--roles/--no-roles = True",
        "--conllu FILE",
        "--least-effect SHARE = 0.1",
        "--importance METHOD = first-order",
        "--dtype TYPE = fp32",
        "--device NAME = cpu",
        "--threads N",
        "--seed N",
        "--csv",
        "--json",
        "--output FILE",
        "--debug",
    ],
}


def described(action: argparse.Action) -> str:
    """One line that changes whenever the meaning of the argument does."""
    value = action.metavar or action.dest.upper()
    if not action.option_strings:
        text = f"[{value}]" if action.nargs in ("?", "*") else str(value)
    else:
        text = "/".join(action.option_strings) + ("" if action.nargs == 0 else f" {value}")
    if action.choices is not None:
        text += " {" + "|".join(map(str, action.choices)) + "}"
    if isinstance(action, argparse._AppendAction) or action.nargs in ("*", "+"):
        text += " *"
    if action.default not in (None, False, "", [], argparse.SUPPRESS):
        text += f" = {action.default}"
    return text


def options_of(verb: str) -> list[str]:
    return [described(action) for action in build_parser(verb)._actions if action.dest != "help"]


@pytest.mark.parametrize("verb", VERBS)
def test_the_options_of_a_verb_are_these(verb: str) -> None:
    assert verb in OPTIONS, f"write the options of {verb} into the table of this file:\n{options_of(verb)}"
    assert options_of(verb) == OPTIONS[verb]


def test_the_table_names_no_other_verb() -> None:
    assert set(OPTIONS) <= set(VERBS)


@pytest.mark.parametrize("verb", VERBS)
def test_every_argument_is_explained_and_common_ones_mean_the_same(verb: str) -> None:
    actions = build_parser(verb)._actions
    assert [action.dest for action in actions if not action.help] == []
    helps = {action.option_strings[-1]: action.help for action in actions if action.option_strings}
    for flag, meaning in {"--json": "one JSON object", "--output": "write", "--seed": "random"}.items():
        assert meaning in helps.get(flag, meaning)
    assert "--debug" in helps


@pytest.mark.parametrize("verb", VERBS)
def test_every_option_is_declared_and_its_default_can_be_read(verb: str) -> None:
    parser = build_parser(verb)
    actions = [action for action in parser._actions if action.option_strings and action.dest != "help"]
    assert [action.dest for action in actions if not hasattr(action, "option")] == []
    for option in declared(parser):
        if option.read and isinstance(option.default, str):
            option.value(option.default)


def test_a_word_means_one_option_in_a_verb() -> None:
    for verb in VERBS:
        mine = declared(build_parser(verb))
        flags = {option.flag for option in mine}
        words = [word for option in mine for word in (*option.old, *option.tried) if word not in flags]
        assert len(words) == len(set(words)), verb


@pytest.mark.parametrize(
    ("verb", "old", "new"),
    [
        ("explain", "--cache-dtype", "--kv-dtype"), ("bench", "--contexts", "--context"), ("bench", "--dtypes", "--kv-dtype"),
        ("prune", "--by", "--importance"),
    ],
)  # fmt: skip
def test_earlier_spellings_work_and_say_the_new_one(verb: str, old: str, new: str, capsys) -> None:
    model = ["llama-3.1-8b"] if verb == "explain" else []
    options = build_parser(verb).parse_all(
        [*model, f"{old}={'zero' if new == '--importance' else '64' if new == '--context' else 'int8'}"]
    )
    assert capsys.readouterr().err == f"manyheads {verb}: {old} is called {new} now\n"
    assert getattr(options, new[2:].replace("-", "_")) in ("zero", [64], "int8", ["int8"])
    assert f"{new}=" in options.typed


def test_words_that_are_renamed_are_options() -> None:
    option = Option("--new", "", "N", old=("--old",))
    assert renamed(["a", "--old", "--", "--old"], [option]) == (
        ["a", "--new", "--", "--old"], ["--old is called --new now"]
    )  # fmt: skip


@pytest.mark.parametrize(
    ("verb", "word", "meant"),
    [
        ("cost", "--tp", "--tensor-parallel"), ("cost", "--gpu", "--hardware"), ("cost", "--kv", "--kv-dtype"),
        ("cost", "--quant", "--weight-dtype"), ("xray", "--gpu", "--device"), ("heads", "--quant", "--dtype"),
        ("explain", "--kv", "--kv-dtype"), ("bench", "--dtype", "--kv-dtype"), ("cost", "--vram", "--memory"),
    ],
)  # fmt: skip
def test_what_other_programs_call_it_is_answered(verb: str, word: str, meant: str, capsys) -> None:
    for words in ([word, "8"], [f"{word}=8"]):
        assert main([verb, "llama-3.1-8b", *words]) == 2
        assert f"there is no option {word}; {meant} is the option for that here" in capsys.readouterr().err


def test_the_seed_is_a_number_with_a_default() -> None:
    assert build_parser("bench").parse_all([]).seed == 0
    assert build_parser("bench").parse_all(["--seed", "7"]).seed == 7
    for wrong in ("-1", "4294967296", "9" * 30, "1.5", "x", ""):
        with pytest.raises(ManyheadsError, match=r"^--seed '.*' is not a whole number from 0 to 4,294,967,295"):
            SEED.value(wrong)


@pytest.mark.parametrize(
    ("verb", "said", "heard"),
    [
        ("prune", "budget='9' is 9 of 8 heads", "--budget '9' is 9 of 8 heads"),
        ("prune", 'valid: form="padded" or form="compact"', "valid: --form padded or --form compact"),
        ("prune", "whole_groups=True takes no less", "--whole-groups takes no less"),
        ("prune", "try more: steps=300", "try more: --steps 300"),
        ("heads", "roles=False asks for none; (tokens=)", "--no-roles asks for none; (--tokens)"),
        ("heads", 'head="17:3": no such head', "--head 17:3: no such head"),
        ("cost", "context_tokens=512: 5 B", "--context 512: 5 B"),
        ("cost", "give another weight_dtype= or hardware=", "give another --weight-dtype or --hardware"),
        ("cost", "'batch=5' and x.batch=5 and my_batch=5 stay", "'batch=5' and x.batch=5 and my_batch=5 stay"),
        ("check", 'say which with names="q=NAME,k=NAME"', "say which with --names q=NAME,k=NAME"),
    ],
)
def test_what_is_said_of_a_parameter_is_said_of_its_option(verb: str, said: str, heard: str) -> None:
    assert spoken(said, declared(build_parser(verb))) == heard


def test_no_error_of_the_library_names_an_option() -> None:
    """They speak of parameters; whole commands, in backticks or after the program's name, are another matter."""
    root = Path(manyheads.__file__).parent
    found = []
    for path in root.rglob("*.py"):
        if path.parent.name == "cli":
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Raise):
                texts = [
                    each.value
                    for each in ast.walk(node)
                    if isinstance(each, ast.Constant) and isinstance(each.value, str)
                ]
                plain = [re.sub(r"`[^`]*`|manyheads [a-z]+ [^;,]*", "", text) for text in texts]
                found += [(path.name, text) for text in plain if re.search(r"--[a-z]", text)]
    assert found == []


def test_closed_words_are_those_of_the_library() -> None:
    from manyheads.checkpoints.pruned import FORMS
    from manyheads.cli.prune import _FORMS
    from manyheads.cost.dtypes import CACHE_DTYPES, MODEL_DTYPES

    assert ("auto", *FORMS) == _FORMS
    assert MODEL_DTYPES == DTYPES
    assert ("model", *DTYPES, "int8") == CACHE_DTYPES
    pytest.importorskip("transformers")
    pytest.importorskip("numba")
    from manyheads.cli import convert as convert_verb
    from manyheads.convert.regroup import METHODS as CONVERSIONS
    from manyheads.heads.overview.run import IMPORTANCE
    from manyheads.heads.pruning.run import METHODS

    assert convert_verb.METHODS == CONVERSIONS
    assert (*IMPORTANCES, "none") == IMPORTANCE
    assert METHODS[:-1] == IMPORTANCES
