"""Caches for models of transformers: layers that append in place, and files that a filled cache is kept in."""
