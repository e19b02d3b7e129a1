"""Models of images that pad inside: windows of Swin and DaViT, tiles of Llama 3.2. What they fill up with is no query.

Which positions are real is worked out here from sizes alone, by cutting up a picture of ones as the model cuts up its own.
"""

from __future__ import annotations

import math
from typing import Any

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
np = pytest.importorskip("numpy")

from manyheads.heads.effects import ablate_heads  # noqa: E402
from manyheads.heads.statistics import head_statistics  # noqa: E402
from manyheads.models.door.door import open_door  # noqa: E402

HEIGHT, WIDTH, WINDOW = 5, 7, 4  # patches, and the side of a window: padded to 8 x 8


def drawn(model: Any) -> Any:
    for parameter in model.parameters():
        if parameter.dim() > 1:
            parameter.data.normal_(0, 0.4)
    return model.eval()


def swin() -> Any:
    torch.manual_seed(0)
    config = transformers.SwinConfig(
        image_size=(20, 28), patch_size=4, embed_dim=16, depths=[2], num_heads=[4], window_size=WINDOW
    )
    return drawn(transformers.SwinModel(config))


def pictures() -> torch.Tensor:
    return torch.randn(2, 3, 20, 28, generator=torch.Generator().manual_seed(1))


def real_patches(shift: int) -> torch.Tensor:
    """(windows, patches): of 5 x 7 patches, padded behind, rolled by `shift`, cut into windows row by row."""
    grid = torch.zeros(8, 8, dtype=torch.bool)
    grid[:HEIGHT, :WIDTH] = True
    grid = grid.roll((-shift, -shift), (0, 1))
    cut = [grid[y : y + WINDOW, x : x + WINDOW].flatten() for y in (0, 4) for x in (0, 4)]
    return torch.stack(cut)


def weights_of(model: Any, batch: dict[str, Any]) -> list[tuple[str, torch.Tensor]]:
    """Probabilities of every call, in full."""
    seen: list[tuple[str, torch.Tensor]] = []
    with (
        torch.no_grad(),
        open_door(model, observers=[lambda call, _: seen.append((call.path, call.weights().double()))]),
    ):
        model(**batch)
    return seen


@pytest.mark.parametrize("implementation", ["torch", "compiled"])
def test_swin_counts_real_patches_alone(implementation: str) -> None:
    """The second block's windows are shifted, so other places of them are padding."""
    model, batch = swin(), {"pixel_values": pictures()}
    found = head_statistics(model, [batch], max_offset=4, implementation=implementation)
    assert found.queries.tolist() == [2 * HEIGHT * WIDTH] * 2
    assert found.padded.tolist() == [2 * (64 - HEIGHT * WIDTH)] * 2
    assert "70 queries" not in repr(found)
    assert "140 queries (without 116 positions of padding)" in repr(found)
    for row, (shift, (_, weights)) in enumerate(zip((0, WINDOW // 2), weights_of(model, batch), strict=True)):
        real = real_patches(shift).repeat(2, 1)  # picture by picture
        entropy = -(weights * weights.clamp_min(1e-300).log()).sum(-1)
        first = weights.gather(3, real.int().argmax(1)[:, None, None, None].expand(-1, 4, 16, 1))[..., 0]
        for head in range(4):
            assert found.entropy[row, head] == pytest.approx(entropy[:, head][real].mean().item(), rel=1e-5)
            assert found.mass["first"][row, head] == pytest.approx(first[:, head][real].mean().item(), rel=1e-4)
        assert not np.allclose(found.entropy[row], entropy.mean((0, 2)).numpy(), rtol=1e-3)  # or nothing was tested
        assert found.chance is not None  # all 16 keys of a window: what is not to be seen is made unlikely by -100
        assert found.chance.entropy[row, 0] == pytest.approx(math.log(16), rel=1e-6)
        assert found.chance.mass["first"][row, 0] == pytest.approx(1 / 16, rel=1e-6)


def test_the_mean_of_a_head_is_that_of_real_patches() -> None:
    model, batch = swin(), {"pixel_values": pictures()}
    projection = model.encoder.layers[0].blocks[0].attention.o_proj
    real = real_patches(0).repeat(2, 1)
    kept: list[torch.Tensor] = []
    hook = projection.register_forward_pre_hook(lambda _, args: kept.append(args[0].detach().clone()))
    with torch.no_grad():
        model(**batch)
    hook.remove()
    part = slice(4, 8)  # head 1 of 4, each 4 wide
    mean = kept[0][real].mean(0)[part]

    def swapped(_: Any, args: Any) -> Any:
        x = args[0].clone()
        x[..., part] = mean
        return (x,)

    def metric(out: Any, _: Any) -> torch.Tensor:
        return out[0].double().square().mean()

    with torch.no_grad():
        before = metric(model(**batch), batch).item()
        hook = projection.register_forward_pre_hook(swapped)
        after = metric(model(**batch), batch).item()
        hook.remove()
    found = ablate_heads(model, [batch], how="mean", metric=metric, heads={0: [1]})
    assert found.score((0, 1)) == pytest.approx(after - before, rel=1e-3, abs=1e-7)


def test_windows_that_an_attention_pads_itself() -> None:
    """DaViT, the eyes of Florence-2, pads inside its window attention; its attention between channels has no padding."""
    from transformers.models.florence2 import configuration_florence2, modeling_florence2

    torch.manual_seed(0)
    config = configuration_florence2.Florence2VisionConfig(
        in_channels=3, depths=(1,), patch_size=(4,), patch_stride=(4,), patch_padding=(0,), patch_prenorm=(False,),
        embed_dim=(16,), num_heads=(4,), num_groups=(4,), window_size=WINDOW, projection_dim=16,
    )  # fmt: skip
    model, batch = drawn(modeling_florence2.Florence2VisionBackbone(config)), {"hidden_states": pictures()}
    found = head_statistics(model, [batch], max_offset=4)
    assert found.queries.tolist() == [2 * HEIGHT * WIDTH, 2 * 4]  # 4 channels of a group are its queries
    assert found.padded.tolist() == [2 * (64 - HEIGHT * WIDTH), 0]
    (path, weights), _ = weights_of(model, batch)
    assert path.endswith("window_attn")
    entropy = -(weights * weights.clamp_min(1e-300).log()).sum(-1)
    real = real_patches(0).repeat(2, 1)
    assert found.entropy[0] == pytest.approx(np.array([entropy[:, h][real].mean().item() for h in range(4)]), rel=1e-5)


def test_tiles_that_are_filled_up_to_a_multiple_of_eight() -> None:
    """Llama 3.2: two tiles of a class token and four patches, each filled up to eight, of which the second may be empty."""
    from transformers.models.mllama import configuration_mllama, modeling_mllama

    torch.manual_seed(0)
    config = configuration_mllama.MllamaVisionConfig(
        hidden_size=16, num_hidden_layers=1, num_global_layers=1, attention_heads=4, num_attention_heads=4,
        intermediate_size=16, image_size=28, patch_size=14, max_num_tiles=2, supported_aspect_ratios=[[1, 1], [1, 2], [2, 1]],
        intermediate_layers_indices=[0], vision_output_dim=32,
    )  # fmt: skip
    model = drawn(modeling_mllama.MllamaVisionModel(config))
    for tiles in (2, 1):
        batch = {
            "pixel_values": torch.randn(1, 1, 2, 3, 28, 28), "aspect_ratio_ids": torch.tensor([[2 if tiles == 2 else 1]]),
            "aspect_ratio_mask": torch.tensor([[[1, 1 if tiles == 2 else 0]]]),
        }  # fmt: skip
        found = head_statistics(model, [batch], max_offset=4)
        assert found.queries.tolist() == [5 * tiles] * 2
        assert found.padded.tolist() == [16 - 5 * tiles] * 2
        real = torch.tensor([1] * 5 + [0] * 3 + [int(tiles == 2)] * 5 + [0] * 3).bool()
        for row, (_, weights) in enumerate(weights_of(model, batch)):
            entropy = -(weights * weights.clamp_min(1e-300).log()).sum(-1)[0, :, real].mean(-1)
            assert found.entropy[row] == pytest.approx(entropy.numpy(), rel=1e-5)


def test_a_black_picture_is_no_padding() -> None:
    """Every row that a fresh model projects is zero then, and none stands out."""
    model = transformers.SwinModel(
        transformers.SwinConfig(
            image_size=(16, 16), patch_size=4, embed_dim=16, depths=[1], num_heads=[4], window_size=4
        )
    ).eval()
    found = head_statistics(model, [{"pixel_values": torch.zeros(1, 3, 16, 16)}], max_offset=4)
    assert (found.queries.tolist(), found.padded.tolist()) == ([16], [0])


def test_no_hook_is_left_and_looking_changes_nothing() -> None:
    model, batch = swin(), {"pixel_values": pictures()}
    with torch.no_grad():
        before = model(**batch)[0]
        with pytest.raises(RuntimeError, match="on purpose"), open_door(model, observers=[_fail]):
            model(**batch)
        assert not any(module._forward_pre_hooks for module in model.modules())
        with open_door(model), open_door(model):
            inside = model(**batch)[0]
        assert not any(module._forward_pre_hooks for module in model.modules())
    assert torch.allclose(inside, before, atol=1e-5)


def _fail(*_: Any) -> None:
    raise RuntimeError("on purpose")


def test_text_is_told_by_its_mask_and_has_no_hooks() -> None:
    """A row of zeros in the embeddings of a text is a token like any other."""
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=30, hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2, head_dim=8
    )
    model = transformers.LlamaForCausalLM(config).eval()
    model.model.embed_tokens.weight.data[5] = 0
    with open_door(model):
        assert not any(module._forward_pre_hooks for module in model.modules())
    assert head_statistics(model, [torch.tensor([[4, 5, 6, 5]])], max_offset=4).queries.tolist() == [4]
