"""What `manyheads convert` does: regroup, write beside the final name, load that as a stranger would, compare, and only then
give it its name.

The tables (`convert.tables`) and the JSON are functions of the record that it returns.
"""

from __future__ import annotations

import contextlib
import copy
import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from manyheads.checkpoints.pruned import places
from manyheads.checkpoints.reading import Checkpoint
from manyheads.convert.calibration_text import Calibration, calibration_texts, calibration_windows, split_blocks
from manyheads.convert.card import CARD_NAME, REPORT_NAME, card
from manyheads.convert.form import ModelForm, choose_form
from manyheads.convert.head_weights import check_heads
from manyheads.convert.held_out import HeldOut, held_out
from manyheads.convert.record import CacheSizes, ConversionReport, WrittenModel
from manyheads.convert.regroup import Method, Regrouped, regroup
from manyheads.convert.regrouped_weights import put_into_model, regrouped_stack, repeated
from manyheads.convert.source import Source, open_source
from manyheads.convert.verify import embedding_cosine, probes, samples, verify
from manyheads.cost.model import cache_bytes_a_token
from manyheads.cost.parameters import stored_bytes
from manyheads.errors import ConversionError, ManyheadsError
from manyheads.heads.model_spec import stated_stack
from manyheads.models.load.companion_files import read_beside
from manyheads.models.load.model import Loaded, load
from manyheads.models.load.text import Reading
from manyheads.models.load.weights_folder import name_of, weights_folder
from manyheads.models.random_inputs import logits_of
from manyheads.models.resident_bytes import Inputs, measure_cache, prompt_length
from manyheads.models.store.output_folder import check_folder
from manyheads.models.store.provenance import Source as Origin
from manyheads.models.store.provenance import source_of
from manyheads.models.store.read import open_store
from manyheads.models.store.write import write_store
from manyheads.report.files import folder_appearing
from manyheads.report.jsonform import as_json
from manyheads.report.parts import part_folder
from manyheads.spec.kv import Heads
from manyheads.spec.stack import StackSpec

__all__ = ["SCHEMA", "Request", "convert"]

SCHEMA = "manyheads.convert/1"
# How far logits of the written model may lie from those of the model in memory, as a share of the largest.
_TOLERANCE = 1e-4

Say = Callable[[str], None]


@dataclass(frozen=True)
class Request:
    """What is asked.

    texts          to calibrate and judge on, each split in halves; empty: two kinds of our own
    context        tokens of a window: the length that the model will be used at
    windows        calibration windows; `held_windows`: windows that it is judged on, of each text
    output         the folder to write, "" for none
    most_ratio     the largest loss ratio that is accepted; accept_loss: accept any
    """

    model: Checkpoint
    kv_heads: int
    method: Method = "closed"
    texts: Sequence[Reading] = ()
    context: int = 512
    windows: int = 16
    held_windows: int = 8
    output: str = ""
    most_ratio: float = 1.5
    accept_loss: bool = False
    seed: int = 0
    typed: str = ""


def convert(request: Request, *, say: Say = lambda _: None) -> ConversionReport:
    """Does it, as docs/convert.md describes.

    The folder appears only where the loss is accepted, complete; the report says so either way. Raises ManyheadsError and its
    kinds, one line, for what cannot be converted, text that is too short, a folder in use and a full disk; nothing is
    written then.
    """
    began = time.perf_counter()
    checkpoint = request.model
    located = checkpoint.located
    target = check_folder(request.output, model=located) if request.output else None
    _check_counts(checkpoint.stack, request.kv_heads)
    say(f"loading {checkpoint.name} in float32")
    loaded = load(checkpoint, say=say)
    with part_folder(os.path.join(tempfile.gettempdir(), "model")) as scratch:
        place = weights_folder(located, loaded, scratch, say)
        store = checkpoint if place == located.folder else place
        with open_store(store) as opened:
            settings = dict(opened.checkpoint.config or {})
            form = choose_form(settings, _then(settings, request.kv_heads, checkpoint.name), source=checkpoint.name)
            dtype = opened.checkpoint.weight_dtype or "fp32"
            if target is not None:
                _check_room(target, opened.stack, dtype)
        return _Run(request, loaded, form, place, dtype, target, say, began).report()


def _check_counts(stack: StackSpec, kv_heads: int) -> None:
    for _, _, spec in places(stack):
        check_heads(spec, kv_heads)


def _then(settings: dict[str, Any], kv_heads: int, name: str) -> StackSpec:
    stated = stated_stack(settings, source=name)
    return regrouped_stack(stated, {(role, layer): kv_heads for role, layer, _ in places(stated)})


def _check_room(target: Path, stack: StackSpec, dtype: str) -> None:
    """Raises ManyheadsError where the disk has no room for a model as large as this one."""
    wanted = stored_bytes(stack, dtype)
    holder = next(each for each in (target, *target.parents) if each.exists())
    free = shutil.disk_usage(holder).free
    if free < wanted:
        raise ManyheadsError(f"{holder}: {free:,} bytes are free, and the converted model may take {wanted:,}")


@dataclass(frozen=True, eq=False)
class _Run:
    """One conversion, with what is there already."""

    request: Request
    loaded: Loaded
    form: ModelForm
    place: str
    dtype: str
    target: Path | None
    say: Say
    began: float

    def report(self) -> ConversionReport:
        """Regroup, write, compare, name."""
        request = self.request
        source = open_source(self.loaded)
        texts = tuple(request.texts) or calibration_texts()
        encoder = source.stack.decoder is None
        limit = source.stack.most_tokens or 0
        length = min(request.context, limit) if limit else request.context
        reads = self._reads(texts, length, special_tokens=encoder)
        made = regroup(
            source, request.kv_heads, method=request.method, calibration=reads[0] if reads else None, seed=request.seed,
            say=self.say,
        )  # fmt: skip
        try:
            with self._folder() as part:
                written = self._written(part, made)
                found = self._judged(source, made, part, written, reads)
                if not found.accepted:
                    raise _NotAcceptedError(found)
                if self.target is not None:
                    self._say_what_it_is(part, found)
        except _NotAcceptedError as refused:
            return replace(refused.report, written=None)
        return found

    def _reads(
        self, texts: Sequence[Reading], length: int, *, special_tokens: bool
    ) -> tuple[Calibration, tuple[HeldOut, ...]] | None:
        """The windows to calibrate on, and those to judge on; None where the model has no tokenizer."""
        tokenizer = self.loaded.tokenizer
        if tokenizer is None:
            if self.request.method in ("closed", "layerfit", "procrustes"):
                raise ConversionError(
                    f'method "{self.request.method}" reads a text, and the model has no tokenizer: {self.loaded.without_tokenizer}'
                )
            return None
        halves = [split_blocks(text, "calibration") for text in texts]
        calibration = calibration_windows(
            tokenizer, halves, windows=self.request.windows, length=length, special_tokens=special_tokens
        )
        held = held_out(
            tokenizer, texts, windows=self.request.held_windows, length=length,
            most_tokens=self.loaded.stack.most_tokens or 0, special_tokens=special_tokens,
        )  # fmt: skip
        return calibration, held

    @contextlib.contextmanager
    def _folder(self) -> Iterator[Path]:
        """Where the converted model is written: beside its final name, which it gets in the end, or for the comparison alone."""
        if self.target is None:
            with part_folder(os.path.join(tempfile.gettempdir(), "converted")) as scratch:
                yield Path(scratch)
            return
        with folder_appearing(self.target) as part:
            yield part

    def _written(self, part: Path, made: Regrouped) -> int:
        self.say("writing the converted model")
        with open_store(self.place) as opened:
            tensors = repeated(made.weights, made.stack, made.before) if self.form.repeated else made.weights
            stack = replace(
                self.form.stack, head=opened.stack.head, head_bias=opened.stack.head_bias, other=opened.stack.other
            )
            done = write_store(
                part, tensors, config=self.form.settings, layout=opened.layout,
                others={name: opened.other(name) for name in opened.left_out},
                beside=read_beside(self.place), stack=stack,
            )  # fmt: skip
        return done.tensor_bytes

    def _judged(
        self, source: Source, made: Regrouped, part: Path, tensor_bytes: int,
        reads: tuple[Calibration, tuple[HeldOut, ...]] | None,
    ) -> ConversionReport:  # fmt: skip
        """The report of what stands in `part`, loaded by stock transformers."""
        request, loaded = self.request, self.loaded
        held = reads[1] if reads else ()
        original, converted = loaded.model, load(str(part)).model
        limit = source.stack.most_tokens or 0
        language = source.stack.decoder is not None and source.stack.head != "none"
        losses = verify(original, converted, held, say=self.say) if language else ()
        cosine = embedding_cosine(original, converted, held) if held and not language else None
        self.say("probes and samples")
        asked = probes(original, converted, most_tokens=limit, seed=request.seed) if language else ()
        told = samples(original, converted, loaded.tokenizer, held, most_tokens=limit) if language and held else ()
        ratio = max((each.ratio for each in losses), default=None)
        accepted = request.accept_loss or ratio is None or ratio <= request.most_ratio
        before, after = (stored_bytes(each, self.dtype) for each in (made.before, self.form.stack))
        spec = made.before.main.blocks[0].attentions[0]
        assert isinstance(spec.kv, Heads)
        settings = self.form.settings
        written = None if self.target is None else WrittenModel(
            str(self.target), str(settings.get("model_type")), tuple(settings.get("architectures") or ()), tensor_bytes,
            _apart(source, made, converted, original, request.seed),
        )  # fmt: skip
        return ConversionReport(
            schema=SCHEMA, model=name_of(loaded.checkpoint.located), source=loaded.source, typed=request.typed,
            method=made.method, kv_heads_before=spec.kv.num_kv_heads, kv_heads=request.kv_heads, query_heads=spec.num_heads,
            weight_bytes_before=before, weight_bytes=after,
            cache=_cache(original, converted, made.before, self.form.stack, held), hosts=self.form.hosts,
            calibration=made.calibration.parts if made.calibration else (),
            calibrated_window=max(map(len, made.calibration.windows)) if made.calibration else 0,
            bos="nothing" if source.stack.decoder is not None else "the special tokens of an encoder", layers=made.layers,
            losses=losses, unmeasured=_unmeasured(language=language, held=bool(held)), embedding_cosine=cosine, probes=asked,
            samples=told, most_ratio=request.most_ratio, ratio=ratio, accepted=accepted, written=written,
            seconds=time.perf_counter() - self.began, notes=made.notes,
        )  # fmt: skip

    def _say_what_it_is(self, part: Path, found: ConversionReport) -> None:
        name = name_of(self.loaded.checkpoint.located)
        origin: Origin = source_of(name, self.loaded.checkpoint.located, self.place, pruned=False)
        (part / REPORT_NAME).write_text(json.dumps(as_json(found), indent=2) + "\n", encoding="utf-8")
        (part / CARD_NAME).write_text(card(found, origin), encoding="utf-8")


class _NotAcceptedError(ManyheadsError):
    """A conversion that loses too much to be written; the report says how much."""

    def __init__(self, report: ConversionReport) -> None:
        super().__init__("the conversion loses too much")
        self.report = report


def _unmeasured(*, language: bool, held: bool) -> str:
    if not held:
        return "the model has no tokenizer, so no text could be read"
    return "" if language else "the model has no language head; its embeddings are compared"


def _apart(source: Source, made: Regrouped, converted: Any, original: Any, seed: int) -> float:
    """The largest difference of the written model's logits from those of the weights put into the model in memory."""
    model = copy.deepcopy(original)
    put_into_model(model, source.family, source.stack, made.weights, made.stack)
    with torch.inference_mode():
        wanted, got = logits_of(model, seed=seed), logits_of(converted, seed=seed)
    difference, size = float((got - wanted).abs().max()), float(wanted.abs().max())
    if not difference <= _TOLERANCE * max(1.0, size):
        raise ConversionError(
            f"the written model's logits differ from those in memory by up to {difference:.2e} (largest {size:.1f}), more than "
            f"{_TOLERANCE:g} of them; nothing was written"
        )
    return difference


def _cache(original: Any, converted: Any, before: StackSpec, after: StackSpec, held: Sequence[HeldOut]) -> CacheSizes:
    one = [cache_bytes_a_token(stack, "bf16") for stack in (before, after)]
    if before.decoder is None or not held:
        return CacheSizes(one[0], one[1], None, None, 0)
    count = min(prompt_length(before), len(held[0].windows[0]) - 1)
    ids = tuple(held[0].windows[0][: count + 1].tolist())
    kept = []
    for model, stack in ((original, before), (converted, after)):
        check = measure_cache(model, stack, Inputs(ids), dtype="fp32", seed=0)
        kept.append(check.prefill.logical.measured if check.prefill else None)
    return CacheSizes(one[0], one[1], kept[0], kept[1], count)
