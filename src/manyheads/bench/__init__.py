"""Attention timed on this machine: against its own memory and arithmetic, and against what else is installed.

    room         the memory that a measurement may use
    shape        what a step reads and multiplies, by the formulas of cost
    rotation     caches over a buffer several times the last-level cache, each call another one
    probes       read bandwidth and matrix peaks, measured between the calls that are judged by them
    paths        one way to compute a step, as a value
    contestants  the ways to compute a step, ours and others', each with what it supports
    peers        transformers' eager attention and onnxruntime's GroupQueryAttention
    judge        every way held against float64 before it is timed
    contest      all ways in turns, round after round
    decode, prefill, latent, generation    what is measured
    tables       the report

Imported only by `manyheads bench` and `benchmarks/decode.py`. No figure is given for a path that disagrees with the reference.
"""
