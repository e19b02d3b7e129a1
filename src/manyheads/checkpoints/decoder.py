"""Reading a decoder-only model: the one shared reader that every such family goes through."""

from __future__ import annotations

from dataclasses import replace

from manyheads.checkpoints.draft import FULL, LINEAR, Draft
from manyheads.checkpoints.family import Family
from manyheads.checkpoints.fields import Fields
from manyheads.checkpoints.refusals import refused_settings
from manyheads.checkpoints.rope import read_rope, yarn_scale_factor
from manyheads.checkpoints.windows import read_kinds
from manyheads.spec.attention import Bias, even_head_dim
from manyheads.spec.kv import Latent
from manyheads.spec.norms import Norm, QKNorm
from manyheads.spec.positions import Alibi, NoPositions, Positions
from manyheads.spec.stack import MOST_LAYERS, Moe

__all__ = ["read_decoder"]


def read_decoder(fields: Fields, family: Family) -> Draft:
    """The draft of a decoder-only model, or of an encoder made of a decoder's parts: sizes, norms, MLPs, masks, positions, and the family's own last word."""
    draft = _sizes(fields, family)
    fields.raw("is_decoder")
    if fields.flag("is_encoder_decoder"):
        draft.add_unsupported("is_encoder_decoder", "true", "an encoder-decoder of a kind that is not described")
    _norms(fields, draft, family)
    _biases(fields, draft, family)
    _mlps(fields, draft, family)
    read_kinds(fields, draft, family)
    _latent(fields, draft, family)
    _scores(fields, draft)
    _positions(fields, draft, family)
    _source_layers(fields, draft)
    draft.unsupported += refused_settings(fields, family)
    if family.finish is not None:
        family.finish(fields, draft)
    sizes = {"head_dim": draft.head_dim, "v_head_dim": draft.v_head_dim, "kv_heads": draft.kv_heads}
    for key, value, taken in fields.stray(sizes, _derived(family)):
        draft.add_unsupported(key, value, f"transformers' class of {family.name} does not read it and takes {taken}")
    return draft


def _derived(family: Family) -> tuple[str, ...]:
    """The sizes of heads of which no key is read; of a kind that nothing names, all are."""
    return family.derived if family.latent or family.name == "generic" else (*family.derived, "v_head_dim")


def _sizes(fields: Fields, family: Family) -> Draft:
    d_model, heads = fields.size("d_model"), fields.size("heads")
    layers = fields.size("layers")
    if layers > MOST_LAYERS:
        fields.fail(f"{fields.key('layers')} must be at most {MOST_LAYERS}, found {layers}")
    derived = _derived(family)
    kv_heads = None if "kv_heads" in derived else fields.optional_size("kv_heads")
    given = fields.has("kv_heads")
    kv_heads = heads if kv_heads is None else kv_heads
    if not family.latent and heads % kv_heads:
        absent = "" if given else f" (absent here: the default of {family.name} in transformers)"
        fields.fail(
            f"{fields.key('heads')} {heads} is not a multiple of {fields.key('kv_heads')} {kv_heads}{absent}; each "
            "key/value head must serve equally many query heads"
        )
    head_dim = None if "head_dim" in derived else fields.optional_size("head_dim")
    if head_dim is None:
        head_dim = fields.size("mla_rope_dim") if family.latent else even_head_dim(d_model, heads)
    v_head_dim = (None if "v_head_dim" in derived else fields.optional_size("v_head_dim")) or head_dim
    draft = Draft(d_model, layers, heads, kv_heads, head_dim, v_head_dim, scale=head_dim**-0.5)
    if not given and not family.latent and kv_heads != heads:
        draft.notes.append(f"{fields.names('kv_heads')[0]} is absent: {kv_heads}, transformers' default, is taken")
    draft.vocab_size = fields.size("vocab_size")
    draft.context = fields.optional_size("context", least=0) or 0
    draft.tied = fields.flag("tied")
    draft.parallel, draft.gated = family.parallel, family.gated
    draft.role = "decoder" if family.stack == "decoder" else "encoder"
    return draft


def _norms(fields: Fields, draft: Draft, family: Family) -> None:
    eps = fields.number("norm_eps", 1e-6 if family.norm == "rms" else 1e-5) or 1e-6
    norm = Norm(family.norm, eps, family.gain, family.shift)
    draft.norm, draft.norm_places = norm, family.norm_places
    draft.final_norm = norm if family.final_norm else None
    draft.embedding_norm = norm if family.embedding_norm else None
    scope = family.qk_norm
    if not scope and fields.flag("qk_norm"):
        scope = family.qk_norm_field
        if not scope:
            draft.add_unsupported(
                fields.key("qk_norm"), "true", f"{family.name} says nothing of where that norm stands"
            )
    if scope:
        shift = family.shift and family.norm == "layer"
        draft.qk_norm = QKNorm(Norm(family.norm, eps, family.gain, shift), scope)


def _biases(fields: Fields, draft: Draft, family: Family) -> None:
    letters = set(family.bias)
    for field, given in family.bias_fields:
        letters = letters | set(given) if fields.flag(field) else letters
    draft.bias = Bias.of("".join(sorted(letters)))
    draft.mlp_bias = family.mlp_bias or fields.flag("mlp_bias")


def _mlps(fields: Fields, draft: Draft, family: Family) -> None:
    experts = fields.optional_size("experts", least=0) or 0
    draft.mlp_width = fields.optional_size("mlp_width") or 0
    if experts:
        _mixture(fields, draft, family, experts)
    if not draft.mlp_width and (len(draft.moe_layers) < draft.layers):
        draft.mlp_width = 4 * draft.d_model if not family.gated else fields.size("mlp_width")


def _mixture(fields: Fields, draft: Draft, family: Family, experts: int) -> None:
    width = fields.optional_size("expert_width") or draft.mlp_width or fields.size("mlp_width")
    shared = fields.optional_size("shared_width", least=0)
    if shared is None:
        shared = (fields.optional_size("shared_experts", least=0) or 0) * width
    router_bias = family.router_bias
    if fields.word("topk_method") == "noaux_tc":
        router_bias = "buffer"
    draft.moe = Moe(
        experts, fields.size("active"), width, shared, gated=True, bias=family.moe_bias, router_bias=router_bias,
        shared_gate=family.shared_gate and shared > 0,
    )  # fmt: skip
    first = fields.optional_size("first_dense", least=0) or 0
    every = fields.optional_size("moe_every", 1) or 1
    step_after = "decoder_sparse_step" in fields.config  # Qwen counts layers from 1, DeepSeek from 0
    dense = fields.items("dense_layers") or []
    draft.moe_layers = frozenset(
        index
        for index in range(draft.layers)
        if index >= first and (index + step_after) % every == 0 and index not in dense
    )


def _latent(fields: Fields, draft: Draft, family: Family) -> None:
    rank = fields.optional_size("rank", least=0) or 0
    if not rank:
        if family.latent:
            fields.fail(f"{family.name} needs kv_lora_rank, an integer of 1 or more; it is absent, null or 0")
        return
    if not family.latent:
        draft.add_unsupported("kv_lora_rank", rank, f"{family.name} has no latent attention")
        return
    nope, rope = fields.size("nope_dim"), fields.size("mla_rope_dim", least=0)
    whole = fields.optional_size("qk_head_dim")
    if whole is not None and whole != nope + rope:
        fields.fail(f"qk_head_dim {whole} must be qk_nope_head_dim {nope} + qk_rope_head_dim {rope} = {nope + rope}")
    q_rank = fields.optional_size("q_rank", least=0) or 0
    draft.latent = Latent(rank, nope, rope, fields.size("v_head_dim"), q_rank, Norm("rms", 1e-6))
    draft.scale = draft.latent.head_dim**-0.5
    if not q_rank:  # the one matrix of the queries never has a bias
        draft.bias = replace(draft.bias, q=False)


def _scores(fields: Fields, draft: Draft) -> None:
    scalar = fields.number("query_scalar")
    if scalar is not None:
        draft.scale = scalar**-0.5
    multiplier = fields.number("attention_multiplier")
    if multiplier is not None:
        draft.scale = multiplier
    draft.softcap = fields.number("softcap")
    draft.head_softcap = fields.number("head_softcap")


def _positions(fields: Fields, draft: Draft, family: Family) -> None:
    kinds: dict[str, Positions] = {}
    if family.positions == "rope":
        width = draft.latent.rope_dim if draft.latent is not None else draft.head_dim
        kinds = read_rope(fields, draft, family, width)
        if draft.latent is not None:
            draft.scale *= yarn_scale_factor(kinds.get(FULL, NoPositions()))
    elif family.positions == "alibi":
        kinds = {FULL: Alibi()}
    elif family.positions in ("learned", "sinusoidal"):
        kinds = {FULL: NoPositions()}
        draft.position_rows = fields.size("context") + family.position_extra
    for kind in dict.fromkeys(draft.kinds):
        if family.positions == "rope" and kind != LINEAR and kind not in kinds:
            draft.add_unsupported("rope_parameters", ", ".join(kinds), f"it says nothing of the {kind} layers")
    draft.positions = kinds


def _source_layers(fields: Fields, draft: Draft) -> None:
    """The last `num_kv_shared_layers` layers read the keys and values of the last layer of their kind before them."""
    shared = fields.optional_size("shared_kv_layers", least=0) or 0
    if not shared:
        return
    first = draft.layers - shared
    if first < 1:
        fields.fail(
            f"num_kv_shared_layers {shared} must be less than {fields.key('layers')} {draft.layers}: a source layer is needed"
        )
    last = {kind: index for index, kind in enumerate(draft.kinds[:first])}
    for index in range(first, draft.layers):
        kind = draft.kinds[index]
        if kind not in last:
            fields.fail(
                f"layer {index} ({kind}) shares keys and values, but no {kind} layer stands before layer {first}"
            )
        draft.source_layers[index] = last[kind]
