"""The arithmetic under Chainer's functions and optimizers.

Chainer's functions and update rules stay what they are. What computes on NumPy arrays
within them, and some of what computes on CuPy's, is replaced, while their modules are
loaded, by kernels that are faster:

::

    import chainer.functions.activation.relu
      -> chainer_compat finds and loads the module
      -> catalogue            which methods of which classes have a kernel
      -> installing           puts a method in place of each, that asks
      -> switch               whether the kernels are in force here, and calls
      -> functions            what Chainer's method did, over arrays of NumPy, by
      -> loops, providers     compiled loops, and products of matrices

A kernel that does not cover its inputs leaves them to Chainer's own method. The file
``chainer_kernels.pth`` in site-packages imports this module whenever the interpreter
starts, so it stays tiny; the rest is imported with Chainer, and Numba at the first call
of a kernel. Without that file ``import chainer_kernels`` in a script does the same.

They are off where the environment has ``CHAINER_KERNELS=0``.
``python -m chainer_kernels`` prints what is active.

::

    catalogue            which methods have a kernel, and what their backward allows
    installing, switch   kernels in place of methods, in force or not
    hooks                hooks that observe single functions, which then run apart
    functions            the kernels, a module for each family of functions
    contributions        what is added to a weight gradient without being formed
    providers            products and convolutions, by BLAS, oneDNN or cuDNN
    product_dtype        numbers that operands of products are rounded to
    bfloat16             float32 rounded to bfloat16
    prepared_weights     what providers make of weights, kept while these do not change
    kept_weights         the same where there is no Chainer: what is kept, and how much
    watched_parameters   who reads arrays of parameters, and may write to them
    whole_numbers        those of 8-bit numbers, by oneDNN
    convolution_blocks   positions of a convolution that read alike
    window_rows          what they read as rows of a matrix, and rows put in their place
    grouped_convolution  convolutions of groups of few channels, without products
    block_rows           products that skip blocks of zeros
    tile_runs            positions of a convolution, and their tiles
    block_choice         whether a layer is faster so
    loops                compiled loops, a module for each family
    compiling            loops that are compiled when they are called first
    all_loops            every loop, compiled ahead of the first step
    code_cache           compiled code on disk
    threads              loops on several cores
    gemm                 products that are added to what is there
    layouts, geometry    memory orders of activations; shapes of convolutions
    pooling_windows      which cells each window of a pooling reads
    half_precision       arrays of float16, computed in float32 and rounded once
    half_sums            products of float16 matrices whose sums are float16
    global_random        NumPy's global generator, drawn from by compiled loops
    float16_bits         float16 as bits, in loops that know no float16
    float8_bits, float8  e5m2 and e4m3 as bits; e5m2 of arrays, and their rounded sums
    wire_gpu             gradients in fewer bits, on a GPU
    memory               freed arrays, kept for the next step; memory that is free
    memory_limits        memory that a process may still take
    fusion               chains of pointwise functions as one function each
    speed                how fast operators are here, with kernels and without
    text_table           tables of text, such as that of chains
    update_rules         the formulas of update rules, each written once
    chainer_rules        the formula and the numbers that a rule of Chainer's amounts to
    formulas             what a formula may use, and how it is written in CUDA
    optimizer_loops      the choice between the two:
    optimizer_loops_cpu  update rules and other passes over flat buffers, by Numba
    optimizer_loops_gpu  the same by CuPy
"""

from typing import Any

import chainer_compat


def install() -> None:
    """Puts kernels into Chainer's modules, those to be loaded and those that are.

    Importing ``chainer_kernels`` has called it already.
    """
    chainer_compat.plug_in("chainer_kernels.installing")


def enable() -> None:
    """Puts the kernels in force, in all threads.

    Kernels are in force from the start, unless the environment has
    ``CHAINER_KERNELS=0``.

    Example:
        >>> import chainer_kernels
        >>> chainer_kernels.enable()
        >>> chainer_kernels.is_enabled()
        True
    """
    from chainer_kernels import switch

    switch.everywhere.on = True


def disable() -> None:
    """Leaves everything to Chainer's own arithmetic, in all threads.

    Example:
        >>> import chainer_kernels
        >>> chainer_kernels.disable()
        >>> chainer_kernels.is_enabled()
        False
        >>> chainer_kernels.enable()
    """
    from chainer_kernels import switch

    switch.everywhere.on = False
    switch.warn_of_products()


def disabled():
    """Leaves a block to Chainer's own arithmetic, in this thread.

    Returns:
        A context manager.

    Example:
        >>> import chainer_kernels
        >>> with chainer_kernels.disabled():
        ...     chainer_kernels.is_enabled()
        False
    """
    from chainer_kernels import switch

    return switch.disabled()


def is_enabled() -> bool:
    """Returns whether the kernels are in force, here and in this thread."""
    from chainer_kernels import switch

    return switch.is_on()


def products(dtype: str):
    """Rounds operands of products in a block to a dtype, in this thread.

    Convolutions, deconvolutions, linear functions, products of matrices and n-step
    layers round their float32 operands to bfloat16, to nearest, ties to even. They
    multiply and add up in float32, and return float32. So do their gradients of inputs
    and weights, wherever backward runs later. Parameters, gradients and all other
    functions stay float32. See :doc:`/howto/narrow_numbers`.

    Args:
        dtype: ``'bfloat16'``; or ``'float32'``, which rounds nothing.

    Returns:
        A context manager.

    Raises:
        ValueError: The dtype is another one.
        RuntimeError: Kernels are disabled.

    Example:
        >>> import chainer.functions as F, chainer_kernels, numpy as np
        >>> x, W = np.array([[1.01]], "f"), np.array([[100]], "f")
        >>> with chainer_kernels.products('bfloat16'):
        ...     F.linear(x, W).array.item()
        100.78125
    """
    from chainer_kernels import installing, product_dtype, switch

    switch.check_products(dtype)
    installing.keep_product_dtypes()
    return product_dtype.scope(dtype)


def set_products(dtype: str) -> None:
    """Rounds operands of products to a dtype from now on, in all threads.

    Blocks of :func:`products` go before. The environment variable
    ``CHAINER_KERNELS_PRODUCTS=bfloat16`` does the same from the start.

    Args:
        dtype: ``'bfloat16'`` or ``'float32'``.

    Raises:
        ValueError: The dtype is another one.
        RuntimeError: Kernels are disabled.

    Example:
        >>> import chainer_kernels
        >>> chainer_kernels.set_products('bfloat16')
        >>> chainer_kernels.set_products('float32')
    """
    from chainer_kernels import installing, product_dtype, switch

    switch.check_products(dtype)
    installing.keep_product_dtypes()
    product_dtype.everywhere.dtype = dtype


def __getattr__(name: str) -> Any:
    """Loads what few scripts need when it is asked for."""
    if name == "unchanged_weights":
        from chainer_kernels.prepared_weights import unchanged_weights

        return unchanged_weights
    if name == "fuse":
        from chainer_kernels.fusion.report import fuse

        return fuse
    if name == "fusible":
        from chainer_kernels.fusion.trust import fusible

        return fusible
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


install()
