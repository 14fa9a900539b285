"""Arrays made of weights, kept while the weights are promised not to change.

A product with few rows spends its time on the weights: it reads all of them, and turns
them into an order that suits the processor, for a microbatch as for a minibatch. Within
:func:`unchanged_weights` that is done once, and kept:

::

    W (O, I)        -> packed for oneDNN's product x W^T, and for gy W
    W (O, C, H, W)  -> oneDNN's layout of a convolution, and of its input's gradient
                    -> rows for products of matrices

Only what belongs to a :class:`chainer.Parameter` itself is kept: an array that is
computed of a parameter, as in spectral normalization, is another one in each forward.
The promise may be broken by a layer that writes to its weights in ``forward``. So each
use asks, before it trusts what is kept:

* Is it the same array? A parameter that was given another one has nothing kept.
* Has anybody else read it meanwhile, does anybody else hold it, do function hooks see
  it (:mod:`.watched_parameters`)? Then a checksum of all of it is compared, which costs
  a pass over the weights at the speed of memory. If it differs, kept arrays are
  dropped.

If the array is the same and nobody else can have written to it, the use costs no pass.
The outermost scope drops all kept arrays when it ends. Their size is bounded by a part
of the memory that is free before anything is kept. Beyond the bound, weights are
prepared in each use. Products are computed in the same way, so the bits do not depend
on the memory of a host.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext

import chainer

from chainer_kernels import watched_parameters
from chainer_kernels.kept_weights import Scope, here


def unchanged_weights(n_uses: float = math.inf) -> AbstractContextManager[None]:
    """Promises, in this thread, that parameters do not change in a block.

    Kernels prepare weights once, for all microbatches and calls in the block. Results
    are the same as without the block, except for the last bits of products with few
    rows, which oneDNN computes in another way there. A changed parameter is prepared
    again, if the change was made by Chainer's public interface, or in place by code
    that read its array. So a scope may last for steps of training, but gains nothing
    from one update to the next.

    Args:
        n_uses: How often each parameter is used in the block, if that is known. What
            takes longer to prepare than a few uses gain is not prepared for fewer.

    Returns:
        A context manager. One within another ends nothing.

    Example:
        >>> import chainer, chainer_kernels
        >>> import numpy as np
        >>> model = chainer.links.Linear(3, 2, initialW=1)
        >>> with chainer_kernels.unchanged_weights():
        ...     ys = [model(np.ones((2, 3), 'f')) for _ in range(8)]
        >>> ys[7].array[0]
        array([3., 3.], dtype=float32)
    """
    return _Promise(n_uses)


def scope_for(
    parameters: Iterable[chainer.Parameter],
) -> Callable[..., AbstractContextManager[None]]:
    """Returns the context in which to compute with parameters that stay the same.

    Args:
        parameters: All parameters of the layers.

    Returns:
        :func:`unchanged_weights`; or a context that does nothing, if all parameters
        have shapes and are too small to gain anything.
    """
    for parameter in parameters:
        is_sized = parameter.is_initialized
        if not is_sized or watched_parameters.are_weights(parameter.shape):
            return unchanged_weights
    # The number of uses is the value of a context that does nothing, and is not read.
    return nullcontext


class _Promise(AbstractContextManager):
    """The scope of :func:`unchanged_weights`, which is entered for each minibatch."""

    def __init__(self, n_uses: float) -> None:
        self._n_uses = n_uses
        self._ends: list[bool] = []

    def __enter__(self) -> None:
        is_outermost = here.scope is None
        if is_outermost:
            arrays = watched_parameters.begin().arrays
            here.scope = Scope(arrays, _are_inputs_seen, self._n_uses)
        self._ends.append(is_outermost)

    def __exit__(self, *error: object) -> None:
        if self._ends.pop():
            scope, here.scope = here.scope, None
            scope.end()
            watched_parameters.end()


def _are_inputs_seen() -> bool:
    """Returns whether a function hook might write to the arrays that it sees.

    A hook whose attribute ``only_reads`` is true promises not to.
    """
    hooks = chainer.get_function_hooks()
    return any(not getattr(hook, "only_reads", False) for hook in hooks.values())
