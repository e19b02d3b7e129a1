"""Attention layers made of `ops`: one for every member of the family, its caches, and the drop-in for torch's module."""
