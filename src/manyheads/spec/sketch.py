"""The architect's sketch of a whole model as text; the grammar stands in `manyheads.spec.text`."""

from __future__ import annotations

from typing import cast

from manyheads.errors import SpecError
from manyheads.spec.attention import AttentionSpec, Cross
from manyheads.spec.attention_text import SCHEMES, attention, norm
from manyheads.spec.masks import Band, Bidirectional
from manyheads.spec.norms import Norm
from manyheads.spec.positions import RelativeBuckets
from manyheads.spec.stack import MOST_LAYERS, Block, HeadKind, Mlp, Moe, Role, Stack, StackSpec
from manyheads.spec.syntax import DEEPEST, Reader, Value, build, flag, real, short, suggest, whole, word

__all__ = ["model"]

_PARTS: dict[str, type[Mlp | Moe]] = {"mlp": Mlp, "moe": Moe}
_SETTINGS = (
    "vocab", "tied", "untied", "context", "positions", "norm", "norms", "final_norm", "embedding_norm", "parallel",
    "token_types", "head_bias", "head_softcap",
)  # fmt: skip
_FLAGS = ("tied", "untied", "parallel", "head_bias")
_NORMS = ("pre", "out", "post", "pre+out")

# A layer as written: its attentions, then its MLP or None.
_Layer = tuple[tuple[AttentionSpec, ...], Mlp | Moe | None]


def model(reader: Reader) -> StackSpec:
    """The model that the rest of `reader` describes."""
    rows: list[tuple[str, list[_Layer]]] = []
    settings: dict[str, Value] = {}
    while True:
        if reader.peek(1) == ":":
            role = reader.name("encoder or decoder")
            reader.expect(":", f"after {role}")
            rows.append((role, _groups(reader, 0)))
        elif not rows:
            rows.append(("", _groups(reader, 0)))
        else:
            settings |= _settings(reader, settings)
        if not reader.peek():
            return _assemble(rows, settings)
        reader.expect(";", "before settings, or ',' before more layers")
        if not reader.peek():
            return _assemble(rows, settings)


def _groups(reader: Reader, depth: int) -> list[_Layer]:
    layers = _group(reader, depth, 0)
    while reader.accept(","):
        layers += _group(reader, depth, len(layers))
    return layers


def _group(reader: Reader, depth: int, before: int) -> list[_Layer]:
    if reader.accept("("):
        if depth >= DEEPEST:
            raise reader.error(f"groups are nested more than {DEEPEST} deep")
        layers = _groups(reader, depth + 1)
        reader.expect(")", "at the end of a group")
    else:
        layers = [_layer(reader)]
    times = _times(reader)
    if before + times * len(layers) > MOST_LAYERS:
        raise SpecError(f"{before + times * len(layers)} layers are more than {MOST_LAYERS}")
    return layers * times


def _times(reader: Reader) -> int:
    following = reader.peek().lower()
    if following in ("x", "*"):
        reader.take()
        count = reader.take()
    elif following[:1] == "x" and following[1:].isdigit():
        count = reader.take()[1:]
    else:
        return 1
    times = whole("number of layers", count)
    if times < 1:
        raise SpecError(f"number of layers must be 1 or more, found {short(count)}")
    return times


def _layer(reader: Reader) -> _Layer:
    attentions: list[AttentionSpec] = []
    mlp: Mlp | Moe | None = None
    while True:
        place = reader.place()
        name = reader.name("a layer, as in gqa(4096, 32/8x128)")
        if name not in SCHEMES and name not in _PARTS:
            raise SpecError(
                f"character {place}: {short(name)} is no part of a layer" + suggest(name, (*SCHEMES, *_PARTS))
            )
        call = reader.call(name)
        if name in _PARTS and mlp is not None:
            raise SpecError(f"character {place}: a layer has one mlp or moe, found two")
        try:
            if name in SCHEMES:
                attentions.append(attention(call))
            else:
                mlp = build(_PARTS[name], call)
        except SpecError as error:
            raise SpecError(
                str(error) if str(error).startswith("character") else f"character {place}: {error}"
            ) from None
        if not reader.accept("+"):
            return tuple(attentions), mlp


def _settings(reader: Reader, before: dict[str, Value]) -> dict[str, Value]:
    found: dict[str, Value] = {}
    while True:
        place = reader.place()
        name = reader.name("a setting, as in vocab=32000")
        if name not in _SETTINGS:
            raise SpecError(f"character {place}: {short(name)} is no setting" + suggest(name, _SETTINGS))
        if name in found or name in before:
            raise SpecError(f"character {place}: {name} is given twice")
        if reader.accept("="):
            found[name] = reader.value()
        elif name in _FLAGS:
            found[name] = "yes"
        else:
            raise reader.error(f"{name} needs a value, as in {name}=...; expected '='")
        if not reader.accept(","):
            return found


def _assemble(rows: list[tuple[str, list[_Layer]]], settings: dict[str, Value]) -> StackSpec:
    vocab = whole("vocab", settings["vocab"]) if "vocab" in settings else 0
    return StackSpec(
        stacks=tuple(_stack(role, layers, settings) for role, layers in rows),
        vocab_size=vocab,
        head=_head(settings, vocab),
        head_bias=flag("head_bias", settings.get("head_bias", "no")),
        head_softcap=real("head_softcap", settings["head_softcap"]) if "head_softcap" in settings else None,
        token_types=whole("token_types", settings.get("token_types", "0")),
        context=whole("context", settings.get("context", "0")),
    )


def _head(settings: dict[str, Value], vocab: int) -> HeadKind:
    tied, untied = (flag(name, settings.get(name, "no")) for name in ("tied", "untied"))
    if tied and untied:
        raise SpecError("a head is tied or untied, found both")
    if tied or untied:
        return "tied" if tied else "untied"
    return "none" if "untied" in settings or not vocab else "untied"


def _stack(role: str, layers: list[_Layer], settings: dict[str, Value]) -> Stack:
    seen = dict.fromkeys(layers)
    specs = [spec for attentions, _ in seen for spec in attentions]
    if not specs:
        raise SpecError("a stack needs at least one attention layer, whose d_model is that of all; found none")
    kind = _kind("norm", settings, Norm() if any(mlp for _, mlp in seen) else None)
    places = word("norms", settings.get("norms", "pre"))
    if places not in _NORMS:
        raise SpecError(f"norms must be one of {', '.join(_NORMS)}; found {short(places)}")
    blocks = {layer: _block(layer, kind, places, settings) for layer in seen}
    buckets = [spec.positions.num_buckets for spec in specs if isinstance(spec.positions, RelativeBuckets)]
    return Stack(
        role=cast("Role", role) if role else _role(specs),  # which refuses other words
        d_model=specs[0].d_model,
        blocks=tuple(blocks[layer] for layer in layers),
        position_rows=whole("positions", settings.get("positions", "0")),
        relative_buckets=max(buckets, default=0),
        embedding_norm=_kind("embedding_norm", settings, None),
        final_norm=_kind("final_norm", settings, None if places == "post" else kind),
    )


def _kind(name: str, settings: dict[str, Value], default: Norm | None) -> Norm | None:
    return norm(name, settings[name]) if name in settings else default


def _role(specs: list[AttentionSpec]) -> Role:
    """A stack that sees both ways and reads no memory encodes; every other one decodes."""
    both_ways = all(
        isinstance(spec.mask, Bidirectional | Band) and not isinstance(spec.source, Cross) for spec in specs
    )
    return "encoder" if both_ways else "decoder"


def _block(layer: _Layer, kind: Norm | None, places: str, settings: dict[str, Value]) -> Block:
    attentions, mlp = layer
    parts = ["cross" if isinstance(spec.source, Cross) else "attention" for spec in attentions]
    parts += ["mlp"] if mlp is not None else []
    return Block(
        attentions=attentions,
        mlp=mlp,
        norm=kind,
        norm_places=tuple(f"{place}_{part}" for part in parts for place in places.split("+")) if kind else (),
        parallel=flag("parallel", settings.get("parallel", "no")),
    )
