"""Scores and mixes of any number of rows over a tile, out of the register blocks of `micro`: the widest that fit first."""

from __future__ import annotations

from manyheads.kernels import lanes
from manyheads.kernels.access import prefetch
from manyheads.kernels.caching import Compiled, compiled
from manyheads.kernels.micro import mix, pack, scores, scores_packed, widen

__all__ = ["mixes", "packed_scores", "row_scores", "widened_tile"]


def packed_scores(kind: int, size: int) -> Compiled:
    """Scores of many rows over 32 keys at a time: they are transposed once, then pass under blocks of 8, 4, 2 and single rows.

    Meanwhile the same number of rows from `ahead` on, and from `then` on, is asked for.
    """
    columns, row_bytes = lanes.padded(kind, size), size * lanes.BYTES[kind]

    @compiled
    def run(q, q_row, rows, k, k_row, pairs, out, out_row, packed, ahead, ahead_row, then):
        share = (32 * 8 + rows - 1) // rows
        for pair in range(pairs):
            keys, place = k + 32 * pair * k_row, out + 128 * pair
            asked = 32 * pair
            pack(kind, size, keys, k_row, packed, 128)
            pack(kind, size, keys + 16 * k_row, k_row, packed + 64, 128)
            row = 0
            while rows - row >= 8:
                for n in range(asked, asked + share):
                    prefetch(ahead + n * ahead_row, row_bytes)
                    prefetch(then + n * k_row, row_bytes)
                asked += share
                scores_packed(8, 2, q + row * q_row, q_row, packed, columns, place + row * out_row, out_row)
                row += 8
            if rows - row >= 4:
                scores_packed(4, 2, q + row * q_row, q_row, packed, columns, place + row * out_row, out_row)
                row += 4
            if rows - row >= 2:
                scores_packed(2, 2, q + row * q_row, q_row, packed, columns, place + row * out_row, out_row)
                row += 2
            if row < rows:
                scores_packed(1, 2, q + row * q_row, q_row, packed, columns, place + row * out_row, out_row)

    return run


def widened_tile(kind: int, size: int) -> Compiled:
    """A tile of V as fp32, widened once for all blocks of rows."""

    @compiled
    def run(v, v_row, count, out, out_row):
        for n in range(count):
            widen(kind, size, v + n * v_row, out + n * out_row)

    return run


def _by_rows(four: Compiled, three: Compiled, two: Compiled, one: Compiled) -> Compiled:
    """Any number of rows (x, of stride x_row, to out) over a tile of keys or values: four at a time, then those left over."""

    @compiled
    def run(x, x_row, rows, tile, tile_row, count, out, out_row, ahead, ahead_row):
        row = 0
        while rows - row >= 4:
            four(x + row * x_row, x_row, tile, tile_row, count, out + row * out_row, out_row, ahead, ahead_row)
            row += 4
        if rows - row == 3:
            three(x + row * x_row, x_row, tile, tile_row, count, out + row * out_row, out_row, ahead, ahead_row)
        elif rows - row == 2:
            two(x + row * x_row, x_row, tile, tile_row, count, out + row * out_row, out_row, ahead, ahead_row)
        elif rows - row == 1:
            one(x + row * x_row, x_row, tile, tile_row, count, out + row * out_row, out_row, ahead, ahead_row)

    return run


def row_scores(kind: int, size: int) -> Compiled:
    """Scores of all rows over a tile: four rows by four keys at a time, fewer rows with more keys.

    Meanwhile the rows from `ahead` on, as many and as long, are asked for.
    """
    four, three, two, one = (
        _scores_of(kind, size, rows, keys) for rows, keys in ((4, 4), (3, 5), (2, 8), (1, 16))
    )  # fmt: skip

    return _by_rows(four, three, two, one)


def _scores_of(kind: int, size: int, rows: int, keys: int) -> Compiled:
    """`rows` rows over a tile, `keys` keys at a time and the last ones singly."""
    row_bytes = size * lanes.BYTES[kind]

    @compiled
    def run(q, q_row, k, k_row, count, out, out_row, ahead, ahead_row):
        n = 0
        while n + keys <= count:
            for m in range(n, n + keys):
                prefetch(ahead + m * ahead_row, row_bytes)
            scores(rows, keys, kind, size, q, q_row, k + n * k_row, k_row, out + 4 * n, out_row)
            n += keys
        while n < count:
            scores(rows, 1, kind, size, q, q_row, k + n * k_row, k_row, out + 4 * n, out_row)
            n += 1

    return run


def mixes(kind: int, size: int) -> Compiled:
    """Adds a tile's weighted values: four rows by 64 columns of sums at a time, fewer rows with 128.

    Meanwhile the rows from `ahead` on, as many and as long, are asked for.
    """
    four, three, two, one = (
        _mix_of(kind, size, rows, columns) for rows, columns in ((4, 64), (3, 64), (2, 128), (1, 128))
    )  # fmt: skip

    return _by_rows(four, three, two, one)


def _mix_of(kind: int, size: int, rows: int, columns: int) -> Compiled:
    """`rows` rows, `columns` columns at a time, then what is left of them."""
    step, width = lanes.STEP[kind], lanes.BYTES[kind]
    whole, left = size // columns * columns, size % columns
    loads, last_loads, last = columns // step, -(-max(left, 1) // step), max(left, 1)

    @compiled
    def run(p, p_row, v, v_row, count, out, out_row, ahead, ahead_row):
        for column in range(0, whole, columns):
            mix(rows, loads, kind, columns, p, p_row, v + column * width, v_row, count, out + 4 * column, out_row,
                ahead + column * width, ahead_row)  # fmt: skip
        if left:
            mix(rows, last_loads, kind, last, p, p_row, v + whole * width, v_row, count, out + 4 * whole, out_row,
                ahead + whole * width, ahead_row)  # fmt: skip

    return run
