"""Writes docs/engines.md from the engines' own rules: python benchmarks/engines_page.py > docs/engines.md"""

from __future__ import annotations

from manyheads.cost.engines import ENGINES

HEAD = """\
# What named engines hold of a cache

Beside the ideal, `manyheads cost` says what engines really hold, each by its own rule. "Measured" rules are checked to
the byte by tests on tiny models of every scheme and on a real one ([held-bytes.md](held-bytes.md)); "modelled from source"
ones follow the code named, at that version, and were not measured on a running server. This page is made from the code by
`python benchmarks/engines_page.py`.
"""


def page() -> str:
    """The page as text."""
    parts = [HEAD]
    for name, version, _, rule, provenance in ENGINES:
        source = provenance[0].upper() + provenance[1:]
        parts.append(f"## {name} {version}\n\n{rule}\n\n*{source}.*\n")
    return "\n".join(parts)


if __name__ == "__main__":
    print(page(), end="")
