"""What `manyheads bench` and benchmarks/decode.py ask for, measured: the standard shapes, or those of a model and the model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib import metadata
from typing import TYPE_CHECKING, Any

from manyheads.bench.contest import Contest, Pace
from manyheads.bench.decode import Plan, Say, decode, prefill, shapes
from manyheads.bench.generation import LONG, PROMPT, SHORT, Generation, generation
from manyheads.bench.latent import DEEPSEEK_V3, LatentHeads, latent
from manyheads.bench.room import room
from manyheads.bench.runners import find_runners
from manyheads.bench.shape import DTYPES
from manyheads.bench.tables import Measured
from manyheads.errors import ManyheadsError
from manyheads.kernels import team
from manyheads.models.surroundings import machine, versions

if TYPE_CHECKING:
    from manyheads.checkpoints import Checkpoint
    from manyheads.spec import StackSpec

__all__ = ["CONTEXTS", "KV_HEADS", "Request", "bench", "tokens"]

CONTEXTS = (2048, 8192, 32768)
KV_HEADS = (32, 8, 4, 1)
HEADS, HEAD_DIM = 32, 128
LATENT_ROWS = 8192
_LATENT_DTYPES = ("fp32", "bf16")  # unless others are asked for: expanding takes seconds a step
_PREFILL_TOKENS = 1024
_MORE_PACKAGES = ("numba", "onnxruntime", "llama_cpp_python")
_QUICK = Pace(rounds=5, least=2, path_seconds=0.4)
_THOROUGH = Pace(rounds=15, least=3, path_seconds=1.0)
# Cached tokens, few and many; of the prompt before a first token; tokens that are timed, and how often.
_ALL_TOKENS = ((SHORT, LONG), PROMPT, 12, 3)
_QUICK_TOKENS = ((SHORT, 1024), 256, 6, 2)

HeadSizes = tuple[int, int, int, int]


@dataclass(frozen=True)
class Request:
    """What to measure. `model`: None for the standard shapes.

    `quick`: fewer rounds, and only the middle of the contexts where none was asked for.
    """

    model: Checkpoint | None = None
    contexts: tuple[int, ...] = ()
    kv_heads: tuple[int, ...] = ()
    dtypes: tuple[str, ...] = ()
    threads: int = 0
    quick: bool = False
    seed: int = 0
    command: str = ""


def bench(request: Request, *, say: Say = lambda _: None) -> Measured:
    """Measures all of it. Raises ManyheadsError for a model that cannot be read and for sizes that do not fit."""
    plan = _plan(request, say)
    contexts = request.contexts or ((CONTEXTS[1],) if request.quick else CONTEXTS)
    dtypes = request.dtypes or DTYPES
    heads, latents, notes = _attentions(request)
    wanted = shapes(heads, contexts, dtypes)
    decoded = decode(wanted, plan) if wanted else ()
    absorbed: tuple[Contest, ...] = ()
    for sizes in latents:
        rows = contexts if request.model else (LATENT_ROWS,)
        types = request.dtypes or _LATENT_DTYPES
        absorbed += tuple(each for keys in rows for each in latent(sizes, keys, types, plan))
    whole = _prefill(heads, dtypes, plan)
    told, why = tokens(request, say=say) if request.model else (None, "")
    notes += [plan.room.note] if plan.room.note else []
    notes += [why] if why else []
    around = _around(request, plan, contexts, dtypes)
    return Measured(decoded, whole, absorbed, told, around, tuple(notes))


def _plan(request: Request, say: Say) -> Plan:
    pace = _QUICK if request.quick else _THOROUGH
    return Plan(room(), request.threads or team.default_threads(), pace, request.seed, say)


def _attentions(request: Request) -> tuple[list[HeadSizes], list[LatentHeads], list[str]]:
    """(query heads, KV heads, sizes) and latent attentions: the standard ones, or a model's, each once."""
    if not request.model:
        kv_heads = request.kv_heads or KV_HEADS
        return [(HEADS, kv, HEAD_DIM, HEAD_DIM) for kv in kv_heads], [DEEPSEEK_V3], []
    if request.kv_heads:
        raise ManyheadsError("kv_heads= chooses among the standard shapes, and a model was named, which has its own")
    checkpoint = request.model
    heads, latents, other = _kinds(checkpoint.stack)
    if not heads and not latents:
        raise ManyheadsError(
            f"{checkpoint.source}: no layer of it keeps keys and values or a latent ({', '.join(other)})"
        )
    notes = [f"not measured: {', '.join(other)}"] if other else []
    return heads, latents, [*checkpoint.notes, *notes]


def _kinds(stack: StackSpec) -> tuple[list[HeadSizes], list[LatentHeads], list[str]]:
    from manyheads.spec import Heads, Latent

    heads: dict[HeadSizes, None] = {}
    latents: dict[LatentHeads, None] = {}
    other: dict[str, None] = {}
    for block, _ in stack.main.groups:
        for spec in block.attentions:
            kv = spec.kv
            if isinstance(kv, Heads):
                heads[spec.num_heads, kv.num_kv_heads, kv.head_dim, kv.v_head_dim] = None
            elif isinstance(kv, Latent):
                latents[LatentHeads(spec.num_heads, kv.nope_dim, kv.rope_dim, kv.v_head_dim, kv.rank)] = None
            else:
                other[f"layers that keep a {type(kv).__name__.lower()}"] = None
    return list(heads), list(latents), list(other)


def _prefill(heads: Sequence[HeadSizes], dtypes: Sequence[str], plan: Plan) -> tuple[Contest, ...]:
    """One prompt: the heads in the middle, where arithmetic is the same for all of them."""
    wanted = shapes(heads[len(heads) // 3 :][:1], (_PREFILL_TOKENS,), [dtype for dtype in dtypes if dtype != "int8"])
    return prefill(wanted, plan) if wanted else ()


def tokens(request: Request, *, say: Say = lambda _: None) -> tuple[Generation | None, str]:
    """The model under `generate` alone, or None and why it was not run."""
    from manyheads.models.load.model import check_runnable, load

    checkpoint = request.model
    assert checkpoint is not None
    found, stack = checkpoint.located, checkpoint.stack
    if found.kind in ("spec", "census", "config", "safetensors"):
        return None, "no token was timed: what was named has no weights to run"
    if stack.decoder is None or stack.encoder is not None or stack.head == "none":
        return None, "no token was timed: that is done with models that only decode, and this is another kind"
    (few, many), prompt, count, rounds = _QUICK_TOKENS if request.quick else _ALL_TOKENS
    many = min(many, (stack.context or many + count + 2) - count - 2)
    if many <= few:
        return None, f"no token was timed: it reads {stack.context} tokens at most, too few to see what a cache costs"
    plan = _plan(request, say)
    try:
        check_runnable(found)
        loaded = load(checkpoint, dtype="bf16", say=plan.say)
    except ManyheadsError as error:
        return None, f"no token was timed: {error}"
    gguf = found.text if found.kind == "gguf" else ""
    runners, absent = find_runners(loaded.model, plan.threads, gguf=gguf, context=many + 64)
    return generation(
        checkpoint.name, loaded.model, runners, absent, plan, dtype="bf16", tokens=count, rounds=rounds, cached=(few, many),
        prompt=min(prompt, many),
    ), ""  # fmt: skip


def _around(request: Request, plan: Plan, contexts: Sequence[int], dtypes: Sequence[str]) -> dict[str, Any]:
    found = versions()
    for package in _MORE_PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    pace = plan.pace
    return {
        "command": request.command,
        "model": request.model.located.asked if request.model else "",
        "threads": plan.threads,
        "machine": machine() | {"last_level_cache_bytes": plan.room.cache_bytes},
        "versions": found,
        "settings": {
            "contexts": list(contexts), "dtypes": list(dtypes), "rounds": pace.rounds, "pause_seconds": pace.pause_seconds,
            "path_seconds": pace.path_seconds, "rotation_bytes": plan.room.rotation_bytes, "seed": plan.seed,
            "quick": request.quick,
        },
    }  # fmt: skip
