"""Float16 on a CPU as a tensor core does it: multiply and add in float32, round once.

NumPy has no BLAS for float16, and its sums along an outer axis round after every
addition: a sum of equal numbers does not get beyond 2048 of them. The shims of
``_shims_float16.py`` put these decorators on the ``forward`` of Chainer's matrix
products, convolutions and sums. What a function retains for backward are its float16
inputs, as before; float32 copies live for one call only.

On a GPU, CuPy and cuDNN do the same in hardware, and nothing is changed, but for what
adds to the elements of an array one by one, as the gradient of ``F.embed_id`` does.
"""

import functools

import numpy


def rounded_once(forward, on_gpus=False):
    """Makes a ``forward`` of float16 NumPy arrays compute in float32 and round at last.

    The results are the definition's, ``float16(f(float32(x), float32(W), ...))``, with
    the sums in the order of the float32 BLAS. What exceeds float16 becomes infinite
    without a warning: looking for that is the loss scale's business.

    Integers, such as indices, stay what they are.
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
    """As :func:`rounded_once`, for CuPy arrays too."""
    return rounded_once(forward, on_gpus=True)


def multiplied_in_float32(forward):
    """As :func:`rounded_once`, for a ``forward`` that rounds its result by itself.

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
