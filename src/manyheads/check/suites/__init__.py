"""The cases, one module a suite."""
