"""A family is data: how published configurations spell a kind of model, and how its files store the tensors."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from manyheads.checkpoints.draft import Draft
    from manyheads.checkpoints.encoders import EncoderDraft
    from manyheads.checkpoints.fields import Fields

__all__ = ["Family", "Stored", "like"]

# Compared by identity and never shown: without generated __eq__ and __repr__ the classes are made in half the time.


@dataclass(frozen=True, eq=False, repr=False)
class Stored:
    """How one tensor of a file is made of canonical ones (`manyheads.spec.inventory`).

    name    name in the file; {i} is the layer, {x} the index along `each`
    parts   (canonical name, pattern) each. A pattern is einops': "(h q) m" rearranges the weight's own axes;
            "(k g) q m -> k (g q) m" first splits them; "..." leaves the tensor as it is.
    axis    the parts, rearranged, are joined along this axis
    merge   then this axis and the next become one; -1 for none
    each    letter of a leading axis of which every index has a tensor of its own (one file tensor an expert)
    when    conditions, all of which must hold: a canonical weight that the layer must have, or "parallel", said of its
            block
    pairs   of each head (axis q), the elements that rotary positions turn lie as (2i, 2i + 1) where the weight has them as
            (i, i + dim/2); what is not rotated lies as it is
    """

    name: str
    parts: tuple[tuple[str, str], ...]
    axis: int = 0
    merge: int = -1
    each: str = ""
    when: str = ""
    pairs: bool = False


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Family:
    """What the shared reader needs to know of one kind of model.

    name, model_types  our name; the values of `model_type` that mean it
    stack              which shared reader builds it: "decoder", "encoder", "seq2seq", or "rotary_encoder" (an encoder made
                       of a decoder's parts: rotation, windows, gates)
    spellings          keys of this family for a canonical field, tried before the common ones
    derived            sizes of heads ("head_dim", "kv_heads") that transformers' class works out itself, whatever a configuration
                       says; v_head_dim is one wherever there are no latents
    defaults           what transformers' config class takes where the key is absent, by canonical field
    norm               "rms" or "layer"; gain and shift as in `manyheads.spec.Norm`
    norm_places        places of the norms in a block (`manyheads.spec.stack.NORM_PLACES`)
    final_norm, embedding_norm, parallel, gated   as in the spec
    bias               projections that always have a bias; `bias_fields`: a flag and the projections it gives one
    mlp_bias           the MLP's biases, where no field says
    qk_norm            "" | "head" | "each_head" | "full": always there; `qk_norm_field` only where the flag says so
    positions          "rope" | "alibi" | "buckets" | "learned" | "sinusoidal" (stored, not learned) | "none"
    position_extra     rows of the position table beyond the context (OPT: 2)
    rope_layout        "halves" | "interleaved"; `rope_share`: the keys under which the class reads how much of a head is rotated,
                       none where it turns all of it
    windows            which layers a window acts on where no list says: "all" | "odd" (1st, 3rd, ...) | "odd_below" (of
                       those, the ones below max_window_layers) | "from_layer" | "pattern"; `window_period`: every
                       how-manieth layer is full
    moe                layers are mixtures; `moe_bias`, `router_bias`, `shared_gate` as in the spec
    latent             multi-head latent attention
    linear             layers of linear attention, which `finish` describes
    layout             how each canonical tensor is stored
    ignored            regular expressions of stored names that are no weights of the model
    prefixes           other ways that files begin the names, each a tuple of (as the layout writes it, as they do)
    nested_defaults    sizes that transformers' class has, for a `text_config` that holds only what differs from them
    scale              factor on the logits where it is not 1/sqrt(head_dim) (T5: 1); 0 for that
    optional           canonical names (their beginnings) of tensors beside the stack that a file may leave out
    task_heads         regular expressions of stored names that belong to a task's head, not to the model
    copies             stored names that repeat another tensor, each (a regular expression, what they repeat: a canonical
                       name, or one in the files); those of a task's head only where the configuration ties it
    endings            other ways that files end the names, each a tuple of (as the layout writes it, as they do)
    refused            settings that make it a model that is not described, each (key, value that is, why)
    passed_over        settings that are understood and change nothing here
    finish             the one function a family may have, for what no table can say; `finish_encoder` where the model
                       has an encoder
    """

    name: str
    model_types: tuple[str, ...]
    stack: str = "decoder"
    spellings: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    derived: tuple[str, ...] = ()
    defaults: Mapping[str, Any] = field(default_factory=dict)
    norm: str = "rms"
    gain: str = "w"
    shift: bool = False
    norm_places: tuple[str, ...] = ("pre_attention", "pre_mlp")
    final_norm: bool = True
    embedding_norm: bool = False
    parallel: bool = False
    gated: bool = True
    bias: str = ""
    bias_fields: tuple[tuple[str, str], ...] = ()
    mlp_bias: bool = False
    qk_norm: str = ""
    qk_norm_field: str = ""
    positions: str = "rope"
    position_extra: int = 0
    rope_layout: str = "halves"
    rope_share: tuple[str, ...] = ()
    windows: str = ""
    window_period: int = 0
    moe: bool = False
    moe_bias: bool = False
    router_bias: str = "none"
    shared_gate: bool = False
    latent: bool = False
    linear: bool = False
    layout: tuple[Stored, ...] = ()
    ignored: tuple[str, ...] = ()
    prefixes: tuple[tuple[tuple[str, str], ...], ...] = ()
    nested_defaults: Mapping[str, Any] = field(default_factory=dict)
    scale: float = 0.0
    optional: tuple[str, ...] = ()
    task_heads: tuple[str, ...] = ()
    copies: tuple[tuple[str, str], ...] = ()
    endings: tuple[tuple[tuple[str, str], ...], ...] = ()
    refused: tuple[tuple[str, Any, str], ...] = ()
    passed_over: tuple[str, ...] = ()
    finish: Callable[[Fields, Draft], None] | None = None
    finish_encoder: Callable[[Fields, EncoderDraft], None] | None = None


def like(parent: Family, name: str, *model_types: str, **differs: Any) -> Family:
    """A family that is `parent` but for `differs`. The sizes of the parent's class (`nested_defaults`) are not inherited."""
    return replace(parent, **{"name": name, "model_types": model_types or (name,), "nested_defaults": {}, **differs})
