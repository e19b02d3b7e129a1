"""Addresses of heads on real models: every one that is printed is read back and means the same head, whatever the stacks are.

Expected stacks are the names that the models themselves give to their parts.
"""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from manyheads.errors import ManyheadsError  # noqa: E402
from manyheads.heads.address import Head, format_head, parse_head  # noqa: E402
from manyheads.heads.attention_modules import AttentionModule, ModuleIndex, row_of, select  # noqa: E402
from manyheads.heads.effects import ablate_heads, ablated, head_importance  # noqa: E402
from manyheads.heads.statistics import head_statistics  # noqa: E402
from manyheads.models.door.door import open_door  # noqa: E402
from support import tiny_transformers as tiny  # noqa: E402

REFUSED = {"falcon-7b", "falcon-40b", "falcon-rw", "falcon2-11b", "bloom", "mpt"}
_SIZES = {"hidden_size": 24, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
_TEXT = {**_SIZES, "vocab_size": 97, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
_LLAMA = {**_TEXT, "num_key_value_heads": 2}
_IMAGE = {**_SIZES, "image_size": 16, "patch_size": 8, "num_hidden_layers": 3}
_ROPE = {"rope_type": "default", "rope_theta": 1e4}


def clip() -> Any:
    config = transformers.CLIPConfig(
        text_config={**_TEXT, "projection_dim": 12}, vision_config={**_IMAGE, "projection_dim": 12}, projection_dim=12
    )
    return transformers.CLIPModel(config)


def llava() -> Any:
    config = transformers.LlavaConfig(
        text_config=transformers.LlamaConfig(**_LLAMA), vision_config=transformers.CLIPVisionConfig(**_IMAGE),
        image_token_id=90,
    )  # fmt: skip
    return transformers.LlavaForConditionalGeneration(config)


def qwen2_vl() -> Any:
    rope = {**_ROPE, "mrope_section": [1, 1, 1]}
    vision = {"depth": 3, "embed_dim": 32, "hidden_size": 24, "num_heads": 4, "mlp_ratio": 2, "patch_size": 4}
    config = transformers.Qwen2VLConfig(
        text_config={**_LLAMA, "rope_parameters": rope}, vision_config=vision, image_token_id=90, vision_start_token_id=91,
        video_token_id=92,
    )  # fmt: skip
    return transformers.Qwen2VLForConditionalGeneration(config)


def blip2() -> Any:
    opt = transformers.OPTConfig(
        vocab_size=97, hidden_size=24, word_embed_proj_dim=24, ffn_dim=32, num_hidden_layers=2, num_attention_heads=4
    )
    config = transformers.Blip2Config(
        vision_config=_IMAGE, qformer_config={**_SIZES, "vocab_size": 97, "encoder_hidden_size": 24},
        text_config=opt.to_dict(), num_query_tokens=3, image_token_id=90,
    )  # fmt: skip
    return transformers.Blip2ForConditionalGeneration(config)


def mllama() -> Any:
    vision = {
        "hidden_size": 24, "num_hidden_layers": 2, "num_global_layers": 1, "attention_heads": 4, "intermediate_size": 32,
        "image_size": 16, "patch_size": 8, "vision_output_dim": 48, "intermediate_layers_indices": [0],
        "supported_aspect_ratios": [[1, 1]], "max_num_tiles": 1,
    }  # fmt: skip
    text = {**_LLAMA, "cross_attention_layers": [1], "rope_parameters": _ROPE}
    return transformers.MllamaForConditionalGeneration(
        transformers.MllamaConfig(text_config=text, vision_config=vision, image_token_index=90)
    )


def captioner() -> Any:
    config = transformers.VisionEncoderDecoderConfig.from_encoder_decoder_configs(
        transformers.ViTConfig(**_IMAGE), transformers.GPT2Config(vocab_size=97, n_embd=24, n_layer=2, n_head=4)
    )
    return transformers.VisionEncoderDecoderModel(config)


def albert() -> Any:
    config = transformers.AlbertConfig(
        vocab_size=97, embedding_size=8, hidden_size=24, num_hidden_layers=4, num_hidden_groups=2, inner_group_num=2,
        num_attention_heads=4, intermediate_size=32,
    )  # fmt: skip
    return transformers.AlbertModel(config)


def _ids(*, images: int = 0) -> Any:
    ids = torch.randint(3, 80, (2, 9), generator=torch.Generator().manual_seed(1))
    ids[:, 1 : 1 + images] = 90
    return ids


def _pixels(*shape: int) -> Any:
    return torch.randn(shape, generator=torch.Generator().manual_seed(2))


IMAGE = (2, 3, 16, 16)
# A model, what it is called with, and its stacks with the number of layers of each.
STACKS: dict[str, tuple[Any, Any, dict[str, int]]] = {
    "clip": (clip, lambda: {"input_ids": _ids(), "pixel_values": _pixels(*IMAGE)}, {"text_model": 2, "vision_model": 3}),
    "llava": (
        llava, lambda: {"input_ids": _ids(images=4), "pixel_values": _pixels(*IMAGE)},
        {"vision_tower": 3, "language_model": 2},
    ),
    "qwen2_vl": (
        qwen2_vl,
        lambda: {"input_ids": _ids(images=4), "pixel_values": _pixels(32, 96), "image_grid_thw": torch.tensor([[1, 4, 4]] * 2),
                 "mm_token_type_ids": (_ids(images=4) == 90).int()},
        {"visual": 3, "language_model": 2},
    ),
    "blip2": (
        blip2, lambda: {"input_ids": _ids(images=3), "pixel_values": _pixels(*IMAGE)},
        {"vision_model": 3, "qformer": 2, "cross": 1, "language_model": 2},
    ),
    "mllama": (
        mllama,
        lambda: {"input_ids": _ids(), "pixel_values": _pixels(2, 1, 1, 3, 16, 16),
                 "aspect_ratio_ids": torch.ones(2, 1, dtype=torch.long),
                 "aspect_ratio_mask": torch.ones(2, 1, 1, dtype=torch.long),
                 "cross_attention_mask": torch.ones(2, 9, 1, 1, dtype=torch.long)},
        {"vision_model.transformer": 2, "vision_model.global_transformer": 1, "language_model": 1, "cross": 1},
    ),
    "captioner": (
        captioner, lambda: {"pixel_values": _pixels(*IMAGE), "decoder_input_ids": _ids()},
        {"encoder": 3, "decoder": 2, "cross": 2},
    ),
    "albert": (albert, lambda: {"input_ids": _ids()}, {"": 4}),
}  # fmt: skip


def made(name: str) -> tuple[Any, dict[str, Any]]:
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    torch.manual_seed(0)
    build, batch, _ = STACKS[name]
    model = build().eval()
    for parameter in model.parameters():
        parameter.data.normal_(0, 0.3)
    return model, batch()


def mean_square(out: Any, _: Any) -> Any:
    first = out.logits_per_text if hasattr(out, "logits_per_text") else out[0]
    return first.double().square().mean()


def found_modules(model: Any, batch: dict[str, Any]) -> tuple[AttentionModule, ...]:
    with open_door(model) as door:
        index = ModuleIndex(door.attentions)
        with open_door(model, observers=[index]), torch.no_grad():
            model(**batch)
        return index.called(door)


def round_trip(modules: tuple[AttentionModule, ...]) -> None:
    """Every address is read back, in both spellings, and is that of one head."""
    seen = set()
    for row, module in enumerate(modules):
        for number in range(module.heads):
            head = module.head(number)
            for text in (format_head(head), format_head(head, short=True), str(head)):
                assert parse_head(text) == head
            assert row_of(modules, head) == row
            assert select(modules, [parse_head(str(head))]) == {row: (number,)}
            seen.add(str(head))
    assert len(seen) == sum(module.heads for module in modules)


@pytest.mark.parametrize("name", sorted(set(tiny.CASES) - REFUSED))
def test_addresses_of_every_family_are_read_back(name: str) -> None:
    model, batch = tiny.build(name), tiny.inputs(name)
    modules = found_modules(model, batch)
    round_trip(modules)
    stacks = {module.stack for module in modules}
    assert stacks == ({"encoder", "decoder", "cross"} if "decoder_input_ids" in batch else {""})


@pytest.mark.parametrize("name", sorted(STACKS))
def test_stacks_are_called_what_the_model_calls_them(name: str) -> None:
    model, batch = made(name)
    modules = found_modules(model, batch)
    round_trip(modules)
    counts: dict[str, int] = {}
    for module in modules:
        counts[module.stack] = counts.get(module.stack, 0) + 1
        assert module.stack in ("", "encoder", "decoder", "cross") or module.stack.replace(
            ".", ""
        ) in module.path.replace(".", "")
    assert counts == STACKS[name][2]


@pytest.mark.parametrize("name", sorted(STACKS))
def test_statistics_importance_and_ablation_speak_of_the_same_heads(name: str) -> None:
    model, batch = made(name)
    seen = head_statistics(model, [batch])
    first = head_importance(model, [batch], metric=mean_square)
    quick, plain = (ablate_heads(model, [batch], metric=mean_square, reuse=reuse) for reuse in (True, False))
    assert [(p.path, p.stack, p.layer) for p in seen.modules] == [(p.path, p.stack, p.layer) for p in first.modules]
    assert first.modules == quick.modules == plain.modules
    assert torch.equal(quick.scores.nan_to_num(), plain.scores.nan_to_num())
    head = first.heads()[-1]
    with ablated(model, [parse_head(str(head))]), torch.no_grad():
        wanted = mean_square(model(**batch), None).item() - quick.baseline
    assert quick.score(head) == pytest.approx(wanted, abs=1e-6)
    assert bool((quick.scores.nan_to_num() != 0).any())


def test_a_stack_that_is_not_there_is_answered_with_those_that_are() -> None:
    modules = found_modules(*made("llava"))
    with pytest.raises(ManyheadsError) as caught:
        row_of(modules, Head(0, 0, "decoder"))
    assert str(caught.value) == (
        "decoder/0:0: the model has no stack 'decoder'; valid stacks: vision_tower, language_model"
    )
    with pytest.raises(ManyheadsError, match="0:0: the model has no head without a stack; valid stacks: vision_tower"):
        row_of(modules, Head(0, 0))
    with pytest.raises(ManyheadsError, match="no stack 'cross'; valid: addresses without a stack, such as 0:0"):
        row_of(found_modules(tiny.build("llama"), tiny.inputs("llama")), Head(0, 0, "cross"))


def test_images_have_no_tokens_even_where_there_are_as_many() -> None:
    """Five tokens and five parts of an image: duplicates, rare tokens and padding are matters of the text alone."""
    model, batch = made("clip")
    ids, mask = batch["input_ids"][:, :5], torch.ones(2, 5, dtype=torch.long)
    mask[0, 3:] = 0
    given = {**batch, "input_ids": ids, "attention_mask": mask}
    found = head_statistics(model, [given], key_sets={"some": [ids[0, 0].item()]})
    for name in ("duplicate", "some"):
        assert torch.tensor(found.of("vision_model").mass[name]).isnan().all()
    assert found.of("vision_model").queries.tolist() == [10] * 3
    assert found.of("text_model").queries.tolist() == [8] * 2
    assert not torch.tensor(found.of("text_model").mass["some"]).isnan().any()
    outputs: dict[str, Any] = {}
    with open_door(model, observers=[lambda call, out: outputs.update({call.path: out})]), torch.no_grad():
        model(**given)
    path, stack = "vision_model.encoder.layers.1.self_attn", "vision_model"
    exact = ablate_heads(model, [given], how="mean", metric=mean_square, heads=[Head(1, 2, stack)])
    with ablated(model, [Head(1, 2, stack)], instead={path: outputs[path].mean((0, 2))}), torch.no_grad():
        wanted = mean_square(model(**given), None).item() - exact.baseline
    assert exact.score(Head(1, 2, stack)) == pytest.approx(wanted, abs=1e-6)
