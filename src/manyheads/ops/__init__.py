"""The operator in torch: plain reference twins, one file a form, and the masks, positions, biases and norms they use.

Compute layout (batch, heads, tokens, dim). Nothing is imported here: name the form you want, as in
`from manyheads.ops import softmax`.
"""
