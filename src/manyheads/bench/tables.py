"""What was measured as a report: the machine, a line for each shape, every path, whole models, and plots of time."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from manyheads.bench.contest import IMPOSSIBLE, Contest, Result
from manyheads.bench.data import SCHEMA, contest_data, generation_data
from manyheads.bench.generation import Generation
from manyheads.bench.generation_tables import generation_tables
from manyheads.bench.paths import BEST_OF_TORCH, OURS, STOCK
from manyheads.bench.peers import EAGER, ONNXRUNTIME
from manyheads.report import Column, Report, Table
from manyheads.report.plot import Plot, Series
from manyheads.report.units import duration, number, si

__all__ = ["Measured", "absent", "faults", "impossible", "losses", "plots", "report", "summary", "wrong"]

_FAMILIES = (
    (OURS, "manyheads"),
    (STOCK, "SDPA"),
    (BEST_OF_TORCH, "torch, best"),
    (EAGER, "eager"),
    (ONNXRUNTIME, "ORT"),
)
_NONE = "-"


@dataclass(frozen=True)
class Measured:
    """Everything that was measured; `around` says on what, with what and how (JSON), `notes` what to know about it."""

    decode: tuple[Contest, ...] = ()
    prefill: tuple[Contest, ...] = ()
    latent: tuple[Contest, ...] = ()
    generation: Generation | None = None
    around: dict[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def contests(self) -> tuple[Contest, ...]:
        return (*self.decode, *self.prefill, *self.latent)


def wrong(measured: Measured) -> list[str]:
    """Every path and way that disagrees with float64, ours and others'."""
    found = [
        f"{_named(contest)}: {result.name} {result.reason}"
        for contest in measured.contests
        for result in contest.results
        if result.agrees is False
    ]
    for way in measured.generation.ways if measured.generation else ():
        found += [f"{way.name}: {times.reason}" for times in way.times if times.error is not None and times.reason]
    return found


def impossible(measured: Measured) -> list[str]:
    """Every path that was faster than the machine can be: what was read, or the roofline, is not what was meant."""
    return [
        f"{_named(contest)}: {result.name} at {contest.share(result):.0%} of the roofline, more than {IMPOSSIBLE:.0%}: the "
        "bench is wrong here"
        for contest in measured.contests
        for result in contest.results
        if contest.impossible(result)
    ]


def faults(measured: Measured) -> list[str]:
    """Why not every figure of this run is to be believed."""
    return wrong(measured) + impossible(measured)


def absent(measured: Measured) -> list[str]:
    """Every peer that is not installed, once, with the command that brings it."""
    told = [(result.name, result.reason) for contest in measured.contests for result in contest.results]
    told += [(way.name, way.reason) for way in measured.generation.ways] if measured.generation else []
    return list(dict.fromkeys(f"{name}: {reason}" for name, reason in told if "not installed" in reason))


def report(measured: Measured, *, title: str) -> Report:
    """All of it for a person, and as JSON."""
    tables = [_machine(measured)]
    if measured.decode:
        tables.append(summary(measured.decode))
        tables += [_paths(_question(group), group, typed=False) for group in _groups(measured.decode)]
    if measured.latent:
        tables.append(_paths("Is a latent cache attended to as it stands, or expanded first?", measured.latent))
    if measured.prefill:
        tables.append(_paths("How long does attention over a whole prompt take?", measured.prefill))
    if measured.generation is not None:
        tables += generation_tables(measured.generation)
    data = {
        "schema": SCHEMA,
        **measured.around,
        "faults": faults(measured),
        "decode": [contest_data(contest) for contest in measured.decode],
        "latent": [contest_data(contest) for contest in measured.latent],
        "prefill": [contest_data(contest) for contest in measured.prefill],
        "generation": generation_data(measured.generation),
    }
    return Report(title, tuple(tables), data, notes=(*faults(measured), *absent(measured), *measured.notes))


def plots(contests: Sequence[Contest]) -> list[Plot]:
    """Time against context, a plot for each type and number of KV heads that has several contexts."""
    found = []
    for group in _groups(contests):
        rows = sorted(group, key=lambda contest: contest.shape.keys)
        series = [
            Series(family, short, tuple(result.median for result in timed))
            for family, short in _FAMILIES
            if len(timed := [each for contest in rows if (each := contest.of(family)) is not None]) == len(rows)
        ]
        series.insert(1, Series("roofline", "roofline", tuple(contest.median_floor.seconds for contest in rows)))
        found.append(Plot(
            f"A decode step: {_sizes(rows[0])}", "Median seconds of a step against cached tokens, both logarithmic; the "
            "roofline is what the machine read and multiplied in the same rounds.", "cached tokens", "Median time",
            tuple(contest.shape.keys for contest in rows), tuple(series), after=_question(group), unit="seconds",
        ))  # fmt: skip
    return [plot for plot in found if len(plot.x) > 1]


def _groups(contests: Iterable[Contest]) -> list[tuple[Contest, ...]]:
    """Contests that differ in their context alone."""
    groups: dict[str, list[Contest]] = {}
    for contest in contests:
        groups.setdefault(_sizes(contest), []).append(contest)
    return [tuple(group) for group in groups.values()]


def _sizes(contest: Contest) -> str:
    shape = contest.shape
    return f"{shape.heads} query heads x {shape.head_dim} over {shape.kv_heads} KV heads, {shape.dtype}"


def _named(contest: Contest) -> str:
    return f"{_sizes(contest)}, {contest.shape.keys:,} tokens"


def _question(group: Sequence[Contest]) -> str:
    return f"How long does a step take: {_sizes(group[0])}?"


def _machine(measured: Measured) -> Table:
    """The best rates of the whole run."""
    best = [contest.best_peaks for contest in measured.contests]
    threads = str(measured.around.get("threads", _NONE))
    rows: list[tuple[str, str, str, str]] = []
    if best:
        read, wide = max(best, key=lambda peaks: peaks.bandwidth), max(best, key=lambda peaks: peaks.fp32)
        rows = [
            ("reading memory", si(read.bandwidth, "B/s"), threads, f"best of three probes: {read.read_by}"),
            ("fp32 products", si(wide.fp32, "FLOP/s"), threads, f"best of four probes: {wide.fp32_by}"),
        ]
        for kind, rate in (("bf16", max(p.bf16 for p in best)), ("fp16", max(p.fp16 for p in best))):
            if rate:
                how = f"peak of steps in {kind}" if rate > wide.fp32 else "slower than fp32, whose peak counts"
                rows.append((f"{kind} products", si(rate, "FLOP/s"), threads, how))
    columns = (Column("what"), Column("rate", "right"), Column("threads", "right"), Column("how"))
    return Table("What can this machine do?", columns, tuple(rows))


def summary(contests: Sequence[Contest]) -> Table:
    """A line for each shape: ours, the roofline, and how many times as long the peers take."""
    names = ("type", "KV heads", "tokens", "threads", "roofline", "ours", "of it", "SDPA", "torch", "eager", "ORT")
    columns = tuple(Column(name, "right" if i else "left") for i, name in enumerate(names))
    rows = []
    for contest in contests:
        shape, mine = contest.shape, contest.ours
        head = [shape.dtype, str(shape.kv_heads), number(shape.keys)]
        if mine is None:
            rows.append((*head, *(_NONE,) * (len(names) - len(head))))
            continue
        peers = [contest.of(family) for family in (STOCK, BEST_OF_TORCH, EAGER)] + [_onnxruntime(contest, contests)]
        ratios = [_NONE if peer is None else f"{peer.median / mine.median:.1f}x" for peer in peers]
        floor = contest.median_floor
        rows.append((
            *head, str(mine.threads), duration(floor.seconds), duration(mine.median), f"{contest.share(mine):.0%}", *ratios
        ))  # fmt: skip
    notes = (
        "roofline: the larger of bytes / best read probe and FLOPs / best peak of products, median of the same rounds.",
        "ours: median time; of it: part of the roofline reached, best against best.",
        (
            "SDPA (enable_gqa), torch (its fastest form), eager (transformers), ORT (onnxruntime's GroupQueryAttention; beside "
            "bf16 its fp16, as many bytes): how many times as long as ours, medians."
        ),
    )
    return Table("How near is a decode step to what the machine allows?", columns, tuple(rows), notes)


def _onnxruntime(contest: Contest, contests: Sequence[Contest]) -> Result | None:
    """onnxruntime at as many bytes: it has no bf16, so that fp16 of the same sizes stands in."""
    if contest.shape.dtype != "bf16":
        return contest.of(ONNXRUNTIME)
    wanted = _named(contest).replace(", bf16,", ", fp16,")
    return next((other.of(ONNXRUNTIME) for other in contests if _named(other) == wanted), None)


def _paths(question: str, contests: Sequence[Contest], *, typed: bool = True) -> Table:
    """Every path of some contests; `typed`: they differ in their type too."""
    names = (*(("type",) if typed else ()), "tokens", "path", "threads", "median", "best", "of roofline", "error")
    columns = tuple(Column(name, "left" if name in ("type", "path") else "right") for name in names)
    rows: list[tuple[str, ...]] = []
    notes: dict[str, None] = {}
    for contest in contests:
        head = (*((contest.shape.dtype,) if typed else ()), number(contest.shape.keys))
        floor = contest.median_floor
        best = duration(contest.floor.seconds)
        rows.append((*head, f"roofline, {floor.bound_by}", _NONE, duration(floor.seconds), best, "100%", _NONE))
        for result in contest.results:
            if result.reason:
                notes[f"{result.name}: {result.reason}."] = None
            rows.append((*head, *_path(contest, result)))
    return Table(question, columns, tuple(rows), tuple(notes))


def _path(contest: Contest, result: Result) -> tuple[str, ...]:
    wrong = _NONE if result.error is None else f"{result.error:.1e}"
    if not result.seconds:
        said = "disagrees" if result.agrees is False else _NONE
        return (result.name, str(result.threads), said, _NONE, _NONE, wrong)
    share = f"{contest.share(result):.0%}"
    return (
        result.name, str(result.threads), duration(result.median), duration(result.best),
        f"{share} (!)" if contest.impossible(result) else share, wrong,
    )  # fmt: skip


def losses(contests: Sequence[Contest]) -> list[str]:
    """Every shape in which a peer was faster than ours, by medians: to be said beside the gains."""
    found = []
    for contest in contests:
        mine = contest.ours
        for result in contest.results:
            if mine is not None and result.seconds and result.family != OURS and result.median < mine.median:
                found.append(
                    f"{_named(contest)}: {result.name} {duration(result.median)}, ours {duration(mine.median)} "
                    f"({mine.median / result.median:.2f} times as long)"
                )
    return found
