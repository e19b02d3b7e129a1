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
    "HOLDS",
    "LEAST_EFFECT",
    "SINK",
    "Evidence",
    "Role",
    "RoleReport",
    "Sentence",
    "TokenKinds",
    "head_roles",
    "parse_conllu",
    "read_conllu",
    "token_kinds",
]

_HOMES = {
    "Evidence": "evidence",
    "HOLDS": "evidence",
    "LEAST_EFFECT": "evidence",
    "Role": "evidence",
    "RoleReport": "detect",
    "SINK": "evidence",
    "Sentence": "conllu",
    "TokenKinds": "text_scores",
    "head_roles": "detect",
    "parse_conllu": "conllu",
    "read_conllu": "conllu",
    "token_kinds": "text_scores",
}

__getattr__, __dir__ = lazy(__name__, _HOMES)
