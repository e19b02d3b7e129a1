"""Training: so far the learning rate of the 2017 recipe."""
