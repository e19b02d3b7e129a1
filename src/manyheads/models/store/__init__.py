"""Weights by their canonical names, read from files and written as a folder that transformers loads."""
