"""The x-ray of a model: shape, cost, text, and what each head does; its parts, its tables, its page."""
