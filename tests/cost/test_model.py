"""Whole models: published sizes, caches that others got wrong, and decode traffic by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from manyheads.cost import model
from manyheads.cost.capacity import all_weight_bytes, largest_batch, longest_context, needed_bytes
from manyheads.cost.parallel import rank_of
from manyheads.cost.parameters import active_parameters, parameter_parts, stored_parameters
from manyheads.cost.whatif import what_if
from manyheads.cost.workload import Workload
from manyheads.errors import SpecError
from manyheads.spec import (
    AttentionSpec,
    Block,
    Borrowed,
    Cross,
    Mlp,
    Moe,
    Norm,
    Rope,
    Stack,
    StackSpec,
    Window,
    count,
    weights,
)
from manyheads.spec.text import parse_stack

PRE = ("pre_attention", "pre_mlp")


def decoder(blocks, *, vocab=0, head="none") -> StackSpec:
    blocks = tuple(blocks)
    return StackSpec((Stack("decoder", blocks[0].attentions[0].d_model, blocks, final_norm=Norm()),), vocab, head)


def llama(layers, d, heads, kv_heads, width, vocab, head_dim=128, **more) -> StackSpec:
    attention = AttentionSpec.gqa(d, heads, kv_heads, head_dim=head_dim, positions=Rope(head_dim))
    return decoder([Block((attention,), Mlp(width, gated=True), Norm(), PRE)] * layers, vocab=vocab, **more)


LLAMA_2_70B = llama(80, 8192, 64, 8, 28672, 32000, head="untied")


def held(stack, context, **more) -> int:
    return model.cache_bytes(stack, Workload(context, **more)).total


def test_facts_a26():
    """L=80, H=64, d_h=128, T=128,000, 16 bits."""
    assert held(what_if(LLAMA_2_70B, "mha"), 128_000) == 335_544_320_000
    assert held(LLAMA_2_70B, 128_000) == 41_943_040_000


def test_gemma_2_9b_of_facts_4_5():
    full = AttentionSpec.gqa(3584, 16, 8, head_dim=256)
    windowed = replace(full, mask=Window(4096))
    blocks = [Block((spec,), Mlp(14336, gated=True)) for _ in range(21) for spec in (windowed, full)]
    assert held(decoder(blocks), 8192) == 2_113_929_216
    assert held(decoder([blocks[1]] * 42), 8192) == 2_818_572_288


def test_o75_windowed_layers_count_from_the_first_token():
    full = AttentionSpec.gqa(2880, 64, 8, head_dim=64)
    blocks = [Block((spec,)) for _ in range(18) for spec in (replace(full, mask=Window(128)), full)]
    assert held(decoder(blocks), 1) == 73_728
    assert model.cache_slope(decoder(blocks), Workload(1), 0) == 73_728
    assert model.cache_slope(decoder(blocks), Workload(1), 128) == 36_864


GEMMA_3_1B = decoder(
    [
        Block((replace(AttentionSpec.gqa(1152, 4, 1, head_dim=256), **({} if i % 6 == 5 else {"mask": Window(512)})),))
        for i in range(26)
    ]
)


def test_o76_gemma_3_1b():
    assert held(GEMMA_3_1B, 32_768) == 139 * 2**20


def test_o77_the_inverse_of_a_size_is_the_length():
    stack = GEMMA_3_1B
    for tokens in (1, 100, 511, 512, 513, 8192, 32_768, 10**6):
        load = Workload(tokens)
        assert longest_context(stack, load, needed_bytes(stack, load)) == tokens
        assert longest_context(stack, load, needed_bytes(stack, load) - 1) == tokens - 1


def test_o78_block_quantised_cache():
    stack = llama(32, 4096, 32, 8, 14336, 128_256, head="untied")
    assert held(stack, 1) == 131_072
    assert held(stack, 1, kv_dtype="q8_0") == 69_632


def test_o79_latent_cache():
    mla = AttentionSpec.mla(7168, 128, rank=512, nope_dim=128, rope_dim=64, v_head_dim=128, q_rank=1536)
    assert held(decoder([Block((mla,))] * 61), 1) == 70_272


def test_o80_borrowed_and_linear_layers_do_not_grow():
    own = AttentionSpec.gqa(64, 4, 2, head_dim=16)
    borrowing = decoder([Block((own,))] * 3 + [Block((replace(own, source=Borrowed(2)),))] * 2)
    assert held(borrowing, 1000) == 3 * 1000 * 2 * 32 * 2
    linear = AttentionSpec.linear(64, 4)
    hybrid = decoder(([Block((linear,))] * 3 + [Block((own,))]) * 2)
    load = Workload(1000)
    cache = model.cache_bytes(hybrid, load)
    assert cache.growing == 2 * 1000 * 2 * 32 * 2
    assert cache.state == 6 * 4 * (16 * 16 + 16) * 2
    assert model.cache_bytes(hybrid, replace(load, context=2000)).state == cache.state


def test_o82_mixtral():
    attention = AttentionSpec.gqa(4096, 32, 8)
    mixtral = decoder([Block((attention,), Moe(8, 2, 14336), Norm(), PRE)] * 32, vocab=32000, head="untied")
    assert stored_parameters(weights(mixtral)) == 46_702_792_704
    assert active_parameters(mixtral)["both"] == 12_879_925_248


def test_o83_gpt2_small():
    norm = Norm("layer", 1e-5, shift=True)
    block = Block((AttentionSpec.mha(768, 12, bias="qkvo"),), Mlp(3072, bias=True), norm, PRE)
    gpt2 = StackSpec((Stack("decoder", 768, (block,) * 12, 1024, final_norm=norm),), 50257, "tied")
    assert stored_parameters(weights(gpt2)) == 124_439_808
    assert sum(parameter_parts(weights(gpt2)).values()) == 124_439_808
    assert active_parameters(gpt2) == {
        "neither": 124_439_808 - (50257 + 1024) * 768,
        "head_only": 124_439_808 - 1024 * 768,
        "both": 124_439_808,
    }


def deepseek_v3() -> StackSpec:
    mla = AttentionSpec.mla(7168, 128, rank=512, nope_dim=128, rope_dim=64, v_head_dim=128, q_rank=1536)
    dense = Block((mla,), Mlp(18432, gated=True), Norm(), PRE)
    mixed = Block((mla,), Moe(256, 8, 2048, 2048, router_bias="buffer"), Norm(), PRE)
    return decoder([dense] * 3 + [mixed] * 58, vocab=129_280, head="untied")


def test_deepseek_v3_totals():
    """conformance section 5: active in the three conventions; 14,848 router corrections are stored buffers."""
    stack = deepseek_v3()
    assert count(weights(stack)) == 671_026_404_352
    assert stored_parameters(weights(stack)) == 671_026_419_200
    assert active_parameters(stack) == {
        "neither": 35_698_939_392,
        "head_only": 36_625_618_432,
        "both": 37_552_297_472,
    }


def test_decode_traffic_of_llama_2_70b():
    """Weights once for the batch, all but the token table, of which a row a sequence; each sequence's cache; its write."""
    load = Workload(128_000, batch=3)
    moved = model.decode_traffic(LLAMA_2_70B, load)
    read = 68_976_648_192 - 32000 * 8192 + 3 * 8192
    assert moved.weights == 2 * read
    assert moved.cache_read == 3 * 128_000 * 327_680
    assert moved.cache_write == 3 * 327_680
    assert moved.state == 0


def test_experts_read_in_a_step():
    """One token reads the active experts; a batch at most all of them."""
    stack = deepseek_v3()
    one, many = (model.read_weight_elements(stack, batch) for batch in (1, 10_000))
    expert = 3 * 7168 * 2048
    assert many - one == 58 * 248 * expert + 9_999 * 7168
    assert one == stored_parameters(weights(stack)) - 58 * 248 * expert - 129_280 * 7168 + 7168


def test_borrowed_layers_read_the_lenders_cache():
    own = AttentionSpec.gqa(64, 4, 2, head_dim=16)
    stack = decoder([Block((own,)), Block((replace(own, source=Borrowed(0)),))])
    moved = model.decode_traffic(stack, Workload(1000))
    assert moved.cache_read == 2 * 1000 * 2 * 32 * 2
    assert moved.cache_write == 2 * 32 * 2


def test_a_windowed_layer_reads_its_window():
    stack = decoder([Block((replace(AttentionSpec.gqa(64, 4, 2, head_dim=16), mask=Window(100)),))])
    assert model.decode_traffic(stack, Workload(1000)).cache_read == 100 * 2 * 32 * 2


def t5_small() -> StackSpec:
    self_encoder = AttentionSpec.mha(512, 8)
    cross = AttentionSpec.gqa(512, 8, 8, source=Cross(512), mask=_bidirectional())
    encoder = Block((replace(self_encoder, mask=_bidirectional()),), Mlp(2048), Norm(), PRE)
    block = Block((self_encoder, cross), Mlp(2048), Norm(), ("pre_attention", "pre_cross", "pre_mlp"))
    return StackSpec(
        (
            Stack("encoder", 512, (encoder,) * 6, relative_buckets=32, final_norm=Norm()),
            Stack("decoder", 512, (block,) * 6, relative_buckets=32, final_norm=Norm()),
        ),
        32128,
        "tied",
    )


def _bidirectional():
    from manyheads.spec import Bidirectional

    return Bidirectional()


def test_encoder_decoder_cache():
    """conformance rule 6: self-attention a generated token, cross-attention once for the source."""
    stack = t5_small()
    assert stored_parameters(weights(stack)) == 60_506_624
    cache = model.cache_bytes(stack, Workload(10, source_tokens=300))
    assert model.cache_slope(stack, Workload(10), 0) == 12_288
    assert cache.growing == 10 * 12_288
    assert cache.cross == 2 * 6 * 8 * 64 * 2 * 300


def test_encoder_decoder_decode_reads_no_encoder_and_no_memory_projection():
    stack = t5_small()
    decoder_only = sum(w.elements for w in weights(stack) if w.name.startswith("decoder."))
    unused = 6 * 2 * 512 * 512
    assert model.read_weight_elements(stack, 1) == decoder_only - unused + 32128 * 512


def test_prefill_macs_by_hand():
    """facts 4.2 with the head on the last token: L·T·(weights) + pairs·H(q+v) + d·V."""
    tokens = 1000
    macs = model.prefill_macs(LLAMA_2_70B, Workload(tokens))
    assert macs.projections == 80 * tokens * 150_994_944
    assert macs.core_dense == 80 * tokens**2 * 64 * 256
    assert macs.core_exact == 80 * tokens * (tokens + 1) // 2 * 64 * 256
    assert macs.mlp == 80 * tokens * 3 * 8192 * 28672
    assert macs.head == 8192 * 32000
    training = model.training_macs(LLAMA_2_70B, Workload(tokens))
    assert training.head == 3 * tokens * 8192 * 32000
    assert training.mlp == 3 * macs.mlp


def test_decode_macs_run_absorbed():
    stack = deepseek_v3()
    macs = model.decode_macs(stack, Workload(8191))
    assert macs.core_exact == 61 * 8192 * 139_264


@pytest.mark.parametrize(
    "text", ["mha", "gqa:4", "mqa", "mla:512+64", "window:4096", "linear", "heads:32,head-dim:256"]
)
def test_what_ifs_are_priced(text):
    other = what_if(LLAMA_2_70B, text)
    assert other.layers == 80
    expected = {
        "mha": 2_621_440,
        "gqa:4": 163_840,
        "mqa": 40_960,
        "mla:512+64": 92_160,
        "window:4096": 327_680,
        "linear": 0,
        "heads:32,head-dim:256": 655_360,
    }
    assert model.cache_slope(other, Workload(10), 0) == expected[text]


def test_what_if_window_and_state():
    assert held(what_if(LLAMA_2_70B, "window:4096"), 128_000) == 4096 * 327_680
    assert held(what_if(LLAMA_2_70B, "linear"), 128_000) == 80 * 8 * (128 * 128 + 128) * 2


def test_what_if_the_head_study_of_2017():
    """Rows (A): weights do not change with the number of heads at a constant total width."""
    base = decoder([Block((AttentionSpec.mha(512, 8),))] * 6)
    for heads in (1, 4, 8, 16, 32):
        other = what_if(base, f"heads:{heads},head-dim:{512 // heads}")
        assert count(weights(other), "attention") == 6 * 4 * 512 * 512


@pytest.mark.parametrize(
    "text", ["", "gqa", "gqa:0", "gqa:x", "gqa:-1", "mla:5", "mla:0+4", "window:", "mha:3", "x", "mha,,mqa"]
)
def test_what_ifs_not_understood(text):
    with pytest.raises(SpecError, match="valid: mha, gqa:N"):
        what_if(LLAMA_2_70B, text)


def test_what_if_that_cannot_be():
    with pytest.raises(SpecError, match=r"64.*7"):
        what_if(LLAMA_2_70B, "gqa:7")


@pytest.mark.parametrize("joined", ["heads:10,gqa:2", "gqa:2,heads:10", "mqa,heads:10,gqa:2", "heads:10 , gqa:2"])
def test_joined_what_ifs_are_checked_when_all_are_made(joined):
    """10 query heads over the 8 KV heads of Llama are no layer; over 2 they are."""
    attention = what_if(LLAMA_2_70B, joined).decoder.blocks[0].attention
    assert (attention.num_heads, attention.kv.num_kv_heads, attention.head_dim) == (10, 2, 128)


def test_joined_what_ifs_are_the_same_in_any_order():
    base = decoder([Block((AttentionSpec.mha(512, 8),))] * 2)
    for one, other in (("heads:12", "gqa:3"), ("heads:12", "mha"), ("heads:12", "head-dim:16"), ("gqa:4", "head-dim:16"),
                       ("window:9", "mqa"), ("window:9", "heads:4"), ("linear", "heads:4")):  # fmt: skip
        assert what_if(base, f"{one},{other}") == what_if(base, f"{other},{one}")


@pytest.mark.parametrize(
    ("joined", "words"),
    [
        ("heads:10", "num_heads 10 must be a multiple of num_kv_heads 8"),
        ("gqa:2,heads:9", "num_heads 9 must be a multiple of num_kv_heads 2"),
        ("gqa:64,heads:32", "num_heads 32 must be a multiple of num_kv_heads 64"),
        ("heads:32,gqa:64", "num_heads 32 must be a multiple of num_kv_heads 64"),
        ("linear,window:9", "is causal or bidirectional"),
        ("window:9,linear", "is causal or bidirectional"),
    ],
)
def test_joined_what_ifs_that_cannot_be(joined, words):
    with pytest.raises(SpecError, match=f"^what_if='{joined}': .*{words}"):
        what_if(LLAMA_2_70B, joined)


def test_what_if_changes_only_the_generating_stack():
    other = what_if(t5_small(), "gqa:2")
    assert other.encoder == t5_small().encoder
    block = other.decoder.blocks[0]
    assert (block.attention.kv.num_kv_heads, block.cross.kv.num_kv_heads) == (2, 2)


@pytest.mark.parametrize(("ranks", "kv_heads"), [(2, 4), (8, 1), (16, 1), (64, 1)])
def test_tensor_parallel_replicates_kv_heads(ranks, kv_heads):
    rank = rank_of(LLAMA_2_70B, ranks)
    assert rank.decoder.blocks[0].attention.kv.num_kv_heads == kv_heads
    assert held(rank, 1000) == 80 * 1000 * kv_heads * 256 * 2
    attention = count(weights(rank.decoder.blocks[0].attention))
    assert attention == 2 * 8192 * (64 // ranks) * 128 + 2 * 8192 * kv_heads * 128


def test_tensor_parallel_keeps_latents_whole():
    assert held(rank_of(deepseek_v3(), 8), 1) == 70_272


def test_tensor_parallel_that_does_not_divide():
    with pytest.raises(SpecError, match=r"tensor_parallel=7: 64 query heads"):
        rank_of(LLAMA_2_70B, 7)


@pytest.mark.parametrize(
    ("stack", "ranks", "valid"),
    [
        (llama(2, 3072, 24, 8, 8192, 128_256), 3, [1, 2, 4, 8, 24]),  # 3 divides 24 and not 8
        (llama(2, 3072, 24, 6, 8192, 128_256), 4, [1, 2, 3, 6, 12, 24]),
        (llama(2, 3072, 24, 24, 8192, 128_256), 5, [1, 2, 3, 4, 6, 8, 12, 24]),
        (parse_stack("gqa(64, 12/2x8), gqa(64, 8/2x8)"), 3, [1, 2, 4]),
        (parse_stack("encoder: gqa(64, 6/6x8, bidirectional); decoder: mha(64, 4x8) + gqa(64, 4/4x8, cross=64)"), 4, [1, 2]),
        (parse_stack("linear(64, 8/4x8, value_heads=8, state_heads=8), mla(64, 16x8+4, rank=8)"), 16, [1, 2, 4, 8]),
    ],
)  # fmt: skip
def test_tensor_parallel_offers_what_it_accepts(stack, ranks, valid):
    """Every attention of the model shares out its heads, key/value heads among them, or keeps one on several ranks."""
    with pytest.raises(SpecError, match=f"^tensor_parallel={ranks}: ") as told:
        rank_of(stack, ranks)
    assert [int(n) for n in str(told.value).rpartition("valid: ")[2].split(", ")] == valid
    for number in valid:
        rank_of(stack, number)


def test_largest_batch():
    load = Workload(1000)
    weight = all_weight_bytes(LLAMA_2_70B, load)
    assert largest_batch(LLAMA_2_70B, load, weight + 5 * 1000 * 327_680) == 5
    assert largest_batch(LLAMA_2_70B, load, weight + 5 * 1000 * 327_680 - 1) == 4
    assert largest_batch(LLAMA_2_70B, load, weight) == 0
    assert longest_context(LLAMA_2_70B, load, weight - 1) == 0


def test_a_fixed_state_has_no_longest_context():
    linear = what_if(LLAMA_2_70B, "linear")
    assert longest_context(linear, Workload(1), 2**40) is None


def test_stored_bytes_of_a_file_are_used_exactly():
    load = Workload(10, weight_bytes=98_000_001)
    assert all_weight_bytes(LLAMA_2_70B, load) == 98_000_001


@pytest.mark.parametrize(
    "bad", [{"context": 0}, {"context": 1, "batch": 0}, {"context": 10**13}, {"context": 1, "kv_dtype": "x"}]
)
def test_bad_workloads(bad):
    with pytest.raises(SpecError):
        Workload(**bad)
