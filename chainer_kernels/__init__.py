"""The arithmetic under Chainer's functions and optimizers.

::

    float16_bits         float16 and its bits, in loops that know no float16
    float8               e5m2, exactly as ml_dtypes rounds
    gemm                 products that are added to what is there
    update_rules         the formulas of update rules, each written once
    formulas             what a formula may use, and how it is written in CUDA
    optimizer_loops      the choice between the two:
    optimizer_loops_cpu  update rules and other passes over flat buffers, by Numba
    optimizer_loops_gpu  the same by CuPy
"""
