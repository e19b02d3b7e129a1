"""What tests of several rooms share: tiny models, references, strategies, rounding bounds, recorders."""
