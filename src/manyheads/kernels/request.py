"""What a call of the kernels hands over: one record of addresses, sizes and strides, which every thread reads.

Strides of q, k and v are in bytes, all others in elements; an address of 0 stands for what is not there.
"""

from __future__ import annotations

import numpy as np

__all__ = ["ARRIVED", "COUNTER_BYTES", "DONE", "NEXT", "REQUEST"]

# Three counters that the threads share, each in a line of its own: their numbers, the next task, and the tasks done.
ARRIVED, NEXT, DONE = 0, 64, 128
COUNTER_BYTES = 192

_INTEGERS = """
    counters tasks splits kv_heads group queries keys
    q q_batch q_head q_query k k_batch k_head k_token v v_batch v_head v_token
    k_scale k_scale_batch k_scale_head k_scale_token v_scale v_scale_batch v_scale_head v_scale_token
    low high bias bias_batch bias_head bias_query bias_key slopes positions sinks
    scratch scratch_bytes tile_at packed_at values_at mixed top total out
"""

#: tasks = batch · kv_heads · splits; rows of a task = group · queries. mixed (parts, rows, widened v), top (parts,
#: rows) and total (parts, rows, 16 lanes) hold what a task found: a part for each task where keys are split, else one for each thread.
REQUEST = np.dtype([*((name, np.int64) for name in _INTEGERS.split()), ("scale", np.float64), ("softcap", np.float64)])
