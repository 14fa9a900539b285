"""Loops of embeddings."""

from chainer_kernels.compiling import loop


@loop("void(i8, i8, i8[::1], f4[:, ::1], f4[:, ::1])")
def add_rows(first, last, indexes, rows, sums):
    """Adds rows to those that the indexes say, in some columns; none to negative ones.

    One row is added after the other, so each sum is that of ``np.add.at``.
    """
    for i in range(indexes.size):
        if indexes[i] >= 0:
            row = rows[i, first:last]
            out = sums[indexes[i], first:last]
            for c in range(row.size):
                out[c] += row[c]
