"""Float16 on a CPU as a tensor core does it: multiply and add in float32, round once.

NumPy has no BLAS for float16, and its sums along an outer axis round after every
addition: a sum of equal numbers does not get beyond 2048 of them. The shims of
``_shims_float16.py`` put these decorators on the ``forward`` of Chainer's matrix
products, convolutions and sums. A function retains its float16 inputs for backward, as
before; float32 copies live for one call only.

On a GPU, CuPy and cuDNN do the same in hardware, and Chainer is not changed. The
exceptions are functions that add to the elements of an array one by one, such as the
gradient of ``F.embed_id``.
"""

import functools

import numpy


def rounded_once(forward, on_gpus=False):
    """Makes a ``forward`` of float16 NumPy arrays compute in float32 and round at last.

    The results are the definition's, ``float16(f(float32(x), float32(W), ...))``, with
    the sums in the order of the float32 BLAS. Numbers beyond float16 become infinite
    without a warning: the loss scale checks for them.

    Integers, such as indices, are not changed.
    """

    @functools.wraps(forward)
    def rounding(self, inputs):
        if not _all_float16(inputs, on_gpus):
            return forward(self, inputs)
        with numpy.errstate(over="ignore"):
            outputs = forward(self, _in_float32(inputs))
            return tuple([y.astype(numpy.float16) for y in outputs])

    return rounding


def rounded_once_everywhere(forward):
    """Wraps a ``forward`` like :func:`rounded_once`, for CuPy arrays too."""
    return rounded_once(forward, on_gpus=True)


def multiplied_in_float32(forward):
    """Makes a ``forward`` that rounds its result itself compute in float32.

    Weight gradients have the weight's dtype, which need not be that of the inputs.
    """

    @functools.wraps(forward)
    def widening(self, inputs):
        if not _all_float16(inputs):
            return forward(self, inputs)
        with numpy.errstate(over="ignore"):
            return forward(self, _in_float32(inputs))

    return widening


def _all_float16(inputs, on_gpus=False):
    n_floats = 0
    for x in inputs:
        if not (on_gpus or type(x) is numpy.ndarray):
            return False
        if x.dtype.kind == "f":
            n_floats += 1
            if x.dtype.char != "e":
                return False
    return n_floats > 0


def _in_float32(inputs):
    return tuple(
        [x.astype(numpy.float32) if x.dtype.char == "e" else x for x in inputs]
    )
