"""Regrouped weights go to a folder that stock transformers loads, and give there what they give in memory."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import transformers

from manyheads.convert.regroup import regroup
from manyheads.convert.regrouped_weights import RegroupedWeights, put_into_model, repeated
from manyheads.convert.source import open_source
from manyheads.errors import ConversionError
from manyheads.models.store.read import open_store
from manyheads.models.store.write import write_store
from support.regrouping import windows


@pytest.mark.parametrize("family", ["llama", "mistral", "gemma2", "gpt_oss"])
@pytest.mark.parametrize("layer_by_layer", [False, True])
def test_a_folder_that_stock_transformers_loads(
    tiny: Callable[[str], Path], tmp_path: Path, family: str, *, layer_by_layer: bool
) -> None:
    if layer_by_layer and family == "gpt_oss":
        pytest.skip("a mixture is loaded whole")
    made = regroup(str(tiny(family)), 1, calibration=windows(), layer_by_layer=layer_by_layer)
    with open_store(str(tiny(family))) as store:
        config = dict(store.checkpoint.config or {}) | {"num_key_value_heads": 1}
    write_store(tmp_path / "small", made.weights, config=config, stack=made.stack)
    load = transformers.AutoModelForCausalLM.from_pretrained
    small, large = load(tmp_path / "small").eval(), load(tiny(family)).eval()
    source = open_source(large)
    put_into_model(large, source.family, source.stack, made.weights, made.stack)
    ids = torch.arange(3, 27)[None]
    with torch.no_grad():
        torch.testing.assert_close(small(input_ids=ids).logits, large(input_ids=ids).logits, atol=1e-5, rtol=1e-4)


def test_types_stay(tiny: Callable[[str], Path]) -> None:
    model = transformers.AutoModelForCausalLM.from_pretrained(tiny("llama"), dtype=torch.bfloat16)
    made = regroup(model, 1, method="mean")
    assert {made.weights[name].dtype for name in made.weights} == {torch.bfloat16}


def test_the_files_beside_go_with_the_last_reference(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    weights = RegroupedWeights({})
    assert len(list(tmp_path.iterdir())) == 1
    del weights
    assert not list(tmp_path.iterdir())


def test_heads_that_do_not_divide_cannot_be_repeated(tiny: Callable[[str], Path]) -> None:
    source = open_source(transformers.AutoModel.from_pretrained(tiny("bert")))
    smaller = regroup(source, 2, method="mean")
    larger = regroup(source, 4, method="mean")
    repeated(smaller.weights, smaller.stack, larger.stack)
    with pytest.raises(ConversionError, match="4 KV heads cannot be repeated to 2"):
        repeated(larger.weights, larger.stack, smaller.stack)
