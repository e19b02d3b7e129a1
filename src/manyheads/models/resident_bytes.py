"""Resident bytes of a model's own cache while it runs, against those that were predicted.

Three answers, after a prompt read at once and after one more token:

    ideal     what a cache must hold. Measured as what the next token makes use of: the gradient of its output reaches
              every cached position that matters and no other; the token's own keys and values are added.
    logical   what the cache says that it holds: the sum of its tensors' sizes
    storage   what its tensors really keep allocated: each storage once, views or not
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from manyheads.checkpoints.pruned import KEY, read_record
from manyheads.cost.dtypes import dtype as format_of
from manyheads.cost.engines import engine_answers
from manyheads.cost.model import cache_bytes
from manyheads.cost.workload import Workload
from manyheads.report.jsonform import WHERE_ASKED, key
from manyheads.spec.masks import Chunk, Window
from manyheads.spec.stack import StackSpec

__all__ = ["CacheBytes", "CacheCheck", "Compared", "Inputs", "measure_cache", "prompt_length"]

ENGINE = "transformers DynamicCache"
_USUAL_PROMPT = 512
_LONGEST_PROMPT = 1_024


@dataclass(frozen=True)
class Compared:
    """A number of bytes that was predicted, and the same measured."""

    predicted: int | None
    measured: int | None
    equal: bool | None
    """null where one of the two is"""
    reason: str = ""
    """why there is none"""


@dataclass(frozen=True)
class CacheBytes:
    """Bytes of the cache of one sequence, in `dtype`."""

    ideal: Compared
    """predicted: what any engine must keep; measured: the cached positions that the last token's output depends on, found with
    its gradient, and what the token adds itself"""
    logical: Compared
    """predicted: what transformers' cache is known to keep ([engines.md](engines.md)); measured: the sizes of its tensors"""
    storage: Compared
    """predicted: the same; measured: the storages of its tensors, each counted once: a view keeps all of what it was cut from"""


@dataclass(frozen=True)
class CacheCheck:
    """The cache that the model makes for itself, of one sequence."""

    kind: str = field(default="", metadata=key("class"))
    prompt_tokens: int = 0
    source_tokens: int = 0
    """what the encoder in front read"""
    dtype: str = ""
    reason: str = ""
    """why there is nothing where a model keeps no cache, or none that can be read"""
    equal: bool = True
    """whether all that could be compared agree"""
    prefill: CacheBytes | None = field(default=None, metadata=WHERE_ASKED)
    """after a prompt of `prompt_tokens` read at once"""
    step: CacheBytes | None = field(default=None, metadata=WHERE_ASKED)
    """after one more token"""

    @property
    def numbers(self) -> tuple[Compared, ...]:
        """All that was predicted or measured."""
        return tuple(
            one for each in (self.prefill, self.step) if each for one in (each.ideal, each.logical, each.storage)
        )


@dataclass(frozen=True)
class Inputs:
    """What the decoder reads: `ids`, and behind it what an encoder reads, `source` under the name `source_name`."""

    ids: tuple[int, ...]
    source: Any = None
    source_name: str = ""


def prompt_length(stack: StackSpec) -> int:
    """Tokens of the prompt: 512, or enough to fill a window of up to about 1,000, and one fewer than the model can read."""
    windows = [
        mask.keys
        for block, _ in stack.main.groups
        for mask in (attention.mask for attention in block.attentions)
        if isinstance(mask, Window) and mask.keys + 32 <= _LONGEST_PROMPT
    ]
    wanted = max([_USUAL_PROMPT, *(keys + 32 for keys in windows)])
    limit = stack.most_tokens or wanted + 1
    return max(min(wanted, limit - 1), 1)


def measure_cache(model: Any, stack: StackSpec, inputs: Inputs, *, dtype: str, seed: int) -> CacheCheck:
    """Runs `model` (transformers) on `inputs.ids` and one token more, and looks into the cache that it makes for itself.

    `dtype`: format it runs in. The prompt is all of `inputs.ids` but the last.
    """
    if stack.decoder is None:
        return CacheCheck(reason="an encoder reads everything at once and keeps no cache")
    run = _Runner(model, inputs)
    prompt = len(inputs.ids) - 1
    cache = run.prefill(prompt)
    tensors = list(_tensors(cache))
    if not tensors:
        kind = type(cache).__name__
        return CacheCheck(kind, reason=f"its cache ({kind}) holds no keys, values or states that are known here")
    kind, source = type(cache).__name__, run.source_tokens
    after_prefill = _sizes(tensors)
    run.step(cache, prompt)
    after_step = _sizes(list(_tensors(cache)))
    used, why = _ideal_measured(run, stack, prompt, int(format_of(dtype).bytes(1)), seed)
    ideal = [_ideal(stack, tokens, source, dtype) for tokens in (prompt, prompt + 1)]
    held, refusal = _predicted(stack, prompt, source, dtype)
    prefill, step = (
        CacheBytes(
            _compared(ideal[place], used[place] if used else None, why),
            *(_compared(held.get(f"{which}_{when}_bytes"), number, refusal)
              for which, number in zip(("logical", "storage"), measured, strict=True)),
        )
        for place, (when, measured) in enumerate((("prefill", after_prefill), ("step", after_step)))
    )  # fmt: skip
    found = CacheCheck(kind, prompt, source, dtype, prefill=prefill, step=step)
    return replace(found, equal=all(one.equal is not False for one in found.numbers))


def _compared(predicted: int | None, measured: int | None, reason: str) -> Compared:
    return Compared(
        predicted, measured, None if predicted is None or measured is None else predicted == measured, reason
    )


def _ideal(stack: StackSpec, tokens: int, source: int, dtype: str) -> int:
    load = Workload(tokens, source_tokens=source, kv_dtype=dtype, state_dtype=dtype)
    return int(cache_bytes(stack, load).total)


def _predicted(stack: StackSpec, prompt: int, source: int, dtype: str) -> tuple[dict[str, int], str]:
    answers = engine_answers(stack, context=prompt, kv_dtype=dtype, source_tokens=source)
    own = next(answer for answer in answers if answer.engine == ENGINE)
    return (own.details, "") if own.applies else ({}, own.reason)


class _Runner:
    """Calls a model whatever it calls its cache, with an encoder's output behind the decoder where there is one."""

    def __init__(self, model: Any, inputs: Inputs) -> None:
        import torch

        self.model = model
        self.ids = torch.tensor([inputs.ids], device=model.device)
        known = inspect.signature(model.forward).parameters
        self.word = "cache" if "cache" in known else "past_key_values"
        self.tokens = "decoder_input_ids" if inputs.source is not None else "input_ids"
        self.behind: dict[str, Any] = {}
        self.source_tokens = 0
        if inputs.source is not None:
            with torch.no_grad():
                encoded = model.get_encoder()(**{inputs.source_name: inputs.source.to(model.device)})
            self.behind = {"encoder_outputs": encoded}
            self.source_tokens = encoded[0].shape[1]

    def prefill(self, prompt: int) -> Any:
        """The cache that the model makes when it reads the first `prompt` tokens at once."""
        import torch

        with torch.no_grad():
            out = self.model(**{self.tokens: self.ids[:, :prompt]}, use_cache=True, **self.behind)
        found = getattr(out, self.word, None)
        return found if found is not None else getattr(out, "past_key_values", None)

    def step(self, cache: Any, position: int) -> Any:
        """The output for the token at `position`, which `cache` then holds too. Gradients flow if they are enabled."""
        import torch

        call: dict[str, Any] = {self.tokens: self.ids[:, position : position + 1], self.word: cache, "use_cache": True}
        keep = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in _tensors(cache))
        with torch.set_grad_enabled(keep):
            out = self.model(**call, **self.behind)
        return out.logits if getattr(out, "logits", None) is not None else out[0]


def _layers(cache: Any) -> Iterator[tuple[Any, bool]]:
    """Each layer of a cache and whether it holds the encoder's tokens."""
    own = getattr(cache, "self_attention_cache", None)
    if own is None:
        yield from ((layer, False) for layer in getattr(cache, "layers", None) or ())
        return
    yield from ((layer, False) for layer in own.layers)
    yield from ((layer, True) for layer in cache.cross_attention_cache.layers)


_STATES = ("conv_states", "recurrent_states")


def _tensors(cache: Any) -> Iterator[Any]:
    """Keys, values, latents and states; not the counters beside them."""
    for layer, _ in _layers(cache):
        states = [state for name in _STATES for state in (getattr(layer, name, None) or {}).values()]
        for tensor in (getattr(layer, "keys", None), getattr(layer, "values", None), *states):
            if tensor is not None and tensor.numel():
                yield tensor


def _sizes(tensors: Sequence[Any]) -> tuple[int, int]:
    """(logical, storage) bytes."""
    storages = {}
    for tensor in tensors:
        storage = tensor.untyped_storage()
        storages[storage.data_ptr()] = storage.nbytes()
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors), sum(storages.values())


def _ideal_measured(
    run: _Runner, stack: StackSpec, prompt: int, element_bytes: int, seed: int
) -> tuple[tuple[int, int] | None, str]:
    """Bytes that the last token of the prompt and the one after it made use of, or None and why not."""
    import torch

    if any(isinstance(a.mask, Chunk) for block, _ in stack.main.groups for a in block.attentions):
        return None, "a chunk is held until it is full, and how full it is depends on the position"
    pruning = read_record(getattr(run.model.config, KEY, None))
    if pruning is not None and not all(heads.kept for _, _, heads in pruning.layers):
        return None, "a layer that lost all its heads keeps one of zeros, which no token looks back at"
    if prompt < 2:
        return None, "a prompt of one token leaves nothing to look back at"
    cache = run.prefill(prompt - 1)
    found = []
    try:
        # Linear layers write into their states; the context keeps a copy of what the gradient still needs.
        with torch.enable_grad(), torch.autograd.graph.allow_mutation_on_saved_tensors():
            for position in (prompt - 1, prompt):
                leaves = list(_watched(cache))
                output = run.step(cache, position)
                gradients = _gradients(output, [leaf for leaf, _ in leaves], seed)
                found.append(sum(count(g) for (_, count), g in zip(leaves, gradients, strict=True)) * element_bytes)
    except RuntimeError as error:
        return None, f"no gradient goes through its cache ({str(error).splitlines()[0][:120]})"
    return (found[0], found[1]), ""


_Count = Callable[[Any], int]


def _watched(cache: Any) -> Iterator[tuple[Any, _Count]]:
    """Makes each tensor of `cache` one that a gradient is asked for; yields it with the count of elements it stands for.

    Keys and values of a layer count by positions: a position matters when either is reached. States are passed on as
    copies, since models write into them.
    """
    for layer, crossing in _layers(cache):
        keys = getattr(layer, "keys", None)
        if keys is not None and keys.numel():
            layer.keys = keys.detach().requires_grad_()
            layer.values = layer.values.detach().requires_grad_()
            yield from _keys_and_values(layer.keys, layer.values, own=not crossing)
        for name in _STATES:
            states = getattr(layer, name, None) or {}
            for index, state in states.items():
                if state is not None:
                    leaf = state.detach().clone().requires_grad_()
                    states[index] = leaf * 1
                    yield leaf, _conv_inputs if name == "conv_states" else _whole


def _keys_and_values(keys: Any, values: Any, *, own: bool) -> Iterator[tuple[Any, _Count]]:
    """The two tensors; the second one's count is of both, with what the token itself adds."""
    width = (keys.numel() + values.numel()) // keys.shape[-2]
    reached: list[Any] = []

    def first(gradient: Any) -> int:
        reached.append(_positions(gradient, -2))
        return 0

    def second(gradient: Any) -> int:
        either = reached.pop() | _positions(gradient, -2)
        return width * (int(either.sum()) + own)

    yield keys, first
    yield values, second


def _positions(gradient: Any, axis: int) -> Any:
    """Which positions along `axis` have any gradient."""
    return (gradient != 0).movedim(axis, 0).flatten(1).any(1)


def _conv_inputs(gradient: Any) -> int:
    """Past inputs of a short convolution that are used; one tap of it is the new input's own."""
    reached = _positions(gradient, -1)
    return int(reached.sum()) * (gradient.numel() // reached.numel())


def _whole(gradient: Any) -> int:
    return int(gradient.numel()) if bool((gradient != 0).any()) else 0


def _gradients(output: Any, leaves: list[Any], seed: int) -> list[Any]:
    """The gradient of a random mixture of `output` with respect to each leaf; zeros where it is not reached."""
    import torch

    last = output[0, -1].float()
    draw = torch.Generator().manual_seed(seed)
    mixture = (last * torch.randn(last.shape, generator=draw).to(last.device)).sum()
    return list(torch.autograd.grad(mixture, leaves, allow_unused=True, materialize_grads=True))
