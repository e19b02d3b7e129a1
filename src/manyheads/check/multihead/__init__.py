"""Multi-head attention as people are asked to write it: projections, heads, mask, join, output projection.

words        which weight a name means: W_q, q_proj, c_attn, linears.3, unifyheads ...
problem      a call of it, the right answer, and how q, k and v of a plain problem are laid into x and the weights
storage      how a weight is stored: x @ W or x @ W.T, heads apart or side by side, three in one
twins        multi-head attention with one fault each
construct    an object of the user's class, for the sizes that are asked
state        the weights of an object: found by name and shape, set to chosen values
subject      a function or an object with its adapter: called with a problem, brought back to our axes
guess        how all of this is found for a function or a class, by names and by trying
steps        a cache: a token at a time
"""
