"""A layer whose input is larger than memory, with one segment at a time in memory."""

from __future__ import annotations

from typing import Any

import chainer
import chainer.links as L
import numpy as np

from divisible.communication.errors import TIMEOUT, check_timeout
from divisible.streaming import activations
from divisible.streaming.input_function import InputFunction
from divisible.streaming.input_rows import Lookup
from divisible.streaming.large_input import LargeInput
from divisible.streaming.products import operation_of
from divisible.streaming.segments import rows_of_segment


class StreamedInput(chainer.Link):
    """A layer whose input is larger than memory: a mapped file, a dataset, a generator.

    Forward and backward use one segment of samples after the other. A thread reads the
    next one meanwhile::

        samples       0..255       256..511     512..767     768..1023
                      done         computed     being read   in the file
                                   with

    The product and the activation of a segment are computed while it is in memory. The
    output, the weights and their gradient are in memory as a whole, and two segments;
    the backward reads the input again. :class:`Streamed` is for weights that are
    larger than memory.

    The parameters are those of the link, under the same names. Outputs of ``L.EmbedID``
    have the same bits as in memory. Other outputs have the bits of smaller minibatches,
    which differ where the matrix library computes these in another way. Gradients of
    weights are summed over the segments, so they differ in the order of additions.

    In a :class:`~pipeline.Pipeline`, it is the first layer, and the minibatch is a
    mapped file or another array. A :class:`LargeInput` is for calls of the link itself.

    Args:
        link: ``L.Linear``, ``L.Convolution2D`` or ``L.EmbedID``, with its sizes, in the
            memory of the host.
        activation: ``F.relu``, ``F.leaky_relu``, ``F.elu``, ``F.sigmoid`` or ``F.tanh``
            with Chainer's default arguments; ``None`` for no activation, also for
            embeddings.
        segment (int or str): Number of samples in a segment; ``'auto'`` for as many as
            have 32 MiB, or fit into ``memory``.
        memory (int or str): Bytes of memory for 16 segments, such as ``'512MiB'``.
        timeout (float): Seconds to wait for a segment.

    Raises:
        TypeError: If it is another kind of link.
        ValueError: If an argument has another value than those above.

    Example:
        >>> import chainer.functions as F
        >>> import chainer.links as L
        >>> layer = StreamedInput(L.Linear(1000, 10), activation=F.relu, segment=64)
        >>> x = LargeInput(np.ones((200, 1000), np.float32))
        >>> layer(x).shape, [path for path, _ in layer.namedparams()]
        ((200, 10), ['/W', '/b'])
    """

    def __init__(
        self,
        link: chainer.Link,
        *,
        activation: Any = None,
        segment: int | str = "auto",
        memory: int | float | str | None = None,
        timeout: float = TIMEOUT,
    ) -> None:
        super().__init__()
        activations.check(activation)
        check_timeout(timeout)
        is_lookup = type(link) is L.EmbedID
        if is_lookup and activation is not None:
            raise ValueError(
                f"activation={activation.__name__}: an embedding has none; give the"
                f" function as a layer of its own"
            )
        self._operation = Lookup(link.ignore_label) if is_lookup else operation_of(link)
        if link.W.raw_array is None:
            raise ValueError(
                f"StreamedInput({type(link).__name__}) needs the sizes of its input:"
                f" give them, as in L.Linear(8192, 1024) instead of L.Linear(1024)"
            )
        self._kind, self.activation = type(link), activation
        self._segment, self._memory, self._timeout = segment, memory, timeout
        # Refused here, not in the first call.
        rows_of_segment((1, 1), np.dtype(np.float32), segment, memory)
        with self.init_scope():
            self.W, self.b = link.W, getattr(link, "b", None)

    @property
    def printable_specs(self) -> Any:
        """Yields the names and values that :func:`print` shows."""
        yield "link", self._kind.__name__
        yield "shape", self.W.shape
        yield "activation", getattr(self.activation, "__name__", None)
        yield "segment", self._segment

    def forward(self, x: Any) -> chainer.Variable:
        """Applies the layer, and its activation.

        Args:
            x (LargeInput, array or ~chainer.Variable): The samples. For ``L.Linear``
                their other axes are one.

        Returns:
            ~chainer.Variable: The output, which has the shape of the link's output.

        Raises:
            StoreError: If the input cannot be read; the cause has the traceback.
            TimeoutError: If a segment takes too long to read.
            ValueError: If the gradient of the input is needed.
        """
        if isinstance(x, chainer.Variable):
            if x.requires_grad:
                raise ValueError(
                    "a streamed input has no gradient, which would be as large as the"
                    " input: give the array, or Variable(x, requires_grad=False)"
                )
            x = x.array
        if not isinstance(x, LargeInput):
            x = LargeInput(x)
        is_lookup = isinstance(self._operation, Lookup)
        dtype = x.dtype if is_lookup else self.W.dtype
        rows = rows_of_segment(x.shape, np.dtype(dtype), self._segment, self._memory)
        function = InputFunction(
            self._operation, self.activation, x, rows[0], dtype, self._timeout
        )
        given = (self.W,) if self.b is None else (self.W, self.b)
        return function.apply(given)[0]
