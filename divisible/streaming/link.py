"""A layer whose weights are on disk, with one segment at a time in memory."""

from __future__ import annotations

import contextlib
import os
from typing import Any

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np

from divisible.deferred.array import DeferredArray
from divisible.streaming import activations, initial
from divisible.streaming.directories import usable_directory
from divisible.streaming.embedding import EmbeddingFunction
from divisible.streaming.embedding_parameter import EmbeddingParameter
from divisible.streaming.errors import StoreError
from divisible.streaming.layer_function import LayerFunction
from divisible.streaming.parameter import StreamedParameter
from divisible.streaming.products import operation_of
from divisible.streaming.segment_trial import SegmentTrial
from divisible.streaming.segments import rows_of_segment

#: The key of the chosen segment in a snapshot. No attribute can have such a name.
SEGMENT_KEY = "W.segment"
#: Places for the weights.
STORES = ("disk",)


class Streamed(chainer.Link):
    """A layer whose weights, gradient and optimizer state are larger than memory.

    The weights are in files that are mapped into memory. Forward, backward and update
    use one segment after the other, and read the next one meanwhile::

        rows of W     0..255      256..511     512..767     768..1023
                      written     computed     read ahead   on disk
                      back        with

    The parameters have the same names as in the link, and the same values for the same
    seed. So a snapshot of a model with streamed layers loads into one without, and the
    other way round. Results differ in the order of some additions: the gradient of the
    input is summed over the segments.

    An optimizer's update rules update the segments one by one. All of Chainer's rules
    can do so, because they are elementwise. In a :class:`~pipeline.Pipeline` that knows
    the optimizer, segments are updated while their gradient is computed. A hook of the
    optimizer, such as ``GradientClipping``, gets whole arrays, and reads the gradients
    from their files in another pass. The hook ``WeightDecay`` would make an array as
    large as the weights. So add it to the update rule, which gets segments:
    ``param.update_rule.add_hook``.

    The files have no names, and are gone when the process ends, even if it is killed.
    All their bytes are reserved before they are used. The command ``df`` shows them,
    ``ls`` does not.

    Args:
        link: ``L.Linear``, ``L.Convolution2D`` or ``L.EmbedID`` in float32 or float64,
            with its sizes. It is made in :func:`~divisible.deferred_init`, so that it
            was never in memory. For an embedding, a minibatch reads the rows that it
            needs. An update reads all of them only if its rule keeps a state.
        activation: ``F.relu``, ``F.leaky_relu``, ``F.elu``, ``F.sigmoid`` or ``F.tanh``
            with Chainer's default arguments, applied to each segment of the output
            while it is in the cache. ``None`` for no activation, also for embeddings.
        segment (int or str): Number of rows of W, or output channels, in a segment.
            With ``'auto'`` the first minibatches choose among four numbers at most,
            which are timed for a minibatch each. Each number is half of the one before,
            in segments of 32 MiB to 1 MiB. Snapshots keep the choice. Embeddings are
            not timed.
        store (str): ``'disk'``.
        directory: Directory of the files. By default the one for temporary files, or
            ``/var/tmp`` where that one lies in memory.
        memory (int or str): Bytes of memory for 16 of the layer's segments, such as
            ``'512MiB'``. With it, ``'auto'`` begins with the largest segments that fit.

    Attributes:
        output_dtype (str): Dtype of the output: that of the weights, or ``'float16'``
            in a model that :func:`~mixed_precision.to_float16` has changed.

    Raises:
        TypeError: If it is another kind of link, or has an initializer that cannot draw
            row by row.
        ValueError: If an argument has another value than those above, or a segment is
            too large for the memory.
        StoreError: If the link's arrays exist already, or there is no such directory.

    Example:
        >>> import chainer.functions as F
        >>> import chainer.links as L
        >>> from divisible import Divisible, deferred_init
        >>> with deferred_init(seed=0):
        ...     model = Divisible(
        ...         Streamed(L.Linear(1000, 500), activation=F.relu, segment=100),
        ...         L.Linear(500, 10),
        ...     )
        >>> stage = model.divide()
        >>> stage(np.ones((8, 1000), 'f')).shape
        (8, 10)
        >>> [path for path, _ in stage.namedparams()]
        ['/0/W', '/0/b', '/1/W', '/1/b']
    """

    def __init__(
        self,
        link: chainer.Link,
        *,
        activation: Any = None,
        segment: int | str = "auto",
        store: str = "disk",
        directory: str | os.PathLike | None = None,
        memory: int | float | str | None = None,
    ) -> None:
        super().__init__()
        _check_store(store)
        activations.check(activation)
        self._operation = operation_of(link)
        self._kind, self.activation = type(link), activation
        array = _deferred(link)
        rows = rows_of_segment(array.shape, array.dtype, segment, memory)
        self._is_auto = isinstance(segment, str)
        self.output_dtype = array.dtype.name
        title = f"{type(link).__name__}{array.shape}"
        parameter = StreamedParameter
        if self._operation is None:
            if activation is not None:
                raise ValueError(
                    f"activation={activation.__name__}: an embedding has none; give the"
                    f" function as a layer of its own"
                )
            self.ignore_label = link.ignore_label
            # The time depends more on the ids than on the segments.
            parameter, rows = EmbeddingParameter, rows[:1]
        with self.init_scope():
            self.W = parameter(
                array, SegmentTrial(rows), usable_directory(directory), title
            )
            self.b = getattr(link, "b", None)

    @property
    def segment(self) -> int:
        """Number of rows of a segment, until the end of this minibatch at least."""
        return self.W.trial.rows

    @property
    def segment_seconds(self) -> dict[int, float]:
        """Seconds for a sample, by the number of rows with which they were measured."""
        return dict(self.W.trial.seconds)

    @property
    def printable_specs(self) -> Any:
        """Yields the names and values that :func:`print` shows."""
        yield "link", self._kind.__name__
        yield "shape", self.W.shape
        yield "activation", getattr(self.activation, "__name__", None)
        yield "segment", self.segment

    def serialize(self, serializer: Any) -> None:
        """Loads or saves the parameters, and the chosen segment."""
        super().serialize(serializer)
        if not self._is_auto:
            return
        trial = self.W.trial
        # A snapshot has no choice if the layer was in memory then, or had a fixed
        # segment.
        with contextlib.suppress(KeyError):
            rows = serializer(SEGMENT_KEY, trial.rows if trial.is_chosen else 0)
            # The memory limit of this layer comes first.
            if 0 < rows <= trial.most:
                trial.choose(int(rows))

    def forward(self, x: Any) -> chainer.Variable:
        """Applies the layer, and its activation.

        Args:
            x (~chainer.Variable or numpy.ndarray): A microbatch, as the link gets it.

        Returns:
            ~chainer.Variable: The output, which has the shape of the link's output.
        """
        y = self._outputs(chainer.as_variable(x))
        return y if y.dtype == self.output_dtype else F.cast(y, self.output_dtype)

    def _outputs(self, x: chainer.Variable) -> chainer.Variable:
        if self._operation is None:
            function = EmbeddingFunction(self.W, self.ignore_label)
            return function.apply((x, self.W))[0]
        if self._kind is L.Linear and x.ndim > 2:
            x = F.reshape(x, (len(x), -1))
        given = [x] if self.b is None else [x, self.b]
        # In mixed precision the weights are float32, but the other arrays are not.
        x, *b = (F.cast(v, self.W.dtype) if v.dtype == np.float16 else v for v in given)
        function = LayerFunction(self._operation, self.W, self.activation)
        return function.apply((x, self.W, *b))[0]


def _check_store(store: str) -> None:
    if store == "host":
        raise ValueError(
            "store='host' is for weights that a GPU computes with, which streamed"
            " layers do not: they compute on the processor, with store='disk'"
        )
    if store not in STORES:
        raise ValueError(f"store={store!r}: expected 'disk'")


def why_not(link: chainer.Link) -> str:
    """Returns the reason why a link cannot be streamed; empty if it can.

    Raises:
        StoreError: If its arrays are in memory already.
    """
    try:
        operation_of(link)
        for step in _deferred(link).recipe.steps:
            initial.check(step.write, link.W.shape)
    except (TypeError, ValueError) as error:
        return str(error)
    return ""


def _deferred(link: chainer.Link) -> DeferredArray:
    """Returns the weights, which are not made yet."""
    array = link.W.raw_array
    name = type(link).__name__
    if array is None:
        raise ValueError(
            f"Streamed({name}) needs the sizes of its input: give them, as in"
            f" L.Linear(8192, 1024) instead of L.Linear(1024)"
        )
    if not isinstance(array, DeferredArray):
        raise StoreError(
            f"Streamed({name}): its arrays are in memory already, as a whole. Make the"
            f" layer in a block 'with deferred_init(seed):', and stream it before"
            f" model.divide() makes its arrays"
        )
    if array.dtype.char not in "fd":
        raise ValueError(
            f"Streamed({name}): its weights are {array.dtype}; expected float32 or"
            f" float64"
        )
    return array
