"""README.md of a converted model, for people; conversion.json beside it is the report."""

from __future__ import annotations

from manyheads.convert.record import ConversionReport, TextLoss
from manyheads.models.store.provenance import CARD_NAME, Source, front_matter, licence_text
from manyheads.models.surroundings import versions
from manyheads.quoting import shown_path

__all__ = ["CARD_NAME", "REPORT_NAME", "card"]

REPORT_NAME = "conversion.json"


def card(found: ConversionReport, source: Source) -> str:
    """The card: what was done, what it saves, what it lost and on which text, how it is loaded, what it was made from."""
    assert found.written is not None
    kind = next(iter(found.written.architectures), "AutoModel")
    parts = [
        f"# {source.name} with {found.kv_heads} key/value head{'s' * (found.kv_heads > 1)} in place of {found.kv_heads_before}",
        f"Method: {found.method}. {_calibration(found)}",
        (
            f"Weights: {found.weight_bytes:,} bytes, {found.weight_bytes_before:,} before. Cache: {found.cache.a_token:,} bytes a token in "
            f"16 bits, {found.cache.a_token_before:,} before."
        ),
        "\n".join(_losses(found)),
        f'```python\nfrom transformers import {kind}\n\nmodel = {kind}.from_pretrained("path/to/this/folder")\n```',
        f"Made from {source.name}{f', commit {source.revision}' if source.revision else ''}:",
        "\n".join(f"- {shown_path(file['name'])}, sha256 {file['sha256']}" for file in source.files),
        licence_text(source),
        f"{REPORT_NAME} has all of it for programs. Written by manyheads {versions()['manyheads']}.",
    ]
    return front_matter(source) + "\n\n".join(parts) + "\n"


def _calibration(found: ConversionReport) -> str:
    if not found.calibration:
        return "No text was read to fit it."
    parts = ", ".join(f"{part.tokens:,} tokens of {part.name}" for part in found.calibration)
    return f"Calibrated on {parts}, in windows of {found.calibrated_window}; nothing stands before a window and no chat template is used."


def _losses(found: ConversionReport) -> list[str]:
    if found.embedding_cosine is not None:
        return [
            f"Mean cosine between its embeddings and the original's, on held-out text: {found.embedding_cosine:.4f}."
        ]
    if not found.losses:
        return [f"No loss was measured: {found.unmeasured}."]
    rows = [
        "| held-out text | perplexity before | after | ratio | KL | same next token |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    return rows + [
        f"| {about(each)} | {each.perplexity_before:.2f} | {each.perplexity:.2f} | {each.ratio:.3f} | {each.kl:.3f} | "
        f"{each.agreement:.1%} |" for each in found.losses
    ]  # fmt: skip


def about(loss: TextLoss) -> str:
    """A text of the report in words."""
    where = f", behind {loss.scored_from:,} tokens" if loss.scored_from > 1 else ""
    return f"{loss.text} ({loss.kind}{where})"
