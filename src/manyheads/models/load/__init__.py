"""From what a user named to a running model: weights, tokenizer, text."""
