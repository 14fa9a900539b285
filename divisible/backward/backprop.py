"""Backward of one microbatch through one stage, whole or in two halves.

A zero-bubble schedule sends the gradient of a stage's input on as early as it can and
computes weight gradients when the rank would otherwise wait. Chainer has only the whole
backward, so this package traverses the graph itself. The steps between a stage's
inputs, x, and outputs, y::

              I: input gradients, now
        gx <---- Linear <---- ReLU <---- Linear <---- gy
                   :                       :
                   : gW, gb                : gW, gb
              W: weight gradients, later

are assigned to I or W by their results. A *weight* is a parameter or a value computed
from parameters alone, such as ``F.transpose(W)`` for a tie. Every other value is an
activation. Gradients of activations belong to I, gradients of weights to W. A first
stage, whose input needs no gradient, is no exception: the gradient still has to pass
through the activations down to its lowest parameter.

Chainer's functions compute the gradients of the inputs they are asked for. For some
functions, which :mod:`chainer_kernels.catalogue` lists, the gradients of activations
and of weights are independent work. Such a function is called twice. All other
functions, old-style ones included, run whole in I, or whole in W if none of their
activations needs a gradient.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import chainer

from divisible.backward.graph_walk import GraphWalk
from divisible.backward.joint_weights import run_weights_together
from divisible.backward.weight_gradients import WeightGradients

Array = Any


class PendingWeightGradients:
    """The weight gradients of one microbatch that :func:`backward_input` left out.

    This object holds only what they need: the functions with parameters, their retained
    inputs, and the gradients of their outputs. These gradients may include the arrays
    given as output gradients. So do not overwrite those before :meth:`run`.
    """

    def __init__(self, walk: GraphWalk) -> None:
        self._walk: GraphWalk | None = walk

    def run(self) -> None:
        """Computes the weight gradients (W) and releases everything held for them.

        Raises:
            RuntimeError: If they have been computed before.
        """
        self.take().run_weights()

    def take(self) -> GraphWalk:
        """Returns the backward, which then belongs to the caller.

        Raises:
            RuntimeError: If the weight gradients have been computed before.
        """
        if self._walk is None:
            raise RuntimeError(
                "the weight gradients of this microbatch have been computed already"
            )
        walk, self._walk = self._walk, None
        return walk

    def arrays(self) -> Iterator[Array]:
        """Yields the arrays that this object holds, parameters included, some twice."""
        if self._walk is not None:
            yield from self._walk.held_arrays()


def backward(
    inputs: Sequence[chainer.Variable],
    outputs: Sequence[chainer.Variable],
    output_gradients: Sequence[Array | None],
    weight_gradients: WeightGradients,
) -> tuple[Array | None, ...]:
    """Runs the whole backward (B) of one microbatch.

    The results are those of :func:`backward_input` and then
    :meth:`PendingWeightGradients.run`. But weight gradients are computed while their
    operands are in the cache, and nothing is held. For the first microbatch of a
    minibatch, gradients equal those of :meth:`chainer.Variable.backward` bit for bit.
    After that they are equal up to the order of additions.

    The graph is consumed: activations are released on the way, and the outputs keep
    their arrays only.

    Args:
        inputs: The leaf variables from which the forward started. Those with
            ``requires_grad=False``, integers for instance, get no gradient.
        outputs: The outputs of the forward.
        output_gradients: For each output an array of its shape and dtype, or ``None``
            if no gradient flows into it.
        weight_gradients: The object to which gradients of parameters are added, between
            its ``begin`` and ``finish``.

    Returns:
        For each input an array of its shape and dtype, or ``None`` if it needs or gets
        no gradient. It may share memory with one of `output_gradients`.

    Raises:
        ValueError: The number of gradients or a shape does not fit the outputs.
        TypeError: The type or dtype of a gradient does not fit its output.
        Exception: An error of a function, with its layer's ``layer_position``.

    Example:
        >>> import chainer, numpy as np
        >>> link = chainer.links.Linear(2, 1, initialW=3)
        >>> gradients = WeightGradients(link.params)
        >>> gradients.begin()
        >>> for microbatch in np.ones((5, 4, 2), 'f'):
        ...     x = chainer.Variable(microbatch)
        ...     gx, = backward([x], [link(x)], [np.ones((4, 1), 'f')], gradients)
        >>> gradients.finish()
        >>> gx[0], link.W.grad
        (array([3., 3.], dtype=float32), array([[20., 20.]], dtype=float32))
    """
    walk = GraphWalk(weight_gradients, defer=False)
    gradients = walk.run_activations(inputs, [*outputs], [*output_gradients])
    walk.run_weights()
    return gradients


def backward_input(
    inputs: Sequence[chainer.Variable],
    outputs: Sequence[chainer.Variable],
    output_gradients: Sequence[Array | None],
    weight_gradients: WeightGradients,
) -> tuple[tuple[Array | None, ...], PendingWeightGradients]:
    """Computes the input gradients of one microbatch (I); weight gradients come later.

    A function hook is called twice for a function that is split, once in each half.

    Args:
        inputs: See :func:`backward`.
        outputs: See :func:`backward`.
        output_gradients: See :func:`backward`.
        weight_gradients: See :func:`backward`. Functions that cannot be split add to it
            at once.

    Returns:
        The input gradients, as from :func:`backward`, and the work that remains.

    Raises:
        ValueError: The number of gradients or a shape does not fit the outputs.
        TypeError: The type or dtype of a gradient does not fit its output.
        Exception: An error of a function, with its layer's ``layer_position``.

    Example:
        >>> import chainer, numpy as np
        >>> link = chainer.links.Linear(2, 1, initialW=3)
        >>> gradients = WeightGradients(link.params)
        >>> gradients.begin()
        >>> x = chainer.Variable(np.ones((4, 2), 'f'))
        >>> (gx,), pending = backward_input(
        ...     [x], [link(x)], [np.ones((4, 1), 'f')], gradients
        ... )
        >>> gx[0]                                               # send it on, then
        array([3., 3.], dtype=float32)
        >>> pending.run()
        >>> gradients.finish()
        >>> link.W.grad
        array([[4., 4.]], dtype=float32)
    """
    walk = GraphWalk(weight_gradients, defer=True)
    gradients = walk.run_activations(inputs, [*outputs], [*output_gradients])
    return gradients, PendingWeightGradients(walk)


def run_together(
    pending: Sequence[PendingWeightGradients], weight_gradients: WeightGradients
) -> None:
    """Computes the weight gradients of several microbatches as one product each.

    Gradients differ from those of :meth:`PendingWeightGradients.run` for one microbatch
    after the other by the order of additions.

    Args:
        pending: The results of :func:`backward_input` for the microbatches, in order.
        weight_gradients: The object that was passed to all of these calls.

    Raises:
        RuntimeError: If the weight gradients of a microbatch have been computed before.
        Exception: An error of a function, with its layer's ``layer_position``.

    Example:
        >>> import chainer, numpy as np
        >>> link = chainer.links.Linear(2, 1, initialW=3)
        >>> gradients, pending = WeightGradients(link.params), []
        >>> gradients.begin()
        >>> for microbatch in np.ones((5, 4, 2), 'f'):
        ...     x = chainer.Variable(microbatch)
        ...     _, one = backward_input(
        ...         [x], [link(x)], [np.ones((4, 1), 'f')], gradients
        ...     )
        ...     pending.append(one)
        >>> run_together(pending, gradients)
        >>> gradients.finish()
        >>> link.W.grad
        array([[20., 20.]], dtype=float32)
    """
    run_weights_together([each.take() for each in pending], weight_gradients)
