"""The arithmetic under Chainer's functions and optimizers.

::

    float16_bits         float16 and its bits, in loops that know no float16
    float8               e5m2, exactly as ml_dtypes rounds
    gemm                 products that are added to what is there
    optimizer_loops_cpu  update rules on flat buffers, by Numba
    optimizer_loops_gpu  the same by CuPy
"""
