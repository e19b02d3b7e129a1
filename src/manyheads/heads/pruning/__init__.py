"""Heads removed for real: planned, chosen, cut out of the weights, exported."""
