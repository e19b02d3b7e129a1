"""Models of transformers, loaded from what the user named: safetensors or GGUF, never a pickle, never code of their own."""

from __future__ import annotations

import contextlib
import io
import os
import re
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from manyheads.checkpoints.demo import DEMO
from manyheads.checkpoints.locate import Located
from manyheads.checkpoints.reading import Checkpoint, Named, open_model
from manyheads.cost.dtypes import MODEL_DTYPES, dtype_among
from manyheads.cost.dtypes import dtype as format_of
from manyheads.cost.machine import memory_bytes
from manyheads.errors import BackendError, CheckpointError, ManyheadsError
from manyheads.models.load import dequantised as unpacked
from manyheads.models.load.companion_files import check_beside
from manyheads.models.load.text import shipped_text
from manyheads.models.load.tokenizer_files import invented
from manyheads.models.load.tokenizing import panics_told, tokenized, trial
from manyheads.quoting import few, shown, shown_path
from manyheads.spec.stack import StackSpec

__all__ = [
    "DEVICES",
    "Loaded",
    "check_runnable",
    "first_line",
    "hushed",
    "load",
]

DEVICES = "cpu, cuda, cuda:N, mps or xpu"
_WEIGHT_ENDINGS = (".safetensors", ".safetensors.index.json")
_PICKLE_ENDINGS = (".bin", ".pt", ".pth", ".ckpt", ".bin.index.json")
_SPLIT = re.compile(r"-\d{5}-of-(?!00001)\d{5}\.gguf$")
# What a model needs that is not nested: other layouts of the same weights are kept in folders and can be many times larger.
_HUB_FILES = ["*.json", "*.safetensors", "*.model", "*.txt", "*.jinja", "*.tiktoken", "README.md", "LICEN*", "NOTICE*"]

Say = Callable[[str], None]


@dataclass(frozen=True)
class Loaded:
    """A model that can be run.

    `checkpoint`: what was named and read, and `stack` its description; `model`: a transformers model in evaluation mode;
    `tokenizer`: its tokenizer, None where there is none that can be used, and then `without_tokenizer` says why;
    `source`: the folder or file; `seconds`: how long it took; `kept`: where a dequantised model was read from, "" where it
    was not; `notes`: what a person should know.
    """

    checkpoint: Checkpoint
    model: Any
    tokenizer: Any
    without_tokenizer: str
    source: str
    seconds: float = 0.0
    kept: str = ""
    notes: tuple[str, ...] = ()

    @property
    def stack(self) -> StackSpec:
        """What the model is."""
        return self.checkpoint.stack


def check_runnable(found: Located) -> None:
    """Refuses what has no weights to run, before anything heavy is imported: CheckpointError with what would be valid."""
    name = shown_path(found.text)
    if found.kind in ("spec", "census"):
        what = "a description" if found.kind == "spec" else "a name of the census"
        raise CheckpointError(
            f"{name}: {what}, without weights that could be run; `manyheads cost` prices it; valid here: a folder with "
            "config.json and .safetensors, a .gguf file, or a hub id org/name"
        )
    if found.kind == "gguf" and _SPLIT.search(found.text):
        raise CheckpointError(
            f"{name}: one part of a model that is split over several files, which transformers cannot load; valid: one "
            "file (`llama-gguf-split --merge` joins them)"
        )
    if found.kind in ("hub", "gguf"):
        return
    if any(file.endswith(_WEIGHT_ENDINGS) for file in found.names):
        return
    pickles = sorted(file for file in found.names if file.endswith(_PICKLE_ENDINGS))
    if pickles:
        raise CheckpointError(
            f"{name}: its weights are in {shown_path(pickles[0])}, a Python pickle, which can run any code when it is "
            "opened; valid: .safetensors (transformers' save_pretrained writes them) or .gguf"
        )
    raise CheckpointError(
        f"{name}: no weights (.safetensors) beside the config, so there is nothing to run; `manyheads cost` prices it"
    )


def load(
    model: Named | Checkpoint = DEMO, *, revision: str | None = None, assume: str = "", dtype: str = "fp32",
    device: str = "cpu", say: Say = lambda _: None,
) -> Loaded:  # fmt: skip
    """A model of transformers with its tokenizer and what it is, in evaluation mode.

        loaded = manyheads.load("path/to/model")
        loaded.model, loaded.tokenizer, loaded.stack

    model     a folder with config.json and .safetensors, a .gguf file, a hub id (`revision`: its branch, tag or commit),
              "demo" for the demo model, or what `checkpoints.open_model` made of one of these
    assume    "full" takes attention that is not understood for plain full attention
    dtype     "fp32", "bf16" or "fp16"; device: as torch names it

    A GGUF file is dequantised, and the result is kept in the user's cache (`models.load.dequantised`). `say` is told what
    takes time. Raises CheckpointError or BackendError, one line.
    """
    checkpoint = open_model(model, revision=revision, assume=assume)
    found, stack = checkpoint.located, checkpoint.stack
    check_runnable(found)
    place = _device(device)
    dtype = dtype_among(dtype, MODEL_DTYPES, "dtype")
    _check_fits(stack, dtype, place)
    with hushed():
        began = time.perf_counter()
        if found.kind == "gguf":
            loaded = _from_gguf(checkpoint, dtype, say)
            unpacked.check_turned(loaded.model.config, stack, found.text)
        else:
            loaded = _from_folder(_folder(checkpoint, say), checkpoint, dtype)
        try:
            loaded.model.eval().requires_grad_(requires_grad=False).to(place)
        except (RuntimeError, MemoryError) as error:
            raise BackendError(f"the model does not go onto {device}: {first_line(error)}") from None
    return replace(loaded, seconds=time.perf_counter() - began)


def _device(name: str) -> Any:
    import torch

    try:
        place = torch.device(name)
        torch.zeros(1, device=place)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise BackendError(
            f"device={shown(name)}: {first_line(error)}; valid: {DEVICES}, where this machine has it"
        ) from None
    if place.type == "meta":
        raise BackendError(f"device={shown(name)}: nothing is computed there; valid: {DEVICES}")
    return place


def _check_fits(stack: StackSpec, dtype: str, place: Any) -> None:
    """Refuses a model that cannot fit into this machine's memory, which the system would end without a word."""
    from manyheads.cost.parameters import stored_parameters
    from manyheads.spec.inventory import weights

    have = memory_bytes()
    if place.type != "cpu" or have is None:
        return
    needed = int(format_of(dtype).bytes(stored_parameters(weights(stack))))
    if needed > have:
        raise BackendError(
            f"the weights take {needed:,} B in {dtype}, and this machine has {have:,} B of memory; "
            + ('dtype="bf16" halves that, ' if dtype == "fp32" else "")
            + "`manyheads cost` prices it without loading"
        )


@contextlib.contextmanager
def hushed() -> Iterator[None]:
    """Keeps the warnings of transformers and torch about a model from stderr, where our own progress is told."""
    from transformers.utils import logging

    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()


def _without_bars() -> contextlib.AbstractContextManager[object]:
    """Where nobody watches a terminal, swallows progress bars that transformers draws without asking."""
    watched = sys.stderr is not None and sys.stderr.isatty()
    return contextlib.nullcontext() if watched else contextlib.redirect_stderr(io.StringIO())


def _folder(checkpoint: Checkpoint, say: Say) -> str:
    """The local folder that holds the model; a hub id's weights are downloaded into the hub's own cache, beside its config."""
    found = checkpoint.located
    if found.kind != "hub":
        return found.folder
    import huggingface_hub

    say(f"fetching {found.text} into the hub's cache")
    try:
        folder = huggingface_hub.snapshot_download(
            found.text,
            revision=checkpoint.commit or checkpoint.revision,
            allow_patterns=_HUB_FILES,
            ignore_patterns=["*/*"],
        )
    except Exception as error:  # noqa: BLE001  the client raises its own kinds, its HTTP library's, and OSError
        raise CheckpointError(f"{found.text}: cannot be fetched from the hub ({first_line(error)})") from None
    if not any(file.endswith(_WEIGHT_ENDINGS) for file in os.listdir(folder)):
        raise CheckpointError(
            f"{found.text}: has no .safetensors on the hub, and other weights (Python pickles) are not opened; "
            "`manyheads cost` prices it"
        )
    return folder


def _from_folder(folder: str, checkpoint: Checkpoint, dtype: str) -> Loaded:
    check_beside(folder)
    model, notes = _pretrained(folder, checkpoint.stack, dtype)
    tokenizer, why = _tokenizer(folder)
    return Loaded(checkpoint, model, tokenizer, why, folder, notes=notes)


def _pretrained(folder: str, stack: StackSpec, dtype: str, gguf: str = "") -> tuple[Any, tuple[str, ...]]:
    """The model in `folder` as transformers loads it, every weight from the file, and what was left over."""
    import transformers

    from manyheads.ops.dtypes import torch_dtype

    options: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False}
    if gguf:
        options |= {"gguf_file": gguf}
    try:
        config = transformers.AutoConfig.from_pretrained(folder, **options)
        if gguf:
            # Without it the weights of some families stay packed where the `kernels` package is installed.
            options["quantization_config"] = transformers.GgufConfig(dequantize=True)
        kind, built = _sized(_class_for(config, stack), config, folder)
        with _without_bars():
            model, info = built.from_pretrained(
                folder,
                config=config,
                dtype=torch_dtype(dtype),
                use_safetensors=True,
                output_loading_info=True,
                **options,
            )
    except (ManyheadsError, MemoryError):
        raise
    except Exception as error:  # whatever a foreign loader raises on a file is the file's fault
        raise CheckpointError(
            f"{shown_path(os.path.join(folder, gguf) if gguf else folder)}: transformers {transformers.__version__} "
            f"cannot load it ({_loading_reason(error)})"
        ) from error
    _check_complete(info, folder)
    if built is not kind:
        model.__class__ = kind  # it has the sizes by now, and saves itself under the name that it always had
    left = sorted(info.get("unexpected_keys") or ())
    notes = (f"tensors of the file that the model does not use: {few(left)}",) if left else ()
    return model, notes


def _class_for(config: Any, stack: StackSpec) -> Any:
    """The class that the configuration names where transformers has it, else the Auto class for this kind of model.

    The named one first: an encoder saved with a head, or a decoder saved without one, has other parameters than what
    the Auto class of its kind would build.
    """
    import transformers

    for name in config.architectures or ():
        named = getattr(transformers, name, None) if str(name).isidentifier() else None
        ours = isinstance(named, type) and issubclass(named, transformers.PreTrainedModel)
        if ours and getattr(named, "config_class", None) is type(config):
            return named
    if stack.decoder is None or stack.head == "none":
        return transformers.AutoModel
    if stack.encoder is None:
        return transformers.AutoModelForCausalLM
    speech = type(config) in transformers.MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING
    return transformers.AutoModelForSpeechSeq2Seq if speech else transformers.AutoModelForSeq2SeqLM


def _sized(kind: Any, config: Any, folder: str) -> tuple[Any, Any]:
    """`kind`, and the class to load with: one that makes room for other head counts where heads were removed."""
    from manyheads.checkpoints.config import read_config
    from manyheads.checkpoints.families import named
    from manyheads.checkpoints.pruned import KEY

    settings = config.to_dict()
    record = settings.pop(KEY, None)
    if not isinstance(record, dict) or record.get("form") != "compact":
        return kind, kind
    from manyheads.models.load.resize import shrinking

    if not hasattr(kind, "config_class") or kind.__name__.startswith("AutoModel"):
        kind = kind._model_mapping[type(config)]
    where = shown_path(folder)
    now, then = read_config(settings, source=where), read_config({**settings, KEY: record}, source=where)
    return kind, shrinking(kind, named(now.family), now.stack, then.stack)


def _check_complete(info: Any, folder: str) -> None:
    missing = sorted(info.get("missing_keys") or ())
    if missing:
        raise CheckpointError(
            f"{shown_path(folder)}: {len(missing)} weights of the model are not in its files ({few(missing)}); they "
            "would be random numbers, and everything measured with them too"
        )
    odd = sorted(str(item[0] if isinstance(item, tuple) else item) for item in info.get("mismatched_keys") or ())
    if odd:
        raise CheckpointError(f"{shown_path(folder)}: tensors have another shape than the config says ({few(odd)})")


def _tokenizer(folder: str, gguf: str = "") -> tuple[Any, str]:
    """The tokenizer, or None and why there is none: a model without one can still be measured on random tokens."""
    import transformers

    broken = "" if gguf else trial(folder, (shipped_text().text, "a b", ""))
    if broken:
        return None, f"no tokenizer that can be used: {broken}"
    options = {"local_files_only": True, "trust_remote_code": False, **({"gguf_file": gguf} if gguf else {})}
    try:
        with panics_told("its library breaks"):
            tokenizer = transformers.AutoTokenizer.from_pretrained(folder, **options)
        ids = tokenized(tokenizer, "a b", add_special_tokens=False)["input_ids"]
    except Exception as error:  # noqa: BLE001  each kind of tokenizer fails in its own way
        return None, f"no tokenizer that transformers can load ({first_line(error)})"
    why = ("" if gguf else invented(tokenizer, folder)) or ("" if ids else "its tokenizer makes no tokens of a text")
    return (None, why) if why else (tokenizer, "")


def _from_gguf(checkpoint: Checkpoint, dtype: str, say: Say) -> Loaded:
    """The dequantised model from the user's cache, or from the file, and then kept in the cache for the next time."""
    import transformers

    path = checkpoint.located.text
    try:
        sha256 = unpacked.file_sha256(path)
        entry = unpacked.entry_folder(sha256, transformers.__version__)
    except OSError as error:
        say(f"no cache for the dequantised model: {error.strerror or error}")
        return _dequantised(checkpoint, dtype, say)
    if unpacked.intact(entry, sha256):
        try:
            return replace(_from_folder(str(entry), checkpoint, dtype), source=path, kept=str(entry))
        except CheckpointError as error:
            say(f"the cached copy cannot be used and is made again: {error}")
    elif entry.exists():
        say(f"the cached copy in {entry} is damaged and is made again")
    from manyheads.ops.dtypes import torch_dtype

    loaded = _dequantised(checkpoint, "fp32", say)
    why = unpacked.keep(entry, sha256, lambda part: _save(loaded, part))
    say(f"kept for the next time in {entry}" if not why else f"not kept for the next time in {entry}: {why}")
    return replace(loaded, model=loaded.model.to(torch_dtype(dtype)))


def _dequantised(checkpoint: Checkpoint, dtype: str, say: Say) -> Loaded:
    folder, name = os.path.split(os.path.abspath(checkpoint.located.text))
    check_beside(folder)
    say(f"dequantising {name}: this takes a while, and is done once")
    model, notes = _pretrained(folder, checkpoint.stack, dtype, gguf=name)
    tokenizer, why = _tokenizer(folder, gguf=name)
    return Loaded(checkpoint, model, tokenizer, why, os.path.join(folder, name), notes=notes)


def _save(loaded: Loaded, folder: Path) -> None:
    """The plain model and its tokenizer as files; what says that it once was quantised is taken away first."""
    model = loaded.model
    model.hf_quantizer = None
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    model.save_pretrained(folder)
    if loaded.tokenizer is not None:
        loaded.tokenizer.save_pretrained(folder)


def first_line(error: BaseException) -> str:
    """What an error says, or its kind where it says nothing, in one line of at most 200 characters."""
    return (str(error).strip() or type(error).__name__).splitlines()[0][:200]


def _loading_reason(error: Exception) -> str:
    if "trust_remote_code" in str(error):
        return "it needs code of its own, which manyheads does not run"
    return f"{type(error).__name__}: {first_line(error)}"
