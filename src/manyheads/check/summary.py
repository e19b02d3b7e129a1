"""What came of a check as a report: how the function was called, what is right, what is wrong and why, what was left out."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from manyheads import __version__
from manyheads.check.features import LAYOUTS, MASK_AXES, POLARITIES
from manyheads.report import Column, Report, Table

if TYPE_CHECKING:
    from manyheads.check.supervise import Answers, Request

__all__ = ["SCHEMA", "summary"]

SCHEMA = "manyheads.check/2"

_KNOWN = {"name": "by its name", "tried": "by trying", "told": "as told", "default": "not understood: our default"}
_PADDING = {**POLARITIES, "lengths": "the number of tokens before the padding"}
_STATUS = {"pass": "pass", "fail": "WRONG", "weak": "weak", "not tested": ""}
_FRAMEWORKS = {"torch": "torch tensors", "numpy": "numpy arrays"}
_SWITCHES = ("scale", "softcap", "sinks", "heads", "kv_heads", "grouped", "offset", "dropout", "training")


def summary(request: Request, answers: Answers) -> Report:
    """The report of `manyheads check`; `data["ok"]` is whether nothing is wrong."""
    outcomes = [{**case, **answers.outcomes[case["name"]]} for case in answers.cases]
    counts = {status: sum(each["status"] == status for each in outcomes) for status in _STATUS}
    failed, weak = ([each for each in outcomes if each["status"] == status] for status in ("fail", "weak"))
    title = (
        f"{request.function} in {request.file}: {counts['pass']} checks pass, {counts['fail']} wrong, "
        f"{counts['weak']} weak, {counts['not tested']} not tested"
    )
    tables = [
        _taken(answers), _results(outcomes), *_failures(failed, "wrong"), *_failures(weak, "weak"), *_left_out(outcomes),
    ]  # fmt: skip
    notes = []
    if lines := len(answers.printed.splitlines()):
        notes.append(f"the file printed {lines} line{'s' * (lines != 1)}, kept out of here (see printed=)")
    if answers.strange:
        notes.append(f"the file wrote {answers.strange:,} bytes where answers come from; they were left out")
    return Report(
        title, tuple(tables), _data(request, answers, outcomes, counts), tuple(notes),
        next_command=_next(request, failed),
    )  # fmt: skip


def _taken(answers: Answers) -> Table:
    rows = [row for row in _taken_rows(answers) if row[1]]
    return Table("How is it called?", (Column("what"), Column("taken"), Column("known")), tuple(rows))


_INPUTS = {"x": ("x", "memory"), "x+memory": ("x", "memory"), "qkv": ("q", "k", "v")}


def _projections(answers: Answers, known: Callable[[str], str]) -> list[tuple[str, str, str]]:
    """What is taken of multi-head attention: its kind, where its weights are, what is left out."""
    taken, names = answers.taken, answers.taken["names"]
    slots = [slot for slot in taken["slots"] if not slot["is_bias"]]
    biases = [slot["name"] for slot in taken["slots"] if slot["is_bias"]]
    where = "\n".join(f"{slot['name']}: W_{slot['role']}, {slot['pattern']}" for slot in slots)
    built = ", ".join(f"{parameters} ({role})" for role, parameters in taken["built"].items())
    left = ", ".join([*taken["norms"], *(["x, added behind"] if taken["residual"] else []), *taken["idle"]])
    handed = {"": "", "passed": f"{names.get('cache')}, given and returned", "kept": "kept in the object"}[
        taken["cache"]
    ]
    inputs = ", ".join(names[role] for role in _INPUTS[taken["inputs"]] if role in names)
    return [
        ("what", {"function": "a function of x and weights", "class": "a class, made for each size",
                  "object": "an object, with its sizes"}[taken["kind"]], _KNOWN["tried"]),
        ("made with", built, _KNOWN["name"]),
        ("inputs", f"{inputs}: {LAYOUTS[taken['layout']]}", known("layout")),
        ("weights", where, known("weights of")),
        ("biases", ", ".join(biases), _KNOWN["name"]),
        ("left out", left, _KNOWN["tried"]),
        ("cache", handed, _KNOWN["tried"]),
    ]  # fmt: skip


def _taken_rows(answers: Answers) -> list[tuple[str, str, str]]:
    taken, names = answers.taken, answers.taken["names"]

    def known(key: str) -> str:
        return _KNOWN.get(answers.known.get(key, ""), "")

    heads = _projections(answers, known) if "slots" in taken else []
    layout = LAYOUTS[taken["layout"]]
    if taken["layout"] in ("btd", "tbd") and "heads" in names and not heads:
        layout = layout.replace("dim", "heads x dim")
    out = layout if taken["out_layout"] == taken["layout"] else LAYOUTS[taken["out_layout"]]
    mask = f"{names['mask']}: {POLARITIES[taken['mask']]}; {MASK_AXES[taken['mask_axes']]}" if taken["mask"] else ""
    bias = {"": "", "mask": f"{names.get('mask')}, as numbers", "bias": names.get("bias", "")}[taken["bias"]]
    causal = {
        "": "",
        "flag": names.get("causal", taken.get("built", {}).get("causal", "")),
        "always": "always, without being asked",
    }[taken["causal"]]
    meaning = {"": "", "keys": "W", "pair": "(W - 1, 0)"}[taken["window"]]
    switches = ", ".join(f"{names[role]}" for role in _SWITCHES if role in names)
    inputs = "" if heads else f"{names['q']}, {names['k']}, {names['v']}: {layout}"
    return [
        ("arrays", _FRAMEWORKS[taken["framework"]], _KNOWN["tried"]),
        *heads,
        ("q, k, v", inputs, known("layout")),
        ("output", out, _KNOWN["tried"]),
        ("mask", mask, known("mask")),
        ("bias", bias, known("bias") or _KNOWN["tried"]),
        ("padding", f"{names['padding']}: {_PADDING[taken['padding']]}" if taken["padding"] else "", _KNOWN["tried"]),
        ("causal", causal, known("causal")),
        ("window", f"{names['window']} = {meaning} for W keys" if meaning else "", known("window")),
        ("weights", {"": "", "flag": names.get("weights", ""), "always": "always returned"}[taken["weights"]], ""),
        ("also", switches, _KNOWN["name"] if switches else ""),
        ("fixed", ", ".join(answers.fixed), _KNOWN["told"]),
    ]


def _results(outcomes: list[dict[str, Any]]) -> Table:
    """A row for each suite with what passes, and one for each check that fails."""
    rows: list[tuple[str, str, str]] = []
    for suite in dict.fromkeys(each["suite"] for each in outcomes):
        members = [each for each in outcomes if each["suite"] == suite]
        right = [_noted(each) for each in members if each["status"] == "pass"]
        if right:
            rows.append((suite, "pass", ", ".join(right)))
        rows += [
            (suite, _STATUS[each["status"]], f"{each['name']}: {each['proves']}")
            for status in ("fail", "weak") for each in members if each["status"] == status
        ]  # fmt: skip
    return Table("Is it right?", (Column("suite"), Column("result"), Column("checks")), tuple(rows))


def _noted(outcome: dict[str, Any]) -> str:
    return f"{outcome['name']} ({outcome['reason']})" if outcome["reason"] else str(outcome["name"])


def _failures(failed: list[dict[str, Any]], grade: str) -> list[Table]:
    """One table a fault: checks that fail for the same reason stand together, the first with its input."""
    groups: dict[str, list[dict[str, Any]]] = {}
    for each in failed:
        finding = each["finding"]
        groups.setdefault(finding["explanation"] or finding["found"], []).append(each)
    # first the one that is said in keys seen: it is read at a glance
    return [
        _failure(sorted(group, key=lambda each: "sees" not in each["finding"]["expected"]), grade)
        for group in groups.values()
    ]


def _failure(members: list[dict[str, Any]], grade: str) -> Table:
    first, finding = members[0], members[0]["finding"]
    line = f" (line {finding['line']} of the file)" if finding["line"] else ""
    # an error, a hang or a lacking feature is not what was reported of this check: those were wrong numbers
    raised = finding["line"] or finding["cause"] in ("no answer", "process ended", "required")
    seen = [] if raised else finding["resembles"] or first["resembles"]
    rows = [
        ("expected", finding["expected"]),
        ("found", finding["found"] + line),
        ("why", finding["explanation"]),
        ("input", finding["code"]),
        ("seen before", "\n".join(_address(thread) for thread in seen)),
        ("also", ", ".join(each["name"] for each in members[1:])),
        ("a fault with", f'require="{finding["demand"]}"' if grade == "weak" else ""),
    ]
    return Table(f"What is {grade}: {first['name']}", (Column(""), Column("")), tuple(row for row in rows if row[1]))


def _finding(outcome: dict[str, Any]) -> dict[str, Any] | None:
    finding = outcome["finding"]
    grade = "weak" if outcome["status"] == "weak" else "wrong"
    return finding and {**finding, "grade": grade, "resembles": [_address(thread) for thread in finding["resembles"]]}


def _address(thread: str) -> str:
    owner, _, number = thread.partition("#")
    return f"https://github.com/{owner}/issues/{number}"


def _left_out(outcomes: list[dict[str, Any]]) -> list[Table]:
    reasons: dict[str, list[str]] = {}
    for each in outcomes:
        if each["status"] == "not tested":
            reasons.setdefault(each["reason"], []).append(each["name"])
    if not reasons:
        return []
    rows = tuple((reason, ", ".join(names)) for reason, names in reasons.items())
    return [Table("What was not tested?", (Column("because it"), Column("checks")), rows)]


def _next(request: Request, failed: list[dict[str, Any]]) -> str:
    if not failed:
        return ""
    return shlex.join(["manyheads", "check", f"{request.file}:{request.function}", "--only", failed[0]["name"]])


def _data(
    request: Request, answers: Answers, outcomes: list[dict[str, Any]], counts: dict[str, int]
) -> dict[str, object]:
    checks = [
        {
            "name": each["name"], "suite": each["suite"], "proves": each["proves"], "needs": list(each["needs"]),
            "status": each["status"], "reason": each["reason"], "seconds": round(each["seconds"], 4),
            "finding": _finding(each), "resembles": [_address(thread) for thread in each["resembles"]],
        }
        for each in outcomes
    ]  # fmt: skip
    options = request.options
    return {
        "schema": SCHEMA, "manyheads": __version__, "file": request.file, "function": request.function,
        "ok": counts["fail"] == 0, "passed": counts["pass"], "failed": counts["fail"], "weak": counts["weak"],
        "not_tested": counts["not tested"], "seed": options["seed"], "device": options["device"],
        "dtype": options["dtype"] or "fp32", "taken": answers.taken, "known": answers.known, "checks": checks,
    }  # fmt: skip
