"""AttentionSpec as text and back; the grammar stands in `manyheads.spec.text`, the door to this module."""

from __future__ import annotations

import re

from manyheads.errors import SpecError
from manyheads.spec.attention import AttentionSpec, Bias, Borrowed, Cross, Self, Source, even_head_dim
from manyheads.spec.kv import KV, Heads, Latent, State
from manyheads.spec.masks import Band, Bidirectional, Causal, Chunk, Mask, Window
from manyheads.spec.norms import Norm, QKNorm
from manyheads.spec.positions import (
    Alibi,
    DynamicScaling,
    LinearScaling,
    Llama3Scaling,
    LongRopeScaling,
    NoPositions,
    NoScaling,
    Positions,
    RelativeBuckets,
    Rope,
    RopeScaling,
    YarnScaling,
)
from manyheads.spec.syntax import Call, Value, build, call_text, flag, number_text, real, short, suggest, whole, word

__all__ = ["SCHEMES", "attention", "attention_text", "norm", "norm_text"]

SCHEMES = ("mha", "gqa", "mqa", "mla", "linear")

# Every option, in the order in which it is written.
_OF_SCHEME = {
    "mla": ("rank", "v", "q_rank", "norm"),
    "linear": (
        "v", "value_heads", "state_heads", "map", "features", "normalised", "rule", "decay", "beta", "conv", "norm",
    ),
}  # fmt: skip
_OF_HEADS = ("v",)
_OF_ALL = (
    "rope", "rope_dim", "rope_layout", "rope_scaling", "alibi", "buckets", "max_distance", "two_sided", "nope",
    "causal", "window", "band", "chunk", "bidirectional", "cross", "borrowed",
    "bias", "scale", "softcap", "sinks", "qk_norm", "gate",
)  # fmt: skip
_FLAGS = ("alibi", "two_sided", "nope", "causal", "bidirectional", "sinks", "gate", "normalised", "qk_norm", "rope")
_SCALINGS: dict[str, type[RopeScaling]] = {
    "linear": LinearScaling,
    "dynamic": DynamicScaling,
    "llama3": Llama3Scaling,
    "yarn": YarnScaling,
    "longrope": LongRopeScaling,
}
_MASKS = ("causal", "bidirectional", "window", "band", "chunk")
_HEADS = re.compile(r"([0-9]{1,40})(?:/([0-9]{1,40}))?(?:x([0-9]{1,40})(?:\+([0-9]{1,40}))?)?")


class _Options:
    """The options of one layer by name: each known to its scheme, each given once."""

    def __init__(self, scheme: str, items: list[tuple[str, Value, int]]) -> None:
        self.scheme = scheme
        self.values: dict[str, Value] = {}
        valid = (*_OF_SCHEME.get(scheme, _OF_HEADS), *_OF_ALL)
        for key, value, place in items:
            name = key or (value.lower() if isinstance(value, str) else value.name)
            if name not in valid:
                raise SpecError(f"character {place}: {short(name)} is no option of {scheme}" + suggest(name, valid))
            if not key and not (isinstance(value, str) and name in _FLAGS):
                raise SpecError(f"character {place}: {name} needs a value, as in {name}=...")
            if name in self.values:
                raise SpecError(f"character {place}: {name} is given twice")
            self.values[name] = value if key else "yes"

    def __contains__(self, name: str) -> bool:
        return name in self.values

    def whole(self, name: str, default: int) -> int:
        return whole(name, self.values[name]) if name in self.values else default

    def word(self, name: str, default: str) -> str:
        return word(name, self.values[name]) if name in self.values else default

    def flag(self, name: str, *, default: bool = False) -> bool:
        return flag(name, self.values[name]) if name in self.values else default

    def only_one(self, what: str, names: tuple[str, ...]) -> str:
        """The one of `names` that is given, "" for none."""
        given = [name for name in names if name in self.values]
        if len(given) > 1:
            raise SpecError(f"one {what} at a time; found {' and '.join(given)}")
        return given[0] if given else ""


def attention(call: Call) -> AttentionSpec:
    """The layer that `call` describes."""
    scheme = call.name
    if scheme not in SCHEMES:
        raise SpecError(f"{short(scheme)} is no kind of attention" + suggest(scheme, SCHEMES))
    if len(call.items) < 2 or call.items[0][0] or call.items[1][0]:
        raise SpecError(f"{scheme} begins with d_model and heads, as in {scheme}(4096, {_EXAMPLES[scheme]}, ...)")
    d_model = whole("d_model", call.items[0][1])
    heads = _HEADS.fullmatch(call.items[1][1]) if isinstance(call.items[1][1], str) else None
    if heads is None:
        raise SpecError(f"heads of {scheme} are written {_EXAMPLES[scheme]}, found {short(call.items[1][1])}")
    options = _Options(scheme, call.items[2:])
    kv = _kv(options, d_model, heads)
    source = _source(options)
    return AttentionSpec(
        d_model=d_model,
        num_heads=int(heads[1]),
        kv=kv,
        positions=_positions(options, kv),
        mask=_mask(options, source),
        source=source,
        bias=Bias.of(options.word("bias", "")),
        scale=real("scale", options.values["scale"]) if "scale" in options else kv.head_dim**-0.5,
        softcap=real("softcap", options.values["softcap"]) if "softcap" in options else None,
        sinks=options.flag("sinks"),
        qk_norm=_qk_norm(options.values.get("qk_norm")),
        output_gate=options.flag("gate"),
    )


_EXAMPLES = {"mha": "32x128", "gqa": "32/8x128", "mqa": "32x128", "mla": "32x128+64", "linear": "32x128"}


def _kv(options: _Options, d_model: int, heads: re.Match[str]) -> KV:
    scheme, num_heads = options.scheme, int(heads[1])
    if scheme == "mla":
        return _latent(options, heads)
    if heads[4]:
        raise SpecError(f"{heads[0]}: only mla splits a head into parts without and with rotation (N+R)")
    q = int(heads[3]) if heads[3] else even_head_dim(d_model, num_heads)
    if scheme == "linear":
        return _state(options, int(heads[2] or num_heads), q)
    usual = {"mha": num_heads, "mqa": 1, "gqa": 0}[scheme]
    num_kv_heads = int(heads[2]) if heads[2] else usual
    if not heads[2] and scheme == "gqa":
        raise SpecError(f"gqa needs key/value heads after a slash, as in {num_heads}/8; found {heads[0]}")
    if scheme != "gqa" and num_kv_heads != usual:
        raise SpecError(f"{scheme} with {num_heads} heads has {usual} key/value heads, found {num_kv_heads}; write gqa")
    return Heads(num_kv_heads, q, options.whole("v", q))


def _latent(options: _Options, heads: re.Match[str]) -> Latent:
    if not heads[3] or heads[2]:
        raise SpecError(
            f"heads of mla are written HxN+R, parts without and with rotation, as in 128x128+64; found {heads[0]}"
        )
    if "rank" not in options:
        raise SpecError("mla needs rank=..., the width of the latent that is kept (512 in DeepSeek-V3)")
    nope = int(heads[3])
    own_norm = norm("norm", options.values["norm"]) if "norm" in options else Norm()
    return Latent(
        options.whole("rank", 0),
        nope,
        int(heads[4] or 0),
        options.whole("v", nope),
        options.whole("q_rank", 0),
        own_norm,
    )


def _state(options: _Options, num_key_heads: int, q: int) -> State:
    num_value_heads = options.whole("value_heads", num_key_heads)
    return State(
        num_key_heads,
        num_value_heads,
        options.whole("state_heads", max(num_key_heads, num_value_heads)),
        q,
        options.whole("features", q),
        options.whole("v", q),
        options.word("map", "elu+1"),
        options.flag("normalised", default=True),
        options.word("rule", "sum"),
        options.word("decay", "none"),
        options.word("beta", "none"),
        options.whole("conv", 0),
        norm("norm", options.values["norm"]) if "norm" in options else None,
    )


def _positions(options: _Options, kv: KV) -> Positions:
    given = options.only_one("kind of position", ("rope", "alibi", "buckets", "nope"))
    latent_rope = kv.rope_dim if isinstance(kv, Latent) else 0
    if given == "rope" or (not given and latent_rope):
        return _rope(options, latent_rope or kv.head_dim, "interleaved" if isinstance(kv, Latent) else "halves")
    for name in ("rope_dim", "rope_layout", "rope_scaling"):
        if name in options:
            raise SpecError(f"{name} needs rope, as in rope=1e4")
    if given == "buckets":
        return RelativeBuckets(
            options.whole("buckets", 0), options.whole("max_distance", 128), options.flag("two_sided")
        )
    for name in ("max_distance", "two_sided"):
        if name in options:
            raise SpecError(f"{name} needs buckets, as in buckets=32")
    if given in ("alibi", "nope") and not options.flag(given):
        raise SpecError(f"{given} is written alone; leave it out for none")
    return Alibi() if given == "alibi" else NoPositions()


def _rope(options: _Options, dim: int, layout: str) -> Rope:
    base = options.values.get("rope", "yes")
    scaling = options.values.get("rope_scaling")
    return Rope(
        options.whole("rope_dim", dim),
        10000.0 if base == "yes" else real("rope", base),
        options.word("rope_layout", layout),
        NoScaling() if scaling is None else _scaling(scaling),
    )


def _scaling(value: Value) -> RopeScaling:
    name = value.name if isinstance(value, Call) else value.lower()
    if name not in _SCALINGS:
        raise SpecError(f"{short(name)} is no rope_scaling" + suggest(name, _SCALINGS))
    return build(_SCALINGS[name], value if isinstance(value, Call) else Call(name, []))


def _mask(options: _Options, source: Source) -> Mask:
    given = options.only_one("mask", _MASKS)
    if given in ("causal", "bidirectional") and not options.flag(given):
        raise SpecError(f"{given} is written alone; name another mask instead")
    if given == "window":
        return Window(options.whole("window", 0))
    if given == "band":
        return Band(options.whole("band", 0))
    if given == "chunk":
        return Chunk(options.whole("chunk", 0))
    if given == "bidirectional" or (not given and isinstance(source, Cross)):
        return Bidirectional()
    return Causal()


def _source(options: _Options) -> Source:
    given = options.only_one("source", ("cross", "borrowed"))
    if given == "cross":
        return Cross(options.whole("cross", 0))
    return Borrowed(options.whole("borrowed", 0)) if given else Self()


def norm(name: str, value: Value) -> Norm | None:
    """`rms(eps=1e-5)`, `layer(shift)`, `none`."""
    kind = value.name if isinstance(value, Call) else value.lower()
    if kind == "none" and isinstance(value, str):
        return None
    if kind not in ("rms", "layer"):
        raise SpecError(f"{name} is rms, layer or none, found {short(value)}")
    return build(Norm, value if isinstance(value, Call) else Call(kind, []), {"kind": kind})


def _qk_norm(value: Value | None) -> QKNorm | None:
    if value is None:
        return None
    items = value.items if isinstance(value, Call) else []
    own = [item for item in items if item[0] in ("scope", "place")]
    rest = Call(value.name, [item for item in items if item not in own]) if isinstance(value, Call) else value
    inner = Norm() if rest == "yes" else norm("qk_norm", rest)
    return None if inner is None else build(QKNorm, Call("qk_norm", own), {"norm": inner})


def norm_text(value: Norm | None, **extra: str) -> str:
    """The text that `norm` reads."""
    return "none" if value is None else call_text(value.kind, value, extra, skip="kind")


def attention_text(spec: AttentionSpec) -> str:
    """The text that `attention` reads as `spec`, defaults left out."""
    scheme, kv = spec.scheme, spec.kv
    if isinstance(kv, Latent):
        heads = f"{spec.num_heads}x{kv.nope_dim}" + (f"+{kv.rope_dim}" if kv.rope_dim else "")
    else:
        keys = kv.num_kv_heads if isinstance(kv, Heads) else kv.num_key_heads
        slash = f"/{keys}" if scheme == "gqa" or (scheme == "linear" and keys != spec.num_heads) else ""
        heads = f"{spec.num_heads}{slash}x{kv.head_dim}"
    parts = [str(spec.d_model), heads, *_kv_words(kv), *_position_words(spec), *_mask_words(spec)]
    if spec.bias.letters:
        parts.append(f"bias={spec.bias.letters}")
    if spec.scale != spec.head_dim**-0.5:
        parts.append(f"scale={number_text(spec.scale)}")
    if spec.softcap is not None:
        parts.append(f"softcap={number_text(spec.softcap)}")
    if spec.sinks:
        parts.append("sinks")
    if spec.qk_norm is not None:
        parts.append("qk_norm=" + _qk_norm_text(spec.qk_norm))
    if spec.output_gate:
        parts.append("gate")
    return f"{scheme}({', '.join(parts)})"


def _qk_norm_text(value: QKNorm) -> str:
    plain = QKNorm()
    extra = {name: getattr(value, name) for name in ("scope", "place") if getattr(value, name) != getattr(plain, name)}
    return norm_text(value.norm, **extra)


def _differing(pairs: tuple[tuple[str, object, object], ...]) -> list[str]:
    return [f"{name}={value}" for name, value, usual in pairs if value != usual]


def _kv_words(kv: KV) -> list[str]:
    if isinstance(kv, Heads):
        return _differing((("v", kv.v_head_dim, kv.head_dim),))
    if isinstance(kv, Latent):
        norms = [] if kv.norm == Norm() else [f"norm={norm_text(kv.norm)}"]
        return [f"rank={kv.rank}", f"v={kv.v_head_dim}", *_differing((("q_rank", kv.q_rank, 0),)), *norms]
    words = _differing((
        ("v", kv.v_head_dim, kv.head_dim),
        ("value_heads", kv.num_value_heads, kv.num_key_heads),
        ("state_heads", kv.num_state_heads, max(kv.num_key_heads, kv.num_value_heads)),
        ("map", kv.feature_map, "elu+1"),
        ("features", kv.feature_dim, kv.head_dim),
        ("normalised", "yes" if kv.normalised else "no", "yes"),
        ("rule", kv.rule, "sum"),
        ("decay", kv.decay, "none"),
        ("beta", kv.beta, "none"),
        ("conv", kv.conv_width, 0),
    ))  # fmt: skip
    return words if kv.norm is None else [*words, f"norm={norm_text(kv.norm)}"]


def _position_words(spec: AttentionSpec) -> list[str]:
    positions, latent = spec.positions, isinstance(spec.kv, Latent)
    if isinstance(positions, Alibi):
        return ["alibi"]
    if isinstance(positions, RelativeBuckets):
        words = [f"buckets={positions.num_buckets}", f"max_distance={positions.max_distance}"]
        return [*words, "two_sided"] if positions.two_sided else words
    if not isinstance(positions, Rope):
        return []
    words = [f"rope={number_text(positions.base)}"]
    if not latent and positions.dim != spec.head_dim:
        words.append(f"rope_dim={positions.dim}")
    if positions.layout != ("interleaved" if latent else "halves"):
        words.append(f"rope_layout={positions.layout}")
    for name, kind in _SCALINGS.items():
        if isinstance(positions.scaling, kind):
            words.append(f"rope_scaling={call_text(name, positions.scaling)}")
    return words


def _mask_words(spec: AttentionSpec) -> list[str]:
    mask, words = spec.mask, []
    if isinstance(mask, Window):
        words.append(f"window={mask.keys}")
    elif isinstance(mask, Band):
        words.append(f"band={mask.radius}")
    elif isinstance(mask, Chunk):
        words.append(f"chunk={mask.size}")
    elif isinstance(mask, Bidirectional) and not isinstance(spec.source, Cross):
        words.append("bidirectional")
    if isinstance(spec.source, Cross):
        words.append(f"cross={spec.source.d_memory}")
    elif isinstance(spec.source, Borrowed):
        words.append(f"borrowed={spec.source.layer}")
    return words
