"""The x-ray of a real model: what it is, what it costs, what it makes of text, and whether the price was right.

The object's schema is documented in docs/xray-json.md; the tables are made from it alone (xray.tables), so that
what is printed and what was measured cannot differ.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from manyheads.checkpoints import Checkpoint
from manyheads.cost.pricing import price
from manyheads.errors import BackendError, ManyheadsError
from manyheads.models.load.model import Loaded, first_line, hushed, load
from manyheads.models.load.text import Reading
from manyheads.models.load.tokenizing import tokenized
from manyheads.models.parameter_count import ParameterCheck, check_parameters
from manyheads.models.resident_bytes import CacheCheck, Inputs, measure_cache, prompt_length
from manyheads.models.scoring import MOST_WINDOW, Scores, first_tokens, score, shuffled
from manyheads.models.surroundings import machine, usual_threads, versions
from manyheads.report.units import duration
from manyheads.spec.kv import Heads
from manyheads.spec.stack import StackSpec
from manyheads.xray.cost import KV_DTYPE, cache_curve, default_contexts, next_command
from manyheads.xray.heads import HeadsAsked, heads_found
from manyheads.xray.heads_record import HeadsFound
from manyheads.xray.record import EncoderRun, Shape, TextFound, TextScores, Timings, WindowLoss, XRay
from manyheads.xray.running import Running

__all__ = ["MOST_TOKENS", "SCHEMA", "Request", "xray"]

SCHEMA = "manyheads.xray/1"
MOST_TOKENS = 8_192
_SECONDS_BETWEEN_WORDS = 5.0

Say = Callable[[str], None]


@dataclass(frozen=True)
class Request:
    """What is asked. `model`: with weights; `reading`: the text; `tokens`: the first so many
    of it; `contexts`: tokens to price, () for the model's own; `threads`: of torch, 0 for as many as are free; `dtype` and
    `device`: what it runs in and where; `bos`: a beginning-of-text token before each window; `heads`: what is asked of heads,
    None to leave them out; `command`: as it was typed.
    """

    model: Checkpoint
    reading: Reading
    tokens: int = MOST_TOKENS
    contexts: tuple[int, ...] = ()
    threads: int = 0
    dtype: str = "fp32"
    device: str = "cpu"
    bos: bool = False
    seed: int = 0
    heads: HeadsAsked | None = field(default_factory=HeadsAsked)
    command: str = "manyheads xray"


def xray(request: Request, *, say: Say = lambda _: None) -> XRay:
    """Loads the model, runs it on the text, compares what it holds with what was predicted, and looks into its heads.

    `say` is told what is being done. Raises ManyheadsError, one line, where the model or the text cannot be had; numbers that
    disagree raise nothing: they are in the result, and its `agrees` is False.
    """
    checkpoint = request.model
    with _threads(request.threads) as threads:
        loaded = _loaded(request, threads, say)
        try:
            with hushed():
                measured = _measured(request, checkpoint.stack, loaded, say)
        except ManyheadsError:
            raise
        except Exception as error:  # a model of transformers that does not run is not a bug of ours
            raise BackendError(
                f"{checkpoint.name}: transformers cannot run it ({type(error).__name__}: {first_line(error)})"
            ) from error
        return _found(request, checkpoint, loaded, measured)


@contextlib.contextmanager
def _threads(asked: int) -> Iterator[str]:
    """Gives torch the threads that were asked for, or those that are free, and takes them back; says how many."""
    import torch

    before = torch.get_num_threads()
    threads = asked or usual_threads()
    torch.set_num_threads(threads)
    try:
        left = "" if asked or threads == before else f" of {before}, since other programs run (threads=N sets it)"
        yield f"{threads}{left}"
    finally:
        torch.set_num_threads(before)


def _loaded(request: Request, threads: str, say: Say) -> Loaded:
    say(f"loading {request.model.name} in {request.dtype} on {request.device}; threads: {threads}")
    loaded = load(request.model, dtype=request.dtype, device=request.device, say=say)
    say(f"loaded in {duration(loaded.seconds)}")
    return loaded


@dataclass(frozen=True)
class _Tokens:
    """The tokens to run on, whether they are of the text and else why not, why they cannot be scored where they cannot, and
    whether the text goes on behind them."""

    ids: list[int]
    of_text: bool
    no_score: str = ""
    goes_on: bool = False

    def running(self, request: Request, stack: StackSpec, loaded: Loaded) -> Running:
        """What the parts look into."""
        return Running(
            loaded, stack, self.ids, self.of_text, "" if self.of_text else self.no_score, self.no_score, request.reading.text,
            stack.most_tokens, request.bos, request.seed,
        )  # fmt: skip


@dataclass(frozen=True)
class _Measured:
    parameters: ParameterCheck
    text: TextFound
    cache: CacheCheck
    timings: Timings
    heads: HeadsFound | None


def _measured(request: Request, stack: StackSpec, loaded: Loaded, say: Say) -> _Measured:
    tokens = _tokens(request, stack, loaded)
    parameters = check_parameters(loaded.model, stack)
    text = _text(request, stack, loaded, tokens, say)
    say("looking into its cache" if stack.decoder is not None else "running it once")
    began = time.perf_counter()
    cache = _cache(request, stack, loaded, tokens)
    cache_seconds = time.perf_counter() - began
    if stack.decoder is None:
        text = replace(text, forward=_forward(loaded.model, tokens.ids[: _window(stack, bos=False)]))
    began, heads = time.perf_counter(), None
    if request.heads is not None:
        heads = heads_found(tokens.running(request, stack, loaded), request.heads, say)
    parts = {"heads": time.perf_counter() - began} if heads is not None else {}
    return _Measured(parameters, text, cache, Timings(loaded.seconds, cache_seconds, parts), heads)


def _tokens(request: Request, stack: StackSpec, loaded: Loaded) -> _Tokens:
    """Tokens of the text, or random ones where the model has no tokenizer that fits it: memory does not mind."""
    vocabulary = loaded.model.get_input_embeddings().weight.shape[0] if stack.vocab_size else 0
    why = loaded.without_tokenizer
    if not why:
        ids, goes_on = first_tokens(loaded.tokenizer, request.reading, request.tokens)
        if max(ids) < vocabulary:
            return _Tokens(ids, of_text=True, no_score=_no_score(stack, loaded.model), goes_on=goes_on)
        why = f"its tokenizer makes token {max(ids):,}, and the model knows {vocabulary:,}"
    import torch

    draw = torch.Generator().manual_seed(request.seed)
    ids = torch.randint(0, max(vocabulary, 1), (prompt_length(stack) + 1,), generator=draw).tolist()
    return _Tokens(ids, of_text=False, no_score=why)


def _no_score(stack: StackSpec, model: Any) -> str:
    """Why a perplexity of left-to-right prediction does not exist for this model; "" where it does."""
    if stack.decoder is None:
        return "an encoder sees both sides of a token, so it does not predict the next one and has no perplexity of that kind"
    if stack.encoder is not None:
        return "its decoder speaks about what the encoder read (a translation, a transcript), not about running text"
    if model.get_output_embeddings() is None:
        return "it was saved without a language head, so it predicts no tokens"
    return ""


def _window(stack: StackSpec, *, bos: bool) -> int:
    limit = stack.most_tokens or MOST_WINDOW
    return max(min(MOST_WINDOW, limit - bos), 2)


def _text(request: Request, stack: StackSpec, loaded: Loaded, tokens: _Tokens, say: Say) -> TextFound:
    reading = request.reading
    window = _window(stack, bos=request.bos)
    found = TextFound(
        name=reading.name, sha256=reading.sha256, shipped=reading.shipped, tokens=len(tokens.ids) if tokens.of_text else 0,
        window=window, first_token_of_window_scored=False, bos=request.bos,
        tokenizer_adds_bos=tokens.of_text and _adds_bos(loaded.tokenizer), reason=tokens.no_score, scores=None, shuffled=None,
        goes_on=tokens.goes_on,
    )  # fmt: skip
    if not tokens.of_text or tokens.no_score:
        return found
    bos = _bos(loaded.tokenizer) if request.bos else None

    def scored(what: str, ids: Sequence[int]) -> TextScores:
        say(f"reading {len(ids):,} tokens: {what}")
        return _scored(score(loaded.model, ids, window=window, bos=bos, say=_pace(say)))

    first = scored(reading.name, tokens.ids)
    control = scored("the same tokens shuffled", shuffled(tokens.ids, request.seed))
    times = math.exp(min(control.loss - first.loss, 700.0)) if math.isfinite(control.loss - first.loss) else math.nan
    return replace(found, scores=first, shuffled=control, times_more_perplexed_when_shuffled=times)


def _adds_bos(tokenizer: Any) -> bool:
    return tokenizer.bos_token_id is not None and list(tokenized(tokenizer, "a")["input_ids"])[:1] == [
        tokenizer.bos_token_id
    ]


def _bos(tokenizer: Any) -> int:
    if tokenizer.bos_token_id is None:
        raise ManyheadsError("bos=True: this model's tokenizer has no beginning-of-text token; leave the option out")
    return int(tokenizer.bos_token_id)


def _scored(found: Scores) -> TextScores:
    windows = tuple(WindowLoss(n, loss) for loss, n in zip(found.losses, found.counts, strict=True))
    return TextScores(found.scored, found.loss, found.perplexity, windows, found.seconds)


def _pace(say: Say) -> Callable[[int, int], None]:
    """Words about progress, but not more often than a person reads them."""
    last = time.perf_counter()

    def told(done: int, total: int) -> None:
        nonlocal last
        if time.perf_counter() - last > _SECONDS_BETWEEN_WORDS:
            last = time.perf_counter()
            say(f"  {done:,} of {total:,} tokens")

    return told


def _cache(request: Request, stack: StackSpec, loaded: Loaded, tokens: _Tokens) -> CacheCheck:
    if stack.decoder is None:
        return measure_cache(loaded.model, stack, Inputs(()), dtype=request.dtype, seed=request.seed)
    wanted = prompt_length(stack) + 1
    ids = (tokens.ids * -(-wanted // len(tokens.ids)))[:wanted]
    inputs = Inputs(tuple(ids))
    if stack.encoder is not None:
        inputs = replace(inputs, **_source(request, stack, loaded.model, ids))
    return measure_cache(loaded.model, stack, inputs, dtype=request.dtype, seed=request.seed)


def _source(request: Request, stack: StackSpec, model: Any, ids: Sequence[int]) -> dict[str, Any]:
    """What the encoder reads: the same tokens, or for speech noise as long as the model's whole window."""
    import torch

    assert stack.encoder is not None
    name = model.main_input_name
    if name == "input_ids":
        limit = stack.encoder.position_rows or stack.context or len(ids)
        return {"source": torch.tensor([ids[:limit]]), "source_name": name}
    config = model.config
    frames = 2 * config.max_source_positions  # the convolutions in front halve them
    draw = torch.Generator().manual_seed(request.seed)
    noise = torch.randn(1, config.num_mel_bins, frames, generator=draw).to(model.dtype)
    return {"source": noise, "source_name": name}


def _forward(model: Any, ids: Sequence[int]) -> EncoderRun:
    """One forward run of an encoder: what it gives and whether it is finite."""
    import torch

    began = time.perf_counter()
    with torch.inference_mode():
        out = model(input_ids=torch.tensor([list(ids)], device=model.device))[0]
    return EncoderRun(len(ids), tuple(out.shape), bool(torch.isfinite(out).all()), time.perf_counter() - began)


def _found(request: Request, checkpoint: Checkpoint, loaded: Loaded, measured: _Measured) -> XRay:
    stack = checkpoint.stack
    contexts = list(request.contexts) or default_contexts(stack)
    cost = price(
        stack, context_tokens=contexts, weight_dtype=checkpoint.weight_dtype or KV_DTYPE, kv_dtype=KV_DTYPE,
        weight_bytes=checkpoint.stored_bytes or 0, name=checkpoint.name, source=checkpoint.source,
        notes=checkpoint.notes,
    )  # fmt: skip
    return XRay(
        schema=SCHEMA, model=checkpoint.name, source=checkpoint.source, family=checkpoint.family,
        class_name=type(loaded.model).__name__, shape=_shape(checkpoint, loaded.model), parameters=measured.parameters,
        text=measured.text, cache=measured.cache, timings=measured.timings,
        agrees=measured.parameters.equal and measured.cache.equal, notes=(*checkpoint.all_notes, *loaded.notes), cost=cost,
        cache_curve=cache_curve(stack, contexts), command=request.command, date=time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        seed=request.seed, dtype=request.dtype, device=request.device, machine=machine(), versions=versions(),
        unpacked=loaded.kept, next_command=next_command(checkpoint), heads=measured.heads,
    )  # fmt: skip


def _shape(checkpoint: Checkpoint, model: Any) -> Shape:
    """The model's measures, those of its first attention where layers differ."""
    stack = checkpoint.stack
    first = next((a for block in stack.main.blocks for a in block.attentions), None)
    kv = first.kv if first else None
    return Shape(
        layers=stack.layers,
        encoder_layers=len(stack.encoder.blocks) if stack.encoder and stack.decoder else 0,
        d_model=stack.main.d_model,
        num_attention_heads=first.num_heads if first else 0,
        num_key_value_heads=kv.num_kv_heads if isinstance(kv, Heads) else None,
        head_dim=first.head_dim if first else 0,
        vocab_size=stack.vocab_size,
        context=stack.context,
        stored_dtype=checkpoint.weight_dtype,
        stored_bytes=checkpoint.stored_bytes,
        attention_implementation=getattr(model.config, "_attn_implementation", "") or "",
    )
