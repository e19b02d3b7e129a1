"""A few vectors times one matrix a head, in fp32 whatever the matrix is stored in: what MLA does before and after attention.

    times             y_h = x_h W_h      x (h, r, n), W (h, n, c): each row of W is read once for all rows of x
    times_transposed  y_h = x_h W_h^T    x (h, r, c), W (h, n, c)

torch's product of 16-bit matrices also rounds its result to 16 bits; between the parts of one attention that is an error
that need not be. The work is reading W: both are the loops of the decode kernel without a softmax between them.
"""

from __future__ import annotations

from functools import cache

import numpy as np
import torch
from numba import carray, from_dtype, types
from torch import Tensor

from manyheads.errors import SpecError
from manyheads.kernels import lanes, team
from manyheads.kernels.access import floats, take
from manyheads.kernels.blocks import mixes, row_scores
from manyheads.kernels.caching import Entry, entry
from manyheads.kernels.kinds import FLOATING
from manyheads.kernels.micro import place

__all__ = ["times", "times_transposed"]

# Strides in bytes; `scratch` holds, for each head, the widened rows of x or of y.
_FIELDS = "counter heads rows inner x x_head x_row w w_head w_row y y_head y_row scratch scratch_head"
_REQUEST = np.dtype([(name, np.int64) for name in _FIELDS.split()])
_SIGNATURE = types.void(types.CPointer(from_dtype(_REQUEST)))


def times(x: Tensor, w: Tensor) -> Tensor:
    """x_h W_h in fp32: x (h, r, n), w (h, n, c) in fp32, bf16 or fp16 with rows that lie side by side; (h, r, c)."""
    _check(x, w, inner=1)
    return _run(_mixing(FLOATING[w.dtype], w.shape[2]), x, w, columns=w.shape[2], widened=w.shape[2], inner=w.shape[1])


def times_transposed(x: Tensor, w: Tensor) -> Tensor:
    """x_h W_h^T in fp32: x (h, r, c), w (h, n, c) as in `times`; (h, r, n)."""
    _check(x, w, inner=2)
    return _run(_scoring(FLOATING[w.dtype], w.shape[2]), x, w, columns=w.shape[1], widened=w.shape[2], inner=w.shape[1])


def _check(x: Tensor, w: Tensor, *, inner: int) -> None:
    fits = x.dim() == w.dim() == 3 and x.shape[0] == w.shape[0] and x.shape[2] == w.shape[inner]
    if not fits or not x.is_cpu or not w.is_cpu:
        raise SpecError(f"vectors {tuple(x.shape)} on {x.device} do not fit matrices {tuple(w.shape)} on {w.device}")
    if w.dtype not in FLOATING or w.stride(2) != 1 or (w.dtype == torch.bfloat16 and w.shape[2] % 2):
        raise SpecError(f"matrices of {w.dtype} with strides {w.stride()}: valid are {', '.join(map(str, FLOATING))}, rows that"
                        " lie side by side, of an even length in bfloat16")  # fmt: skip


def _run(code: Entry, x: Tensor, w: Tensor, *, columns: int, widened: int, inner: int) -> Tensor:
    heads, rows, _ = x.shape
    x, w = x.detach().float().contiguous(), w.detach()
    y = torch.empty((heads, rows, columns))
    kind = FLOATING[w.dtype]
    each = rows * lanes.padded(kind, widened)
    scratch, counter = torch.empty(heads * each), torch.zeros(1, dtype=torch.int64)
    width = w.element_size()
    request = np.array(
        (
            counter.data_ptr(), heads, rows, inner, x.data_ptr(), 4 * x.stride(0), 4 * x.stride(1), w.data_ptr(),
            width * w.stride(0), width * w.stride(1), y.data_ptr(), 4 * y.stride(0), 4 * y.stride(1), scratch.data_ptr(),
            4 * each,
        ),
        _REQUEST,
    )  # fmt: skip
    team.run(code.address, request.ctypes.data, min(team.default_threads(), heads))
    return y


@cache
def _mixing(kind: int, size: int) -> Entry:
    """`times` for rows of `size` elements."""
    mix, columns = mixes(kind, size), lanes.padded(kind, size)

    def run(pointer):
        r = carray(pointer, 1)[0]
        head = take(r.counter)
        while head < r.heads:
            sums = r.scratch + head * r.scratch_head
            carray(floats(sums), (r.rows * columns,))[:] = 0.0
            w = r.w + head * r.w_head
            mix(r.x + head * r.x_head, r.x_row, r.rows, w, r.w_row, r.inner, sums, 4 * columns, w + r.w_head, r.w_row)
            for row in range(r.rows):
                source = carray(floats(sums + 4 * row * columns), (columns,))
                y = carray(floats(r.y + head * r.y_head + row * r.y_row), (size,))
                for n in range(size):
                    y[n] = source[place(kind, n)]
            head = take(r.counter)

    return entry(run, _SIGNATURE, name=("times", kind, size))


@cache
def _scoring(kind: int, size: int) -> Entry:
    """`times_transposed` for rows of `size` elements."""
    score, columns = row_scores(kind, size), lanes.padded(kind, size)

    def run(pointer):
        r = carray(pointer, 1)[0]
        head = take(r.counter)
        while head < r.heads:
            x = r.scratch + head * r.scratch_head
            carray(floats(x), (r.rows * columns,))[:] = 0.0
            for row in range(r.rows):
                line = carray(floats(x + 4 * row * columns), (columns,))
                source = carray(floats(r.x + head * r.x_head + row * r.x_row), (size,))
                for n in range(size):
                    line[place(kind, n)] = source[n]
            w, y = r.w + head * r.w_head, r.y + head * r.y_head
            score(x, 4 * columns, r.rows, w, r.w_row, r.inner, y, r.y_row, w + r.w_head, r.w_row)
            head = take(r.counter)

    return entry(run, _SIGNATURE, name=("times_transposed", kind, size))
