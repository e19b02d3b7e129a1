"""The figures of every head in one object, and its tables."""
