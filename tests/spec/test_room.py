"""The room's door: what it exports, and that the written forms load only when used."""

from __future__ import annotations

import pytest

import manyheads.spec as room


def test_every_public_name_is_there_and_documented() -> None:
    assert sorted(room.__all__) == sorted(set(room.__all__))
    for name in room.__all__:
        assert getattr(room, name).__doc__


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'spelling'"):
        room.spelling  # noqa: B018


def test_pricing_from_a_spec_loads_no_written_form(python) -> None:
    program = (
        "import sys; from manyheads.spec import AttentionSpec, weights; weights(AttentionSpec.mha(512, 8));"
        "print([m for m in sys.modules if m.split('.')[-1] in ('text', 'syntax', 'sketch', 'jsonform', 'slugs', 'hashlib')"
        " or m in ('torch', 'numpy')])"
    )
    found = python("-S", "-c", "import sys; sys.path.insert(0, 'src');" + program)
    assert (found.returncode, found.stdout.strip()) == (0, "[]"), found.stderr
