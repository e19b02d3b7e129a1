"""Heads removed from models in memory: equal to masking them, on every family; counts, caches and records agree.

What is expected is worked out from the model itself by another way: zeros in the columns of the output projection.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from manyheads.errors import BackendError, ConversionError, ManyheadsError  # noqa: E402
from manyheads.heads.address import Head  # noqa: E402
from manyheads.heads.effects import ablated  # noqa: E402
from manyheads.heads.model_spec import describe  # noqa: E402
from manyheads.heads.pruning import mask, prune  # noqa: E402
from manyheads.heads.pruning.plan import head_counts, make_plan, units  # noqa: E402
from manyheads.heads.pruning.savings import why_nothing  # noqa: E402
from manyheads.models.door.door import open_door  # noqa: E402
from support import rounding  # noqa: E402
from support import tiny_transformers as tiny  # noqa: E402

REFUSED = {"falcon-7b", "falcon-40b", "falcon-rw", "falcon2-11b", "bloom", "mpt"}
NORMED_TOGETHER = {"olmo2", "olmo3", "olmoe"}
SHARED_BIAS = {"t5", "t5-v1.1", "t5-encoder"}
NOT_DESCRIBED = {"opt-350m", "jamba", "modernbert", "t5gemma"}
READS_CONFIG = {"phi3"}
PRUNABLE = sorted(set(tiny.CASES) - REFUSED - NORMED_TOGETHER - SHARED_BIAS - NOT_DESCRIBED - READS_CONFIG)


def some_heads(model: Any) -> dict[str, dict[int, tuple[int, ...]]]:
    """In the first layer heads from the middle on, in the third two, elsewhere none: counts differ by layer."""
    found: dict[str, dict[int, tuple[int, ...]]] = {}
    for stack, counts in head_counts(describe(model).stated).items():
        layers = [layer for layer, count in enumerate(counts) if count]
        found[stack] = {layers[0]: tuple(range(counts[layers[0]] // 2, counts[layers[0]]))}
        if len(layers) > 2:
            found[stack][layers[2]] = (1, counts[layers[2]] - 1)
    return found


def masked(model: Any, heads: Any, batch: Any) -> rounding.Exact:
    """The logits of the model with these heads closed."""
    return rounding.model(model, batch, around=lambda wide: open_door(wide, gates=[mask(wide, heads)]))


@pytest.mark.parametrize("name", PRUNABLE)
def test_what_is_left_computes_what_the_masked_model_does(name: str) -> None:
    model, batch = tiny.build(name), tiny.inputs(name)
    heads = some_heads(model)
    whole = tiny.logits(model, batch)
    wanted = masked(model, heads, batch)
    assert wanted.told(whole)  # or the test could not fail
    before = sum(parameter.numel() for parameter in model.parameters())
    prune(model, heads)
    assert wanted.holds(tiny.logits(model, batch))
    assert sum(parameter.numel() for parameter in model.parameters()) < before


def test_masking_a_head_is_zeroing_its_columns_of_the_output_projection() -> None:  # case O70
    model, batch = tiny.build("llama"), tiny.inputs("llama")
    with open_door(model, gates=[mask(model, {1: (2,)})]):
        found = tiny.logits(model, batch)
    with torch.no_grad():
        model.model.layers[1].self_attn.o_proj.weight[:, 20:30] = 0
    assert rounding.model(model, batch).holds(found)


def test_weights_biases_and_cache_shrink_by_hand_counted_numbers() -> None:
    """Llama: 36 wide, 6 query heads and 2 key/value heads of size 10 (6 with biases of qkvo)."""
    model = tiny.build("llama-biases-tied")  # head size 36 / 6
    before = sum(parameter.numel() for parameter in model.parameters())
    prune(model, {0: (0, 1, 2)})
    # q and o lose three heads of 6 x 36, k and v one each; biases of q 18, of k and v 6 each; that of o stays.
    gone = 2 * 3 * 6 * 36 + 2 * 6 * 36 + 18 + 2 * 6
    assert before - sum(parameter.numel() for parameter in model.parameters()) == gone
    attention = model.model.layers[0].self_attn
    assert (attention.q_proj.out_features, attention.k_proj.out_features, attention.o_proj.in_features) == (18, 6, 18)
    cache = model(**tiny.inputs("llama-biases-tied"), use_cache=True).past_key_values
    assert [layer.keys.shape[1] for layer in cache.layers] == [1, 2]


@pytest.mark.parametrize("name", ["llama", "gpt2", "gpt_oss", "gemma2", "opt"])
def test_a_pruned_model_generates_with_its_cache_as_without(name: str) -> None:  # case O72
    model = tiny.build(name)
    prune(model, some_heads(model))
    ids = tiny.inputs(name)["input_ids"]
    options = {"max_new_tokens": 6, "do_sample": False, "pad_token_id": 0, "eos_token_id": None}
    cached = model.generate(ids, **options)
    assert torch.equal(cached, model.generate(ids, use_cache=False, **options))
    assert cached.shape == (2, ids.shape[1] + 6)


def test_sets_compose_by_original_numbers() -> None:  # case O71
    model = tiny.build("gpt2")
    one, two = tiny.build("gpt2"), tiny.inputs("gpt2")
    prune(model, {0: (1,), 1: (2, 3)})
    done = prune(model, {0: (4,), 1: (1, 2)})
    assert done.plan.new == (Head(0, 4), Head(1, 1))
    assert done.plan.again == (Head(1, 2),)
    kept = {layer: heads.kept for _, layer, heads in done.pruning.layers}
    assert kept == {0: (0, 2, 3, 5), 1: (0, 4, 5)}
    prune(one, {0: (1, 4), 1: (1, 2, 3)})
    pruned = one.state_dict()
    assert all(torch.equal(tensor, pruned[key]) for key, tensor in model.state_dict().items())
    assert rounding.model(one, two).holds(tiny.logits(model, two))


def test_the_sequence_of_the_old_bug_leaves_three_heads_and_one() -> None:
    config = transformers.GPT2Config(n_embd=32, n_layer=2, n_head=4, vocab_size=64, n_positions=32)
    model = transformers.GPT2LMHeadModel(config).eval()
    prune(model, {0: (1,), 1: (2, 3)})
    done = prune(model, {1: (1, 2)})
    assert [len(heads.kept) for _, _, heads in done.pruning.layers] == [3, 1]


def test_groups_keep_their_key_value_head_until_the_last_query_goes() -> None:
    model, batch = tiny.build("llama"), tiny.inputs("llama")
    first = prune(model, {0: (0, 1)})  # two of the three queries of group 0: zeros take their places
    assert next((len(h.slots), len(h.kv_slots)) for _, _, h in first.pruning.layers) == (6, 2)
    assert first.plan.zeros(first.pruning) == 2
    second = prune(model, {0: (2,)})
    assert next((h.slots, h.kv_slots) for _, _, h in second.pruning.layers) == ((3, 4, 5), (1,))
    other = tiny.build("llama")
    prune(other, {0: (0, 1, 2)})
    assert rounding.model(other, batch).holds(tiny.logits(model, batch))


@pytest.mark.parametrize("name", ["llama", "gpt2", "bert-masked-lm", "deepseek_v3"])
def test_of_a_layer_that_loses_all_heads_one_stays_as_zeros(name: str) -> None:  # case O74
    model, batch = tiny.build(name), tiny.inputs(name)
    heads = {0: tuple(range(6))}
    wanted = masked(model, heads, batch)
    done = prune(model, heads)
    assert done.pruning.layers[0][2].slots == (-1,)
    assert wanted.holds(tiny.logits(model, batch))


def test_layers_that_end_alike_are_told_by_the_configuration_itself() -> None:
    model = tiny.build("phi3")  # its attention reads its counts from the configuration, so layers cannot differ
    batch, heads = tiny.inputs("phi3"), {0: (0, 1, 2), 1: (3, 4, 5)}
    wanted = masked(model, heads, batch)
    assert prune(model, heads).pruning.form == "uniform"
    assert (model.config.num_attention_heads, model.config.num_key_value_heads, model.config.head_dim) == (3, 1, 6)
    assert wanted.holds(tiny.logits(model, batch))


@pytest.mark.parametrize("name", sorted(SHARED_BIAS))
def test_t5_loses_the_same_heads_in_all_layers_of_a_stack(name: str) -> None:
    model, batch = tiny.build(name), tiny.inputs(name)
    counts = head_counts(describe(model).stated)
    heads = {stack: dict.fromkeys(range(len(row)), (1, 3)) for stack, row in counts.items()}
    wanted = masked(model, heads, batch)
    prune(model, heads)
    assert wanted.holds(tiny.logits(model, batch))
    with pytest.raises(ConversionError, match="share one table of position biases"):
        prune(model, {next(iter(counts)): {0: (0,)}})


@pytest.mark.parametrize("heads", ["cross/1:0", "cross/0:0", "cross/0:0,1;cross/1:2"])
def test_t5_keeps_as_many_cross_attention_heads_in_each_layer(heads: str) -> None:
    """transformers hands the first layer's biases on, zeros of as many rows as that has heads: others could not add them."""
    model, batch = tiny.build("t5"), tiny.inputs("t5")
    before = tiny.logits(model, batch)
    with pytest.raises(
        ConversionError, match='must keep the same number of heads; valid: an export with form="padded"'
    ):
        prune(model, heads)
    assert torch.equal(tiny.logits(model, batch), before)


def test_t5_loses_other_cross_attention_heads_in_each_layer() -> None:
    model, batch = tiny.build("t5"), tiny.inputs("t5")
    heads = {"cross": {0: (0,), 1: (2,)}}
    wanted = masked(model, heads, batch)
    assert prune(model, heads).saved_elements > 0
    assert wanted.holds(tiny.logits(model, batch))


def test_where_layers_cannot_differ_but_all_can_be_smaller_something_is_saved() -> None:
    stack = describe(tiny.build("t5")).stated
    counts = head_counts(stack)
    heads = {stack: dict.fromkeys(range(len(row)), (1,)) for stack, row in counts.items()}
    heads["cross"][0] = (1, 2)  # two heads in one layer; one head fewer can be had in all
    assert why_nothing(make_plan(stack, heads), stack) == ""
    assert "zeros stand where these heads were" in why_nothing(make_plan(stack, {"cross": {0: (1,)}}), stack)


SHARING = {  # attention parameters, one of which becomes the other, or a view of it
    "gpt2": ("transformer.h.0.attn.c_attn.weight", "transformer.h.1.attn.c_attn.weight"),
    "bert": ("encoder.layer.0.attention.self.key.bias", "encoder.layer.1.attention.self.query.bias"),
    "bart": ("model.encoder.layers.0.self_attn.v_proj.weight", "model.decoder.layers.1.encoder_attn.v_proj.weight"),
    "qwen2": ("model.layers.0.self_attn.v_proj.weight", "model.layers.1.self_attn.k_proj.weight"),
    "llama": ("model.layers.2.self_attn.k_proj.weight", "model.layers.2.self_attn.v_proj.weight"),
}  # fmt: skip


@pytest.mark.parametrize("view", [False, True])
@pytest.mark.parametrize("name", SHARING)
def test_weights_that_two_attentions_share_are_refused_naming_both(name: str, view: bool) -> None:
    model, both = tiny.build(name), SHARING[name]
    parameters = dict(model.named_parameters())
    owner, _, leaf = both[1].rpartition(".")
    one = parameters[both[0]]
    setattr(model.get_submodule(owner), leaf, torch.nn.Parameter(one.data[:]) if view else one)
    before, stack = _state(model), "encoder" if name == "bart" else ""
    with pytest.raises(ConversionError) as caught:
        prune(model, {stack: {0: (0,)}})
    modules = {word.rpartition(".")[0].rpartition(".")[0] for word in both}
    assert all(word in str(caught.value) for word in (*both, *modules))
    assert "\n" not in str(caught.value)
    after = _state(model)
    assert after[1] == before[1]
    assert all(torch.equal(after[0][key], value) for key, value in before[0].items())


def test_an_attention_that_looks_into_the_embeddings_is_refused() -> None:
    model = tiny.build("llama")
    table = model.model.embed_tokens.weight.data
    model.model.layers[1].self_attn.q_proj.weight = torch.nn.Parameter(table[:60])
    with pytest.raises(ConversionError, match=r"layers.1.self_attn and model.embed_tokens \("):
        prune(model, {0: (0, 1, 2)})
    model.model.layers[1].self_attn.q_proj.weight = torch.nn.Parameter(table[:60].clone())
    assert prune(model, {0: (0, 1, 2)}).saved_elements > 0


def test_what_is_named_can_be_looked_at_on_the_whole_model() -> None:
    """The plan names heads as `ablated` and all the others do: without a stack where the model has one."""
    for name, heads in (("llama", {1: (2,)}), ("bert-masked-lm", {1: (2,)}), ("whisper", {"cross": {1: (2,)}})):
        model, whole, batch = tiny.build(name), tiny.build(name), tiny.inputs(name)
        done = prune(model, heads)
        gone = done.plan.new
        wanted = rounding.model(whole, batch, around=lambda wide, gone=gone: ablated(wide, gone))
        assert wanted.holds(tiny.logits(model, batch))
    assert tuple(done.plan.new) == (Head(1, 2, "cross"),)
    again = prune(tiny.build("llama"), [Head(0, 1, "decoder")]).plan.new
    assert again == (Head(0, 1),)


def test_zeros_in_place_of_heads_are_told_and_what_would_save_something() -> None:
    """3 layers of 2 groups of 3; q and o of a head are 2 · 10 · 36 elements."""
    model = tiny.build("llama")
    first = prune(model, {0: (0, 1), 1: (5,)})
    assert (first.zeros, first.saved_elements, first.pruning.form) == (3, 0, "padded")
    assert "nothing is smaller" in first.note
    assert "the least that would save something: 0:2 too" in first.note
    assert repr(first) == "Pruned(3 heads removed: 0:0,1;1:5; 0 of 38,044 elements saved, 3 zeroed heads)".replace(
        "38,044", f"{sum(parameter.numel() for parameter in model.parameters()):,}"
    )
    second = prune(model, {0: (2,)})
    assert (second.zeros, second.saved_elements, second.note) == (1, 2 * 3 * 360 + 2 * 360, "")
    other = prune(tiny.build("llama"), {0: (0,)})  # one query of the other group would leave both two
    assert "0:5 too, or 0:1,2 too for a whole group" in other.note
    assert prune(tiny.build("llama"), {0: (0, 5)}).saved_elements == 2 * 2 * 360
    alone = prune(tiny.build("llama", num_attention_heads=1, num_key_value_heads=1), {0: (0,)})
    assert "a layer that loses all of its heads keeps one, as zeros" in alone.note


def _state(model: Any) -> tuple[dict[str, Any], str]:
    return {name: value.clone() for name, value in model.state_dict().items()}, json.dumps(
        model.config.to_dict(), default=str
    )


@pytest.mark.parametrize(
    ("name", "heads", "error", "said"),
    [
        ("llama", {9: (0,)}, ManyheadsError, "there is no layer 9; the model has 3 layers, 0 to 2"),
        ("llama", {0: (6,)}, ManyheadsError, "there is no head 6; layer 0 has 6 heads, 0 to 5"),
        ("llama", {0: (-1,)}, ManyheadsError, "there is no head -1"),
        ("llama", {0: (1, 1)}, ManyheadsError, "names a head twice"),
        ("llama", {}, ConversionError, "nothing to prune: no head is named"),
        ("llama", {0: ()}, ConversionError, "nothing to prune"),
        ("llama", {"cross": {0: (1,)}}, ManyheadsError, "there is no stack 'cross'; the model has decoder"),
        ("olmo2", {0: (1,)}, ConversionError, "normed over all heads of a layer together"),
        ("phi3", {0: (0, 1, 2)}, ConversionError, "takes its head counts from the configuration"),
        ("qwen3_next", {0: (0,)}, ConversionError, "layer 0 of the decoder is linear attention"),
        ("falcon-7b", {0: (0,)}, BackendError, "does not pass through"),
    ],
)
def test_what_cannot_be_is_one_line_and_changes_nothing(
    name: str, heads: Any, error: type[Exception], said: str
) -> None:
    model = tiny.build(name)
    before = _state(model)
    with pytest.raises(error) as caught:
        prune(model, heads)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)
    after = _state(model)
    assert after[1] == before[1]
    assert all(torch.equal(after[0][key], before[0][key]) for key in before[0])
    if error is not BackendError:
        tiny.logits(model, tiny.inputs(name))


def test_pruning_again_what_is_gone_removes_nothing() -> None:
    model = tiny.build("gpt2")
    prune(model, {0: (1,)})
    with pytest.raises(ConversionError, match="nothing to prune: already pruned: 0:1;"):
        prune(model, {0: (1,)})


def test_encoder_decoder_heads_are_told_apart_by_stage() -> None:
    model, batch = tiny.build("whisper"), tiny.inputs("whisper")
    heads = [Head(1, 2, "encoder"), Head(0, 0, "cross"), Head(1, 1, "decoder")]
    wanted = masked(model, heads, batch)
    prune(model, heads)
    layers = model.model.decoder.layers
    assert (layers[0].encoder_attn.num_heads, layers[0].self_attn.num_heads, layers[1].self_attn.num_heads) == (2, 3, 2)
    assert wanted.holds(tiny.logits(model, batch))


def test_units_are_heads_or_the_queries_of_a_key_value_head() -> None:
    stack = describe(tiny.build("llama")).stated
    held = make_plan(stack, {"": {0: (0,)}}).held
    assert len(units(held, whole_groups=False)) == 18
    grouped = units(held, whole_groups=True)
    assert len(grouped) == 6
    assert grouped[Head(2, 3)] == tuple(Head(2, head) for head in (3, 4, 5))


def test_a_module_for_each_head_goes_with_its_head() -> None:
    """StableLM 2 12B norms the queries of each head with a module of its own, and so the keys."""
    model = tiny.build("stablelm-12b")
    names = {name for name, _ in model.named_parameters()}
    norms = model.model.layers[0].self_attn.q_layernorm
    kept = [norm.weight.clone() for norm in norms.norms[3:]]
    prune(model, {0: (0, 1, 2)})
    assert [torch.equal(norm.weight, weight) for norm, weight in zip(norms.norms, kept, strict=True)] == [True] * 3
    assert norms.num_heads == 3
    gone = names - {name for name, _ in model.named_parameters()}
    assert {name.split("self_attn.")[1][:12] for name in gone} == {"q_layernorm.", "k_layernorm."}


@pytest.mark.parametrize("around", [torch.no_grad, torch.inference_mode])
def test_a_model_pruned_without_gradients_learns_afterwards(around: Any) -> None:
    model, twin = tiny.build("llama"), tiny.build("llama")
    with around():
        prune(model, {0: (0, 1, 2)})
    prune(twin, {0: (0, 1, 2)})
    for each in (model, twin):
        each(**tiny.inputs("llama")).logits.square().mean().backward()
    grads = [(one.grad, other.grad) for one, other in zip(model.parameters(), twin.parameters(), strict=True)]
    assert all(torch.equal(one, other) for one, other in grads)


def test_pruned_weights_learn_and_keep_what_asked_for_gradients() -> None:
    model = tiny.build("llama")
    model.requires_grad_(requires_grad=False)
    model.model.layers[0].self_attn.q_proj.weight.requires_grad_()
    prune(model, {0: (3, 4, 5)})
    asked = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
    assert asked == ["model.layers.0.self_attn.q_proj.weight"]
    model(**tiny.inputs("llama")).logits.sum().backward()
    assert model.model.layers[0].self_attn.q_proj.weight.grad.shape == (30, 36)
