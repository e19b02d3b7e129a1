"""Runners of a whole model on a prompt and token by token: transformers with its own attentions, with ours, llama.cpp."""

from __future__ import annotations

import copy
import itertools
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from manyheads.bench.peers import missing
from manyheads.errors import ManyheadsError

__all__ = ["LLAMA_CPP", "LlamaCppRunner", "Runner", "TransformersRunner", "clock", "find_runners"]

LLAMA_CPP = "llama.cpp"


class Runner(Protocol):
    """`name` and `threads` for its row; what it reads stays in it until it reads something else."""

    name: str
    threads: int

    def read(self, ids: Sequence[int]) -> float:
        """Reads a prompt from nothing; seconds until the first new token is known."""

    def logits(self, token: int) -> Tensor | None:
        """What follows the prompt and `token`, on float64; None where its numbers are not those of the same weights."""

    def tokens(self, token: int, count: int) -> list[float]:
        """Seconds of `count` tokens after the prompt and `token`; the prompt stays read."""


@dataclass(eq=False)
class TransformersRunner:
    """`generate` with one of transformers' attentions by name. `make_cache`: an empty cache for the model."""

    name: str
    threads: int
    model: Any
    attention: str
    make_cache: Callable[[], Any]
    ids: tuple[int, ...] = ()
    cache: Any = None

    def read(self, ids: Sequence[int]) -> float:
        self.ids, self.cache = tuple(ids), self.make_cache()
        began = time.perf_counter()
        return self._generate(self.ids, self.cache, 1)[0] - began

    def adopt(self, other: TransformersRunner) -> None:
        """Takes over what `other`, with the same kind of cache, has read."""
        self.ids, self.cache = other.ids, copy.deepcopy(other.cache)

    def logits(self, token: int) -> Tensor | None:
        self.model.set_attn_implementation(self.attention)
        with torch.inference_mode():
            out = self.model(torch.tensor([[token]]), cache=copy.deepcopy(self.cache), use_cache=True)
        return out.logits[0, -1].double()

    def tokens(self, token: int, count: int, *, watch: Callable[[Any], object] | None = None) -> list[float]:
        cache = copy.deepcopy(self.cache)
        if watch is not None:
            watch(cache)
        # One more than asked for: the first also pays for what `generate` does once.
        at = self._generate((*self.ids, token), cache, count + 1)
        return [after - before for before, after in itertools.pairwise(at)]

    def _generate(self, ids: Sequence[int], cache: Any, count: int) -> list[float]:
        self.model.set_attn_implementation(self.attention)
        at: list[float] = []
        batch = torch.tensor([ids])
        with torch.inference_mode():
            self.model.generate(
                batch, attention_mask=torch.ones_like(batch), cache=cache, max_new_tokens=count, min_new_tokens=count,
                do_sample=False, stopping_criteria=[clock(at)], pad_token_id=0,
            )  # fmt: skip
        return at


def clock(at: list[float]) -> Any:
    """A stopping criterion that never stops and notes when each token was there."""
    from transformers import StoppingCriteria

    class Clock(StoppingCriteria):
        def __call__(self, input_ids: Tensor, scores: Tensor, **_: Any) -> Tensor:  # noqa: ARG002
            at.append(time.perf_counter())
            return torch.zeros(input_ids.shape[0], dtype=torch.bool)

    return Clock()


class LlamaCppRunner:
    """llama.cpp on the GGUF file itself, flash attention on, an fp16 cache; its weights stay packed as they are there."""

    def __init__(self, path: str, threads: int, context: int) -> None:
        import llama_cpp

        self.name, self.threads = f"{LLAMA_CPP}, weights packed, fp16 cache", threads
        self._llama = llama_cpp.Llama(
            path, n_ctx=context, n_batch=512, n_threads=threads, n_threads_batch=threads, flash_attn=True, verbose=False
        )

    def read(self, ids: Sequence[int]) -> float:
        self.ids = list(ids)
        self._llama.reset()
        began = time.perf_counter()
        self._llama.eval(self.ids)
        self._llama.sample(temp=0.0)
        return time.perf_counter() - began

    def logits(self, token: int) -> Tensor | None:  # noqa: ARG002
        return None

    def tokens(self, token: int, count: int) -> list[float]:
        seconds = []
        for _ in range(count + 1):
            began = time.perf_counter()
            self._llama.eval([token])
            token = self._llama.sample(temp=0.0)
            seconds.append(time.perf_counter() - began)
        self._rewind()
        return seconds[1:]

    def _rewind(self) -> None:
        """Forgets what came after the prompt."""
        kept = len(self.ids)
        self._llama._ctx.kv_cache_seq_rm(-1, kept, -1)
        self._llama.n_tokens = kept


def find_runners(model: Any, threads: int, *, gguf: str, context: int) -> tuple[list[Runner], dict[str, str]]:
    """All that can run `model` here, stock attention first; and why the others cannot, by name."""
    from transformers import DynamicCache

    found: list[Runner] = [
        TransformersRunner(f"transformers {name}", threads, model, name, lambda: DynamicCache(config=model.config))
        for name in ("sdpa", "eager")
    ]
    absent: dict[str, str] = {}
    mine = ours(model, threads, absent)
    if mine is not None:
        found.insert(1, mine)
    if not gguf:
        absent[LLAMA_CPP] = "it runs GGUF files only"
    elif reason := missing("llama_cpp"):
        absent[LLAMA_CPP] = reason
    else:
        found.append(LlamaCppRunner(gguf, threads, context))
    return found, absent


def ours(model: Any, threads: int, absent: dict[str, str]) -> TransformersRunner | None:
    """The model with our attention and our cache; None with the reason in `absent` where it cannot be."""
    import manyheads

    try:
        manyheads.enable()
        manyheads.cache(model)
    except (AttributeError, ManyheadsError) as error:
        absent["manyheads"] = str(error)
        return None
    return TransformersRunner("manyheads", threads, model, "manyheads", lambda: manyheads.cache(model))
