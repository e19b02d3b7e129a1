"""The drop-in against Keras's `MultiHeadAttention` on the same weights: an implementation that is not torch's."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from manyheads.layer.multihead import MultiheadAttention  # noqa: E402


@pytest.fixture(scope="module")
def keras():
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KERAS_BACKEND", "torch")  # read when keras is first imported
        return pytest.importorskip("keras")


def twin(keras, ours):
    """Keras's layer with our weights; its kernels are (in, heads, head_dim) and (heads, head_dim, out)."""
    m, heads, d = ours.embed_dim, ours.num_heads, ours.head_dim
    theirs = keras.layers.MultiHeadAttention(heads, d, dtype="float64", output_shape=m)
    theirs.build((None, None, m), (None, None, ours.vdim), (None, None, ours.kdim))
    named = ours.state_dict()
    packed = (
        named["in_proj_weight"].chunk(3) if "in_proj_weight" in named else [named[f"{x}_proj_weight"] for x in "qkv"]
    )
    weights = []
    for kernel, bias in zip(packed, named["in_proj_bias"].chunk(3), strict=True):
        weights += [kernel.T.reshape(-1, heads, d), bias.reshape(heads, d)]
    weights += [named["out_proj.weight"].T.reshape(heads, d, m), named["out_proj.bias"]]
    theirs.set_weights([weight.numpy() for weight in weights])
    return theirs


@pytest.mark.parametrize("widths", [{}, {"kdim": 5, "vdim": 7}])
@pytest.mark.parametrize("masked", ["nothing", "pairs", "pairs and padding", "causal"])
def test_outputs_and_weights_are_keras(keras, widths, masked) -> None:
    torch.manual_seed(0)
    ours = MultiheadAttention(6, 3, batch_first=True, dtype=torch.float64, **widths)
    for weight in ours.parameters():
        nn.init.normal_(weight)
    queries = 4 if masked == "causal" else 3
    q, k, v = (torch.randn(2, t, w, dtype=torch.float64) for t, w in ((queries, 6), (4, ours.kdim), (4, ours.vdim)))
    seen = torch.rand(queries, 4) < 0.5
    seen[:, 0] = True  # a row that sees nothing is where Keras gives an average of what is hidden
    keep = torch.tensor([[True, True, False, True], [True, False, False, False]])
    ours_masks, theirs_masks = {}, {}
    if masked.startswith("pairs"):
        ours_masks["attn_mask"], theirs_masks["attention_mask"] = ~seen, seen.expand(2, -1, -1)
    if masked == "pairs and padding":
        ours_masks["key_padding_mask"] = ~keep
        theirs_masks["attention_mask"] = seen & keep[:, None]
    if masked == "causal":
        ours_masks["is_causal"] = theirs_masks["use_causal_mask"] = True
    out, weights = ours(q, k, v, average_attn_weights=False, **ours_masks)
    alone, _ = ours(q, k, v, need_weights=False, **ours_masks)
    expected, expected_weights = twin(keras, ours)(q, v, k, return_attention_scores=True, **theirs_masks)
    torch.testing.assert_close(weights, expected_weights)
    torch.testing.assert_close(out, expected)
    torch.testing.assert_close(alone, expected)
