"""What each head does: detectors with controls, intervals and verdicts corrected for the number of tests."""

from __future__ import annotations

from typing import TYPE_CHECKING

from manyheads.lazy import lazy

if TYPE_CHECKING:
    from manyheads.heads.roles.conllu import Sentence, parse_conllu, read_conllu
    from manyheads.heads.roles.detect import RoleReport, head_roles
    from manyheads.heads.roles.evidence import HOLDS, LEAST_EFFECT, SINK, Evidence, Role
    from manyheads.heads.roles.text_scores import TokenKinds, token_kinds

__all__ = [
    "HOLDS", "LEAST_EFFECT", "SINK", "Evidence", "Role", "RoleReport", "Sentence", "TokenKinds", "head_roles",
    "parse_conllu", "read_conllu", "token_kinds",
]  # fmt: skip

_HOMES = {
    "conllu": ("Sentence", "parse_conllu", "read_conllu"),
    "detect": ("RoleReport", "head_roles"),
    "evidence": ("HOLDS", "LEAST_EFFECT", "SINK", "Evidence", "Role"),
    "text_scores": ("TokenKinds", "token_kinds"),
}

__getattr__, __dir__ = lazy(__name__, {name: home for home, names in _HOMES.items() for name in names})
