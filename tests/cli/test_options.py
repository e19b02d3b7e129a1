"""Every option of every verb, frozen: scripts rely on them. A change here belongs in CHANGELOG.md."""

from __future__ import annotations

import argparse

import pytest

from manyheads.cli.main import VERBS, build_parser

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
        "--bos",
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
        "--cache-dtype TYPE = model",
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
        "--contexts N",
        "--kv-heads N",
        "--dtypes TYPE",
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
        "--by METHOD = first-order",
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
