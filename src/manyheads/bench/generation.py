"""A whole model under `generate`: what a token costs after few and after many cached tokens, and until the first one.

The extra time of the long context over the short one is what the cache costs: all else is the same in both. Each runner is
first held against the same weights and cache in float64: logits after the prompt, as far as their 16 bits allow.
"""

from __future__ import annotations

import copy
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from manyheads.bench.decode import Plan
from manyheads.bench.parts import PARTS, watching
from manyheads.bench.probes import probes
from manyheads.bench.rotation import Buffer
from manyheads.bench.runners import Runner, TransformersRunner

__all__ = ["LOGIT_BOUNDS", "LONG", "PROMPT", "SHORT", "Generation", "RunnerResult", "Times", "generation"]

SHORT, LONG, PROMPT = 16, 7_680, 1_024
LOGIT_BOUNDS = {"fp32": 1e-4, "bf16": 1e-1, "fp16": 2e-2}
"""Relative error of all logits after a model's thirty-odd layers in that type; a wrong mask or cache gives 1 and more."""


@dataclass(frozen=True)
class Times:
    """Seconds of every token at one number of cached tokens, and how far the logits there are from float64's."""

    cached: int
    seconds: tuple[float, ...]
    error: float | None
    reason: str = ""

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)


@dataclass(frozen=True)
class RunnerResult:
    """One runner: tokens at the short and the long context, first tokens by length of prompt, and the parts of a token.

    `parts`: by cached tokens, seconds of each part in a run that was watched, and of "outside the model".
    """

    name: str
    threads: int
    times: tuple[Times, ...] = ()
    first_seconds: dict[int, float] = field(default_factory=dict)
    parts: dict[int, dict[str, float]] = field(default_factory=dict)
    reason: str = ""

    @property
    def extra_seconds(self) -> float | None:
        """What a token costs more at the long context than at the short; None where one was not timed."""
        timed = [times for times in self.times if times.seconds]
        return timed[-1].median - timed[0].median if len(timed) > 1 else None


@dataclass(frozen=True)
class Generation:
    """All runners of one model; `bandwidth` is the best read of the same minutes."""

    model: str
    dtype: str
    ways: tuple[RunnerResult, ...]
    cached: tuple[int, ...]
    prompt: int
    bytes_a_token: int
    bandwidth: float
    bound: float

    @property
    def extra_floor_seconds(self) -> float:
        """The bytes that the long context has more, at that bandwidth."""
        return (self.cached[-1] - self.cached[0]) * self.bytes_a_token / self.bandwidth


def generation(
    name: str, model: Any, runners: Sequence[Runner], absent: dict[str, str], plan: Plan, *, dtype: str, tokens: int = 12,
    rounds: int = 3, cached: tuple[int, ...] = (SHORT, LONG), prompt: int = PROMPT,
) -> Generation:  # fmt: skip
    """Times `runners` in turns. `cached`: cached tokens, few and many; `prompt`: tokens before a first one."""
    torch.set_num_threads(plan.threads)
    generator = torch.Generator().manual_seed(plan.seed)
    vocabulary = model.get_input_embeddings().num_embeddings
    ids = torch.randint(3, vocabulary, (max(*cached, prompt) + 1,), generator=generator).tolist()
    bound = LOGIT_BOUNDS[dtype]
    firsts: dict[str, dict[int, float]] = {runner.name: {} for runner in runners}
    for runner in runners:
        plan.say(f"{runner.name}: the first token after {prompt:,}")
        runner.read(ids[:SHORT])  # what is done once: memory, compiling
        firsts[runner.name][prompt] = min(runner.read(ids[:prompt]) for _ in range(2))
    seen: dict[str, list[Times]] = {runner.name: [] for runner in runners}
    parts: dict[str, dict[int, dict[str, float]]] = {runner.name: {} for runner in runners}
    speeds: list[float] = []
    words = Buffer("fp32", plan.room.rotation_bytes, seed=plan.seed).words()
    for length in cached:
        plan.say(f"{length:,} cached tokens")
        for runner, seconds in _prepare(runners, ids[:length], long=length > prompt):
            firsts[runner.name] |= {length: seconds} if seconds else {}
        errors = _checked(model, runners, ids[length])
        seconds_of, speed = _rounds(runners, errors, bound, ids[length], tokens, rounds, words, plan.threads)
        speeds.append(speed)
        for runner in runners:
            seen[runner.name].append(_times(length, seconds_of[runner.name], errors[runner.name], bound))
            if isinstance(runner, TransformersRunner) and seconds_of[runner.name]:
                parts[runner.name][length] = _parts(model, runner, ids[length], tokens)
    results = [
        RunnerResult(runner.name, runner.threads, tuple(seen[runner.name]), firsts[runner.name], parts[runner.name])
        for runner in runners
    ]
    results += [RunnerResult(other, plan.threads, reason=why) for other, why in absent.items()]
    return Generation(name, dtype, tuple(results), cached, prompt, _token_bytes(runners[0]), max(speeds), bound)


def _prepare(runners: Sequence[Runner], ids: list[int], *, long: bool) -> list[tuple[Runner, float]]:
    """Each runner with the prompt read, and how long that took; 0 where a slow runner took over what the stock one had read."""
    taken: list[tuple[Runner, float]] = []
    for runner in runners:
        stock = runners[0]
        if (
            long
            and isinstance(runner, TransformersRunner)
            and isinstance(stock, TransformersRunner)
            and runner.attention == "eager"
        ):
            runner.adopt(stock)
            taken.append((runner, 0.0))
        else:
            taken.append((runner, runner.read(ids)))
    return taken


def _checked(model: Any, runners: Sequence[Runner], token: int) -> dict[str, float | None]:
    """Relative error of each runner's logits; None where there is nothing to compare."""
    stock = runners[0]
    assert isinstance(stock, TransformersRunner)
    expected = _in_float64(model, stock, token)
    errors: dict[str, float | None] = {}
    for runner in runners:
        found = runner.logits(token)
        errors[runner.name] = None if found is None else float((found - expected).norm() / expected.norm())
    return errors


def _in_float64(model: Any, stock: TransformersRunner, token: int) -> Tensor:
    """Logits of the same weights over the same cache, everything widened."""
    wide, cache = copy.deepcopy(model).double(), copy.deepcopy(stock.cache)
    wide.set_attn_implementation("sdpa")
    for layer in cache.layers:
        if getattr(layer, "keys", None) is not None:
            layer.keys, layer.values = layer.keys.double(), layer.values.double()
    with torch.inference_mode():
        return wide(torch.tensor([[token]]), cache=cache, use_cache=True).logits[0, -1].double()


def _rounds(
    runners: Sequence[Runner], errors: dict[str, float | None], bound: float, token: int, tokens: int, rounds: int,
    words: Tensor, threads: int,
) -> tuple[dict[str, list[float]], float]:  # fmt: skip
    """Seconds of every token by runner, runners that disagree left out, and the best bandwidth between the rounds."""
    seconds: dict[str, list[float]] = {runner.name: [] for runner in runners}
    reads = [probe for probe in probes(words, threads) if probe.kind == "read"]
    best = 0.0
    for _ in range(rounds):
        for runner in runners:
            wrong = errors[runner.name]
            if wrong is None or wrong <= bound:
                seconds[runner.name] += runner.tokens(token, tokens)
        for probe in reads:
            call = probe.prepare()
            began = time.perf_counter()
            call()
            best = max(best, probe.amount / (time.perf_counter() - began))
    return seconds, best


def _times(length: int, seconds: list[float], wrong: float | None, bound: float) -> Times:
    if wrong is None:
        return Times(length, tuple(seconds), None, "not compared: its weights stay packed")
    if wrong <= bound:
        return Times(length, tuple(seconds), wrong)
    return Times(
        length, (), wrong, f"disagrees with float64: logits {wrong:.1e} away, at most {bound:.0e} is allowed; not timed"
    )


def _parts(model: Any, runner: TransformersRunner, token: int, tokens: int) -> dict[str, float]:
    """Seconds a token of each part, and of what `generate` does around the model."""
    with watching(model) as watch:
        runner.tokens(token, 2)
        watch.seconds.clear()
        spent = runner.tokens(token, tokens, watch=watch.cache)
    # `tokens` leaves the first of tokens + 1 steps out of its seconds, the watch does not.
    each = {part: watch.seconds[part] / (tokens + 1) for part in PARTS}
    return each | {"outside the model": max(statistics.fmean(spent) - sum(each.values()), 0.0)}


def _token_bytes(stock: Runner) -> int:
    """What the stock cache holds a token, all layers."""
    assert isinstance(stock, TransformersRunner)
    layers = [layer for layer in stock.cache.layers if getattr(layer, "keys", None) is not None]
    return sum(
        (layer.keys.shape[1] * layer.keys.shape[3] + layer.values.shape[1] * layer.values.shape[3])
        * layer.keys.element_size()
        for layer in layers
    )
