"""Writes docs/model-types.md: what becomes of every model type that transformers knows, held against its own models.

    python benchmarks/model_types.py > docs/model-types.md

Each type's default configuration is read by `manyheads.checkpoints.read_config`, its model is made by transformers without
weights (on the meta device), and parameters are counted on both sides. `python benchmarks/model_types.py TYPE ...` prints one line
for each type named.
"""

from __future__ import annotations

import datetime
import importlib
import inspect
import re
import sys
import warnings
from collections import Counter
from dataclasses import dataclass, replace
from typing import Any

import torch
import transformers
from transformers.models.auto import modeling_auto
from transformers.models.auto.configuration_auto import CONFIG_MAPPING, CONFIG_MAPPING_NAMES

from manyheads.checkpoints import read_config
from manyheads.checkpoints.config import text_part
from manyheads.checkpoints.families import MODULES
from manyheads.checkpoints.refusals import misleading
from manyheads.errors import ManyheadsError
from manyheads.spec import StackSpec, count, weights

# Default configurations that transformers itself cannot make a model of, with what is missing in them.
COMPLETED: dict[str, dict[str, Any]] = {
    "chameleon": {"vocabulary_map": {"<image>": 8711}},
    "cohere_compass": {
        "text_config": {"rope_parameters": {"full_attention": {"rope_type": "default", "rope_theta": 1e4}}}
    },
    "cohere_compass_text": {"rope_parameters": {"full_attention": {"rope_type": "default", "rope_theta": 1e4}}},
    "deepseek_v2": {"num_experts_per_tok": 6},
    "dots1": {"n_shared_experts": 2, "n_routed_experts": 128},
    "hunyuan_v1_dense": {"head_dim": 128},
    "hunyuan_v1_moe": {"head_dim": 128},
    "hunyuan_vl": {"text_config": {"head_dim": 128}},
    "hunyuan_vl_text": {"head_dim": 128},
    "ministral": {"head_dim": 128},
    "nemotron": {"num_key_value_heads": 8, "head_dim": 128},
}

# What makes a model with its head, in order of preference; then what makes the bare one.
_WHOLE = (
    {
        **modeling_auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES,
        **modeling_auto.MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING_NAMES,
    },
    modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
)
_MASKED, _BARE = modeling_auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES, modeling_auto.MODEL_MAPPING_NAMES


@dataclass(frozen=True)
class Outcome:
    """What became of one model type.

    verdict  "equal", "differs", "refused", "not built" (transformers makes no model of it) or "escaped" (an exception that is
             no refusal)
    family   what read it, "" where it was refused
    part     the part that was priced, "" for the whole
    ours, theirs  parameters, 0 where there is nothing to compare
    said     why it was refused or not built, else what the reader noted
    """

    model_type: str
    verdict: str
    family: str = ""
    part: str = ""
    ours: int = 0
    theirs: int = 0
    said: str = ""

    @property
    def difference(self) -> float:
        """How much more is derived than transformers has, as a share."""
        return self.ours / self.theirs - 1 if self.theirs else 0.0


def outcome(model_type: str) -> Outcome:
    """Read the default configuration of `model_type` and hold it against the model that transformers makes of it."""
    try:
        config = CONFIG_MAPPING[model_type](**COMPLETED.get(model_type, {}))
        settings = config.to_dict()
    except Exception as error:  # noqa: BLE001  whatever transformers raises
        return Outcome(model_type, "not built", said=f"no default configuration: {_line(error)}")
    try:
        found = read_config(settings, source=model_type)
    except ManyheadsError as error:
        return Outcome(model_type, "refused", said=str(error).removeprefix(f"{model_type}: "))
    except Exception as error:  # noqa: BLE001  what must not come out
        return Outcome(model_type, "escaped", said=repr(error))
    inner, _ = text_part(settings)
    key = next((name for name in settings if settings[name] is inner), "")
    told = Outcome(model_type, "equal", found.family, key, said="; ".join(found.notes))
    try:
        theirs, whole = parameters_of(getattr(config, key) if key else config)
    except Exception as error:  # noqa: BLE001
        return replace(told, verdict="not built", said=_line(error))
    ours = count(weights(found.stack if whole else without_head(found.stack)))
    return replace(told, verdict="equal" if ours == theirs else "differs", ours=ours, theirs=theirs)


def parameters_of(config: Any) -> tuple[int, bool]:
    """Parameters that transformers stores for a model of `config`, and whether its head is among them."""
    cls, whole = _class_of(config)
    with torch.device("meta"):
        model = cls(config)
    unsaved = [re.compile(pattern) for pattern in getattr(model, "_keys_to_ignore_on_save", None) or ()]
    stored = (p.numel() for name, p in model.named_parameters() if not any(u.search(name) for u in unsaved))
    return sum(stored), whole


def without_head(stack: StackSpec) -> StackSpec:
    """The bare model."""
    return replace(stack, head="none", head_bias=False, head_softcap=None)


def _class_of(config: Any) -> tuple[Any, bool]:
    """The class that makes the model, and whether it has a head for words."""
    name = config.model_type
    if name in _MASKED and name in _BARE and name not in _WHOLE[0]:
        return _named(_BARE[name]), False
    for mapping in _WHOLE:
        if name in mapping:
            return _named(mapping[name]), True
    if name in _BARE:
        return _named(_BARE[name]), False
    return _by_configuration(type(config)), False


def _named(name: Any) -> Any:
    return getattr(transformers, name if isinstance(name, str) else name[0])


def _by_configuration(config_class: type) -> Any:
    """The model class that says it is made of `config_class`, where no table of transformers leads to one."""
    module = importlib.import_module(config_class.__module__.replace(".configuration_", ".modeling_"))
    made_of = [
        cls
        for _, cls in inspect.getmembers(module, inspect.isclass)
        if issubclass(cls, transformers.PreTrainedModel)
        and getattr(cls, "config_class", None) is config_class
        and not cls.__name__.endswith("PreTrainedModel")
    ]
    if not made_of:
        raise LookupError(f"no model class is made of {config_class.__name__}")
    return min(made_of, key=lambda cls: (not cls.__name__.endswith("Model"), len(cls.__name__)))


def _line(error: BaseException) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:100]}"


def outcomes(model_types: list[str] | None = None) -> list[Outcome]:
    """Every model type of the installed transformers, or those named."""
    warnings.simplefilter("ignore")
    transformers.logging.set_verbosity_error()
    torch.set_num_threads(1)
    return [outcome(name) for name in model_types or sorted(CONFIG_MAPPING_NAMES)]


HEAD = """\
# Model types

What `manyheads cost` makes of each `model_type` that transformers {version} knows. Each type's default configuration is read,
transformers makes its own model of it without weights, and parameters are counted on both sides. This page is written by
`python benchmarks/model_types.py` ({date}).

- **family**: described, with the names and layouts of its files, so that a file's header is checked as well;
- **like X**: no family of its own, read by its fields as X, and the count is the model's;
- **left out**: read so, and less than a thousandth of the parameters is missing or too much: the note says what;
- **text part**: of a larger model only the part that reads text is priced, and its count is the text model's own.

Every other type is refused in one line that says why: {refused} of {total}, most of which read no text.

| | types |
|---|---|
"""


def page(found: list[Outcome]) -> str:
    """docs/model-types.md: a short table, then what is left out, then what is refused by name, then the other refusals."""
    types_of: dict[str, list[str]] = {}
    for each in found:
        types_of.setdefault(_kind(each), []).append(f"`{each.model_type}`")
    verdicts = Counter(each.verdict for each in found)
    parts = [HEAD.format(version=transformers.__version__, date=datetime.datetime.now(tz=datetime.UTC).date(),
                         refused=verdicts["refused"], total=len(found))]  # fmt: skip
    order = ("family", "like ", "text part", "not built")
    shown = sorted((kind for kind in types_of if kind.startswith(order)), key=lambda kind: (_rank(kind, order), kind))
    parts += [f"| {kind} | {', '.join(types_of[kind])} |\n" for kind in shown]
    parts.append("\n## Left out\n\n| type | derived / transformers' | what |\n|---|---:|---|\n")
    parts += [
        f"| `{each.model_type}` | {each.difference:+.3%} | {each.said.rpartition('; ')[2]} |\n"
        for each in found if each.verdict == "differs"
    ]  # fmt: skip
    parts.append("\n## Refused by name\n\n| type | why |\n|---|---|\n")
    parts += [f"| `{name}` | {why} |\n" for name, why in sorted(misleading().items())]
    parts.append("\n## Refused for what its configuration says\n\n" + ", ".join(types_of.get("refused", [])) + "\n")
    return "".join(parts)


def _rank(kind: str, order: tuple[str, ...]) -> int:
    return next(rank for rank, begins in enumerate(order) if kind.startswith(begins))


def _kind(each: Outcome) -> str:
    """The row of the table that an outcome belongs to."""
    if each.verdict == "refused":
        return "refused by name" if each.model_type in misleading() else "refused"
    if each.verdict != "equal":
        return each.verdict
    if each.part:
        return "text part"
    described = any(each.model_type in types for types in MODULES.values())
    return "family" if described else f"like {each.family}"


def main() -> None:
    """Print the page, or a line for each type that was named."""
    named = sys.argv[1:]
    found = outcomes(named)
    if not named:
        print(page(found), end="")
    for each in found if named else ():
        print(each.verdict, each.model_type, each.family, each.ours, each.theirs, f"{each.difference:+.3%}", each.said)


if __name__ == "__main__":
    main()
