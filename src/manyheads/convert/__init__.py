"""Smaller models of the same kind: fewer key/value heads, and what that loses."""
