"""Float16 on a CPU as a tensor core does it: multiply and add in float32, round once.

NumPy has no BLAS for float16, and its sums along an outer axis round after every
addition. The shims of ``_shims_float16.py`` put these decorators on the ``forward`` of
Chainer's matrix products, convolutions and sums. What a function retains for backward
are its float16 inputs, as before; float32 copies live for one call only.

On a GPU, CuPy and cuDNN do the same in hardware, and nothing is changed.
"""

import functools

import numpy


def rounded_once(forward):
    """Makes a ``forward`` of float16 NumPy arrays compute in float32 and round at last.

    The results are the definition's, ``float16(f(float32(x), float32(W), ...))``, with
    the sums in the order of the float32 BLAS. What exceeds float16 becomes infinite
    without a warning: looking for that is the loss scale's business.
    """

    @functools.wraps(forward)
    def rounding(self, inputs):
        if not _all_float16(inputs):
            return forward(self, inputs)
        with numpy.errstate(over="ignore"):
            outputs = forward(self, tuple([x.astype(numpy.float32) for x in inputs]))
            return tuple([y.astype(numpy.float16) for y in outputs])

    return rounding


def multiplied_in_float32(forward):
    """As :func:`rounded_once`, for a ``forward`` that rounds its result by itself.

    Weight gradients have the weight's dtype, which need not be that of the inputs.
    """

    @functools.wraps(forward)
    def widening(self, inputs):
        if not _all_float16(inputs):
            return forward(self, inputs)
        with numpy.errstate(over="ignore"):
            return forward(self, tuple([x.astype(numpy.float32) for x in inputs]))

    return widening


def _all_float16(inputs):
    for x in inputs:
        if type(x) is not numpy.ndarray or x.dtype.char != "e":
            return False
    return True
